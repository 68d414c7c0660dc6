//! The memory of a hash table: where its parts lie, and access to them that cannot leave the
//! mapping.
//!
//! ```text
//! 0        128             buckets_at          marks_at            elements_at                values_at
//! | common | stripes × 64 | buckets × 8 | marks, 1 bit an element | elements × stride | values of slot 0 … (per-CPU) |
//!
//! common    0 leaks   8 insertions and 16 hand (LRU)   64 one bit a stripe: nothing to allocate there
//!           72 lock of who takes exactly   80 first element taken out and not yet given back
//! stripe    0 lock    8 free          16 spare         24 fresh used    32 bucket last changed + 1
//!          40 fresh with memory (BPF_F_NO_PREALLOC)   48 element written in place, its new value in the spare
//! bucket    version (high half), first element (low half)
//! element   0 hash (high half), next element (low half)   8 sequence   12 stamp (LRU)   16 key   … value (unless per-CPU)
//! ```
//!
//! Elements are named by references: index + 1, zero for none. Keys and values are rounded up to
//! eight bytes.

use std::sync::Arc;
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering::Relaxed, Ordering::SeqCst};

use super::header::MAX_PAYLOAD;
use super::object::ObjectFile;
use super::{PAGE, copy, page_up, reserve, round8};

/// Most stripes (locks with a pool of elements each): one word has a bit for each. More would make
/// it slow to be sure that the map is full, for which all locks are looked at.
pub(crate) const MAX_STRIPES: u64 = 64;
const COMMON: u64 = 128;
const STRIPE: u64 = 64;
const HEADER: u64 = 16;

/// Sizes and places, all computed from the definition and none read from shared memory.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Geometry {
    pub(crate) max_entries: u64,
    pub(crate) buckets: u64,
    pub(crate) stripes: u64,
    /// Elements in the file: `max_entries` and one spare a stripe.
    pub(crate) elements: u64,
    pub(crate) key_size: u64,
    /// Bytes of one value, rounded up.
    pub(crate) value_stride: u64,
    buckets_at: u64,
    marks_at: u64,
    elements_at: u64,
    stride: u64,
    /// Value 0 of slot 0, and how far it is to the next element's value and to the next slot's.
    values_at: u64,
    next_value: u64,
    slot_stride: u64,
    pub(crate) payload_len: u64,
}

impl Geometry {
    /// Lays a table out; `slots` is 0 for values inside their elements. `None` when it is too
    /// large.
    pub(crate) fn new(
        max_entries: u32,
        key_size: u32,
        value_size: u32,
        slots: u32,
    ) -> Option<Self> {
        let max_entries = u64::from(max_entries);
        // At most two elements for three buckets.
        let buckets = (max_entries + max_entries / 2).max(2).next_power_of_two();
        let stripes = buckets.min(MAX_STRIPES);
        let elements = max_entries + stripes;
        let value_stride = round8(u64::from(value_size));
        let inline = if slots == 0 { value_stride } else { 0 };
        let stride = HEADER + round8(u64::from(key_size)) + inline;
        let buckets_at = COMMON + stripes * STRIPE;
        let marks_at = buckets_at.checked_add(buckets * 8)?;
        let elements_at = page_up(marks_at.checked_add(elements.div_ceil(64) * 8)?)?;
        let values_at = page_up(elements_at.checked_add(elements.checked_mul(stride)?)?)?;
        let slot_stride = page_up(elements.checked_mul(value_stride)?)?;
        let payload_len = values_at.checked_add(slot_stride.checked_mul(u64::from(slots))?)?;
        let fits = elements < u64::from(u32::MAX) / 2 && payload_len <= MAX_PAYLOAD;
        fits.then_some(Self {
            max_entries,
            buckets,
            stripes,
            elements,
            key_size: u64::from(key_size),
            value_stride,
            buckets_at,
            marks_at,
            elements_at,
            stride,
            values_at: if slots == 0 { elements_at + stride - value_stride } else { values_at },
            next_value: if slots == 0 { stride } else { value_stride },
            slot_stride: if slots == 0 { 0 } else { slot_stride },
            payload_len: payload_len.max(PAGE),
        })
    }
}

impl Geometry {
    /// The elements a stripe began with, as indices.
    pub(crate) fn range(&self, stripe: u64) -> (u64, u64) {
        let shift = self.stripes.trailing_zeros();
        (
            stripe.wrapping_mul(self.max_entries) >> shift,
            stripe.wrapping_add(1).wrapping_mul(self.max_entries) >> shift,
        )
    }

