//! `BPF_MAP_TYPE_LPM_TRIE`: elements by prefix; a lookup finds the longest one that its key begins
//! with.
//!
//! Keys are `struct bpf_lpm_trie_key`: the number of bits in four bytes, then the address, its
//! first bit highest. The tree is the kernel's (kernel/bpf/lpm_trie.c): each node has a longer
//! prefix than the one above it, and a next bit decides where to go on.
//!
//! **Readers** take no lock: nodes that left the tree are used again only after the version
//! changed, so a walk that finds the version unchanged has seen a tree that was whole. **Writers**
//! hold the one lock. Each change is one store:
//!
//! | change | prepared first | the store | then |
//! |---|---|---|---|
//! | insert | new nodes, filled | slot above := node | |
//! | replace | value of at most 8 bytes: nothing; more: the place not in use | value, or state | |
//! | delete, two children | | state := no value | |
//! | delete, else | | slot above := child, sibling or nothing | nodes into the pool |
//!
//! A writer's death can leave nodes in no list and the count wrong; who takes the lock over finds
//! both out by looking each node up ([`LpmTrie::repair`]).
//!
//! Walks and `next_key` go in the kernel's order: what is below a prefix comes before it, and 0
//! before 1.

use std::sync::atomic::{
    AtomicU32, Ordering::Acquire, Ordering::Relaxed, Ordering::Release, fence,
};

use skep_isa::MapFlags;
use skep_isa::map::update;

use crate::def::MapDef;
use crate::dump::position::Strict;
use crate::error::{E2BIG, EBUSY, EEXIST, EINVAL, ENOENT, ENOMEM, ENOSPC, MapError};
use crate::layout::{Areas, Layout};
use crate::map_file::MapFile;
use crate::ops::{KeyWalk, MapOps, ProgOps, UserOps, WalkOps};
use crate::shm::epoch::InsertionEpochs;
use crate::shm::lock::{self, Held};
use crate::shm::trie::{Geometry, NO_VALUE, Node, SECOND, TrieMemory};
use crate::shm::{PAGE, copy};

/// Walks without the lock before a reader takes it.
const TRIES: u32 = 64;
/// Walks of a reader that cannot take the lock because its memory is read-only.
const TRIES_READ_ONLY: u32 = 100_000;

fn geometry(def: &MapDef) -> Result<Geometry, MapError> {
    if !def.flags.has(MapFlags::NO_PREALLOC)
        || !def.map_type.row().key.allows(def.key_size)
        || def.value_size == 0
        || def.max_entries == 0
    {
        return Err(def.invalid("it wants the flag `BPF_F_NO_PREALLOC`, keys of 5 to 260 bytes, values, and at least one entry"));
    }
    if def.value_size > 4 << 20 {
        return Err(def.refused("too large", EINVAL));
    }
    Geometry::new(def.max_entries, def.key_size, def.value_size)
        .ok_or_else(|| def.refused("too large", E2BIG))
}

pub(crate) fn layout(def: &MapDef) -> Result<Layout, MapError> {
    geometry(def)
        .map(|g| Layout::with_epochs(g.payload_len, g.nodes).with_initial(PAGE, Areas::NONE))
}

pub(crate) fn open(file: MapFile) -> Result<Box<dyn MapOps>, MapError> {
    let memory = TrieMemory::new(file.object, geometry(&file.def)?)
        .ok_or(MapError::Damaged { what: "the file is too short" })?;
    Ok(Box::new(LpmTrie { memory, epochs: file.epochs, max_entries: file.def.max_entries }))
}

#[derive(Debug)]
struct LpmTrie {
    memory: TrieMemory,
    /// When elements were put in, by the number of their node.
    epochs: InsertionEpochs,
    max_entries: u32,
}

/// A key: bits that count, and the address they are the beginning of.
#[derive(Clone, Copy)]
struct Key {
    length: u32,
    data: *const u8,
    bytes: u64,
    /// The first word of the address, first byte highest.
    first: u64,
}

