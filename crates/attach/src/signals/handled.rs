//! Signals of faults that hooks need their handlers for.

use std::sync::atomic::{AtomicU64, Ordering};

/// By bit.
static HANDLED: AtomicU64 = AtomicU64::new(0);

/// `SIGBUS` and `SIGSEGV`, by bit, as far as hooks need their handlers: memory may be missing in any
/// event. Others stay blocked where the program has blocked them: nobody handles them for it.
#[inline(always)]
pub(crate) fn handled() -> u64 {
    HANDLED.load(Ordering::Acquire)
}

/// Says that there is such a handler; tells whether that is new.
pub(super) fn begin(signal: i32) -> bool {
    let bit = 1 << (signal - 1);
    HANDLED.fetch_or(bit, Ordering::AcqRel) & bit == 0
}
