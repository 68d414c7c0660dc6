//! Nodes: finding children, and making copies with a child more or less.
//!
//! A node never changes but for its children, each of which is one 32-bit word. Which of its parts
//! is where, [`crate::shm::qp`] draws.

use std::sync::atomic::{AtomicU32, Ordering::Acquire, Ordering::Relaxed};

use super::key::Key;
use crate::shm::qp::{END, LEAF, N, OBSOLETE, WIDE};
use crate::shm::{PAGE, bits, copy};

/// Most bytes of a narrow node.
const NARROW: u32 = 16;
/// A wide node with fewer bytes than this is copied into a narrow one.
const WIDE_AGAIN: u32 = 12;
const WIDE_HEAD: usize = 40;
/// A large node has so many bytes below 192.
const LARGE: u8 = 96;

const ONES: u64 = 0x0101_0101_0101_0101;
const TOPS: u64 = 0x8080_8080_8080_8080;

/// Up to sixteen bytes in ascending order, the first one the lowest; behind them zeros.
#[derive(Clone, Copy)]
struct Symbols {
    low: u64,
    high: u64,
    n: u32,
}

/// Marks the first `n` bytes of a word, all from eight on.
#[inline(always)]
fn first_bytes(n: u32) -> u64 {
    if n >= 8 { u64::MAX } else { (1u64 << (n.wrapping_mul(8) & 63)).wrapping_sub(1) }
}

/// Counts the bytes below another.
#[inline(always)]
fn count_less(symbols: Symbols, byte: u8) -> u32 {
    let y = u64::from(byte).wrapping_mul(ONES);
    let less = |x: u64, n: u32| {
        // Bit 7 of each byte: the lower seven bits are not less.
        let not_less = (x | TOPS).wrapping_sub(y & !TOPS);
        let less = ((!x & y) | (!(x ^ y) & !not_less)) & TOPS & first_bytes(n);
        ((less >> 7).wrapping_mul(ONES) >> 56) as u32
    };
    less(symbols.low, symbols.n).wrapping_add(less(symbols.high, symbols.n.saturating_sub(8)))
}

impl Symbols {
    /// Puts a byte in, as the one with a number.
    #[inline(always)]
    fn with(self, i: u32, byte: u8) -> Self {
        let byte = u64::from(byte);
        let n = self.n.wrapping_add(1);
        if i >= 8 {
            let before = self.high & first_bytes(i.wrapping_sub(8));
            let at = i.wrapping_mul(8) & 63;
            return Self { high: before | byte << at | (self.high ^ before) << 8, n, ..self };
        }
        let before = self.low & first_bytes(i);
        let low = before | byte << (i.wrapping_mul(8) & 63) | (self.low ^ before) << 8;
        Self { low, high: self.high << 8 | self.low >> 56, n }
    }

    /// Writes the bytes into a narrow node that has `n` of them.
    ///
    /// # Safety
    /// `to` has room for the head of such a node, and for two children.
    #[inline(always)]
    unsafe fn store(self, to: *mut u8, n: u32) {
        // SAFETY: the caller's duty. Behind the bytes is room for at least two children.
        unsafe {
            AtomicU32::from_ptr(to.add(4).cast()).store(self.low as u32, Relaxed);
            if n > 4 {
                AtomicU32::from_ptr(to.add(8).cast()).store((self.low >> 32) as u32, Relaxed);
            }
            if n > 8 {
                AtomicU32::from_ptr(to.add(12).cast()).store(self.high as u32, Relaxed);
            }
            if n > 12 {
                AtomicU32::from_ptr(to.add(16).cast()).store((self.high >> 32) as u32, Relaxed);
            }
        }
    }
}

/// A node, or what garbage is taken for one. It has an address in the arena, behind which a whole
/// node can be read.
#[derive(Clone, Copy)]
pub(super) struct Node {
    pub(super) at: *mut u8,
    pub(super) head: u32,
}

/// What is left of a node's children: those of bytes, and perhaps that of the end.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct Left {
    n: u32,
    end: bool,
    /// The last of them, which may be the only one.
    last: u32,
}

