//! Values that are written over in place, in several steps, under the spin lock in them
//! (`BPF_F_LOCK`).
//!
//! ```text
//! spare := new value
//! lock the value    redo := element    value := spare    change the bucket    redo := none    change the bucket    unlock the value
//! ```
//!
//! All under the stripe's lock. A writer may die on the way; then the next holder of that lock
//! finds `redo` and stores the value again ([`Table::repair`]). Who copied half a value finds
//! `redo` set, or else that the bucket changed. With `redo` set the spare has all of the value:
//! readers without the value's lock take it from there, those with it wait for the stripe's lock.
//! The spare is used for another value only after the second change, so who copied half of each
//! finds another bucket, too.
//!
//! `redo` is set only while the value is locked: what others change before and after is not lost
//! when the value is stored again. But a program takes the value's lock over from a writer that is
//! dead, or was stopped for a second. It then finds half a value, and what it changes is lost when
//! the writer, or who finishes its work, stores the rest.

use std::sync::atomic::{
    AtomicU64, Ordering::Acquire, Ordering::Relaxed, Ordering::Release, fence,
};

use super::table::{BUSY, Shortage, Table, Values, renew};
use crate::error::MapError;
use crate::shm::lock;
use crate::shm::table::Stripe;

impl Table {
    /// Writes over the value of an element of `bucket` in place. The whole new value lies in the
    /// spare meanwhile, so that whoever takes the stripe's lock over from a dead writer can
    /// finish.
    #[cold]
    pub(super) fn overwrite_locked(
        &self,
        stripe: &Stripe<'_>,
        bucket: &AtomicU64,
        found: u32,
        values: &impl Values,
    ) -> Result<(), Shortage> {
        let spare = self.take_spare(stripe)?;
        // Only damage makes it no element.
        self.memory.element(spare).ok_or(Shortage::NoSpare)?;
        values.fill(self, spare);
        stripe.spare.store(u64::from(spare), Relaxed);
        self.store_spare(stripe, found, || renew(bucket));
        Ok(())
    }

    /// Stores the value in the spare over that of the element `found`; `renew_buckets` changes the
    /// version of its bucket. The stripe's lock is held.
    pub(super) fn store_spare(&self, stripe: &Stripe<'_>, found: u32, renew_buckets: impl Fn()) {
        let spare = stripe.spare.load(Relaxed) as u32;
        let (Some(to), Some(from)) = (self.memory.value(found, 0), self.memory.value(spare, 0))
        else {
            // Only damage makes one of them no element.
            renew_buckets();
            stripe.redo.store(0, Release);
            return;
        };
        let store = || {
            stripe.redo.store(u64::from(found), Release);
            // Nothing of the value changes before; pairs with the fences in `lookup_locked` and
            // `spare_for`.
            fence(Release);
            // SAFETY: both are values of the map, rounded up to eight bytes, and the memory is
            // writable for who has the lock.
            unsafe { self.format.store(to, from) };
            renew_buckets();
            // Pairs with the Acquire in `lookup_locked`: who copied half a value and finds nothing
            // unfinished finds another bucket.
            stripe.redo.store(0, Release);
            renew_buckets();
        };
        // SAFETY: `to` is a value of the map, which is writable for who has the stripe's lock.
        unsafe { self.format.locked(to, store) }
    }

    /// Finds, after a value was copied without its lock, where a whole one lies if a writer has
    /// half of it written: its new value, in the spare. That stays there until the element's
    /// bucket has changed once more.
    #[inline(never)]
    pub(super) fn spare_for(&self, found: u32) -> Option<*mut u8> {
        // Pairs with the fence in `store_spare`: who copied a new byte sees the rest.
        fence(Acquire);
        // SAFETY: the element holds a key; if that changes now, the bucket did before.
        let h = unsafe { self.hash(self.memory.element(found)?.key()) };
        let stripe = self.memory.stripe(h);
        if stripe.redo.load(Acquire) != u64::from(found) {
            return None;
        }
        // Pairs with the Release in `take_spare`.
        self.memory.value(stripe.spare.load(Acquire) as u32, 0)
    }

    /// As [`Table::lookup`], when the value is copied under its own lock: what a writer left half
    /// written is finished first.
    #[inline(never)]
    pub(crate) fn lookup_locked(
        &self,
        key: &[u8],
        mut copy_value: impl FnMut(u32),
    ) -> Result<(), MapError> {
        // SAFETY: the caller checked the length of the key.
        let h = unsafe { self.hash(key.as_ptr()) };
        let stripe = self.memory.stripe(h);
        let mut unfinished = false;
        self.lookup(key, |found| {
            let is_unfinished = || stripe.redo.load(Acquire) == u64::from(found);
            // Before the copy, as the value's lock may be held by a writer that is stopped; and
            // after it, in case one began meanwhile.
            unfinished = is_unfinished();
            if !unfinished {
                copy_value(found);
                // Before the look at the bucket, too; pairs with the fence in `store_spare`.
                fence(Acquire);
                unfinished = is_unfinished();
            }
        })?;
        if !unfinished {
            return Ok(());
        }
        // Whoever has this lock finds nothing unfinished.
        let held = self.lock(&stripe).ok_or_else(|| BUSY.with_holder())?;
        // SAFETY: the caller checked the length of the key.
        let place = unsafe { self.walk(self.memory.bucket(h).load(Acquire), h, key.as_ptr()) };
        let copied = place.map(|place| copy_value(place.found));
        lock::release(stripe.lock, held);
        copied.ok_or(MapError::NoElement)
    }
}
