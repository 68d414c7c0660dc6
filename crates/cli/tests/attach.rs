//! `skep trace -p`: programs of several kinds that run already are traced, and left as they were.

mod common;

use std::collections::BTreeMap;
use std::fs;
use std::io::{BufRead, BufReader, Read, Write};
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::process::{ChildStderr, ChildStdout, Command};
use std::time::{Duration, Instant};

use common::Skep;
use rustix::process::Signal;
use serde_json::{Value as Json, json};
use skep_testkit::TempDir;
use skep_testkit::cc::Cc;
use skep_testkit::run::{Running, signal, start};
use skep_testkit::skip::{has_command, is_root};

const LIMIT: Duration = Duration::from_secs(120);

/// Does what it is told on its input: calls `work` so often on each of eight new threads, or in a
/// child; opens a library and calls its `late`. Two more threads call `idle` all the time.
const PROGRAM: &str = r#"
#define _GNU_SOURCE
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>
#ifdef DYNAMIC
#include <dlfcn.h>
#endif
#define N __attribute__((noinline, noclone))
static volatile long sink;
N long work(long n) { for (long i = 0; i < 20; i++) sink += i * n; return sink; }
N long idle(long n) { sink += n; for (long i = 0; i < 5; i++) sink ^= i; return sink; }
static void *worker(void *p) { for (long i = 0; i < (long)p; i++) work(i); return p; }
static void *idler(void *p) { for (;;) { idle(3); usleep(200); } return p; }
static void *nest(void *p) {
    pthread_t t;
    work(1);
    if ((long)p > 0) { pthread_create(&t, 0, nest, (void *)((long)p - 1)); pthread_join(t, 0); }
    work(2);
    return p;
}
int main(void) {
    pthread_t t[8];
    char word[64], path[512];
    long n;
    prctl(PR_SET_PTRACER, PR_SET_PTRACER_ANY, 0, 0, 0); // Where Yama wants it.
    for (int i = 0; i < 2; i++) pthread_create(&t[0], 0, idler, 0);
    setvbuf(stdout, 0, _IONBF, 0);
    puts("ready");
    while (scanf("%63s", word) == 1) {
        if (!strcmp(word, "threads") && scanf("%ld", &n) == 1) {
            for (int i = 0; i < 8; i++) pthread_create(&t[i], 0, worker, (void *)n);
            for (int i = 0; i < 8; i++) pthread_join(t[i], 0);
        } else if (!strcmp(word, "nest") && scanf("%ld", &n) == 1) {
            pthread_create(&t[0], 0, nest, (void *)n);
            pthread_join(t[0], 0);
        } else if (!strcmp(word, "main") && scanf("%ld", &n) == 1) {
            worker((void *)n);
        } else if (!strcmp(word, "fork") && scanf("%ld", &n) == 1) {
            int status = 1;
            pid_t child = fork();
            if (!child) { worker((void *)n); _exit(0); }
            waitpid(child, &status, 0);
            if (status) puts("child failed");
        } else if (!strcmp(word, "vfork")) {
            int status = 1;
            pid_t child = vfork();
            if (!child) { execl("/bin/true", "true", (char *)0); _exit(9); }
            waitpid(child, &status, 0);
            if (status) puts("child failed");
#ifdef DYNAMIC
        } else if (!strcmp(word, "open") && scanf("%511s", path) == 1) {
            void *library = dlopen(path, RTLD_NOW);
            long (*late)(long) = library ? dlsym(library, "late") : 0;
            if (!late) puts("no library");
            // The agent looks at the library while we go on.
            for (int i = 0; late && i < 3000; i++) { late(i); usleep(1000); }
#endif
        }
        puts("done");
    }
    (void)path;
    return 7;
}
"#;

/// A program that runs.
struct Target {
    running: Running,
    out: BufReader<ChildStdout>,
    path: PathBuf,
    _dir: TempDir,
}

fn compile(dir: &TempDir, cc: Cc, flags: &[&str]) -> PathBuf {
    let source = dir.join("target.c");
    fs::write(&source, PROGRAM).expect("it is written");
    cc.args(&["-O1", "-g", "-pthread"]).args(flags).compile(&[&source], &dir.join("target"))
}

