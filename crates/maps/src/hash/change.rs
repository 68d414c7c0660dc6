//! Changes of a table: an element is put in, replaced or taken out, under its stripe's lock.
//!
//! The order of the stores, and what a death between two of them leaves, stand in [`super::table`].

use std::sync::atomic::{Ordering::Relaxed, Ordering::Release, Ordering::SeqCst, fence};

use skep_isa::map::update;

use super::table::{BUSY, Place, Shortage, Table, Values, changed, reference, row};
use crate::error::{E2BIG, EBUSY, EEXIST, EINVAL, ENOENT, ENOMEM, MapError};
use crate::shm::lock;
use crate::shm::table::{Element, NO_SPARE, Stripe};

/// Attempts to insert when elements must come from other stripes.
const MOVES: u32 = 64;
/// Longest chain that is looked at for where sequences come round.
const SHORT: u32 = 16;

impl Table {
    /// Fills an element that nobody may see.
    ///
    /// # Safety
    /// As [`Table::find`].
    unsafe fn write_element(
        &self,
        e: Element<'_>,
        h: u64,
        key: *const u8,
        next: u32,
        sequence: u64,
    ) {
        // Whoever sees the new bytes also sees that the buckets this element was in have changed.
        fence(Release);
        e.link().store((h >> 32 << 32) | u64::from(next), Relaxed);
        e.sequence().store(sequence, Relaxed);
        // SAFETY: the caller's duty; the element is out of every list.
        unsafe { e.set_key(key) };
    }

    /// Stores a value under a key; 0 or a negative errno.
    ///
    /// # Safety
    /// As [`Table::find`].
    #[inline(always)]
    pub(crate) unsafe fn update(&self, key: *const u8, flags: u64, values: &impl Values) -> i64 {
        let flags = flags & !update::LOCK;
        if flags > update::EXIST {
            return -i64::from(EINVAL);
        }
        // SAFETY: the caller's duty.
        let h = unsafe { self.hash(key) };
        self.come(h);
        // SAFETY: the key has the key size in readable bytes, as the caller promises.
        match unsafe { self.try_update(h, key, flags, values) } {
            Ok(result) => result,
            // SAFETY: the key has the key size in readable bytes, as the caller promises.
            Err(shortage) => unsafe { self.update_after_shortage(shortage, h, key, flags, values) },
        }
    }

    /// Asks for a bucket before its lock is taken. No load behind a locked instruction begins
    /// before that has ended, and it waits for all loads before it; a prefetch is neither. So
    /// the wait for this bucket goes on beside the wait for the element of the change before.
    #[inline(always)]
    fn come(&self, h: u64) {
        self.memory.prefetch_bucket(h & self.memory.geometry.buckets.wrapping_sub(1));
    }

    /// Goes on when there was no element to put in: brings one from elsewhere and tries again.
    ///
    /// # Safety
    /// As [`Table::find`].
    #[cold]
    #[inline(never)]
    unsafe fn update_after_shortage(
        &self,
        mut shortage: Shortage,
        h: u64,
        key: *const u8,
        flags: u64,
        values: &impl Values,
    ) -> i64 {
        let stripe = self.memory.stripe(h);
        let (mut tries, mut last) = (1u32, None);
        loop {
            match last {
                // The pool of this stripe is empty.
                Some(Shortage::Empty) => return -i64::from(E2BIG),
                Some(_) => return -i64::from(ENOMEM),
                // Or no pool has any: perhaps as another has put this very key in meanwhile.
                None => {
                    let why = self
                        .refill(&stripe)
                        .err()
                        .filter(|_| !self.lru || shortage == Shortage::NoSpare);
                    let why = if tries >= MOVES { Some(why.unwrap_or(shortage)) } else { why };
                    last =
                        why.map(|why| if shortage == Shortage::NoSpare { shortage } else { why });
                }
            }
            // SAFETY: the caller's duty.
            match unsafe { self.try_update(h, key, flags, values) } {
                Ok(result) => return result,
                Err(again) => shortage = again,
            }
            tries = tries.wrapping_add(1);
        }
    }

