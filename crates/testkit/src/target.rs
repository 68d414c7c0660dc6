//! The target programs under `targets/`, as a table, and running them with their own counts.
//!
//! Each program does something that is hard on a tracer, checks its own results (it exits with 99
//! and a message when one is wrong) and counts its own calls, see `targets/count.h`. To add one: a
//! file there and a row in [`TARGETS`].

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use crate::cc::{Build, Cc};
use crate::run::{self, Ended};
use crate::temp::TempDir;

/// One target program.
#[derive(Debug)]
#[non_exhaustive]
pub struct Target {
    /// Its name, that of the source without the ending.
    pub name: &'static str,
    /// The file below `targets/`.
    pub source: &'static str,
    /// What is hard about it.
    pub what: &'static str,
    /// Its arguments; `PLUGIN` stands for the path of `plugin.so`.
    pub args: &'static [&'static str],
    /// What it reads.
    pub input: &'static [u8],
    /// Its status, as a shell says it.
    pub status: i32,
    /// Functions whose calls a tracer may see fewer of, never more: those that run inside other
    /// events, or after the environment was thrown away.
    pub fewer: &'static [&'static str],
    /// Functions that a tracer may leave alone (it has to say so), as they cannot be hooked
    /// safely.
    pub maybe_skipped: &'static [&'static str],
    /// Two runs make the same number of calls.
    pub repeatable: bool,
}

const PLAIN: Target = Target {
    name: "",
    source: "",
    what: "",
    args: &[],
    input: b"",
    status: 0,
    fewer: &[],
    maybe_skipped: &[],
    repeatable: true,
};

/// Functions of `prologues.c` that have no room or no safe place for a hook.
const ODD: &[&str] = &[
    "odd_ret",
    "odd_short",
    "odd_after_short",
    "odd_loop_into",
    "odd_jrcxz",
    "odd_loop_insn",
    "odd_rip_cmp",
    "odd_call_first",
    "odd_get_ip",
    "odd_branch_first",
    "odd_only_jump",
    "odd_return_address",
    "odd_nops",
    "odd_enter",
];

/// All targets but the plug-in.
pub const TARGETS: &[Target] = &[
    Target {
        name: "threads",
        source: "threads.c",
        what: "eight threads call the same functions",
        ..PLAIN
    },
    Target { name: "churn", source: "churn.c", what: "a thousand short threads", ..PLAIN },
    Target { name: "fork", source: "fork.c", what: "children and a grandchild", ..PLAIN },
    Target { name: "exec", source: "exec.c", what: "replaces itself four times", ..PLAIN },
    Target { name: "spawn", source: "spawn.c", what: "vfork, posix_spawn, system, popen", ..PLAIN },
    Target { name: "longjmp", source: "longjmp.c", what: "frames that never return", ..PLAIN },
    Target {
        name: "sigprof",
        source: "sigprof.c",
        what: "timers at 20 kHz whose handler calls functions",
        fewer: &["both", "only_handler", "handler"],
        repeatable: false,
        ..PLAIN
    },
    Target {
        name: "args",
        source: "args.c",
        what: "twelve arguments, results and chains in registers",
        ..PLAIN
    },
    Target {
        name: "floats",
        source: "floats.c",
        what: "floating point arguments and results",
        ..PLAIN
    },
    Target { name: "structs", source: "structs.c", what: "structures by value", ..PLAIN },
    Target { name: "variadic", source: "variadic.c", what: "forty variadic arguments", ..PLAIN },
    Target {
        name: "exceptions",
        source: "exceptions.cc",
        what: "C++ exceptions through 100 frames",
        ..PLAIN
    },
    Target {
        name: "classes",
        source: "classes.cc",
        what: "overloads, virtual functions, std::sort",
        ..PLAIN
    },
    Target {
        name: "recursion",
        source: "recursion.c",
        what: "thousands of active calls of one function",
        ..PLAIN
    },
    // Each tail call leaves a frame of an exit hook on the stack; a tracer has to stop somewhere,
    // and count.
    Target {
        name: "tailring",
        source: "tailring.c",
        what: "a ring of tail calls",
        fewer: &["ring_a", "ring_b", "ring_c"],
        ..PLAIN
    },
    Target {
        name: "crash",
        source: "crash.c",
        what: "dies of SIGSEGV inside a call",
        status: 139,
        ..PLAIN
    },
    Target {
        name: "handlers",
        source: "handlers.c",
        what: "its own SIGSEGV and SIGTRAP handlers",
        ..PLAIN
    },
    Target {
        name: "dlopen",
        source: "dlopen.c",
        what: "a library that comes and goes",
        args: &["PLUGIN"],
        fewer: &["plugin_twice", "plugin_inner"],
        ..PLAIN
    },
    Target { name: "cancel", source: "cancel.c", what: "pthread_exit and pthread_cancel", ..PLAIN },
    Target {
        name: "coroutines",
        source: "coroutines.c",
        what: "swapcontext between small stacks",
        ..PLAIN
    },
    Target { name: "alloca", source: "alloca.c", what: "frames of variable size", ..PLAIN },
    Target {
        name: "prologues",
        source: "prologues.c",
        what: "odd first instructions",
        maybe_skipped: ODD,
        ..PLAIN
    },
    Target {
        name: "closefds",
        source: "closefds.c",
        what: "closes all descriptors from 3 up",
        ..PLAIN
    },
    Target {
        name: "clearenv",
        source: "clearenv.c",
        what: "empties its environment, then executes itself",
        fewer: &["second_life"],
        ..PLAIN
    },
    Target {
        name: "exit_now",
        source: "exit_now.c",
        what: "_exit inside a call",
        status: 7,
        ..PLAIN
    },
    Target {
        name: "status",
        source: "status.c",
        what: "returns 42",
        args: &["42"],
        status: 42,
        ..PLAIN
    },
    Target {
        name: "echo",
        source: "echo.c",
        what: "stdin to stdout",
        input: b"line one\nline two\0\xff and the rest",
        ..PLAIN
    },
    Target {
        name: "limits",
        source: "limits.c",
        what: "little address space, then threads",
        ..PLAIN
    },
];