impl Left {
    #[inline(always)]
    fn children(self) -> u32 {
        self.n.wrapping_add(u32::from(self.end))
    }

    /// Returns the child that is the only one.
    #[inline(always)]
    pub(super) fn only(self) -> Option<u32> {
        (self.children() == 1).then_some(self.last)
    }
}

/// The children of a node.
#[derive(Clone, Copy)]
pub(super) struct Links(*mut u32);

impl Links {
    /// Returns the child with a number below 257.
    #[inline(always)]
    pub(super) fn get(self, i: u32) -> &'static AtomicU32 {
        // SAFETY: as in [`Node::child`].
        unsafe { AtomicU32::from_ptr(self.0.add(i as usize)) }
    }

    /// Copies eight children from a number on, the last one first if `REVERSED`; tells which of them are
    /// leaves. Only those with numbers in a range, which may begin or end within the eight, are
    /// children; of others there may be anything.
    #[inline(always)]
    pub(super) fn copy_some<const REVERSED: bool>(
        &self,
        first: usize,
        range: (usize, usize),
        to: &mut [u32; 8],
    ) -> u32 {
        let from = self.0.wrapping_add(first);
        // In another page there may be no memory, and none to be had: then reading there is a SIGBUS.
        if from as u64 % PAGE > PAGE - 32 {
            return self.copy_each::<REVERSED>(first, range, to);
        }
        // SAFETY: in the page of a child.
        unsafe { copy::load_links::<REVERSED>(to, from) }
    }

    /// Copies up to eight children that [`Node::some_links`] returned, the last one first if `REVERSED`;
    /// tells which are leaves.
    #[inline(always)]
    pub(super) fn copy_near<const REVERSED: bool>(&self, n: usize, to: &mut [u32; 8]) -> u32 {
        if REVERSED {
            return self.copy_some::<true>(n.wrapping_sub(8), (0, n), to);
        }
        // SAFETY: in the page of the first.
        unsafe { copy::load_links::<false>(to, self.0) }
    }

    #[cold]
    #[inline(never)]
    fn copy_each<const REVERSED: bool>(
        &self,
        first: usize,
        (least, end): (usize, usize),
        to: &mut [u32; 8],
    ) -> u32 {
        let mut leaves = 0;
        for i in 0..8 {
            let number = first.wrapping_add(i);
            let at = if REVERSED { 7 - i } else { i };
            to[at] = 0;
            if number >= least && number < end {
                to[at] = self.get(number as u32).load(Acquire);
            }
            leaves |= (to[at] & LEAF) << at;
        }
        leaves
    }
}

/// What leads to a child: a byte, or the end of the key.
pub(super) type Symbol = Option<u8>;

/// Returns bytes of a node with the lowest marks of its kind.
const fn children_at(wide: bool, n: u32) -> usize {
    if wide { WIDE_HEAD } else { ((n + 7) & !3) as usize }
}

/// Bytes of a node with so many bytes and children.
#[inline(always)]
pub(super) fn size(n: u32, end: bool) -> u64 {
    let at = children_at(n > NARROW, n) as u64;
    at.wrapping_add(u64::from(n.wrapping_add(u32::from(end))).wrapping_mul(4))
}

impl Node {
    /// Looks at what lies at an address.
    #[inline(always)]
    pub(super) fn at(at: *mut u8) -> Self {
        // SAFETY: callers have the address of a block, aligned to four.
        Self { at, head: unsafe { AtomicU32::from_ptr(at.cast()) }.load(Relaxed) }
    }

    #[inline(always)]
    pub(super) fn offset(&self) -> usize {
        (self.head >> 8) as usize
    }

    #[inline(always)]
    pub(super) fn has_end(&self) -> bool {
        self.head & END != 0
    }

    pub(super) fn is_obsolete(&self) -> bool {
        self.head & OBSOLETE != 0
    }

    #[inline(always)]
    fn is_wide(&self) -> bool {
        self.head & WIDE != 0
    }

