//! Array maps of eight-byte words, which processes change and read at the same time.

use std::sync::atomic::AtomicU64;

use skep_isa::ShapeKind;
use skep_maps::Map;

/// Tells whether a map is an array of at least `least` words, and open for writing.
#[must_use]
pub fn is_array(map: &Map, least: u32) -> bool {
    let shape = map.shape();
    matches!(shape.kind, ShapeKind::Array)
        && shape.stride == 8
        && shape.entries >= least
        && map.file().writable()
}

/// Returns the words of a map.
///
/// # Panics
/// When it is not what [`is_array`] says.
#[must_use]
pub fn of(map: &Map) -> &[AtomicU64] {
    assert!(is_array(map, 0), "the map is an array of eight-byte words");
    let shape = map.shape();
    // SAFETY: an array's values lie in the map's mapping one after the other (checked above), which
    // is there as long as the map, and writable. They are aligned, and only ever used as atomics.
    unsafe { std::slice::from_raw_parts(shape.base as *const AtomicU64, shape.entries as usize) }
}