impl Key {
    /// # Safety
    /// `data` points to `bytes` readable bytes as long as the key is used.
    #[inline(always)]
    unsafe fn new(length: u32, data: *const u8, bytes: u64) -> Self {
        let key = Self { length, data, bytes, first: 0 };
        Self { first: key.load(0), ..key }
    }

    /// Returns a word of the address, first byte highest.
    #[inline(always)]
    fn word(&self, i: u64) -> u64 {
        if i == 0 { self.first } else { self.load(i) }
    }

    #[inline(always)]
    fn load(&self, i: u64) -> u64 {
        let at = i.wrapping_mul(8);
        let left = self.bytes.saturating_sub(at);
        // SAFETY: the maker of the key vouched for `bytes` bytes.
        let word = unsafe {
            if left >= 8 {
                copy::load8(self.data.add(at as usize))
            } else {
                copy::load_tail(self.data.add(at as usize), left as usize & 7)
            }
        };
        word.swap_bytes()
    }

    #[inline(always)]
    fn bit(&self, i: u32) -> bool {
        self.word(u64::from(i >> 6)) >> (63 - (i & 63)) & 1 != 0
    }

    /// Tells whether a node's prefix of some length is the beginning of the address, when that is
    /// known of the first `from` bits.
    ///
    /// # Safety
    /// `from` is at most `length`, and that at most the bits of an address.
    #[inline(always)]
    unsafe fn begins_with(&self, node: &Node<'_>, from: u32, length: u32) -> bool {
        if length < 64 {
            // Two shifts, as one by 64 is none.
            // SAFETY: the first word has bytes of the address, or is where they would be.
            return (self.first ^ unsafe { node.data_word(0) }) >> 1 >> (63 - length) == 0;
        }
        let mut i = from >> 6;
        loop {
            let left = length.wrapping_sub(i << 6);
            // SAFETY: at most the word behind the `length` bits: the caller's promise.
            let differ = self.word(u64::from(i)) ^ unsafe { node.data_word(u64::from(i)) };
            if left <= 64 {
                return left == 0 || differ >> (64u32.wrapping_sub(left) & 63) == 0;
            }
            if differ != 0 {
                return false;
            }
            i = i.wrapping_add(1);
        }
    }

    /// Counts the bits, at most `limit`, that an address shares with a node's.
    ///
    /// # Safety
    /// `limit` is at most the bits of an address.
    #[inline(always)]
    unsafe fn common(&self, node: &Node<'_>, limit: u32) -> u32 {
        let mut i = 0u64;
        loop {
            let at = (i as u32).wrapping_mul(64);
            if at >= limit {
                return limit;
            }
            // SAFETY: below `limit`, the caller's promise.
            let differ = self.word(i) ^ unsafe { node.data_word(i) };
            if differ != 0 {
                return at.wrapping_add(differ.leading_zeros()).min(limit);
            }
            i = i.wrapping_add(1);
        }
    }
}

impl Key {
    /// Tells whether a node's key comes behind in the order of walks.
    fn is_before(&self, node: &Node<'_>) -> bool {
        let length = node.length(node.state().load(Relaxed));
        // SAFETY: at most the node's length, which is cut at the bits of an address.
        let common = unsafe { self.common(node, length.min(self.length)) };
        if common == length {
            length < self.length
        } else {
            common < self.length && !self.bit(common)
        }
    }
}

/// Where a key belongs in the tree.
#[derive(Clone, Copy)]
struct Place<'a> {
    /// The node above, and the slot that leads to it.
    parent: Option<(&'a AtomicU32, Node<'a>)>,
    /// The slot that leads to `node`, or would to the key.
    slot: &'a AtomicU32,
    node: Option<Node<'a>>,
    /// Bits that the key shares with the node.
    common: u32,
}

