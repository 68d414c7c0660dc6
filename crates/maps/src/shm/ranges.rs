//! Where this process has files mapped, for who handles faults in them.
//!
//! A file can lose its memory while it is mapped: its file system is full, or somebody has cut it
//! off. Then a load or store raises `SIGBUS`, wherever it is: in a value, a header, the slot table.
//! So every mapping of this crate is in this list, from before it is used until it is unmapped. It
//! has no limit, and is read in signal handlers: entries are never freed, only used again.

use std::sync::atomic::{
    AtomicPtr, AtomicU64, Ordering::AcqRel, Ordering::Acquire, Ordering::Relaxed, Ordering::Release,
};

use super::columns;

const ENTRIES: usize = 63;
/// The start of an entry that is being filled. No mapping begins there.
const BEGUN: u64 = 1;

/// A mapping; `start` is 0 when the entry is free.
#[derive(Debug)]
struct Entry {
    start: AtomicU64,
    end: AtomicU64,
}

#[derive(Debug)]
struct Chunk {
    next: AtomicPtr<Chunk>,
    entries: [Entry; ENTRIES],
}

impl Chunk {
    const fn new() -> Self {
        let entries =
            [const { Entry { start: AtomicU64::new(0), end: AtomicU64::new(0) } }; ENTRIES];
        Self { next: AtomicPtr::new(std::ptr::null_mut()), entries }
    }
}

static FIRST: Chunk = Chunk::new();

fn chunks() -> impl Iterator<Item = &'static Chunk> {
    std::iter::successors(Some(&FIRST), |chunk| {
        // SAFETY: null, or a chunk that is never freed.
        unsafe { chunk.next.load(Acquire).as_ref() }
    })
}

/// Adds a mapping that nobody has used yet.
pub(crate) fn add(start: u64, len: u64) {
    loop {
        let mut last = &FIRST;
        for chunk in chunks() {
            for entry in &chunk.entries {
                if entry.start.compare_exchange(0, BEGUN, AcqRel, Relaxed).is_ok() {
                    entry.end.store(start.wrapping_add(len), Relaxed);
                    // With it, the end can be seen.
                    entry.start.store(start, Release);
                    return;
                }
            }
            last = chunk;
        }
        let chunk = Box::into_raw(Box::new(Chunk::new()));
        if last.next.compare_exchange(std::ptr::null_mut(), chunk, AcqRel, Relaxed).is_err() {
            // Another thread has added one.
            // SAFETY: made above, and nobody knows it.
            drop(unsafe { Box::from_raw(chunk) });
        }
    }
}

/// Takes a mapping out that nobody uses any more.
pub(crate) fn remove(start: u64) {
    if let Some(entry) =
        chunks().flat_map(|chunk| &chunk.entries).find(|entry| entry.start.load(Acquire) == start)
    {
        entry.start.store(0, Release);
    }
}

/// Tells whether an address lies in a file that this process has mapped as an object. May be called
/// in a signal handler.
#[must_use]
pub fn is_mapped(addr: u64) -> bool {
    let here = |entry: &Entry| {
        let start = entry.start.load(Acquire);
        // Filled anew in between: then it is not about a mapping that is in use here.
        let whole = start > BEGUN && (start..entry.end.load(Acquire)).contains(&addr);
        whole && entry.start.load(Acquire) == start
    };
    chunks().flat_map(|chunk| &chunk.entries).any(here) || columns::is_mapped(addr)
}

/// Pages that were replaced by memory of this process alone.
static REPLACED: AtomicU64 = AtomicU64::new(0);

/// Notes that a page of an object had no memory and was replaced by memory of this process alone. A map
/// whose pages get memory later shows them again. May be called in a signal handler.
pub fn note_replaced() {
    REPLACED.fetch_add(1, AcqRel);
}

/// Counts what was noted.
pub(crate) fn replaced() -> u64 {
    REPLACED.load(Acquire)
}

/// Calls `f` with where each thread's values in a per-CPU map begin and end, for all such maps. May
/// be called in a signal handler.
pub fn for_each_column(f: impl FnMut(u64, u64)) {
    columns::for_each(f);
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn any_number_of_mappings_is_known_until_removed() {
        let at = |i: u64| (1 << 60) + i * 0x10000;
        let n = 5 * ENTRIES as u64;
        (0..n).for_each(|i| add(at(i), 0x2000));
        for i in 0..n {
            assert!(is_mapped(at(i)) && is_mapped(at(i) + 0x1fff), "{i}");
            assert!(!is_mapped(at(i) + 0x2000) && !is_mapped(at(i) - 1), "{i}");
        }
        (0..n).step_by(2).for_each(|i| remove(at(i)));
        (0..n).for_each(|i| assert_eq!(is_mapped(at(i)), i % 2 == 1, "{i}"));
        (1..n).step_by(2).for_each(|i| remove(at(i)));
    }
}
