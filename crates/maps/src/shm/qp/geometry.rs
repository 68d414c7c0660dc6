//! Sizes of a qp-trie's file, all computed from the definition.

use super::{
    BLOCK_CLASSES, CACHE_AT, CACHE_BUCKET, ENTRY, HEAP, HEAPS, LEAF_CLASSES, MAGAZINE, NODE_CLASSES,
};
use crate::shm::{MAX_PAYLOAD, PAGE, page_up, round8};

/// Largest block that shares a span with others.
const SMALL: u64 = 2048;
/// Largest node: the header of a wide one, and 257 children.
pub(crate) const MAX_NODE: u64 = 40 + 4 * 257;
/// Keys for which there are two buckets of the cache of leaves, which have room for 24. Fewer where
/// maps are much larger than a processor's caches: there it takes longest to do without.
const KEYS_A_PAIR: [u64; 2] = [19, 16];
/// Elements from which on a map is as large.
const LARGE: u64 = 1 << 18;

/// Where everything lies, and how large blocks are.
#[derive(Clone, Debug)]
pub(crate) struct Geometry {
    pub(crate) max_entries: u64,
    /// Bytes of the longest key.
    pub(crate) max_key: u64,
    pub(crate) value_size: usize,
    /// From the beginning of a leaf to the length of its key, and to the key.
    pub(crate) length_at: usize,
    /// Of the four bytes there, those that are the length.
    pub(crate) length_mask: u32,
    pub(crate) key_at: usize,
    /// A reference counts units of two to the power of this.
    pub(crate) unit_shift: u32,
    pub(crate) heaps_at: u64,
    pub(crate) buckets: u64,
    pub(crate) entries_at: u64,
    pub(crate) arena_at: u64,
    pub(crate) arena_pages: u64,
    pub(crate) payload_len: u64,
    /// Bytes of the blocks of each class, in ascending order.
    sizes: [u32; LEAF_CLASSES],
    /// How many of them a span has.
    blocks: [u16; LEAF_CLASSES],
    classes: usize,
    /// The first class of blocks that are spans of their own.
    first_large: u64,
    /// The class for a number of units, as far as blocks are small.
    by_units: Box<[u8]>,
}

/// How large blocks are, for one unit.
fn class_sizes(unit: u64) -> ([u32; LEAF_CLASSES], usize) {
    let mut sizes = [0; LEAF_CLASSES];
    let mut n = 0;
    let mut push = |size: u64| {
        if let Some(slot) = sizes.get_mut(n) {
            *slot = size as u32;
            n += 1;
        }
    };
    let mut size = unit.max(8);
    while size < SMALL {
        push(size);
        let step = match size {
            0..128 => 4,
            128..320 => 16,
            _ => (size / 8).next_multiple_of(16),
        };
        size += step.max(unit).next_multiple_of(unit);
    }
    push(SMALL);
    // Then whole pages, four sizes from one power of two to the next.
    let mut pages = 1;
    while pages <= 1280 {
        push(pages * PAGE);
        pages += (pages.next_power_of_two() / 8).max(1);
    }
    (sizes, n)
}

/// Returns how many pages a span has whose blocks have so many bytes.
fn span_pages(size: u64) -> u64 {
    match size {
        0..=512 => 1,
        513..=SMALL => 4,
        _ => size / PAGE,
    }
}

impl Geometry {
    /// Lays a trie out; `None` when it is too large.
    pub(crate) fn new(
        max_entries: u32,
        max_key: u32,
        value_size: u32,
        with_cache: bool,
    ) -> Option<Self> {
        let (max_entries, max_key) = (u64::from(max_entries), u64::from(max_key));
        let length_at = if value_size <= 4 { 4 } else { round8(u64::from(value_size)) as usize };
        let key_at = length_at + if max_key > u64::from(u16::MAX) { 4 } else { 2 };
        let longest = key_at as u64 + max_key;
        // Values are aligned to eight, if they are larger than four.
        let least_shift = if value_size > 4 { 3 } else { 2 };
        let (unit_shift, arena_pages, (sizes, classes)) = (least_shift..=6).find_map(|shift| {
            let (sizes, classes) = class_sizes(1 << shift);
            let largest = sizes.iter().map(|s| u64::from(*s)).find(|s| *s >= longest)?;
            // All elements as long as can be, each with a node of its own; and as much again, since
            // what is free is not where it is wanted; besides, what heaps keep.
            let span = largest.max(4 * PAGE);
            let need = max_entries.checked_mul(largest + 64)?.checked_mul(2)? + HEAPS * 64 * span;
            let most = 1u64 << (31 + shift);
            let fits = need <= most || shift == 6;
            fits.then(|| (shift, need.min(most).div_ceil(PAGE), (sizes, classes)))
        })?;
        let unit = 1u64 << unit_shift;
        let mut by_units = vec![0; (SMALL / unit + 1) as usize].into_boxed_slice();
        for (units, class) in by_units.iter_mut().enumerate() {
            let bytes = units as u64 * unit;
            *class = sizes.iter().position(|s| u64::from(*s) >= bytes)? as u8;
        }
        let pairs = if with_cache {
            max_entries.div_ceil(KEYS_A_PAIR[usize::from(max_entries >= LARGE)]).max(2)
        } else {
            0
        };
        let buckets = 2 * pairs;
        let heaps_at = page_up(CACHE_AT + buckets * CACHE_BUCKET)?;
        let entries_at = heaps_at + HEAPS * HEAP;
        let arena_at = page_up(entries_at + arena_pages * ENTRY)?;
        // Whatever a reference says, a whole node or leaf can be read behind it.
        let slack = page_up(longest.max(MAX_NODE) + 64)?;
        let payload_len = arena_at.checked_add(arena_pages * PAGE)?.checked_add(slack)?;
        (payload_len <= MAX_PAYLOAD).then_some(Self {
            max_entries,
            max_key,
            value_size: value_size as usize,
            length_at,
            length_mask: if key_at - length_at == 2 { 0xffff } else { u32::MAX },
            key_at,
            unit_shift,
            heaps_at,
            buckets,
            entries_at,
            arena_at,
            arena_pages,
            payload_len,
            sizes,
            blocks: sizes.map(|size| match u64::from(size) {
                0 => 0,
                size => (span_pages(size) * PAGE / size) as u16,
            }),
            classes,
            first_large: sizes.iter().position(|s| u64::from(*s) > SMALL)? as u64,
            by_units,
        })
    }