    /// Bytes of its symbols, without the end.
    #[inline(always)]
    pub(super) fn n(&self) -> u32 {
        if self.is_wide() {
            // SAFETY: inside the head.
            let rank = unsafe { copy::load1(self.at.add(7)) };
            u32::from(rank).wrapping_add(bits::count_ones(self.bits(3)))
        } else {
            (self.head & N).min(NARROW)
        }
    }

    /// How many children it has.
    #[inline(always)]
    pub(super) fn children(&self) -> u32 {
        self.n().wrapping_add(u32::from(self.has_end())).min(257)
    }

    /// Tells whether it has so many children that several writers change some of them at a time. For
    /// ever, as all but the children.
    #[inline(always)]
    pub(super) fn is_large(&self) -> bool {
        // SAFETY: inside the head.
        self.is_wide() && unsafe { copy::load1(self.at.add(7)) } >= LARGE
    }

    #[inline(always)]
    fn bits(&self, quarter: usize) -> u64 {
        // SAFETY: inside the head of a wide node.
        unsafe { copy::load8(self.at.add(8usize.wrapping_add(quarter.wrapping_mul(8)))) }
    }

    #[inline(always)]
    fn children_at(&self) -> usize {
        children_at(self.is_wide(), self.head & N)
    }

    /// Returns all children, for who reads several.
    #[inline(always)]
    pub(super) fn links(&self) -> Links {
        Links(self.child(0).as_ptr())
    }

    /// Returns the children of most nodes: of those that have one to eight, if eight words from the first
    /// one on are in the same page.
    #[inline(always)]
    pub(super) fn some_links(&self) -> Option<(Links, usize)> {
        let n = (self.head & N) as usize;
        let links = self.at.wrapping_add((n + 7) & !3);
        let n = n + (self.head >> 6 & 1) as usize;
        let is_far = links as u64 % PAGE > PAGE - 32 || self.is_wide() || n.wrapping_sub(1) >= 8;
        (!is_far).then_some((Links(links.cast()), n))
    }

    /// Returns all children, and how many there are: at most 288, of garbage.
    #[inline(always)]
    pub(super) fn all_links(&self) -> (Links, usize) {
        if self.is_wide() {
            return (self.links(), self.children() as usize);
        }
        let n = (self.head & N) as usize;
        let links = Links(self.at.wrapping_add((n + 7) & !3).cast());
        (links, n + (self.head >> 6 & 1) as usize)
    }

