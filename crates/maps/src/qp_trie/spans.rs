//! Where blocks come from: spans of pages, each with blocks of one class.
//!
//! All of this happens under one lock, a block at a time, in stores that are done all or not at all
//! ([`Log`]). Writers rarely come here, as their [heaps](super::heap) keep blocks.
//!
//! A span whose blocks are all free stays with its class. A program may still have the address of a
//! value there, and what it stores must not hit anything but a value of the class. Only
//! [`QpTrie::release_spans`], which waits for running programs, gives spans away, and their memory
//! back to the system.

use std::sync::atomic::{Ordering::Acquire, Ordering::Relaxed, Ordering::Release};

use super::QpTrie;
use super::heap::{NotDone, Seat};
use crate::error::ENOENT;
use crate::shm::lock::{self, Held};
use crate::shm::qp::{LEAF_CLASSES, LOG, MAGAZINE, QpMemory, WordAt};
use crate::shm::{Access, PAGE};
use crate::slots::SlotTable;

/// Words of an entry.
const CLASS: u64 = 0;
const CARVED: u64 = 4;
const IN_USE: u64 = 12;
const NEXT: u64 = 16;
const LAST: u64 = 20;
const PAGES: u64 = 24;
const MARKS: u64 = 28;

/// Of a page behind the first one of its span.
const BEHIND: u32 = u32::MAX;
/// The span is in the list of its class.
const LISTED: u32 = 1;
/// The span's memory was given back.
const NO_MEMORY: u32 = 2;
/// Counts how often the first block was taken, in the other bits.
const USED_AGAIN: u32 = 4;

/// Stores of a log with which there still is room for those of another span, and of the magazine.
const SPAN_STORES: u64 = LOG - 10;

/// Bytes of blocks of which many are in a page.
const SMALL: u64 = 128;

/// How many pages get memory at a time.
const PAGES_AT_ONCE: u64 = 16;

/// A span of which no block was in use.
pub(super) struct Unused {
    page: u32,
    pub(super) pages: u64,
    /// What its marks were then.
    marks: u32,
}

impl QpTrie {
    #[inline(always)]
    fn entry(&self, page: u32, word: u64) -> u32 {
        self.memory.at32(self.entry_at(page, word)).load(Relaxed)
    }

    #[inline(always)]
    fn entry_at(&self, page: u32, word: u64) -> WordAt {
        self.memory.entry_at(page.into(), word)
    }

    /// Takes the lock of the spans; what a dead holder was doing is done.
    pub(super) fn lock_spans(&self) -> Option<Held> {
        let held = lock::acquire(self.memory.span_lock()).ok()?;
        if held.recovered {
            self.memory.span_log().replay();
        }
        Some(held)
    }

    pub(super) fn release_span_lock(&self, held: Held) {
        lock::release(self.memory.span_lock(), held);
    }

    /// Brings blocks of a class into a heap.
    #[cold]
    #[inline(never)]
    pub(super) fn refill(&self, seat: &Seat, class: u32) -> Result<(), NotDone> {
        let held = self.lock_spans().ok_or(NotDone::Busy)?;
        let want = self.refilled(class);
        let mut got = 0u32;
        while got < want {
            // A new span only for what is needed.
            match self.bring(seat, class, want.wrapping_sub(got), got == 0) {
                0 => break,
                n => got = got.wrapping_add(n),
            }
        }
        self.release_span_lock(held);
        if got != 0 { Ok(()) } else { Err(NotDone::NoMemory) }
    }

    /// Returns how many blocks come into a heap at a time. Blocks of nodes often come back from limbo
    /// soon, and want room in the magazine.
    fn refilled(&self, class: u32) -> u32 {
        let kept = self.memory.geometry.kept(class);
        if (class as usize) < LEAF_CLASSES { kept } else { self.at_a_time(class) }
    }

    /// Returns how many blocks go from a heap to the spans at a time.
    fn at_a_time(&self, class: u32) -> u32 {
        (self.memory.geometry.kept(class) / 2).max(1)
    }

