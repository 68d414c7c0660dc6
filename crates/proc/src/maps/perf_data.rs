//! Mappings that `perf record` has recorded: `MMAP`, `MMAP2`, `COMM`, `FORK` and `EXIT` records of a
//! `perf.data` file, and the build ids in its header.
//!
//! The formats are those of `tools/perf/Documentation/perf.data-file-format.txt` and of
//! `include/uapi/linux/perf_event.h`, little-endian, with a header or as a stream (`perf record -o
//! -`), compressed (`-z`, with the feature `symbolize`) or not. Records are applied in order of their times, if they have
//! any; perf writes those of different processors one after another.

use std::collections::{BTreeMap, HashMap};
use std::path::Path;

use super::MapsError;
use super::filter::Knows;
use super::identity::Identity;
use super::input::Input;
use super::mappings::Mappings;
use super::snapshot::Snapshot;
use super::vma::{Dev, Perms, Vma};
use crate::elf::{u16_at, u32_at, u64_at};

/// The first bytes of a file.
pub(crate) const MAGIC: &[u8; 8] = b"PERFILE2";

const HEADER_BUILD_ID: u64 = 2;
const MMAP: u32 = 1;
const COMM: u32 = 3;
const EXIT: u32 = 4;
const FORK: u32 = 7;
const MMAP2: u32 = 10;
const HEADER_ATTR: u32 = 64;
const RECORD_BUILD_ID: u32 = 67;
const COMPRESSED: u32 = 81;
const COMPRESSED2: u32 = 83;
const MISC_MMAP_DATA: u16 = 1 << 13;
const MISC_COMM_EXEC: u16 = 1 << 13;
const MISC_MMAP_BUILD_ID: u16 = 1 << 14;
const MISC_BUILD_ID_SIZE: u16 = 1 << 15;
const MAP_SHARED: u32 = 1;
/// Bits of `sample_type` whose fields end each record, if `sample_id_all` is set.
const SAMPLE_TID: u64 = 1 << 1;
const SAMPLE_TIME: u64 = 1 << 2;
const SAMPLE_ID: u64 = 1 << 6;
const SAMPLE_CPU: u64 = 1 << 7;
const SAMPLE_STREAM_ID: u64 = 1 << 9;
const SAMPLE_IDENTIFIER: u64 = 1 << 16;
/// The bit of `sample_id_all` in the flags of `struct perf_event_attr`.
const SAMPLE_ID_ALL: u64 = 1 << 18;
/// The most that is kept of compressed records.
const MAX_COMPRESSED: usize = 1 << 30;
/// The most that is kept of what they become, of any recording, and of a large one as many times its size:
/// a few bytes may become any number of records.
#[cfg(feature = "symbolize")]
const UNPACKED: (usize, usize) = (64 << 20, 64);
/// How much of the file is read at once.
const CHUNK: u64 = 1 << 20;

/// What a recording says about one process.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Recorded {
    /// Process id; `u32::MAX` is the kernel.
    pub pid: u32,
    /// Its name, of its last `exec` or renaming.
    pub name: Vec<u8>,
    /// What it had mapped last: at its end, or at the end of the recording.
    pub snapshot: Snapshot,
}

/// The mappings in a `perf.data` file.
#[derive(Debug, Default)]
pub struct PerfData {
    events: Vec<Event>,
    /// The numbers of the events of each process.
    of_pid: BTreeMap<u32, Vec<usize>>,
    build_ids: HashMap<Vec<u8>, Vec<u8>>,
    /// `sample_type`, if records end with it.
    sample_type: u64,
}

/// A record that changes mappings.
#[derive(Debug)]
struct Event {
    time: u64,
    pid: u32,
    what: What,
}

#[derive(Debug)]
enum What {
    Map(Vma),
    Name { name: Vec<u8>, exec: bool },
    Fork { parent: u32 },
}

impl PerfData {
    /// Reads a file.
    ///
    /// # Errors
    /// Where it cannot be read, is of another kind or is damaged.
    pub fn open(path: impl AsRef<Path>) -> Result<Self, MapsError> {
        Self::read(&Input::open(path.as_ref())?)
    }

    /// Reads a file that is in memory.
    ///
    /// # Errors
    /// As [`open`](Self::open).
    pub fn from_bytes(bytes: Vec<u8>) -> Result<Self, MapsError> {
        Self::read(&Input::Bytes(bytes))
    }

