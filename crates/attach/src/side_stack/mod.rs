//! Events that do not happen on the upper quarter of the thread's own stack.
//!
//! Coroutines, signal handlers and other runtimes' threads have stacks as small as two kibibytes,
//! and a recursion comes near the end of any. There the trampolines hand everything to this
//! module, which takes some 300 bytes of the stack for itself, and for a function with exit hooks
//! leaves 64 bytes on it, and 8 more for each word of stack arguments. The rest of such a frame is
//! a [`SideFrame`], in memory of our own.
//!
//! | where | hooks run | frame for the return |
//! |---|---|---|
//! | own stack, upper quarter | in the trampoline | the trampoline's |
//! | own stack, second quarter | here | a `SideFrame` |
//! | own stack, lower half | here | none: see [`Hook::without_return`](crate::Hook) |
//! | own stack, nearly used up | here, on a stack of ours | none |
//! | own stack of less than 48 KiB, upper half | here, on a stack of ours | a `SideFrame` |
//! | any other stack | here, on a stack of ours | a `SideFrame` |
//!
//! So hooks take at most half of a thread's stack, and the frames of one function at one place are
//! all alike.
//!
//! From the thread's mark to the end of an event that needs a stack of ours, signals wait: a
//! handler may switch to another coroutine, or look where its thread's stack is.
//!
//! Part of the event path: no allocation, no locks, no libc, no vector registers.

use crate::hook::Missed;
use crate::hook_list::Meta;
use crate::per_thread::block::{Block, own};
use crate::per_thread::{enter, missed, register, shared_tls};
use crate::signals::handled::handled;
use crate::stack_bounds::SMALL;
use crate::table::Table;
use crate::tramp::entry_points::is_exit;
use crate::{process, sandbox, sys};
use frame::{AT_RETURN, Saved, SideFrame, arguments, back, fill, load, store};
use pool::{give_back, stack, take};
use std::mem::offset_of;
use std::ptr;
use std::sync::atomic::{Ordering, compiler_fence};
use walk::{LEFT_OUT, NO_FRAME, after, walk, walk_after};

mod frame;
pub(crate) mod pool;
mod walk;

/// Frames that a chain of tail calls may leave on the stack; what comes after them runs without
/// hooks, and is counted.
pub(crate) const MAX_TAILS: usize = 32;

/// Where on the program's stack an event happens.
#[derive(Clone, Copy)]
struct Place {
    /// Whether hooks need a stack of ours.
    switch: bool,
    /// Whether a frame may be left on the program's stack.
    frame: bool,
}

#[inline(always)]
fn place(block: &Block, sp: u64) -> Place {
    let (low, top) = (block.low.load(Ordering::Relaxed), block.top.load(Ordering::Relaxed));
    // Also where nothing is known: then both are 0.
    if !block.has(sp) {
        // In a sandbox signals cannot be held back.
        return Place { switch: sandbox::may_call_system(), frame: true };
    }
    let (left, size) = (sp.wrapping_sub(low), top.wrapping_sub(low));
    let least = if size < SMALL {
        size
    } else if size >> 1 < NEARLY {
        size >> 1
    } else {
        NEARLY
    };
    Place { switch: left < least && sandbox::may_call_system(), frame: left >= size >> 1 }
}

/// A stack with less room is nearly used up: frames of programs may take so much. So is the lower half of a
/// small one.
const NEARLY: u64 = 64 << 10;

/// Comes from entry trampolines. `meta` is null for compiled-in sites, which are known by `ret`. The
/// trampoline for places inside functions says what the flags are there, and a `cfa` 8 above the stack
/// pointer; others say nothing.
#[unsafe(link_section = ".text.skep_event")]
pub(crate) unsafe extern "C" fn entry(
    saved: *const Saved,
    cfa: u64,
    ret: u64,
    meta: *const Meta,
    flags: u64,
) {
    let block = own();
    if block.is_null() {
        return;
    }
    // SAFETY: blocks and metadata live for ever, this block is the thread's; `saved` is the
    // trampoline's.
    unsafe { around(&*block, saved, cfa, (ret, meta), Some(flags)) };
}

/// Comes from exit trampolines: 0 to go on in the body, 1 to return with the registers as they are
/// then in `saved`, else the [`SideFrame`] of the call.
#[unsafe(link_section = ".text.skep_event")]
pub(crate) unsafe extern "C" fn call(saved: *mut Saved, cfa: u64, meta: *const Meta) -> u64 {
    let block = own();
    if block.is_null() {
        return NO_FRAME;
    }
    // SAFETY: blocks and metadata live for ever, this block is the thread's; `saved` is the
    // trampoline's.
    unsafe { around(&*block, saved, cfa, (0, meta), None) }
}

