//! The table of map types: one row for each.
//!
//! A new map type is one file that implements [`MapOps`] and one row in [`TYPES`]. It stands above
//! all types, and only what makes and opens maps imports it.

use std::sync::Arc;

use skep_isa::MapType;
use skep_isa::map::Offer;

use crate::def::MapDef;
use crate::error::{E2BIG, MapError};
use crate::layout::Layout;
use crate::map::Special;
use crate::map_file::MapFile;
use crate::ops::MapOps;
use crate::shm::{PayloadMode, epoch};
use crate::{
    array, bloom_filter, cgroup_array, cpumap, devmap, hash, id_table, lpm_trie, map_in_map,
    perf_event_array, prog_array, qp_trie, queue_stack, ringbuf, stack_trace, user_ringbuf, xskmap,
};

/// What opening a map of a type makes.
type Opened = (Box<dyn MapOps>, Special);

/// Makes the operations over a mapped file whose payload has the size that the layout says.
#[derive(Clone, Copy)]
enum Open {
    /// For types that have elements only.
    Elements(fn(MapFile) -> Result<Box<dyn MapOps>, MapError>),
    /// For types that have something else besides.
    Special(fn(MapFile) -> Result<Opened, MapError>),
}

/// One map type. What its keys, values and flags may be stands in [`skep_isa::MAP_TYPES`].
pub(crate) struct TypeRow {
    pub(crate) map_type: MapType,
    /// The format version since which its payload is what it is.
    pub(crate) since: u32,
    /// Checks a definition and computes the sizes that it leads to. The same definition always has
    /// the same layout.
    pub(crate) layout: fn(&MapDef) -> Result<Layout, MapError>,
    /// Chooses how the payload is mapped by a process that uses the first elements only, where the
    /// layout has no mirror.
    pub(crate) mode: fn(&MapDef, u32) -> PayloadMode,
    open: Open,
}

const fn ty(
    map_type: MapType,
    layout: fn(&MapDef) -> Result<Layout, MapError>,
    open: fn(MapFile) -> Result<Box<dyn MapOps>, MapError>,
) -> TypeRow {
    TypeRow {
        map_type,
        since: 1,
        layout,
        mode: |_, _| PayloadMode::Whole,
        open: Open::Elements(open),
    }
}

const fn special(
    map_type: MapType,
    layout: fn(&MapDef) -> Result<Layout, MapError>,
    open: fn(MapFile) -> Result<Opened, MapError>,
) -> TypeRow {
    TypeRow {
        map_type,
        since: 1,
        layout,
        mode: |_, _| PayloadMode::Whole,
        open: Open::Special(open),
    }
}

impl TypeRow {
    const fn since(self, version: u32) -> Self {
        Self { since: version, ..self }
    }

    const fn mapped(self, mode: fn(&MapDef, u32) -> PayloadMode) -> Self {
        Self { mode, ..self }
    }

    /// Makes the operations over a mapped file.
    pub(crate) fn open(&self, file: MapFile) -> Result<Opened, MapError> {
        match self.open {
            Open::Elements(open) => Ok((open(file)?, Special::None)),
            Open::Special(open) => open(file),
        }
    }
}

fn open_ringbuf(file: MapFile) -> Result<Opened, MapError> {
    let ring = ringbuf::open(file)?;
    let special = Special::Ringbuf(ring.memory());
    Ok((Box::new(ring), special))
}

fn open_user_ringbuf(file: MapFile) -> Result<Opened, MapError> {
    let ring = user_ringbuf::open(file)?;
    let special = Special::UserRingbuf(ring.memory());
    Ok((Box::new(ring), special))
}

fn open_perf_event_array(file: MapFile) -> Result<Opened, MapError> {
    let events = perf_event_array::open(file)?;
    Ok((Box::new(Arc::clone(&events)), Special::PerfEvents(events)))
}

fn open_stack_trace(file: MapFile) -> Result<Opened, MapError> {
    let stacks = stack_trace::open(file)?;
    Ok((Box::new(Arc::clone(&stacks)), Special::Stacks(stacks)))
}

