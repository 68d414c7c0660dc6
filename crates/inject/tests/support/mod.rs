//! Programs that tests stop and change.
#![allow(dead_code, reason = "every test file uses a part")]

use std::collections::BTreeMap;
use std::io::{BufRead, BufReader, Read, Write};
use std::path::{Path, PathBuf};
use std::process::{ChildStdout, Command};
use std::time::Duration;

use skep_testkit::TempDir;
use skep_testkit::cc::Cc;
use skep_testkit::run::{self, Running};

/// A program of `tests/targets` that runs, and its folder.
pub struct Program {
    pub running: Running,
    out: BufReader<ChildStdout>,
    _dir: TempDir,
}

/// Compiles a file of `tests/targets`.
pub fn build(dir: &TempDir, file: &str, cc: Cc) -> PathBuf {
    let source = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/targets").join(file);
    cc.compile(&[&source], &dir.join("program"))
}

impl Program {
    /// Compiles and starts one, and waits until it is ready.
    pub fn start(file: &str, flags: &[&str]) -> Self {
        Self::start_by(file, Cc::c().arg("-O2").args(flags))
    }

    pub fn start_by(file: &str, cc: Cc) -> Self {
        let dir = TempDir::new();
        let program = build(&dir, file, cc);
        Self::run(dir, &Command::new(program))
    }

    pub fn run(dir: TempDir, command: &Command) -> Self {
        let mut running = run::start(command, Duration::from_secs(300));
        let out = BufReader::new(running.stdout.take().expect("a pipe"));
        let mut program = Self { running, out, _dir: dir };
        assert_eq!(program.line(), "ready");
        program
    }

    pub fn pid(&self) -> u32 {
        self.running.id()
    }

    /// The next line that the program prints; empty at its end.
    pub fn line(&mut self) -> String {
        let mut line = String::new();
        self.out.read_line(&mut line).expect("a pipe is read");
        line.trim_end().to_owned()
    }

    /// Gives the program a byte to read.
    pub fn tell(&mut self) {
        let stdin = self.running.stdin.as_mut().expect("a pipe");
        stdin.write_all(b"x").expect("the program reads");
    }

    /// Has the program answer, which it does only while it runs.
    pub fn ask(&mut self) {
        let stdin = self.running.stdin.as_mut().expect("a pipe");
        let asked = stdin.write_all(b"x");
        if asked.is_err() || self.line() != "here" {
            let mut err = String::new();
            self.running.stderr.take().expect("a pipe").read_to_string(&mut err).expect("a pipe");
            panic!("the program has ended: {err}");
        }
    }

    /// Ends the program's input, and returns the rest of its output; it must end well.
    pub fn end(mut self) -> String {
        drop(self.running.stdin.take());
        let (mut out, mut err) = (String::new(), String::new());
        self.out.read_to_string(&mut out).expect("a pipe is read");
        self.running.stderr.take().expect("a pipe").read_to_string(&mut err).expect("a pipe");
        let status = self.running.wait().expect("it ends");
        assert!(status.success() && out.ends_with("fine\n"), "{status}: {err}{out}");
        out
    }
}

/// What a program has open, by number.
pub fn descriptors(pid: u32) -> BTreeMap<u32, PathBuf> {
    let entries = std::fs::read_dir(format!("/proc/{pid}/fd")).expect("it runs").flatten();
    entries
        .filter_map(|entry| {
            let number = entry.file_name().to_str()?.parse().ok()?;
            Some((number, std::fs::read_link(entry.path()).ok()?))
        })
        .collect()
}

/// Where a program has something mapped, and what.
pub fn mappings(pid: u32) -> Vec<String> {
    let text = std::fs::read_to_string(format!("/proc/{pid}/maps")).expect("it runs");
    text.lines().map(str::to_owned).collect()
}

/// The state of each thread, as in `/proc/PID/task/TID/stat`.
pub fn states(pid: u32) -> String {
    let tasks = std::fs::read_dir(format!("/proc/{pid}/task")).expect("it runs").flatten();
    let state = |stat: String| stat.rsplit_once(") ").and_then(|(_, rest)| rest.chars().next());
    tasks
        .filter_map(|task| state(std::fs::read_to_string(task.path().join("stat")).ok()?))
        .collect()
}
