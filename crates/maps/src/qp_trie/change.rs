//! Changing a trie. The table in [`super`] lists what each change stores.

use std::sync::atomic::{Ordering::Acquire, Ordering::Relaxed, fence};

use skep_isa::map::update;

use super::QpTrie;
use super::heap::{NotDone, Seat};
use super::key::Key;
use super::node::{Node, Symbol, size};
use crate::error::{EBUSY, EEXIST, EINVAL, ENOENT, ENOMEM, ENOSPC};
use crate::shm::qp::{LEAF, OBSOLETE, QpMemory};

/// Tries of a change while others change the same place.
const TRIES: u32 = 100_000;

/// A word that leads to a block: the root, or a child of a node.
#[derive(Clone, Copy)]
struct Link {
    /// The node that it is in; 0 for the root.
    owner: u32,
    /// Where it lies in the payload.
    at: u64,
    /// What it led to.
    to: u32,
}

/// Where a key belongs in a trie.
enum Place {
    /// Nowhere else: the trie is empty, or has a place for the key that leads nowhere.
    Empty(Link),
    /// In a leaf that is there.
    Leaf(Link, *mut u8),
    /// In a new node above something that has a different byte at this offset.
    Above(Link, usize),
    /// In a node that lacks its byte.
    Within(Link, Node),
}

/// What is done to a leaf that is removed.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Removal {
    /// It goes into limbo.
    Retire,
    /// It is the caller's.
    Detach,
}

fn errno(why: NotDone) -> i64 {
    -i64::from(match why {
        NotDone::Busy | NotDone::Again => EBUSY,
        NotDone::NoMemory => ENOMEM,
    })
}

impl QpTrie {
    fn root_link(&self) -> Link {
        Link { owner: 0, at: QpMemory::ROOT_AT, to: self.memory.root().load(Acquire) }
    }

    fn child_link(&self, owner: u32, node: &Node, i: u32) -> Link {
        let child = node.child(i);
        let at = self.memory.offset_of(child.as_ptr().cast());
        Link { owner, at, to: child.load(Acquire) }
    }

    /// Tells whether a link, whose owner is locked, still leads where it did.
    #[inline(always)]
    fn holds(&self, link: &Link) -> bool {
        let live = match self.memory.block(link.owner) {
            Some(at) => !Node::at(at).is_obsolete(),
            None => link.owner == 0,
        };
        live && self.memory.at32(link.at).load(Acquire) == link.to
    }

    /// Finds the place of a key. `None` when somebody changes the trie.
    #[inline(always)]
    fn place(&self, key: &Key) -> Option<Place> {
        let root = self.root_link();
        if root.to == 0 {
            return Some(Place::Empty(root));
        }
        let nearest = self.nearest_leaf(root.to, key)?;
        let found = self.key_of(nearest);
        let d = key.common(&found);
        let same = d == key.len && d == found.len;
        let mut link = root;
        let mut least = 0usize;
        loop {
            let at = self.memory.block(link.to)?;
            if link.to & LEAF != 0 {
                return match same {
                    false => Some(Place::Above(link, d)),
                    true => self.key_of(at).is(key).then_some(Place::Leaf(link, at)),
                };
            }
            let node = Node::at(at);
            let offset = node.offset();
            if offset < least {
                return None;
            }
            least = offset.wrapping_add(1);
            if offset > d && !same {
                return Some(Place::Above(link, d));
            }
            match node.step(key) {
                Some(i) => {
                    link = self.child_link(link.to, &node, i);
                    if link.to == 0 {
                        return (offset == d && !same).then_some(Place::Empty(link));
                    }
                }
                None if offset == d && !same => return Some(Place::Within(link, node)),
                None => return None,
            }
        }
    }

    /// Stores a value under a key; 0 or a negative errno.
    ///
    /// # Safety
    /// The key is readable, and `value` points to a value's size in readable bytes.
    pub(super) unsafe fn update(&self, key: &Key, value: *const u8, flags: u64) -> i64 {
        if flags > update::EXIST || key.len == 0 || key.len as u64 > self.memory.geometry.max_key {
            return -i64::from(EINVAL);
        }
        let (mut counted, mut scavenged) = (false, false);
        loop {
            let Some(seat) = self.sit() else { return -i64::from(EBUSY) };
            // SAFETY: the caller's duty.
            let done = unsafe { self.update_seated(&seat, key, value, flags) };
            if done == -i64::from(ENOMEM) && !scavenged {
                scavenged = true;
                self.scavenge(&seat);
                self.leave(seat);
                continue;
            }
            self.leave(seat);
            // A writer that died may have left the count too high.
            if done != -i64::from(ENOSPC) || counted || !self.is_count_suspect() {
                return done;
            }
            counted = true;
            if !self.count_anew() {
                return -i64::from(EBUSY);
            }
        }
    }

