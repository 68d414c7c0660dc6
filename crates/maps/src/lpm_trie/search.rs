//! Reading a trie: without the lock, as long as no node is reused meanwhile.

use std::sync::atomic::{Ordering::Acquire, Ordering::Relaxed};

use super::LpmTrie;
use super::key::Key;
use crate::shm::trie::{NO_VALUE, Node};
use crate::shm::{copy, version};

impl LpmTrie {
    /// # Safety
    /// `key` points to a key of this map.
    #[inline(always)]
    pub(super) unsafe fn key(&self, key: *const u8) -> Key {
        // SAFETY: a key has four bytes and an address.
        unsafe { Key::new(copy::load4(key), key.add(4), self.memory.geometry.data) }
    }

    /// Runs `f` until nothing that it may have read was used anew meanwhile, at last under the
    /// lock.
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
        if let Some(result) = version::read_often(self.memory.version(), writable, &mut f) {
            return Some(result);
        }
        if !writable {
            return None;
        }
        let held = self.lock()?;
        let result = f();
        self.release(held);
        Some(result)
    }

    /// Finds the longest prefix of a key: its node's name, state in the upper half; 0 for none. One
    /// word, as a node by value would go through vector registers, which nobody has saved for a
    /// program.
    #[inline(always)]
    pub(super) fn longest(&self, key: &Key) -> u64 {
        let mut found = 0u64;
        if key.length > self.memory.geometry.bits() {
            return found;
        }
        let nodes = self.memory.nodes;
        let mut link = self.memory.root().load(Acquire);
        // Lengths grow on the way; only damage makes it longer.
        let mut least = 0u32;
        while let Some(node) = self.memory.node_by(&nodes, link) {
            let length = node.length_by(&nodes, link);
            if length > key.length
                || length < least
                // SAFETY: `length` is at most the key's, which is at most the bits of an address, and
                // not below `least`.
                || !unsafe { key.begins_with(&node, least.saturating_sub(1), length) }
            {
                break;
            }
            let state = node.state().load(Acquire);
            let this = u64::from(state) << 32 | u64::from(node.reference);
            // Every other node has no value: no branch would be foreseen.
            found = std::hint::select_unpredictable(state & NO_VALUE == 0, this, found);
            if length == key.length {
                break;
            }
            least = length.wrapping_add(1);
            link = node.child(key.bit(length)).load(Acquire);
        }
        found
    }

    /// As [`LpmTrie::longest`]: node and state.
    #[inline(always)]
    pub(super) fn longest_node(&self, key: &Key) -> Option<(Node<'_>, u32)> {
        let found = self.longest(key);
        let node = self.memory.node(found as u32)?;
        Some((node, (found >> 32) as u32))
    }

    /// Finds where the value of the longest prefix of a key lies, or null.
    #[inline(always)]
    pub(super) fn value_of(&self, key: &Key) -> *mut u8 {
        self.longest_node(key).map_or(std::ptr::null_mut(), |(node, state)| node.value(state))
    }

    #[cold]
    #[inline(never)]
    pub(super) fn value_again(&self, key: &Key) -> *mut u8 {
        self.read_again(|| self.value_of(key)).unwrap_or(std::ptr::null_mut())
    }

    /// Finds the first element at or below a node: the lowest one on the left.
    pub(super) fn first(&self, mut at: u32) -> Option<Node<'_>> {
        let mut left = self.memory.geometry.bits().wrapping_add(2);
        let mut last = None;
        while let Some(node) = self.memory.node(at) {
            last = Some(node);
            let child = node.child(false).load(Acquire);
            at = if child != 0 { child } else { node.child(true).load(Acquire) };
            left = left.checked_sub(1)?;
        }
        last.filter(|n| n.state().load(Acquire) & NO_VALUE == 0)
    }

    /// Finds the element behind a key in the order of walks, whether the key is there or not.
    pub(super) fn after(&self, key: &Key) -> Option<Node<'_>> {
        let mut best = None;
        let mut at = self.memory.root().load(Acquire);
        let mut above = 0u32;
        while let Some(node) = self.memory.node(at) {
            let state = node.state().load(Acquire);
            let length = node.length(state);
            // SAFETY: at most the node's length, which is cut at the bits of an address.
            let common = unsafe { key.common(&node, length.min(key.length)) };
            if above > length {
                break;
            }
            if common < length {
                // The node is not above the key. All of it comes before the key if it is below the
                // key, or left of it.
                if common < key.length && !key.bit(common) {
                    best = self.first(at).or(best);
                }
                break;
            }
            if length == key.length {
                break;
            }
            above = length.wrapping_add(1);
            let bit = key.bit(length);
            let other = node.child(true).load(Acquire);
            if !bit && other != 0 {
                best = self.first(other).or(best);
            } else if state & NO_VALUE == 0 {
                best = Some(node);
            }
            at = node.child(bit).load(Acquire);
        }
        // So walks end whatever the memory holds.
        best.filter(|node| key.is_before(node))
    }

    pub(super) fn read_key(node: &Node<'_>, out: &mut [u8]) {
        if let Some((length, data)) = out.split_first_chunk_mut::<4>() {
            *length = node.length(node.state().load(Relaxed)).to_ne_bytes();
            node.read_data(data);
        }
    }
}
