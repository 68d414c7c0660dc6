//! Where a walk has come to.

use std::ops::Bound;

use skep_isa::KeyShape;

use super::output::Output;
use super::position::{Position, Strict};
use crate::error::MapError;
use crate::key_range::KeyRange;
use crate::map::Map;
use crate::ops::{KeyWalk, OrderedWalk, Span};

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
    last: LastKey,
}

/// The last key of a walk by keys.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
enum LastKey {
    /// The walk is at its beginning, or goes by positions.
    #[default]
    None,
    /// The length of a prefix, and an address.
    Prefix(Vec<u8>),
    /// A key that is compared as bytes, of one length or of any.
    Bytes(Vec<u8>),
}

impl LastKey {
    #[inline]
    fn key(&self) -> &[u8] {
        match self {
            Self::None => &[],
            Self::Prefix(key) | Self::Bytes(key) => key,
        }
    }

    fn of(is_prefix: bool, key: &[u8]) -> Self {
        if is_prefix { Self::Prefix(key.to_vec()) } else { Self::Bytes(key.to_vec()) }
    }

    #[inline]
    fn set(&mut self, is_prefix: bool, key: &[u8]) {
        match self {
            Self::None => *self = Self::of(is_prefix, key),
            Self::Prefix(last) | Self::Bytes(last) => {
                last.clear();
                last.extend_from_slice(key);
            }
        }
    }
}

/// What part of the keys a walk goes through, and in which direction; only maps in the order of
/// their keys have other parts than all.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(super) struct KeyPart {
    pub(super) range: KeyRange,
    pub(super) backward: bool,
}

impl KeyPart {
    pub(super) const ALL: Self = Self { range: KeyRange::ALL, backward: false };

    /// Returns what is left of it behind a key; no bytes are before all keys.
    fn behind<'a>(&'a self, last: &'a [u8]) -> Span<'a> {
        let mut span =
            Span { from: self.range.from(), to: self.range.to(), backward: self.backward };
        // A cursor may be from a walk through another part.
        let is_further = |bound: Bound<&[u8]>| match bound {
            Bound::Unbounded => true,
            Bound::Included(key) | Bound::Excluded(key) if self.backward => last <= key,
            Bound::Included(key) | Bound::Excluded(key) => last >= key,
        };
        if self.backward && !last.is_empty() && is_further(span.to) {
            span.to = Bound::Excluded(last);
        } else if !self.backward && !last.is_empty() && is_further(span.from) {
            span.from = Bound::Excluded(last);
        }
        span
    }
}

/// Tells whether a walk's last key is a prefix of bits, as tries of prefixes have it.
fn is_prefix(map: &Map) -> bool {
    matches!(map.key_shape(), KeyShape::Fixed(_))
        && map.ops().by_key().is_some_and(|walk| walk.ordered().is_none())
}

/// Bytes of a [`Cursor`], except where keys are long: see [`Cursor::len_in`].
pub const CURSOR_LEN: usize = 32;
/// Version above kind.
const CURSOR_MAGIC: u16 = 0x0363;
/// The same, with the number of a strict walk in [`STRICT`] bytes behind all else.
const STRICT_MAGIC: u16 = 0x0463;
const STRICT: usize = 8;
/// Of a walk by keys that are compared as bytes.
const BYTES_MAGIC: u16 = 0x0563;
/// Behind magic, prefix length, map and generation: the two numbers, the address of a prefix, or of
/// a key of variable length its length and the number of a strict walk.
const PLACE: usize = 16;
/// Where the bytes of a key of variable length begin.
const BYTES: usize = 24;
/// A prefix key begins with its length.
const PREFIX: usize = 4;

impl Cursor {
    /// Tells how many bytes a cursor in this map has at most: [`CURSOR_LEN`], or with keys longer
    /// than 16 bytes behind a header, more.
    #[must_use]
    pub fn len_in(map: &Map) -> usize {
        match map.key_shape() {
            _ if map.ops().by_key().is_none() => CURSOR_LEN,
            KeyShape::Fixed(n) if is_prefix(map) => Self::prefix_len(n as usize),
            keys => (BYTES + keys.max_len()).max(CURSOR_LEN),
        }
    }

    /// Tells how many bytes the cursor of a strict walk has: eight more, where elements come and
    /// go.
    #[must_use]
    pub fn strict_len_in(map: &Map) -> usize {
        Self::len_in(map) + if map.has_epochs() { STRICT } else { 0 }
    }

    fn prefix_len(key_size: usize) -> usize {
        (PLACE + key_size.saturating_sub(PREFIX)).max(CURSOR_LEN)
    }

