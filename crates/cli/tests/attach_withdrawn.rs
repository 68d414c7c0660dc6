//! Programs that take away what the agent's thread in them needs, while `skep` is attached: its
//! descriptors, as a daemon closes all it finds, and its system calls, by seccomp. They live on, and get
//! their own messages; `skep` comes to its end. And programs that were under a filter before, as those in
//! containers are.

mod common;

use std::os::unix::process::CommandExt;
use std::process::Command;
use std::time::{Duration, Instant};

use common::live::{self, Target, Tracer, has_agent, has_own_table};
use common::{Skep, data, json, text};
use rustix::process::Signal;
use serde_json::Value as Json;
use skep_testkit::TempDir;
use skep_testkit::cc::Cc;
use skep_testkit::run::{run, signal};
use skep_testkit::skip::{is_root, skip, without_bpf};

/// What `skep` may take to its end on a machine that has much else to do.
const SOON: Duration = Duration::from_secs(30);
const LIMIT: Duration = Duration::from_secs(300);
/// How often a thread and a child work for `others`.
const OTHERS: u64 = 20;

const KILL_PROCESS: u32 = 0x8000_0000;
const TRAP: u32 = 0x3_0000;
const ERRNO: u32 = 0x5_0001;
const ALL_BUT_ITS_OWN: i32 = -1;
const THIS_THREAD: u32 = 0;
const ALL_THREADS: u32 = 1;

fn program() -> Target {
    let dir = TempDir::new();
    let cc = Cc::c().args(&["-O1", "-g", "-pthread"]);
    let program = cc.compile(&[data("withdraws.c").as_ref()], &dir.join("withdraws"));
    Target::start(dir, program.clone(), &Command::new(program))
}

fn wait_until(what: &str, is_so: impl Fn() -> bool) {
    let end = Instant::now() + SOON;
    while !is_so() {
        assert!(Instant::now() < end, "{what}");
        std::thread::sleep(Duration::from_millis(5));
    }
}

fn calls(report: &Json) -> u64 {
    let rows = report["functions"].as_array().expect("a list");
    rows.iter().map(|row| row["calls"].as_u64().expect("a number")).sum()
}

/// Ends `skep` by Ctrl-C if it has not ended by itself, in time; the report and what it said.
fn end(mut tracer: Tracer) -> (Json, String) {
    if tracer.running.try_wait().expect("it is ours").is_none() {
        signal(tracer.running.id(), Signal::INT);
    }
    let end = Instant::now() + SOON;
    while tracer.running.try_wait().expect("it is ours").is_none() {
        if Instant::now() > end {
            tracer.running.kill().expect("it is ours");
            panic!("skep does not end");
        }
        std::thread::sleep(Duration::from_millis(5));
    }
    tracer.report_with_warnings()
}

/// Tells whether skep may not read filters, and says so.
fn without_filters() -> bool {
    if !is_root() {
        skip("root");
        return true;
    }
    without_bpf()
}

/// A program whose filter keeps the agent from a descriptor table of its own.
fn sharing() -> Option<Target> {
    const CLOSE_RANGE: i32 = 436;
    if without_filters() {
        return None;
    }
    let mut target = program();
    target.tell(&format!("sandbox {CLOSE_RANGE} {ERRNO} {ALL_THREADS}"));
    Some(target)
}

fn descriptors(pid: u32) -> Vec<String> {
    let dir = std::fs::read_dir(format!("/proc/{pid}/fd")).expect("it lives");
    let mut all: Vec<_> = dir
        .map(|fd| {
            let path = fd.expect("a name").path();
            format!("{path:?} {:?}", std::fs::read_link(&path).ok())
        })
        .collect();
    all.sort();
    all
}

#[test]
fn the_program_keeps_its_descriptors_to_itself() {
    if !has_own_table() {
        return skip("Linux 6.9");
    }
    let (skep, mut target) = (Skep::new(), program());
    let before = descriptors(target.pid());
    let tracer = Tracer::attach(&skep, &target, &["withdraws:work"]);
    assert_eq!(descriptors(target.pid()), before);
    target.tell("work 100");
    target.tell("take");
    target.tell("exchange");
    target.tell("limit 3");
    target.tell("work 100");
    let (report, said) = end(tracer);
    assert_eq!(calls(&report), 200, "{report}");
    assert!(!said.contains("warning"), "{said}");
    target.end();
}

