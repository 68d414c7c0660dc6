//! Who is inside a hook: one block a thread, found through one word of thread-local storage.
//!
//! A block's first word is 0 outside of hooks, [`MUTED`] while the thread does the tracer's own work, and otherwise the stack
//! pointer of the trampoline that runs hooks. The trampolines test it and call the `slow_…` functions when it is not 0 or the
//! thread has no block yet.
//!
//! Blocks live in memory of their own that is never unmapped, so a detacher may look at the block of a thread that has died;
//! such blocks are found by their thread id and given to new threads.

use crate::table::Table;
use crate::tramp::{Meta, Plan, Slot};
use crate::{bounds, sys};
use std::arch::asm;
use std::marker::PhantomData;
use std::mem::{MaybeUninit, size_of};
use std::ptr;
use std::sync::atomic::{AtomicPtr, AtomicU32, AtomicU64, Ordering};

/// The first word of a muted thread's block. No stack pointer is that small.
const MUTED: u64 = 1;

/// What the engine keeps for a thread. All but `tid` is known to `tramp/x64.s`.
#[repr(C, align(128))]
#[derive(Debug)]
pub(crate) struct Block {
    inside: AtomicU64,
    /// The last page above the stack pointer that was found readable.
    pub(crate) page: AtomicU64,
    /// The last exit trampoline reached by a tail call from a hooked function: its stack pointer, and how many there are in a row.
    pub(crate) tail: AtomicU64,
    pub(crate) tails: AtomicU64,
    /// The lower part of the thread's stack, where exit trampolines make no frames ([`crate::bounds`]).
    pub(crate) deep: AtomicU64,
    pub(crate) deep_len: AtomicU64,
    /// Not 0 while a hook does the tracer's own work: nobody counts the calls it makes.
    silent: AtomicU64,
    /// The thread, 0: nobody's.
    tid: AtomicU32,
}

const BLOCKS: usize = 511;

/// A piece of memory full of blocks.
#[repr(C)]
#[derive(Debug)]
struct Chunk {
    next: AtomicPtr<Chunk>,
    _pad: [u64; 15],
    blocks: [Block; BLOCKS],
}

static CHUNKS: AtomicPtr<Chunk> = AtomicPtr::new(ptr::null_mut());

/// The thread's block, or null.
#[inline(always)]
fn own() -> *mut Block {
    let block: *mut Block;
    // SAFETY: reads the thread-local word defined in x64.s by the initial-exec model.
    unsafe {
        asm!("mov {0}, qword ptr [rip + skep_attach_block@GOTTPOFF]", "mov {0}, qword ptr fs:[{0}]", out(reg) block,
                        options(nostack, readonly, preserves_flags));
    }
    block
}

#[inline(always)]
fn set_own(block: *mut Block) {
    // SAFETY: writes the thread-local word defined in x64.s.
    unsafe {
        asm!("mov {0}, qword ptr [rip + skep_attach_block@GOTTPOFF]", "mov qword ptr fs:[{0}], {1}", out(reg) _,
                        in(reg) block, options(nostack, preserves_flags));
    }
}

