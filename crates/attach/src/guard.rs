//! Who is inside a hook: one block a thread, found through one word of thread-local storage.
//!
//! A block's first word is 0 outside of hooks, [`MUTED`] while the thread does the tracer's own
//! work, and otherwise the stack pointer of the trampoline that runs hooks. The trampolines test it
//! and call the `slow_…` functions when it is not 0, and `new_thread` when the thread has no block
//! yet.
//!
//! Blocks live in memory of their own that is never unmapped, so a detacher may look at the block
//! of a thread that has died; such blocks are found by their thread id and given to new threads.

use crate::hook::Missed;
use crate::table::Table;
use crate::tramp::{Meta, Plan, Slot};
use crate::{bounds, elsewhere, process, sandbox, sys};
use std::arch::asm;
use std::marker::PhantomData;
use std::mem::{MaybeUninit, size_of};
use std::ptr;
use std::sync::atomic::{AtomicPtr, AtomicU32, AtomicU64, Ordering};

/// The first word of a muted thread's block. No stack pointer is that small.
const MUTED: u64 = 1;

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
    /// The thread's own stack ([`crate::bounds`]); 0, 0: not known.
    pub(crate) low: AtomicU64,
    pub(crate) top: AtomicU64,
    /// What [`crate::elsewhere`] has for the thread: the end of a stack, a list of free sides, all
    /// chunks of sides, their number.
    pub(crate) side_stack: AtomicU64,
    pub(crate) free_sides: AtomicU64,
    pub(crate) sides: AtomicPtr<()>,
    pub(crate) side_chunks: AtomicU64,
    /// Not 0 while a hook does the tracer's own work: nobody counts the calls it makes.
    silent: AtomicU64,
    /// The thread, 0: nobody's.
    tid: AtomicU32,
    /// Signals of faults, by bit, that the program has blocked and the engine has not
    /// ([`crate::signals::Mask`]).
    pub(crate) held: AtomicU32,
    /// Not 0 while the thread is in a function that blocks all signals by itself
    /// ([`crate::signals::begin_blocked`]).
    pub(crate) blocked: AtomicU32,
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
/// Blocks of tasks that share another's thread-local storage ([`of_task`]): found by their thread
/// id, in one of [`WAYS`] places.
static SHARERS: AtomicPtr<Chunk> = AtomicPtr::new(ptr::null_mut());
const WAYS: usize = 16;
/// In such a block, in place of the last tail call's stack pointer: the task's maker did not wait
/// for it.
const CONCURRENT: u64 = 1;
/// How often a maker is looked at before that is said.
const PATIENCE: u32 = 1000;

/// The thread's block, or null.
#[inline(always)]
pub(crate) fn own() -> *mut Block {
    let block: *mut Block;
    // SAFETY: reads the thread-local word defined in x64.s by the initial-exec model.
    unsafe {
        asm!("mov {0}, qword ptr [rip + skep_attach_block@GOTTPOFF]", "mov {0}, qword ptr fs:[{0}]", out(reg) block,
                        options(nostack, readonly, preserves_flags));
    }
    block
}

/// # Safety
/// The block is the calling thread's.
#[inline(always)]
unsafe fn set_own(block: *mut Block) {
    // SAFETY: writes the thread-local word defined in x64.s.
    unsafe {
        asm!("mov {0}, qword ptr [rip + skep_attach_block@GOTTPOFF]", "mov qword ptr fs:[{0}], {1}", out(reg) _,
                        in(reg) block, options(nostack, preserves_flags));
    }
}