#[test]
fn what_gets_the_agents_numbers_is_the_programs() {
    let Some(mut target) = sharing() else { return };
    let skep = Skep::new();
    let tracer = Tracer::attach(&skep, &target, &["withdraws:work"]);
    target.tell("work 100");
    target.tell("take");
    target.tell("exchange");
    target.stop();
    signal(target.pid(), Signal::CONT);
    target.tell("exchange");
    let (report, said) = end(tracer);
    assert_eq!(calls(&report), 100, "{report}");
    assert!(said.contains("its agent has ended"), "{said}");
    wait_until("the agent stays", || !has_agent(target.pid()));
    target.tell("exchange");
    target.tell("work 100");
    target.end();
}

#[test]
fn also_where_skep_is_gone() {
    for (target, has_own_table) in [(has_own_table().then(program), true), (sharing(), false)] {
        if let Some(target) = target {
            numbers_are_taken_from_who_leaves(target, has_own_table);
        }
    }
}

fn numbers_are_taken_from_who_leaves(mut target: Target, has_own_table: bool) {
    let skep = Skep::new();
    for _ in 0..if has_own_table { 10 } else { 3 } {
        let mut tracer = Tracer::attach(&skep, &target, &["withdraws:work"]);
        target.order("take");
        // In a shared table not while the agent leaves: what it then has open for a moment, nobody can tell
        // from a file of the program's own.
        if !has_own_table {
            assert_eq!(target.line(), "done");
        }
        tracer.running.kill().expect("it is ours");
        tracer.running.wait().expect("it ends");
        if has_own_table {
            assert_eq!(target.line(), "done");
        }
        target.tell("exchange");
        target.stop();
        signal(target.pid(), Signal::CONT);
        target.tell("exchange");
        wait_until("the agent stays", || !has_agent(target.pid()));
    }
    target.tell("work 100");
    target.end();
}

#[test]
fn no_descriptors_are_needed_to_leave() {
    for most in [0, 1] {
        let (skep, mut target) = (Skep::new(), program());
        let before = target.state();
        let tracer = Tracer::attach(&skep, &target, &["withdraws:work"]);
        target.tell(&format!("limit {most}"));
        target.tell("work 100");
        let (report, said) = end(tracer);
        assert_eq!(calls(&report), 100, "{report}");
        assert!(!said.contains("warning"), "{said}");
        // Jumps that lead to the function itself stay: whether threads are in the way, only files tell.
        assert_eq!(target.state().rest(), before.rest());
        target.tell("work 100");
        target.end();
    }
}

/// Its calls before the filter are counted, and those afterwards where events are still allowed.
fn sandboxed(order: &str, number: i32, action: u32, threads: u32) {
    let what = format!("{order} {number} {action:#x} {threads}");
    let (skep, mut target) = (Skep::new(), program());
    let tracer = Tracer::attach(&skep, &target, &["withdraws:work"]);
    target.tell("work 100");
    target.tell(&what);
    target.tell("work 100");
    let (report, said) = end(tracer);
    let calls = calls(&report);
    let counted = if threads == ALL_THREADS { vec![100, 200] } else { vec![200] };
    assert!(counted.contains(&calls) || number < 0 && calls == 100, "{what}: {calls}\n{said}");
    target.tell("work 100");
    wait_until(&format!("{what}: the agent stays\n{said}"), || !has_agent(target.pid()));
    target.end();
}

#[test]
fn a_sandbox_of_all_threads_has_no_agent_in_it() {
    for action in [KILL_PROCESS, TRAP, ERRNO] {
        // Everything; `poll`, `mmap`, `madvise`, `fstat`, `exit`, `restart_syscall`, `ppoll`.
        for number in [ALL_BUT_ITS_OWN, 7, 9, 28, 5, 60, 219, 271] {
            sandboxed("sandbox", number, action, ALL_THREADS);
        }
    }
}