/// The row with this name.
pub fn named(name: &str) -> &'static Target {
    TARGETS
        .iter()
        .find(|target| target.name == name)
        .unwrap_or_else(|| panic!("no target named `{name}`"))
}

/// The folder of the sources.
pub fn sources() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("targets")
}

impl Target {
    /// Compiles it; the program lives as long as the returned value.
    pub fn build(&'static self, build: Build) -> Program {
        let dir = TempDir::new();
        let source = sources().join(self.source);
        let path = Cc::of(&source).build(build).compile(&[&source], &dir.join(self.name));
        if self.args.contains(&"PLUGIN") {
            let flags = if build == Build::Static { Build::O2 } else { build };
            Cc::c()
                .build(flags)
                .args(&["-shared", "-fPIC"])
                .compile(&[&sources().join("plugin.c")], &dir.join("plugin.so"));
        }
        Program { target: self, path, dir }
    }
}

/// A compiled target.
#[derive(Debug)]
pub struct Program {
    /// What it was made from.
    pub target: &'static Target,
    /// The executable; its file name is the target's name.
    pub path: PathBuf,
    dir: TempDir,
}

/// Calls by function, as the target counted them.
pub type Counts = BTreeMap<String, u64>;

impl Program {
    /// The program and its arguments.
    pub fn command_line(&self) -> Vec<String> {
        let plugin = self.dir.join("plugin.so").display().to_string();
        let args = self
            .target
            .args
            .iter()
            .map(|arg| if *arg == "PLUGIN" { plugin.clone() } else { (*arg).to_owned() });
        std::iter::once(self.path.display().to_string()).chain(args).collect()
    }

    /// Runs it alone.
    pub fn run(&self) -> (Ended, Counts) {
        let line = self.command_line();
        let mut command = Command::new(&line[0]);
        command.args(&line[1..]);
        self.run_counted(&mut command, Duration::from_secs(300))
    }

    /// Runs a command that runs it in the end, with a fresh file for its counts.
    pub fn run_counted(&self, command: &mut Command, limit: Duration) -> (Ended, Counts) {
        let file = CountFile::new();
        command.env("TARGET_COUNTS", &file.path);
        let ended = run::run(command, self.target.input, limit);
        (ended, file.read())
    }
}

/// The file that a target's processes share, see `targets/count.h`.
struct CountFile {
    path: PathBuf,
    _dir: TempDir,
}

const ROWS: usize = 256;
const ROW: usize = 64;
const NAME: usize = 56;

impl CountFile {
    fn new() -> Self {
        let dir = TempDir::in_memory();
        let path = dir.join("counts");
        std::fs::write(&path, vec![0; ROWS * ROW])
            .unwrap_or_else(|error| panic!("cannot write `{}`: {error}", path.display()));
        Self { path, _dir: dir }
    }

    fn read(&self) -> Counts {
        let bytes = std::fs::read(&self.path)
            .unwrap_or_else(|error| panic!("cannot read `{}`: {error}", self.path.display()));
        let mut counts = Counts::new();
        for row in bytes.chunks_exact(ROW) {
            let (name, count) = row.split_at(NAME);
            let name = String::from_utf8_lossy(name).trim_end_matches('\0').to_owned();
            if !name.is_empty() {
                let count =
                    u64::from_ne_bytes(count.try_into().expect("the rest of a row is eight bytes"));
                *counts.entry(name).or_default() += count;
            }
        }
        counts
    }
}