/// Gives the thread a block. Null when there is no memory: the thread then stays untraced and asks
/// again next time.
///
/// Called from the event path: raw system calls only, and no vector registers. On its own, because
/// a thread does this once and the stack it needs should not be everybody's.
#[unsafe(link_section = ".text.skep_event")]
#[inline(never)]
extern "C" fn register() -> *mut Block {
    // A child that shares its parent's memory shares the thread-local word too: a block under the
    // child's id would be taken for a dead thread's when the child is gone, while the parent
    // uses it.
    if !sandbox::may_call_system() || !process::is_own() {
        return ptr::null_mut();
    }
    let tid = sys::gettid();
    // A signal may arrive anywhere in here and register the same thread; so a block that already
    // has our id wins, which also finds the block of a dead thread with the same id.
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
    // SAFETY: `free` is null or a live block.
    if !free.is_null()
        && unsafe {
            (*free).tid.compare_exchange(0, tid, Ordering::AcqRel, Ordering::Relaxed).is_ok()
        }
    {
        // SAFETY: a block that has our id now.
        return unsafe { adopt(free) };
    }
    if let Some(block) = recycle(tid) {
        // SAFETY: as above.
        return unsafe { adopt(block) };
    }
    let Ok(memory) = sys::map(0, size_of::<Chunk>() as u64, sys::PROT_READ | sys::PROT_WRITE)
    else {
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
        set_own(block);
    }
    // SAFETY: the calling thread's.
    unsafe { let_faults_through(block) };
    block
}

/// Lets signals of faults through while the C library holds all back, as it does where a thread
/// starts: a hook's fault that has a handler ([`crate::signals`]) would be the end. The library
/// sets the thread's own mask when it is done. A mask with less is the program's.
///
/// # Safety
/// The block is the calling thread's.
#[inline(always)]
unsafe fn let_faults_through(block: *mut Block) {
    const RT_SIGPROCMASK: u64 = 14;
    const SIG_UNBLOCK: u64 = 1;
    /// All but `SIGKILL` and `SIGSTOP`; what `sigfillset` makes has fewer.
    const ALL: u64 = !(1 << 8 | 1 << 18);
    let mask = AtomicU64::new(0);
    // SAFETY: the kernel writes the thread's mask into `mask`, and then takes signals out of it;
    // blocks are never unmapped.
    unsafe {
        if sys::call(RT_SIGPROCMASK, [0, 0, mask.as_ptr() as u64, 8, 0, 0]) == 0
            && mask.load(Ordering::Relaxed) & sys::FAULTS != 0
        {
            let before = mask.load(Ordering::Relaxed);
            if before != ALL {
                (*block).held.store((before & sys::FAULTS) as u32, Ordering::Relaxed);
            }
            mask.store(sys::FAULTS, Ordering::Relaxed);
            sys::call(RT_SIGPROCMASK, [SIG_UNBLOCK, mask.as_ptr() as u64, 0, 8, 0, 0]);
        }
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
        let (low, top) = bounds::stack(here);
        (*block).low.store(low, Ordering::Relaxed);
        (*block).top.store(top, Ordering::Relaxed);
        let frames = top.wrapping_sub(low) >> 2 & !15;
        (*block).zone.store(top.wrapping_sub(frames), Ordering::Relaxed);
        (*block).zone_len.store(frames >> 4, Ordering::Relaxed);
    }
}

/// Sends all events of the calling thread elsewhere ([`crate::elsewhere`]), where signals of faults
/// are let through, or ends that.
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
    bounds::learn();
    let block = own();
    if !block.is_null() {
        // SAFETY: the calling thread's.
        unsafe { find_stack(block) };
    }
}