    /// Where elements begin: all before is there from the beginning.
    pub(crate) fn elements_at(&self) -> u64 {
        self.elements_at
    }

    /// Where elements without values end, and how far it is from one slot's values to the next
    /// one's.
    pub(crate) fn slots(&self) -> (u64, u64) {
        (self.values_at, self.slot_stride)
    }

    /// Bytes of an element, with its values in so many slots.
    pub(crate) fn whole(&self, slots: u64) -> u64 {
        self.stride.wrapping_add(if self.slot_stride == 0 {
            0
        } else {
            self.value_stride.wrapping_mul(slots)
        })
    }
}

/// A mapped table.
#[derive(Debug)]
pub(crate) struct TableMemory {
    pub(crate) geometry: Geometry,
    file: Arc<ObjectFile>,
    base: *mut u8,
}

// SAFETY: `base` is the payload of `file`, reached through atomics and word-wise copies only.
unsafe impl Send for TableMemory {}
// SAFETY: `base` is the payload of `file`, reached through atomics and word-wise copies only.
unsafe impl Sync for TableMemory {}

impl TableMemory {
    /// Takes a file whose payload must be as long as the geometry says.
    pub(crate) fn new(file: Arc<ObjectFile>, geometry: Geometry) -> Option<Self> {
        let base = file.payload().at(0, geometry.payload_len)?;
        Some(Self { geometry, file, base })
    }

    pub(crate) fn writable(&self) -> bool {
        self.file.writable()
    }

    /// A word of the part that all tables begin with.
    #[inline(always)]
    fn common<const AT: u64>(&self) -> &AtomicU64 {
        const { assert!(AT & 7 == 0 && AT < COMMON) };
        // SAFETY: the payload, whose length `new` checked, begins with that part.
        unsafe { self.word(AT) }
    }

    /// # Safety
    /// `off` is a multiple of eight and lies in the payload: it was computed from an index that was
    /// masked or checked.
    #[inline(always)]
    unsafe fn word(&self, off: u64) -> &AtomicU64 {
        debug_assert!(off & 7 == 0 && off + 8 <= self.geometry.payload_len);
        // SAFETY: the caller's promise; `new` checked the length of the payload.
        unsafe { AtomicU64::from_ptr(self.base.add(off as usize).cast()) }
    }

    /// Returns the bucket for a hash.
    #[inline(always)]
    pub(crate) fn bucket(&self, hash: u64) -> &AtomicU64 {
        let i = hash & self.geometry.buckets.wrapping_sub(1);
        // SAFETY: one of the buckets.
        unsafe { self.word(self.geometry.buckets_at.wrapping_add(i.wrapping_mul(8))) }
    }

