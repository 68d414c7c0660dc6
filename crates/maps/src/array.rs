//! `BPF_MAP_TYPE_ARRAY` and `BPF_MAP_TYPE_PERCPU_ARRAY`: values in a row, the key is the index.
//!
//! ```text
//! array          | value 0 | value 1 | … | value max_entries-1 |     each value_size rounded up to eight
//! percpu_array   | values of slot 0 | … | values of slot 255 |       each set rounded up to whole pages
//! value (slot, i) at slot * slot_stride + i * stride
//! ```
//!
//! A large per-CPU array is mapped one slot at a time (`shm/columns.rs`).
//!
//! All elements exist always. A value is stored word by word: a reader, or a writer's death, may
//! fall between two words of one value, as with the kernel's array. Per-CPU values (see
//! [`crate::slots`]) lie slot by slot, so that a slot's values share pages with no other thread's
//! and pages of unused slots are never touched.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

use skep_isa::map::update;
use skep_isa::{MapShape, MapType, ShapeKind};

use crate::def::MapDef;
use crate::dump::output::Output;
use crate::dump::position::Position;
use crate::error::{E2BIG, EEXIST, EINVAL, ENOMEM, MapError};
use crate::index::{index, next_index};
use crate::layout::{Areas, Layout, PercpuLayout};
use crate::map_file::MapFile;
use crate::ops::{Element, ElementKey, LastKey, MapOps, ProgOps, UserOps, WalkOps};
use crate::percpu::{PercpuAreas, Registered};
use crate::shm::columns;
use crate::shm::value::Format;
use crate::shm::{MAX_PAYLOAD, MappedView, ObjectFile, PAGE, PayloadMode, copy, page_up, round8};
use crate::slots::{self, MAX_PERCPU_VALUE, MAX_SLOTS, SlotTable};

/// Largest value (the kernel: `INT_MAX`, less what an allocation can have).
const MAX_VALUE: u32 = 1 << 30;
/// Most bytes of all values.
const MAX_BYTES: u64 = 1 << 35;

pub(crate) fn layout(def: &MapDef) -> Result<Layout, MapError> {
    Ok(Layout::plain(bytes(def)?))
}

pub(crate) fn percpu_layout(def: &MapDef) -> Result<Layout, MapError> {
    match slot_stride(def)?.checked_mul(u64::from(MAX_SLOTS)) {
        Some(payload_len) if payload_len <= MAX_PAYLOAD => {
            let areas = PercpuLayout { at: 0, stride: slot_stride(def)?, on_demand: false };
            Ok(Layout::plain(payload_len).with_initial(0, Areas::Slots(areas)))
        }
        _ => Err(def.refused("too large", ENOMEM)),
    }
}

/// Returns the bytes of one set of values.
fn bytes(def: &MapDef) -> Result<u64, MapError> {
    if def.key_size != 4 {
        return Err(def.invalid("keys of an array have 4 bytes"));
    }
    if def.value_size == 0 || def.max_entries == 0 {
        return Err(def.invalid("value size and number of entries must not be zero"));
    }
    if def.value_size > MAX_VALUE {
        return Err(def.refused("too large", E2BIG));
    }
    let bytes = round8(u64::from(def.value_size)) * u64::from(def.max_entries);
    if bytes > MAX_BYTES { Err(def.refused("too large", ENOMEM)) } else { Ok(bytes) }
}

fn slot_stride(def: &MapDef) -> Result<u64, MapError> {
    let bytes = bytes(def)?;
    if def.value_size > MAX_PERCPU_VALUE {
        return Err(def.refused("a per-CPU value has at most 32 KiB", E2BIG));
    }
    Ok(page_up(bytes).unwrap_or(PAGE))
}

/// Tells how a per-CPU array is mapped of which the first `entries` elements are used.
pub(crate) fn payload_mode(def: &MapDef, entries: u32) -> PayloadMode {
    let Ok(stride) = slot_stride(def) else { return PayloadMode::Whole };
    let used = round8(u64::from(def.value_size))
        .wrapping_mul(u64::from(entries.clamp(1, def.max_entries)));
    match page_up(used) {
        Some(used) if columns::pays(stride) => PayloadMode::Columns { stride, used },
        _ => PayloadMode::Whole,
    }
}

pub(crate) fn open(file: MapFile) -> Result<Box<dyn MapOps>, MapError> {
    if let (Some(columns), Some(slots)) = (file.object.columns(), &file.slots) {
        slots.map_own(columns)?;
    }
    let areas = match &file.slots {
        None => None,
        Some(slots) => match percpu_layout(&file.def)?.percpu() {
            Some(layout) => Some(PercpuAreas::open(
                Arc::clone(&file.object),
                layout,
                slots.generation(),
                |slot| slots.needs_memory(slot),
                None,
            )?),
            None => None,
        },
    };
    Ok(Box::new(Array {
        areas,
        map_type: file.def.map_type,
        stride: round8(u64::from(file.def.value_size)),
        slot_stride: if file.slots.is_some() { slot_stride(&file.def)? } else { 0 },
        format: file.def.value_format(),
        entries: if file.object.columns().is_some() {
            file.def.max_entries.min(file.entries.max(1))
        } else {
            file.def.max_entries
        },
        file: file.object,
        slots: file.slots,
    }))
}

