//! The memory of a longest-prefix-match trie, with readers that take no lock.
//!
//! ```text
//! 0                                    4096
//! | lock, version, root, count, pool    | nodes × stride
//!
//! common    0 lock   64 version   128 root (32 bits)   192 elements   200 first free node   208 nodes ever taken
//! node      0 child for a next bit of 0   4 child for 1 (32 bits each)   8 prefix length | NO_VALUE | SECOND (32 bits)
//!          16 key, rounded up to eight   … value   … the second place of values above eight bytes
//! ```
//!
//! A node is named by its index + 1. A node without a value has two children; others any number. A value of at most eight
//! bytes is overwritten by one store; larger ones have two places, and the one that is not in use is filled before the bit
//! that says which one is in use turns. So a node and its value's address stay while its key is in the trie.

use std::sync::Arc;
use std::sync::atomic::{AtomicU32, AtomicU64};

use super::{ObjectFile, PAGE, copy, round8};

/// Nodes without an element: where two prefixes part.
pub(crate) const NO_VALUE: u32 = 1 << 31;
/// The value lies in the second place.
pub(crate) const SECOND: u32 = 1 << 30;
const LENGTH: u32 = SECOND - 1;
const HEAD: u64 = 16;

/// Sizes, all computed from the definition.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Geometry {
    pub(crate) max_entries: u64,
    /// Nodes in the file: `n` elements part at `n - 1` places at most.
    pub(crate) nodes: u64,
    /// Bytes of an address.
    pub(crate) data: u64,
    pub(crate) value_size: usize,
    value_stride: u64,
    stride: u64,
    pub(crate) payload_len: u64,
}

impl Geometry {
    /// Lays a trie out; `None` when it is too large.
    pub(crate) fn new(max_entries: u32, key_size: u32, value_size: u32) -> Option<Self> {
        let max_entries = u64::from(max_entries);
        let nodes = max_entries * 2;
        let data = u64::from(key_size.checked_sub(4)?);
        let value_stride = round8(u64::from(value_size));
        let places = if value_stride > 8 { 2 } else { 1 };
        let stride = HEAD + round8(data) + places * value_stride;
        let payload_len = PAGE.checked_add(nodes.checked_mul(stride)?)?;
        let fits = nodes < u64::from(u32::MAX) && payload_len <= 1 << 42;
        fits.then_some(Self { max_entries, nodes, data, value_size: value_size as usize, value_stride, stride, payload_len })
    }

    /// Most bits of a prefix.
    pub(crate) fn bits(&self) -> u32 {
        (self.data * 8) as u32
    }
}

/// A mapped trie.
#[derive(Debug)]
pub(crate) struct TrieMemory {
    pub(crate) geometry: Geometry,
    file: Arc<ObjectFile>,
    base: *mut u8,
}

// SAFETY: `base` is the payload of `file`, reached through atomics and word-wise copies only.
unsafe impl Send for TrieMemory {}
// SAFETY: as above.
unsafe impl Sync for TrieMemory {}

impl TrieMemory {
    /// Takes a file whose payload must be as long as the geometry says.
    pub(crate) fn new(file: Arc<ObjectFile>, geometry: Geometry) -> Option<Self> {
        let base = file.payload().at(0, geometry.payload_len)?;
        Some(Self { geometry, file, base })
    }

    pub(crate) fn writable(&self) -> bool {
        self.file.writable()
    }

    #[inline(always)]
    fn word(&self, at: u64) -> &AtomicU64 {
        // SAFETY: the places in the first page are constants.
        unsafe { AtomicU64::from_ptr(self.base.add(at as usize).cast()) }
    }

    pub(crate) fn lock(&self) -> &AtomicU64 {
        self.word(0)
    }

    /// Changes before a node, or a place for a value, is used again.
    #[inline(always)]
    pub(crate) fn version(&self) -> &AtomicU64 {
        self.word(64)
    }

    #[inline(always)]
    pub(crate) fn root(&self) -> &AtomicU32 {
        // SAFETY: as in `word`.
        unsafe { AtomicU32::from_ptr(self.base.add(128).cast()) }
    }

