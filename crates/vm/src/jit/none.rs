//! The generator for machines that have none.

use skep_isa::Insn;

use super::CompileError;
use crate::check::Flow;
use crate::env::Env;
use crate::exec::Exec;

/// The features of a machine that generated code may use: none here.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
#[non_exhaustive]
pub struct Cpu {}

impl Cpu {
    /// Detects the features of this machine.
    #[must_use]
    pub fn detect() -> Self {
        Self {}
    }
}

pub(super) fn compile(_: &[Insn], _: &Env<'_>, _: &Flow, _: Cpu) -> Result<(Exec, Vec<u32>), CompileError> {
    Err(CompileError::Machine)
}
