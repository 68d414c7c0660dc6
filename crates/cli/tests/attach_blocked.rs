//! Threads that block all signals, whatever they were doing before, while `skep` changes the functions
//! that they run: neither a signal nor a breakpoint may be meant for them, also when `skep` is killed in
//! the middle, or the program is stopped there.

mod common;

use std::io::Read;
use std::process::Command;
use std::time::{Duration, Instant};

use common::Skep;
use common::live::{LIMIT, Target, changed};
use skep_testkit::TempDir;
use skep_testkit::cc::Cc;
use skep_testkit::run::{Signal, signal, start};

fn blocked() -> Target {
    let dir = TempDir::new();
    let source = common::data("blocked.c");
    let program = Cc::c()
        .args(&["-O1", "-fno-omit-frame-pointer", "-fcf-protection=none", "-pthread"])
        .compile(&[source.as_ref()], &dir.join("blocked"));
    Target::start(dir, program.clone(), &Command::new(&program))
}

fn cycles(usual: usize) -> usize {
    if std::env::var_os("SKEP_STRESS").is_some() { 100 * usual } else { usual }
}

/// Attaches to all functions, and leaves again.
fn visit(skep: &Skep, target: &Target) {
    let pid = target.pid().to_string();
    let ended = skep.run(["trace", "*", "-p", &pid, "--for", "5ms", "--sort", "calls"]);
    let all = ended.transcript();
    assert_eq!(ended.status.code(), Some(0), "{all}");
    assert!(!all.contains("warning") && !all.contains("could not be moved"), "{all}");
}

/// The program's threads come round, it says how often they did, and ends.
fn end(mut target: Target) {
    target.tell("");
    drop(target.running.stdin.take());
    let line = target.line();
    let rounds = line.strip_suffix(" rounds").and_then(|n| n.parse::<u64>().ok());
    assert!(rounds.is_some_and(|n| n > 100), "{line}");
    assert_eq!(target.running.wait().expect("it ends").code(), Some(7));
}

#[test]
fn threads_that_block_all_signals_live_on() {
    let (skep, target) = (Skep::new(), blocked());
    let before = target.state();
    for _ in 0..cycles(10) {
        visit(&skep, &target);
    }
    let after = target.state();
    assert!(after.code == before.code, "{}", changed(&before, &after));
    end(target);
}

#[test]
fn also_when_skep_is_killed() {
    let (skep, target) = (Skep::new(), blocked());
    let before = target.state();
    let pid = target.pid().to_string();
    let began = Instant::now();
    visit(&skep, &target);
    // At times all over what a visit takes.
    let (took, cycles) = (began.elapsed(), cycles(30));
    for n in 0..cycles {
        let mut running = start(&skep.command(["trace", "*", "-p", &pid]), LIMIT);
        std::thread::sleep(took * n as u32 / cycles as u32);
        running.kill().expect("it is ours");
        running.wait().expect("it ends");
    }
    // What was left when the last one was killed is taken out, or taken over.
    visit(&skep, &target);
    let after = target.state();
    assert!(after.code == before.code, "{}", changed(&before, &after));
    end(target);
}

#[test]
fn also_when_the_program_is_stopped() {
    stopped_in_the_middle(cycles(15), Duration::from_millis(5));
}

/// Longer than `skep` waits for a word of the agent: it gives the attachment up, and the agent, which has asked
/// for something, goes on later. What `skep` did then was once written over the agent's memory.
#[test]
fn also_when_the_program_is_stopped_for_long() {
    stopped_in_the_middle(cycles(12), Duration::from_millis(300));
}

fn stopped_in_the_middle(cycles: usize, time: Duration) {
    let (skep, target) = (Skep::new(), blocked());
    let before = target.state();
    let pid = target.pid();
    for n in 0..cycles {
        let command = skep.command(["trace", "*", "-p", &pid.to_string(), "--for", "5ms"]);
        let mut running = start(&command, LIMIT);
        while running.try_wait().expect("it is ours").is_none() {
            std::thread::sleep(Duration::from_millis(1 + n as u64 * 7 % 30));
            signal(pid, Signal::STOP);
            std::thread::sleep(time);
            signal(pid, Signal::CONT);
        }
        let status = running.wait().expect("it ends");
        let mut said = String::new();
        running.stderr.take().expect("a pipe").read_to_string(&mut said).expect("a pipe");
        let is_refused = status.code() == Some(2) && said.contains("stopped");
        assert!(status.success() || is_refused, "{status}: {said}");
        // What was given up leaves by itself, now that the program runs.
        target.wait_for_end_of_agent();
    }
    visit(&skep, &target);
    let after = target.state();
    assert!(after.code == before.code, "{}", changed(&before, &after));
    end(target);
}
