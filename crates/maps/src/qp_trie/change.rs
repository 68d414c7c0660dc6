//! Changing a trie. The table in [`super`] lists what each change stores.

use std::mem::MaybeUninit;
use std::sync::atomic::{Ordering::Acquire, Ordering::Relaxed, fence};

use skep_isa::map::update;

use super::QpTrie;
use super::heap::{Change, Locks, NotDone, Seat, Stores};
use super::key::Key;
use super::node::{Node, Symbol, size};
use crate::error::{EBUSY, EEXIST, EINVAL, ENOENT, ENOMEM, ENOSPC};
use crate::shm::qp::{LEAF, OBSOLETE, QpMemory, WordAt};

/// Tries of a change while others change the same place.
const TRIES: u32 = 100_000;

/// The last links of a path that are remembered; more only where keys are very long.
const REMEMBERED: usize = 32;

/// A word that leads to a block: the root, or a child of a node.
#[derive(Clone, Copy)]
struct Link {
    at: WordAt,
    /// The node that it is in; 0 for the root.
    owner: u32,
    /// The node's address, and how far behind it the word lies; null for the root.
    node: *mut u8,
    byte: u64,
    /// What it led to.
    to: u32,
}

/// Whose a key is.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum Owner {
    /// A user's, who does not change it meanwhile.
    User,
    /// A program's: others may store to it.
    Program,
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

/// The last links of a path: for each where in its node it lies, and what it led to. Every access is
/// volatile, else the compiler would use vector registers for several words at once, which programs
/// in the middle of an event must keep. How long the path is stands outside: with it, the compiler
/// would make a constant of a new one, and clear it all.
struct Path {
    words: MaybeUninit<[u64; REMEMBERED]>,
}

impl Path {
    #[inline(always)]
    fn new() -> Self {
        Self { words: MaybeUninit::uninit() }
    }

    /// Appends a link to a path of a length.
    #[inline(always)]
    fn push(&mut self, len: &mut usize, byte: u64, to: u32) {
        let at = self.words.as_mut_ptr().cast::<u64>();
        // SAFETY: one of the words.
        unsafe { at.add(*len & (REMEMBERED - 1)).write_volatile(byte << 32 | u64::from(to)) };
        *len = len.wrapping_add(1);
    }

    /// Returns the link with a number from the beginning of a path of a length on: where in its node
    /// it lies, and what it led to. `None` when it is not remembered.
    ///
    /// # Safety
    /// So many links were pushed.
    #[inline(always)]
    unsafe fn get(&self, len: usize, i: usize) -> Option<(u64, u32)> {
        if i >= len || i.wrapping_add(REMEMBERED) < len {
            return None;
        }
        let at = self.words.as_ptr().cast::<u64>();
        // SAFETY: a word that was written, as `i` is below the length, which the caller knows.
        let word = unsafe { at.add(i & (REMEMBERED - 1)).read_volatile() };
        Some((word >> 32, word as u32))
    }
}

impl QpTrie {
    /// Returns the link that lies in a node at a byte, or is the root where there is no node.
    #[inline(always)]
    fn link(&self, owner: u32, byte: u64, to: u32) -> Link {
        self.link_in(owner, self.memory.block(owner).unwrap_or(std::ptr::null_mut()), byte, to)
    }

    /// As [`QpTrie::link`], for who knows the node's address.
    #[inline(always)]
    fn link_in(&self, owner: u32, node: *mut u8, byte: u64, to: u32) -> Link {
        let at = match node.is_null() {
            true => QpMemory::ROOT_AT,
            false => self.memory.place_in(node, byte),
        };
        Link { at, owner, node, byte, to }
    }

    /// What has to be locked by who stores where a link lies.
    #[inline(always)]
    fn locks_of(&self, link: &Link) -> Locks {
        match link.node.is_null() {
            true => Locks::ROOT,
            false => Locks::of_child(link.owner, &Node::at(link.node), link.byte),
        }
    }

