//! The cache of leaves: a key's leaf without the way through the trie.
//!
//! A bucket names up to twelve leaves, by a byte of their keys' hashes. Where it is full, the other
//! bucket of its pair, in the next cache line, takes leaves of its keys, and where that is full, too,
//! only the trie has them. The bucket's state counts both kinds, and changes in progress among the
//! second; their largest numbers are for ever. Above, it counts changes. So a key that is in neither
//! bucket is not in the map, where none is only in the trie and the state stays the same during a
//! look. The trie is the truth: before a leaf leaves the trie it leaves its bucket, and the bucket is
//! told after the trie. A writer's death on the way leaves a number too high, which costs time only.

use std::sync::atomic::{
    AtomicU32, Ordering::AcqRel, Ordering::Acquire, Ordering::Relaxed, Ordering::Release, fence,
};

use super::QpTrie;
use super::key::Key;
use crate::shm::qp::{CACHED, LEAF, QpMemory};
use crate::shm::tags::{General, Registers};

/// Where the cache has a key of a bucket.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum Cached {
    /// In its own bucket.
    Here,
    /// In the other bucket of the pair.
    Beside,
    /// Nowhere: only the trie has it.
    Nowhere,
    /// The trie does not have it, either.
    Gone,
}

/// A bucket that is told that a key comes or goes.
#[derive(Clone, Copy)]
pub(super) struct Bucket {
    at: *mut u8,
    tag: u8,
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

fn change(state: &AtomicU32, omitted: i32, beside: i32) {
    let mut now = state.load(Relaxed);
    loop {
        let next = add(add(now, OMITTED, omitted), BESIDE, beside).wrapping_add(ONE_CHANGE);
        match state.compare_exchange_weak(now, next, AcqRel, Relaxed) {
            Ok(_) => return,
            Err(other) => now = other,
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
        let reference = unsafe { self.memory.cached(bucket, i) }.load(Acquire);
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

    /// Asks for the leaf of a key, if the cache has it.
    #[inline(always)]
    pub(super) fn prefetch_cached(&self, hash: u64) {
        let bucket = self.memory.bucket(hash);
        let mut found = self.marks::<General>(bucket, hash);
        while found != 0 {
            let i = found.trailing_zeros();
            // SAFETY: one of the bucket's leaves; the map has a cache.
            self.memory.prefetch_block(unsafe { self.memory.cached(bucket, i) }.load(Relaxed));
            found &= found.wrapping_sub(1);
        }
    }

    /// Before the trie changes: from here on readers ask it.
    #[inline(always)]
    pub(super) fn open_bucket(&self, hash: u64) -> Option<Bucket> {
        if !self.has_cache() {
            return None;
        }
        let at = self.memory.bucket(hash);
        // SAFETY: the map has a cache.
        change(unsafe { self.memory.bucket_state(at) }, 1, 0);
        Some(Bucket { at, tag: hash as u8 })
    }

    /// After the trie changed: where the cache had the key before, and has it now.
    #[inline(always)]
    pub(super) fn close_bucket(&self, bucket: Option<Bucket>, before: Cached, now: Cached) {
        if let Some(bucket) = bucket {
            let number = |place| i32::from(now == place) - i32::from(before == place);
            // SAFETY: the map has a cache.
            let state = unsafe { self.memory.bucket_state(bucket.at) };
            change(state, number(Cached::Nowhere).wrapping_sub(1), number(Cached::Beside));
        }
    }

    /// After the trie has a leaf: names it, if there is room.
    #[inline(always)]
    pub(super) fn cache_leaf(&self, bucket: Option<Bucket>, leaf: u32) -> Cached {
        let Some(bucket) = bucket else { return Cached::Nowhere };
        if self.replace(bucket.at, 0, leaf, bucket.tag) {
            Cached::Here
        } else if self.replace(self.memory.bucket_beside(bucket.at), 0, leaf, bucket.tag) {
            Cached::Beside
        } else {
            Cached::Nowhere
        }
    }

    /// Before a leaf leaves the trie: names it no more.
    #[inline(always)]
    pub(super) fn uncache_leaf(&self, bucket: Option<Bucket>, leaf: u32) -> Cached {
        let Some(bucket) = bucket else { return Cached::Nowhere };
        if self.replace(bucket.at, leaf, 0, bucket.tag) {
            Cached::Here
        } else if self.replace(self.memory.bucket_beside(bucket.at), leaf, 0, bucket.tag) {
            Cached::Beside
        } else {
            Cached::Nowhere
        }
    }

    /// Puts a leaf, or 0, in the place of another in a bucket. A leaf is in at most one place, and who
    /// puts it in or takes it out has the node above it.
    #[inline(never)]
    fn replace(&self, bucket: *mut u8, old: u32, new: u32, tag: u8) -> bool {
        // All of them: where it is cannot be foreseen, and a wrong guess takes longer.
        let (mut found, mut i) = (0u32, 0u32);
        while i < CACHED {
            // SAFETY: one of the bucket's leaves.
            let leaf = unsafe { self.memory.cached(bucket, i) }.load(Relaxed);
            found |= u32::from(leaf == old) << i;
            i = i.wrapping_add(1);
        }
        while found != 0 {
            let i = found.trailing_zeros();
            // SAFETY: one of the bucket's leaves.
            let slot = unsafe { self.memory.cached(bucket, i) };
            if slot.compare_exchange(old, new, AcqRel, Relaxed).is_ok() {
                // The tag of a place that is given up is for who takes it next.
                if new != 0 {
                    // SAFETY: the tag of that leaf.
                    unsafe { self.memory.tag(bucket, i) }.store(tag, Release);
                }
                return true;
            }
            found &= found.wrapping_sub(1);
        }
        false
    }
}
