//! Looks at the memory of a trie that nobody changes, as `docs/shm-format.md` describes it: every
//! block is in one place, and none is lost.

use std::collections::HashMap;
use std::sync::atomic::Ordering::Acquire;

use skep_isa::MapFlags;
use skep_maps::Map;

use super::word;

const PAGE: u64 = 4096;
const CACHE_AT: u64 = 2 * PAGE;
const HEAPS: u64 = 8;
const HEAP: u64 = 4 * PAGE;
const ENTRY: u64 = 32;
const LEAF_CLASSES: u64 = 112;
const CLASSES: u64 = 184;
const BEHIND: u32 = u32::MAX;
/// The pid and tid in the word of a lock.
const OWNER: u64 = (1 << 44) - 1;

/// What a trie's memory holds.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Held {
    pub elements: u64,
    /// Blocks that elements and nodes are in.
    pub blocks: u64,
    /// Blocks that are kept for later, by heaps and in limbo.
    pub kept: u64,
    /// Pages of spans that belong to a class.
    pub pages: u64,
}

struct Trie<'m> {
    map: &'m Map,
    sizes: Vec<u64>,
    unit: u64,
    length_at: u64,
    key_at: u64,
    buckets: u64,
    heaps_at: u64,
    entries_at: u64,
    arena_at: u64,
}

fn class_sizes(unit: u64) -> Vec<u64> {
    let (mut sizes, mut size) = (vec![], unit.max(8));
    while size < 2048 {
        sizes.push(size);
        let step = match size {
            0..128 => 4,
            128..320 => 16,
            _ => (size / 8).next_multiple_of(16),
        };
        size += step.max(unit).next_multiple_of(unit);
    }
    sizes.push(2048);
    let mut pages = 1;
    while pages <= 1280 {
        sizes.push(pages * PAGE);
        pages += (pages.next_power_of_two() / 8).max(1);
    }
    sizes
}

fn span_pages(size: u64) -> u64 {
    match size {
        0..=512 => 1,
        513..=2048 => 4,
        _ => size / PAGE,
    }
}

impl<'m> Trie<'m> {
    fn new(map: &'m Map) -> Self {
        let def = map.def();
        let (entries, value) = (u64::from(def.max_entries), u64::from(def.value_size));
        let longest = map.key_shape().max_len() as u64;
        let length_at = if value <= 4 { 4 } else { value.next_multiple_of(8) };
        let key_at = length_at + if longest > 0xffff { 4 } else { 2 };
        // Large units are for maps that no test makes.
        let unit = if value > 4 { 8 } else { 4 };
        let sizes = class_sizes(unit);
        let largest = *sizes.iter().find(|size| **size >= key_at + longest).expect("fits");
        let need = 2 * entries * (largest + 64) + HEAPS * 64 * largest.max(4 * PAGE);
        assert!(need <= unit << 31);
        let a_pair = if entries < 1 << 18 { 19 } else { 16 };
        let buckets = match def.flags.has(MapFlags::NO_LEAF_CACHE) {
            true => 0,
            false => 2 * entries.div_ceil(a_pair).max(2),
        };
        let heaps_at = (CACHE_AT + 64 * buckets).next_multiple_of(PAGE);
        let entries_at = heaps_at + HEAPS * HEAP;
        let arena_at = (entries_at + need.div_ceil(PAGE) * ENTRY).next_multiple_of(PAGE);
        Self { map, sizes, unit, length_at, key_at, buckets, heaps_at, entries_at, arena_at }
    }

    fn wide(&self, at: u64) -> u64 {
        word(self.map, at).load(Acquire)
    }

    fn half(&self, at: u64) -> u32 {
        (self.wide(at & !7) >> (8 * (at & 4))) as u32
    }

    fn byte(&self, at: u64) -> u8 {
        (self.wide(at & !7) >> (8 * (at & 7))) as u8
    }

    fn entry(&self, page: u64, at: u64) -> u32 {
        self.half(self.entries_at + page * ENTRY + at)
    }

    fn block_at(&self, reference: u32) -> u64 {
        self.arena_at + u64::from(reference >> 1) * self.unit
    }

