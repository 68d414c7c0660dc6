//! `BPF_MAP_TYPE_RINGBUF`: samples of any size from any number of producers to one consumer.
//!
//! Producers reserve under a lock for a few instructions, fill without one, and submit with one
//! exchange. The consumer sees records in the order of their reservation. A record whose producer
//! died unfinished is skipped.

use std::sync::Arc;
use std::sync::atomic::Ordering::{AcqRel, Acquire, Relaxed, Release};
use std::time::{Duration, Instant};

use skep_isa::MapType;

use crate::def::MapDef;
use crate::error::{E2BIG, ENOTSUPP, MapError, STRANGER};
use crate::layout::Layout;
use crate::map_file::MapFile;
use crate::ops::{ProgOps, UserOps, WalkOps};
use crate::shm::ring::{self, DATA, Head, RingMemory};
use crate::shm::{PAGE, tls};

/// Largest ring.
const MAX_BYTES: u32 = 1 << 31;
/// Longest time without a look at the ring while waiting: finds records of producers that died.
pub(crate) const LOOK: Duration = Duration::from_millis(100);

pub(crate) fn layout(def: &MapDef) -> Result<Layout, MapError> {
    if def.key_size != 0 || def.value_size != 0 {
        return Err(def.invalid("a ring buffer has neither keys nor values"));
    }
    if !def.max_entries.is_power_of_two() || !def.max_entries.is_multiple_of(PAGE as u32) {
        return Err(def.invalid("its size must be a power of two and whole pages"));
    }
    if def.max_entries > MAX_BYTES {
        return Err(MapError::Definition {
            map_type: def.map_type,
            what: "too large",
            errno: E2BIG,
        });
    }
    Ok(Layout { mirror: Some(DATA), ..Layout::plain(DATA + u64::from(def.max_entries)) })
}

pub(crate) fn open(file: MapFile) -> Result<Ring, MapError> {
    let memory = RingMemory::new(file.object, u64::from(file.def.max_entries))
        .ok_or(MapError::Damaged { what: "the file is too short" })?;
    let memory = Arc::new(memory);
    ring::register(&memory);
    Ok(Ring { memory })
}

/// An open ring buffer, whose samples programs of this process find by their addresses.
#[derive(Debug)]
pub(crate) struct Ring {
    memory: Arc<RingMemory>,
}

impl Ring {
    pub(crate) fn memory(&self) -> Arc<RingMemory> {
        Arc::clone(&self.memory)
    }
}

impl Drop for Ring {
    fn drop(&mut self) {
        ring::unregister(&self.memory);
    }
}

impl UserOps for Ring {
    fn user_value_size(&self) -> usize {
        0
    }

    fn refuse(&self, operation: &'static str) -> MapError {
        MapError::Unsupported { map_type: MapType::Ringbuf, operation, errno: ENOTSUPP }
    }
}

impl WalkOps for Ring {}

impl ProgOps for Ring {}

/// The reading side of a ring buffer. Ends with the value or with its process; what was not read
/// stays for the next. A forked child may use its parent's in the parent's place, not beside it.
#[derive(Debug)]
pub struct Consumer {
    memory: Arc<RingMemory>,
    /// As long as the longest so far.
    sample: Vec<u8>,
    /// A position up to which there are records.
    known: u64,
    looks: u32,
    /// The last look found a record.
    lively: bool,
    process: u64,
}

impl Consumer {
    /// Takes the reading side of a ring.
    pub(crate) fn of(memory: Arc<RingMemory>) -> Result<Self, MapError> {
        if tls::is_stranger() {
            return Err(MapError::Denied { why: STRANGER });
        }
        let process = tls::process_token();
        let mut holder = memory.consuming().load(Acquire);
        loop {
            if holder != 0 && !tls::dead(holder, true) {
                return Err(MapError::Busy { what: "the ring buffer's consumer side" });
            }
            match memory.consuming().compare_exchange(holder, process, AcqRel, Acquire) {
                Ok(_) => {
                    return Ok(Self {
                        memory,
                        sample: Vec::new(),
                        known: 0,
                        looks: 0,
                        lively: false,
                        process,
                    });
                }
                Err(now) => holder = now,
            }
        }
    }

    pub(crate) fn memory(&self) -> &RingMemory {
        &self.memory
    }

    /// Copies the next sample out; `None` when there is none yet.
    ///
    /// # Errors
    /// [`MapError::Damaged`] when the ring's memory makes no sense; everything in it is then
    /// skipped.
    #[inline]
    pub fn next_record(&mut self) -> Result<Option<&[u8]>, MapError> {
        loop {
            // Looking for zombies costs a file; once in a while is enough.
            self.looks = self.looks.wrapping_add(1);
            match self.memory.head_before(&mut self.known, self.looks.is_multiple_of(64)) {
                // After a record there often is another one in a moment.
                Head::Nothing if std::mem::take(&mut self.lively) => ring::pause(),
                Head::Nothing => return Ok(None),
                Head::Damaged => {
                    self.memory.consume_all();
                    return Err(MapError::Damaged { what: "a record of the ring buffer" });
                }
                Head::Record { next, kept: false, .. } => self.memory.consume(next),
                Head::Record { next, len, kept: true } => {
                    (self.looks, self.lively) = (0, true);
                    let len = len as usize;
                    if self.sample.len() < len {
                        self.sample.resize(len, 0);
                    }
                    let sample = self.sample.get_mut(..len).unwrap_or_default();
                    let whole = self.memory.read(sample);
                    self.memory.consume(next);
                    if !whole {
                        return Err(MapError::Damaged { what: "a record of the ring buffer" });
                    }
                    return Ok(Some(sample));
                }
            }
        }
    }

    /// Waits until there is a record to look at, at most `timeout`; tells whether there is.
    #[must_use]
    pub fn wait(&self, timeout: Duration) -> bool {
        let begin = Instant::now();
        loop {
            if self.memory.head(true) != Head::Nothing {
                return true;
            }
            let Some(left) = timeout.checked_sub(begin.elapsed()).filter(|l| !l.is_zero()) else {
                return false;
            };
            self.memory.sleep(left.min(LOOK).as_nanos() as u64);
        }
    }
}

impl Drop for Consumer {
    fn drop(&mut self) {
        // A forked child that drops its copy must not end the parent's.
        if self.process == tls::process_token() && !tls::is_stranger() {
            let _ = self.memory.consuming().compare_exchange(self.process, 0, Release, Relaxed);
        }
    }
}
