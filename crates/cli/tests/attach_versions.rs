//! `skep trace -p` where another version of skep has been before, as after each upgrade: its agent rests
//! in the process, and makes room.
//!
//! The other versions are agents whose bytes differ, so that `skep` takes them for others.

mod common;

use std::fs;
use std::os::unix::fs::FileExt;
use std::path::PathBuf;
use std::time::Duration;

use common::live::{LIMIT, State, Target, Tracer, calls, changed};
use common::{Skep, fails};
use skep_testkit::TempDir;
use skep_testkit::run::start;
use skep_testkit::trace::agent_symbols;

/// Agents of other versions.
struct Versions {
    dir: TempDir,
    bytes: Vec<u8>,
}

impl Versions {
    fn new() -> Self {
        let bytes = fs::read(agent_symbols()).expect("it was built");
        Self { dir: TempDir::new(), bytes }
    }

    fn skep(&self, name: &str) -> Skep {
        let mut bytes = self.bytes.clone();
        bytes.extend(name.bytes());
        Skep::with_agent(self.write(name, &bytes))
    }

    /// One that says nothing of what makes room.
    fn silent(&self) -> Skep {
        let (with, without) = (b"skep_alone_rest\0", b"skep_alone_Rest\0");
        let at = self.bytes.windows(with.len()).position(|bytes| bytes == with);
        let mut bytes = self.bytes.clone();
        let at = at.expect("it is exported");
        bytes[at..at + with.len()].copy_from_slice(without);
        Skep::with_agent(self.write("silent", &bytes))
    }

    fn write(&self, name: &str, bytes: &[u8]) -> PathBuf {
        let path = self.dir.join(name);
        fs::write(&path, bytes).expect("it is written");
        path
    }
}

/// A line of numbers of `/proc/PID/status`.
fn status(target: &Target, name: &str) -> String {
    let status = fs::read_to_string(format!("/proc/{}/status", target.pid())).expect("it runs");
    let line = status.lines().find_map(|line| line.strip_prefix(name)).expect("a line");
    line.trim().to_owned()
}

fn kilobytes(target: &Target, name: &str) -> u64 {
    status(target, name).trim_end_matches(" kB").parse().expect("a number")
}

/// Traces on old and new threads and in children: all calls are counted, once.
fn visit(skep: &Skep, target: &mut Target, before: &State) {
    let tracer = Tracer::attach(skep, target, &["target:work", "target:idle"]);
    target.tell("idlers");
    target.tell("threads 100");
    target.tell("main 5");
    target.tell("nest 10");
    target.tell("fork 30");
    target.tell("vfork");
    let report = tracer.end();
    assert_eq!(calls(&report, "work"), 800 + 5 + 22 + 30, "{report}");
    assert!(calls(&report, "idle") > 0, "threads that were there are traced");
    assert_eq!(report["missed"], 0);
    let after = target.state();
    assert!(after.code == before.code, "bytes of code: {}", changed(before, &after));
    assert!(after.rest() == before.rest(), "threads, descriptors, masks");
    target.tell("threads 10");
    target.tell("fork 2");
}

/// It takes over from whichever version was there last, back and forth. What each keeps is bounded, and
/// handlers of signals do not pile up.
#[test]
fn versions_take_turns() {
    let versions = Versions::new();
    let [one, two, own] = [versions.skep("one"), versions.skep("two"), Skep::new()];
    for mut target in [Target::dynamic(), Target::new(skep_testkit::cc::Cc::c(), &["-static"])] {
        target.tell("threads 10");
        let before = target.state();
        let caught = status(&target, "SigCgt:");
        visit(&one, &mut target, &before);
        let (size, resident) = (kilobytes(&target, "VmSize:"), kilobytes(&target, "VmRSS:"));
        let with_one = status(&target, "SigCgt:");
        assert_ne!(caught, with_one);
        for skep in [&own, &one, &two, &two, &own, &one] {
            visit(skep, &mut target, &before);
            assert_eq!(status(&target, "SigCgt:"), with_one);
            assert_eq!(handlers_of_agents(&target), 1);
        }
        let grown = kilobytes(&target, "VmSize:") - size;
        assert!(grown < 2 * (16 << 10), "two versions more take {grown} kB of addresses");
        let grown = kilobytes(&target, "VmRSS:") - resident;
        assert!(grown < 2 * (6 << 10), "two versions more take {grown} kB");
        target.end();
    }
}

