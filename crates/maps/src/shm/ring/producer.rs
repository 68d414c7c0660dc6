//! The producers' side: they reserve under a lock for a few instructions.

use std::sync::atomic::{
    Ordering::Acquire, Ordering::Relaxed, Ordering::Release, Ordering::SeqCst, compiler_fence,
    fence,
};

use super::{BUSY, DATA, DISCARD, HEADER, LENGTH, RingMemory, is_signed_up};
use crate::shm::{copy, lock, round8, sys, tls};

/// Largest sample (kernel/bpf/ringbuf.c `RINGBUF_MAX_RECORD_SZ`).
const MAX_SAMPLE: u64 = (u32::MAX / 4) as u64;
/// Finished records that a producer passes over at a time, when half of the room or more may be
/// unfinished.
const PASSED: u32 = 64;
/// Longest sample, in bytes, that is copied in while the lock is held.
const SHORT: u64 = 256;
const NO_WAKEUP: u64 = 1;
const FORCE_WAKEUP: u64 = 2;

impl RingMemory {
    /// Reserves room for a sample: its address, or null.
    #[inline]
    pub(crate) fn reserve(&self, size: u64, flags: u64) -> *mut u8 {
        let room = if flags == 0 { self.room_for(size) } else { None };
        room.map_or(std::ptr::null_mut(), |(_, sample)| sample)
    }

    /// Reserves room for a sample: the position of its record, and its address.
    #[inline(always)]
    fn room_for(&self, size: u64) -> Option<(u64, *mut u8)> {
        let len = round8(size.wrapping_add(HEADER));
        if size > MAX_SAMPLE || len > self.size || !self.writable {
            return None;
        }
        let position = self.place(size, len)?;
        Some((position, self.behind(position, len.wrapping_sub(HEADER))?))
    }

    /// Makes an unfinished record and returns its position.
    #[inline(always)]
    fn place(&self, size: u64, len: u64) -> Option<u64> {
        let held = lock::acquire(self.producers()).ok()?;
        let (_, tid) = tls::token_parts(lock::owner(held.word));
        let position = self.next(len);
        if let Some(begin) = position {
            self.header(begin).store(u64::from(tid) << 32 | BUSY | size, Relaxed);
            // Pairs with the Acquire in `head`: whoever sees the position sees the header.
            self.producer().store(begin.wrapping_add(len), Release);
        }
        lock::release(self.producers(), held);
        position
    }

    /// Makes a finished record, which `fill` fills while the lock is held: nobody ever sees it
    /// unfinished, and when its producer dies it was never there. Returns its position.
    #[inline(always)]
    fn make(&self, size: u64, len: u64, fill: impl FnOnce(u64)) -> Option<u64> {
        let held = lock::acquire(self.producers()).ok()?;
        let position = self.next(len);
        if let Some(begin) = position {
            let end = begin.wrapping_add(len);
            fill(begin);
            self.header(begin).store(size, Relaxed);
            // Pairs with the Acquire in `head`: whoever sees the position sees header and sample.
            self.producer().store(end, Release);
            if self.pending().load(Relaxed) == begin {
                self.pending().store(end, Relaxed);
            }
        }
        lock::release(self.producers(), held);
        position
    }

    /// Finds the position of the next record, if there is room for `len` bytes. The lock is held.
    #[inline(always)]
    fn next(&self, len: u64) -> Option<u64> {
        let begin = self.producer().load(Relaxed);
        let end = begin.wrapping_add(len);
        // As in the kernel: at most size - 1 bytes, so that full and empty differ, and never over
        // an unfinished record, whatever the consumer's page says.
        if end.wrapping_sub(self.consumed.load(Relaxed)) >= self.size {
            // Pairs with the Release in `consume`: its reads of a record end before we write over
            // it.
            let consumed = self.consumer().load(Acquire);
            self.consumed.store(consumed, Relaxed);
            if end.wrapping_sub(consumed) >= self.size {
                return None;
            }
        }
        let pending = self.pending().load(Relaxed);
        if end.wrapping_sub(pending) > self.size >> 1
            && end.wrapping_sub(self.pass(pending, begin, end)) >= self.size
        {
            return None;
        }
        Some(begin)
    }

    /// Passes over finished records from `pending` on, as many as is needed to have room up to
    /// `end`; returns the first that it left.
    #[cold]
    #[inline(never)]
    fn pass(&self, mut pending: u64, begin: u64, end: u64) -> u64 {
        let mut few = PASSED;
        let mut steps = self.size;
        while pending != begin && steps > 0 && (few > 0 || end.wrapping_sub(pending) >= self.size) {
            // Pairs with the Release in `finish`: its sample is complete before another record
            // begins there.
            let header = self.header(pending).load(Acquire);
            if header & BUSY != 0 {
                break;
            }
            let next = pending.wrapping_add(round8((header & LENGTH).wrapping_add(HEADER)));
            // Positions out of order are damage; the records in doubt were given over long ago.
            pending = if begin.wrapping_sub(next) > self.size { begin } else { next };
            steps = steps.wrapping_sub(8);
            few = few.saturating_sub(1);
        }
        self.pending().store(pending, Relaxed);
        pending
    }

