//! Chained buckets with lock-free readers and writers that may die at any instruction.
//!
//! **Readers.** A bucket's word holds a version and the first element. Every change of the chain
//! changes the word, and an element leaves a chain before the word changes and is used again only
//! after it did. So a reader that finds the word unchanged after its walk has seen a chain that was
//! whole, and an element with the key it compared; else it walks again, and after [`TRIES`] walks
//! takes the lock.
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
//! A change inside the chain is followed by the change of the bucket's version; a writer that dies
//! between the two leaves it to the next holder of the lock ([`Table::repair`]). An element is
//! always taken out of one place before it is put into another, so a death leaks it and never puts
//! it in two; [`super::pool`] finds leaked ones when the map runs shortage.

use std::sync::Arc;
use std::sync::atomic::{
    AtomicU64, Ordering::Acquire, Ordering::Relaxed, Ordering::Release, Ordering::SeqCst, fence,
};

use skep_isa::MapFlags;

use super::layout::is_lru;
use crate::error::MapError;
use crate::layout::PercpuLayout;
use crate::map_file::MapFile;
use crate::ops::PREFETCH_KEYS;
use crate::percpu::{PercpuAreas, Registered};
use crate::shm::epoch::InsertionEpochs;
use crate::shm::hash::hash;
use crate::shm::lock::{self, Held};
use crate::shm::table::{Element, Geometry, Stripe, TableMemory};
use crate::shm::value::Format;

/// Walks without the lock before a reader takes it.
const TRIES: u32 = 64;
/// Walks of a reader that cannot take the lock because its memory is read-only.
const TRIES_READ_ONLY: u32 = 100_000;

/// What a value is and where it lies: the difference between the kinds of hash.
pub(crate) trait Values {
    /// Overwrites the value of an element that is in the map; `false` when the element must be
    /// replaced for that. Not called where [`Values::is_locked`].
    fn overwrite(&self, table: &Table, reference: u32) -> bool;
    /// Tells whether a value that is in the map is overwritten under its own lock
    /// ([`super::in_place`]).
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
    pub(super) epochs: InsertionEpochs,
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
pub(super) enum Shortage {
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

/// The row of [`InsertionEpochs`] that belongs to an element.
pub(super) const fn row(reference: u32) -> u64 {
    (reference as u64).wrapping_sub(1)
}

/// The bucket word after one more change.
pub(super) const fn changed(head: u64, first: u32) -> u64 {
    ((head >> 32).wrapping_add(1) << 32) | first as u64
}

/// Changes a bucket's version. The lock of its stripe is held.
pub(super) fn renew(bucket: &AtomicU64) {
    let head = bucket.load(Relaxed);
    bucket.store(changed(head, reference(head)), Release);
}

/// Where a locked walk found a key.
pub(super) struct Place<'a> {
    pub(super) found: u32,
    pub(super) element: Element<'a>,
    pub(super) before: Option<Element<'a>>,
}

/// What a look for a key met.
pub(crate) struct Lookup<'a> {
    bucket: &'a AtomicU64,
    head: u64,
    /// 0 when it met none.
    pub(super) found: u32,
}

impl Lookup<'_> {
    /// Tells whether everything that was read since, and before this call, belongs together.
    #[inline(always)]
    pub(super) fn is_whole(&self) -> bool {
        // Pairs with the fence in `write_element`.
        fence(Acquire);
        self.bucket.load(Relaxed) == self.head
    }
}

