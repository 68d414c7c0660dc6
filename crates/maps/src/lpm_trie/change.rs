//! Changing a trie, under its lock: each change is one store. The table in [`super`] lists them.

use std::sync::atomic::{AtomicU32, Ordering::Relaxed, Ordering::Release, fence};

use skep_isa::map::update;

use super::key::Key;
use super::{LpmTrie, row};
use crate::error::{EBUSY, EEXIST, EINVAL, ENOENT, ENOMEM, ENOSPC};
use crate::shm::lock::{self, Held};
use crate::shm::trie::{NO_VALUE, Node, SECOND};

/// Where a key belongs in the tree.
#[derive(Clone, Copy)]
struct Place<'a> {
    /// The node above, and the link that leads to it.
    parent: Option<(&'a AtomicU32, Node<'a>)>,
    /// The link that leads to `node`, or would to the key.
    link: &'a AtomicU32,
    node: Option<Node<'a>>,
    /// Bits that the key shares with the node.
    common: u32,
}

impl LpmTrie {
    pub(super) fn lock(&self) -> Option<Held> {
        let held = lock::acquire(self.memory.lock()).ok()?;
        if held.recovered {
            self.repair();
        }
        Some(held)
    }

    pub(super) fn release(&self, held: Held) {
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
        let mut place = Place { parent: None, link: self.memory.root(), node: None, common: 0 };
        let mut least = 0u32;
        loop {
            let link = place.link.load(Relaxed);
            let Some(node) = self.memory.node_by(&nodes, link) else { return place };
            let length = node.length_by(&nodes, link);
            if length >= key.length
                || length < least
                // SAFETY: callers have checked that the key's length is at most the bits of an
                // address; `length` is below it and not below `least`.
                || !unsafe { key.begins_with(&node, least.saturating_sub(1), length) }
            {
                // SAFETY: at most the key's length, which is at most the bits of an address.
                place.common = unsafe { key.common(&node, length.min(key.length)) };
                place.node = Some(node);
                return place;
            }
            least = length.wrapping_add(1);
            place.parent = Some((place.link, node));
            place.link = node.child(key.bit(length));
        }
    }

    /// Stores a value under a prefix; 0 or a negative errno.
    ///
    /// # Safety
    /// `key` and `value` point to a key and a value of this map.
    pub(super) unsafe fn update(&self, key: *const u8, value: *const u8, flags: u64) -> i64 {
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
        let Place { link, node, common, .. } = self.descend(key);
        let below = link.load(Relaxed);
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
        // SAFETY: the value is readable, as the caller promises; the lock is held.
        let state = unsafe { new.set_value(key.length, value) };
        new.state().store(state, Relaxed);
        self.epochs.stamp(row(&new));
        let leaf = self.memory.link(&new, key.length);
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
                // SAFETY: the key is one of this map; nobody sees the node yet.
                unsafe { self.fill(&fork, key, common) };
                fork.state().store(common | NO_VALUE, Relaxed);
                let bit = key.bit(common);
                fork.child(bit).store(leaf, Relaxed);
                fork.child(!bit).store(below, Relaxed);
                self.memory.link(&fork, common)
            }
        };
        // Pairs with the Acquire loads of readers.
        link.store(published, Release);
        self.memory.count().store(self.memory.count().load(Relaxed).wrapping_add(1), Relaxed);
        0
    }

    /// Fills a node that is in no list: without children and value.
    ///
    /// # Safety
    /// As [`LpmTrie::update`].
    #[inline(never)]
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
    pub(super) unsafe fn remove(&self, key: *const u8) -> i64 {
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

    pub(super) fn remove_locked(&self, key: &Key) -> i64 {
        let Place { parent, link, node: Some(node), common } = self.descend(key) else {
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
                    link.store(left | right, Release);
                    self.renew();
                }
            }
            self.put(&node);
        }
        self.memory.count().store(self.memory.count().load(Relaxed).saturating_sub(1), Relaxed);
        0
    }
}
