//! The mapped file of a qp-trie.

use std::sync::Arc;
use std::sync::atomic::{
    AtomicU32, AtomicU64, Ordering::Acquire, Ordering::Relaxed, Ordering::Release,
};

use super::geometry::Geometry;
use super::{
    BLOCK_CLASSES, CACHE_AT, CACHE_BUCKET, ENTRY, HEAP, HEAPS, LEAF, LIMBO, LIMBO_AT, LOG,
    MAGAZINE, MAGAZINE_LEN, MAGAZINES, STRIPE, STRIPES, STRIPES_AT,
};
use crate::shm::object::ObjectFile;
use crate::shm::{PAGE, copy, ranges, reserve, sys};

/// A mapped trie.
#[derive(Debug)]
pub(crate) struct QpMemory {
    pub(crate) geometry: Geometry,
    file: Arc<ObjectFile>,
    base: *mut u8,
    cache: *mut u8,
    arena: *mut u8,
    /// Bytes of the arena behind its first page.
    blocks_len: u64,
    /// [`ranges::replaced`] when the file was last mapped.
    replaced: AtomicU64,
}

// SAFETY: `base` is the payload of `file`, reached through atomics and word-wise copies only.
unsafe impl Send for QpMemory {}
// SAFETY: `base` is the payload of `file`, reached through atomics and word-wise copies only.
unsafe impl Sync for QpMemory {}

/// Stores that are done all or not at all, also when who does them dies: they are written down, then
/// counted, then done, then forgotten. Who takes the lock of a log over from a dead holder does them
/// again.
#[derive(Clone, Copy)]
pub(crate) struct Log<'a> {
    memory: &'a QpMemory,
    at: u64,
}

/// The arena, for who goes to many blocks: what that takes stays in registers.
#[derive(Clone, Copy)]
pub(crate) struct Arena {
    at: *mut u8,
    blocks_len: u64,
    /// Bytes of half a unit.
    half_unit: u64,
}

impl Arena {
    /// As [`QpMemory::block`], of a reference that is no leaf's.
    #[inline(always)]
    pub(crate) fn node(self, reference: u32) -> Option<*mut u8> {
        let at = u64::from(reference).wrapping_mul(self.half_unit);
        // SAFETY: inside the arena, behind which there is slack for a whole block.
        (at.wrapping_sub(PAGE) < self.blocks_len).then(|| unsafe { self.at.add(at as usize) })
    }

    /// As [`QpMemory::block`], of a leaf's reference.
    #[inline(always)]
    pub(crate) fn leaf(self, reference: u32) -> Option<*mut u8> {
        self.node(reference & !LEAF)
    }

    /// Asks for the beginning of a node, and for where most others of its parts are.
    #[inline(always)]
    pub(crate) fn prefetch(self, reference: u32) {
        let at = u64::from(reference).wrapping_mul(self.half_unit);
        QpMemory::prefetch(self.at.wrapping_add(at as usize));
        QpMemory::prefetch(self.at.wrapping_add(at as usize).wrapping_add(24));
    }

    /// Asks for a leaf up to a byte.
    #[inline(always)]
    pub(crate) fn prefetch_leaf(self, reference: u32, last: usize) {
        let at = u64::from(reference & !LEAF).wrapping_mul(self.half_unit);
        let at = self.at.wrapping_add(at as usize);
        QpMemory::prefetch(at);
        QpMemory::prefetch(at.wrapping_add(last));
        let mut i = 64usize;
        while i < last {
            QpMemory::prefetch(at.wrapping_add(i));
            i = i.wrapping_add(64);
        }
    }
}

/// Where a word of 32 bits lies in the payload: aligned, and inside it.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct WordAt(u64);

/// Where a word of 64 bits lies in the payload, likewise.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct WideAt(u64);

