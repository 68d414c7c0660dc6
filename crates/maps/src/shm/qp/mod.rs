//! The memory of a qp-trie: where its parts lie, and the words and blocks of an arena that is never
//! trusted.
//!
//! ```text
//! 0        4096      8192              heaps_at               entries_at         arena_at
//! | common | stripes | cache of leaves | heaps, 16 KiB each   | entries of pages | arena, pages | slack
//!
//! common      0 version   64 root (32 bits)   72 heaps with memory   80 elements, and those reserved   128 lock of the spans   144 a writer died
//!           152 lock of who takes exactly   160 pages ever used   168 pages with memory   176 empty spans
//!           192 log of the spans   592 epochs are kept   1024 first free span of each list   2048 first span with room of each class (32 bits each)
//! stripe      0 lock                           64 stripes, 64 bytes each: locks of nodes, of children of large ones, and of pairs of buckets
//! heap        0 lock   8 elements put in by it less those taken out   16 blocks in limbo   20 their bytes   24 elements reserved for it   32 of no use   64 log
//!           512 magazines, 64 bytes for each class: count, 15 blocks   14336 limbo: 512 blocks (32 bits each)
//! log         0 number of stores, 0 none   8 offset, 16 value, … ; bit 0 of an offset: the store has 64 bits
//! entry       0 class + 1   4 blocks ever used   8 first free block + 1   12 blocks in use   16 next span   20 last span   (32 bits each)
//! of a page  24 pages of the span; in pages behind the first, how many pages before there is the first   28 marks
//! bucket      0 12 tags   12 omitted (8 bits), beside (4 bits), changes (20 bits)   16 12 leaves (32 bits each)
//! ```
//!
//! A reference is `unit << 1 | 1` for a leaf and `unit << 1` for a node, where units are counted
//! from the beginning of the arena, whose first page is not used; 0 is none.
//!
//! ```text
//! leaf        0 value, padded to 4 or a multiple of 8   length of the key (16 or 32 bits)   the key
//! node        0 kind (8 bits), offset (24 bits)
//!   narrow    4 n bytes in ascending order, padded to 4    children (32 bits each)
//!   wide      4 4 ranks    8 bitmap, 256 bits              children (32 bits each)
//! kind        0x80 wide   0x40 child 0 is the key that ends at the offset   0x20 not in the trie any more   lower bits: n of a narrow node
//! ```

mod geometry;
mod memory;

pub(crate) use geometry::Geometry;
#[cfg(test)]
pub(crate) use geometry::MAX_NODE;
pub(crate) use memory::{Arena, Log, QpMemory, WordAt};

use crate::shm::PAGE;

/// Classes of blocks for leaves, and for nodes.
pub(crate) const LEAF_CLASSES: usize = 112;
pub(crate) const NODE_CLASSES: usize = 72;
pub(crate) const BLOCK_CLASSES: usize = LEAF_CLASSES + NODE_CLASSES;

pub(crate) const STRIPES: u64 = 64;
const STRIPES_AT: u64 = PAGE;
const STRIPE: u64 = 64;

/// Writers that work at the same time without waiting.
pub(crate) const HEAPS: u64 = 8;
const HEAP: u64 = 4 * PAGE;

/// Blocks of a class that a heap keeps.
pub(crate) const MAGAZINE: u32 = 15;
/// Blocks that a heap keeps until readers cannot stand there any more.
pub(crate) const LIMBO: u64 = 512;
const MAGAZINES: u64 = 512;
const MAGAZINE_LEN: u64 = 64;
const LIMBO_AT: u64 = 14_336;

/// Stores of a log.
pub(crate) const LOG: u64 = 24;

const ENTRY: u64 = 32;
const CACHE_AT: u64 = 2 * PAGE;
const CACHE_BUCKET: u64 = 64;
/// Leaves in a bucket of the cache.
pub(crate) const CACHED: u32 = 12;

const _: () = assert!(
    MAGAZINES + BLOCK_CLASSES as u64 * MAGAZINE_LEN <= LIMBO_AT
        && LIMBO_AT + 4 * LIMBO <= HEAP
        && 2048 + BLOCK_CLASSES as u64 * 4 <= PAGE
        && STRIPES * STRIPE <= PAGE
        && 64 + 8 + LOG * 16 <= MAGAZINES
);

/// Marks a reference to a leaf.
pub(crate) const LEAF: u32 = 1;
/// Marks of a node's kind.
pub(crate) const WIDE: u32 = 0x80;
pub(crate) const END: u32 = 0x40;
pub(crate) const OBSOLETE: u32 = 0x20;
pub(crate) const N: u32 = 0x1f;
