//! `skep trace -p`: programs of several kinds that run already are traced, and left as they were.

mod common;

use std::fs;
use std::io::{BufRead, BufReader, Read, Write};
use std::os::unix::fs::{FileExt, MetadataExt, PermissionsExt};
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::{Duration, Instant};

use common::Skep;
use common::live::{
    LIMIT, State, Target, Tracer, calls, changed, child, code, compile, has_own_table, state_of,
};
use rustix::process::Signal;
use serde_json::{Value as Json, json};
use skep_testkit::TempDir;
use skep_testkit::cc::Cc;
use skep_testkit::program;
use skep_testkit::run::{run, signal, start};
use skep_testkit::skip::{has_command, is_root};

/// Heaps that glibc makes for threads that want memory at the same time: eight a processor, two
/// mappings each.
const GLIBC: usize = 256;

/// Where hooks have stacks of their own, as the program's are not known, those of the first 511
/// threads stay: two mappings each.
const MUSL: usize = 1022;

/// Counts are exact, on old and new threads and in children; afterwards all is as before, and
/// memory does not grow.
fn attached_and_left(mut target: Target, growth: usize) {
    let skep = Skep::new();
    target.tell("threads 10");
    target.tell("fork 1");
    let before = target.state();
    let first = fs::read_to_string(format!("/proc/{}/maps", target.pid())).expect("it runs");
    let first = first.lines().count();
    let mut mappings = Vec::new();
    for round in 0..4 {
        let tracer = Tracer::attach(&skep, &target, &["target:work", "target:idle"]);
        assert_ne!(code(target.pid()), before.code, "nothing was hooked");
        target.tell("idlers");
        target.tell("threads 1000");
        target.tell("main 50");
        target.tell("nest 20");
        target.tell("fork 30");
        target.tell("vfork");
        target.tell("threads 5");
        let report = tracer.end();
        assert_eq!(calls(&report, "work"), 8 * 1005 + 50 + 42 + 30, "round {round}: {report}");
        assert!(calls(&report, "idle") > 0, "threads that were there are traced");
        assert_eq!(report["missed"], 0);
        assert_eq!(report["pids"], json!([target.pid()]));
        assert_eq!((&report["command"], &report["status"]), (&Json::Null, &Json::Null));
        let after = target.state();
        assert!(after.code == before.code, "bytes of code: {}", changed(&before, &after));
        assert_eq!(after.rest(), before.rest());
        target.tell("threads 10");
        target.tell("fork 2");
        let maps = fs::read_to_string(format!("/proc/{}/maps", target.pid())).expect("it runs");
        assert_eq!(libraries(target.pid()), 1, "one library");
        mappings.push(maps.lines().filter(|line| line.contains(" r-xp ")).count());
        assert!(maps.lines().count() < first + growth, "{maps}");
    }
    // Changes of protection leave a mapping of code in several parts, at the same places each time.
    let [_, second, .., last] = mappings[..] else { unreachable!("four rounds") };
    assert!(last <= second + 4, "{mappings:?}");
    target.end();
}

/// How many times a process has the agent's library.
fn libraries(pid: u32) -> usize {
    let code = |range: &str| u64::from_str_radix(range, 16).expect("an address");
    let maps = fs::read_to_string(format!("/proc/{pid}/maps")).expect("it runs");
    let memory = fs::File::open(format!("/proc/{pid}/mem")).expect("it runs");
    let writable = maps.lines().filter(|line| line.contains(" rw-p 00000000 00:00 0 "));
    let marked = writable.filter(|line| {
        let start = code(line.split('-').next().expect("a range"));
        let mut word = [0; 8];
        memory.read_exact_at(&mut word, start).is_ok_and(|()| word == *b"SKEPLIVE")
    });
    marked.count()
}

#[test]
fn a_dynamic_program() {
    attached_and_left(Target::dynamic(), GLIBC);
}

#[test]
fn a_program_at_a_fixed_address() {
    attached_and_left(Target::new(Cc::c(), &["-no-pie"]), GLIBC);
}

#[test]
fn a_static_program() {
    attached_and_left(Target::new(Cc::c(), &["-static"]), GLIBC);
}

#[test]
fn a_static_program_anywhere() {
    attached_and_left(Target::new(Cc::c(), &["-static-pie"]), GLIBC);
}

#[test]
fn programs_of_musl() {
    if !has_command("musl-gcc") {
        return skep_testkit::skip("musl-gcc");
    }
    let musl = || Cc::named("musl-gcc").args(&["-idirafter", "/usr/include"]);
    attached_and_left(Target::new(musl(), &[]), MUSL);
    attached_and_left(Target::new(musl(), &["-static"]), MUSL);
}

