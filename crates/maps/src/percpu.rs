//! Memory for the values of slots (see [`crate::slots`]).
//!
//! ```text
//! mutable words 8…11   one bit a slot: its area has memory      12…15   somebody is or was about to give it some      3   sparse: not kept
//! ```
//!
//! There are areas for 256 slots. A map is made with memory for as many as there are processors;
//! the area of a higher slot gets it when a thread claims that slot, in every map that the thread's
//! process has open for writing, or the claim fails and the thread's programs do not run. So a
//! program finds memory under its own slot without asking. A value in an area without memory is
//! zero, and nobody touches it.

use std::sync::Arc;
use std::sync::atomic::{AtomicPtr, AtomicU32, AtomicU64, Ordering::SeqCst, fence};

use crate::error::MapError;
use crate::layout::PercpuLayout;
use crate::shm::table::TableMemory;
use crate::shm::{MAX_SLOTS, ObjectFile, reserve};

/// Mutable words of the header.
const SPARSE: usize = 3;
const HAVE: usize = 8;
const GETTING: usize = 12;

/// Notes in a map that was just made which slots have memory: the first `slots`. In a sparse one it
/// notes only that it is sparse.
pub(crate) fn begin(file: &ObjectFile, slots: u32, sparse: bool) {
    if let Some(word) = file.state(SPARSE) {
        word.store(sparse.into(), SeqCst);
    }
    for slot in 0..if sparse { 0 } else { slots.min(MAX_SLOTS) } {
        if let Some(word) = file.state(HAVE + slot as usize / 64) {
            word.fetch_or(1 << (slot % 64), SeqCst);
        }
    }
}

/// The areas of one open map.
#[derive(Debug)]
pub(crate) struct PercpuAreas {
    file: Arc<ObjectFile>,
    layout: PercpuLayout,
    /// The generation of the table in which its slots are claimed.
    slot_table: u64,
    /// The map does not note which slots have memory, as it is sparse or was made by an older
    /// version: all count as having some.
    untold: bool,
    /// The words [`HAVE`] and, behind them, [`GETTING`], in the header, as long as the file is
    /// open.
    bits: *mut u64,
    /// The elements whose values have memory, when they get it on demand.
    table: Option<Arc<TableMemory>>,
}

// SAFETY: `bits` leads into the mapping of `file`, and is used as atomics only.
unsafe impl Send for PercpuAreas {}
// SAFETY: `bits` leads into the mapping of `file`, and is used as atomics only.
unsafe impl Sync for PercpuAreas {}

impl PercpuAreas {
    /// Opens the areas of a map whose slots are claimed in the table of generation `slot_table`, and
    /// gives memory to those slots that `needs_memory`, now and when a thread of this process claims
    /// one.
    pub(crate) fn open(
        file: Arc<ObjectFile>,
        layout: PercpuLayout,
        slot_table: u64,
        needs_memory: impl Fn(u32) -> bool,
        table: Option<Arc<TableMemory>>,
    ) -> Result<Registered, MapError> {
        let sparse = file.state(SPARSE).is_none_or(|word| word.load(SeqCst) != 0);
        let untold = sparse || !file.reserves_memory();
        let keeps = !untold && file.writable();
        let words = (file.state(HAVE), file.state(GETTING + MAX_SLOTS as usize / 64 - 1));
        let (Some(first), Some(_)) = words else {
            return Err(MapError::Damaged { what: "the file is too short" });
        };
        let bits = first.as_ptr();
        let areas = Arc::new(Self { file, layout, slot_table, untold, bits, table });
        if !keeps {
            return Ok(Registered { areas, node: None });
        }
        // A thread that claims a slot from here on finds the map; those of before are seen here.
        let registered = Registered { node: Some(register(&areas)), areas };
        if (0..MAX_SLOTS).any(|slot| needs_memory(slot) && !registered.ensure(slot)) {
            return Err(MapError::NoMemory { what: "the values of a slot" });
        }
        Ok(registered)
    }

    #[inline(always)]
    fn bit(&self, words: usize, slot: u32) -> Option<(&AtomicU64, u64)> {
        if slot >= MAX_SLOTS {
            return None;
        }
        // SAFETY: one of the eight words of the header that `open` found, which `file` keeps
        // mapped.
        let word = unsafe {
            AtomicU64::from_ptr(
                self.bits.add(words.wrapping_sub(HAVE).wrapping_add(slot as usize / 64)),
            )
        };
        Some((word, 1 << (slot & 63)))
    }

    /// Tells whether the values of a slot have memory; where not, they are zero.
    #[inline(always)]
    pub(crate) fn has(&self, slot: u32) -> bool {
        self.untold || self.bit(HAVE, slot).is_some_and(|(word, bit)| word.load(SeqCst) & bit != 0)
    }

    /// Tells whether an element that gets memory now needs some in the area of a slot.
    pub(crate) fn wants(&self, slot: u32) -> bool {
        self.has(slot)
            || self.bit(GETTING, slot).is_some_and(|(word, bit)| word.load(SeqCst) & bit != 0)
    }

    /// Gives the values of a slot memory, if they have none; `false` when there is none. Safe on
    /// the event path.
    #[inline(always)]
    pub(crate) fn ensure(&self, slot: u32) -> bool {
        self.has(slot) || self.acquire(slot)
    }