    /// # Safety
    /// As [`QpTrie::update`].
    unsafe fn update_seated(&self, seat: &Seat, key: &Key, value: *const u8, flags: u64) -> i64 {
        let g = &self.memory.geometry;
        if let Err(why) = self.make_room(seat) {
            return errno(why);
        }
        let Some(class) = g.class(g.leaf_bytes(key.len as u64)) else { return -i64::from(ENOMEM) };
        // The leaf is made first: from here on the key is what is in it, whoever changes the
        // caller's.
        let leaf = match self.peek(seat, class) {
            Ok(block) => block | LEAF,
            // SAFETY: the caller's duty.
            Err(NotDone::NoMemory) => return unsafe { self.overwrite_only(key, value, flags) },
            Err(why) => return errno(why),
        };
        let Some(at) = self.memory.block(leaf) else { return -i64::from(ENOMEM) };
        // SAFETY: the block is of the class for the key, and in no one's hands; the rest is the
        // caller's duty.
        let key = unsafe {
            self.memory.fill_leaf(at, key.at, key.len);
            self.memory.set_value(at, value);
            let (at, _) = self.memory.leaf_key(at);
            Key::new(at, key.len)
        };
        let mut tries = 0u32;
        while tries < TRIES {
            let version = self.memory.version().load(Acquire);
            let done = match self.place(&key) {
                // SAFETY: the caller's duty.
                Some(place) => unsafe {
                    self.put(seat, version, &place, &key, (leaf, class), value, flags)
                },
                None => Err(NotDone::Again),
            };
            match done {
                Ok(result) => return result,
                Err(NotDone::Again) => {}
                Err(why) => return errno(why),
            }
            std::hint::spin_loop();
            tries = tries.wrapping_add(1);
        }
        -i64::from(EBUSY)
    }

    /// Stores a value over another where there is no memory for anything else.
    ///
    /// # Safety
    /// As [`QpTrie::update`].
    #[cold]
    #[inline(never)]
    unsafe fn overwrite_only(&self, key: &Key, value: *const u8, flags: u64) -> i64 {
        let mut tries = 0u32;
        while tries < TRIES {
            let version = self.memory.version().load(Acquire);
            if let Some(place) = self.place(key) {
                let Place::Leaf(link, at) = place else { return -i64::from(ENOMEM) };
                if flags == update::NOEXIST {
                    return -i64::from(EEXIST);
                }
                if self.memory.geometry.value_size > 8 {
                    return -i64::from(ENOMEM);
                }
                // SAFETY: the caller's duty.
                match unsafe { self.overwrite(version, &link, at, value) } {
                    Ok(done) => return done,
                    Err(NotDone::Again) => {}
                    Err(why) => return errno(why),
                }
            }
            tries = tries.wrapping_add(1);
        }
        -i64::from(EBUSY)
    }

    /// Stores a value of at most eight bytes over another: one store, in place.
    ///
    /// # Safety
    /// As [`QpTrie::update`].
    unsafe fn overwrite(
        &self,
        version: u64,
        link: &Link,
        leaf: *mut u8,
        value: *const u8,
    ) -> Result<i64, NotDone> {
        let locks = self.lock_nodes(link.owner, link.owner, link.owner)?;
        let good = self.holds(link) && self.is_version(version);
        if good {
            // SAFETY: the leaf cannot leave the trie while the node above it is locked; the rest is
            // the caller's duty.
            unsafe { self.memory.set_value(leaf, value) };
        }
        self.unlock_nodes(locks);
        if good { Ok(0) } else { Err(NotDone::Again) }
    }

    /// Tells whether no block was used again since; what was read before then was the trie.
    #[inline(always)]
    fn is_version(&self, version: u64) -> bool {
        fence(Acquire);
        self.memory.version().load(Relaxed) == version
    }