/// A library that is opened while a link is attached is hooked, too.
#[test]
fn a_library_opened_later() {
    let dir = TempDir::new();
    let source = dir.join("late.c");
    fs::write(&source, "long late(long n) { for (long i = 0; i < 9; i++) n ^= i * n; return n; }")
        .expect("it is written");
    let library =
        Cc::c().args(&["-O1", "-shared", "-fPIC"]).compile(&[&source], &dir.join("late.so"));
    let (skep, mut target) = (Skep::new(), Target::dynamic());
    let before = target.state();
    let tracer = Tracer::attach(&skep, &target, &["late", "work"]);
    target.tell(&format!("open {}", library.display()));
    let report = tracer.end();
    assert!(calls(&report, "late") > 0, "{report}");
    let after = target.state();
    for (place, bytes) in &before.code {
        assert_eq!(after.code.get(place), Some(bytes), "{place}");
    }
    target.end();
}

/// When `skep` is killed the target goes on, and nothing but a few jumps to the functions themselves
/// stays; they are gone after the next trace.
#[test]
fn a_killed_skep_leaves_the_program() {
    let (skep, mut target) = (Skep::new(), Target::dynamic());
    let before = target.state();
    for _ in 0..3 {
        let mut tracer = Tracer::attach(&skep, &target, &["target:*", "libc.so.6:*"]);
        target.tell("threads 10");
        tracer.running.kill().expect("it runs");
        tracer.running.wait().expect("it ends");
        wait_for(&mut target, |now| now.rest() == before.rest());
        target.tell("nest 10");
    }
    let tracer = Tracer::attach(&skep, &target, &["target:work"]);
    target.tell("threads 100");
    assert_eq!(calls(&tracer.end(), "work"), 800);
    let after = target.state();
    assert!(after.code == before.code, "{}", changed(&before, &after));
    target.end();
}

fn wait_for(target: &mut Target, done: impl Fn(&State) -> bool) {
    let end = Instant::now() + LIMIT;
    while !done(&target.state()) {
        assert!(Instant::now() < end, "it is not as it was");
        target.tell("threads 1");
    }
}

/// Killed at any time while it attaches: the program is never hurt, and can be attached to again.
#[test]
fn killed_while_it_attaches() {
    let (skep, mut target) = (Skep::new(), Target::dynamic());
    let before = target.state();
    let pid = target.pid().to_string();
    for n in 0..40 {
        let command = skep.command(["trace", "-p", &pid, "libc.so.6:*", "target:*"]);
        let mut running = start(&command, LIMIT);
        std::thread::sleep(Duration::from_millis(3 * n));
        running.kill().expect("it is ours");
        running.wait().expect("it ends");
        target.tell("threads 3");
    }
    wait_for(&mut target, |now| now.rest() == before.rest());
    let tracer = Tracer::attach(&skep, &target, &["target:work"]);
    target.tell("threads 100");
    assert_eq!(calls(&tracer.end(), "work"), 800);
    target.end();
}

/// The trace ends with the program, and when the time is up.
#[test]
fn the_end_of_a_trace() {
    let (skep, mut target) = (Skep::new(), Target::dynamic());
    let mut tracer = Tracer::attach(&skep, &target, &["target:work"]);
    target.tell("threads 100");
    target.end();
    assert_eq!(calls(&tracer.report(), "work"), 800);

    let (target, other) = (Target::dynamic(), Target::dynamic());
    let pids = [target.pid(), other.pid()].map(|pid| pid.to_string());
    let mut wanted = [target.pid(), other.pid()];
    wanted.sort_unstable();
    // On a busy machine nobody may be called in a short time.
    let was_called = ["300ms", "3s", "30s"].iter().any(|time| {
        let args =
            ["trace", "target:idle", "-p", &pids[0], "-p", &pids[1], "--for", time, "--json"];
        let ended = skep.run(args);
        assert_eq!(ended.status.code(), Some(0), "{}", ended.transcript());
        let report: Json = serde_json::from_slice(&ended.stdout).expect("JSON");
        assert_eq!(report["pids"], json!(wanted));
        calls(&report, "idle") > 0
    });
    assert!(was_called);
}

/// The trace ends with the program also when that executes another one.
#[test]
fn a_process_that_executes_another_program() {
    let scope = fs::read_to_string("/proc/sys/kernel/yama/ptrace_scope").unwrap_or_default();
    if !is_root() && !matches!(scope.trim(), "" | "0") {
        return skep_testkit::skip("ptrace_scope 0");
    }
    let skep = Skep::new();
    let mut command = Command::new("sh");
    command.args(["-c", "echo ready; read word; exec sleep 1000"]);
    let dir = TempDir::new();
    let mut target = Target::start(dir, PathBuf::from("sh"), &command);
    let mut tracer = Tracer::attach(&skep, &target, &["libc.so.6:read"]);
    let input = target.running.stdin.as_mut().expect("a pipe");
    writeln!(input, "on").expect("it reads");
    let report = tracer.report();
    assert_eq!(report["pids"], json!([target.pid()]));
    assert_eq!(target.running.try_wait().expect("it is a child"), None, "it runs on");
}