impl Block {
    /// Tells whether an address is on the thread's own stack.
    #[inline(always)]
    pub(crate) fn has(&self, address: u64) -> bool {
        address >= self.low.load(Ordering::Relaxed) && address < self.top.load(Ordering::Relaxed)
    }
}

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
    let mut way = 0;
    let at = |way: usize| {
        // SAFETY: chunks are never unmapped, and the index is in range.
        unsafe {
            &*(&raw const (*chunk).blocks)
                .cast::<Block>()
                .wrapping_add((tid as usize).wrapping_add(way) % BLOCKS)
        }
    };
    while way < WAYS {
        let own = at(way);
        if own.tid.load(Ordering::Acquire) == tid {
            let waits =
                own.tail.load(Ordering::Relaxed) != CONCURRENT && process::is_suspended(maker);
            return if waits { ptr::from_ref(own).cast_mut() } else { ptr::null_mut() };
        }
        way = way.wrapping_add(1);
    }
    // Whoever makes a child by `vfork` may still be on its way to wait for it.
    let mut looks = 0;
    while looks < PATIENCE && !process::is_suspended(maker) {
        sys::yield_now();
        looks = looks.wrapping_add(1);
    }
    way = 0;
    while way < WAYS {
        let block = at(way);
        let owner = block.tid.load(Ordering::Acquire);
        if (owner == 0 || sys::tkill(owner, 0) == -sys::ESRCH)
            && block.tid.compare_exchange(owner, tid, Ordering::AcqRel, Ordering::Relaxed).is_ok()
        {
            block.inside.store(0, Ordering::Relaxed);
            block.silent.store(0, Ordering::Relaxed);
            block.tails.store(0, Ordering::Relaxed);
            // No address is on a stack like that: everything happens elsewhere.
            block.low.store(1, Ordering::Relaxed);
            block.top.store(1, Ordering::Relaxed);
            block.tail.store(if looks < PATIENCE { 0 } else { CONCURRENT }, Ordering::Relaxed);
            return if looks < PATIENCE {
                ptr::from_ref(block).cast_mut()
            } else {
                ptr::null_mut()
            };
        }
        way = way.wrapping_add(1);
    }
    ptr::null_mut()
}

