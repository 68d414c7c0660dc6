//! Programs that run already, for the tests of `-p`: one that does what it is told, what others can
//! see of it, and a `skep` that has attached to it.

use std::collections::BTreeMap;
use std::fs;
use std::io::{BufRead, BufReader, Read, Write};
use std::os::unix::fs::FileExt;
use std::path::PathBuf;
use std::process::{ChildStderr, ChildStdout, Command};
use std::time::{Duration, Instant};

use rustix::event::{PollFd, PollFlags, poll};
use rustix::fs::OFlags;
use rustix::process::{PidfdFlags, Signal, pidfd_open};
use serde_json::Value as Json;
use skep_testkit::TempDir;
use skep_testkit::cc::Cc;
use skep_testkit::run::{Running, signal, start};

use super::Skep;

pub const LIMIT: Duration = Duration::from_secs(600);

/// Does what it is told on its input: calls `work` so often on each of eight new threads, or in a
/// child; opens a library and calls its `late`. Two more threads call `idle` all the time, which it
/// waits for when it is told to.
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
static volatile long sink, turns[2];
N long work(long n) { for (long i = 0; i < 20; i++) sink += i * n; return sink; }
N long idle(long n) { sink += n; for (long i = 0; i < 5; i++) sink ^= i; return sink; }
static void *worker(void *p) { for (long i = 0; i < (long)p; i++) work(i); return p; }
static void *idler(void *p) { for (;;) { idle(3); turns[(long)p]++; usleep(200); } return p; }
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
#ifndef SINGLE
    for (long i = 0; i < 2; i++) pthread_create(&t[0], 0, idler, (void *)i);
#endif
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
        } else if (!strcmp(word, "fill")) { // No more files may be open.
            while (dup(0) >= 0);
        } else if (!strcmp(word, "hide") && scanf("%511s", path) == 1) { // There is no /proc.
            if (chroot(path) || chdir("/")) puts("not hidden");
        } else if (!strcmp(word, "idlers")) {
            for (int i = 0; i < 2; i++)
                for (long before = turns[i]; turns[i] < before + 2;) usleep(200);
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
            // The agent looks at the library while we go on, until a hook is there, or for too long. It begins as a breakpoint.
            const volatile unsigned char *code = (const unsigned char *)late;
            unsigned char own[2] = {late ? code[0] : 0, late ? code[4] : 0};
            for (int i = 0; late && i < 60000; i++) {
                int is_hooked = code[0] != own[0] || code[4] != own[1];
                late(i);
                if (is_hooked && code[0] != 0xcc && code[4] != 0xcc) break;
                usleep(1000);
            }
            for (int i = 0; late && i < 10; i++) late(i);
#endif
        }
        puts("done");
    }
    (void)path;
    return 7;
}
"#;

/// A program that runs.
pub struct Target {
    pub running: Running,
    pid: u32,
    out: BufReader<ChildStdout>,
    pub path: PathBuf,
    _dir: TempDir,
}

/// The letter for what a process does.
pub fn state_of(pid: u32) -> char {
    let stat = fs::read_to_string(format!("/proc/{pid}/stat")).expect("it is there");
    stat.rsplit_once(") ").and_then(|(_, rest)| rest.chars().next()).expect("a state")
}

/// Tells whether an agent's thread is in a process.
pub fn has_agent(pid: u32) -> bool {
    let threads = fs::read_dir(format!("/proc/{pid}/task")).expect("it runs").flatten();
    let mut names = threads.filter_map(|t| fs::read_to_string(t.path().join("comm")).ok());
    names.any(|name| name.trim() == "skep-agent")
}

/// The one child of a process with one thread.
pub fn child(pid: u32) -> u32 {
    let children = fs::read_to_string(format!("/proc/{pid}/task/{pid}/children"));
    children.expect("it runs").trim().parse().expect("one child")
}

