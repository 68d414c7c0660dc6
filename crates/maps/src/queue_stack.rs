//! `BPF_MAP_TYPE_QUEUE` and `BPF_MAP_TYPE_STACK`: values without keys, first in first out, and last
//! in first out.
//!
//! ```text
//! payload   0 lock   64 head   128 tail   192 changes   | 4096: value 0 | value 1 | … |     each value_size rounded up to eight
//! ```
//!
//! Values lie at position modulo `max_entries`, from `tail`, the oldest, to before `head`. A push
//! stores the value and moves `head` on, in that order; a queue's pop moves `tail` on, a stack's
//! `head` back. So each takes effect by one store. All hold the lock; lookups and walks do not. A
//! value that was written over while they copied it lay outside the ends before, or the count of
//! changes is another one.

use std::sync::Arc;
use std::sync::atomic::{
    AtomicU64, Ordering::Acquire, Ordering::Relaxed, Ordering::Release, fence,
};

use skep_isa::MapType;
use skep_isa::map::update;

use crate::def::MapDef;
use crate::dump::position::Position;
use crate::error::{E2BIG, EBUSY, EINVAL, ENOENT, MapError};
use crate::layout::Layout;
use crate::map_file::MapFile;
use crate::ops::{MapOps, ProgOps, UserOps, WalkOps};
use crate::shm::epoch::InsertionEpochs;
use crate::shm::lock::{self, Held};
use crate::shm::{ObjectFile, PAGE, copy, round8};

/// Largest value (the kernel: `KMALLOC_MAX_SIZE`).
const MAX_VALUE: u32 = 4 << 20;
/// Most bytes of all values.
const MAX_BYTES: u64 = 1 << 38;
/// Looks of a walk at a value that is always written over.
const TRIES: u32 = 1000;

pub(crate) fn layout(def: &MapDef) -> Result<Layout, MapError> {
    if def.key_size != 0 || def.value_size == 0 || def.max_entries == 0 {
        return Err(
            def.invalid("it has no keys, and value size and number of entries must not be zero")
        );
    }
    let bytes = round8(u64::from(def.value_size)) * u64::from(def.max_entries);
    if def.value_size > MAX_VALUE || bytes > MAX_BYTES {
        return Err(def.refused("too large", E2BIG));
    }
    // Positions of a queue only grow, so they tell what came later; those of a stack are used
    // again.
    let epochs = if def.map_type == MapType::Stack { def.max_entries.into() } else { 0 };
    Ok(Layout::with_epochs(PAGE + bytes, epochs))
}

pub(crate) fn open(file: MapFile) -> Result<Box<dyn MapOps>, MapError> {
    Ok(Box::new(QueueStack {
        map_type: file.def.map_type,
        stack: file.def.map_type == MapType::Stack,
        value_size: file.def.value_size as usize,
        stride: round8(u64::from(file.def.value_size)),
        max: u64::from(file.def.max_entries),
        reciprocal: reciprocal(u64::from(file.def.max_entries)),
        base: file
            .object
            .payload()
            .at(0, layout(&file.def)?.payload_len)
            .ok_or(MapError::Damaged { what: "the file is too short" })?,
        epochs: file.epochs,
        file: file.object,
    }))
}

#[derive(Debug)]
struct QueueStack {
    map_type: MapType,
    stack: bool,
    value_size: usize,
    stride: u64,
    max: u64,
    reciprocal: u64,
    base: *mut u8,
    /// When the values of a stack were pushed, by their place; a queue has none.
    epochs: InsertionEpochs,
    file: Arc<ObjectFile>,
}

// SAFETY: `base` is the payload of `file`, reached through atomics and word-wise copies only.
unsafe impl Send for QueueStack {}
// SAFETY: `base` is the payload of `file`, reached through atomics and word-wise copies only.
unsafe impl Sync for QueueStack {}

/// One by `n`, times 2⁶⁴, rounded down.
fn reciprocal(n: u64) -> u64 {
    u64::MAX / n
}