    /// Brings up to `most` blocks of one span into a heap, from a new span only if `may_grow`; tells
    /// how many.
    fn bring(&self, seat: &Seat, class: u32, most: u32, may_grow: bool) -> u32 {
        let count = self.memory.magazine_count(seat.heap, class);
        let Some(size) = self.memory.geometry.size(class) else { return 0 };
        let list = self.memory.class_at(class);
        let mut head = self.memory.at32(list).load(Relaxed);
        if head == 0 && !(may_grow && self.add_span(class)) {
            return 0;
        }
        head = self.memory.at32(list).load(Relaxed);
        let Some(page) = head.checked_sub(1) else { return 0 };
        if self.entry(page, CLASS) != class.wrapping_add(1) {
            return 0;
        }
        let (mut free, in_use) = self.memory.span_counts(page.into());
        let mut carved = self.entry(page, CARVED);
        let blocks = self.memory.geometry.blocks(class);
        let most = most.min(MAGAZINE.saturating_sub(count)).min(blocks.saturating_sub(in_use));
        if free != 0 && size <= SMALL {
            // Each free block names the next one, so without this they would be waited for one by one;
            // what is not taken now is by those who come next.
            self.memory.prefetch_page(page.into());
        }
        let mut got = 0u32;
        while got < most {
            let index = free.checked_sub(1).unwrap_or(carved);
            if index >= blocks {
                // Damage; no more of this span.
                break;
            }
            if free == 0 {
                carved = carved.wrapping_add(1);
            } else {
                free = self.link_of(page, index, class, size);
            }
            // Above the count nobody looks, so this need not be in the log.
            let block = self.memory.reference(Self::block_at(page, index, size));
            let slot = self.memory.magazine_slot_at(seat.heap, class, count.wrapping_add(got));
            self.memory.at32(slot).store(block, Relaxed);
            got = got.wrapping_add(1);
        }
        if got == 0 {
            return 0;
        }
        let log = self.memory.span_log();
        let n = &mut 0;
        self.write_counts(n, page, free, in_use.wrapping_add(got));
        log.write(n, self.entry_at(page, CARVED), carved);
        let before = self.entry(page, MARKS);
        let mut marks = before;
        if in_use == 0 {
            let empty = self.memory.empty_spans().load(Relaxed).saturating_sub(1);
            log.write_wide(n, QpMemory::EMPTY_SPANS, empty);
            marks = marks.wrapping_add(USED_AGAIN);
        }
        if in_use.wrapping_add(got) == blocks {
            self.unlist(n, page, list);
            marks &= !LISTED;
        }
        if marks != before {
            log.write(n, self.entry_at(page, MARKS), marks);
        }
        log.write(n, self.memory.magazine_at(seat.heap, class), count.wrapping_add(got));
        log.commit(*n);
        got
    }

    /// Gives blocks of a class from a heap back.
    #[cold]
    #[inline(never)]
    pub(super) fn flush(&self, seat: &Seat, class: u32) -> bool {
        let Some(held) = self.lock_spans() else { return false };
        let many = self.at_a_time(class);
        let mut given = 0u32;
        while given < many {
            match self.bring_back(seat, class, many.wrapping_sub(given)) {
                0 => break,
                n => given = given.wrapping_add(n),
            }
        }
        self.release_span_lock(held);
        given != 0
    }

    /// Gives up to `most` blocks back; tells how many. As random deletions leave them, nearly each is
    /// of another span, so the stores of several are done at once.
    fn bring_back(&self, seat: &Seat, class: u32, most: u32) -> u32 {
        let count = self.memory.magazine_count(seat.heap, class);
        let Some(size) = self.memory.geometry.size(class) else { return 0 };
        let log = self.memory.span_log();
        let n = &mut 0;
        // Spans that were met, by the last bits of their pages.
        let mut met = 0u64;
        let mut given = 0u32;
        let most = most.min(count);
        // The next block of the magazine.
        let next = |given: u32| {
            if given >= most {
                return None;
            }
            let left = count.wrapping_sub(given).wrapping_sub(1);
            let slot = self.memory.magazine_slot_at(seat.heap, class, left);
            let at = self.memory.arena_offset(self.memory.at32(slot).load(Relaxed));
            self.find_block(at, class, size)
        };
        let mut block = next(given);
        while let Some((page, _)) = block
            && *n < SPAN_STORES
        {
            let mark = 1u64 << (page & 63);
            if met & mark != 0 {
                // Perhaps its entry is about to change.
                break;
            }
            met |= mark;
            let (mut free, mut in_use) = self.memory.span_counts(page.into());
            let before = given;
            while let Some((same, index)) = block
                && same == page
                && let Some(link) = self.link_at(page, index, class, size)
            {
                // What is in a free block matters only when it is in the list of its span.
                self.memory.at32(link).store(free, Relaxed);
                free = index.wrapping_add(1);
                in_use = in_use.saturating_sub(1);
                given = given.wrapping_add(1);
                block = next(given);
            }
            if given == before {
                break;
            }
            self.write_counts(n, page, free, in_use);
            let is_listed = self.entry(page, MARKS) & LISTED != 0;
            if in_use == 0 {
                let empty = self.memory.empty_spans().load(Relaxed).wrapping_add(1);
                log.write_wide(n, QpMemory::EMPTY_SPANS, empty);
            }
            if !is_listed {
                self.enlist(n, page, self.memory.class_at(class));
            }
            if in_use == 0 || !is_listed {
                // What is next depends on these.
                break;
            }
        }
        if given == 0 {
            return 0;
        }
        log.write(n, self.memory.magazine_at(seat.heap, class), count.wrapping_sub(given));
        log.commit(*n);
        given
    }

