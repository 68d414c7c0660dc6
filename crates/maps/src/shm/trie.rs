//! The memory of a longest-prefix-match trie, with readers that take no lock.
//!
//! ```text
//! 0                                    4096
//! | lock, version, root, count, pool    | nodes × stride
//!
//! common    0 lock   64 version   128 root (32 bits)   192 elements   200 first free node   208 nodes ever taken   216 with memory
//! node      0 child for a next bit of 0   4 child for 1 (32 bits each)   8 prefix length | NO_VALUE | SECOND (32 bits)
//!          12 address, up to a multiple of eight   … value   … the second place of values above eight bytes
//! ```
//!
//! A node is named by its index + 1. A link (the root, or a child) holds in its lower bits, as many
//! as the largest name needs, the name of a node, and in the others the length of the node's
//! prefix, or the largest number that fits when the length is not below that. So a walk down knows
//! which child is next before the node has come from memory. A node without a value has two
//! children; others any number. A value of at most eight bytes is overwritten by one store; larger
//! ones have two places, and the one that is not in use is filled before the bit that says which
//! one is in use turns. So a node and its value's address stay while its key is in the trie.

use std::sync::Arc;
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering::Relaxed};

use super::object::ObjectFile;
use super::reserve::populate_some;
use super::{PAGE, copy, reserve, round8};

/// Nodes without an element: where two prefixes part.
pub(crate) const NO_VALUE: u32 = 1 << 31;
/// The value lies in the second place.
pub(crate) const SECOND: u32 = 1 << 30;
const LENGTH: u32 = SECOND - 1;
const HEAD: u64 = 12;

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
    /// From the beginning of a node to its value.
    value_at: u64,
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
        let value_at = round8(HEAD + data);
        let stride = value_at + places * value_stride;
        let payload_len = PAGE.checked_add(nodes.checked_mul(stride)?)?;
        let fits = nodes < u64::from(u32::MAX) && payload_len <= 1 << 42;
        fits.then_some(Self {
            max_entries,
            nodes,
            data,
            value_size: value_size as usize,
            value_stride,
            value_at,
            stride,
            payload_len,
        })
    }

    /// Tells whether values are too large for one store.
    pub(crate) fn two_places(&self) -> bool {
        self.value_stride > 8
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
    pub(crate) nodes: Nodes,
}

/// What a walk needs to get from links to nodes; who walks keeps a copy in registers.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Nodes {
    first: *mut u8,
    stride: u64,
    count: u64,
    /// Bits of a link that name the node.
    name_bits: u32,
    name_mask: u32,
    /// What a link's other bits hold for prefixes that are not shorter than that: all ones.
    long: u32,
}

impl Nodes {
    /// Finds the node that a link names: its name and address; `None` for zero and for garbage.
    #[inline(always)]
    pub(crate) fn find(&self, link: u32) -> Option<(u32, *mut u8)> {
        let reference = link & self.name_mask;
        let i = u64::from(reference).wrapping_sub(1);
        if i >= self.count {
            return None;
        }
        // SAFETY: the node lies inside the payload, which `TrieMemory::new` checked.
        Some((reference, unsafe { self.first.add(i.wrapping_mul(self.stride) as usize) }))
    }

    /// Returns the length of a node's prefix that the link leading to it has, if it fits in there.
    /// Garbage may be any number.
    #[inline(always)]
    pub(crate) fn length(&self, link: u32) -> Option<u32> {
        let length = (u64::from(link) >> (self.name_bits & 63)) as u32;
        (length < self.long).then_some(length)
    }
}

// SAFETY: `base` is the payload of `file`, reached through atomics and word-wise copies only.
unsafe impl Send for TrieMemory {}
// SAFETY: `base` is the payload of `file`, reached through atomics and word-wise copies only.
unsafe impl Sync for TrieMemory {}

impl TrieMemory {
    /// Takes a file whose payload must be as long as the geometry says.
    pub(crate) fn new(file: Arc<ObjectFile>, geometry: Geometry) -> Option<Self> {
        let base = file.payload().at(0, geometry.payload_len)?;
        let name_bits = 64 - geometry.nodes.leading_zeros();
        let ones = |n: u32| ((1u64 << n) - 1) as u32;
        // SAFETY: the payload begins with a page.
        let first = unsafe { base.add(PAGE as usize) };
        let nodes = Nodes {
            first,
            stride: geometry.stride,
            count: geometry.nodes,
            name_bits,
            name_mask: ones(name_bits),
            long: ones(32 - name_bits),
        };
        Some(Self { geometry, file, base, nodes })
    }

    pub(crate) fn writable(&self) -> bool {
        self.file.writable()
    }

    #[inline(always)]
    fn word<const AT: u64>(&self) -> &AtomicU64 {
        const { assert!(AT & 7 == 0 && AT < PAGE) };
        // SAFETY: inside the first page of the payload, whose length was checked, and aligned.
        unsafe { AtomicU64::from_ptr(self.base.add(AT as usize).cast()) }
    }

    pub(crate) fn lock(&self) -> &AtomicU64 {
        self.word::<0>()
    }

    /// Changes before a node, or a place for a value, is used again.
    #[inline(always)]
    pub(crate) fn version(&self) -> &AtomicU64 {
        self.word::<64>()
    }

    #[inline(always)]
    pub(crate) fn root(&self) -> &AtomicU32 {
        // SAFETY: as in `word`.
        unsafe { AtomicU32::from_ptr(self.base.add(128).cast()) }
    }

    pub(crate) fn count(&self) -> &AtomicU64 {
        self.word::<192>()
    }

    pub(crate) fn free(&self) -> &AtomicU64 {
        self.word::<200>()
    }