/// Finds `a % n` without a division, which takes longer than all the rest: the quotient is at most
/// one too small.
#[inline(always)]
fn modulo(a: u64, n: u64, reciprocal: u64) -> u64 {
    let quotient = ((u128::from(a) * u128::from(reciprocal)) >> 64) as u64;
    let rest = a.wrapping_sub(quotient.wrapping_mul(n));
    if rest >= n { rest.wrapping_sub(n) } else { rest }
}

impl QueueStack {
    #[inline(always)]
    fn word<const AT: u64>(&self) -> &AtomicU64 {
        const { assert!(AT & 7 == 0 && AT < PAGE) };
        // SAFETY: inside the first page of the payload, whose length was checked, and aligned.
        unsafe { AtomicU64::from_ptr(self.base.add(AT as usize).cast()) }
    }

    #[inline(always)]
    fn lock(&self) -> Option<Held> {
        let held = lock::acquire(self.word::<0>()).ok()?;
        if held.recovered {
            self.repair();
        }
        Some(held)
    }

    #[cold]
    #[inline(never)]
    fn repair(&self) {
        let changes = self.changes().load(Relaxed);
        if changes & 1 != 0 {
            // What the dead one wrote is not in the map yet. See `push`, why the count is odd.
            self.changes().store(changes.wrapping_add(1), Release);
        }
    }

    #[inline(always)]
    fn release(&self, held: Held) {
        lock::release(self.word::<0>(), held);
    }

    #[inline(always)]
    fn head(&self) -> &AtomicU64 {
        self.word::<64>()
    }

    #[inline(always)]
    fn tail(&self) -> &AtomicU64 {
        self.word::<128>()
    }

    #[inline(always)]
    fn changes(&self) -> &AtomicU64 {
        self.word::<192>()
    }

    /// Returns tail and head; garbage shows as an empty map.
    #[inline(always)]
    fn ends(&self) -> (u64, u64) {
        let (tail, head) = (self.tail().load(Acquire), self.head().load(Acquire));
        if head.wrapping_sub(tail) > self.max { (head, head) } else { (tail, head) }
    }

    /// Returns the address of the value at a position.
    #[inline(always)]
    fn value(&self, position: u64) -> Option<*mut u8> {
        let i = modulo(position, self.max, self.reciprocal);
        if i >= self.max {
            return None;
        }
        // SAFETY: inside the payload, which has `max` values behind its first page.
        Some(unsafe { self.base.add(PAGE.wrapping_add(i.wrapping_mul(self.stride)) as usize) })
    }

    /// # Safety
    /// `value` points to a value's size in readable bytes.
    #[inline(always)]
    unsafe fn push(&self, value: *const u8, flags: u64) -> i64 {
        let replace = flags & update::EXIST != 0;
        if flags & update::NOEXIST != 0 || flags > update::EXIST {
            return -i64::from(EINVAL);
        }
        let Some(held) = self.lock() else { return -i64::from(EBUSY) };
        let (tail, head) = self.ends();
        let full = head.wrapping_sub(tail) == self.max;
        let result = match self.value(head) {
            Some(to) if !full || replace => {
                let changes = self.changes().load(Relaxed);
                self.changes().store(changes.wrapping_add(1), Relaxed);
                // Odd until the value is written, for readers of older builds: those do not compare
                // the ends as ours do.
                fence(Release);
                let tail = if full { tail.wrapping_add(1) } else { tail };
                if self.tail().load(Relaxed) != tail {
                    self.tail().store(tail, Release);
                }
                // Who sees a byte of the new value sees that the old one's place is not in the map
                // any more.
                fence(Release);
                // SAFETY: the place has `stride` bytes; the source is the caller's duty.
                unsafe { copy::store(to, value, self.value_size) };
                if self.stack {
                    self.epochs.stamp(modulo(head, self.max, self.reciprocal));
                }
                // Who sees the new head sees this change.
                self.changes().store(changes.wrapping_add(2), Release);
                self.head().store(head.wrapping_add(1), Release);
                0
            }
            _ => -i64::from(E2BIG),
        };
        self.release(held);
        result
    }