/// Every map type this crate makes.
pub(crate) const TYPES: &[TypeRow] = &[
    ty(MapType::Hash, hash::plain::layout, hash::plain::open),
    ty(MapType::PercpuHash, hash::percpu::layout, hash::percpu::open),
    ty(MapType::LruHash, hash::plain::layout, hash::plain::open),
    ty(MapType::LruPercpuHash, hash::percpu::layout, hash::percpu::open),
    ty(MapType::Array, array::layout, array::open),
    ty(MapType::PercpuArray, array::percpu_layout, array::open).mapped(array::payload_mode),
    ty(MapType::LpmTrie, lpm_trie::layout, lpm_trie::open).since(2),
    ty(MapType::ProgArray, id_table::layout, prog_array::open),
    ty(MapType::CgroupArray, id_table::layout, cgroup_array::open),
    ty(MapType::ArrayOfMaps, id_table::layout, map_in_map::open_array),
    ty(MapType::HashOfMaps, map_in_map::hash_layout, map_in_map::open_hash),
    ty(MapType::Devmap, id_table::layout, devmap::open),
    ty(MapType::DevmapHash, devmap::hash_layout, devmap::open_hash),
    ty(MapType::Cpumap, cpumap::layout, cpumap::open),
    ty(MapType::Xskmap, id_table::layout, xskmap::open),
    ty(MapType::Queue, queue_stack::layout, queue_stack::open),
    ty(MapType::Stack, queue_stack::layout, queue_stack::open),
    ty(MapType::BloomFilter, bloom_filter::layout, bloom_filter::open),
    ty(MapType::QpTrie, qp_trie::layout, qp_trie::open).since(7),
    special(MapType::StackTrace, stack_trace::layout, open_stack_trace),
    special(MapType::PerfEventArray, perf_event_array::layout, open_perf_event_array).since(3),
    special(MapType::Ringbuf, ringbuf::layout, open_ringbuf).since(3),
    special(MapType::UserRingbuf, user_ringbuf::layout, open_user_ringbuf).since(3),
];

/// Lists the map types this crate makes, in the kernel's order.
#[must_use]
pub fn map_types() -> Vec<MapType> {
    let mut types: Vec<MapType> = TYPES.iter().map(|r| r.map_type).collect();
    types.sort_unstable();
    types
}

/// Checks all that creation asks of a definition; the row, the layout, and the bytes of the
/// payload.
pub(crate) fn checked(def: &MapDef) -> Result<(&'static TypeRow, Layout, u64), MapError> {
    let row = row(def)?;
    if def.flags.0 & !def.map_type.row().flags != 0 {
        return Err(def.invalid("it does not take these flags"));
    }
    def.check()?;
    let layout = (row.layout)(def)?;
    let (_, payload_len) = epoch::area(layout.payload_len, layout.epochs)
        .ok_or_else(|| def.refused("too large", E2BIG))?;
    Ok((row, layout, payload_len))
}

impl MapDef {
    /// Checks whether a map can be made of this definition, as [`Map::create`](crate::Map::create)
    /// does first. Nothing is made; whether there is memory for it is not known.
    ///
    /// # Errors
    /// As there.
    pub fn check_creation(&self) -> Result<(), MapError> {
        checked(self).map(drop)
    }

    /// Checks whether a map of another definition may be put into one of this.
    ///
    /// # Errors
    /// When this is no map of maps, or its inner maps are of another kind.
    pub fn check_inner(&self, inner: &Self) -> Result<(), MapError> {
        match &self.inner {
            Some(want) if map_in_map::like(want, inner) => Ok(()),
            _ => Err(self.invalid("a map that shall be put in is not like its inner map")),
        }
    }
}

pub(crate) fn row(def: &MapDef) -> Result<&'static TypeRow, MapError> {
    TYPES.iter().find(|r| r.map_type == def.map_type).ok_or_else(|| {
        match def.map_type.row().offer {
            Offer::No(why) => def.invalid(why),
            Offer::Yes => def.invalid("this version of skep has no such maps yet"),
        }
    })
}
