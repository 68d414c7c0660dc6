//! What is said of a fault beside the kernel's words: which bytes of what were meant, and what to
//! do about it.
//!
//! Nothing here decides anything. A fault is explained when there is one, from its reason, the
//! steps that lead to it and the state that was walked along them: so numbers in the explanation
//! are those of the path that is shown.
//!
//! [`access`] finds the access, [`index`] where a variable address comes from, [`bytes`] says what
//! lies where, [`advice`] what to do.

mod access;
mod advice;
mod bytes;
mod index;

use skep_object::Linked;

use crate::reject::{Reason, Step};
use crate::state::State;

/// What there is to say.
#[derive(Debug, Default)]
pub(crate) struct Explanation {
    /// Goes on after the kernel's words.
    pub detail: Option<String>,
    /// What to do, when the reason alone does not tell.
    pub hint: Option<String>,
    /// The line that the kernel's log has before its words.
    pub logged: Option<String>,
}

/// A fault with all that led to it.
#[derive(Clone, Copy)]
pub(crate) struct Fault<'a> {
    pub prog: &'a Linked,
    pub reason: &'a Reason,
    /// The last one is at fault.
    pub steps: &'a [Step],
    /// The state before it.
    pub state: &'a State,
    /// The context, without bytes if the program has none that is known.
    pub layout: skep_isa::ctx::Layout,
}

impl Fault<'_> {
    pub fn explain(&self) -> Explanation {
        let Some(step) = self.steps.last() else { return Explanation::default() };
        let found = bytes::FaultyAccess::of(self, step);
        Explanation {
            detail: bytes::detail(self, step, found.as_ref()),
            hint: advice::hint(self, found.as_ref()),
            logged: found.as_ref().and_then(|f| f.logged(self.reason)),
        }
    }
}
