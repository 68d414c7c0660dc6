//! Where elements come from and go to.
//!
//! Each stripe has a pool, used under its lock: elements of its own range that were never taken, and a list of elements
//! given back. When it is empty, an element is moved from another stripe's pool with both locks held, the lower stripe's
//! first. There are exactly `max_entries` elements besides the spares, so the map is full when all pools are empty, and
//! no count is kept that a death could falsify.
//!
//! A death can leave an element in no list. When the pools are empty and somebody died, [`Table::sweep`] takes all
//! locks, marks what can be reached, and gives the rest back.

use std::sync::atomic::{Ordering::AcqRel, Ordering::Acquire, Ordering::Relaxed, Ordering::Release, fence};

use super::table::Table;
use crate::shm::lock::{self, Held};
use crate::shm::table::{NO_SPARE, Stripe};

/// Times to look again for an element after others were busy while we looked.
const ROUNDS: u32 = 64;

impl Table {
    /// Takes an element out of a stripe's pool. The stripe's lock is held.
    pub(super) fn take(&self, stripe: &Stripe<'_>) -> Option<u32> {
        let free = stripe.free.load(Relaxed) as u32;
        if let Some(e) = self.memory.element(free) {
            stripe.free.store(e.link().load(Relaxed) & 0xffff_ffff, Relaxed);
            fence(Release);
            return Some(free);
        }
        let used = stripe.fresh_used.load(Relaxed);
        let (first, end) = self.range(stripe.index);
        if used < end.wrapping_sub(first) {
            stripe.fresh_used.store(used.wrapping_add(1), Relaxed);
            fence(Release);
            return Some(first.wrapping_add(used).wrapping_add(1) as u32);
        }
        self.memory.empty_bits().fetch_or(1 << (stripe.index & 63), AcqRel);
        None
    }

    /// Gives an element back to a stripe's pool. The stripe's lock is held.
    pub(super) fn put(&self, stripe: &Stripe<'_>, reference: u32) {
        let Some(e) = self.memory.element(reference) else { return };
        let bit = 1 << (stripe.index & 63);
        if self.memory.empty_bits().load(Relaxed) & bit != 0 {
            self.memory.empty_bits().fetch_and(!bit, AcqRel);
        }
        if self.lru {
            self.memory.forget(reference);
        }
        // Readers that still stand here find their bucket changed, whatever they read.
        fence(Release);
        e.link().store(stripe.free.load(Relaxed) & 0xffff_ffff, Relaxed);
        stripe.free.store(u64::from(reference), Release);
    }

    /// The elements a stripe began with, as indices.
    fn range(&self, stripe: u64) -> (u64, u64) {
        let g = &self.memory.geometry;
        let shift = g.stripes.trailing_zeros();
        (stripe.wrapping_mul(g.max_entries) >> shift, stripe.wrapping_add(1).wrapping_mul(g.max_entries) >> shift)
    }

    /// Brings an element into a stripe's pool from another; `false` when there is none. No lock is held.
    #[cold]
    #[inline(never)]
    pub(super) fn refill(&self, stripe: &Stripe<'_>) -> bool {
        let mut rounds = 0u32;
        loop {
            let mut left = self.filled();
            while left != 0 {
                let other = self.memory.stripe(u64::from(left.trailing_zeros()));
                left &= left.wrapping_sub(1);
                if self.bring(&other, stripe) {
                    return true;
                }
            }
            if self.memory.leaks().load(Acquire) != 0 {
                return self.sweep();
            }
            rounds = rounds.wrapping_add(1);
            let met = self.meet();
            // What one pool got from another while we looked, we looked for in neither.
            if rounds > ROUNDS || !(met || self.filled() != 0) {
                return false;
            }
        }
    }

    /// Waits for everybody who holds a lock, taking over from the dead: they may have an element in hand that is about to
    /// be given back. Tells whether there was anybody.
    fn meet(&self) -> bool {
        let mut any = false;
        let mut i = 0u64;
        while i < self.memory.geometry.stripes {
            let stripe = self.memory.stripe(i);
            if lock::held_by_other(stripe.lock)
                && let Some(held) = self.lock(&stripe)
            {
                lock::release(stripe.lock, held);
                any = true;
            }
            i = i.wrapping_add(1);
        }
        any
    }