    /// Returns the stripe for a hash; a bucket and its stripe follow from the same hash.
    #[inline(always)]
    pub(crate) fn stripe(&self, hash: u64) -> Stripe<'_> {
        let i = hash & self.geometry.stripes.wrapping_sub(1);
        let at = COMMON.wrapping_add(i.wrapping_mul(STRIPE));
        // SAFETY: words of one of the stripes.
        unsafe {
            Stripe {
                index: i,
                lock: self.word(at),
                free: self.word(at.wrapping_add(8)),
                spare: self.word(at.wrapping_add(16)),
                fresh_used: self.word(at.wrapping_add(24)),
                touched: self.word(at.wrapping_add(32)),
                backed: self.word(at.wrapping_add(40)),
                redo: self.word(at.wrapping_add(48)),
            }
        }
    }

    /// Gives elements, by their indices, memory, but not their values of slots; `false` when there
    /// is none, or the payload is not mapped writable.
    pub(crate) fn acquire_elements(&self, first: u64, end: u64) -> bool {
        let g = &self.geometry;
        let at = g.elements_at.wrapping_add(first.wrapping_mul(g.stride));
        if !self.writable() || first > end || end > g.elements {
            return false;
        }
        // SAFETY: elements lie inside the payload, which is mapped writable.
        unsafe {
            reserve::populate(
                self.base.wrapping_add(at as usize),
                end.wrapping_sub(first).wrapping_mul(g.stride),
            )
        }
    }

    /// Gives the values of elements in a slot's area memory.
    pub(crate) fn acquire_values(&self, slot: u32, first: u64, end: u64) -> bool {
        let g = &self.geometry;
        let at = g
            .values_at
            .wrapping_add(u64::from(slot).wrapping_mul(g.slot_stride))
            .wrapping_add(first.wrapping_mul(g.value_stride));
        let len = end.wrapping_sub(first).wrapping_mul(g.value_stride);
        if g.slot_stride == 0 {
            return true;
        }
        if !self.writable()
            || first > end
            || end > g.elements
            || at.wrapping_add(len) > g.payload_len
        {
            return false;
        }
        // SAFETY: inside the payload, as just checked, which is mapped writable.
        unsafe { reserve::populate(self.base.wrapping_add(at as usize), len) }
    }

    /// Shows ranges of indices, with all elements that ever had memory when they get it on demand,
    /// until `f` has enough.
    pub(crate) fn each_in_use(&self, f: impl Fn(u64, u64) -> bool) -> bool {
        let g = &self.geometry;
        let mut all = true;
        let mut i = 0u64;
        while i < g.stripes {
            let stripe = self.stripe(i);
            let (first, end) = g.range(i);
            let last = first.wrapping_add(stripe.backed.load(SeqCst)).min(end);
            let spare = g.max_entries.wrapping_add(i);
            all = all
                && (last <= first || f(first, last))
                && (stripe.spare.load(SeqCst) == 0 || f(spare, spare.wrapping_add(1)));
            i = i.wrapping_add(1);
        }
        all
    }

    pub(crate) fn leaks(&self) -> &AtomicU64 {
        self.common::<0>()
    }

    /// Counts insertions, by two.
    #[inline(always)]
    pub(crate) fn clock(&self) -> &AtomicU64 {
        self.common::<8>()
    }

    /// Returns where the search for something to throw out goes on.
    pub(crate) fn hand(&self) -> &AtomicU64 {
        self.common::<16>()
    }

    /// Returns the stamp of an element's last use.
    #[inline(always)]
    pub(crate) fn stamp(&self, reference: u32) -> Option<&AtomicU32> {
        let e = self.element(reference)?;
        // SAFETY: inside the element, aligned, and atomic.
        Some(unsafe { AtomicU32::from_ptr(self.base.add(e.at.wrapping_add(12) as usize).cast()) })
    }

    /// Marks an element as out of the map.
    pub(crate) fn forget(&self, reference: u32) {
        if let Some(stamp) = self.stamp(reference) {
            stamp.store(0, Relaxed);
        }
    }

    /// Returns the lock of whoever takes elements and waits for running programs before they are
    /// used again.
    pub(crate) fn limbo_lock(&self) -> &AtomicU64 {
        self.common::<72>()
    }

    /// Returns the first of the elements that wait.
    pub(crate) fn limbo_head(&self) -> &AtomicU64 {
        self.common::<80>()
    }

    /// Returns the bits that say of each stripe that it has nothing to allocate.
    pub(crate) fn empty_bits(&self) -> &AtomicU64 {
        self.common::<64>()
    }

    /// Returns the word with the mark of an element, and the bit in it.
    pub(crate) fn mark(&self, reference: u32) -> Option<(&AtomicU64, u64)> {
        let i = self.index(reference)?;
        // SAFETY: a word of the marks, of which there is one for each element.
        Some((
            unsafe { self.word(self.geometry.marks_at.wrapping_add((i / 64).wrapping_mul(8))) },
            1 << (i & 63),
        ))
    }

    #[inline(always)]
    fn index(&self, reference: u32) -> Option<u64> {
        let i = u64::from(reference).wrapping_sub(1);
        (i < self.geometry.elements).then_some(i)
    }

    /// Returns the element of a reference, or `None` for zero and for garbage.
    #[inline(always)]
    pub(crate) fn element(&self, reference: u32) -> Option<Element<'_>> {
        let i = self.index(reference)?;
        let at = self.geometry.elements_at.wrapping_add(i.wrapping_mul(self.geometry.stride));
        Some(Element { memory: self, at })
    }

    /// Asks for the cache line of an element; any reference will do.
    #[inline(always)]
    pub(crate) fn prefetch(&self, reference: u32) {
        let i = u64::from(reference).wrapping_sub(1);
        self.prefetch_at(
            self.geometry.elements_at.wrapping_add(i.wrapping_mul(self.geometry.stride)),
        );
    }

    /// Asks for the cache line of a bucket; any number will do.
    #[inline(always)]
    pub(crate) fn prefetch_bucket(&self, number: u64) {
        self.prefetch_at(self.geometry.buckets_at.wrapping_add(number.wrapping_mul(8)));
    }

    #[inline(always)]
    fn prefetch_at(&self, at: u64) {
        // SAFETY: prefetching has no effect but on the cache, whatever the address.
        unsafe {
            std::arch::asm!("prefetcht0 byte ptr [{}]", in(reg) self.base.wrapping_add(at as usize), options(nostack, readonly, preserves_flags))
        };
    }

    /// Returns the value of an element for a slot, `stride` bytes long; slot 0 for values inside
    /// elements.
    #[inline(always)]
    pub(crate) fn value(&self, reference: u32, slot: u32) -> Option<*mut u8> {
        let g = &self.geometry;
        let i = self.index(reference)?;
        let off = g
            .values_at
            .wrapping_add(i.wrapping_mul(g.next_value))
            .wrapping_add(u64::from(slot).wrapping_mul(g.slot_stride));
        if off.wrapping_add(g.value_stride) > g.payload_len {
            return None;
        }
        // SAFETY: inside the payload, as just checked.
        Some(unsafe { self.base.add(off as usize) })
    }
}

