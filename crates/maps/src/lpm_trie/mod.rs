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
//! | insert | new nodes, filled | link above := node | |
//! | replace | value of at most 8 bytes: nothing; more: the place not in use | value, or state | |
//! | delete, two children | | state := no value | |
//! | delete, else | | link above := child, sibling or nothing | nodes into the pool |
//!
//! A writer's death can leave nodes in no list and the count wrong; who takes the lock over finds
//! both out by looking each node up ([`LpmTrie::repair`]).
//!
//! Walks and `next_key` go in the kernel's order: what is below a prefix comes before it, and 0
//! before 1.

mod change;
mod key;
mod search;

use std::sync::atomic::{Ordering::Acquire, Ordering::Relaxed, fence};

use skep_isa::MapFlags;

use crate::def::MapDef;
use crate::dump::position::Strict;
use crate::error::{E2BIG, EEXIST, EINVAL, ENOENT, ENOMEM, ENOSPC, MapError};
use crate::layout::{Areas, Layout};
use crate::map_file::MapFile;
use crate::ops::{KeyWalk, MapOps, ProgOps, UserOps, WalkOps};
use crate::shm::epoch::InsertionEpochs;
use crate::shm::trie::{Geometry, Node, TrieMemory};
use crate::shm::{PAGE, copy};

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

impl LpmTrie {
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
