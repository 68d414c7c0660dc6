//! Several `skep trace -p` for one process at once take turns; and one that is interrupted at any moment
//! comes to a clean end.

mod common;

use std::time::{Duration, Instant};

use common::live::{LIMIT, Target, changed};
use common::{Skep, json, text};
use rustix::process::Signal;
use skep_testkit::run::{Running, signal, start};

/// What a command has printed, when it has ended.
struct Printed {
    code: Option<i32>,
    stdout: String,
    stderr: String,
}

fn printed(mut running: Running) -> Printed {
    use std::io::Read;
    let (mut stdout, mut stderr) = (Vec::new(), Vec::new());
    running.stdout.take().expect("a pipe").read_to_end(&mut stdout).expect("a pipe");
    running.stderr.take().expect("a pipe").read_to_end(&mut stderr).expect("a pipe");
    let code = running.wait().expect("it ends").code();
    Printed { code, stdout: text(&stdout), stderr: text(&stderr) }
}

/// Each gets its turn. Without a lock the second one found a thread of the first's in the middle of its
/// beginning, or both stopped the process.
#[test]
fn they_take_turns() {
    let (skep, other) = (Skep::new(), Skep::new());
    let (mut target, mut single) = (Target::dynamic(), Target::new(single_threaded(), &[]));
    for target in [&mut target, &mut single] {
        let before = target.state();
        let pid = target.pid().to_string();
        for n in 0..12 {
            let args = ["trace", "target:work", "-p", &pid, "--for", "30ms", "--json"];
            let at_once = 2 + n % 5;
            let all: Vec<Running> =
                (0..at_once).map(|n| start(&[&skep, &other][n % 2].command(args), LIMIT)).collect();
            target.tell("main 10");
            for running in all {
                let Printed { code, stdout, stderr } = printed(running);
                assert_eq!(code, Some(0), "{n}: {stderr}");
                assert!(!stderr.contains("warning"), "{n}: {stderr}");
                assert_eq!(json(stdout.as_bytes())["missed"], 0, "{n}: {stdout}");
            }
        }
        let after = target.state();
        assert!(after.code == before.code, "{}", changed(&before, &after));
        assert!(after.rest() == before.rest(), "threads, descriptors, masks");
        target.tell("main 10");
    }
    target.end();
    single.end();
}

/// Without the threads that are there from the beginning.
fn single_threaded() -> skep_testkit::cc::Cc {
    skep_testkit::cc::Cc::c().args(&["-DSINGLE"])
}

/// Ctrl-C before anything is attached, as soon as there is a skep directory: nothing is touched, and one
/// sentence says so. It used to be the end by that signal.
#[test]
fn interrupted_before_it_attaches() {
    let mut target = Target::dynamic();
    let before = target.state();
    let pid = target.pid().to_string();
    for number in [Signal::INT, Signal::TERM, Signal::HUP] {
        let skep = Skep::new();
        let running = start(&skep.command(["trace", "*", "-p", &pid, "--json"]), LIMIT);
        let end = Instant::now() + LIMIT;
        while !skep.path("skep/maps").exists() {
            assert!(Instant::now() < end, "it makes no directory");
            std::hint::spin_loop();
        }
        signal(running.id(), number);
        let Printed { code, stdout, stderr } = printed(running);
        let words = "error: interrupted before it was attached to anything\n";
        assert_eq!((code, &*stdout, &*stderr), (Some(128 + number.as_raw()), "", words));
        let left = std::fs::read_dir(skep.path("skep/traces")).map_or(0, Iterator::count);
        assert_eq!(left, 0, "no trace is left that seems to run");
    }
    assert!(target.state() == before, "nothing was touched");
    target.end();
}

/// Ctrl-C at any moment: the process is as it was, and `skep` has a status of its own and says what there
/// is to say, whole.
#[test]
fn interrupted_at_any_moment() {
    let (skep, mut target) = (Skep::new(), Target::dynamic());
    let before = target.state();
    let pid = target.pid().to_string();
    let (mut reports, mut early) = (0, 0);
    let rounds = if std::env::var_os("SKEP_STRESS").is_some() { 400 } else { 60 };
    for n in 0..rounds {
        let patterns = ["trace", "target:*", "libc.so.6:*", "-p", &pid, "--json"];
        let running = start(&skep.command(patterns), LIMIT);
        while !caught(running.id()) {
            std::hint::spin_loop();
        }
        std::thread::sleep(Duration::from_micros(1_500 * (n % 60)));
        signal(running.id(), Signal::INT);
        let Printed { code, stdout, stderr } = printed(running);
        match code {
            Some(0) => {
                assert_eq!(json(stdout.as_bytes())["pids"][0], target.pid(), "{stderr}");
                reports += 1;
            }
            Some(130) => {
                assert_eq!(stdout, "");
                assert_eq!(stderr.matches("error: ").count(), 1, "{stderr}");
                early += 1;
            }
            code => panic!("{n}: {code:?}: {stdout}{stderr}"),
        }
        target.tell("threads 2");
        let after = target.state();
        assert!(after.rest() == before.rest(), "{n}: threads, descriptors, masks");
    }
    assert!(reports + early == rounds && early > 0, "{reports} reports, {early} without");
    let after = target.state();
    assert!(after.code == before.code, "{}", changed(&before, &after));
    target.end();
}

/// Tells whether a process has a handler for Ctrl-C.
fn caught(pid: u32) -> bool {
    let status = std::fs::read_to_string(format!("/proc/{pid}/status")).expect("it is there");
    let set = status.lines().find_map(|line| line.strip_prefix("SigCgt:")).expect("a set");
    let set = u64::from_str_radix(set.trim(), 16).expect("a set");
    set & 1 << (Signal::INT.as_raw() - 1) != 0
}
