//! Tables of small numbers, one word a row: what program arrays, control-group arrays, device, CPU
//! and socket maps, and arrays of maps have in common.
//!
//! ```text
//! payload: | word 0 | word 1 | … | word max_entries-1 |     eight bytes each, zero: the row is empty
//! ```
//!
//! A row changes by one store. What a word means, and what may be stored when, is a matter of the
//! type ([`Rows`]).

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering::AcqRel, Ordering::Acquire};

use skep_isa::map::update;
use skep_isa::{MapShape, MapType, ShapeKind};

use crate::def::MapDef;
use crate::dump::position::Position;
use crate::error::{E2BIG, EINVAL, ENOMEM, MapError};
use crate::index::{index, next_index};
use crate::layout::Layout;
use crate::map_file::MapFile;
use crate::ops::{ProgOps, UserOps, WalkOps};
use crate::shm::epoch::InsertionEpochs;
use crate::shm::{ObjectFile, copy};

/// Most bytes of all rows.
const MAX_BYTES: u64 = 1 << 35;

/// What differs between the types.
pub(crate) trait Rows: Send + Sync {
    /// What a user's lookup answers when the type has none.
    const NO_LOOKUP: Option<i32> = None;
    /// What programs are told of the rows.
    const SHAPE: ShapeKind = ShapeKind::Opaque;

    /// Refuses flags before anything else is looked at.
    fn check_flags(&self, flags: u64) -> Result<(), MapError> {
        if flags > update::EXIST { Err(MapError::Flags { flags }) } else { Ok(()) }
    }

    /// Turns a user's value into a word, zero to empty the row. `taken` tells whether the row has
    /// one now.
    fn word(&self, index: u32, value: &[u8], flags: u64, taken: bool) -> Result<u64, MapError>;

    /// Runs around the store of a word: what it names must be there as long as it is in the row.
    fn change(&self, table: &Table, index: u32, word: u64) -> Result<u64, MapError> {
        table.set(index, word)
    }

    /// What deleting a row out of range answers.
    const OUT_OF_RANGE: i32 = EINVAL;
    /// What deleting an empty row answers.
    const EMPTY: i32 = 0;

    /// What a program's lookup gives for the word at an address.
    ///
    /// # Safety
    /// `word` is a row of this table.
    unsafe fn seen_by_program(&self, word: *mut u8) -> *mut u8 {
        word
    }
}

/// The words.
#[derive(Debug)]
pub(crate) struct Table {
    pub(crate) file: Arc<ObjectFile>,
    pub(crate) entries: u32,
    epochs: InsertionEpochs,
}

impl Table {
    #[inline(always)]
    fn word(&self, index: u32) -> Option<&AtomicU64> {
        if index < self.entries {
            self.file.payload().word(u64::from(index).wrapping_mul(8))
        } else {
            None
        }
    }

    pub(crate) fn get(&self, index: u32) -> u64 {
        self.word(index).map_or(0, |w| w.load(Acquire))
    }

    /// Stores a word, 0 to empty the row; returns the one before.
    ///
    /// # Errors
    /// `EBUSY` when somebody else changes rows and does not get on.
    pub(crate) fn set(&self, index: u32, word: u64) -> Result<u64, MapError> {
        let Some(row) = self.word(index) else { return Ok(0) };
        // A walk that begins from now on begins after the caller.
        if self.epochs.are_kept() {
            self.set_with_epoch(row, index, word)
        } else {
            Ok(row.swap(word, AcqRel))
        }
    }

    /// What fills an empty row is new, what replaces a word is not: nobody else may come between
    /// the look and the store.
    #[cold]
    fn set_with_epoch(&self, row: &AtomicU64, index: u32, word: u64) -> Result<u64, MapError> {
        let held = self.epochs.lock().ok_or(MapError::Busy { what: "a row of the map" })?;
        if word != 0 && row.load(Acquire) == 0 {
            self.epochs.stamp(index.into());
        }
        let before = row.swap(word, AcqRel);
        self.epochs.release(held);
        Ok(before)
    }

    /// Tells whether any row has a word.
    pub(crate) fn has(&self, word: u64) -> bool {
        (0..self.entries).any(|i| self.get(i) == word)
    }
}

pub(crate) fn layout(def: &MapDef) -> Result<Layout, MapError> {
    let row = def.map_type.row();
    if !row.key.allows(def.key_size) || !row.value.allows(def.value_size) || def.max_entries == 0 {
        return Err(def.invalid("keys have 4 bytes, values 4 (device and CPU maps: or 8), and there is at least one entry"));
    }
    let payload_len = u64::from(def.max_entries) * 8;
    if payload_len > MAX_BYTES {
        return Err(def.refused("too large", ENOMEM));
    }
    Ok(Layout::with_epochs(payload_len, def.max_entries.into()))
}

