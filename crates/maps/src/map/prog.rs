//! What programs do with a map, by raw addresses: the targets of helpers.

use std::mem::MaybeUninit;

use skep_isa::map::DynptrUser;

use super::{Map, Special};
use crate::dump::position::Position;
use crate::error::{E2BIG, EAGAIN, EINVAL, ENOENT, EPERM};
use crate::ops::{ElementKey, LastKey};
use crate::shm::ring;
use crate::user_ringbuf::Drain;

/// A program's walk through a map. The keys of arrays lie in it, and the descriptions of keys of
/// variable length.
#[derive(Debug)]
pub struct ProgWalk {
    at: Position,
    last: LastKey,
    index: u32,
    bytes: DynptrUser,
}

impl ProgWalk {
    /// Begins a walk in its place: it is too large to be moved on the event path, where that would
    /// be a call of the C library.
    #[inline(always)]
    pub fn begin(place: &mut MaybeUninit<Self>) -> &mut Self {
        let walk = place.as_mut_ptr();
        // SAFETY: each field is written, or may hold anything.
        unsafe {
            (&raw mut (*walk).at).write(Position::default());
            LastKey::begin(&raw mut (*walk).last);
            (&raw mut (*walk).index).write(0);
            (&raw mut (*walk).bytes).write(DynptrUser::default());
            place.assume_init_mut()
        }
    }
}

impl Default for ProgWalk {
    fn default() -> Self {
        let mut place = MaybeUninit::uninit();
        Self::begin(&mut place);
        // SAFETY: it was just begun.
        unsafe { place.assume_init() }
    }
}

impl Map {
    /// Finds a value for a program: its address in this process, or null. The address stays mapped
    /// as long as the map.
    ///
    /// # Safety
    /// `key` points to `key_size` readable bytes, or where keys have [different
    /// lengths](Map::key_shape) to a [`DynptrUser`] that describes readable bytes. For per-CPU types
    /// the thread is between [`crate::slots::enter`] and [`crate::slots::exit`].
    #[inline]
    #[must_use]
    pub unsafe fn prog_lookup(&self, key: *const u8) -> *mut u8 {
        // SAFETY: the caller's duty.
        unsafe { self.ops.prog_lookup(key) }
    }

    /// Stores a value for a program; returns 0 or a negative errno.
    ///
    /// # Safety
    /// `value` points to `value_size` readable bytes; key and slots as in [`Map::prog_lookup`].
    #[inline]
    pub unsafe fn prog_update(&self, key: *const u8, value: *const u8, flags: u64) -> i64 {
        if !self.file.writable() {
            return -i64::from(EPERM);
        }
        // SAFETY: the caller's duty.
        unsafe { self.ops.prog_update(key, value, flags) }
    }

    /// Finds a CPU's value for a program: its address in this process, or null, as for types that
    /// are not per-CPU.
    ///
    /// # Safety
    /// As [`Map::prog_lookup`].
    #[doc(alias = "bpf_map_lookup_percpu_elem")]
    #[inline]
    #[must_use]
    pub unsafe fn prog_lookup_cpu(&self, key: *const u8, cpu: u32) -> *mut u8 {
        // SAFETY: the caller's duty.
        unsafe { self.ops.prog_lookup_cpu(key, cpu) }
    }

    /// Puts a value into a queue, stack or bloom filter for a program; returns 0 or a negative
    /// errno.
    ///
    /// # Safety
    /// `value` points to `value_size` readable bytes.
    #[doc(alias = "bpf_map_push_elem")]
    pub unsafe fn prog_push(&self, value: *const u8, flags: u64) -> i64 {
        if !self.file.writable() {
            return -i64::from(EPERM);
        }
        // SAFETY: the caller's duty.
        unsafe { self.ops.prog_push(value, flags) }
    }

    /// Takes the next value out of a queue or stack for a program; returns 0 or a negative errno,
    /// and then the value is zero.
    ///
    /// # Safety
    /// `value` points to `value_size` writable bytes.
    #[doc(alias = "bpf_map_pop_elem")]
    pub unsafe fn prog_pop(&self, value: *mut u8) -> i64 {
        if !self.file.writable() {
            return -i64::from(EPERM);
        }
        // SAFETY: the caller's duty.
        unsafe { self.ops.prog_pop(value) }
    }

    /// Copies out what [`Map::prog_pop`] would take. A bloom filter is asked instead whether it may
    /// hold the value: 0, or `-ENOENT`.
    ///
    /// # Safety
    /// As [`Map::prog_pop`], and the value is readable.
    #[doc(alias = "bpf_map_peek_elem")]
    pub unsafe fn prog_peek(&self, value: *mut u8) -> i64 {
        // SAFETY: the caller's duty.
        unsafe { self.ops.prog_peek(value) }
    }

    /// Finds the next element of a walk for a program, `None` at the end. Safe on the event path.
    ///
    /// The addresses stay mapped as long as the map; what lies there is another element's when this
    /// one is deleted.
    ///
    /// # Safety
    /// Slots as in [`Map::prog_lookup`].
    #[doc(alias = "bpf_for_each_map_elem")]
    pub unsafe fn prog_next(&self, walk: &mut ProgWalk) -> Option<(*const u8, *mut u8)> {
        // SAFETY: the caller's duty.
        let e = unsafe { self.ops.prog_next(&mut walk.at, &mut walk.last) }?;
        let key = match e.key {
            ElementKey::Fixed(key) => key,
            ElementKey::Index(index) => {
                walk.index = index;
                (&raw const walk.index).cast()
            }
            ElementKey::Bytes(data, size) => {
                walk.bytes = DynptrUser { data: data as u64, size, reserved: 0 };
                (&raw const walk.bytes).cast()
            }
        };
        Some((key, e.value))
    }