impl LpmTrie {
    /// # Safety
    /// `key` points to a key of this map.
    #[inline(always)]
    unsafe fn key(&self, key: *const u8) -> Key {
        // SAFETY: a key has four bytes and an address.
        unsafe { Key::new(copy::load_tail(key, 4) as u32, key.add(4), self.memory.geometry.data) }
    }

    /// Runs `f` until nothing that it may have read was used anew meanwhile, at last under the
    /// lock.
    #[inline(always)]
    fn read<T>(&self, mut f: impl FnMut() -> T) -> Option<T> {
        let version = self.memory.version().load(Acquire);
        let result = f();
        fence(Acquire);
        if self.memory.version().load(Relaxed) == version {
            Some(result)
        } else {
            self.read_again(f)
        }
    }

    #[cold]
    #[inline(never)]
    fn read_again<T>(&self, mut f: impl FnMut() -> T) -> Option<T> {
        let writable = self.memory.writable();
        let mut tries = if writable { TRIES } else { TRIES_READ_ONLY };
        while tries > 0 {
            let version = self.memory.version().load(Acquire);
            let result = f();
            fence(Acquire);
            if self.memory.version().load(Relaxed) == version {
                return Some(result);
            }
            std::hint::spin_loop();
            tries = tries.wrapping_sub(1);
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
    fn longest(&self, key: &Key) -> u64 {
        let mut found = 0u64;
        if key.length > self.memory.geometry.bits() {
            return found;
        }
        let nodes = self.memory.nodes;
        let mut slot = self.memory.root().load(Acquire);
        // Lengths grow on the way; only damage makes it longer.
        let mut least = 0u32;
        while let Some(node) = self.memory.node_by(&nodes, slot) {
            let length = node.length_by(&nodes, slot);
            // SAFETY: `length` is at most the key's, which is at most the bits of an address, and
            // not below `least`.
            if length > key.length
                || length < least
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
            slot = node.child(key.bit(length)).load(Acquire);
        }
        found
    }

    /// As [`LpmTrie::longest`]: node and state.
    #[inline(always)]
    fn longest_node(&self, key: &Key) -> Option<(Node<'_>, u32)> {
        let found = self.longest(key);
        let node = self.memory.node(found as u32)?;
        Some((node, (found >> 32) as u32))
    }

    /// Finds where the value of the longest prefix of a key lies, or null.
    #[inline(always)]
    fn value_of(&self, key: &Key) -> *mut u8 {
        self.longest_node(key).map_or(std::ptr::null_mut(), |(node, state)| node.value(state))
    }

    #[cold]
    #[inline(never)]
    fn value_again(&self, key: &Key) -> *mut u8 {
        self.read_again(|| self.value_of(key)).unwrap_or(std::ptr::null_mut())
    }

    fn lock(&self) -> Option<Held> {
        let held = lock::acquire(self.memory.lock()).ok()?;
        if held.recovered {
            self.repair();
        }
        Some(held)
    }

    fn release(&self, held: Held) {
        lock::release(self.memory.lock(), held);
    }

    /// Tells readers that nodes may be used anew from here on.
    fn renew(&self) {
        let version = self.memory.version();
        version.store(version.load(Relaxed).wrapping_add(1), Release);
        fence(Release);
    }

    /// Puts right what a dead holder of the lock left: the pool and the count.
    #[cold]
    #[inline(never)]
    fn repair(&self) {
        self.renew();
        let taken = self.memory.taken().load(Relaxed).min(self.memory.geometry.nodes);
        self.memory.free().store(0, Relaxed);
        let mut count = 0u64;
        let mut r = 1u64;
        while r <= taken {
            if let Some(node) = self.memory.node(r as u32) {
                if self.is_in_tree(&node) {
                    count =
                        count.wrapping_add(u64::from(node.state().load(Relaxed) & NO_VALUE == 0));
                } else {
                    self.put(&node);
                }
            }
            r = r.wrapping_add(1);
        }
        self.memory.count().store(count, Relaxed);
    }

    fn is_in_tree(&self, node: &Node<'_>) -> bool {
        let length = node.length(node.state().load(Relaxed));
        let mut at = self.memory.root().load(Relaxed);
        let mut above = 0u32;
        while let Some(n) = self.memory.node(at) {
            if n.reference == node.reference {
                return true;
            }
            let here = n.length(n.state().load(Relaxed));
            if here >= length || above > here {
                return false;
            }
            above = here.wrapping_add(1);
            // SAFETY: `here` is below a length, which is at most the bits of an address.
            let bit =
                unsafe { node.data_word(u64::from(here >> 6)) } >> (63 - (here & 63)) & 1 != 0;
            at = n.child(bit).load(Relaxed);
        }
        false
    }

    /// Takes a node out of the pool. The lock is held.
    fn take(&self) -> Option<Node<'_>> {
        let free = self.memory.free().load(Relaxed) as u32;
        if let Some(node) = self.memory.node(free) {
            self.memory.free().store(u64::from(node.child(false).load(Relaxed)), Relaxed);
            fence(Release);
            return Some(node);
        }
        let taken = self.memory.taken().load(Relaxed);
        let node = self.memory.node(taken.wrapping_add(1) as u32)?;
        if taken >= self.memory.backed().load(Relaxed) && !self.acquire(taken) {
            return None;
        }
        self.memory.taken().store(taken.wrapping_add(1), Relaxed);
        fence(Release);
        Some(node)
    }

    /// Gives the next nodes memory, before anybody is told that his element is there. The lock is
    /// held.
    #[cold]
    #[inline(never)]
    fn acquire(&self, taken: u64) -> bool {
        let backed = self.memory.acquire(taken);
        if backed > taken {
            self.memory.backed().store(backed, Relaxed);
        }
        backed > taken
    }

    /// Gives a node back that is out of the tree, after [`LpmTrie::renew`]. The lock is held.
    fn put(&self, node: &Node<'_>) {
        node.child(false).store(self.memory.free().load(Relaxed) as u32, Relaxed);
        self.memory.free().store(u64::from(node.reference), Relaxed);
    }

    /// Walks down for a change. The lock is held.
    #[inline(always)]
    fn descend<'a>(&'a self, key: &Key) -> Place<'a> {
        let nodes = self.memory.nodes;
        let mut place = Place { parent: None, slot: self.memory.root(), node: None, common: 0 };
        let mut least = 0u32;
        loop {
            let slot = place.slot.load(Relaxed);
            let Some(node) = self.memory.node_by(&nodes, slot) else { return place };
            let length = node.length_by(&nodes, slot);
            // SAFETY: callers have checked that the key's length is at most the bits of an address;
            // `length` is below it and not below `least`.
            if length >= key.length
                || length < least
                || !unsafe { key.begins_with(&node, least.saturating_sub(1), length) }
            {
                // SAFETY: as above.
                place.common = unsafe { key.common(&node, length.min(key.length)) };
                place.node = Some(node);
                return place;
            }
            least = length.wrapping_add(1);
            place.parent = Some((place.slot, node));
            place.slot = node.child(key.bit(length));
        }
    }

    /// Stores a value under a prefix; 0 or a negative errno.
    ///
    /// # Safety
    /// `key` and `value` point to a key and a value of this map.
    unsafe fn update(&self, key: *const u8, value: *const u8, flags: u64) -> i64 {
        // SAFETY: the caller's duty.
        let key = unsafe { self.key(key) };
        if flags > update::EXIST || key.length > self.memory.geometry.bits() {
            return -i64::from(EINVAL);
        }
        let Some(held) = self.lock() else { return -i64::from(EBUSY) };
        // SAFETY: the caller's duty; the lock is held.
        let result = unsafe { self.update_locked(&key, value, flags) };
        self.release(held);
        result
    }

    /// # Safety
    /// As [`LpmTrie::update`], with the lock held.
    unsafe fn update_locked(&self, key: &Key, value: *const u8, flags: u64) -> i64 {
        let Place { slot, node, common, .. } = self.descend(key);
        let below = slot.load(Relaxed);
        if let Some(node) = node
            && common == key.length
            && node.length(node.state().load(Relaxed)) == key.length
        {
            // SAFETY: the caller's duty.
            return unsafe { self.replace(&node, key, value, flags) };
        }
        if flags == update::EXIST {
            return -i64::from(ENOENT);
        }
        if self.memory.count().load(Relaxed) >= self.memory.geometry.max_entries {
            return -i64::from(ENOSPC);
        }
        // There are twice as many nodes as elements, so there is one, if there is memory for it.
        let Some(new) = self.take() else { return -i64::from(ENOMEM) };
        // SAFETY: the caller's duty; nobody sees the node yet.
        unsafe { self.fill(&new, key, key.length) };
        // SAFETY: as above.
        let state = unsafe { new.set_value(key.length, value) };
        new.state().store(state, Relaxed);
        self.epochs.stamp(row(&new));
        let leaf = self.memory.slot(&new, key.length);
        let published = match node {
            None => leaf,
            // The key is the beginning of the node's: above it.
            Some(node) if common == key.length => {
                // SAFETY: `common` is at most the bits of an address.
                let bit = unsafe { node.data_word(u64::from(common >> 6)) } >> (63 - (common & 63))
                    & 1
                    != 0;
                new.child(bit).store(below, Relaxed);
                leaf
            }
            Some(_) => {
                let Some(fork) = self.take() else {
                    self.put(&new);
                    return -i64::from(ENOMEM);
                };
                // SAFETY: as above.
                unsafe { self.fill(&fork, key, common) };
                fork.state().store(common | NO_VALUE, Relaxed);
                let bit = key.bit(common);
                fork.child(bit).store(leaf, Relaxed);
                fork.child(!bit).store(below, Relaxed);
                self.memory.slot(&fork, common)
            }
        };
        // Pairs with the Acquire loads of readers.
        slot.store(published, Release);
        self.memory.count().store(self.memory.count().load(Relaxed).wrapping_add(1), Relaxed);
        0
    }

    /// Fills a node that is in no list: without children and value.
    ///
    /// # Safety
    /// As [`LpmTrie::update`].
    unsafe fn fill(&self, node: &Node<'_>, key: &Key, length: u32) {
        node.child(false).store(0, Relaxed);
        node.child(true).store(0, Relaxed);
        node.state().store(length, Relaxed);
        // SAFETY: the caller's duty.
        unsafe { node.set_data(key.data) };
    }

    /// Stores the value of a prefix that has a node.
    ///
    /// # Safety
    /// As [`LpmTrie::update_locked`].
    unsafe fn replace(&self, node: &Node<'_>, key: &Key, value: *const u8, flags: u64) -> i64 {
        let state = node.state().load(Relaxed);
        let new = state & NO_VALUE != 0;
        if new && flags == update::EXIST {
            return -i64::from(ENOENT);
        }
        if !new && flags == update::NOEXIST {
            return -i64::from(EEXIST);
        }
        if new && self.memory.count().load(Relaxed) >= self.memory.geometry.max_entries {
            return -i64::from(ENOSPC);
        }
        // SAFETY: the caller's duty. Bits behind the prefix may be others; nobody compares them.
        let after = unsafe {
            node.set_data(key.data);
            node.set_value(state & SECOND | key.length, value)
        };
        if new {
            self.epochs.stamp(row(node));
        }
        node.state().store(after, Release);
        if self.memory.geometry.two_places() {
            // The one that is free now may be filled by the next change: who reads there must
            // notice.
            self.renew();
        }
        if new {
            self.memory.count().store(self.memory.count().load(Relaxed).wrapping_add(1), Relaxed);
        }
        0
    }

    /// Removes a prefix; 0 or a negative errno.
    ///
    /// # Safety
    /// `key` points to a key of this map.
    unsafe fn remove(&self, key: *const u8) -> i64 {
        // SAFETY: the caller's duty.
        let key = unsafe { self.key(key) };
        if key.length > self.memory.geometry.bits() {
            return -i64::from(EINVAL);
        }
        let Some(held) = self.lock() else { return -i64::from(EBUSY) };
        let result = self.remove_locked(&key);
        self.release(held);
        result
    }

    fn remove_locked(&self, key: &Key) -> i64 {
        let Place { parent, slot, node: Some(node), common } = self.descend(key) else {
            return -i64::from(ENOENT);
        };
        let state = node.state().load(Relaxed);
        if state & NO_VALUE != 0 || common != key.length || node.length(state) != key.length {
            return -i64::from(ENOENT);
        }
        let (left, right) = (node.child(false).load(Relaxed), node.child(true).load(Relaxed));
        if left != 0 && right != 0 {
            node.state().store(state | NO_VALUE, Release);
            self.renew();
        } else {
            let fork = parent.filter(|(_, p)| {
                p.state().load(Relaxed) & NO_VALUE != 0 && left == 0 && right == 0
            });
            match fork {
                Some((above, fork)) => {
                    let bit = key.bit(fork.length(fork.state().load(Relaxed)));
                    above.store(fork.child(!bit).load(Relaxed), Release);
                    self.renew();
                    self.put(&fork);
                }
                None => {
                    slot.store(left | right, Release);
                    self.renew();
                }
            }
            self.put(&node);
        }
        self.memory.count().store(self.memory.count().load(Relaxed).saturating_sub(1), Relaxed);
        0
    }

    /// Finds the first element at or below a node: the lowest one on the left.
    fn first(&self, mut at: u32) -> Option<Node<'_>> {
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
    fn after(&self, key: &Key) -> Option<Node<'_>> {
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

    fn user_result(&self, result: i64, flags: u64) -> Result<(), MapError> {
        match -result as i32 {
            0 => Ok(()),
            ENOENT => Err(MapError::NoElement),
            EEXIST => Err(MapError::Exists),
            ENOSPC => Err(MapError::NoSpace { max_entries: self.max_entries }),
            EINVAL => Err(MapError::Flags { flags }),
            ENOMEM => Err(MapError::NoMemory { what: "another element" }),
            _ => Err(BUSY.with_holder()),
        }
    }

    fn read_key(node: &Node<'_>, out: &mut [u8]) {
        if let Some((length, data)) = out.split_first_chunk_mut::<4>() {
            *length = node.length(node.state().load(Relaxed)).to_ne_bytes();
            node.read_data(data);
        }
    }
}

