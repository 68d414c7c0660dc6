//! Where a thread's own stack is.
//!
//! Part of the event path (a thread's first event comes here): raw system calls, no vector registers.

use crate::sys;
use std::mem::MaybeUninit;
use std::sync::atomic::{AtomicU8, AtomicU64, Ordering};

/// Finds the stack that the calling thread was given: lowest address and end; (0, 0) when it is not known, or when `rsp` is not on
/// it.
#[inline(always)]
pub(crate) fn stack(rsp: u64) -> (u64, u64) {
    let Some((start, end)) = mapping(rsp) else { return (0, 0) };
    let thread = thread_pointer();
    if thread > rsp && thread < end {
        // glibc and musl put a thread's control block at the top of its stack.
        return (start, thread & !15);
    }
    if sys::gettid() != sys::getpid() {
        return (0, 0);
    }
    // The first thread's stack grows down as far as the limit says.
    let limit = stack_limit();
    if limit > 1 << 34 || limit < end.wrapping_sub(start) {
        return (0, 0);
    }
    (end.wrapping_sub(limit) & !15, end)
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

/// The mapping around an address: by the ioctl of Linux 6.11, else by reading the text.
#[inline(always)]
fn mapping(address: u64) -> Option<(u64, u64)> {
    let fd = sys::open_maps();
    if fd < 0 {
        return None;
    }
    let found = query(fd, address).or_else(|| text(fd, address));
    // SAFETY: opened above.
    unsafe { sys::close(fd) };
    found
}

#[inline(always)]
fn query(fd: i64, address: u64) -> Option<(u64, u64)> {
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
    // SAFETY: the kernel writes into `query`, whose size it was told.
    let got = unsafe { sys::call(IOCTL, [fd as u64, PROCMAP_QUERY, at, 0, 0, 0]) };
    (got == 0).then(|| (word(3).load(Ordering::Relaxed), word(4).load(Ordering::Relaxed)))
}

#[inline(always)]
fn text(fd: i64, address: u64) -> Option<(u64, u64)> {
    let mut end = 0;
    let start = search(fd, address, &mut end);
    (end != 0).then_some((start, end))
}

/// Reads lines `START-END …` until the one around the address. `extern "C"`, as a function that might unwind would make its callers
/// call the panic handler.
#[inline(never)]
#[unsafe(link_section = ".text.skep_event")]
extern "C" fn search(fd: i64, address: u64, end: &mut u64) -> u64 {
    const READ: u64 = 0;
    // Small: the stack may be a goroutine's.
    const SIZE: u64 = 128;
    let buffer: MaybeUninit<[AtomicU8; SIZE as usize]> = MaybeUninit::uninit();
    let at = buffer.as_ptr() as u64;
    // In a line: the number being read, the one before the dash, and whether the rest is skipped.
    let (mut number, mut start, mut skip) = (0u64, 0u64, false);
    loop {
        // SAFETY: the kernel writes into `buffer`, whose size it is told.
        let got = unsafe { sys::call(READ, [fd as u64, at, SIZE, 0, 0, 0]) };
        if got <= 0 {
            return 0;
        }
        let mut n = 0;
        while n < got as u64 {
            // SAFETY: one of the bytes that were just read.
            let byte = unsafe { (*(at.wrapping_add(n) as *const AtomicU8)).load(Ordering::Relaxed) };
            n = n.wrapping_add(1);
            match byte {
                b'\n' => (number, skip) = (0, false),
                _ if skip => {}
                b'-' => (start, number) = (number, 0),
                b' ' if start <= address && address < number => {
                    *end = number;
                    return start;
                }
                b' ' => skip = true,
                _ => {
                    let digit = if byte > b'9' { byte.wrapping_sub(b'a').wrapping_add(10) } else { byte.wrapping_sub(b'0') };
                    number = number << 4 | u64::from(digit & 15);
                }
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The bounds are those of the mappings that the kernel shows as text, and both ways of asking say the same.
    #[test]
    fn bounds_of_a_thread() {
        let here = 0u8;
        let rsp = &raw const here as u64;
        let (low, top) = stack(rsp);
        let maps = std::fs::read_to_string("/proc/self/maps").expect("maps");
        let mut ranges = maps.lines().filter_map(|l| {
            let (start, end) = l.split_once(' ')?.0.split_once('-')?;
            Some(u64::from_str_radix(start, 16).ok()?..u64::from_str_radix(end, 16).ok()?)
        });
        let own = ranges.find(|r| r.contains(&rsp)).expect("the stack is mapped");
        assert_eq!(low, own.start);
        assert!(own.contains(&top) && rsp < top && top - rsp < 1 << 16);
        let fd = sys::open_maps();
        assert_eq!(text(fd, rsp), Some((own.start, own.end)));
        // SAFETY: opened above.
        unsafe { sys::close(fd) };
        let fd = sys::open_maps();
        assert_eq!(text(fd, 8), None);
        // SAFETY: opened above.
        unsafe { sys::close(fd) };
    }
}
