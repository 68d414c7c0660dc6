//! Reading a whole table, many elements at a time or one after another, while others change it.

use std::sync::atomic::{Ordering::Acquire, Ordering::Relaxed, fence};

use super::table::{BUSY, Table, reference, row};
use crate::dump::output::Output;
use crate::dump::position::Position;
use crate::error::MapError;
use crate::shm::table::Element;

/// Buckets a walk looks at together when there is room for many elements.
const BLOCK: usize = 64;
/// Blocks whose elements are on their way into the cache, with the one that is copied.
const UNDER_WAY: usize = 4;
/// Longest chain that it copies without looking for circles.
const SHORT: u32 = 16;
/// With room for fewer elements than this, a walk goes bucket by bucket.
const FEW: usize = 16;
/// Buckets between the one that is copied in such a walk and the one whose first element is
/// prefetched.
const AHEAD: u64 = 16;
/// In a position: the walk stands inside a bucket, behind the element with this sequence.
const TAKEN: u64 = 1 << 63;

/// Buckets of a walk that are not empty, as they were when it came near: words, and numbers from
/// `begin` on.
struct Block {
    begin: u64,
    filled: usize,
    heads: [u64; BLOCK],
    numbers: [u8; BLOCK],
}

impl Block {
    const fn empty() -> Self {
        Self { begin: 0, filled: 0, heads: [0; BLOCK], numbers: [0; BLOCK] }
    }

    fn filled(&self) -> impl Iterator<Item = (u64, u64)> + '_ {
        self.heads
            .iter()
            .zip(&self.numbers)
            .take(self.filled)
            .map(|(head, n)| (self.begin.wrapping_add(u64::from(*n)), *head))
    }
}

impl Table {
    /// Finds the key after `key`, or the first one.
    pub(crate) fn next_key(&self, key: Option<&[u8]>, out: &mut [u8]) -> Result<(), MapError> {
        let mut from = 0;
        if let Some(key) = key {
            // SAFETY: the caller checked the length of the key.
            let h = unsafe { self.hash(key.as_ptr()) };
            let after = self.read(h, |head| {
                // SAFETY: the caller checked the length of the key.
                let place = unsafe { self.walk(head, h, key.as_ptr()) }?;
                let next = self.memory.element(reference(place.element.link().load(Acquire)));
                Some(next.inspect(|n| n.read_key(out)).is_some())
            });
            match after.ok_or(BUSY)? {
                Some(true) => return Ok(()),
                Some(false) => from = (h & (self.memory.geometry.buckets - 1)) + 1,
                None => {}
            }
        }
        for b in from..self.memory.geometry.buckets {
            let first = self.read(b, |head| {
                self.memory.element(reference(head)).inspect(|e| e.read_key(out)).is_some()
            });
            if first.ok_or(BUSY)? {
                return Ok(());
            }
        }
        Err(MapError::NoElement)
    }

    /// Copies elements from a position on; see [`MapOps::fill`](crate::ops::WalkOps::fill).
    ///
    /// A position is a bucket and, if some of its elements were copied, [`TAKEN`] and the sequence
    /// of the last one. Chains run from the newest to the oldest element and sequences fall on
    /// the way, so what comes next in a bucket is what has a smaller sequence. An element keeps
    /// its sequence, and one put in later has a place behind the head at that time: so
    /// nothing is skipped and nothing comes twice whatever happens to the chain. A bucket's
    /// elements are copied together, as they were at one moment, unless the room ends among
    /// them.
    #[inline(always)]
    pub(crate) fn fill(
        &self,
        at: &mut Position,
        out: &mut Output<'_>,
        copy_value: impl Fn(u32, &mut [u8]),
    ) -> Result<bool, MapError> {
        let buckets = self.memory.geometry.buckets;
        while at.major < buckets {
            if at.minor == 0 && out.left() >= FEW && at.strict.number == 0 {
                if !self.fill_blocks(at, out, &copy_value)? {
                    return Ok(true);
                }
                continue;
            }
            // Elements lie anywhere, so each is a cache miss unless it was asked for early.
            self.memory.prefetch(reference(
                self.memory.bucket(at.major.wrapping_add(AHEAD)).load(Relaxed),
            ));
            if at.minor == 0 && reference(self.memory.bucket(at.major).load(Acquire)) == 0 {
                at.go(at.major.wrapping_add(1), 0);
                continue;
            }
            if !self.fill_bucket(at, out, &copy_value)? {
                return Ok(true);
            }
            // Not on to the next element, only to find that there is no room for it.
            if out.is_full() && at.major < buckets {
                return Ok(true);
            }
        }
        Ok(false)
    }

