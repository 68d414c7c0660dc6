//! `BPF_MAP_TYPE_BLOOM_FILTER`: tells of a value that it was never pushed, or that it probably was.
//!
//! ```text
//! payload: | bits in words of 64 |     a power of two of them, about 1.4 times entries times hash functions
//! ```
//!
//! The low four bits of `map_extra` are the number of hash functions, 0 means 5. Each takes the
//! value with a seed of its own. Nothing is ever removed, and a push that a death cuts short has
//! set some bits and promised nothing.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering::Acquire, Ordering::Relaxed, Ordering::Release};

use skep_isa::MapType;
use skep_isa::map::update;

use crate::def::MapDef;
use crate::error::{E2BIG, EINVAL, ENOENT, EOPNOTSUPP, MapError};
use crate::layout::Layout;
use crate::map_file::MapFile;
use crate::ops::{MapOps, ProgOps, UserOps, WalkOps};
use crate::shm::ObjectFile;
use crate::shm::hash::hash;

const FUNCTIONS: u64 = 5;
/// Largest value (the kernel: `KMALLOC_MAX_SIZE`). None is in the file, whose length says nothing of it.
const MAX_VALUE: u32 = 4 << 20;

fn functions(def: &MapDef) -> u64 {
    if def.map_extra == 0 { FUNCTIONS } else { def.map_extra & 0xf }
}

/// The kernel's number of bits (kernel/bpf/bloom_filter.c).
fn bits(def: &MapDef) -> u64 {
    let wanted = u64::from(def.max_entries) * functions(def);
    if wanted > u64::from(u32::MAX) || wanted / 5 * 7 > 1 << 31 {
        1 << 32
    } else {
        (wanted / 5 * 7).next_power_of_two().max(64)
    }
}

pub(crate) fn layout(def: &MapDef) -> Result<Layout, MapError> {
    if def.value_size > MAX_VALUE {
        return Err(def.refused("too large", E2BIG));
    }
    if def.key_size != 0 || def.value_size == 0 || def.max_entries == 0 {
        return Err(
            def.invalid("it has no keys, and value size and number of entries must not be zero")
        );
    }
    if def.map_extra > 0xf {
        return Err(def.invalid("there are at most 15 hash functions"));
    }
    Ok(Layout::plain(bits(def) / 8))
}

pub(crate) fn open(file: MapFile) -> Result<Box<dyn MapOps>, MapError> {
    Ok(Box::new(BloomFilter {
        value_size: file.def.value_size as usize,
        functions: functions(&file.def),
        mask: bits(&file.def) - 1,
        seed: file.seed,
        file: file.object,
    }))
}

#[derive(Debug)]
struct BloomFilter {
    file: Arc<ObjectFile>,
    value_size: usize,
    functions: u64,
    mask: u64,
    seed: u64,
}

impl BloomFilter {
    /// # Safety
    /// `value` points to a value's size in readable bytes.
    unsafe fn bit(&self, value: *const u8, function: u64) -> Option<(&AtomicU64, u64)> {
        const STEP: u64 = 0x9e37_79b9_7f4a_7c15;
        // SAFETY: the caller's duty.
        let h = unsafe {
            hash(self.seed.wrapping_add(function.wrapping_mul(STEP)), value, self.value_size)
        } & self.mask;
        Some((self.file.payload().word((h >> 6).wrapping_mul(8))?, 1 << (h & 63)))
    }

    /// # Safety
    /// As [`BloomFilter::bit`].
    unsafe fn push(&self, value: *const u8, flags: u64) -> i64 {
        if flags != update::ANY {
            return -i64::from(EINVAL);
        }
        let mut i = 0u64;
        while i < self.functions {
            // SAFETY: the caller's duty.
            if let Some((word, bit)) = unsafe { self.bit(value, i) }
                && word.load(Relaxed) & bit == 0
            {
                word.fetch_or(bit, Release);
            }
            i = i.wrapping_add(1);
        }
        0
    }

    /// # Safety
    /// As [`BloomFilter::bit`].
    unsafe fn has(&self, value: *const u8) -> bool {
        let mut i = 0u64;
        while i < self.functions {
            // SAFETY: the caller's duty.
            match unsafe { self.bit(value, i) } {
                Some((word, bit)) if word.load(Acquire) & bit != 0 => i = i.wrapping_add(1),
                _ => return false,
            }
        }
        true
    }
}

impl UserOps for BloomFilter {
    fn user_value_size(&self) -> usize {
        self.value_size
    }

    fn refuse(&self, operation: &'static str) -> MapError {
        MapError::Unsupported { map_type: MapType::BloomFilter, operation, errno: EOPNOTSUPP }
    }

    /// Asks for the value in `out`.
    fn lookup(&self, _key: &[u8], out: &mut [u8], _flags: u64) -> Result<(), MapError> {
        // SAFETY: the front end checked the length of the value.
        if unsafe { self.has(out.as_ptr()) } { Ok(()) } else { Err(MapError::NoElement) }
    }

    fn update(&self, _key: &[u8], value: &[u8], flags: u64) -> Result<(), MapError> {
        // SAFETY: the front end checked the length of the value.
        if unsafe { self.push(value.as_ptr(), flags) } == 0 {
            Ok(())
        } else {
            Err(MapError::Flags { flags })
        }
    }
}

impl WalkOps for BloomFilter {}

impl ProgOps for BloomFilter {
    unsafe fn prog_push(&self, value: *const u8, flags: u64) -> i64 {
        // SAFETY: the caller's duty.
        unsafe { self.push(value, flags) }
    }

    unsafe fn prog_peek(&self, value: *mut u8) -> i64 {
        // SAFETY: the caller's duty.
        if unsafe { self.has(value) } { 0 } else { -i64::from(ENOENT) }
    }
}