#[test]
fn a_sandbox_of_one_thread_is_not_the_agents() {
    for action in [KILL_PROCESS, TRAP, ERRNO] {
        for number in [ALL_BUT_ITS_OWN, 9, 28, 60, 219] {
            sandboxed("sandbox", number, action, THIS_THREAD);
        }
    }
}

/// What the first event of a thread needs ended the program, where one of its threads was in a sandbox before.
#[test]
fn a_thread_that_was_in_a_sandbox_before_goes_without_hooks() {
    for action in [KILL_PROCESS, TRAP, ERRNO] {
        let (skep, mut target) = (Skep::new(), program());
        target.tell(&format!("sleeper {ALL_BUT_ITS_OWN} {action}"));
        for _ in 0..2 {
            let patterns = ["withdraws:work", "libc.so.6:*nanosleep"];
            let tracer = Tracer::attach(&skep, &target, &patterns);
            target.tell("naps");
            target.tell("work 100");
            let (report, said) = end(tracer);
            let rows = report["functions"].as_array().expect("a list");
            let work = rows.iter().find(|row| row["function"] == "work" || row["name"] == "work");
            assert_eq!(work.expect("it was called")["calls"], 100, "{said}");
            assert_ne!(report["missed"], 0, "{said}");
        }
        target.end();
    }
}

/// It is seen by nobody, and the agent's calls fail.
#[test]
fn a_sandbox_that_is_not_seen_does_not_hold_skep() {
    for number in [ALL_BUT_ITS_OWN, 271, 45, 5] {
        sandboxed("unseen", number, ERRNO, ALL_THREADS);
    }
}

/// A thread that sleeps under a filter which does not know `restart_syscall`, and is stopped.
#[test]
fn sleep_goes_on_without_a_call_that_the_program_has_not_made() {
    let (skep, mut target) = (Skep::new(), program());
    target.tell(&format!("sleeper 219 {KILL_PROCESS:#x}"));
    for _ in 0..5 {
        let tracer = Tracer::attach(&skep, &target, &["withdraws:work"]);
        target.tell("work 10");
        assert_eq!(calls(&tracer.end()), 10);
        target.tell("naps");
    }
    target.end();
}

/// Ctrl-C just when the program has ended: the report comes all the same.
#[test]
fn a_signal_after_the_end_loses_nothing() {
    let skep = Skep::new();
    for delay in 0..20 {
        let mut target = program();
        let mut tracer = Tracer::attach(&skep, &target, &["withdraws:*", "libc:*"]);
        target.end();
        std::thread::sleep(Duration::from_micros(300 * delay));
        // It may have ended.
        if tracer.running.try_wait().expect("it is ours").is_none() {
            signal(tracer.running.id(), Signal::INT);
        }
        // Fails where it ends by the signal, or there is no report.
        let (report, _) = tracer.report_with_warnings();
        assert!(report["functions"].is_array(), "after {delay}: {report}");
    }
}