    /// Writes the cursor as opaque bytes: at most as many as [`Cursor::len_in`] says. Zeros behind
    /// those of a key of variable length do no harm.
    #[must_use]
    pub fn to_bytes(&self) -> Vec<u8> {
        let number = self.at.strict.number;
        let (len, magic) = match &self.last {
            LastKey::Bytes(key) => ((BYTES + key.len()).max(CURSOR_LEN), BYTES_MAGIC),
            _ if number != 0 => (Self::prefix_len(self.last.key().len()), STRICT_MAGIC),
            _ => (Self::prefix_len(self.last.key().len()), CURSOR_MAGIC),
        };
        let mut out = vec![0; len];
        let mut put = |at: usize, bytes: &[u8]| out[at..at + bytes.len()].copy_from_slice(bytes);
        put(0, &magic.to_le_bytes());
        put(4, &self.map_id.to_le_bytes());
        put(8, &self.generation.to_le_bytes());
        match &self.last {
            LastKey::None => {
                put(PLACE, &self.at.major.to_le_bytes());
                put(24, &self.at.minor.to_le_bytes());
            }
            LastKey::Prefix(key) => {
                let (length, address) = key.split_first_chunk::<PREFIX>().unwrap_or((&[0; 4], &[]));
                // Above zero, which says that there is no key; prefixes have at most 2048 bits.
                let length = (u32::from_ne_bytes(*length) as u16).saturating_add(1);
                put(2, &length.to_le_bytes());
                put(PLACE, address);
            }
            LastKey::Bytes(key) => {
                put(PLACE, &(key.len() as u32).to_le_bytes());
                put(PLACE + 4, &number.to_le_bytes());
                put(BYTES, key);
            }
        }
        if magic == STRICT_MAGIC {
            out.extend_from_slice(&u64::from(number).to_le_bytes());
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
        let strict = |number| Strict { number, newer: 0 };
        let tied = |number| Self {
            map_id: (first >> 32) as u32,
            generation: word(8),
            at: Position { strict: strict(number), ..Position::default() },
            last: LastKey::None,
        };
        let (mut cursor, bytes) = match first as u16 {
            BYTES_MAGIC => {
                let key = bytes[BYTES..].get(..word(PLACE) as u32 as usize)?;
                let last = LastKey::Bytes(key.to_vec());
                return Some(Self { last, ..tied((word(PLACE) >> 32) as u32) });
            }
            CURSOR_MAGIC => (tied(0), bytes),
            STRICT_MAGIC => {
                let (bytes, number) = bytes
                    .split_last_chunk::<STRICT>()
                    .filter(|(rest, _)| rest.len() >= CURSOR_LEN)?;
                let number = u32::try_from(u64::from_le_bytes(*number)).ok().filter(|n| *n != 0)?;
                (tied(number), bytes)
            }
            _ => return None,
        };
        match (first >> 16) as u16 {
            0 if bytes.len() == CURSOR_LEN => cursor.at.go(word(PLACE), word(24)),
            0 => return None,
            length => {
                let length = u32::from(length - 1).to_ne_bytes();
                cursor.last = LastKey::Prefix([&length, &bytes[PLACE..]].concat());
            }
        }
        Some(cursor)
    }

    /// Makes the cursor of a place in a map.
    pub(super) fn new(map: &Map, at: Position) -> Self {
        Self { map_id: map.id(), generation: map.generation(), at, last: LastKey::None }
    }

    /// Makes the cursor behind a key, for maps that are walked by keys.
    pub(super) fn behind(map: &Map, key: &[u8]) -> Self {
        Self { last: LastKey::of(is_prefix(map), key), ..Self::new(map, Position::default()) }
    }

    /// Ties a new cursor to a map; refuses that of another map.
    pub(super) fn begin(&mut self, map: &Map) -> Result<(), MapError> {
        if *self == Self::default() {
            *self = Self::new(map, Position::default());
        }
        let by_key = map.ops().by_key().is_some();
        match (&mut self.last, map.key_shape()) {
            (LastKey::None, _) => {}
            // Bytes behind a short address are none of it.
            (LastKey::Prefix(key), KeyShape::Fixed(n))
                if by_key && is_prefix(map) && key.len() >= n as usize =>
            {
                key.truncate(n as usize);
            }
            (LastKey::Bytes(key), keys) if by_key && !is_prefix(map) && keys.allows(key.len()) => {}
            _ => return Err(MapError::StaleCursor),
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
        part: &KeyPart,
        cell: &mut [u8],
        value: &mut [u8],
    ) -> Result<bool, MapError> {
        match map.ops().by_key() {
            Some(walk) => match walk.ordered() {
                Some(walk) => {
                    let sizes = (cell.len(), value.len());
                    let mut out = Output::columns(cell, value, sizes.0, sizes.1);
                    self.fill_in_order(walk, map.key_shape(), part, &mut out)?;
                    Ok(out.used() != 0)
                }
                None => self.step_by_key(walk, map.key_shape(), cell, value),
            },
            None => map.ops().step(&mut self.at, cell, value),
        }
    }

    #[inline]
    fn step_by_key(
        &mut self,
        walk: &dyn KeyWalk,
        keys: KeyShape,
        cell: &mut [u8],
        value: &mut [u8],
    ) -> Result<bool, MapError> {
        let more = walk.step_behind(self.last.key(), &mut self.at.strict, cell, value)?;
        if more {
            self.last.set(
                matches!(keys, KeyShape::Fixed(_)),
                keys.read_cell(cell).ok_or(MapError::KeyCell)?,
            );
        }
        Ok(more)
    }

    fn fill_in_order(
        &mut self,
        walk: &dyn OrderedWalk,
        keys: KeyShape,
        part: &KeyPart,
        out: &mut Output<'_>,
    ) -> Result<bool, MapError> {
        let before = out.used();
        let span = part.behind(self.last.key());
        let more = walk.fill(&span, &mut self.at.strict, out);
        if let Some(last) = out.used().checked_sub(1).filter(|last| *last >= before)
            && let Some((cell, _)) = out.element(last)
        {
            self.last.set(false, keys.read_cell(cell).ok_or(MapError::KeyCell)?);
        }
        more
    }

    /// Copies elements until `out` is full, and moves behind them; `false` at the end.
    pub(super) fn fill(
        &mut self,
        map: &Map,
        part: &KeyPart,
        out: &mut Output<'_>,
    ) -> Result<bool, MapError> {
        let Some(walk) = map.ops().by_key() else {
            return map.ops().fill(&mut self.at, out);
        };
        let keys = map.key_shape();
        if let Some(walk) = walk.ordered() {
            return self.fill_in_order(walk, keys, part, out);
        }
        while let Some((cell, value)) = out.next() {
            if !self.step_by_key(walk, keys, cell, value)? {
                return Ok(false);
            }
            out.push();
        }
        Ok(true)
    }
}
