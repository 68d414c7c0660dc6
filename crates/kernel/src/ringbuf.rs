//! The reading side of a kernel's ring buffer, mapped as libbpf does: a page with the consumer's
//! position, one with the producer's, and the data twice, so that each record lies whole.

use std::os::fd::AsFd;
use std::sync::atomic::Ordering;

use crate::error::Result;
use crate::map::Map;
use crate::mapping::{Mapping, PAGE};

/// `BPF_RINGBUF_BUSY_BIT`, `BPF_RINGBUF_DISCARD_BIT`, `BPF_RINGBUF_HDR_SZ`.
const BUSY: u32 = 1 << 31;
const DISCARD: u32 = 1 << 30;
const HEADER: usize = 8;

/// Reads records of a ring buffer.
#[derive(Debug)]
pub struct RingReader {
    consumer: Mapping,
    producer: Mapping,
    size: usize,
}

impl RingReader {
    /// Maps a ring buffer of `size` bytes, its `max_entries`.
    ///
    /// # Errors
    /// The errno of mmap.
    pub fn new(map: &Map, size: u32) -> Result<Self> {
        let size = size as usize;
        Ok(Self {
            consumer: Mapping::new(map.as_fd(), PAGE, 0, true)?,
            producer: Mapping::new(map.as_fd(), PAGE + 2 * size, PAGE, false)?,
            size,
        })
    }

    /// Gives every record that is finished to `f` and returns their number.
    pub fn drain(&mut self, mut f: impl FnMut(&[u8])) -> u64 {
        let (consumer, producer) = (self.consumer.u64_at(0), self.producer.u64_at(0));
        let mut count = 0;
        let mut at = consumer.load(Ordering::Relaxed);
        // Acquire: pairs with the kernel's release of the position and of the header.
        while at < producer.load(Ordering::Acquire) {
            let record = PAGE + (at as usize & (self.size - 1));
            let header = self.producer.u32_at(record).load(Ordering::Acquire);
            if header & BUSY != 0 {
                break;
            }
            let len = (header & !(BUSY | DISCARD)) as usize;
            if header & DISCARD == 0 {
                // SAFETY: the record is finished, and stays until the consumer's position, which
                // only this reader moves, has passed it.
                f(unsafe { self.producer.bytes(record + HEADER, len) });
                count += 1;
            }
            at += (HEADER + len).next_multiple_of(8) as u64;
            // Release: the kernel reuses the bytes after this.
            consumer.store(at, Ordering::Release);
        }
        count
    }
}
