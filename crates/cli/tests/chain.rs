//! `skep chain`: the guide's commands and files, and what is said about wrong ones.

mod common;

use std::time::Duration;

use common::{Skep, json, text};
use serde_json::json;
use skep_testkit::run::run;

/// Longest a command of the guide may take.
const LIMIT: Duration = Duration::from_secs(300);

const GUIDE: &str = include_str!(concat!(env!("CARGO_MANIFEST_DIR"), "/../../docs/chains.md"));

/// The blocks of a page: language and text.
fn blocks(page: &str) -> Vec<(String, String)> {
    let mut all = Vec::new();
    let mut lines = page.lines();
    while let Some(line) = lines.next() {
        if let Some(language) = line.strip_prefix("```") {
            let body: Vec<&str> = lines.by_ref().take_while(|l| *l != "```").collect();
            all.push((language.to_owned(), body.join("\n") + "\n"));
        }
    }
    all
}

/// A directory with the object of the guide, and its packet.
fn prepared() -> Skep {
    let skep = Skep::new();
    let object = concat!(env!("CARGO_MANIFEST_DIR"), "/../skep/tests/data/chain.bpf.o");
    std::fs::copy(object, skep.path("chain.bpf.o")).unwrap();
    let object = concat!(env!("CARGO_MANIFEST_DIR"), "/../skep/tests/data/variables.bpf.o");
    std::fs::copy(object, skep.path("variables.bpf.o")).unwrap();
    std::fs::write(skep.path("packet.bin"), [0; 64]).unwrap();
    std::fs::write(skep.path("short.bin"), [0; 20]).unwrap();
    skep
}

/// Files of the guide are where they say, and the last command of a block of commands prints the
/// block of text behind it.
#[test]
fn the_guide_is_true() {
    let skep = prepared();
    let (mut printed, mut compared) = (None, 0);
    let mut root = false;
    for (language, body) in blocks(GUIDE) {
        root = language == "sh root" || root && language == "text";
        match language.as_str() {
            "toml" => {
                let name = body.lines().next().and_then(|l| l.strip_prefix("# ")).unwrap();
                std::fs::write(skep.path(name), &body).unwrap();
            }
            "sh" => {
                for line in body.lines() {
                    let words = line.split(' ').skip(1).map(|w| w.trim_matches('\'').to_owned());
                    let mut command = skep.command(words.chain(["--quiet".to_owned()]));
                    let ended = run(command.current_dir(skep.path(".")), b"", LIMIT);
                    let refused = line.contains("--on tx");
                    assert_eq!(ended.shell_status() == 0, !refused, "{}", ended.transcript());
                    printed = Some(text(&ended.stdout) + &text(&ended.stderr));
                }
            }
            // What those print, of interfaces that are not here.
            "text" if root => {}
            "text" => {
                assert_eq!(printed.take().as_ref(), Some(&body));
                compared += 1;
            }
            // `chain_kernel.rs` runs those.
            "sh root" => {}
            other => panic!("a block of `{other}`"),
        }
    }
    assert_eq!(compared, 8);
}

/// An object's names went to the terminal as they are, which one of them cleared here, and no SVG with
/// one could be read.
#[test]
fn names_with_control_characters_are_refused_and_only_shown() {
    let skep = prepared();
    let path = skep.path("variables.bpf.o");
    let mut object = std::fs::read(&path).unwrap();
    let places: Vec<usize> = (0..object.len() - 6)
        .filter(|at| object[*at..].starts_with(b"limit\0") || object[*at..].starts_with(b"least\0"))
        .collect();
    assert!(places.len() > 3);
    places.iter().for_each(|at| object[*at..*at + 5].copy_from_slice(b"l\x1b[2J"));
    std::fs::write(&path, object).unwrap();
    let file = skep.path("bad.toml").display().to_string();
    std::fs::write(&file, "[[program]]\nobject = 'variables.bpf.o'\nprogram = 'tell'\n").unwrap();
    let object = path.display().to_string();
    for line in [
        &["chain", "create", "bad", &file][..],
        &["chain", "run", &file, "--in", "gen:64", "--packets", "1"],
        &["prog", "show", &object],
        &["prog", "verify", &object],
        &["prog", "run", &object, "tell"],
    ] {
        let ended = skep.run(line.iter().copied());
        assert_ne!(ended.shell_status(), 0, "{}", ended.transcript());
        let said = text(&ended.stderr);
        assert!(said.contains(r"`l\u{1b}[2J` has a control character"), "{}", ended.transcript());
        assert!(!said.contains('\x1b') && ended.stdout.is_empty(), "{}", ended.transcript());
    }
    // Names of files, and those that a chain's file asks for, are shown.
    for (text_of, file) in [("program = \"l\\u001b[2J\"", "named.toml"), ("x", "l\x1b[2J.toml")] {
        let file = skep.path(file).display().to_string();
        let text_of = format!("[[program]]\nobject = 'chain.bpf.o'\n{text_of}\n");
        std::fs::write(&file, text_of).unwrap();
        let ended = skep.run(["chain", "run", &file, "--in", "gen:64", "--packets", "1"]);
        let said = text(&ended.stderr);
        assert!(said.contains(r"l\u{1b}[2J") && !said.contains('\x1b'), "{}", ended.transcript());
    }
}

