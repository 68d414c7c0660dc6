//! The helpers that a target offers: those of all programs, tail calls, and taking hooks out.

use skep_isa::helper::id::{SKEP_DETACH_FUNC, TAIL_CALL};
use skep_isa::{HelperId, ProgramType};
use skep_vm::{HelperCall, HelperImpl};

use crate::detach_func::detach_func;

/// Finds what the code generator needs to call a helper from a program of type `prog`; `None` when
/// it cannot be called here. It is a [`skep_helpers::Lookup`].
#[must_use]
pub fn implementation(prog: ProgramType, id: HelperId) -> Option<HelperImpl> {
    if id == TAIL_CALL {
        return Some(HelperImpl { func: crate::tail::tail_call, how: HelperCall::TailCall });
    }
    if id == SKEP_DETACH_FUNC {
        return Some(HelperImpl::plain(detach_func));
    }
    skep_helpers::implementation(prog, id)
}

/// Tells whether a helper is here, for whatever type of program.
#[must_use]
pub fn has(id: HelperId) -> bool {
    matches!(id, TAIL_CALL | SKEP_DETACH_FUNC) || skep_helpers::has(id)
}
