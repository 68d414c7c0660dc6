//! Global variables of chains, set before their programs are loaded, and what is in maps after a run.

mod common;

use std::process::Command;
use std::time::Duration;

use common::{Skep, fails, json, out, text};
use serde_json::{Value as Json, json};
use skep_testkit::network::{self, command};
use skep_testkit::run::run;
use skep_testkit::skip::{has_command, skip, without_bpf};

const OBJECT: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../skep/tests/data/variables.bpf.o");
const OTHER: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../skep/tests/data/chain.bpf.o");
const LIMIT: Duration = Duration::from_secs(300);

/// A directory with `fw.toml`: `limit` drops packets of less than `least` bytes, `tell` sends records
/// of the others.
fn prepared() -> Skep {
    let skep = Skep::new();
    let program = |object: &str, name: &str| {
        format!("[[program]]\nobject = '{object}'\nprogram = '{name}'\n")
    };
    let all = program(OTHER, "count") + &program(OBJECT, "limit") + &program(OBJECT, "tell");
    std::fs::write(skep.path("fw.toml"), all).unwrap();
    skep
}

/// Runs a chain on 20 packets of 64 and 54 bytes in turn.
fn run_json(skep: &Skep, chain: &str, more: &[&str]) -> Json {
    let args = ["chain", "run", chain, "--in", "gen:64+54", "--packets", "20", "--json"];
    json(out(skep, &[&args[..], more].concat()).as_bytes())
}

/// How many packets passed and were dropped.
fn passed(report: &Json) -> (u64, u64) {
    let count = |verdict: &str| report["verdicts"][verdict].as_u64().unwrap();
    (count("pass"), count("drop"))
}

#[test]
fn variables_are_set_in_the_objects_that_have_them() {
    let skep = prepared();
    let file = skep.path("fw.toml").display().to_string();
    for (least, wanted) in [("60", (10, 10)), ("54", (20, 0)), ("65", (0, 20))] {
        let set = format!("least={least}");
        for engine in ["jit", "interp"] {
            let report = run_json(&skep, &file, &["--set", &set, "--engine", engine]);
            assert_eq!(passed(&report), wanted, "{least} {engine}");
        }
    }
    assert_eq!(passed(&run_json(&skep, &file, &[])), (10, 10));
    let explained = out(&skep, &["chain", "explain", &file, "--in", "gen:54", "--set", "least=1"]);
    assert!(explained.starts_with("packet 1  pass\n"), "{explained}");
    assert!(explained.ends_with("  printed  least 1, length 54\n"), "{explained}");
    let bench = ["chain", "bench", &file, "--in", "gen:54", "--repeat", "10", "--json"];
    let bench = out(&skep, &[&bench[..], &["--set", "least=1"]].concat());
    assert_eq!(json(bench.as_bytes())["verdicts"]["pass"], json!(10));
    for (set, words) in [
        ("lest=1", "there is no global variable `lest`; there is `least`"),
        ("least=x", "`least`: `x` is no `__u32`"),
    ] {
        fails(&skep, &["chain", "run", &file, "--in", "gen:64", "--set", set], 2, words);
        fails(&skep, &["chain", "create", "fw", &file, "--set", set], 2, words);
    }
    let none = "a chain without programs has no variables";
    fails(&skep, &["chain", "create", "fw", "--set", "least=1"], 2, none);
    assert_eq!(json(out(&skep, &["chain", "list", "--json"]).as_bytes()), json!([]));
}

/// A file can say what its programs' variables are: packages that are dropped into a directory have no
/// `--set`.
#[test]
fn files_set_variables() {
    let skep = prepared();
    let file = skep.path("own.toml").display().to_string();
    let limit =
        |more: &str| format!("[[program]]\nobject = '{OBJECT}'\nprogram = 'limit'\n{more}\n");
    let write = |all: &[String]| std::fs::write(&file, all.concat()).unwrap();
    write(&[limit("globals = { least = 65 }")]);
    assert_eq!(passed(&run_json(&skep, &file, &[])), (0, 20));
    // What the command line says goes before that.
    assert_eq!(passed(&run_json(&skep, &file, &["--set", "least=60"])), (10, 10));
    // Programs of one file have the same, those with their own maps another.
    let pass = "on = { 'pass,drop' = 'next' }";
    write(&[
        limit(&format!("globals = {{ least = 64, seen = 7 }}\n{pass}")),
        limit(&format!("globals.least = '64'\n{pass}")),
        limit(&format!("globals = {{ least = 54 }}\nown_maps = true\n{pass}")),
        limit(&format!("globals = {{ least = 65 }}\nown_maps = true\n{pass}")),
    ]);
    let report = run_json(&skep, &file, &["--maps"]);
    let dropped = |n: usize| report["nodes"][n]["verdicts"]["drop"].as_u64().unwrap_or(0);
    assert_eq!([0, 1, 2, 3].map(dropped), [10, 10, 0, 20]);
    let seen = |n: usize| report["maps"][n]["maps"][".data"]["seen"].as_u64().unwrap();
    assert_eq!([0, 1, 2].map(seen), [7 + 40, 1020, 1020]);
    // They are noted, for programs that come later.
    out(&skep, &["chain", "create", "own", &file, "--quiet"]);
    let program = format!("{OBJECT}:limit");
    let add = ["chain", "add", "own", &program, "--first", "--quiet"];
    fails(
        &skep,
        &[&add[..], &["--set", "least=1"]].concat(),
        1,
        "whose variables a new one shares",
    );
    out(&skep, &add);
    let report = run_json(&skep, "own", &[]);
    assert_eq!(report["nodes"][4]["verdicts"], json!({"drop": 10, "pass": 10}));
    for (globals, words) in [
        ("{ lest = 1 }", "there is no global variable `lest`; there is `least`"),
        ("{ least = 'x' }", "`least`: `x` is no `__u32`"),
        ("{ least = 1.5 }", "`least`: `1.5` is no `__u32`"),
        ("{ least = 4294967296 }", "does not fit"),
        ("{ least.part = 1 }", "has no `part`"),
        ("[1]", "invalid type: sequence, expected a map"),
    ] {
        write(&[limit(&format!("globals = {globals}"))]);
        fails(&skep, &["chain", "run", &file, "--in", "gen:64"], 2, words);
    }
    write(&[limit("globals.least = 1"), limit("globals.least = 2")]);
    fails(&skep, &["chain", "run", &file, "--in", "gen:64"], 2, "`least` is both `1` and `2`");
}

