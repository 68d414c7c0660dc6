//! Side frames, and the stacks that hooks run on: taken from lists of the thread, and given back.
//!
//! Part of the event path: lock-free lists, and memory mapped when it is first needed.

use super::frame::SideFrame;
use crate::per_thread::block::{Block, STACK};
use crate::{sandbox, sys};
use std::mem::size_of;
use std::ptr;
use std::sync::atomic::Ordering;

/// Memory full of sides.
#[repr(C)]
struct SideFrameChunk {
    next: *mut SideFrameChunk,
    _pad: u64,
    sides: [SideFrame; IN_CHUNK],
}

const IN_CHUNK: usize = 48;

/// Most chunks of a thread: some fifty thousand calls at once.
const MAX_CHUNKS: u64 = 1024;

const GUARD: u64 = 4096;

/// The end of the stack for this thread's hooks, mapped when it is first needed; 0 when there is no
/// memory.
#[inline(always)]
pub(crate) fn stack(block: &Block) -> u64 {
    let known = block.side_stack.load(Ordering::Relaxed);
    if known != 0 {
        return known;
    }
    let Ok(base) = sys::map(0, STACK.wrapping_add(GUARD), sys::PROT_READ | sys::PROT_WRITE) else {
        return 0;
    };
    // SAFETY: the page was just mapped.
    let _ = unsafe { sys::protect(base, GUARD, 0) };
    let top = base.wrapping_add(GUARD).wrapping_add(STACK);
    block.side_stack.store(top, Ordering::Relaxed);
    top
}

/// The bits of the list's head that are an address; the others count, so that a head which was
/// taken and given back in between is another one.
const ADDRESS: u64 = (1 << 48) - 1;

/// Takes a side from the block's list; null when there are too many.
///
/// # Safety
///
/// The block is the calling task's.
#[inline(always)]
pub(crate) unsafe fn take(block: &Block) -> *mut SideFrame {
    let mut filled = false;
    loop {
        let head = block.free_side_frames.load(Ordering::Acquire);
        let side = (head & ADDRESS) as *mut SideFrame;
        if side.is_null() {
            // SAFETY: passed on.
            if filled || !unsafe { refill(block) } {
                return side;
            }
            filled = true;
            continue;
        }
        // SAFETY: sides are never unmapped; what was read is used only if the head is still the
        // same.
        let next = unsafe { (&raw const (*side).next).read_volatile() } as u64;
        let new = next | (head & !ADDRESS).wrapping_add(ADDRESS.wrapping_add(1));
        if block
            .free_side_frames
            .compare_exchange(head, new, Ordering::AcqRel, Ordering::Relaxed)
            .is_ok()
        {
            // SAFETY: what was in the list is a whole side that nobody else uses.
            unsafe {
                (&raw mut (*side).at).write_volatile(0);
                (&raw mut (*side).wanted).write_volatile(0);
                (*side).owner.store(ptr::from_ref(block).cast_mut(), Ordering::Release);
            }
            return side;
        }
    }
}

/// Puts a side into the block's list, unless its owner has found that its call was left.
///
/// # Safety
///
/// The block is the calling task's, and the side that of a call which ends here.
#[inline(always)]
pub(crate) unsafe fn give_back(block: &Block, side: *mut SideFrame) {
    // SAFETY: the caller's promise.
    unsafe {
        if !(*side).owner.swap(ptr::null_mut(), Ordering::AcqRel).is_null() {
            give(block, side);
        }
    }
}

/// Puts a side into the block's list.
///
/// # Safety
///
/// Nobody uses the side, and its owner is null.
#[inline(always)]
unsafe fn give(block: &Block, side: *mut SideFrame) {
    loop {
        let head = block.free_side_frames.load(Ordering::Relaxed);
        // SAFETY: the caller's promise.
        unsafe { (&raw mut (*side).next).write_volatile((head & ADDRESS) as *mut SideFrame) };
        let new = side as u64 | head & !ADDRESS;
        if block
            .free_side_frames
            .compare_exchange(head, new, Ordering::AcqRel, Ordering::Relaxed)
            .is_ok()
        {
            return;
        }
    }
}