impl Target {
    fn new(cc: Cc, flags: &[&str]) -> Self {
        let dir = TempDir::new();
        let path = compile(&dir, cc, flags);
        Self::start(dir, path.clone(), &Command::new(path))
    }

    fn dynamic() -> Self {
        Self::new(Cc::c(), &["-DDYNAMIC", "-ldl"])
    }

    fn start(dir: TempDir, path: PathBuf, command: &Command) -> Self {
        let mut running = start(command, LIMIT);
        let out = BufReader::new(running.stdout.take().expect("a pipe"));
        let mut target = Self { running, out, path, _dir: dir };
        assert_eq!(target.line(), "ready");
        target
    }

    fn pid(&self) -> u32 {
        self.running.id()
    }

    fn line(&mut self) -> String {
        let mut line = String::new();
        self.out.read_line(&mut line).expect("a pipe");
        line.trim_end().to_owned()
    }

    /// Has it do something.
    fn tell(&mut self, order: &str) {
        let input = self.running.stdin.as_mut().expect("a pipe");
        writeln!(input, "{order}").expect("it reads");
        assert_eq!(self.line(), "done", "{order}");
    }

    /// Ends it by the end of its input.
    fn end(&mut self) {
        drop(self.running.stdin.take());
        assert_eq!(self.running.wait().expect("it ends").code(), Some(7));
    }

    /// What of it others can see: descriptors, number of threads, the bytes of all code, the
    /// dispositions of signals.
    fn state(&self) -> State {
        let proc = PathBuf::from(format!("/proc/{}", self.pid()));
        let count = |name: &str| fs::read_dir(proc.join(name)).expect("it runs").count();
        let status = fs::read_to_string(proc.join("status")).expect("it runs");
        let line = |name: &str| status.lines().find(|l| l.starts_with(name)).map(str::to_owned);
        State {
            descriptors: count("fd"),
            threads: count("task"),
            code: code(self.pid()),
            signals: [line("SigIgn:"), line("SigBlk:")],
        }
    }
}

#[derive(PartialEq)]
struct State {
    descriptors: usize,
    threads: usize,
    /// By address, of mappings of files.
    code: BTreeMap<String, Vec<u8>>,
    signals: [Option<String>; 2],
}

impl State {
    fn rest(&self) -> (usize, usize, &[Option<String>; 2]) {
        (self.descriptors, self.threads, &self.signals)
    }
}

/// The places where code differs.
fn changed(before: &State, after: &State) -> String {
    let mut out = String::new();
    for (place, bytes) in &before.code {
        let Some(now) = after.code.get(place) else {
            out += &format!("{place} is gone\n");
            continue;
        };
        let differ = (0..bytes.len()).filter(|n| now.get(*n) != bytes.get(*n));
        differ
            .take(20)
            .for_each(|n| out += &format!("{place}+{n:x} {:x?} {:x?}\n", bytes[n], now.get(n)));
    }
    out
}

/// The code that a process has from files. Changes of protection may leave a mapping in several
/// parts.
fn code(pid: u32) -> BTreeMap<String, Vec<u8>> {
    let maps = fs::read_to_string(format!("/proc/{pid}/maps")).expect("it runs");
    let memory = fs::File::open(format!("/proc/{pid}/mem")).expect("it runs");
    let lines = maps.lines().filter(|l| l.contains(" r-xp ") && l.contains(" /"));
    let mut all: Vec<(u64, String, Vec<u8>)> = Vec::new();
    for line in lines {
        let (start, rest) = line.split_once('-').expect("a range");
        let (end, rest) = rest.split_once(' ').expect("a range");
        let [start, end] =
            [start, end].map(|hex| u64::from_str_radix(hex, 16).expect("an address"));
        let path = &rest[rest.find('/').expect("a path")..];
        let mut bytes = vec![0; (end - start) as usize];
        memory.read_exact_at(&mut bytes, start).expect("it is mapped");
        match all.last_mut() {
            Some((first, name, before))
                if *name == path && *first + before.len() as u64 == start =>
            {
                before.append(&mut bytes);
            }
            _ => all.push((start, path.to_owned(), bytes)),
        }
    }
    all.into_iter().map(|(start, path, bytes)| (format!("{start:x} {path}"), bytes)).collect()
}

