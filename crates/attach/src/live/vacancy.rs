//! Whether some thread is in an island that nothing leads to any more.
//!
//! Who is not in it will not get there, as the bytes that led to it have been restored: so threads can
//! be looked at one after the other, and the answer "nobody" stays true until the place is hooked
//! again. A thread that runs may be anywhere.

use super::saved_contexts::Copy;
use crate::per_thread::{block, quiescence};
use crate::{sandbox, stack_bounds, sys, threads};
use std::ops::Range;
use std::sync::atomic::Ordering;

/// Tells whether no thread is in an island, nor will come back to it from a signal handler or a hook.
pub(crate) fn is_vacant(island: &Range<u64>) -> bool {
    const PATIENCE: u32 = 1 << 12;
    if !sandbox::may_call_system() || !quiescence::drain(PATIENCE) {
        return false;
    }
    let Ok(tasks) = threads::Tasks::open() else { return false };
    let me = sys::gettid();
    let mut copy = Copy::new();
    let here = &raw const me as u64;
    let own = stack_bounds::stack(here);
    let mut nobody = true;
    tasks.each(|tid| {
        nobody = nobody
            && match threads::state(tid) {
                // This function's own frames have the island's address.
                _ if tid == me => !copy.returns_to(here, own.0..own.1, island),
                threads::State::Gone => true,
                threads::State::Asleep { stack, rip } => {
                    !island.contains(&rip) && !copy.mentions(stack, stack_of(tid), island)
                }
                threads::State::Running => false,
            };
    });
    nobody
}

/// Where the stack of a thread is that has run hooks.
fn stack_of(tid: u32) -> Range<u64> {
    let mut found = 0..0;
    block::each(|block, _| {
        if block.tid.load(Ordering::Acquire) == tid {
            found = block.low.load(Ordering::Relaxed)..block.top.load(Ordering::Relaxed);
        }
    });
    found
}
