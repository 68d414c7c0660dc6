//! The table of map types: what each type must be able to do, and one row for each.
//!
//! A new map type is one file with an implementation of [`MapOps`] and one row in [`TYPES`].

use std::sync::Arc;

use skep_isa::map::Offer;
use skep_isa::{MapShape, MapType, ShapeKind};

use crate::def::MapDef;
use crate::dump::Position;
use crate::error::{EINVAL, MapError};
use crate::shm::ObjectFile;
use crate::slots::SlotTable;
use crate::{array, hash, percpu_array, ringbuf};

/// What a map type needs of its file, from its definition.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Layout {
    /// Bytes of payload.
    pub(crate) payload_len: u64,
    /// From here on the payload is mapped a second time behind itself.
    pub(crate) mirror: Option<u64>,
}

/// What a map type is given when its file is mapped.
#[derive(Debug)]
pub(crate) struct Parts {
    pub(crate) def: MapDef,
    pub(crate) seed: u64,
    pub(crate) file: Arc<ObjectFile>,
    /// The directory's slots, for types that say so in their row.
    pub(crate) slots: Option<Arc<SlotTable>>,
}

/// One map type.
pub(crate) struct TypeRow {
    pub(crate) map_type: MapType,
    /// Flags allowed at creation.
    pub(crate) flags: u32,
    /// The type keeps a value for each slot.
    pub(crate) per_cpu: bool,
    /// Checks a definition and tells the sizes it leads to. The same definition always has the same layout.
    pub(crate) layout: fn(&MapDef) -> Result<Layout, MapError>,
    /// Makes the operations over a mapped file whose payload has the size `layout` told.
    pub(crate) open: fn(Parts) -> Result<Box<dyn MapOps>, MapError>,
}

mod allowed {
    use skep_isa::MapFlags as F;
    /// Access flags every type takes.
    pub(super) const ANY: u32 = F::RDONLY | F::WRONLY | F::RDONLY_PROG | F::WRONLY_PROG | F::NUMA_NODE;
    pub(super) const RINGBUF: u32 = F::NUMA_NODE;
    pub(super) const ARRAY: u32 = ANY | F::MMAPABLE;
}

/// Every map type this crate makes.
pub(crate) const TYPES: &[TypeRow] = &[
    TypeRow {
        map_type: MapType::Hash,
        flags: allowed::ANY | hash::FLAGS,
        per_cpu: false,
        layout: hash::plain::layout,
        open: hash::plain::open,
    },
    TypeRow {
        map_type: MapType::PercpuHash,
        flags: allowed::ANY | hash::FLAGS,
        per_cpu: true,
        layout: hash::percpu::layout,
        open: hash::percpu::open,
    },
    TypeRow { map_type: MapType::Array, flags: allowed::ARRAY, per_cpu: false, layout: array::layout, open: array::open },
    TypeRow { map_type: MapType::Ringbuf, flags: allowed::RINGBUF, per_cpu: false, layout: ringbuf::layout, open: ringbuf::open },
    TypeRow { map_type: MapType::PercpuArray, flags: allowed::ANY, per_cpu: true, layout: percpu_array::layout, open: percpu_array::open },
];

pub(crate) fn row(def: &MapDef) -> Result<&'static TypeRow, MapError> {
    TYPES.iter().find(|r| r.map_type == def.map_type).ok_or_else(|| match def.map_type.row().offer {
        Offer::No(why) => def.invalid(why),
        Offer::Yes => def.invalid("this version of skep has no such maps yet"),
    })
}

/// What the front ends in `map.rs` and `dump.rs` ask of a map type.
///
/// Lengths of keys, values and buffers were checked, and so was the right to write, before a method is called. The
/// `prog_` methods run on the event path; see `shm` for what that forbids. Their results are the kernel's: an address
/// or null, and zero or a negative errno.
pub(crate) trait MapOps: Send + Sync {
    /// Tells the code generator where values lie.
    fn shape(&self) -> MapShape {
        MapShape { base: 0, stride: 0, entries: 0, kind: ShapeKind::Opaque }
    }

    /// Bytes of a value as users see it now.
    fn user_value_size(&self) -> usize;

    /// Copies a value out.
    fn lookup(&self, key: &[u8], out: &mut [u8]) -> Result<(), MapError>;

    /// Stores a value. `value` has the user's value size, for per-CPU types any whole number of values.
    fn update(&self, key: &[u8], value: &[u8], flags: u64) -> Result<(), MapError>;

    /// Removes an element.
    fn delete(&self, key: &[u8]) -> Result<(), MapError>;

    /// Finds the key after `key`, the first one when there is no such key.
    fn next_key(&self, key: Option<&[u8]>, out: &mut [u8]) -> Result<(), MapError>;

    /// Copies the element at or after a position out and moves the position behind it; `false` at the end.
    fn step(&self, at: &mut Position, key: &mut [u8], value: &mut [u8]) -> Result<bool, MapError>;

    /// Finds a value.
    ///
    /// # Safety
    /// `key` points to as many readable bytes as the map's keys have.
    unsafe fn prog_lookup(&self, key: *const u8) -> *mut u8 {
        let _ = key;
        std::ptr::null_mut()
    }

    /// Stores a value.
    ///
    /// # Safety
    /// `key` and `value` point to as many readable bytes as the map's keys and values have.
    unsafe fn prog_update(&self, key: *const u8, value: *const u8, flags: u64) -> i64 {
        let _ = (key, value, flags);
        -i64::from(EINVAL)
    }

    /// Removes an element.
    ///
    /// # Safety
    /// As [`MapOps::prog_lookup`].
    unsafe fn prog_delete(&self, key: *const u8) -> i64 {
        let _ = key;
        -i64::from(EINVAL)
    }

    /// Returns the ring buffer, if the map is one.
    fn ring(&self) -> Option<&ringbuf::Ring> {
        None
    }
}
