//! Where writers work: each takes a heap for the time of one change.
//!
//! A heap keeps blocks to be used (a magazine for each class), and those that left the trie and may
//! still be read (limbo, as in epoch-based reclamation). When limbo is full, the map's version
//! changes, and all of it goes to the magazines: a reader that began before finds the version
//! changed, and reads again.
//!
//! A change of the trie is prepared first: blocks are filled, but stay in their magazines. Then all
//! its stores are written to the heap's log, and done: the one that shows it to readers, and those
//! that keep the books. So a writer's death leaves the old state or the new one, and nothing is
//! lost: who takes the heap's lock over, or that of a node, does what is in the log.

use std::sync::atomic::{
    AtomicU64, Ordering::AcqRel, Ordering::Acquire, Ordering::Relaxed, Ordering::Release, fence,
};

use super::QpTrie;
use crate::shm::lock::{self, Held, NotHeld};
use crate::shm::qp::{BLOCK_CLASSES, HEAPS, LIMBO, Log, STRIPES};

/// Most blocks that one change puts into limbo.
const RETIRED: u64 = 4;
/// Bytes in limbo with which it counts as full.
const LIMBO_BYTES: u64 = 64 << 10;
/// Looks at a log before its owner is given up.
const LOOKS: u32 = 100_000;

/// A heap, and its lock.
#[derive(Clone, Copy)]
pub(super) struct Seat {
    pub(super) heap: u64,
    held: Held,
}

/// The locks of up to three nodes: their stripes in ascending order, [`NO_STRIPE`] where there are
/// fewer.
#[derive(Clone, Copy)]
pub(super) struct NodeLocks {
    first: u64,
    second: u64,
    third: u64,
}

const NO_STRIPE: u64 = STRIPES;

/// Why something was not done.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum NotDone {
    /// Who holds what is needed does not get on, or is this very thread.
    Busy,
    /// There is no memory.
    NoMemory,
    /// Somebody else changed the trie meanwhile.
    Again,
}

/// What a change of the trie does besides showing it.
pub(super) struct Change<'a> {
    log: Log<'a>,
    n: u64,
    seat: &'a Seat,
    limbo: u64,
    limbo_bytes: u64,
}

impl QpTrie {
    /// Takes a heap.
    #[inline(always)]
    pub(super) fn sit(&self) -> Option<Seat> {
        let mut heap = 0u64;
        while heap < HEAPS {
            if self.back_heap(heap) {
                if let Some(held) = lock::try_acquire(self.memory.heap_lock(heap)) {
                    return Some(Seat { heap, held });
                }
                if let Some(seat) = self.seat_of_dead(heap) {
                    return Some(seat);
                }
            }
            heap = heap.wrapping_add(1);
        }
        self.wait_for_seat()
    }

    /// Takes a heap over, if it is still held as it was when it was last met, and its holder is dead.
    #[cold]
    #[inline(never)]
    fn seat_of_dead(&self, heap: u64) -> Option<Seat> {
        let word = self.memory.heap_lock(heap).load(Relaxed);
        let seen = self.met.get(heap as usize)?;
        if seen.load(Relaxed) != word {
            seen.store(word, Relaxed);
            return None;
        }
        let held = lock::take_over(self.memory.heap_lock(heap))?;
        self.settle(heap, held).then_some(Seat { heap, held })
    }

    #[cold]
    #[inline(never)]
    fn wait_for_seat(&self) -> Option<Seat> {
        let mut heap = 0u64;
        while heap < HEAPS {
            if self.back_heap(heap) {
                match lock::acquire(self.memory.heap_lock(heap)) {
                    Ok(held) if held.recovered && !self.settle(heap, held) => {}
                    Ok(held) => return Some(Seat { heap, held }),
                    Err(NotHeld::Mine | NotHeld::Stuck) => {}
                    Err(NotHeld::Stranger) => return None,
                }
            }
            heap = heap.wrapping_add(1);
        }
        None
    }

    #[inline(always)]
    pub(super) fn leave(&self, seat: Seat) {
        lock::release(self.memory.heap_lock(seat.heap), seat.held);
    }

    /// Finishes what the dead holder of a heap, whose lock was just taken over, was doing. When that
    /// cannot be done the lock is as good as his again, and `false` is returned.
    pub(super) fn settle(&self, heap: u64, held: Held) -> bool {
        // He may have been at the spans, and those stores are about his magazines, too.
        if !self.settle_log(self.memory.span_lock(), self.memory.span_log()) {
            lock::abandon(self.memory.heap_lock(heap), held);
            return false;
        }
        self.memory.heap_log(heap).replay();
        self.memory.suspect().store(1, Release);
        true
    }