    /// Copies the next value out by `copy`, or shows it nothing; and takes it out.
    #[inline(always)]
    fn next(&self, take: bool, copy: impl FnOnce(Option<*mut u8>)) -> i64 {
        let Some(held) = self.lock() else {
            copy(None);
            return -i64::from(EBUSY);
        };
        let (tail, head) = self.ends();
        let result = if tail == head {
            copy(None);
            -i64::from(ENOENT)
        } else {
            copy(self.value(if self.stack { head.wrapping_sub(1) } else { tail }));
            match (take, self.stack) {
                (false, _) => {}
                (true, true) => self.head().store(head.wrapping_sub(1), Release),
                (true, false) => self.tail().store(tail.wrapping_add(1), Release),
            }
            0
        };
        self.release(held);
        result
    }

    /// Tells whether what was copied since the count of changes and both ends were loaded is good.
    /// A push that is going on, or whose thread is stopped, does no harm: it writes outside the
    /// ends.
    #[inline(always)]
    fn is_as_before(&self, changes: u64, ends: (u64, u64)) -> bool {
        // Pairs with the fences in `push`.
        fence(Acquire);
        // In this order: the ends may be the same again, but then the count is another one.
        self.ends() == ends && self.changes().load(Relaxed) == changes
    }

    /// Copies the next value out for a program, without the lock; `None` when others change the map
    /// all the time.
    ///
    /// # Safety
    /// As [`QueueStack::next_for_program`].
    unsafe fn peek(&self, value: *mut u8) -> Option<i64> {
        for _ in 0..TRIES {
            let changes = self.changes().load(Acquire);
            let ends = self.ends();
            let (tail, head) = ends;
            let position = if self.stack { head.wrapping_sub(1) } else { tail };
            let from = if tail == head { None } else { self.value(position) };
            // SAFETY: a value has `value_size` bytes; the destination is the caller's duty.
            unsafe {
                match from {
                    Some(from) => copy::store_bytes(value, from, self.value_size),
                    None => copy::zero_bytes(value, self.value_size),
                }
            }
            if self.is_as_before(changes, ends) {
                return Some(if from.is_some() { 0 } else { -i64::from(ENOENT) });
            }
            std::hint::spin_loop();
        }
        None
    }

    /// Copies the value that a walk has next, in the order of pops, and returns the place behind
    /// it.
    fn copy_next(
        &self,
        at: &Position,
        (tail, head): (u64, u64),
        value: &mut [u8],
    ) -> Result<(Position, bool), MapError> {
        let begun = at.minor != 0;
        let last = if begun { at.minor.wrapping_sub(1) } else { head };
        let mut strict = at.strict;
        let (position, after) = if self.stack {
            let mut top = if begun { at.major.min(head) } else { head };
            // No further than the values there are, at most `max`.
            while top > tail
                && self
                    .epochs
                    .is_newer(modulo(top.wrapping_sub(1), self.max, self.reciprocal), strict.number)
            {
                top -= 1;
                strict.newer += 1;
            }
            (top.wrapping_sub(1), top.wrapping_sub(1))
        } else {
            let first = if begun { at.major.max(tail) } else { tail };
            (first, first.wrapping_add(1))
        };
        if position < tail || position >= head.min(last) || tail == head {
            return Ok((Position { strict, ..*at }, false));
        }
        let from = self
            .value(position)
            .ok_or(MapError::Damaged { what: "a value lies outside its file" })?;
        // SAFETY: a value has `stride` bytes.
        unsafe { copy::load(value, from) };
        Ok((Position { major: after, minor: last.wrapping_add(1), strict }, true))
    }

    fn take_for_user(&self, out: &mut [u8]) -> Result<(), MapError> {
        let result = self.next(true, |from| {
            if let Some(from) = from {
                // SAFETY: a value has `stride` bytes.
                unsafe { copy::load(out, from) }
            }
        });
        self.user_result(result, 0)
    }

    /// # Safety
    /// `value` points to a value's size in writable bytes.
    unsafe fn next_for_program(&self, take: bool, value: *mut u8) -> i64 {
        self.next(take, |from| {
            // SAFETY: a value has `value_size` bytes; the destination is the caller's duty.
            unsafe {
                match from {
                    Some(from) => copy::store_bytes(value, from, self.value_size),
                    None => copy::zero_bytes(value, self.value_size),
                }
            }
        })
    }

