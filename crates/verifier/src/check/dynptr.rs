//! Dynptrs: two stack slots that describe memory whose bounds are checked at run time.

use super::Walk;
use crate::reg::{Kind, Reg};
use crate::reject::Reason;

impl Walk<'_> {
    /// Checks a dynptr handed to a helper or a function.
    pub(super) fn dynptr_argument(&mut self, reg: u8, r: &Reg, _write: bool) -> Result<(), Reason> {
        match r.kind {
            Kind::Dynptr(_) if !r.nullable => Ok(()),
            _ => Err(Reason::WrongType { reg, found: r.type_name(), expected: "fp, dynptr_ptr" }),
        }
    }
}