    /// Makes sure that the stores of a dead holder of a log's lock are done. `false` when it cannot
    /// be found out.
    fn settle_log(&self, word: &AtomicU64, log: Log<'_>) -> bool {
        let mut looks = 0u32;
        while log.is_pending() {
            if looks & 0xfff == 0
                && let Some(held) = lock::take_over(word)
            {
                log.replay();
                lock::release(word, held);
                return true;
            }
            // Its owner is at his stores, or has taken it over and is about to do those of the dead;
            // perhaps it is this thread, which was interrupted.
            looks = looks.wrapping_add(1);
            if looks > LOOKS || lock::is_mine(word) {
                return false;
            }
            std::hint::spin_loop();
        }
        true
    }

    /// Tells whether a heap has memory; others were never used.
    #[inline(always)]
    pub(super) fn is_backed(&self, heap: u64) -> bool {
        self.memory.heaps_backed().load(Acquire) >> (heap & 63) & 1 != 0 || heap == 0
    }

    /// Gives a heap memory, if it has none.
    #[inline(always)]
    fn back_heap(&self, heap: u64) -> bool {
        self.is_backed(heap) || self.back_heap_now(heap)
    }

    /// Under the lock of the spans, so that who holds it sees all heaps that there are.
    #[cold]
    #[inline(never)]
    fn back_heap_now(&self, heap: u64) -> bool {
        let Some(held) = self.lock_spans() else { return false };
        let done = self.memory.acquire_heap(heap);
        self.release_span_lock(held);
        done
    }

    /// Finishes what all dead writers were doing.
    #[cold]
    #[inline(never)]
    pub(super) fn settle_all(&self) -> bool {
        let mut all = self.settle_log(self.memory.span_lock(), self.memory.span_log());
        let mut heap = 0u64;
        while heap < HEAPS {
            let word = self.memory.heap_lock(heap);
            if self.is_backed(heap) {
                if lock::owner(word.load(Acquire)) != 0 && !lock::held_by_living(word) {
                    self.memory.suspect().store(1, Release);
                }
                all &= self.settle_log(word, self.memory.heap_log(heap));
            }
            heap = heap.wrapping_add(1);
        }
        all
    }

    fn stripe_of(reference: u32) -> u64 {
        // References of neighbors differ by the size of nodes.
        (u64::from(reference).wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 32) & (STRIPES - 1)
    }

    #[inline(never)]
    fn lock_stripe(&self, i: u64) -> bool {
        if i == NO_STRIPE {
            return true;
        }
        let Ok(held) = lock::acquire(self.memory.stripe(i)) else { return false };
        if held.recovered && !self.settle_all() {
            // What the dead holder was doing is still to be done.
            lock::abandon(self.memory.stripe(i), held);
            return false;
        }
        true
    }

    #[inline(never)]
    fn unlock_stripe(&self, i: u64) {
        if i != NO_STRIPE {
            let word = self.memory.stripe(i);
            lock::release(word, Held { word: word.load(Relaxed), recovered: false });
        }
    }

    /// Locks up to three nodes, by their references; 0 is the root's word.
    #[inline(always)]
    pub(super) fn lock_nodes(&self, a: u32, b: u32, c: u32) -> Result<NodeLocks, NotDone> {
        let (a, b, c) = (Self::stripe_of(a), Self::stripe_of(b), Self::stripe_of(c));
        let first = a.min(b).min(c);
        let last = a.max(b).max(c);
        let middle = a ^ b ^ c ^ first ^ last;
        let second = if middle == first || middle == last { NO_STRIPE } else { middle };
        let third = if last == first { NO_STRIPE } else { last };
        if !self.lock_stripe(first) {
            return Err(NotDone::Busy);
        }
        if !self.lock_stripe(second) {
            self.unlock_stripe(first);
            return Err(NotDone::Busy);
        }
        if !self.lock_stripe(third) {
            self.unlock_stripe(second);
            self.unlock_stripe(first);
            return Err(NotDone::Busy);
        }
        Ok(NodeLocks { first, second, third })
    }

    #[inline(always)]
    pub(super) fn unlock_nodes(&self, locks: NodeLocks) {
        self.unlock_stripe(locks.third);
        self.unlock_stripe(locks.second);
        self.unlock_stripe(locks.first);
    }

    /// Finds a block of a class that may be filled. It stays in its magazine until a change
    /// [takes](Change::take) it.
    #[inline(never)]
    pub(super) fn peek(&self, seat: &Seat, class: u32) -> Result<u32, NotDone> {
        let mut count = self.memory.magazine_count(seat.heap, class);
        if count == 0 {
            self.refill(seat, class)?;
            count = self.memory.magazine_count(seat.heap, class);
        }
        let slot = self.memory.magazine_slot_at(seat.heap, class, count.wrapping_sub(1));
        Ok(self.memory.at32(slot).load(Relaxed))
    }

