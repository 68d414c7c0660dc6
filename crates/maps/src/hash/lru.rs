//! Throwing out the least recently used element when an LRU hash is full.
//!
//! Time is counted in insertions: a program's lookup and every store stamp the element with the
//! current count, in place and without a lock. Who needs an element and finds all pools empty looks
//! at the next [`SAMPLE`] elements in the file, a hand that goes around, and takes the one with the
//! oldest stamp. When that was used within the last half turn of the map, it looks at up to
//! [`SAMPLES`] samples: elements that came at the same time lie together. So a map of at most
//! `SAMPLE` elements throws out exactly the least recently used one, and a larger one something
//! among the oldest. A lookup by a user is no use.
//!
//! The victim's stripe is only tried for, as a lock is held already; when somebody is in there,
//! another one goes.

use std::sync::atomic::Ordering::Relaxed;

use super::table::{Table, reference};
use crate::shm::table::Stripe;
use crate::shm::{lock, tls};

/// Elements compared at once: 64 in small maps, 16 in those where each is a cache miss.
const SAMPLE: u64 = 64;
const LARGE_SAMPLE: u64 = 16;
/// Samples looked at for something that is old enough.
const SAMPLES: u32 = 16;
/// Victims whose stripe was busy before giving up.
const TRIES: u32 = 200;

impl Table {
    /// Notes that an element is used.
    #[inline(always)]
    pub(super) fn touch(&self, reference: u32) {
        let Some(stamp) = self.memory.stamp(reference) else { return };
        let now = self.now();
        // A store only when it says something new: other processors read the same line.
        if stamp.load(Relaxed) != now && self.memory.writable() {
            stamp.store(now, Relaxed);
        }
    }

    /// The stamp of a use now: odd, so later than the insertion before it. Zero is the stamp of an
    /// element outside the map.
    #[inline(always)]
    pub(super) fn now(&self) -> u32 {
        self.memory.clock().load(Relaxed) as u32 | 1
    }

    /// Counts an insertion and returns its stamp.
    #[inline(always)]
    pub(super) fn tick(&self) -> u32 {
        (self.memory.clock().fetch_add(2, Relaxed).wrapping_add(2) as u32).max(1)
    }

    /// Takes an old element out of the map; `None` when what a dead thread left must be swept
    /// first, or all victims are busy. The lock of `own` is held, and no pool has an element.
    #[cold]
    #[inline(never)]
    pub(super) fn evict(&self, own: &Stripe<'_>) -> Option<u32> {
        if self.somebody_died() {
            return None;
        }
        let mut busy = 0u64;
        let mut tries = 0u32;
        while tries < TRIES {
            let r = self.oldest(busy);
            if r != 0 && self.unlink(own, r) {
                return Some(r);
            }
            busy = if r == 0 || busy == u64::MAX { 0 } else { busy | 1 << (r & 63) };
            tries = tries.wrapping_add(1);
        }
        None
    }

    /// Looks once in a turn of the hand for stripes whose holder is dead, and may have had an
    /// element in hand.
    fn somebody_died(&self) -> bool {
        let g = &self.memory.geometry;
        let hand = self.memory.hand().load(Relaxed);
        if hand % g.elements >= SAMPLE {
            return false;
        }
        let mut i = 0u64;
        while i < g.stripes {
            let holder = lock::owner(self.memory.stripe(i).lock.load(Relaxed));
            if holder != 0 && holder != tls::token() && tls::dead(holder, false) {
                // The sweep takes the lock over.
                self.memory.leaks().fetch_add(1, Relaxed);
                return true;
            }
            i = i.wrapping_add(1);
        }
        false
    }

    /// Finds an old element, but none whose low bits are marked in `busy`; 0 when there is none.
    fn oldest(&self, busy: u64) -> u32 {
        let elements = self.memory.geometry.elements;
        let sample = if elements <= 4 * SAMPLE { SAMPLE } else { LARGE_SAMPLE }.min(elements);
        let now = self.now();
        let (mut best, mut age) = (0u32, 0u32);
        let mut samples = 0u32;
        while samples < SAMPLES {
            let mut i = self.memory.hand().fetch_add(sample, Relaxed) % elements;
            let mut left = sample;
            while left > 0 {
                i = i.wrapping_add(1);
                if let Some(stamp) = self.memory.stamp(i as u32).map(|s| s.load(Relaxed))
                    && stamp != 0
                    && busy & (1 << (i & 63)) == 0
                    && (best == 0 || now.wrapping_sub(stamp) > age)
                {
                    (best, age) = (i as u32, now.wrapping_sub(stamp));
                }
                if i == elements {
                    i = 0;
                }
                left = left.wrapping_sub(1);
            }
            // Stamps count by two.
            if best != 0 && (sample == elements || u64::from(age) >= elements) {
                break;
            }
            samples = samples.wrapping_add(1);
        }
        best
    }

    /// Takes a certain element out of its chain; `false` when it is in none or its stripe is busy.
    fn unlink(&self, own: &Stripe<'_>, r: u32) -> bool {
        let Some(e) = self.memory.element(r) else { return false };
        // The key may change under our eyes; the walk below tells whether it led to the right
        // chain. SAFETY: the element holds a key.
        let h = unsafe { self.hash(e.key()) };
        let stripe = self.memory.stripe(h);
        if stripe.index == own.index {
            return self.unlink_locked(own, h, r);
        }
        let Some(held) = lock::try_acquire(stripe.lock) else { return false };
        let done = self.unlink_locked(&stripe, h, r);
        lock::release(stripe.lock, held);
        done
    }

    fn unlink_locked(&self, stripe: &Stripe<'_>, h: u64, r: u32) -> bool {
        let bucket = self.memory.bucket(h);
        self.note(stripe, h);
        let mut before = None;
        let mut at = reference(bucket.load(Relaxed));
        let mut steps = self.memory.geometry.elements;
        while let Some(e) = self.memory.element(at) {
            let next = reference(e.link().load(Relaxed));
            if at == r {
                self.relink(bucket, before, next);
                return true;
            }
            before = Some(e);
            at = next;
            steps = steps.wrapping_sub(1);
            if steps == 0 {
                break;
            }
        }
        false
    }
}
