//! What users do with maps whose keys have an order: lookups beside a key, and of whole ranges.

use std::ops::{Bound, ControlFlow};

use super::Map;
use crate::dump::packed::Packed;
use crate::dump::position::Strict;
use crate::dump::{Take, output::Output};
use crate::error::{ENOTSUPP, MapError};
use crate::key_range::{KeyRange, Nearest};
use crate::ops::{KeyWalk, OrderedWalk, Span};

/// Elements that are deleted at a time.
const MANY: usize = 64;

impl Map {
    /// Tells whether keys are in the order of their bytes, as in a qp-trie.
    #[must_use]
    pub fn is_ordered(&self) -> bool {
        self.ordered().is_some()
    }

    fn ordered(&self) -> Option<&dyn OrderedWalk> {
        self.ops.by_key().and_then(KeyWalk::ordered)
    }

    /// Finds the element nearest to a key: its key and value. `key` may have any length.
    ///
    /// # Errors
    /// [`MapError::NoElement`]; a write-only map; [`MapError::Unsupported`] for a map without order.
    pub fn lookup_nearest(
        &self,
        key: &[u8],
        which: Nearest,
    ) -> Result<(Vec<u8>, Vec<u8>), MapError> {
        self.check_readable()?;
        let ordered = self.ordered().ok_or(self.without_order())?;
        let (mut cell, mut value) = (vec![0; self.keys.cell_size()], vec![0; self.value_size]);
        let span = |from, to, backward| Span { from, to, backward };
        let span = match which {
            Nearest::LongestPrefix => None,
            Nearest::Floor => Some(span(Bound::Unbounded, Bound::Included(key), true)),
            Nearest::Ceiling => Some(span(Bound::Included(key), Bound::Unbounded, false)),
        };
        let found = match span {
            None => ordered.longest_prefix(key, &mut cell, &mut value)?,
            Some(span) => {
                let mut out =
                    Output::columns(&mut cell, &mut value, self.keys.cell_size(), self.value_size);
                ordered.fill(&span, &mut Strict::default(), &mut out)?;
                out.used() != 0
            }
        };
        if !found {
            return Err(MapError::NoElement);
        }
        Ok((self.keys.read_cell(&cell).ok_or(MapError::KeyCell)?.to_vec(), value))
    }

    /// Calls `visit` with the key and value of each element in a range, in the order of keys or
    /// against it, until it breaks. It may change the map. What a walk promises of a map that changes
    /// meanwhile holds here; elements are copied many at a time, so they may be a little older than
    /// the call.
    ///
    /// # Errors
    /// A write-only map; [`MapError::Unsupported`] for a map without order; damaged memory.
    pub fn visit(
        &self,
        range: &KeyRange,
        reversed: bool,
        mut visit: impl FnMut(&[u8], &[u8]) -> ControlFlow<()>,
    ) -> Result<(), MapError> {
        self.check_readable()?;
        let ordered = self.ordered().ok_or(self.without_order())?;
        let mut read = Packed::new(ordered.element_layout());
        let mut last: Option<Vec<u8>> = None;
        loop {
            let behind = last.as_deref().map(Bound::Excluded);
            let (from, to) = (range.from(), range.to());
            let span = if reversed {
                Span { from, to: behind.unwrap_or(to), backward: true }
            } else {
                Span { from: behind.unwrap_or(from), to, backward: false }
            };
            read.clear();
            let more = ordered.read(&span, &mut read)?;
            let goes_on = read.visit(|key, value| visit(key, value).is_continue());
            if !goes_on.ok_or(MapError::KeyCell)? || !more {
                return Ok(());
            }
            last = read.last_key().map(<[u8]>::to_vec);
            if last.is_none() {
                return Ok(());
            }
        }
    }

    fn without_order(&self) -> MapError {
        let map_type = self.def.map_type;
        MapError::Unsupported { map_type, operation: "order of keys", errno: ENOTSUPP }
    }

    /// Removes all elements in a range; returns how many. Those that others put in meanwhile may
    /// stay.
    ///
    /// # Errors
    /// As [`Map::delete`], and [`MapError::Unsupported`] for a map without order. What was removed
    /// before an error is gone.
    pub fn delete_range(&self, range: &KeyRange) -> Result<u64, MapError> {
        self.ordered().ok_or(self.without_order())?;
        let mut walk = self.walk().range(range.clone()).taking(Take::Fast);
        let mut buf = vec![0; MANY * walk.element_size()];
        let mut removed = 0;
        loop {
            match walk.rows(&mut buf)? {
                0 => return Ok(removed),
                n => removed += n as u64,
            }
        }
    }
}
