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
    AtomicU8, AtomicU64, Ordering::AcqRel, Ordering::Acquire, Ordering::Relaxed, Ordering::Release,
    fence,
};

use super::QpTrie;
use super::cache::Recached;
use super::node::Node;
use crate::shm::lock::{self, Held, NotHeld};
use crate::shm::qp::{BLOCK_CLASSES, HEAPS, LEAF, LIMBO, Log, STRIPES, WordAt};
use crate::shm::sys;

/// Most blocks that one change puts into limbo.
const RETIRED: u64 = 4;
/// Bytes in limbo with which it counts as full.
const LIMBO_BYTES: u64 = 64 << 10;
/// Elements that a heap reserves at a time, and twice as many that it keeps.
const SPARE_ELEMENTS: u64 = 32;
/// With room for so many elements a map counts as nearly full: twice what all heaps keep.
const NEARLY_FULL: u64 = HEAPS * 4 * SPARE_ELEMENTS;
/// Looks at a log before its owner is given up.
const LOOKS: u32 = 100_000;

/// A heap, and its lock.
#[derive(Clone, Copy)]
pub(super) struct Seat {
    pub(super) heap: u64,
    held: Held,
}

/// Locks of nodes, of children and of buckets: a bit for each stripe.
#[derive(Clone, Copy)]
pub(super) struct Locks(u64);

impl Locks {
    pub(super) const NONE: Self = Self(0);
    /// That of the root.
    pub(super) const ROOT: Self = Self(1);

    #[inline(always)]
    fn first_of(reference: u32) -> u32 {
        // References of neighbors differ by the size of nodes.
        ((u64::from(reference).wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 32) & (STRIPES - 1)) as u32
    }

    /// All that a node has: who holds them may replace it.
    #[inline(always)]
    pub(super) fn of_node(reference: u32, node: &Node) -> Self {
        let all = if node.is_large() { (1u64 << GROUPS).wrapping_sub(1) } else { 1 };
        Self(all.rotate_left(Self::first_of(reference)))
    }

    /// That of a child of a node: it is the node's, but a large node has several.
    #[inline(always)]
    pub(super) fn of_child(reference: u32, node: &Node, byte: u64) -> Self {
        let group = if node.is_large() { (byte >> 6) as u32 & (GROUPS - 1) } else { 0 };
        Self(1u64.rotate_left(Self::first_of(reference).wrapping_add(group) & 63))
    }

    /// That of a pair of buckets.
    #[inline(always)]
    pub(super) fn of_pair(pair: u64) -> Self {
        Self(1u64 << (pair & (STRIPES - 1)))
    }

    #[inline(always)]
    pub(super) fn and(self, other: Self) -> Self {
        Self(self.0 | other.0)
    }
}

/// Locks of a large node: one for sixteen children, which are a cache line.
const GROUPS: u32 = 16;

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

/// A change of the trie: what leaves it is noted first, then all its stores are done together.
pub(super) struct Change<'a> {
    trie: &'a QpTrie,
    seat: &'a Seat,
    /// Blocks that the heap has in limbo then, and their bytes.
    limbo: (u64, u64),
    /// Whether that is more than before.
    retires: bool,
}

/// A word that a change stores, and the value.
pub(super) type Store = (WordAt, u32);

/// Words that a change stores, in this order.
#[derive(Clone, Copy, Default)]
pub(super) struct Stores {
    /// The link that shows it to readers.
    pub(super) link: Option<Store>,
    /// The head of a node that is in the trie no more.
    pub(super) obsolete: Option<Store>,
    /// Classes of a new node and of a new leaf: the block that [`QpTrie::peek`] found leaves its
    /// magazine.
    pub(super) node: Option<u32>,
    pub(super) leaf: Option<u32>,
    /// How many elements more there are; so many fewer are reserved.
    pub(super) more: i64,
    /// What the cache has of it.
    pub(super) cache: Option<Recached>,
}

impl QpTrie {
    /// Takes a heap.
    #[inline(always)]
    pub(super) fn sit(&self) -> Option<Seat> {
        // Where this thread was before: who begins where others are takes their cache lines.
        let (mut last, mut heap) = (&self.last_heaps[0], 0u64);
        let held = lock::try_acquire_by(|thread| {
            last = self.last_heap(thread);
            heap = u64::from(last.load(Relaxed)) & (HEAPS - 1);
            self.is_backed(heap).then(|| self.memory.heap_lock(heap))
        });
        if let Some(held) = held {
            return Some(Seat { heap, held });
        }
        let seat = self.sit_elsewhere()?;
        last.store(seat.heap as u8, Relaxed);
        Some(seat)
    }

