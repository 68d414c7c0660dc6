//! The blocks: what the engine keeps for each thread, and the memory they live in.
//!
//! A block's first word is 0 outside of hooks, [`MUTED`] while the thread does the tracer's own
//! work, and otherwise the stack pointer of the trampoline that runs hooks. The trampolines test it
//! and call the functions of [`enter`](super::enter) when it is not 0, or when the thread has no
//! block yet.
//!
//! Blocks live in memory of their own that is never unmapped, so a detacher may look at the block
//! of a thread that has died; such blocks are found by their thread id and given to new threads.

use super::runtime_id;
use crate::{sandbox, sys};
use skep_sys::{listed_thread_word, thread_words};
use std::arch::asm;
use std::ptr;
use std::sync::atomic::{AtomicPtr, AtomicU32, AtomicU64, Ordering};

/// The first word of a muted thread's block. No stack pointer is that small.
pub(crate) const MUTED: u64 = 1;

/// Size of the stack that hooks run on, and of the guard below it.
pub(crate) const STACK: u64 = 128 << 10;

/// What the engine keeps for a thread. `tramp/x64.s` knows the first half.
#[repr(C, align(128))]
#[derive(Debug)]
pub(crate) struct Block {
    pub(crate) inside: AtomicU64,
    /// The last exit trampoline reached by a tail call from a hooked function: its stack pointer,
    /// and how many there are in a row.
    pub(crate) tail: AtomicU64,
    pub(crate) tails: AtomicU64,
    /// The part of the thread's own stack where trampolines make frames: its start, and its length
    /// in units of 16 bytes. None when the stack is not known.
    pub(crate) zone: AtomicU64,
    pub(crate) zone_len: AtomicU64,
    /// The thread's own stack ([`crate::stack_bounds`]); 0, 0: not known.
    pub(crate) low: AtomicU64,
    pub(crate) top: AtomicU64,
    /// What [`crate::side_stack`] has for the thread: the end of a stack, a list of free sides, all
    /// chunks of sides, their number.
    pub(crate) side_stack: AtomicU64,
    pub(crate) free_side_frames: AtomicU64,
    pub(crate) side_frames: AtomicPtr<()>,
    pub(crate) side_frame_chunks: AtomicU64,
    /// Not 0 while a hook does the tracer's own work: nobody counts the calls it makes.
    pub(crate) silent: AtomicU64,
    /// The block's [`area`](super::area), by its end; 0 where thread words have thread-local
    /// storage.
    pub(crate) area: AtomicU64,
    /// The thread, 0: nobody's.
    pub(crate) tid: AtomicU32,
    /// Signals of faults, by bit, that the program has blocked and the engine has not
    /// ([`crate::signals::Mask`]).
    pub(crate) held: AtomicU32,
    /// Not 0 while the thread is in a function that blocks all signals by itself
    /// ([`crate::signals::begin_blocked`]).
    pub(crate) blocked: AtomicU32,
}

pub(crate) const BLOCKS: usize = 511;

/// A piece of memory full of blocks.
#[repr(C)]
#[derive(Debug)]
pub(crate) struct Chunk {
    pub(super) next: AtomicPtr<Chunk>,
    _pad: [u64; 15],
    pub(super) blocks: [Block; BLOCKS],
}

pub(crate) static CHUNKS: AtomicPtr<Chunk> = AtomicPtr::new(ptr::null_mut());

/// Blocks of tasks that share another's thread-local storage ([`of_task`]): found by their thread
/// id, in one of a few places after it.
pub(crate) static SHARERS: AtomicPtr<Chunk> = AtomicPtr::new(ptr::null_mut());

/// The thread's block, or null.
#[inline(always)]
pub(crate) fn own() -> *mut Block {
    let block = named();
    if thread_words::by_gs() && !block.is_null() {
        // SAFETY: blocks are never unmapped, and the mode is as it says.
        let is_own = unsafe { runtime_id::thread_id() == (*block).tid.load(Ordering::Relaxed) };
        return if is_own { block } else { ptr::null_mut() };
    }
    block
}

