//! The kernel's BATCH commands: columns of keys and values, a cursor the caller does not look into.
//!
//! A column of keys has a cell for each, as [`Map::key_shape`] says: for fixed keys, the key.
//!
//! What differs from the kernel: every map type answers that can answer at all, `ENOSPC` never
//! comes (a cursor can stand inside a bucket), a cursor whose key was deleted neither repeats nor
//! skips, and [`update_batch`] takes `NOEXIST` and `EXIST`. The rest is the kernel's, down to
//! `ENOENT` *with* data at the end.

use std::collections::VecDeque;
use std::sync::{Mutex, PoisonError};

use skep_isa::map::update;
use skep_isa::{KeyShape, MapType};

use super::output::Output;
use super::position::Position;
use super::walk::{Take, Walk};
use crate::error::{ENOTSUPP, MapError};
use crate::map::Map;
use crate::ops::PREFETCH_KEYS;

/// Bytes of the cursor where keys have no order; elsewhere it is a key.
pub const CURSOR_LEN: usize = 4;

/// A batch that stopped: how many elements were done before, and why.
#[derive(Debug, Clone, thiserror::Error)]
#[error("{error}, after {count} elements")]
pub struct BatchError {
    /// Elements transferred.
    pub count: usize,
    /// Why there are not more.
    #[source]
    pub error: MapError,
}

fn nothing(error: MapError) -> BatchError {
    BatchError { count: 0, error }
}

/// Tells how many bytes a cursor of this map has at least: [`CURSOR_LEN`], or a key.
#[must_use]
pub fn cursor_len(map: &Map) -> usize {
    if map.ops().ordered() { map.key_shape().cell_size() } else { CURSOR_LEN }
}

/// Copies up to `count` elements behind `in_batch` (from the beginning without one) into columns,
/// and writes where to go on to `out_batch`; `take` also removes them.
///
/// Returns how many were copied when there may be more.
///
/// # Errors
/// `ENOENT` at the end, with the number of elements copied on the way; `EINVAL` for flags, and for
/// buffers that are too small; `EPERM`, `ESTALE` for a cursor that was kept too long; what the type
/// does not offer.
#[doc(alias = "BPF_MAP_LOOKUP_BATCH")]
#[doc(alias = "BPF_MAP_LOOKUP_AND_DELETE_BATCH")]
pub fn lookup_batch(
    map: &Map,
    in_batch: Option<&[u8]>,
    out_batch: &mut [u8],
    (keys, values): (&mut [u8], &mut [u8]),
    count: usize,
    elem_flags: u64,
    take: Option<Take>,
) -> Result<usize, BatchError> {
    map.check_readable().map_err(nothing)?;
    if take.is_some() {
        map.check_writable()
            .and_then(|()| elements_go(map, "lookup and delete batch"))
            .map_err(nothing)?;
    }
    if elem_flags & !update::LOCK != 0 || (elem_flags != 0 && map.def().spin_lock.is_none()) {
        return Err(nothing(MapError::Flags { flags: elem_flags }));
    }
    if count == 0 {
        return Ok(0);
    }
    let cursor_len = cursor_len(map);
    if out_batch.len() < cursor_len {
        return Err(nothing(MapError::Length {
            what: "cursor",
            given: out_batch.len(),
            want: cursor_len,
        }));
    }
    let (key_size, mut value_size) = (map.key_shape().cell_size(), map.user_value_size());
    if map.is_per_cpu() && !values.is_empty() {
        // As many values a key as the caller made room for: he may have counted CPUs before more
        // slots were used.
        value_size = values.len() / count / 8 * 8;
        let each = (map.def().value_size as usize).next_multiple_of(8);
        value_size -= value_size % each.max(1);
    }
    let mut walk = map.walk().value_size(value_size);
    if let Some(take) = take {
        walk = walk.taking(take);
    }
    if elem_flags != 0 {
        walk = walk.locked();
    }
    if let Some(from) = in_batch {
        let from = from
            .get(..cursor_len)
            .ok_or(MapError::Length { what: "cursor", given: from.len(), want: cursor_len })
            .map_err(nothing)?;
        let begin = walk.clone();
        walk = match map.ops().ordered() {
            // As the kernel: behind an index that no element has, an array begins anew.
            true => map.key_shape().read_cell(from).ok_or(MapError::KeyCell).and_then(|key| {
                let behind = walk.behind(key)?;
                let in_range = |w: &Walk<'_>| w.place().major <= map.def().max_entries.into();
                Ok(behind.filter(in_range).unwrap_or(begin))
            }),
            false => place(map, u32::from_ne_bytes(from.try_into().unwrap_or_default()))
                .map(|at| walk.at(at)),
        }
        .map_err(nothing)?;
    }
    let mut out = Output::columns(keys, values, key_size, value_size).limit(count);
    if out.room() < count {
        return Err(nothing(MapError::Length { what: "buffer", given: out.room(), want: count }));
    }
    let copied = walk.run(&mut out, None).map_err(nothing)?;
    if !map.ops().ordered() {
        out_batch[..CURSOR_LEN].copy_from_slice(&number(map, walk.place()).to_ne_bytes());
    } else if let Some((key, _)) = copied.checked_sub(1).and_then(|last| out.element(last)) {
        out_batch[..key_size].copy_from_slice(key);
    }
    // Where the cursor is a key, the kernel finds the end only by looking for one more element.
    let ended = if map.ops().ordered() {
        copied < count
    } else {
        walk.has_ended() || nothing_behind(map, walk.place(), value_size)
    };
    if ended { Err(BatchError { count: copied, error: MapError::NoElement }) } else { Ok(copied) }
}

