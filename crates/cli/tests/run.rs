//! `skep run`, and `skep map` beside it and after it.

mod common;

use std::io::{BufRead, BufReader, Read, Write};

use common::{LEAVES, Skep, data, json, object, target, text};
use serde_json::json;
use skep_testkit::run::{Signal, children, signal};

#[test]
fn maps_are_printed_with_their_types() {
    let skep = Skep::new();
    let ended = skep.run(["-q", "run", &data("typed.bpf.o"), "--", target(), "3"]);
    assert_eq!(ended.shell_status(), 3, "{}", ended.transcript());
    assert_eq!(
        text(&ended.stdout),
        r#"log (printed, 2 records):
  leaf 0
  leaf 1
shapes (hash, 2 entries):
  { .n = 0, .word = "ab" }: { .calls = 1000, .minus = -1000, .kind = KIND_EVEN }
  { .n = 1, .word = "ab" }: { .calls = 1000, .minus = -1000, .kind = KIND_ODD }
.data:
  wanted = 7
.bss:
  total = 2000
"#
    );
}

#[test]
fn the_json_holds_programs_maps_and_events() {
    let skep = Skep::new();
    let ended = skep.run(["run", &data("typed.bpf.o"), "--json", "--", target(), "3"]);
    let report = json(&ended.stdout);
    assert_eq!((ended.shell_status(), &report["status"]), (3, &json!(3)), "{}", ended.transcript());
    let program = &report["programs"][0];
    assert_eq!(
        (&program["name"], &program["section"]),
        (&json!("leaf"), &json!("uprobe/target:leaf"))
    );
    assert_eq!(
        program["sites"],
        json!({"matched": 1, "attached": 1, "skipped": [], "entry_only": []})
    );
    let map = |name: &str| {
        report["maps"].as_array().unwrap().iter().find(|m| m["map"]["name"] == name).unwrap()
    };
    assert_eq!(map("shapes")["map"]["type"], "hash");
    assert_eq!(
        map("shapes")["entries"],
        json!([
            {"key": {"n": 0, "word": "ab"}, "value": {"calls": 1000, "minus": -1000, "kind": "KIND_EVEN"}},
            {"key": {"n": 1, "word": "ab"}, "value": {"calls": 1000, "minus": -1000, "kind": "KIND_ODD"}},
        ])
    );
    assert_eq!(map(".bss")["entries"], json!([{"key": 0, "value": {"total": 2000}}]));
    assert!(
        !report["maps"].as_array().unwrap().iter().any(|m| m["map"]["name"] == ".rodata"),
        "constants are not shown"
    );
    assert_eq!(
        (&report["events"][0]["total"], &report["events"][0]["records"]),
        (&json!(2), &json!(["leaf 0", "leaf 1"]))
    );
}

#[test]
fn a_program_attaches_where_it_is_told() {
    let skep = Skep::new();
    let count_o = object("count.bpf.o");
    let count = |report: &serde_json::Value| -> u64 {
        let values = report["maps"][0]["entries"][0]["value"]
            .as_array()
            .map(Vec::as_slice)
            .unwrap_or_default();
        values.iter().filter_map(serde_json::Value::as_u64).sum()
    };
    for (args, want) in [
        (&["--attach", "count=leaf"][..], LEAVES),
        (&["--attach", "count=leaf", "--attach", "count=target:twice"], LEAVES + LEAVES / 2),
        (&["--attach", "count=target:*", "--exclude", "[!l]*"], LEAVES),
    ] {
        let args: Vec<&str> = ["run", count_o.as_str(), "--json"]
            .iter()
            .chain(args)
            .chain(&["--", target()])
            .copied()
            .collect();
        let ended = skep.run(&args);
        assert_eq!(
            (ended.shell_status(), count(&json(&ended.stdout))),
            (0, want),
            "{args:?}: {}",
            ended.transcript()
        );
    }
}