#[test]
fn places_that_are_not_there_are_refused() {
    let skep = prepared();
    let object = skep.path("chain.bpf.o").display().to_string();
    let mark = format!("{object}:mark");
    let refused = |args: &[&str]| {
        let ended = skep.run([&["chain"], args].concat());
        assert_ne!(ended.shell_status(), 0, "{args:?}: {}", ended.transcript());
        text(&ended.stderr)
    };
    assert_eq!(skep.run(["chain", "create", "fw"]).shell_status(), 0);
    // Also while there is no other place.
    assert_eq!(refused(&["add", "fw", &mark, "--after", "7"]), "error: there is no node 7\n");
    assert_eq!(skep.run(["chain", "add", "fw", &mark]).shell_status(), 0);
    let behind_itself = refused(&["move", "fw", "2", "--after", "2"]);
    assert_eq!(behind_itself, "error: there is no node 2\n", "{behind_itself}");
    assert_eq!(skep.run(["chain", "add", "fw", &mark]).shell_status(), 0);
    let number = text(&skep.run(["chain", "show", "fw", "--json"]).stdout);
    let last = json(number.as_bytes())["nodes"][1]["node"].to_string();
    let behind_itself = refused(&["move", "fw", &last, "--after", &last]);
    assert_eq!(behind_itself, format!("error: node {last} cannot be put behind itself\n"));
    assert_eq!(text(&skep.run(["chain", "show", "fw", "--json"]).stdout), number);
    let packet = refused(&["explain", "fw", "--in", "gen:64", "--packet", "0"]);
    assert_eq!(packet, "error: there is no packet 0: the first one is packet 1\n");
    let size = refused(&["run", "fw", "--in", "gen:20", "--packets", "1"]);
    assert_eq!(size, "error: `gen:20`: packets have 50 to 262144 bytes, not 20\n");
}