    pub(crate) fn count(&self) -> &AtomicU64 {
        self.word(192)
    }

    pub(crate) fn free(&self) -> &AtomicU64 {
        self.word(200)
    }

    pub(crate) fn taken(&self) -> &AtomicU64 {
        self.word(208)
    }

    /// Returns a node, or `None` for zero and for garbage.
    #[inline(always)]
    pub(crate) fn node(&self, reference: u32) -> Option<Node<'_>> {
        let i = u64::from(reference).wrapping_sub(1);
        if i >= self.geometry.nodes {
            return None;
        }
        // SAFETY: the node lies inside the payload, which `new` checked.
        let at = unsafe { self.base.add(PAGE.wrapping_add(i.wrapping_mul(self.geometry.stride)) as usize) };
        Some(Node { memory: self, at, reference })
    }
}

/// One node in shared memory.
#[derive(Clone, Copy)]
pub(crate) struct Node<'a> {
    memory: &'a TrieMemory,
    at: *mut u8,
    pub(crate) reference: u32,
}

impl<'a> Node<'a> {
    #[inline(always)]
    fn half(&self, off: usize) -> &'a AtomicU32 {
        // SAFETY: inside the head of the node.
        unsafe { AtomicU32::from_ptr(self.at.add(off).cast()) }
    }

    /// The node for keys whose next bit is this.
    #[inline(always)]
    pub(crate) fn child(&self, bit: bool) -> &'a AtomicU32 {
        self.half(if bit { 4 } else { 0 })
    }

    /// Prefix length and marks.
    #[inline(always)]
    pub(crate) fn state(&self) -> &'a AtomicU32 {
        self.half(8)
    }

    /// The prefix length in a state; garbage is cut.
    #[inline(always)]
    pub(crate) fn length(&self, state: u32) -> u32 {
        (state & LENGTH).min(self.memory.geometry.bits())
    }

    #[inline(always)]
    fn data(&self) -> *mut u8 {
        // SAFETY: inside the node.
        unsafe { self.at.add(HEAD as usize) }
    }

    /// Loads a word of the address, first byte first.
    #[inline(always)]
    pub(crate) fn data_word(&self, i: u64) -> u64 {
        // SAFETY: callers stay below the address rounded up.
        unsafe { copy::load8(self.data().add(i.wrapping_mul(8) as usize)) }.swap_bytes()
    }

    /// Stores the address.
    ///
    /// # Safety
    /// `data` points to an address in readable bytes; the caller holds the lock.
    pub(crate) unsafe fn set_data(&self, data: *const u8) {
        // SAFETY: the node has room for an address rounded up; the rest is the caller's duty.
        unsafe { copy::store(self.data(), data, self.memory.geometry.data as usize) }
    }

    /// Copies the address out.
    pub(crate) fn read_data(&self, out: &mut [u8]) {
        let n = out.len().min(self.memory.geometry.data as usize);
        // SAFETY: the node has an address rounded up.
        unsafe { copy::load(&mut out[..n], self.data()) }
    }

    /// Returns where the value of a node in some state lies.
    #[inline(always)]
    pub(crate) fn value(&self, state: u32) -> *mut u8 {
        let g = &self.memory.geometry;
        let second = if state & SECOND != 0 && g.value_stride > 8 { g.value_stride } else { 0 };
        // SAFETY: inside the node.
        unsafe { self.at.add(HEAD.wrapping_add(round8(g.data)).wrapping_add(second) as usize) }
    }

    /// Stores a value so that readers see the old or the new one: the state in which it does.
    ///
    /// # Safety
    /// `value` points to a value's size in readable bytes; the caller holds the lock.
    pub(crate) unsafe fn set_value(&self, state: u32, value: *const u8) -> u32 {
        let g = &self.memory.geometry;
        let state = if g.value_stride > 8 { state ^ SECOND } else { state };
        // SAFETY: the place has room for a value rounded up; the rest is the caller's duty.
        unsafe { copy::store(self.value(state), value, g.value_size) };
        state
    }
}
