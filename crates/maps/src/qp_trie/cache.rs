//! The cache of leaves: a key's leaf without the way through the trie.
//!
//! A bucket names up to twelve leaves, by a byte of their keys' hashes. Where it is full, the other
//! bucket of its pair, in the next cache line, takes leaves of its keys, and where that is full, too,
//! only the trie has them. The bucket's state counts both kinds, and a change in progress among the
//! second; their largest numbers are for ever. Above, it counts changes. So a key that is in neither
//! bucket is not in the map, where none is only in the trie and the state stays the same during a
//! look. The trie is the truth: before a leaf leaves the trie it leaves its bucket, and the bucket is
//! told after the trie. A pair has a lock, and what becomes of it is among the stores of the change
//! ([`super::heap`]), so it is done when they are, also after a writer's death.

use std::sync::atomic::{Ordering::Acquire, Ordering::Relaxed, fence};

use super::QpTrie;
use super::heap::{Locks, Seat, Store};
use super::key::Key;
use crate::shm::qp::{CACHED, LEAF, QpMemory, WordAt};
use crate::shm::tags::{General, OfUsers, Registers};

/// What a change does to the cache: all of it under the lock of the pair, and with the change's other
/// stores. What is not needed goes where it is of no use.
#[derive(Clone, Copy)]
pub(super) struct Recached {
    pub(super) opened: Store,
    /// Only where a leaf leaves the trie, or comes into it.
    pub(super) leaves: Option<Store>,
    pub(super) comes: Option<Store>,
    pub(super) tag: Option<Store>,
    pub(super) closed: Store,
}

/// Of a bucket's state: keys that are only in the trie, and changes in progress. The largest number
/// is forever.
const OMITTED: u32 = 0xff;
/// Keys that are in the other bucket of the pair; likewise.
const BESIDE: u32 = 0xf00;
/// What changes are counted in.
const ONE_CHANGE: u32 = 0x1000;

/// Adds to one of the numbers in a state.
#[inline(always)]
fn add(state: u32, field: u32, by: i32) -> u32 {
    let shift = field.trailing_zeros();
    match state & field {
        all if all == field => state,
        now => {
            let next = (now >> shift).saturating_add_signed(by).min(field >> shift);
            state & !field | next << shift
        }
    }
}

impl QpTrie {
    #[inline(always)]
    pub(super) fn has_cache(&self) -> bool {
        self.memory.geometry.buckets != 0
    }

    /// Finds the leaf of a key by its hash, or null. What most lookups need comes first, and the rest
    /// is a function of its own, so that they can do with few registers.
    #[inline(always)]
    pub(super) fn find_hashed<R: Registers>(&self, key: &Key, hash: u64) -> *mut u8 {
        let bucket = self.memory.bucket(hash);
        // SAFETY: the map has a cache.
        let state = unsafe { self.memory.bucket_state(bucket) };
        let before = state.load(Acquire);
        let found = self.marks::<R>(bucket, hash);
        if found != 0 {
            if let Some(leaf) = self.cached_leaf(bucket, found.trailing_zeros(), key) {
                return leaf;
            }
        } else if before & (OMITTED | BESIDE) == 0 {
            fence(Acquire);
            if state.load(Relaxed) == before {
                return std::ptr::null_mut();
            }
        }
        self.find_with_care(*key, hash)
    }

    /// As [`QpTrie::find_hashed`], where the bucket does not have all its keys, or changes.
    #[inline(never)]
    fn find_with_care(&self, key: Key, hash: u64) -> *mut u8 {
        let bucket = self.memory.bucket(hash);
        // SAFETY: the map has a cache.
        let state = unsafe { self.memory.bucket_state(bucket) };
        // Pairs with who puts a key in: the state tells of one beside after that is there.
        let before = state.load(Acquire);
        if let Some(leaf) = self.cached_in(bucket, &key, hash) {
            return leaf;
        }
        if before & BESIDE != 0
            && let Some(leaf) = self.cached_in(self.memory.bucket_beside(bucket), &key, hash)
        {
            return leaf;
        }
        fence(Acquire);
        if before & OMITTED == 0 && state.load(Relaxed) == before {
            return std::ptr::null_mut();
        }
        self.find_in_trie(key)
    }

