//! Ring buffer helpers.

use super::map::map;

#[unsafe(link_section = ".text.skep_event")]
pub(super) unsafe extern "C" fn output(
    handle: u64,
    data: u64,
    size: u64,
    flags: u64,
    _: u64,
) -> u64 {
    // SAFETY: the verifier proved argument 1 a map and argument 2 readable for `size` bytes.
    unsafe { map(handle).ringbuf_output(data as *const u8, size, flags) as u64 }
}

#[unsafe(link_section = ".text.skep_event")]
pub(super) unsafe extern "C" fn reserve(handle: u64, size: u64, flags: u64, _: u64, _: u64) -> u64 {
    // SAFETY: the verifier proved argument 1 a map.
    let map = unsafe { map(handle) };
    map.ringbuf_reserve(size, flags) as u64
}

#[unsafe(link_section = ".text.skep_event")]
pub(super) unsafe extern "C" fn submit(record: u64, flags: u64, _: u64, _: u64, _: u64) -> u64 {
    // SAFETY: the verifier proved it a record that was reserved and not given over, of a map that
    // stays open while the program runs.
    unsafe { skep_maps::Map::ringbuf_submit(record as *mut u8, flags) };
    0
}

#[unsafe(link_section = ".text.skep_event")]
pub(super) unsafe extern "C" fn discard(record: u64, flags: u64, _: u64, _: u64, _: u64) -> u64 {
    // SAFETY: as above.
    unsafe { skep_maps::Map::ringbuf_discard(record as *mut u8, flags) };
    0
}

#[unsafe(link_section = ".text.skep_event")]
pub(super) unsafe extern "C" fn query(handle: u64, flags: u64, _: u64, _: u64, _: u64) -> u64 {
    // SAFETY: the verifier proved argument 1 a map.
    let map = unsafe { map(handle) };
    map.ringbuf_query(flags)
}