pub(crate) struct IdTable<R> {
    map_type: MapType,
    value_size: usize,
    pub(crate) table: Table,
    pub(crate) rows: R,
}

impl<R: Rows> IdTable<R> {
    pub(crate) fn new(file: MapFile, rows: R) -> Self {
        let MapFile { def, object, epochs, .. } = file;
        Self {
            map_type: def.map_type,
            value_size: def.value_size as usize,
            table: Table { file: object, entries: def.max_entries, epochs },
            rows,
        }
    }

    fn read(&self, index: u32, out: &mut [u8]) -> Result<(), MapError> {
        match self.table.get(index) {
            0 => Err(MapError::NoElement),
            word => {
                show(word, out);
                Ok(())
            }
        }
    }

    fn unsupported(&self, operation: &'static str, errno: i32) -> MapError {
        MapError::Unsupported { map_type: self.map_type, operation, errno }
    }
}

impl<R: Rows> UserOps for IdTable<R> {
    fn user_value_size(&self) -> usize {
        self.value_size
    }

    fn lookup(&self, key: &[u8], out: &mut [u8], _flags: u64) -> Result<(), MapError> {
        match R::NO_LOOKUP {
            Some(errno) => Err(self.unsupported("lookup", errno)),
            None => self.read(index(key), out),
        }
    }

    fn update(&self, key: &[u8], value: &[u8], flags: u64) -> Result<(), MapError> {
        let i = index(key);
        self.rows.check_flags(flags)?;
        if i >= self.table.entries {
            return Err(MapError::Index { index: i, max_entries: self.table.entries });
        }
        let word = self.rows.word(i, value, flags, self.table.get(i) != 0)?;
        self.rows.change(&self.table, i, word).map(drop)
    }

    fn delete(&self, key: &[u8]) -> Result<(), MapError> {
        let i = index(key);
        if i >= self.table.entries {
            return Err(match R::OUT_OF_RANGE {
                E2BIG => MapError::Index { index: i, max_entries: self.table.entries },
                errno => self.unsupported("delete of a row out of range", errno),
            });
        }
        match self.rows.change(&self.table, i, 0)? {
            0 if R::EMPTY != 0 => Err(MapError::NoElement),
            _ => Ok(()),
        }
    }

    fn next_key(&self, key: Option<&[u8]>, out: &mut [u8]) -> Result<(), MapError> {
        next_index(key, self.table.entries, out)
    }
}

impl<R: Rows> WalkOps for IdTable<R> {
    fn step(&self, at: &mut Position, key: &mut [u8], value: &mut [u8]) -> Result<bool, MapError> {
        while at.major < u64::from(self.table.entries) {
            let i = at.major as u32;
            at.major += 1;
            // A row keeps its epoch until it is empty, and gets the next one before the next word.
            let word = self.table.get(i);
            if word == 0 {
                continue;
            }
            if self.table.epochs.is_newer(i.into(), at.strict.number) {
                at.strict.newer += 1;
                continue;
            }
            key.copy_from_slice(&i.to_ne_bytes());
            show(word, value);
            return Ok(true);
        }
        Ok(false)
    }
}

impl<R: Rows> ProgOps for IdTable<R> {
    fn shape(&self) -> MapShape {
        MapShape {
            base: self.table.file.payload().base(),
            stride: 8,
            entries: self.table.entries,
            kind: R::SHAPE,
        }
    }

    unsafe fn prog_lookup(&self, key: *const u8) -> *mut u8 {
        // SAFETY: the caller's key has four bytes.
        let i = unsafe { copy::load4(key) };
        match self.table.word(i) {
            // SAFETY: the word is a row.
            Some(word) if word.load(Acquire) != 0 => unsafe {
                self.rows.seen_by_program(word.as_ptr().cast())
            },
            _ => std::ptr::null_mut(),
        }
    }
}

/// Copies a word out as a user's value.
fn show(word: u64, out: &mut [u8]) {
    let n = out.len().min(8);
    out[..n].copy_from_slice(&word.to_ne_bytes()[..n]);
}

/// Reads the first or second number of a value.
pub(crate) fn number(value: &[u8], i: usize) -> u32 {
    value.get(4 * i..4 * i + 4).and_then(|b| b.try_into().ok()).map_or(0, u32::from_ne_bytes)
}
