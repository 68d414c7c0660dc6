//! `BPF_MAP_TYPE_ARRAY`: values in a row, the key is the index.
//!
//! ```text
//! payload: | value 0 | value 1 | … | value max_entries-1 |     each value_size rounded up to eight
//! ```
//!
//! All elements exist always. A value is stored word by word: a reader, or a writer's death, may fall between two words
//! of one value, as with the kernel's array.

use std::sync::Arc;

use skep_isa::map::update;
use skep_isa::{MapShape, MapType, ShapeKind};

use crate::def::MapDef;
use crate::dump::Position;
use crate::error::{E2BIG, EEXIST, EINVAL, ENOMEM, MapError};
use crate::shm::{ObjectFile, Window, copy, round8};
use crate::types::{Layout, MapOps, Parts};

/// Largest value (the kernel: `INT_MAX`, less what an allocation can have).
const MAX_VALUE: u32 = 1 << 30;
/// Most bytes of all values.
const MAX_BYTES: u64 = 1 << 38;

pub(crate) fn layout(def: &MapDef) -> Result<Layout, MapError> {
    Ok(Layout { payload_len: bytes(def)?, mirror: None })
}

/// Checks what arrays of all kinds have in common; returns the bytes of one set of values.
pub(crate) fn bytes(def: &MapDef) -> Result<u64, MapError> {
    if def.key_size != 4 {
        return Err(def.invalid("keys of an array have 4 bytes"));
    }
    if def.value_size == 0 || def.max_entries == 0 {
        return Err(def.invalid("value size and number of entries must not be zero"));
    }
    let too_large = |errno| MapError::Definition { map_type: def.map_type, what: "too large", errno };
    if def.value_size > MAX_VALUE {
        return Err(too_large(E2BIG));
    }
    let bytes = round8(u64::from(def.value_size)) * u64::from(def.max_entries);
    if bytes > MAX_BYTES { Err(too_large(ENOMEM)) } else { Ok(bytes) }
}

pub(crate) fn open(parts: Parts) -> Result<Box<dyn MapOps>, MapError> {
    Ok(Box::new(Array {
        stride: round8(u64::from(parts.def.value_size)),
        value_size: parts.def.value_size as usize,
        entries: parts.def.max_entries,
        file: parts.file,
    }))
}

/// Reads an index out of a user's key.
pub(crate) fn index(key: &[u8]) -> u32 {
    key.try_into().map(u32::from_ne_bytes).unwrap_or(u32::MAX)
}

/// Checks the flags of an update: every element of an array exists.
pub(crate) fn check_update(index: u32, max_entries: u32, flags: u64) -> Result<(), MapError> {
    if flags > update::EXIST {
        return Err(MapError::Flags { flags });
    }
    if index >= max_entries {
        return Err(MapError::Index { index, max_entries });
    }
    if flags == update::NOEXIST { Err(MapError::Exists) } else { Ok(()) }
}

/// As [`check_update`], for programs.
#[inline(always)]
pub(crate) fn prog_check_update(index: u32, max_entries: u32, flags: u64) -> i64 {
    if flags > update::EXIST {
        return -i64::from(EINVAL);
    }
    if index >= max_entries {
        return -i64::from(E2BIG);
    }
    if flags == update::NOEXIST { -i64::from(EEXIST) } else { 0 }
}

/// The key after `key` in an array.
pub(crate) fn next_index(key: Option<&[u8]>, entries: u32, out: &mut [u8]) -> Result<(), MapError> {
    let next = match key.map(index) {
        Some(i) if i < entries => i + 1,
        _ => 0,
    };
    if next >= entries {
        return Err(MapError::NoElement);
    }
    out.copy_from_slice(&next.to_ne_bytes());
    Ok(())
}

#[derive(Debug)]
struct Array {
    file: Arc<ObjectFile>,
    stride: u64,
    value_size: usize,
    entries: u32,
}

impl Array {
    fn memory(&self) -> &Window {
        self.file.payload()
    }

    fn read(&self, index: u32, out: &mut [u8]) -> Result<(), MapError> {
        if index < self.entries && self.memory().read(u64::from(index) * self.stride, out) { Ok(()) } else { Err(MapError::NoElement) }
    }
}

impl MapOps for Array {
    fn shape(&self) -> MapShape {
        MapShape { base: self.memory().base(), stride: self.stride, entries: self.entries, kind: ShapeKind::Array }
    }

    fn user_value_size(&self) -> usize {
        self.value_size
    }

    fn lookup(&self, key: &[u8], out: &mut [u8]) -> Result<(), MapError> {
        self.read(index(key), out)
    }

    fn update(&self, key: &[u8], value: &[u8], flags: u64) -> Result<(), MapError> {
        let i = index(key);
        check_update(i, self.entries, flags)?;
        if self.memory().write(u64::from(i) * self.stride, value) {
            Ok(())
        } else {
            Err(MapError::Denied { why: "the memory is read-only" })
        }
    }

    fn delete(&self, _key: &[u8]) -> Result<(), MapError> {
        Err(MapError::Unsupported { map_type: MapType::Array, operation: "delete", errno: EINVAL })
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
        self.memory().at(i.wrapping_mul(self.stride), self.stride).unwrap_or(std::ptr::null_mut())
    }

    unsafe fn prog_update(&self, key: *const u8, value: *const u8, flags: u64) -> i64 {
        // SAFETY: the caller's key has four bytes.
        let i = unsafe { copy::load_tail(key, 4) };
        match prog_check_update(i as u32, self.entries, flags) {
            // SAFETY: the caller's value has `value_size` bytes.
            0 if unsafe { self.memory().write_raw(i.wrapping_mul(self.stride), value, self.value_size) } => 0,
            0 => -i64::from(EINVAL),
            refused => refused,
        }
    }
}
