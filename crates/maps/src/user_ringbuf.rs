//! `BPF_MAP_TYPE_USER_RINGBUF`: samples from user space to programs.
//!
//! The file is a ring buffer's, with the roles exchanged: any number of users put samples in, one
//! program at a time drains them.

use std::sync::Arc;
use std::sync::atomic::Ordering::Acquire;

use skep_isa::MapType;

use crate::def::MapDef;
use crate::error::{E2BIG, EAGAIN, EBUSY, EINVAL, ENODATA, ENOTSUPP, MapError};
use crate::map::Map;
use crate::ringbuf;
use crate::shm::lock::{self, Held};
use crate::shm::ring::{Head, RingMemory};
use crate::shm::tls;
use crate::types::{Layout, MapFile, MapOps};

pub(crate) fn layout(def: &MapDef) -> Result<Layout, MapError> {
    ringbuf::layout(def)
}

pub(crate) fn open(parts: MapFile) -> Result<Box<dyn MapOps>, MapError> {
    let memory = RingMemory::new(parts.file, u64::from(parts.def.max_entries))
        .ok_or(MapError::Damaged { what: "the file is too short" })?;
    Ok(Box::new(UserRing { memory: Arc::new(memory) }))
}

/// An open user ring buffer.
#[derive(Debug)]
pub(crate) struct UserRing {
    memory: Arc<RingMemory>,
}

impl MapOps for UserRing {
    fn user_value_size(&self) -> usize {
        0
    }

    fn refuse(&self, operation: &'static str) -> MapError {
        MapError::Unsupported { map_type: MapType::UserRingbuf, operation, errno: ENOTSUPP }
    }

    fn user_ring(&self) -> Option<&UserRing> {
        Some(self)
    }
}

/// A program's hold on the samples of a user ring buffer; see [`Map::user_ringbuf_drain`].
#[derive(Debug)]
pub struct Drain<'a> {
    ring: &'a UserRing,
    held: Held,
    next: Option<u64>,
}

impl Map {
    /// Puts a sample into a user ring buffer.
    ///
    /// # Errors
    /// [`MapError::Full`] when there is no room now; `E2BIG` for a sample larger than the ring;
    /// `EPERM` for a map opened for reading; `EINVAL` for another map type.
    #[doc(alias = "user_ring_buffer__submit")]
    pub fn user_ringbuf_output(&self, sample: &[u8]) -> Result<(), MapError> {
        let ring = self
            .ops()
            .user_ring()
            .ok_or_else(|| self.def().invalid("it takes no samples from users"))?;
        if !self.file().writable() {
            return Err(MapError::Denied { why: "the map was opened for reading" });
        }
        if sample.len() as u64 + 8 >= u64::from(self.def().max_entries) {
            return Err(MapError::Value {
                value: sample.len() as u64,
                why: "the sample is larger than the ring",
                errno: E2BIG,
            });
        }
        // SAFETY: the sample is readable.
        let done = unsafe { ring.memory.output(sample.as_ptr(), sample.len() as u64, 1) };
        if done { Ok(()) } else { Err(MapError::Full { max_entries: self.def().max_entries }) }
    }

    /// Begins to drain a user ring buffer, for a program; or `-EBUSY` when another one does,
    /// `-EINVAL` for another map type.
    ///
    /// Safe on the event path, as is all that [`Drain`] does. Who dies while draining loses the
    /// sample he looked at to the next.
    ///
    /// # Errors
    /// A negative errno.
    #[doc(alias = "bpf_user_ringbuf_drain")]
    pub fn user_ringbuf_drain(&self) -> Result<Drain<'_>, i64> {
        let ring =
            self.ops().user_ring().filter(|_| self.file().writable()).ok_or(-i64::from(EINVAL))?;
        let word = ring.memory.consuming();
        let held = match lock::try_acquire(word) {
            Some(held) => held,
            None if tls::dead(lock::owner(word.load(Acquire)), true) => {
                lock::acquire(word).map_err(|_| -i64::from(EBUSY))?
            }
            None => return Err(-i64::from(EBUSY)),
        };
        Ok(Drain { ring, held, next: None })
    }
}

impl Drain<'_> {
    /// Finds the next sample: address and length. It is consumed by the next call, and when the
    /// value is dropped.
    ///
    /// # Errors
    /// `-ENODATA` when there is none, `-EAGAIN` when its user is still filling it, `-EINVAL` when
    /// the ring is damaged.
    pub fn next_sample(&mut self) -> Result<(*mut u8, u32), i64> {
        let memory = &self.ring.memory;
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
            self.ring.memory.consume(next);
        }
    }
}

impl Drop for Drain<'_> {
    /// Consumes the last sample and lets others drain.
    fn drop(&mut self) {
        self.consume();
        lock::release(self.ring.memory.consuming(), self.held);
    }
}