    /// Writes down how many blocks of a span are in use, and which is the first free one.
    #[inline(always)]
    fn write_counts(&self, n: &mut u64, page: u32, free: u32, in_use: u32) {
        let counts = u64::from(free) | u64::from(in_use) << 32;
        self.memory.span_log().write_wide(n, self.memory.span_counts_at(page.into()), counts);
    }

    /// Finds the span and the number of a block of a class.
    #[inline(always)]
    fn find_block(&self, arena_offset: u64, class: u32, size: u64) -> Option<(u32, u32)> {
        let (page, found) = self.span_at(arena_offset)?;
        let inside = arena_offset.checked_sub(u64::from(page).wrapping_mul(PAGE))?;
        let fits = found == class.wrapping_add(1);
        // A division of 32 bits takes half as long.
        let index = u32::try_from(inside).ok()?.checked_div(size as u32)?;
        (fits && index < self.memory.geometry.blocks(class)).then_some((page, index))
    }

    /// Finds the class of the block that a reference names.
    pub(super) fn class_of(&self, reference: u32) -> Option<u32> {
        let (_, found) = self.span_at(self.memory.arena_offset(reference))?;
        let class = found.checked_sub(1)?;
        self.memory.geometry.size(class).map(|_| class)
    }

    /// Finds the first page of the span at a place of the arena, and its class and one more.
    #[inline(always)]
    fn span_at(&self, arena_offset: u64) -> Option<(u32, u32)> {
        let page = u32::try_from(arena_offset / PAGE).ok()?;
        match self.entry(page, CLASS) {
            BEHIND => {
                let first = page.checked_sub(self.entry(page, PAGES))?;
                Some((first, self.entry(first, CLASS)))
            }
            class => Some((page, class)),
        }
    }

    fn block_at(page: u32, index: u32, size: u64) -> u64 {
        u64::from(page).wrapping_mul(PAGE).wrapping_add(u64::from(index).wrapping_mul(size))
    }

    /// Where a free block names the next one: behind the value of a leaf, so that what a program
    /// stores there late does no harm.
    #[inline(always)]
    fn link_at(&self, page: u32, index: u32, class: u32, size: u64) -> Option<WordAt> {
        let block = self.memory.block(self.memory.reference(Self::block_at(page, index, size)))?;
        let inside =
            if (class as usize) < LEAF_CLASSES { self.memory.geometry.length_at } else { 4 };
        Some(self.memory.place_in(block, inside as u64))
    }

    fn link_of(&self, page: u32, index: u32, class: u32, size: u64) -> u32 {
        self.link_at(page, index, class, size).map_or(0, |at| self.memory.at32(at).load(Relaxed))
    }

    /// Takes a span out of the list of its class.
    fn unlist(&self, n: &mut u64, page: u32, list: WordAt) {
        let log = self.memory.span_log();
        let (next, last) = (self.entry(page, NEXT), self.entry(page, LAST));
        match last.checked_sub(1) {
            Some(last) => log.write(n, self.entry_at(last, NEXT), next),
            None => log.write(n, list, next),
        }
        if let Some(next) = next.checked_sub(1) {
            log.write(n, self.entry_at(next, LAST), last);
        }
        log.write(n, self.entry_at(page, MARKS), self.entry(page, MARKS) & !LISTED);
    }

    /// Puts a span into the list of its class, as the first.
    fn enlist(&self, n: &mut u64, page: u32, list: WordAt) {
        let log = self.memory.span_log();
        let first = self.memory.at32(list).load(Relaxed);
        log.write(n, self.entry_at(page, NEXT), first);
        log.write(n, self.entry_at(page, LAST), 0);
        if let Some(first) = first.checked_sub(1) {
            log.write(n, self.entry_at(first, LAST), page.wrapping_add(1));
        }
        log.write(n, self.entry_at(page, MARKS), self.entry(page, MARKS) | LISTED);
        log.write(n, list, page.wrapping_add(1));
    }

