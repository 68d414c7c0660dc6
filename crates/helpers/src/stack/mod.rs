//! Stack traces of the traced program, from its registers: by the unwind tables of its modules
//! ([`walk`], [`modules`]), along the chain of frame pointers where there are none.
//!
//! Memory is read by a system call that cannot fault. There is no kernel stack here: asking for one
//! answers `-EFAULT`, as the kernel does when it has none.

mod modules;
mod walk;

use std::mem::MaybeUninit;

use super::memory::zero;
use super::{errno, fail};
pub use modules::{set_modules, set_own_code};
use walk::{Start, walk};

/// Most entries of a trace (`kernel.perf_event_max_stack`).
pub(super) const DEPTH: usize = 127;
const SKIP: u64 = 0xff;
const USER_STACK: u64 = 1 << 8;
const USER_BUILD_ID: u64 = 1 << 11;

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
    use skep_isa::ctx::pt_regs;

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