    /// Returns the leaf of a key, if a bucket has it.
    #[inline(always)]
    fn cached_in(&self, bucket: *mut u8, key: &Key, hash: u64) -> Option<*mut u8> {
        let mut found = self.marks::<General>(bucket, hash);
        while found != 0 {
            if let Some(leaf) = self.cached_leaf(bucket, found.trailing_zeros(), key) {
                return Some(leaf);
            }
            found &= found.wrapping_sub(1);
        }
        None
    }

    /// Returns a bucket's leaf if it has the key.
    #[inline(always)]
    fn cached_leaf(&self, bucket: *mut u8, i: u32, key: &Key) -> Option<*mut u8> {
        // SAFETY: one of the bucket's leaves.
        self.leaf_with(unsafe { self.memory.cached(bucket, i) }.load(Acquire), key)
    }

    /// Returns the leaf that a bucket named if it has the key.
    #[inline(always)]
    pub(super) fn leaf_with(&self, reference: u32, key: &Key) -> Option<*mut u8> {
        if reference & LEAF == 0 {
            return None;
        }
        let leaf = self.memory.block(reference)?;
        if self.has_key(leaf, key) { Some(leaf) } else { None }
    }

    /// Marks the leaves of a bucket whose tags are that of a hash, and rarely one too many.
    #[inline(always)]
    fn marks<R: Registers>(&self, bucket: *const u8, hash: u64) -> u32 {
        // SAFETY: a bucket has 64 bytes, and begins with its tags.
        unsafe { R::equal(bucket, hash as u8) }
    }

    /// Asks for the cache line that a lookup of a key begins with.
    #[inline(always)]
    pub(super) fn prefetch_bucket(&self, hash: u64) {
        QpMemory::prefetch(self.memory.bucket(hash));
    }

    /// Returns the first leaf that the bucket of a key names for its tag, or 0, and asks for its
    /// memory: from its beginning to the end of a key as long.
    #[inline(always)]
    pub(super) fn prefetch_likely(&self, key: &Key, hash: u64) -> u32 {
        let bucket = self.memory.bucket(hash);
        let found = self.marks::<OfUsers>(bucket, hash);
        if found == 0 {
            QpMemory::prefetch(self.memory.bucket_beside(bucket));
            return 0;
        }
        self.prefetch_named(bucket, found, key)
    }

    /// As [`QpTrie::prefetch_likely`], of the other bucket of the pair, if it has any key of the first.
    #[inline(always)]
    pub(super) fn prefetch_beside(&self, key: &Key, hash: u64) -> u32 {
        let bucket = self.memory.bucket(hash);
        // SAFETY: the map has a cache.
        if unsafe { self.memory.bucket_state(bucket) }.load(Acquire) & BESIDE == 0 {
            return 0;
        }
        let beside = self.memory.bucket_beside(bucket);
        let found = self.marks::<OfUsers>(beside, hash);
        if found == 0 { 0 } else { self.prefetch_named(beside, found, key) }
    }

    #[inline(always)]
    fn prefetch_named(&self, bucket: *mut u8, found: u32, key: &Key) -> u32 {
        // SAFETY: one of the bucket's leaves.
        let cached = unsafe { self.memory.cached(bucket, found.trailing_zeros()) };
        let reference = cached.load(Acquire);
        self.memory.prefetch_leaf(reference, key.len);
        reference
    }

    /// Asks for the leaf that the bucket of a hash names first for its tag, with a key of a length.
    /// Nothing here depends on whether there is one: it would have to be waited for.
    #[inline(always)]
    pub(super) fn prefetch_cached(&self, hash: u64, key_len: usize) {
        let bucket = self.memory.bucket(hash);
        let i = self.marks::<General>(bucket, hash).trailing_zeros().min(CACHED - 1);
        // SAFETY: one of the bucket's leaves; the map has a cache.
        let leaf = unsafe { self.memory.cached(bucket, i) }.load(Relaxed);
        self.memory.prefetch_leaf(leaf, key_len);
    }

