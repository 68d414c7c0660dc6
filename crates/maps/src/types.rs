//! The table of map types: what each type must be able to do, and one row for each.
//!
//! A new map type is one file with an implementation of [`MapOps`] and one row in [`TYPES`].

use std::sync::Arc;

use skep_isa::map::Offer;
use skep_isa::{MapShape, MapType, ShapeKind};

use crate::def::MapDef;
use crate::dump::{Output, Position, Strict};
use crate::error::{E2BIG, EINVAL, EOPNOTSUPP, MapError};
use crate::shm::ObjectFile;
use crate::shm::epoch::{self, InsertionEpochs};
use crate::shm::lock::Held;
use crate::slots::SlotTable;
use crate::{
    array, bloom_filter, cgroup_array, cpumap, devmap, hash, id_table, lpm_trie, map_in_map,
    perf_event_array, prog_array, queue_stack, ringbuf, stack_trace, user_ringbuf, xskmap,
};

/// What a map type needs of its file, from its definition.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Layout {
    /// Bytes of payload.
    pub(crate) payload_len: u64,
    /// From here on the payload is mapped a second time behind itself.
    pub(crate) mirror: Option<u64>,
    /// Rows that elements come into and go out of, of which is noted when they were filled.
    pub(crate) epochs: u64,
    /// What of the payload has memory from the beginning; the rest gets it before it is used.
    pub(crate) room: Room,
}

/// What of a payload has memory when the map is made: its first bytes, and the first bytes of each
/// of some areas.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Room {
    pub(crate) prefix: u64,
    pub(crate) areas: Areas,
}

#[derive(Clone, Copy, Debug)]
pub(crate) enum Areas {
    /// As many as are told, of which the first begins where the payload does.
    Number { count: u64, stride: u64, len: u64 },
    /// One for each slot.
    Slots(PercpuLayout),
}

/// Where the values of the slots lie, one area for each.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct PercpuLayout {
    pub(crate) at: u64,
    pub(crate) stride: u64,
    /// Elements get memory when they are first used, and then in all areas.
    pub(crate) on_demand: bool,
}

impl Areas {
    pub(crate) const NONE: Self = Self::Number { count: 0, stride: 0, len: 0 };
}

impl Layout {
    /// A payload in which nothing is put after the map was made, or whose places tell the order in
    /// which it was.
    pub(crate) const fn plain(payload_len: u64) -> Self {
        Self::with_epochs(payload_len, 0)
    }

    /// A payload with so many rows that elements come into.
    pub(crate) const fn with_epochs(payload_len: u64, rows: u64) -> Self {
        let room = Room { prefix: payload_len, areas: Areas::NONE };
        Self { payload_len, mirror: None, epochs: rows, room }
    }

    /// As before, with memory for the first bytes only, and for some areas.
    pub(crate) const fn with_room(self, prefix: u64, areas: Areas) -> Self {
        Self { room: Room { prefix, areas }, ..self }
    }

    /// Lists the ranges that have memory in a map for so many slots.
    pub(crate) fn reserved(&self, slots: u32) -> Vec<(u64, u64)> {
        let mut ranges = vec![(0, self.room.prefix)];
        match self.room.areas {
            Areas::Number { count, stride, len } => {
                ranges.extend((0..count).map(|i| (i * stride, len)))
            }
            Areas::Slots(area) if area.on_demand => {}
            Areas::Slots(area) => ranges.push((area.at, u64::from(slots) * area.stride)),
        }
        ranges
    }

    /// Returns where the values of slots lie, for per-CPU types.
    pub(crate) fn percpu(&self) -> Option<PercpuLayout> {
        if let Areas::Slots(area) = self.room.areas { Some(area) } else { None }
    }
}

/// What a map type is given when its file is mapped.
#[derive(Debug)]
pub(crate) struct MapFile {
    pub(crate) def: MapDef,
    pub(crate) seed: u64,
    pub(crate) file: Arc<ObjectFile>,
    /// The directory's slots, for types that say so in their row.
    pub(crate) slots: Option<Arc<SlotTable>>,
    pub(crate) epochs: InsertionEpochs,
    /// For types that can do with a part of themselves: how many elements this process will use.
    pub(crate) entries: u32,
}

/// One map type. What its keys, values and flags may be stands in [`skep_isa::MAP_TYPES`].
pub(crate) struct TypeRow {
    pub(crate) map_type: MapType,
    /// The format version since which its payload is what it is.
    pub(crate) since: u32,
    /// Checks a definition and tells the sizes it leads to. The same definition always has the
    /// same layout.
    pub(crate) layout: fn(&MapDef) -> Result<Layout, MapError>,
    /// Makes the operations over a mapped file whose payload has the size `layout` told.
    pub(crate) open: fn(MapFile) -> Result<Box<dyn MapOps>, MapError>,
}

