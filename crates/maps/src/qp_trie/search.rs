//! Reading: without locks, as long as no block is used again meanwhile.

use std::sync::atomic::Ordering::Acquire;

use super::QpTrie;
use super::key::Key;
use super::node::Node;
use crate::ops::PREFETCH_KEYS;
use crate::shm::qp::LEAF;
use crate::shm::tags::{General, OfUsers, Registers};
use crate::shm::version;

/// Of a leaf or node two cache lines are asked for: those of its beginning and of this byte.
const LAST: usize = 40;

impl QpTrie {
    /// Runs `f` until no block that it may have read was used again meanwhile, at last while no
    /// writer is at work.
    #[inline(always)]
    pub(super) fn read<T>(&self, mut f: impl FnMut() -> T) -> Option<T> {
        match version::read_once(self.memory.version(), &mut f) {
            None => self.read_again(f),
            found => found,
        }
    }

    #[cold]
    #[inline(never)]
    pub(super) fn read_again<T>(&self, mut f: impl FnMut() -> T) -> Option<T> {
        let writable = self.memory.writable();
        self.memory.map_replaced_again();
        if let Some(result) = version::read_often(self.memory.version(), writable, &mut f) {
            return Some(result);
        }
        if !writable {
            return None;
        }
        self.read_alone(f)
    }

    /// Reads while this thread has all heaps, without which no block is used again.
    #[cold]
    #[inline(never)]
    fn read_alone<T>(&self, f: impl FnOnce() -> T) -> Option<T> {
        let mine = self.lock_heaps()?;
        // A heap may have come to be meanwhile.
        let result = version::read_once(self.memory.version(), f);
        self.unlock_heaps(mine);
        result
    }

    #[inline(always)]
    pub(super) fn key_of(&self, leaf: *const u8) -> Key {
        let (at, len) = self.memory.leaf_key(leaf);
        // SAFETY: a leaf and its key can be read at any address of the arena, as long as the map is
        // mapped.
        unsafe { Key::new(at, len) }
    }

    /// Tells whether a leaf has a key, which is not longer than keys may be.
    #[inline(always)]
    pub(super) fn has_key(&self, leaf: *const u8, key: &Key) -> bool {
        match self.memory.leaf_key_of(leaf, key.len) {
            // SAFETY: a leaf and its key can be read at any address of the arena, as long as the map
            // is mapped.
            Some(at) => key.same_bytes(&unsafe { Key::new(at, key.len) }),
            None => false,
        }
    }

    /// Finds the leaf of a key, or null.
    #[inline(always)]
    pub(super) fn find(&self, key: &Key) -> *mut u8 {
        self.find_with::<General>(key)
    }

    /// As [`QpTrie::find`], with more registers.
    #[inline(always)]
    pub(super) fn find_with<R: Registers>(&self, key: &Key) -> *mut u8 {
        if key.len as u64 > self.memory.geometry.max_key {
            return std::ptr::null_mut();
        }
        if self.has_cache() {
            self.find_hashed::<R>(key, key.hash(&self.seeds))
        } else {
            self.find_in_trie(*key)
        }
    }

    /// Finds the leaf of a key in the trie, or null. A function of its own: lookups that find the leaf
    /// in the cache then need fewer registers.
    #[inline(never)]
    pub(super) fn find_in_trie(&self, key: Key) -> *mut u8 {
        let mut reference = self.memory.root().load(Acquire);
        // Offsets grow on the way; only damage makes it longer.
        let mut least = 0usize;
        while reference & LEAF == 0 {
            let Some(at) = self.memory.node_block(reference) else { return std::ptr::null_mut() };
            // Many nodes lie in two cache lines, and both are needed.
            let node = Node::at(at);
            let offset = node.offset();
            if offset < least {
                return std::ptr::null_mut();
            }
            least = offset.wrapping_add(1);
            let byte = node.way(&key);
            if byte == 0 {
                return std::ptr::null_mut();
            }
            // SAFETY: it is the way.
            reference = unsafe { node.child_on(byte) }.load(Acquire);
        }
        match self.memory.block(reference) {
            Some(leaf) if self.has_key(leaf, &key) => leaf,
            _ => std::ptr::null_mut(),
        }
    }

    /// Finds the leaves of several keys, or null; while one's memory is waited for, the others go on.
    pub(super) fn find_group(&self, keys: &[Key]) -> [*mut u8; PREFETCH_KEYS] {
        let mut leaves = [std::ptr::null_mut(); PREFETCH_KEYS];
        let keys = keys.get(..PREFETCH_KEYS).unwrap_or(keys);
        if self.has_cache() {
            // A key's hash, and the leaf that it is likely to be in.
            let mut ways = [(0u64, 0u32); PREFETCH_KEYS];
            for ((hash, _), key) in ways.iter_mut().zip(keys) {
                *hash = key.hash(&self.seeds);
                self.prefetch_bucket(*hash);
            }
            let mut beside = 0u32;
            for (i, ((hash, likely), key)) in ways.iter_mut().zip(keys).enumerate() {
                *likely = self.prefetch_likely(key, *hash);
                beside |= u32::from(*likely == 0) << i;
            }
            while beside != 0 {
                let i = beside.trailing_zeros() as usize % PREFETCH_KEYS;
                if let (Some(key), (hash, likely)) = (keys.get(i), &mut ways[i]) {
                    *likely = self.prefetch_beside(key, *hash);
                }
                beside &= beside - 1;
            }
            let each = leaves.iter_mut().zip(&ways).zip(keys);
            for ((leaf, (hash, likely)), key) in each {
                *leaf = match self.leaf_with(*likely, key) {
                    Some(found) => found,
                    None => self.find_hashed::<OfUsers>(key, *hash),
                };
            }
            return leaves;
        }
        let ends = self.go_down_together(keys);
        for ((leaf, end), key) in leaves.iter_mut().zip(ends).zip(keys) {
            if let Some(block) = self.memory.block_at(end)
                && self.has_key(block, key)
            {
                *leaf = block;
            }
        }
        leaves
    }

