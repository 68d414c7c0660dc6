//! When elements were put in, for strict walks: those return what was there when they began.
//!
//! ```text
//! mutable word 1    walks begun       mutable word 2   lock of who fills and empties rows, where the type has no lock of its own
//! payload, behind the type's own, from the next page on:   | epoch of row 0 | epoch of row 1 | …     four bytes each
//! ```
//!
//! Strict walks are counted, and what is put into a row is stamped with the count, before it can be
//! seen. A walk that began as number *n* passes over epochs from *n* on. Until the first strict
//! walk nothing is stamped, so those who need none pay one load an insertion and no memory. Which
//! row belongs to an element is the type's affair.

use std::sync::Arc;
use std::sync::atomic::{
    AtomicU32, AtomicU64, Ordering::Acquire, Ordering::Relaxed, Ordering::SeqCst,
};

use super::lock::{self, Held};
use super::object::ObjectFile;
use super::{page_up, reserve};

/// Mutable words of the header.
const WALKS: usize = 1;
const LOCK: usize = 2;

/// Tells where epochs begin behind a payload, and its length with them; no rows need none.
pub(crate) fn area(payload_len: u64, rows: u64) -> Option<(u64, u64)> {
    if rows == 0 {
        return Some((payload_len, payload_len));
    }
    let at = page_up(payload_len)?;
    Some((at, at.checked_add(rows.checked_mul(4)?)?))
}

/// InsertionEpochs of one map's rows.
#[derive(Clone, Debug)]
pub(crate) struct InsertionEpochs {
    file: Arc<ObjectFile>,
    base: *mut u8,
    rows: u64,
    /// In the header, as long as the file is open.
    walks: *mut u64,
}

// SAFETY: both pointers lead into the mappings of `file`, and are used as atomics only.
unsafe impl Send for InsertionEpochs {}
// SAFETY: both pointers lead into the mappings of `file`, and are used as atomics only.
unsafe impl Sync for InsertionEpochs {}

impl InsertionEpochs {
    /// Takes a file that has `rows` epochs at `at`; none in files of older versions and for types
    /// whose elements all were there from the beginning. `None` for a file that is shorter.
    pub(crate) fn new(file: Arc<ObjectFile>, at: u64, rows: u64) -> Option<Self> {
        let base = if rows == 0 {
            std::ptr::null_mut()
        } else {
            file.payload().at(at, rows.checked_mul(4)?)?
        };
        let walks = file.state(WALKS)?.as_ptr();
        Some(Self { file, base, rows, walks })
    }

    /// Tells whether there are any.
    pub(crate) fn is_empty(&self) -> bool {
        self.rows == 0
    }

    #[inline(always)]
    fn walks(&self) -> &AtomicU64 {
        // SAFETY: a word of the header that `file` keeps mapped.
        unsafe { AtomicU64::from_ptr(self.walks) }
    }

    /// Gives the epochs of some rows memory; `false` when there is none. The file is writable.
    pub(crate) fn get_memory_of(&self, first: u64, rows: u64) -> bool {
        if first.saturating_add(rows) > self.rows {
            return false;
        }
        let from = self.base.wrapping_add(first.wrapping_mul(4) as usize);
        // SAFETY: they lie inside the payload, as `new` checked.
        unsafe { reserve::populate(from, rows.wrapping_mul(4)) }
    }

    /// Gives all epochs memory; `false` when there is none. The file is writable.
    pub(crate) fn get_memory(&self) -> bool {
        // SAFETY: they lie inside the payload, as `new` checked.
        unsafe { reserve::populate(self.base.cast(), self.rows.saturating_mul(4)) }
    }

    /// Begins a strict walk: its number, from 1; `None` after the last one that there is. The file
    /// is writable.
    pub(crate) fn begin(&self) -> Option<u32> {
        let next = |n: u64| u32::try_from(n).ok()?.checked_add(1).map(u64::from);
        let before = self.walks().fetch_update(SeqCst, SeqCst, next).ok()?;
        u32::try_from(before).ok()?.checked_add(1)
    }

    /// Tells whether anything is stamped: whether a strict walk ever began. The caller has taken
    /// the lock of the row before, so that a walk which had begun then is counted.
    #[inline(always)]
    pub(crate) fn are_kept(&self) -> bool {
        // Pairs with the update in `begin`.
        self.walks().load(Acquire) != 0
    }

    /// What is stamped now; garbage is no worse than any count.
    fn now(&self) -> u32 {
        self.walks().load(Acquire) as u32
    }

    #[inline(always)]
    fn row(&self, row: u64) -> Option<&AtomicU32> {
        if row >= self.rows {
            return None;
        }
        // SAFETY: inside the payload, as `new` checked; epochs begin at a page, and are reached as
        // atomics only.
        Some(unsafe {
            AtomicU32::from_ptr(self.base.wrapping_add(row.wrapping_mul(4) as usize).cast())
        })
    }

    /// Stamps a row that is about to be filled; the store that shows it comes later and is a
    /// Release.
    #[inline(always)]
    pub(crate) fn stamp(&self, row: u64) {
        if self.are_kept() {
            self.store(row, self.now());
        }
    }

    /// As [`InsertionEpochs::stamp`], for a row that takes the place of another.
    #[inline(always)]
    pub(crate) fn inherit(&self, row: u64, from: u64) {
        if self.are_kept() {
            self.store(row, self.row(from).map_or(0, |epoch| epoch.load(Relaxed)));
        }
    }

    /// Most maps are never walked strictly.
    #[cold]
    #[inline(never)]
    fn store(&self, row: u64, epoch: u32) {
        if let Some(to) = self.row(row) {
            to.store(epoch, Relaxed);
        }
    }

    /// Tells whether what is in a row was put in after a walk with a number began. The caller has
    /// seen the row filled by an Acquire load, and looks afterwards whether it still is the
    /// same.
    #[inline(always)]
    pub(crate) fn is_newer(&self, row: u64, walk: u32) -> bool {
        walk != 0 && self.row(row).is_some_and(|epoch| epoch.load(Acquire) >= walk)
    }

    /// Takes the lock under which rows are filled and emptied while epochs are kept.
    pub(crate) fn lock(&self) -> Option<Held> {
        lock::acquire(self.file.state(LOCK)?).ok()
    }

    pub(crate) fn release(&self, held: Held) {
        if let Some(word) = self.file.state(LOCK) {
            lock::release(word, held);
        }
    }
}