    fn read(input: &Input) -> Result<Self, MapsError> {
        let bad = |what, offset| MapsError::BadFile { what, offset };
        let head = input.read("perf.data header", 0, 16)?;
        if head.starts_with(b"2ELIFREP") {
            return Err(MapsError::Unsupported { what: "perf.data of a big-endian machine" });
        }
        if !head.starts_with(MAGIC) {
            return Err(bad("perf.data header", 0));
        }
        let mut data = Self::default();
        if u64_at(&head, 8) == 16 {
            // A stream: attributes and build ids come as records.
            data.records(input, 16, input.len())?;
        } else {
            let head = input.read("perf.data header", 0, 104)?;
            let (attr_size, attrs) = (u64_at(&head, 16), (u64_at(&head, 24), u64_at(&head, 32)));
            let (offset, size) = (u64_at(&head, 40), u64_at(&head, 48));
            if attrs.1 >= attr_size && attr_size >= 64 {
                data.attr(&input.read("attributes", attrs.0, 64)?);
            }
            let end = offset.checked_add(size).ok_or(bad("data section", 40))?;
            data.records(input, offset, end)?;
            let features = u64_at(&head, 72);
            if features >> HEADER_BUILD_ID & 1 == 1 {
                let before = (features & ((1 << HEADER_BUILD_ID) - 1)).count_ones();
                let section = input.read("features", end + u64::from(before) * 16, 16)?;
                let (at, size) = (u64_at(&section, 0), u64_at(&section, 8));
                let table = input.read("build ids", at, size)?;
                data.build_id_table(&table).ok_or(bad("build ids", at))?;
            }
        }
        data.events.sort_by_cached_key(|event| event.time);
        for (number, event) in data.events.iter().enumerate() {
            data.of_pid.entry(event.pid).or_default().push(number);
        }
        Ok(data)
    }

    fn attr(&mut self, attr: &[u8]) {
        if u64_at(attr, 40) & SAMPLE_ID_ALL != 0 {
            self.sample_type = u64_at(attr, 24);
        }
    }

    /// Reads the records between two places of the file.
    fn records(&mut self, input: &Input, start: u64, end: u64) -> Result<(), MapsError> {
        let bad = |offset| MapsError::BadFile { what: "record", offset };
        let end = if end > input.len() { return Err(bad(end)) } else { end };
        let (mut at, mut chunk, mut from) = (start, Vec::new(), start);
        let mut compressed: Vec<u8> = Vec::new();
        while at < end {
            let mut rest = chunk.get((at - from) as usize..).unwrap_or_default();
            let mut size = usize::from(u16_at(rest, 6));
            if rest.len() < 8 || rest.len() < size {
                chunk = input.read("record", at, CHUNK.min(end - at))?;
                (from, rest) = (at, &chunk);
                size = usize::from(u16_at(rest, 6));
            }
            let record = rest.get(..size).filter(|_| size >= 8).ok_or(bad(at))?;
            let kind = u32_at(record, 0);
            let more = self.record(kind, record).ok_or(bad(at))?;
            if matches!(kind, COMPRESSED | COMPRESSED2) {
                let piece = match kind {
                    COMPRESSED => record.get(8..),
                    // With its size, as records of this kind are padded.
                    _ => usize::try_from(u64_at(record, 8))
                        .ok()
                        .and_then(|n| record.get(16..)?.get(..n)),
                };
                compressed.extend_from_slice(piece.ok_or(bad(at))?);
                if compressed.len() > MAX_COMPRESSED {
                    return Err(MapsError::Unsupported {
                        what: "more than 1 GiB of compressed records",
                    });
                }
            }
            at = at.checked_add(size as u64 + more).ok_or(bad(at))?;
        }
        if compressed.is_empty() {
            return Ok(());
        }
        #[cfg(feature = "symbolize")]
        return self.compressed(
            &compressed,
            start,
            UNPACKED.0.max(compressed.len().saturating_mul(UNPACKED.1)),
        );
        #[cfg(not(feature = "symbolize"))]
        Err(MapsError::Unsupported { what: "a compressed perf.data" })
    }

    /// Takes records that were compressed, and keeps about `room` bytes of them at most.
    #[cfg(feature = "symbolize")]
    fn compressed(&mut self, pieces: &[u8], start: u64, room: usize) -> Result<(), MapsError> {
        let mut names = 0;
        super::perf_compressed::unpack(pieces, start, |record| {
            let before = self.events.len() + self.build_ids.len();
            let kind = u32_at(record, 0);
            if self.record(kind, record) != Some(0) {
                return Err(MapsError::BadFile { what: "compressed records", offset: start });
            }
            let after = self.events.len() + self.build_ids.len();
            if after != before {
                names += record.len();
            }
            if names + after * size_of::<Event>() > room {
                let what = "compressed records of more mappings than a file of its size has";
                return Err(MapsError::Unsupported { what });
            }
            Ok(())
        })
    }