    /// Copies whole buckets from a position on, as long as there is much room; `false` when the
    /// room ended.
    ///
    /// While one block is copied, the first elements of the next three are on their way into the
    /// cache ([`UNDER_WAY`]), and the second ones of the next.
    #[inline(always)]
    fn fill_blocks(
        &self,
        at: &mut Position,
        out: &mut Output<'_>,
        copy_value: &impl Fn(u32, &mut [u8]),
    ) -> Result<bool, MapError> {
        let buckets = self.memory.geometry.buckets;
        let mut blocks = [const { Block::empty() }; UNDER_WAY];
        let mut begin = at.major;
        for block in &mut blocks[..UNDER_WAY - 1] {
            self.look(block, begin);
            begin = begin.wrapping_add(BLOCK as u64);
        }
        self.look_behind(&blocks[0]);
        for now in 0usize.. {
            self.look(&mut blocks[now.wrapping_add(UNDER_WAY - 1) % UNDER_WAY], begin);
            begin = begin.wrapping_add(BLOCK as u64);
            let next = &blocks[now.wrapping_add(1) % UNDER_WAY];
            self.look_behind(next);
            for (bucket, head) in blocks[now % UNDER_WAY].filled() {
                if self.copy_bucket(bucket, head, out, copy_value) {
                    continue;
                }
                at.go(bucket, 0);
                if !self.fill_changed(at, out, copy_value)? {
                    return Ok(false);
                }
            }
            at.go(next.begin.min(buckets), 0);
            if at.major == buckets || out.left() < FEW {
                break;
            }
        }
        Ok(true)
    }

    /// Notes the buckets of a block that are not empty, and asks for their first elements.
    #[inline(always)]
    fn look(&self, block: &mut Block, begin: u64) {
        let mut n = 0usize;
        for i in 0..(BLOCK as u64).min(self.memory.geometry.buckets.saturating_sub(begin)) {
            // Pairs with the Release stores that publish elements.
            let head = self.memory.bucket(begin.wrapping_add(i)).load(Acquire);
            // There are as many places as buckets in a block.
            if let (Some(to), Some(number)) = (block.heads.get_mut(n), block.numbers.get_mut(n)) {
                (*to, *number) = (head, i as u8);
            }
            n += usize::from(reference(head) != 0);
        }
        (block.begin, block.filled) = (begin, n);
        // The words of a later one.
        for line in 0..BLOCK as u64 / 8 {
            self.memory.prefetch_bucket(begin.wrapping_add((2 * BLOCK) as u64 + 8 * line));
        }
        for (_, head) in block.filled() {
            self.memory.prefetch(reference(head));
        }
    }

    /// Asks for the second elements of chains.
    #[inline(always)]
    fn look_behind(&self, block: &Block) {
        for (_, head) in block.filled() {
            let next = self
                .memory
                .element(reference(head))
                .map_or(0, |e| reference(e.link().load(Relaxed)));
            if next != 0 {
                self.memory.prefetch(next);
            }
        }
    }

    /// Copies a whole bucket that had this word; `false`, and nothing copied, when it changed, is
    /// long, or does not fit.
    #[inline(always)]
    fn copy_bucket(
        &self,
        bucket: u64,
        head: u64,
        out: &mut Output<'_>,
        copy_value: &impl Fn(u32, &mut [u8]),
    ) -> bool {
        let before = out.used();
        let mut r = reference(head);
        let mut steps = SHORT;
        while let Some(e) = self.memory.element(r) {
            let Some((key, value)) = out.next().filter(|_| steps > 0) else {
                out.rewind(before);
                return false;
            };
            let link = e.link().load(Acquire);
            e.read_key(key);
            copy_value(r, value);
            out.push();
            r = reference(link);
            steps = steps.wrapping_sub(1);
        }
        // What was copied was read before this load; pairs with the fence in `write_element`.
        fence(Acquire);
        if self.memory.bucket(bucket).load(Relaxed) != head {
            out.rewind(before);
            return false;
        }
        true
    }

    #[cold]
    #[inline(never)]
    fn fill_changed(
        &self,
        at: &mut Position,
        out: &mut Output<'_>,
        copy_value: &impl Fn(u32, &mut [u8]),
    ) -> Result<bool, MapError> {
        self.fill_bucket(at, out, copy_value)
    }