    /// Gives a reserved sample over, or back.
    #[inline(always)]
    pub(crate) fn commit(&self, sample: u64, flags: u64, discard: bool) {
        let at = sample.wrapping_sub(self.base as u64).wrapping_sub(DATA).wrapping_sub(HEADER);
        if at < self.room && at & 7 == 0 {
            self.commit_at(at, flags, discard);
        }
    }

    #[inline(always)]
    fn commit_at(&self, position: u64, flags: u64, discard: bool) {
        self.finish(position, self.header(position).load(Relaxed) & LENGTH, flags, discard);
    }

    /// Gives the record at a position, of which the length is known, over or back.
    #[inline(always)]
    fn finish(&self, position: u64, length: u64, flags: u64, discard: bool) {
        let mark = if discard { DISCARD } else { 0 };
        // The sample is complete before its header says so (pairs with the Acquire in `head`).
        self.header(position).store(length | mark, Release);
        self.announce(position, flags);
    }

    /// Wakes the consumer, if it sleeps, for the record at a position, which is there now.
    #[inline(always)]
    fn announce(&self, position: u64, flags: u64) {
        // The record is there before we look whether the consumer sleeps (pairs with
        // `sleep_unless`).
        compiler_fence(SeqCst);
        if !is_signed_up() {
            fence(SeqCst);
        }
        if self.sleeping().load(Relaxed) != 0 {
            self.wake(position, flags);
        }
    }

    #[cold]
    #[inline(never)]
    fn wake(&self, position: u64, flags: u64) {
        let caught_up = (self.consumer().load(Acquire) ^ position) & self.mask == 0;
        if flags & FORCE_WAKEUP != 0 || (caught_up && flags & NO_WAKEUP == 0) {
            self.wakeups().fetch_add(1, SeqCst);
            sys::futex_wake(self.wakeups());
        }
    }

    /// Copies a sample in; `false` when there is no room.
    ///
    /// # Safety
    /// `data..data+size` is readable.
    #[inline]
    pub(crate) unsafe fn output(&self, data: *const u8, size: u64, flags: u64) -> bool {
        if size > SHORT || !self.writable {
            let Some((position, sample)) = self.room_for(size) else { return false };
            // SAFETY: the record has room for `size` rounded up; the source is the caller's duty.
            unsafe { copy::store(sample, data, size as usize) };
            self.finish(position, size, flags, false);
            return true;
        }
        let len = round8(size.wrapping_add(HEADER));
        let fill = |position| {
            if let Some(sample) = self.behind(position, len.wrapping_sub(HEADER)) {
                // SAFETY: the record has room for `size` rounded up; the source is readable, as the
                // caller promises.
                unsafe { copy::store(sample, data, size as usize) };
            }
        };
        let Some(position) = self.make(size, len, fill) else { return false };
        self.announce(position, flags);
        true
    }

    /// Copies a sample of two parts in, around the end of the data if need be; `false` when there
    /// is no room.
    ///
    /// # Safety
    /// Both parts are readable: address and size.
    pub(crate) unsafe fn output_parts(&self, parts: [(*const u8, u64); 2]) -> bool {
        let [(_, a), (_, b)] = parts;
        let size = a.wrapping_add(b);
        let len = round8(size.wrapping_add(HEADER));
        if a > MAX_SAMPLE
            || b > MAX_SAMPLE
            || size > MAX_SAMPLE
            || len >= self.size
            || !self.writable
        {
            return false;
        }
        if size > SHORT {
            let Some(position) = self.place(size, len) else { return false };
            // SAFETY: the caller's duty.
            unsafe { self.copy_parts(position, parts) };
            self.finish(position, size, 0, false);
            return true;
        }
        // SAFETY: the caller's duty.
        let Some(position) =
            self.make(size, len, |position| unsafe { self.copy_parts(position, parts) })
        else {
            return false;
        };
        self.announce(position, 0);
        true
    }

    /// Copies the two parts of a sample into the record at a position, which is ours and large
    /// enough.
    ///
    /// # Safety
    /// Both parts are readable: address and size.
    #[inline(always)]
    unsafe fn copy_parts(&self, position: u64, parts: [(*const u8, u64); 2]) {
        let mut at = position.wrapping_add(HEADER);
        for (mut from, mut left) in parts {
            while left > 0 {
                let offset = self.offset(at);
                let until_end =
                    self.at.wrapping_add(DATA).wrapping_add(self.size).wrapping_sub(offset);
                let n = left.min(until_end);
                let Some(to) = self.memory().at(offset, n) else { break };
                // SAFETY: the piece lies inside the data; the source is the caller's duty.
                unsafe {
                    copy::store_bytes(to, from, n as usize);
                    from = from.add(n as usize);
                }
                at = at.wrapping_add(n);
                left = left.wrapping_sub(n);
            }
        }
    }
}