/// Root may read what a filter does: one that refuses or ends what the agent does not need is no obstacle,
/// also for threads and children that are made then; any other is named. Nothing is different afterwards.
#[test]
fn filters_that_were_there_before_are_judged() {
    if without_filters() {
        return;
    }
    /// `process_vm_readv` and `membarrier`: without them nobody knows whether a thread is still inside.
    const ONLY_TO_LEAVE: [i32; 2] = [310, 324];
    /// `mount`, `unshare`, `ptrace`, `userfaultfd`, `bpf`; `mincore` is 27.
    const REFUSED: [i32; 5] = [165, 272, 101, 323, 321];
    let refused = REFUSED.into_iter().chain(ONLY_TO_LEAVE).map(|number| (number, ERRNO));
    // `close_range` and `signalfd4`, for a descriptor table of the agent's own.
    let punished = [165, 27, 436, 289].map(|number| (number, KILL_PROCESS));
    for (number, action) in refused.chain(punished).chain([(321, TRAP)]) {
        let (skep, mut target) = (Skep::new(), program());
        target.tell(&format!("sandbox {number} {action} {ALL_THREADS}"));
        // The C library takes a signal when the first thread is made.
        target.tell("others");
        let before = target.state();
        let is_clean = !ONLY_TO_LEAVE.contains(&number);
        for _ in 0..if is_clean { 2 } else { 1 } {
            let tracer =
                Tracer::attach(&skep, &target, &["withdraws:work", "libc.so.6:*nanosleep"]);
            target.tell("work 100");
            target.tell("others");
            let (report, said) = end(tracer);
            assert_eq!(said.contains("not left as it was"), !is_clean, "{number}: {said}");
            assert_eq!(live::calls(&report, "work"), 100 + OTHERS, "{number} {action:#x}");
            assert!(!is_clean || target.state().rest() == before.rest(), "{number} {action:#x}");
        }
        target.tell("work 1");
        target.end();
    }
    // `ppoll` and `clone`, which the agent cannot do without; `mmap`; what a thread is.
    for (number, action) in [(271, ERRNO), (56, ERRNO), (9, KILL_PROCESS), (9, TRAP), (186, ERRNO)]
    {
        let (skep, mut target) = (Skep::new(), program());
        target.tell(&format!("sandbox {number} {action} {ALL_THREADS}"));
        let before = target.state();
        let pid = target.pid().to_string();
        let ended = run(&mut skep.command(["trace", "withdraws:work", "-p", &pid]), b"", LIMIT);
        let said = text(&ended.stderr);
        assert_eq!(ended.shell_status(), 2, "{number} {action:#x}: {said}");
        assert!(said.contains("a seccomp filter is against calls"), "{number} {action:#x}: {said}");
        assert_eq!(target.state().rest(), before.rest(), "{number} {action:#x}");
        target.tell("work 1");
        target.end();
    }
}

/// Who may not read filters, as being under one, is told so.
#[test]
fn a_filter_that_cannot_be_read_is_left_alone() {
    let (skep, mut target) = (Skep::new(), program());
    target.tell(&format!("sandbox 165 {ERRNO} {ALL_THREADS}"));
    let pid = target.pid().to_string();
    let mut command = skep.command(["trace", "withdraws:work", "-p", &pid]);
    // SAFETY: system calls that read what is on the stack.
    unsafe { command.pre_exec(allow_everything) };
    let said = text(&run(&mut command, b"", LIMIT).stderr).to_owned();
    assert!(said.contains("only root may read it, outside of containers"), "{said}");
    target.tell("work 1");
    target.end();
}

/// As in a container: what skep starts has skep's own filters, and is traced also where nothing can be
/// preloaded, unless it sets another one before.
#[test]
fn what_is_started_under_a_filter_is_traced() {
    let dir = TempDir::new();
    let cc = Cc::c().args(&["-O1", "-g", "-pthread", "-static"]);
    let program = cc.compile(&[data("withdraws.c").as_ref()], &dir.join("withdraws"));
    let skep = Skep::new();
    let mut command = skep.command(["trace", "withdraws:work", "--json", "-o"]);
    command.arg(dir.join("report")).arg("--").arg(&program);
    // SAFETY: system calls that read what is on the stack.
    unsafe { command.pre_exec(allow_everything) };
    let ended = run(&mut command, b"work 100\nothers\n", LIMIT);
    assert_eq!(ended.shell_status(), 7, "{}", ended.transcript());
    let report = std::fs::read(dir.join("report")).expect("it is written");
    assert_eq!(live::calls(&json(&report), "work"), 100 + OTHERS, "{}", ended.transcript());
}

/// Sets a filter that is against nothing.
fn allow_everything() -> std::io::Result<()> {
    let code = [libc::sock_filter { code: 6, jt: 0, jf: 0, k: 0x7fff_0000 }];
    let program = libc::sock_fprog { len: 1, filter: code.as_ptr().cast_mut() };
    // SAFETY: as the calls ask for.
    let is_set = unsafe {
        libc::prctl(libc::PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) == 0
            && libc::prctl(libc::PR_SET_SECCOMP, libc::SECCOMP_MODE_FILTER, &raw const program) == 0
    };
    if is_set { Ok(()) } else { Err(std::io::Error::last_os_error()) }
}