    fn user_result(&self, result: i64, flags: u64) -> Result<(), MapError> {
        match -result as i32 {
            0 => Ok(()),
            ENOENT => Err(MapError::NoElement),
            E2BIG => Err(MapError::Full { max_entries: self.max as u32 }),
            EINVAL => Err(MapError::Flags { flags }),
            _ => Err(MapError::Busy { what: "the lock of the map" }.with_holder()),
        }
    }
}

impl UserOps for QueueStack {
    fn user_value_size(&self) -> usize {
        self.value_size
    }

    fn refuse(&self, operation: &'static str) -> MapError {
        MapError::Unsupported { map_type: self.map_type, operation, errno: EINVAL }
    }

    fn lookup(&self, _key: &[u8], out: &mut [u8], _flags: u64) -> Result<(), MapError> {
        // As a walk sees it, without the lock, which a stopped thread may hold.
        if self.step(&mut Position::default(), &mut [], out)? {
            Ok(())
        } else {
            Err(MapError::NoElement)
        }
    }

    fn update(&self, _key: &[u8], value: &[u8], flags: u64) -> Result<(), MapError> {
        // SAFETY: the front end checked the length of the value.
        self.user_result(unsafe { self.push(value.as_ptr(), flags) }, flags)
    }

    fn take(&self, _key: &[u8], out: &mut [u8], flags: u64) -> Option<Result<(), MapError>> {
        Some(if flags == 0 { self.take_for_user(out) } else { Err(MapError::Flags { flags }) })
    }
}

impl WalkOps for QueueStack {
    /// Walks in the order of pops: `major` is the next position, one more than it in a stack;
    /// `minor` is zero at the beginning, and one more than where the head then was: what was
    /// pushed since is not returned.
    fn step(&self, at: &mut Position, _key: &mut [u8], value: &mut [u8]) -> Result<bool, MapError> {
        for _ in 0..TRIES {
            let changes = self.changes().load(Acquire);
            let ends = self.ends();
            let place = self.copy_next(at, ends, value)?;
            if self.is_as_before(changes, ends) {
                *at = place.0;
                return Ok(place.1);
            }
            std::hint::spin_loop();
        }
        let busy = MapError::Busy { what: "the lock of the map" };
        let held = if self.file.writable() { self.lock().ok_or(busy)? } else { return Err(busy) };
        let place = self.copy_next(at, self.ends(), value);
        self.release(held);
        let more;
        (*at, more) = place?;
        Ok(more)
    }
}

impl ProgOps for QueueStack {
    unsafe fn prog_push(&self, value: *const u8, flags: u64) -> i64 {
        // SAFETY: the caller's duty.
        unsafe { self.push(value, flags) }
    }

    unsafe fn prog_pop(&self, value: *mut u8) -> i64 {
        // SAFETY: the caller's duty.
        unsafe { self.next_for_program(true, value) }
    }

    unsafe fn prog_peek(&self, value: *mut u8) -> i64 {
        // SAFETY: the caller's duty.
        unsafe { self.peek(value).unwrap_or_else(|| self.next_for_program(false, value)) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn positions_wrap_at_every_size() {
        let mut x = 88_172_645_463_325_252u64;
        for max in [1, 2, 3, 5, 7, 10, 64, 1000, 65_537, (1 << 24) - 3, u64::from(u32::MAX)] {
            let edges = [
                0,
                1,
                max - 1,
                max,
                max + 1,
                2 * max - 1,
                2 * max,
                u64::MAX,
                u64::MAX - max,
                u64::MAX / max * max,
            ];
            for position in edges {
                assert_eq!(
                    modulo(position, max, reciprocal(max)),
                    position % max,
                    "{position} of {max}"
                );
            }
            for _ in 0..10_000 {
                x ^= x << 13;
                x ^= x >> 7;
                x ^= x << 17;
                assert_eq!(modulo(x, max, reciprocal(max)), x % max, "{x} of {max}");
            }
        }
    }
}