/// Tells whether no element is behind a place: where each was looked at on its own, that was not
/// seen yet.
fn nothing_behind(map: &Map, mut at: Position, value_size: usize) -> bool {
    let (mut key, mut value) = (vec![0; map.key_shape().cell_size()], vec![0; value_size]);
    matches!(map.ops().step(&mut at, &mut key, &mut value), Ok(false))
}

/// Stores elements in the given order; `elem_flags` are those of [`update`]. Stops at the first
/// that fails.
///
/// # Errors
/// That element's error, and how many were stored before it.
#[doc(alias = "BPF_MAP_UPDATE_BATCH")]
pub fn update_batch(
    map: &Map,
    keys: &[u8],
    values: &[u8],
    count: usize,
    elem_flags: u64,
) -> Result<usize, BatchError> {
    map.check_writable().map_err(nothing)?;
    if elem_flags & !update::LOCK > update::EXIST
        || (elem_flags & update::LOCK != 0 && map.def().spin_lock.is_none())
    {
        return Err(nothing(MapError::Flags { flags: elem_flags }));
    }
    let key_size = map.key_shape().cell_size();
    let value_size = if map.is_per_cpu() {
        values.len().checked_div(count).unwrap_or(0)
    } else {
        map.user_value_size()
    };
    for i in 0..count {
        prefetch_group(map, keys, i, count, key_size);
        let short = |what| MapError::Length { what, given: i, want: count };
        let key = key_at(map, keys, i).unwrap_or(Err(short("buffer of keys")));
        let value = part(values, i, value_size).ok_or(short("buffer of values"));
        let done = key.and_then(|key| value.and_then(|value| map.update(key, value, elem_flags)));
        done.map_err(|error| BatchError { count: i, error })?;
    }
    Ok(count)
}

/// Removes keys in the given order. Stops at the first that fails.
///
/// # Errors
/// That key's error, and how many were removed before it.
#[doc(alias = "BPF_MAP_DELETE_BATCH")]
pub fn delete_batch(
    map: &Map,
    keys: &[u8],
    count: usize,
    elem_flags: u64,
) -> Result<usize, BatchError> {
    map.check_writable().and_then(|()| elements_go(map, "delete batch")).map_err(nothing)?;
    if elem_flags != 0 {
        return Err(nothing(MapError::Flags { flags: elem_flags }));
    }
    let key_size = map.key_shape().cell_size();
    for i in 0..count {
        prefetch_group(map, keys, i, count, key_size);
        let short = MapError::Length { what: "buffer of keys", given: i, want: count };
        let key = key_at(map, keys, i).unwrap_or(Err(short));
        key.and_then(|key| map.delete(key)).map_err(|error| BatchError { count: i, error })?;
    }
    Ok(count)
}

/// Copies the values of many keys out, which stand one behind another, to where they have their
/// places in `values`. `found` has one entry a key; what lies in the place of one that is not there
/// means nothing. Returns how many are there.
///
/// In a map much larger than the caches this takes a fraction of as many calls of
/// [`Map::lookup_into`]: what several keys touch is asked for before the first of them is looked
/// up.
///
/// ```
/// # fn total(map: &skep_maps::Map, keys: &[u64]) -> Result<u64, skep_maps::dump::batch::BatchError> {
/// let bytes: Vec<u8> = keys.iter().flat_map(|k| k.to_ne_bytes()).collect();
/// let (mut values, mut found) = (vec![0; bytes.len()], vec![false; keys.len()]);
/// skep_maps::dump::batch::lookup_keys(map, &bytes, &mut values, &mut found)?;
/// # Ok(values.as_chunks::<8>().0.iter().map(|v| u64::from_ne_bytes(*v)).sum())
/// # }
/// ```
///
/// # Errors
/// As [`Map::lookup_into`], but for keys that are not there, with the number of keys before;
/// `EINVAL` when the lengths do not fit.
pub fn lookup_keys(
    map: &Map,
    keys: &[u8],
    values: &mut [u8],
    found: &mut [bool],
) -> Result<usize, BatchError> {
    map.check_readable().map_err(nothing)?;
    let (key_size, count) = (map.key_shape().cell_size(), found.len());
    if keys.len() != key_size * count {
        return Err(nothing(MapError::Length {
            what: "buffer of keys",
            given: keys.len(),
            want: key_size * count,
        }));
    }
    let value_size = if map.is_per_cpu() {
        values.len().checked_div(count).unwrap_or(0)
    } else {
        map.user_value_size()
    };
    if values.len() != value_size * count {
        return Err(nothing(MapError::Length {
            what: "buffer of values",
            given: values.len(),
            want: value_size * count,
        }));
    }
    if count > 0 {
        map.check_value(value_size).map_err(nothing)?;
    }
    let mut there = 0;
    let mut done = 0;
    while let Some(group) = lookup_group(map, keys, values, found, (done, value_size)) {
        match group {
            Ok(n) => {
                there += found.iter().skip(done).take(n).filter(|found| **found).count();
                done += n;
            }
            Err(error) => return Err(BatchError { count: done, error }),
        }
    }
    for (i, found) in found.iter_mut().enumerate().skip(done) {
        prefetch_group(map, keys, i, count, key_size);
        let value = values.get_mut(i * value_size..(i + 1) * value_size).unwrap_or_default();
        let key = key_at(map, keys, i).unwrap_or(Err(MapError::KeyCell));
        *found = match key.and_then(|key| map.ops().lookup(key, value, 0)) {
            Ok(()) => true,
            Err(MapError::NoElement) => false,
            Err(error) => return Err(BatchError { count: i, error }),
        };
        there += usize::from(*found);
    }
    Ok(there)
}

