//! `BPF_MAP_TYPE_USER_RINGBUF`: samples from user space to programs.
//!
//! The file is a ring buffer's, with the roles exchanged: any number of users put samples in, one
//! program at a time drains them.

use std::sync::Arc;
use std::sync::atomic::Ordering::Acquire;

use skep_isa::MapType;

use crate::def::MapDef;
use crate::error::{EAGAIN, EBUSY, EINVAL, ENODATA, ENOTSUPP, MapError};
use crate::layout::Layout;
use crate::map_file::MapFile;
use crate::ops::{ProgOps, UserOps, WalkOps};
use crate::ringbuf;
use crate::shm::lock::{self, Held};
use crate::shm::ring::{Head, RingMemory};
use crate::shm::tls;

pub(crate) fn layout(def: &MapDef) -> Result<Layout, MapError> {
    ringbuf::layout(def)
}

pub(crate) fn open(file: MapFile) -> Result<UserRing, MapError> {
    let memory = RingMemory::new(file.object, u64::from(file.def.max_entries))
        .ok_or(MapError::Damaged { what: "the file is too short" })?;
    Ok(UserRing { memory: Arc::new(memory) })
}

/// An open user ring buffer.
#[derive(Debug)]
pub(crate) struct UserRing {
    memory: Arc<RingMemory>,
}

impl UserOps for UserRing {
    fn user_value_size(&self) -> usize {
        0
    }

    fn refuse(&self, operation: &'static str) -> MapError {
        MapError::Unsupported { map_type: MapType::UserRingbuf, operation, errno: ENOTSUPP }
    }
}

impl WalkOps for UserRing {}

impl ProgOps for UserRing {}

impl UserRing {
    pub(crate) fn memory(&self) -> Arc<RingMemory> {
        Arc::clone(&self.memory)
    }
}

/// A program's right to the samples of a user ring buffer; see [`Map::user_ringbuf_drain`](crate::Map::user_ringbuf_drain).
#[derive(Debug)]
pub struct Drain<'a> {
    memory: &'a RingMemory,
    held: Held,
    next: Option<u64>,
}

impl<'a> Drain<'a> {
    pub(crate) fn begin(memory: &'a RingMemory) -> Result<Self, i64> {
        let word = memory.consuming();
        let held = match lock::try_acquire(word) {
            Some(held) => held,
            None if tls::dead(lock::owner(word.load(Acquire)), true) => {
                lock::acquire(word).map_err(|_| -i64::from(EBUSY))?
            }
            None => return Err(-i64::from(EBUSY)),
        };
        Ok(Self { memory, held, next: None })
    }

    /// Finds the next sample: address and length. It is consumed by the next call, and when the
    /// value is dropped.
    ///
    /// # Errors
    /// `-ENODATA` when there is none, `-EAGAIN` when its user is still filling it, `-EINVAL` when
    /// the ring is damaged.
    pub fn next_sample(&mut self) -> Result<(*mut u8, u32), i64> {
        let memory = self.memory;
        self.consume();
        loop {
            match memory.head(false) {
                Head::Nothing if memory.query(0) == 0 => return Err(-i64::from(ENODATA)),
                Head::Nothing => return Err(-i64::from(EAGAIN)),
                Head::Damaged => {
                    memory.consume_all();
                    return Err(-i64::from(EINVAL));
                }
                Head::Record { next, kept: false, .. } => memory.consume(next),
                Head::Record { next, len, kept: true } => {
                    self.next = Some(next);
                    return memory.sample(len).map(|p| (p, len as u32)).ok_or(-i64::from(EINVAL));
                }
            }
        }
    }

    fn consume(&mut self) {
        if let Some(next) = self.next.take() {
            self.memory.consume(next);
        }
    }
}

impl Drop for Drain<'_> {
    /// Consumes the last sample and lets others drain.
    fn drop(&mut self) {
        self.consume();
        lock::release(self.memory.consuming(), self.held);
    }
}
