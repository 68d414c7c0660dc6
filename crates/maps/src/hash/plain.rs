//! `BPF_MAP_TYPE_HASH`: the value lies in its element.
//!
//! A value of at most eight bytes is overwritten in place with one store, so a program that holds its address sees the
//! change. A larger one is replaced together with its element, and readers see the old value or the new one.

use super::table::{Table, Values, user_result};
use crate::def::MapDef;
use crate::dump::Position;
use crate::error::MapError;
use crate::shm::copy;
use crate::shm::table::TableMemory;
use crate::types::{Layout, MapOps, Parts};

pub(crate) fn layout(def: &MapDef) -> Result<Layout, MapError> {
    Ok(Layout { payload_len: super::geometry(def, 0)?.payload_len, mirror: None })
}

pub(crate) fn open(parts: Parts) -> Result<Box<dyn MapOps>, MapError> {
    let geometry = super::geometry(&parts.def, 0)?;
    let table = Table::new(parts.file, geometry, parts.seed)?;
    Ok(Box::new(Hash { table, value_size: parts.def.value_size as usize, max_entries: parts.def.max_entries }))
}

#[derive(Debug)]
struct Hash {
    table: Table,
    value_size: usize,
    max_entries: u32,
}

/// A value to store, `len` readable bytes at `from`.
struct New {
    from: *const u8,
    len: usize,
}

impl Values for New {
    #[inline(always)]
    fn overwrite(&self, memory: &TableMemory, reference: u32) -> bool {
        if self.len > 8 {
            return false;
        }
        self.fill(memory, reference);
        true
    }

    #[inline(always)]
    fn fill(&self, memory: &TableMemory, reference: u32) {
        if let Some(to) = memory.value(reference, 0) {
            // SAFETY: `to` has room for the value rounded up; `from` is as long as the maker said.
            unsafe { copy::store(to, self.from, self.len) }
        }
    }
}

impl Hash {
    fn copy_out(&self, reference: u32, out: &mut [u8]) {
        let n = out.len().min(self.value_size);
        if let Some(from) = self.table.memory.value(reference, 0) {
            // SAFETY: a value has `value_size` bytes rounded up.
            unsafe { copy::load(&mut out[..n], from) }
        }
    }
}

impl MapOps for Hash {
    fn user_value_size(&self) -> usize {
        self.value_size
    }

    fn lookup(&self, key: &[u8], out: &mut [u8]) -> Result<(), MapError> {
        self.table.lookup(key, |r| self.copy_out(r, out))
    }

    fn update(&self, key: &[u8], value: &[u8], flags: u64) -> Result<(), MapError> {
        let new = New { from: value.as_ptr(), len: value.len().min(self.value_size) };
        // SAFETY: the front end checked the length of the key.
        user_result(unsafe { self.table.update(key.as_ptr(), flags, &new) }, flags, self.max_entries)
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
        self.table.memory.value(found, 0).unwrap_or(std::ptr::null_mut())
    }

    unsafe fn prog_update(&self, key: *const u8, value: *const u8, flags: u64) -> i64 {
        // SAFETY: the caller's duty.
        unsafe { self.table.update(key, flags, &New { from: value, len: self.value_size }) }
    }

    unsafe fn prog_delete(&self, key: *const u8) -> i64 {
        // SAFETY: the caller's duty.
        unsafe { self.table.delete(key) }
    }
}