    /// Puts a leaf into its place.
    ///
    /// # Safety
    /// As [`QpTrie::update`].
    #[allow(clippy::too_many_arguments)]
    unsafe fn put(
        &self,
        seat: &Seat,
        version: u64,
        place: &Place,
        key: &Key,
        leaf: (u32, u32),
        value: *const u8,
        flags: u64,
    ) -> Result<i64, NotDone> {
        match place {
            Place::Leaf(link, at) => {
                if flags == update::NOEXIST {
                    return if self.is_version(version) {
                        Ok(-i64::from(EEXIST))
                    } else {
                        Err(NotDone::Again)
                    };
                }
                if self.memory.geometry.value_size <= 8 {
                    // SAFETY: the caller's duty.
                    return unsafe { self.overwrite(version, link, *at, value) };
                }
                self.exchange(seat, version, link, key, leaf)
            }
            _ if flags == update::EXIST => {
                if self.is_version(version) {
                    Ok(-i64::from(ENOENT))
                } else {
                    Err(NotDone::Again)
                }
            }
            Place::Empty(link) => self.insert(seat, version, link, None, key, leaf),
            Place::Above(link, d) => self.insert_above(seat, version, link, *d, key, leaf),
            Place::Within(link, node) => self.insert(seat, version, link, Some(*node), key, leaf),
        }
    }

    /// Puts a leaf in the place of another with the same key.
    fn exchange(
        &self,
        seat: &Seat,
        version: u64,
        link: &Link,
        key: &Key,
        (leaf, class): (u32, u32),
    ) -> Result<i64, NotDone> {
        let locks = self.lock_nodes(link.owner, link.owner, link.owner)?;
        let good = self.holds(link) && self.is_version(version);
        if good {
            let bucket = self.open_bucket(key);
            let was_cached = self.uncache_leaf(bucket, link.to);
            self.epochs.inherit(self.row(leaf), self.row(link.to));
            let mut change = self.change(seat);
            change.store(link.at, leaf);
            change.take(self, class);
            change.retire(self, link.to);
            change.commit();
            self.cache_leaf(bucket, leaf);
            if !was_cached && bucket.is_some() {
                self.close_bucket(bucket);
            }
        }
        self.unlock_nodes(locks);
        if good { Ok(0) } else { Err(NotDone::Again) }
    }

    /// Puts a leaf in as the first one, or into a copy of a node.
    fn insert(
        &self,
        seat: &Seat,
        version: u64,
        link: &Link,
        node: Option<Node>,
        key: &Key,
        (leaf, class): (u32, u32),
    ) -> Result<i64, NotDone> {
        let symbol: Symbol = node.and_then(|node| key.byte(node.offset()));
        let copy = match &node {
            None => None,
            Some(node) => Some(self.node_block(seat, node.size_with(symbol))?),
        };
        // The copy, too: until the cache knows the leaf, nobody else may change it.
        let locks = match copy {
            Some((_, block, _)) => self.lock_nodes(link.owner, link.to, block)?,
            None => self.lock_nodes(link.owner, link.owner, link.owner)?,
        };
        // All keys below a node have as many bytes in common as its offset says; so one of them
        // tells.
        let belongs = |node: &Node, reference: u32| {
            let other = self.nearest_leaf(reference, key).map(|at| self.key_of(at));
            other.is_some_and(|other| key.common(&other) == node.offset())
        };
        let free = match &node {
            Some(node) => {
                let now = Node::at(node.at);
                now.head == node.head && now.find(symbol).is_none() && belongs(&now, link.to)
            }
            None if link.owner == 0 => true,
            None => {
                self.memory.block(link.owner).is_some_and(|at| belongs(&Node::at(at), link.owner))
            }
        };
        let good = self.holds(link) && free && self.is_version(version);
        let result = if !good {
            Err(NotDone::Again)
        } else if !self.reserve_element() {
            Ok(-i64::from(ENOSPC))
        } else {
            let bucket = self.open_bucket(key);
            self.epochs.stamp(self.row(leaf));
            let mut change = self.change(seat);
            match (&node, copy) {
                (Some(node), Some((to, block, node_class))) => {
                    // SAFETY: the block is of the class for the copy, and in no one's hands; the node
                    // is locked and lacks the symbol.
                    unsafe { node.copy_with(to, symbol, leaf) };
                    change.store(link.at, block);
                    self.mark_obsolete(&mut change, node);
                    change.take(self, node_class);
                    change.retire(self, link.to);
                }
                _ => change.store(link.at, leaf),
            }
            change.take(self, class);
            change.count(self, 1);
            change.commit();
            self.cache_leaf(bucket, leaf);
            Ok(0)
        };
        self.unlock_nodes(locks);
        result
    }