    pub(crate) fn taken(&self) -> &AtomicU64 {
        self.word::<208>()
    }

    /// How many nodes have memory.
    pub(crate) fn backed(&self) -> &AtomicU64 {
        self.word::<216>()
    }

    /// Gives nodes, by their indices, memory; returns how many have some then.
    pub(crate) fn acquire(&self, first: u64) -> u64 {
        let stride = self.geometry.stride;
        if !self.writable() || first > self.geometry.nodes {
            return first;
        }
        populate_some(first, self.geometry.nodes, stride, |first, end| {
            let at = PAGE.wrapping_add(first.wrapping_mul(stride));
            // SAFETY: nodes lie inside the payload, which is mapped writable.
            unsafe {
                reserve::populate(
                    self.base.wrapping_add(at as usize),
                    end.wrapping_sub(first).wrapping_mul(stride),
                )
            }
        })
    }

    /// Returns the node that a link names, or `None` for zero and for garbage.
    #[inline(always)]
    pub(crate) fn node(&self, link: u32) -> Option<Node<'_>> {
        self.node_by(&self.nodes, link)
    }

    /// As [`TrieMemory::node`], with the walk's own copy of `nodes`.
    #[inline(always)]
    pub(crate) fn node_by(&self, nodes: &Nodes, link: u32) -> Option<Node<'_>> {
        nodes.find(link).map(|(reference, at)| Node { memory: self, at, reference })
    }

    /// Returns what a link holds that leads to a node with a prefix of this length.
    pub(crate) fn link(&self, node: &Node<'_>, length: u32) -> u32 {
        node.reference
            | (u64::from(length.min(self.nodes.long)) << (self.nodes.name_bits & 63)) as u32
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
    /// # Safety
    /// `off` is a multiple of four inside the head of the node, or that of the first bytes of the
    /// address.
    #[inline(always)]
    unsafe fn half(&self, off: usize) -> &'a AtomicU32 {
        // SAFETY: the caller's promise.
        unsafe { AtomicU32::from_ptr(self.at.add(off).cast()) }
    }

    /// The node for keys whose next bit is this.
    #[inline(always)]
    pub(crate) fn child(&self, bit: bool) -> &'a AtomicU32 {
        // SAFETY: inside the head.
        unsafe { self.half(if bit { 4 } else { 0 }) }
    }

    /// Prefix length and marks.
    #[inline(always)]
    pub(crate) fn state(&self) -> &'a AtomicU32 {
        // SAFETY: inside the head.
        unsafe { self.half(8) }
    }

    /// The prefix length, which the link has that led here, or else the node.
    #[inline(always)]
    pub(crate) fn length_by(&self, nodes: &Nodes, link: u32) -> u32 {
        match nodes.length(link) {
            Some(length) => length,
            None => self.length(self.state().load(Relaxed)),
        }
    }

    /// The prefix length in a state; garbage is cut.
    #[inline(always)]
    pub(crate) fn length(&self, state: u32) -> u32 {
        (state & LENGTH).min(self.memory.geometry.bits())
    }

    /// Loads a word of the address, first byte first. What is behind the address is anything.
    ///
    /// # Safety
    /// The word has bytes of the address, or begins where they end.
    #[inline(always)]
    pub(crate) unsafe fn data_word(&self, i: u64) -> u64 {
        // SAFETY: the caller's promise; at least eight bytes of value follow.
        unsafe { copy::load8(self.at.add(HEAD.wrapping_add(i.wrapping_mul(8)) as usize)) }
            .swap_bytes()
    }

    /// Stores the address.
    ///
    /// # Safety
    /// `data` points to an address in readable bytes; the caller holds the lock.
    #[inline(always)]
    pub(crate) unsafe fn set_data(&self, data: *const u8) {
        let first = self.memory.geometry.data.min(4) as usize;
        let rest = (self.memory.geometry.data as usize).wrapping_sub(first);
        // SAFETY: the node has room for an address up to a multiple of eight; the rest is the
        // caller's duty.
        unsafe {
            self.half(HEAD as usize).store(copy::load_tail(data, first & 7) as u32, Relaxed);
            copy::store(self.at.add(16), data.add(first), rest);
        }
    }

    /// Copies the address out.
    pub(crate) fn read_data(&self, out: &mut [u8]) {
        let n = out.len().min(self.memory.geometry.data as usize);
        let (first, rest) = out[..n].split_at_mut(n.min(4));
        // SAFETY: where the address begins.
        first.copy_from_slice(
            &unsafe { self.half(HEAD as usize) }.load(Relaxed).to_ne_bytes()[..first.len()],
        );
        // SAFETY: the node has an address up to a multiple of eight.
        unsafe { copy::load(rest, self.at.add(16)) }
    }

    /// Returns where the value of a node in some state lies.
    #[inline(always)]
    pub(crate) fn value(&self, state: u32) -> *mut u8 {
        let g = &self.memory.geometry;
        let second = if state & SECOND != 0 && g.two_places() { g.value_stride } else { 0 };
        // SAFETY: inside the node.
        unsafe { self.at.add(g.value_at.wrapping_add(second) as usize) }
    }

    /// Stores a value so that readers see the old or the new one: the state in which it does.
    ///
    /// # Safety
    /// `value` points to a value's size in readable bytes; the caller holds the lock.
    #[inline(always)]
    pub(crate) unsafe fn set_value(&self, state: u32, value: *const u8) -> u32 {
        let g = &self.memory.geometry;
        let state = if g.two_places() { state ^ SECOND } else { state };
        // SAFETY: the place has room for a value rounded up; the rest is the caller's duty.
        unsafe { copy::store(self.value(state), value, g.value_size) };
        state
    }
}
