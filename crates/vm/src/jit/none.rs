//! The generator for machines that have none.

use skep_isa::Insn;

use super::{CompileError, Generated};
use crate::check::Flow;
use crate::env::Env;

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

pub(super) fn compile(_: &[Insn], _: &Env<'_>, _: &Flow, _: Cpu) -> Result<Generated, CompileError> {
    Err(CompileError::Machine)
}

pub(crate) fn compile_chain(
    _: &crate::chain::Plan,
    _: &[crate::chain::Part<'_>],
    _: &crate::chain::Options,
    _: Cpu,
) -> Result<crate::exec::Exec, CompileError> {
    Err(CompileError::Machine)
}
