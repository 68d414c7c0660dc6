//! Walks of programs, whose callbacks may change what they walk through.
//!
//! A walk remembers the leaf that it met last, and its key. As long as the version stays the same
//! the leaf has that key, though it may be deleted. Then it may be another's, also because of what
//! the callback itself did: a value of more than eight bytes is replaced with its leaf. So the walk
//! goes on behind the key.
//!
//! While the version stays the same, nodes are nodes, and the walk also remembers its way to the
//! leaf. A node that is not obsolete is in the trie, so the next of its children leads to the next
//! leaf; where the walk goes on in a node above, that one must still lead to the one below. Where
//! somebody replaced what is needed, the next leaf is looked for from the root.

use std::sync::atomic::{Ordering::Acquire, fence};

use super::QpTrie;
use super::key::Key;
use super::node::Node;
use crate::dump::position::Position;
use crate::ops::LastKey;
use crate::shm::qp::LEAF;

/// What a remembered way leads to.
enum Way {
    Next(*mut u8),
    /// The last element was the last one.
    End,
    /// It is not known, or not the way any more.
    Lost,
}

/// The part of the version that is in a position.
const VERSION: u64 = 0xffff_ffff;

impl QpTrie {
    /// Finds the element behind a place. Safe on the event path.
    pub(super) fn step_of_walk(&self, at: &mut Position, last: &mut LastKey) -> Option<*mut u8> {
        let version = self.memory.version().load(Acquire) & VERSION;
        let value = if last.len() != 0 && at.major >> 32 == version {
            match self.step_on_way(at, last, version) {
                Way::Next(value) => value,
                Way::End => return None,
                Way::Lost => {
                    last.cut(0);
                    let value = self.prog_step(at)?;
                    self.remember_way(last, &self.key_of(value));
                    value
                }
            }
        } else {
            last.cut(0);
            if last.len() == 0 { self.prog_step(at)? } else { self.step_behind(at, last)? }
        };
        let key = self.key_of(value);
        // SAFETY: the key lies in the map's memory.
        unsafe { last.keep(key.at, key.len) };
        fence(Acquire);
        if self.memory.version().load(Acquire) & VERSION != at.major >> 32 {
            // Another thread may have written to the leaf: its place has to do.
            last.forget();
        }
        Some(value)
    }

    /// Finds the element behind a place by the way to that.
    fn step_on_way(&self, at: &mut Position, last: &mut LastKey, version: u64) -> Way {
        if last.depth() == 0 {
            return Way::Lost;
        }
        let Some(leaf) = self.next_on_way(last) else { return Way::Lost };
        fence(Acquire);
        if self.memory.version().load(Acquire) & VERSION != version {
            return Way::Lost;
        }
        match self.memory.block(leaf) {
            Some(block) if !self.too_many_steps(at) => {
                at.go(u64::from(leaf) | version << 32, self.key_of(block).head());
                Way::Next(block)
            }
            _ => Way::End,
        }
    }

    /// Goes on to the next leaf: 0 for none, `None` where the way is too long to be remembered, or not
    /// the way any more.
    fn next_on_way(&self, last: &mut LastKey) -> Option<u32> {
        let mut below = 0u32;
        loop {
            let depth = last.depth().wrapping_sub(1);
            let Some((reference, child)) = last.step(depth) else {
                return (self.memory.root().load(Acquire) == below).then_some(0);
            };
            last.cut(depth);
            let node = Node::at(self.memory.block(reference)?);
            // What is not in the trie any more would lead past what was put in meanwhile.
            if node.is_obsolete() || (below != 0 && node.child(child).load(Acquire) != below) {
                return None;
            }
            below = reference;
            let Some((next, found)) = node.live_from(child.wrapping_add(1)) else { continue };
            last.push(reference, next)?;
            self.prefetch_child(&node, next.wrapping_add(1));
            let (mut reference, mut least) = (found, node.offset().wrapping_add(1));
            while reference & LEAF == 0 {
                let node = Node::at(self.memory.block(reference)?);
                // Offsets grow on the way; only damage makes it longer.
                if node.offset() < least {
                    return None;
                }
                least = node.offset().wrapping_add(1);
                let (first, child) = node.live_from(0)?;
                last.push(reference, first)?;
                self.prefetch_child(&node, first.wrapping_add(1));
                reference = child;
            }
            return Some(reference);
        }
    }

    /// Asks for what a child of a node leads to, if there is one with that number.
    #[inline(always)]
    fn prefetch_child(&self, node: &Node, number: u32) {
        if number < node.children() {
            self.memory.prefetch_block(node.child(number).load(Acquire));
        }
    }

    /// Remembers the way to a key, if it is not too long.
    fn remember_way(&self, last: &mut LastKey, key: &Key) {
        let mut reference = self.memory.root().load(Acquire);
        let mut least = 0usize;
        while reference & LEAF == 0 {
            let Some(block) = self.memory.block(reference) else { return last.cut(0) };
            let node = Node::at(block);
            let found = node.find(key.byte(node.offset()));
            let Some(child) = found.filter(|_| node.offset() >= least) else { return last.cut(0) };
            if last.push(reference, child).is_none() {
                return;
            }
            least = node.offset().wrapping_add(1);
            reference = node.child(child).load(Acquire);
        }
    }

    /// Counts a step. Only a map that changes all the time has more of them than elements.
    pub(super) fn too_many_steps(&self, at: &mut Position) -> bool {
        at.strict.newer = at.strict.newer.wrapping_add(1);
        at.strict.newer > self.memory.geometry.max_entries.wrapping_mul(2).wrapping_add(2)
    }

    /// Finds the element behind the last key.
    fn step_behind(&self, at: &mut Position, last: &LastKey) -> Option<*mut u8> {
        if self.too_many_steps(at) {
            return None;
        }
        let mut version = self.memory.version().load(Acquire);
        let mut found = self.leaf_behind_key(at.major as u32, last);
        let mut tries = 0u32;
        loop {
            fence(Acquire);
            let after = self.memory.version().load(Acquire);
            if after == version || tries > 64 {
                break;
            }
            version = after;
            tries = tries.wrapping_add(1);
            found = self.leaf_behind_key(at.major as u32, last);
        }
        let block = self.memory.block(found)?;
        at.go(u64::from(found) | version << 32, self.key_of(block).head());
        Some(block)
    }

    /// Finds the leaf behind a key, 0 for none. What is not kept of a long key its leaf may still
    /// tell; else elements with the same first bytes are met once more, rather than not at all.
    fn leaf_behind_key(&self, leaf: u32, last: &LastKey) -> u32 {
        let (bytes, len) = last.kept();
        // SAFETY: the walk keeps the bytes.
        let kept = unsafe { Key::new(bytes, len) };
        if len < last.len()
            && let Some(block) = self.memory.block(leaf)
        {
            let key = self.key_of(block);
            if key.len == last.len() && key.common(&kept) == len {
                return self.successor(&key);
            }
        }
        self.successor(&kept)
    }
}
