//! `skep trace -p` is killed at each of its steps: the program goes on, what was opened in it is
//! closed again, and the next `skep` attaches to it and leaves it as it was.

mod common;

use std::collections::BTreeMap;
use std::fs;
use std::process::Command;
use std::time::Instant;

use common::Skep;
use common::live::{LIMIT, State, Target, changed};
use skep_testkit::TempDir;
use skep_testkit::run::{Ended, run};
use skep_testkit::skip::has_command;

/// Steps of one kind that a usual run tries.
const SOME: usize = 3;
/// And with `SKEP_STRESS=1`: all, but for those that wait for threads, again and again.
const MANY: usize = 200;

/// Runs `skep trace -p` below `strace`.
fn traced(skep: &Skep, target: &Target, strace: &[&str]) -> Ended {
    let pid = target.pid().to_string();
    let command = skep.command(["trace", "-p", &pid, "target:*", "--for", "10ms"]);
    let mut under = Command::new("strace");
    under.args(["-f", "-qq", "-e", "signal=none"]).args(strace);
    under.arg(command.get_program()).args(command.get_args());
    for (name, value) in command.get_envs() {
        match value {
            Some(value) => under.env(name, value),
            None => under.env_remove(name),
        };
    }
    run(&mut under, b"", LIMIT)
}

/// How often one thread of `skep` makes each of some system calls, at most.
fn counts<'c>(skep: &Skep, target: &Target, calls: &[&'c str]) -> Vec<(&'c str, usize)> {
    let dir = TempDir::new();
    let path = dir.join("calls").to_string_lossy().into_owned();
    let only = format!("trace={}", calls.join(","));
    let ended = traced(skep, target, &["-o", &path, "-e", &only]);
    assert_eq!(ended.status.code(), Some(0), "{}", ended.transcript());
    let text = fs::read_to_string(&path).expect("strace has written it");
    let count = |call: &&'c str| {
        let mut threads: BTreeMap<&str, usize> = BTreeMap::new();
        for (thread, rest) in text.lines().filter_map(|line| line.split_once(' ')) {
            if rest.trim_start().strip_prefix(call).is_some_and(|rest| rest.starts_with('(')) {
                *threads.entry(thread).or_default() += 1;
            }
        }
        (*call, threads.into_values().max().unwrap_or(0))
    };
    calls.iter().map(count).collect()
}

/// Takes out what has changed in unused bytes behind code. A thread that a killed `skep` had make a
/// system call goes on by instructions there, from the handler of a signal perhaps, so they stay.
fn without_unused(before: &State, after: &mut State) {
    for (place, bytes) in &mut after.code {
        let Some(before) = before.code.get(place).filter(|b| b.len() == bytes.len()) else {
            continue;
        };
        let used = before.iter().rposition(|byte| *byte != 0).map_or(0, |last| last + 1);
        bytes[used..].fill(0);
    }
}

#[test]
fn before_each_step() {
    if !has_command("strace") {
        return skep_testkit::skip("strace");
    }
    let (skep, mut target) = (Skep::new(), Target::dynamic());
    let before = target.state();
    let calls = ["ptrace", "pwrite64", "waitid", "pidfd_getfd", "sendmsg", "sendto", "recvfrom"];
    for (call, all) in counts(&skep, &target, &calls) {
        assert!(all > 0, "skep makes no `{call}`");
        let stress = std::env::var_os("SKEP_STRESS").is_some();
        let tried = all.min(if stress { MANY } else { SOME });
        let mut killed = 0;
        for n in 0..tried {
            let step = 1 + n * all / tried;
            let inject = format!("inject={call}:signal=KILL:when={step}");
            let only = format!("trace={call}");
            let ended = traced(&skep, &target, &["-o", "/dev/null", "-e", &only, "-e", &inject]);
            target.tell("threads 3");
            match ended.shell_status() {
                // Not so many calls this time.
                0 => {}
                137 => killed += 1,
                _ => panic!("{call} {step}: {}", ended.transcript()),
            }
        }
        assert!(killed > 0, "{call}");
    }
    let end = Instant::now() + LIMIT / 4;
    while target.state().rest() != before.rest() {
        assert!(Instant::now() < end, "it is not as it was");
        target.tell("threads 1");
    }
    // What killed ones left behind is gone after a whole visit.
    let ended = traced(&skep, &target, &["-o", "/dev/null", "-e", "trace=none"]);
    assert_eq!(ended.status.code(), Some(0), "{}", ended.transcript());
    let mut after = target.state();
    without_unused(&before, &mut after);
    assert!(after.code == before.code, "{}", changed(&before, &after));
    assert_eq!(after.rest(), before.rest());
    target.end();
}