/// The block of the task that calls, as events have it. Null when it has none.
fn current() -> *mut Block {
    let block = own();
    let here = 0u8;
    // SAFETY: blocks are never unmapped, and this is the one of thread-local storage. A handler
    // that runs in between finds a whole block.
    if block.is_null() || unsafe { (*block).has(&raw const here as u64) } {
        block
    } else {
        unsafe { of_task(block) }
    }
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

/// Counts a call of a task that has no block. `meta` is null for compiled-in sites, which are known
/// by `ret`.
///
/// # Safety
/// `meta` is null or a function's; `entered` as for [`missed`].
#[inline(always)]
pub(crate) unsafe fn missed_without_block(ret: u64, meta: *const Meta, entered: Option<u64>) {
    ANONYMOUS.fetch_add(1, Ordering::SeqCst);
    // SAFETY: whoever frees tables and plans waits for those that are counted.
    unsafe {
        let meta = if meta.is_null() { Table::find(ret) } else { meta };
        if !meta.is_null() {
            missed(ptr::null(), meta, entered, Missed::Thread);
        }
    }
    ANONYMOUS.fetch_sub(1, Ordering::SeqCst);
}

/// Threads without a block that are reading a table or a plan.
static ANONYMOUS: AtomicU64 = AtomicU64::new(0);

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
        top != 0 && address <= top && top.wrapping_sub(address) <= elsewhere::STACK
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

/// Tells whether calls that run no hooks now are counted as missed.
#[inline(always)]
fn is_counted(block: &Block) -> bool {
    block.inside.load(Ordering::Relaxed) != MUTED && block.silent.load(Ordering::Relaxed) == 0
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

/// Adds one to the counter of a hook.
///
/// # Safety
///
/// The slot is one of a plan that lives.
#[inline(always)]
pub(crate) unsafe fn count(slot: *const Slot, why: Missed) {
    // SAFETY: the caller's promise; `missed` is null or the attacher's array.
    unsafe {
        let missed = (*slot).missed as *const AtomicU64;
        if !missed.is_null() {
            (*missed.wrapping_add(why as usize)).fetch_add(1, Ordering::Relaxed);
        }
    }
}

/// Counts a call without hooks, once for each of the function's hooks. At a return, for which
/// `entered` is the number of the newest attachment when the call began: for exit hooks that were
/// there then. Sessions have run or were counted at entry.
///
/// # Safety
/// `meta` is a function's, `block` null or that of the task, which is inside a hook, or counted, so
/// that the plan is not freed meanwhile.
#[inline(always)]
pub(crate) unsafe fn missed(
    block: *const Block,
    meta: *const Meta,
    entered: Option<u64>,
    why: Missed,
) {
    // SAFETY: blocks live for ever; metadata too, and the plan by the caller's promise.
    unsafe {
        if !block.is_null() && !is_counted(&*block) {
            return;
        }
        let plan = (*meta).plan.load(Ordering::Acquire);
        let mod_end = (*plan).mod_end;
        let mut slot = if entered.is_some() {
            mod_end
        } else {
            (plan as u64).wrapping_add(size_of::<Plan>() as u64)
        };
        while slot < (*plan).exit_end {
            let s = slot as *const Slot;
            // A session has a slot on both sides, and is one hook.
            let counts = match entered {
                Some(seq) => (*s).session < 0 && (*s).seq <= seq,
                None => slot < mod_end || (*s).session < 0,
            };
            if counts {
                count(s, why);
            }
            slot = slot.wrapping_add(size_of::<Slot>() as u64);
        }
    }
}

/// Counts a call that a thread makes from inside a hook. `meta` is null for compiled-in sites,
/// which are known by `ret`.
///
/// # Safety
/// The block is the calling thread's and marked; `meta` is null or a function's.
#[inline(always)]
pub(crate) unsafe fn missed_inside(block: &Block, ret: u64, meta: *const Meta) {
    // Nobody waits for a thread that is muted before a table or a plan is freed: it must not look
    // there.
    if !is_counted(block) {
        return;
    }
    // SAFETY: the thread is inside a hook, so neither is freed.
    unsafe {
        let meta = if meta.is_null() { Table::find(ret) } else { meta };
        if !meta.is_null() {
            missed(block, meta, None, Missed::Inside);
        }
    }
}

/// The trampolines' way out at a function's entry, for a thread that is inside something: the block
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

/// The exit trampolines' way out after the function; `block` may be null, `seq` is that of the
/// newest attachment at entry.
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
    // Who has no block shows in none that the plan is in use.
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
    let mut chunk = CHUNKS.load(Ordering::Acquire);
    while !chunk.is_null() {
        // SAFETY: chunks are never unmapped, and all fields are atomic.
        let (blocks, next) = unsafe { (&(*chunk).blocks, (*chunk).next.load(Ordering::Acquire)) };
        for block in blocks {
            all &= outside(block, rounds, |tid| sys::tgkill(tid, 0));
        }
        chunk = next;
    }
    let sharers = SHARERS.load(Ordering::Acquire);
    if !sharers.is_null() {
        // SAFETY: as above.
        for block in unsafe { &(*sharers).blocks } {
            // Those may belong to another process.
            all &= outside(block, rounds, |tid| sys::tkill(tid, 0));
        }
    }
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

/// Makes the blocks right in a forked child: the calling thread is the only one, under another id.
///
/// # Safety
/// That is so: no other thread is inside a hook.
#[unsafe(link_section = ".text.skep_event")]
#[inline(never)]
pub(crate) unsafe extern "C" fn after_fork() {
    let me = own();
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

/// Mutes the calling thread: until the guard is dropped, hooked functions that it calls run no
/// hooks, and nobody counts them as missed. For the tracer's own work inside the traced process.
/// May be nested.
pub fn mute() -> Muted {
    let block = if own().is_null() { register() } else { current() };
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
        let block = current();
        if block.is_null() {
            return;
        }
        // SAFETY: blocks are never unmapped.
        unsafe {
            match self.how {
                How::Nothing => {}
                How::Muted => (*block).inside.store(0, Ordering::Release),
                How::Silenced => (*block).silent.store(
                    (*block).silent.load(Ordering::Relaxed).saturating_sub(1),
                    Ordering::Relaxed,
                ),
            }
        }
    }
}
