//! Where a thread's own stack is.
//!
//! The first thread's is what the kernel calls `[stack]`, as far down as its limit allows. For
//! other threads the C library knows: glibc keeps the block that it was given or made for a thread,
//! with its size and that of the guard in it, in its own record of the thread (`stackblock`,
//! nptl/descr.h), which begins at the thread pointer and lies at the end of that very block. Their
//! place in it differs from version to version; the block is recognized by its end, which is just
//! behind the record.
//!
//! The mapping around a stack says nothing: neighboring stacks, part of a heap and our own memory
//! may be in it, and a guard below it may be somebody else's. Where the record says nothing either,
//! the stack is not known, and hooks never run on it.
//!
//! Part of the event path (a thread's first event comes here): raw system calls, no vector
//! registers.

use crate::per_thread::runtime_id;
use crate::sys;
use crate::thread_pointer::thread;
use skep_proc::maps::raw::Scanner;
use skep_proc::maps::{Filter, Live, MapSource, Want};
use skep_sys::thread_words;
use std::mem::MaybeUninit;
use std::sync::atomic::{AtomicU8, AtomicU64, Ordering};

/// The end of the first thread's stack; 0: not known.
static MAIN_END: AtomicU64 = AtomicU64::new(0);

/// A stack that is smaller has no room for hooks anywhere: what an event does for the first time, or when
/// a library was loaded, takes up to 16 KiB, and half of the stack must be enough.
pub(crate) const SMALL: u64 = 48 << 10;

/// How much of the first thread's stack is taken for it where the limit says nothing.
const UNLIMITED: u64 = 64 << 20;

/// Finds the end of the first thread's stack. Not on the event path.
pub(crate) fn learn() {
    let named = |maps: Live| maps.text_only().all(&Filter::default(), Want::NAME);
    let mappings = Live::own().and_then(named).unwrap_or_default();
    let stack = mappings.iter().find(|v| v.name.as_deref() == Some(b"[stack]"));
    MAIN_END.store(stack.map_or(0, |v| v.end), Ordering::Relaxed);
}

/// Finds the stack that the calling thread was given, whatever stack it is on now: lowest address
/// and end; (0, 0) when it is not known.
#[inline(always)]
pub(crate) fn stack(rsp: u64) -> (u64, u64) {
    let first = sys::gettid() == sys::getpid();
    let main = if first { main_stack() } else { (0, 0) };
    if main.0 <= rsp && rsp < main.1 {
        return main;
    }
    let thread = if thread_words::by_gs() { runtime_id::thread_pointer() } else { thread() };
    match mapping(thread).and_then(|m| recorded(thread, m)) {
        // A child that another thread has forked is the first thread, too.
        Some(low) if !first || (low <= rsp && rsp < thread) => (low, thread & !15),
        _ => main,
    }
}

/// Finds where a thread's stack begins, by glibc's record of it.
#[inline(always)]
fn recorded(thread: u64, (start, end): (u64, u64)) -> Option<u64> {
    // It has some 2,300 bytes.
    const RECORD: u64 = 4096;
    /// The record, and what aligns it.
    const BEHIND: u64 = 8192;
    let last = if end.wrapping_sub(thread) < RECORD { end } else { thread.wrapping_add(RECORD) }
        .wrapping_sub(24);
    // SAFETY: in the mapping that the thread pointer is in, which is readable as that word is.
    let word = |at: u64| unsafe { (at as *const u64).read_volatile() };
    let mut at = thread;
    while at <= last {
        let (block, size, guard) = (word(at), word(at.wrapping_add(8)), word(at.wrapping_add(16)));
        let behind = block.wrapping_add(size).wrapping_sub(thread);
        if block != 0
            && block < thread
            && size < thread
            && behind > 0
            && behind <= BEHIND
            && guard < size
        {
            let low = block.wrapping_add(guard);
            // A runtime may have made a guard of its own in it.
            let low = if low < start { start } else { low };
            return if low < thread { Some(low.wrapping_add(15) & !15) } else { None };
        }
        at = at.wrapping_add(8);
    }
    None
}

#[inline(always)]
fn main_stack() -> (u64, u64) {
    let end = MAIN_END.load(Ordering::Relaxed);
    let limit = stack_limit();
    let size = if limit > 1 << 34 { UNLIMITED } else { limit };
    if end <= size { (0, 0) } else { (end.wrapping_sub(size) & !15, end) }
}

#[inline(always)]
fn stack_limit() -> u64 {
    const PRLIMIT64: u64 = 302;
    const RLIMIT_STACK: u64 = 3;
    let limit: MaybeUninit<[AtomicU64; 2]> = MaybeUninit::uninit();
    let at = limit.as_ptr() as u64;
    // SAFETY: the kernel writes the two words of `struct rlimit`, and only if all is well are they
    // read.
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
    use skep_proc::maps::raw::procmap_query as ask;
    const IOCTL: u64 = 16;
    let query: MaybeUninit<[AtomicU64; ask::WORDS]> = MaybeUninit::uninit();
    let at = query.as_ptr() as u64;
    // SAFETY: only atomic stores to the words of `query`, through its address.
    let word =
        |n: usize| unsafe { &*((at as usize).wrapping_add(n.wrapping_mul(8)) as *const AtomicU64) };
    let mut n = 0;
    while n < ask::WORDS {
        // One by one: atomic stores are not merged into vector stores.
        word(n).store(0, Ordering::Relaxed);
        n = n.wrapping_add(1);
    }
    word(ask::SIZE).store((ask::WORDS * 8) as u64, Ordering::Relaxed);
    word(ask::ADDRESS).store(address, Ordering::Relaxed);
    // SAFETY: the kernel writes into `query`, whose size it was told.
    let got = unsafe { sys::call(IOCTL, [fd as u64, ask::OPCODE, at, 0, 0, 0]) };
    (got == 0)
        .then(|| (word(ask::START).load(Ordering::Relaxed), word(ask::END).load(Ordering::Relaxed)))
}