impl Table {
    pub(crate) fn new(file: MapFile, geometry: Geometry) -> Result<Self, MapError> {
        let short = || MapError::Damaged { what: "the file is too short" };
        let MapFile { def, seed, object, slots, epochs, .. } = file;
        let memory = TableMemory::new(Arc::clone(&object), geometry).ok_or_else(short)?;
        let on_demand = def.flags.has(MapFlags::NO_PREALLOC);
        let areas = match slots {
            None => None,
            Some(slots) => {
                let (at, stride) = geometry.slots();
                let used = if on_demand {
                    Some(Arc::new(
                        TableMemory::new(Arc::clone(&object), geometry).ok_or_else(short)?,
                    ))
                } else {
                    None
                };
                Some(PercpuAreas::open(
                    object,
                    PercpuLayout { at, stride, on_demand },
                    slots.generation(),
                    |slot| slots.needs_memory(slot),
                    used,
                )?)
            }
        };
        Ok(Self {
            memory,
            seed,
            epochs,
            lru: is_lru(def.map_type),
            on_demand,
            areas,
            format: def.value_format(),
        })
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

    /// Finds the element with a key: its reference, 0 when there is none. `size` is the key size,
    /// from who may know it when this is compiled.
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
            // Of its own, so that in the usual case a stripe need not be anywhere in memory.
            self.repair(&self.memory.stripe(stripe.index));
        }
        Some(held)
    }

    #[cold]
    #[inline(never)]
    fn repair(&self, stripe: &Stripe<'_>) {
        // An element may be in nobody's hands now.
        self.memory.leaks().fetch_add(1, Relaxed);
        if self.on_demand {
            // Elements that were never taken may have been said to have memory before a slot's
            // values of them had (`acquire_fresh`).
            stripe.backed.store(stripe.fresh_used.load(Relaxed), SeqCst);
        }
        let mut last = stripe.touched.load(Relaxed).wrapping_sub(1);
        let mut first = last;
        if last >= self.memory.geometry.buckets {
            (first, last) = (stripe.index, self.memory.geometry.buckets.wrapping_sub(1));
        }
        // A link may have changed without its bucket: readers in mid-walk must notice before its
        // element is used again.
        let renew_all = || {
            let mut first = first;
            while first <= last {
                renew(self.memory.bucket(first));
                first = first.wrapping_add(self.memory.geometry.stripes);
            }
        };
        match stripe.redo.load(Acquire) as u32 {
            0 => renew_all(),
            unfinished => self.store_spare(stripe, unfinished, renew_all),
        }
    }

    /// Notes which bucket the holder of a stripe's lock is about to change.
    #[inline(always)]
    pub(super) fn note(&self, stripe: &Stripe<'_>, h: u64) {
        stripe
            .touched
            .store((h & self.memory.geometry.buckets.wrapping_sub(1)).wrapping_add(1), Relaxed);
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

    /// Looks for a key without the lock: what is found counts only if the bucket [did not
    /// change](Lookup::is_whole) until it was used.
    #[inline(always)]
    pub(crate) fn look_up(&self, key: &[u8]) -> Lookup<'_> {
        // SAFETY: the caller checked the length of the key.
        let h = unsafe { self.hash(key.as_ptr()) };
        let bucket = self.memory.bucket(h);
        let head = bucket.load(Acquire);
        // SAFETY: the caller checked the length of the key.
        let found = unsafe { self.walk(head, h, key.as_ptr()) }.map_or(0, |place| place.found);
        Lookup { bucket, head, found }
    }

    /// Asks for the buckets of many keys, then for their first elements, then for the second ones
    /// where the first is another key's: so the processor waits for all of them at once and not
    /// for one after the other.
    pub(crate) fn prefetch_keys(&self, keys: &[u8]) {
        let mut hashes = [0; PREFETCH_KEYS];
        let mut n = 0;
        for (h, key) in hashes.iter_mut().zip(keys.chunks_exact(self.key_size())) {
            // SAFETY: the part is as long as keys are.
            *h = unsafe { self.hash(key.as_ptr()) };
            self.memory.prefetch_bucket(*h & (self.memory.geometry.buckets - 1));
            n += 1;
        }
        let hashes = hashes.get(..n).unwrap_or_default();
        for h in hashes {
            self.memory.prefetch(reference(self.memory.bucket(*h).load(Relaxed)));
        }
        for h in hashes {
            let first = self.memory.element(reference(self.memory.bucket(*h).load(Relaxed)));
            let link = first.map_or(0, |e| e.link().load(Relaxed));
            if link >> 32 != h >> 32 && reference(link) != 0 {
                self.memory.prefetch(reference(link));
            }
        }
    }

    /// Copies the value of a key out.
    pub(crate) fn lookup(
        &self,
        key: &[u8],
        mut copy_value: impl FnMut(u32),
    ) -> Result<(), MapError> {
        // SAFETY: the caller checked the length of the key.
        let h = unsafe { self.hash(key.as_ptr()) };
        let found = self.read(h, |head| {
            // SAFETY: the caller checked the length of the key.
            let place = unsafe { self.walk(head, h, key.as_ptr()) };
            place.map(|place| copy_value(place.found))
        });
        found.ok_or(BUSY)?.ok_or(MapError::NoElement)
    }
}

pub(super) const BUSY: MapError = MapError::Busy { what: "a bucket of the hash" };