/// Holds signals back where hooks run on a stack of ours: the mask before, if it was changed. A
/// handler that switches to another coroutine would leave the block and the side to it as they are
/// in between. Those of faults are let through where the C library holds all back.
#[inline(always)]
fn hold_signals(block: &Block, sp: u64) -> Option<u64> {
    let held = place(block, sp).switch.then(sys::block_signals);
    let blocked = block.blocked.load(Ordering::Relaxed);
    if blocked == 0 || !sandbox::may_call_system() {
        return held;
    }
    // The program's, until now.
    let is_new = blocked == register::HANDLER_IS_NEW && process::is_own();
    // That of faults is as it was.
    let mask = held.unwrap_or_else(sys::signal_mask);
    let found = register::let_through(Some(block), mask, handled(), is_new);
    if !is_new && found == 0 {
        return held;
    }
    // They were blocked. The library sets the whole mask when it is done, so they need not be
    // again, and the other events are as usual; a child in this memory says nothing of the
    // thread that made it.
    if process::is_own() {
        register::set_blocked(false);
    }
    held.map(|mask| mask & !found)
}

/// What stands around everything: signals, and whose block it is. Without `flags` exit hooks count.
///
/// # Safety
/// The block is the one of thread-local storage, the rest what a trampoline gave.
#[inline(always)]
unsafe fn around(
    block: &Block,
    saved: *const Saved,
    cfa: u64,
    (ret, meta): (u64, *const Meta),
    flags: Option<u64>,
) -> u64 {
    let sp = saved as u64;
    let mask = hold_signals(block, sp);
    // SAFETY: passed on; signals are blocked where it is another stack.
    let outcome = unsafe {
        let task = if block.has(sp) {
            ptr::from_ref(block)
        } else {
            shared_tls::of_task(ptr::from_ref(block).cast_mut()).cast_const()
        };
        if task.is_null() {
            missed::missed_without_block(ret, meta, None);
            NO_FRAME
        } else {
            before(&*task, saved, cfa, (ret, meta), flags)
        }
    };
    if let Some(mask) = mask {
        sys::set_signal_mask(mask);
    }
    outcome
}

/// What stands around the walk: a side, a stack. The function is known by its metadata, or by the
/// return address that its site leaves.
///
/// # Safety
/// The block is the calling task's, the rest what a trampoline gave.
#[inline(always)]
unsafe fn before(
    block: &Block,
    saved: *const Saved,
    cfa: u64,
    (ret, meta): (u64, *const Meta),
    flags: Option<u64>,
) -> u64 {
    let exits = flags.is_none();
    let sp = saved as u64;
    if !mark(block, sp) {
        // SAFETY: the block is the task's and marked, and `ret` and `meta` are what a trampoline gave.
        unsafe { missed::missed_inside(block, ret, meta) };
        return NO_FRAME;
    }
    // SAFETY: the thread is marked as inside.
    let meta = if meta.is_null() { unsafe { Table::find(ret) } } else { meta };
    if meta.is_null() {
        block.inside.store(0, Ordering::Relaxed);
        return NO_FRAME;
    }
    let mut outcome = NO_FRAME;
    // SAFETY: the block is the calling thread's, and marked.
    let side = unsafe { take(block) };
    if side.is_null() {
        // SAFETY: the thread is marked as inside.
        unsafe { missed::missed(block, meta, None, Missed::Stack) };
        block.inside.store(0, Ordering::Relaxed);
        return NO_FRAME;
    }
    let mut place = place(block, sp);
    // SAFETY: `saved` is the trampoline's, `side` ours, and the return address is there until the
    // function returns.
    unsafe {
        fill(side, saved, cfa, meta);
        if let Some(flags) = flags {
            (&raw mut (*side).frame).cast::<u64>().byte_add(AT_RETURN).write_volatile(flags);
        }
        if exits && !tail(block, cfa) {
            place.frame = false;
        }
    }
    // SAFETY: the side frame is ours and filled; the walk is made for these arguments, and signals
    // are blocked while it is on our stack.
    unsafe {
        let flags = u64::from(exits) | u64::from(exits && place.frame) << 1;
        if place.switch {
            let top = stack(block);
            if top == 0 {
                missed::missed(block, meta, None, Missed::Stack);
            } else {
                block.inside.store(top, Ordering::Relaxed);
                outcome = switch(top, walk, side as u64, meta as u64, flags);
                block.inside.store(sp, Ordering::Relaxed);
            }
        } else {
            outcome = walk(side as u64, meta as u64, flags);
        }
        if outcome != LEFT_OUT {
            arguments(side, sp);
        }
        match outcome {
            NO_FRAME => give_back(block, side),
            LEFT_OUT => {
                store(
                    sp.wrapping_add(offset_of!(Saved, rax) as u64),
                    (&raw const (*side).frame.rax).read_volatile(),
                );
                store(sp.wrapping_add(offset_of!(Saved, rdx) as u64), 0);
                give_back(block, side);
            }
            _ => {
                // The word first: a side whose word is not there counts as left.
                let at = cfa.wrapping_sub(24);
                store(at, side as u64);
                compiler_fence(Ordering::SeqCst);
                (&raw mut (*side).at).write_volatile(at);
            }
        }
    }
    block.inside.store(0, Ordering::Relaxed);
    outcome
}

