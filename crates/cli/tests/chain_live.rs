//! What a chain counts while it runs: for other processes, and on a terminal.

mod common;

use std::io::{Read, Write};
use std::process::Command;
use std::time::Duration;

use common::live::state_of;
use common::{Skep, json, out, text};
use serde_json::{Value as Json, json};
use skep_testkit::run::{Running, Signal, signal, start};
use skep_testkit::skip;

const OBJECT: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../skep/tests/data/chain.bpf.o");

fn prepared() -> Skep {
    let skep = Skep::new();
    out(&skep, &["chain", "create", "fw", "--quiet"]);
    for program in ["drop_short", "count"] {
        out(&skep, &["chain", "add", "fw", &format!("{OBJECT}:{program}"), "--quiet"]);
    }
    skep
}

/// Starts a run without end, and waits until it writes packets.
fn endless(skep: &Skep) -> Running {
    let args = ["chain", "run", "fw", "--in", "gen:64+54", "--out", "pass=-", "--json"];
    let mut running = skep.start(args);
    let pipe = running.stdout.as_mut().unwrap();
    pipe.read_exact(&mut [0; 104]).expect("it writes a header and a packet");
    running
}

/// Whether a process waits until somebody takes what it has written to its output.
fn waits_to_write(pid: u32) -> bool {
    match std::fs::read_to_string(format!("/proc/{pid}/syscall")) {
        Ok(call) => call.starts_with("1 0x1 "),
        // Where that may not be read: it waits for nothing else.
        Err(_) => state_of(pid) == 'S',
    }
}

/// Ends a run by Ctrl-C; returns its report.
fn ended(mut running: Running) -> Json {
    signal(running.id(), Signal::INT);
    let (mut rest, mut report) = (Vec::new(), String::new());
    running.stdout.take().unwrap().read_to_end(&mut rest).unwrap();
    running.stderr.take().unwrap().read_to_string(&mut report).unwrap();
    assert_eq!(running.wait().unwrap().code(), Some(0), "{report}");
    json(report.as_bytes())
}

fn show(skep: &Skep) -> Json {
    json(out(skep, &["chain", "show", "fw", "--json"]).as_bytes())
}

fn runs(of: &Json, node: usize) -> u64 {
    of["nodes"][node]["runs"].as_u64().unwrap()
}

/// `unpin` said nothing, and the second one that there is no file of a pin.
#[test]
fn an_unpinned_chain_goes_with_its_last_user() {
    let skep = prepared();
    let running = endless(&skep);
    let said = |status: i32| {
        let ended = skep.run(["chain", "unpin", "fw"]);
        assert_eq!(ended.shell_status(), status, "{}", ended.transcript());
        text(&ended.stderr)
    };
    assert_eq!(said(0), "chain `fw` goes with its last user\n");
    assert_eq!(said(1), "error: chain `fw` is not pinned\n");
    assert_eq!(show(&skep)["name"], "fw");
    out(&skep, &["chain", "pin", "fw"]);
    assert_eq!(said(0), "chain `fw` goes with its last user\n");
    ended(running);
    out(&skep, &["chain", "create", "other", "--quiet"]);
    let all = json(out(&skep, &["chain", "list", "--json"]).as_bytes());
    assert_eq!((all[0]["name"].as_str(), all.as_array().map(Vec::len)), (Some("other"), Some(1)));
}