    /// Sees to it that a change finds room in limbo; nodes are not locked.
    #[inline(always)]
    pub(super) fn make_room(&self, seat: &Seat) -> Result<(), NotDone> {
        if self.memory.limbo_count(seat.heap).wrapping_add(RETIRED) <= LIMBO
            && self.memory.limbo_bytes(seat.heap) <= LIMBO_BYTES
        {
            Ok(())
        } else {
            self.recycle(seat)
        }
    }

    /// Brings all blocks in limbo back into magazines.
    #[cold]
    #[inline(never)]
    fn recycle(&self, seat: &Seat) -> Result<(), NotDone> {
        self.recover_heaps(seat.heap);
        // Readers that may stand in one of these find another version.
        self.memory.version().fetch_add(1, AcqRel);
        fence(Release);
        let log = self.memory.heap_log(seat.heap);
        while let Some(left) = self.memory.limbo_count(seat.heap).checked_sub(1) {
            let at = self.memory.limbo_at(seat.heap, left);
            let block = self.memory.at32(at).load(Relaxed);
            let n = &mut 0;
            if let Some(class) = self.class_of(block) {
                if self.memory.magazine_count(seat.heap, class) >= self.memory.geometry.kept(class)
                    && !self.flush(seat, class)
                {
                    return Err(NotDone::Busy);
                }
                let count = self.memory.magazine_count(seat.heap, class);
                log.write(n, self.memory.magazine_slot_at(seat.heap, class, count), block & !1);
                log.write(n, self.memory.magazine_at(seat.heap, class), count.wrapping_add(1));
            }
            log.write(n, self.memory.limbo_count_at(seat.heap), left as u32);
            if left == 0 {
                log.write(n, self.memory.limbo_bytes_at(seat.heap), 0);
            }
            log.commit(*n);
        }
        Ok(())
    }

    /// Gives all blocks that heaps keep, and that are in limbo, back to the spans, as far as nobody is
    /// at work with them. The caller has a heap and is not at a change.
    #[cold]
    #[inline(never)]
    pub(super) fn scavenge(&self, seat: &Seat) {
        self.empty_heap(seat);
        let mut heap = 0u64;
        while heap < HEAPS {
            let word = self.memory.heap_lock(heap);
            if heap != seat.heap && self.is_backed(heap) {
                let held = lock::try_acquire(word).or_else(|| lock::take_over(word));
                if let Some(held) = held
                    && (!held.recovered || self.settle(heap, held))
                {
                    self.empty_heap(&Seat { heap, held });
                    lock::release(word, held);
                }
            }
            heap = heap.wrapping_add(1);
        }
    }

    fn empty_heap(&self, seat: &Seat) {
        if self.recycle(seat).is_err() {
            return;
        }
        let mut class = 0u32;
        while class < BLOCK_CLASSES as u32 {
            while self.memory.magazine_count(seat.heap, class) != 0 && self.flush(seat, class) {}
            class = class.wrapping_add(1);
        }
    }

    /// Takes heaps over from the dead, so that their blocks are used.
    fn recover_heaps(&self, mine: u64) {
        let mut heap = 0u64;
        while heap < HEAPS {
            let word = self.memory.heap_lock(heap);
            if heap != mine
                && self.is_backed(heap)
                && lock::owner(word.load(Relaxed)) != 0
                && let Some(held) = lock::take_over(word)
                && self.settle(heap, held)
            {
                lock::release(word, held);
            }
            heap = heap.wrapping_add(1);
        }
    }

    /// Makes room for one element in the count, before it is put in; `false` when the map is full, or
    /// [seems](QpTrie::is_count_suspect) so.
    #[inline(always)]
    pub(super) fn reserve_element(&self) -> bool {
        let max = self.memory.geometry.max_entries;
        let reserved = self.memory.reserved();
        let mut now = reserved.load(Relaxed);
        while now < max {
            match reserved.compare_exchange_weak(now, now.wrapping_add(1), AcqRel, Relaxed) {
                Ok(_) => return true,
                Err(other) => now = other,
            }
        }
        false
    }

    #[inline(always)]
    pub(super) fn unreserve_element(&self) {
        self.memory.reserved().fetch_sub(1, AcqRel);
    }

