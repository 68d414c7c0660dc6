//! Events that do not happen on the comfortable part of the thread's own stack.
//!
//! Coroutines, signal handlers and other runtimes' threads have stacks as small as two kibibytes,
//! and a recursion comes near the end of any. There the trampolines leave everything to this
//! module, which takes some 300 bytes of the stack for itself, and for a function with exit hooks
//! leaves 64 bytes on it, and 8 more for each word of stack arguments. The rest of such a frame is
//! a [`Side`], in memory of our own.
//!
//! | where | hooks run | frame for the return |
//! |---|---|---|
//! | own stack, upper quarter | in the trampoline | the trampoline's |
//! | own stack, second quarter | here | a `Side` |
//! | own stack, lower half | here | none: see [`Hook::without_return`](crate::Hook) |
//! | own stack, nearly used up | here, on a stack of ours | none |
//! | any other stack | here, on a stack of ours | a `Side` |
//!
//! So hooks take at most half of a thread's stack, and the frames of one function at one place are
//! all alike.
//!
//! From the thread's mark to the end of an event that needs a stack of ours, signals wait: a
//! handler may switch to another coroutine, or look where its thread's stack is.
//!
//! Part of the event path: no allocation, no locks, no libc, no vector registers.

use crate::frame::{Frame, UNTYPED_ARGS};
use crate::guard::{self, Block};
use crate::hook::Missed;
use crate::table::Table;
use crate::tramp::{self, MAX_TAILS, Meta, Plan, Slot};
use crate::{process, sandbox, sys};
use std::mem::{offset_of, size_of};
use std::ptr;
use std::sync::atomic::{AtomicPtr, Ordering, compiler_fence};

/// The registers that the trampolines save: those of the call, or of the return. Only offsets
/// count, as the stack may not be aligned.
#[repr(C)]
pub(crate) struct Saved {
    rdi: u64,
    rsi: u64,
    rdx: u64,
    rcx: u64,
    r8: u64,
    r9: u64,
    rax: u64,
    r10: u64,
    r11: u64,
    rbx: u64,
    rbp: u64,
    r12: u64,
    r13: u64,
    r14: u64,
    r15: u64,
}

/// A call of a function with exit hooks: what a trampoline's frame would have. The trampolines know
/// where the [`Frame`] is.
#[repr(C)]
pub(crate) struct Side {
    frame: Frame,
    /// Number of the newest attachment at entry.
    seq: u64,
    /// Bits of the session hooks that want the return.
    sessions: u64,
    ids: [u64; SESSIONS],
    words: [u64; SESSIONS],
    /// Whether anything wants the return.
    wanted: u64,
    /// Where the program's stack has our address while the function runs; 0: not in use.
    at: u64,
    /// Whose list it came from; null while in a list. Who sets it to null may put the side into a
    /// list: the thread on which the call returns, or the owner, which finds that it never
    /// will.
    owner: AtomicPtr<Block>,
    next: *mut Side,
}

const SESSIONS: usize = tramp::SESSIONS;

/// Memory full of sides.
#[repr(C)]
struct Sides {
    next: *mut Sides,
    _pad: u64,
    sides: [Side; IN_CHUNK],
}

const IN_CHUNK: usize = 48;
/// Most chunks of a thread: some fifty thousand calls at once.
const MAX_CHUNKS: u64 = 1024;

/// Size of the stack that hooks run on, and of the guard below it.
pub(crate) const STACK: u64 = 128 << 10;
const GUARD: u64 = 4096;

/// What the trampoline is told after a call.
const NO_FRAME: u64 = 0;
const LEFT_OUT: u64 = 1;

/// A word on the program's stack, which may not be aligned. Volatile, as neighbors would be read
/// with vector registers.
#[repr(C, packed)]
struct Word(u64);

#[inline(always)]
unsafe fn load(at: u64) -> u64 {
    // SAFETY: the caller's: the word is there.
    unsafe { (at as *const Word).read_volatile().0 }
}