    fn size_of(&self, class: u64) -> u64 {
        self.sizes[(if class < LEAF_CLASSES { class } else { class - LEAF_CLASSES }) as usize]
    }

    /// Children of a node, and its bytes.
    fn node(&self, at: u64) -> (Vec<u32>, u64) {
        let head = self.half(at);
        assert_eq!(head & 0x20, 0, "a node in the trie says that it is not there");
        let end = u64::from(head & 0x40 != 0);
        let (n, children_at) = if head & 0x80 != 0 {
            ((0..4).map(|i| u64::from(self.wide_at_four(at + 8 + 8 * i).count_ones())).sum(), 40)
        } else {
            let n = u64::from(head & 0x1f);
            (n, 4 + n.next_multiple_of(4))
        };
        let children = (0..n + end).map(|i| self.half(at + children_at + 4 * i)).collect();
        (children, children_at + 4 * (n + end))
    }

    /// Eight bytes that are aligned to four.
    fn wide_at_four(&self, at: u64) -> u64 {
        u64::from(self.half(at)) | u64::from(self.half(at + 4)) << 32
    }

    fn key(&self, leaf: u64) -> Vec<u8> {
        let wide = u64::from(self.half(leaf + (self.length_at & !3)));
        let len = if self.key_at - self.length_at == 2 { wide & 0xffff } else { wide };
        (0..len).map(|i| self.byte(leaf + self.key_at + i)).collect()
    }
}

