//! What users do with a map: elements one by one, and the reading sides of rings.

use std::sync::Arc;
use std::sync::atomic::Ordering::{AcqRel, Acquire};

use skep_isa::map::update;
use skep_isa::{KeyShape, MapFlags};

use super::{Map, Special};
use crate::error::{E2BIG, ENOTSUPP, MapError, STRANGER};
use crate::ops::PREFETCH_KEYS;
use crate::perf_event_array::PerfReader;
use crate::ringbuf::Consumer;
use crate::shm::MAX_SLOTS;

/// Mutable word 0 of the header: not zero when users may no longer write.
const FROZEN: usize = 0;

/// Values up to this size are copied by way of the stack, so that memory is only taken for one that
/// is there, and not cleared before.
const SMALL: usize = 64;

impl Map {
    /// Copies the value of a key out.
    ///
    /// # Errors
    /// [`MapError::NoElement`]; a key of the wrong size; a write-only map.
    pub fn lookup(&self, key: &[u8]) -> Result<Vec<u8>, MapError> {
        let size = self.user_value_size();
        let mut small = [0; SMALL];
        if let Some(out) = small.get_mut(..size) {
            self.lookup_into(key, out, 0)?;
            return Ok(out.to_vec());
        }
        let mut out = vec![0; size];
        self.lookup_into(key, &mut out, 0)?;
        Ok(out)
    }

    /// Copies the value of a key into a buffer of [`Map::user_value_size`], or for per-CPU types of
    /// any number of values.
    ///
    /// # Errors
    /// As [`Map::lookup`], for a buffer of the wrong size, and for flags other than `BPF_F_LOCK`.
    #[doc(alias = "BPF_MAP_LOOKUP_ELEM")]
    pub fn lookup_into(&self, key: &[u8], out: &mut [u8], flags: u64) -> Result<(), MapError> {
        if flags == 0 && out.len() == self.plain_value && self.key_lengths.allow(key.len()) {
            return self.ops.lookup(key, out, 0);
        }
        self.lookup_checked(key, out, flags)
    }

    /// As [`Map::lookup_into`], one check after the other.
    #[inline(never)]
    fn lookup_checked(&self, key: &[u8], out: &mut [u8], flags: u64) -> Result<(), MapError> {
        self.check_readable()?;
        self.check_lock_flag(flags, flags)?;
        self.check_key(key)?;
        self.check_value(out.len())?;
        self.ops.lookup(key, out, flags)
    }

    /// Removes the element with a key (from queues and stacks, the next one) and copies its last
    /// value out.
    ///
    /// # Errors
    /// As the kernel's lookup-and-delete: 524 for types that have none.
    #[doc(alias = "BPF_MAP_LOOKUP_AND_DELETE_ELEM")]
    pub fn lookup_and_delete(
        &self,
        key: &[u8],
        out: &mut [u8],
        flags: u64,
    ) -> Result<(), MapError> {
        self.check_readable()?;
        self.check_writable()?;
        self.check_lock_flag(flags, flags)?;
        self.check_key(key)?;
        self.check_value(out.len())?;
        let none = MapError::Unsupported {
            map_type: self.def.map_type,
            operation: "lookup and delete",
            errno: ENOTSUPP,
        };
        self.ops.take(key, out, flags).unwrap_or(Err(none))
    }

    /// Asks for the memory that lookups of these keys will touch, and waits for none of it. The keys
    /// have a fixed size and lie one behind another; for types that cannot, nothing is done.
    pub fn prefetch(&self, keys: &[u8]) {
        if let KeyShape::Fixed(size) = self.key_shape()
            && let Some(group) = (size as usize).checked_mul(PREFETCH_KEYS).filter(|n| *n > 0)
        {
            keys.chunks(group).for_each(|keys| self.ops.prefetch(keys));
        }
    }

    /// Stores a value; `flags` are those of [`skep_isa::map::update`]. For per-CPU types, `value`
    /// has the values of the slots from 0 on, each rounded up to eight bytes; the remaining
    /// slots become zero.
    ///
    /// # Errors
    /// As the kernel's map update.
    #[doc(alias = "BPF_MAP_UPDATE_ELEM")]
    pub fn update(&self, key: &[u8], value: &[u8], flags: u64) -> Result<(), MapError> {
        self.check_writable()?;
        self.check_lock_flag(flags, 0)?;
        self.check_new_key(key)?;
        self.check_value(value.len())?;
        self.ops.update(key, value, flags)
    }

