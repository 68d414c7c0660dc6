//! Which block a thread gets: on its first event, or when it is muted first.
//!
//! Part of the event path: raw system calls only, no vector registers.

use super::area;
use super::block::{BLOCKS, Block, CHUNKS, Chunk, own, set_own};
use super::runtime_id;
use crate::signals::handled::handled;
use crate::stack_bounds;
use crate::{process, sandbox, sys};
use skep_sys::thread_words;
use std::arch::asm;
use std::mem::size_of;
use std::ptr;
use std::sync::atomic::Ordering;

/// Gives the thread a block. Null when there is no memory: the thread then stays untraced and asks
/// again next time.
///
/// Called from the event path: raw system calls only, and no vector registers. On its own, because
/// a thread does this once and the stack it needs should not be everybody's.
#[unsafe(link_section = ".text.skep_event")]
#[inline(never)]
pub(crate) extern "C" fn register() -> *mut Block {
    // A child that shares its parent's memory shares the thread-local word too: a block under the
    // child's id would be taken for a dead thread's when the child is gone, while the parent
    // uses it.
    // SAFETY: thread words are reached by `gs`.
    let is_filtered = thread_words::by_gs() && unsafe { area::is_filtered() };
    if is_filtered || !sandbox::may_call_system() || !process::is_own() {
        return ptr::null_mut();
    }
    let tid = sys::gettid();
    // SAFETY: thread words are reached by `gs`.
    if thread_words::by_gs() && unsafe { runtime_id::thread_id() } != tid {
        return ptr::null_mut();
    }
    // A signal may arrive anywhere in here and register the same thread; so a block that already
    // has our id wins, which also finds the block of a dead thread with the same id.
    let mut free: *mut Block = ptr::null_mut();
    let mut chunk = CHUNKS.load(Ordering::Acquire);
    while !chunk.is_null() {
        let mut i = 0;
        while i < BLOCKS {
            // SAFETY: chunks are never unmapped and `i` is in range.
            let block = unsafe { (&raw mut (*chunk).blocks).cast::<Block>().wrapping_add(i) };
            // SAFETY: chunks are never unmapped, the index is in range, and all fields are atomic.
            let owner = unsafe { (*block).tid.load(Ordering::Acquire) };
            if owner == tid {
                // SAFETY: a block with our id.
                return unsafe { adopt(block) };
            }
            if owner == 0 {
                free = block;
                break;
            }
            i = i.wrapping_add(1);
        }
        if !free.is_null() {
            break;
        }
        // SAFETY: `chunk` is a live chunk.
        chunk = unsafe { (*chunk).next.load(Ordering::Acquire) };
    }
    let claim = |block: *mut Block| {
        // SAFETY: a live block, whose fields are atomic.
        unsafe { &(*block).tid }
            .compare_exchange(0, tid, Ordering::AcqRel, Ordering::Relaxed)
            .is_ok()
    };
    if !free.is_null() && claim(free) {
        // SAFETY: a block that has our id now.
        return unsafe { adopt(free) };
    }
    if let Some(block) = recycle(tid) {
        // SAFETY: a block that has our id now.
        return unsafe { adopt(block) };
    }
    let areas = if thread_words::by_gs() { area::OF_CHUNK } else { 0 };
    let len = (size_of::<Chunk>() as u64).wrapping_add(areas);
    let Ok(memory) = sys::map(0, len, sys::PROT_READ | sys::PROT_WRITE) else {
        return ptr::null_mut();
    };
    let chunk = memory as *mut Chunk;
    // SAFETY: fresh zeroed memory is a valid chunk; it is published by the store of its address.
    unsafe {
        let block = (&raw mut (*chunk).blocks).cast::<Block>();
        (*block).tid.store(tid, Ordering::Relaxed);
        let mut head = CHUNKS.load(Ordering::Relaxed);
        loop {
            (*chunk).next.store(head, Ordering::Relaxed);
            match CHUNKS.compare_exchange_weak(head, chunk, Ordering::AcqRel, Ordering::Relaxed) {
                Ok(_) => return adopt(block),
                Err(now) => head = now,
            }
        }
    }
}

/// Makes a block ready for the calling thread.
///
/// # Safety
/// It is a block, and has the calling thread's id.
#[inline(always)]
unsafe fn adopt(block: *mut Block) -> *mut Block {
    // SAFETY: blocks are never unmapped, and this one is the calling thread's now.
    unsafe {
        (*block).inside.store(0, Ordering::Relaxed);
        (*block).silent.store(0, Ordering::Relaxed);
        (*block).held.store(0, Ordering::Relaxed);
        (*block).blocked.store(0, Ordering::Relaxed);
        (*block).tail.store(0, Ordering::Relaxed);
        find_stack(block);
        if !thread_words::by_gs() {
            set_own(block);
        } else if !area::take(block) {
            return ptr::null_mut();
        }
    }
    // SAFETY: the calling thread's.
    unsafe { let_faults_through(block) };
    block
}

