//! When what was taken out of use may be freed: after every thread has been outside of hooks once.

use super::block::{self, Block, MUTED, own};
use super::missed::ANONYMOUS;
use crate::{process, sys};
use std::ptr;
use std::sync::atomic::Ordering;

/// Waits until no thread is inside hooks that it can have found before the call, at most `rounds`
/// looks a thread.
pub(crate) fn drain(rounds: u32) -> bool {
    if !process::is_own() {
        return false;
    }
    // After this barrier a thread that enters hooks finds what was published before the call, and
    // one that found something older shows it in its block. Without membarrier there is nothing
    // to conclude from the blocks.
    if sys::membarrier(sys::Barrier::Memory).is_err() {
        return false;
    }
    let mut all = ANONYMOUS.load(Ordering::SeqCst) == 0;
    block::each(|block, shares| {
        // Those that share may belong to another process.
        let ask = if shares { |tid| sys::tkill(tid, 0) } else { |tid| sys::tgkill(tid, 0) };
        all &= outside(block, rounds, ask);
    });
    all
}

fn outside(block: &Block, rounds: u32, ask: fn(u32) -> i64) -> bool {
    let first = block.inside.load(Ordering::Acquire);
    if first == 0 || first == MUTED {
        return true;
    }
    // Called from inside a hook: what the trampoline below is walking stays, and waiting for itself
    // would not help.
    if ptr::eq(block, own()) {
        return false;
    }
    for round in 0..rounds {
        let now = block.inside.load(Ordering::Acquire);
        if now != first {
            return true;
        }
        if round % 64 == 63 {
            let tid = block.tid.load(Ordering::Acquire);
            if tid == 0 || ask(tid) == -sys::ESRCH {
                return true;
            }
            sys::yield_now();
        }
        std::hint::spin_loop();
    }
    false
}