    /// Removes the element with a key.
    ///
    /// # Errors
    /// As the kernel's map delete; `EINVAL` for arrays.
    pub fn delete(&self, key: &[u8]) -> Result<(), MapError> {
        self.check_writable()?;
        self.check_key(key)?;
        self.ops.delete(key)
    }

    /// Returns the key after `key`, or the first one for `None` and for a key that is not there.
    ///
    /// A walk by keys repeats itself when elements vanish under it; [`Map::iter`] and [`Map::dump`]
    /// do not.
    ///
    /// # Errors
    /// [`MapError::NoElement`] at the end.
    pub fn next_key(&self, key: Option<&[u8]>) -> Result<Vec<u8>, MapError> {
        self.check_readable()?;
        let key = match key.map(|key| self.check_key(key).map(|()| key)) {
            // As any other key that is not there.
            None | Some(Err(MapError::NoElement)) => None,
            Some(key) => Some(key?),
        };
        let mut cell = vec![0; self.keys.cell_size()];
        self.ops.next_key(key, &mut cell)?;
        match self.keys {
            KeyShape::Fixed(_) => Ok(cell),
            keys => Ok(keys.read_cell(&cell).ok_or(MapError::KeyCell)?.to_vec()),
        }
    }

    /// Forbids all users, but not programs, to write from now on.
    ///
    /// # Errors
    /// `EPERM` when that is so already.
    pub fn freeze(&self) -> Result<(), MapError> {
        self.check_writable()?;
        match self.file.state(FROZEN).map(|w| w.swap(1, AcqRel)) {
            Some(0) => Ok(()),
            _ => Err(MapError::Denied { why: "the map is frozen" }),
        }
    }

    /// Tells whether users are forbidden to write.
    #[must_use]
    pub fn is_frozen(&self) -> bool {
        self.file.state(FROZEN).is_some_and(|w| w.load(Acquire) != 0)
    }

    #[inline]
    pub(crate) fn check_readable(&self) -> Result<(), MapError> {
        if self.def.flags.has(MapFlags::WRONLY) {
            Err(MapError::Denied { why: "the map is write-only" })
        } else {
            Ok(())
        }
    }

    #[inline]
    pub(crate) fn check_writable(&self) -> Result<(), MapError> {
        match self.why_not_writable() {
            None => Ok(()),
            Some(why) => Err(MapError::Denied { why }),
        }
    }