    /// Gives a class another span; `false` when there is no memory.
    fn add_span(&self, class: u32) -> bool {
        let Some((pages, list)) = self.memory.geometry.span(class) else { return false };
        let free_at = self.memory.free_span_at(list);
        let log = self.memory.span_log();
        let n = &mut 0;
        let page = match self.memory.at32(free_at).load(Relaxed).checked_sub(1) {
            Some(page) => {
                if self.entry(page, MARKS) & NO_MEMORY != 0 && !self.get_memory_back(page, pages) {
                    return false;
                }
                log.write(n, free_at, self.entry(page, NEXT));
                page
            }
            None => {
                let Some(page) = self.fresh_pages(pages) else { return false };
                log.write_wide(n, QpMemory::USED_PAGES, u64::from(page).wrapping_add(pages));
                page
            }
        };
        for (word, value) in [
            (CLASS, class.wrapping_add(1)),
            (CARVED, 0),
            (PAGES, pages as u32),
            (MARKS, (self.entry(page, MARKS) & !(USED_AGAIN - 1)) | LISTED),
            (NEXT, 0),
            (LAST, 0),
        ] {
            log.write(n, self.entry_at(page, word), value);
        }
        self.write_counts(n, page, 0, 0);
        let list = self.memory.class_at(class);
        let first = self.memory.at32(list).load(Relaxed);
        if let Some(first) = first.checked_sub(1) {
            log.write(n, self.entry_at(page, NEXT), first.wrapping_add(1));
            log.write(n, self.entry_at(first, LAST), page.wrapping_add(1));
        }
        log.write(n, list, page.wrapping_add(1));
        let empty = self.memory.empty_spans().load(Relaxed).wrapping_add(1);
        log.write_wide(n, QpMemory::EMPTY_SPANS, empty);
        log.commit(*n);
        true
    }

    /// Gives a free span memory again, and with it those before it that come next in their list.
    fn get_memory_back(&self, page: u32, pages: u64) -> bool {
        let end = u64::from(page).wrapping_add(pages);
        let mut first = page;
        while end.wrapping_sub(first.into()).wrapping_add(pages) <= PAGES_AT_ONCE {
            let before = first.wrapping_sub(pages as u32);
            let follows = self.entry(first, NEXT) == before.wrapping_add(1)
                && before != 0
                && self.entry(before, CLASS) == 0
                && self.entry(before, MARKS) & NO_MEMORY != 0;
            if !follows {
                break;
            }
            first = before;
        }
        if !self.memory.acquire_pages(first.into(), end) {
            return self.memory.acquire_pages(page.into(), end);
        }
        while first != page {
            let marks = self.entry(first, MARKS) & !NO_MEMORY;
            self.memory.at32(self.entry_at(first, MARKS)).store(marks, Relaxed);
            first = first.wrapping_add(pages as u32);
        }
        true
    }

    fn acquire_pages(&self, first: u64, end: u64) -> bool {
        let rows = PAGE / 8;
        (self.memory.epochs_kept().load(Acquire) == 0
            || self.epochs.get_memory_of(
                first.wrapping_mul(rows),
                end.wrapping_sub(first).wrapping_mul(rows),
            ))
            && self.memory.acquire_pages(first, end)
    }

    /// Gives the insertion epochs of all pages memory, those to come included.
    pub(super) fn keep_rows(&self) -> bool {
        let Some(held) = self.lock_spans() else { return false };
        self.memory.epochs_kept().store(1, Release);
        let rows = self.memory.backed_pages().load(Relaxed).wrapping_mul(PAGE / 8);
        let done = self.epochs.get_memory_of(0, rows);
        self.release_span_lock(held);
        done
    }

