//! Values that are written over in place, in several steps, under the spin lock in them (`BPF_F_LOCK`).
//!
//! ```text
//! spare := new value    redo := element    value's lock, value := new value, unlock    redo := none
//! ```
//!
//! All under the stripe's lock. A writer may die on the way; then the next holder of that lock finds `redo`, stores the value again from
//! the spare, changes the bucket, and clears it. Who copied half a value meanwhile finds one of the two changed.

use std::sync::atomic::{Ordering::Acquire, Ordering::Relaxed, Ordering::Release, fence};

use super::table::{BUSY, Dry, TRIES, Table, Values};
use crate::error::MapError;
use crate::shm::lock;
use crate::shm::table::Stripe;

impl Table {
    /// Writes over a value in place, which takes several steps. The whole new value lies in the spare meanwhile, so that whoever takes the
    /// lock over from a dead writer can finish ([`Table::repair`]).
    #[cold]
    pub(super) fn overwrite_locked(&self, stripe: &Stripe<'_>, found: u32, values: &impl Values) -> Result<(), Dry> {
        let spare = self.take_spare(stripe)?;
        values.fill(self, spare);
        stripe.spare.store(u64::from(spare), Relaxed);
        stripe.redo.store(u64::from(found), Release);
        // Nothing of the value changes before; pairs with the Acquire in `lookup_locked`.
        fence(Release);
        values.overwrite(self, found);
        stripe.redo.store(0, Release);
        Ok(())
    }

    /// Finishes what a dead writer began to write over in place. The stripe's lock is held.
    pub(super) fn redo(&self, stripe: &Stripe<'_>) {
        let found = stripe.redo.load(Acquire) as u32;
        let spare = stripe.spare.load(Relaxed);
        if let (Some(to), Some(from)) = (self.memory.value(found, 0), self.memory.value(spare as u32, 0)) {
            // SAFETY: both are values of the map, rounded up to eight bytes, and the memory is writable for who has the lock.
            unsafe { self.format.store_locked(to, from) };
        }
    }

    /// As [`Table::lookup`], when the value is copied under its own lock: what a writer left half written is finished first.
    #[inline(never)]
    pub(crate) fn lookup_locked(&self, key: &[u8], mut copy_value: impl FnMut(u32)) -> Result<(), MapError> {
        // SAFETY: the caller checked the length of the key.
        let h = unsafe { self.hash(key.as_ptr()) };
        let stripe = self.memory.stripe(h);
        for _ in 0..TRIES {
            let mut unfinished = false;
            self.lookup(key, |found| {
                copy_value(found);
                // After the copy and before the look at the bucket; pairs with the Release stores of writers.
                fence(Acquire);
                unfinished = stripe.redo.load(Acquire) == u64::from(found);
            })?;
            if !unfinished {
                return Ok(());
            }
            let held = self.lock(&stripe).ok_or(BUSY)?;
            lock::release(stripe.lock, held);
        }
        Err(BUSY)
    }
}