const BUSY: MapError = MapError::Busy { what: "the trie" };

/// The row of [`InsertionEpochs`] that belongs to a node.
fn row(node: &Node<'_>) -> u64 {
    u64::from(node.reference).wrapping_sub(1)
}

impl UserOps for LpmTrie {
    fn user_value_size(&self) -> usize {
        self.memory.geometry.value_size
    }

    fn lookup(&self, key: &[u8], out: &mut [u8], _flags: u64) -> Result<(), MapError> {
        // SAFETY: the front end checked the length of the key.
        let key = unsafe { self.key(key.as_ptr()) };
        let found = self.read(|| {
            // SAFETY: a place has room for a value rounded up.
            self.longest_node(&key)
                .map(|(node, state)| unsafe { copy::load(out, node.value(state)) })
        });
        found.ok_or(BUSY)?.ok_or(MapError::NoElement)
    }

    fn update(&self, key: &[u8], value: &[u8], flags: u64) -> Result<(), MapError> {
        // SAFETY: the front end checked both lengths.
        self.user_result(unsafe { self.update(key.as_ptr(), value.as_ptr(), flags) }, flags)
    }

    fn delete(&self, key: &[u8]) -> Result<(), MapError> {
        // SAFETY: the front end checked the length of the key.
        self.user_result(unsafe { self.remove(key.as_ptr()) }, 0)
    }

