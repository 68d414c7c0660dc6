//! Elements in the order of their keys.

use std::ops::Bound;
use std::sync::atomic::Ordering::Acquire;

use super::QpTrie;
use super::key::Key;
use super::node::{Node, Symbol};
use crate::dump::output::Output;
use crate::dump::position::{Position, Strict};
use crate::error::MapError;
use crate::ops::{OrderedWalk, Span};
use crate::shm::qp::LEAF;

/// Elements that are read at a time, between two looks at the version.
const MANY: usize = 256;

/// Leaves whose memory is asked for before they are read.
const LEAVES_AHEAD: usize = 32;

/// A node on the way to a leaf, and the child that comes next.
#[derive(Clone, Copy)]
struct Step {
    node: Node,
    children: u32,
    /// Of the children that are left, the next one is this, counted from the side that the walk
    /// begins on.
    next: u32,
}

/// A way through the leaves in order.
#[derive(Default)]
struct Path {
    steps: Vec<Step>,
    backward: bool,
    /// A leaf that comes before all that the steps lead to.
    first: u32,
    /// Nodes that may still be entered: only damage has as many without leaves.
    left: u64,
}

/// Nodes that are entered for some elements, besides those that the longest keys could have.
const NODES: u64 = 1 << 20;

impl Path {
    /// Goes down to everything below a reference.
    fn enter(&mut self, trie: &QpTrie, reference: u32) -> Option<()> {
        if reference & LEAF != 0 {
            self.first = reference;
            return Some(());
        }
        let node = Node::at(trie.memory.block(reference)?);
        // Offsets grow on the way; only damage makes it longer.
        let grows = self.steps.last().is_none_or(|last| last.node.offset() < node.offset());
        grows.then(|| self.steps.push(Step { node, children: node.children(), next: 0 }))
    }

    /// Returns the next leaf.
    #[inline]
    fn next(&mut self, trie: &QpTrie) -> Option<u32> {
        if self.first != 0 {
            return Some(std::mem::take(&mut self.first));
        }
        loop {
            let step = self.steps.last_mut()?;
            if step.next >= step.children {
                self.steps.pop();
                continue;
            }
            let i = if self.backward { step.children - 1 - step.next } else { step.next };
            step.next += 1;
            let child = step.node.child(i).load(Acquire);
            if child == 0 {
                continue;
            }
            if child & LEAF != 0 {
                return Some(child);
            }
            let Some(at) = trie.memory.block(child) else {
                self.steps.clear();
                return None;
            };
            let (node, above) = (Node::at(at), step.node.offset());
            if node.offset() <= above {
                self.steps.clear();
                return None;
            }
            let children = node.children();
            if self.left == 0 {
                self.steps.clear();
                return None;
            }
            self.left -= 1;
            for i in 0..children.min(32) {
                trie.memory.prefetch_block(node.child(i).load(Acquire));
            }
            self.steps.push(Step { node, children, next: 0 });
        }
    }
}

impl QpTrie {
    /// Stands before the first leaf at or behind a bound, in a direction.
    fn seek(&self, bound: Bound<&[u8]>, backward: bool) -> Path {
        let left = NODES + 4 * self.memory.geometry.max_key;
        let mut path = Path { backward, left, ..Path::default() };
        let root = self.memory.root().load(Acquire);
        let (key, included) = match bound {
            Bound::Unbounded => {
                let _ = path.enter(self, root);
                return path;
            }
            Bound::Included(key) => (key, true),
            Bound::Excluded(key) => (key, false),
        };
        // SAFETY: the caller keeps the key.
        let key = unsafe { Key::new(key.as_ptr(), key.len()) };
        let _ = self.seek_key(&mut path, root, &key, included);
        path
    }

    /// Goes down with a key in one descent, and then asks a leaf at its end how much of the way was
    /// right: all leaves that a node ever had below it begin with the same bytes.
    fn seek_key(&self, path: &mut Path, root: u32, key: &Key, included: bool) -> Option<()> {
        let mut reference = root;
        while reference & LEAF == 0 {
            let node = Node::at(self.memory.block(reference)?);
            if path.steps.last().is_some_and(|last| last.node.offset() >= node.offset()) {
                path.steps.clear();
                return None;
            }
            let symbol: Symbol = key.byte(node.offset());
            let children = node.children();
            let (before, found) = (node.before(symbol), node.find(symbol));
            // Children on the side from which the walk comes.
            let passed = match (path.backward, found) {
                (false, None) => before,
                (false, Some(_)) => before + 1,
                (true, _) => children.saturating_sub(before),
            };
            path.steps.push(Step { node, children, next: passed.min(children) });
            match found.map(|i| node.child(i).load(Acquire)) {
                Some(child) if child != 0 => reference = child,
                _ => break,
            }
        }
        let found = self.key_of(self.nearest_leaf(reference, key)?);
        let d = key.common(&found);
        if d == key.len && d == found.len {
            if included {
                path.first = reference;
            }
            return Some(());
        }
        // Whether what parts from the key at `d` is behind it, seen from the walk.
        let is_behind = (found.compare(key) == std::cmp::Ordering::Greater) != path.backward;
        let mut parted = None;
        while let Some(step) = path.steps.pop_if(|step| step.node.offset() > d) {
            parted = Some(step);
        }
        match parted {
            _ if !is_behind => {}
            // All below it parts from the key in the same way.
            Some(step) => path.steps.push(Step { next: 0, ..step }),
            None if reference & LEAF != 0 => path.first = reference,
            None => {}
        }
        Some(())
    }