/// One lock with its pool of elements.
#[derive(Clone, Copy)]
pub(crate) struct Stripe<'a> {
    pub(crate) index: u64,
    pub(crate) lock: &'a AtomicU64,
    /// First of a list of free elements.
    pub(crate) free: &'a AtomicU64,
    /// The element that replaces another: 0 the one it began with, [`NO_SPARE`] none.
    pub(crate) spare: &'a AtomicU64,
    /// How many elements of its range were ever taken.
    pub(crate) fresh_used: &'a AtomicU64,
    /// One more than the bucket its last holder changed.
    pub(crate) touched: &'a AtomicU64,
    /// How many elements of its range have memory, where they get it on demand.
    pub(crate) backed: &'a AtomicU64,
    /// The element whose value is being written over in place: the whole new value lies in the
    /// spare. 0 none.
    pub(crate) redo: &'a AtomicU64,
}

/// The spare was taken out and not put back.
pub(crate) const NO_SPARE: u64 = u32::MAX as u64;

/// One element in shared memory.
#[derive(Clone, Copy)]
pub(crate) struct Element<'a> {
    memory: &'a TableMemory,
    at: u64,
}

impl<'a> Element<'a> {
    /// Hash in the high half, next element in the low half.
    #[inline(always)]
    pub(crate) fn link(&self) -> &'a AtomicU64 {
        // SAFETY: inside the element.
        unsafe { self.memory.word(self.at) }
    }

    /// The version of its bucket when it was put in.
    #[inline(always)]
    pub(crate) fn sequence(&self) -> &'a AtomicU64 {
        // SAFETY: inside the element.
        unsafe { self.memory.word(self.at.wrapping_add(8)) }
    }

    #[inline(always)]
    pub(crate) fn key(&self) -> *mut u8 {
        // SAFETY: inside the element.
        unsafe { self.memory.base.add(self.at.wrapping_add(HEADER) as usize) }
    }

    /// Compares its key.
    ///
    /// # Safety
    /// `key` points to the table's key size in readable bytes.
    #[inline(always)]
    pub(crate) unsafe fn has_key(&self, key: *const u8) -> bool {
        // SAFETY: the caller's duty.
        unsafe { self.has_key_sized(key, self.memory.geometry.key_size as usize) }
    }

    /// # Safety
    /// As [`Element::has_key`], of which `size` is the key size.
    #[inline(always)]
    pub(crate) unsafe fn has_key_sized(&self, key: *const u8, size: usize) -> bool {
        // SAFETY: the element holds the key rounded up; the rest is the caller's duty.
        unsafe { copy::same(self.key(), key, size) }
    }

    /// Stores its key.
    ///
    /// # Safety
    /// As [`Element::has_key`]; the memory is writable and the element is nobody's but the
    /// caller's.
    #[inline(always)]
    pub(crate) unsafe fn set_key(&self, key: *const u8) {
        // SAFETY: the element has room for the key rounded up; the rest is the caller's duty.
        unsafe { copy::store(self.key(), key, self.memory.geometry.key_size as usize) }
    }

    /// Copies its key out; `out` is at most as long as keys are.
    #[inline(always)]
    pub(crate) fn read_key(&self, out: &mut [u8]) {
        let n = out.len().min(self.memory.geometry.key_size as usize);
        // SAFETY: the element holds the key rounded up.
        unsafe { copy::load(&mut out[..n], self.key()) }
    }
}
