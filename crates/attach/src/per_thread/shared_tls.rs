//! Whose block a task uses that shares another's thread-local storage: children of `vfork`,
//! `posix_spawn` and `clone(CLONE_VM)`.
//!
//! Part of the event path: raw system calls only, no vector registers.

use super::block::{BLOCKS, Block, Chunk, SHARERS, own};
use crate::{process, sandbox, sys};
use std::mem::size_of;
use std::ptr;
use std::sync::atomic::Ordering;

const PROBES: usize = 16;

/// In such a block, in place of the last tail call's stack pointer: the task's maker did not wait
/// for it.
const CONCURRENT: u64 = 1;

/// How often a maker is looked at before that is said.
const PATIENCE: u32 = 1000;

/// How often in succession it must wait, to be one that waits for its child: nothing else that it could
/// wait for takes as long. Where the kernel tells no more of a task than that it waits, one that waits for
/// a slow disk is mistaken for such a one.
const LASTS: u32 = 16;

/// For so much counts a look at one that is known to wait in a call that makes processes, which takes
/// locks, too.
const KNOWN: u32 = 4;

/// Finds the block for an event on another stack than that of the block which thread-local storage
/// names. Null when the task runs no hooks.
///
/// A child of `clone(CLONE_VM)` or a thread, made without storage of its own, finds the block of
/// whoever made it. Hooks keep things in thread-local storage, so it runs them only while its maker
/// is suspended, as that of a child of `vfork` or `posix_spawn` is; and it has a block under its
/// own id, as nobody can tell for sure. A child on the stack of its maker uses the maker's block.
///
/// # Safety
/// `block` is the one that thread-local storage names; signals are blocked, or wait for nothing
/// here.
#[inline(always)]
pub(crate) unsafe fn of_task(block: *mut Block) -> *mut Block {
    // In a sandbox nobody can ask.
    if !sandbox::may_call_system() {
        return block;
    }
    let tid = sys::gettid();
    // SAFETY: blocks are never unmapped.
    if unsafe { (*block).tid.load(Ordering::Acquire) } == tid {
        return block;
    }
    sharer(block, tid)
}

#[unsafe(link_section = ".text.skep_event")]
#[inline(never)]
extern "C" fn sharer(block: *mut Block, tid: u32) -> *mut Block {
    // The first event of a child that was forked without the C library puts the ids right.
    process::is_own();
    // SAFETY: blocks are never unmapped.
    let maker = unsafe { (*block).tid.load(Ordering::Acquire) };
    if maker == tid {
        return block;
    }
    let mut chunk = SHARERS.load(Ordering::Acquire);
    if chunk.is_null() {
        let Ok(memory) = sys::map(0, size_of::<Chunk>() as u64, sys::PROT_READ | sys::PROT_WRITE)
        else {
            return ptr::null_mut();
        };
        // Of two at once one loses the memory it has not touched.
        chunk = match SHARERS.compare_exchange(
            chunk,
            memory as *mut Chunk,
            Ordering::AcqRel,
            Ordering::Acquire,
        ) {
            Ok(_) => memory as *mut Chunk,
            Err(now) => now,
        };
    }
    let mut probe = 0;
    let at = |probe: usize| {
        // SAFETY: chunks are never unmapped, and the index is in range.
        unsafe {
            &*(&raw const (*chunk).blocks)
                .cast::<Block>()
                .wrapping_add((tid as usize).wrapping_add(probe) % BLOCKS)
        }
    };
    while probe < PROBES {
        let own = at(probe);
        if own.tid.load(Ordering::Acquire) == tid {
            if own.tail.load(Ordering::Relaxed) == CONCURRENT {
                return ptr::null_mut();
            }
            let state = process::state(maker);
            if state == process::UNINTERRUPTIBLE {
                return ptr::from_ref(own).cast_mut();
            }
            if state != 0 {
                // Whoever waits for this child does not run again while it is here.
                own.tail.store(CONCURRENT, Ordering::Relaxed);
            }
            return ptr::null_mut();
        }
        probe = probe.wrapping_add(1);
    }
    // Whoever makes a child by `vfork` may not wait for it yet.
    let mut looks = 0;
    let mut lasting = 0;
    while looks < PATIENCE && lasting < LASTS {
        let counts = if process::state(maker) == process::UNINTERRUPTIBLE {
            match process::is_in_clone(maker) {
                Some(true) => KNOWN,
                Some(false) => 0,
                None => 1,
            }
        } else {
            0
        };
        lasting = if counts == 0 { 0 } else { lasting.wrapping_add(counts) };
        sys::yield_now();
        looks = looks.wrapping_add(1);
    }
    let waits = lasting >= LASTS;
    probe = 0;
    while probe < PROBES {
        let block = at(probe);
        let owner = block.tid.load(Ordering::Acquire);
        if (owner == 0 || sys::tkill(owner, 0) == -sys::ESRCH)
            && block.tid.compare_exchange(owner, tid, Ordering::AcqRel, Ordering::Relaxed).is_ok()
        {
            block.inside.store(0, Ordering::Relaxed);
            block.silent.store(0, Ordering::Relaxed);
            block.tails.store(0, Ordering::Relaxed);
            // No address is on a stack like that: all events go to the side stack.
            block.low.store(1, Ordering::Relaxed);
            block.top.store(1, Ordering::Relaxed);
            block.tail.store(if waits { 0 } else { CONCURRENT }, Ordering::Relaxed);
            return if waits { ptr::from_ref(block).cast_mut() } else { ptr::null_mut() };
        }
        probe = probe.wrapping_add(1);
    }
    ptr::null_mut()
}

/// The block of the task that calls, as events have it. Null when it has none.
pub(crate) fn current() -> *mut Block {
    let block = own();
    let here = 0u8;
    // SAFETY: blocks are never unmapped, and this is the one of thread-local storage. A handler
    // that runs in between finds a whole block.
    if block.is_null() || unsafe { (*block).has(&raw const here as u64) } {
        block
    } else {
        // SAFETY: it is the one that thread-local storage names.
        unsafe { of_task(block) }
    }
}