#[test]
fn a_chain_is_made_shown_and_removed() {
    let skep = prepared();
    let path = |name: &str| skep.path(name).display().to_string();
    let done = |args: &[&str]| {
        let ended = skep.run(args);
        assert_eq!(ended.shell_status(), 0, "{}", ended.transcript());
        ended
    };
    done(&["chain", "create", "fw"]);
    let object = path("chain.bpf.o");
    done(&["chain", "add", "fw", &format!("{object}:drop_short")]);
    done(&["chain", "add", "fw", &format!("{object}:push")]);
    let shown = json(&done(&["chain", "show", "fw", "--json"]).stdout);
    let edges = json!([{"on": "pass", "to": {"node": 2}, "bound": null}]);
    assert_eq!(
        shown,
        json!({
            "id": 1, "name": "fw", "type": "xdp", "revision": 3, "budget": 32, "exhausted": "stop",
            "entry": 1,
            "nodes": [
                {"node": 1, "program": "drop_short", "program_id": 1, "edges": edges},
                {"node": 2, "program": "push", "program_id": 2, "edges": []},
            ],
        })
    );
    assert_eq!(json(&done(&["chain", "list", "--json"]).stdout), json!([shown]));
    let dot = text(&done(&["chain", "show", "fw", "--dot"]).stdout);
    assert!(dot.contains("n1 -> n2 [label=\"pass\"];"), "{dot}");
    let svg = text(&done(&["chain", "show", "1", "--svg"]).stdout);
    assert!(svg.starts_with("<svg ") && svg.contains(">2 push<"), "{svg}");
    let (long, short) = (path("packet.bin"), path("short.bin"));
    let told = done(&["chain", "explain", "fw", "--data-in", &long, "--data-in", &short, "--json"]);
    let told = json(&told.stdout);
    assert_eq!((&told[0]["verdict"], &told[1]["verdict"]), (&json!("tx"), &json!("drop")));
    assert_eq!((&told[0]["path"][1]["head"], &told[1]["path"][1]), (&json!(4), &json!(null)));
    for engine in ["jit", "interp"] {
        let args = ["chain", "bench", "fw", "--data-in", &short, "--repeat", "500", "--json"];
        let ran = done(&[&args[..], &["--engine", engine]].concat());
        let ran = json(&ran.stdout);
        assert_eq!((&ran["verdict"], &ran["nodes"][0]["runs"]), (&json!("drop"), &json!(500)));
        assert_eq!(ran["nodes"][0]["verdicts"], json!({"drop": 500}));
        assert_eq!(ran["nodes"][0]["bytes"], json!(500 * 20));
        assert_eq!(ran["edges"][0]["taken"], json!(0));
    }
    done(&["chain", "del", "fw", "1", "--bridge", "drop"]);
    let shown = json(&done(&["chain", "show", "fw", "--json"]).stdout);
    assert_eq!((&shown["entry"], &shown["nodes"][0]["program"]), (&json!(2), &json!("push")));
    let unpinned = text(&done(&["chain", "unpin", "fw"]).stderr);
    assert_eq!(unpinned, "nobody uses chain `fw`: it is removed\n");
    assert!(done(&["chain", "list"]).stdout.is_empty());
    done(&["chain", "create", "other"]);
    done(&["chain", "del", "other"]);
    assert!(done(&["chain", "list"]).stdout.is_empty());
}

/// Packets of a generator go through a chain to files, and are counted by node and edge.
#[test]
fn packets_run_through_a_chain_to_files() {
    let skep = prepared();
    let path = |name: &str| skep.path(name).display().to_string();
    let file = "[[program]]\nobject = 'chain.bpf.o'\nprogram = 'drop_short'\n\
                [[program]]\nobject = 'chain.bpf.o'\nprogram = 'push'\non = { tx = 'end:pass' }\n";
    std::fs::write(skep.path("fw.toml"), file).unwrap();
    let out = format!("pass={},drop={}", path("ok.pcap"), path("bad.pcap"));
    for engine in [&["--engine", "jit"][..], &["--engine", "interp"], &["--time"]] {
        let args = ["chain", "run", &path("fw.toml"), "--in", "gen:64+54", "--packets", "1000"];
        let ended = skep.run(args.iter().chain(&["--out", &out, "--json"]).chain(engine));
        assert_eq!(ended.shell_status(), 0, "{}", ended.transcript());
        let mut ran = json(&ended.stdout);
        assert_eq!((&ran["packets"], &ran["bytes"]), (&json!(1000), &json!(500 * (64 + 54))));
        assert_eq!(ran["verdicts"]["pass"], json!(500));
        assert_eq!(ran["sent"], json!({"packets": 1000, "bytes": 500 * (68 + 54)}));
        let times: Vec<u64> =
            (0..2).map(|n| ran["nodes"][n]["ns"].take().as_u64().unwrap()).collect();
        assert_eq!(times.iter().all(|ns| *ns > 0), engine == ["--time"]);
        assert_eq!(
            ran["nodes"],
            json!([
                {"node": 1, "program": "drop_short", "runs": 1000, "bytes": 500 * (64 + 54),
                 "ns": null, "verdicts": {"drop": 500, "pass": 500}},
                {"node": 2, "program": "push", "runs": 500, "bytes": 500 * 64,
                 "ns": null, "verdicts": {"tx": 500}},
            ])
        );
        assert_eq!(
            ran["edges"],
            json!([
                {"from": 1, "on": "pass", "to": {"node": 2}, "taken": 500, "refused": 0},
                {"from": 2, "on": "tx", "to": {"end": "pass"}, "taken": 500, "refused": 0},
            ])
        );
        let lengths = |name: &str| std::fs::metadata(skep.path(name)).unwrap().len();
        assert_eq!((lengths("ok.pcap"), lengths("bad.pcap")), (24 + 500 * 84, 24 + 500 * 70));
    }
    let ended = skep.run(["chain", "run", &path("fw.toml")]);
    assert!(text(&ended.stderr).contains("no packets: give `--in PORT`"), "{}", ended.transcript());
}

