//! `BPF_MAP_TYPE_PERCPU_ARRAY`: an array for each slot (see [`crate::slots`]).
//!
//! ```text
//! payload: | values of slot 0 | values of slot 1 | … | values of slot 255 |     each set rounded up to whole pages
//! value (slot, i) at slot * slot_stride + i * stride
//! ```
//!
//! Slot-major, so that a slot's values share pages with no other thread's and pages of unused slots are never touched.

use std::sync::Arc;

use skep_isa::{MapShape, MapType, ShapeKind};

use crate::array::{bytes, check_update, index, next_index, prog_check_update};
use crate::def::MapDef;
use crate::dump::Position;
use crate::error::{EINVAL, ENOMEM, MapError};
use crate::shm::object::MAX_PAYLOAD;
use crate::shm::{ObjectFile, PAGE, Window, copy, page_up, round8};
use crate::slots::{self, MAX_SLOTS, SlotTable};
use crate::types::{Layout, MapOps, Parts};

/// Largest value (the kernel: `PCPU_MIN_UNIT_SIZE`).
const MAX_VALUE: u32 = 32 << 10;

pub(crate) fn layout(def: &MapDef) -> Result<Layout, MapError> {
    let slot_stride = slot_stride(def)?;
    match slot_stride.checked_mul(u64::from(MAX_SLOTS)) {
        Some(payload_len) if payload_len <= MAX_PAYLOAD => Ok(Layout { payload_len, mirror: None }),
        _ => Err(MapError::Definition { map_type: def.map_type, what: "too large", errno: ENOMEM }),
    }
}

fn slot_stride(def: &MapDef) -> Result<u64, MapError> {
    if def.value_size > MAX_VALUE {
        return Err(MapError::Definition {
            map_type: def.map_type,
            what: "a per-CPU value has at most 32 KiB",
            errno: crate::error::E2BIG,
        });
    }
    Ok(page_up(bytes(def)?).unwrap_or(PAGE))
}

pub(crate) fn open(parts: Parts) -> Result<Box<dyn MapOps>, MapError> {
    let slots = parts.slots.ok_or_else(|| parts.def.invalid("its directory has no slot table"))?;
    Ok(Box::new(PercpuArray {
        stride: round8(u64::from(parts.def.value_size)),
        slot_stride: slot_stride(&parts.def)?,
        value_size: parts.def.value_size as usize,
        entries: parts.def.max_entries,
        file: parts.file,
        slots,
    }))
}

#[derive(Debug)]
struct PercpuArray {
    file: Arc<ObjectFile>,
    slots: Arc<SlotTable>,
    stride: u64,
    slot_stride: u64,
    value_size: usize,
    entries: u32,
}

impl PercpuArray {
    fn memory(&self) -> &Window {
        self.file.payload()
    }

    #[inline(always)]
    fn place(&self, slot: u32, index: u64) -> u64 {
        u64::from(slot).wrapping_mul(self.slot_stride).wrapping_add(index.wrapping_mul(self.stride))
    }

    fn read(&self, index: u32, out: &mut [u8]) -> Result<(), MapError> {
        if index >= self.entries {
            return Err(MapError::NoElement);
        }
        for (slot, part) in (0..MAX_SLOTS).zip(out.chunks_mut(self.stride as usize)) {
            if !self.memory().read(self.place(slot, u64::from(index)), part) {
                return Err(MapError::Damaged { what: "a value lies outside its file" });
            }
        }
        Ok(())
    }
}

impl MapOps for PercpuArray {
    fn shape(&self) -> MapShape {
        let kind = ShapeKind::PercpuArray { slot_stride: self.slot_stride, slot_tls: slots::tls_offset() };
        MapShape { base: self.memory().base(), stride: self.stride, entries: self.entries, kind }
    }

    fn user_value_size(&self) -> usize {
        self.stride as usize * self.slots.shown() as usize
    }

    fn lookup(&self, key: &[u8], out: &mut [u8]) -> Result<(), MapError> {
        self.read(index(key), out)
    }

    fn update(&self, key: &[u8], value: &[u8], flags: u64) -> Result<(), MapError> {
        let i = index(key);
        check_update(i, self.entries, flags)?;
        let mut parts = value.chunks(self.stride as usize);
        let given = (value.len() / self.stride as usize) as u32;
        for slot in 0..given.max(self.slots.shown()) {
            let at = self.place(slot, u64::from(i));
            let done = match parts.next() {
                Some(part) => self.memory().write(at, part.get(..self.value_size).unwrap_or(part)),
                None => self.memory().zero(at, self.value_size),
            };
            if !done {
                return Err(MapError::Denied { why: "the memory is read-only" });
            }
        }
        Ok(())
    }

    fn delete(&self, _key: &[u8]) -> Result<(), MapError> {
        Err(MapError::Unsupported { map_type: MapType::PercpuArray, operation: "delete", errno: EINVAL })
    }

    fn next_key(&self, key: Option<&[u8]>, out: &mut [u8]) -> Result<(), MapError> {
        next_index(key, self.entries, out)
    }

    fn step(&self, at: &mut Position, key: &mut [u8], value: &mut [u8]) -> Result<bool, MapError> {
        at.index(self.entries, key, |i| self.read(i, value))
    }

    #[inline]
    unsafe fn prog_lookup(&self, key: *const u8) -> *mut u8 {
        // SAFETY: the caller's key has four bytes.
        let i = unsafe { copy::load_tail(key, 4) };
        if i >= u64::from(self.entries) {
            return std::ptr::null_mut();
        }
        self.memory().at(self.place(slots::current(), i), self.stride).unwrap_or(std::ptr::null_mut())
    }

    unsafe fn prog_update(&self, key: *const u8, value: *const u8, flags: u64) -> i64 {
        // SAFETY: the caller's key has four bytes.
        let i = unsafe { copy::load_tail(key, 4) };
        match prog_check_update(i as u32, self.entries, flags) {
            // SAFETY: the caller's value has `value_size` bytes.
            0 if unsafe { self.memory().write_raw(self.place(slots::current(), i), value, self.value_size) } => 0,
            0 => -i64::from(EINVAL),
            refused => refused,
        }
    }
}
