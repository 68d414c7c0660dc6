//! Side frames: in memory of ours, in place of a trampoline's frame. How registers get in and out.
//!
//! Part of the event path.

use crate::frame::{Frame, MAX_SESSIONS as SESSIONS};
use crate::hook_list::Meta;
use crate::per_thread::block::Block;
use crate::{sandbox, sys};
use std::mem::{offset_of, size_of};
use std::sync::atomic::{AtomicPtr, Ordering};

/// The registers that the trampolines save: those of the call, or of the return. Only offsets
/// count, as the stack may not be aligned.
#[repr(C)]
pub(crate) struct Saved {
    pub(super) rdi: u64,
    pub(super) rsi: u64,
    pub(super) rdx: u64,
    pub(super) rcx: u64,
    pub(super) r8: u64,
    pub(super) r9: u64,
    pub(super) rax: u64,
    pub(super) r10: u64,
    pub(super) r11: u64,
    pub(super) rbx: u64,
    pub(super) rbp: u64,
    pub(super) r12: u64,
    pub(super) r13: u64,
    pub(super) r14: u64,
    pub(super) r15: u64,
}

/// A call of a function with exit hooks: what a trampoline's frame would have. The trampolines know
/// where the [`Frame`] is.
#[repr(C)]
pub(crate) struct SideFrame {
    pub(super) frame: Frame,
    /// Number of the newest attachment at entry.
    pub(super) seq: u64,
    /// Bits of the session hooks that want the return.
    pub(super) sessions: u64,
    pub(super) ids: [u64; SESSIONS],
    pub(super) words: [u64; SESSIONS],
    /// Whether anything wants the return.
    pub(super) wanted: u64,
    /// Where the program's stack has our address while the function runs; 0: not in use.
    pub(super) at: u64,
    /// Whose list it came from; null while in a list. Who sets it to null may put the side into a
    /// list: the thread on which the call returns, or the owner, which finds that it never
    /// will.
    pub(super) owner: AtomicPtr<Block>,
    pub(super) next: *mut SideFrame,
}

/// A word on the program's stack, which may not be aligned. Volatile, as neighbors would be read
/// with vector registers.
#[repr(C, packed)]
struct Word(u64);

#[inline(always)]
pub(crate) unsafe fn load(at: u64) -> u64 {
    // SAFETY: the caller's: the word is there.
    unsafe { (at as *const Word).read_volatile().0 }
}

#[inline(always)]
pub(crate) unsafe fn store(at: u64, value: u64) {
    // SAFETY: the caller's: the word is there and may be written.
    unsafe { (at as *mut Word).write_volatile(Word(value)) }
}

/// Writes what hooks see.
#[inline(always)]
pub(crate) unsafe fn fill(side: *mut SideFrame, saved: *const Saved, cfa: u64, meta: *const Meta) {
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
pub(crate) unsafe fn arguments(side: *const SideFrame, saved: u64) {
    // SAFETY: the side frame is whole and ours, and `saved` are the registers that the trampoline is
    // about to load.
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
unsafe fn rest(side: *mut SideFrame, saved: *const Saved) {
    // SAFETY: the side frame is whole, aligned and ours, and `saved` is the trampoline's; words are
    // written one by one, or the compiler would use vector registers.
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

/// Writes the registers of the return.
#[inline(always)]
pub(crate) unsafe fn back(side: *mut SideFrame, saved: *const Saved) {
    // SAFETY: the side frame is whole, aligned and ours, and `saved` is the trampoline's; words are
    // written one by one, or the compiler would use vector registers.
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

/// Offset of the registers at return in a [`Frame`].
pub(crate) const AT_RETURN: usize = size_of::<Frame>() - 48;
