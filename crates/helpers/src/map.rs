//! Map helpers. Argument 1 is the address of the process's [`Map`].
//!
//! Argument 2 of those with a key is its address, or where the map's keys are byte strings, that of
//! a dynptr.

use skep_isa::KeyShape;
use skep_maps::Map;

use super::dynptr;

/// Turns the first argument of a map helper back into the map.
///
/// # Safety
/// `handle` came from a `PSEUDO_MAP_IDX` immediate of a compiled program, whose maps live as long
/// as its code.
pub unsafe fn map<'a>(handle: u64) -> &'a Map {
    // SAFETY: the caller's promise; the verifier lets nothing else into such an argument.
    unsafe { &*(handle as *const Map) }
}

/// Gives a key to a map's function as that takes it.
///
/// # Safety
/// `key` is the address of a readable key of this map, or of a dynptr of memory where its keys are
/// byte strings.
#[inline(always)]
unsafe fn with_key<R>(map: &Map, key: u64, function: impl FnOnce(*const u8) -> R) -> R {
    if let KeyShape::Fixed(_) = map.key_shape() {
        return function(key as *const u8);
    }
    // SAFETY: the caller's promise.
    let key = unsafe { dynptr::key(key) };
    function((&raw const key).cast())
}

/// Is `bpf_map_lookup_elem`.
///
/// # Safety
/// As [`map`] for the first argument; the second is the address of a key of it, as above.
#[unsafe(link_section = ".text.skep_event")]
pub unsafe extern "C" fn lookup_elem(handle: u64, key: u64, _: u64, _: u64, _: u64) -> u64 {
    // SAFETY: the verifier proved that argument 1 is a map and argument 2 a key of it.
    unsafe {
        let map = map(handle);
        with_key(map, key, |key| map.prog_lookup(key) as u64)
    }
}

#[unsafe(link_section = ".text.skep_event")]
pub(super) unsafe extern "C" fn update_elem(
    handle: u64,
    key: u64,
    value: u64,
    flags: u64,
    _: u64,
) -> u64 {
    // SAFETY: as above, and argument 3 is readable for the map's value size.
    unsafe {
        let map = map(handle);
        with_key(map, key, |key| map.prog_update(key, value as *const u8, flags) as u64)
    }
}

#[unsafe(link_section = ".text.skep_event")]
pub(super) unsafe extern "C" fn delete_elem(handle: u64, key: u64, _: u64, _: u64, _: u64) -> u64 {
    // SAFETY: as for lookup_elem.
    unsafe {
        let map = map(handle);
        with_key(map, key, |key| map.prog_delete(key) as u64)
    }
}

#[unsafe(link_section = ".text.skep_event")]
pub(super) unsafe extern "C" fn push_elem(
    handle: u64,
    value: u64,
    flags: u64,
    _: u64,
    _: u64,
) -> u64 {
    // SAFETY: the verifier proved that argument 1 is a map and argument 2 readable for its value
    // size.
    unsafe { map(handle).prog_push(value as *const u8, flags) as u64 }
}

#[unsafe(link_section = ".text.skep_event")]
pub(super) unsafe extern "C" fn pop_elem(handle: u64, value: u64, _: u64, _: u64, _: u64) -> u64 {
    // SAFETY: as above, and argument 2 is writable.
    unsafe { map(handle).prog_pop(value as *mut u8) as u64 }
}

#[unsafe(link_section = ".text.skep_event")]
pub(super) unsafe extern "C" fn peek_elem(handle: u64, value: u64, _: u64, _: u64, _: u64) -> u64 {
    // SAFETY: as above.
    unsafe { map(handle).prog_peek(value as *mut u8) as u64 }
}

#[unsafe(link_section = ".text.skep_event")]
pub(super) unsafe extern "C" fn lookup_percpu_elem(
    handle: u64,
    key: u64,
    cpu: u64,
    _: u64,
    _: u64,
) -> u64 {
    // SAFETY: as for lookup_elem.
    unsafe {
        let map = map(handle);
        with_key(map, key, |key| map.prog_lookup_cpu(key, cpu as u32) as u64)
    }
}

/// Takes the lock in a map value.
#[unsafe(link_section = ".text.skep_event")]
pub(super) unsafe extern "C" fn spin_lock(lock: u64, _: u64, _: u64, _: u64, _: u64) -> u64 {
    // SAFETY: the verifier proved the argument to be the lock of a map value.
    unsafe { skep_maps::spin::lock(lock as *mut u32) };
    0
}

#[unsafe(link_section = ".text.skep_event")]
pub(super) unsafe extern "C" fn spin_unlock(lock: u64, _: u64, _: u64, _: u64, _: u64) -> u64 {
    // SAFETY: as above, by the thread that took it.
    unsafe { skep_maps::spin::unlock(lock as *mut u32) };
    0
}
