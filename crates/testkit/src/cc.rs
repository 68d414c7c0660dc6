//! The C and C++ compilers of the machine, and the ways we build target programs.

use std::path::{Path, PathBuf};
use std::process::Command;

use crate::compiled;

/// One way to build a target: what a tracer finds at the start of functions depends on it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Build {
    /// Not optimized: every function has a frame pointer.
    O0,
    /// Optimised, nothing prepared for a tracer.
    O2,
    /// Five bytes of NOPs at each function's start.
    Patchable5,
    /// Sixteen bytes of NOPs before and five after each function's start.
    Patchable21,
    /// `endbr64` at each function's start.
    CfProtection,
    /// Optimised and stripped: only unwind tables tell where functions begin.
    Stripped,
    /// Optimised and statically linked: no loader that could preload anything.
    Static,
}

impl Build {
    /// All builds that a preloaded agent can reach.
    pub const DYNAMIC: [Self; 6] = [
        Self::O0,
        Self::O2,
        Self::Patchable5,
        Self::Patchable21,
        Self::CfProtection,
        Self::Stripped,
    ];

    /// The compiler's flags.
    pub fn flags(self) -> &'static [&'static str] {
        match self {
            Self::O0 => &["-O0", "-g"],
            Self::O2 => &["-O2"],
            Self::Patchable5 => &["-O2", "-fpatchable-function-entry=5"],
            Self::Patchable21 => &["-O2", "-fpatchable-function-entry=21,16"],
            Self::CfProtection => &["-O2", "-fcf-protection=full"],
            Self::Stripped => &["-O2", "-s"],
            Self::Static => &["-O2", "-static"],
        }
    }
}

/// A compiler and what is still to be said to it.
#[derive(Debug, Clone)]
pub struct Cc {
    program: String,
    args: Vec<String>,
}

impl Cc {
    /// The C compiler: `$CC`, else `gcc`, else `cc`.
    pub fn c() -> Self {
        Self::first("CC", &["gcc", "cc"])
    }

    /// The C++ compiler: `$CXX`, else `g++`, else `c++`.
    pub fn cxx() -> Self {
        Self::first("CXX", &["g++", "c++"])
    }

    /// This compiler.
    pub fn named(program: &str) -> Self {
        Self { program: program.to_owned(), args: Vec::new() }
    }

    /// The compiler for this file name's ending: C++ for `.cc`, C for `.c` and `.S`.
    pub fn of(source: &Path) -> Self {
        if source.extension().is_some_and(|ending| ending == "cc") {
            Self::cxx()
        } else {
            Self::c()
        }
    }

    fn first(variable: &str, names: &[&str]) -> Self {
        let program = std::env::var(variable).ok().filter(|value| !value.is_empty());
        let program = program.unwrap_or_else(|| {
            let known = names.iter().find(|name| crate::skip::has_command(name));
            (*known
                .unwrap_or_else(|| panic!("no compiler: none of {names:?} runs; set `{variable}`")))
            .to_owned()
        });
        Self { program, args: Vec::new() }
    }

    /// Adds one argument.
    pub fn arg(mut self, arg: impl Into<String>) -> Self {
        self.args.push(arg.into());
        self
    }

    /// Adds arguments.
    pub fn args(mut self, args: &[&str]) -> Self {
        self.args.extend(args.iter().map(|arg| (*arg).to_owned()));
        self
    }

    /// Adds the flags of a build.
    pub fn build(self, build: Build) -> Self {
        self.args(build.flags())
    }

    /// Compiles and links the sources into `out`, which it returns. Panics with the compiler's
    /// words when that fails. What was compiled before is copied (`compiled.rs`).
    pub fn compile(&self, sources: &[&Path], out: &Path) -> PathBuf {
        self.compile_with(sources, &["-pthread", "-ldl", "-lm"], out)
    }

    /// The same with other libraries than those that come with every C library.
    pub fn compile_with(&self, sources: &[&Path], libraries: &[&str], out: &Path) -> PathBuf {
        let kept = compiled::path(&self.program, &self.args, sources, libraries);
        if let Some(kept) = kept.as_ref().filter(|kept| kept.is_file()) {
            compiled::take(kept, out);
            return out.to_owned();
        }
        let mut command = Command::new(&self.program);
        command.args(&self.args).arg("-o").arg(out).args(sources).args(libraries);
        let done = command
            .output()
            .unwrap_or_else(|error| panic!("cannot run `{}`: {error}", self.program));
        assert!(
            done.status.success(),
            "{command:?} failed: {}\n{}",
            done.status,
            String::from_utf8_lossy(&done.stderr)
        );
        if let Some(kept) = kept {
            compiled::keep(out, &kept);
        }
        out.to_owned()
    }
}