const fn ty(
    map_type: MapType,
    layout: fn(&MapDef) -> Result<Layout, MapError>,
    open: fn(MapFile) -> Result<Box<dyn MapOps>, MapError>,
) -> TypeRow {
    TypeRow { map_type, since: 1, layout, open }
}

impl TypeRow {
    const fn since(self, version: u32) -> Self {
        Self { since: version, ..self }
    }
}

/// Every map type this crate makes.
pub(crate) const TYPES: &[TypeRow] = &[
    ty(MapType::Hash, hash::plain::layout, hash::plain::open),
    ty(MapType::PercpuHash, hash::percpu::layout, hash::percpu::open),
    ty(MapType::LruHash, hash::plain::layout, hash::plain::open),
    ty(MapType::LruPercpuHash, hash::percpu::layout, hash::percpu::open),
    ty(MapType::Array, array::layout, array::open),
    ty(MapType::PercpuArray, array::percpu_layout, array::open),
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
    ty(MapType::StackTrace, stack_trace::layout, stack_trace::open),
    ty(MapType::PerfEventArray, perf_event_array::layout, perf_event_array::open).since(3),
    ty(MapType::Ringbuf, ringbuf::layout, ringbuf::open).since(3),
    ty(MapType::UserRingbuf, user_ringbuf::layout, user_ringbuf::open).since(3),
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

/// An element as a program walks over it.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Element {
    /// Where the key lies; `None` for arrays, whose key is `index`.
    pub(crate) key: Option<*const u8>,
    pub(crate) index: u32,
    pub(crate) value: *mut u8,
}

/// Elements out of the map that programs may still have in hand.
pub(crate) trait ExactTake {
    /// Begins to take elements, alone.
    fn begin(&self) -> Result<Held, MapError>;
    /// Removes the element with a key, and keeps its memory from being used again; `None` when it
    /// is gone.
    fn detach(&self, key: &[u8]) -> Result<Option<u32>, MapError>;
    /// Tells who waits to begin that all is well.
    fn beat(&self, held: &mut Held);
    /// Copies the value of a detached element.
    fn load(&self, reference: u32, value: &mut [u8]);
    /// Gives the memory of all `count` detached elements back, and lets others take.
    fn end(&self, count: usize, held: Held);
}

/// Walks by keys, for types whose keys have an order of their own: the place of a walk is the last
/// key, and the walk keeps it.
pub(crate) trait KeyWalk {
    /// Copies the element behind a key out, whether that key is there or not; the first one behind
    /// no bytes, and none that `strict` passes over. `false` at the end.
    fn step_behind(
        &self,
        last: &[u8],
        strict: &mut Strict,
        key: &mut [u8],
        value: &mut [u8],
    ) -> Result<bool, MapError>;
    /// Removes an element and copies its last value out.
    fn take(&self, key: &[u8], value: &mut [u8]) -> Result<(), MapError>;
}

/// What the front ends in `map.rs` and `dump/` ask of a map type.
///
/// Lengths of keys, values and buffers were checked, and so was the right to write, before a method
/// is called. The `prog_` methods run on the event path; see `shm` for what that forbids. Their
/// results are the kernel's: an address or null, and zero or a negative errno.
pub(crate) trait MapOps: Send + Sync {
    /// Tells the code generator where values lie.
    fn shape(&self) -> MapShape {
        MapShape { base: 0, stride: 0, entries: 0, kind: ShapeKind::Opaque }
    }

    /// Bytes of a value as users see it now.
    fn user_value_size(&self) -> usize;

    /// Answers an operation that the type does not have; types that leave out one of those below
    /// say with which errno.
    fn refuse(&self, operation: &'static str) -> MapError {
        let _ = operation;
        MapError::Denied { why: "its type has no such operation" }
    }

    /// Copies a value out; `flags` is 0 or `BPF_F_LOCK`.
    fn lookup(&self, key: &[u8], out: &mut [u8], flags: u64) -> Result<(), MapError> {
        let _ = (key, out, flags);
        Err(self.refuse("lookup"))
    }

    /// Asks for the memory that operations on these keys will touch, which stand one behind
    /// another: at most [`TOGETHER`](crate::dump::batch::TOGETHER). It is a wish only.
    fn prefetch(&self, keys: &[u8]) {
        let _ = keys;
    }

    /// Stores a value. `value` has the user's value size, for per-CPU types any whole number of
    /// values.
    fn update(&self, key: &[u8], value: &[u8], flags: u64) -> Result<(), MapError> {
        let _ = (key, value, flags);
        Err(self.refuse("update"))
    }