pub fn compile(dir: &TempDir, cc: Cc, flags: &[&str]) -> PathBuf {
    let source = dir.join("target.c");
    fs::write(&source, PROGRAM).expect("it is written");
    cc.args(&["-O1", "-g", "-pthread"]).args(flags).compile(&[&source], &dir.join("target"))
}

impl Target {
    pub fn new(cc: Cc, flags: &[&str]) -> Self {
        let dir = TempDir::new();
        let path = compile(&dir, cc, flags);
        Self::start(dir, path.clone(), &Command::new(path))
    }

    pub fn dynamic() -> Self {
        Self::new(Cc::c(), &["-DDYNAMIC", "-ldl"])
    }

    pub fn start(dir: TempDir, path: PathBuf, command: &Command) -> Self {
        Self::start_if(dir, path, command).expect("it begins")
    }

    /// `None`: it ends before it is ready.
    pub fn start_if(dir: TempDir, path: PathBuf, command: &Command) -> Option<Self> {
        // Built before the program's time runs.
        skep_testkit::trace::skep_bin();
        // A stress run takes as long as it takes.
        let stress = std::env::var_os("SKEP_STRESS").is_some();
        let limit = if stress { Duration::from_secs(24 * 3600) } else { LIMIT };
        let mut running = start(command, limit);
        let out = BufReader::new(running.stdout.take().expect("a pipe"));
        let pid = running.id();
        let mut target = Self { running, pid, out, path, _dir: dir };
        (target.line() == "ready").then_some(target)
    }

    /// The target is the child of the command, which waits for it.
    pub fn below(mut self) -> Self {
        self.pid = child(self.pid);
        self
    }

    pub fn pid(&self) -> u32 {
        self.pid
    }

    pub fn line(&mut self) -> String {
        let mut line = String::new();
        self.out.read_line(&mut line).expect("a pipe");
        line.trim_end().to_owned()
    }

    /// Has it do something.
    pub fn tell(&mut self, order: &str) {
        self.order(order);
        assert_eq!(self.line(), "done", "{order}");
    }

    /// The same, without waiting until it is done.
    pub fn order(&mut self, order: &str) {
        let input = self.running.stdin.as_mut().expect("a pipe");
        writeln!(input, "{order}").expect("it reads");
    }

    /// Waits until it waits for its next order: its main thread is inside a function then.
    pub fn waits_for_an_order(&self) {
        while state_of(self.pid) != 'S' {
            std::thread::sleep(Duration::from_millis(1));
        }
    }

    /// Whether it says nothing for so long.
    pub fn is_silent_for(&self, time: Duration) -> bool {
        assert!(self.out.buffer().is_empty());
        let mut output = [PollFd::new(self.out.get_ref(), PollFlags::IN)];
        let time = time.try_into().expect("a short time");
        poll(&mut output, Some(&time)).expect("a pipe") == 0
    }

    /// Stops it, and waits until it is, by itself or by who traces it.
    pub fn stop(&self) {
        signal(self.pid(), Signal::STOP);
        let end = Instant::now() + LIMIT;
        while !matches!(state_of(self.pid()), 't' | 'T') {
            assert!(Instant::now() < end, "it does not stop");
        }
    }

    /// Ends it by the end of its input.
    pub fn end(&mut self) {
        drop(self.running.stdin.take());
        assert_eq!(self.running.wait().expect("it ends").code(), Some(7));
    }

    /// Waits until no agent's thread is in it any more. A new one has its name when it has run, so there is none if
    /// for a while none is seen.
    pub fn wait_for_end_of_agent(&self) {
        let end = Instant::now() + LIMIT;
        let mut seen = Instant::now();
        while seen.elapsed() < Duration::from_millis(100) {
            if has_agent(self.pid()) {
                seen = Instant::now();
            }
            assert!(Instant::now() < end, "the agent stays");
            std::thread::sleep(Duration::from_millis(1));
        }
    }

