//! `BPF_MAP_TYPE_QP_TRIE`: elements in the order of their keys, which are byte strings of different
//! lengths (or of one).
//!
//! The type was proposed for Linux (`map_extra`, keys and errors are as there); the tree is not the
//! proposed one. A node has a child for each byte that keys have at its offset, and nothing else is
//! in it: bytes that all keys below have in common are looked at in the leaf only. So a lookup takes
//! as many steps as keys part on the way, and a key needs about 13 bytes besides itself and its
//! value.
//!
//! **Readers** take no lock: blocks that left the tree are used again only after the version
//! changed, so a walk that finds the version unchanged has seen a tree that was whole. **Writers**
//! lock the children that change, by stripes, the node that they replace, and the part of the cache
//! that belongs to the key; children of most nodes share one lock. Nodes are immutable but for their
//! children; each change becomes visible by one store:
//!
//! | change | prepared first | the store | then |
//! |---|---|---|---|
//! | insert beside a key | leaf, node with two children | link := node | |
//! | insert into a node | leaf, copy of the node with a child more | link := copy | node into limbo |
//! | replace, up to 8 bytes | | the value | |
//! | replace, more | leaf | link := leaf | old leaf into limbo |
//! | delete, at least half of the children stay, and two | | link := 0, which leads nowhere | leaf into limbo |
//! | delete, fewer stay | copy of the node with those | link := copy | node, leaf into limbo |
//! | delete, one stays | | link above := that child | node, leaf into limbo |
//! | delete, no memory for a copy | | link := 0 | leaf into limbo |
//!
//! A link is the root, or a child of a node. What else belongs to a change is written down before
//! ([`heap`]), so that whoever takes the locks over from a dead writer finishes it. A leaf never
//! moves: programs keep the addresses of values.
//!
//! A hash beside the tree finds the leaf of a key at once, unless the map was made without
//! ([`cache`]).

mod ahead;
mod cache;
mod change;
mod heap;
mod key;
mod node;
mod program_walk;
mod search;
mod spans;
mod walk;

use std::ops::Bound;
use std::sync::atomic::{AtomicU8, AtomicU64, Ordering::Acquire, Ordering::Relaxed, fence};
use std::sync::{Mutex, PoisonError};

use skep_isa::map::DynptrUser;
use skep_isa::{KeyShape, MapFlags};

use self::change::Owner;
use self::key::{Key, Seeds};
use crate::def::MapDef;
use crate::dump::output::Output;
use crate::dump::position::{Position, Strict};
use crate::error::{E2BIG, EEXIST, EINVAL, ENOENT, ENOMEM, ENOSPC, MapError};
use crate::layout::{Areas, Layout};
use crate::map_file::MapFile;
use crate::ops::{
    Element, ElementKey, ExactTake, KeyWalk, LastKey, MapOps, OrderedWalk, PREFETCH_KEYS, ProgOps,
    Span, UserOps, WalkOps,
};
use crate::shm::bits;
use crate::shm::copy;
use crate::shm::epoch::InsertionEpochs;
use crate::shm::lock::{self, Held};
use crate::shm::qp::{Geometry, HEAPS, QpMemory};
use crate::shm::tags::OfUsers;

/// Largest element (the proposed type: what one allocation of the kernel can have).
const MAX_ELEMENT: u64 = 4 << 20;

fn geometry(def: &MapDef) -> Result<Geometry, MapError> {
    if !def.flags.has(MapFlags::NO_PREALLOC) {
        return Err(def.invalid("it wants the flag `BPF_F_NO_PREALLOC`"));
    }
    if def.value_size == 0 || def.max_entries == 0 {
        return Err(def.invalid("value size and number of entries must not be zero"));
    }
    let keys = def.key_shape();
    let longest = keys.max_len() as u64;
    let element = 4 + longest.max(def.map_extra) + u64::from(def.value_size);
    if element.next_multiple_of(2) >= MAX_ELEMENT {
        return Err(def.refused("too large", E2BIG));
    }
    match keys {
        KeyShape::Fixed(_) if def.map_extra != 0 => {
            return Err(def.invalid("with the length of the longest key as `map_extra`, its key size is 16, that of `struct bpf_dynptr`"));
        }
        KeyShape::Fixed(n) if !def.map_type.row().key.allows(n) => {
            return Err(def.invalid("keys of one size have 1 to 256 bytes"));
        }
        KeyShape::Bytes { .. } if def.map_extra > u64::from(KeyShape::LONGEST) => {
            return Err(def.invalid("the longest key, its `map_extra`, is too long"));
        }
        _ => {}
    }
    let with_cache = !def.flags.has(MapFlags::NO_LEAF_CACHE);
    Geometry::new(def.max_entries, longest as u32, def.value_size, with_cache)
        .ok_or_else(|| def.refused("too large", E2BIG))
}