/// Looks a group of keys up, from the one with a number on, for types that can; tells how many.
/// `None` at the end, and before a cell with a key that cannot be.
fn lookup_group(
    map: &Map,
    keys: &[u8],
    values: &mut [u8],
    found: &mut [bool],
    (first, value_size): (usize, usize),
) -> Option<Result<usize, MapError>> {
    let (shape, end) = (map.key_shape(), found.len().min(first + PREFETCH_KEYS));
    let cells = keys.get(first * shape.cell_size()..end * shape.cell_size())?;
    let values = values.get_mut(first * value_size..end * value_size)?;
    let found = found.get_mut(first..end).filter(|found| !found.is_empty())?;
    if matches!(shape, KeyShape::Bytes { .. })
        && cells.chunks_exact(shape.cell_size()).any(|cell| shape.read_cell(cell).is_none())
    {
        return None;
    }
    let done = map.ops().lookup_group(cells, values, found)?;
    Some(done.map(|()| end - first))
}

/// Before every [`PREFETCH_KEYS`]th key: asks for what it and those behind it will touch.
#[inline]
fn prefetch_group(map: &Map, keys: &[u8], i: usize, count: usize, key_size: usize) {
    if i.is_multiple_of(PREFETCH_KEYS)
        && matches!(map.key_shape(), KeyShape::Fixed(_))
        && let Some(group) = keys.get(i * key_size..(i + PREFETCH_KEYS).min(count) * key_size)
    {
        map.ops().prefetch(group);
    }
}

/// Refuses arrays as the kernel does, before anything else: their elements stay.
fn elements_go(map: &Map, operation: &'static str) -> Result<(), MapError> {
    match map.def().map_type {
        t @ (MapType::Array | MapType::PercpuArray | MapType::ArrayOfMaps) => {
            Err(MapError::Unsupported { map_type: t, operation, errno: ENOTSUPP })
        }
        _ => Ok(()),
    }
}

/// Returns a key of a column of cells; `None` behind the end of the column.
#[inline]
fn key_at<'k>(map: &Map, keys: &'k [u8], i: usize) -> Option<Result<&'k [u8], MapError>> {
    let cell = part(keys, i, map.key_shape().cell_size())?;
    Some(map.key_shape().read_cell(cell).ok_or(MapError::KeyCell))
}

fn part(column: &[u8], i: usize, size: usize) -> Option<&[u8]> {
    column.get(i.checked_mul(size)?..)?.get(..size)
}

/// In a cursor of four bytes: it names one of [`PLACES`]. Without it, it is the number of a bucket.
const NAMED: u32 = 1 << 31;

/// Places inside a bucket at which some walk stopped: four bytes cannot say them, so they are
/// remembered here, the newest last, and forgotten when many others came.
static PLACES: Mutex<VecDeque<(u64, u32, Position)>> = Mutex::new(VecDeque::new());
const MOST_PLACES: usize = 1 << 12;

fn number(map: &Map, at: Position) -> u32 {
    if at.minor == 0
        && let Ok(bucket) = u32::try_from(at.major)
        && bucket & NAMED == 0
    {
        return bucket;
    }
    let mut places = PLACES.lock().unwrap_or_else(PoisonError::into_inner);
    let name = places.back().map_or(0, |(_, name, _)| name.wrapping_add(1) & !NAMED);
    if places.len() >= MOST_PLACES {
        places.pop_front();
    }
    places.push_back((map.generation(), name, at));
    NAMED | name
}

fn place(map: &Map, number: u32) -> Result<Position, MapError> {
    if number & NAMED == 0 {
        return Ok(Position { major: number.into(), ..Position::default() });
    }
    let places = PLACES.lock().unwrap_or_else(PoisonError::into_inner);
    let named = places
        .iter()
        .rev()
        .find(|(generation, name, _)| *generation == map.generation() && *name == number & !NAMED);
    named.map(|(_, _, at)| *at).ok_or(MapError::StaleCursor)
}