    /// Gives the slots of a user's values memory, as far as those are not zero.
    pub(crate) fn ensure_for(&self, values: &[u8], stride: u64) -> Result<(), MapError> {
        let mut parts = (0..MAX_SLOTS).zip(values.chunks(stride as usize));
        if parts.all(|(slot, part)| part.iter().all(|b| *b == 0) || self.ensure(slot)) {
            Ok(())
        } else {
            Err(MapError::NoMemory { what: "the values of a slot" })
        }
    }

    #[cold]
    #[inline(never)]
    fn acquire(&self, slot: u32) -> bool {
        let (Some((have, bit)), Some((getting, _))) =
            (self.bit(HAVE, slot), self.bit(GETTING, slot))
        else {
            return false;
        };
        if !self.file.writable() {
            return false;
        }
        let at = self.layout.at.wrapping_add(u64::from(slot).wrapping_mul(self.layout.stride));
        // Whoever takes a new element from here on sees to its value in this area; pairs with the
        // loads in `wants`.
        getting.fetch_or(bit, SeqCst);
        fence(SeqCst);
        let done = match &self.table {
            None => self.area(slot, at),
            Some(table) => table.each_in_use(|first, end| {
                let size = table.geometry.value_stride;
                self.range(
                    at.wrapping_add(first.wrapping_mul(size)),
                    end.wrapping_sub(first).wrapping_mul(size),
                )
            }),
        };
        // Without memory, `getting` stays set: another thread may be at it for the same slot, and
        // count on that. New elements then have memory there that nobody uses, as when
        // somebody dies here.
        if done {
            have.fetch_or(bit, SeqCst);
        }
        done
    }

    fn range(&self, at: u64, len: u64) -> bool {
        let Some(from) = self.file.payload().at(at, len) else { return false };
        // SAFETY: the range lies inside the payload, which is mapped writable.
        unsafe { reserve::populate(from, len) }
    }

    /// Gives all of a slot's area memory: other processes use elements that this one may have left
    /// out.
    fn area(&self, slot: u32, at: u64) -> bool {
        match self.file.columns() {
            Some(columns) => columns.acquire(slot),
            None => self.range(at, self.layout.stride),
        }
    }
}

/// A map's areas, known to threads of this process that claim slots, until dropped.
#[derive(Debug)]
pub(crate) struct Registered {
    areas: Arc<PercpuAreas>,
    node: Option<&'static Node>,
}

impl std::ops::Deref for Registered {
    type Target = PercpuAreas;

    fn deref(&self) -> &PercpuAreas {
        &self.areas
    }
}

impl Drop for Registered {
    fn drop(&mut self) {
        let Some(node) = self.node else { return };
        node.areas.store(std::ptr::null_mut(), SeqCst);
        for _ in 0..PATIENCE {
            if node.users.load(SeqCst) == 0 {
                return;
            }
            std::thread::yield_now();
        }
        // A thread that is not there any more in a forked child; or one that is stopped. The map
        // stays.
        std::mem::forget(Arc::clone(&self.areas));
    }
}

/// Looks at a map that a thread still uses before it is kept for ever.
const PATIENCE: u32 = 10_000;

/// One place for a map in the list of this process; never freed, and used again.
#[derive(Debug)]
struct Node {
    areas: AtomicPtr<PercpuAreas>,
    /// Threads that may have read `areas` and still use it.
    users: AtomicU32,
    next: AtomicPtr<Node>,
}

static FIRST: AtomicPtr<Node> = AtomicPtr::new(std::ptr::null_mut());

fn nodes() -> impl Iterator<Item = &'static Node> {
    // SAFETY: nodes are made by `register` and never freed.
    let node = |p: &AtomicPtr<Node>| unsafe { p.load(SeqCst).as_ref() };
    std::iter::successors(node(&FIRST), move |n| node(&n.next))
}

fn register(areas: &Arc<PercpuAreas>) -> &'static Node {
    let p = Arc::as_ptr(areas).cast_mut();
    let free = |n: &&Node| {
        n.users.load(SeqCst) == 0
            && n.areas.compare_exchange(std::ptr::null_mut(), p, SeqCst, SeqCst).is_ok()
    };
    if let Some(node) = nodes().find(free) {
        return node;
    }
    let node: &'static Node = Box::leak(Box::new(Node {
        areas: AtomicPtr::new(p),
        users: AtomicU32::new(0),
        next: AtomicPtr::new(std::ptr::null_mut()),
    }));
    let mut first = FIRST.load(SeqCst);
    loop {
        node.next.store(first, SeqCst);
        match FIRST.compare_exchange(first, std::ptr::from_ref(node).cast_mut(), SeqCst, SeqCst) {
            Ok(_) => return node,
            Err(now) => first = now,
        }
    }
}

/// Gives a slot's values memory in all maps of this process that count on a table; `false` when one
/// gets none. Safe on the event path.
pub(crate) fn ensure_all(table: u64, slot: u32) -> bool {
    let mut all = true;
    let mut at = FIRST.load(SeqCst);
    // SAFETY: nodes are never freed.
    while let Some(node) = unsafe { at.as_ref() } {
        node.users.fetch_add(1, SeqCst);
        // SAFETY: who takes the map out of the list waits until nobody is counted as a user, or
        // keeps it for ever.
        if let Some(areas) = unsafe { node.areas.load(SeqCst).as_ref() }
            && areas.slot_table == table
        {
            all &= areas.ensure(slot);
        }
        node.users.fetch_sub(1, SeqCst);
        at = node.next.load(SeqCst);
    }
    all
}
