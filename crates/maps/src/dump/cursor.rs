//! Where a walk has come to.

use crate::error::MapError;
use crate::map::Map;

/// A place in the walk through a map. What the two numbers mean is the map type's affair; zeroes are the beginning.
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

/// Where a walk through a map has come to: 32 bytes that mean the same in every process that opens the map, also after
/// the element it stands on is gone.
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
    pub(super) at: Position,
}

/// Bytes of a [`Cursor`].
pub const CURSOR_LEN: usize = 32;
/// Version above kind.
const CURSOR_MAGIC: u32 = 0x0002_6363;

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

    /// Reads a cursor back; `None` if the bytes never were one of this version.
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

    /// Makes the cursor of a place in a map.
    pub(super) fn new(map: &Map, at: Position) -> Self {
        Self { map_id: map.id(), generation: map.generation(), at }
    }

    /// Ties a new cursor to a map; refuses that of another map.
    pub(super) fn begin(&mut self, map: &Map) -> Result<(), MapError> {
        if *self == Self::default() {
            *self = Self::new(map, Position::default());
        }
        if (self.map_id, self.generation) == (map.id(), map.generation()) { Ok(()) } else { Err(MapError::StaleCursor) }
    }
}
