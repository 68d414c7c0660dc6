//! What a definition makes of a hash: sizes, and what has memory from the beginning.

use skep_isa::{MapFlags, MapType};

use crate::def::MapDef;
use crate::error::{E2BIG, ENOTSUPP, MapError};
use crate::layout::{Areas, Layout, PercpuLayout};
use crate::shm::table::Geometry;

/// Largest key and value together (the kernel: what one allocation can have).
const MAX_ELEMENT: u64 = (4 << 20) - 64;

pub(super) fn geometry(def: &MapDef, slots: u32) -> Result<Geometry, MapError> {
    let lru = is_lru(def.map_type);
    if lru && def.flags.has(MapFlags::NO_PREALLOC) {
        return Err(def.refused("an LRU hash is always preallocated", ENOTSUPP));
    }
    if def.key_size == 0 || def.value_size == 0 || def.max_entries == 0 {
        return Err(def.invalid("key size, value size and number of entries must not be zero"));
    }
    let too_large = def.refused("too large", E2BIG);
    if u64::from(def.key_size) + u64::from(def.value_size) > MAX_ELEMENT {
        return Err(too_large);
    }
    Geometry::new(def.max_entries, def.key_size, def.value_size, slots)
        .filter(|g| g.payload_len <= 1 << 42)
        .ok_or(too_large)
}

/// What of a table has memory from the beginning.
pub(super) fn layout(def: &MapDef, g: &Geometry) -> Layout {
    let on_demand = def.flags.has(MapFlags::NO_PREALLOC);
    let (at, stride) = g.slots();
    let areas = if stride == 0 {
        Areas::NONE
    } else {
        Areas::Slots(PercpuLayout { at, stride, on_demand })
    };
    let prefix = match (on_demand, stride) {
        (true, _) => g.elements_at(),
        (false, 0) => g.payload_len,
        (false, _) => at,
    };
    Layout::with_epochs(g.payload_len, g.elements).with_initial(prefix, areas)
}

pub(super) fn is_lru(map_type: MapType) -> bool {
    matches!(map_type, MapType::LruHash | MapType::LruPercpuHash)
}