    /// Takes the stripe's lock and stores a value, if there is an element for it. The usual case is
    /// a short one: a value is there and is overwritten in place.
    ///
    /// # Safety
    /// As [`Table::find`].
    #[inline(always)]
    unsafe fn try_update(
        &self,
        h: u64,
        key: *const u8,
        flags: u64,
        values: &impl Values,
    ) -> Result<i64, Shortage> {
        let stripe = self.memory.stripe(h);
        let Some(held) = self.lock(&stripe) else { return Ok(-i64::from(EBUSY)) };
        let bucket = self.memory.bucket(h);
        self.note(&stripe, h);
        // SAFETY: the caller's duty.
        let done = match unsafe { self.walk(bucket.load(Relaxed), h, key) } {
            Some(_) if flags == update::NOEXIST => Ok(-i64::from(EEXIST)),
            Some(place) if !values.is_locked() && values.overwrite(self, place.found) => {
                if self.lru {
                    self.touch(place.found);
                }
                Ok(0)
            }
            // SAFETY: the caller's duty; the lock is held.
            Some(place) => unsafe { self.replace(&place, h, key, values) }.map(|()| 0),
            None if flags == update::EXIST => Ok(-i64::from(ENOENT)),
            // SAFETY: the key has the key size in readable bytes, as the caller promises. The
            // lock is held.
            None => unsafe { self.insert(h, key, values) }.map(|()| 0),
        };
        lock::release(stripe.lock, held);
        done
    }

    /// Puts another element in the place of one that has this key, or writes over it under the
    /// value's own lock.
    ///
    /// # Safety
    /// As [`Table::find`], with the stripe's lock held.
    #[inline(never)]
    unsafe fn replace(
        &self,
        place: &Place<'_>,
        h: u64,
        key: *const u8,
        values: &impl Values,
    ) -> Result<(), Shortage> {
        let (stripe, bucket) = (self.memory.stripe(h), self.memory.bucket(h));
        if values.is_locked() {
            // In place, and only there: programs that found the value before must see what is
            // stored.
            return self.overwrite_locked(&stripe, bucket, place.found, values);
        }
        let spare = self.take_spare(&stripe)?;
        let e = self.memory.element(spare).ok_or(Shortage::NoSpare)?;
        let next = reference(place.element.link().load(Relaxed));
        // SAFETY: the caller's duty; the spare is in no list.
        unsafe { self.write_element(e, h, key, next, place.element.sequence().load(Relaxed)) };
        self.epochs.inherit(row(spare), row(place.found));
        values.fill(self, spare);
        self.relink(bucket, place.before, spare);
        if self.lru {
            self.touch(spare);
            self.memory.forget(place.found);
        }
        stripe.spare.store(u64::from(place.found), Relaxed);
        Ok(())
    }

    /// Puts a new element in, the first of its bucket.
    ///
    /// # Safety
    /// As [`Table::find`], with the stripe's lock held.
    #[inline(never)]
    unsafe fn insert(&self, h: u64, key: *const u8, values: &impl Values) -> Result<(), Shortage> {
        let memory = &self.memory;
        let (stripe, bucket) = (memory.stripe(h), memory.bucket(h));
        let mut stamp = 0;
        let new = match self.take(&stripe) {
            Ok(new) => new,
            // What the dead left is found first.
            Err(_) if self.lru && self.filled() == 0 && memory.leaks().load(Relaxed) == 0 => {
                let new = self.evict(&stripe).ok_or(Shortage::Empty)?;
                // It may have come out of this very bucket.
                self.note(&stripe, h);
                new
            }
            Err(shortage) => return Err(shortage),
        };
        if self.lru {
            stamp = self.tick();
        }
        let head = bucket.load(Relaxed);
        let e = memory.element(new).ok_or(Shortage::Empty)?;
        let newest = self.next_sequence(head);
        let sequence =
            if self.lru { u64::from(stamp) << 32 | newest & 0xffff_ffff } else { newest };
        // SAFETY: the caller's duty; the element is in no list.
        unsafe { self.write_element(e, h, key, reference(head), sequence) };
        self.epochs.stamp(row(new));
        values.fill(self, new);
        bucket.store(changed(head, new), Release);
        Ok(())
    }