/// Marks the thread as inside: from here on nested events stay away, and neither table nor hook
/// list is freed. `false` when it is inside already.
#[inline(always)]
fn mark(block: &Block, sp: u64) -> bool {
    let now = block.inside.load(Ordering::Relaxed);
    // Where signals cannot be held back, a handler may switch to a coroutine in between.
    enter::may_enter(block, sp)
        && block.inside.compare_exchange(now, sp, Ordering::SeqCst, Ordering::Relaxed).is_ok()
}

/// Tells whether a frame may be left: a chain of tail calls leaves one each, so after some there
/// are no more.
#[inline(always)]
unsafe fn tail(block: &Block, cfa: u64) -> bool {
    // SAFETY: the return address of the function that was called.
    let ret = unsafe { load(cfa.wrapping_sub(8)) };
    let tails = if is_exit(ret) { block.tails.load(Ordering::Relaxed).wrapping_add(1) } else { 0 };
    if tails > MAX_TAILS as u64 {
        return false;
    }
    block.tails.store(tails, Ordering::Relaxed);
    true
}

/// Comes from exit trampolines when the function has returned.
#[unsafe(link_section = ".text.skep_event")]
pub(crate) unsafe extern "C" fn returned(
    saved: *const Saved,
    side: *mut SideFrame,
    meta: *const Meta,
) {
    let block = own();
    let sp = saved as u64;
    // SAFETY: blocks live for ever, and this is the thread's; the side is that of the call, of
    // which there is no other user.
    unsafe {
        if block.is_null() {
            (&raw mut (*side).at).write_volatile(1);
            return;
        }
        let mask = hold_signals(&*block, sp);
        let task = if (*block).has(sp) { block } else { shared_tls::of_task(block) };
        if task.is_null() {
            if (&raw const (*side).wanted).read_volatile() != 0 {
                missed::missed_without_block(0, meta, Some((*side).seq));
            }
            (&raw mut (*side).at).write_volatile(1);
        } else {
            finish(&*task, saved, side, meta);
        }
        if let Some(mask) = mask {
            sys::set_signal_mask(mask);
        }
    }
}

/// Runs the exit hooks of a call, if it may, and gives its side back.
///
/// # Safety
/// The block is the calling task's, the rest what a trampoline gave.
#[inline(always)]
unsafe fn finish(block: &Block, saved: *const Saved, side: *mut SideFrame, meta: *const Meta) {
    // SAFETY: the caller's promise.
    unsafe {
        let sp = saved as u64;
        // A frame that belonged to a chain of tail calls: the next chain begins anew.
        block.tails.store(0, Ordering::Relaxed);
        let wanted = (&raw const (*side).wanted).read_volatile() != 0;
        if !mark(block, sp) {
            if wanted {
                missed::missed(block, meta, Some((*side).seq), Missed::Inside);
            }
            // Not given back: its owner finds it when the list is empty.
            (&raw mut (*side).at).write_volatile(1);
            return;
        }
        if wanted {
            back(side, saved);
            if place(block, sp).switch {
                let top = stack(block);
                if top == 0 {
                    missed::missed(block, meta, Some((*side).seq), Missed::Stack);
                } else {
                    block.inside.store(top, Ordering::Relaxed);
                    switch(top, walk_after, side as u64, meta as u64, 0);
                    block.inside.store(sp, Ordering::Relaxed);
                }
            } else {
                after(side, meta);
            }
        }
        give_back(block, side);
        block.inside.store(0, Ordering::Relaxed);
    }
}

unsafe extern "C" {
    fn skep_attach_switch(
        top: u64,
        f: unsafe extern "C" fn(u64, u64, u64) -> u64,
        a: u64,
        b: u64,
        c: u64,
    ) -> u64;
}

/// Calls `f(a, b, c)` on the stack that ends at `top`.
///
/// # Safety
///
/// `top` is aligned to 16 bytes, nobody uses that stack, and it is large enough; `f` may be called
/// with these arguments.
#[inline(always)]
pub(crate) unsafe fn switch(
    top: u64,
    f: unsafe extern "C" fn(u64, u64, u64) -> u64,
    a: u64,
    b: u64,
    c: u64,
) -> u64 {
    // SAFETY: the caller's promise.
    unsafe { skep_attach_switch(top, f, a, b, c) }
}
