//! The walk: many elements a call, into the caller's memory.

use skep_isa::KeyShape;
use skep_isa::map::update;

use super::cursor::{Cursor, KeyPart};
use super::output::{Output, row_layout};
use super::position::Position;
use crate::error::{ENOTSUPP, MapError};
use crate::key_range::KeyRange;
use crate::map::Map;
use crate::ops::KeyWalk;

/// How elements leave the map when a walk takes them.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Take {
    /// Each element is copied and removed under its lock, as the kernel does. A program that found
    /// it before and adds to it in place afterwards adds to what nobody reads any more.
    Fast,
    /// Elements are removed first and copied when every program run that may have found them has
    /// ended: additions in place are not lost. Waits for running programs once a call.
    Exact,
}

/// What a filter says of an element.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Verdict {
    /// Return it; a walk that takes, takes it.
    Keep,
    /// Leave it.
    Skip,
    /// Leave it, and end the walk behind it.
    Stop,
}

/// With room for fewer elements, a walk takes one after the other.
const FEW: usize = 8;

pub(super) type Filter<'f> = &'f mut dyn FnMut(&[u8], &[u8]) -> Verdict;

/// A walk through a map, from its beginning or from a cursor.
///
/// The size of elements stays what it was when the walk began, also when threads come and per-CPU
/// maps show more values.
///
/// ```
/// # fn sum(map: &skep_maps::Map) -> Result<u64, skep_maps::MapError> {
/// let mut walk = map.walk();
/// let (mut buf, mut sum) = (vec![0; 1000 * walk.element_size()], 0);
/// loop {
///     let n = walk.rows(&mut buf)?;
///     if n == 0 {
///         return Ok(sum);
///     }
///     for (_key, value) in walk.elements(&buf, n) {
///         sum += u64::from(value[0]);
///     }
/// }
/// # }
/// ```
#[derive(Debug, Clone)]
pub struct Walk<'m> {
    pub(super) map: &'m Map,
    pub(super) cursor: Cursor,
    pub(super) part: KeyPart,
    pub(super) keys: KeyShape,
    /// Bytes of a key's cell.
    key_size: usize,
    value_size: usize,
    aligned: bool,
    pub(super) locked: bool,
    take: Option<Take>,
    strict: bool,
    ended: bool,
    pub(super) visited: u64,
    /// What went wrong while values became final, told by the next call.
    pub(super) waited: Option<MapError>,
}

impl Map {
    /// Begins a walk through all elements.
    #[must_use]
    pub fn walk(&self) -> Walk<'_> {
        Walk {
            map: self,
            cursor: Cursor::default(),
            part: KeyPart::ALL,
            keys: self.key_shape(),
            key_size: self.key_shape().cell_size(),
            value_size: self.user_value_size(),
            aligned: false,
            locked: false,
            take: None,
            strict: false,
            ended: false,
            visited: 0,
            waited: None,
        }
    }

    /// Fills `buf` with packed pairs of key and value and moves the cursor on; returns the bytes
    /// used, 0 at the end.
    ///
    /// Elements have [`Map::user_value_size`] as it is now; [`Walk`] is for maps whose values may
    /// become more meanwhile.
    ///
    /// # Errors
    /// `EINVAL` for a buffer smaller than one element, `ESTALE` for another map's cursor, `EPERM`
    /// for a write-only map.
    pub fn dump(&self, cursor: &mut Cursor, buf: &mut [u8]) -> Result<usize, MapError> {
        let mut walk = self.walk().from_cursor(cursor.clone());
        let (done, size) = (walk.rows(buf), walk.element_size());
        *cursor = walk.cursor;
        Ok(done? * size)
    }

    /// Walks through all elements one by one.
    #[must_use]
    pub fn iter(&self) -> Iter<'_> {
        Iter { walk: self.walk(), failed: false }
    }
}

impl<'m> Walk<'m> {
    /// Goes on where another walk was.
    #[must_use]
    pub fn from_cursor(self, cursor: Cursor) -> Self {
        Self { cursor, ..self }
    }

    /// Goes through a part of the keys only, for maps in the order of their keys.
    #[must_use]
    pub fn range(mut self, range: KeyRange) -> Self {
        self.part.range = range;
        self
    }

    /// Goes from the greatest key to the least, for maps in the order of their keys. A cursor does
    /// not remember the direction.
    #[must_use]
    pub fn reversed(mut self) -> Self {
        self.part.backward = !self.part.backward;
        self
    }

    /// Puts values at multiples of eight bytes.
    #[must_use]
    pub fn aligned(self) -> Self {
        Self { aligned: true, ..self }
    }

    /// Removes what it returns.
    #[must_use]
    pub fn taking(self, how: Take) -> Self {
        Self { take: Some(how), ..self }
    }

    /// Returns only what was put in before its first call: what comes meanwhile neither is seen nor
    /// makes the walk longer.
    ///
    /// The beginning is noted in the map, and [`Walk::cursor`] remembers it: who goes on from there
    /// goes on strictly. What is put in while the first call begins may be returned or not.
    #[must_use]
    pub fn strict(self) -> Self {
        Self { strict: true, ..self }
    }