    /// Finds the sequence of an element that becomes the first of a bucket. Sequences fall along a
    /// chain; and each is above all that the bucket ever had, so that a walk does not meet
    /// again what was deleted and put in behind it: every insertion makes the bucket's version
    /// greater, too. That comes round after 2^32 changes, and the first element may then have more.
    #[inline(always)]
    fn next_sequence(&self, head: u64) -> u64 {
        let version = head >> 32;
        let Some(first) = self.memory.element(reference(head)) else {
            return version.wrapping_add(1);
        };
        let newest = self.sequence(&first);
        let above = if self.lru { self.later(version, newest, first) } else { version.max(newest) };
        above.wrapping_add(1)
    }

    /// Of a bucket's version and its newest sequence, the later one, where both come round: but no
    /// element of the chain may be left half the circle behind.
    fn later(&self, version: u64, newest: u64, first: Element<'_>) -> u64 {
        const FAR: u32 = 1 << 30;
        let behind = |sequence: u64| (version as u32).wrapping_sub(sequence as u32);
        let mut element = first;
        for _ in 0..SHORT {
            if behind(self.sequence(&element)) >= FAR {
                return newest;
            }
            match self.memory.element(reference(element.link().load(Relaxed))) {
                Some(next) => element = next,
                None => return version,
            }
        }
        newest
    }

    /// Takes the element that will replace another out of its place; what it replaces comes there.
    pub(super) fn take_spare(&self, stripe: &Stripe<'_>) -> Result<u32, Shortage> {
        let first =
            self.memory.geometry.max_entries.wrapping_add(stripe.index).wrapping_add(1) as u32;
        let spare = match stripe.spare.load(Relaxed) {
            0 if self.on_demand => {
                // First, so that a slot that gets memory at this moment sees that the spare is in
                // use.
                stripe.spare.store(NO_SPARE, SeqCst);
                fence(SeqCst);
                if !self.acquire_spare(first) {
                    stripe.spare.store(0, Relaxed);
                    return Err(Shortage::NoSpare);
                }
                first
            }
            0 => first,
            NO_SPARE => return self.instead_of_spare(stripe),
            other => other as u32,
        };
        // Who sees this sees that the bucket changed, with whose value the spare was left; pairs
        // with the Acquire in `spare_for`.
        stripe.spare.store(NO_SPARE, Release);
        // Output of its place before it is used.
        fence(Release);
        Ok(spare)
    }

    /// Takes another element, as somebody died with the spare in hand. To write over the old value
    /// instead would show readers a mix.
    #[cold]
    #[inline(never)]
    fn instead_of_spare(&self, stripe: &Stripe<'_>) -> Result<u32, Shortage> {
        self.take(stripe).map_err(|_| {
            // Then a sweep finds the lost one.
            self.memory.leaks().fetch_max(1, Relaxed);
            Shortage::NoSpare
        })
    }

    /// Removes a key; 0 or a negative errno. `last` is shown the element while nobody can change it
    /// but in place.
    ///
    /// # Safety
    /// As [`Table::find`].
    pub(crate) unsafe fn delete(&self, key: *const u8, mut last: impl FnMut(u32)) -> i64 {
        // SAFETY: the caller's duty.
        let h = unsafe { self.hash(key) };
        self.come(h);
        let stripe = self.memory.stripe(h);
        let Some(held) = self.lock(&stripe) else { return -i64::from(EBUSY) };
        let bucket = self.memory.bucket(h);
        self.note(&stripe, h);
        // SAFETY: the caller's duty.
        let result = match unsafe { self.walk(bucket.load(Relaxed), h, key) } {
            Some(place) => {
                self.relink(bucket, place.before, reference(place.element.link().load(Relaxed)));
                last(place.found);
                self.put(&stripe, place.found);
                0
            }
            None => -i64::from(ENOENT),
        };
        lock::release(stripe.lock, held);
        result
    }
}

/// Turns a result in the kernel's form into one for users.
#[inline(always)]
pub(crate) fn user_result(result: i64, flags: u64, max_entries: u32) -> Result<(), MapError> {
    if result == 0 { Ok(()) } else { user_error(result, flags, max_entries) }
}

#[inline(never)]
fn user_error(result: i64, flags: u64, max_entries: u32) -> Result<(), MapError> {
    match -result as i32 {
        ENOENT => Err(MapError::NoElement),
        EEXIST => Err(MapError::Exists),
        E2BIG => Err(MapError::Full { max_entries }),
        ENOMEM => Err(MapError::NoMemory { what: "another element" }),
        EINVAL => Err(MapError::Flags { flags }),
        _ => Err(BUSY.with_holder()),
    }
}