pub(crate) fn layout(def: &MapDef) -> Result<Layout, MapError> {
    geometry(def).map(|g| {
        Layout::with_epochs(g.payload_len, g.rows()).with_initial(g.initial(), Areas::NONE)
    })
}

pub(crate) fn open(file: MapFile) -> Result<Box<dyn MapOps>, MapError> {
    bits::look_at_processor();
    let memory = QpMemory::new(file.object, geometry(&file.def)?)
        .ok_or(MapError::Damaged { what: "the file is too short" })?;
    Ok(Box::new(QpTrie {
        memory,
        keys: file.def.key_shape(),
        seeds: Seeds::of(file.seed),
        epochs: file.epochs,
        max_entries: file.def.max_entries,
        detached: Mutex::new(Vec::new()),
        spare_spans: AtomicU64::new(0),
        pause: AtomicU64::new(0),
        last_heaps: std::array::from_fn(|_| AtomicU8::new(0)),
        met: Default::default(),
        typical: AtomicU64::new(0),
    }))
}

#[derive(Debug)]
struct QpTrie {
    memory: QpMemory,
    keys: KeyShape,
    seeds: Seeds,
    /// When elements were put in, by the places of their leaves.
    epochs: InsertionEpochs,
    max_entries: u32,
    /// Leaves that an exact walk of this process took out and has not given back.
    detached: Mutex<Vec<u32>>,
    /// Empty spans up to which a user's deletion does not ask whether to give memory back.
    spare_spans: AtomicU64,
    /// Deletions that still pass before one asks again, as programs ran on.
    pause: AtomicU64,
    /// Which heaps threads had last.
    last_heaps: [AtomicU8; 64],
    /// What this process last saw of the locks of heaps that others hold.
    met: [AtomicU64; HEAPS as usize],
    /// Bytes of most leaves, as far as walks of this process know; 0 is not known.
    typical: AtomicU64,
}

const BUSY: MapError = MapError::Busy { what: "the trie" };

/// Pages in no use that a user's deletion leaves to programs and later users, at least.
const SPARE_PAGES: u64 = 64;

impl QpTrie {
    /// The row of [`InsertionEpochs`] that belongs to a leaf.
    #[inline(always)]
    fn row(&self, leaf: u32) -> u64 {
        self.memory.arena_offset(leaf) / 8
    }

    fn user_key(key: &[u8]) -> Key {
        // SAFETY: the key is borrowed by the caller, who keeps it as long as the call.
        unsafe { Key::new(key.as_ptr(), key.len()) }
    }

    /// # Safety
    /// As `ProgOps` tells of keys.
    #[inline(always)]
    unsafe fn prog_key(&self, key: *const u8) -> Key {
        // SAFETY: the caller's duty.
        unsafe {
            match self.keys {
                KeyShape::Fixed(n) => Key::new(key, n as usize),
                KeyShape::Bytes { .. } => {
                    let size = copy::load4(key.add(8));
                    Key::new(copy::load8(key) as *const u8, size as usize)
                }
            }
        }
    }

    /// Copies the value of a key out; tells whether there is one.
    #[inline(always)]
    fn look(&self, key: Key, out: &mut [u8]) -> bool {
        let leaf = self.find_with::<OfUsers>(&key);
        if leaf.is_null() {
            return false;
        }
        self.memory.read_value(leaf, out);
        true
    }

