//! The words of each thread where there is no thread-local storage for them
//! ([`skep_sys::thread_words`]): whose area is it that GS points to, and what does a thread get
//! that has none?
//!
//! ```text
//! area       words at negative offsets from its end, as in thread-local storage
//! end   ->   the address of this word: what the GS base is
//!            the mark of an area, by which another version of the tracer knows its base
//!            not 0: for threads that were under a seccomp filter when the tracer came ([`is_filtered`])
//! ```
//!
//! The areas of a chunk's blocks lie behind the blocks. Each block owns an area, which names the block; a thread has both or none. A new thread inherits
//! its creator's GS base: it finds a block that is another's, or nobody's area, which has none.
//! So whoever takes a block from there compares the block's thread id with the one that the
//! program's runtime keeps for the running thread beside its thread pointer: glibc, musl and Go all
//! do, because the kernel writes it there for them or they ask for it at once. Where it lies
//! ([`runtime_id`](super::runtime_id)) is found by whoever put us in, by looking at several
//! threads. What shares a thread's storage (`shared_tls`) shares that id too, as it would share
//! thread-local storage.
//!
//! The trampolines' own look at the block is replaced, in this mode, by jumps to code beside it
//! that compares the ids (`tramp/x64.s`).
//!
//! Part of the event path: raw system calls only, no vector registers.

use super::block::{BLOCKS, Block, CHUNKS, Chunk, word};
use crate::sys;
use std::arch::asm;
use std::mem::size_of;
use std::sync::atomic::{AtomicU64, Ordering};

/// Bytes of an area's words.
pub const WORDS: u64 = 1024 - 64;
const SIZE: u64 = 1024;
/// Behind the base of each area.
pub const MARK: u64 = u64::from_le_bytes(*b"SKEPAREA");
/// Of the areas of a chunk's blocks, whose memory is taken when they are first used.
pub(crate) const OF_CHUNK: u64 = BLOCKS as u64 * SIZE;

/// An area, as GS has it. One that a program defines is that of threads which have had no event: its
/// words stay 0.
#[derive(Debug)]
#[repr(C, align(64))]
pub struct Area {
    words: [AtomicU64; (WORDS / 8) as usize],
    own_address: AtomicU64,
    mark: AtomicU64,
    filtered: AtomicU64,
}

impl Area {
    /// Makes one without words.
    #[must_use]
    #[expect(clippy::new_without_default, reason = "for statics")]
    pub const fn new() -> Self {
        Self { mark: AtomicU64::new(MARK), ..Self::unmade() }
    }

    /// Makes one that the tracer has still to write the rest of.
    #[must_use]
    pub const fn unmade() -> Self {
        Self {
            words: [const { AtomicU64::new(0) }; (WORDS / 8) as usize],
            own_address: AtomicU64::new(0),
            mark: AtomicU64::new(0),
            filtered: AtomicU64::new(0),
        }
    }
}

/// Tells whether the calling thread was under a seccomp filter when the tracer came, or was made by one that
/// was: it makes no system call of ours, and so has no block.
///
/// # Safety
/// Thread words are reached by `gs`.
#[inline(always)]
pub(crate) unsafe fn is_filtered() -> bool {
    let filtered: u64;
    // SAFETY: the GS base is that of an area.
    unsafe {
        asm!("mov {}, qword ptr gs:[16]", out(reg) filtered, options(nostack, readonly, preserves_flags));
    }
    filtered != 0
}

/// The place of a block's area, by its end; 0 for a block of no chunk.
#[inline(always)]
fn place(block: *mut Block) -> u64 {
    let mut chunk = CHUNKS.load(Ordering::Acquire);
    while !chunk.is_null() {
        // SAFETY: chunks are never unmapped.
        let blocks = unsafe { (&raw const (*chunk).blocks) as u64 };
        let number = (block as u64).wrapping_sub(blocks) / size_of::<Block>() as u64;
        if number < BLOCKS as u64 {
            let areas = (chunk as u64).wrapping_add(size_of::<Chunk>() as u64);
            return areas.wrapping_add(number.wrapping_mul(SIZE)).wrapping_add(WORDS);
        }
        // SAFETY: as above.
        chunk = unsafe { (*chunk).next.load(Ordering::Acquire) };
    }
    0
}

/// Gives the calling thread the area of its block, with all words 0. False when the kernel refuses.
///
/// # Safety
/// Thread words are reached by `gs`, and the block has the calling thread's id.
#[inline(always)]
pub(crate) unsafe fn take(block: *mut Block) -> bool {
    const ARCH_SET_GS: u64 = 0x1001;
    // SAFETY: blocks are never unmapped, and all fields are atomic.
    let field = unsafe { &(*block).area };
    let mut end = field.load(Ordering::Relaxed);
    if end == 0 {
        end = place(block);
        if end == 0 {
            return false;
        }
        field.store(end, Ordering::Relaxed);
    } else {
        let mut at = end.wrapping_sub(WORDS);
        while at < end {
            // SAFETY: a word of the block's area, which is nobody's before this.
            unsafe { (*(at as *const AtomicU64)).store(0, Ordering::Relaxed) };
            at = at.wrapping_add(8);
        }
    }
    let own = end.wrapping_add_signed(word());
    // SAFETY: words of the block's area; the GS base is then what `switch` was promised.
    unsafe {
        (*(end as *const AtomicU64)).store(end, Ordering::Relaxed);
        (*(end.wrapping_add(8) as *const AtomicU64)).store(MARK, Ordering::Relaxed);
        (*(own as *const AtomicU64)).store(block as u64, Ordering::Relaxed);
        sys::call(sys::ARCH_PRCTL, [ARCH_SET_GS, end, 0, 0, 0, 0]) == 0
    }
}

/// Checks that areas have room for words down to the offset `lowest`, and returns the GS base for threads
/// that have had no event, whose area is `nobody`, or an error number.
pub(crate) fn prepare(lowest: i64, nobody: &'static Area) -> Result<u64, i64> {
    const ENOMEM: i64 = 12;
    if lowest.unsigned_abs() > WORDS {
        return Err(ENOMEM);
    }
    let end = nobody.own_address.as_ptr() as u64;
    nobody.own_address.store(end, Ordering::Relaxed);
    Ok(end)
}
