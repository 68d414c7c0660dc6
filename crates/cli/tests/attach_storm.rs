//! `skep` attaches to a server of 64 threads and leaves it, again and again, while clients keep it
//! busy: no request is lost or answered wrongly, and the code is in the end what it was.

mod common;

use std::process::Command;

use common::Skep;
use common::live::{Target, changed};
use serde_json::Value as Json;
use skep_testkit::TempDir;
use skep_testkit::cc::Cc;

/// Cycles of a usual run, of one with `SKEP_STRESS=1`, and of one with `SKEP_STRESS=CYCLES`.
fn cycles() -> usize {
    match std::env::var("SKEP_STRESS") {
        Ok(n) => n.parse().ok().filter(|n| *n > 1).unwrap_or(10_000),
        Err(_) => 12,
    }
}

#[test]
fn a_busy_server_loses_no_request() {
    let (skep, dir) = (Skep::new(), TempDir::new());
    let source = common::data("server.c");
    let program =
        Cc::c().args(&["-O2", "-pthread"]).compile(&[source.as_ref()], &dir.join("server"));
    let mut target = Target::start(dir, program.clone(), &Command::new(&program));
    let before = target.state();
    let pid = target.pid().to_string();
    let cycles = cycles();
    let mut seen = 0;
    let mut cycle = 0;
    // On a busy machine no request may be handled in so short a time.
    while cycle < cycles || seen == 0 {
        let args = ["trace", "server:*", "libc:read,write", "-p", &pid, "--for", "5ms", "--json"];
        let ended = skep.run(args);
        assert_eq!(ended.status.code(), Some(0), "cycle {cycle}: {}", ended.transcript());
        let report: Json = serde_json::from_slice(&ended.stdout).expect("a document");
        let rows = report["functions"].as_array().expect("a list");
        let handled = rows.iter().find(|row| row["name"] == "handle");
        seen += handled.map_or(0, |row| row["calls"].as_u64().expect("a number"));
        let said = String::from_utf8_lossy(&ended.stderr);
        assert!(!said.contains("warning"), "cycle {cycle}: {said}");
        // It goes on.
        target.tell("");
        cycle += 1;
    }
    let after = target.state();
    assert!(after.code == before.code, "{}", changed(&before, &after));
    assert_eq!(after.rest(), before.rest());
    drop(target.running.stdin.take());
    let line = target.line();
    let [_, requests, _, bad] = line.split(' ').collect::<Vec<_>>()[..] else { panic!("{line}") };
    assert_eq!(bad, "0", "{line}");
    assert!(requests.parse::<usize>().is_ok_and(|n| n >= 50 * cycles), "{line}");
    assert_eq!(target.running.wait().expect("it ends").code(), Some(7));
}
