//! Probes that programs declare (USDT), and places inside functions: for a command, and in a process
//! that runs already.

mod common;

use std::io::Write;
use std::path::PathBuf;
use std::process::Command;

use common::live::{Target, Tracer, changed};
use common::{Skep, data, fails, json};
use serde_json::Value as Json;
use skep_testkit::TempDir;
use skep_testkit::cc::Cc;

/// How often the target runs through its probes.
const ROUNDS: u64 = 200;

/// Ways to declare a probe and to place its arguments.
const BUILDS: [&[&str]; 4] =
    [&["-O2"], &["-O0"], &["-O2", "-DLONG"], &["-O1", "-DLONG", "-no-pie"]];

fn compile(flags: &[&str]) -> (TempDir, PathBuf) {
    let dir = TempDir::new();
    let program = Cc::c().args(flags).compile(&[data("probes.c").as_ref()], &dir.join("probes"));
    (dir, program)
}

fn map<'r>(report: &'r Json, name: &str) -> &'r Json {
    let maps = report["maps"].as_array().expect("a list");
    &maps.iter().find(|m| m["map"]["name"] == name).unwrap_or_else(|| panic!("{report}"))["entries"]
}

/// What the programs saw of so many rounds.
fn check(report: &Json, rounds: u64) {
    let sum = rounds * (rounds - 1) / 2;
    let seen = &map(report, "probes")[0]["value"];
    let numbers = |name: &str| seen[name].as_i64().expect("a number");
    assert_eq!(numbers("calls") as u64, rounds, "{report}");
    assert_eq!((numbers("count"), numbers("cookie")), (5, 0));
    assert_eq!(numbers("id") as u64, sum, "4 bytes, signed");
    assert_eq!(numbers("size") as u64, 10 * sum + rounds);
    assert_eq!(numbers("letter"), -3 * rounds as i64, "one byte, signed");
    assert_eq!(numbers("constant") as u64, 1000 * rounds);
    assert_eq!(seen["path"], "/a/path");
    let globals = &map(report, ".bss")[0]["value"];
    assert_eq!(globals["done"], 3 * sum + 3 * rounds, "one argument, in a loop");
    assert_eq!(globals["inside"], rounds);
    // `cmp $5, n` carries for n below 5.
    assert_eq!(globals["carried"], 5, "flags as they are there");
    let hidden = |m: &Json| m["map"]["name"].as_str().is_some_and(|n| n.starts_with("__bpf_usdt"));
    assert!(!report["maps"].as_array().expect("a list").iter().any(hidden), "libbpf's own maps");
}

const PLACE: &str = "place=probes:carry+0x7";

#[test]
fn a_command_with_probes_of_every_kind() {
    let skep = Skep::new();
    for flags in BUILDS {
        let (_dir, program) = compile(flags);
        let program = program.to_str().expect("a path we made");
        let args = ["run", "--json", &data("usdt.bpf.o"), "--attach", PLACE, "--", program];
        let ended = skep.run_with(args, format!("go {ROUNDS} listened").as_bytes());
        assert_eq!(ended.shell_status(), 7, "{flags:?} {}", ended.transcript());
        let text = String::from_utf8_lossy(&ended.stdout).into_owned();
        let (own, report) = text.split_once('{').expect("a document");
        assert_eq!(own, "ready\ndone\n1\n", "{flags:?}: the semaphore");
        check(&json(format!("{{{report}").as_bytes()), ROUNDS);
    }
}

/// With the header of systemtap, where it is installed.
#[test]
fn probes_of_the_usual_header() {
    let found =
        Command::new("cc").args(["-E", "-include", "sys/sdt.h", "-x", "c", "/dev/null"]).output();
    if !found.is_ok_and(|done| done.status.success()) {
        return skep_testkit::skip("sys/sdt.h");
    }
    let skep = Skep::new();
    let (_dir, program) = compile(&["-O2", "-DHEADER"]);
    let program = program.to_str().expect("a path we made");
    let args = ["run", "--json", &data("usdt.bpf.o"), "--attach", PLACE, "--", program];
    let ended = skep.run_with(args, format!("go {ROUNDS}").as_bytes());
    let text = String::from_utf8_lossy(&ended.stdout).into_owned();
    let report = &text[text.find('{').expect("a document")..];
    check(&json(report.as_bytes()), ROUNDS);
}

/// Semaphores count who listens while programs are attached; all code is as before afterwards.
#[test]
fn a_process_that_runs_already() {
    let skep = Skep::new();
    let (dir, program) = compile(&["-O2"]);
    let mut target = Target::start(dir, program.clone(), &Command::new(&program));
    let before = target.state();
    let args = [&data("usdt.bpf.o"), "--attach", PLACE];
    for _ in 0..3 {
        let listened = |target: &mut Target| {
            let line = writeln!(target.running.stdin.as_mut().expect("a pipe"), "listened");
            line.expect("it reads");
            target.line()
        };
        assert_eq!(listened(&mut target), "0");
        let tracer = Tracer::start(&skep, &target, "run", &args);
        assert_eq!(listened(&mut target), "1");
        target.tell(&format!("go {ROUNDS}"));
        let report = tracer.end();
        check(&report, ROUNDS);
        assert_eq!(listened(&mut target), "0");
        let after = target.state();
        assert!(after.code == before.code, "{}", changed(&before, &after));
        target.tell("go 3");
    }
    target.end();
}

/// One error each, which says what there is.
#[test]
fn wrong_probes_and_places_are_told() {
    let skep = Skep::new();
    let (_dir, program) = compile(&["-O2"]);
    let program = program.to_str().expect("a path we made");
    let object = data("usdt.bpf.o");
    let run = |attach: &str, status, words: &str| {
        let attach = ["--attach", attach];
        let both: &[&str] = if attach[1].starts_with("place") { &[] } else { &["--attach", PLACE] };
        let args = [&["run", &object][..], &attach, both, &["--", program]].concat();
        fails(&skep, &args, status, words);
    };
    run("request=probes:demo:nosuch", 2, "there are `demo:request`, `demo:done`");
    run("request=probes:serve", 2, "PATH:provider:name");
    run("request=demo:request", 2, "names no probe");
    // The command's own status goes first.
    run("place=probes:carry+0x8", 7, "the one function that");
    run("place=probes:carry+0x400", 7, "the one function that");
    run("place=probes:no_such_function+4", 2, "no_such_function");
}

#[test]
fn the_reason_why_a_place_cannot_be_hooked_is_listed() {
    let skep = Skep::new();
    let (_dir, program) = compile(&["-O2"]);
    let program = program.to_str().expect("a path we made");
    let object = data("usdt.bpf.o");
    let attach = "place=probes:carry+0x8,carry+0x3";
    let ended = skep.run(["run", "-v", &object, "--attach", attach, "--", program]);
    let said = String::from_utf8_lossy(&ended.stderr);
    assert!(said.contains("place: 1 of 2 matching functions attached, 1 skipped"), "{said}");
    assert!(said.contains("probes:carry+0x8: no valid instruction at +8"), "{said}");
}
