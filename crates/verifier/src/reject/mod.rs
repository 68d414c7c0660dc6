//! Why a program was refused: one reason in the kernel's words, where in the program, and how the
//! walk got there.

mod hint;
mod reason;
mod shown;

pub(crate) use hint::{hint, missing};
pub use reason::Reason;

use skep_isa::Insn;
use skep_object::Line;

/// One step of the path that leads to a rejection.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Step {
    /// The instruction's index.
    pub insn: usize,
    /// The instruction.
    pub code: Insn,
    /// What stands behind it in the program: the second half of a 64-bit load.
    pub next: Option<Insn>,
    /// The source line, where it differs from the step before.
    pub line: Option<Line>,
    /// The registers the instruction touches, as they were before it: number and what they held.
    pub regs: Vec<(u8, String)>,
    /// How many calls deep it runs.
    pub depth: usize,
    /// It made or tested what the fault is about.
    pub matters: bool,
}

/// A refused program. `Display` is one line; [`path`](Self::path) shows how to get there and
/// [`log`](Self::log) is laid out like the kernel's.
#[derive(Clone, PartialEq, Eq, Debug)]
#[non_exhaustive]
pub struct Rejection {
    /// The program's name.
    pub program: String,
    /// The instruction at fault.
    pub insn: usize,
    /// Its source line, when the object has line information.
    pub line: Option<Line>,
    /// What is wrong, in the kernel's words.
    pub reason: Reason,
    /// More about it, where there is more to say: which bytes of what. Numbers are those of
    /// [`path`](Self::path).
    pub detail: Option<String>,
    /// What to do about it, when there is an answer.
    pub hint: Option<String>,
    pub(crate) steps: Vec<Step>,
    pub(crate) log: String,
    /// The line that the kernel's log has before the reason.
    pub(crate) logged: Option<String>,
    pub(crate) info: crate::Info,
}

impl Rejection {
    /// Returns the shortest path to the fault that was found, or its last 400 instructions: oldest
    /// first, the one at fault last.
    #[must_use]
    pub fn path(&self) -> &[Step] {
        &self.steps
    }

    /// Returns the log, laid out like the kernel's; it ends with the statistics line.
    #[must_use]
    pub fn log(&self) -> &str {
        &self.log
    }

    /// Returns how many instructions were looked at before the program was refused.
    #[must_use]
    pub fn processed(&self) -> u32 {
        self.info.processed
    }
}

impl std::fmt::Display for Rejection {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let reason = self.reason.to_string();
        write!(
            f,
            "program `{}` was rejected: {}",
            self.program,
            reason.strip_suffix('.').unwrap_or(&reason)
        )?;
        if let Some(detail) = &self.detail {
            write!(f, ": {detail}")?;
        }
        if !self.reason.names(self.insn) {
            write!(f, " at insn {}", self.insn)?;
        }
        if let Some(l) = &self.line {
            let file = l.file.rsplit('/').next().unwrap_or_default();
            write!(f, " ({file}:{})", l.line)?;
        }
        Ok(())
    }
}

impl std::error::Error for Rejection {
    fn source(&self) -> Option<&(dyn std::error::Error + 'static)> {
        Some(&self.reason)
    }
}
