//! Taking elements exactly: out of their chains at once, reused only when no program can still have
//! found them.
//!
//! ```text
//! chain --detach--> limbo list --settle--> pool      each step under a stripe's lock, the whole under the list's
//! ```
//!
//! This is the limbo list of epoch-based reclamation (Fraser, "Practical lock-freedom", 2004) for a
//! single epoch: between the two steps the taker waits until every program run that was going on has
//! ended ([`SlotTable::wait_for_runs`](crate::SlotTable::wait_for_runs)). Then an element's value is
//! final and is copied. When a taker dies, its elements stay in the list; the next taker, or a
//! sweep, gives them back.

use std::sync::atomic::{Ordering::Relaxed, Ordering::Release, fence};

use super::table::{Table, reference};
use crate::error::MapError;
use crate::shm::lock::{self, Held};

const BUSY: MapError =
    MapError::Busy { what: "the hash, from which somebody else takes elements," };

impl Table {
    /// Begins to take elements; one at a time may.
    pub(super) fn limbo_begin(&self) -> Result<Held, MapError> {
        let held = lock::acquire_patiently(self.memory.limbo_lock()).map_err(|_| BUSY)?;
        let mut left = self.memory.geometry.elements;
        while left > 0 && self.settle_first() {
            left = left.wrapping_sub(1);
        }
        Ok(held)
    }

    pub(super) fn limbo_heartbeat(&self, held: &mut Held) {
        lock::heartbeat(self.memory.limbo_lock(), held);
    }

    pub(super) fn limbo_end(&self, held: Held) {
        lock::release(self.memory.limbo_lock(), held);
    }

    /// Takes the element with a key out of its chain; `None` when there is none.
    pub(super) fn detach(&self, key: &[u8]) -> Result<Option<u32>, MapError> {
        // SAFETY: the caller checked the length of the key.
        let h = unsafe { self.hash(key.as_ptr()) };
        let stripe = self.memory.stripe(h);
        let held = self.lock(&stripe).ok_or(BUSY)?;
        let bucket = self.memory.bucket(h);
        self.note(&stripe, h);
        // SAFETY: the caller checked the length of the key.
        let found = unsafe { self.walk(bucket.load(Relaxed), h, key.as_ptr()) }.map(|place| {
            self.relink(bucket, place.before, reference(place.element.link().load(Relaxed)));
            if self.lru {
                self.memory.forget(place.found);
            }
            // Readers that still stand here find their bucket changed.
            fence(Release);
            place
                .element
                .link()
                .store(self.memory.limbo_head().load(Relaxed) & 0xffff_ffff, Relaxed);
            self.memory.limbo_head().store(u64::from(place.found), Release);
            place.found
        });
        lock::release(stripe.lock, held);
        Ok(found)
    }

    /// Gives the element that was detached last to a pool; `false` when none is left.
    pub(super) fn settle_first(&self) -> bool {
        let r = self.memory.limbo_head().load(Relaxed) as u32;
        let stripe = self.memory.stripe(u64::from(r));
        let Some(held) = self.lock(&stripe) else { return false };
        // A sweep may have emptied it before we had the lock.
        let first = self.memory.limbo_head().load(Relaxed) as u32;
        let element = self.memory.element(first);
        if let Some(e) = &element {
            self.memory.limbo_head().store(e.link().load(Relaxed) & 0xffff_ffff, Relaxed);
            fence(Release);
            self.put(&stripe, first);
        }
        lock::release(stripe.lock, held);
        element.is_some()
    }
}
