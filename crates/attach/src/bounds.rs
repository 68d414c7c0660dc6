//! Where a thread's own stack is.
//!
//! The first thread's is what the kernel calls `[stack]`, as far down as its limit allows. Another thread's ends below its thread control
//! block, where glibc and musl put that, and begins at a guard: a mapping without any access right below. Without a guard nobody can tell
//! whether memory further down is the stack or somebody else's (`pthread_attr_setstack` on a part of the heap, neighboring stacks
//! without guards, guards inside the mapping as of glibc 2.42): then the stack is not known, and hooks never run on it.
//!
//! Part of the event path (a thread's first event comes here): raw system calls, no vector registers.

use crate::sys;
use std::mem::MaybeUninit;
use std::sync::atomic::{AtomicU8, AtomicU64, Ordering};

/// The end of the first thread's stack; 0: not known.
static MAIN_END: AtomicU64 = AtomicU64::new(0);

/// How much of the first thread's stack is taken for it where the limit says nothing.
const UNLIMITED: u64 = 64 << 20;

/// Finds the end of the first thread's stack. Not on the event path.
pub(crate) fn learn() {
    let maps = std::fs::read_to_string("/proc/self/maps").unwrap_or_default();
    let line = maps.lines().find(|l| l.ends_with(" [stack]"));
    let end = line.and_then(|l| l.split_once(' ')?.0.split_once('-')).and_then(|(_, end)| u64::from_str_radix(end, 16).ok());
    MAIN_END.store(end.unwrap_or(0), Ordering::Relaxed);
}

/// Finds the stack that the calling thread was given, whatever stack it is on now: lowest address and end; (0, 0) when it is not
/// known.
#[inline(always)]
pub(crate) fn stack(rsp: u64) -> (u64, u64) {
    let first = sys::gettid() == sys::getpid();
    let main = if first { main_stack() } else { (0, 0) };
    if main.0 <= rsp && rsp < main.1 {
        return main;
    }
    let thread = thread_pointer();
    match mapping(thread) {
        // A child that another thread has forked is the first thread, too.
        Some(m) if m.guarded && (!first || (m.start <= rsp && rsp < thread)) => (m.start, thread & !15),
        _ => main,
    }
}

