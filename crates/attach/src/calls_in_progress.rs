//! Calls that have yet to return through an exit trampoline, found on the stacks of all threads.
//!
//! No event counts them, as a call may be ended by `longjmp`, by an exception or with its
//! coroutine, and a counter would not learn of it. Stacks are searched instead when somebody asks,
//! as the kernel does before it takes patched code away (`klp_check_stack`,
//! kernel/livepatch/transition.c).
//!
//! A trampoline's frame is known by two words. One holds its own address plus [`TO_RETURN`]: the
//! saved stack pointer, which points at the return address. [`TO_META`] behind it is the address of
//! the function's [`Meta`](crate::hook_list::Meta). A trampoline writes both before it reads the
//! function's hook list, and wipes the first when the call is over. Frames of calls on other stacks
//! are [side frames](crate::side_stack), of which there are lists.
//!
//! The answer errs to one side. What no function of the caller's hooks any more gets no new frames,
//! so "none" stays true. A frame that was left without a return counts for as long as its words are
//! above the stack pointer of its thread, or anywhere on the stack of one that runs.

use crate::frame::Frame;
use crate::per_thread::block::{self, Block};
use crate::side_stack::pool;
use crate::threads::{self, State};
use crate::{sandbox, sys};
use std::mem::{offset_of, size_of};
use std::sync::atomic::Ordering;

/// From the saved stack pointer of a frame to the return address it points at.
const TO_RETURN: u64 = (size_of::<Frame>() + 8 - offset_of!(Frame, rsp)) as u64;
/// From there to the address of the metadata, below the return address.
const TO_META: u64 = TO_RETURN - 8;
/// More than the largest frame of an exit trampoline has.
const LARGEST_FRAME: u64 = 8 << 10;
const PAGE: u64 = 4096;

/// Tells whether a call of one of the functions is in progress that returns through a trampoline:
/// `metas` are the addresses of their metadata, sorted. Where nobody can look, there may be one.
pub(crate) fn any(metas: &[u64]) -> bool {
    if metas.is_empty() {
        return false;
    }
    let mut found = !sandbox::may_call_system();
    block::each(|block, _| {
        found = found || pool::any_in_use(block, metas) || on_own_stack(block, metas);
    });
    found
}

/// Searches the part of a thread's own stack where trampolines make frames.
fn on_own_stack(block: &Block, metas: &[u64]) -> bool {
    let (low, top) = (block.low.load(Ordering::Relaxed), block.top.load(Ordering::Relaxed));
    let tid = block.tid.load(Ordering::Acquire);
    if tid == 0 || top <= low {
        return false;
    }
    let from = top - (top - low) / 4 - LARGEST_FRAME;
    let here = 0u8;
    let sp = match threads::state(tid) {
        State::Gone => return false,
        _ if tid == sys::gettid() => &raw const here as u64,
        State::Asleep { stack, .. } => stack,
        State::Running => 0,
    };
    // On another stack: nobody knows how much of this one is in use.
    let sp = if low <= sp && sp < top { sp } else { from };
    search(sp.max(from) & !7, top, metas)
}

/// Searches a part of a stack, from its end downwards to where it is not mapped.
fn search(from: u64, end: u64, metas: &[u64]) -> bool {
    let mut words = [0u64; PAGE as usize / 8];
    let mut to = end;
    while to > from {
        let start = from.max((to - 1) & !(PAGE - 1));
        let got = sys::copy_in(&mut words, &[[start, to - start]]);
        if got < 0 {
            // Not mapped: the stack has not grown that far, or its thread has ended.
            return got != -sys::EFAULT;
        }
        let part = words.iter().take(got as usize / 8).zip((start..).step_by(8));
        if part.into_iter().any(|(word, at)| is_frame(*word, at, metas)) {
            return true;
        }
        to = start;
    }
    false
}

/// Tells whether a word is the saved stack pointer in a frame of one of the functions.
fn is_frame(word: u64, at: u64, metas: &[u64]) -> bool {
    if word != at.wrapping_add(TO_RETURN) {
        return false;
    }
    let mut meta = [0u64];
    let got = sys::copy_in(&mut meta, &[[at.wrapping_add(TO_META), 8]]);
    got == 8 && metas.binary_search(&meta[0]).is_ok()
}
