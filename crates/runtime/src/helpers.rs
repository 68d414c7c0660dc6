//! The helpers that a target offers: those of all programs, and tail calls.

use skep_isa::helper::id::TAIL_CALL;
use skep_isa::{HelperId, ProgramType};
use skep_vm::{HelperCall, HelperImpl};

/// Finds what the code generator needs to call a helper from a program of type `prog`; `None` when
/// it cannot be called here. It is a [`skep_helpers::Lookup`].
#[must_use]
pub fn implementation(prog: ProgramType, id: HelperId) -> Option<HelperImpl> {
    if id == TAIL_CALL {
        return Some(HelperImpl { func: crate::tail::tail_call, how: HelperCall::TailCall });
    }
    skep_helpers::implementation(prog, id)
}

/// Tells whether a helper is here, for whatever type of program.
#[must_use]
pub fn has(id: HelperId) -> bool {
    id == TAIL_CALL || skep_helpers::has(id)
}
