//! The cache of leaves: a key's leaf without the way through the trie.
//!
//! A bucket names up to twelve leaves, by a byte of their keys' hashes. It may lack some: its state
//! counts those, and changes in progress, in the low byte, which stops at 255 for ever. Above, it
//! counts changes. So where the low byte is 0, and the state stays the same during a look, a key that
//! is not in its bucket is not in the map. The trie is the truth: before a leaf leaves the trie it
//! leaves its bucket, and the bucket is told after the trie. A writer's death on the way leaves the
//! count too high, which costs time only.

use std::sync::atomic::{
    AtomicU32, Ordering::AcqRel, Ordering::Acquire, Ordering::Relaxed, Ordering::Release, fence,
};

use super::QpTrie;
use super::key::Key;
use crate::shm::copy;
use crate::shm::qp::{CACHED, LEAF, QpMemory};

/// What a bucket says of a key.
pub(super) enum Cached {
    /// Its leaf.
    Leaf(*mut u8),
    /// It is in no leaf.
    Nothing,
    /// The trie must be asked.
    Unknown,
}

/// A bucket that is told that a key comes or goes.
#[derive(Clone, Copy)]
pub(super) struct Bucket {
    at: *mut u8,
    tag: u8,
}

const ONES: u64 = 0x0101_0101_0101_0101;
const TOPS: u64 = 0x8080_8080_8080_8080;
/// Of the second word of a bucket, the bytes that are tags.
const HIGH_TAGS: u64 = 0xffff_ffff;

/// What a bucket's state counts changes in.
const ONE_CHANGE: u32 = 0x100;
/// Keys that are only in the trie, and changes in progress.
const OMITTED: u32 = 0xff;

fn change(state: &AtomicU32, by: i8) {
    let mut now = state.load(Relaxed);
    loop {
        let omitted = match (now & OMITTED) as u8 {
            u8::MAX => u8::MAX,
            omitted => omitted.saturating_add_signed(by),
        };
        let next = (now.wrapping_add(ONE_CHANGE) & !OMITTED) | u32::from(omitted);
        match state.compare_exchange_weak(now, next, AcqRel, Relaxed) {
            Ok(_) => return,
            Err(other) => now = other,
        }
    }
}

/// Takes the number of a leaf out of [`QpTrie::marks`].
#[inline(always)]
fn next_mark(marks: &mut u64) -> Option<u64> {
    let mark = u64::from(marks.trailing_zeros());
    *marks &= marks.wrapping_sub(1);
    (mark < 64).then_some((mark >> 3).wrapping_add((mark & 7) << 3))
}

impl QpTrie {
    #[inline(always)]
    pub(super) fn has_cache(&self) -> bool {
        self.memory.geometry.buckets != 0
    }

    /// Looks a key up, by its hash.
    #[inline(always)]
    pub(super) fn cached(&self, key: &Key, hash: u64) -> Cached {
        let bucket = self.memory.bucket(hash);
        // SAFETY: the map has a cache.
        let state = unsafe { self.memory.bucket_state(bucket) };
        let before = state.load(Acquire);
        let mut found = self.marks(bucket, hash);
        if let Some(i) = next_mark(&mut found) {
            if let Some(leaf) = self.cached_leaf(bucket, i, key) {
                return Cached::Leaf(leaf);
            }
            if found != 0
                && let Some(leaf) = self.cached_in_rest(bucket, found, key)
            {
                return Cached::Leaf(leaf);
            }
        }
        fence(Acquire);
        if before & OMITTED == 0 && state.load(Relaxed) == before {
            Cached::Nothing
        } else {
            Cached::Unknown
        }
    }

    /// Returns a bucket's leaf if it has the key.
    #[inline(always)]
    fn cached_leaf(&self, bucket: *mut u8, i: u64, key: &Key) -> Option<*mut u8> {
        // SAFETY: one of the bucket's leaves.
        let reference = unsafe { self.memory.cached(bucket, i) }.load(Acquire);
        if reference & LEAF == 0 {
            return None;
        }
        self.memory.block(reference).filter(|leaf| self.key_of(*leaf).is(key))
    }