/// A program in a mount namespace where no path of ours leads anywhere.
#[test]
fn another_mount_namespace() {
    if !is_root() {
        return skep_testkit::skip("root, for a mount namespace");
    }
    let dir = TempDir::new();
    let path = compile(&dir, Cc::c(), &["-static"]);
    let script = "mount -t tmpfs none /dev/shm && mount -t tmpfs none /tmp && exec \"$0\"";
    let bin = Path::new("/var/tmp").join(format!("skep-attach-{}", std::process::id()));
    program::copy(&path, &bin);
    let mut command = Command::new("unshare");
    command.args(["-m", "sh", "-c", script]).arg(&bin);
    let target = Target::start(dir, bin.clone(), &command);
    fs::remove_file(&bin).expect("it is there");
    attached_and_left_in_place(target);
}

/// A program of a container, where processes have other ids.
#[test]
fn another_pid_namespace() {
    if !is_root() {
        return skep_testkit::skip("root, for a PID namespace");
    }
    let make = |with_shell: bool| {
        let dir = TempDir::new();
        let path = compile(&dir, Cc::c(), &["-DDYNAMIC", "-ldl"]);
        let mut command = Command::new("unshare");
        command.args(["--pid", "--fork", "--mount-proc"]);
        if with_shell {
            // The target is not the first process, and the shell waits for it.
            command.args(["sh", "-c", "\"$0\"; exit $?"]);
        }
        let target = Target::start(dir, path.clone(), command.arg(path)).below();
        if with_shell { target.below() } else { target }
    };
    attached_and_left_in_place(make(true));
    attached_and_left_in_place(make(false));
    let skep = Skep::new();
    let (mut target, mut other) = (make(false), Target::dynamic());
    let (here, there) = (other.pid().to_string(), target.pid().to_string());
    let two = skep.run(["trace", "work", "-p", &here, "-p", &there]);
    assert_eq!(two.status.code(), Some(1), "{}", two.transcript());
    assert!(String::from_utf8_lossy(&two.stderr).contains("another PID namespace"));
    other.end();
    // Whoever cannot be attached to has the id that is known here.
    target.stop();
    let stopped = skep.run(["trace", "work", "-p", &there]);
    signal(target.pid(), Signal::CONT);
    let said = String::from_utf8_lossy(&stopped.stderr).into_owned();
    assert_eq!(stopped.status.code(), Some(2), "{said}");
    assert!(said.contains(&format!("`kill -CONT {there}`")), "{said}");
    // Killed, skep outside takes the one inside with it, which leaves the target.
    let before = target.state();
    let tracer = Tracer::attach(&skep, &target, &["work"]);
    assert_ne!(code(target.pid()), before.code, "nothing was hooked");
    let inside = PathBuf::from(format!("/proc/{}", child(tracer.running.id())));
    signal(tracer.running.id(), Signal::KILL);
    let end = Instant::now() + LIMIT;
    while inside.exists() {
        assert!(Instant::now() < end, "it stays");
    }
    assert!(target.state() == before);
    attached_and_left_in_place_by(&skep, &mut target);
    // The kernel ends all processes of a namespace with its first.
    let mut running = start(&skep.command(["trace", "work", "-p", &there]), LIMIT);
    let mut errors = BufReader::new(running.stderr.take().expect("a pipe"));
    let mut said = String::new();
    while !said.contains("attached to ") {
        assert!(errors.read_line(&mut said).expect("a pipe") > 0, "skep ended: {said}");
    }
    target.end();
    errors.read_to_string(&mut said).expect("a pipe");
    assert_eq!(running.wait().expect("it ends").code(), Some(1), "{said}");
    assert!(said.contains("first process of a namespace"), "{said}");
}

fn attached_and_left_in_place(mut target: Target) {
    attached_and_left_in_place_by(&Skep::new(), &mut target);
    target.end();
}

fn attached_and_left_in_place_by(skep: &Skep, target: &mut Target) {
    let before = target.state();
    let name = target.path.file_name().expect("a name").to_string_lossy().into_owned();
    let tracer = Tracer::attach(skep, target, &["work"]);
    target.tell("threads 100");
    assert_eq!(calls(&tracer.end(), "work"), 800, "{name}");
    assert!(target.state() == before);
}