#[inline(always)]
fn main_stack() -> (u64, u64) {
    let end = MAIN_END.load(Ordering::Relaxed);
    let limit = stack_limit();
    let size = if limit > 1 << 34 { UNLIMITED } else { limit };
    if end <= size { (0, 0) } else { (end.wrapping_sub(size) & !15, end) }
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

/// A mapping.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
struct Mapping {
    start: u64,
    end: u64,
    /// Right below it is one without any access.
    guarded: bool,
}

/// The mapping around an address: by the ioctl of Linux 6.11, else by reading the text.
#[inline(always)]
fn mapping(address: u64) -> Option<Mapping> {
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
fn query(fd: i64, address: u64) -> Option<Mapping> {
    let (start, end, _) = ask(fd, address)?;
    let guarded = ask(fd, start.wrapping_sub(1)).is_some_and(|(_, _, access)| access == 0);
    Some(Mapping { start, end, guarded })
}

/// Start, end, and access as bits.
#[inline(always)]
fn ask(fd: i64, address: u64) -> Option<(u64, u64, u64)> {
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
    /// `PROCMAP_QUERY_VMA_{READABLE,WRITABLE,EXECUTABLE}`.
    const ACCESS: u64 = 7;
    (got == 0).then(|| (word(3).load(Ordering::Relaxed), word(4).load(Ordering::Relaxed), word(5).load(Ordering::Relaxed) & ACCESS))
}

#[inline(always)]
fn text(fd: i64, address: u64) -> Option<Mapping> {
    let mut found = Mapping { start: 0, end: 0, guarded: false };
    search(fd, address, &mut found);
    (found.end != 0).then_some(found)
}

/// Reads lines `START-END PERM …` until the one around the address. `extern "C"`, as a function that might unwind would make its callers
/// call the panic handler.
#[inline(never)]
#[unsafe(link_section = ".text.skep_event")]
extern "C" fn search(fd: i64, address: u64, found: &mut Mapping) {
    const READ: u64 = 0;
    // Small: the stack may be a goroutine's.
    const SIZE: u64 = 128;
    let buffer: MaybeUninit<[AtomicU8; SIZE as usize]> = MaybeUninit::uninit();
    let at = buffer.as_ptr() as u64;
    // In a line: the number being read, the one before the dash, and how far behind the numbers we are, from 1.
    let (mut number, mut start, mut behind) = (0u64, 0u64, 0u8);
    // Of the line before: where its mapping ends, and whether anything may be done there.
    let (mut end, mut access) = (0u64, false);
    loop {
        // SAFETY: the kernel writes into `buffer`, whose size it is told.
        let got = unsafe { sys::call(READ, [fd as u64, at, SIZE, 0, 0, 0]) };
        if got <= 0 {
            return;
        }
        let mut n = 0;
        while n < got as u64 {
            // SAFETY: one of the bytes that were just read.
            let byte = unsafe { (*(at.wrapping_add(n) as *const AtomicU8)).load(Ordering::Relaxed) };
            n = n.wrapping_add(1);
            match byte {
                b'\n' => (number, behind) = (0, 0),
                _ if behind > 3 => {}
                _ if behind > 0 => {
                    access |= byte != b'-';
                    behind = behind.wrapping_add(1);
                }
                b'-' => (start, number) = (number, 0),
                b' ' if start <= address && address < number => {
                    *found = Mapping { start, end: number, guarded: end == start && !access };
                    return;
                }
                b' ' => (end, access, behind) = (number, false, 1),
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

    fn both(address: u64) -> Option<Mapping> {
        let ask = |how: fn(i64, u64) -> Option<Mapping>| {
            let fd = sys::open_maps();
            let found = how(fd, address);
            // SAFETY: opened above.
            unsafe { sys::close(fd) };
            found
        };
        let (text, query) = (ask(text), ask(query));
        // Before Linux 6.11 there is no query.
        assert!(query.is_none() || query == text, "{query:x?} {text:x?}");
        text
    }

    /// The bounds are those of the mappings that the kernel shows as text, and both ways of asking say the same.
    #[test]
    fn bounds_of_a_thread() {
        let here = 0u8;
        let rsp = &raw const here as u64;
        // Tests run in threads.
        let (low, top) = stack(rsp);
        let maps = std::fs::read_to_string("/proc/self/maps").expect("maps");
        let mut ranges = maps.lines().filter_map(|l| {
            let (start, end) = l.split_once(' ')?.0.split_once('-')?;
            Some(u64::from_str_radix(start, 16).ok()?..u64::from_str_radix(end, 16).ok()?)
        });
        let own = ranges.find(|r| r.contains(&rsp)).expect("the stack is mapped");
        if low != 0 {
            assert_eq!(low, own.start);
            assert!(own.contains(&top) && rsp < top && top - rsp < 1 << 16);
        }
        assert_eq!(both(rsp).map(|m| m.start..m.end), Some(own));
        assert_eq!(both(8), None);
    }

    /// Only a mapping without any access right below is a guard.
    #[test]
    fn guards() {
        let none = sys::map(0, 4 << 12, 0).expect("memory");
        let protect = |page: u64, access: u64| {
            // SAFETY: changes pages of the mapping made above, which nobody uses.
            assert_eq!(unsafe { sys::call(10, [none + (page << 12), 1 << 12, access, 0, 0, 0]) }, 0);
        };
        protect(1, 3);
        let start = none + (1 << 12);
        assert_eq!(both(start + 8), Some(Mapping { start, end: start + (1 << 12), guarded: true }));
        protect(0, 1);
        assert_eq!(both(start + 8), Some(Mapping { start, end: start + (1 << 12), guarded: false }));
        protect(2, 3);
        assert_eq!(both(start + 8), Some(Mapping { start, end: start + (2 << 12), guarded: false }));
        assert!(both(none).is_some_and(|m| m.start == none && m.end == start));
    }

    #[test]
    fn the_first_threads_stack() {
        learn();
        let end = MAIN_END.load(Ordering::Relaxed);
        let (low, top) = main_stack();
        assert!(end != 0 && top == end && low < top && top - low <= 1 << 34);
        assert_eq!(both(end - 8).map(|m| m.end), Some(end));
    }
}
