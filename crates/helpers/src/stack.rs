//! Stack traces of the traced program: from its registers along the chain of frame pointers.
//!
//! Code without frame pointers shortens or bends a trace, as it does in the kernel's. Memory is
//! read by a system call that cannot fault. There is no kernel stack here: asking for one answers
//! `-EFAULT`, as the kernel does when it has none.

use std::mem::MaybeUninit;

use skep_isa::ctx::{pt_regs, tracing as frame};

use super::memory::zero;
use super::{errno, fail};

/// Most entries of a trace (`kernel.perf_event_max_stack`).
pub(super) const DEPTH: usize = 127;
const SKIP: u64 = 0xff;
const USER_STACK: u64 = 1 << 8;
const USER_BUILD_ID: u64 = 1 << 11;
/// Words of stack that are read at once.
const WINDOW: usize = 64;

/// Where a trace begins.
#[derive(Clone, Copy)]
pub(super) struct Start {
    ip: u64,
    bp: u64,
    /// Address of the return address, when the function has not made its frame yet.
    sp: u64,
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
                Self { ip: (sp as *const u64).read_volatile(), bp, sp: 0 }
            } else {
                Self { ip: word(frame::IP), bp, sp }
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
        Self { ip: word(pt_regs::IP), bp: word(pt_regs::BP), sp: 0 }
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
            if hidden(frame::IP) != 0
                && hidden(frame::IS_RETURN) == 0
                && hidden(frame::IP) == start.ip
            {
                start.sp = ((ctx + u64::from(pt_regs::SP)) as *const u64).read_volatile();
            }
            start
        }
    }
}

/// A piece of the stack, read at once.
///
/// The words lie apart: in a structure whose other fields begin as zero, the compiler may call
/// memset for all of it.
struct Window<'a> {
    words: &'a mut MaybeUninit<[u64; WINDOW]>,
    at: u64,
    len: u64,
}

impl Window<'_> {
    /// Reads a word; `None` where nothing is.
    fn word(&mut self, at: u64) -> Option<u64> {
        const PAGE: u64 = 4096;
        if at & 7 != 0 {
            return None;
        }
        if at < self.at || at - self.at >= self.len {
            let len = (PAGE - at % PAGE).min(WINDOW as u64 * 8);
            // SAFETY: `len` bytes fit.
            if unsafe { super::probe::read(self.words.as_mut_ptr() as u64, len, at, 0, 0) } != 0 {
                self.len = 0;
                return None;
            }
            (self.at, self.len) = (at, len);
        }
        // SAFETY: inside what was read.
        Some(unsafe {
            self.words.as_ptr().cast::<u64>().byte_add((at - self.at) as usize).read_volatile()
        })
    }
}

/// Calls `put` with each address of the trace, at most `most` times; returns how many there were.
pub(super) fn walk(start: Start, most: usize, mut put: impl FnMut(usize, u64)) -> usize {
    let mut words = MaybeUninit::uninit();
    let mut window = Window { words: &mut words, at: 0, len: 0 };
    let mut count = 0;
    let mut push = |ip: u64| {
        if count < most {
            put(count, ip);
            count += 1;
        }
        count < most
    };
    if !push(start.ip) {
        return count;
    }
    if start.sp != 0 {
        match window.word(start.sp) {
            Some(ip) if push(ip) => {}
            _ => return count,
        }
    }
    let mut bp = start.bp;
    // The kernel follows the chain wherever it leads, as far as the trace is long.
    while let (Some(next), Some(ip)) = (window.word(bp), window.word(bp.wrapping_add(8))) {
        if ip == 0 || !push(ip) {
            break;
        }
        bp = next;
    }
    count
}

/// `bpf_get_stack` from wherever.
///
/// # Safety
/// `to` is writable for `size` bytes.
unsafe fn get(start: Option<Start>, to: u64, size: u64, flags: u64) -> u64 {
    let size = size & 0xffff_ffff;
    let skip = (flags & SKIP) as usize;
    let most = ((size / 8) as usize + skip).min(DEPTH);
    let error = if flags & !(SKIP | USER_STACK | USER_BUILD_ID) != 0
        || (flags & USER_BUILD_ID != 0 && flags & USER_STACK == 0)
    {
        errno::EINVAL
    } else if flags & USER_BUILD_ID != 0 {
        errno::EOPNOTSUPP
    } else if !size.is_multiple_of(8) {
        errno::EINVAL
    } else {
        match start.filter(|_| flags & USER_STACK != 0) {
            None => errno::EFAULT,
            Some(start) => {
                let store = |i: usize, ip: u64| {
                    if i >= skip {
                        // SAFETY: i - skip < size / 8.
                        unsafe { (to as *mut u64).add(i - skip).write_unaligned(ip) };
                    }
                };
                let count = walk(start, most, store);
                if count < skip {
                    errno::EFAULT
                } else {
                    let len = ((count - skip) * 8) as u64;
                    // SAFETY: the caller's promise.
                    unsafe { zero(to + len, size - len) };
                    return len;
                }
            }
        }
    };
    // SAFETY: the caller's promise.
    unsafe { zero(to, size) };
    fail(error)
}

