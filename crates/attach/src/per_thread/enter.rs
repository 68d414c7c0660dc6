//! Whether a thread may run hooks now. The trampolines call these functions where their own test
//! does not settle it.
//!
//! Part of the event path: no allocation, no locks, no libc, no vector registers.

use super::block::{Block, MUTED, STACK, own};
use super::missed::{ANONYMOUS, missed, missed_inside, missed_without_block};
use super::register::register;
use crate::hook::Missed;
use crate::hook_list::Meta;
use crate::{sandbox, sys};
use std::mem::MaybeUninit;
use std::ptr;
use std::sync::atomic::{AtomicU64, Ordering};

/// Gives a thread its block, for trampolines that found none. 0 when that cannot be done: the call
/// is counted as missed. `meta` is null for compiled-in sites, which are known by `ret`.
#[unsafe(link_section = ".text.skep_event")]
pub(crate) unsafe extern "C" fn new_thread(ret: u64, meta: *const Meta) -> u32 {
    if !register().is_null() {
        return 1;
    }
    // SAFETY: what the trampoline gave.
    unsafe { missed_without_block(ret, meta, None) };
    0
}

/// Called at a function's entry by a thread that is inside something. Returns the block
/// to go on with, or null to leave the hooks out. `meta` is null for compiled-in sites, which are
/// known by `ret`.
#[unsafe(link_section = ".text.skep_event")]
pub(crate) unsafe extern "C" fn slow_entry(
    block: *mut Block,
    frame: u64,
    ret: u64,
    meta: *const Meta,
) -> *mut Block {
    // SAFETY: blocks are never unmapped; this one is the calling thread's.
    if may_enter(unsafe { &*block }, frame) {
        return block;
    }
    // SAFETY: the calling thread's block, and what a trampoline gave.
    unsafe { missed_inside(&*block, ret, meta) };
    ptr::null_mut()
}

/// Called after the function by a thread that is inside something; `block` may be null, `seq` is
/// that of the newest attachment at entry.
#[unsafe(link_section = ".text.skep_event")]
pub(crate) unsafe extern "C" fn slow_exit(
    block: *mut Block,
    frame: u64,
    meta: *const Meta,
    seq: u64,
) -> *mut Block {
    let block = if block.is_null() { register() } else { block };
    // SAFETY: blocks are never unmapped; this one is the calling thread's.
    if !block.is_null() && may_enter(unsafe { &*block }, frame) {
        return block;
    }
    // Who has no block shows in none that the hook list is in use.
    let anonymous = u64::from(block.is_null());
    ANONYMOUS.fetch_add(anonymous, Ordering::SeqCst);
    // SAFETY: the trampoline's metadata; the thread is marked as inside, or counted.
    unsafe { missed(block, meta, Some(seq), Missed::Inside) };
    ANONYMOUS.fetch_sub(anonymous, Ordering::SeqCst);
    ptr::null_mut()
}

/// Counts a call that runs no hooks because too many tail calls came before it. The thread is
/// marked as inside.
#[unsafe(link_section = ".text.skep_event")]
pub(crate) unsafe extern "C" fn too_deep(meta: *const Meta) {
    // SAFETY: the trampoline's metadata, and the thread is marked as inside.
    unsafe { missed(own(), meta, None, Missed::Stack) };
}

/// Tells whether the thread may run hooks with a trampoline's frame at `frame`: it is outside of
/// any, or the one that it was in was left without an end.
#[inline(always)]
pub(crate) fn may_enter(block: &Block, frame: u64) -> bool {
    let inside = block.inside.load(Ordering::Relaxed);
    if inside == 0 || inside == MUTED {
        return inside == 0;
    }
    let side = |address: u64| {
        let top = block.side_stack.load(Ordering::Relaxed);
        top != 0 && address <= top && top.wrapping_sub(address) <= STACK
    };
    // A handler left the hook by siglongjmp if we are further up the same stack: what runs inside a
    // hook there has a smaller stack pointer. On another stack the hook may be one that a
    // handler has put aside to run another coroutine, and that goes on later. On our stack no
    // hook is put aside, as signals wait.
    let left = if side(inside) {
        !side(frame)
    } else if block.top.load(Ordering::Relaxed) == 0 {
        !side(frame) && frame >= inside
    } else {
        block.has(inside) && block.has(frame) && frame >= inside
    };
    left && !on_signal_stack(inside)
}

/// Tells whether the thread runs on its alternate signal stack and `address` is not on it.
#[inline(always)]
fn on_signal_stack(address: u64) -> bool {
    if !sandbox::may_call_system() {
        return true;
    }
    let stack: MaybeUninit<[AtomicU64; 3]> = MaybeUninit::uninit();
    // SAFETY: `stack_t` is three words: address, flags, size.
    if unsafe { sys::call(sys::SIGALTSTACK, [0, stack.as_ptr() as u64, 0, 0, 0, 0]) } != 0 {
        return true;
    }
    // SAFETY: the kernel has written it.
    let [start, flags, size] = unsafe { stack.assume_init_ref() };
    let on = flags.load(Ordering::Relaxed) & 1 != 0;
    let offset = address.wrapping_sub(start.load(Ordering::Relaxed));
    on && offset >= size.load(Ordering::Relaxed)
}