/// Programs for the kernel do not keep the others of their object from running, and one that only others
/// call has no functions of its own.
#[test]
fn programs_that_attach_to_no_function_are_left_out() {
    let skep = Skep::new();
    let mixed = data("mixed.bpf.o");
    let variables = |report: &serde_json::Value| -> Vec<u64> {
        let maps = report["maps"].as_array().unwrap();
        let bss = maps.iter().find(|m| m["map"]["name"] == ".bss").unwrap();
        let value = &bss["entries"][0]["value"];
        ["entered", "called", "other"].iter().map(|name| value[name].as_u64().unwrap()).collect()
    };
    let optional = ["--attach", "optional=twice"];
    let moved = ["--attach", "first=twice"];
    for (args, want) in [
        (&[][..], [LEAVES, LEAVES, 0]),
        (&optional, [LEAVES, LEAVES, LEAVES / 2]),
        (&moved, [LEAVES / 2, LEAVES / 2, 0]),
    ] {
        let args = [&["run", mixed.as_str(), "--json"], args, &["--", target()]].concat();
        let ended = skep.run(&args);
        let err = text(&ended.stderr);
        assert_eq!(ended.shell_status(), 0, "{args:?}: {}", ended.transcript());
        assert_eq!(variables(&json(&ended.stdout)), want, "{args:?}: {}", ended.transcript());
        let left = |program: &str| err.contains(&format!("program `{program}`: section"));
        assert_eq!(["in_kernel", "decides", "next"].map(left), [true, true, false], "{err}");
        assert_eq!(err.matches("; it is left out").count(), 2, "{err}");
    }
    // What is asked for by name is not left out.
    let ended = skep.run(["run", &mixed, "--attach", "in_kernel=leaf", "--", target()]);
    let want = "section `kprobe/do_unlinkat` does not attach to functions of a process";
    assert_eq!(ended.shell_status(), 2, "{}", ended.transcript());
    assert!(text(&ended.stderr).contains(want), "{}", ended.transcript());
}

#[test]
fn objects_that_cannot_be_used_are_refused_before_the_command_runs() {
    let skep = Skep::new();
    let bad = data("bad.bpf.o");
    let text_file = data("target.c");
    let count = object("count.bpf.o");
    let filter = data("filter.bpf.o");
    for (args, status, want) in [
        (
            &[bad.as_str()][..],
            1,
            "error: program `count_opens` was rejected: R0 invalid mem access 'map_value_or_null' at insn 7 (bad.bpf.c:17)\n  ; bad.bpf.c:15: ",
        ),
        (&[&text_file], 2, "not an ELF file"),
        (&[target()], 2, "ELF machine is x86-64, not eBPF"),
        (&["/no/such/file"], 2, "cannot read `/no/such/file`"),
        (
            &[&count],
            2,
            "names no function\n\nhint: name the functions with `--attach PROGRAM=PATTERN`",
        ),
        (
            &[&filter],
            2,
            "section `syscall` does not attach to functions of a process\n\nhint: `skep prog run OBJECT PROGRAM` runs it",
        ),
        (
            &[&count, "--attach", "other=x"],
            2,
            "there is no program `other`\n\nhint: the programs are `count`",
        ),
        (&[&count, "--attach", "count"], 2, "expected PROGRAM=PATTERN"),
        (&[&count, "--attach", "count=:x"], 2, "has no module before the colon"),
    ] {
        let args: Vec<&str> =
            ["run"].iter().chain(args).chain(&["--", "echo", "ran"]).copied().collect();
        let ended = skep.run(&args);
        assert_eq!(ended.shell_status(), status, "{args:?}: {}", ended.transcript());
        assert!(text(&ended.stderr).contains(want), "{args:?}: {}", ended.transcript());
        assert!(ended.stdout.is_empty(), "{args:?}: {}", ended.transcript());
    }
}