#[test]
fn what_is_wrong_is_said() {
    let skep = prepared();
    let object = skep.path("chain.bpf.o").display().to_string();
    assert_eq!(skep.run(["chain", "create", "fw"]).shell_status(), 0);
    let program = format!("{object}:nothing");
    for (args, status, message) in [
        (&["create", "fw"][..], 1, "there already is a chain `fw`"),
        (&["create", "7"], 1, "`7` cannot be the name of a chain"),
        (&["create", "x", "--type", "foo"], 2, "`foo` is not a program type"),
        (&["show", "nobody"], 1, "there is no chain `nobody`"),
        (&["add", "fw", &object], 2, "names no program"),
        (&["add", "fw", &program], 1, "nothing"),
        (&["del", "fw", "9"], 1, "there is no node 9"),
        (&["del", "fw", "9", "--bridge", "foo"], 2, "--bridge: `foo` is no verdict"),
        (&["connect", "fw", "1", "--on", "foo", "--to", "keep"], 2, "--on: `foo` names no verdict"),
        (&["connect", "fw", "1", "--on", "*", "--to", "foo"], 2, "--to: `foo` is no target"),
    ] {
        let ended = skep.run(["chain"].iter().chain(args));
        let said = text(&ended.stderr);
        assert!(said.contains(message), "{args:?}: {}", ended.transcript());
        assert!(ended.shell_status() == status || message == "nothing", "{}", ended.transcript());
    }
    for (file, message) in [
        ("budget = 3", "describes no program"),
        ("[[program]]\nobject = \"chain.bpf.o\"", "line 1: missing field `program`"),
        ("budget = 1\nfoo = 2", "line 2: unknown field `foo`"),
        (
            "type = \"tc\"\n[[program]]\nobject='chain.bpf.o'\nprogram='mark'",
            "`tc` is not a program type",
        ),
        (
            "type = \"sched_cls\"\n[[program]]\nobject='chain.bpf.o'\nprogram='mark'",
            "program `mark` is of type `xdp`, and the chain of type `sched_cls`",
        ),
        (
            "type = \"sched_cls\"\norder = \"priority\"\n\
             [[program]]\nobject='chain.bpf.o'\nprogram='mark'",
            "`order = \"priority\"` is for XDP programs",
        ),
        (
            "[[program]]\nobject='chain.bpf.o'\nprogram='mark'\non={pass='nobody'}",
            "there is no program `nobody`",
        ),
        (
            "[[program]]\nobject='chain.bpf.o'\nprogram='mark'\non={pass='mark'}",
            "the chain would never end: 1 (mark) -> 1 (mark)",
        ),
        (
            "[[program]]\nobject='chain.bpf.o'\nprogram='mark'\non={pass='end','1-2'='end:tx'}",
            "`1-2` and `pass` of `mark` have a verdict in common",
        ),
        ("[[program]]\nobject='no.bpf.o'\nprogram='mark'", "no.bpf.o"),
        ("at_end='last'\n[[program]]\nobject='chain.bpf.o'\nprogram='mark'", "`at_end` needs"),
        (
            "[[program]]\nobject='chain.bpf.o'\nprogram='mark'\nlabel='next'",
            "`next` cannot be a label, as edges to it would lead elsewhere",
        ),
        ("[[program]]\nobject='chain.bpf.o'\nprogram='mark'\nlabel='end:tx'", "`end:tx` cannot"),
        ("[[program]]\nobject='chain.bpf.o'\nprogram='mark'\nlabel=''", "`` cannot be a label"),
        (
            "[[program]]\nobject='chain.bpf.o'\nprogram='mark'\nlabel='a'\n\
             [[program]]\nobject='chain.bpf.o'\nprogram='push'\nlabel='a'",
            "there already is a program with label `a`",
        ),
        (
            "[[program]]\nobject='chain.bpf.o'\nprogram='mark'\non={pass=2}",
            "line 4: invalid type: integer `2`, expected a target, as in `pass = \"next\"`, or `{ to = \"LABEL\", times = 3 }`",
        ),
        (
            "[[program]]\nobject='chain.bpf.o'\nprogram='mark'\non={pass={to='mark',times=0}}",
            "a budget or bound is 1 at least",
        ),
        ("[[program]]\nobject='chain.bpf.o'\nprogram='mark'\npriority=1", "order = \"priority\""),
    ] {
        let path = skep.path("wrong.toml").display().to_string();
        std::fs::write(&path, file).unwrap();
        let ended = skep.run(["chain", "create", "wrong", &path]);
        assert!(text(&ended.stderr).contains(message), "{file}: {}", ended.transcript());
        assert_ne!(ended.shell_status(), 0);
    }
    assert_eq!(text(&skep.run(["chain", "list"]).stdout).lines().count(), 1, "nothing was left");
}

