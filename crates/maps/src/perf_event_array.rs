//! `BPF_MAP_TYPE_PERF_EVENT_ARRAY`: samples from programs to one reader, a ring for each processor.
//!
//! ```text
//! payload: | ring 0 | ring 1 | … |     as many as entries, but at most 256; each: consumer page, producer page, 256 KiB of data
//! ```
//!
//! The rings lie in the map, where the kernel has events that user space makes and maps. A ring
//! takes samples as soon as it is wanted: when a reader opens it, or when a user stores any
//! number in its row. What is in it when the reader ends waits for the next one. A sample for which
//! there is no room is counted as lost.

use std::sync::Arc;
use std::sync::atomic::Ordering::{AcqRel, Acquire, Relaxed, Release};
use std::time::{Duration, Instant};

use skep_isa::MapType;
use skep_isa::map::update;

use crate::def::MapDef;
use crate::error::{E2BIG, EINVAL, ENOENT, ENOSPC, ENOTSUPP, MapError};
use crate::index::{index, next_index};
use crate::layout::{Areas, Layout};
use crate::map_file::MapFile;
use crate::ops::{ProgOps, UserOps, WalkOps};
use crate::ringbuf::{Consumer, LOOK};
use crate::shm::MAX_SLOTS;
use crate::shm::ring::{DATA, Head, RingMemory};

/// Bytes of data in a ring: what perf buffers have by default.
const RING: u64 = 256 << 10;

fn rings(def: &MapDef) -> u64 {
    u64::from(def.max_entries.min(MAX_SLOTS))
}

pub(crate) fn layout(def: &MapDef) -> Result<Layout, MapError> {
    crate::id_table::layout(def)?;
    let pages = Areas::Number { count: rings(def), stride: DATA + RING, len: DATA };
    Ok(Layout::plain(rings(def) * (DATA + RING)).with_initial(0, pages))
}

pub(crate) fn open(file: MapFile) -> Result<Arc<PerfEventArray>, MapError> {
    let ring = |i| RingMemory::one_of(&file.object, i * (DATA + RING), RING).map(Arc::new);
    let rings = (0..rings(&file.def)).map(ring).collect::<Option<Vec<_>>>();
    let rings = rings.ok_or(MapError::Damaged { what: "the file is too short" })?;
    Ok(Arc::new(PerfEventArray { rings, entries: file.def.max_entries }))
}

/// An open perf event array.
#[derive(Debug)]
pub(crate) struct PerfEventArray {
    rings: Vec<Arc<RingMemory>>,
    entries: u32,
}

impl PerfEventArray {
    /// Tells whether an index is in range.
    pub(crate) fn has(&self, index: u32) -> bool {
        index < self.entries
    }

    /// Gives a sample of up to two parts to the reader of a ring, for a program; 0 or a negative
    /// errno.
    ///
    /// # Safety
    /// Both parts are readable: address and size.
    pub(crate) unsafe fn output(&self, index: u32, parts: [(*const u8, u64); 2]) -> i64 {
        if index >= self.entries {
            return -i64::from(E2BIG);
        }
        let Some(ring) = self.rings.get(index as usize).filter(|r| r.wanted().load(Acquire) != 0)
        else {
            return -i64::from(ENOENT);
        };
        // A ring gets its memory with its first sample: there may be many, of which few are used.
        if !ring.has_memory() {
            ring.lost().fetch_add(1, Relaxed);
            return -i64::from(ENOSPC);
        }
        // SAFETY: both parts are readable, as the caller promises.
        if unsafe { ring.output_parts(parts) } {
            return 0;
        }
        ring.lost().fetch_add(1, Relaxed);
        -i64::from(ENOSPC)
    }
}

impl UserOps for Arc<PerfEventArray> {
    fn user_value_size(&self) -> usize {
        4
    }

    fn refuse(&self, operation: &'static str) -> MapError {
        MapError::Unsupported { map_type: MapType::PerfEventArray, operation, errno: ENOTSUPP }
    }

    fn update(&self, key: &[u8], _value: &[u8], flags: u64) -> Result<(), MapError> {
        if flags != update::ANY {
            return Err(MapError::Flags { flags });
        }
        let i = index(key);
        if i >= self.entries {
            return Err(MapError::Index { index: i, max_entries: self.entries });
        }
        let none =
            MapError::Value { value: u64::from(i), why: "there are 256 rings", errno: EINVAL };
        self.rings.get(i as usize).ok_or(none)?.wanted().store(1, Release);
        Ok(())
    }

    fn delete(&self, key: &[u8]) -> Result<(), MapError> {
        let i = index(key);
        if i >= self.entries {
            return Err(MapError::Index { index: i, max_entries: self.entries });
        }
        match self.rings.get(i as usize).map(|r| r.wanted().swap(0, AcqRel)) {
            None | Some(0) => Err(MapError::NoElement),
            Some(_) => Ok(()),
        }
    }

    fn next_key(&self, key: Option<&[u8]>, out: &mut [u8]) -> Result<(), MapError> {
        next_index(key, self.entries, out)
    }
}

impl WalkOps for Arc<PerfEventArray> {}

impl ProgOps for Arc<PerfEventArray> {}

/// The reading side of a perf event array. Ends with the value or with its process; what was not
/// read stays for the next.
#[derive(Debug)]
pub struct PerfReader {
    rings: Vec<Consumer>,
    next: usize,
}

impl PerfReader {
    /// Takes the reading sides of all rings.
    pub(crate) fn of(events: &PerfEventArray) -> Result<Self, MapError> {
        let rings = events
            .rings
            .iter()
            .map(|r| Consumer::of(Arc::clone(r)))
            .collect::<Result<Vec<_>, _>>()?;
        rings.iter().for_each(|r| r.memory().wanted().store(1, Release));
        Ok(Self { rings, next: 0 })
    }

    /// Copies a sample out, with the number of its ring; `None` when there is none in any. Rings
    /// take turns; the samples of one come in their order.
    ///
    /// # Errors
    /// [`MapError::Damaged`] when a ring's memory makes no sense; everything in it is then skipped.
    pub fn next_record(&mut self) -> Result<Option<(u32, &[u8])>, MapError> {
        let n = self.rings.len();
        let found = (0..n)
            .map(|i| (self.next + i) % n)
            .find(|i| self.rings.get(*i).is_some_and(|r| r.memory().head(false) != Head::Nothing));
        let Some(i) = found else {
            return Ok(None);
        };
        self.next = i + 1;
        match self.rings.get_mut(i) {
            Some(ring) => Ok(ring.next_record()?.map(|sample| (i as u32, sample))),
            None => Ok(None),
        }
    }

    /// Returns how many samples were lost for want of room, by ring.
    pub fn lost(&self) -> impl Iterator<Item = u64> + '_ {
        self.rings.iter().map(|r| r.memory().lost().load(Relaxed))
    }

    /// Waits until there is a sample to look at, at most `timeout`; tells whether there is.
    #[must_use]
    pub fn wait(&self, timeout: Duration) -> bool {
        let begin = Instant::now();
        let something = || self.rings.iter().any(|r| r.memory().head(true) != Head::Nothing);
        loop {
            if something() {
                return true;
            }
            let Some(left) = timeout.checked_sub(begin.elapsed()).filter(|l| !l.is_zero()) else {
                return false;
            };
            match self.rings.first() {
                Some(first) => {
                    first.memory().sleep_unless(left.min(LOOK).as_nanos() as u64, something)
                }
                None => return false,
            }
        }
    }
}