    /// Tells which heap the thread with a number had; threads that share this take turns at some
    /// heaps.
    #[inline(always)]
    fn last_heap(&self, thread: u32) -> &AtomicU8 {
        let i = thread as usize & (self.last_heaps.len().wrapping_sub(1));
        self.last_heaps.get(i).unwrap_or(&self.last_heaps[0])
    }

    #[cold]
    #[inline(never)]
    fn sit_elsewhere(&self) -> Option<Seat> {
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
            if looks & 0x3f == 0 {
                // He may only lack a processor.
                sys::sched_yield();
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

    #[cold]
    #[inline(never)]
    fn wait_for_stripe(&self, i: u64) -> bool {
        let Ok(held) = lock::acquire(self.memory.stripe(i)) else { return false };
        if held.recovered && !self.settle_all() {
            // What the dead holder was doing is still to be done.
            lock::abandon(self.memory.stripe(i), held);
            return false;
        }
        true
    }

    /// Locks stripes, in ascending order.
    #[inline(always)]
    pub(super) fn lock_stripes(&self, seat: &Seat, locks: Locks) -> Result<(), NotDone> {
        let mut left = locks.0;
        while left != 0 {
            let i = u64::from(left.trailing_zeros());
            if lock::try_acquire_too(self.memory.stripe(i), seat.held).is_none()
                && !self.wait_for_stripe(i)
            {
                // Those below it.
                self.unlock_stripes(Locks(locks.0 & (1u64 << i).wrapping_sub(1)));
                return Err(NotDone::Busy);
            }
            left &= left.wrapping_sub(1);
        }
        Ok(())
    }

    #[inline(always)]
    pub(super) fn unlock_stripes(&self, locks: Locks) {
        let mut left = locks.0;
        while left != 0 {
            let word = self.memory.stripe(u64::from(left.trailing_zeros()));
            lock::release(word, Held { word: word.load(Relaxed), recovered: false });
            left &= left.wrapping_sub(1);
        }
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
        let (blocks, bytes) = self.memory.limbo_counts(seat.heap);
        if blocks.wrapping_add(RETIRED) <= LIMBO && bytes <= LIMBO_BYTES {
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
        while self.memory.limbo_counts(seat.heap).0 != 0 {
            if let Some(full) = self.recycle_some(seat)
                && !self.flush(seat, full)
            {
                return Err(NotDone::Busy);
            }
        }
        Ok(())
    }

    /// Brings blocks in limbo back until one's magazine has no room; returns its class then.
    fn recycle_some(&self, seat: &Seat) -> Option<u32> {
        let log = self.memory.heap_log(seat.heap);
        let counts_at = self.memory.limbo_counts_at(seat.heap);
        let (mut left, mut bytes) = self.memory.limbo_counts(seat.heap);
        while let Some(last) = left.checked_sub(1) {
            left = last;
            if left == 0 {
                bytes = 0;
            }
            let counts = left | bytes << 32;
            let block = self.memory.at32(self.memory.limbo_at(seat.heap, left)).load(Relaxed);
            let Some(class) = self.class_of(block) else {
                // What is no block is forgotten.
                log.commit_these(&[], &[Some((counts_at, counts))]);
                continue;
            };
            let count = self.memory.magazine_count(seat.heap, class);
            if count >= self.memory.geometry.kept(class) {
                return Some(class);
            }
            // Above the count nobody looks, so this need not be in the log.
            let slot = self.memory.magazine_slot_at(seat.heap, class, count);
            self.memory.at32(slot).store(block & !LEAF, Relaxed);
            let at = self.memory.magazine_at(seat.heap, class);
            let more = Some((at, count.wrapping_add(1)));
            log.commit_these(&[more], &[Some((counts_at, counts))]);
        }
        None
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

    /// Sees to it that an element may be put in; `false` when the map is full, or
    /// [seems](QpTrie::is_count_suspect) so. Heaps reserve some at a time, so that writers do not
    /// meet at one count. In a map that is nearly full they take one, and keep none: what a heap
    /// keeps from before is found when the map seems full, and once it is, none is kept again.
    #[inline(always)]
    pub(super) fn reserve_element(&self, seat: &Seat) -> bool {
        self.memory.heap_spare(seat.heap).load(Relaxed) != 0 || self.reserve_elements(seat)
    }

    #[cold]
    #[inline(never)]
    fn reserve_elements(&self, seat: &Seat) -> bool {
        let max = self.memory.geometry.max_entries;
        let reserved = self.memory.reserved();
        let mut now = reserved.load(Relaxed);
        while now < max {
            let some = if max.wrapping_sub(now) > NEARLY_FULL { SPARE_ELEMENTS } else { 1 };
            match reserved.compare_exchange_weak(now, now.wrapping_add(some), AcqRel, Relaxed) {
                Ok(_) => {
                    // A writer that dies before leaves the count too high.
                    self.memory.heap_spare(seat.heap).store(some, Release);
                    return true;
                }
                Err(other) => now = other,
            }
        }
        false
    }

    /// Gives reserved elements back, if a heap has more than it may keep.
    #[inline(always)]
    pub(super) fn unreserve_elements(&self, seat: &Seat) {
        let spare = self.memory.heap_spare(seat.heap).load(Relaxed);
        let reserved = self.memory.reserved().load(Relaxed);
        let most = self.memory.geometry.max_entries.saturating_sub(NEARLY_FULL);
        if spare > 2 * SPARE_ELEMENTS || (spare != 0 && reserved >= most) {
            let kept = if reserved < most { SPARE_ELEMENTS } else { 0 };
            // A writer that dies in between leaves the count too high.
            self.memory.heap_spare(seat.heap).store(kept, Release);
            self.memory.reserved().fetch_sub(spare.wrapping_sub(kept), AcqRel);
        }
    }

    /// Tells whether the map may have room though all that it has room for is reserved: there are
    /// fewer elements, some came and went while they were counted, or a writer died.
    #[cold]
    #[inline(never)]
    pub(super) fn is_count_suspect(&self) -> bool {
        let (sum, counts) = self.sum_of_counts();
        let mut suspect = self.memory.suspect().load(Acquire) != 0;
        suspect |= sum < self.memory.geometry.max_entries;
        let mut heap = 0u64;
        while heap < HEAPS {
            let word = self.memory.heap_lock(heap);
            suspect |= self.is_backed(heap)
                && lock::owner(word.load(Relaxed)) != 0
                && !lock::held_by_living(word);
            heap = heap.wrapping_add(1);
        }
        suspect || self.sum_of_counts() != (sum, counts)
    }

    /// Adds up how many elements heaps put in less those they took out; and makes a number of their
    /// counts that is another when two of them changed by as much.
    fn sum_of_counts(&self) -> (u64, u64) {
        let (mut heap, mut sum, mut counts) = (0u64, 0u64, 0u64);
        while heap < HEAPS {
            if self.is_backed(heap) {
                let count = self.memory.heap_count(heap).load(Acquire);
                sum = sum.wrapping_add(count);
                counts = counts.wrapping_mul(0x9e37_79b9_7f4a_7c15).wrapping_add(count);
            }
            heap = heap.wrapping_add(1);
        }
        (sum, counts)
    }

    /// Counts the elements anew, with no writer at work: heaps know what they put in and took out.
    /// Then the caller, who has no heap before, has [the first](QpTrie::first_seat), and an element
    /// is reserved for it if there is room for one: were it free for all, others could take it.
    /// `false` when a writer does not get on.
    #[cold]
    #[inline(never)]
    pub(super) fn count_anew(&self) -> bool {
        let mut looks = 0u64;
        while let Some(mine) = self.lock_heaps() {
            let mut all = false;
            if let Some(held) = self.lock_spans() {
                // Otherwise a heap came to be meanwhile: for who found all others locked.
                all = mine == self.memory.heaps_backed().load(Acquire) | 1;
                if all {
                    self.count_locked(mine);
                }
                self.release_span_lock(held);
            } else {
                looks = HEAPS;
            }
            if all {
                self.unlock_heaps(mine & !1);
                return true;
            }
            self.unlock_heaps(mine);
            looks = looks.wrapping_add(1);
            if looks > HEAPS {
                break;
            }
        }
        false
    }

    /// Returns the first heap, which this thread has locked.
    pub(super) fn first_seat(&self) -> Seat {
        let word = self.memory.heap_lock(0).load(Relaxed);
        Seat { heap: 0, held: Held { word, recovered: false } }
    }

    /// Counts the elements of all heaps, which are locked; the first one gets room for one.
    fn count_locked(&self, mine: u64) {
        let (mut heap, mut sum) = (0u64, 0u64);
        while heap < HEAPS {
            if mine >> (heap & 63) & 1 != 0 {
                self.memory.heap_spare(heap).store(0, Relaxed);
                sum = sum.wrapping_add(self.memory.heap_count(heap).load(Relaxed));
            }
            heap = heap.wrapping_add(1);
        }
        let one = u64::from(sum < self.memory.geometry.max_entries);
        self.memory.reserved().store(sum.wrapping_add(one), Release);
        self.memory.suspect().store(0, Release);
        // A writer that dies before leaves the count too high.
        self.memory.heap_spare(0).store(one, Release);
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

    /// Begins a change.
    #[inline(always)]
    pub(super) fn change<'a>(&'a self, seat: &'a Seat) -> Change<'a> {
        let limbo = self.memory.limbo_counts(seat.heap);
        Change { trie: self, seat, limbo, retires: false }
    }
}

impl Change<'_> {
    /// A block of a class has left the trie.
    #[inline(always)]
    pub(super) fn retire(&mut self, block: u32, class: Option<u32>) {
        let memory = &self.trie.memory;
        // Above the count nobody looks, so this need not be in the log.
        let slot = memory.limbo_at(self.seat.heap, self.limbo.0);
        memory.at32(slot).store(block, Relaxed);
        let size = class.and_then(|class| memory.geometry.size(class)).unwrap_or(0);
        self.limbo = (self.limbo.0.wrapping_add(1), self.limbo.1.wrapping_add(size));
        self.retires = true;
    }

    /// Does all of it.
    #[inline(always)]
    pub(super) fn commit(self, stores: Stores) {
        let (heap, memory) = (self.seat.heap, &self.trie.memory);
        let without = |class: u32| {
            let count = memory.magazine_count(heap, class).saturating_sub(1);
            (memory.magazine_at(heap, class), count)
        };
        let (node, leaf) = (stores.node.map(without), stores.leaf.map(without));
        // Readers ask the trie from the first on, and the bucket again from the last on. A leaf leaves
        // its bucket before it leaves the trie.
        let narrow = [
            stores.cache.map(|cache| cache.opened),
            stores.cache.and_then(|cache| cache.leaves),
            stores.link,
            stores.obsolete,
            node,
            leaf,
            stores.cache.and_then(|cache| cache.comes),
            stores.cache.and_then(|cache| cache.tag),
            stores.cache.map(|cache| cache.closed),
        ];
        let counted = (stores.more != 0).then(|| {
            let count = memory.heap_count(heap).load(Relaxed).wrapping_add_signed(stores.more);
            let spare = memory.heap_spare(heap).load(Relaxed).wrapping_sub(stores.more as u64);
            [(memory.heap_count_at(heap), count), (memory.heap_spare_at(heap), spare)]
        });
        let limbo =
            self.retires.then(|| (memory.limbo_counts_at(heap), self.limbo.0 | self.limbo.1 << 32));
        let wide = [counted.map(|both| both[0]), counted.map(|both| both[1]), limbo];
        memory.heap_log(heap).commit_these(&narrow, &wide);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::shm::qp::MAX_NODE;

    /// Who replaces a node keeps out all who change a child of it; who changes one child of a large
    /// node does not keep out who changes one of another cache line.
    #[test]
    fn a_node_has_the_locks_of_its_children() {
        for bytes in 2..=256u32 {
            let mut memory = vec![0u32; MAX_NODE as usize / 4 + 8];
            let at: *mut u8 = memory.as_mut_ptr().cast();
            // SAFETY: the blocks are larger than any node, and each byte is a new one.
            unsafe {
                Node::make_fork(at, 0, (Some(0), 1), (Some(1), 1));
                for byte in 2..bytes {
                    let mut copy = memory.clone();
                    let node = Node::at(memory.as_mut_ptr().cast());
                    node.copy_with(copy.as_mut_ptr().cast(), Some(byte as u8), 1);
                    memory.copy_from_slice(&copy);
                }
            }
            let node = Node::at(memory.as_mut_ptr().cast());
            assert_eq!((node.children(), node.is_large()), (bytes, bytes >= 96));
            for reference in [2u32, 64, 1 << 20, u32::MAX - 1] {
                let all = Locks::of_node(reference, &node);
                let each =
                    (0..bytes).map(|i| Locks::of_child(reference, &node, node.byte_of_child(i)));
                let together = each.clone().fold(Locks::NONE, Locks::and);
                assert_eq!(together.0 & !all.0, 0, "{bytes} {reference}");
                assert!(each.clone().all(|lock| lock.0.count_ones() == 1));
                let lines = if node.is_large() { bytes.div_ceil(16) } else { 1 };
                assert!(together.0.count_ones() >= lines.min(GROUPS), "{bytes} {reference}");
            }
        }
    }
}