impl QpMemory {
    /// Takes a file whose payload must be as long as the geometry says.
    pub(crate) fn new(file: Arc<ObjectFile>, geometry: Geometry) -> Option<Self> {
        let base = file.payload().at(0, geometry.payload_len)?;
        let arena = base.wrapping_add(geometry.arena_at as usize);
        let cache = base.wrapping_add(CACHE_AT as usize);
        let blocks_len = (geometry.arena_pages * PAGE).saturating_sub(PAGE);
        let replaced = AtomicU64::new(ranges::replaced());
        Some(Self { geometry, file, base, cache, arena, blocks_len, replaced })
    }

    /// Maps the file once more where it is, if a page of this process's objects was replaced. A reader who
    /// stands in a span that is given away may touch a page that has no memory, and on a full file
    /// system there is none for it. He reads again, as the version changed; but what others put there
    /// later would be in the file only.
    pub(crate) fn map_replaced_again(&self) {
        let now = ranges::replaced();
        if now != self.replaced.load(Relaxed) {
            self.map_again(now);
        }
    }

    #[cold]
    #[inline(never)]
    fn map_again(&self, now: u64) {
        let (base, len) = (self.base as u64, self.geometry.payload_len);
        let len = len.wrapping_add(PAGE - 1) & !(PAGE - 1);
        // SAFETY: the second mapping is nobody's, and takes the place of the first in one go: of the
        // same bytes, and as long as `file` has it.
        let done = !sys::is_closed()
            && sys::map_again(base, len)
                .is_some_and(|again| unsafe { sys::move_mapping(again, len, len, base) });
        if done {
            self.replaced.store(now, Relaxed);
        }
    }

    pub(crate) fn writable(&self) -> bool {
        self.file.writable()
    }

    pub(crate) fn file(&self) -> &Arc<ObjectFile> {
        &self.file
    }

    /// # Safety
    /// `at` is a multiple of eight below the length of the payload.
    #[inline(always)]
    unsafe fn word(&self, at: u64) -> &AtomicU64 {
        debug_assert!(at & 7 == 0 && at + 8 <= self.geometry.payload_len);
        // SAFETY: the caller's promise; `new` checked the length of the payload.
        unsafe { AtomicU64::from_ptr(self.base.add(at as usize).cast()) }
    }

    /// # Safety
    /// `at` is a multiple of four below the length of the payload.
    #[inline(always)]
    unsafe fn half(&self, at: u64) -> &AtomicU32 {
        debug_assert!(at & 3 == 0 && at + 4 <= self.geometry.payload_len);
        // SAFETY: the caller's promise; `new` checked the length of the payload.
        unsafe { AtomicU32::from_ptr(self.base.add(at as usize).cast()) }
    }

    /// A word of the first page.
    #[inline(always)]
    fn common<const AT: u64>(&self) -> &AtomicU64 {
        const { assert!(AT & 7 == 0 && AT < PAGE) };
        // SAFETY: inside the first page of the payload.
        unsafe { self.word(AT) }
    }

    /// Changes before blocks that left the trie are used again.
    #[inline(always)]
    pub(crate) fn version(&self) -> &AtomicU64 {
        self.common::<0>()
    }

    #[inline(always)]
    pub(crate) fn root(&self) -> &AtomicU32 {
        self.at32(Self::ROOT_AT)
    }

    /// Where the root lies.
    pub(crate) const ROOT_AT: WordAt = WordAt(64);

    /// The lock of spans.
    pub(crate) fn span_lock(&self) -> &AtomicU64 {
        self.common::<128>()
    }

    /// Elements, and those that heaps may still put in.
    pub(crate) fn reserved(&self) -> &AtomicU64 {
        self.common::<80>()
    }

    /// Not zero when a writer died since [`QpMemory::reserved`] was last counted.
    pub(crate) fn suspect(&self) -> &AtomicU64 {
        self.common::<144>()
    }

    /// The lock of who takes elements exactly.
    pub(crate) fn taker_lock(&self) -> &AtomicU64 {
        self.common::<152>()
    }