#[inline(always)]
unsafe fn store(at: u64, value: u64) {
    // SAFETY: the caller's: the word is there and may be written.
    unsafe { (at as *mut Word).write_volatile(Word(value)) }
}

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
    let least = if size >> 3 < NEARLY { size >> 3 } else { NEARLY };
    Place { switch: left < least && sandbox::may_call_system(), frame: left >= size >> 1 }
}

/// A stack with less room is nearly used up.
const NEARLY: u64 = 64 << 10;

/// Comes from entry trampolines. `meta` is null for compiled-in sites, which are known by `ret`.
#[unsafe(link_section = ".text.skep_event")]
pub(crate) unsafe extern "C" fn entry(saved: *const Saved, cfa: u64, ret: u64, meta: *const Meta) {
    let block = guard::own();
    if block.is_null() {
        return;
    }
    // SAFETY: blocks and metadata live for ever, this block is the thread's; `saved` is the
    // trampoline's.
    unsafe { around(&*block, saved, cfa, (ret, meta), false) };
}

/// Comes from exit trampolines: 0 to go on in the body, 1 to return with the registers as they are
/// then in `saved`, else the [`Side`] of the call.
#[unsafe(link_section = ".text.skep_event")]
pub(crate) unsafe extern "C" fn call(saved: *mut Saved, cfa: u64, meta: *const Meta) -> u64 {
    let block = guard::own();
    if block.is_null() {
        return NO_FRAME;
    }
    // SAFETY: as in `entry`.
    unsafe { around(&*block, saved, cfa, (0, meta), true) }
}

/// Holds signals back where hooks run on a stack of ours: the mask before, if it was changed. A
/// handler that switches to another coroutine would leave the block and the side to it as they are
/// in between. Those of faults are let through where the C library holds all back.
#[inline(always)]
fn hold_signals(block: &Block, sp: u64) -> Option<u64> {
    let held = place(block, sp).switch.then(sys::block_signals);
    if block.blocked.load(Ordering::Relaxed) == 0 || !sandbox::may_call_system() {
        return held;
    }
    let found = sys::let_faults_through();
    if found == 0 {
        return held;
    }
    // They were blocked. The library sets the whole mask when it is done, so they need not be
    // again, and the other events are as usual; a child in this memory says nothing of the
    // thread that made it.
    if process::is_own() {
        guard::set_blocked(false);
    }
    held.map(|mask| mask & !found)
}