    /// Moves an element from one stripe's pool to another's.
    fn bring(&self, from: &Stripe<'_>, to: &Stripe<'_>) -> bool {
        if from.index == to.index {
            // Someone gave one back since we looked, or the bit is stale.
            let Some(held) = self.lock(from) else { return false };
            let taken = self.take(from);
            if let Some(r) = taken {
                self.put(from, r);
            }
            lock::release(from.lock, held);
            return taken.is_some();
        }
        let (low, high) = if from.index < to.index { (from, to) } else { (to, from) };
        let Some(low_held) = self.lock(low) else { return false };
        let Some(high_held) = self.lock(high) else {
            lock::release(low.lock, low_held);
            return false;
        };
        let taken = self.take(from);
        if let Some(r) = taken {
            self.put(to, r);
        }
        lock::release(high.lock, high_held);
        lock::release(low.lock, low_held);
        taken.is_some()
    }

    /// Finds the elements that are in no list and gives them back; tells whether there were any.
    #[cold]
    #[inline(never)]
    fn sweep(&self) -> bool {
        let stripes = self.memory.geometry.stripes;
        let mut locked = 0u64;
        let mut complete = true;
        while locked < stripes {
            let stripe = self.memory.stripe(locked);
            let Some(_held) = self.lock(&stripe) else {
                complete = false;
                break;
            };
            locked = locked.wrapping_add(1);
        }
        // With every lock held nothing is in anybody's hands.
        let found = complete && self.memory.leaks().load(Acquire) != 0 && self.collect();
        if complete {
            self.memory.leaks().store(0, Release);
        }
        while locked > 0 {
            locked = locked.wrapping_sub(1);
            let stripe = self.memory.stripe(locked);
            lock::release(stripe.lock, Held { word: stripe.lock.load(Relaxed), recovered: false });
        }
        // Another thread may have swept while we waited for the locks: then there is something again, too.
        found || (complete && self.filled() != 0)
    }

    /// One bit for each stripe that may have something to allocate.
    pub(super) fn filled(&self) -> u64 {
        let all = u64::MAX >> (64u64.wrapping_sub(self.memory.geometry.stripes) & 63);
        !self.memory.empty_bits().load(Acquire) & all
    }

    fn collect(&self) -> bool {
        let g = self.memory.geometry;
        let mut r = 1u64;
        while r <= g.elements {
            if let Some((word, bit)) = self.memory.mark(r as u32) {
                word.fetch_and(!bit, Relaxed);
            }
            r = r.wrapping_add(1);
        }
        let mut i = 0u64;
        while i < g.buckets {
            self.mark_list(self.memory.bucket(i).load(Acquire) as u32);
            i = i.wrapping_add(1);
        }
        i = 0;
        while i < g.stripes {
            let stripe = self.memory.stripe(i);
            // A list that runs into elements marked before is damaged; cut off, so that nothing is in two places.
            if !self.mark_list(stripe.free.load(Acquire) as u32) {
                stripe.free.store(0, Relaxed);
            }
            match stripe.spare.load(Relaxed) {
                NO_SPARE => {}
                0 => self.mark_one(g.max_entries.wrapping_add(i).wrapping_add(1)),
                spare => self.mark_one(spare),
            }
            let (first, end) = self.range(i);
            let mut fresh = first.wrapping_add(stripe.fresh_used.load(Relaxed));
            while fresh < end {
                self.mark_one(fresh.wrapping_add(1));
                fresh = fresh.wrapping_add(1);
            }
            i = i.wrapping_add(1);
        }
        // What somebody takes exactly is his until he gives it back.
        if lock::held_by_living(self.memory.limbo_lock()) {
            self.mark_list(self.memory.limbo().load(Acquire) as u32);
        } else {
            self.memory.limbo().store(0, Relaxed);
        }
        let mut found = false;
        let mut wanting = 0u64;
        r = 1;
        while r <= g.elements {
            if let Some((word, bit)) = self.memory.mark(r as u32)
                && word.load(Relaxed) & bit == 0
            {
                while wanting < g.stripes && self.memory.stripe(wanting).spare.load(Relaxed) != NO_SPARE {
                    wanting = wanting.wrapping_add(1);
                }
                if wanting < g.stripes {
                    self.memory.stripe(wanting).spare.store(r, Relaxed);
                } else {
                    self.put(&self.memory.stripe(r), r as u32);
                    found = true;
                }
            }
            r = r.wrapping_add(1);
        }
        found
    }

    fn mark_one(&self, reference: u64) {
        if let Some((word, bit)) = self.memory.mark(reference as u32) {
            word.fetch_or(bit, Relaxed);
        }
    }

    /// Marks a list; `false` when it meets something marked or garbage.
    fn mark_list(&self, mut r: u32) -> bool {
        while r != 0 {
            let (Some(e), Some((word, bit))) = (self.memory.element(r), self.memory.mark(r)) else { return false };
            if word.fetch_or(bit, Relaxed) & bit != 0 {
                return false;
            }
            r = e.link().load(Relaxed) as u32;
        }
        true
    }
}