/// What cannot be attached to is told in one sentence, and goes on.
#[test]
fn refusals() {
    let (skep, mut target) = (Skep::new(), Target::dynamic());
    let pid = target.pid().to_string();
    let own = std::process::id().to_string();
    let cases: [(&[&str], i32, &str); 7] = [
        (&["no_such_function", "-p", &pid], 1, "no function matches"),
        (&["_start", "-p", &pid], 1, "entered without a return address: _start"),
        (&["work", "-p", "4194399"], 2, "4194399"),
        (&["work", "-p", "1x"], 2, "1x"),
        (&["work", "-p", &pid, "--", "true"], 2, "cannot be used with"),
        (&["work", "--for", "1s", "--", "true"], 2, "--pid <PID>"),
        (&["work", "-p", &pid, "--for", "9"], 2, "no unit"),
    ];
    let before = target.state();
    for (args, status, text) in cases {
        let ended = skep.run(["trace"].iter().chain(args));
        assert_eq!(ended.status.code(), Some(status), "{}", ended.transcript());
        let errors = String::from_utf8_lossy(&ended.stderr);
        assert!(errors.contains(text), "{}", ended.transcript());
    }
    assert!(target.state() == before);
    // Stopped: nothing of ours would run there.
    target.stop();
    let ended = skep.run(["trace", "work", "-p", &pid]);
    signal(target.pid(), Signal::CONT);
    assert_eq!(ended.status.code(), Some(2), "{}", ended.transcript());
    assert!(
        String::from_utf8_lossy(&ended.stderr).contains("kill -CONT"),
        "{}",
        ended.transcript()
    );
    // Somebody else's tracer.
    let tracer = Tracer::attach(&skep, &target, &["target:work"]);
    let ended = skep.run(["trace", "work", "-p", &pid]);
    assert_eq!(ended.status.code(), Some(2), "{}", ended.transcript());
    let errors = String::from_utf8_lossy(&ended.stderr);
    assert!(errors.contains("another skep"), "{}", ended.transcript());
    target.tell("threads 10");
    assert_eq!(calls(&tracer.end(), "work"), 80);
    assert!(!own.is_empty());
    target.end();
}

/// Everybody can open a process's directory in `/proc`, and lock it: that keeps no `skep` out.
#[test]
fn who_may_not_look_into_a_process_keeps_nobody_out() {
    let (skep, mut target) = (Skep::new(), Target::dynamic());
    let dir = fs::File::open(format!("/proc/{}", target.pid())).expect("it is there");
    dir.lock().expect("nobody has it");
    let tracer = Tracer::attach(&skep, &target, &["target:work"]);
    target.tell("threads 10");
    assert_eq!(calls(&tracer.end(), "work"), 80);
    target.end();
    drop(dir);
}