/// Gives the thread a block. Null when there is no memory: the thread then stays untraced and asks again next time.
///
/// Called from the event path: raw system calls only, and no vector registers. On its own, because a thread does this once and
/// the stack it needs should not be everybody's.
#[unsafe(link_section = ".text.skep_event")]
#[inline(never)]
extern "C" fn register() -> *mut Block {
    let tid = sys::gettid();
    // A signal may arrive anywhere in here and register the same thread; so a block that already has our id wins, which also
    // finds the block of a dead thread with the same id.
    let mut free: *mut Block = ptr::null_mut();
    let mut chunk = CHUNKS.load(Ordering::Acquire);
    while !chunk.is_null() {
        let mut i = 0;
        while i < BLOCKS {
            // SAFETY: chunks are never unmapped and `i` is in range.
            let block = unsafe { (&raw mut (*chunk).blocks).cast::<Block>().wrapping_add(i) };
            // SAFETY: as above; all fields are atomic.
            let owner = unsafe { (*block).tid.load(Ordering::Acquire) };
            if owner == tid {
                return adopt(block);
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
    // SAFETY: `free` is null or a live block.
    if !free.is_null() && unsafe { (*free).tid.compare_exchange(0, tid, Ordering::AcqRel, Ordering::Relaxed).is_ok() } {
        return adopt(free);
    }
    if let Some(block) = recycle(tid) {
        return adopt(block);
    }
    let Ok(memory) = sys::map(0, size_of::<Chunk>() as u64, sys::PROT_READ | sys::PROT_WRITE) else { return ptr::null_mut() };
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

#[inline(always)]
fn adopt(block: *mut Block) -> *mut Block {
    // SAFETY: blocks are never unmapped, and this one is the calling thread's now.
    unsafe {
        (*block).inside.store(0, Ordering::Relaxed);
        (*block).silent.store(0, Ordering::Relaxed);
        (*block).page.store(0, Ordering::Relaxed);
        (*block).tail.store(0, Ordering::Relaxed);
        let here: u64;
        asm!("mov {}, rsp", out(reg) here, options(nomem, nostack, preserves_flags));
        let (deep, len) = bounds::deep(here);
        (*block).deep.store(deep, Ordering::Relaxed);
        (*block).deep_len.store(len, Ordering::Relaxed);
    }
    set_own(block);
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
                    && (*block).tid.compare_exchange(owner, tid, Ordering::AcqRel, Ordering::Relaxed).is_ok()
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

/// Decides what a trampoline does that found its thread without a block or inside something: the block to go on with, or null
/// to leave the hooks out. `frame` is the trampoline's stack pointer.
#[inline(always)]
fn decide(block: *mut Block, frame: u64) -> (*mut Block, bool) {
    let block = if block.is_null() { register() } else { block };
    if block.is_null() {
        return (block, false);
    }
    // SAFETY: blocks are never unmapped; this one is the calling thread's.
    let inside = unsafe { (*block).inside.load(Ordering::Relaxed) };
    match inside {
        0 => (block, false),
        MUTED => (ptr::null_mut(), false),
        // Stacks grow down: what runs inside a hook has a smaller stack pointer. A greater one means that the hook was left by
        // siglongjmp out of a signal handler, or that a handler runs on its own stack.
        _ if frame >= inside && !on_signal_stack(inside) => (block, false),
        // SAFETY: as above.
        _ => (ptr::null_mut(), unsafe { (*block).silent.load(Ordering::Relaxed) } == 0),
    }
}

/// Tells whether the thread runs on its alternate signal stack and `address` is not on it.
#[inline(always)]
fn on_signal_stack(address: u64) -> bool {
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

/// Adds one to `missed` of the slots in a range of addresses.
#[inline(always)]
fn count_missed(mut slot: u64, end: u64) {
    while slot < end {
        // SAFETY: the range is part of a plan that the thread's own block keeps alive; `missed` is null or the attacher's.
        unsafe {
            let missed = (*(slot as *const Slot)).missed as *const AtomicU64;
            if !missed.is_null() {
                (*missed).fetch_add(1, Ordering::Relaxed);
            }
        }
        slot = slot.wrapping_add(size_of::<Slot>() as u64);
    }
}

/// The trampolines' way out at a function's entry. `meta` is null for compiled-in sites, which are known by `ret`.
#[unsafe(link_section = ".text.skep_event")]
pub(crate) unsafe extern "C" fn slow_entry(block: *mut Block, frame: u64, ret: u64, meta: *const Meta) -> *mut Block {
    let (block, missed) = decide(block, frame);
    if missed {
        let meta = if meta.is_null() { Table::find(ret) } else { meta };
        if !meta.is_null() {
            // SAFETY: metadata lives for ever, and the plan as long as this thread is inside a hook, which it is.
            unsafe {
                let plan = (*meta).plan.load(Ordering::Acquire);
                count_missed((plan as u64).wrapping_add(size_of::<Plan>() as u64), (*plan).exit_end);
            }
        }
    }
    block
}

/// The exit trampolines' way out after the function.
#[unsafe(link_section = ".text.skep_event")]
pub(crate) unsafe extern "C" fn slow_exit(block: *mut Block, frame: u64, meta: *const Meta) -> *mut Block {
    let (block, missed) = decide(block, frame);
    if missed {
        // SAFETY: as in `slow_entry`.
        unsafe {
            let plan = (*meta).plan.load(Ordering::Acquire);
            count_missed((*plan).mod_end, (*plan).exit_end);
        }
    }
    block
}

/// Counts a call that runs no hooks because too many tail calls came before it, or because too much of the stack is in use. The thread is marked as inside.
#[unsafe(link_section = ".text.skep_event")]
pub(crate) unsafe extern "C" fn too_deep(meta: *const Meta) {
    // SAFETY: as in `slow_entry`.
    unsafe {
        let plan = (*meta).plan.load(Ordering::Acquire);
        count_missed((plan as u64).wrapping_add(size_of::<Plan>() as u64), (*plan).exit_end);
    }
}

/// Waits until no thread is inside hooks that it can have found before the call, at most `rounds` looks a thread.
pub(crate) fn drain(rounds: u32) -> bool {
    // After this barrier a thread that enters hooks finds what was published before the call, and one that found something
    // older shows it in its block. Without membarrier there is nothing to conclude from the blocks.
    if sys::membarrier(sys::Barrier::Memory).is_err() {
        return false;
    }
    let mut all = true;
    let mut chunk = CHUNKS.load(Ordering::Acquire);
    while !chunk.is_null() {
        // SAFETY: chunks are never unmapped, and all fields are atomic.
        let (blocks, next) = unsafe { (&(*chunk).blocks, (*chunk).next.load(Ordering::Acquire)) };
        for block in blocks {
            all &= outside(block, rounds);
        }
        chunk = next;
    }
    all
}

fn outside(block: &Block, rounds: u32) -> bool {
    let first = block.inside.load(Ordering::Acquire);
    if first == 0 || first == MUTED || ptr::eq(block, own()) {
        return true;
    }
    for round in 0..rounds {
        let now = block.inside.load(Ordering::Acquire);
        if now != first {
            return true;
        }
        if round % 64 == 63 {
            let tid = block.tid.load(Ordering::Acquire);
            if tid == 0 || sys::tgkill(tid, 0) == -sys::ESRCH {
                return true;
            }
            sys::yield_now();
        }
        std::hint::spin_loop();
    }
    false
}

/// Makes the blocks right in a forked child: the calling thread is the only one, under another id.
pub(crate) fn after_fork() {
    let me = own();
    let mut chunk = CHUNKS.load(Ordering::Acquire);
    while !chunk.is_null() {
        // SAFETY: chunks are never unmapped, and all fields are atomic.
        let (blocks, next) = unsafe { (&(*chunk).blocks, (*chunk).next.load(Ordering::Acquire)) };
        for block in blocks {
            if ptr::eq(block, me) {
                block.tid.store(sys::gettid(), Ordering::Release);
            } else {
                block.inside.store(0, Ordering::Relaxed);
                block.tid.store(0, Ordering::Release);
            }
        }
        chunk = next;
    }
}

/// Ends the muting of the thread when dropped.
#[derive(Debug)]
#[must_use = "events are muted until this is dropped"]
pub struct Muted {
    /// How it was done.
    how: How,
    _thread: PhantomData<*const ()>,
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum How {
    /// It was muted already, or has no block.
    Nothing,
    Muted,
    /// The thread is inside a hook, which stays visible to those who wait for it to leave.
    Silenced,
}

/// Mutes the calling thread: until the guard is dropped, hooked functions that it calls run no hooks, and nobody counts them as
/// missed. For the tracer's own work inside the traced process. May be nested.
pub fn mute() -> Muted {
    let block = if own().is_null() { register() } else { own() };
    let how = if block.is_null() {
        How::Nothing
    } else {
        // SAFETY: a block that is not null is never unmapped; this one is the calling thread's.
        let (inside, silent) = unsafe { (&(*block).inside, &(*block).silent) };
        match inside.compare_exchange(0, MUTED, Ordering::SeqCst, Ordering::Relaxed) {
            Ok(_) => How::Muted,
            Err(MUTED) => How::Nothing,
            Err(_) => {
                silent.fetch_add(1, Ordering::Relaxed);
                How::Silenced
            }
        }
    };
    Muted { how, _thread: PhantomData }
}

impl Drop for Muted {
    fn drop(&mut self) {
        let block = own();
        if block.is_null() {
            return;
        }
        // SAFETY: blocks are never unmapped.
        unsafe {
            match self.how {
                How::Nothing => {}
                How::Muted => (*block).inside.store(0, Ordering::Release),
                How::Silenced => (*block).silent.store((*block).silent.load(Ordering::Relaxed).saturating_sub(1), Ordering::Relaxed),
            }
        }
    }
}