    /// Removes an element.
    fn delete(&self, key: &[u8]) -> Result<(), MapError> {
        let _ = key;
        Err(self.refuse("delete"))
    }

    /// Removes an element and copies its last value out; `flags` as in `lookup`. `None` for a type
    /// that cannot.
    fn take(&self, key: &[u8], out: &mut [u8], flags: u64) -> Option<Result<(), MapError>> {
        let _ = (key, out, flags);
        None
    }

    /// Finds the key after `key`, the first one when there is no such key.
    fn next_key(&self, key: Option<&[u8]>, out: &mut [u8]) -> Result<(), MapError> {
        let _ = (key, out);
        Err(self.refuse("next key"))
    }

    /// Copies the element at or after a position out and moves the position behind it; `false` at
    /// the end. Types that have [`MapOps::by_key`] have no positions.
    fn step(&self, at: &mut Position, key: &mut [u8], value: &mut [u8]) -> Result<bool, MapError> {
        let _ = (at, key, value);
        Err(self.refuse("dump"))
    }

    /// Returns the way to walk by keys, for types that walk so.
    fn by_key(&self) -> Option<&dyn KeyWalk> {
        None
    }

    /// Copies elements from a position on until `out` is full, and moves the position behind them;
    /// `false` at the end.
    fn fill(&self, at: &mut Position, out: &mut Output<'_>) -> Result<bool, MapError> {
        while let Some((key, value)) = out.next() {
            if !self.step(at, key, value)? {
                return Ok(false);
            }
            out.push();
        }
        Ok(true)
    }

    /// Finds the position behind a key; `None` when the key is not there and its type has no place
    /// for missing keys.
    fn seek(&self, key: &[u8]) -> Result<Option<Position>, MapError> {
        let (mut at, mut seen, mut value) =
            (Position::default(), vec![0; key.len()], vec![0; self.user_value_size()]);
        while self.step(&mut at, &mut seen, &mut value)? {
            if seen == key {
                return Ok(Some(at));
            }
        }
        Ok(None)
    }

    /// Tells whether keys have an order, in which missing keys have their place: then batches go on
    /// from a key, as the kernel's do for arrays and tries.
    fn ordered(&self) -> bool {
        false
    }

    /// Returns the way to take elements exactly, if the type has one.
    fn exact_take(&self) -> Option<&dyn ExactTake> {
        None
    }

    /// Finds a value.
    ///
    /// # Safety
    /// `key` points to as many readable bytes as the map's keys have.
    unsafe fn prog_lookup(&self, key: *const u8) -> *mut u8 {
        let _ = key;
        std::ptr::null_mut()
    }

    /// Finds the value of a CPU.
    ///
    /// # Safety
    /// As [`MapOps::prog_lookup`].
    unsafe fn prog_lookup_cpu(&self, key: *const u8, cpu: u32) -> *mut u8 {
        let _ = (key, cpu);
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

    /// Puts a value in.
    ///
    /// # Safety
    /// `value` points to as many readable bytes as the map's values have.
    unsafe fn prog_push(&self, value: *const u8, flags: u64) -> i64 {
        let _ = (value, flags);
        -i64::from(EOPNOTSUPP)
    }

    /// Takes a value out.
    ///
    /// # Safety
    /// `value` points to as many writable bytes as the map's values have.
    unsafe fn prog_pop(&self, value: *mut u8) -> i64 {
        let _ = value;
        -i64::from(EOPNOTSUPP)
    }

    /// Copies out what would be taken next; a bloom filter is asked for the value instead.
    ///
    /// # Safety
    /// `value` points to as many readable and writable bytes as the map's values have.
    unsafe fn prog_peek(&self, value: *mut u8) -> i64 {
        let _ = value;
        -i64::from(EOPNOTSUPP)
    }

    /// Finds the element at or after a position, and moves the position behind it.
    ///
    /// # Safety
    /// The thread has a slot, for per-CPU types.
    unsafe fn prog_next(&self, at: &mut Position) -> Option<Element> {
        let _ = at;
        None
    }

    /// Returns the rings of samples, if the map is a perf event array.
    fn perf_events(&self) -> Option<&perf_event_array::PerfEventArray> {
        None
    }

    /// Returns the map of call stacks, if the map is one.
    fn stacks(&self) -> Option<&stack_trace::StackTrace> {
        None
    }

    /// Returns the user ring buffer, if the map is one.
    fn user_ring(&self) -> Option<&user_ringbuf::UserRing> {
        None
    }

    /// Returns the ring buffer, if the map is one.
    fn ring(&self) -> Option<&ringbuf::Ring> {
        None
    }
}