#[test]
fn another_process_sees_what_a_running_chain_counts() {
    let skep = prepared();
    assert_eq!(show(&skep).get("counted"), None);
    // Nobody reads on, so that both come to a halt, with counts that stay.
    let running = [endless(&skep), endless(&skep)];
    while !running.iter().all(|running| waits_to_write(running.id())) {
        std::thread::yield_now();
    }
    let seen = show(&skep);
    let pids: Vec<u64> =
        seen["running"].as_array().unwrap().iter().map(|r| r["pid"].as_u64().unwrap()).collect();
    assert_eq!(pids, running.each_ref().map(|r| u64::from(r.id())));
    let counted = &seen["counted"];
    let (first, second) = (runs(counted, 0), runs(counted, 1));
    assert!(first > 0 && first == 2 * second, "{counted}");
    assert_eq!(counted["nodes"][0]["verdicts"], json!({"drop": second, "pass": second}));
    assert_eq!(counted["nodes"][0]["bytes"], json!(second * (64 + 54)));
    assert_eq!(counted["edges"][0]["taken"], json!(second));
    let shown = out(&skep, &["chain", "show", "fw"]);
    let node = format!(
        "1 drop_short  {first} runs, {} bytes  drop {second}, pass {second}\n",
        second * 118
    );
    assert!(
        shown.contains(&node) && shown.contains(&format!("└ pass [{second}] → 2 count")),
        "{shown}"
    );
    assert!(shown.contains(&format!("\nrunning in process {}\n", pids[0])), "{shown}");
    let dot = out(&skep, &["chain", "show", "fw", "--dot"]);
    assert!(dot.contains(&format!("1 drop_short\\n{first} runs, ")), "{dot}");
    let svg = out(&skep, &["chain", "show", "fw", "--svg"]);
    assert!(svg.contains(&format!(">drop {second}, pass {second}<")), "{svg}");

    // Counts of earlier revisions stay; a node that goes keeps its own.
    out(&skep, &["chain", "del", "fw", "2", "--quiet"]);
    let reports = running.map(ended);
    assert!(reports.iter().all(|r| runs(r, 0) > 0), "{reports:?}");
    let sum: u64 = reports.iter().map(|r| runs(r, 1)).sum();
    assert!(sum >= second, "{reports:?}");
    assert_eq!(show(&skep).get("counted"), None);
}

/// A report of a killed run cannot be had, but nothing of it is in the way.
#[test]
fn who_was_killed_does_not_run_any_more() {
    let skep = prepared();
    let mut running = endless(&skep);
    assert!(show(&skep).get("counted").is_some());
    signal(running.id(), Signal::KILL);
    running.wait().unwrap();
    assert_eq!(show(&skep).get("counted"), None);
    out(&skep, &["chain", "create", "other", "--quiet"]);
    let program = format!("{OBJECT}:count");
    out(&skep, &["chain", "add", "other", &program, "--quiet"]);
    let maps = out(&skep, &["map", "list"]);
    assert!(!maps.contains("chain."), "{maps}");
}

#[test]
fn counters_are_drawn_in_place_on_a_terminal_and_erased_at_the_end() {
    let skep = prepared();
    let command = skep.command(["chain", "run", "fw", "--in", "gen:64+54"]);
    if Command::new("script").arg("--version").output().is_err() {
        skip("the command `script`, for a terminal");
        return;
    }
    let program = command.get_program().to_str().unwrap().to_owned();
    let words: Vec<&str> = command.get_args().map(|a| a.to_str().unwrap()).collect();
    // In the place of the shell, whose status some shells make that of the interruption.
    let line = format!("stty cols 60 rows 24 -echo; exec {program} {}", words.join(" "));
    let dir = skep.path("skep");
    let mut script = Command::new("script");
    script.args(["-qec", &line, "/dev/null"]).env("SKEP_DIR", dir).env("TERM", "xterm");
    let mut running = start(&script, Duration::from_secs(300));
    let (mut terminal, mut said) = (running.stdout.take().unwrap(), Vec::new());
    let mut ends = false;
    loop {
        let mut some = [0; 4096];
        let Ok(count @ 1..) = terminal.read(&mut some) else { break };
        said.extend_from_slice(&some[..count]);
        // Drawn twice.
        if !ends && text(&said).matches("1 drop_short  ").count() > 1 {
            ends = true;
            running.stdin.as_mut().unwrap().write_all(b"\x03").unwrap();
        }
    }
    let said = text(&said);
    assert_eq!(running.wait().unwrap().code(), Some(0), "{said}");
    // Drawn at least once, each time over what stood there, and all erased before the report.
    let (drawn, report) = said.rsplit_once("\x1b[J").expect("something was erased");
    assert!(drawn.contains("1 drop_short  ") && drawn.contains(" packets  "), "{said:?}");
    assert!(
        drawn.contains("\x1b[") && report.starts_with(|c: char| c.is_ascii_digit()),
        "{said:?}"
    );
    assert!(report.contains("program drop_short (1)  ") && !report.contains('\x1b'), "{said:?}");
    for frame in drawn.split("\x1b[J") {
        let body = frame.split("\x1b[").next().unwrap();
        assert!(body.lines().all(|line| line.chars().count() < 60), "{body:?}");
    }
    // Nothing is drawn where nobody looks.
    let alone = out(&skep, &["chain", "run", "fw", "--in", "gen:64", "--for", "600ms"]);
    assert!(!alone.contains('\x1b'), "{alone:?}");
}