    /// Copies what is left of a bucket and moves to the next one; `false` when the room ended
    /// before.
    #[inline(always)]
    fn fill_bucket(
        &self,
        at: &mut Position,
        out: &mut Output<'_>,
        copy_value: &impl Fn(u32, &mut [u8]),
    ) -> Result<bool, MapError> {
        let before = out.used();
        let last = (at.minor & TAKEN != 0).then_some(at.minor & !TAKEN);
        let number = at.strict.number;
        let mut newer = 0u64;
        let seen = self.read(at.major, |head| {
            out.rewind(before);
            newer = 0;
            let mut copied = None;
            let mut r = reference(head);
            let mut steps = self.memory.geometry.elements;
            while let Some(e) = self.memory.element(r) {
                let link = e.link().load(Acquire);
                let sequence = self.sequence(&e);
                if self.epochs.is_newer(row(r), number) {
                    newer =
                        newer.wrapping_add(last.is_none_or(|l| self.precedes(sequence, l)).into());
                } else if copied.or(last).is_none_or(|l| self.precedes(sequence, l)) {
                    let Some((key, value)) = out.next() else { return (copied, true) };
                    e.read_key(key);
                    copy_value(r, value);
                    out.push();
                    copied = Some(sequence);
                }
                r = reference(link);
                steps = steps.wrapping_sub(1);
                if steps == 0 {
                    break;
                }
            }
            (copied, false)
        });
        if !matches!(seen, Some((None, true))) {
            at.strict.newer = at.strict.newer.wrapping_add(newer);
        }
        match seen {
            Some((_, false)) => at.go(at.major.wrapping_add(1), 0),
            Some((Some(sequence), true)) => at.minor = TAKEN | sequence,
            Some((None, true)) => {}
            None => {
                out.rewind(before);
                return Err(BUSY);
            }
        }
        Ok(matches!(seen, Some((_, false))))
    }

    /// Gives `copy` the element at or after a position, and moves the position behind it; `false`
    /// at the end. Safe on the event path.
    pub(crate) fn step(
        &self,
        at: &mut Position,
        mut copy: impl FnMut(&Element<'_>, u32),
    ) -> Result<bool, MapError> {
        while at.major < self.memory.geometry.buckets {
            self.memory.prefetch(reference(
                self.memory.bucket(at.major.wrapping_add(AHEAD)).load(Relaxed),
            ));
            let last = (at.minor & TAKEN != 0).then_some(at.minor & !TAKEN);
            let number = at.strict.number;
            let mut newer = 0u64;
            let next = self.read(at.major, |head| {
                newer = 0;
                let mut r = reference(head);
                let mut steps = self.memory.geometry.elements;
                while let Some(e) = self.memory.element(r) {
                    let link = e.link().load(Acquire);
                    let sequence = self.sequence(&e);
                    if last.is_none_or(|l| self.precedes(sequence, l)) {
                        if !self.epochs.is_newer(row(r), number) {
                            copy(&e, r);
                            return Some(sequence);
                        }
                        newer = newer.wrapping_add(1);
                    }
                    r = reference(link);
                    steps = steps.wrapping_sub(1);
                    if steps == 0 {
                        break;
                    }
                }
                None
            });
            at.strict.newer = at.strict.newer.wrapping_add(newer);
            match next.ok_or(BUSY)? {
                Some(sequence) => {
                    at.minor = TAKEN | sequence;
                    return Ok(true);
                }
                None => at.go(at.major.wrapping_add(1), 0),
            }
        }
        Ok(false)
    }

    /// The sequence of an element: in an LRU table 32 bits, beside the stamp.
    #[inline(always)]
    pub(super) fn sequence(&self, e: &Element<'_>) -> u64 {
        e.sequence().load(Relaxed) & if self.lru { 0xffff_ffff } else { !TAKEN }
    }

    /// Tells whether an element was put in before another of its bucket. In an LRU table sequences
    /// come round: the smaller one is less than half the circle behind.
    #[inline(always)]
    fn precedes(&self, sequence: u64, other: u64) -> bool {
        if self.lru {
            (other as u32).wrapping_sub(sequence as u32) as i32 > 0
        } else {
            sequence < other
        }
    }

    /// Finds the position behind a key.
    pub(crate) fn seek(&self, key: &[u8]) -> Result<Option<Position>, MapError> {
        // SAFETY: the caller checked the length of the key.
        let h = unsafe { self.hash(key.as_ptr()) };
        let found = self.read(h, |head| {
            // SAFETY: the caller checked the length of the key.
            let element = unsafe { self.walk(head, h, key.as_ptr()) }?.element;
            Some((self.sequence(&element), reference(element.link().load(Acquire))))
        });
        let major = h & self.memory.geometry.buckets.wrapping_sub(1);
        let (major, minor) = match found.ok_or(BUSY)? {
            None => return Ok(None),
            // What is put in later comes before it: this bucket is done.
            Some((_, 0)) => (major.wrapping_add(1), 0),
            Some((sequence, _)) => (major, TAKEN | sequence),
        };
        Ok(Some(Position { major, minor, ..Position::default() }))
    }
}
