//! From frame to frame.

use std::mem::MaybeUninit;

use skep_isa::ctx::{pt_regs, tracing as frame};
use skep_proc::unwind::{Memory, Registers, Step};

use super::modules;
use crate::probe;

/// Where a trace begins.
#[derive(Clone, Copy)]
pub(super) struct Start {
    at: Registers,
    /// The function has not made its frame yet: the return address is on top of the stack.
    is_entry: bool,
}

impl Start {
    /// Takes the registers of a tracing program's frame; `None` for a test run, which has none.
    ///
    /// # Safety
    /// `ctx` is the context of a tracing program.
    pub(super) unsafe fn of_frame(ctx: u64) -> Option<Self> {
        let ctx = ctx as *const u64;
        // SAFETY: every such context has the words below it; one whose function has an address is a
        // trampoline's frame.
        unsafe {
            if ctx.byte_offset(frame::IP as isize).read_volatile() == 0 {
                return None;
            }
            let word = |at: i32| ctx.byte_offset(at as isize).read_volatile();
            let (bp, sp) = (word(frame::BP), word(frame::SP));
            // At return the function is over: the trace begins where it was called.
            Some(if word(frame::IS_RETURN) != 0 {
                let ip = (sp as *const u64).read_volatile();
                let at = Registers { ip, sp: sp.wrapping_add(8), bp, is_return: true };
                Self { at, is_entry: false }
            } else {
                let at = Registers { ip: word(frame::IP), sp, bp, is_return: false };
                Self { at, is_entry: true }
            })
        }
    }

    /// Takes the registers in `struct pt_regs`.
    ///
    /// # Safety
    /// `ctx` is readable for it.
    pub(super) unsafe fn of_registers(ctx: u64) -> Self {
        // SAFETY: the caller's promise.
        let word = |off: u32| unsafe { ((ctx + u64::from(off)) as *const u64).read_volatile() };
        let (ip, sp, bp) = (word(pt_regs::IP), word(pt_regs::SP), word(pt_regs::BP));
        Self { at: Registers { ip, sp, bp, is_return: false }, is_entry: false }
    }

    /// As [`Start::of_registers`], for a context of our own hooks, which may be at a function's
    /// first instruction.
    ///
    /// # Safety
    /// As above, with the hidden words below it.
    pub(super) unsafe fn of_probe(ctx: u64) -> Self {
        // SAFETY: the caller's promise.
        unsafe {
            let hidden = |off: i32| (ctx as *const u64).byte_offset(off as isize).read_volatile();
            let mut start = Self::of_registers(ctx);
            if hidden(frame::IP) != 0 {
                let is_return = hidden(frame::IS_RETURN) != 0;
                start.at.is_return = is_return;
                start.is_entry = !is_return && hidden(frame::IP) == start.at.ip;
            }
            start
        }
    }
}

/// `N` words of memory, read at once.
///
/// The words lie apart: in a structure whose other fields begin as zero, the compiler may call
/// memset for all of it.
struct Window<'a, const N: usize> {
    words: &'a mut MaybeUninit<[u64; N]>,
    at: u64,
    len: u64,
}

impl<'a, const N: usize> Window<'a, N> {
    fn new(words: &'a mut MaybeUninit<[u64; N]>) -> Self {
        Self { words, at: 0, len: 0 }
    }

    /// Has the bytes from `at` on to the end of the window or their page; `false` where nothing is.
    fn load(&mut self, at: u64) -> bool {
        const PAGE: u64 = 4096;
        let len = (PAGE - at % PAGE).min(N as u64 * 8);
        // SAFETY: `len` bytes fit.
        let read = unsafe { probe::copy(self.words.as_mut_ptr() as u64, at, len) };
        (self.at, self.len) = (at, read);
        read != 0
    }
}

impl<const N: usize> Memory for Window<'_, N> {
    fn number(&mut self, addr: u64, size: u64) -> Option<u64> {
        let from = self.words.as_ptr().cast::<u8>();
        let at = addr.wrapping_sub(self.at);
        if size == 8 && self.len >= 8 && at <= self.len - 8 {
            // SAFETY: inside what was read.
            return Some(unsafe { from.add(at as usize).cast::<u64>().read_unaligned() });
        }
        let mut value = 0;
        for i in 0..size {
            let at = addr.checked_add(i)?;
            if at.wrapping_sub(self.at) >= self.len && !self.load(at) {
                return None;
            }
            // SAFETY: inside what was read.
            let byte = unsafe { from.add(at.wrapping_sub(self.at) as usize).read_volatile() };
            value |= u64::from(byte) << (i * 8);
        }
        Some(value)
    }
}

/// Most frames that are looked at, those of hooks among them.
const STEPS: usize = 4 * super::DEPTH;

/// Calls `put` with each address of the trace, at most `most` times; returns how many there were.
pub(super) fn walk(start: Start, most: usize, mut put: impl FnMut(usize, u64)) -> usize {
    let (mut stack, mut tables) = (MaybeUninit::uninit(), MaybeUninit::uninit());
    let mut stack = Window::<64>::new(&mut stack);
    let mut tables = Window::<16>::new(&mut tables);
    let mut count = 0;
    let mut push = |ip: u64| {
        if count < most {
            put(count, ip);
            count += 1;
        }
        count < most
    };
    if !push(start.at.ip) {
        return count;
    }
    let mut at = start.at;
    // Tables tell of every place: also of those inside functions that have hooks.
    if start.is_entry && modules::step(&mut tables, at.place()) == Step::UNKNOWN {
        match stack.number(at.sp, 8) {
            Some(ip) if modules::is_own(ip.wrapping_sub(1)) || push(ip) => {
                at = Registers { ip, sp: at.sp.wrapping_add(8), bp: at.bp, is_return: true };
            }
            _ => return count,
        }
    }
    for _ in 0..STEPS {
        let (step, is_own) = (modules::step(&mut tables, at.place()), modules::is_own(at.place()));
        let known = !is_own || step != Step::UNKNOWN;
        let Some(caller) = step.take(&mut stack, at).filter(|_| known) else { break };
        at = caller;
        // Who called a function through a hook is the caller.
        if !modules::is_own(at.place()) && !push(at.ip) {
            break;
        }
    }
    count
}
