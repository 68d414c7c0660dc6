//! Reading a whole map: a cursor that never skips, never repeats and always ends.
//!
//! * No skip: an element that is in the map during the whole walk is returned.
//! * At most once: an element is not returned twice; one that was deleted and put in again may be.
//! * Ends: what is put in behind the cursor's place is not returned, and there are finitely many places.
//! * Progress: any buffer that holds one element moves the cursor on.
//!
//! A cursor is 32 bytes that mean the same in every process, also after the element it stands on is gone.

use crate::error::MapError;
use crate::map::Map;

/// A place in the walk through a map. What the two numbers mean is the map type's affair.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub(crate) struct Position {
    pub(crate) major: u64,
    pub(crate) minor: u64,
}

impl Position {
    /// Steps through an array: `major` is the next index.
    pub(crate) fn index(&mut self, entries: u32, key: &mut [u8], read: impl FnOnce(u32) -> Result<(), MapError>) -> Result<bool, MapError> {
        let Some(i) = u32::try_from(self.major).ok().filter(|i| *i < entries) else { return Ok(false) };
        read(i)?;
        key.copy_from_slice(&i.to_ne_bytes());
        self.major += 1;
        Ok(true)
    }
}

/// Where a walk through a map has come to.
///
/// ```
/// # use skep_maps::Cursor;
/// let cursor = Cursor::default();
/// assert_eq!(Cursor::from_bytes(&cursor.to_bytes()), Some(cursor));
/// ```
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Cursor {
    map_id: u32,
    generation: u64,
    at: Position,
}

/// Bytes of a [`Cursor`].
pub const CURSOR_LEN: usize = 32;
const CURSOR_MAGIC: u32 = 0x0001_6363;

impl Cursor {
    /// Writes the cursor as opaque bytes.
    #[must_use]
    pub fn to_bytes(&self) -> [u8; CURSOR_LEN] {
        let mut out = [0; CURSOR_LEN];
        out[..4].copy_from_slice(&CURSOR_MAGIC.to_le_bytes());
        out[4..8].copy_from_slice(&self.map_id.to_le_bytes());
        out[8..16].copy_from_slice(&self.generation.to_le_bytes());
        out[16..24].copy_from_slice(&self.at.major.to_le_bytes());
        out[24..].copy_from_slice(&self.at.minor.to_le_bytes());
        out
    }

    /// Reads a cursor back; `None` if the bytes never were one.
    #[must_use]
    pub fn from_bytes(bytes: &[u8]) -> Option<Self> {
        let bytes: &[u8; CURSOR_LEN] = bytes.try_into().ok()?;
        let word = |at: usize| bytes[at..].iter().take(8).rev().fold(0u64, |v, b| v << 8 | u64::from(*b));
        let first = word(0);
        if first as u32 != CURSOR_MAGIC {
            return None;
        }
        Some(Self { map_id: (first >> 32) as u32, generation: word(8), at: Position { major: word(16), minor: word(24) } })
    }

    fn begin(&mut self, map: &Map) -> Result<(), MapError> {
        if *self == Self::default() {
            (self.map_id, self.generation) = (map.id(), map.generation());
        }
        if (self.map_id, self.generation) == (map.id(), map.generation()) { Ok(()) } else { Err(MapError::StaleCursor) }
    }
}

impl Map {
    /// Fills `buf` with packed pairs of key and value and moves the cursor on; returns the bytes used, 0 at the end.
    ///
    /// # Errors
    /// `EINVAL` for a buffer smaller than one element, `ESTALE` for another map's cursor, `EPERM` for a write-only map.
    pub fn dump(&self, cursor: &mut Cursor, buf: &mut [u8]) -> Result<usize, MapError> {
        self.check_readable()?;
        cursor.begin(self)?;
        let (key_size, value_size) = (self.def().key_size as usize, self.user_value_size());
        let size = key_size + value_size;
        if size == 0 {
            // A type without elements has its own answer.
            return self.ops().step(&mut cursor.at, &mut [], &mut []).map(|_| 0);
        }
        if buf.len() < size {
            return Err(MapError::Length { what: "buffer", given: buf.len(), want: size });
        }
        let mut used = 0;
        for element in buf.chunks_exact_mut(size) {
            let (key, value) = element.split_at_mut(key_size);
            match self.ops().step(&mut cursor.at, key, value) {
                Ok(true) => used += size,
                // What was copied is delivered before an error is.
                Ok(false) => break,
                Err(e) if used == 0 => return Err(e),
                Err(_) => break,
            }
        }
        Ok(used)
    }

    /// Walks through all elements.
    #[must_use]
    pub fn iter(&self) -> Iter<'_> {
        Iter { map: self, cursor: Cursor::default(), failed: false }
    }
}

impl<'a> IntoIterator for &'a Map {
    type Item = Result<(Vec<u8>, Vec<u8>), MapError>;
    type IntoIter = Iter<'a>;

    fn into_iter(self) -> Iter<'a> {
        self.iter()
    }
}

/// Yields every element as key and value; ends after an error.
#[derive(Debug)]
pub struct Iter<'a> {
    map: &'a Map,
    cursor: Cursor,
    failed: bool,
}

impl Iterator for Iter<'_> {
    type Item = Result<(Vec<u8>, Vec<u8>), MapError>;

    fn next(&mut self) -> Option<Self::Item> {
        if self.failed {
            return None;
        }
        let key_size = self.map.def().key_size as usize;
        let mut buf = vec![0; key_size + self.map.user_value_size()];
        match self.map.dump(&mut self.cursor, &mut buf) {
            Ok(0) => None,
            Ok(_) => {
                let value = buf.split_off(key_size.min(buf.len()));
                Some(Ok((buf, value)))
            }
            Err(e) => {
                self.failed = true;
                Some(Err(e))
            }
        }
    }
}