/// Where blocks are; each is in one place.
struct Places(HashMap<u64, (&'static str, u64)>);

impl Places {
    fn put(&mut self, at: u64, place: &'static str, bytes: u64) {
        if let Some((other, _)) = self.0.insert(at, (place, bytes)) {
            panic!("the block at {at:#x} is in {place}, and in {other}");
        }
    }
}

/// Tells where the first heap begins.
pub fn heaps_at(map: &Map) -> u64 {
    Trie::new(map).heaps_at
}

/// Fails when a block is lost or in two places, or a count is wrong. No writer is at work, and somebody
/// has looked at all heaps since one died.
pub fn audit(map: &Map) -> Held {
    let trie = Trie::new(map);
    let mut places = Places(HashMap::new());
    let mut leaves = HashMap::new();
    let mut to_do = vec![trie.half(64)];
    while let Some(reference) = to_do.pop() {
        let at = trie.block_at(reference);
        if reference == 0 {
        } else if reference & 1 != 0 {
            let key = trie.key(at);
            places.put(at, "the trie", trie.key_at + key.len() as u64);
            leaves.insert(reference, key);
        } else {
            let (children, bytes) = trie.node(at);
            assert!(children.iter().filter(|c| **c != 0).count() > 1, "a node without a fork");
            places.put(at, "the trie", bytes);
            to_do.extend(children);
        }
    }
    let in_trie = places.0.len() as u64;
    check_cache(&trie, &leaves);
    let (counted, spare) = look_at_heaps(&trie, &mut places);
    assert_eq!(counted, leaves.len() as u64, "counts of heaps");
    let reserved = trie.wide(80);
    if trie.wide(144) == 0 {
        assert_eq!(reserved, counted + spare, "elements and those reserved");
    } else {
        assert!(reserved >= counted + spare, "room that there is not");
    }
    let kept = places.0.len() as u64 - in_trie;
    let pages = look_at_spans(&trie, &places);
    Held { elements: counted, blocks: in_trie, kept, pages }
}

/// The cache names leaves of the trie, each once; those that it does not name are counted.
fn check_cache(trie: &Trie<'_>, leaves: &HashMap<u32, Vec<u8>>) {
    if trie.buckets == 0 {
        return;
    }
    let (mut named, mut omitted, mut for_ever) = (HashMap::new(), 0, false);
    for bucket in (0..trie.buckets).map(|i| CACHE_AT + 64 * i) {
        let state = trie.half(bucket + 12);
        for_ever |= state & 0xff == 0xff;
        omitted += state & 0xff;
        for leaf in (0..12).map(|i| trie.half(bucket + 16 + 4 * i)).filter(|leaf| *leaf != 0) {
            assert!(leaves.contains_key(&leaf), "the cache names a leaf that is not in the trie");
            assert!(named.insert(leaf, bucket).is_none(), "a leaf is in the cache twice");
        }
    }
    assert!(for_ever || omitted as usize + named.len() == leaves.len(), "counts of the cache");
}

/// Blocks that heaps keep; returns how many elements they count, and may put in besides.
fn look_at_heaps(trie: &Trie<'_>, places: &mut Places) -> (u64, u64) {
    let (mut counted, mut spare) = (0_u64, 0);
    for heap in (0..HEAPS).filter(|i| (trie.wide(72) | 1) >> i & 1 != 0) {
        let at = trie.heaps_at + heap * HEAP;
        assert_eq!(trie.wide(at) & OWNER, 0, "heap {heap} is locked");
        assert_eq!(trie.wide(at + 64), 0, "the log of heap {heap} is not done");
        counted = counted.wrapping_add(trie.wide(at + 8));
        spare += trie.wide(at + 24);
        for class in 0..CLASSES {
            let magazine = at + 512 + 64 * class;
            for i in 0..u64::from(trie.half(magazine)) {
                let block = trie.block_at(trie.half(magazine + 4 + 4 * i));
                places.put(block, "a magazine", trie.size_of(class));
            }
        }
        for i in 0..u64::from(trie.half(at + 16)) {
            let block = trie.block_at(trie.half(at + 14_336 + 4 * i));
            // Its size is not known any more.
            places.put(block, "limbo", 0);
        }
    }
    assert_eq!(trie.wide(192), 0, "the log of the spans is not done");
    (counted, spare)
}

/// Every block of a span is free or in its place; returns how many pages belong to a class.
fn look_at_spans(trie: &Trie<'_>, places: &Places) -> u64 {
    let (mut page, mut met, mut empty, mut pages) = (1, 0, 0, 0);
    let used = trie.wide(160);
    while page < used {
        let class = trie.entry(page, 0);
        assert_ne!(class, BEHIND, "page {page} is behind nothing");
        let length = u64::from(trie.entry(page, 24)).max(1);
        if class != 0 {
            let class = u64::from(class) - 1;
            let size = trie.size_of(class);
            assert_eq!(length, span_pages(size), "pages of the span at {page}");
            let blocks = length * PAGE / size;
            let (carved, in_use) = (u64::from(trie.entry(page, 4)), trie.entry(page, 12));
            assert!(carved <= blocks);
            let mut is_free = vec![false; blocks as usize];
            let mut free = trie.entry(page, 8);
            let link_at = if class < LEAF_CLASSES { trie.length_at } else { 4 };
            while let Some(index) = free.checked_sub(1) {
                let place = is_free.get_mut(index as usize).expect("a block of the span");
                assert!(!std::mem::replace(place, true), "a block is free twice");
                free = trie.half(trie.arena_at + page * PAGE + u64::from(index) * size + link_at);
            }
            let mut held = 0;
            for index in 0..carved {
                let at = trie.arena_at + page * PAGE + index * size;
                match (places.0.get(&at), is_free[index as usize]) {
                    (Some((place, bytes)), false) => {
                        assert!(*bytes <= size, "{place} has {bytes} bytes in a block of {size}");
                        held += 1;
                    }
                    (None, true) => {}
                    (Some((place, _)), true) => panic!("a free block is in {place}"),
                    (None, false) => panic!("the block at {at:#x} of {size} bytes is lost"),
                }
            }
            assert_eq!(held, in_use, "blocks in use of the span at {page}");
            let is_listed = trie.entry(page, 28) & 1 != 0;
            assert_eq!(is_listed, u64::from(in_use) < blocks, "the list of the span at {page}");
            met += u64::from(held);
            empty += u64::from(in_use == 0);
            pages += length;
        }
        page += length;
    }
    assert_eq!(met, places.0.len() as u64, "blocks that are in no span");
    assert_eq!(empty, trie.wide(176), "empty spans");
    pages
}