/// The error about a cycle asks for a bound, which only `connect` could give.
#[test]
fn a_file_gives_edges_bounds() {
    let skep = prepared();
    let file = skep.path("round.toml").display().to_string();
    let text = "[[program]]\nobject = 'chain.bpf.o'\nprogram = 'mark'\n\
                [[program]]\nobject = 'chain.bpf.o'\nprogram = 'count'\n\
                on = { pass = { to = 'mark', times = 3 }, drop = { to = 'end' } }\n";
    std::fs::write(&file, text).unwrap();
    let ended = skep.run(["chain", "run", &file, "--in", "gen:64", "--packets", "5", "--json"]);
    assert_eq!(ended.shell_status(), 0, "{}", ended.transcript());
    let ran = json(&ended.stdout);
    assert_eq!([0, 1].map(|n| ran["nodes"][n]["runs"].as_u64()), [Some(20), Some(20)]);
    let back = json!({"from": 2, "on": "pass", "to": {"node": 1}, "taken": 15, "refused": 5});
    assert_eq!(ran["edges"][2], back);
}

/// Files described XDP programs only, though chains have programs of every type.
#[test]
fn a_file_describes_chains_of_other_types() {
    let skep = prepared();
    let object = concat!(env!("CARGO_MANIFEST_DIR"), "/../skep/tests/data/test_run/skb.bpf.o");
    let file = skep.path("tc.toml").display().to_string();
    let write = |on: &str| {
        let text = format!(
            "type = 'sched_cls'\n[[program]]\nobject = '{object}'\nprogram = 'tc_write'\n{on}\n\
             [[program]]\nobject = '{object}'\nprogram = 'tc_narrow'\n"
        );
        std::fs::write(&file, text).unwrap();
    };
    write("on = { '*' = 'next' }");
    let packet = skep.path("packet.bin").display().to_string();
    let explain = ["chain", "explain", &file, "--data-in", &packet, "--json"];
    let explained = || json(&skep.run(explain).stdout);
    let told = explained();
    let programs: Vec<_> = (0..2).map(|n| told[0]["path"][n]["program"].clone()).collect();
    assert_eq!(programs, ["tc_write", "tc_narrow"], "{told}");
    write("on = { '*' = 'end:2' }");
    assert_eq!(explained()[0]["path"].as_array().map(Vec::len), Some(1));
    let bench = ["chain", "bench", &file, "--data-in", &packet, "--repeat", "5", "--json"];
    assert_eq!(json(&skep.run(bench).stdout)["nodes"][0]["runs"], json!(5));
    let ended = skep.run(["chain", "create", "tc", &file]);
    assert_eq!(ended.shell_status(), 0, "{}", ended.transcript());
    let shown = json(&skep.run(["chain", "show", "tc", "--json"]).stdout);
    assert_eq!(
        (&shown["type"], &shown["nodes"][1]["program"]),
        (&json!("sched_cls"), &json!("tc_narrow"))
    );
    let ended = skep.run(["chain", "run", &file, "--in", "gen:64"]);
    assert!(text(&ended.stderr).contains("packets of a source go to"), "{}", ended.transcript());
}

