//! The DUMP command: packed pairs of key and value, going on from a key or a cursor.
//!
//! This is the argument block and the rules of the proposed `BPF_MAP_DUMP`, without its defects: a
//! `prev_key` that was deleted is an answer of its own (`EAGAIN`) and not a silent restart, and
//! what was copied is always delivered.

use super::cursor::Cursor;
use super::output::Output;
use super::position::Position;
use super::walk::{Take, Walk};
use crate::error::MapError;
use crate::map::Map;

/// `BPF_F_LOCK`: copy values under their spin lock; refused where they have none.
pub const F_LOCK: u64 = 4;
/// `prev_key` is a [`Cursor`], which has [`Cursor::len_in`] bytes; all zeroes begin. It survives
/// the deletion of any key.
pub const F_CURSOR: u64 = 1 << 32;
/// Take the elements out of the map, as [`Take::Fast`].
pub const F_DELETE: u64 = 1 << 33;
/// With [`F_DELETE`]: as [`Take::Exact`].
pub const F_EXACT: u64 = 1 << 34;
/// Begin again when `prev_key` is gone, as the command was proposed.
pub const F_RESTART: u64 = 1 << 35;
/// Put each value at the next multiple of eight bytes.
pub const F_ALIGN: u64 = 1 << 36;

/// With [`F_CURSOR`], of [`Cursor::strict_len_in`] bytes: return only what was put in before the
/// first call ([`Walk::strict`]).
pub const F_STRICT: u64 = 1 << 37;

const KNOWN: u64 = F_LOCK | F_CURSOR | F_DELETE | F_EXACT | F_RESTART | F_ALIGN | F_STRICT;

/// Fills `buf` with elements behind `prev_key`, a [cell](Map::key_shape), or from the beginning; sets `buf_len` to the bytes
/// used and moves a `prev_key` that was given to the last element.
///
/// Succeeds with at least one element. The first call has no `prev_key`, so the caller takes the
/// last key from the buffer; with [`F_CURSOR`] he gives zeroes, and need not.
///
/// ```
/// # use skep_maps::{Map, MapError, dump::command};
/// fn values(map: &Map) -> Result<Vec<u8>, MapError> {
///     let mut cursor = vec![0; skep_maps::Cursor::len_in(map)];
///     let (mut buf, mut all) = (vec![0; 4096], Vec::new());
///     loop {
///         let mut len = buf.len() as u32;
///         match command::dump(map, Some(&mut cursor), &mut buf, &mut len, command::F_CURSOR) {
///             Ok(()) => all.extend_from_slice(&buf[..len as usize]),
///             Err(MapError::NoElement) => return Ok(all),
///             Err(e) => return Err(e),
///         }
///     }
/// }
/// # let _ = values;
/// ```
///
/// # Errors
/// `ENOENT` when nothing is left; `EINVAL` for unknown flags and for a buffer below one element;
/// `EAGAIN` when `prev_key` is gone and its type keeps no place for it; `ESTALE` for the cursor of
/// another map; else as [`Walk::rows`].
#[doc(alias = "BPF_MAP_DUMP")]
pub fn dump(
    map: &Map,
    mut prev_key: Option<&mut [u8]>,
    buf: &mut [u8],
    buf_len: &mut u32,
    flags: u64,
) -> Result<(), MapError> {
    let without = |flag: u64, needs: u64| flags & (flag | needs) == flag;
    if flags & !KNOWN != 0 || without(F_EXACT, F_DELETE) || without(F_STRICT, F_CURSOR) {
        return Err(MapError::Flags { flags });
    }
    map.check_readable()?;
    if flags & !F_RESTART == 0
        && map.ops().by_key().is_none()
        && let Some(prev) = prev_key.as_deref_mut()
    {
        return behind_key(map, prev, buf, buf_len, flags);
    }
    let mut walk = map.walk();
    if flags & F_ALIGN != 0 {
        walk = walk.aligned();
    }
    if flags & F_LOCK != 0 {
        walk = walk.locked();
    }
    if flags & F_DELETE != 0 {
        walk = walk.taking(if flags & F_EXACT != 0 { Take::Exact } else { Take::Fast });
    }
    if flags & F_STRICT != 0 {
        walk = walk.strict();
    }
    let size = walk.element_size();
    let room = buf.len().min(*buf_len as usize);
    if room < size {
        return Err(MapError::Length { what: "buffer", given: room, want: size });
    }
    if let Some(prev) = prev_key.as_deref() {
        walk = start(map, walk, prev, flags)?;
    }
    let n = walk.rows(&mut buf[..room])?;
    if n == 0 {
        return Err(MapError::NoElement);
    }
    if let Some(prev) = prev_key {
        if flags & F_CURSOR != 0 {
            let cursor = walk.cursor().to_bytes();
            prev[..cursor.len()].copy_from_slice(&cursor);
            prev[cursor.len()..].fill(0);
        } else if let Some((key, _)) = walk.elements(buf, n).last() {
            map.key_shape().write_cell(prev, key);
        }
    }
    *buf_len = u32::try_from(n * size).unwrap_or(u32::MAX);
    Ok(())
}