    #[cold]
    #[inline(never)]
    fn look_again(&self, key: Key, out: &mut [u8]) -> Result<(), MapError> {
        match self.read_again(|| self.look(key, out)) {
            Some(true) => Ok(()),
            Some(false) => Err(MapError::NoElement),
            None => Err(BUSY),
        }
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

    /// Gives memory back after many elements were removed: when half of the pages that have memory
    /// are in no use, so that what this costs is shared by as many deletions. (To give only the longest
    /// runs of them back, and across others without memory, takes less than half of the system calls, but more waits
    /// for programs, and those take longer.)
    fn tidy(&self) {
        let empty = self.memory.empty_spans().load(Relaxed);
        if empty > self.spare_spans.load(Relaxed) {
            self.tidy_now(empty);
        }
    }

    #[cold]
    fn tidy_now(&self, empty: u64) {
        let pause = self.pause.load(Relaxed);
        if pause != 0 {
            return self.pause.store(pause - 1, Relaxed);
        }
        let (spans, with_memory) = self.spans_in_no_use();
        let unused: u64 = spans.iter().map(|span| span.pages).sum();
        let spare = SPARE_PAGES.max(with_memory / 2);
        let next = if unused <= spare {
            // As many more as have room, if they are as long.
            let length = unused.div_ceil(spans.len().max(1) as u64).max(1);
            empty.saturating_add((spare - unused) / length)
        } else if self.release(&spans) == 0 {
            // Programs run on, until now: this is done again after as many deletions as pages were
            // looked at.
            return self.pause.store(with_memory, Relaxed);
        } else {
            0
        };
        self.spare_spans.store(next, Relaxed);
    }
}

impl UserOps for QpTrie {
    fn user_value_size(&self) -> usize {
        self.memory.geometry.value_size
    }

    fn lookup(&self, key: &[u8], out: &mut [u8], _flags: u64) -> Result<(), MapError> {
        let key = Self::user_key(key);
        let before = self.memory.version().load(Acquire);
        let found = self.look(key, out);
        fence(Acquire);
        if self.memory.version().load(Relaxed) != before {
            self.look_again(key, out)
        } else if found {
            Ok(())
        } else {
            Err(MapError::NoElement)
        }
    }

    fn lookup_group(
        &self,
        cells: &[u8],
        values: &mut [u8],
        found: &mut [bool],
    ) -> Option<Result<(), MapError>> {
        let mut keys = [Self::user_key(&[]); PREFETCH_KEYS];
        for (key, cell) in keys.iter_mut().zip(cells.chunks_exact(self.keys.cell_size())) {
            *key = Self::user_key(self.keys.read_cell(cell)?);
        }
        let keys = keys.get(..found.len())?;
        let done = self.read(|| {
            let leaves = self.find_group(keys);
            let values = values.chunks_exact_mut(self.memory.geometry.value_size);
            for ((leaf, value), found) in leaves.into_iter().zip(values).zip(found.iter_mut()) {
                *found = !leaf.is_null();
                if *found {
                    self.memory.read_value(leaf, value);
                }
            }
        });
        Some(done.ok_or(BUSY))
    }

    fn update(&self, key: &[u8], value: &[u8], flags: u64) -> Result<(), MapError> {
        let key = Self::user_key(key);
        // SAFETY: the front end checked the size of the value.
        let mut done = unsafe { QpTrie::update(self, &key, Owner::User, value.as_ptr(), flags) };
        if done == -i64::from(ENOMEM) && self.release_spans() {
            // SAFETY: as before.
            done = unsafe { QpTrie::update(self, &key, Owner::User, value.as_ptr(), flags) };
        }
        self.user_result(done, flags)
    }

    fn delete(&self, key: &[u8]) -> Result<(), MapError> {
        let key = Self::user_key(key);
        let mut done = self.remove(&key, Owner::User);
        if done == -i64::from(ENOMEM) && self.release_spans() {
            // A node was to be copied.
            done = self.remove(&key, Owner::User);
        }
        self.tidy();
        self.user_result(done, 0)
    }

    fn take(&self, key: &[u8], out: &mut [u8], _flags: u64) -> Option<Result<(), MapError>> {
        let done = self.remove_into(&Self::user_key(key), out);
        self.tidy();
        Some(self.user_result(done, 0))
    }

    fn next_key(&self, key: Option<&[u8]>, cell: &mut [u8]) -> Result<(), MapError> {
        let found = self.read(|| {
            // As proposed: a key that is not there begins anew.
            let from = match key.map(Self::user_key) {
                Some(key) if !self.find(&key).is_null() => self.successor(&key),
                _ => self.first(),
            };
            let Some(leaf) = self.memory.block(from) else { return false };
            self.key_of(leaf).write_cell(self.keys, cell);
            true
        });
        if found.ok_or(BUSY)? { Ok(()) } else { Err(MapError::NoElement) }
    }
}

impl WalkOps for QpTrie {
    fn by_key(&self) -> Option<&dyn KeyWalk> {
        Some(self)
    }