#[test]
fn maps_are_read_while_the_target_runs_and_after_it_was_killed() {
    let skep = Skep::new();
    let mut child = skep.start(["-q", "run", &data("typed.bpf.o"), "--", target(), "wait"]);
    let mut out = BufReader::new(child.stdout.take().unwrap());
    let mut line = String::new();
    out.read_line(&mut line).unwrap();
    assert_eq!(line, "ready\n");

    let look = |args: &[&str]| {
        let ended = skep.run(args);
        assert_eq!(ended.shell_status(), 0, "{args:?}: {}", ended.transcript());
        text(&ended.stdout)
    };
    let check = || {
        let list = json(look(&["map", "list", "--json"]).as_bytes());
        assert!(
            list.as_array().unwrap().iter().any(|m| m["name"] == "shapes" && m["type"] == "hash"),
            "{list}"
        );
        let dump = json(look(&["map", "dump", "shapes", "--json"]).as_bytes());
        let calls: u64 = dump["entries"]
            .as_array()
            .unwrap()
            .iter()
            .map(|e| e["value"]["calls"].as_u64().unwrap())
            .sum();
        assert_eq!((dump["map"]["type"].as_str(), calls), (Some("hash"), LEAVES));
        let found = look(&["map", "lookup", "shapes", r#"{"n": 1, "word": "ab"}"#]);
        assert_eq!(
            found,
            "{ .n = 1, .word = \"ab\" }: { .calls = 1000, .minus = -1000, .kind = KIND_ODD }\n"
        );
        let raw = look(&["map", "lookup", "shapes", "--raw", "0100000061620000"]);
        assert_eq!(raw, "0x0100000061620000: 0xe80300000000000018fcffffffffffff0200000000000000\n");
        let show = json(look(&["map", "show", "shapes", "--json"]).as_bytes());
        assert_eq!(
            (show["key_size"].as_u64(), show["value_size"].as_u64(), show["max_entries"].as_u64()),
            (Some(8), Some(24), Some(16))
        );
        assert!(look(&["prog", "show"]).contains("uprobe/target:leaf"));
    };
    check();
    let missing = skep.run(["map", "lookup", "shapes", r#"{"n": 5}"#]);
    assert_eq!(
        (missing.shell_status(), text(&missing.stderr).lines().next()),
        (1, Some("error: map `shapes` has no key `{\"n\": 5}`"))
    );
    let wrong = skep.run(["map", "lookup", "shapes", r#"{"x": 5}"#]);
    assert_eq!(wrong.shell_status(), 2, "{}", wrong.transcript());

    // The target dies without a chance to clean up; skep reports it.
    children(child.id()).into_iter().for_each(|target| signal(target, Signal::KILL));
    assert_eq!(child.wait().unwrap().code(), Some(137));
    let mut rest = String::new();
    out.read_to_string(&mut rest).unwrap();
    assert!(rest.contains("total = 2000"), "{rest}");
    check();
}

#[test]
fn maps_outlive_a_killed_loader() {
    let skep = Skep::new();
    let mut child = skep.start([
        "-q",
        "run",
        &object("count.bpf.o"),
        "--attach",
        "count=leaf",
        "--",
        target(),
        "wait",
    ]);
    let mut out = BufReader::new(child.stdout.take().unwrap());
    let mut stdin = child.stdin.take().unwrap();
    let mut line = String::new();
    out.read_line(&mut line).unwrap();
    child.kill().unwrap();
    child.wait().unwrap();
    let dump = || {
        json(&skep.run(["map", "dump", "calls", "--json"]).stdout)["entries"][0]["value"][0]
            .as_u64()
    };
    assert_eq!(dump(), Some(LEAVES), "the target still runs");
    stdin.write_all(b"go\n").unwrap();
    assert_eq!(out.read_line(&mut line).unwrap(), 0, "the target has ended");
    assert_eq!(dump(), Some(LEAVES));
    // The next loader finds a directory with leftovers, and removes them.
    assert_eq!(skep.run(["-q", "run", &data("typed.bpf.o"), "--", target()]).shell_status(), 0);
    let ended = skep.run(["map", "dump", "calls"]);
    assert_eq!(
        (ended.shell_status(), text(&ended.stderr).lines().next()),
        (1, Some("error: there is no map `calls`"))
    );
}

#[test]
fn several_objects_are_attached_at_once() {
    let skep = Skep::new();
    let ended = skep.run([
        "run",
        &data("typed.bpf.o"),
        &object("count.bpf.o"),
        "--attach",
        "count=leaf",
        "--json",
        "--",
        target(),
    ]);
    let report = json(&ended.stdout);
    assert_eq!(ended.shell_status(), 0, "{}", ended.transcript());
    let names: Vec<_> = report["programs"]
        .as_array()
        .unwrap()
        .iter()
        .map(|p| p["name"].as_str().unwrap())
        .collect();
    assert_eq!(names, ["leaf", "count"]);
    let bss =
        report["maps"].as_array().unwrap().iter().find(|m| m["map"]["name"] == ".bss").unwrap();
    let calls =
        report["maps"].as_array().unwrap().iter().find(|m| m["map"]["name"] == "calls").unwrap();
    assert_eq!(bss["entries"][0]["value"]["total"], LEAVES);
    assert_eq!(
        calls["entries"][0]["value"]
            .as_array()
            .unwrap()
            .iter()
            .filter_map(serde_json::Value::as_u64)
            .sum::<u64>(),
        LEAVES
    );
}

#[test]
fn records_of_rings_are_typed_where_the_object_tells() {
    let skep = Skep::new();
    let trace = |object: &str, args: &[&str]| {
        let ended =
            skep.run(["-q", "run", object].iter().chain(args).chain(&["--", target(), "wait"]));
        assert_eq!(ended.shell_status(), 0, "{}", ended.transcript());
        text(&ended.stdout)
    };
    // By the variable that keeps the type in the object.
    let args = object("args.bpf.o");
    let out = trace(&args, &[]);
    assert!(
        out.contains("{ .time_ns = ") && out.contains(", .size = ") && !out.contains("unused"),
        "{out}"
    );
    let report = trace(&args, &["--json"]);
    let report = json(report.trim_start_matches("ready\n").as_bytes());
    for record in report["events"][0]["records"].as_array().unwrap() {
        let at = |key: &str| record[key].as_u64().unwrap_or_else(|| panic!("{record}"));
        // The caller is in another place than the function itself is.
        assert!(at("size") >= 4096 && at("caller") > 0x1000 && at("pid") > 0, "{record}");
    }
    assert!(
        trace(&args, &["--raw"])
            .lines()
            .any(|l| l.starts_with("  ") && l.len() == 2 + 2 * 32 && !l.contains('.')),
        "{out}"
    );
    // By the definition of the ring; a record of another size is bytes.
    let rings = data("rings.bpf.o");
    let out = trace(&rings, &["--allow-unmatched"]);
    let records = |ring: &str| {
        out.lines().skip_while(|l| !l.starts_with(ring)).skip(1).take(2).collect::<Vec<_>>()
    };
    assert_eq!(
        records("defined"),
        ["  { .n = 0, .even = true }", "  { .n = 1, .even = false }"],
        "{out}"
    );
    assert_eq!(records("several"), ["  { .twice = 0 }", "  0100000000000000ff"], "{out}");
}

#[test]
fn a_typo_is_answered_before_the_command_starts() {
    let skep = Skep::new();
    let run = |args: &[&str]| {
        skep.run(["run", &object("count.bpf.o")].iter().chain(args).chain(&[
            "--",
            target(),
            "wait",
        ]))
    };
    let ended = run(&["--attach", "count=leef"]);
    assert_eq!((ended.shell_status(), ended.stdout.len()), (2, 0), "{}", ended.transcript());
    assert!(text(&ended.stderr).contains("similar names are `leaf`"), "{}", ended.transcript());
    let ended = run(&["--attach", "count=leef", "--allow-unmatched"]);
    assert_eq!(ended.shell_status(), 1, "{}", ended.transcript());
    assert!(text(&ended.stdout).starts_with("ready\n"));
    assert_eq!(run(&["--attach", "count=target:leaf,twice"]).shell_status(), 0);
    // What a section names.
    let ended = skep.run(["run", &data("typed.bpf.o"), "--", "true"]);
    assert_eq!(ended.shell_status(), 2, "{}", ended.transcript());
    assert!(
        text(&ended.stderr).contains("`true` is not linked with `target`"),
        "{}",
        ended.transcript()
    );
}

#[test]
fn the_status_of_the_command_is_not_lost_when_the_report_is() {
    let skep = Skep::new();
    for (status, want) in [("7", 7), ("0", 2)] {
        let ended = skep.run([
            "run",
            &object("count.bpf.o"),
            "--attach",
            "count=leaf",
            "-o",
            "/dev/full",
            "--",
            target(),
            status,
        ]);
        assert_eq!(ended.shell_status(), want, "{}", ended.transcript());
    }
}

/// Ctrl-C before the command has begun: it does not begin, and one sentence says so. It used to be the end by
/// that signal, with what was loaded left behind.
#[test]
fn interrupted_before_the_command_begins() {
    let skep = Skep::new();
    let fifo = skep.path("fifo.bpf.o");
    let made = std::process::Command::new("mkfifo").arg(&fifo).status().expect("coreutils");
    assert!(made.success());
    let mut running = skep.start(["run", fifo.to_str().unwrap(), "--", target(), "0"]);
    // It reads the object now, and waits for more.
    let mut object = std::fs::File::options().write(true).open(&fifo).unwrap();
    signal(running.id(), Signal::INT);
    object.write_all(&std::fs::read(data("typed.bpf.o")).unwrap()).unwrap();
    drop(object);
    let mut said = [String::new(), String::new()];
    running.stdout.take().unwrap().read_to_string(&mut said[0]).unwrap();
    running.stderr.take().unwrap().read_to_string(&mut said[1]).unwrap();
    assert_eq!(running.wait().unwrap().code(), Some(130), "{said:?}");
    assert_eq!(said, ["", "error: interrupted before it was attached to anything\n"]);
}
