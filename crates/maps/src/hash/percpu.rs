//! `BPF_MAP_TYPE_PERCPU_HASH`: one value for each slot (see [`crate::slots`]), beside the elements and slot-major.
//!
//! A program stores and finds the value of its own slot, in place. A new element has zero in the other slots.

use std::sync::Arc;

use super::table::{Table, Values, user_result};
use crate::def::MapDef;
use crate::dump::Position;
use crate::error::{E2BIG, MapError};
use crate::shm::copy;
use crate::shm::table::TableMemory;
use crate::slots::{self, MAX_SLOTS, SlotTable};
use crate::types::{Layout, MapOps, Parts};

/// Largest value (the kernel: `PCPU_MIN_UNIT_SIZE`).
const MAX_VALUE: u32 = 32 << 10;

fn geometry(def: &MapDef) -> Result<crate::shm::table::Geometry, MapError> {
    if def.value_size > MAX_VALUE {
        return Err(MapError::Definition { map_type: def.map_type, what: "a per-CPU value has at most 32 KiB", errno: E2BIG });
    }
    super::geometry(def, MAX_SLOTS)
}

pub(crate) fn layout(def: &MapDef) -> Result<Layout, MapError> {
    Ok(Layout { payload_len: geometry(def)?.payload_len, mirror: None })
}

pub(crate) fn open(parts: Parts) -> Result<Box<dyn MapOps>, MapError> {
    let slots = parts.slots.ok_or_else(|| parts.def.invalid("its directory has no slot table"))?;
    let table = Table::new(parts.file, geometry(&parts.def)?, parts.seed)?;
    Ok(Box::new(PercpuHash { table, slots, value_size: parts.def.value_size as usize, max_entries: parts.def.max_entries }))
}

#[derive(Debug)]
struct PercpuHash {
    table: Table,
    slots: Arc<SlotTable>,
    value_size: usize,
    max_entries: u32,
}

/// A program's value for its own slot, `len` readable bytes at `from`.
struct Own<'a> {
    from: *const u8,
    len: usize,
    slots: &'a SlotTable,
}

impl Values for Own<'_> {
    fn overwrite(&self, memory: &TableMemory, reference: u32) -> bool {
        if let Some(to) = memory.value(reference, slots::current()) {
            // SAFETY: `to` has room for the value rounded up; `from` is as long as the maker said.
            unsafe { copy::store(to, self.from, self.len) }
        }
        true
    }

    fn fill(&self, memory: &TableMemory, reference: u32) {
        zero(memory, reference, 0, self.slots.shown());
        self.overwrite(memory, reference);
    }
}

/// A user's values for the slots from 0 on; the others become zero.
struct All<'a> {
    value: &'a [u8],
    value_size: usize,
    slots: &'a SlotTable,
}

impl Values for All<'_> {
    fn overwrite(&self, memory: &TableMemory, reference: u32) -> bool {
        self.fill(memory, reference);
        true
    }

    fn fill(&self, memory: &TableMemory, reference: u32) {
        let mut given = 0;
        for part in self.value.chunks_exact(memory.geometry.value_stride as usize) {
            if let Some(to) = memory.value(reference, given) {
                // SAFETY: `to` has room for the value rounded up, and the part is that long.
                unsafe { copy::store(to, part.as_ptr(), self.value_size) }
            }
            given += 1;
        }
        zero(memory, reference, given, self.slots.shown());
    }
}

fn zero(memory: &TableMemory, reference: u32, mut slot: u32, end: u32) {
    while slot < end {
        if let Some(to) = memory.value(reference, slot) {
            // SAFETY: a value has `value_stride` bytes.
            unsafe { copy::zero(to, memory.geometry.value_stride as usize) }
        }
        slot = slot.wrapping_add(1);
    }
}

impl PercpuHash {
    fn copy_out(&self, reference: u32, out: &mut [u8]) {
        let stride = self.table.memory.geometry.value_stride as usize;
        for (slot, part) in (0..MAX_SLOTS).zip(out.chunks_exact_mut(stride)) {
            if let Some(from) = self.table.memory.value(reference, slot) {
                // SAFETY: a value has `value_stride` bytes.
                unsafe { copy::load(part, from) }
            }
        }
    }
}

impl MapOps for PercpuHash {
    fn user_value_size(&self) -> usize {
        self.table.memory.geometry.value_stride as usize * self.slots.shown() as usize
    }

    fn lookup(&self, key: &[u8], out: &mut [u8]) -> Result<(), MapError> {
        self.table.lookup(key, |r| self.copy_out(r, out))
    }

    fn update(&self, key: &[u8], value: &[u8], flags: u64) -> Result<(), MapError> {
        let all = All { value, value_size: self.value_size, slots: &self.slots };
        // SAFETY: the front end checked the length of the key.
        user_result(unsafe { self.table.update(key.as_ptr(), flags, &all) }, flags, self.max_entries)
    }

    fn delete(&self, key: &[u8]) -> Result<(), MapError> {
        // SAFETY: the front end checked the length of the key.
        user_result(unsafe { self.table.delete(key.as_ptr()) }, 0, self.max_entries)
    }

    fn next_key(&self, key: Option<&[u8]>, out: &mut [u8]) -> Result<(), MapError> {
        self.table.next_key(key, out)
    }

    fn step(&self, at: &mut Position, key: &mut [u8], value: &mut [u8]) -> Result<bool, MapError> {
        self.table.step(at, key, |r| self.copy_out(r, value))
    }

    unsafe fn prog_lookup(&self, key: *const u8) -> *mut u8 {
        // SAFETY: the caller's duty.
        let found = unsafe { self.table.find(key) };
        self.table.memory.value(found, slots::current()).unwrap_or(std::ptr::null_mut())
    }

    unsafe fn prog_update(&self, key: *const u8, value: *const u8, flags: u64) -> i64 {
        // SAFETY: the caller's duty.
        unsafe { self.table.update(key, flags, &Own { from: value, len: self.value_size, slots: &self.slots }) }
    }

    unsafe fn prog_delete(&self, key: *const u8) -> i64 {
        // SAFETY: the caller's duty.
        unsafe { self.table.delete(key) }
    }
}
