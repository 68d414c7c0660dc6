//! Chained buckets with lock-free readers and writers that may die at any instruction.
//!
//! **Readers.** A bucket's word holds a version and the first element. Every change of the chain changes the word, and an
//! element leaves a chain before the word changes and is used again only after it did. So a reader that finds the word
//! unchanged after its walk has seen a chain that was whole, and an element with the key it compared; else it walks
//! again, and after [`TRIES`] walks takes the lock.
//!
//! **Writers** hold the stripe's lock. Each change becomes visible by one aligned store:
//!
//! | change | prepared first | the store | then |
//! |---|---|---|---|
//! | insert | element out of the pool, filled | bucket := element | |
//! | replace, at most 8 bytes | | the value word | |
//! | replace, more | spare out, filled | link or bucket := spare | old one becomes the spare |
//! | delete | | link or bucket := next | element into the pool |
//!
//! A change inside the chain is followed by the change of the bucket's version; a writer that dies between the two leaves
//! it to the next holder of the lock ([`Table::repair`]). An element is always taken out of one place before it is put
//! into another, so a death leaks it and never puts it in two; [`super::pool`] finds leaked ones when the map runs dry.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering::Acquire, Ordering::Relaxed, Ordering::Release, Ordering::SeqCst, fence};

use skep_isa::MapFlags;
use skep_isa::map::update;

use super::is_lru;
use crate::dump::{Out, Position};
use crate::error::{E2BIG, EBUSY, EEXIST, EINVAL, ENOENT, ENOMEM, MapError};
use crate::percpu::{PercpuRoom, Registered};
use crate::shm::births::Births;
use crate::shm::lock::{self, Held};
use crate::shm::table::{Element, Geometry, NO_SPARE, Stripe, TableMemory, hash};
use crate::shm::value::Format;
use crate::types::{Parts, PercpuLayout};

/// Walks without the lock before a reader takes it.
pub(super) const TRIES: u32 = 64;
/// Walks of a reader that cannot take the lock because its memory is read-only.
const TRIES_READ_ONLY: u32 = 100_000;
/// Buckets a walk looks at together when there is room for many elements.
const BLOCK: usize = 64;
/// Blocks whose elements are on their way into the cache, with the one that is copied.
const UNDER_WAY: usize = 4;
/// Longest chain that it copies without looking for circles.
const SHORT: u32 = 16;
/// With room for fewer elements a walk goes bucket by bucket,
const FEW: usize = 16;
/// and looks so many buckets ahead.
const AHEAD: u64 = 16;
/// Attempts to insert when elements must come from other stripes.
const MOVES: u32 = 64;
/// In a position: the walk stands inside a bucket, behind the element with this sequence.
const TAKEN: u64 = 1 << 63;

/// What a value is and where it lies: the difference between the kinds of hash.
pub(crate) trait Values {
    /// Overwrites the value of an element that is in the map; `false` when the element must be replaced for that.
    fn overwrite(&self, table: &Table, reference: u32) -> bool;
    /// Tells whether that is done in several steps under the value's own lock.
    fn is_locked(&self) -> bool {
        false
    }
    /// Fills the value of an element that nobody sees yet.
    fn fill(&self, table: &Table, reference: u32);
}

#[derive(Debug)]
pub(crate) struct Table {
    pub(crate) memory: TableMemory,
    seed: u64,
    /// When elements were put in, by their number.
    births: Births,
    /// A full map makes room by itself (see [`super::lru`]).
    pub(super) lru: bool,
    /// Elements get memory when they are first used (`BPF_F_NO_PREALLOC`).
    pub(super) on_demand: bool,
    /// Where the values of slots lie, for per-CPU kinds.
    pub(super) areas: Option<Registered>,
    /// What a value is made of, where it is inside its element.
    pub(super) format: Format,
}

/// Why there is no element to put in.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Dry {
    /// There is none in the pool.
    Empty,
    /// There is no memory for those that were never used.
    NoMemory,
    /// None can take the place of another.
    NoSpare,
}

pub(super) const fn reference(word: u64) -> u32 {
    word as u32
}

/// The row of [`Births`] that belongs to an element.
const fn row(reference: u32) -> u64 {
    (reference as u64).wrapping_sub(1)
}