    /// Pages of the arena that were ever in a span.
    pub(crate) const USED_PAGES: WideAt = WideAt(160);
    pub(crate) fn used_pages(&self) -> &AtomicU64 {
        self.at64(Self::USED_PAGES)
    }

    /// Pages of the arena that got memory; spans that were emptied may have lost theirs.
    pub(crate) fn backed_pages(&self) -> &AtomicU64 {
        self.common::<168>()
    }

    /// Spans of which no block is in use, but which still belong to a class.
    pub(crate) const EMPTY_SPANS: WideAt = WideAt(176);
    pub(crate) fn empty_spans(&self) -> &AtomicU64 {
        self.at64(Self::EMPTY_SPANS)
    }

    /// A bit for each heap that has memory. Beside the root, which rarely changes: every writer
    /// reads it.
    #[inline(always)]
    pub(crate) fn heaps_backed(&self) -> &AtomicU64 {
        self.common::<72>()
    }

    /// Not zero when pages get memory for their insertion epochs, too.
    pub(crate) fn epochs_kept(&self) -> &AtomicU64 {
        self.common::<592>()
    }

    pub(crate) fn span_log(&self) -> Log<'_> {
        Log { memory: self, at: 192 }
    }

    /// Where the first span of a list of free ones is named.
    pub(crate) fn free_span_at(&self, list: u64) -> WordAt {
        WordAt(1024u64.wrapping_add((list & 63).wrapping_mul(4)))
    }

    /// Where the first span with room for blocks of a class is named.
    pub(crate) fn class_at(&self, class: u32) -> WordAt {
        let class = u64::from(class).min(BLOCK_CLASSES as u64 - 1);
        WordAt(2048u64.wrapping_add(class.wrapping_mul(4)))
    }

    /// Returns the word at a place.
    #[inline(always)]
    pub(crate) fn at32(&self, at: WordAt) -> &AtomicU32 {
        // SAFETY: aligned and inside the payload, as every such place is: all are of this module's
        // own making.
        unsafe { self.half(at.0) }
    }

    #[inline(always)]
    fn at64(&self, at: WideAt) -> &AtomicU64 {
        // SAFETY: as in `at32`.
        unsafe { self.word(at.0) }
    }

    /// Returns the place of a word of a block: of a byte that is in it, or right behind it.
    #[inline(always)]
    pub(crate) fn place_in(&self, block: *const u8, byte: u64) -> WordAt {
        let at = (block as u64).wrapping_sub(self.base as u64).wrapping_add(byte) & !3;
        // What is no block's gets a word that nobody uses.
        WordAt(if at < self.geometry.payload_len { at } else { Self::ROOT_AT.0 + 4 })
    }

    /// Returns the lock of a stripe.
    #[inline(always)]
    pub(crate) fn stripe(&self, i: u64) -> &AtomicU64 {
        // SAFETY: one of the stripes.
        unsafe { self.word(STRIPES_AT.wrapping_add((i & (STRIPES - 1)).wrapping_mul(STRIPE))) }
    }

    #[inline(always)]
    fn heap_at(&self, heap: u64) -> u64 {
        self.geometry.heaps_at.wrapping_add((heap & (HEAPS - 1)).wrapping_mul(HEAP))
    }

    #[inline(always)]
    pub(crate) fn heap_lock(&self, heap: u64) -> &AtomicU64 {
        // SAFETY: a word of one of the heaps.
        unsafe { self.word(self.heap_at(heap)) }
    }

    /// Where a heap counts elements: those it put in less those it took out.
    #[inline(always)]
    pub(crate) fn heap_count_at(&self, heap: u64) -> WideAt {
        WideAt(self.heap_at(heap).wrapping_add(8))
    }

    #[inline(always)]
    pub(crate) fn heap_count(&self, heap: u64) -> &AtomicU64 {
        self.at64(self.heap_count_at(heap))
    }

    /// Where a heap counts elements that it may put in besides: they are reserved.
    #[inline(always)]
    pub(crate) fn heap_spare_at(&self, heap: u64) -> WideAt {
        WideAt(self.heap_at(heap).wrapping_add(24))
    }

    #[inline(always)]
    pub(crate) fn heap_spare(&self, heap: u64) -> &AtomicU64 {
        self.at64(self.heap_spare_at(heap))
    }

    /// Where a heap counts its blocks in limbo, and their bytes in the upper half.
    #[inline(always)]
    pub(crate) fn limbo_counts_at(&self, heap: u64) -> WideAt {
        WideAt(self.heap_at(heap).wrapping_add(16))
    }

    /// Returns how many blocks a heap has in limbo, and their bytes.
    #[inline(always)]
    pub(crate) fn limbo_counts(&self, heap: u64) -> (u64, u64) {
        let counts = self.at64(self.limbo_counts_at(heap)).load(Relaxed);
        (u64::from((counts as u32).min(LIMBO as u32)), counts >> 32)
    }

    #[inline(always)]
    pub(crate) fn limbo_at(&self, heap: u64, i: u64) -> WordAt {
        let i = i & (LIMBO - 1);
        WordAt(self.heap_at(heap).wrapping_add(LIMBO_AT).wrapping_add(i.wrapping_mul(4)))
    }

    #[inline(always)]
    pub(crate) fn heap_log(&self, heap: u64) -> Log<'_> {
        Log { memory: self, at: self.heap_at(heap).wrapping_add(64) }
    }

    /// Where a magazine's count lies; its blocks follow.
    #[inline(always)]
    pub(crate) fn magazine_at(&self, heap: u64, class: u32) -> WordAt {
        let class = u64::from(class).min(BLOCK_CLASSES as u64 - 1);
        let inside = MAGAZINES.wrapping_add(class.wrapping_mul(MAGAZINE_LEN));
        WordAt(self.heap_at(heap).wrapping_add(inside))
    }

    #[inline(always)]
    pub(crate) fn magazine_count(&self, heap: u64, class: u32) -> u32 {
        self.at32(self.magazine_at(heap, class)).load(Relaxed).min(MAGAZINE)
    }

    #[inline(always)]
    pub(crate) fn magazine_slot_at(&self, heap: u64, class: u32, i: u32) -> WordAt {
        let i = u64::from(i).min(u64::from(MAGAZINE) - 1).wrapping_add(1);
        WordAt(self.magazine_at(heap, class).0.wrapping_add(i.wrapping_mul(4)))
    }

    /// Gives a heap memory.
    pub(crate) fn acquire_heap(&self, heap: u64) -> bool {
        let bit = 1 << (heap & 63);
        if self.heaps_backed().load(Acquire) & bit != 0 {
            return true;
        }
        let from = self.base.wrapping_add(self.heap_at(heap) as usize);
        // SAFETY: one of the heaps, in a payload that writers have mapped writable.
        let done = self.writable() && unsafe { reserve::populate(from, HEAP) };
        if done {
            self.heaps_backed().fetch_or(bit, Release);
        }
        done
    }

    /// Where a word of the entry of a page of the arena lies.
    #[inline(always)]
    pub(crate) fn entry_at(&self, page: u64, word: u64) -> WordAt {
        let page = page.min(self.geometry.arena_pages.wrapping_sub(1));
        let word = word & (ENTRY - 4);
        WordAt(self.geometry.entries_at.wrapping_add(page.wrapping_mul(ENTRY)).wrapping_add(word))
    }

    /// Where the first free block of a span, and behind it how many are in use, lie.
    #[inline(always)]
    pub(crate) fn span_counts_at(&self, page: u64) -> WideAt {
        WideAt(self.entry_at(page, 8).0)
    }

    /// Returns the first free block of a span, counted from 1, and how many are in use.
    #[inline(always)]
    pub(crate) fn span_counts(&self, page: u64) -> (u32, u32) {
        let counts = self.at64(self.span_counts_at(page)).load(Relaxed);
        (counts as u32, (counts >> 32) as u32)
    }

    /// Gives pages of the arena, and their entries, memory.
    pub(crate) fn acquire_pages(&self, first: u64, end: u64) -> bool {
        let g = &self.geometry;
        if !self.writable() || first > end || end > g.arena_pages {
            return false;
        }
        let entries = self.base.wrapping_add(self.entry_at(first, 0).0 as usize);
        let pages = self.arena.wrapping_add((first.wrapping_mul(PAGE)) as usize);
        let n = end.wrapping_sub(first);
        self.map_replaced_again();
        // SAFETY: both lie inside the payload, which is mapped writable.
        unsafe {
            reserve::populate(entries, n.wrapping_mul(ENTRY))
                && reserve::populate(pages, n.wrapping_mul(PAGE))
        }
    }

    /// Gives the memory of pages of the arena back to the system; they read as zero then.
    pub(crate) fn release_pages(&self, first: u64, n: u64) {
        if n != 0 && self.writable() && first.saturating_add(n) <= self.geometry.arena_pages {
            let from = self.arena.wrapping_add((first.wrapping_mul(PAGE)) as usize);
            // SAFETY: pages of the arena, which nobody uses.
            unsafe { sys::release(from, (n.wrapping_mul(PAGE)) as usize) };
        }
    }

    /// Returns the address of the block that a reference names; `None` for 0 and for garbage. A
    /// whole node or leaf can be read there.
    #[inline(always)]
    pub(crate) fn block(&self, reference: u32) -> Option<*mut u8> {
        self.block_at(self.arena_offset(reference))
    }

    /// As [`QpMemory::block`], of a reference without mark.
    #[inline(always)]
    pub(crate) fn node_block(&self, reference: u32) -> Option<*mut u8> {
        let shift = self.geometry.unit_shift.wrapping_sub(1) & 63;
        self.block_at(u64::from(reference) << shift)
    }

    /// As [`QpMemory::block`], by where the block lies in the arena.
    #[inline(always)]
    pub(crate) fn block_at(&self, at: u64) -> Option<*mut u8> {
        // SAFETY: inside the arena, behind which there is slack for a whole block.
        (at.wrapping_sub(PAGE) < self.blocks_len).then(|| unsafe { self.arena.add(at as usize) })
    }

    /// Returns the arena.
    #[inline(always)]
    pub(crate) fn arena(&self) -> Arena {
        // A multiplication needs no register of its own, as a shift does that the compiler would make of
        // what it knows.
        let half_unit = std::hint::black_box(1 << (self.geometry.unit_shift.wrapping_sub(1) & 63));
        Arena { at: self.arena, blocks_len: self.blocks_len, half_unit }
    }

    /// Returns where the block of a reference lies in the arena.
    #[inline(always)]
    pub(crate) fn arena_offset(&self, reference: u32) -> u64 {
        u64::from(reference >> 1) << (self.geometry.unit_shift & 63)
    }

    /// Returns the reference, without mark, of a place in the arena.
    #[inline(always)]
    pub(crate) fn reference(&self, arena_offset: u64) -> u32 {
        ((arena_offset >> (self.geometry.unit_shift & 63)) as u32) << 1
    }

    /// Returns the length and address of a leaf's key. Garbage is cut.
    #[inline(always)]
    pub(crate) fn leaf_key(&self, leaf: *const u8) -> (*const u8, usize) {
        let g = &self.geometry;
        // SAFETY: a block is readable as far as the longest leaf goes.
        unsafe {
            let len = copy::load4(leaf.add(g.length_at)) & g.length_mask;
            (leaf.add(g.key_at), u64::from(len).min(g.max_key) as usize)
        }
    }

    /// Returns the address of a leaf's key.
    #[inline(always)]
    pub(crate) fn key_at(&self, leaf: *mut u8) -> *const u8 {
        leaf.wrapping_add(self.geometry.key_at)
    }

    /// Returns the address of a leaf's key if it has a length, which is at most that of the longest.
    #[inline(always)]
    pub(crate) fn leaf_key_of(&self, leaf: *const u8, len: usize) -> Option<*const u8> {
        let g = &self.geometry;
        // SAFETY: a block is readable as far as the longest leaf goes.
        unsafe {
            let found = copy::load4(leaf.add(g.length_at)) & g.length_mask;
            (found as usize == len).then(|| leaf.add(g.key_at))
        }
    }

    /// Fills a block that nobody else sees as a leaf, but for its value.
    ///
    /// # Safety
    /// The block is of the class for a key of this length, which is at most the longest one;
    /// `key..key+len` is readable.
    #[inline(always)]
    pub(crate) unsafe fn fill_leaf(&self, leaf: *mut u8, key: *const u8, len: usize) {
        let g = &self.geometry;
        // SAFETY: the block has room for the head and the key; the rest is the caller's duty.
        unsafe {
            // The key comes after it, where the length has two bytes only.
            AtomicU32::from_ptr(leaf.add(g.length_at).cast()).store(len as u32, Relaxed);
            copy::store_bytes(leaf.add(g.key_at), key, len);
        }
    }

    /// Stores the value of a leaf; one of at most eight bytes by one store.
    ///
    /// # Safety
    /// `leaf` is a leaf's block that stays one meanwhile; `value` points to a value in readable
    /// bytes.
    #[inline(always)]
    pub(crate) unsafe fn set_value(&self, leaf: *mut u8, value: *const u8) {
        let size = self.geometry.value_size;
        // SAFETY: the place has room for a value rounded up; the rest is the caller's duty.
        unsafe {
            if size <= 4 {
                let word = if size == 4 {
                    copy::load4(value)
                } else {
                    copy::load_tail(value, size & 3) as u32
                };
                AtomicU32::from_ptr(leaf.cast()).store(word, Relaxed);
            } else {
                copy::store(leaf, value, size);
            }
        }
    }

    /// Copies the value of a leaf out; `out` is at most as long as values are.
    #[inline(always)]
    pub(crate) fn read_value(&self, leaf: *mut u8, out: &mut [u8]) {
        let size = self.geometry.value_size;
        if size == 4
            && let Ok(out) = <&mut [u8; 4]>::try_from(&mut *out)
        {
            // One store, as its reader may load all four at once.
            // SAFETY: as below.
            *out = unsafe { AtomicU32::from_ptr(leaf.cast()) }.load(Relaxed).to_ne_bytes();
        } else if size <= 4 {
            // SAFETY: a block is readable as far as the longest leaf goes, and aligned to four.
            let word = unsafe { AtomicU32::from_ptr(leaf.cast()) }.load(Relaxed).to_ne_bytes();
            for (to, from) in out.iter_mut().zip(word) {
                *to = from;
            }
        } else {
            let n = out.len().min(size);
            // SAFETY: the same; blocks are aligned to eight where values are larger than four.
            unsafe { copy::load(&mut out[..n], leaf) };
        }
    }

    /// Returns the bucket of the cache for a hash: its address.
    #[inline(always)]
    pub(crate) fn bucket(&self, hash: u64) -> *mut u8 {
        let g = &self.geometry;
        let i = (hash >> 32).wrapping_mul(g.buckets) >> 32;
        self.cache.wrapping_add((i.wrapping_mul(CACHE_BUCKET)) as usize)
    }

    /// Returns the other bucket of a bucket's pair.
    #[inline(always)]
    pub(crate) fn bucket_beside(&self, bucket: *mut u8) -> *mut u8 {
        // Pairs are aligned to their size, as the payload is to pages.
        bucket.map_addr(|at| at ^ CACHE_BUCKET as usize)
    }

    /// Returns a bucket's state.
    ///
    /// # Safety
    /// `bucket` is from [`QpMemory::bucket`] of a trie with a cache.
    #[inline(always)]
    pub(crate) unsafe fn bucket_state(&self, bucket: *mut u8) -> &AtomicU32 {
        // SAFETY: inside the bucket.
        unsafe { AtomicU32::from_ptr(bucket.add(12).cast()) }
    }

    /// Returns the place of a bucket's state.
    #[inline(always)]
    pub(crate) fn bucket_state_at(&self, bucket: *const u8) -> WordAt {
        self.place_in(bucket, 12)
    }

    /// Returns the place of a bucket's leaf, and that of the word that its tag is in.
    #[inline(always)]
    pub(crate) fn cached_at(&self, bucket: *const u8, i: u32) -> (WordAt, WordAt) {
        let leaf = 16u64.wrapping_add(u64::from(i).wrapping_mul(4));
        (self.place_in(bucket, leaf), self.place_in(bucket, u64::from(i)))
    }

    /// Returns the number of a bucket's pair.
    #[inline(always)]
    pub(crate) fn pair(&self, bucket: *const u8) -> u64 {
        (bucket as u64).wrapping_sub(self.cache as u64) / (2 * CACHE_BUCKET)
    }

    /// Returns the place of a word of a heap that is of no use, for stores that are not needed.
    #[inline(always)]
    pub(crate) fn no_use_at(&self, heap: u64) -> WordAt {
        WordAt(self.heap_at(heap).wrapping_add(32))
    }

    /// Returns a leaf of a bucket.
    ///
    /// # Safety
    /// As [`QpMemory::bucket_state`], and `i` is below [`CACHED`](super::CACHED).
    #[inline(always)]
    pub(crate) unsafe fn cached(&self, bucket: *mut u8, i: u32) -> &AtomicU32 {
        // SAFETY: inside the bucket.
        unsafe {
            AtomicU32::from_ptr(
                bucket.add(16usize.wrapping_add((i as usize).wrapping_mul(4))).cast(),
            )
        }
    }

    /// Asks for a cache line; any address will do.
    #[inline(always)]
    pub(crate) fn prefetch(at: *const u8) {
        // SAFETY: prefetching has no effect but on the cache, whatever the address.
        unsafe {
            std::arch::asm!("prefetcht0 byte ptr [{}]", in(reg) at, options(nostack, readonly, preserves_flags))
        };
    }

    /// Asks for a leaf with a key of a length.
    #[inline(always)]
    pub(crate) fn prefetch_leaf(&self, reference: u32, key_len: usize) {
        self.prefetch_ends(reference, self.geometry.key_at.wrapping_add(key_len).wrapping_sub(1));
    }

    /// Asks for the beginning of a block, and for a byte behind.
    #[inline(always)]
    pub(crate) fn prefetch_ends(&self, reference: u32, last: usize) {
        self.prefetch_place(self.arena_offset(reference), last);
    }

    /// Asks for the beginning of what lies at a place in the arena, and for a byte behind.
    #[inline(always)]
    pub(crate) fn prefetch_place(&self, at: u64, last: usize) {
        let at = self.arena.wrapping_add(at as usize);
        Self::prefetch(at);
        Self::prefetch(at.wrapping_add(last));
    }

    /// Asks for all of a page of the arena.
    #[inline(always)]
    pub(crate) fn prefetch_page(&self, page: u64) {
        let mut at = page.wrapping_mul(PAGE);
        let end = at.wrapping_add(PAGE);
        while at < end {
            Self::prefetch(self.arena.wrapping_add(at as usize));
            at = at.wrapping_add(64);
        }
    }

    /// Asks for the beginning of a block.
    #[inline(always)]
    pub(crate) fn prefetch_block(&self, reference: u32) {
        let at = self.arena_offset(reference);
        Self::prefetch(self.arena.wrapping_add(at as usize));
    }
}