    /// As [`QpTrie::cached_leaf`], for all that are marked. Apart, because one lookup in twenty comes
    /// here.
    #[cold]
    #[inline(never)]
    fn cached_in_rest(&self, bucket: *mut u8, mut found: u64, key: &Key) -> Option<*mut u8> {
        while let Some(i) = next_mark(&mut found) {
            if let Some(leaf) = self.cached_leaf(bucket, i, key) {
                return Some(leaf);
            }
        }
        None
    }

    /// Marks the leaves of a bucket whose tags are that of a hash, and rarely one too many, for
    /// [`next_mark`]: that with the number `i` by bit `i / 8` of byte `i % 8`. All twelve tags at
    /// once, since it cannot be predicted in which half the right one is.
    #[inline(always)]
    fn marks(&self, bucket: *const u8, hash: u64) -> u64 {
        let want = (hash & 0xff).wrapping_mul(ONES);
        // SAFETY: a bucket has 64 bytes, and begins with its tags.
        let (low, high) = unsafe { (copy::load8(bucket), copy::load8(bucket.add(8))) };
        let equal = |tags: u64| {
            let differ = tags ^ want;
            differ.wrapping_sub(ONES) & !differ & TOPS
        };
        equal(low) >> 7 | (equal(high) & HIGH_TAGS) >> 6
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
        let mut found = self.marks(bucket, hash);
        while let Some(i) = next_mark(&mut found) {
            // SAFETY: one of the bucket's leaves; the map has a cache.
            self.memory.prefetch_block(unsafe { self.memory.cached(bucket, i) }.load(Relaxed));
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
        change(unsafe { self.memory.bucket_state(at) }, 1);
        Some(Bucket { at, tag: hash as u8 })
    }

    /// The trie did not change.
    #[inline(always)]
    pub(super) fn close_bucket(&self, bucket: Option<Bucket>) {
        if let Some(bucket) = bucket {
            // SAFETY: the map has a cache.
            change(unsafe { self.memory.bucket_state(bucket.at) }, -1);
        }
    }

    /// After the trie has a leaf: names it, if there is room.
    #[inline(always)]
    pub(super) fn cache_leaf(&self, bucket: Option<Bucket>, leaf: u32) {
        let Some(bucket) = bucket else { return };
        let mut i = 0u64;
        while i < CACHED {
            // SAFETY: one of the bucket's leaves.
            let slot = unsafe { self.memory.cached(bucket.at, i) };
            if slot.load(Relaxed) == 0 && slot.compare_exchange(0, leaf, AcqRel, Relaxed).is_ok() {
                // SAFETY: the tag of that leaf.
                unsafe { self.memory.tag(bucket.at, i) }.store(bucket.tag, Release);
                self.close_bucket(Some(bucket));
                return;
            }
            i = i.wrapping_add(1);
        }
    }

    /// Before a leaf leaves the trie: names it no more. Tells whether it was named.
    #[inline(always)]
    pub(super) fn uncache_leaf(&self, bucket: Option<Bucket>, leaf: u32) -> bool {
        let Some(bucket) = bucket else { return false };
        let mut i = 0u64;
        while i < CACHED {
            // SAFETY: one of the bucket's leaves.
            let slot = unsafe { self.memory.cached(bucket.at, i) };
            if slot.load(Relaxed) == leaf {
                slot.store(0, Release);
                return true;
            }
            i = i.wrapping_add(1);
        }
        false
    }

    /// After a leaf left the trie for good.
    #[inline(always)]
    pub(super) fn forget_leaf(&self, bucket: Option<Bucket>, was_cached: bool) {
        self.close_bucket(bucket);
        if !was_cached {
            // It was one of those that only the trie had.
            self.close_bucket(bucket);
        }
    }
}