/// The bucket word after one more change.
const fn changed(head: u64, first: u32) -> u64 {
    ((head >> 32).wrapping_add(1) << 32) | first as u64
}

/// Buckets of a walk that are not empty, as they were when it came near: words, and numbers from `begin` on.
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
        self.heads.iter().zip(&self.numbers).take(self.filled).map(|(head, n)| (self.begin.wrapping_add(u64::from(*n)), *head))
    }
}

/// Where a locked walk found a key.
pub(super) struct Place<'a> {
    pub(super) found: u32,
    pub(super) element: Element<'a>,
    pub(super) before: Option<Element<'a>>,
}

impl Table {
    pub(crate) fn new(parts: Parts, geometry: Geometry) -> Result<Self, MapError> {
        let short = || MapError::Damaged { what: "the file is too short" };
        let Parts { def, seed, file, slots, births, .. } = parts;
        let memory = TableMemory::new(Arc::clone(&file), geometry).ok_or_else(short)?;
        let on_demand = def.flags.has(MapFlags::NO_PREALLOC);
        let areas = match slots {
            None => None,
            Some(slots) => {
                let (at, stride) = geometry.slots();
                let used = if on_demand { Some(Arc::new(TableMemory::new(Arc::clone(&file), geometry).ok_or_else(short)?)) } else { None };
                Some(PercpuRoom::open(file, PercpuLayout { at, stride, on_demand }, slots, used)?)
            }
        };
        Ok(Self { memory, seed, births, lru: is_lru(def.map_type), on_demand, areas, format: Format::of(&def) })
    }

    /// Tells whether the values of a slot have memory; where not, they are zero.
    #[inline(always)]
    pub(super) fn has_memory(&self, slot: u32) -> bool {
        self.areas.as_ref().is_none_or(|areas| areas.has(slot))
    }

    /// # Safety
    /// `key` points to the key size in readable bytes.
    #[inline(always)]
    pub(super) unsafe fn hash(&self, key: *const u8) -> u64 {
        // SAFETY: the caller's duty.
        unsafe { hash(self.seed, key, self.key_size()) }
    }

    #[inline(always)]
    pub(super) fn key_size(&self) -> usize {
        self.memory.geometry.key_size as usize
    }

    /// Finds the element with a key: its reference, 0 when there is none. `size` is the key size, from who may know it when this is
    /// compiled.
    ///
    /// # Safety
    /// `key` points to the key size in readable bytes.
    #[inline(always)]
    pub(super) unsafe fn find(&self, key: *const u8, size: usize) -> u32 {
        // SAFETY: the caller's duty.
        let h = unsafe { hash(self.seed, key, size) };
        let bucket = self.memory.bucket(h);
        // Pairs with the Release stores that publish elements.
        let head = bucket.load(Acquire);
        let mut at = reference(head);
        let mut steps = self.memory.geometry.elements;
        while let Some(element) = self.memory.element(at) {
            let link = element.link().load(Acquire);
            // SAFETY: the caller's duty.
            let hit = link >> 32 == h >> 32 && unsafe { element.has_key_sized(key, size) };
            // The key was compared before this load; pairs with the fence in `write_element`.
            fence(Acquire);
            if bucket.load(Relaxed) != head {
                // SAFETY: the caller's duty.
                return unsafe { self.find_again(key, h) };
            }
            if hit {
                return at;
            }
            at = reference(link);
            steps = steps.wrapping_sub(1);
            if steps == 0 {
                // Only damage makes a chain run in a circle.
                return 0;
            }
        }
        if bucket.load(Relaxed) != head {
            // SAFETY: the caller's duty.
            return unsafe { self.find_again(key, h) };
        }
        0
    }

    /// # Safety
    /// As [`Table::find`].
    #[cold]
    #[inline(never)]
    unsafe fn find_again(&self, key: *const u8, h: u64) -> u32 {
        // SAFETY: the caller's duty.
        self.read(h, |head| unsafe { self.walk(head, h, key) }.map_or(0, |p| p.found)).unwrap_or(0)
    }