    /// Tells whether a link, whose owner is locked, still leads where it did.
    #[inline(always)]
    fn holds(&self, link: &Link) -> bool {
        let live = link.node.is_null() || !Node::at(link.node).is_obsolete();
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
        let mut to = self.memory.root().load(Acquire);
        if to == 0 {
            // Else the compiler would clear several words at once, with a vector register.
            return Some(Place::Empty(self.link(0, 0, std::hint::black_box(to))));
        }
        let (mut path, mut len) = (Path::new(), 0usize);
        path.push(&mut len, 0, to);
        let mut least = 0usize;
        // Follows the key. Where that leads nowhere, the key parts at this node or above, as any leaf
        // below tells: the first one. `links` counts those that may be below where the key parts.
        let mut links = 1usize;
        let leaf = loop {
            if to & LEAF != 0 {
                break self.memory.block(to)?;
            }
            let node = Node::at(self.memory.node_block(to)?);
            let offset = node.offset();
            if offset < least {
                return None;
            }
            least = offset.wrapping_add(1);
            let byte = node.way(key);
            // SAFETY: it is the way.
            to = if byte != 0 { unsafe { node.child_on(byte) }.load(Acquire) } else { 0 };
            if to == 0 {
                links = 0;
                break self.first_leaf(&node)?;
            }
            if offset <= known {
                path.push(&mut len, byte, to);
            }
        };
        let found = self.key_of(leaf);
        let d = key.common(&found);
        // SAFETY: so many were pushed.
        let remembered = |i: usize| unsafe { path.get(len, i) };
        let mut i = len.wrapping_sub(links);
        if d == key.len && d == found.len {
            // SAFETY: so many were pushed.
            let link = unsafe { self.remembered_link(&path, len, i) };
            return link.map(|link| Place::Leaf(link, leaf));
        }
        if known != usize::MAX && d != known {
            return None;
        }
        // The last link that is not below where the key parts.
        while i != 0 {
            let Some((_, owner)) = remembered(i.wrapping_sub(1)) else {
                *up_to = d;
                return None;
            };
            let node = Node::at(self.memory.block(owner)?);
            if node.offset() < d {
                break;
            }
            i = i.wrapping_sub(1);
            if node.offset() == d {
                let Some(number) = node.step(key) else {
                    // SAFETY: as before.
                    let above = unsafe { self.remembered_link(&path, len, i) };
                    if above.is_none() {
                        *up_to = d;
                    }
                    return above.map(|above| Place::Within(above, node));
                };
                let empty = self.link(owner, node.byte_of_child(number), 0);
                // By now somebody else may have put something there.
                let is_empty = self.memory.at32(empty.at).load(Acquire) == 0;
                return is_empty.then_some(Place::Empty(empty));
            }
        }
        // SAFETY: as before.
        let above = unsafe { self.remembered_link(&path, len, i) };
        if above.is_none() {
            *up_to = d;
        }
        above.map(|link| Place::Above(link, d, found.byte(d)))
    }

    /// Finds the first leaf below a node; `None` when somebody changes the trie, and for damage.
    #[inline(always)]
    fn first_leaf(&self, node: &Node) -> Option<*mut u8> {
        let mut node = *node;
        loop {
            let (_, to) = node.live_from(0)?;
            let at = self.memory.block(to)?;
            if to & LEAF != 0 {
                return Some(at);
            }
            let below = Node::at(at);
            if below.offset() <= node.offset() {
                return None;
            }
            node = below;
        }
    }

    /// Returns a link of a path, as [`Path::get`] does.
    ///
    /// # Safety
    /// As there.
    #[inline(always)]
    unsafe fn remembered_link(&self, path: &Path, len: usize, i: usize) -> Option<Link> {
        // SAFETY: the caller's duty.
        let remembered = |i: usize| unsafe { path.get(len, i) };
        let (byte, to) = remembered(i)?;
        let owner = match i {
            0 => 0,
            _ => remembered(i.wrapping_sub(1))?.1,
        };
        Some(self.link(owner, byte, to))
    }

