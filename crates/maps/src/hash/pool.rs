//! Where elements come from and go to.
//!
//! Each stripe has a pool, used under its lock: elements of its own range that were never taken,
//! and a list of elements given back. When it is empty, an element is moved from another stripe's
//! pool with both locks held, the lower stripe's first. There are exactly `max_entries` elements
//! besides the spares, so the map is full when all pools are empty, and no count is kept that a
//! death could falsify.
//!
//! A death can leave an element in no list. When the pools are empty and somebody died,
//! [`Table::sweep`] takes all locks, marks what can be reached, and gives the rest back.

use std::sync::atomic::{
    Ordering::AcqRel, Ordering::Acquire, Ordering::Relaxed, Ordering::Release, Ordering::SeqCst,
    fence,
};

use super::table::{Shortage, Table};
use crate::shm::MAX_SLOTS;
use crate::shm::lock::{self, Held};
use crate::shm::reserve::populate_some;
use crate::shm::table::{NO_SPARE, Stripe};

/// Times to look again for an element after others were busy while we looked.
const ROUNDS: u32 = 64;

impl Table {
    /// Takes an element out of a stripe's pool. The stripe's lock is held.
    pub(super) fn take(&self, stripe: &Stripe<'_>) -> Result<u32, Shortage> {
        let free = stripe.free.load(Relaxed) as u32;
        if let Some(e) = self.memory.element(free) {
            stripe.free.store(e.link().load(Relaxed) & 0xffff_ffff, Relaxed);
            fence(Release);
            return Ok(free);
        }
        let used = stripe.fresh_used.load(Relaxed);
        let (first, end) = self.memory.geometry.range(stripe.index);
        if used < end.wrapping_sub(first) {
            if self.on_demand
                && used >= stripe.backed.load(Relaxed)
                && !self.acquire_fresh(stripe, used)
            {
                return Err(Shortage::NoMemory);
            }
            stripe.fresh_used.store(used.wrapping_add(1), Relaxed);
            fence(Release);
            return Ok(first.wrapping_add(used).wrapping_add(1) as u32);
        }
        self.memory.empty_bits().fetch_or(1 << (stripe.index & 63), AcqRel);
        Err(Shortage::Empty)
    }

    /// Gives the next elements of a stripe's range memory, before anybody is told that he has one.
    /// The stripe's lock is held.
    #[cold]
    #[inline(never)]
    fn acquire_fresh(&self, stripe: &Stripe<'_>, used: u64) -> bool {
        let (first, end) = self.memory.geometry.range(stripe.index);
        let from = first.wrapping_add(used);
        // Most slots have none.
        let size = self.memory.geometry.whole(8);
        let last = populate_some(from, end, size, |from, last| {
            self.memory.acquire_elements(from, last) && self.acquire_values(from, last)
        });
        stripe.backed.store(last.wrapping_sub(first), SeqCst);
        fence(SeqCst);
        // A slot that gets memory from here on gets it for these, too; one that began to before,
        // and did not see them, is seen here.
        if last > from && self.acquire_values(from, last) {
            return true;
        }
        stripe.backed.store(used, SeqCst);
        false
    }

    /// Gives a spare that was never used memory. The stripe's lock is held.
    #[cold]
    #[inline(never)]
    pub(super) fn acquire_spare(&self, reference: u32) -> bool {
        let i = u64::from(reference).wrapping_sub(1);
        self.memory.acquire_elements(i, i.wrapping_add(1))
            && self.acquire_values(i, i.wrapping_add(1))
    }

