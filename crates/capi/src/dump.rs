//! Maps, many elements at a time: dumps and batches.

use std::ffi::{c_int, c_void};

use skep::Map;
use skep::maps::dump::batch::{self, BatchError};
use skep::maps::dump::command;
use skep::maps::{Cursor, ENOTSUPP, MapError, Take};

use crate::call::{Answer, Failure, call};
use crate::errno;
use crate::handle::{self, Handle};
use crate::map::failed;
use crate::memory::{self, Key};

/// Flags of dumps and of batches that read.
const TAKES: u64 = command::F_LOCK | command::F_DELETE | command::F_EXACT;

/// Refuses flags as the caller gave them.
fn check_flags(map: &Map, flags: u64, known: u64) -> Answer<()> {
    if flags & !known != 0 {
        return Err(failed(map)(MapError::Flags { flags }));
    }
    if flags & (command::F_DELETE | command::F_EXACT) == command::F_EXACT {
        return Err(Failure::new(errno::EINVAL, "SKEP_EXACT is for calls with SKEP_DELETE"));
    }
    Ok(())
}

/// How much of a buffer a dump may fill: no more than its answer can say.
fn room(size: usize) -> u32 {
    c_int::try_from(size).unwrap_or(c_int::MAX).cast_unsigned()
}

/// # Safety
/// As the header says.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn skep_map_dump(
    map: Handle,
    cursor: *mut c_void,
    cursor_size: usize,
    buffer: *mut c_void,
    size: usize,
    flags: u64,
) -> c_int {
    // SAFETY: the buffers have these sizes: the caller's promise.
    call(|| unsafe {
        let map = handle::get::<Map>(map)?;
        memory::check_apart((cursor, cursor_size), (buffer, size))?;
        memory::check(cursor, 1, "cursor")?;
        let cursor = memory::output(cursor, cursor_size, "cursor")?;
        let out = memory::output(buffer, size, "buffer")?;
        if flags & (command::F_CURSOR | command::F_RESTART) != 0 {
            return Err(Failure::new(errno::EINVAL, "a dump goes by its cursor only"));
        }
        check_flags(&map, flags, TAKES | command::F_ALIGN | command::F_STRICT)?;
        let is_strict = flags & command::F_STRICT != 0;
        let want = if is_strict { Cursor::strict_len_in(&map) } else { Cursor::len_in(&map) };
        if cursor_size != want {
            let text = format!("the cursor has size {cursor_size}, with these flags it is {want}");
            return Err(Failure::new(errno::EINVAL, text));
        }
        let mut used = room(size);
        match command::dump(&map, Some(cursor), out, &mut used, flags | command::F_CURSOR) {
            Ok(()) => Ok(c_int::try_from(used).unwrap_or(c_int::MAX)),
            Err(MapError::NoElement) => Ok(0),
            Err(e) => Err(failed(&map)(e)),
        }
    })
}

/// Reads how many elements a batch is of, and leaves 0 there: what is refused did none.
///
/// # Safety
/// `count` is null or a number of the caller's.
unsafe fn begin(count: *mut u32) -> Answer<u32> {
    // SAFETY: the caller's promise.
    unsafe {
        let n = memory::number(count, "count")?;
        memory::set(count, 0, "count")?;
        Ok(n)
    }
}

/// Tells how many elements a batch did, also when it stopped.
fn elements(done: &Result<usize, BatchError>) -> usize {
    done.as_ref().map_or_else(|e| e.count, |n| *n)
}

/// Writes how many elements a batch did, also when it stopped, and answers 0 or why.
///
/// # Safety
/// `count` is null or a number of the caller's.
unsafe fn finish(map: &Map, count: *mut u32, done: Result<usize, BatchError>) -> Answer {
    let n = u32::try_from(elements(&done)).unwrap_or(u32::MAX);
    // SAFETY: the caller's promise.
    unsafe { memory::set(count, n, "count") }?;
    done.map(|_| 0).map_err(|e| failed(map)(e.error))
}

/// Keys that are copied together.
const TOGETHER: usize = 256;

/// Runs an operation on keys that stand one behind another, some at a time, which nobody writes to
/// meanwhile; it gets these, the number of the first, and how many they are.
fn in_parts(
    map: &Map,
    keys: &[u8],
    count: usize,
    run: impl Fn(&[u8], usize, usize) -> Result<usize, BatchError>,
) -> Result<usize, BatchError> {
    let size = map.key_shape().cell_size();
    let mut done = 0;
    loop {
        let n = (count - done).min(TOGETHER);
        let some = keys.get(done * size..(done + n) * size).unwrap_or_default();
        let failed = |e: BatchError| BatchError { count: done + e.count, ..e };
        run(&Key::of(some, usize::MAX), done, n).map_err(failed)?;
        done += n;
        if done == count {
            return Ok(done);
        }
    }
}