#[inline(always)]
fn text(fd: i64, address: u64) -> Option<(u64, u64)> {
    let mut end = 0;
    let start = search(fd, address, &mut end);
    (end != 0).then_some((start, end))
}

/// Reads the text until the mapping around the address. `extern "C"`, as a function that might
/// unwind would make its callers call the panic handler.
#[inline(never)]
#[unsafe(link_section = ".text.skep_event")]
extern "C" fn search(fd: i64, address: u64, end: &mut u64) -> u64 {
    const READ: u64 = 0;
    const SIZE: u64 = 512;
    let buffer: MaybeUninit<[AtomicU8; SIZE as usize]> = MaybeUninit::uninit();
    let at = buffer.as_ptr() as u64;
    let mut scanner = Scanner::new();
    loop {
        // SAFETY: the kernel writes into `buffer`, whose size it is told.
        let got = unsafe { sys::call(READ, [fd as u64, at, SIZE, 0, 0, 0]) };
        if got <= 0 {
            return 0;
        }
        let mut n = 0;
        while n < got as u64 {
            // SAFETY: one of the bytes that were just read.
            let byte =
                unsafe { (*(at.wrapping_add(n) as *const AtomicU8)).load(Ordering::Relaxed) };
            n = n.wrapping_add(1);
            if scanner.push(byte) && scanner.start <= address && address < scanner.end {
                *end = scanner.end;
                return scanner.start;
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    unsafe extern "C" {
        safe fn pthread_self() -> u64;
        fn pthread_getattr_np(thread: u64, attr: *mut u64) -> i32;
        fn pthread_attr_getstack(attr: *const u64, low: *mut u64, size: *mut u64) -> i32;
        fn pthread_attr_destroy(attr: *mut u64) -> i32;
    }

    /// What the C library says.
    fn told() -> (u64, u64) {
        let (mut attr, mut low, mut size) = ([0_u64; 8], 0, 0);
        // SAFETY: `pthread_attr_t` has 56 bytes.
        unsafe {
            assert_eq!(pthread_getattr_np(pthread_self(), attr.as_mut_ptr()), 0);
            assert_eq!(pthread_attr_getstack(attr.as_ptr(), &raw mut low, &raw mut size), 0);
            pthread_attr_destroy(attr.as_mut_ptr());
        }
        (low, size)
    }

    fn both(address: u64) -> Option<(u64, u64)> {
        let ask = |how: fn(i64, u64) -> Option<(u64, u64)>| {
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

    /// The bounds are those that the C library tells, for stacks of many sizes beside each other.
    #[test]
    fn bounds_of_threads() {
        let sizes = (1..40).map(|n| n * 20_000);
        let threads = sizes.map(|size| {
            let check = move || {
                let here = 0u8;
                let rsp = &raw const here as u64;
                let (low, top) = stack(rsp);
                let (begin, told) = told();
                assert_eq!(low, begin, "{size}");
                assert!(
                    rsp < top
                        && top - rsp < 1 << 14
                        && top <= begin + told
                        && begin + told - top < 1 << 13,
                    "{size}"
                );
            };
            std::thread::Builder::new().stack_size(size).spawn(check).expect("a thread")
        });
        threads.collect::<Vec<_>>().into_iter().for_each(|t| t.join().expect("no assertion"));
    }

    /// The ioctl and the text say the same of a mapping.
    #[test]
    fn mappings() {
        let here = 0u8;
        let at = &raw const here as u64;
        let maps = skep_proc::maps::own().expect("maps");
        let mut ranges = maps.iter().map(|v| (v.start, v.end));
        assert_eq!(both(at), ranges.find(|r| (r.0..r.1).contains(&at)));
        assert_eq!(both(8), None);
    }

    /// What is no record is none: nothing behind the thread pointer, or words that do not end
    /// behind it.
    #[test]
    fn records() {
        #[repr(align(64))]
        struct Page([u64; 64]);
        let mut whole = Page([0; 64]);
        let page = &mut whole.0;
        let thread = &raw mut page[0] as u64;
        let range = (thread - (1 << 20), thread + 512);
        assert_eq!(recorded(thread, range), None);
        let block = thread - 65536;
        for (size, guard, low) in [
            (65536 + 2304, 4096, Some(block + 4096)),
            (65536 + 2304, 0, Some(block)),
            // In front of the record, far behind it, all guard.
            (65536 - 64, 0, None),
            (65536 + 16384, 0, None),
            (65536 + 2304, 65536 + 100, None),
        ] {
            (page[61], page[62], page[63]) = (block, size, guard);
            assert_eq!(recorded(thread, range), low, "{size} {guard}");
        }
        // A guard of its own.
        (page[61], page[62], page[63]) = (block, 65536 + 2304, 0);
        assert_eq!(recorded(thread, (block + 8192, thread + 512)), Some(block + 8192));
        // Cut off: the third word is behind the mapping.
        assert_eq!(recorded(thread, (block, thread + 504)), None);
    }

    #[test]
    fn the_first_threads_stack() {
        learn();
        let end = MAIN_END.load(Ordering::Relaxed);
        let (low, top) = main_stack();
        assert!(end != 0 && top == end && low < top && top - low <= 1 << 34);
        assert_eq!(both(end - 8).map(|m| m.1), Some(end));
    }
}