    fn acquire_values(&self, from: u64, last: u64) -> bool {
        let Some(areas) = &self.areas else { return true };
        let mut slot = 0u32;
        while slot < MAX_SLOTS {
            if areas.wants(slot) && !self.memory.acquire_values(slot, from, last) {
                return false;
            }
            slot = slot.wrapping_add(1);
        }
        true
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

    /// Brings an element into a stripe's pool from another, or finds what the dead left; or tells
    /// why there is none. No lock is held.
    #[cold]
    #[inline(never)]
    pub(super) fn refill(&self, stripe: &Stripe<'_>) -> Result<(), Shortage> {
        let mut rounds = 0u32;
        loop {
            let mut starved = false;
            let mut left = self.filled();
            while left != 0 {
                let other = self.memory.stripe(u64::from(left.trailing_zeros()));
                left &= left.wrapping_sub(1);
                match self.bring(&other, stripe, starved) {
                    Ok(()) => return Ok(()),
                    Err(shortage) => starved |= shortage == Shortage::NoMemory,
                }
            }
            if self.memory.leaks().load(Acquire) != 0 {
                return if self.sweep() { Ok(()) } else { Err(Shortage::Empty) };
            }
            if starved {
                return Err(Shortage::NoMemory);
            }
            rounds = rounds.wrapping_add(1);
            let met = self.meet();
            // What one pool got from another while we looked, we looked for in neither.
            if rounds > ROUNDS || !(met || self.filled() != 0) {
                return Err(Shortage::Empty);
            }
        }
    }

    /// Waits for everybody who holds a lock, taking over from the dead: they may have an element in
    /// hand that is about to be given back. Tells whether there was anybody.
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

    /// Moves an element from one stripe's pool to another's; when it is known that there is no
    /// memory, only one that has some.
    fn bring(&self, from: &Stripe<'_>, to: &Stripe<'_>, starved: bool) -> Result<(), Shortage> {
        if from.index == to.index {
            // Someone gave one back since we looked, or the bit is stale.
            let held = self.lock(from).ok_or(Shortage::Empty)?;
            let taken = self.take_unless(from, starved);
            if let Ok(r) = taken {
                self.put(from, r);
            }
            lock::release(from.lock, held);
            return taken.map(drop);
        }
        let (low, high) = if from.index < to.index { (from, to) } else { (to, from) };
        let low_held = self.lock(low).ok_or(Shortage::Empty)?;
        let Some(high_held) = self.lock(high) else {
            lock::release(low.lock, low_held);
            return Err(Shortage::Empty);
        };
        let taken = self.take_unless(from, starved);
        if let Ok(r) = taken {
            self.put(to, r);
        }
        lock::release(high.lock, high_held);
        lock::release(low.lock, low_held);
        taken.map(drop)
    }

    fn take_unless(&self, stripe: &Stripe<'_>, starved: bool) -> Result<u32, Shortage> {
        let fresh = self.memory.element(stripe.free.load(Relaxed) as u32).is_none();
        if starved
            && fresh
            && self.on_demand
            && stripe.fresh_used.load(Relaxed) >= stripe.backed.load(Relaxed)
        {
            return Err(Shortage::NoMemory);
        }
        self.take(stripe)
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
        // Another thread may have swept while we waited for the locks: then there is something
        // again, too.
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
            // A list that runs into elements marked before is damaged; cut off, so that nothing is
            // in two places.
            if !self.mark_list(stripe.free.load(Acquire) as u32) {
                stripe.free.store(0, Relaxed);
            }
            match stripe.spare.load(Relaxed) {
                NO_SPARE => {}
                0 => self.mark_one(g.max_entries.wrapping_add(i).wrapping_add(1)),
                spare => self.mark_one(spare),
            }
            let (first, end) = g.range(i);
            let mut fresh = first.wrapping_add(stripe.fresh_used.load(Relaxed));
            while fresh < end {
                self.mark_one(fresh.wrapping_add(1));
                fresh = fresh.wrapping_add(1);
            }
            i = i.wrapping_add(1);
        }
        // What somebody takes exactly is his until he gives it back.
        if lock::held_by_living(self.memory.limbo_lock()) {
            self.mark_list(self.memory.limbo_head().load(Acquire) as u32);
        } else {
            self.memory.limbo_head().store(0, Relaxed);
        }
        let mut found = false;
        let mut wanting = 0u64;
        r = 1;
        while r <= g.elements {
            if let Some((word, bit)) = self.memory.mark(r as u32)
                && word.load(Relaxed) & bit == 0
                && (!self.on_demand || r <= g.max_entries || self.acquire_spare(r as u32))
            {
                while wanting < g.stripes
                    && self.memory.stripe(wanting).spare.load(Relaxed) != NO_SPARE
                {
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
            let (Some(e), Some((word, bit))) = (self.memory.element(r), self.memory.mark(r)) else {
                return false;
            };
            if word.fetch_or(bit, Relaxed) & bit != 0 {
                return false;
            }
            r = e.link().load(Relaxed) as u32;
        }
        true
    }
}