#[test]
fn programs_that_share_maps_share_variables() {
    let skep = prepared();
    let file = skep.path("fw.toml").display().to_string();
    let set = ["--set", "least=54", "--set", "seen=5"];
    out(&skep, &[&["chain", "create", "fw", &file, "--quiet"][..], &set].concat());
    assert_eq!(passed(&run_json(&skep, "fw", &[])), (20, 0));
    for command in ["run", "explain", "bench"] {
        let line = ["chain", command, "fw", "--in", "gen:64", "--set", "least=1"];
        fails(&skep, &line, 1, "the programs of chain `fw` are loaded already");
    }
    let program = format!("{OBJECT}:limit");
    let add = ["chain", "add", "fw", &program, "--quiet"];
    out(&skep, &add);
    out(&skep, &[&add[..], &set].concat());
    fails(
        &skep,
        &[&add[..], &["--set", "least=1"]].concat(),
        1,
        "whose variables a new one shares",
    );
    let report = run_json(&skep, "fw", &["--maps"]);
    assert_eq!(passed(&report), (20, 0));
    // Twenty packets before, and three programs for each of these.
    assert_eq!(report["maps"][1]["maps"][".data"], json!({"seen": 5 + 20 + 60}));
    // Its own variables are apart, and known when others are added.
    out(&skep, &[&add[..], &["--own-maps", "--set", "least=64"]].concat());
    let report = run_json(&skep, "fw", &["--maps"]);
    assert_eq!(passed(&report), (10, 10));
    let files = report["maps"].as_array().unwrap();
    let of = |n: usize| (files[n]["programs"].clone(), files[n]["maps"][".bss"].clone());
    assert_eq!(files.len(), 3);
    assert_eq!(of(2), (json!(["limit (6)"]), json!({"dropped": 10})));
    let programs = json!(["limit (2)", "tell (3)", "limit (4)", "limit (5)"]);
    assert_eq!(of(1), (programs, json!({"dropped": 0})));
}

#[test]
fn maps_after_a_run_are_those_of_a_single_program() {
    let skep = prepared();
    let one = skep.path("one.toml").display().to_string();
    for name in ["limit", "tell"] {
        let text = format!("[[program]]\nobject = '{OBJECT}'\nprogram = '{name}'\n");
        std::fs::write(&one, text).unwrap();
        let packets = ["--in", "gen:64+54", "--packets", "9", "--maps", "--set", "least=60"];
        for raw in [&[][..], &["--raw"]] {
            let run =
                |args: &[&str], more: &[&str]| out(&skep, &[args, &packets, raw, more].concat());
            let (chain, program) = (["chain", "run", &one], ["prog", "run", OBJECT, name]);
            let ours = json(run(&chain, &["--json"]).as_bytes());
            let theirs = json(run(&program, &["--json"]).as_bytes());
            assert_eq!(ours["maps"][0]["object"], json!(OBJECT));
            assert_eq!(ours["maps"][0]["programs"], json!([format!("{name} (1)")]));
            // In a hash there is no order, and none between the rings of two processors, if the run
            // moved from one to the other.
            let sorted = |mut maps: Json| {
                for event in maps["events"].as_array_mut().into_iter().flatten() {
                    event["ring"] = json!(0);
                }
                for name in ["by_length", "events"] {
                    if let Some(all) = maps[name].as_array_mut() {
                        all.sort_by_key(ToString::to_string);
                    }
                }
                maps
            };
            let wanted = sorted(theirs["maps"].clone());
            assert!(wanted.as_object().is_some_and(|maps| maps.len() > 1), "{wanted}");
            assert_eq!(sorted(ours["maps"][0]["maps"].clone()), wanted);
            assert_eq!(ours["printed"], theirs["printed"]);
            let lines = |text: String| {
                let from = text.find("sent  ").unwrap();
                let mut lines: Vec<String> = text[from..].lines().map(str::to_owned).collect();
                lines.retain(|line| !line.starts_with("maps of "));
                let ring = |line: &mut String| {
                    if line.starts_with("    ring ") {
                        line.replace_range(9..10, "0");
                    }
                };
                lines.iter_mut().for_each(ring);
                lines.sort();
                lines
            };
            assert_eq!(lines(run(&chain, &[])), lines(run(&program, &[])));
        }
    }
    fails(&skep, &["chain", "run", &one, "--in", "gen:64", "--raw"], 2, "--maps");
}