/// Puts the walk behind `prev`.
fn start<'m>(map: &'m Map, walk: Walk<'m>, prev: &[u8], flags: u64) -> Result<Walk<'m>, MapError> {
    let want = match (flags & F_CURSOR, flags & F_STRICT) {
        (0, _) => map.key_shape().cell_size(),
        (_, 0) => Cursor::len_in(map),
        _ => Cursor::strict_len_in(map),
    };
    if prev.len() != want {
        return Err(MapError::Length { what: "previous key", given: prev.len(), want });
    }
    if flags & F_CURSOR != 0 {
        if prev.iter().all(|b| *b == 0) {
            return Ok(walk);
        }
        return Ok(walk.from_cursor(Cursor::from_bytes(prev).ok_or(MapError::StaleCursor)?));
    }
    let key = map.key_shape().read_cell(prev).ok_or(MapError::KeyCell)?;
    match walk.clone().behind(key)? {
        Some(walk) => Ok(walk),
        None if flags & F_RESTART != 0 => Ok(walk),
        None => Err(MapError::KeyGone),
    }
}

/// The command as it was proposed, where keys have no order: an element a call is what most callers
/// ask for, so what a [`Walk`] could do besides is left out.
fn behind_key(
    map: &Map,
    prev: &mut [u8],
    buf: &mut [u8],
    buf_len: &mut u32,
    flags: u64,
) -> Result<(), MapError> {
    let (key_size, value_size) = (map.key_shape().cell_size(), map.user_value_size());
    let size = key_size + value_size;
    let room = buf.len().min(*buf_len as usize);
    if room < size {
        return Err(MapError::Length { what: "buffer", given: room, want: size });
    }
    if prev.len() != key_size {
        return Err(MapError::Length { what: "previous key", given: prev.len(), want: key_size });
    }
    let key = map.key_shape().read_cell(prev).ok_or(MapError::KeyCell)?;
    let mut at = match map.ops().seek(key)? {
        Some(at) => at,
        None if flags & F_RESTART != 0 => Position::default(),
        None => return Err(MapError::KeyGone),
    };
    if size == 0 {
        // A type without elements has its own answer.
        map.ops().step(&mut at, &mut [], &mut [])?;
        return Err(MapError::NoElement);
    }
    let mut out = Output::rows(&mut buf[..room], key_size, value_size, false);
    let filled = map.ops().fill(&mut at, &mut out);
    let n = out.used();
    if n == 0 {
        // What was copied is delivered before an error is.
        filled?;
        return Err(MapError::NoElement);
    }
    if let Some((last, _)) = out.element(n - 1) {
        prev.copy_from_slice(last);
    }
    *buf_len = u32::try_from(n * size).unwrap_or(u32::MAX);
    Ok(())
}