    /// Puts a leaf in with a new node above what a link leads to.
    fn insert_above(
        &self,
        seat: &Seat,
        version: u64,
        link: &Link,
        d: usize,
        key: &Key,
        (leaf, class): (u32, u32),
    ) -> Result<i64, NotDone> {
        let (to, block, node_class) = self.node_block(seat, size(2, false))?;
        let locks = self.lock_nodes(link.owner, block, block)?;
        // All keys below have so many bytes in common, and one more; so one of them tells.
        let other = self.nearest_leaf(link.to, key).map(|at| self.key_of(at));
        // Its byte is read before the version is: afterwards the leaf may be another's.
        let other = other.filter(|other| key.common(other) == d).map(|other| other.byte(d));
        let good = self.holds(link) && self.is_version(version);
        let result = match other.filter(|_| good) {
            None => Err(NotDone::Again),
            Some(_) if !self.reserve_element() => Ok(-i64::from(ENOSPC)),
            Some(other) => {
                let bucket = self.open_bucket(key);
                self.epochs.stamp(self.row(leaf));
                // SAFETY: the block is of the class for the node, and in no one's hands; the keys
                // differ at the offset.
                unsafe { Node::make_fork(to, d, (key.byte(d), leaf), (other, link.to)) };
                let mut change = self.change(seat);
                change.store(link.at, block);
                change.take(self, node_class);
                change.take(self, class);
                change.count(self, 1);
                change.commit();
                self.cache_leaf(bucket, leaf);
                Ok(0)
            }
        };
        self.unlock_nodes(locks);
        result
    }

    /// Finds a block for a node: its address, reference and class.
    fn node_block(&self, seat: &Seat, bytes: u64) -> Result<(*mut u8, u32, u32), NotDone> {
        let class = self.memory.geometry.node_class(bytes).ok_or(NotDone::Again)?;
        let block = self.peek(seat, class)?;
        let at = self.memory.block(block).ok_or(NotDone::NoMemory)?;
        Ok((at, block, class))
    }

    fn mark_obsolete(&self, change: &mut super::heap::Change<'_>, node: &Node) {
        change.store(self.memory.offset_of(node.at), node.head | OBSOLETE);
    }

    /// Removes a key; 0 or a negative errno.
    pub(super) fn remove(&self, key: &Key) -> i64 {
        match self.remove_leaf(key, Removal::Retire, |_| ()) {
            Ok(_) => 0,
            Err(e) => e,
        }
    }

    /// Removes a key, and copies its last value out.
    pub(super) fn remove_into(&self, key: &Key, value: &mut [u8]) -> i64 {
        // In limbo it keeps its value at least as long as this thread has its heap.
        match self.remove_leaf(key, Removal::Retire, |leaf| self.memory.read_value(leaf, value)) {
            Ok(_) => 0,
            Err(e) => e,
        }
    }

    /// Takes the leaf of a key out of the trie: its reference, for [`QpTrie::give_back`].
    pub(super) fn detach_leaf(&self, key: &Key) -> Result<u32, i64> {
        self.remove_leaf(key, Removal::Detach, |_| ())
    }

    /// Removes a key: its leaf, with which `last` is called when it is out of the trie.
    #[inline(always)]
    fn remove_leaf(
        &self,
        key: &Key,
        how: Removal,
        mut last: impl FnMut(*mut u8),
    ) -> Result<u32, i64> {
        if key.len == 0 {
            return Err(-i64::from(EINVAL));
        }
        let Some(seat) = self.sit() else { return Err(-i64::from(EBUSY)) };
        let mut result = self.remove_seated(&seat, key, how);
        if result == Err(-i64::from(ENOMEM)) {
            self.scavenge(&seat);
            result = self.remove_seated(&seat, key, how);
        }
        if let Ok(leaf) = result
            && let Some(at) = self.memory.block(leaf)
        {
            last(at);
        }
        self.leave(seat);
        result
    }

    fn remove_seated(&self, seat: &Seat, key: &Key, how: Removal) -> Result<u32, i64> {
        self.make_room(seat).map_err(errno)?;
        let mut tries = 0u32;
        while tries < TRIES {
            let version = self.memory.version().load(Acquire);
            match self.remove_once(seat, version, key, how) {
                Ok(0) => return Err(-i64::from(ENOENT)),
                Ok(leaf) => return Ok(leaf),
                Err(NotDone::Again) => {}
                Err(why) => return Err(errno(why)),
            }
            std::hint::spin_loop();
            tries = tries.wrapping_add(1);
        }
        Err(-i64::from(EBUSY))
    }