    /// Plans what becomes of the buckets of a hash, whose pair is locked, when the leaf `gone` leaves
    /// the trie and `comes` gets into it; 0 is none.
    #[inline(always)]
    pub(super) fn recache(&self, seat: &Seat, hash: u64, gone: u32, comes: u32) -> Recached {
        let none = (self.memory.no_use_at(seat.heap), 0);
        let (leaves, comes_in) = ((gone != 0).then_some(none), (comes != 0).then_some(none));
        let mut plan =
            Recached { opened: none, leaves, comes: comes_in, tag: comes_in, closed: none };
        if !self.has_cache() {
            return plan;
        }
        let bucket = self.memory.bucket(hash);
        let state_at = self.memory.bucket_state_at(bucket);
        let state = self.memory.at32(state_at).load(Relaxed);
        let opened = add(state, OMITTED, 1).wrapping_add(ONE_CHANGE);
        plan.opened = (state_at, opened);
        // Counted when it is done: the change itself is over.
        let (mut omitted, mut beside) = (-1i32, 0);
        let mut taken = None;
        if gone != 0 {
            match self.slot_of(bucket, hash, gone) {
                Some((leaf_at, is_beside)) => {
                    plan.leaves = Some((leaf_at, 0));
                    taken = Some(leaf_at);
                    beside = -i32::from(is_beside && comes == 0);
                }
                None => omitted = -2,
            }
        }
        if comes != 0 {
            if let Some(leaf_at) = taken {
                // It has the same tag.
                plan.comes = Some((leaf_at, comes));
            } else if let Some((i, at)) = self.free_slot(bucket) {
                let (leaf_at, tag_at) = self.memory.cached_at(at, i);
                plan.comes = Some((leaf_at, comes));
                let shift = i.wrapping_mul(8) & 31;
                let tags = self.memory.at32(tag_at).load(Relaxed) & !(0xff << shift);
                plan.tag = Some((tag_at, tags | (hash as u32 & 0xff) << shift));
                beside = i32::from(at != bucket);
            } else {
                omitted = omitted.wrapping_add(1);
            }
        }
        let closed = add(add(opened, OMITTED, omitted), BESIDE, beside).wrapping_add(ONE_CHANGE);
        plan.closed = (state_at, closed);
        plan
    }

    /// Finds where a pair names a leaf, and whether it does so in the other bucket. The pair is
    /// locked.
    #[inline(always)]
    fn slot_of(&self, bucket: *mut u8, hash: u64, leaf: u32) -> Option<(WordAt, bool)> {
        match self.slot_in(bucket, hash, leaf) {
            Some(at) => Some((at, false)),
            None => Some((self.slot_in(self.memory.bucket_beside(bucket), hash, leaf)?, true)),
        }
    }

    #[inline(always)]
    fn slot_in(&self, bucket: *mut u8, hash: u64, leaf: u32) -> Option<WordAt> {
        let mut found = self.marks::<General>(bucket, hash);
        while found != 0 {
            let (at, _) = self.memory.cached_at(bucket, found.trailing_zeros());
            if self.memory.at32(at).load(Relaxed) == leaf {
                return Some(at);
            }
            found &= found.wrapping_sub(1);
        }
        None
    }

    /// Finds a place in a pair that is locked, rather in its own bucket.
    #[inline(always)]
    fn free_slot(&self, bucket: *mut u8) -> Option<(u32, *mut u8)> {
        let first = self.free_in(bucket);
        if first != 0 {
            return Some((first.trailing_zeros(), bucket));
        }
        let beside = self.memory.bucket_beside(bucket);
        let second = self.free_in(beside);
        (second != 0).then(|| (second.trailing_zeros(), beside))
    }

    /// Marks the places of a bucket that name no leaf.
    #[inline(never)]
    fn free_in(&self, bucket: *mut u8) -> u32 {
        // All of them: where one is cannot be foreseen, and a wrong guess takes longer.
        let (mut found, mut i) = (0u32, 0u32);
        while i < CACHED {
            // SAFETY: one of the bucket's leaves.
            let leaf = unsafe { self.memory.cached(bucket, i) }.load(Relaxed);
            found |= u32::from(leaf == 0) << i;
            i = i.wrapping_add(1);
        }
        found
    }

    /// The lock of the buckets of a hash.
    #[inline(always)]
    pub(super) fn locks_of_hash(&self, hash: u64) -> Locks {
        if self.has_cache() {
            Locks::of_pair(self.memory.pair(self.memory.bucket(hash)))
        } else {
            Locks::NONE
        }
    }
}