/// Tells how many bytes a column has, of cells of a size.
fn column(count: u32, size: usize) -> Answer<usize> {
    let bytes = (count as usize).checked_mul(size);
    bytes.ok_or_else(|| Failure::new(errno::EINVAL, "the count is too large"))
}

/// # Safety
/// As the header says.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn skep_map_update_batch(
    map: Handle,
    keys: *const c_void,
    values: *const c_void,
    count: *mut u32,
    flags: u64,
) -> c_int {
    // SAFETY: the columns have room for `count` elements: the caller's promise.
    call(|| unsafe {
        let map = handle::get::<Map>(map)?;
        let n = begin(count)?;
        let (size, cell_size) = (map.user_value_size(), map.key_shape().cell_size());
        memory::check_beside(count, (keys.cast_mut(), column(n, cell_size)?))?;
        memory::check_beside(count, (values.cast_mut(), column(n, size)?))?;
        let keys = memory::input(keys, column(n, cell_size)?, "column of keys")?;
        let values = memory::input(values, column(n, size)?, "column of values")?;
        let done = in_parts(&map, keys, n as usize, |keys, first, n| {
            let values = values.get(first * size..(first + n) * size).unwrap_or_default();
            batch::update_batch(&map, keys, values, n, flags)
        });
        finish(&map, count, done)
    })
}

/// # Safety
/// As the header says.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn skep_map_delete_batch(
    map: Handle,
    keys: *const c_void,
    count: *mut u32,
) -> c_int {
    // SAFETY: the column has room for `count` keys: the caller's promise.
    call(|| unsafe {
        let map = handle::get::<Map>(map)?;
        let n = begin(count)?;
        let bytes = column(n, map.key_shape().cell_size())?;
        memory::check_beside(count, (keys.cast_mut(), bytes))?;
        let keys = memory::input(keys, bytes, "column of keys")?;
        let delete = |keys: &[u8], _, n| batch::delete_batch(&map, keys, n, 0);
        finish(&map, count, in_parts(&map, keys, n as usize, delete))
    })
}

/// # Safety
/// As the header says.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn skep_map_lookup_batch(
    map: Handle,
    cursor: *mut c_void,
    cursor_size: usize,
    keys: *mut c_void,
    values: *mut c_void,
    count: *mut u32,
    flags: u64,
) -> c_int {
    // SAFETY: cursor and columns have these sizes: the caller's promise.
    call(|| unsafe {
        let map = handle::get::<Map>(map)?;
        let n = begin(count)?;
        let (key_bytes, value_bytes) =
            (column(n, map.key_shape().cell_size())?, column(n, map.user_value_size())?);
        if map.key_shape().cell_size() == 0 && map.user_value_size() == 0 {
            // A ring buffer. Columns of nothing would be said to be too small.
            let (map_type, operation) = (map.map_type(), "lookup batch");
            let none = MapError::Unsupported { map_type, operation, errno: ENOTSUPP };
            return Err(failed(&map)(none));
        }
        memory::check_apart((cursor, cursor_size), (keys, key_bytes))?;
        memory::check_apart((cursor, cursor_size), (values, value_bytes))?;
        memory::check_apart((keys, key_bytes), (values, value_bytes))?;
        for column in [(cursor, cursor_size), (keys, key_bytes), (values, value_bytes)] {
            memory::check_beside(count, column)?;
        }
        memory::check(cursor, 1, "cursor")?;
        let cursor = memory::output(cursor, cursor_size, "cursor")?;
        let keys = memory::output(keys, key_bytes, "column of keys")?;
        let values = memory::output(values, value_bytes, "column of values")?;
        check_flags(&map, flags, TAKES)?;
        let take = match flags & (command::F_DELETE | command::F_EXACT) {
            0 => None,
            command::F_DELETE => Some(Take::Fast),
            _ => Some(Take::Exact),
        };
        // A byte before the cursor of the kernel's kind says whether the walk has begun.
        let Some((begun, place)) =
            cursor.split_first_mut().filter(|(_, rest)| rest.len() >= batch::cursor_len(&map))
        else {
            let text = format!("the cursor needs {} bytes", batch::cursor_len(&map) + 1);
            return Err(Failure::new(errno::EINVAL, text));
        };
        let from = (*begun != 0).then(|| place.to_vec());
        let lock = flags & command::F_LOCK;
        let columns = (&mut *keys, &mut *values);
        let done =
            batch::lookup_batch(&map, from.as_deref(), place, columns, n as usize, lock, take);
        // A call that was refused, or found nothing, has left no place to go on from.
        if elements(&done) != 0 {
            *begun = 1;
        }
        finish(&map, count, done)
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Elements that were copied, and perhaps taken out, beyond what the answer says would be lost.
    #[test]
    fn a_dump_fills_no_more_than_it_can_say() {
        let most = usize::try_from(c_int::MAX).unwrap();
        for (size, want) in [(0, 0), (12, 12), (most, most), (most + 1, most), (usize::MAX, most)] {
            assert_eq!(room(size) as usize, want);
        }
    }
}