/// What stands around everything: signals, and whose block it is.
///
/// # Safety
/// The block is the one of thread-local storage, the rest what a trampoline gave.
#[inline(always)]
unsafe fn around(
    block: &Block,
    saved: *const Saved,
    cfa: u64,
    (ret, meta): (u64, *const Meta),
    exits: bool,
) -> u64 {
    let sp = saved as u64;
    let mask = hold_signals(block, sp);
    // SAFETY: passed on; signals are blocked where it is another stack.
    let outcome = unsafe {
        let task = if block.has(sp) {
            ptr::from_ref(block)
        } else {
            guard::of_task(ptr::from_ref(block).cast_mut()).cast_const()
        };
        if task.is_null() {
            guard::missed_without_block(ret, meta, None);
            NO_FRAME
        } else {
            before(&*task, saved, cfa, (ret, meta), exits)
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
    exits: bool,
) -> u64 {
    let sp = saved as u64;
    if !mark(block, sp) {
        // SAFETY: as this function.
        unsafe { guard::missed_inside(block, ret, meta) };
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
        unsafe { guard::missed(block, meta, None, Missed::Stack) };
        block.inside.store(0, Ordering::Relaxed);
        return NO_FRAME;
    }
    let mut place = place(block, sp);
    // SAFETY: `saved` is the trampoline's, `side` ours, and the return address is there until the
    // function returns.
    unsafe {
        fill(side, saved, cfa, meta);
        if exits && !tail(block, cfa) {
            place.frame = false;
        }
    }
    // SAFETY: as above; the walk is made for these arguments, and signals are blocked while it is
    // on our stack.
    unsafe {
        let flags = u64::from(exits) | u64::from(exits && place.frame) << 1;
        if place.switch {
            let top = stack(block);
            if top == 0 {
                guard::missed(block, meta, None, Missed::Stack);
            } else {
                block.inside.store(top, Ordering::Relaxed);
                outcome = tramp::switch(top, walk, side as u64, meta as u64, flags);
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

/// Marks the thread as inside: from here on nested events stay away, and neither table nor plan is
/// freed. `false` when it is inside already.
#[inline(always)]
fn mark(block: &Block, sp: u64) -> bool {
    let now = block.inside.load(Ordering::Relaxed);
    // Where signals cannot be held back, a handler may switch to a coroutine in between.
    guard::may_enter(block, sp)
        && block.inside.compare_exchange(now, sp, Ordering::SeqCst, Ordering::Relaxed).is_ok()
}

/// Tells whether a frame may be left: a chain of tail calls leaves one each, so after some there
/// are no more.
#[inline(always)]
unsafe fn tail(block: &Block, cfa: u64) -> bool {
    // SAFETY: the return address of the function that was called.
    let ret = unsafe { load(cfa.wrapping_sub(8)) };
    let tails =
        if tramp::is_exit(ret) { block.tails.load(Ordering::Relaxed).wrapping_add(1) } else { 0 };
    if tails > MAX_TAILS as u64 {
        return false;
    }
    block.tails.store(tails, Ordering::Relaxed);
    true
}

/// Writes what hooks see.
#[inline(always)]
unsafe fn fill(side: *mut Side, saved: *const Saved, cfa: u64, meta: *const Meta) {
    // SAFETY: both are whole, aligned and ours; words are written one by one, or the compiler would
    // use vector registers.
    unsafe {
        let frame = &raw mut (*side).frame;
        let word =
            |offset: usize, value: u64| frame.cast::<u64>().byte_add(offset).write_volatile(value);
        let of = |offset: usize| load((saved as u64).wrapping_add(offset as u64));
        word(offset_of!(Frame, session), 0);
        word(offset_of!(Frame, is_return), 0);
        word(offset_of!(Frame, ip), (*meta).ip);
        word(offset_of!(Frame, nr_args), (*meta).nr_args.load(Ordering::Relaxed));
        let args = offset_of!(Frame, args);
        word(args, of(offset_of!(Saved, rdi)));
        word(args.wrapping_add(8), of(offset_of!(Saved, rsi)));
        word(args.wrapping_add(16), of(offset_of!(Saved, rdx)));
        word(args.wrapping_add(24), of(offset_of!(Saved, rcx)));
        word(args.wrapping_add(32), of(offset_of!(Saved, r8)));
        word(args.wrapping_add(40), of(offset_of!(Saved, r9)));
        word(offset_of!(Frame, rax), of(offset_of!(Saved, rax)));
        word(offset_of!(Frame, rsp), cfa.wrapping_sub(8));
        rest(side, saved);
        if (*meta).wants.load(Ordering::Relaxed) != 0 {
            const WORDS: u64 = 6;
            let to = frame as u64;
            let local = [to.wrapping_add(args as u64).wrapping_add(48), WORDS.wrapping_mul(8)];
            let remote = [cfa, WORDS.wrapping_mul(8)];
            // The words may be beyond the end of the stack: the kernel copies what is there.
            if sandbox::may_call_system() {
                sys::copy_words(&local, &remote);
            }
        }
    }
}

/// Gives the function the arguments that are in the frame now: the agent's own hooks may have
/// changed them.
#[inline(always)]
unsafe fn arguments(side: *const Side, saved: u64) {
    // SAFETY: as in `fill`.
    unsafe {
        let args = (&raw const (*side).frame.args).cast::<u64>();
        let put = |offset: usize, n: usize| {
            store(saved.wrapping_add(offset as u64), args.wrapping_add(n).read_volatile())
        };
        put(offset_of!(Saved, rdi), 0);
        put(offset_of!(Saved, rsi), 1);
        put(offset_of!(Saved, rdx), 2);
        put(offset_of!(Saved, rcx), 3);
        put(offset_of!(Saved, r8), 4);
        put(offset_of!(Saved, r9), 5);
    }
}

/// The registers besides arguments and result.
#[inline(always)]
unsafe fn rest(side: *mut Side, saved: *const Saved) {
    // SAFETY: as in `fill`.
    unsafe {
        let frame = &raw mut (*side).frame;
        let word = |offset: usize, from: usize| {
            frame
                .cast::<u64>()
                .byte_add(offset)
                .write_volatile(load((saved as u64).wrapping_add(from as u64)));
        };
        word(offset_of!(Frame, r10), offset_of!(Saved, r10));
        word(offset_of!(Frame, r11), offset_of!(Saved, r11));
        word(offset_of!(Frame, rbx), offset_of!(Saved, rbx));
        word(offset_of!(Frame, rbp), offset_of!(Saved, rbp));
        word(offset_of!(Frame, r12), offset_of!(Saved, r12));
        word(offset_of!(Frame, r13), offset_of!(Saved, r13));
        word(offset_of!(Frame, r14), offset_of!(Saved, r14));
        word(offset_of!(Frame, r15), offset_of!(Saved, r15));
    }
}

/// Runs one hook.
#[inline(always)]
unsafe fn run(
    side: *mut Side,
    meta: *const Meta,
    slot: *const Slot,
    session: u64,
    cookie_bits: u64,
) -> u64 {
    // SAFETY: the slot is one of a plan that the thread's block keeps alive, and its words are
    // those of a hook and its cookie.
    unsafe {
        let frame = &raw mut (*side).frame;
        (&raw mut (*frame).session).write_volatile(session);
        let cookie = ((meta as u64).wrapping_add((*slot).cookie_at) as *const u64).read_volatile();
        (&raw mut (*frame).cookie).write_volatile(cookie | cookie_bits);
        let f: crate::hook::RunFn = std::mem::transmute::<u64, crate::hook::RunFn>((*slot).run);
        f((&raw mut (*frame).args).cast::<u64>(), (*slot).data as *const ())
    }
}

/// Walks a plan before the function, as the trampolines do. Bit 0 of `flags`: exit hooks count; bit
/// 1: a frame may be left.
#[unsafe(link_section = ".text.skep_event")]
#[inline(never)]
unsafe extern "C" fn walk(side: u64, meta: u64, flags: u64) -> u64 {
    let (side, meta) = (side as *mut Side, meta as *const Meta);
    let (exits, may_wait) = (flags & 1 != 0, flags & 2 != 0);
    // SAFETY: both are live; the plan is, as this thread's block is marked; indexes of sessions are
    // below SESSIONS.
    unsafe {
        let plan = (*meta).plan.load(Ordering::Acquire);
        let mut slot = (plan as u64).wrapping_add(size_of::<Plan>() as u64);
        let (entry_end, mod_end, exit_end) = ((*plan).entry_end, (*plan).mod_end, (*plan).exit_end);
        (&raw mut (*side).seq).write_volatile((*plan).seq);
        let mut sessions = 0u64;
        while slot < entry_end {
            let s = slot as *const Slot;
            let n = (*s).session;
            if n < 0 {
                run(side, meta, s, 0, 0);
            } else if may_wait {
                let n = n as usize;
                let word = (&raw mut (*side).words).cast::<u64>().wrapping_add(n);
                word.write_volatile(0);
                if run(side, meta, s, word as u64, 0) != 1 {
                    (&raw mut (*side).ids).cast::<u64>().wrapping_add(n).write_volatile((*s).seq);
                    sessions |= 1u64.wrapping_shl(n as u32);
                }
            } else if (*s).without_return != 0 {
                // What it leaves in its word nobody will see.
                let word = (&raw mut (*side).words).cast::<u64>();
                word.write_volatile(0);
                run(side, meta, s, word as u64, (*s).without_return);
            } else if exits {
                guard::count(s, Missed::Stack);
            }
            slot = slot.wrapping_add(size_of::<Slot>() as u64);
        }
        if !exits {
            return NO_FRAME;
        }
        (&raw mut (*side).sessions).write_volatile(sessions);
        if slot < mod_end {
            let args = (*side).frame.nr_args;
            // Below that a register of the call is still kept there.
            if args >= UNTYPED_ARGS as u64 {
                (&raw mut (*side).frame.args)
                    .cast::<u64>()
                    .wrapping_add(args as usize)
                    .write_volatile(0);
            }
            while slot < mod_end {
                let r = run(side, meta, slot as *const Slot, 0, 0);
                if r != 0 {
                    (&raw mut (*side).frame.rax).write_volatile(r);
                    let frame = (&raw mut (*side).frame).cast::<u64>();
                    let mut n = 0;
                    while n < 6 {
                        let at =
                            frame.byte_add(offset_of!(Frame, args)).wrapping_add(n).read_volatile();
                        frame.byte_add(AT_RETURN).wrapping_add(n).write_volatile(if n == 2 {
                            0
                        } else {
                            at
                        });
                        n = n.wrapping_add(1);
                    }
                    after(side, meta);
                    return LEFT_OUT;
                }
                slot = slot.wrapping_add(size_of::<Slot>() as u64);
            }
        }
        if mod_end == exit_end {
            return NO_FRAME;
        }
        if !may_wait {
            let mut s = mod_end;
            while s < exit_end {
                if (*(s as *const Slot)).session < 0 {
                    guard::count(s as *const Slot, Missed::Stack);
                }
                s = s.wrapping_add(size_of::<Slot>() as u64);
            }
            return NO_FRAME;
        }
        (&raw mut (*side).wanted).write_volatile(sessions | (*plan).exits);
    }
    side as u64
}

/// Offset of the registers at return in a [`Frame`].
const AT_RETURN: usize = size_of::<Frame>() - 48;

/// Runs exit hooks.
#[inline(always)]
unsafe fn after(side: *mut Side, meta: *const Meta) {
    // SAFETY: as in `walk`.
    unsafe {
        let frame = &raw mut (*side).frame;
        (&raw mut (*frame).is_return).write_volatile(1);
        let result = (&raw mut (*frame).args).cast::<u64>().wrapping_add((*frame).nr_args as usize);
        result.write_volatile((&raw const (*frame).rax).read_volatile());
        let plan = (*meta).plan.load(Ordering::Acquire);
        let (mut slot, end) = ((*plan).mod_end, (*plan).exit_end);
        while slot < end {
            let s = slot as *const Slot;
            let n = (*s).session;
            if n < 0 {
                if (*s).seq <= (*side).seq {
                    run(side, meta, s, 0, 0);
                }
            } else if (*side).sessions >> (n as u32 & 63) & 1 != 0 {
                let n = n as usize;
                if (&raw const (*side).ids).cast::<u64>().wrapping_add(n).read_volatile()
                    == (*s).seq
                {
                    run(
                        side,
                        meta,
                        s,
                        (&raw mut (*side).words).cast::<u64>().wrapping_add(n) as u64,
                        0,
                    );
                }
            }
            slot = slot.wrapping_add(size_of::<Slot>() as u64);
        }
    }
}

#[unsafe(link_section = ".text.skep_event")]
#[inline(never)]
unsafe extern "C" fn walk_after(side: u64, meta: u64, _: u64) -> u64 {
    // SAFETY: the caller's words are these.
    unsafe { after(side as *mut Side, meta as *const Meta) };
    0
}

/// Comes from exit trampolines when the function has returned.
#[unsafe(link_section = ".text.skep_event")]
pub(crate) unsafe extern "C" fn returned(saved: *const Saved, side: *mut Side, meta: *const Meta) {
    let block = guard::own();
    let sp = saved as u64;
    // SAFETY: blocks live for ever, and this is the thread's; the side is that of the call, of
    // which there is no other user.
    unsafe {
        if block.is_null() {
            (&raw mut (*side).at).write_volatile(1);
            return;
        }
        let mask = hold_signals(&*block, sp);
        let task = if (*block).has(sp) { block } else { guard::of_task(block) };
        if task.is_null() {
            if (&raw const (*side).wanted).read_volatile() != 0 {
                guard::missed_without_block(0, meta, Some((*side).seq));
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
unsafe fn finish(block: &Block, saved: *const Saved, side: *mut Side, meta: *const Meta) {
    // SAFETY: the caller's promise.
    unsafe {
        let sp = saved as u64;
        // A frame that belonged to a chain of tail calls: the next chain begins anew.
        block.tails.store(0, Ordering::Relaxed);
        let wanted = (&raw const (*side).wanted).read_volatile() != 0;
        if !mark(block, sp) {
            if wanted {
                guard::missed(block, meta, Some((*side).seq), Missed::Inside);
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
                    guard::missed(block, meta, Some((*side).seq), Missed::Stack);
                } else {
                    block.inside.store(top, Ordering::Relaxed);
                    tramp::switch(top, walk_after, side as u64, meta as u64, 0);
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

/// Writes the registers of the return.
#[inline(always)]
unsafe fn back(side: *mut Side, saved: *const Saved) {
    // SAFETY: as in `fill`.
    unsafe {
        let frame = (&raw mut (*side).frame).cast::<u64>();
        frame
            .byte_add(offset_of!(Frame, rax))
            .write_volatile(load((saved as u64).wrapping_add(offset_of!(Saved, rax) as u64)));
        let mut n = 0;
        while n < 6 {
            frame
                .byte_add(AT_RETURN)
                .wrapping_add(n)
                .write_volatile(load((saved as u64).wrapping_add((n as u64).wrapping_mul(8))));
            n = n.wrapping_add(1);
        }
        rest(side, saved);
    }
}

/// The end of the stack for this thread's hooks, mapped when it is first needed; 0 when there is no
/// memory.
#[inline(always)]
fn stack(block: &Block) -> u64 {
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
unsafe fn take(block: &Block) -> *mut Side {
    let mut filled = false;
    loop {
        let head = block.free_sides.load(Ordering::Acquire);
        let side = (head & ADDRESS) as *mut Side;
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
        if block.free_sides.compare_exchange(head, new, Ordering::AcqRel, Ordering::Relaxed).is_ok()
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
unsafe fn give_back(block: &Block, side: *mut Side) {
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
unsafe fn give(block: &Block, side: *mut Side) {
    loop {
        let head = block.free_sides.load(Ordering::Relaxed);
        // SAFETY: the caller's promise.
        unsafe { (&raw mut (*side).next).write_volatile((head & ADDRESS) as *mut Side) };
        let new = side as u64 | head & !ADDRESS;
        if block.free_sides.compare_exchange(head, new, Ordering::AcqRel, Ordering::Relaxed).is_ok()
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
    let chunks = block.side_chunks.load(Ordering::Relaxed);
    // SAFETY: chunks are never unmapped; the caller's promise covers the list.
    unsafe {
        // Each time the number has doubled, so that looking is not most of the work.
        if chunks >= MAX_CHUNKS || (chunks >= 2 && chunks & chunks.wrapping_sub(1) == 0) {
            let mut chunk = block.sides.load(Ordering::Relaxed).cast::<Sides>();
            while !chunk.is_null() {
                let mut n = 0;
                while n < IN_CHUNK {
                    let side = (&raw mut (*chunk).sides).cast::<Side>().wrapping_add(n);
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
            let found = block.free_sides.load(Ordering::Relaxed) & ADDRESS != 0;
            if found || chunks >= MAX_CHUNKS {
                return found;
            }
        }
        let Ok(memory) = sys::map(0, size_of::<Sides>() as u64, sys::PROT_READ | sys::PROT_WRITE)
        else {
            return false;
        };
        let chunk = memory as *mut Sides;
        loop {
            let first = block.sides.load(Ordering::Relaxed);
            (&raw mut (*chunk).next).write_volatile(first.cast());
            if block
                .sides
                .compare_exchange(first, chunk.cast(), Ordering::AcqRel, Ordering::Relaxed)
                .is_ok()
            {
                break;
            }
        }
        block.side_chunks.store(chunks.wrapping_add(1), Ordering::Relaxed);
        let mut n = 0;
        while n < IN_CHUNK {
            give(block, (&raw mut (*chunk).sides).cast::<Side>().wrapping_add(n));
            n = n.wrapping_add(1);
        }
        true
    }
}

/// Tells whether a side's call will never return: the word that it has on the program's stack is
/// gone.
#[inline(always)]
unsafe fn is_left(block: &Block, side: *const Side) -> bool {
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
