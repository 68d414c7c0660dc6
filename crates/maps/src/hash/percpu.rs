//! One value for each slot (see [`crate::slots`]), beside the elements and slot-major:
//! `BPF_MAP_TYPE_PERCPU_HASH` and `BPF_MAP_TYPE_LRU_PERCPU_HASH`.
//!
//! A program stores and finds the value of its own slot, in place and word by word, as in the
//! kernel. A new element has zero in the other slots. A user stores the values of all slots, and
//! readers see all old ones or all new ones.

use std::sync::Arc;

use super::layout;
use super::ops::{Hash, Kind};
use super::table::{Table, Values};
use crate::def::MapDef;
use crate::error::{E2BIG, MapError};
use crate::layout::Layout;
use crate::map_file::MapFile;
use crate::ops::MapOps;
use crate::shm::copy;
use crate::shm::table::Geometry;
use crate::slots::{self, MAX_PERCPU_VALUE, MAX_SLOTS, SlotTable};

fn geometry(def: &MapDef) -> Result<Geometry, MapError> {
    let geometry = layout::geometry(def, MAX_SLOTS)?;
    if def.value_size > MAX_PERCPU_VALUE {
        return Err(def.refused("a per-CPU value has at most 32 KiB", E2BIG));
    }
    Ok(geometry)
}

pub(crate) fn layout(def: &MapDef) -> Result<Layout, MapError> {
    geometry(def).map(|g| layout::layout(def, &g))
}

pub(crate) fn open(file: MapFile) -> Result<Box<dyn MapOps>, MapError> {
    let slots =
        file.slots.clone().ok_or_else(|| file.def.invalid("its directory has no slot table"))?;
    let kind = Percpu { slots, value_size: file.def.value_size as usize };
    Ok(Box::new(Hash::new(kind, geometry(&file.def)?, file)?))
}

#[derive(Debug)]
struct Percpu {
    slots: Arc<SlotTable>,
    value_size: usize,
}

/// A program's value for its own slot, `len` readable bytes at `from`.
struct Own<'a> {
    from: *const u8,
    len: usize,
    slots: &'a SlotTable,
}

impl Values for Own<'_> {
    fn overwrite(&self, table: &Table, reference: u32) -> bool {
        if let Some(to) = table.memory.value(reference, slots::current()) {
            // SAFETY: `to` has room for the value rounded up; `from` is as long as the maker said.
            unsafe { copy::store(to, self.from, self.len) }
        }
        true
    }

    fn fill(&self, table: &Table, reference: u32) {
        zero(table, reference, 0, self.slots.shown());
        self.overwrite(table, reference);
    }
}

/// A user's values for the slots from 0 on; the others become zero.
struct All<'a> {
    value: &'a [u8],
    value_size: usize,
    slots: &'a SlotTable,
}

impl Values for All<'_> {
    /// All values change together, so in another element: in place a reader would see some of the
    /// old ones and some of the new.
    fn overwrite(&self, _table: &Table, _reference: u32) -> bool {
        false
    }

    fn fill(&self, table: &Table, reference: u32) {
        let mut given = 0;
        for part in self.value.chunks_exact(table.memory.geometry.value_stride as usize) {
            if table.has_memory(given)
                && let Some(to) = table.memory.value(reference, given)
            {
                // SAFETY: `to` has room for the value rounded up, and the part is that long.
                unsafe { copy::store(to, part.as_ptr(), self.value_size) }
            }
            given += 1;
        }
        zero(table, reference, given, self.slots.shown());
    }
}

fn zero(table: &Table, reference: u32, mut slot: u32, end: u32) {
    while slot < end {
        if table.has_memory(slot)
            && let Some(to) = table.memory.value(reference, slot)
        {
            // SAFETY: a value has `value_stride` bytes.
            unsafe { copy::zero(to, table.memory.geometry.value_stride as usize) }
        }
        slot = slot.wrapping_add(1);
    }
}

impl Kind for Percpu {
    fn user_size(&self, table: &Table) -> usize {
        table.memory.geometry.value_stride as usize * self.slots.shown() as usize
    }

    fn of_user<'a>(&'a self, value: &'a [u8], _flags: u64) -> impl Values + 'a {
        All { value, value_size: self.value_size, slots: &self.slots }
    }

    unsafe fn of_program(&self, value: *const u8, _flags: u64) -> impl Values + '_ {
        Own { from: value, len: self.value_size, slots: &self.slots }
    }

    fn load(&self, table: &Table, reference: u32, out: &mut [u8], _flags: u64) {
        let stride = table.memory.geometry.value_stride as usize;
        for (slot, part) in (0..MAX_SLOTS).zip(out.chunks_exact_mut(stride)) {
            match table.memory.value(reference, slot).filter(|_| table.has_memory(slot)) {
                // SAFETY: a value has `value_stride` bytes.
                Some(from) => unsafe { copy::load(part, from) },
                None => part.fill(0),
            }
        }
    }

    #[inline(always)]
    fn slot(&self) -> u32 {
        slots::current()
    }

    fn slot_of(&self, table: &Table, cpu: u32) -> Option<u32> {
        (cpu < self.slots.shown() && table.areas.as_ref().is_none_or(|areas| areas.ensure(cpu)))
            .then_some(cpu)
    }
}
