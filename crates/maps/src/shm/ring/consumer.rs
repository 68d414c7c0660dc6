//! The consumer's side: it reads records in the order of their reservation, and skips what a dead
//! producer left unfinished.

use std::sync::atomic::{
    Ordering::AcqRel, Ordering::Acquire, Ordering::Relaxed, Ordering::Release, Ordering::SeqCst,
};

use super::{BUSY, DATA, DISCARD, HEADER, LENGTH, RingMemory};
use crate::shm::{copy, round8, sys, tls};

/// Looks at an unfinished record before the kernel is asked about who fills it.
const LOOKS: u32 = 4;
/// Pauses between two looks at what another processor is about to write: fewer would take its cache
/// line away too often.
const PAUSES: u32 = 12;
/// Longest sleep without that, in nanoseconds.
const NAP: u64 = 1_000_000;

/// What the consumer finds at its position.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Head {
    /// Nothing, or a record its producer still fills.
    Nothing,
    /// A sample: position behind the record, its length, and whether it counts.
    Record { next: u64, len: u64, kept: bool },
    /// Something no producer of ours leaves.
    Damaged,
}

impl RingMemory {
    /// Answers `bpf_ringbuf_query`.
    pub(crate) fn query(&self, what: u64) -> u64 {
        let (consumed, produced) = (self.consumer().load(Acquire), self.producer().load(Acquire));
        match what {
            0 => produced.wrapping_sub(consumed),
            1 => self.size,
            2 => consumed,
            3 => produced,
            _ => 0,
        }
    }

    /// Looks at the consumer's position; `thorough` also finds records of zombies.
    pub(crate) fn head(&self, thorough: bool) -> Head {
        self.head_before(&mut self.consumer().load(Relaxed), thorough)
    }

    /// As [`RingMemory::head`], by who knows that there are records up to position `known`, and
    /// learns of more only when it is reached.
    #[inline(always)]
    pub(crate) fn head_before(&self, known: &mut u64, thorough: bool) -> Head {
        let position = self.consumer().load(Relaxed);
        let mut available = known.wrapping_sub(position);
        if available == 0 || available > self.size {
            *known = self.producer().load(Acquire);
            available = known.wrapping_sub(position);
            if available == 0 {
                return Head::Nothing;
            }
        }
        let mut word = self.header(position).load(Acquire);
        if available > self.size {
            return Head::Damaged;
        }
        if word & BUSY != 0 {
            word = self.finished(position, thorough);
            if word & BUSY != 0 {
                return Head::Nothing;
            }
        }
        let len = word & LENGTH;
        let whole = round8(len + HEADER);
        if whole > available {
            return Head::Damaged;
        }
        Head::Record { next: position.wrapping_add(whole), len, kept: word & DISCARD == 0 }
    }

    /// Waits a moment for a record to be finished, discards it when that will never be, and returns
    /// its first word.
    #[cold]
    #[inline(never)]
    fn finished(&self, position: u64, thorough: bool) -> u64 {
        let header = self.header(position);
        let mut word = header.load(Acquire);
        for _ in 0..LOOKS {
            if word & BUSY == 0 {
                break;
            }
            pause();
            word = header.load(Acquire);
        }
        if word & BUSY != 0 {
            let tid = (word >> 32) as u32;
            let unfinished_for_ever =
                tid == 0 || tid >> 22 != 0 || tls::thread_is_dead(tid, thorough);
            if unfinished_for_ever {
                // It may have finished just before its end.
                let skipped = (word & LENGTH) | DISCARD;
                return match header.compare_exchange(word, skipped, AcqRel, Acquire) {
                    Ok(_) => skipped,
                    Err(now) => now,
                };
            }
        }
        word
    }

    /// Copies the sample at the consumer's position out.
    #[inline(always)]
    pub(crate) fn read(&self, out: &mut [u8]) -> bool {
        let position = self.consumer().load(Relaxed);
        if let Some(from) = self.behind(position, round8(out.len() as u64)) {
            // SAFETY: `behind` checked the range up to whole words.
            unsafe { copy::load(out, from) };
            return true;
        }
        self.read_around(position, out)
    }

    #[cold]
    #[inline(never)]
    fn read_around(&self, position: u64, out: &mut [u8]) -> bool {
        let at = position.wrapping_add(HEADER);
        // In two pieces when it goes around the end; both begin at a multiple of eight.
        let until_end =
            self.at.wrapping_add(DATA).wrapping_add(self.size).wrapping_sub(self.offset(at));
        let (first, second) = out.split_at_mut(out.len().min(until_end as usize));
        let whole = self.memory().read(self.offset(at), first);
        whole
            && (second.is_empty()
                || self.memory().read(self.offset(at.wrapping_add(first.len() as u64)), second))
    }

    /// Returns the address of the sample at the consumer's position.
    pub(crate) fn sample(&self, len: u64) -> Option<*mut u8> {
        self.behind(self.consumer().load(Relaxed), len)
    }

    /// Moves the consumer's position.
    #[inline(always)]
    pub(crate) fn consume(&self, next: u64) {
        self.consumer().store(next, Release);
    }

    /// Moves the consumer's position behind everything.
    pub(crate) fn consume_all(&self) {
        self.consume(self.producer().load(Acquire));
    }

    /// Sleeps until a producer wakes us, at most `ns` nanoseconds; not at all when there is
    /// something.
    pub(crate) fn sleep(&self, ns: u64) {
        self.sleep_unless(ns, || self.head(true) != Head::Nothing);
    }

    /// Sleeps until a producer of any ring with the same wake-ups wakes us, but not when
    /// `something` is there.
    pub(crate) fn sleep_unless(&self, ns: u64, something: impl Fn() -> bool) {
        let seen = self.wakeups().load(SeqCst);
        // Pairs with `finish`: either it sees that we sleep, or we see its record. It has a barrier
        // of its own, or the kernel makes it pass one here; where the kernel would not, it
        // may be that nobody wakes us.
        self.sleeping().swap(1, SeqCst);
        let passed = sys::membarrier_expedited() || sys::membarrier_global();
        if !something() {
            sys::futex_wait(self.wakeups(), seen, if passed { ns } else { ns.min(NAP) });
        }
        self.sleeping().store(0, Relaxed);
    }
}

/// Pauses for some ten cycles, so that a producer can go on with its cache line.
#[cold]
#[inline(never)]
pub(crate) fn pause() {
    for _ in 0..PAUSES {
        std::hint::spin_loop();
    }
}