#[derive(Debug)]
struct Array {
    map_type: MapType,
    file: Arc<ObjectFile>,
    /// For per-CPU arrays.
    slots: Option<Arc<SlotTable>>,
    areas: Option<Registered>,
    stride: u64,
    slot_stride: u64,
    format: Format,
    entries: u32,
}

impl Array {
    fn memory(&self) -> &MappedView {
        self.file.payload()
    }

    /// Returns the address of a value; the caller checked the index.
    #[inline(always)]
    fn value(&self, slot: u32, index: u32) -> Option<*mut u8> {
        let at = u64::from(slot)
            .wrapping_mul(self.slot_stride)
            .wrapping_add(u64::from(index).wrapping_mul(self.stride));
        if self.file.columns().is_some_and(|columns| !columns.ensure(slot)) {
            return None;
        }
        self.memory().at(at, self.stride)
    }

    #[inline(always)]
    fn own_slot(&self) -> u32 {
        if self.slots.is_some() { slots::current() } else { 0 }
    }

    /// # Safety
    /// `key` points to four readable bytes.
    #[inline(always)]
    unsafe fn prog_value(&self, slot: u32, key: *const u8) -> *mut u8 {
        // SAFETY: the caller's key has four bytes.
        let i = unsafe { copy::load4(key) };
        if i >= self.entries {
            return std::ptr::null_mut();
        }
        self.value(slot, i).unwrap_or(std::ptr::null_mut())
    }

    fn read(&self, index: u32, out: &mut [u8], locked: bool) -> Result<(), MapError> {
        if index >= self.entries {
            return Err(MapError::NoElement);
        }
        for (slot, part) in (0..MAX_SLOTS).zip(out.chunks_mut(self.stride as usize)) {
            if self.areas.as_ref().is_some_and(|areas| !areas.has(slot)) {
                part.fill(0);
                continue;
            }
            let from = self
                .value(slot, index)
                .ok_or(MapError::Damaged { what: "a value lies outside its file" })?;
            // SAFETY: a value has `stride` bytes; who asks for the lock has checked that the memory
            // is writable.
            unsafe {
                if locked {
                    self.format.load_locked(part, from)
                } else {
                    self.format.load(part, from)
                }
            }
        }
        Ok(())
    }

    /// Checks an update: every element of an array exists.
    #[inline(always)]
    fn refuse_update(&self, index: u32, flags: u64) -> i64 {
        if flags & !update::LOCK > update::EXIST {
            return -i64::from(EINVAL);
        }
        if index >= self.entries {
            return -i64::from(E2BIG);
        }
        if flags & update::NOEXIST != 0 {
            return -i64::from(EEXIST);
        }
        // The last thing the kernel looks at.
        if flags & update::LOCK != 0 && !self.format.has_lock() { -i64::from(EINVAL) } else { 0 }
    }

    /// # Safety
    /// `from` is readable for the size of a value.
    #[inline(never)]
    unsafe fn write(&self, to: *mut u8, from: *const u8, flags: u64) {
        // SAFETY: a value has `stride` bytes, and the front end has checked that the memory is
        // writable.
        unsafe {
            if flags & update::LOCK == 0 {
                self.format.store(to, from)
            } else {
                self.format.store_locked(to, from)
            }
        }
    }
}

impl UserOps for Array {
    fn user_value_size(&self) -> usize {
        match &self.slots {
            None => self.format.size,
            Some(slots) => self.stride as usize * slots.shown() as usize,
        }
    }

    fn refuse(&self, operation: &'static str) -> MapError {
        MapError::Unsupported { map_type: self.map_type, operation, errno: EINVAL }
    }

    fn lookup(&self, key: &[u8], out: &mut [u8], flags: u64) -> Result<(), MapError> {
        self.read(index(key), out, flags & update::LOCK != 0)
    }

    fn update(&self, key: &[u8], value: &[u8], flags: u64) -> Result<(), MapError> {
        let i = index(key);
        match -self.refuse_update(i, flags) as i32 {
            0 => {}
            E2BIG => return Err(MapError::Index { index: i, max_entries: self.entries }),
            EEXIST => return Err(MapError::Exists),
            _ => return Err(MapError::Flags { flags }),
        }
        let outside = || MapError::Damaged { what: "a value lies outside its file" };
        let Some(slots) = &self.slots else {
            if value.len() < self.format.size {
                return Err(outside());
            }
            let to = self.value(0, i).ok_or_else(outside)?;
            // SAFETY: the value is as long as the map's are.
            unsafe { self.write(to, value.as_ptr(), flags) };
            return Ok(());
        };
        if let Some(areas) = &self.areas {
            areas.ensure_for(value, self.stride)?;
        }
        let mut parts = value.chunks_exact(self.stride as usize);
        for slot in 0..slots.shown().max((value.len() / self.stride as usize) as u32) {
            let part = parts.next();
            // Nothing is to be stored but zeros, which are there; a column need not be mapped for
            // them.
            if self.areas.as_ref().is_some_and(|areas| !areas.has(slot)) {
                continue;
            }
            let to = self.value(slot, i).ok_or_else(outside)?;
            match part {
                // SAFETY: the part has `stride` bytes.
                Some(part) => unsafe { self.write(to, part.as_ptr(), 0) },
                // SAFETY: a value has `stride` bytes.
                None => unsafe { copy::zero(to, self.stride as usize) },
            }
        }
        Ok(())
    }