/// `bpf_get_stackid` from wherever: the number of the trace in a map of traces.
///
/// # Safety
/// `handle` is a map.
unsafe fn id(start: Option<Start>, handle: u64, flags: u64) -> u64 {
    const FAST_STACK_CMP: u64 = 1 << 9;
    const REUSE_STACKID: u64 = 1 << 10;
    if flags & !(SKIP | USER_STACK | FAST_STACK_CMP | REUSE_STACKID) != 0 {
        return fail(errno::EINVAL);
    }
    let Some(start) = start.filter(|_| flags & USER_STACK != 0) else { return fail(errno::EFAULT) };
    let skip = (flags & SKIP) as usize;
    let mut addresses = MaybeUninit::<[u64; DEPTH]>::uninit();
    let at = addresses.as_mut_ptr().cast::<u64>();
    // SAFETY: `walk` puts less than DEPTH addresses; those behind the skipped ones are the trace.
    unsafe {
        let count = walk(start, DEPTH, |i, ip| at.add(i).write_volatile(ip));
        if count <= skip {
            return fail(errno::EFAULT);
        }
        super::map::map(handle).stack_id(at.add(skip), (count - skip) as u64, flags) as u64
    }
}

/// Both helpers for programs whose traces begin in one way.
macro_rules! beginning {
    ($get:ident, $id:ident, $ctx:ident => $start:expr) => {
        pub(super) unsafe extern "C" fn $get(
            $ctx: u64,
            to: u64,
            size: u64,
            flags: u64,
            _: u64,
        ) -> u64 {
            // SAFETY: the verifier proved argument 1 the context of the program and `to` writable
            // for `size` bytes.
            unsafe { get($start, to, size, flags) }
        }

        pub(super) unsafe extern "C" fn $id(
            $ctx: u64,
            handle: u64,
            flags: u64,
            _: u64,
            _: u64,
        ) -> u64 {
            // SAFETY: the verifier proved argument 1 the context of the program and argument 2 a
            // map.
            unsafe { id($start, handle, flags) }
        }
    };
}

beginning!(get_of_frame, id_of_frame, ctx => Start::of_frame(ctx));
beginning!(get_of_probe, id_of_probe, ctx => Some(Start::of_probe(ctx)));
beginning!(get_of_registers, id_of_registers, ctx => Some(Start::of_registers(ctx)));
// Contexts that say nothing of where the traced program was.
beginning!(get_of_nothing, id_of_nothing, _ctx => None);

#[cfg(test)]
mod tests {
    use super::*;

    /// Registers of a chain of three frames, the last of which leads nowhere.
    fn chain(frames: &mut [u64; 6]) -> Vec<u64> {
        let at = |i: usize, f: &[u64; 6]| f.as_ptr() as u64 + i as u64 * 8;
        *frames = [at(2, frames), 0x1001, at(4, frames), 0x1002, 8, 0x1003];
        let mut regs = vec![0; pt_regs::SIZE as usize / 8];
        regs[pt_regs::IP as usize / 8] = 0x1000;
        regs[pt_regs::BP as usize / 8] = frames.as_ptr() as u64;
        regs
    }

    fn get(regs: &[u64], size: usize, flags: u64) -> (i64, Vec<u64>) {
        let mut out = vec![0x55; size.div_ceil(8)];
        // SAFETY: registers and buffer are there.
        let r = unsafe {
            get_of_registers(regs.as_ptr() as u64, out.as_mut_ptr() as u64, size as u64, flags, 0)
        };
        (r as i64, out)
    }

    #[test]
    fn a_trace_follows_the_frame_pointers() {
        let mut frames = [0; 6];
        let regs = chain(&mut frames);
        assert_eq!(get(&regs, 48, USER_STACK), (32, vec![0x1000, 0x1001, 0x1002, 0x1003, 0, 0]));
        assert_eq!(get(&regs, 16, USER_STACK), (16, vec![0x1000, 0x1001]));
        assert_eq!(get(&regs, 16, USER_STACK | 1), (16, vec![0x1001, 0x1002]));
        assert_eq!(get(&regs, 48, USER_STACK | 3), (8, vec![0x1003, 0, 0, 0, 0, 0]));
        assert_eq!(get(&regs, 48, USER_STACK | 4), (0, vec![0; 6]));
        assert_eq!(get(&regs, 0, USER_STACK), (0, vec![]));
    }

    #[test]
    fn what_cannot_be_answered_is_zeroed() {
        let mut frames = [0; 6];
        let regs = chain(&mut frames);
        assert_eq!(get(&regs, 16, USER_STACK | 5), (-i64::from(errno::EFAULT), vec![0; 2]));
        assert_eq!(get(&regs, 16, 0), (-i64::from(errno::EFAULT), vec![0; 2]));
        assert_eq!(get(&regs, 16, USER_STACK | 1 << 9), (-i64::from(errno::EINVAL), vec![0; 2]));
        assert_eq!(get(&regs, 16, USER_BUILD_ID), (-i64::from(errno::EINVAL), vec![0; 2]));
        assert_eq!(
            get(&regs, 16, USER_STACK | USER_BUILD_ID),
            (-i64::from(errno::EOPNOTSUPP), vec![0; 2])
        );
        assert_eq!(get(&regs, 12, USER_STACK).0, -i64::from(errno::EINVAL));
    }

    #[test]
    fn a_chain_that_turns_in_circles_ends_with_the_buffer() {
        let mut frames = [0; 6];
        let mut regs = chain(&mut frames);
        frames[0] = regs[pt_regs::BP as usize / 8];
        std::hint::black_box(&mut frames);
        assert_eq!(get(&regs, 1 << 10, USER_STACK).0, DEPTH as i64 * 8);
        regs[pt_regs::BP as usize / 8] = 0x7fff_ffff_f000;
        assert_eq!(get(&regs, 16, USER_STACK), (8, vec![0x1000, 0]));
    }
}
