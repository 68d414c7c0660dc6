//! Loads in generated code that may fail: where each is, and where to continue when it did.
//!
//! Each program with such loads has a row here with the range of its code and a table that lies
//! behind that code, in the same memory. The handler may look at any time, on any thread. It reads
//! a table only for an address inside that code: whoever faulted there runs the program, so neither
//! code nor table goes away meanwhile. Rows are never freed, only used again.
//!
//! Rules of this leaf: `end`, `table` and `count` of a row are written while `start` says that it
//! is nobody's, and read before `start` is read a second time.

use std::ops::Range;
use std::sync::atomic::{
    AtomicU64, AtomicUsize,
    Ordering::{Acquire, Relaxed, Release},
    fence,
};

/// Most programs with loads that may fail; in others such a load is a call.
const MOST: usize = 1024;
/// In place of the start of a row's code: it is free, or its program is being made.
const FREE: u64 = 0;
const TAKEN: u64 = 1;

struct Row {
    start: AtomicU64,
    end: AtomicU64,
    table: AtomicU64,
    count: AtomicUsize,
}

static ROWS: [Row; MOST] = [const {
    Row {
        start: AtomicU64::new(FREE),
        end: AtomicU64::new(0),
        table: AtomicU64::new(0),
        count: AtomicUsize::new(0),
    }
}; MOST];
/// Rows from here on were never used.
static USED: AtomicUsize = AtomicUsize::new(0);

/// Offsets in a program's code: of a load, and of where to continue when it failed.
pub(crate) type Site = [u32; 2];

/// A row of one program's own; dropping it makes it free.
#[derive(Debug)]
pub(crate) struct Sites(&'static Row);

impl std::fmt::Debug for Row {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Row").field("start", &self.start).finish_non_exhaustive()
    }
}

impl Sites {
    /// Takes a row; `None` when all are taken.
    pub fn reserve() -> Option<Self> {
        // Pairs with the Release of `drop`.
        let free = |row: &Row| row.start.compare_exchange(FREE, TAKEN, Acquire, Relaxed).is_ok();
        let n = ROWS.iter().position(free)?;
        USED.fetch_max(n + 1, Release);
        ROWS.get(n).map(Self)
    }

    /// Tells of a program's loads.
    ///
    /// # Safety
    /// Until this is dropped, `code` is where the program is, and `table` points to `count` sites
    /// of it, sorted, that do not change.
    pub unsafe fn publish(&self, code: Range<u64>, table: *const Site, count: usize) {
        self.0.end.store(code.end, Relaxed);
        self.0.table.store(table as u64, Relaxed);
        self.0.count.store(count, Relaxed);
        // Pairs with the Acquire of `find`.
        self.0.start.store(code.start, Release);
    }
}

impl Drop for Sites {
    fn drop(&mut self) {
        self.0.start.store(FREE, Release);
    }
}

/// Returns where to continue after a fault at `ip`, when that is such a load.
///
/// # Safety
/// The calling thread has faulted there: if it is in a program's code, the program stays meanwhile.
pub(super) unsafe fn find(ip: u64) -> Option<u64> {
    for row in ROWS.iter().take(USED.load(Acquire)) {
        let start = row.start.load(Acquire);
        if start <= TAKEN || ip < start {
            continue;
        }
        let (end, table, count) =
            (row.end.load(Relaxed), row.table.load(Relaxed), row.count.load(Relaxed));
        // Another program's numbers are not seen with this one's start: see the rules above.
        fence(Acquire);
        if ip >= end || row.start.load(Relaxed) != start {
            continue;
        }
        // SAFETY: the faulting thread is inside this code, so its table is as `publish` was told.
        let sites = unsafe { std::slice::from_raw_parts(table as *const Site, count) };
        let at = (ip - start) as u32;
        return sites
            .binary_search_by_key(&at, |s| s[0])
            .ok()
            .and_then(|n| sites.get(n))
            .map(|s| start + u64::from(s[1]));
    }
    None
}