    /// Tells whether a writer died, who may have reserved an element that he did not put in.
    #[cold]
    #[inline(never)]
    pub(super) fn is_count_suspect(&self) -> bool {
        let mut dead = self.memory.suspect().load(Acquire) != 0;
        let mut heap = 0u64;
        while heap < HEAPS {
            let word = self.memory.heap_lock(heap);
            dead |= self.is_backed(heap)
                && lock::owner(word.load(Relaxed)) != 0
                && !lock::held_by_living(word);
            heap = heap.wrapping_add(1);
        }
        dead
    }

    /// Counts the elements anew, with no writer at work: heaps know what they put in and took out.
    /// `false` when a writer does not get on. The caller has no heap.
    #[cold]
    #[inline(never)]
    pub(super) fn count_anew(&self) -> bool {
        let mut done = false;
        if let Some(mine) = self.lock_heaps() {
            if let Some(held) = self.lock_spans() {
                let backed = self.memory.heaps_backed().load(Acquire) | 1;
                // Otherwise a heap came to be meanwhile.
                if mine == backed {
                    let (mut heap, mut sum) = (0u64, 0u64);
                    while heap < HEAPS {
                        if mine >> (heap & 63) & 1 != 0 {
                            let count = self.memory.heap_count(heap).load(Relaxed);
                            sum = sum.wrapping_add(count);
                        }
                        heap = heap.wrapping_add(1);
                    }
                    self.memory.reserved().store(sum, Release);
                    self.memory.suspect().store(0, Release);
                    done = true;
                }
                self.release_span_lock(held);
            }
            self.unlock_heaps(mine);
        }
        done
    }

    /// Locks all heaps that there are: a bit for each; `None` when a writer does not get on.
    pub(super) fn lock_heaps(&self) -> Option<u64> {
        let (mut heap, mut mine) = (0u64, 0u64);
        while heap < HEAPS {
            if self.is_backed(heap) {
                let Ok(held) = lock::acquire(self.memory.heap_lock(heap)) else {
                    self.unlock_heaps(mine);
                    return None;
                };
                if held.recovered && !self.settle(heap, held) {
                    self.unlock_heaps(mine);
                    return None;
                }
                mine |= 1 << (heap & 63);
            }
            heap = heap.wrapping_add(1);
        }
        Some(mine)
    }

    pub(super) fn unlock_heaps(&self, mut mine: u64) {
        while mine != 0 {
            let word = self.memory.heap_lock(u64::from(mine.trailing_zeros()));
            mine &= mine.wrapping_sub(1);
            lock::release(word, Held { word: word.load(Relaxed), recovered: false });
        }
    }

    /// Begins to write a change down.
    #[inline(always)]
    pub(super) fn change<'a>(&'a self, seat: &'a Seat) -> Change<'a> {
        Change {
            log: self.memory.heap_log(seat.heap),
            n: 0,
            seat,
            limbo: self.memory.limbo_count(seat.heap),
            limbo_bytes: self.memory.limbo_bytes(seat.heap),
        }
    }
}

impl Change<'_> {
    /// A word of 32 bits gets a value.
    #[inline(always)]
    pub(super) fn store(&mut self, at: u64, value: u32) {
        self.log.write(&mut self.n, at, value);
    }

    /// The block that [`QpTrie::peek`] found leaves its magazine.
    #[inline(always)]
    pub(super) fn take(&mut self, trie: &QpTrie, class: u32) {
        let count = trie.memory.magazine_count(self.seat.heap, class).saturating_sub(1);
        self.store(trie.memory.magazine_at(self.seat.heap, class), count);
    }

    /// A block has left the trie.
    #[inline(never)]
    pub(super) fn retire(&mut self, trie: &QpTrie, block: u32) {
        self.store(trie.memory.limbo_at(self.seat.heap, self.limbo), block);
        self.limbo = self.limbo.wrapping_add(1);
        self.store(trie.memory.limbo_count_at(self.seat.heap), self.limbo as u32);
        let size = trie.class_of(block).and_then(|class| trie.memory.geometry.size(class));
        self.limbo_bytes = self.limbo_bytes.wrapping_add(size.unwrap_or(0));
        self.store(trie.memory.limbo_bytes_at(self.seat.heap), self.limbo_bytes as u32);
    }

    /// There are more elements, or fewer.
    #[inline(always)]
    pub(super) fn count(&mut self, trie: &QpTrie, more: i64) {
        let count = trie.memory.heap_count(self.seat.heap).load(Relaxed);
        let count = count.wrapping_add_signed(more);
        self.log.write_wide(&mut self.n, trie.memory.heap_count_at(self.seat.heap), count);
    }

    /// Does all of it: in the order in which it was written down.
    #[inline(always)]
    pub(super) fn commit(self) {
        self.log.commit(self.n);
    }
}