    /// Stores a value under a key; 0 or a negative errno.
    ///
    /// # Safety
    /// The key is readable, and `value` points to a value's size in readable bytes.
    pub(super) unsafe fn update(
        &self,
        key: &Key,
        whose: Owner,
        value: *const u8,
        flags: u64,
    ) -> i64 {
        if flags > update::EXIST || key.len == 0 || key.len as u64 > self.memory.geometry.max_key {
            return -i64::from(EINVAL);
        }
        let (mut counted, mut scavenged) = (false, false);
        // Of a program's key the hash counts that is taken when the key is in the leaf.
        let hash = if whose == Owner::User { self.prefetch_hash(key) } else { 0 };
        let Some(mut seat) = self.sit() else { return -i64::from(EBUSY) };
        loop {
            // SAFETY: the caller's duty.
            let done = unsafe { self.update_seated(&seat, (key, hash), whose, value, flags) };
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
    #[inline(always)]
    unsafe fn update_seated(
        &self,
        seat: &Seat,
        (key, hash): (&Key, u64),
        whose: Owner,
        value: *const u8,
        flags: u64,
    ) -> i64 {
        let g = &self.memory.geometry;
        if let Err(why) = self.make_room(seat) {
            return errno(why);
        }
        let Some(class) = g.class(g.leaf_bytes(key.len as u64)) else { return -i64::from(ENOMEM) };
        // The leaf is made first: from here on a program's key is what is in it, whoever changes the
        // program's.
        let leaf = match self.peek(seat, class) {
            Ok(block) => block | LEAF,
            Err(NotDone::NoMemory) => {
                // SAFETY: the caller's duty.
                return unsafe { self.overwrite_only(seat, key, value, flags) };
            }
            Err(why) => return errno(why),
        };
        let Some(at) = self.memory.block(leaf) else { return -i64::from(ENOMEM) };
        // SAFETY: the block is of the class for the key, and in no one's hands; the rest is the
        // caller's duty.
        let own = unsafe {
            self.memory.fill_leaf(at, key.at, key.len);
            self.memory.set_value(at, value);
            Key::new(self.memory.key_at(at), key.len)
        };
        // What most keys need besides: it comes while their place is looked for.
        self.prefetch_next(seat, size(2, false));
        // What was just stored is not yet there to be loaded in other pieces.
        let (key, hash) = match whose {
            Owner::User => (*key, hash),
            Owner::Program => (own, self.prefetch_hash(&own)),
        };
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

    /// Hashes a key for the cache, if there is one.
    #[inline(always)]
    fn hash_of(&self, key: &Key) -> u64 {
        if self.has_cache() { key.hash(&self.seeds) } else { 0 }
    }

    /// As [`QpTrie::hash_of`], and asks for what will be changed there: it comes while the key's place
    /// is looked for.
    #[inline(always)]
    fn prefetch_hash(&self, key: &Key) -> u64 {
        let hash = self.hash_of(key);
        if self.has_cache() {
            self.prefetch_bucket(hash);
        }
        hash
    }

    /// Stores a value over another where there is no memory for anything else.
    ///
    /// # Safety
    /// As [`QpTrie::update`].
    #[cold]
    #[inline(never)]
    unsafe fn overwrite_only(&self, seat: &Seat, key: &Key, value: *const u8, flags: u64) -> i64 {
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
                match unsafe { self.overwrite(seat, version, link, *at, value) } {
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
        seat: &Seat,
        version: u64,
        link: &Link,
        leaf: *mut u8,
        value: *const u8,
    ) -> Result<i64, NotDone> {
        let locks = self.locks_of(link);
        self.lock_stripes(seat, locks)?;
        let good = self.holds(link) && self.is_version(version);
        if good {
            // SAFETY: the leaf cannot leave the trie while the node above it is locked; the rest is
            // the caller's duty.
            unsafe { self.memory.set_value(leaf, value) };
        }
        self.unlock_stripes(locks);
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
                    return unsafe { self.overwrite(seat, version, link, *at, value) };
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
        let locks = self.locks_of(link).and(self.locks_of_hash(hash));
        self.lock_stripes(seat, locks)?;
        let good = self.holds(link) && self.is_version(version);
        if good {
            let cache = Some(self.recache(seat, hash, link.to, leaf));
            self.epochs.inherit(self.row(leaf), self.row(link.to));
            let mut change = self.change(seat);
            change.retire(link.to, Some(class));
            change.commit(Stores {
                link: Some((link.at, leaf)),
                leaf: Some(class),
                cache,
                ..Stores::default()
            });
        }
        self.unlock_stripes(locks);
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
        let mut locks = self.locks_of(link).and(self.locks_of_hash(hash));
        if let Some(node) = &node {
            locks = locks.and(Locks::of_node(link.to, node));
        }
        self.lock_stripes(seat, locks)?;
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
            self.epochs.stamp(self.row(leaf));
            let mut change = self.change(seat);
            let first = Stores {
                link: Some((link.at, leaf)),
                leaf: Some(class),
                more: 1,
                cache: Some(self.recache(seat, hash, 0, leaf)),
                ..Stores::default()
            };
            match (&node, copy) {
                (Some(node), Some((to, block, node_class))) => {
                    // SAFETY: the block is of the class for the copy, and in no one's hands; the node
                    // is locked and lacks the symbol.
                    unsafe { node.copy_with(to, symbol, leaf) };
                    let obsolete = Some(self.retire_node(&mut change, node, link.to));
                    let link = Some((link.at, block));
                    change.commit(Stores { link, obsolete, node: Some(node_class), ..first });
                }
                _ => change.commit(first),
            }
            Ok(0)
        };
        self.unlock_stripes(locks);
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
        let locks = self.locks_of(link).and(self.locks_of_hash(hash));
        self.lock_stripes(seat, locks)?;
        let good = self.holds(link) && self.is_version(version);
        let result = match good {
            false => Err(NotDone::Again),
            true if !self.reserve_element(seat) => Ok(-i64::from(ENOSPC)),
            true => {
                self.epochs.stamp(self.row(leaf));
                // SAFETY: the block is of the class for the node, and in no one's hands; the keys
                // differ at the offset.
                unsafe { Node::make_fork(to, d, (key.byte(d), leaf), (other, link.to)) };
                self.change(seat).commit(Stores {
                    link: Some((link.at, block)),
                    obsolete: None,
                    node: Some(node_class),
                    leaf: Some(class),
                    more: 1,
                    cache: Some(self.recache(seat, hash, 0, leaf)),
                });
                Ok(0)
            }
        };
        self.unlock_stripes(locks);
        result
    }

    /// Asks for the block that a node of some bytes would get.
    #[inline(always)]
    fn prefetch_next(&self, seat: &Seat, bytes: u64) {
        if let Some(class) = self.memory.geometry.node_class(bytes) {
            let last = self.memory.magazine_count(seat.heap, class).wrapping_sub(1);
            let slot = self.memory.magazine_slot_at(seat.heap, class, last);
            self.memory.prefetch_block(self.memory.at32(slot).load(Relaxed));
        }
    }

    /// Finds a block for a node: its address, reference and class.
    fn node_block(&self, seat: &Seat, bytes: u64) -> Result<(*mut u8, u32, u32), NotDone> {
        let class = self.memory.geometry.node_class(bytes).ok_or(NotDone::Again)?;
        let block = self.peek(seat, class)?;
        let at = self.memory.block(block).ok_or(NotDone::NoMemory)?;
        Ok((at, block, class))
    }

    /// Puts a node into limbo; returns the store that tells of it.
    #[inline(always)]
    fn retire_node(&self, change: &mut Change<'_>, node: &Node, block: u32) -> (WordAt, u32) {
        change.retire(block, self.memory.geometry.node_class(node.size()));
        (self.memory.place_in(node.at, 0), node.head | OBSOLETE)
    }

    #[inline(always)]
    fn retire_leaf(&self, change: &mut Change<'_>, leaf: u32, key_len: usize) {
        let g = &self.memory.geometry;
        change.retire(leaf, g.class(g.leaf_bytes(key_len as u64)));
    }

    /// Removes a key; 0 or a negative errno.
    pub(super) fn remove(&self, key: &Key, whose: Owner) -> i64 {
        match self.remove_leaf(key, whose, Removal::Retire, |_| ()) {
            Ok(_) => 0,
            Err(e) => e,
        }
    }

    /// Removes a key, and copies its last value out.
    pub(super) fn remove_into(&self, key: &Key, value: &mut [u8]) -> i64 {
        // In limbo it keeps its value at least as long as this thread has its heap.
        match self.remove_leaf(key, Owner::User, Removal::Retire, |leaf| {
            self.memory.read_value(leaf, value)
        }) {
            Ok(_) => 0,
            Err(e) => e,
        }
    }

    /// Takes the leaf of a key out of the trie: its reference, for [`QpTrie::give_back`].
    pub(super) fn detach_leaf(&self, key: &Key) -> Result<u32, i64> {
        self.remove_leaf(key, Owner::User, Removal::Detach, |_| ())
    }

    /// Removes a key: its leaf, with which `last` is called when it is out of the trie.
    #[inline(always)]
    fn remove_leaf(
        &self,
        key: &Key,
        whose: Owner,
        how: Removal,
        mut last: impl FnMut(*mut u8),
    ) -> Result<u32, i64> {
        if key.len == 0 {
            return Err(-i64::from(EINVAL));
        }
        let hash = self.prefetch_hash(key);
        let Some(seat) = self.sit() else { return Err(-i64::from(EBUSY)) };
        let mut result = self.remove_seated(&seat, (key, hash), whose, how);
        if result == Err(-i64::from(ENOMEM)) {
            self.scavenge(&seat);
            result = self.remove_seated(&seat, (key, hash), whose, how);
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

    fn remove_seated(
        &self,
        seat: &Seat,
        (key, hash): (&Key, u64),
        whose: Owner,
        how: Removal,
    ) -> Result<u32, i64> {
        self.make_room(seat).map_err(errno)?;
        if self.has_cache() {
            // It comes while the nodes above it are looked at.
            self.prefetch_cached(hash, key.len);
        }
        let mut tries = 0u32;
        while tries < TRIES {
            let version = self.memory.version().load(Acquire);
            match self.remove_once(seat, version, (key, hash), whose, how) {
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
    #[inline(always)]
    fn links_to(&self, key: &Key) -> Option<(Option<Link>, Link, *mut u8)> {
        // The last two links: the nodes that they are in, and where.
        let none = (0u32, std::ptr::null_mut(), 0u64);
        let (mut above, mut owner) = (none, none);
        let mut to = self.memory.root().load(Acquire);
        let mut least = 0usize;
        while to & LEAF == 0 {
            let at = self.memory.node_block(to)?;
            let node = Node::at(at);
            let offset = node.offset();
            if offset < least {
                return None;
            }
            least = offset.wrapping_add(1);
            let byte = node.way(key);
            if byte == 0 {
                return None;
            }
            above = owner;
            owner = (to, at, byte);
            // SAFETY: it is the way.
            to = unsafe { node.child_on(byte) }.load(Acquire);
        }
        let at = self.memory.block(to).filter(|at| self.has_key(*at, key))?;
        let link = self.link_in(owner.0, owner.1, owner.2, to);
        let above = (owner.0 != 0).then(|| self.link_in(above.0, above.1, above.2, owner.0));
        Some((above, link, at))
    }

    /// Removes a key: its leaf, 0 when it is not there.
    #[inline(always)]
    fn remove_once(
        &self,
        seat: &Seat,
        version: u64,
        (key, hash): (&Key, u64),
        whose: Owner,
        how: Removal,
    ) -> Result<u32, NotDone> {
        let Some((above, link, leaf)) = self.links_to(key) else {
            return if self.is_version(version) { Ok(0) } else { Err(NotDone::Again) };
        };
        // The leaf's own bytes: a program's key may change meanwhile.
        let (own, hash) = match whose {
            Owner::User => (*key, hash),
            Owner::Program => {
                let own = self.key_of(leaf);
                (own, self.hash_of(&own))
            }
        };
        let Some(above) = above else {
            return self.clear(seat, version, (None, &link), (&own, hash), how);
        };
        let node = Node::at(link.node);
        let children = node.children();
        if children > 2 && node.may_have_hole(link.byte) {
            return self.clear(seat, version, (Some(&node), &link), (&own, hash), how);
        }
        let number = node.number_of(link.byte);
        // Where memory is short the place stays, and leads nowhere.
        let left = node.left_without(number);
        let copy = match node.is_sparse_with(left) {
            true => match self.node_block(seat, node.size_of_left(left)) {
                Ok(copy) => Some(copy),
                Err(NotDone::NoMemory) => None,
                Err(why) => return Err(why),
            },
            false => None,
        };
        let locks = self.locks_of(&above).and(Locks::of_node(link.owner, &node));
        let locks = locks.and(self.locks_of_hash(hash));
        self.lock_stripes(seat, locks)?;
        let good = self.holds(&above)
            && self.holds(&link)
            && Node::at(node.at).head == node.head
            && self.is_version(version);
        if good {
            let mut change = self.change(seat);
            // Others may have changed this before.
            let now = node.left_without(number);
            let cache = Some(self.recache(seat, hash, link.to, 0));
            let gone = Stores { more: -1, cache, ..Stores::default() };
            if how == Removal::Retire {
                self.retire_leaf(&mut change, link.to, own.len);
            }
            match (now.only(), copy) {
                (Some(sibling), _) => {
                    let obsolete = Some(self.retire_node(&mut change, &node, above.to));
                    let link = Some((above.at, sibling));
                    change.commit(Stores { link, obsolete, ..gone });
                }
                (None, Some((to, block, class))) if now == left => {
                    // SAFETY: the block is of the class for the copy, and in no one's hands; the node
                    // is locked.
                    unsafe { node.copy_left(to, number, left) };
                    let obsolete = Some(self.retire_node(&mut change, &node, above.to));
                    let link = Some((above.at, block));
                    change.commit(Stores { link, obsolete, node: Some(class), ..gone });
                }
                _ => change.commit(Stores { link: Some((link.at, 0)), ..gone }),
            }
        }
        self.unlock_stripes(locks);
        if good { Ok(link.to) } else { Err(NotDone::Again) }
    }

    /// Removes a key from a node that stays as it is, or the only one: its place leads nowhere from now
    /// on.
    fn clear(
        &self,
        seat: &Seat,
        version: u64,
        (node, link): (Option<&Node>, &Link),
        (key, hash): (&Key, u64),
        how: Removal,
    ) -> Result<u32, NotDone> {
        let locks = self.locks_of(link).and(self.locks_of_hash(hash));
        self.lock_stripes(seat, locks)?;
        let good = self.holds(link)
            && node.is_none_or(|node| node.may_have_hole(link.byte))
            && self.is_version(version);
        if good {
            let mut change = self.change(seat);
            let cache = Some(self.recache(seat, hash, link.to, 0));
            if how == Removal::Retire {
                self.retire_leaf(&mut change, link.to, key.len);
            }
            let link = Some((link.at, 0));
            change.commit(Stores { link, more: -1, cache, ..Stores::default() });
        }
        self.unlock_stripes(locks);
        if good { Ok(link.to) } else { Err(NotDone::Again) }
    }

    /// Puts a leaf that was detached into limbo.
    pub(super) fn give_back(&self, leaf: u32) -> bool {
        let Some(seat) = self.sit() else { return false };
        let done = self.make_room(&seat).is_ok();
        if done {
            let mut change = self.change(&seat);
            if let Some(at) = self.memory.block(leaf) {
                self.retire_leaf(&mut change, leaf, self.key_of(at).len);
            }
            change.commit(Stores::default());
        }
        self.leave(seat);
        done
    }
}