    /// Finds where the ways of keys through the trie end, a step of each in turn: the memory of one
    /// comes while the others take theirs. Returns the places of leaves in the arena, and for a way
    /// that leads nowhere one that is no block's.
    ///
    /// How long a way is cannot be foreseen, and a wrong guess takes longer than some steps: so no
    /// branch depends on which are at their ends.
    #[inline(always)]
    fn go_down_together(&self, keys: &[Key]) -> [u64; PREFETCH_KEYS] {
        /// A leaf that is no block.
        const NOWHERE: u32 = LEAF;
        let root = self.memory.root().load(Acquire);
        let begin = self.memory.arena_offset(root);
        let mut ends = [begin; PREFETCH_KEYS];
        // Of those that are at a node: where that is, and the number of the key.
        let mut ways: [(u64, usize); PREFETCH_KEYS] = std::array::from_fn(|i| (begin, i));
        let mut going = if root & LEAF == 0 { keys.len().min(PREFETCH_KEYS) } else { 0 };
        // Offsets grow on the way; only damage makes it longer.
        let mut steps = self.memory.geometry.max_key + 2;
        while going != 0 && steps != 0 {
            let mut still = 0;
            for i in 0..going {
                let (place, number) = ways[i % PREFETCH_KEYS];
                let way = self.memory.block_at(place).map(|block| {
                    let node = Node::at(block);
                    (node, node.way(&keys[number]))
                });
                let next = match way {
                    None | Some((_, 0)) => NOWHERE,
                    // SAFETY: it is the way.
                    Some((node, way)) => unsafe { node.child_on(way) }.load(Acquire),
                };
                let place = self.memory.arena_offset(next);
                self.memory.prefetch_place(place, LAST);
                ends[number % PREFETCH_KEYS] = place;
                ways[still % PREFETCH_KEYS] = (place, number);
                still += usize::from(next & LEAF == 0);
            }
            going = still;
            steps -= 1;
        }
        ways.iter().take(going).for_each(|(_, number)| ends[number % PREFETCH_KEYS] = 0);
        ends
    }

    #[cold]
    #[inline(never)]
    pub(super) fn find_again(&self, key: &Key) -> *mut u8 {
        self.read_again(|| self.find(key)).unwrap_or(std::ptr::null_mut())
    }

    /// Finds a leaf that has as much in common with a key as any below `reference` does: it follows
    /// the key, and where that leads nowhere, the first child. `None` for damage, or when somebody
    /// changes the trie.
    #[inline(never)]
    pub(super) fn nearest_leaf(&self, mut reference: u32, key: &Key) -> Option<*mut u8> {
        let mut least = 0usize;
        while let Some(at) = self.memory.block(reference) {
            if reference & LEAF != 0 {
                return Some(at);
            }
            let node = Node::at(at);
            let offset = node.offset();
            if offset < least {
                break;
            }
            least = offset.wrapping_add(1);
            let next = node.step(key).map_or(0, |i| node.child(i).load(Acquire));
            reference = if next != 0 { next } else { node.live_from(0)?.1 };
        }
        None
    }

    /// Finds the leaf with the longest key that `key` begins with.
    pub(super) fn longest_prefix(&self, key: &Key) -> Option<*mut u8> {
        // All keys that `key` begins with are on the way to it: at the end of a node, or the leaf.
        let mut reference = self.memory.root().load(Acquire);
        let mut least = 0usize;
        let mut best = None;
        let starts = |leaf: *mut u8| {
            let found = self.key_of(leaf);
            found.common(key) == found.len
        };
        while let Some(at) = self.memory.block(reference) {
            if reference & LEAF != 0 {
                return if starts(at) { Some(at) } else { best };
            }
            let node = Node::at(at);
            let offset = node.offset();
            if offset < least || offset > key.len {
                break;
            }
            least = offset.wrapping_add(1);
            if node.has_end() {
                let end = node.child(0).load(Acquire);
                match self.memory.block(end) {
                    Some(leaf) if end & LEAF != 0 && starts(leaf) => best = Some(leaf),
                    None if end == 0 => {}
                    // What is left of the way begins with other bytes.
                    _ => break,
                }
            }
            let Some(byte) = key.byte(offset) else { break };
            let Some(i) = node.find(Some(byte)) else { break };
            reference = node.child(i).load(Acquire);
        }
        best
    }
}
