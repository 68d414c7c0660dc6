//! Where a walk has come to.

use super::output::Output;
use super::position::{Position, Strict};
use crate::error::MapError;
use crate::map::Map;

/// Where a walk through a map has come to: bytes that mean the same in every process that opens the
/// map, also after the element it stands on is gone.
///
/// ```
/// # use skep_maps::Cursor;
/// let cursor = Cursor::default();
/// assert_eq!(Cursor::from_bytes(&cursor.to_bytes()), Some(cursor));
/// ```
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct Cursor {
    map_id: u32,
    generation: u64,
    pub(super) at: Position,
    /// The last key, where the map type walks by keys; empty at the beginning.
    key: Vec<u8>,
}

/// Bytes of a [`Cursor`], except in tries of addresses above 16 bytes: see [`Cursor::len_in`].
pub const CURSOR_LEN: usize = 32;
/// Version above kind.
const CURSOR_MAGIC: u16 = 0x0363;
/// The same, with the number of a strict walk in [`STRICT`] bytes behind all else.
const STRICT_MAGIC: u16 = 0x0463;
const STRICT: usize = 8;
/// Behind magic, prefix length, map and generation: the two numbers, or the address of a key.
const PLACE: usize = 16;
/// A key begins with the length of its prefix.
const PREFIX: usize = 4;

impl Cursor {
    /// Tells how many bytes a cursor in this map has: [`CURSOR_LEN`], or 16 and the address of a
    /// longer key.
    #[must_use]
    pub fn len_in(map: &Map) -> usize {
        if map.ops().by_key().is_some() {
            Self::key_len(map.def().key_size as usize)
        } else {
            CURSOR_LEN
        }
    }

    /// Tells how many bytes the cursor of a strict walk has: eight more, where elements come and
    /// go.
    #[must_use]
    pub fn strict_len_in(map: &Map) -> usize {
        Self::len_in(map) + if map.has_epochs() { STRICT } else { 0 }
    }

    fn key_len(key_size: usize) -> usize {
        (PLACE + key_size.saturating_sub(PREFIX)).max(CURSOR_LEN)
    }

    /// Writes the cursor as opaque bytes.
    #[must_use]
    pub fn to_bytes(&self) -> Vec<u8> {
        let mut out = vec![0; Self::key_len(self.key.len())];
        let magic = if self.at.strict.number == 0 { CURSOR_MAGIC } else { STRICT_MAGIC };
        out[..2].copy_from_slice(&magic.to_le_bytes());
        out[4..8].copy_from_slice(&self.map_id.to_le_bytes());
        out[8..PLACE].copy_from_slice(&self.generation.to_le_bytes());
        match self.key.split_first_chunk::<PREFIX>() {
            Some((length, address)) => {
                // Above zero, which says that there is no key; prefixes have at most 2048 bits.
                out[2..4].copy_from_slice(
                    &(u32::from_ne_bytes(*length) as u16).saturating_add(1).to_le_bytes(),
                );
                out[PLACE..PLACE + address.len()].copy_from_slice(address);
            }
            None => {
                out[PLACE..24].copy_from_slice(&self.at.major.to_le_bytes());
                out[24..].copy_from_slice(&self.at.minor.to_le_bytes());
            }
        }
        if magic == STRICT_MAGIC {
            out.extend_from_slice(&u64::from(self.at.strict.number).to_le_bytes());
        }
        out
    }

    /// Reads a cursor back; `None` if the bytes never were one of this version.
    #[must_use]
    pub fn from_bytes(bytes: &[u8]) -> Option<Self> {
        if bytes.len() < CURSOR_LEN {
            return None;
        }
        let word =
            |at: usize| bytes[at..].iter().take(8).rev().fold(0u64, |v, b| v << 8 | u64::from(*b));
        let first = word(0);
        let mut number = 0;
        let bytes = match first as u16 {
            CURSOR_MAGIC => bytes,
            STRICT_MAGIC => {
                let (bytes, strict) = bytes
                    .split_last_chunk::<STRICT>()
                    .filter(|(rest, _)| rest.len() >= CURSOR_LEN)?;
                number = u32::try_from(u64::from_le_bytes(*strict)).ok().filter(|n| *n != 0)?;
                bytes
            }
            _ => return None,
        };
        let at = Position { strict: Strict { number, newer: 0 }, ..Position::default() };
        let tied =
            Self { map_id: (first >> 32) as u32, generation: word(8), at, ..Self::default() };
        match (first >> 16) as u16 {
            0 if bytes.len() == CURSOR_LEN => {
                Some(Self { at: Position { major: word(PLACE), minor: word(24), ..at }, ..tied })
            }
            0 => None,
            length => Some(Self {
                key: [&u32::from(length - 1).to_ne_bytes(), &bytes[PLACE..]].concat(),
                ..tied
            }),
        }
    }

    /// Makes the cursor of a place in a map.
    pub(super) fn new(map: &Map, at: Position) -> Self {
        Self { map_id: map.id(), generation: map.generation(), at, key: Vec::new() }
    }

    /// Makes the cursor behind a key, for maps that are walked by keys.
    pub(super) fn behind(map: &Map, key: &[u8]) -> Self {
        Self { key: key.to_vec(), ..Self::new(map, Position::default()) }
    }

    /// Ties a new cursor to a map; refuses that of another map.
    pub(super) fn begin(&mut self, map: &Map) -> Result<(), MapError> {
        if *self == Self::default() {
            *self = Self::new(map, Position::default());
        }
        if !self.key.is_empty() {
            // Bytes behind a short address are none of it.
            let key_size = map.def().key_size as usize;
            if map.ops().by_key().is_none() || self.key.len() < key_size {
                return Err(MapError::StaleCursor);
            }
            self.key.truncate(key_size);
        }
        if (self.map_id, self.generation) == (map.id(), map.generation()) {
            Ok(())
        } else {
            Err(MapError::StaleCursor)
        }
    }

    /// Copies the next element out and moves behind it; `false` at the end.
    pub(super) fn step(
        &mut self,
        map: &Map,
        key: &mut [u8],
        value: &mut [u8],
    ) -> Result<bool, MapError> {
        let Some(keys) = map.ops().by_key() else {
            return map.ops().step(&mut self.at, key, value);
        };
        let more = keys.step_behind(&self.key, &mut self.at.strict, key, value)?;
        if more {
            self.key.clear();
            self.key.extend_from_slice(key);
        }
        Ok(more)
    }

    /// Copies elements until `out` is full, and moves behind them; `false` at the end.
    pub(super) fn fill(&mut self, map: &Map, out: &mut Output<'_>) -> Result<bool, MapError> {
        if map.ops().by_key().is_none() {
            return map.ops().fill(&mut self.at, out);
        }
        while let Some((key, value)) = out.next() {
            if !self.step(map, key, value)? {
                return Ok(false);
            }
            out.push();
        }
        Ok(true)
    }
}