/// `skep trace -p` that has attached.
struct Tracer {
    running: Running,
    errors: BufReader<ChildStderr>,
    notes: String,
}

impl Tracer {
    fn attach(skep: &Skep, target: &Target, patterns: &[&str]) -> Self {
        let pid = target.pid().to_string();
        let args = ["trace", "-p", &pid, "--json"].into_iter().chain(patterns.iter().copied());
        let mut running = start(&skep.command(args), LIMIT);
        let mut errors = BufReader::new(running.stderr.take().expect("a pipe"));
        let mut notes = String::new();
        while !notes.contains("attached to process") {
            let read = errors.read_line(&mut notes).expect("a pipe");
            assert!(read > 0, "skep ended: {notes}");
        }
        Self { running, errors, notes }
    }

    /// Ends it by Ctrl-C; its report.
    fn end(mut self) -> Json {
        signal(self.running.id(), Signal::INT);
        self.report()
    }

    fn report(&mut self) -> Json {
        let mut out = String::new();
        let mut stdout = self.running.stdout.take().expect("a pipe");
        stdout.read_to_string(&mut out).expect("a pipe");
        self.errors.read_to_string(&mut self.notes).expect("a pipe");
        let status = self.running.wait().expect("it ends");
        assert_eq!(status.code(), Some(0), "{}", self.notes);
        assert!(!self.notes.contains("warning"), "{}", self.notes);
        serde_json::from_str(&out).unwrap_or_else(|e| panic!("{e}: {out}\n{}", self.notes))
    }
}

fn calls(report: &Json, name: &str) -> u64 {
    let functions = report["functions"].as_array().expect("a list");
    let mut rows = functions.iter().filter(|row| row["function"] == name || row["name"] == name);
    rows.next().map_or(0, |row| row["calls"].as_u64().expect("a number"))
}

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
        assert_eq!(maps.matches("/memfd:skep-agent").count(), 1, "one library");
        mappings.push(maps.lines().filter(|line| line.contains(" r-xp ")).count());
        assert!(maps.lines().count() < first + growth, "{maps}");
    }
    // Changes of protection leave a mapping of code in several parts, at the same places each time.
    let [_, second, .., last] = mappings[..] else { unreachable!("four rounds") };
    assert!(last <= second + 4, "{mappings:?}");
    target.end();
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
    let args = ["trace", "target:idle", "-p", &pids[0], "-p", &pids[1], "--for", "300ms", "--json"];
    let ended = skep.run(args);
    assert_eq!(ended.status.code(), Some(0), "{}", ended.transcript());
    let report: Json = serde_json::from_slice(&ended.stdout).expect("JSON");
    assert!(calls(&report, "idle") > 0);
    let mut wanted = [target.pid(), other.pid()];
    wanted.sort_unstable();
    assert_eq!(report["pids"], json!(wanted));
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
    command.args(["-c", "echo ready; read word; exec sleep 100"]);
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
    fs::copy(&path, &bin).expect("it is copied");
    let mut command = Command::new("unshare");
    command.args(["-m", "sh", "-c", script]).arg(&bin);
    let target = Target::start(dir, bin.clone(), &command);
    fs::remove_file(&bin).expect("it is there");
    attached_and_left_in_place(target);
}

fn attached_and_left_in_place(mut target: Target) {
    let skep = Skep::new();
    let before = target.state();
    let name = target.path.file_name().expect("a name").to_string_lossy().into_owned();
    let tracer = Tracer::attach(&skep, &target, &["work"]);
    target.tell("threads 100");
    assert_eq!(calls(&tracer.end(), "work"), 800, "{name}");
    assert!(target.state() == before);
    target.end();
}

/// What cannot be attached to is told in one sentence, and goes on.
#[test]
fn refusals() {
    let (skep, mut target) = (Skep::new(), Target::dynamic());
    let pid = target.pid().to_string();
    let own = std::process::id().to_string();
    let cases: [(&[&str], i32, &str); 6] = [
        (&["no_such_function", "-p", &pid], 1, "no function matches"),
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
    signal(target.pid(), Signal::STOP);
    let end = Instant::now() + LIMIT;
    let stat = || fs::read_to_string(format!("/proc/{pid}/stat")).expect("it is there");
    while !stat().contains(") T ") {
        assert!(Instant::now() < end, "it does not stop");
    }
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