    /// Reads up to `room` elements of a span into `out`; tells how many, and whether there may be
    /// more.
    fn read_some(
        &self,
        from: Bound<&[u8]>,
        span: &Span<'_>,
        room: usize,
        strict: &mut Strict,
        out: &mut Output<'_>,
    ) -> Result<(usize, bool), MapError> {
        let keys = self.keys;
        let at = out.used();
        let mut newer = 0;
        let read = self.read(|| {
            newer = 0;
            let mut path = self.seek(from, span.backward);
            let end = if span.backward { span.from } else { span.to };
            let mut leaves = [0; LEAVES_AHEAD];
            let mut n = 0;
            while n < room {
                // Their memory comes while the way to the next ones is looked for.
                let mut found = 0;
                for place in leaves.iter_mut().take(room - n) {
                    let Some(leaf) = path.next(self) else { break };
                    self.memory.prefetch_block(leaf);
                    *place = leaf;
                    found += 1;
                }
                if found == 0 {
                    return (n, false);
                }
                for leaf in leaves.iter().take(found) {
                    let Some(block) = self.memory.block(*leaf) else { return (n, false) };
                    let key = self.key_of(block);
                    if n == 0 && !is_within(&key, from, !span.backward) {
                        // Only what others do at this moment, or damage, brings it here.
                        continue;
                    }
                    if !is_within(&key, end, span.backward) {
                        return (n, false);
                    }
                    if self.epochs.is_newer(self.row(*leaf), strict.number) {
                        newer += 1;
                        if newer > self.memory.geometry.max_entries {
                            return (n, false);
                        }
                        continue;
                    }
                    let Some((cell, value)) = out.element(at + n) else { return (n, true) };
                    key.write_cell(keys, cell);
                    self.memory.read_value(block, value);
                    n += 1;
                }
            }
            (n, true)
        });
        strict.newer += newer;
        read.ok_or(super::BUSY)
    }

    /// Finds the element behind a place, for a program.
    pub(super) fn prog_step(&self, at: &mut Position) -> Option<*mut u8> {
        // `major` has the last leaf, and the version's lower half; `minor` the first bytes of its
        // key. As long as the version is the same the leaf has its key, though it may be deleted.
        let last = at.major as u32;
        if self.too_many_steps(at) {
            return None;
        }
        let version = self.memory.version().load(Acquire);
        let mut found = self.leaf_behind(last, at.major >> 32 == version & 0xffff_ffff, at.minor);
        let mut now = version;
        let mut tries = 0u32;
        loop {
            std::sync::atomic::fence(Acquire);
            let after = self.memory.version().load(Acquire);
            if after == now || tries > 64 {
                break;
            }
            now = after;
            tries = tries.wrapping_add(1);
            found = self.leaf_behind(last, at.major >> 32 == now & 0xffff_ffff, at.minor);
        }
        let block = self.memory.block(found)?;
        at.go(u64::from(found) | now << 32, self.key_of(block).head());
        Some(block)
    }

    /// Finds the leaf with the first key, 0 for none.
    pub(super) fn first(&self) -> u32 {
        self.outermost(self.memory.root().load(Acquire))
    }

    /// Finds the leaf behind one that was seen before, 0 for none. Where it may be another's by now,
    /// and is not that with the same first bytes, goes on behind those.
    fn leaf_behind(&self, last: u32, is_same: bool, head: u64) -> u32 {
        if last == 0 {
            return self.first();
        }
        if let Some(block) = self.memory.block(last) {
            let key = self.key_of(block);
            if is_same || key.head() == head {
                return self.successor(&key);
            }
        }
        // Without the zeros that may be behind its end: rather once more than not at all.
        let bytes = head.to_be_bytes();
        let len = 8usize.wrapping_sub((head.trailing_zeros() / 8) as usize);
        // SAFETY: the bytes are here as long as the key.
        self.successor(&unsafe { Key::new(bytes.as_ptr(), len.min(8)) })
    }