    /// Returns the child with a number below 257.
    #[inline(always)]
    pub(super) fn child(&self, i: u32) -> &'static AtomicU32 {
        let at = self.children_at().wrapping_add((i as usize).wrapping_mul(4));
        // SAFETY: a whole node can be read at its address, which stays mapped as long as the map.
        // The lifetime is as good as that of the addresses in a `Node`: none outlives a call.
        unsafe { AtomicU32::from_ptr(self.at.add(at).cast()) }
    }

    /// Finds how far behind the node's beginning the child lies that leads to a key; 0 for none. As
    /// [`Node::step`] and [`Node::byte_of_child`], but shorter: for the way down.
    #[inline(always)]
    pub(super) fn way(&self, key: &Key) -> u64 {
        let Some(byte) = key.wide_byte(self.offset()) else {
            return if self.has_end() { self.children_at() as u64 } else { 0 };
        };
        if self.is_wide() {
            return self.find(Some(byte as u8)).map_or(0, |i| self.byte_of_child(i));
        }
        // The lowest mark is of the first byte that is equal; others may be wrong.
        let marks = |at: usize| {
            // SAFETY: inside a whole node.
            let bytes = unsafe { copy::load8(self.at.add(at)) };
            let bytes = bytes ^ byte.wrapping_mul(ONES);
            bytes.wrapping_sub(ONES) & !bytes & TOPS
        };
        let n = self.head & N;
        let mut found = marks(4);
        let mut skipped = 0u64;
        if found == 0 {
            if n <= 8 {
                return 0;
            }
            (found, skipped) = (marks(12), 8);
            if found == 0 {
                return 0;
            }
        }
        // A mark is the eighth bit of its byte, which is four bytes of a child and three.
        let (bit, n) = (u64::from(found.trailing_zeros()), u64::from(n));
        // Four for the head, the bytes rounded up, and four for the end.
        let first = (n.wrapping_add(7) & !3).wrapping_add(u64::from(self.head >> 4 & 4));
        let first = first.wrapping_add(skipped.wrapping_mul(4)).wrapping_sub(3);
        if (bit >> 3).wrapping_add(skipped) < n { first.wrapping_add(bit >> 1) } else { 0 }
    }

    /// Returns how far behind the node's beginning a child lies, with a number below 257.
    #[inline(always)]
    pub(super) fn byte_of_child(&self, i: u32) -> u64 {
        (self.children_at() as u64).wrapping_add(u64::from(i).wrapping_mul(4))
    }

    /// Returns the number of the child that lies at a [byte](Node::byte_of_child).
    #[inline(always)]
    pub(super) fn number_of(&self, byte: u64) -> u32 {
        (byte.wrapping_sub(self.children_at() as u64) >> 2) as u32
    }

    /// Returns the child that lies on the [way](Node::way) to a key.
    ///
    /// # Safety
    /// `way` is what that returned, and not 0.
    #[inline(always)]
    pub(super) unsafe fn child_on(&self, way: u64) -> &'static AtomicU32 {
        // SAFETY: as in [`Node::child`]; also of garbage it is at most 40 bytes and 320 children, and
        // behind any block 2 KiB can be read.
        unsafe { AtomicU32::from_ptr(self.at.add(way as usize).cast()) }
    }

    /// Returns the child that lies at [`Node::byte_of_child`].
    #[inline(always)]
    pub(super) fn child_at(&self, byte: u64) -> &'static AtomicU32 {
        let byte = byte & 0x7fc;
        // SAFETY: as in [`Node::child`]; behind any block 2 KiB can be read.
        unsafe { AtomicU32::from_ptr(self.at.add(byte as usize).cast()) }
    }

    /// Finds the first child from a number on that leads anywhere.
    #[inline(always)]
    pub(super) fn live_from(&self, first: u32) -> Option<(u32, u32)> {
        let children = self.children();
        let mut i = first;
        while i < children {
            let child = self.child(i).load(Acquire);
            if child != 0 {
                return Some((i, child));
            }
            i = i.wrapping_add(1);
        }
        None
    }

    /// Finds the number of the child of a symbol.
    #[inline(always)]
    pub(super) fn find(&self, symbol: Symbol) -> Option<u32> {
        let Some(byte) = symbol else {
            return self.has_end().then_some(0);
        };
        let end = u32::from(self.has_end());
        if self.is_wide() {
            let (quarter, bit) = (usize::from(byte >> 6), 1u64 << (byte & 63));
            let bits = self.bits(quarter);
            if bits & bit == 0 {
                return None;
            }
            // SAFETY: inside the head.
            let rank = unsafe { copy::load1(self.at.add(4usize.wrapping_add(quarter))) };
            let below = bits::count_ones(bits & bit.wrapping_sub(1));
            return Some(u32::from(rank).wrapping_add(below).wrapping_add(end));
        }
        let n = self.head & N;
        let want = u64::from(byte).wrapping_mul(ONES);
        // SAFETY: inside a whole node.
        let first = unsafe { copy::load8(self.at.add(4)) } ^ want;
        // The lowest mark is of the first byte that is equal; others may be wrong.
        let found = first.wrapping_sub(ONES) & !first & TOPS;
        if found != 0 {
            let i = found.trailing_zeros() / 8;
            return (i < n).then(|| i.wrapping_add(end));
        }
        if n <= 8 {
            return None;
        }
        // SAFETY: inside a whole node.
        let second = unsafe { copy::load8(self.at.add(12)) } ^ want;
        let found = second.wrapping_sub(ONES) & !second & TOPS;
        let i = (found.trailing_zeros() / 8).wrapping_add(8);
        (found != 0 && i < n).then(|| i.wrapping_add(end))
    }

    /// Finds the child that leads to a key.
    #[inline(always)]
    pub(super) fn step(&self, key: &Key) -> Option<u32> {
        self.find(key.byte(self.offset()))
    }

    /// Counts the children before a symbol's.
    #[inline(always)]
    pub(super) fn before(&self, symbol: Symbol) -> u32 {
        let Some(byte) = symbol else { return 0 };
        let end = u32::from(self.has_end());
        if self.is_wide() {
            let (quarter, bit) = (usize::from(byte >> 6), 1u64 << (byte & 63));
            // SAFETY: inside the head.
            let rank = unsafe { copy::load1(self.at.add(4usize.wrapping_add(quarter))) };
            let below = bits::count_ones(self.bits(quarter) & bit.wrapping_sub(1));
            return u32::from(rank).wrapping_add(below).wrapping_add(end);
        }
        count_less(self.symbols(), byte).wrapping_add(end)
    }

    /// Returns the bytes of a narrow node in their order, and how many.
    #[inline(always)]
    fn symbols(&self) -> Symbols {
        let n = (self.head & N).min(NARROW);
        // SAFETY: inside a whole node.
        let low = unsafe { copy::load8(self.at.add(4)) };
        // A shorter node may end before, and its page may be the last one that has memory.
        // SAFETY: as before.
        let high = if n > 8 { unsafe { copy::load8(self.at.add(12)) } } else { 0 };
        Symbols { low: low & first_bytes(n), high: high & first_bytes(n.saturating_sub(8)), n }
    }

    /// Returns a byte of a narrow node.
    #[inline(always)]
    fn byte(&self, i: u32) -> u8 {
        // SAFETY: inside a whole node.
        unsafe { copy::load1(self.at.add(4usize.wrapping_add(i as usize))) }
    }

    /// Bytes of the node.
    #[inline(always)]
    pub(super) fn size(&self) -> u64 {
        size_of(self.n(), self.is_wide(), self.has_end())
    }

    /// Bytes of a copy with a symbol more.
    #[inline(always)]
    pub(super) fn size_with(&self, symbol: Symbol) -> u64 {
        let n = self.n().wrapping_add(u32::from(symbol.is_some()));
        size_of(n, self.is_wide(), self.has_end() || symbol.is_none())
    }

    /// Tells whether the child that lies at a [byte](Node::byte_of_child) may lead nowhere from now
    /// on, when at least half of those in its cache line still lead somewhere, and two. A large node
    /// has a lock for each such line, which is enough to be sure.
    #[inline(always)]
    pub(super) fn may_have_hole(&self, byte: u64) -> bool {
        let first = self.children_at() as u64;
        let end = first.wrapping_add(u64::from(self.children()).wrapping_mul(4));
        let line = byte & !63;
        let (from, to) = (line.max(first), line.wrapping_add(64).min(end));
        let (mut at, mut left) = (from, 0u64);
        while at < to {
            left = left.wrapping_add(u64::from(self.child_at(at).load(Relaxed) != 0));
            at = at.wrapping_add(4);
        }
        // Without the child itself.
        left > 2 && left.wrapping_sub(1).wrapping_mul(8) >= to.wrapping_sub(from)
    }

    /// Counts what would be left of the node without a child and those that lead nowhere.
    #[inline(always)]
    pub(super) fn left_without(&self, number: u32) -> Left {
        let children = self.children();
        if children > 2 {
            return self.left_of_many(number, children);
        }
        // Of most nodes.
        let other = u32::from(number == 0);
        let last = if other < children { self.child(other).load(Acquire) } else { 0 };
        let end = self.has_end() && other == 0 && last != 0;
        Left { n: u32::from(last != 0).wrapping_sub(u32::from(end)), end, last }
    }

    #[inline(never)]
    fn left_of_many(&self, number: u32, children: u32) -> Left {
        let links = self.links();
        let (mut all, mut last, mut i) = (0u32, 0u32, 0u32);
        while i < children {
            let child = links.get(i).load(Acquire);
            // What is left of a node cannot be foreseen, and a wrong guess takes longer.
            let is_left = (child != 0) & (i != number);
            all = all.wrapping_add(u32::from(is_left));
            last = std::hint::select_unpredictable(is_left, child, last);
            i = i.wrapping_add(1);
        }
        let end = self.has_end() && self.is_left(0, number);
        Left { n: all.wrapping_sub(u32::from(end)), end, last }
    }

    /// Tells whether what is left of the node is to be copied: less than half.
    #[inline(always)]
    pub(super) fn is_sparse_with(&self, left: Left) -> bool {
        let all = left.children();
        all >= 2 && all.wrapping_mul(2) < self.children()
    }

    #[inline(always)]
    fn is_left(&self, i: u32, without: u32) -> bool {
        i != without && self.child(i).load(Acquire) != 0
    }

    /// Bytes of a copy with what is left only.
    #[inline(always)]
    pub(super) fn size_of_left(&self, left: Left) -> u64 {
        size_of(left.n, self.is_wide_with(left), left.end)
    }

    #[inline(always)]
    fn is_wide_with(&self, left: Left) -> bool {
        self.is_wide() && left.n >= WIDE_AGAIN
    }

    /// Makes a copy with one child more.
    ///
    /// # Safety
    /// `to` is a block of [`Node::size_with`] bytes that nobody else sees; the node is locked, and
    /// has no child for the symbol.
    pub(super) unsafe fn copy_with(&self, to: *mut u8, symbol: Symbol, child: u32) {
        let n = self.n().wrapping_add(u32::from(symbol.is_some()));
        let wide = self.is_wide() || n > NARROW;
        // Only damage puts a child behind the last one.
        let children = self.children();
        let at = self.before(symbol).min(children);
        let head = self.copied_head(n, wide, self.has_end() || symbol.is_none());
        // SAFETY: the caller's duty.
        unsafe {
            self.copy_symbols(to, wide, symbol, at);
            let (from, to_at) = (self.children_at(), children_at(wide, n));
            let (before, rest) = (at as usize, children.saturating_sub(at) as usize);
            copy::store_bytes(to.add(to_at), self.at.add(from), before.wrapping_mul(4));
            let gap = to.add(to_at).add(before.wrapping_mul(4));
            AtomicU32::from_ptr(gap.cast()).store(child, Relaxed);
            let from = from.wrapping_add(before.wrapping_mul(4));
            copy::store_bytes(gap.add(4), self.at.add(from), rest.wrapping_mul(4));
            AtomicU32::from_ptr(to.cast()).store(head, Relaxed);
        }
    }

    /// Makes a copy without a child, and without those that lead nowhere.
    ///
    /// # Safety
    /// `to` is a block of [`Node::size_of_left`] bytes that nobody else sees; the node is locked, and
    /// [`Node::left_without`] says now that this is left.
    #[inline(never)]
    pub(super) unsafe fn copy_left(&self, to: *mut u8, number: u32, left: Left) {
        let wide = self.is_wide_with(left);
        let end =
            children_at(wide, left.n).wrapping_add((left.children() as usize).wrapping_mul(4));
        let mut at = children_at(wide, left.n);
        let mut symbols = Symbols { low: 0, high: 0, n: 0 };
        let (mut i, mut quarter, mut rank) = (0u32, 0usize, 0u32);
        // SAFETY: the caller's duty; all stores are inside the copy, also where damage changes the
        // node meanwhile.
        unsafe {
            let mut keep = |i: u32| {
                let kept = self.is_left(i, number) && at < end;
                if kept {
                    let child = self.child(i).load(Relaxed);
                    AtomicU32::from_ptr(to.add(at).cast()).store(child, Relaxed);
                    at = at.wrapping_add(4);
                }
                kept
            };
            if self.has_end() {
                keep(0);
                i = 1;
            }
            while quarter < 4 {
                let (mut bits, mut kept) = (self.quarter(quarter), 0u64);
                while bits != 0 {
                    let bit = bits & bits.wrapping_neg();
                    bits ^= bit;
                    if keep(i) {
                        kept |= bit;
                        if !wide && symbols.n < NARROW {
                            let byte = (quarter << 6) as u32 | bit.trailing_zeros();
                            symbols = symbols.with(symbols.n, byte as u8);
                        }
                    }
                    i = i.wrapping_add(1);
                }
                if wide {
                    store_quarter(to, quarter, rank, kept);
                    rank = rank.wrapping_add(kept.count_ones());
                }
                quarter = quarter.wrapping_add(1);
            }
            if !wide {
                symbols.store(to, left.n);
            }
            let head = self.copied_head(left.n, wide, left.end);
            AtomicU32::from_ptr(to.cast()).store(head, Relaxed);
        }
    }

    fn copied_head(&self, n: u32, wide: bool, end: bool) -> u32 {
        let kind = if wide { WIDE } else { n } | if end { END } else { 0 };
        (self.head & !0xff) | kind
    }

    /// Writes the bytes of a copy: those of the node, and another before whose child there are `at`
    /// others.
    ///
    /// # Safety
    /// As [`Node::copy_with`].
    #[inline(always)]
    unsafe fn copy_symbols(&self, to: *mut u8, wide: bool, more: Symbol, at: u32) {
        // SAFETY: the caller's duty; all stores are inside the head of the copy.
        unsafe {
            if wide {
                return self.copy_bitmap(to, more);
            }
            let i = at.saturating_sub(u32::from(self.has_end())).min(NARROW - 1);
            let mut symbols = self.symbols();
            if let Some(more) = more {
                symbols = symbols.with(i, more);
            }
            symbols.store(to, symbols.n);
        }
    }

    /// As [`Node::copy_symbols`], of a wide copy.
    ///
    /// # Safety
    /// As there.
    #[inline(never)]
    unsafe fn copy_bitmap(&self, to: *mut u8, more: Symbol) {
        let mut quarter = 0usize;
        let mut rank = 0u32;
        while quarter < 4 {
            let mut bits = self.quarter(quarter);
            if let Some(byte) = more
                && usize::from(byte >> 6) == quarter
            {
                bits |= 1u64 << (byte & 63);
            }
            // SAFETY: the caller's duty: inside the head of the copy.
            unsafe { store_quarter(to, quarter, rank, bits) };
            rank = rank.wrapping_add(bits.count_ones());
            quarter = quarter.wrapping_add(1);
        }
    }

    /// Returns a quarter of the bitmap that the node has, or would have.
    fn quarter(&self, quarter: usize) -> u64 {
        if self.is_wide() {
            return self.bits(quarter);
        }
        let n = (self.head & N).min(NARROW);
        let (mut bits, mut i) = (0u64, 0u32);
        while i < n {
            let byte = self.byte(i);
            if usize::from(byte >> 6) == quarter {
                bits |= 1 << (byte & 63);
            }
            i = i.wrapping_add(1);
        }
        bits
    }

    /// Makes a node with two children.
    ///
    /// # Safety
    /// `to` is a block of `size(2, false)` bytes that nobody else sees, and the symbols differ.
    pub(super) unsafe fn make_fork(
        to: *mut u8,
        offset: usize,
        first: (Symbol, u32),
        second: (Symbol, u32),
    ) {
        let (low, high) = if first.0 < second.0 { (first, second) } else { (second, first) };
        let (kind, bytes) = match (low.0, high.0) {
            (None, Some(byte)) => (END | 1, [byte, 0, 0, 0]),
            (low, high) => (2, [low.unwrap_or(0), high.unwrap_or(0), 0, 0]),
        };
        // SAFETY: 16 bytes, the caller's duty.
        unsafe {
            AtomicU32::from_ptr(to.cast()).store((offset as u32) << 8 | kind, Relaxed);
            AtomicU32::from_ptr(to.add(4).cast()).store(u32::from_le_bytes(bytes), Relaxed);
            AtomicU32::from_ptr(to.add(8).cast()).store(low.1, Relaxed);
            AtomicU32::from_ptr(to.add(12).cast()).store(high.1, Relaxed);
        }
    }
}