/// Verdicts of `limit`s in the chain of `two`, by their nodes.
fn dropped(skep: &Skep) -> Vec<(u64, u64)> {
    let shown = json(out(skep, &["chain", "show", "two", "--kernel", "--json"]).as_bytes());
    let all = shown["nodes"].as_array().unwrap().iter().filter(|n| n["program"] == "limit");
    let of = |n: &Json| (n["node"].as_u64(), n["verdicts"]["drop"].as_u64());
    all.map(|n| (of(n).0.unwrap(), of(n).1.unwrap_or(0))).collect()
}

/// Sends ten packets of 64 and ten of 54 bytes to `two`.
fn send(skep: &Skep) {
    let pass = skep.path("pass.toml").display().to_string();
    std::fs::write(&pass, format!("[[program]]\nobject = '{OTHER}'\nprogram = 'count'\n")).unwrap();
    run_json(skep, &pass, &["--out", "*=one"]);
}

#[test]
fn variables_are_set_in_the_kernel_and_stay_set() {
    if without_bpf() || !network::enter(true) {
        return;
    }
    command("mount -t bpf bpf /sys/fs/bpf");
    network::veth("one", "two");
    let skep = prepared();
    let file = skep.path("fw.toml").display().to_string();
    let quiet = |args: &[&str]| drop(out(&skep, &[args, &["--quiet"]].concat()));
    let kernel = |args: &[&str]| quiet(&[args, &["--kernel"]].concat());
    kernel(&["chain", "attach", "two", &file, "--set", "least=64"]);
    send(&skep);
    assert_eq!(dropped(&skep), [(2, 10)]);
    // Whoever changes the chain reads the object again, with the same variables.
    let program = format!("{OBJECT}:limit");
    let add = ["chain", "add", "two", &program, "--first", "--on", "pass"];
    kernel(&add);
    send(&skep);
    assert_eq!(dropped(&skep), [(2, 10), (4, 10)]);
    let other = [&add[..], &["--set", "least=65", "--kernel"]].concat();
    fails(&skep, &other, 1, "whose variables a new one shares");
    kernel(&[&add[..], &["--set", "least=65", "--own-maps"]].concat());
    send(&skep);
    assert_eq!(dropped(&skep), [(2, 10), (4, 10), (5, 20)]);
    kernel(&["chain", "del", "two", "5"]);
    kernel(&["chain", "move", "two", "2", "--first"]);
    send(&skep);
    assert_eq!(dropped(&skep), [(2, 20), (4, 10)]);
    // A file says it, and one program has its own.
    let limit =
        |more: &str| format!("[[program]]\nobject = '{OBJECT}'\nprogram = 'limit'\n{more}\n");
    let own = skep.path("own.toml").display().to_string();
    let all = limit("globals.least = 54") + &limit("globals.least = 64\nown_maps = true");
    std::fs::write(&own, all).unwrap();
    kernel(&["chain", "detach", "two"]);
    kernel(&["chain", "attach", "two", &own]);
    send(&skep);
    assert_eq!(dropped(&skep), [(1, 0), (2, 10)]);
    kernel(&["chain", "move", "two", "2", "--first"]);
    send(&skep);
    assert_eq!(dropped(&skep), [(1, 0), (2, 20)]);
    // A chain of the directory has noted its variables.
    quiet(&["chain", "create", "named", &file, "--set", "least=65"]);
    kernel(&["chain", "detach", "two"]);
    kernel(&["chain", "attach", "two", "named"]);
    send(&skep);
    assert_eq!(dropped(&skep), [(2, 20)]);
    let set = ["chain", "attach", "two", "named", "--kernel", "--set", "least=1"];
    fails(&skep, &set, 1, "the programs of chain `named` are loaded already");
    // By another tool: what the kernel has for the variable, under its name.
    if !has_command("bpftool") {
        return skip("bpftool");
    }
    let ids = run(Command::new("bpftool").args(["-j", "map", "list"]), b"", LIMIT);
    if ids.shell_status() != 0 {
        return;
    }
    let maps = json(&ids.stdout);
    let all = maps.as_array().unwrap().iter().filter(|m| m["name"] == ".rodata");
    let values: Vec<String> = all
        .map(|m| {
            let id = m["id"].to_string();
            text(&run(Command::new("bpftool").args(["map", "dump", "id", &id]), b"", LIMIT).stdout)
        })
        .collect();
    assert!(values.iter().any(|v| v.contains("\"least\": 65")), "{values:?}");
}