/// Takes over the block of a thread that is gone.
#[inline(always)]
fn recycle(tid: u32) -> Option<*mut Block> {
    let mut chunk = CHUNKS.load(Ordering::Acquire);
    while !chunk.is_null() {
        let mut i = 0;
        while i < BLOCKS {
            // SAFETY: chunks are never unmapped and `i` is in range; all fields are atomic.
            unsafe {
                let block = (&raw mut (*chunk).blocks).cast::<Block>().wrapping_add(i);
                let owner = (*block).tid.load(Ordering::Acquire);
                if owner != 0
                    && sys::tgkill(owner, 0) == -sys::ESRCH
                    && (*block)
                        .tid
                        .compare_exchange(owner, tid, Ordering::AcqRel, Ordering::Relaxed)
                        .is_ok()
                {
                    return Some(block);
                }
            }
            i = i.wrapping_add(1);
        }
        // SAFETY: `chunk` is a live chunk.
        chunk = unsafe { (*chunk).next.load(Ordering::Acquire) };
    }
    None
}

/// Lets signals of faults through while the C library holds all back, as it does where a thread
/// starts: a hook's fault that has a handler ([`crate::signals`]) would be the end. The library
/// sets the thread's own mask when it is done. A mask with less is the program's.
///
/// # Safety
/// The block is the calling thread's.
#[inline(always)]
unsafe fn let_faults_through(block: *mut Block) {
    let mask = sys::signal_mask();
    // SAFETY: blocks are never unmapped.
    unsafe { let_through(Some(&*block), mask, handled(), mask != ALL_SIGNALS) };
}

/// What [`let_faults_through`] takes for the C library's: all but `SIGKILL` and `SIGSTOP`; what
/// `sigfillset` makes has fewer.
pub(crate) const ALL_SIGNALS: u64 = !(1 << 8 | 1 << 18);

/// Lets those of the signals `set` through that the calling thread, whose mask this is, blocks, and returns
/// them; the program holds them back from now on if they are `held`. One that waits comes at once, so that is
/// noted first.
#[inline(always)]
pub(crate) fn let_through(block: Option<&Block>, mask: u64, set: u64, held: bool) -> u64 {
    let blocked = mask & set;
    if blocked != 0 {
        if let Some(block) = block.filter(|_| held) {
            block.held.fetch_or(blocked as u32, Ordering::Relaxed);
        }
        sys::let_through(blocked);
    }
    blocked
}

/// In `blocked`: a signal has a handler only now, which the thread may have blocked.
pub(crate) const HANDLER_IS_NEW: u32 = 2;

/// Has each thread let signals of faults through, as some have a handler only now: the calling one at
/// once, the others at their next event.
pub(crate) fn let_new_faults_through() {
    let own = own();
    if !own.is_null() {
        // SAFETY: blocks are never unmapped.
        unsafe { let_through(Some(&*own), sys::signal_mask(), handled(), true) };
    }
    let mut chunk = CHUNKS.load(Ordering::Acquire);
    while !chunk.is_null() {
        // SAFETY: chunks are never unmapped, and all fields of blocks are atomic.
        let (blocks, next) = unsafe { (&(*chunk).blocks, (*chunk).next.load(Ordering::Acquire)) };
        let others = blocks.iter().filter(|block| !ptr::eq(*block, own));
        for block in others.filter(|block| block.tid.load(Ordering::Acquire) != 0) {
            block.blocked.store(HANDLER_IS_NEW, Ordering::Relaxed);
            block.zone_len.store(0, Ordering::Relaxed);
        }
        chunk = next;
    }
}

/// Notes where the calling thread's own stack is.
///
/// # Safety
/// The block is the calling thread's.
#[inline(always)]
unsafe fn find_stack(block: *mut Block) {
    // SAFETY: blocks are never unmapped, and all fields are atomic.
    unsafe {
        let here: u64;
        asm!("mov {}, rsp", out(reg) here, options(nomem, nostack, preserves_flags));
        let (low, top) = stack_bounds::stack(here);
        (*block).low.store(low, Ordering::Relaxed);
        (*block).top.store(top, Ordering::Relaxed);
        let size = top.wrapping_sub(low);
        let frames = if size < stack_bounds::SMALL { 0 } else { size >> 2 & !15 };
        (*block).zone.store(top.wrapping_sub(frames), Ordering::Relaxed);
        (*block).zone_len.store(frames >> 4, Ordering::Relaxed);
    }
}

/// Sends all events of the calling thread to the side stack ([`crate::side_stack`]), where signals
/// of faults are let through, or ends that.
#[inline(always)]
pub(crate) fn set_blocked(blocked: bool) {
    let block = own();
    if block.is_null() {
        return;
    }
    // SAFETY: the calling thread's.
    unsafe {
        (*block).blocked.store(blocked.into(), Ordering::Relaxed);
        if blocked {
            (*block).zone_len.store(0, Ordering::Relaxed);
        } else {
            find_stack(block);
        }
    }
}

/// Learns what cannot be found out in events, before there are any.
pub(crate) fn prepare() {
    stack_bounds::learn();
    let block = own();
    if !block.is_null() {
        // SAFETY: the calling thread's.
        unsafe { find_stack(block) };
    }
}