/// Writes a quarter of a wide node's bitmap, and how many bytes there are before.
///
/// # Safety
/// `to` has room for the head of a wide node; `quarter` is below four.
#[inline(always)]
unsafe fn store_quarter(to: *mut u8, quarter: usize, rank: u32, bits: u64) {
    let (rank, bits) = ([rank as u8], bits.to_le_bytes());
    // SAFETY: the caller's duty.
    unsafe {
        copy::store_bytes(to.add(4usize.wrapping_add(quarter)), rank.as_ptr(), 1);
        copy::store_bytes(to.add(8usize.wrapping_add(quarter.wrapping_mul(8))), bits.as_ptr(), 8);
    }
}

#[inline(always)]
fn size_of(n: u32, wide: bool, end: bool) -> u64 {
    let at = children_at(wide || n > NARROW, n) as u64;
    at.wrapping_add(u64::from(n.wrapping_add(u32::from(end))).wrapping_mul(4))
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use super::*;
    use crate::shm::qp::MAX_NODE;

    /// What a node looks like from outside.
    fn contents(node: &Node) -> BTreeMap<Symbol, u32> {
        let symbols = std::iter::once(None).chain((0..=255).map(Some));
        let found: BTreeMap<_, _> =
            symbols.filter_map(|s| Some((s, node.child(node.find(s)?).load(Relaxed)))).collect();
        assert_eq!(found.len(), node.children() as usize);
        for (i, (symbol, child)) in found.iter().enumerate() {
            assert_eq!(
                (node.before(*symbol), node.child(i as u32).load(Relaxed)),
                (i as u32, *child)
            );
        }
        found
    }

    #[test]
    fn copies_have_one_child_more_or_less() {
        for seed in 1..40u64 {
            let block = || vec![0xeeee_eeeeu32; MAX_NODE as usize / 4 + 8];
            let mut memory = block();
            let mut model = BTreeMap::from([(None, 7), (Some(seed as u8), 9)]);
            // SAFETY: the block is larger than any node.
            unsafe {
                Node::make_fork(memory.as_mut_ptr().cast(), 5, (Some(seed as u8), 9), (None, 7));
            }
            let mut random = seed;
            for round in 1..1800 {
                random = random.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
                let symbol = match (random >> 33) as u32 % 257 {
                    256 => None,
                    byte => Some(byte as u8),
                };
                let node = Node::at(memory.as_mut_ptr().cast());
                assert_eq!((node.offset(), contents(&node)), (5, model.clone()), "{seed} {round}");
                let mut copy = block();
                let to = copy.as_mut_ptr().cast();
                let grows = round % 900 < 500;
                let bytes = match model.contains_key(&symbol) {
                    // SAFETY: the block is larger than any node.
                    false if grows => unsafe {
                        node.copy_with(to, symbol, round);
                        model.insert(symbol, round);
                        node.size_with(symbol)
                    },
                    true if !grows && model.len() > 2 => {
                        let number = node.before(symbol);
                        let left = model.iter().filter(|(s, child)| **s != symbol && **child != 0);
                        let left: BTreeMap<_, _> = left.map(|(s, child)| (*s, *child)).collect();
                        let sparse = left.len() >= 2 && left.len() * 2 < model.len();
                        let counted = node.left_without(number);
                        assert_eq!(node.is_sparse_with(counted), sparse, "{seed} {round}");
                        let only = left.values().next().filter(|_| left.len() == 1);
                        assert_eq!(counted.only(), only.copied());
                        if !sparse {
                            node.child(number).store(0, Relaxed);
                            model.insert(symbol, 0);
                            continue;
                        }
                        // SAFETY: as before.
                        unsafe { node.copy_left(to, number, counted) };
                        model = left;
                        node.size_of_left(counted)
                    }
                    _ => continue,
                };
                assert!(copy[bytes as usize / 4..].iter().all(|w| *w == 0xeeee_eeee), "too long");
                memory = copy;
            }
        }
    }
}