    /// Takes a record; returns how many bytes follow that are not counted in its size.
    fn record(&mut self, kind: u32, record: &[u8]) -> Option<u64> {
        let misc = u16_at(record, 4);
        let time = self.time(record);
        let pid = u32_at(record, 8);
        let what = match kind {
            MMAP => {
                let exec = if misc & MISC_MMAP_DATA == 0 { Perms::EXEC } else { Perms::UNKNOWN };
                // Code can be read, almost always; nothing says so here.
                let perms = exec | Perms::SHARING_UNKNOWN;
                What::Map(self.vma(record, perms, text(record.get(40..)?))?)
            }
            MMAP2 => {
                let (prot, flags) = (u32_at(record, 64), u32_at(record, 68));
                let shared = if flags & MAP_SHARED != 0 { Perms::SHARED } else { Perms::NONE };
                let perms = Perms(prot as u8).and(Perms(7)) | shared;
                let mut vma = self.vma(record, perms, text(record.get(72..)?))?;
                if misc & MISC_MMAP_BUILD_ID != 0 {
                    let size = usize::from(*record.get(40)?).min(20);
                    vma.build_id = Some(record.get(44..44 + size)?.to_vec());
                } else {
                    vma.dev = Dev { major: u32_at(record, 40), minor: u32_at(record, 44) };
                    vma.inode = u64_at(record, 48);
                }
                vma.file |= vma.inode != 0 || vma.dev != Dev::default();
                What::Map(vma)
            }
            COMM => What::Name {
                name: text(record.get(16..)?).to_vec(),
                exec: misc & MISC_COMM_EXEC != 0,
            },
            FORK if pid != u32_at(record, 12) => What::Fork { parent: u32_at(record, 12) },
            HEADER_ATTR => {
                self.attr(record.get(8..72)?);
                return Some(0);
            }
            RECORD_BUILD_ID => {
                self.build_id_table(record)?;
                return Some(0);
            }
            // The size of what they are followed by.
            66 => return Some(u32_at(record, 8).into()),
            71 => return Some(u64_at(record, 8)),
            EXIT => return Some(0),
            _ => return Some(0),
        };
        self.events.push(Event { time, pid, what });
        Some(0)
    }

    /// The mapping of an `MMAP` or `MMAP2`, whose common fields are the first.
    fn vma(&self, record: &[u8], perms: Perms, name: &[u8]) -> Option<Vma> {
        let (start, len) = (u64_at(record, 16), u64_at(record, 24));
        let end = start.checked_add(len)?;
        let file = name.first().is_some_and(|b| *b == b'/') && !name.starts_with(b"//anon");
        // Of memory without a file the kernel writes something else there.
        let offset = if file { u64_at(record, 32) } else { 0 };
        // perf's word for memory without a name.
        let name = Some(name.to_vec()).filter(|n| !n.is_empty() && n != b"//anon");
        Some(Vma { start, end, perms, offset, name, file, ..Vma::default() })
    }

    /// The time of a record, from the fields at its end.
    fn time(&self, record: &[u8]) -> u64 {
        let has = |bits: u64| (self.sample_type & bits).count_ones() as usize;
        if has(SAMPLE_TIME) == 0 {
            return 0;
        }
        let behind = has(SAMPLE_ID | SAMPLE_STREAM_ID | SAMPLE_CPU | SAMPLE_IDENTIFIER);
        let at = record.len().checked_sub(8 * (1 + behind));
        // It does not reach into the fields before.
        at.filter(|at| *at >= 16 + 8 * has(SAMPLE_TID)).map_or(0, |at| u64_at(record, at))
    }

    fn build_id_table(&mut self, table: &[u8]) -> Option<()> {
        let mut rest = table;
        while rest.len() >= 36 {
            let size = usize::from(u16_at(rest, 6));
            let record = rest.get(..size).filter(|_| size >= 36)?;
            let known = u16_at(record, 4) & MISC_BUILD_ID_SIZE != 0;
            let len = if known { usize::from(*record.get(32)?).min(20) } else { 20 };
            let id = record.get(12..12 + len)?.to_vec();
            self.build_ids.insert(text(record.get(36..)?).to_vec(), id);
            rest = rest.get(size..)?;
        }
        Some(())
    }

    /// The ids of the processes in the recording, in order; `u32::MAX` is the kernel.
    pub fn pids(&self) -> impl Iterator<Item = u32> {
        self.of_pid.keys().copied()
    }

    /// The processes of the recording, in order of their ids; see [`process`](Self::process).
    pub fn processes(&self) -> impl Iterator<Item = Result<Recorded, MapsError>> {
        self.pids().filter_map(|pid| self.process(pid).transpose())
    }