/// No signal is left to stop the threads with, as in programs of Go, nor is one needed.
#[test]
fn a_program_that_handles_all_signals() {
    let dir = TempDir::new();
    let source = "#include <pthread.h>\n#include <signal.h>\n#include <stdio.h>\n#include <sys/prctl.h>\n#include <unistd.h>
        __attribute__((noinline, noclone)) long work(long n) { static volatile long s; for (long i = 0; i < n; i++) s ^= i * n; return s; }
        static void nothing(int s) { (void)s; }
        static void *loop(void *arg) { for (;;) { work(100); usleep(1000); } return arg; }
        int main(void) {
            prctl(PR_SET_PTRACER, PR_SET_PTRACER_ANY, 0, 0, 0);
            for (int s = 34; s <= 64; s++) signal(s, nothing);
            pthread_t t;
            pthread_create(&t, 0, loop, 0);
            setvbuf(stdout, 0, _IONBF, 0);
            for (puts(\"ready\"); getchar() != EOF; puts(\"done\"))
                for (int i = 0; i < 11; i++) work(100);
            return 7;
        }\n";
    fs::write(dir.join("handlers.c"), source).expect("it is written");
    let program = Cc::c()
        .args(&["-O1", "-pthread"])
        .compile(&[&dir.join("handlers.c")], &dir.join("handlers"));
    let mut target = Target::start(dir, program.clone(), &Command::new(program));
    let skep = Skep::new();
    let tracer = Tracer::attach(&skep, &target, &["handlers:work"]);
    target.tell("");
    let report = tracer.end();
    assert!(calls(&report, "work") > 10, "{report}");
    target.end();
}

/// Whether calls are in progress that return through the tracer's code cannot be looked at: so unwinders
/// go on to learn of such, by one or two functions that lead to the agent.
fn left_but_for_unwinders(before: &State, after: &State) {
    let differ =
        before.code.iter().zip(&after.code).map(|((name, before), (after_name, after))| {
            assert_eq!(name, after_name);
            let differ = before.iter().zip(after).filter(|(before, after)| before != after).count();
            assert!(differ == 0 || name.contains("libc.so"), "{}: {differ}", name);
            differ
        });
    let differ: usize = differ.sum();
    assert!(differ <= 10, "bytes of code: {}", changed(before, after));
}

/// What the agent cannot look at from inside any more is put right from outside; it can with descriptors of its
/// own.
#[test]
fn a_program_that_opens_all_files_it_may() {
    let mut target = Target::dynamic();
    let before = target.state();
    let skep = Skep::new();
    let tracer = Tracer::attach(&skep, &target, &["*"]);
    assert_ne!(code(target.pid()), before.code, "nothing was hooked");
    target.tell("main 50");
    target.tell("fill");
    let inside = "threads are still inside hooked functions";
    let words = if has_own_table() { inside } else { "its code is as before" };
    let report = tracer.end_warned(&target, words);
    assert!(calls(&report, "work") >= 50, "{report}");
    left_but_for_unwinders(&before, &target.state());
    target.tell("main 50");
    target.tell("threads 5");
    target.end();
}

/// The same where it goes to where there is no `/proc`.
#[test]
fn a_program_that_changes_its_root() {
    if !is_root() {
        return skep_testkit::skip::skip("root");
    }
    let mut target = Target::dynamic();
    let before = target.state();
    let (skep, root) = (Skep::new(), TempDir::new());
    let tracer = Tracer::attach(&skep, &target, &["*"]);
    target.tell("main 50");
    target.tell(&format!("hide {}", root.path().display()));
    target.tell("main 7");
    let report = tracer.end_warned(&target, "its code is as before");
    assert!(calls(&report, "work") >= 57, "{report}");
    left_but_for_unwinders(&before, &target.state());
    target.tell("main 50");
    target.tell("threads 5");
    target.end();
}

/// And where it has done so before, as servers do: that of skep is used.
#[test]
fn a_program_that_has_changed_its_root() {
    if !is_root() {
        return skep_testkit::skip::skip("root");
    }
    let (skep, root, mut target) = (Skep::new(), TempDir::new(), Target::dynamic());
    target.tell(&format!("hide {}", root.path().display()));
    for _ in 0..2 {
        attached_and_left_in_place_by(&skep, &mut target);
    }
    let before = target.state();
    let tracer = Tracer::attach(&skep, &target, &["*"]);
    target.tell("threads 10");
    target.tell("fork 30");
    // It waits for its input inside of functions that were hooked by then.
    let report = tracer.end_warned(&target, "threads are still inside");
    assert_eq!(calls(&report, "work"), 110, "{report}");
    // Those of the C library, too, whose file is found where it was before.
    assert!(calls(&report, "puts") > 0, "{report}");
    left_but_for_unwinders(&before, &target.state());
    target.end();
}

/// Signals that all threads have blocked are waited for, as before: those of faults, too.
#[test]
fn a_program_that_waits_for_all_signals() {
    let dir = TempDir::new();
    let source = "#include <pthread.h>\n#include <signal.h>\n#include <stdio.h>\n#include <sys/prctl.h>\n#include <unistd.h>
        __attribute__((noinline, noclone)) long work(long n) { static volatile long s; for (long i = 0; i < n; i++) s ^= i * n; return s; }
        static sigset_t all;
        static int waiting[2];
        static void *reader(void *arg) {
            for (siginfo_t info;;) {
                char signal = sigwaitinfo(&all, &info);
                if (signal < 0) continue;
                // As it was sent: Go's runtime ends the program at a fault.
                if (info.si_code != SI_USER) signal = 1;
                work(3);
                if (write(waiting[1], &signal, 1) != 1) return arg;
                if (signal == SIGUSR2) usleep(20000);
            }
        }
        int main(void) {
            // Of those of faults one finds its reader waiting, and one finds nobody.
            static const int sent[] = {SIGSEGV, SIGBUS, SIGUSR2, SIGSEGV, SIGUSR2, SIGBUS, SIGTRAP};
            prctl(PR_SET_PTRACER, PR_SET_PTRACER_ANY, 0, 0, 0);
            sigfillset(&all);
            pthread_sigmask(SIG_SETMASK, &all, 0);
            pthread_t t;
            if (pipe(waiting)) return 1;
            pthread_create(&t, 0, reader, 0);
            setvbuf(stdout, 0, _IONBF, 0);
            for (puts(\"ready\"); getchar() != EOF; puts(\"done\"))
                for (int i = 0; i < 7; i++) {
                    char got = 0;
                    work(100);
                    kill(getpid(), sent[i]);
                    if (read(waiting[0], &got, 1) != 1 || got != sent[i]) printf(\"%d, not %d\\n\", got, sent[i]);
                }
            return 7;
        }\n";
    fs::write(dir.join("waits.c"), source).expect("it is written");
    let program =
        Cc::c().args(&["-O1", "-pthread"]).compile(&[&dir.join("waits.c")], &dir.join("waits"));
    let mut target = Target::start(dir, program.clone(), &Command::new(program));
    // The first thread's. `SIGBUS` has a handler, which stays, and passes on what is sent.
    let blocked = |pid: u32| {
        let status = fs::read_to_string(format!("/proc/{pid}/status")).expect("it runs");
        let mask = status.lines().find_map(|line| line.strip_prefix("SigBlk:")).expect("a mask");
        u64::from_str_radix(mask.trim(), 16).expect("a number") | 1 << 6
    };
    let before = blocked(target.pid());
    let skep = Skep::new();
    for _ in 0..3 {
        let tracer = Tracer::attach(&skep, &target, &["waits:work"]);
        target.tell("");
        let report = tracer.end();
        assert_eq!(calls(&report, "work"), 14, "{report}");
        target.tell("");
        assert_eq!(blocked(target.pid()), before);
    }
    target.end();
}

/// What the agent looks at, to hook it, is gone in the next moment.
#[test]
fn libraries_that_come_and_go() {
    const FUNCTIONS: usize = 2000;
    let dir = TempDir::new();
    let source =
        "#include <dlfcn.h>\n#include <pthread.h>\n#include <stdio.h>\n#include <sys/prctl.h>
        __attribute__((noinline, noclone)) int work(int n) { static volatile int s; return s += n; }
        static void *open_and_close(void *path) {
            for (void *library; (library = dlopen(path, RTLD_NOW)) && !dlclose(library);) {}
            return path;
        }
        int main(int argc, char **argv) {
            prctl(PR_SET_PTRACER, PR_SET_PTRACER_ANY, 0, 0, 0);
            setvbuf(stdout, 0, _IONBF, 0);
            for (int i = 1; i < argc; i++) {
                pthread_t t;
                pthread_create(&t, 0, open_and_close, argv[i]);
            }
            for (puts(\"ready\"); getchar() != EOF; puts(\"done\")) work(0);
            return 7;
        }\n";
    let library: String = (0..FUNCTIONS)
        .map(|n| format!("int function_{n}(int n) {{ return n * {n} + n / ({n} + 3); }}\n"))
        .collect();
    fs::write(dir.join("opens.c"), source).expect("it is written");
    fs::write(dir.join("library.c"), library).expect("it is written");
    let program = Cc::c()
        .args(&["-O1", "-pthread", "-ldl"])
        .compile(&[&dir.join("opens.c")], &dir.join("opens"));
    let libraries = ["one.so", "other.so"].map(|name| dir.join(name));
    Cc::c().args(&["-O1", "-shared", "-fPIC"]).compile(&[&dir.join("library.c")], &libraries[0]);
    fs::copy(&libraries[0], &libraries[1]).expect("it is copied");
    let skep = Skep::new();
    let mut target = Target::start(dir, program.clone(), Command::new(program).args(&libraries));
    for _ in 0..3 {
        let mut tracer = Tracer::attach(&skep, &target, &["*"]);
        target.tell("");
        signal(tracer.running.id(), Signal::INT);
        // Threads are inside functions then, or not.
        let (report, said) = tracer.report_with_warnings();
        assert!(calls(&report, "work") > 0, "{said}");
    }
    target.end();
}

/// What the process's own number leads to is gone then: memory, mappings, open files.
#[test]
fn a_program_whose_main_thread_has_exited() {
    let dir = TempDir::new();
    let source = "#include <pthread.h>\n#include <stdio.h>\n#include <stdlib.h>\n#include <sys/prctl.h>
        __attribute__((noinline, noclone)) int work(const char *word) { static volatile int s; return s += word[0]; }
        static void *serve(void *once) {
            setvbuf(stdout, 0, _IONBF, 0);
            if (once) { work(\"only\"); exit(7); }
            for (puts(\"ready\"); getchar() != EOF; puts(\"done\"))
                for (int i = 0; i < 11; i++) work(\"word\");
            exit(7);
        }
        int main(int argc, char **argv) {
            pthread_t t;
            prctl(PR_SET_PTRACER, PR_SET_PTRACER_ANY, 0, 0, 0);
            pthread_create(&t, 0, serve, argc > 1 ? argv : 0);
            pthread_exit(0);
        }\n";
    fs::write(dir.join("others.c"), source).expect("it is written");
    let program = Cc::c()
        .args(&["-O1", "-g", "-pthread"])
        .compile(&[&dir.join("others.c")], &dir.join("others"));
    let skep = Skep::new();
    let run =
        skep.run(["trace", "others:work", "--args", "--", &program.to_string_lossy(), "once"]);
    assert_eq!(run.status.code(), Some(7), "{}", run.transcript());
    assert!(run.transcript().contains("\"only\""), "{}", run.transcript());
    let mut target = Target::start(dir, program.clone(), &Command::new(program));
    let end = Instant::now() + LIMIT;
    while state_of(target.pid()) != 'Z' {
        assert!(Instant::now() < end, "its main thread goes on");
        std::thread::sleep(Duration::from_millis(1));
    }
    for _ in 0..2 {
        let tracer = Tracer::attach(&skep, &target, &["others:work"]);
        target.tell("");
        assert_eq!(calls(&tracer.end(), "work"), 11);
        target.tell("");
    }
    target.end();
}

/// What stands in the way is told, and what would help; the program goes on.
#[test]
fn programs_that_stand_in_their_own_way() {
    let dir = TempDir::new();
    let source = "#define _GNU_SOURCE\n#include <sched.h>\n#include <stdio.h>\n#include <stdlib.h>\n#include <string.h>
        #include <sys/mman.h>\n#include <sys/prctl.h>\n#include <sys/resource.h>\n#include <unistd.h>
        __attribute__((noinline, noclone)) int work(int n) { static volatile int s; return s += n; }
        static void limit(int which, rlim_t to) { struct rlimit both = {to, to}; setrlimit(which, &both); }
        int main(int argc, char **argv) {
            const char *way = argv[1];
            prctl(PR_SET_PTRACER, PR_SET_PTRACER_ANY, 0, 0, 0);
            setvbuf(stdout, 0, _IONBF, 0);
            if (!strcmp(way, \"as\")) limit(RLIMIT_AS, 6 << 20);
            if (!strcmp(way, \"little\")) limit(RLIMIT_AS, 32 << 20);
            if (!strcmp(way, \"data\")) limit(RLIMIT_DATA, 1 << 20);
            if (!strcmp(way, \"fsize\")) limit(RLIMIT_FSIZE, 0);
            if (!strcmp(way, \"nofile\")) limit(RLIMIT_NOFILE, 3);
            if (!strcmp(way, \"mdwe\") && prctl(65, 1, 0, 0, 0)) return 0;
            if (!strcmp(way, \"unshare\") && unshare(CLONE_NEWPID)) return 0;
            if (!strcmp(way, \"maps\"))
                for (char *at; (at = mmap(0, 8192, PROT_READ, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0)) != MAP_FAILED;)
                    if (mprotect(at, 4096, PROT_NONE)) break;
            for (puts(\"ready\"); getchar() != EOF; puts(\"done\")) work(argc);
            return 7;
        }\n";
    fs::write(dir.join("ways.c"), source).expect("it is written");
    let program = Cc::c().args(&["-O1"]).compile(&[&dir.join("ways.c")], &dir.join("ways"));
    let cases = [
        ("as", "--as=unlimited", false),
        ("data", "--data=unlimited", false),
        ("fsize", "--fsize=unlimited", false),
        ("nofile", "--nofile=1024", false),
        ("mdwe", "PR_SET_MDWE", false),
        ("maps", "max_map_count", false),
        ("unshare", "unshare(CLONE_NEWPID)", true),
    ];
    let skep = Skep::new();
    for (way, remedy, needs_root) in cases {
        if needs_root && !is_root() {
            continue;
        }
        let folder = TempDir::new();
        let mut command = Command::new(&program);
        command.arg(way);
        let Some(mut target) = Target::start_if(folder, program.clone(), &command) else {
            // A kernel that has no such thing.
            assert!(!matches!(way, "as" | "data" | "fsize" | "nofile" | "maps"), "{way}");
            continue;
        };
        for _ in 0..2 {
            let ended = skep.run(["trace", "ways:work", "-p", &target.pid().to_string()]);
            assert_eq!(ended.status.code(), Some(2), "{way}: {}", ended.transcript());
            let said = String::from_utf8_lossy(&ended.stderr);
            assert!(said.contains(remedy), "{way}: {}", ended.transcript());
            assert!(!said.contains("system error"), "{way}: {}", ended.transcript());
            target.tell("");
        }
        target.end();
    }
    // The agent takes a few megabytes of address space.
    let mut command = Command::new(&program);
    command.arg("little");
    let mut target = Target::start(TempDir::new(), program.clone(), &command);
    for _ in 0..2 {
        let tracer = Tracer::attach(&skep, &target, &["ways:work"]);
        target.tell("");
        assert_eq!(calls(&tracer.end(), "work"), 1);
    }
    target.end();
}

/// A set of capabilities of a process.
fn rights(pid: u32, set: &str) -> u64 {
    let status = fs::read_to_string(format!("/proc/{pid}/status")).expect("it runs");
    let line = status.lines().find_map(|line| line.strip_prefix(set)).expect("a set");
    u64::from_str_radix(line.trim(), 16).expect("a set")
}

/// Root's skep works as the user of the processes, also where these have changed their user themselves,
/// which nobody else may stop then.
#[test]
fn a_program_of_another_user() {
    if !is_root() || !has_command("setpriv") {
        return skep_testkit::skip("root and setpriv");
    }
    let dir = TempDir::new();
    let source = "#include <stdio.h>\n#include <stdlib.h>\n#include <unistd.h>
        __attribute__((noinline, noclone)) int work(int n) { static volatile int s; return s += n; }
        int main(int argc, char **argv) {
            if (setgid(65534) || setuid(65534)) return 1;
            setvbuf(stdout, 0, _IONBF, 0);
            for (puts(\"ready\"); getchar() != EOF; puts(\"done\"))
                for (int i = 0; i < 11; i++) work(i);
            return 7;
        }\n";
    fs::write(dir.join("worker.c"), source).expect("it is written");
    let program = Cc::c().args(&["-O1"]).compile(&[&dir.join("worker.c")], &dir.join("worker"));
    // The agent reads the file as that user.
    fs::set_permissions(dir.path(), fs::Permissions::from_mode(0o755)).expect("it is ours");
    // Known by another name than its file's, as redis-server may be.
    let link = dir.join("called-so");
    std::os::unix::fs::symlink(&program, &link).expect("a new name");
    let mut target = Target::start(dir, program, &Command::new(link));
    let (skep, mut own) = (Skep::new(), Target::dynamic());
    // What the skep directory is to lie in need not be there.
    let below = skep.path("no/such/skep");
    let (pid, time) = (target.pid().to_string(), "10ms");
    let mut command = skep.command(["trace", "called-so:work", "-p", &pid, "--for", time]);
    let ended = run(command.env("SKEP_DIR", &below), b"", LIMIT);
    assert_eq!(ended.status.code(), Some(0), "{}", ended.transcript());
    let folded = skep.path("folded");
    for _ in 0..2 {
        let tracer = Tracer::attach(&skep, &target, &["called-so:work"]);
        let name = fs::read_to_string(format!("/proc/{}/comm", tracer.running.id()));
        assert_eq!(name.expect("it runs").trim(), "skep");
        // Rights to write to files of others, and those that programs get that it starts.
        const WRITING: u64 = 0b1011;
        let rights = |set| rights(tracer.running.id(), set);
        assert_eq!([rights("CapEff:") & WRITING, rights("CapAmb:"), rights("CapInh:")], [0; 3]);
        target.tell("");
        assert_eq!(calls(&tracer.end(), "work"), 11);
    }
    // What it writes is the caller's.
    let pid = target.pid().to_string();
    let to = folded.to_string_lossy().into_owned();
    let ended = skep.run(["trace", "worker:work", "-p", &pid, "--for", "10ms", "--folded", &to]);
    assert_eq!(ended.status.code(), Some(0), "{}", ended.transcript());
    assert_eq!(fs::metadata(&folded).expect("it was written").uid(), 0);
    // A link of that user's is not followed with root's rights.
    let (precious, next) = (skep.path("precious"), skep.path("skep/maps.next"));
    fs::write(&precious, "root's").expect("it is written");
    fs::set_permissions(&precious, fs::Permissions::from_mode(0o600)).expect("it is ours");
    fs::rename(&next, skep.path("skep/kept")).expect("it is there");
    std::os::unix::fs::symlink(&precious, &next).expect("a link");
    let refused = skep.run(["trace", "worker:work", "-p", &pid, "--for", "10ms"]);
    assert_eq!(refused.status.code(), Some(2), "{}", refused.transcript());
    assert_eq!(fs::read_to_string(&precious).expect("it is there"), "root's");
    fs::rename(skep.path("skep/kept"), next).expect("it is there");
    // One user at a time.
    let other = own.pid().to_string();
    let both = skep.run(["trace", "work", "-p", &pid, "-p", &other]);
    assert_eq!(both.status.code(), Some(1), "{}", both.transcript());
    assert!(String::from_utf8_lossy(&both.stderr).contains("a `skep` for each user"));
    own.end();
    target.end();
}