    /// What of it others can see: descriptors, number of threads, the bytes of all code, the
    /// dispositions of signals.
    pub fn state(&self) -> State {
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
pub struct State {
    descriptors: usize,
    threads: usize,
    /// By address, of mappings of files.
    pub code: BTreeMap<String, Vec<u8>>,
    signals: [Option<String>; 2],
}

impl State {
    pub fn rest(&self) -> (usize, usize, &[Option<String>; 2]) {
        (self.descriptors, self.threads, &self.signals)
    }
}

/// The places where code differs.
pub fn changed(before: &State, after: &State) -> String {
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
pub fn code(pid: u32) -> BTreeMap<String, Vec<u8>> {
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
pub struct Tracer {
    pub running: Running,
    errors: BufReader<ChildStderr>,
    notes: String,
}

impl Tracer {
    /// Starts `skep trace` with patterns.
    pub fn attach(skep: &Skep, target: &Target, patterns: &[&str]) -> Self {
        Self::start(skep, target, "trace", patterns)
    }

    /// Starts a command of `skep` that takes `-p`, and waits until it has attached.
    pub fn start(skep: &Skep, target: &Target, command: &str, args: &[&str]) -> Self {
        let pid = target.pid().to_string();
        let args = [command, "-p", &pid, "--json"].into_iter().chain(args.iter().copied());
        let mut running = start(&skep.command(args), LIMIT);
        let mut errors = BufReader::new(running.stderr.take().expect("a pipe"));
        let mut notes = String::new();
        while !notes.contains("attached to ") {
            let read = errors.read_line(&mut notes).expect("a pipe");
            assert!(read > 0, "skep ended: {notes}");
        }
        Self { running, errors, notes }
    }

    /// Waits for its end; its report.
    pub fn wait(mut self) -> Json {
        self.report()
    }

    /// Ends it by Ctrl-C; its report.
    pub fn end(mut self) -> Json {
        signal(self.running.id(), Signal::INT);
        self.report()
    }

    /// As [`Tracer::end`], where one warning is due, which has these words: of the function in which the
    /// process waits for an order.
    pub fn end_warned(mut self, target: &Target, words: &str) -> Json {
        target.waits_for_an_order();
        signal(self.running.id(), Signal::INT);
        let (report, said) = self.report_with_warnings();
        assert_eq!(said.matches("warning: ").count(), 1, "{said}");
        assert!(said.contains(words), "{said}");
        report
    }

    pub fn report(&mut self) -> Json {
        let (report, said) = self.report_with_warnings();
        assert!(!said.contains("warning"), "{said}");
        report
    }

    /// The report, and all that it said besides.
    pub fn report_with_warnings(&mut self) -> (Json, String) {
        let mut out = String::new();
        let mut stdout = self.running.stdout.take().expect("a pipe");
        stdout.read_to_string(&mut out).expect("a pipe");
        self.errors.read_to_string(&mut self.notes).expect("a pipe");
        let status = self.running.wait().expect("it ends");
        assert_eq!(status.code(), Some(0), "{}", self.notes);
        let report = serde_json::from_str(&out);
        (report.unwrap_or_else(|e| panic!("{e}: {out}\n{}", self.notes)), self.notes.clone())
    }
}

/// How many calls a report has of a function.
pub fn calls(report: &Json, name: &str) -> u64 {
    let functions = report["functions"].as_array().expect("a list");
    let mut rows = functions.iter().filter(|row| row["function"] == name || row["name"] == name);
    rows.next().map_or(0, |row| row["calls"].as_u64().expect("a number"))
}

/// Where skep can fetch files of any thread (Linux 6.9), the agent's has a descriptor table of its own.
pub fn has_own_table() -> bool {
    let thread = PidfdFlags::from_bits_retain(OFlags::EXCL.bits());
    pidfd_open(rustix::thread::gettid(), thread).is_ok()
}