    /// Copies each value under its spin lock (`BPF_F_LOCK`); refused with `EINVAL` where values
    /// have none.
    #[must_use]
    pub fn locked(self) -> Self {
        Self { locked: true, ..self }
    }

    /// Gives values another size than [`Map::user_value_size`]: for per-CPU types, any number of
    /// values.
    pub(super) fn value_size(self, value_size: usize) -> Self {
        Self { value_size, ..self }
    }

    /// Returns where the walk is.
    #[must_use]
    pub fn cursor(&self) -> Cursor {
        self.cursor.clone()
    }

    /// Tells whether the end was reached. It may be reached and not yet be known.
    #[must_use]
    pub fn has_ended(&self) -> bool {
        self.ended
    }

    /// Returns how many elements were looked at, the filtered ones included.
    #[must_use]
    pub fn visited(&self) -> u64 {
        self.visited
    }

    /// Returns how many elements a strict walk passed over because they came after its beginning.
    #[must_use]
    pub fn skipped_new(&self) -> u64 {
        self.cursor.at.strict.newer
    }

    /// Returns the bytes from one element to the next.
    #[must_use]
    pub fn element_size(&self) -> usize {
        row_layout(self.key_size, self.value_size, self.aligned).0
    }

    /// Splits `n` elements that [`Walk::rows`] returned into keys and values.
    pub fn elements<'b>(
        &self,
        buf: &'b [u8],
        n: usize,
    ) -> impl Iterator<Item = (&'b [u8], &'b [u8])> + use<'b> {
        let (stride, value_at) = row_layout(self.key_size, self.value_size, self.aligned);
        let (keys, key_size, value_size) = (self.keys, self.key_size, self.value_size);
        buf.chunks_exact(stride.max(1)).take(n).map(move |row| {
            let cell = row.get(..key_size).unwrap_or_default();
            (
                keys.read_cell(cell).unwrap_or_default(),
                row.get(value_at..value_at + value_size).unwrap_or_default(),
            )
        })
    }

    /// Fills `buf` with elements, each the [cell](Map::key_shape) of a key and a value; returns how
    /// many, 0 at the end. [`Walk::elements`] takes them apart.
    ///
    /// # Errors
    /// `EINVAL` for a buffer smaller than one element, `ESTALE` for another map's cursor, `EPERM`
    /// for a map that may not be read, or written when it is taken from or walked strictly;
    /// what the map type does not offer. What was put into `buf` is returned before
    /// an error is.
    pub fn rows(&mut self, buf: &mut [u8]) -> Result<usize, MapError> {
        self.rows_filtered(buf, None)
    }

    /// As [`Walk::rows`], with only those elements that `filter` keeps. It sees a copy, and is
    /// called once for each element that is reached.
    ///
    /// # Errors
    /// As [`Walk::rows`].
    pub fn rows_where(
        &mut self,
        buf: &mut [u8],
        mut filter: impl FnMut(&[u8], &[u8]) -> Verdict,
    ) -> Result<usize, MapError> {
        self.rows_filtered(buf, Some(&mut filter))
    }

    fn rows_filtered(
        &mut self,
        buf: &mut [u8],
        filter: Option<Filter<'_>>,
    ) -> Result<usize, MapError> {
        let want = self.element_size();
        if buf.len() < want {
            return Err(MapError::Length { what: "buffer", given: buf.len(), want });
        }
        let mut out = Output::rows(buf, self.key_size, self.value_size, self.aligned);
        self.run(&mut out, filter)
    }

    /// Fills `keys` and `values` with as many elements as both have room for; returns how many. Each
    /// key stands in a cell of its [shape](Map::key_shape).
    ///
    /// # Errors
    /// As [`Walk::rows`].
    pub fn columns(&mut self, keys: &mut [u8], values: &mut [u8]) -> Result<usize, MapError> {
        let mut out = Output::columns(keys, values, self.key_size, self.value_size);
        if out.room() == 0 {
            return Err(MapError::Length {
                what: "buffer",
                given: keys.len(),
                want: self.key_size,
            });
        }
        self.run(&mut out, None)
    }

    pub(super) fn run(
        &mut self,
        out: &mut Output<'_>,
        filter: Option<Filter<'_>>,
    ) -> Result<usize, MapError> {
        self.map.check_readable()?;
        if self.take.is_some() {
            self.map.check_writable()?;
        }
        self.cursor.begin(self.map)?;
        if self.part != KeyPart::ALL && self.map.ops().by_key().and_then(KeyWalk::ordered).is_none()
        {
            return Err(MapError::Unsupported {
                map_type: self.map.def().map_type,
                operation: "order of keys",
                errno: ENOTSUPP,
            });
        }
        if self.element_size() == 0 {
            // A type without elements has its own answer.
            self.cursor.step(self.map, &KeyPart::ALL, &mut [], &mut [])?;
            return Ok(0);
        }
        if self.locked && (self.map.def().spin_lock.is_none() || !self.map.file().writable()) {
            return Err(MapError::Flags { flags: update::LOCK });
        }
        if self.ended {
            return Ok(0);
        }
        if self.strict || self.cursor.at.strict.number != 0 {
            self.begin_strictly()?;
        }
        if self.key_size == 0 && self.take.is_some() && filter.is_some() {
            // Only what comes next can be taken out of a queue.
            let map_type = self.map.def().map_type;
            return Err(MapError::Unsupported {
                map_type,
                operation: "selective take",
                errno: ENOTSUPP,
            });
        }
        let before = out.used();
        let done = match (self.take, filter) {
            (None, None) if !self.locked => self
                .cursor
                .fill(self.map, &self.part, out)
                .inspect(|_| self.visited += (out.used() - before) as u64),
            (None, filter) => self.select(out, filter.unwrap_or(&mut |_, _| Verdict::Keep)),
            (Some(Take::Fast), None)
                if !self.locked && out.left() >= FEW && self.map.ops().exact_take().is_some() =>
            {
                self.take_many(out)
            }
            (Some(Take::Fast), filter) => {
                self.take_each(out, filter.unwrap_or(&mut |_, _| Verdict::Keep))
            }
            (Some(Take::Exact), filter) => {
                self.take_exactly(out, filter.unwrap_or(&mut |_, _| Verdict::Keep))
            }
        };
        match done {
            Ok(more) => self.ended = !more,
            // What was copied is delivered before an error is.
            Err(e) if out.used() == before => return Err(e),
            Err(_) => {}
        }
        Ok(out.used() - before)
    }

    fn begin_strictly(&mut self) -> Result<(), MapError> {
        if self.take.is_some() {
            // Between the look at an element and the grasp at its key, a new one may have come
            // under it.
            let map_type = self.map.def().map_type;
            return Err(MapError::Unsupported {
                map_type,
                operation: "strict walk that takes elements",
                errno: ENOTSUPP,
            });
        }
        if self.strict && self.cursor.at.strict.number == 0 {
            self.cursor.at.strict.number = self.map.begin_strict_walk()?;
        }
        // Where nothing comes later there is nothing to remember.
        self.strict = false;
        Ok(())
    }

    /// Copies the next element to where the next one goes; what `filter` says of it, `None` at the
    /// end.
    pub(super) fn look(
        &mut self,
        out: &mut Output<'_>,
        filter: &mut dyn FnMut(&[u8], &[u8]) -> Verdict,
    ) -> Result<Option<Verdict>, MapError> {
        let Some((cell, value)) = out.next() else { return Ok(None) };
        if !self.cursor.step(self.map, &self.part, cell, value)? {
            return Ok(None);
        }
        let key = self.keys.read_cell(cell).ok_or(MapError::KeyCell)?;
        self.visited += 1;
        if self.locked {
            match self.map.ops().lookup(key, value, update::LOCK) {
                // Gone since: what the step copied is what it was.
                Ok(()) | Err(MapError::NoElement) => {}
                Err(e) => return Err(e),
            }
        }
        Ok(Some(filter(key, value)))
    }

    fn select(&mut self, out: &mut Output<'_>, filter: Filter<'_>) -> Result<bool, MapError> {
        while !out.is_full() {
            match self.look(out, filter)? {
                Some(Verdict::Keep) => out.push(),
                Some(Verdict::Skip) => {}
                Some(Verdict::Stop) | None => return Ok(false),
            }
        }
        Ok(true)
    }

    /// Stands behind a key; `None` when it is gone and its type has no place for it.
    pub(super) fn behind(self, key: &[u8]) -> Result<Option<Self>, MapError> {
        if self.map.ops().by_key().is_some() {
            return Ok(Some(Self { cursor: Cursor::behind(self.map, key), ..self }));
        }
        Ok(self.map.ops().seek(key)?.map(|at| self.at(at)))
    }

    /// Returns where a walk by numbers is.
    pub(super) fn place(&self) -> Position {
        self.cursor.at
    }

    /// Stands behind an element, for [`super::command`] and [`super::batch`].
    pub(super) fn at(self, at: Position) -> Self {
        let cursor = Cursor::new(self.map, at);
        Self { cursor, ..self }
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
    walk: Walk<'a>,
    failed: bool,
}

impl Iterator for Iter<'_> {
    type Item = Result<(Vec<u8>, Vec<u8>), MapError>;

    fn next(&mut self) -> Option<Self::Item> {
        if self.failed {
            return None;
        }
        let mut buf = vec![0; self.walk.element_size()];
        match self.walk.rows(&mut buf) {
            Ok(0) => None,
            Ok(_) => {
                let value = buf.split_off(self.walk.key_size.min(buf.len()));
                if let KeyShape::Bytes { .. } = self.walk.keys {
                    buf = self.walk.keys.read_cell(&buf).unwrap_or_default().to_vec();
                }
                Some(Ok((buf, value)))
            }
            Err(e) => {
                self.failed = true;
                Some(Err(e))
            }
        }
    }
}
