//! Elements in the order of their keys.

use std::ops::Bound;
use std::sync::atomic::Ordering::{Acquire, Relaxed};

use super::QpTrie;
use super::ahead::{Ahead, LIST, Step};
use super::key::Key;
use super::node::{Node, Symbol};
use crate::dump::output::Output;
#[cfg(feature = "users")]
use crate::dump::packed::{ElementLayout, Packed};
use crate::dump::position::{Position, Strict};
use crate::error::MapError;
use crate::ops::{OrderedWalk, READ_ELEMENTS, Span};
use crate::shm::qp::LEAF;
#[cfg(feature = "users")]
use crate::shm::{PAGE, copy};

/// Of a leaf or node two cache lines are asked for: those of its beginning and of this byte, as most
/// keys are shorter and lie in two.
const LAST: usize = 44;

impl QpTrie {
    /// Stands before the first leaf at or behind a bound, in a direction.
    fn seek(&self, bound: Bound<&[u8]>, backward: bool) -> Ahead {
        let mut path = Ahead::new(self, backward);
        let root = self.memory.root().load(Acquire);
        let (key, included) = match bound {
            Bound::Unbounded => {
                path.push(root);
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
    fn seek_key(&self, path: &mut Ahead, root: u32, key: &Key, included: bool) -> Option<()> {
        let mut reference = root;
        // Nodes, and the number of the child that comes after the one on the way.
        let mut nodes: Vec<(Node, u32)> = Vec::new();
        while reference & LEAF == 0 {
            let node = Node::at(self.memory.block(reference)?);
            if nodes.last().is_some_and(|(last, _)| last.offset() >= node.offset()) {
                return None;
            }
            let symbol: Symbol = key.byte(node.offset());
            let (before, found) = (node.before(symbol), node.find(symbol));
            // Children on the side from which the walk comes.
            let passed = match (path.backward, found) {
                (false, None) => before,
                (false, Some(_)) => before + 1,
                (true, _) => node.children().saturating_sub(before),
            };
            nodes.push((node, passed));
            match found.map(|i| node.child(i).load(Acquire)) {
                Some(child) if child != 0 => reference = child,
                _ => break,
            }
        }
        let found = self.key_of(self.nearest_leaf(reference, key)?);
        let d = key.common(&found);
        let is_there = d == key.len && d == found.len;
        let mut parted = None;
        if is_there && included {
            path.push(reference);
        }
        if !is_there {
            while let Some((node, _)) = nodes.pop_if(|(node, _)| node.offset() > d) {
                parted = Some(node);
            }
        }
        path.set_steps(nodes.iter().map(|(node, passed)| Step::new(node, *passed)).collect());
        // Whether what parts from the key at `d` is behind it, seen from the walk.
        let is_behind = (found.compare(key) == std::cmp::Ordering::Greater) != path.backward;
        if !is_there && is_behind {
            match parted {
                // All below it parts from the key in the same way.
                Some(node) => path.push_step(Step::new(&node, 0)),
                None if reference & LEAF != 0 => path.push(reference),
                None => {}
            }
        }
        Some(())
    }

    /// Up to where leaves are asked for before they are read: most, but for very long ones.
    #[inline(always)]
    fn last_of_leaves(&self) -> usize {
        match self.typical.load(Relaxed) {
            0..64 => LAST,
            some => (some as usize + some as usize / 2).min(256),
        }
    }

    /// Calls `each` with up to `room` leaves of a span, several at a time, and how many there were
    /// before; it tells how many it took. Returns how many there were, and whether there may be more.
    #[inline(always)]
    fn read_leaves(
        &self,
        from: Bound<&[u8]>,
        span: &Span<'_>,
        room: usize,
        strict: &mut Strict,
        mut each: impl FnMut(usize, &[u32]) -> usize,
    ) -> Result<(usize, bool), MapError> {
        let mut newer = 0;
        let number = strict.number;
        let end = if span.backward { span.from } else { span.to };
        let is_checked = number != 0 || !matches!(end, Bound::Unbounded);
        let (arena, last) = (self.memory.arena(), self.last_of_leaves());
        let read = self.read(|| {
            newer = 0;
            let mut path = self.seek(from, span.backward);
            let mut n = 0;
            while n < room {
                let leaves = path.find(self, LIST.min(room - n));
                if leaves.is_empty() {
                    return (n, false);
                }
                leaves.iter().for_each(|leaf| arena.prefetch_leaf(*leaf, last));
                let mut i = 0;
                while i < leaves.len() {
                    let mut run = &leaves[i..];
                    if is_checked || n == 0 {
                        run = &run[..1];
                        let Some(block) = self.memory.block(run[0]) else { return (n, false) };
                        let key = self.key_of(block);
                        if n == 0 && !is_within(&key, from, !span.backward) {
                            // Only what others do at this moment, or damage, brings it here.
                            i += 1;
                            continue;
                        }
                        if !is_within(&key, end, span.backward) {
                            return (n, false);
                        }
                        if number != 0 && self.epochs.is_newer(self.row(run[0]), number) {
                            newer += 1;
                            if newer > self.memory.geometry.max_entries {
                                return (n, false);
                            }
                            i += 1;
                            continue;
                        }
                    }
                    let taken = each(n, run);
                    n += taken;
                    i += taken;
                    if taken < run.len() {
                        return (n, true);
                    }
                }
            }
            (n, true)
        });
        strict.newer += newer;
        read.ok_or(super::BUSY)
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
        self.read_leaves(from, span, room, strict, |before, leaves| {
            self.write_leaves(leaves, before, out)
        })
    }

    /// Copies leaves into cells and values behind others; tells how many. A function of its own, for
    /// which there are enough registers.
    #[inline(never)]
    fn write_leaves(&self, leaves: &[u32], before: usize, out: &mut Output<'_>) -> usize {
        let (keys, arena) = (self.keys, self.memory.arena());
        let mut left = leaves.iter();
        let mut bytes = 0;
        let n = out.write_ahead(before, leaves.len(), |cell, value| {
            let Some(block) = left.next().and_then(|leaf| arena.leaf(*leaf)) else {
                return false;
            };
            let key = self.key_of(block);
            bytes += key.len;
            key.write_this_cell(keys, cell);
            self.memory.read_value(block, value);
            true
        });
        self.typical.store((bytes / n.max(1)) as u64, Relaxed);
        n
    }

    /// Copies leaves as long as there is room; tells how many. Likewise.
    #[cfg(feature = "users")]
    #[inline(never)]
    fn copy_leaves(&self, leaves: &[u32], out: &mut Packed) -> usize {
        let arena = self.memory.arena();
        let g = &self.memory.geometry;
        let (length_at, length_mask) = (g.length_at, g.length_mask);
        let find = |leaf: &u32| {
            let block = arena.leaf(*leaf)?;
            // SAFETY: a block is readable as far as the longest leaf goes.
            let len = unsafe { copy::load4(block.add(length_at)) } & length_mask;
            Some((block, len as usize))
        };
        let copy = |to: &mut [u8], from: *mut u8, len: usize| {
            // A short one may end before its first piece does, and behind its page there may be no
            // memory, and none to be had: then reading there is a SIGBUS.
            if from as u64 % PAGE > PAGE - 16 {
                // SAFETY: a block is readable as far as the longest leaf goes.
                unsafe { copy::store_bytes(to.as_mut_ptr(), from, len) };
            } else {
                // SAFETY: as before; what lies behind is in the same page.
                unsafe { copy::load_pieces(to.as_mut_ptr(), from, to.len()) };
            }
        };
        out.push(leaves, find, copy)
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
            let room = out.left().min(READ_ELEMENTS);
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

    #[cfg(feature = "users")]
    fn element_layout(&self) -> ElementLayout {
        let g = &self.memory.geometry;
        ElementLayout { value_size: g.value_size, key_at: g.key_at, max_key: g.max_key as usize }
    }

    #[cfg(feature = "users")]
    fn read(&self, span: &Span<'_>, out: &mut Packed) -> Result<bool, MapError> {
        let from = if span.backward { span.to } else { span.from };
        let most = out.most;
        let (n, more) =
            self.read_leaves(from, span, most, &mut Strict::default(), |before, leaves| {
                if before == 0 {
                    out.clear();
                }
                self.copy_leaves(leaves, out)
            })?;
        self.typical.store(out.learn(n), Relaxed);
        if n == 0 {
            out.clear();
        }
        // A walk gets on, whatever the memory holds.
        match out.last_key() {
            Some(last) if !is_within(&Self::user_key(last), from, !span.backward) => {
                Err(MapError::Damaged { what: "its keys are not in order" })
            }
            None if n != 0 => Err(MapError::KeyCell),
            _ => Ok(more),
        }
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
