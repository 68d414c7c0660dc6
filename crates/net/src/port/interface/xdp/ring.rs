//! The rings between a socket and the kernel: one side adds entries, the other takes them.

use std::io;
use std::os::fd::BorrowedFd;
use std::sync::atomic::Ordering::{Acquire, Relaxed, Release};

use crate::port::interface::sys::{Mapping, RingOffsets};

/// Entries of each ring, a power of two.
pub(super) const ENTRIES: u32 = 2048;

/// `XDP_RING_NEED_WAKEUP`.
const NEED_WAKEUP: u32 = 1;

/// A ring, seen from this side.
#[derive(Debug)]
pub(super) struct Ring {
    memory: Mapping,
    at: RingOffsets,
    /// How far this side has come; the other side is told by a store.
    ours: u32,
}

impl Ring {
    /// Maps a ring of a socket; `entry` is the size of an entry.
    pub(super) fn map(
        fd: BorrowedFd<'_>,
        at: RingOffsets,
        entry: usize,
        page_offset: i64,
    ) -> io::Result<Self> {
        let len = at.entries as usize + ENTRIES as usize * entry;
        Ok(Self { memory: Mapping::new(fd, len, page_offset)?, at, ours: 0 })
    }

    fn load(&self, offset: u64) -> u32 {
        // Pairs with the kernel's release of what it has added or taken.
        self.memory.atomic(offset as usize).map_or(0, |word| word.load(Acquire))
    }

    fn store(&self, offset: u64, value: u32) {
        if let Some(word) = self.memory.atomic(offset as usize) {
            // Pairs with the kernel's acquire: entries are written, or read, before.
            word.store(value, Release);
        }
    }

    /// Where the `n`th entry from here lies.
    fn entry(&self, n: u32, size: usize) -> usize {
        self.at.entries as usize + (self.ours.wrapping_add(n) & (ENTRIES - 1)) as usize * size
    }

    /// Counts the entries that may be added.
    pub(super) fn room(&self) -> u32 {
        ENTRIES - self.ours.wrapping_sub(self.load(self.at.consumer)).min(ENTRIES)
    }

    /// Counts the entries that were added and that the kernel has not taken.
    pub(super) fn pending(&self) -> u32 {
        ENTRIES - self.room()
    }

    /// Writes the `n`th new entry of a ring of addresses.
    pub(super) fn put_address(&self, n: u32, address: u64) {
        self.memory.set_u64(self.entry(n, 8), address);
    }

    /// Writes the `n`th new entry of a ring of frames.
    pub(super) fn put_frame(&self, n: u32, address: u64, len: u32) {
        let at = self.entry(n, 16);
        self.memory.set_u64(at, address);
        // The options behind the length are 0.
        self.memory.set_u64(at + 8, u64::from(len));
    }

    /// Gives the first `n` new entries to the kernel.
    pub(super) fn add(&mut self, n: u32) {
        self.ours = self.ours.wrapping_add(n);
        self.store(self.at.producer, self.ours);
    }

    /// How far this side has come.
    pub(super) fn place(&self) -> u32 {
        self.ours
    }

    /// Counts the entries from a place of this side on.
    pub(super) fn since(&self, place: u32) -> u32 {
        self.ours.wrapping_sub(place)
    }

    /// Counts the entries that the kernel has added.
    pub(super) fn available(&self) -> u32 {
        self.load(self.at.producer).wrapping_sub(self.ours).min(ENTRIES)
    }

    /// Reads the `n`th entry of a ring of addresses.
    pub(super) fn address(&self, n: u32) -> u64 {
        self.memory.u64(self.entry(n, 8))
    }

    /// Reads the `n`th entry of a ring of frames: address, length, and whether the frame goes on in
    /// the next one (`XDP_PKT_CONTD`).
    pub(super) fn frame(&self, n: u32) -> (u64, u32, bool) {
        let at = self.entry(n, 16);
        (self.memory.u64(at), self.memory.u32(at + 8), self.memory.u32(at + 12) & 1 != 0)
    }

    /// Gives the first `n` entries back.
    pub(super) fn take(&mut self, n: u32) {
        self.ours = self.ours.wrapping_add(n);
        self.store(self.at.consumer, self.ours);
    }

    /// Tells whether the kernel wants a system call before it goes on.
    pub(super) fn needs_wakeup(&self) -> bool {
        let flags = self.memory.atomic(self.at.flags as usize);
        flags.is_some_and(|flags| flags.load(Relaxed) & NEED_WAKEUP != 0)
    }
}
