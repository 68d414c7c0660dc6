//! What programs are about to look up, noted for a batch of packets and fetched at once.
//!
//! The part of a program that finds its lookups ([`skep_vm::lookahead`]) runs on each frame of a batch
//! first. It calls `note` for each lookup, which keeps the key if the map's memory may be far away, and
//! [`fetch`] then asks for all that lookups of these keys will touch.

use std::cell::RefCell;

use skep_helpers::map::{lookup_elem, map};
use skep_isa::{KeyShape, MapType};
use skep_maps::Map;

/// Bytes that a map has at least whose elements are fetched ahead: beyond what a processor's second
/// cache keeps of it beside all else.
const FAR: u64 = 1 << 20;
/// What a hash keeps besides key and value, about.
const OVERHEAD: u64 = 24;
/// Maps that keys are noted of at a time; keys of others are not.
const MAPS: usize = 4;

/// Keys of one map.
struct Keys {
    /// The map, as programs know it.
    handle: u64,
    keys: Vec<u8>,
}

thread_local! {
    static NOTED: RefCell<[Keys; MAPS]> =
        const { RefCell::new([const { Keys { handle: 0, keys: Vec::new() } }; MAPS]) };
}

/// Tells whether a map's elements may be far away, and can be fetched.
#[must_use]
pub fn is_far(map: &Map) -> bool {
    let def = map.def();
    let hash = matches!(
        def.map_type,
        MapType::Hash | MapType::PercpuHash | MapType::LruHash | MapType::LruPercpuHash
    );
    let element = u64::from(def.key_size) + u64::from(def.value_size) + OVERHEAD;
    hash && u64::from(def.max_entries).saturating_mul(element) >= FAR
}

/// Notes a key, and says 1; looks it up in a map that is near. No value lies at address 1.
pub(crate) unsafe extern "C" fn note(handle: u64, key: u64, _: u64, _: u64, _: u64) -> u64 {
    // SAFETY: the verifier proved that argument 1 is a map and argument 2 a key of it.
    let map = unsafe { map(handle) };
    match map.key_shape() {
        KeyShape::Fixed(size) if is_far(map) => {
            // SAFETY: as above; a key has the map's size of bytes.
            let key = unsafe { std::slice::from_raw_parts(key as *const u8, size as usize) };
            NOTED.with(|noted| {
                let Ok(mut noted) = noted.try_borrow_mut() else { return };
                let free = |keys: &&mut Keys| keys.handle == handle || keys.keys.is_empty();
                if let Some(keys) = noted.iter_mut().find(free) {
                    keys.handle = handle;
                    keys.keys.extend_from_slice(key);
                }
            });
            1
        }
        // SAFETY: as above.
        _ => unsafe { lookup_elem(handle, key, 0, 0, 0) },
    }
}

/// Asks for all that lookups of the noted keys will touch, and forgets the keys. Returns how many bytes
/// of keys there were.
///
/// # Safety
/// The maps of the programs that noted them on this thread are still there.
pub unsafe fn fetch() -> usize {
    NOTED.with(|noted| {
        let Ok(mut noted) = noted.try_borrow_mut() else { return 0 };
        let mut bytes = 0;
        for Keys { handle, keys } in noted.iter_mut().filter(|keys| !keys.keys.is_empty()) {
            // SAFETY: the caller's promise; `note` was given the map of a helper's argument.
            unsafe { map(*handle) }.prefetch(keys);
            bytes += keys.len();
            keys.clear();
        }
        bytes
    })
}