    fn ordered(&self) -> bool {
        true
    }

    fn exact_take(&self) -> Option<&dyn ExactTake> {
        Some(self)
    }

    fn keep_epochs(&self) -> Option<bool> {
        Some(self.keep_rows())
    }
}

impl KeyWalk for QpTrie {
    fn step_behind(
        &self,
        last: &[u8],
        strict: &mut Strict,
        cell: &mut [u8],
        value: &mut [u8],
    ) -> Result<bool, MapError> {
        let from = if last.is_empty() { Bound::Unbounded } else { Bound::Excluded(last) };
        let span = Span { from, to: Bound::Unbounded, backward: false };
        let sizes = (cell.len(), value.len());
        let mut out = Output::columns(cell, value, sizes.0, sizes.1);
        OrderedWalk::fill(self, &span, strict, &mut out)?;
        Ok(out.used() != 0)
    }

    fn take(&self, key: &[u8], value: &mut [u8]) -> Result<(), MapError> {
        let done = self.remove_into(&Self::user_key(key), value);
        self.tidy();
        self.user_result(done, 0)
    }

    fn ordered(&self) -> Option<&dyn OrderedWalk> {
        Some(self)
    }
}

impl ExactTake for QpTrie {
    fn begin(&self) -> Result<Held, MapError> {
        lock::acquire_patiently(self.memory.taker_lock()).map_err(|_| BUSY.with_holder())
    }

    fn detach(&self, key: &[u8]) -> Result<Option<u32>, MapError> {
        match self.detach_leaf(&Self::user_key(key)) {
            Ok(leaf) => {
                self.detached.lock().unwrap_or_else(PoisonError::into_inner).push(leaf);
                Ok(Some(leaf))
            }
            Err(e) => match self.user_result(e, 0) {
                Err(MapError::NoElement) | Ok(()) => Ok(None),
                Err(e) => Err(e),
            },
        }
    }

    fn heartbeat(&self, held: &mut Held) {
        lock::heartbeat(self.memory.taker_lock(), held);
    }

    fn load(&self, reference: u32, value: &mut [u8]) {
        if let Some(leaf) = self.memory.block(reference) {
            self.memory.read_value(leaf, value);
        }
    }

    fn end(&self, _count: usize, held: Held) {
        let leaves =
            std::mem::take(&mut *self.detached.lock().unwrap_or_else(PoisonError::into_inner));
        let mut kept: Vec<u32> = leaves.into_iter().filter(|leaf| !self.give_back(*leaf)).collect();
        self.detached.lock().unwrap_or_else(PoisonError::into_inner).append(&mut kept);
        lock::release(self.memory.taker_lock(), held);
        self.tidy();
    }
}

impl ProgOps for QpTrie {
    fn is_waited_for(&self) -> bool {
        true
    }

    unsafe fn prog_lookup(&self, key: *const u8) -> *mut u8 {
        // SAFETY: the caller's duty.
        let key = unsafe { self.prog_key(key) };
        // As `read`, which would keep the walk in a function of its own, with the key in memory.
        let version = self.memory.version().load(Acquire);
        let leaf = self.find(&key);
        fence(Acquire);
        if self.memory.version().load(Relaxed) == version { leaf } else { self.find_again(&key) }
    }

    unsafe fn prog_update(&self, key: *const u8, value: *const u8, flags: u64) -> i64 {
        // SAFETY: the caller's duty.
        unsafe { QpTrie::update(self, &self.prog_key(key), Owner::Program, value, flags) }
    }

    unsafe fn prog_delete(&self, key: *const u8) -> i64 {
        // SAFETY: the caller's duty.
        self.remove(&unsafe { self.prog_key(key) }, Owner::Program)
    }

    unsafe fn prog_next(&self, at: &mut Position, last: &mut LastKey) -> Option<Element> {
        let value = self.step_of_walk(at, last)?;
        let key = self.key_of(value);
        let key = match self.keys {
            KeyShape::Fixed(_) => ElementKey::Fixed(key.at),
            KeyShape::Bytes { .. } => ElementKey::Bytes(key.at, key.len as u32),
        };
        Some(Element { key, value })
    }
}

const _: () = assert!(size_of::<DynptrUser>() == 16);