impl Log<'_> {
    fn count(&self) -> &AtomicU64 {
        // SAFETY: a word of a log.
        unsafe { self.memory.word(self.at) }
    }

    /// Tells whether there are stores that may not be done.
    pub(crate) fn is_pending(&self) -> bool {
        self.count().load(Acquire) != 0
    }

    /// Writes the `i`th store down. The lock of the log is held.
    #[inline(always)]
    pub(crate) fn write(&self, i: &mut u64, at: WordAt, value: u32) {
        self.write_any(i, at.0, value.into());
    }

    /// As [`Log::write`], for 64 bits at a multiple of eight.
    #[inline(always)]
    pub(crate) fn write_wide(&self, i: &mut u64, at: WideAt, value: u64) {
        self.write_any(i, at.0 | 1, value);
    }

    #[inline(always)]
    fn write_any(&self, i: &mut u64, at: u64, value: u64) {
        let entry = self.entry(*i);
        // SAFETY: words of a log.
        unsafe {
            self.memory.word(entry).store(at, Relaxed);
            self.memory.word(entry.wrapping_add(8)).store(value, Relaxed);
        }
        *i = i.wrapping_add(1);
    }

    #[inline(always)]
    fn entry(&self, i: u64) -> u64 {
        self.at.wrapping_add(8).wrapping_add(i.min(LOG - 1).wrapping_mul(16))
    }

    /// Does the first `n` stores, which were written down.
    #[inline(always)]
    pub(crate) fn commit(&self, n: u64) {
        // From here on whoever finds this lock's holder dead does them.
        self.count().store(n, Release);
        self.replay();
    }

    /// Writes stores down and does them, in this order: those of 32 bits first. Callers know when they
    /// are compiled which there are.
    #[inline(always)]
    pub(crate) fn commit_these<const N: usize, const W: usize>(
        &self,
        narrow: &[Option<(WordAt, u32)>; N],
        wide: &[Option<(WideAt, u64)>; W],
    ) {
        let (mut n, mut i) = (0u64, 0usize);
        while i < N {
            if let Some((at, value)) = narrow[i] {
                self.write(&mut n, at, value);
            }
            i = i.wrapping_add(1);
        }
        i = 0;
        while i < W {
            if let Some((at, value)) = wide[i] {
                self.write_wide(&mut n, at, value);
            }
            i = i.wrapping_add(1);
        }
        // From here on whoever finds this lock's holder dead does them.
        self.count().store(n, Release);
        // Each pairs with the Acquire loads of readers.
        i = 0;
        while i < N {
            if let Some((at, value)) = narrow[i] {
                self.memory.at32(at).store(value, Release);
            }
            i = i.wrapping_add(1);
        }
        i = 0;
        while i < W {
            if let Some((at, value)) = wide[i] {
                self.memory.at64(at).store(value, Release);
            }
            i = i.wrapping_add(1);
        }
        self.count().store(0, Release);
    }

    /// Does what is written down, if anything is; garbage is passed over.
    pub(crate) fn replay(&self) {
        let n = self.count().load(Acquire).min(LOG);
        let last = self.memory.geometry.payload_len.wrapping_sub(8);
        let mut entry = self.entry(0);
        let end = entry.wrapping_add(n.wrapping_mul(16));
        while entry != end {
            // SAFETY: words of a log.
            let (at, value) = unsafe {
                (
                    self.memory.word(entry).load(Relaxed),
                    self.memory.word(entry.wrapping_add(8)).load(Relaxed),
                )
            };
            // SAFETY: inside the payload, as just checked, and aligned. Pairs with the Acquire loads
            // of readers.
            unsafe {
                if at > last {
                } else if at & 3 == 0 {
                    self.memory.half(at).store(value as u32, Release);
                } else if at & 7 == 1 {
                    self.memory.word(at & !7).store(value, Release);
                }
            }
            entry = entry.wrapping_add(16);
        }
        self.count().store(0, Release);
    }
}