/// Fills the list: with sides whose calls were left by `longjmp`, or with the stack they were on,
/// else with new ones.
#[unsafe(link_section = ".text.skep_event")]
#[inline(never)]
unsafe extern "C" fn refill(block: &Block) -> bool {
    if !sandbox::may_call_system() {
        return false;
    }
    let chunks = block.side_frame_chunks.load(Ordering::Relaxed);
    // SAFETY: chunks are never unmapped; the caller's promise covers the list.
    unsafe {
        // Each time the number has doubled, so that looking is not most of the work.
        if chunks >= MAX_CHUNKS || (chunks >= 2 && chunks & chunks.wrapping_sub(1) == 0) {
            let mut chunk = block.side_frames.load(Ordering::Relaxed).cast::<SideFrameChunk>();
            while !chunk.is_null() {
                let mut n = 0;
                while n < IN_CHUNK {
                    let side = (&raw mut (*chunk).sides).cast::<SideFrame>().wrapping_add(n);
                    let me = ptr::from_ref(block).cast_mut();
                    // Who sets the owner has the side: the call may be returning on another thread
                    // now.
                    if is_left(block, side)
                        && (*side)
                            .owner
                            .compare_exchange(
                                me,
                                ptr::null_mut(),
                                Ordering::AcqRel,
                                Ordering::Relaxed,
                            )
                            .is_ok()
                    {
                        give(block, side);
                    }
                    n = n.wrapping_add(1);
                }
                chunk = (*chunk).next;
            }
            let found = block.free_side_frames.load(Ordering::Relaxed) & ADDRESS != 0;
            if found || chunks >= MAX_CHUNKS {
                return found;
            }
        }
        let Ok(memory) =
            sys::map(0, size_of::<SideFrameChunk>() as u64, sys::PROT_READ | sys::PROT_WRITE)
        else {
            return false;
        };
        let chunk = memory as *mut SideFrameChunk;
        loop {
            let first = block.side_frames.load(Ordering::Relaxed);
            (&raw mut (*chunk).next).write_volatile(first.cast());
            if block
                .side_frames
                .compare_exchange(first, chunk.cast(), Ordering::AcqRel, Ordering::Relaxed)
                .is_ok()
            {
                break;
            }
        }
        block.side_frame_chunks.store(chunks.wrapping_add(1), Ordering::Relaxed);
        let mut n = 0;
        while n < IN_CHUNK {
            give(block, (&raw mut (*chunk).sides).cast::<SideFrame>().wrapping_add(n));
            n = n.wrapping_add(1);
        }
        true
    }
}

/// Tells whether a side frame of the block's chunks waits for the return of one of the functions
/// whose metadata is in `metas`, which are sorted. Not for the event path.
pub(crate) fn any_in_use(block: &Block, metas: &[u64]) -> bool {
    let mut chunk = block.side_frames.load(Ordering::Acquire).cast::<SideFrameChunk>();
    while !chunk.is_null() {
        for n in 0..IN_CHUNK {
            // SAFETY: chunks are never unmapped, and the index is in range; the words are read as
            // they are, by whatever thread the frame is in use.
            let (side, owner, at) = unsafe {
                let side = (&raw mut (*chunk).sides).cast::<SideFrame>().wrapping_add(n);
                let owner = (*side).owner.load(Ordering::Acquire);
                (side, owner, (&raw const (*side).at).read_volatile())
            };
            let mut words = [0u64; 2];
            // On the program's stack: our address, and above it that of the metadata.
            if !owner.is_null()
                && at > 1
                && match sys::copy_in(&mut words, &[[at, 16]]) {
                    16 => words[0] == side as u64 && metas.binary_search(&words[1]).is_ok(),
                    e => e != -sys::EFAULT,
                }
            {
                return true;
            }
        }
        // SAFETY: chunks are never unmapped, and a chunk's link is set before it can be found.
        chunk = unsafe { (*chunk).next };
    }
    false
}

/// Tells whether a side's call will never return: the word that it has on the program's stack is
/// gone.
#[inline(always)]
unsafe fn is_left(block: &Block, side: *const SideFrame) -> bool {
    // SAFETY: a side of a chunk that stays; `at` is read from where it may be gone by the kernel.
    unsafe {
        if !ptr::eq((*side).owner.load(Ordering::Acquire), block) {
            return false;
        }
        let at = (&raw const (*side).at).read_volatile();
        if at <= 1 {
            return at == 1;
        }
        let mut word = std::mem::MaybeUninit::<u64>::uninit();
        let local = [word.as_mut_ptr() as u64, 8];
        match sys::copy_words(&local, &[at, 8]) {
            8 => word.as_ptr().read_volatile() != side as u64,
            // Refused by a sandbox: nothing is known.
            e => e == -sys::EFAULT,
        }
    }
}