    fn next_key(&self, key: Option<&[u8]>, out: &mut [u8]) -> Result<(), MapError> {
        next_index(key, self.entries, out)
    }
}

impl WalkOps for Array {
    fn step(&self, at: &mut Position, key: &mut [u8], value: &mut [u8]) -> Result<bool, MapError> {
        at.index(self.entries, key, |i| self.read(i, value, false))
    }

    fn fill(&self, at: &mut Position, out: &mut Output<'_>) -> Result<bool, MapError> {
        let left = u64::from(self.entries).saturating_sub(at.major);
        if left == 0 {
            return Ok(false);
        }
        if self.slots.is_some() {
            while let Some((key, value)) = out.next() {
                if !self.step(at, key, value)? {
                    return Ok(false);
                }
                out.push();
            }
            return Ok(at.major < u64::from(self.entries));
        }
        let n = out.left().min(usize::try_from(left).unwrap_or(usize::MAX));
        let (first, stride) = (at.major, self.stride);
        let Some(from) =
            self.memory().at(first.wrapping_mul(stride), stride.wrapping_mul(n as u64))
        else {
            return Err(MapError::Damaged { what: "a value lies outside its file" });
        };
        let index = |i: usize| ((first + i as u64) as u32).to_ne_bytes();
        if self.format.size == 8 && !self.format.has_lock() {
            let word = |i: usize| {
                let at = from.wrapping_add(i.wrapping_mul(8));
                // SAFETY: `n` words are mapped from `from` on, and `i` is below `n`.
                unsafe { AtomicU64::from_ptr(at.cast()) }.load(Relaxed)
            };
            out.put(n, |i, key, value| {
                key.copy_from_slice(&index(i));
                value.copy_from_slice(&word(i).to_ne_bytes());
            });
        } else {
            out.put(n, |i, key, value| {
                key.copy_from_slice(&index(i));
                // SAFETY: `n` values with their padding are mapped there.
                unsafe {
                    self.format.load(value, from.wrapping_add(i.wrapping_mul(stride as usize)))
                };
            });
        }
        at.major += n as u64;
        Ok(at.major < u64::from(self.entries))
    }

    fn seek(&self, key: &[u8]) -> Result<Option<Position>, MapError> {
        Ok(Some(Position { major: u64::from(index(key)) + 1, ..Position::default() }))
    }

    fn ordered(&self) -> bool {
        true
    }
}

impl ProgOps for Array {
    fn shape(&self) -> MapShape {
        let kind = match self.slots {
            None => ShapeKind::Array,
            Some(_) => ShapeKind::PercpuArray {
                slot_stride: self.slot_stride,
                slot_tls: slots::tls_offset(),
                by_gs: skep_sys::thread_words::by_gs(),
            },
        };
        MapShape { base: self.memory().base(), stride: self.stride, entries: self.entries, kind }
    }

    #[inline]
    unsafe fn prog_lookup(&self, key: *const u8) -> *mut u8 {
        // SAFETY: the caller's duty.
        unsafe { self.prog_value(self.own_slot(), key) }
    }

    unsafe fn prog_lookup_cpu(&self, key: *const u8, cpu: u32) -> *mut u8 {
        match &self.slots {
            Some(slots)
                if cpu < slots.shown()
                    && self.areas.as_ref().is_none_or(|areas| areas.ensure(cpu)) =>
            {
                // SAFETY: the key has four readable bytes, as the caller promises.
                unsafe { self.prog_value(cpu, key) }
            }
            _ => std::ptr::null_mut(),
        }
    }

    unsafe fn prog_update(&self, key: *const u8, value: *const u8, flags: u64) -> i64 {
        // SAFETY: the caller's key has four bytes.
        let i = unsafe { copy::load4(key) };
        let refused = self.refuse_update(i, flags);
        if refused != 0 {
            return refused;
        }
        let Some(to) = self.value(self.own_slot(), i) else { return -i64::from(EINVAL) };
        // SAFETY: the caller's value has the size of one.
        unsafe { self.write(to, value, flags) };
        0
    }

    unsafe fn prog_next(&self, at: &mut Position, _last: &mut LastKey) -> Option<Element> {
        let i = u32::try_from(at.major).ok().filter(|i| *i < self.entries)?;
        at.major = at.major.wrapping_add(1);
        Some(Element { key: ElementKey::Index(i), value: self.value(self.own_slot(), i)? })
    }
}