    /// Finds the first leaf below a reference, 0 for damage.
    fn outermost(&self, mut reference: u32) -> u32 {
        let mut least = 0usize;
        while let Some(at) = self.memory.block(reference) {
            if reference & LEAF != 0 {
                return reference;
            }
            let node = Node::at(at);
            if node.offset() < least {
                break;
            }
            least = node.offset().wrapping_add(1);
            reference = node.live_from(0).map_or(0, |(_, child)| child);
        }
        0
    }

    /// Finds the leaf with the next key, 0 for none. Safe on the event path.
    pub(super) fn successor(&self, key: &Key) -> u32 {
        let mut tries = 0u32;
        while tries < 1000 {
            if let Some(found) = self.successor_now(key) {
                return found;
            }
            tries = tries.wrapping_add(1);
        }
        0
    }

    /// As [`QpTrie::successor`]; `None` when somebody changed the trie on the way.
    fn successor_now(&self, key: &Key) -> Option<u32> {
        let root = self.memory.root().load(Acquire);
        if root == 0 {
            return Some(0);
        }
        let found = self.key_of(self.nearest_leaf(root, key)?);
        let d = key.common(&found);
        let same = d == key.len && d == found.len;
        let is_behind = found.compare(key) == std::cmp::Ordering::Greater;
        let mut reference = root;
        let mut best = 0u32;
        let mut least = 0usize;
        loop {
            let at = self.memory.block(reference)?;
            let is_leaf = reference & LEAF != 0;
            let node = Node::at(at);
            if is_leaf || (!same && node.offset() > d) {
                if !same && is_behind {
                    best = reference;
                }
                break;
            }
            if node.offset() < least {
                return Some(0);
            }
            least = node.offset().wrapping_add(1);
            let symbol = key.byte(node.offset());
            let (before, child) = (node.before(symbol), node.find(symbol));
            let next = before.wrapping_add(u32::from(child.is_some()));
            if let Some((_, child)) = node.live_from(next) {
                best = child;
            }
            let Some(child) = child.map(|i| node.child(i).load(Acquire)) else { break };
            if child == 0 {
                break;
            }
            reference = child;
        }
        // The second way down was the first one's, if a leaf at its end says the same.
        let end = self.key_of(self.nearest_leaf(reference, key)?);
        let as_before = key.common(&end) == d
            && (end.compare(key) == std::cmp::Ordering::Greater) == is_behind
            && (d == key.len && d == end.len) == same;
        if !as_before {
            return None;
        }
        Some(if best == 0 { 0 } else { self.outermost(best) })
    }
}

/// Tells whether a key has not yet passed the end of a span.
fn is_within(key: &Key, end: Bound<&[u8]>, backward: bool) -> bool {
    let (end, included) = match end {
        Bound::Unbounded => return true,
        Bound::Included(end) => (end, true),
        Bound::Excluded(end) => (end, false),
    };
    // SAFETY: the caller keeps the end.
    let end = unsafe { Key::new(end.as_ptr(), end.len()) };
    match key.compare(&end) {
        std::cmp::Ordering::Equal => included,
        std::cmp::Ordering::Less => !backward,
        std::cmp::Ordering::Greater => backward,
    }
}

impl OrderedWalk for QpTrie {
    fn fill(
        &self,
        span: &Span<'_>,
        strict: &mut Strict,
        out: &mut Output<'_>,
    ) -> Result<bool, MapError> {
        let begin = if span.backward { span.to } else { span.from };
        let mut last: Option<Vec<u8>> = None;
        while !out.is_full() {
            let from = last.as_deref().map_or(begin, Bound::Excluded);
            let room = out.left().min(MANY);
            let (n, more) = self.read_some(from, span, room, strict, out)?;
            if n > 0 {
                let (cell, _) = out.element(out.used() + n - 1).ok_or(MapError::KeyCell)?;
                let key = self.keys.read_cell(cell).ok_or(MapError::KeyCell)?;
                // A walk gets on, whatever the memory holds.
                if !is_within(&Self::user_key(key), from, !span.backward) {
                    return Err(MapError::Damaged { what: "its keys are not in order" });
                }
                last = Some(key.to_vec());
            }
            for _ in 0..n {
                out.push();
            }
            if !more {
                return Ok(false);
            }
        }
        Ok(true)
    }

    fn longest_prefix(
        &self,
        key: &[u8],
        cell: &mut [u8],
        value: &mut [u8],
    ) -> Result<bool, MapError> {
        // SAFETY: the caller keeps the key.
        let key = unsafe { Key::new(key.as_ptr(), key.len()) };
        let found = self.read(|| {
            let leaf = QpTrie::longest_prefix(self, &key)?;
            self.key_of(leaf).write_cell(self.keys, cell);
            self.memory.read_value(leaf, value);
            Some(())
        });
        Ok(found.ok_or(super::BUSY)?.is_some())
    }
}
