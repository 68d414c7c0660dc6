//! Changing a trie. The table in [`super`] lists what each change stores.

use std::mem::MaybeUninit;
use std::sync::atomic::{Ordering::Acquire, Ordering::Relaxed, fence};

use skep_isa::map::update;

use super::QpTrie;
use super::cache::Cached;
use super::heap::{NotDone, Seat};
use super::key::Key;
use super::node::{Node, Symbol, size};
use crate::error::{EBUSY, EEXIST, EINVAL, ENOENT, ENOMEM, ENOSPC};
use crate::shm::qp::{LEAF, OBSOLETE, QpMemory};

/// Tries of a change while others change the same place.
const TRIES: u32 = 100_000;

/// The last links of a path that are remembered; more only where keys are very long.
const REMEMBERED: usize = 32;

/// A word that leads to a block: the root, or a child of a node.
#[derive(Clone, Copy)]
struct Link {
    /// Where it lies in the payload.
    at: u64,
    /// The node that it is in; 0 for the root.
    owner: u32,
    /// What it led to.
    to: u32,
}

/// Where a key belongs in a trie.
enum Place {
    /// Nowhere else: the trie is empty, or has a place for the key that leads nowhere.
    Empty(Link),
    /// In a leaf that is there.
    Leaf(Link, *mut u8),
    /// In a new node above something that has another symbol, the last one here, at this offset.
    Above(Link, usize, Symbol),
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

/// The last links of a path. Every access is volatile, else the compiler would use vector registers
/// for several words at once, which programs in the middle of an event must keep. How long the path
/// is stands outside: with it, the compiler would make a constant of a new one, and clear it all.
struct Path {
    words: MaybeUninit<[u64; 2 * REMEMBERED]>,
}

impl Path {
    #[inline(always)]
    fn new() -> Self {
        Self { words: MaybeUninit::uninit() }
    }

    /// Appends a link to a path of a length.
    #[inline(always)]
    fn push(&mut self, len: &mut usize, link: &Link) {
        let to = u64::from(link.owner) << 32 | u64::from(link.to);
        let at = self.words.as_mut_ptr().cast::<u64>();
        let i = len.wrapping_mul(2) & (2 * REMEMBERED - 1);
        // SAFETY: two words, the first of which has an even number.
        unsafe {
            at.add(i).write_volatile(link.at);
            at.add(i.wrapping_add(1)).write_volatile(to);
        }
        *len = len.wrapping_add(1);
    }

    /// Returns the link with a number from the beginning of a path of a length on; `None` when it is
    /// not remembered.
    ///
    /// # Safety
    /// So many links were pushed.
    #[inline(always)]
    unsafe fn get(&self, len: usize, i: usize) -> Option<Link> {
        if i >= len || i.wrapping_add(REMEMBERED) < len {
            return None;
        }
        let at = self.words.as_ptr().cast::<u64>();
        let i = i.wrapping_mul(2) & (2 * REMEMBERED - 1);
        // SAFETY: two words that were written, as `i` is below the length, which the caller knows.
        let (at, to) =
            unsafe { (at.add(i).read_volatile(), at.add(i.wrapping_add(1)).read_volatile()) };
        Some(Link { at, owner: (to >> 32) as u32, to: to as u32 })
    }
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