/// A program is put into a chain whatever its section is called, as `ip link set … xdp` attaches it;
/// messages asked for `--type`, which chains do not have.
#[test]
fn a_chain_says_of_which_type_a_program_is() {
    let skep = prepared();
    let object = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/data/unnamed.bpf.o");
    let file = skep.path("unnamed.toml").display().to_string();
    let text = format!("[[program]]\nobject = '{object}'\nprogram = 'mine/leaf'\n");
    std::fs::write(&file, text).unwrap();
    for prog_type in ["xdp", "sched_cls"] {
        let ended = skep.run(["chain", "create", prog_type, "--type", prog_type]);
        assert_eq!(ended.shell_status(), 0, "{}", ended.transcript());
        let ended = skep.run(["chain", "add", prog_type, &format!("{object}:count")]);
        assert_eq!(ended.shell_status(), 0, "{}", ended.transcript());
        let packet = skep.path("packet.bin").display().to_string();
        let line = ["chain", "bench", prog_type, "--data-in", &packet, "--json", "--repeat", "3"];
        assert_eq!(json(&skep.run(line).stdout)["nodes"][0]["runs"], json!(3));
    }
    // Of one object, once as it is and once with the maps of the first.
    for _ in 0..2 {
        let ended = skep.run(["chain", "add", "xdp", &format!("{object}:count"), "--on", "*"]);
        assert_eq!(ended.shell_status(), 0, "{}", ended.transcript());
    }
    for chain in ["xdp", &file] {
        let ended = skep.run(["chain", "run", chain, "--in", "gen:64", "--packets", "5", "--json"]);
        assert_eq!(json(&ended.stdout)["verdicts"]["aborted"], json!(5), "{}", ended.transcript());
    }
}

/// Packages bring files of their own; the names decide about the order.
#[test]
fn files_of_a_directory_are_one_chain() {
    let skep = prepared();
    let dir = skep.path("chain.d");
    std::fs::create_dir(&dir).unwrap();
    for (name, program) in [("20-mark", "mark"), ("10-short", "drop_short"), ("30-no", "count")] {
        let file = format!("[[program]]\nobject = \"../chain.bpf.o\"\nprogram = \"{program}\"\n");
        let extension = if program == "count" { "txt" } else { "toml" };
        std::fs::write(dir.join(format!("{name}.{extension}")), file).unwrap();
    }
    let ended = skep.run(["chain", "create", "all", &dir.display().to_string()]);
    assert_eq!(ended.shell_status(), 0, "{}", ended.transcript());
    let shown = json(&skep.run(["chain", "show", "all", "--json"]).stdout);
    let names: Vec<_> = shown["nodes"].as_array().unwrap().iter().map(|n| &n["program"]).collect();
    assert_eq!(names, ["drop_short", "mark"]);
    // What editors leave there, and what is no file.
    std::fs::write(dir.join(".20-mark.toml"), "budget = 3").unwrap();
    std::os::unix::fs::symlink("nowhere", dir.join(".#30-no.toml")).unwrap();
    std::fs::create_dir(dir.join("50-more.toml")).unwrap();
    // A chain goes before a directory of its name.
    let nodes = || {
        let line = ["chain", "run", "chain.d", "--in", "gen:64", "--packets", "1", "--json"];
        let mut command = skep.command(line);
        let ended = run(command.current_dir(skep.path(".")), b"", LIMIT);
        json(&ended.stdout)["nodes"].as_array().map(Vec::len)
    };
    assert_eq!(nodes(), Some(2));
    assert_eq!(skep.run(["chain", "create", "chain.d"]).shell_status(), 0);
    assert_eq!(nodes(), Some(0));
    assert_eq!(skep.run(["chain", "del", "chain.d"]).shell_status(), 0);
    std::fs::write(dir.join("40-other.toml"), "budget = 3").unwrap();
    std::fs::write(dir.join("60-other.toml"), "budget = 4").unwrap();
    let ended = skep.run(["chain", "create", "more", &dir.display().to_string()]);
    assert!(text(&ended.stderr).contains("another `budget`"), "{}", ended.transcript());
}
