//! Threads that block all signals, whatever they were doing before, while `skep` changes the functions
//! that they run: neither a signal nor a breakpoint may be meant for them.

mod common;

use std::process::Command;

use common::Skep;
use common::live::{Target, changed};
use skep_testkit::TempDir;
use skep_testkit::cc::Cc;

#[test]
fn threads_that_block_all_signals_live_on() {
    let cycles = if std::env::var_os("SKEP_STRESS").is_some() { 1000 } else { 10 };
    let (skep, dir) = (Skep::new(), TempDir::new());
    let source = common::data("blocked.c");
    let program = Cc::c()
        .args(&["-O1", "-fno-omit-frame-pointer", "-fcf-protection=none", "-pthread"])
        .compile(&[source.as_ref()], &dir.join("blocked"));
    let mut target = Target::start(dir, program.clone(), &Command::new(&program));
    let before = target.state();
    let pid = target.pid().to_string();
    for cycle in 0..cycles {
        let ended = skep.run(["trace", "*", "-p", &pid, "--for", "5ms", "--sort", "calls"]);
        assert_eq!(ended.status.code(), Some(0), "cycle {cycle}: {}", ended.transcript());
        let all = ended.transcript();
        assert!(
            !all.contains("warning") && !all.contains("could not be moved"),
            "cycle {cycle}: {all}"
        );
    }
    let after = target.state();
    assert!(after.code == before.code, "{}", changed(&before, &after));
    drop(target.running.stdin.take());
    let line = target.line();
    let rounds = line.strip_suffix(" rounds").and_then(|n| n.parse::<u64>().ok());
    assert!(rounds.is_some_and(|n| n > 100), "{line}");
    assert_eq!(target.running.wait().expect("it ends").code(), Some(7));
}