    /// Runs `f` on a bucket until the bucket did not change meanwhile, at last under its lock.
    pub(crate) fn read<T>(&self, h: u64, mut f: impl FnMut(u64) -> T) -> Option<T> {
        let bucket = self.memory.bucket(h);
        let writable = self.memory.writable();
        let mut tries = if writable { TRIES } else { TRIES_READ_ONLY };
        while tries > 0 {
            let head = bucket.load(Acquire);
            let result = f(head);
            fence(Acquire);
            if bucket.load(Relaxed) == head {
                return Some(result);
            }
            std::hint::spin_loop();
            tries = tries.wrapping_sub(1);
        }
        if !writable {
            return None;
        }
        let stripe = self.memory.stripe(h);
        let held = self.lock(&stripe)?;
        let result = f(bucket.load(Acquire));
        lock::release(stripe.lock, held);
        Some(result)
    }

    /// Walks a chain for a key. The chain may be torn; the walk ends all the same.
    ///
    /// # Safety
    /// As [`Table::find`].
    #[inline(always)]
    pub(super) unsafe fn walk(&self, head: u64, h: u64, key: *const u8) -> Option<Place<'_>> {
        let mut before = None;
        let mut at = reference(head);
        let mut steps = self.memory.geometry.elements;
        while let Some(element) = self.memory.element(at) {
            let link = element.link().load(Acquire);
            // SAFETY: the caller's duty.
            if link >> 32 == h >> 32 && unsafe { element.has_key(key) } {
                return Some(Place { found: at, element, before });
            }
            before = Some(element);
            at = reference(link);
            steps = steps.wrapping_sub(1);
            if steps == 0 {
                break;
            }
        }
        None
    }

    /// Takes a stripe's lock, and repairs what a dead holder left.
    #[inline(always)]
    pub(crate) fn lock(&self, stripe: &Stripe<'_>) -> Option<Held> {
        let held = lock::acquire(stripe.lock).ok()?;
        if held.recovered {
            self.repair(stripe);
        }
        Some(held)
    }

    #[cold]
    #[inline(never)]
    fn repair(&self, stripe: &Stripe<'_>) {
        // An element may be in nobody's hands now.
        self.memory.leaks().fetch_add(1, Relaxed);
        let mut last = stripe.touched.load(Relaxed).wrapping_sub(1);
        let mut first = last;
        if last >= self.memory.geometry.buckets {
            (first, last) = (stripe.index, self.memory.geometry.buckets.wrapping_sub(1));
        }
        let unfinished = stripe.redo.load(Relaxed) != 0;
        if unfinished {
            self.redo(stripe);
        }
        // A link may have changed without its bucket: readers in mid-walk must notice before its element is used again.
        while first <= last {
            let bucket = self.memory.bucket(first);
            let head = bucket.load(Relaxed);
            bucket.store(changed(head, reference(head)), Release);
            first = first.wrapping_add(self.memory.geometry.stripes);
        }
        if unfinished {
            // Last: who copied half a value, and finds nothing to be finished, finds that the bucket changed.
            stripe.redo.store(0, Release);
        }
    }

    /// Notes which bucket the holder of a stripe's lock is about to change.
    #[inline(always)]
    pub(super) fn note(&self, stripe: &Stripe<'_>, h: u64) {
        stripe.touched.store((h & self.memory.geometry.buckets.wrapping_sub(1)).wrapping_add(1), Relaxed);
    }

    /// Changes what points to an element: the link before it, or the bucket.
    pub(super) fn relink(&self, bucket: &AtomicU64, before: Option<Element<'_>>, to: u32) {
        let head = bucket.load(Relaxed);
        let first = match before {
            Some(b) => {
                let link = b.link().load(Relaxed);
                b.link().store((link >> 32 << 32) | u64::from(to), Release);
                reference(head)
            }
            None => to,
        };
        bucket.store(changed(head, first), Release);
    }

    /// Fills an element that nobody may see.
    ///
    /// # Safety
    /// As [`Table::find`].
    unsafe fn write_element(&self, e: Element<'_>, h: u64, key: *const u8, next: u32, sequence: u64) {
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
    pub(crate) unsafe fn update(&self, key: *const u8, flags: u64, values: &impl Values) -> i64 {
        let flags = flags & !update::LOCK;
        if flags > update::EXIST {
            return -i64::from(EINVAL);
        }
        // SAFETY: the caller's duty.
        let h = unsafe { self.hash(key) };
        let stripe = self.memory.stripe(h);
        let (mut tries, mut last) = (0u32, None);
        loop {
            let Some(held) = self.lock(&stripe) else { return -i64::from(EBUSY) };
            // SAFETY: the caller's duty; the lock is held.
            let done = unsafe { self.update_locked(&stripe, h, key, flags, values) };
            lock::release(stripe.lock, held);
            tries = tries.wrapping_add(1);
            match done {
                Ok(result) => return result,
                // The pool of this stripe is empty.
                Err(_) if last == Some(Dry::Empty) => return -i64::from(E2BIG),
                Err(_) if last.is_some() => return -i64::from(ENOMEM),
                // Or no pool has any: perhaps as another has put this very key in meanwhile.
                Err(dry) => {
                    let why = self.refill(&stripe).err().filter(|_| !self.lru || dry == Dry::NoSpare);
                    let why = if tries >= MOVES { Some(why.unwrap_or(dry)) } else { why };
                    last = why.map(|why| if dry == Dry::NoSpare { dry } else { why });
                }
            }
        }
    }

    /// # Safety
    /// As [`Table::find`], with the stripe's lock held.
    unsafe fn update_locked(&self, stripe: &Stripe<'_>, h: u64, key: *const u8, flags: u64, values: &impl Values) -> Result<i64, Dry> {
        let memory = &self.memory;
        let bucket = memory.bucket(h);
        let head = bucket.load(Relaxed);
        self.note(stripe, h);
        // SAFETY: the caller's duty.
        if let Some(place) = unsafe { self.walk(head, h, key) } {
            if flags == update::NOEXIST {
                return Ok(-i64::from(EEXIST));
            }
            if values.is_locked() {
                self.overwrite_locked(stripe, place.found, values)?;
            } else if values.overwrite(self, place.found) {
                if self.lru {
                    self.touch(place.found);
                }
                return Ok(0);
            }
            let spare = self.take_spare(stripe)?;
            let e = memory.element(spare).ok_or(Dry::NoSpare)?;
            let next = reference(place.element.link().load(Relaxed));
            // SAFETY: the caller's duty; the spare is in no list.
            unsafe { self.write_element(e, h, key, next, place.element.sequence().load(Relaxed)) };
            self.births.inherit(row(spare), row(place.found));
            values.fill(self, spare);
            self.relink(bucket, place.before, spare);
            if self.lru {
                self.touch(spare);
                self.memory.forget(place.found);
            }
            stripe.spare.store(u64::from(place.found), Relaxed);
            return Ok(0);
        }
        if flags == update::EXIST {
            return Ok(-i64::from(ENOENT));
        }
        let mut head = head;
        let mut stamp = 0;
        let new = match self.take(stripe) {
            Ok(new) => new,
            // What the dead left is found first.
            Err(_) if self.lru && self.filled() == 0 && memory.leaks().load(Relaxed) == 0 => {
                let new = self.evict(stripe).ok_or(Dry::Empty)?;
                // It may have come out of this very bucket.
                self.note(stripe, h);
                head = bucket.load(Relaxed);
                new
            }
            Err(dry) => return Err(dry),
        };
        if self.lru {
            stamp = self.tick();
        }
        let e = memory.element(new).ok_or(Dry::Empty)?;
        let first = reference(head);
        let newest = self.next_sequence(head);
        let sequence = if self.lru { u64::from(stamp) << 32 | newest & 0xffff_ffff } else { newest };
        // SAFETY: the caller's duty; the element is in no list.
        unsafe { self.write_element(e, h, key, first, sequence) };
        self.births.stamp(row(new));
        values.fill(self, new);
        bucket.store(changed(head, new), Release);
        Ok(0)
    }

    /// Finds the sequence of an element that becomes the first of a bucket. Sequences fall along a chain; and each is above all that
    /// the bucket ever had, so that a walk does not meet again what was deleted and put in behind it: every insertion makes the
    /// bucket's version greater, too. That comes round after 2^32 changes, and the first element may then have more.
    #[inline(always)]
    fn next_sequence(&self, head: u64) -> u64 {
        let version = head >> 32;
        let Some(first) = self.memory.element(reference(head)) else { return version.wrapping_add(1) };
        let newest = self.sequence(&first);
        let above = if self.lru { self.later(version, newest, first) } else { version.max(newest) };
        above.wrapping_add(1)
    }

    /// Of a bucket's version and its newest sequence, the later one, where both come round: but no element of the chain may be left
    /// half the circle behind.
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
    pub(super) fn take_spare(&self, stripe: &Stripe<'_>) -> Result<u32, Dry> {
        let first = self.memory.geometry.max_entries.wrapping_add(stripe.index).wrapping_add(1) as u32;
        let spare = match stripe.spare.load(Relaxed) {
            0 if self.on_demand => {
                // First, so that a slot that gets memory at this moment sees that the spare is in use.
                stripe.spare.store(NO_SPARE, SeqCst);
                fence(SeqCst);
                if !self.acquire_spare(first) {
                    stripe.spare.store(0, Relaxed);
                    return Err(Dry::NoSpare);
                }
                first
            }
            0 => first,
            NO_SPARE => return self.instead_of_spare(stripe),
            other => other as u32,
        };
        stripe.spare.store(NO_SPARE, Relaxed);
        // Out of its place before it is used.
        fence(Release);
        Ok(spare)
    }

    /// Takes another element, as somebody died with the spare in hand. To write over the old value instead would show readers a mix.
    #[cold]
    #[inline(never)]
    fn instead_of_spare(&self, stripe: &Stripe<'_>) -> Result<u32, Dry> {
        self.take(stripe).map_err(|_| {
            // Then a sweep finds the lost one.
            self.memory.leaks().fetch_max(1, Relaxed);
            Dry::NoSpare
        })
    }

    /// Removes a key; 0 or a negative errno. `last` is shown the element while nobody can change it but in place.
    ///
    /// # Safety
    /// As [`Table::find`].
    pub(crate) unsafe fn delete(&self, key: *const u8, mut last: impl FnMut(u32)) -> i64 {
        // SAFETY: the caller's duty.
        let h = unsafe { self.hash(key) };
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

    /// Copies the value of a key out.
    pub(crate) fn lookup(&self, key: &[u8], mut copy_value: impl FnMut(u32)) -> Result<(), MapError> {
        // SAFETY: the caller checked the length of the key.
        let h = unsafe { self.hash(key.as_ptr()) };
        // SAFETY: as above.
        let found = self.read(h, |head| unsafe { self.walk(head, h, key.as_ptr()) }.map(|p| copy_value(p.found)));
        found.ok_or(BUSY)?.ok_or(MapError::NoElement)
    }

    /// Finds the key after `key`, or the first one.
    pub(crate) fn next_key(&self, key: Option<&[u8]>, out: &mut [u8]) -> Result<(), MapError> {
        let mut from = 0;
        if let Some(key) = key {
            // SAFETY: the caller checked the length of the key.
            let h = unsafe { self.hash(key.as_ptr()) };
            let after = self.read(h, |head| {
                // SAFETY: as above.
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
            let first = self.read(b, |head| self.memory.element(reference(head)).inspect(|e| e.read_key(out)).is_some());
            if first.ok_or(BUSY)? {
                return Ok(());
            }
        }
        Err(MapError::NoElement)
    }

    /// Copies elements from a position on; see [`MapOps::fill`](crate::types::MapOps::fill).
    ///
    /// A position is a bucket and, if some of its elements were copied, [`TAKEN`] and the sequence of the last one. Chains run
    /// from the newest to the oldest element and sequences fall on the way, so what comes next in a bucket is what has a
    /// smaller sequence. An element keeps its sequence, and one put in later has a place behind the head at that time: so
    /// nothing is skipped and nothing comes twice whatever happens to the chain. A bucket's elements are copied together, as
    /// they were at one moment, unless the room ends among them.
    #[inline(always)]
    pub(crate) fn fill(&self, at: &mut Position, out: &mut Out<'_>, copy_value: impl Fn(u32, &mut [u8])) -> Result<bool, MapError> {
        let buckets = self.memory.geometry.buckets;
        while at.major < buckets {
            if at.minor == 0 && out.left() >= FEW && at.strict.number == 0 {
                if !self.fill_blocks(at, out, &copy_value)? {
                    return Ok(true);
                }
                continue;
            }
            // Elements lie anywhere, so each is a cache miss unless it was asked for early.
            self.memory.prefetch(reference(self.memory.bucket(at.major.wrapping_add(AHEAD)).load(Relaxed)));
            if !self.fill_bucket(at, out, &copy_value)? {
                return Ok(true);
            }
        }
        Ok(false)
    }

    /// Copies whole buckets from a position on, as long as there is much room; `false` when the room ended.
    ///
    /// While one block is copied, the first elements of the next but one are on their way into the cache, and the second ones of
    /// the next.
    #[inline(always)]
    fn fill_blocks(&self, at: &mut Position, out: &mut Out<'_>, copy_value: &impl Fn(u32, &mut [u8])) -> Result<bool, MapError> {
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
            let next = self.memory.element(reference(head)).map_or(0, |e| reference(e.link().load(Relaxed)));
            if next != 0 {
                self.memory.prefetch(next);
            }
        }
    }

    /// Copies a whole bucket that had this word; `false`, and nothing copied, when it changed, is long, or does not fit.
    #[inline(always)]
    fn copy_bucket(&self, bucket: u64, head: u64, out: &mut Out<'_>, copy_value: &impl Fn(u32, &mut [u8])) -> bool {
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
    fn fill_changed(&self, at: &mut Position, out: &mut Out<'_>, copy_value: &impl Fn(u32, &mut [u8])) -> Result<bool, MapError> {
        self.fill_bucket(at, out, copy_value)
    }

    /// Copies what is left of a bucket and moves to the next one; `false` when the room ended before.
    #[inline(always)]
    fn fill_bucket(&self, at: &mut Position, out: &mut Out<'_>, copy_value: &impl Fn(u32, &mut [u8])) -> Result<bool, MapError> {
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
                if self.births.is_newer(row(r), number) {
                    newer = newer.wrapping_add(last.is_none_or(|l| self.precedes(sequence, l)).into());
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

    /// Gives `copy` the element at or after a position, and moves the position behind it; `false` at the end. Safe on the event
    /// path.
    pub(crate) fn step(&self, at: &mut Position, mut copy: impl FnMut(&Element<'_>, u32)) -> Result<bool, MapError> {
        while at.major < self.memory.geometry.buckets {
            self.memory.prefetch(reference(self.memory.bucket(at.major.wrapping_add(AHEAD)).load(Relaxed)));
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
                        if !self.births.is_newer(row(r), number) {
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
    fn sequence(&self, e: &Element<'_>) -> u64 {
        e.sequence().load(Relaxed) & if self.lru { 0xffff_ffff } else { !TAKEN }
    }

    /// Tells whether an element was put in before another of its bucket. In an LRU table sequences come round: the smaller
    /// one is less than half the circle behind.
    #[inline(always)]
    fn precedes(&self, sequence: u64, other: u64) -> bool {
        if self.lru { (other as u32).wrapping_sub(sequence as u32) as i32 > 0 } else { sequence < other }
    }

    /// Finds the position behind a key.
    pub(crate) fn seek(&self, key: &[u8]) -> Result<Option<Position>, MapError> {
        // SAFETY: the caller checked the length of the key.
        let h = unsafe { self.hash(key.as_ptr()) };
        // SAFETY: as above.
        let found = self.read(h, |head| unsafe { self.walk(head, h, key.as_ptr()) }.map(|p| self.sequence(&p.element)));
        let major = h & self.memory.geometry.buckets.wrapping_sub(1);
        Ok(found.ok_or(BUSY)?.map(|sequence| Position { major, minor: TAKEN | sequence, ..Position::default() }))
    }
}

pub(super) const BUSY: MapError = MapError::Busy { what: "a bucket of the hash" };

/// Turns a result in the kernel's form into one for users.
pub(crate) fn user_result(result: i64, flags: u64, max_entries: u32) -> Result<(), MapError> {
    match -result as i32 {
        0 => Ok(()),
        ENOENT => Err(MapError::NoElement),
        EEXIST => Err(MapError::Exists),
        E2BIG => Err(MapError::Full { max_entries }),
        ENOMEM => Err(MapError::NoMemory { what: "another element" }),
        EINVAL => Err(MapError::Flags { flags }),
        _ => Err(BUSY.with_holder()),
    }
}