    /// What the recording says about a process: of several that had the id, about the last.
    ///
    /// # Errors
    /// [`MapsError::Malformed`] if mappings cannot be what they say.
    pub fn process(&self, pid: u32) -> Result<Option<Recorded>, MapsError> {
        if !self.of_pid.contains_key(&pid) {
            return Ok(None);
        }
        // Back to the first known forebear: which records of which process made the mappings.
        let mut line = Vec::new();
        let (mut who, mut until) = (pid, self.events.len());
        while let Some(numbers) = self.of_pid.get(&who) {
            let before = numbers.partition_point(|n| *n < until);
            let before = numbers.get(..before).unwrap_or_default();
            let fork = before.iter().rposition(|n| self.fork(*n).is_some());
            line.push(before.get(fork.map_or(0, |at| at + 1)..).unwrap_or_default());
            let Some(parent) = fork.and_then(|at| before.get(at)) else { break };
            (who, until) = (self.fork(*parent).unwrap_or(who), *parent);
        }
        let (mut name, mut vmas) = (Vec::new(), BTreeMap::new());
        for event in line.iter().rev().copied().flatten().filter_map(|n| self.events.get(*n)) {
            match &event.what {
                What::Map(vma) => map(&mut vmas, vma),
                What::Name { name: new, exec } => {
                    name.clone_from(new);
                    if *exec {
                        vmas.clear();
                    }
                }
                What::Fork { .. } => {}
            }
        }
        self.recorded(pid, name, vmas).map(Some)
    }

    /// The parent, if the record is one of forking.
    fn fork(&self, number: usize) -> Option<u32> {
        match self.events.get(number)?.what {
            What::Fork { parent } => Some(parent),
            _ => None,
        }
    }

    fn recorded(
        &self,
        pid: u32,
        name: Vec<u8>,
        vmas: BTreeMap<u64, Vma>,
    ) -> Result<Recorded, MapsError> {
        let mut vmas: Vec<Vma> = vmas.into_values().collect();
        for vma in &mut vmas {
            if vma.build_id.is_none() {
                vma.build_id = vma.name.as_ref().and_then(|n| self.build_ids.get(n)).cloned();
            }
        }
        let sharing = vmas.iter().all(|v| !v.perms.contains(Perms::SHARING_UNKNOWN));
        let device = vmas.iter().all(|v| v.inode != 0 || !v.file_backed());
        let knows = Knows(
            Knows::SPECIAL_NAMES.0
                | if sharing { Knows::SHARING.0 } else { 0 }
                | if device { Knows::DEVICE.0 } else { 0 },
        );
        let identity = Identity { pid, ..Identity::default() };
        let snapshot = Snapshot::of(identity, Mappings::knowing(vmas, knows)?);
        Ok(Recorded { pid, name, snapshot })
    }
}

/// Maps something over what was there.
fn map(vmas: &mut BTreeMap<u64, Vma>, new: &Vma) {
    if new.end <= new.start {
        return;
    }
    let overlapping: Vec<u64> = vmas
        .range(..new.end)
        .rev()
        .take_while(|(_, v)| v.end > new.start)
        .map(|(start, _)| *start)
        .collect();
    for start in overlapping {
        let Some(old) = vmas.remove(&start) else { continue };
        if old.end > new.end {
            let offset = if old.file { old.file_offset(new.end) } else { 0 };
            let after = Vma { start: new.end, offset, ..old.clone() };
            vmas.insert(new.end, after);
        }
        if old.start < new.start {
            vmas.insert(old.start, Vma { end: new.start, ..old });
        }
    }
    vmas.insert(new.start, new.clone());
}

/// Up to the first NUL.
fn text(bytes: &[u8]) -> &[u8] {
    bytes.split(|b| *b == 0).next().unwrap_or_default()
}

#[cfg(all(test, feature = "symbolize"))]
mod tests {
    use super::*;

    /// Some records may become any number of them.
    #[test]
    fn of_compressed_records_no_more_is_kept_than_there_is_room_for() {
        let mut record = [0; 48];
        record[0] = COMM as u8;
        record[6] = 48;
        record[16..20].copy_from_slice(b"name");
        let frame = |records: &[u8]| {
            let block = ((records.len() as u32) << 3 | 1).to_le_bytes();
            [&0xfd2f_b528u32.to_le_bytes()[..], &[0, 9 << 3], &block[..3], records].concat()
        };
        let pieces = frame(&record.repeat(100));
        let room = 100 * (record.len() + size_of::<Event>());
        let mut data = PerfData::default();
        assert_eq!(data.compressed(&pieces, 0, room), Ok(()));
        assert_eq!(data.events.len(), 100);
        let what = "compressed records of more mappings than a file of its size has";
        let mut data = PerfData::default();
        let refused = data.compressed(&pieces, 0, room - 1);
        assert_eq!(refused, Err(MapsError::Unsupported { what }));
        // What says nothing of mappings takes no room.
        record[0] = EXIT as u8;
        assert_eq!(PerfData::default().compressed(&frame(&record.repeat(100)), 0, 0), Ok(()));
        record[6] = 7;
        let damaged = PerfData::default().compressed(&frame(&record), 5, room);
        assert_eq!(damaged, Err(MapsError::BadFile { what: "compressed records", offset: 5 }));
    }
}