    /// Finds the place of a key, remembering the last links on the way to a leaf. `None` when
    /// somebody changes the trie, or when the place is not at one of those: `up_to` has the offset of
    /// the last node then whose links are to be remembered next time.
    ///
    /// All keys that a node ever had below it begin with the same bytes. So the leaf at the end of a
    /// path tells how each node on it goes on, as long as the version stays the same; whether a link
    /// of the path is still in the trie is for the caller to look at, under its lock.
    #[inline(never)]
    fn place(&self, key: &Key, up_to: &mut usize) -> Option<Place> {
        let known = std::mem::replace(up_to, usize::MAX);
        let mut link = self.root_link();
        if link.to == 0 {
            return Some(Place::Empty(link));
        }
        let (mut path, mut len) = (Path::new(), 0usize);
        path.push(&mut len, &link);
        let mut least = 0usize;
        // Follows the key, and where that leads nowhere, the first child.
        let leaf = loop {
            let at = self.memory.block(link.to)?;
            if link.to & LEAF != 0 {
                break at;
            }
            let node = Node::at(at);
            let offset = node.offset();
            if offset < least {
                return None;
            }
            least = offset.wrapping_add(1);
            link = match node.step(key).map(|i| self.child_link(link.to, &node, i)) {
                Some(next) if next.to != 0 => next,
                _ => self.child_link(link.to, &node, node.live_from(0)?.0),
            };
            if offset <= known {
                path.push(&mut len, &link);
            }
        };
        let found = self.key_of(leaf);
        let d = key.common(&found);
        if d == key.len && d == found.len {
            return Some(Place::Leaf(link, leaf));
        }
        if known != usize::MAX && d != known {
            return None;
        }
        // The last link that is not below where the key parts.
        let mut i = len.wrapping_sub(1);
        loop {
            // SAFETY: so many were pushed.
            let Some(link) = (unsafe { path.get(len, i) }) else {
                *up_to = d;
                return None;
            };
            let node = match self.memory.block(link.owner) {
                Some(owner) if i != 0 => Node::at(owner),
                _ => return Some(Place::Above(link, d, found.byte(d))),
            };
            if node.offset() < d {
                return Some(Place::Above(link, d, found.byte(d)));
            }
            i = i.wrapping_sub(1);
            if node.offset() == d {
                let Some(symbol) = node.step(key) else {
                    // SAFETY: as before.
                    let above = unsafe { path.get(len, i) };
                    if above.is_none() {
                        *up_to = d;
                    }
                    return above.map(|above| Place::Within(above, node));
                };
                let empty = self.child_link(link.owner, &node, symbol);
                // By now somebody else may have put something there.
                return (empty.to == 0).then_some(Place::Empty(empty));
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
        let Some(mut seat) = self.sit() else { return -i64::from(EBUSY) };
        loop {
            // SAFETY: the caller's duty.
            let done = unsafe { self.update_seated(&seat, key, value, flags) };
            if done == -i64::from(ENOMEM) && !scavenged {
                scavenged = true;
                self.scavenge(&seat);
                continue;
            }
            self.leave(seat);
            // Other heaps may have reserved what there is room for, or a writer that died.
            if done != -i64::from(ENOSPC) || counted || !self.is_count_suspect() {
                return done;
            }
            counted = true;
            if !self.count_anew() {
                return -i64::from(EBUSY);
            }
            seat = self.first_seat();
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
        let hash = self.prefetch_hash(&key);
        let (mut tries, mut up_to) = (0u32, usize::MAX);
        while tries < TRIES {
            let version = self.memory.version().load(Acquire);
            let done = match &self.place(&key, &mut up_to) {
                // SAFETY: the caller's duty.
                Some(place) => unsafe {
                    self.put(seat, version, place, (&key, hash), (leaf, class), value, flags)
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

    /// Hashes a key for the cache, if there is one, and asks for what will be changed there: it
    /// comes while the key's place is looked for.
    #[inline(always)]
    fn prefetch_hash(&self, key: &Key) -> u64 {
        if !self.has_cache() {
            return 0;
        }
        let hash = key.hash(&self.seeds);
        self.prefetch_bucket(hash);
        hash
    }

    /// Stores a value over another where there is no memory for anything else.
    ///
    /// # Safety
    /// As [`QpTrie::update`].
    #[cold]
    #[inline(never)]
    unsafe fn overwrite_only(&self, key: &Key, value: *const u8, flags: u64) -> i64 {
        let (mut tries, mut up_to) = (0u32, usize::MAX);
        while tries < TRIES {
            let version = self.memory.version().load(Acquire);
            if let Some(place) = &self.place(key, &mut up_to) {
                let Place::Leaf(link, at) = place else { return -i64::from(ENOMEM) };
                if flags == update::NOEXIST {
                    return -i64::from(EEXIST);
                }
                if self.memory.geometry.value_size > 8 {
                    return -i64::from(ENOMEM);
                }
                // SAFETY: the caller's duty.
                match unsafe { self.overwrite(version, link, *at, value) } {
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
        (key, hash): (&Key, u64),
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
                self.exchange(seat, version, link, hash, leaf)
            }
            _ if flags == update::EXIST => {
                if self.is_version(version) {
                    Ok(-i64::from(ENOENT))
                } else {
                    Err(NotDone::Again)
                }
            }
            Place::Empty(link) => self.insert(seat, version, link, None, (key, hash), leaf),
            Place::Above(link, d, other) => {
                self.insert_above(seat, version, link, (*d, *other), (key, hash), leaf)
            }
            Place::Within(link, node) => {
                self.insert(seat, version, link, Some(*node), (key, hash), leaf)
            }
        }
    }

    /// Puts a leaf in the place of another with the same key.
    fn exchange(
        &self,
        seat: &Seat,
        version: u64,
        link: &Link,
        hash: u64,
        (leaf, class): (u32, u32),
    ) -> Result<i64, NotDone> {
        let locks = self.lock_nodes(link.owner, link.owner, link.owner)?;
        let good = self.holds(link) && self.is_version(version);
        if good {
            let bucket = self.open_bucket(hash);
            let before = self.uncache_leaf(bucket, link.to);
            self.epochs.inherit(self.row(leaf), self.row(link.to));
            let mut change = self.change(seat);
            change.store(link.at, leaf);
            change.take(self, class);
            change.retire(self, link.to, Some(class));
            change.commit(self);
            let now = self.cache_leaf(bucket, leaf);
            self.close_bucket(bucket, before, now);
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
        (key, hash): (&Key, u64),
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
        let free = match &node {
            Some(node) => Node::at(node.at).head == node.head,
            None => true,
        };
        let good = self.holds(link) && free && self.is_version(version);
        let result = if !good {
            Err(NotDone::Again)
        } else if !self.reserve_element(seat) {
            Ok(-i64::from(ENOSPC))
        } else {
            let bucket = self.open_bucket(hash);
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
                    self.retire_node(&mut change, node, link.to);
                }
                _ => change.store(link.at, leaf),
            }
            change.take(self, class);
            change.count(self, 1);
            change.commit(self);
            let now = self.cache_leaf(bucket, leaf);
            self.close_bucket(bucket, Cached::Gone, now);
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
        (d, other): (usize, Symbol),
        (key, hash): (&Key, u64),
        (leaf, class): (u32, u32),
    ) -> Result<i64, NotDone> {
        let (to, block, node_class) = self.node_block(seat, size(2, false))?;
        let locks = self.lock_nodes(link.owner, block, block)?;
        let good = self.holds(link) && self.is_version(version);
        let result = match good {
            false => Err(NotDone::Again),
            true if !self.reserve_element(seat) => Ok(-i64::from(ENOSPC)),
            true => {
                let bucket = self.open_bucket(hash);
                self.epochs.stamp(self.row(leaf));
                // SAFETY: the block is of the class for the node, and in no one's hands; the keys
                // differ at the offset.
                unsafe { Node::make_fork(to, d, (key.byte(d), leaf), (other, link.to)) };
                let mut change = self.change(seat);
                change.store(link.at, block);
                change.take(self, node_class);
                change.take(self, class);
                change.count(self, 1);
                change.commit(self);
                let now = self.cache_leaf(bucket, leaf);
                self.close_bucket(bucket, Cached::Gone, now);
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

    fn retire_node(&self, change: &mut super::heap::Change<'_>, node: &Node, block: u32) {
        change.retire(self, block, self.memory.geometry.node_class(node.size()));
    }

    fn retire_leaf(&self, change: &mut super::heap::Change<'_>, leaf: u32, at: *mut u8) {
        let g = &self.memory.geometry;
        change.retire(self, leaf, g.class(g.leaf_bytes(self.key_of(at).len as u64)));
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
        self.unreserve_elements(&seat);
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
                return self.has_key(at, key).then_some((above, link, at));
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
        if self.has_cache() {
            self.prefetch_cached(self.prefetch_hash(key));
        }
        let Some((above, link, leaf)) = self.links_to(key) else {
            return if self.is_version(version) { Ok(0) } else { Err(NotDone::Again) };
        };
        let Some(above) = above else {
            return self.remove_last(seat, version, &link, leaf, how);
        };
        let node = self.memory.block(link.owner).map(Node::at).ok_or(NotDone::Again)?;
        // The leaf's own bytes: a program's key may change meanwhile.
        let own = self.key_of(leaf);
        let hash = own.hash(&self.seeds);
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
        let number = node.find(symbol).unwrap_or(u32::MAX);
        let there = number != u32::MAX
            && self.memory.offset_of(node.child(number).as_ptr().cast()) == link.at;
        let good = self.holds(&above)
            && self.holds(&link)
            && there
            && Node::at(node.at).head == node.head
            && self.is_version(version);
        if good {
            let bucket = self.open_bucket(hash);
            let before = self.uncache_leaf(bucket, link.to);
            let mut change = self.change(seat);
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
                self.retire_node(&mut change, &node, above.to);
            }
            self.finish_removal(&mut change, (link.to, leaf), how);
            self.close_bucket(bucket, before, Cached::Gone);
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
        let hash = self.key_of(leaf).hash(&self.seeds);
        let locks = self.lock_nodes(0, 0, 0)?;
        let good = self.holds(link) && self.is_version(version);
        if good {
            let bucket = self.open_bucket(hash);
            let before = self.uncache_leaf(bucket, link.to);
            let mut change = self.change(seat);
            change.store(link.at, 0);
            self.finish_removal(&mut change, (link.to, leaf), how);
            self.close_bucket(bucket, before, Cached::Gone);
        }
        self.unlock_nodes(locks);
        if good { Ok(link.to) } else { Err(NotDone::Again) }
    }

    #[inline(always)]
    fn finish_removal(
        &self,
        change: &mut super::heap::Change<'_>,
        (leaf, at): (u32, *mut u8),
        how: Removal,
    ) {
        change.count(self, -1);
        if how == Removal::Retire {
            self.retire_leaf(change, leaf, at);
        }
        change.commit(self);
    }

    /// Puts a leaf that was detached into limbo.
    pub(super) fn give_back(&self, leaf: u32) -> bool {
        let Some(seat) = self.sit() else { return false };
        let done = self.make_room(&seat).is_ok();
        if done {
            let mut change = self.change(&seat);
            if let Some(at) = self.memory.block(leaf) {
                self.retire_leaf(&mut change, leaf, at);
            }
            change.commit(self);
        }
        self.leave(seat);
        done
    }
}