    /// Bytes of the file that have memory from the beginning: up to the first heap.
    pub(crate) fn initial(&self) -> u64 {
        self.heaps_at + HEAP
    }

    /// Elements that can have a row of insertion epochs: one for each eight bytes of the arena.
    pub(crate) fn rows(&self) -> u64 {
        self.arena_pages * PAGE / 8
    }

    /// Bytes of the leaf of a key.
    #[inline(always)]
    pub(crate) fn leaf_bytes(&self, key_len: u64) -> u64 {
        (self.key_at as u64).wrapping_add(key_len)
    }

    /// Finds the class of blocks that hold so many bytes.
    #[inline(always)]
    pub(crate) fn class(&self, bytes: u64) -> Option<u32> {
        let unit = 1u64 << (self.unit_shift & 63);
        let units = bytes.wrapping_add(unit.wrapping_sub(1)) >> (self.unit_shift & 63);
        match self.by_units.get(units as usize) {
            Some(class) => Some(u32::from(*class)),
            None => self.class_of_large(bytes),
        }
    }

    #[cold]
    #[inline(never)]
    fn class_of_large(&self, bytes: u64) -> Option<u32> {
        let mut class = 0usize;
        while class < self.classes {
            if self.sizes.get(class).is_some_and(|size| u64::from(*size) >= bytes) {
                return Some(class as u32);
            }
            class = class.wrapping_add(1);
        }
        None
    }

    /// Finds the class of nodes of so many bytes, behind those of leaves.
    #[inline(always)]
    pub(crate) fn node_class(&self, bytes: u64) -> Option<u32> {
        let class = self.class(bytes)?;
        (class < NODE_CLASSES as u32).then_some(class.wrapping_add(LEAF_CLASSES as u32))
    }

    /// Returns the class of leaves whose blocks are as long as those of a class.
    #[inline(always)]
    fn plain(class: u32) -> usize {
        let class = class as usize;
        match class {
            0..LEAF_CLASSES => class,
            LEAF_CLASSES..BLOCK_CLASSES => class.wrapping_sub(LEAF_CLASSES),
            _ => LEAF_CLASSES,
        }
    }

    /// Returns the bytes of a class's blocks; `None` for garbage.
    #[inline(always)]
    pub(crate) fn size(&self, class: u32) -> Option<u64> {
        self.sizes.get(Self::plain(class)).map(|size| u64::from(*size)).filter(|size| *size != 0)
    }

    /// Returns how many blocks a span of a class has; none for garbage.
    #[inline(always)]
    pub(crate) fn blocks(&self, class: u32) -> u32 {
        self.blocks.get(Self::plain(class)).map_or(0, |blocks| u32::from(*blocks))
    }

    /// Returns how many blocks of a class a heap keeps.
    pub(crate) fn kept(&self, class: u32) -> u32 {
        match self.size(class) {
            Some(0..=256) => MAGAZINE,
            Some(257..=1024) => 3,
            _ => 1,
        }
    }

    /// Returns how many pages a span of blocks of a class has, and the list of free spans that it
    /// belongs to.
    #[inline(always)]
    pub(crate) fn span(&self, class: u32) -> Option<(u64, u64)> {
        let size = self.size(class)?;
        let list = match size {
            0..=512 => 0,
            513..=SMALL => 1,
            // Only leaves are as large: fewer classes than there are lists.
            _ => u64::from(class).wrapping_sub(self.first_large).wrapping_add(2),
        };
        Some((span_pages(size), list))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_size_has_a_class_that_wastes_little() {
        for (key, value) in [(8, 4), (100, 8), (4000, 1), (65_536, 8), (4 << 20, 4)] {
            let g = Geometry::new(1000, key, value, true).expect("fits");
            let mut last = 0;
            for bytes in (1..=g.leaf_bytes(g.max_key)).step_by(1 + key as usize / 5000) {
                let class = g.class(bytes).expect("there is one");
                let size = g.size(class).expect("a class has a size");
                assert!(size >= bytes && class >= last, "{bytes}");
                assert!(size < bytes * 5 / 4 + 16 || bytes > 2048, "{bytes} {size}");
                assert!(size < bytes * 3 || bytes < 2048, "{bytes} {size}");
                last = class;
            }
            let class = g.node_class(MAX_NODE).expect("the largest node has one");
            assert!((class as usize) < BLOCK_CLASSES);
        }
    }

    #[test]
    fn many_long_keys_take_larger_units() {
        let g = |max_entries, key| Geometry::new(max_entries, key, 4, true).expect("fits");
        assert_eq!(g(1 << 20, 256).unit_shift, 2);
        assert!(g(1 << 20, 4096).unit_shift > 2);
        for g in [g(1 << 20, 4096), g(u32::MAX, 255), g(1, 1), g(1 << 20, 3 << 20)] {
            assert!(g.arena_pages * PAGE <= 1 << (31 + g.unit_shift));
        }
    }
}
