//! `BPF_MAP_TYPE_HASH` and its per-CPU kind.
//!
//! [`table`] is the structure both share: lock-free lookups, changes under striped locks, elements that never move and
//! are used again after a deletion, as in the kernel's preallocated hash. [`plain`] keeps the value inside the element,
//! [`percpu`] keeps one for each slot.

pub(crate) mod percpu;
pub(crate) mod plain;
mod pool;
mod table;

use skep_isa::MapFlags;

use crate::def::MapDef;
use crate::error::{E2BIG, MapError};
use crate::shm::table::Geometry;

/// Largest key and value together (the kernel: what one allocation can have).
const MAX_ELEMENT: u64 = (4 << 20) - 64;

/// Flags a hash takes besides those of every type.
pub(crate) const FLAGS: u32 = MapFlags::NO_PREALLOC | MapFlags::ZERO_SEED;

fn geometry(def: &MapDef, slots: u32) -> Result<Geometry, MapError> {
    if def.key_size == 0 || def.value_size == 0 || def.max_entries == 0 {
        return Err(def.invalid("key size, value size and number of entries must not be zero"));
    }
    let too_large = MapError::Definition { map_type: def.map_type, what: "too large", errno: E2BIG };
    if u64::from(def.key_size) + u64::from(def.value_size) > MAX_ELEMENT {
        return Err(too_large);
    }
    Geometry::new(def.max_entries, def.key_size, def.value_size, slots).filter(|g| g.payload_len <= 1 << 42).ok_or(too_large)
}
