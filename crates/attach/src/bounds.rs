//! How far down a thread's stack goes.
//!
//! An exit trampoline keeps a frame of some 400 bytes while the function runs. A program that recurses deeply in small frames
//! would run out of stack that it would not have needed; so once a quarter of a thread's stack is in use, calls pass without
//! exit hooks, and are counted as missed. That leaves three quarters to the program itself.
//!
//! Part of the event path (a thread's first event comes here): raw system calls, no vector registers.

use crate::sys;
use std::mem::MaybeUninit;
use std::sync::atomic::{AtomicU64, Ordering};

/// Where on a stack exit trampolines make no frames: lowest address and length; 0, 0 when the stack is not known.
pub(crate) type Deep = (u64, u64);

/// Finds the stack that the calling thread is on.
#[inline(always)]
pub(crate) fn deep(rsp: u64) -> Deep {
    let Some((start, end)) = mapping(rsp) else { return (0, 0) };
    let thread = thread_pointer();
    let (low, top) = if thread > rsp && thread < end {
        // glibc and musl put a thread's control block at the top of its stack.
        (start, thread)
    } else if sys::gettid() == sys::getpid() {
        // The first thread's stack grows down as far as the limit says.
        let limit = stack_limit();
        if limit > 1 << 34 || limit < end.wrapping_sub(start) {
            return (0, 0);
        }
        (end.wrapping_sub(limit), end)
    } else {
        return (0, 0);
    };
    let size = top.wrapping_sub(low);
    (low, size.wrapping_sub(size >> 2))
}

#[inline(always)]
fn thread_pointer() -> u64 {
    let out: u64;
    // SAFETY: the first word of the thread control block is its own address.
    unsafe { std::arch::asm!("mov {}, qword ptr fs:[0]", out(reg) out, options(nostack, readonly, preserves_flags)) };
    out
}

#[inline(always)]
fn stack_limit() -> u64 {
    const PRLIMIT64: u64 = 302;
    const RLIMIT_STACK: u64 = 3;
    let limit: MaybeUninit<[AtomicU64; 2]> = MaybeUninit::uninit();
    let at = limit.as_ptr() as u64;
    // SAFETY: the kernel writes the two words of `struct rlimit`, and only if all is well are they read.
    unsafe {
        if sys::call(PRLIMIT64, [0, RLIMIT_STACK, 0, at, 0, 0]) != 0 {
            return u64::MAX;
        }
        (*(at as *const AtomicU64)).load(Ordering::Relaxed)
    }
}

/// The mapping around an address: by the ioctl of Linux 6.11, else not at all. Reading the text would cost a thread of a program
/// with many mappings more than the protection is worth.
#[inline(always)]
fn mapping(address: u64) -> Option<(u64, u64)> {
    /// `_IOWR('f', 17, struct procmap_query)`.
    const PROCMAP_QUERY: u64 = 0xc068_6611;
    const IOCTL: u64 = 16;
    const WORDS: usize = 13;
    let query: MaybeUninit<[AtomicU64; WORDS]> = MaybeUninit::uninit();
    let at = query.as_ptr() as u64;
    // SAFETY: only atomic stores to the words of `query`, through its address.
    let word = |n: usize| unsafe { &*((at as usize).wrapping_add(n.wrapping_mul(8)) as *const AtomicU64) };
    let mut n = 0;
    while n < WORDS {
        // One by one: atomic stores are not merged into vector stores.
        word(n).store(0, Ordering::Relaxed);
        n = n.wrapping_add(1);
    }
    word(0).store((WORDS * 8) as u64, Ordering::Relaxed);
    word(2).store(address, Ordering::Relaxed);
    let fd = sys::open_maps();
    if fd < 0 {
        return None;
    }
    // SAFETY: the kernel writes into `query`, whose size it was told.
    let got = unsafe { sys::call(IOCTL, [fd as u64, PROCMAP_QUERY, at, 0, 0, 0]) };
    sys::close(fd);
    if got != 0 {
        return None;
    }
    Some((word(3).load(Ordering::Relaxed), word(4).load(Ordering::Relaxed)))
}

#[cfg(test)]
mod tests {
    #![allow(clippy::print_stdout, reason = "a skipped test says so")]
    use super::*;

    /// The bounds are those of the mappings that the kernel shows as text, for a thread and for the first thread.
    #[test]
    fn bounds_of_a_thread() {
        let here = 0u8;
        let rsp = &raw const here as u64;
        let (low, len) = deep(rsp);
        if len == 0 {
            println!("skipped: needs PROCMAP_QUERY");
            return;
        }
        let maps = std::fs::read_to_string("/proc/self/maps").expect("maps");
        let mut ranges = maps.lines().filter_map(|l| {
            let (start, end) = l.split_once(' ')?.0.split_once('-')?;
            Some(u64::from_str_radix(start, 16).ok()?..u64::from_str_radix(end, 16).ok()?)
        });
        let own = ranges.find(|r| r.contains(&rsp)).expect("the stack is mapped");
        assert_eq!(low, own.start);
        assert!(low + len < rsp && rsp < own.end);
        assert!(len * 4 / 3 <= own.end - own.start);
    }
}