    fn next_key(&self, key: Option<&[u8]>, out: &mut [u8]) -> Result<(), MapError> {
        // SAFETY: the front end checked the length of the key.
        let key = key
            .map(|k| unsafe { self.key(k.as_ptr()) })
            .filter(|k| k.length <= self.memory.geometry.bits());
        let found = self.read(|| {
            // As the kernel: a key that is not there begins anew.
            let there = key.filter(|k| {
                self.longest_node(k).is_some_and(|(node, state)| node.length(state) == k.length)
            });
            let next = match &there {
                Some(k) => self.after(k),
                None => self.first(self.memory.root().load(Acquire)),
            };
            next.map(|n| Self::read_key(&n, out))
        });
        found.ok_or(BUSY)?.ok_or(MapError::NoElement)
    }
}

impl WalkOps for LpmTrie {
    fn by_key(&self) -> Option<&dyn KeyWalk> {
        Some(self)
    }

    fn ordered(&self) -> bool {
        true
    }
}

impl ProgOps for LpmTrie {
    unsafe fn prog_lookup(&self, key: *const u8) -> *mut u8 {
        // SAFETY: the caller's duty.
        let key = unsafe { self.key(key) };
        // As `read`, which would keep the walk in a function of its own, with the key in memory.
        let version = self.memory.version().load(Acquire);
        let value = self.value_of(&key);
        fence(Acquire);
        if self.memory.version().load(Relaxed) == version { value } else { self.value_again(&key) }
    }