    #[inline]
    fn why_not_writable(&self) -> Option<&'static str> {
        if !self.file.writable() {
            Some("the map was opened for reading")
        } else if self.def.flags.has(MapFlags::RDONLY) {
            Some("the map is read-only")
        } else if self.is_frozen() {
            Some("the map is frozen")
        } else if crate::stays_out() {
            Some(STRANGER)
        } else {
            None
        }
    }

    /// Refuses a key that cannot be in the map. One that is only too long is not there.
    #[inline]
    fn check_key(&self, key: &[u8]) -> Result<(), MapError> {
        if self.key_lengths.allow(key.len()) { Ok(()) } else { self.check_key_length(key) }
    }

    /// As [`Map::check_key`], for a key that is to be put in.
    #[inline]
    fn check_new_key(&self, key: &[u8]) -> Result<(), MapError> {
        if self.key_lengths.allow(key.len()) {
            return Ok(());
        }
        match self.check_key_length(key) {
            Err(MapError::NoElement) => {
                Err(MapError::KeyLength { given: key.len(), max: self.keys.max_len() })
            }
            done => done,
        }
    }

    #[cold]
    #[inline(never)]
    fn check_key_length(&self, key: &[u8]) -> Result<(), MapError> {
        match self.keys {
            KeyShape::Fixed(n) => {
                Err(MapError::Length { what: "key", given: key.len(), want: n as usize })
            }
            keys if keys.allows(key.len()) => Ok(()),
            // No dynptr is as long.
            keys if key.is_empty() || key.len() > KeyShape::LONGEST as usize => {
                Err(MapError::KeyLength { given: key.len(), max: keys.max_len() })
            }
            KeyShape::Bytes { .. } => Err(MapError::NoElement),
        }
    }

    /// Refuses flags of which some of `all` are unknown, and a lock where there is none.
    #[inline]
    fn check_lock_flag(&self, flags: u64, all: u64) -> Result<(), MapError> {
        if flags == 0 {
            return Ok(());
        }
        let lock = flags & update::LOCK != 0;
        if all & !update::LOCK != 0
            || (lock && (self.def.spin_lock.is_none() || !self.file.writable()))
        {
            return Err(MapError::Flags { flags });
        }
        Ok(())
    }

    #[inline]
    pub(crate) fn check_value(&self, given: usize) -> Result<(), MapError> {
        if !self.per_cpu && given == self.value_size {
            return Ok(());
        }
        self.check_values(given)
    }

    #[inline(never)]
    fn check_values(&self, given: usize) -> Result<(), MapError> {
        let want = self.user_value_size();
        let each = (self.def.value_size as usize).next_multiple_of(8);
        let fits = if self.per_cpu {
            given > 0 && given.is_multiple_of(each) && given / each <= MAX_SLOTS as usize
        } else {
            given == want
        };
        if fits { Ok(()) } else { Err(MapError::Length { what: "value", given, want }) }
    }

    /// Begins a strict walk: its number, 0 for types in which everything is there from the
    /// beginning.
    ///
    /// # Errors
    /// `EPERM` where the map cannot be written, or its file was made by an older version.
    pub(crate) fn begin_strict_walk(&self) -> Result<u32, MapError> {
        if !self.has_epochs {
            return Ok(0);
        }
        let why = if self.epochs.is_empty() {
            "the map's file was made by an older version, which does not note when elements were put in"
        } else if !self.file.writable() {
            "a strict walk notes its beginning in the map, which was opened for reading"
        } else if !self.epochs.are_kept()
            && !self.ops.keep_epochs().unwrap_or_else(|| self.epochs.get_memory())
        {
            return Err(MapError::NoMemory { what: "the times at which elements were put in" });
        } else if let Some(number) = self.epochs.begin() {
            return Ok(number);
        } else {
            "the map has had as many strict walks as can be counted"
        };
        Err(MapError::Denied { why })
    }

    /// Begins to consume a ring buffer. There is one consumer at a time among all processes.
    ///
    /// # Errors
    /// `EBUSY` when a living process consumes it already; `EINVAL` for another map type; `EPERM`
    /// for a map opened for reading.
    pub fn consumer(&self) -> Result<Consumer, MapError> {
        let Special::Ringbuf(ring) = &self.special else {
            return Err(self.def().invalid("it has no records to consume"));
        };
        if !self.file().writable() {
            return Err(MapError::Denied { why: "the map was opened for reading" });
        }
        Consumer::of(Arc::clone(ring))
    }

    /// Begins to read all rings of a perf event array. There is one reader at a time among all
    /// processes.
    ///
    /// # Errors
    /// `EBUSY` when a living process reads them already; `EINVAL` for another map type; `EPERM` for
    /// a map opened for reading.
    pub fn perf_reader(&self) -> Result<PerfReader, MapError> {
        let Special::PerfEvents(events) = &self.special else {
            return Err(self.def().invalid("it has no samples to read"));
        };
        if !self.file().writable() {
            return Err(MapError::Denied { why: "the map was opened for reading" });
        }
        PerfReader::of(events)
    }

    /// Puts a sample into a user ring buffer.
    ///
    /// # Errors
    /// [`MapError::Full`] when there is no room now; `E2BIG` for a sample larger than the ring;
    /// `EPERM` for a map opened for reading; `EINVAL` for another map type.
    #[doc(alias = "user_ring_buffer__submit")]
    pub fn user_ringbuf_output(&self, sample: &[u8]) -> Result<(), MapError> {
        let Special::UserRingbuf(ring) = &self.special else {
            return Err(self.def().invalid("it takes no samples from users"));
        };
        if !self.file().writable() {
            return Err(MapError::Denied { why: "the map was opened for reading" });
        }
        if sample.len() as u64 + 8 >= u64::from(self.def().max_entries) {
            return Err(MapError::Value {
                value: sample.len() as u64,
                why: "the sample is larger than the ring",
                errno: E2BIG,
            });
        }
        // SAFETY: the sample is readable.
        let done = unsafe { ring.output(sample.as_ptr(), sample.len() as u64, 1) };
        if done { Ok(()) } else { Err(MapError::Full { max_entries: self.def().max_entries }) }
    }
}