    /// Finds the links to the leaf of a key, and to the node above it.
    fn links_to(&self, key: &Key) -> Option<(Option<Link>, Link, *mut u8)> {
        let mut link = self.root_link();
        let mut above = None;
        let mut least = 0usize;
        while let Some(at) = self.memory.block(link.to) {
            if link.to & LEAF != 0 {
                return self.key_of(at).is(key).then_some((above, link, at));
            }
            let node = Node::at(at);
            if node.offset() < least {
                break;
            }
            least = node.offset().wrapping_add(1);
            let i = node.step(key)?;
            above = Some(link);
            link = self.child_link(link.to, &node, i);
        }
        None
    }

    /// Removes a key: its leaf, 0 when it is not there.
    fn remove_once(
        &self,
        seat: &Seat,
        version: u64,
        key: &Key,
        how: Removal,
    ) -> Result<u32, NotDone> {
        let Some((above, link, leaf)) = self.links_to(key) else {
            return if self.is_version(version) { Ok(0) } else { Err(NotDone::Again) };
        };
        let Some(above) = above else {
            return self.remove_last(seat, version, &link, leaf, how);
        };
        let node = self.memory.block(link.owner).map(Node::at).ok_or(NotDone::Again)?;
        // The leaf's own bytes: a program's key may change meanwhile.
        let own = self.key_of(leaf);
        let symbol = own.byte(node.offset());
        // Where memory is short the place stays, and leads nowhere.
        let copy = match node.children() {
            0..=2 => None,
            _ => match self.node_block(seat, node.size_without(symbol)) {
                Ok(copy) => Some(copy),
                Err(NotDone::NoMemory) => None,
                Err(why) => return Err(why),
            },
        };
        let locks = self.lock_nodes(above.owner, link.owner, link.owner)?;
        let there = node
            .find(symbol)
            .is_some_and(|i| self.memory.offset_of(node.child(i).as_ptr().cast()) == link.at);
        let good = self.holds(&above)
            && self.holds(&link)
            && there
            && Node::at(node.at).head == node.head
            && self.is_version(version);
        if good {
            let bucket = self.open_bucket(&own);
            let was_cached = self.uncache_leaf(bucket, link.to);
            let mut change = self.change(seat);
            let number = node.find(symbol).unwrap_or(0);
            let other = |from| match node.live_from(from) {
                Some((i, _)) if i == number => node.live_from(i.wrapping_add(1)),
                other => other,
            };
            // There are two others, or the only one takes the node's place.
            let only = match other(0) {
                Some((i, child)) if other(i.wrapping_add(1)).is_none() => Some(child),
                _ => None,
            };
            match (only, copy) {
                (Some(sibling), _) => change.store(above.at, sibling),
                (None, Some((to, block, class))) => {
                    // SAFETY: the block is of the class for the copy, and in no one's hands; the node
                    // is locked and has the symbol.
                    unsafe { node.copy_without(to, symbol) };
                    change.store(above.at, block);
                    change.take(self, class);
                }
                (None, None) => change.store(link.at, 0),
            }
            if only.is_some() || copy.is_some() {
                self.mark_obsolete(&mut change, &node);
                change.retire(self, above.to);
            }
            self.finish_removal(change, link.to, how);
            self.forget_leaf(bucket, was_cached);
        }
        self.unlock_nodes(locks);
        if good { Ok(link.to) } else { Err(NotDone::Again) }
    }

    /// Removes the only key.
    fn remove_last(
        &self,
        seat: &Seat,
        version: u64,
        link: &Link,
        leaf: *mut u8,
        how: Removal,
    ) -> Result<u32, NotDone> {
        let own = self.key_of(leaf);
        let locks = self.lock_nodes(0, 0, 0)?;
        let good = self.holds(link) && self.is_version(version);
        if good {
            let bucket = self.open_bucket(&own);
            let was_cached = self.uncache_leaf(bucket, link.to);
            let mut change = self.change(seat);
            change.store(link.at, 0);
            self.finish_removal(change, link.to, how);
            self.forget_leaf(bucket, was_cached);
        }
        self.unlock_nodes(locks);
        if good { Ok(link.to) } else { Err(NotDone::Again) }
    }

    #[inline(always)]
    fn finish_removal(&self, mut change: super::heap::Change<'_>, leaf: u32, how: Removal) {
        change.count(self, -1);
        if how == Removal::Retire {
            change.retire(self, leaf);
        }
        change.commit();
        self.unreserve_element();
    }

    /// Puts a leaf that was detached into limbo.
    pub(super) fn give_back(&self, leaf: u32) -> bool {
        let Some(seat) = self.sit() else { return false };
        let done = self.make_room(&seat).is_ok();
        if done {
            let mut change = self.change(&seat);
            change.retire(self, leaf);
            change.commit();
        }
        self.leave(seat);
        done
    }
}
