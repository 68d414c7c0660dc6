//! Maps whose keys are in the order of their bytes: lookups beside a key, and ranges.

use std::ffi::{c_int, c_void};
use std::ops::{Bound, ControlFlow};

use skep::Map;
use skep::maps::{KeyRange, Nearest};

use crate::call::{Answer, Failure, call};
use crate::errno;
use crate::handle::{self, Handle};
use crate::map::{check_value, failed};
use crate::memory;

/// `SKEP_FLOOR`.
pub const FLOOR: u32 = 0;
/// `SKEP_CEILING`.
pub const CEILING: u32 = 1;
/// `SKEP_LONGEST_PREFIX`.
pub const LONGEST_PREFIX: u32 = 2;
/// `SKEP_PREFIX`.
pub const PREFIX: u32 = 1;
/// `SKEP_REVERSE`.
pub const REVERSE: u32 = 2;

/// # Safety
/// As the header says.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn skep_map_lookup_nearest(
    map: Handle,
    key: *const c_void,
    key_size: usize,
    which: u32,
    found: *mut c_void,
    found_size: *mut usize,
    value: *mut c_void,
    value_size: usize,
) -> c_int {
    // SAFETY: the buffers have these sizes: the caller's promise. The key is not used any more when
    // something is written, which may go to the same place.
    call(|| unsafe {
        let map = handle::get::<Map>(map)?;
        let which = match which {
            FLOOR => Nearest::Floor,
            CEILING => Nearest::Ceiling,
            LONGEST_PREFIX => Nearest::LongestPrefix,
            other => {
                let text = format!("{other} is none of the ways to be nearest, which are 0 to 2");
                return Err(Failure::new(errno::EINVAL, text));
            }
        };
        let room = memory::number(found_size, "size of the key that is found")?;
        memory::check_apart((value.cast_const(), value_size), (found, room))?;
        memory::check_beside(found_size, (found, room))?;
        memory::check_beside(found_size, (value, value_size))?;
        let key = memory::input(key, key_size, "key")?;
        check_value(&map, value_size)?;
        let (near, its) = map.lookup_nearest(key, which).map_err(failed(&map))?;
        memory::set(found_size, near.len(), "size of the key that is found")?;
        let Some(out) = memory::output(found, room, "key that is found")?.get_mut(..near.len())
        else {
            let text = format!("the key has size {}, the buffer {room}", near.len());
            return Err(Failure::new(errno::ENOSPC, text));
        };
        out.copy_from_slice(&near);
        memory::output(value, value_size, "value")?.copy_from_slice(&its);
        Ok(0)
    })
}

/// A range as C gives it.
struct Range {
    from: (*const c_void, usize),
    to: (*const c_void, usize),
    flags: u32,
}

impl Range {
    /// Checks it, and copies the keys.
    ///
    /// # Safety
    /// The keys have these sizes.
    unsafe fn read(&self, known: u32) -> Answer<KeyRange> {
        if self.flags & !known != 0 {
            let text = format!("{:#x} has flags that there are not, or not here", self.flags);
            return Err(Failure::new(errno::EINVAL, text));
        }
        // SAFETY: the caller's promise.
        let (from, to) = unsafe { (bytes(self.from, "first key")?, bytes(self.to, "last key")?) };
        if self.flags & PREFIX == 0 {
            let from = from.map_or(Bound::Unbounded, Bound::Included);
            return Ok(KeyRange::new(from, to.map_or(Bound::Unbounded, Bound::Excluded)));
        }
        if to.is_some() {
            let text = "keys with a prefix end where it does, so the last key is NULL";
            return Err(Failure::new(errno::EINVAL, text));
        }
        let none = || Failure::new(errno::EFAULT, "the prefix is NULL");
        Ok(KeyRange::prefix(from.ok_or_else(none)?))
    }
}

/// Takes bytes, or none for null.
///
/// # Safety
/// They have this size.
unsafe fn bytes<'a>(given: (*const c_void, usize), what: &str) -> Answer<Option<&'a [u8]>> {
    if given.0.is_null() && given.1 == 0 {
        return Ok(None);
    }
    // SAFETY: the caller's promise.
    unsafe { memory::input(given.0, given.1, what) }.map(Some)
}

/// What is called for each element.
pub type Element =
    unsafe extern "C" fn(*mut c_void, *const c_void, usize, *const c_void, usize) -> c_int;

/// # Safety
/// As the header says.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn skep_map_visit(
    map: Handle,
    from: *const c_void,
    from_size: usize,
    to: *const c_void,
    to_size: usize,
    flags: u32,
    element: Option<Element>,
    context: *mut c_void,
) -> c_int {
    let range = Range { from: (from, from_size), to: (to, to_size), flags };
    call(|| {
        let map = handle::get::<Map>(map)?;
        // SAFETY: the keys have these sizes: the caller's promise.
        let range = unsafe { range.read(PREFIX | REVERSE) }?;
        let none = || Failure::new(errno::EFAULT, "the function to call is NULL");
        let element = element.ok_or_else(none)?;
        let (mut n, mut answer): (c_int, c_int) = (0, 0);
        let visited = map.visit(&range, flags & REVERSE != 0, |key, value| {
            n = n.saturating_add(1);
            // SAFETY: the caller's function, with what the header says.
            answer = unsafe {
                let (key_at, value_at) = (key.as_ptr().cast(), value.as_ptr().cast());
                element(context, key_at, key.len(), value_at, value.len())
            };
            if answer == 0 { ControlFlow::Continue(()) } else { ControlFlow::Break(()) }
        });
        if answer < 0 {
            return Err(Failure::new(answer.saturating_neg(), "the callback ended the visit"));
        }
        visited.map_err(failed(&map)).map(|()| n)
    })
}

/// # Safety
/// As the header says.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn skep_map_delete_range(
    map: Handle,
    from: *const c_void,
    from_size: usize,
    to: *const c_void,
    to_size: usize,
    flags: u32,
    removed: *mut u64,
) -> c_int {
    let range = Range { from: (from, from_size), to: (to, to_size), flags };
    // SAFETY: the keys have these sizes, `removed` is NULL or a number's place: the caller's promise.
    call(|| unsafe {
        let map = handle::get::<Map>(map)?;
        let range = range.read(PREFIX)?;
        if !removed.is_null() {
            memory::check(removed.cast_const().cast(), align_of::<u64>(), "count")?;
        }
        let n = map.delete_range(&range).map_err(failed(&map))?;
        if !removed.is_null() {
            memory::set(removed, n, "count")?;
        }
        Ok(0)
    })
}