    /// Finds pages that were never used, with memory.
    fn fresh_pages(&self, pages: u64) -> Option<u32> {
        let g = &self.memory.geometry;
        // Nothing is in the first page, so that no reference is 0.
        let first = self.memory.used_pages().load(Relaxed).max(1);
        let end = first.checked_add(pages)?;
        if end > g.arena_pages {
            return None;
        }
        let backed = self.memory.backed_pages().load(Relaxed).max(first);
        if end > backed {
            let many = backed.wrapping_add(PAGES_AT_ONCE).clamp(end, g.arena_pages.max(end));
            let now = if self.acquire_pages(backed, many) {
                many
            } else if self.acquire_pages(backed, end) {
                end
            } else {
                return None;
            };
            self.memory.backed_pages().store(now, Relaxed);
        }
        let mut i = 1u64;
        while i < pages {
            let page = first.wrapping_add(i) as u32;
            self.memory.at32(self.entry_at(page, CLASS)).store(BEHIND, Relaxed);
            self.memory.at32(self.entry_at(page, PAGES)).store(i as u32, Relaxed);
            i = i.wrapping_add(1);
        }
        Some(first as u32)
    }

    /// Gives spans of which no block is in use away, and their memory back; tells whether there were
    /// any.
    pub(super) fn release_spans(&self) -> bool {
        self.release(&self.spans_in_no_use().0) != 0
    }

    /// Gives those of some spans away that are still in no use, and their memory back; returns how
    /// many pages. Waits a moment for programs that run now, as they may still store values there;
    /// when one runs on, nothing is given away. So this is for users.
    pub(super) fn release(&self, spans: &[Unused]) -> u64 {
        if spans.is_empty() {
            return 0;
        }
        match SlotTable::of_object(self.memory.file(), Access::ReadOnly) {
            Ok(slots) if !slots.runs_end_soon() => return 0,
            Ok(_) => {}
            // Without a table no program has run.
            Err(e) if e.errno() == ENOENT => {}
            Err(_) => return 0,
        }
        let Some(held) = self.lock_spans() else { return 0 };
        // Neighbors in one go: each system call stops all processors that use the map.
        let (mut first, mut end, mut all) = (0, 0, 0);
        for span in spans {
            let Some(pages) = self.give_away(span) else { continue };
            if end != u64::from(span.page) {
                self.memory.release_pages(first, end - first);
                first = span.page.into();
            }
            end = u64::from(span.page) + pages;
            all += pages;
        }
        self.memory.release_pages(first, end - first);
        self.release_span_lock(held);
        all
    }

    /// Lists the spans of which no block is in use, and counts the pages of all that have memory.
    pub(super) fn spans_in_no_use(&self) -> (Vec<Unused>, u64) {
        let used = self.memory.used_pages().load(Acquire).min(self.memory.geometry.arena_pages);
        let (mut spans, mut with_memory) = (Vec::new(), 0);
        let mut page = 1;
        while u64::from(page) < used {
            let (class, marks) = (self.entry(page, CLASS), self.entry(page, MARKS));
            let pages = self.entry(page, PAGES).max(1);
            if marks & NO_MEMORY == 0 {
                with_memory += u64::from(pages);
            }
            if class != 0 && class != BEHIND && self.entry(page, IN_USE) == 0 {
                spans.push(Unused { page, marks, pages: pages.into() });
            }
            let Some(next) = page.checked_add(pages) else { break };
            page = next;
        }
        (spans, with_memory)
    }

    /// Gives a span away, if no block was in use since its marks were seen; returns its pages, whose
    /// memory is to be released under this lock, which is held.
    fn give_away(&self, span: &Unused) -> Option<u64> {
        let Unused { page, marks, .. } = *span;
        let class = self.entry(page, CLASS).wrapping_sub(1);
        let unused = self.entry(page, IN_USE) == 0
            && self.entry(page, MARKS) / USED_AGAIN == marks / USED_AGAIN;
        let (pages, list) = self.memory.geometry.span(class).filter(|_| unused)?;
        let log = self.memory.span_log();
        let n = &mut 0;
        if self.entry(page, MARKS) & LISTED != 0 {
            self.unlist(n, page, self.memory.class_at(class));
        }
        let free_at = self.memory.free_span_at(list);
        log.write(n, self.entry_at(page, CLASS), 0);
        self.write_counts(n, page, 0, 0);
        log.write(n, self.entry_at(page, CARVED), 0);
        log.write(n, self.entry_at(page, MARKS), (marks & !(USED_AGAIN - 1)) | NO_MEMORY);
        log.write(n, self.entry_at(page, NEXT), self.memory.at32(free_at).load(Relaxed));
        log.write(n, free_at, page.wrapping_add(1));
        let empty = self.memory.empty_spans().load(Relaxed).saturating_sub(1);
        log.write_wide(n, QpMemory::EMPTY_SPANS, empty);
        log.commit(*n);
        Some(pages)
    }
}