/// How many agents have a handler of the process's signal for memory, to judge by what they say: the
/// number of those that another version has not retired.
fn handlers_of_agents(target: &Target) -> usize {
    let maps = fs::read_to_string(format!("/proc/{}/maps", target.pid())).expect("it runs");
    let memory = fs::File::open(format!("/proc/{}/mem", target.pid())).expect("it runs");
    let writable = maps.lines().filter(|line| line.contains(" rw-p 00000000 00:00 0 "));
    let marks = writable.filter_map(|line| {
        let start = u64::from_str_radix(line.split('-').next()?, 16).ok()?;
        let mut mark = [0; 92];
        memory.read_exact_at(&mut mark, start).ok()?;
        mark.starts_with(b"SKEPLIVE").then_some(mark)
    });
    marks.filter(|mark| mark[88..92] == [0; 4]).count()
}

/// While the other version traces, it is named, with its process; afterwards there is room.
#[test]
fn a_trace_of_another_version_is_named() {
    let (versions, own, mut target) = (Versions::new(), Skep::new(), Target::dynamic());
    let one = versions.skep("one");
    let before = target.state();
    let tracer = Tracer::attach(&one, &target, &["target:work"]);
    let pid = target.pid().to_string();
    let words =
        format!("another skep (process {}, version 0.1.0) is attached", tracer.running.id());
    fails(&own, &["trace", "work", "-p", &pid], 2, &words);
    target.tell("threads 10");
    assert_eq!(calls(&tracer.end(), "work"), 80);
    visit(&own, &mut target, &before);
    target.end();
}

/// A call that began in hooks of the other version goes on to return through them: it is waited for.
#[test]
fn calls_inside_of_another_version_are_waited_for() {
    let (versions, own, mut target) = (Versions::new(), Skep::new(), Target::dynamic());
    let one = versions.skep("one");
    let before = target.state();
    let tracer = Tracer::attach(&one, &target, &["libc.so.6:read"]);
    target.tell("threads 1");
    tracer.end_warned(&target, "still inside");
    let pid = target.pid().to_string();
    let words = "still inside functions that another version of skep (0.1.0) had hooked";
    fails(&own, &["trace", "work", "-p", &pid], 2, words);
    // It returns, and waits again, in a function without hooks.
    target.tell("threads 1");
    visit(&own, &mut target, &before);
    visit(&one, &mut target, &before);
    target.end();
}

/// Once the agent of a killed `skep` has taken its hooks out, the main thread, which waits for an order inside of
/// `read`, returns through that one's code, and waits without.
fn comes_round(target: &mut Target) {
    target.wait_for_end_of_agent();
    target.tell("threads 3");
}

/// Whatever a killed `skep` of the other version has left is put right.
#[test]
fn what_a_killed_one_has_left_is_taken_out() {
    let (versions, own, mut target) = (Versions::new(), Skep::new(), Target::dynamic());
    let one = versions.skep("one");
    let before = target.state();
    for n in 0..12 {
        let mut tracer = Tracer::attach(&one, &target, &["target:*", "libc.so.6:*"]);
        target.tell("threads 10");
        tracer.running.kill().expect("it runs");
        tracer.running.wait().expect("it ends");
        if n % 2 == 0 {
            target.tell("nest 10");
        }
        comes_round(&mut target);
        if n % 3 == 2 {
            let tracer = Tracer::attach(&own, &target, &["target:work"]);
            target.tell("threads 100");
            assert_eq!(calls(&tracer.end(), "work"), 800);
        }
    }
    visit(&own, &mut target, &before);
    // Killed while it attaches, at any time.
    let pid = target.pid().to_string();
    for n in 0..20 {
        let command = one.command(["trace", "-p", &pid, "libc.so.6:*", "target:*"]);
        let mut running = start(&command, LIMIT);
        std::thread::sleep(Duration::from_millis(6 * n));
        running.kill().expect("it is ours");
        running.wait().expect("it ends");
        comes_round(&mut target);
        let tracer = Tracer::attach(&own, &target, &["target:work"]);
        target.tell("threads 100");
        assert_eq!(calls(&tracer.end(), "work"), 800);
    }
    visit(&own, &mut target, &before);
    target.end();
}

/// What stays of each version adds up: there is an end to that.
#[test]
fn many_versions_are_too_many() {
    let (versions, own, mut target) = (Versions::new(), Skep::new(), Target::dynamic());
    let before = target.state();
    for n in 0..9 {
        visit(&versions.skep(&n.to_string()), &mut target, &before);
    }
    let pid = target.pid().to_string();
    fails(&own, &["trace", "work", "-p", &pid], 2, "9 other versions of skep have been there");
    target.end();
}

/// One from before there was room to be made.
#[test]
fn a_version_that_makes_no_room_is_refused() {
    let (versions, own, mut target) = (Versions::new(), Skep::new(), Target::dynamic());
    let before = target.state();
    visit(&versions.silent(), &mut target, &before);
    let pid = target.pid().to_string();
    fails(&own, &["trace", "work", "-p", &pid], 2, "another version of skep has been in process");
    visit(&versions.silent(), &mut target, &before);
    target.end();
}