/// The block that the thread's words name: its own, or, where a thread inherits its words, another
/// thread's.
#[inline(always)]
fn named() -> *mut Block {
    let block: *mut Block;
    // SAFETY: reads the thread's word defined in x64.s by the initial-exec model.
    unsafe {
        asm!("mov {0}, qword ptr [rip + skep_attach_block@GOTTPOFF]",
                        listed_thread_word!("mov {0}, qword ptr fs:[{0}]"), out(reg) block,
                        options(nostack, readonly, preserves_flags));
    }
    block
}

/// The offset of the word that names the block.
#[inline(always)]
pub(crate) fn word() -> i64 {
    let offset: i64;
    // SAFETY: loads the offset the dynamic linker wrote into the global offset table.
    unsafe {
        asm!("mov {0}, qword ptr [rip + skep_attach_block@GOTTPOFF]", out(reg) offset,
                        options(nostack, readonly, preserves_flags));
    }
    offset
}

/// # Safety
/// The block is the calling thread's.
#[inline(always)]
pub(crate) unsafe fn set_own(block: *mut Block) {
    // SAFETY: writes the thread's word defined in x64.s.
    unsafe {
        asm!("mov {0}, qword ptr [rip + skep_attach_block@GOTTPOFF]", listed_thread_word!("mov qword ptr fs:[{0}], {1}"), out(reg) _,
                        in(reg) block, options(nostack, preserves_flags));
    }
}

impl Block {
    /// Tells whether an address is on the thread's own stack.
    #[inline(always)]
    pub(crate) fn has(&self, address: u64) -> bool {
        address >= self.low.load(Ordering::Relaxed) && address < self.top.load(Ordering::Relaxed)
    }
}

/// Calls `f` with every block, and whether it is one of a task that shares another's thread-local
/// storage.
pub(crate) fn each(mut f: impl FnMut(&Block, bool)) {
    let mut chunk = CHUNKS.load(Ordering::Acquire);
    while !chunk.is_null() {
        // SAFETY: chunks are never unmapped, and all fields of blocks are atomic.
        let (blocks, next) = unsafe { (&(*chunk).blocks, (*chunk).next.load(Ordering::Acquire)) };
        blocks.iter().for_each(|block| f(block, false));
        chunk = next;
    }
    let sharers = SHARERS.load(Ordering::Acquire);
    if !sharers.is_null() {
        // SAFETY: chunks are never unmapped, and all fields of blocks are atomic.
        unsafe { &(*sharers).blocks }.iter().for_each(|block| f(block, true));
    }
}

/// Tells whether the calling thread runs on the stack of a block.
#[inline(always)]
fn is_on_stack(block: &Block) -> bool {
    let here: u64;
    // SAFETY: reads the stack pointer.
    unsafe { asm!("mov {}, rsp", out(reg) here, options(nomem, nostack, preserves_flags)) };
    block.has(here)
}

/// Makes the blocks right in a forked child: the calling thread is the only one, under another id.
///
/// # Safety
/// That is so: no other thread is inside a hook.
#[unsafe(link_section = ".text.skep_event")]
#[inline(never)]
pub(crate) unsafe extern "C" fn after_fork() {
    let me = named();
    let mut chunk = CHUNKS.load(Ordering::Acquire);
    let mut sharers = SHARERS.load(Ordering::Acquire);
    while !chunk.is_null() {
        // SAFETY: chunks are never unmapped, and all fields are atomic.
        let (blocks, next) = unsafe {
            ((&raw const (*chunk).blocks).cast::<Block>(), (*chunk).next.load(Ordering::Acquire))
        };
        let mut i = 0;
        while i < BLOCKS {
            // SAFETY: `i` is in range.
            let block = unsafe { &*blocks.wrapping_add(i) };
            if ptr::eq(block, me) {
                // One that the thread inherited says where its maker was.
                if thread_words::by_gs() && !is_on_stack(block) {
                    block.inside.store(0, Ordering::Relaxed);
                }
                // In a sandbox no other thread asks whose block it is.
                if sandbox::may_call_system() {
                    block.tid.store(sys::gettid(), Ordering::Release);
                }
            } else {
                block.inside.store(0, Ordering::Relaxed);
                block.tid.store(0, Ordering::Release);
            }
            i = i.wrapping_add(1);
        }
        chunk = next;
        if chunk.is_null() {
            (chunk, sharers) = (sharers, ptr::null_mut());
        }
    }
}