    unsafe fn prog_update(&self, key: *const u8, value: *const u8, flags: u64) -> i64 {
        // SAFETY: the caller's duty.
        unsafe { self.update(key, value, flags) }
    }

    unsafe fn prog_delete(&self, key: *const u8) -> i64 {
        // SAFETY: the caller's duty.
        unsafe { self.remove(key) }
    }
}

impl KeyWalk for LpmTrie {
    fn step_behind(
        &self,
        last: &[u8],
        strict: &mut Strict,
        key: &mut [u8],
        value: &mut [u8],
    ) -> Result<bool, MapError> {
        // SAFETY: the front end checked the length of the key. As the kernel: behind a prefix
        // longer than any, all begins anew.
        let last = (!last.is_empty())
            .then(|| unsafe { self.key(last.as_ptr()) })
            .filter(|k| k.length <= self.memory.geometry.bits());
        let mut newer = 0;
        let found = self.read(|| {
            newer = 0;
            let mut next = match &last {
                Some(last) => self.after(last),
                None => self.first(self.memory.root().load(Acquire)),
            };
            // No more than there is room for: who puts in more must take out some, and then all of
            // this is done again.
            while let Some(node) = next.filter(|node| {
                self.epochs.is_newer(row(node), strict.number) && newer <= self.max_entries.into()
            }) {
                newer += 1;
                Self::read_key(&node, key);
                // SAFETY: `key` has the length of keys.
                next = self.after(&unsafe { self.key(key.as_ptr()) });
            }
            next.map(|node| {
                Self::read_key(&node, key);
                // SAFETY: a place has room for a value rounded up.
                unsafe { copy::load(value, node.value(node.state().load(Acquire))) };
            })
        });
        strict.newer += newer;
        Ok(found.ok_or(BUSY)?.is_some())
    }

    fn take(&self, key: &[u8], value: &mut [u8]) -> Result<(), MapError> {
        // SAFETY: the front end checked the length of the key.
        let key = unsafe { self.key(key.as_ptr()) };
        let held = self.lock().ok_or(BUSY)?;
        if let Some((node, state)) =
            self.longest_node(&key).filter(|(node, state)| node.length(*state) == key.length)
        {
            // SAFETY: a place has room for a value rounded up.
            unsafe { copy::load(value, node.value(state)) };
        }
        let result = self.remove_locked(&key);
        self.release(held);
        self.user_result(result, 0)
    }
}
