//! Walks through typed maps.

use std::marker::PhantomData;

use skep_maps::Take;
use skep_maps::dump::Walk;

use crate::error::Result;
use crate::map::Map;

/// Elements that are read at once, at most, and bytes.
const AT_ONCE: usize = 128;
const BYTES_AT_ONCE: usize = 256 << 10;

/// Reads a key and a value from their bytes.
pub(super) type Decode<K, V> = fn(&Map, &[u8], &[u8]) -> Result<(K, V)>;

/// A walk through the elements of a map, which may change meanwhile: elements that are there all
/// the time come exactly once, those that come or go meanwhile once or not at all. It ends.
///
/// ```
/// # fn main() -> Result<(), skep::Error> {
/// # let session = skep::Session::scratch()?;
/// # let path = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/data/library.bpf.o");
/// # let object = session.load(path)?;
/// let counts: skep::HashMap<u64, u64> = object.map("counts")?.typed()?;
/// counts.insert(&7, &1)?;
/// for entry in counts.iter().taken() {
///     let (address, n) = entry?;
///     assert_eq!((address, n), (7, 1));
/// }
/// assert_eq!(counts.iter().count(), 0);
/// # Ok(())
/// # }
/// ```
#[derive(Debug)]
pub struct Entries<'m, K, V> {
    map: &'m Map,
    walk: Walk<'m>,
    decode: Decode<K, V>,
    key_size: usize,
    rows: Vec<u8>,
    /// Bytes of `rows` that are there, and that were returned.
    filled: usize,
    at: usize,
    /// Elements that are read at once.
    at_once: usize,
    failed: bool,
    types: PhantomData<(K, V)>,
}

impl<'m, K, V> Entries<'m, K, V> {
    pub(super) fn new(map: &'m Map, key_size: usize, decode: Decode<K, V>) -> Self {
        Self {
            map,
            walk: map.walk(),
            decode,
            key_size,
            rows: Vec::new(),
            filled: 0,
            at: 0,
            at_once: AT_ONCE.min(map.def().max_entries as usize),
            failed: false,
            types: PhantomData,
        }
    }

    /// Removes what it returns, one by one: what programs add meanwhile is in what is returned, or in
    /// a new element. Each removal waits for running programs.
    #[must_use]
    pub fn taken(self) -> Self {
        Self { walk: self.walk.taking(Take::Exact), at_once: 1, ..self }
    }

    /// Returns only what was there when the walk began.
    #[must_use]
    pub fn strict(self) -> Self {
        Self { walk: self.walk.strict(), ..self }
    }

    /// Changes where the walk goes, before it begins.
    pub(super) fn with_walk(self, change: impl FnOnce(Walk<'m>) -> Walk<'m>) -> Self {
        Self { walk: change(self.walk), ..self }
    }

    fn fill(&mut self) -> Result<bool> {
        let size = self.walk.element_size();
        let count = self.at_once.min(BYTES_AT_ONCE / size.max(1)).max(1);
        self.rows.resize(size * count, 0);
        let rows = self.map.named(self.walk.rows(&mut self.rows))?;
        (self.filled, self.at) = (rows * self.walk.element_size(), 0);
        Ok(rows > 0)
    }

    fn step(&mut self) -> Result<Option<(K, V)>> {
        if self.at >= self.filled && !self.fill()? {
            return Ok(None);
        }
        let end = self.at + self.walk.element_size();
        let row = self.rows.get(self.at..end).unwrap_or_default();
        self.at = end;
        let (key, value) = row.split_at(self.key_size.min(row.len()));
        (self.decode)(self.map, key, value).map(Some)
    }
}

impl<K, V> Iterator for Entries<'_, K, V> {
    type Item = Result<(K, V)>;

    fn next(&mut self) -> Option<Self::Item> {
        if self.failed {
            return None;
        }
        let next = self.step();
        self.failed = next.is_err();
        next.transpose()
    }
}