    /// Removes an element for a program; returns 0 or a negative errno.
    ///
    /// # Safety
    /// The key as in [`Map::prog_lookup`].
    #[inline]
    pub unsafe fn prog_delete(&self, key: *const u8) -> i64 {
        if !self.file.writable() {
            return -i64::from(EPERM);
        }
        // SAFETY: the caller's duty.
        unsafe { self.ops.prog_delete(key) }
    }

    /// Reserves a sample of `size` bytes for a program: its address in this process, or null when
    /// there is no room.
    ///
    /// Safe on the event path. The sample must be given to [`Map::ringbuf_submit`] or
    /// [`Map::ringbuf_discard`] by the thread that reserved it; until then, later samples wait
    /// for it.
    #[doc(alias = "bpf_ringbuf_reserve")]
    #[inline]
    #[must_use]
    pub fn ringbuf_reserve(&self, size: u64, flags: u64) -> *mut u8 {
        match &self.special {
            Special::Ringbuf(ring) => ring.reserve(size, flags),
            _ => std::ptr::null_mut(),
        }
    }

    /// Gives a sample over to the consumer. Which ring it belongs to follows from its address; an
    /// address that is in no ring of this process does nothing.
    ///
    /// # Safety
    /// `sample` was reserved in a map that is still open, and not given over or back since; or it
    /// is in no ring of this process.
    ///
    /// ```compile_fail,E0133
    /// skep_maps::Map::ringbuf_submit(8 as *mut u8, 0);
    /// ```
    #[doc(alias = "bpf_ringbuf_submit")]
    pub unsafe fn ringbuf_submit(sample: *mut u8, flags: u64) {
        // SAFETY: the caller's duty.
        unsafe { ring::commit(sample as u64, flags, false) };
    }

    /// Gives a reserved sample back: the consumer skips it.
    ///
    /// # Safety
    /// As [`Map::ringbuf_submit`].
    #[doc(alias = "bpf_ringbuf_discard")]
    pub unsafe fn ringbuf_discard(sample: *mut u8, flags: u64) {
        // SAFETY: the caller's duty.
        unsafe { ring::commit(sample as u64, flags, true) };
    }

    /// Reserves, copies and submits a sample; 0, or a negative errno: `EAGAIN` when there is no
    /// room.
    ///
    /// # Safety
    /// `data` points to `size` readable bytes.
    #[doc(alias = "bpf_ringbuf_output")]
    #[inline]
    pub unsafe fn ringbuf_output(&self, data: *const u8, size: u64, flags: u64) -> i64 {
        if flags > 3 {
            return -i64::from(EINVAL);
        }
        let Special::Ringbuf(ring) = &self.special else { return -i64::from(EINVAL) };
        // SAFETY: the caller's duty.
        if unsafe { ring.output(data, size, flags) } { 0 } else { -i64::from(EAGAIN) }
    }

    /// Tells bytes not yet consumed (0), the size (1), the consumer's (2) or the producers'
    /// position (3).
    #[doc(alias = "bpf_ringbuf_query")]
    #[must_use]
    pub fn ringbuf_query(&self, what: u64) -> u64 {
        if let Special::Ringbuf(ring) = &self.special { ring.query(what) } else { 0 }
    }

    /// Begins to drain a user ring buffer, for a program; or `-EBUSY` when another one does,
    /// `-EINVAL` for another map type.
    ///
    /// Safe on the event path, as is all that [`Drain`] does. Who dies while draining loses the
    /// sample he looked at to the next.
    ///
    /// # Errors
    /// A negative errno.
    #[doc(alias = "bpf_user_ringbuf_drain")]
    pub fn user_ringbuf_drain(&self) -> Result<Drain<'_>, i64> {
        match &self.special {
            Special::UserRingbuf(ring) if self.file().writable() => Drain::begin(ring),
            _ => Err(-i64::from(EINVAL)),
        }
    }

    /// Gives a sample of up to two parts (an empty second one is none) to the reader of a
    /// processor's ring, for a program.
    ///
    /// Returns 0, or `-E2BIG` for an index out of range, `-ENOENT` when nobody wants samples there,
    /// `-ENOSPC` when the ring is full, and `-EINVAL` for another map type. Safe on the event
    /// path.
    ///
    /// # Safety
    /// Both parts are readable: address and size.
    #[doc(alias = "bpf_perf_event_output")]
    pub unsafe fn perf_output(&self, index: u32, parts: [(*const u8, u64); 2]) -> i64 {
        let Special::PerfEvents(events) = &self.special else { return -i64::from(EINVAL) };
        if !self.file().writable() {
            return -i64::from(if events.has(index) { ENOENT } else { E2BIG });
        }
        // SAFETY: the caller's duty.
        unsafe { events.output(index, parts) }
    }

    /// Puts a call stack into a map of stacks, for a program: its number, or `-EEXIST` when another
    /// stack has the same one and `flags` has no `BPF_F_REUSE_STACKID`, `-EFAULT` for no
    /// addresses, `-EINVAL` for another map type.
    ///
    /// What is deeper than the map's values have room for is left out. Of `flags`, those that say
    /// where the stack comes from are the caller's affair. Safe on the event path.
    ///
    /// # Safety
    /// `addresses` points to `n` readable words.
    #[doc(alias = "bpf_get_stackid")]
    pub unsafe fn stack_id(&self, addresses: *const u64, n: u64, flags: u64) -> i64 {
        match &self.special {
            // SAFETY: the caller's duty.
            Special::Stacks(stacks) => unsafe { stacks.insert(addresses, n, flags) },
            _ => -i64::from(EINVAL),
        }
    }
}
