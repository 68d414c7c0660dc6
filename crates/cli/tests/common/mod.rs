//! What the tests of the command share: the command itself, a directory of its own for each test, a
//! target.

#![allow(dead_code, reason = "each test file uses a part")]

pub mod live;
pub mod page;

use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::OnceLock;
use std::time::Duration;

use serde_json::Value as Json;
use skep_testkit::TempDir;
use skep_testkit::cc::{Build, Cc};
use skep_testkit::program;
use skep_testkit::run::{Ended, Running, run, start};
use skep_testkit::trace::skep_bin;

/// Longest any command of these tests may take: they take seconds, but a machine may have much else
/// to do.
const LIMIT: Duration = Duration::from_secs(300);

/// Calls of `leaf` in one run of the target.
pub const LEAVES: u64 = 2000;

/// A skep directory of a test's own.
pub struct Skep {
    dir: TempDir,
    agent: Option<PathBuf>,
}

impl Skep {
    pub fn new() -> Self {
        // It may have to be built first, and nothing that a test starts should wait for that.
        skep_bin();
        Self { dir: TempDir::in_memory(), agent: None }
    }

    /// The same, with another agent than the command's own.
    pub fn with_agent(agent: PathBuf) -> Self {
        Self { agent: Some(agent), ..Self::new() }
    }

    /// Where files of the test may lie.
    pub fn path(&self, name: &str) -> PathBuf {
        self.dir.join(name)
    }

    /// The command with arguments.
    pub fn command<S: AsRef<std::ffi::OsStr>>(&self, args: impl IntoIterator<Item = S>) -> Command {
        let mut command = Command::new(skep_bin());
        command
            .args(args)
            .env("SKEP_DIR", self.dir.join("skep"))
            .env_remove("SKEP_PRELOAD")
            .env_remove("LD_PRELOAD");
        if let Some(agent) = &self.agent {
            command.env("SKEP_PRELOAD", agent);
        }
        command
    }

    /// Runs it to its end.
    pub fn run<S: AsRef<std::ffi::OsStr>>(&self, args: impl IntoIterator<Item = S>) -> Ended {
        self.run_with(args, b"")
    }

    /// Runs it with input.
    pub fn run_with<S: AsRef<std::ffi::OsStr>>(
        &self,
        args: impl IntoIterator<Item = S>,
        input: &[u8],
    ) -> Ended {
        run(&mut self.command(args), input, LIMIT)
    }

    /// Starts it in a process group of its own, with pipes; it is killed when the value is dropped,
    /// or has run for too long.
    pub fn start<S: AsRef<std::ffi::OsStr>>(&self, args: impl IntoIterator<Item = S>) -> Running {
        start(&self.command(args), LIMIT)
    }
}

/// Runs the command; its output when it succeeds.
pub fn out(skep: &Skep, args: &[&str]) -> String {
    let ended = skep.run(args);
    assert_eq!(ended.shell_status(), 0, "{args:?}: {}", ended.transcript());
    text(&ended.stdout)
}

/// Runs the command, which must fail with `status` and say `words` in one error.
pub fn fails(skep: &Skep, args: &[&str], status: i32, words: &str) {
    fails_on(skep, args, b"", status, &[words]);
}

/// Runs the command with input, which must fail with `status` and say all of `words` in one error.
pub fn fails_on(skep: &Skep, args: &[&str], input: &[u8], status: i32, words: &[&str]) {
    let ended = skep.run_with(args, input);
    assert_eq!(ended.shell_status(), status, "{args:?}: {}", ended.transcript());
    let said = text(&ended.stderr);
    for words in words {
        assert!(said.contains(words), "{args:?}: {words}: {}", ended.transcript());
    }
    assert_eq!(said.matches("error: ").count(), 1, "{args:?}: {}", ended.transcript());
}

pub fn text(bytes: &[u8]) -> String {
    String::from_utf8_lossy(bytes).into_owned()
}

pub fn json(bytes: &[u8]) -> Json {
    serde_json::from_slice(bytes).unwrap_or_else(|e| panic!("not JSON: {e}\n{}", text(bytes)))
}

/// A file beside the tests.
pub fn data(name: &str) -> String {
    format!("{}/tests/data/{name}", env!("CARGO_MANIFEST_DIR"))
}

/// An object of the command's own.
pub fn object(name: &str) -> String {
    format!("{}/bpf/{name}", env!("CARGO_MANIFEST_DIR"))
}

struct Targets {
    dynamic: PathBuf,
    fixed: PathBuf,
}

/// The targets lie where cargo wants such files to be: a static is never dropped, and would leave a
/// temporary folder behind.
fn targets() -> &'static Targets {
    static TARGETS: OnceLock<Targets> = OnceLock::new();
    TARGETS.get_or_init(|| {
        let source = data("target.c");
        let build = |name, build| {
            let dir = TempDir::new();
            let fresh = Cc::c().build(build).compile(&[Path::new(&source)], &dir.join(name));
            let kept = Path::new(env!("CARGO_TARGET_TMPDIR")).join(name);
            // Another run may execute the old file at this moment: put a whole new one in its
            // place.
            let whole = kept.with_extension(std::process::id().to_string());
            program::copy(&fresh, &whole);
            std::fs::rename(&whole, &kept).expect("cargo made the folder");
            kept
        };
        Targets { dynamic: build("target", Build::O2), fixed: build("static", Build::Static) }
    })
}

/// A program that calls `leaf` 2000 times and `twice` 1000 times, and `never` never.
pub fn target() -> &'static str {
    targets().dynamic.to_str().expect("a path we made")
}

/// The same, statically linked.
pub fn static_target() -> &'static str {
    targets().fixed.to_str().expect("a path we made")
}

/// The calls of a function in a report of `skep trace`.
pub fn calls(report: &Json, name: &str) -> Option<u64> {
    report["functions"].as_array()?.iter().find(|f| f["name"] == name)?["calls"].as_u64()
}
