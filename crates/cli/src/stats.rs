//! Reading per-CPU arrays with an entry for each function of a link.
//!
//! Through the file, not through its mapping: reading a hole of a mapping makes the file system
//! fill it, which costs more than all else, and kills the reader when the file system is full.
//! Holes are passed over: a function that was never called costs nothing.

use std::io;
use std::os::fd::OwnedFd;

use rustix::fs::SeekFrom;
use rustix::io::Errno;
use skep::isa::ShapeKind;
use skep::maps::Map;

use crate::estimate::Part;

/// Entries looked at together.
const BLOCK: u64 = 512;

/// A per-CPU array that is read in blocks of entries.
struct Column<'m> {
    map: &'m Map,
    file: OwnedFd,
    stride: u64,
    slot_stride: u64,
    /// Memory that is used again costs no page faults.
    block: Vec<Block>,
}

/// What was read of entries.
#[derive(Clone, Default)]
struct Block {
    bytes: Vec<u8>,
    /// Whether they have memory; otherwise these are the bytes of others.
    is_there: bool,
}

impl<'m> Column<'m> {
    fn open(map: &'m Map) -> io::Result<Self> {
        let stride = u64::from(map.def().value_size).next_multiple_of(8).max(8);
        let ShapeKind::PercpuArray { slot_stride, .. } = map.shape().kind else {
            return Err(io::ErrorKind::Unsupported.into());
        };
        let file = map.file().reopen().map_err(io::Error::other)?;
        Ok(Self { map, file, stride, slot_stride, block: Vec::new() })
    }

    fn slots(&self) -> u64 {
        self.map.user_value_size() as u64 / self.stride
    }

    /// Reads entries of a slot into a block; false: they have no memory. `n`: which block.
    fn read(&mut self, n: usize, slot: u64, first: u64, entries: u64) -> io::Result<bool> {
        let at = slot * self.slot_stride + first * self.stride;
        if self.block.len() <= n {
            self.block.resize(n + 1, Block::default());
        }
        let Some(block) = self.block.get_mut(n) else { return Ok(false) };
        block.is_there = next_data(&self.file, at)? < at + entries * self.stride;
        if block.is_there {
            block.bytes.resize((entries * self.stride) as usize, 0);
            read(&self.file, at, &mut block.bytes)?;
        }
        Ok(block.is_there)
    }

    /// An entry in a block; nothing, if that has no memory.
    fn entry(&self, n: usize, entry: u64) -> &[u8] {
        let (at, size) = ((entry * self.stride) as usize, self.stride as usize);
        let block = self.block.get(n).filter(|block| block.is_there);
        block.and_then(|block| block.bytes.get(at..at + size)).unwrap_or_default()
    }
}

/// Calls `visit` for the first `count` entries of a per-CPU array, with the values of the slots
/// that were ever used, one after the other. Entries that no slot has memory for are left out.
///
/// # Errors
/// When the file cannot be read.
pub fn each(map: &Map, count: u32, mut visit: impl FnMut(u32, &[u8])) -> io::Result<()> {
    let mut value = Vec::new();
    each_slot(map, None, count, |index, parts| {
        if let [only] = parts {
            return visit(index, only.stat);
        }
        value.clear();
        parts.iter().for_each(|part| value.extend_from_slice(part.stat));
        visit(index, &value);
    })
}

/// The same for an array of `struct stat` and one of `struct block`.
///
/// # Errors
/// When a file cannot be read.
pub fn each_with(
    stats: &Map,
    blocks: &Map,
    count: u32,
    visit: impl FnMut(u32, &[Part<'_>]),
) -> io::Result<()> {
    each_slot(stats, Some(blocks), count, visit)
}

fn each_slot(
    stats: &Map,
    blocks: Option<&Map>,
    count: u32,
    mut visit: impl FnMut(u32, &[Part<'_>]),
) -> io::Result<()> {
    let mut stats = Column::open(stats)?;
    let mut blocks = blocks.map(Column::open).transpose()?;
    let count = u64::from(count.min(stats.map.def().max_entries));
    let slots = stats.slots();
    let mut first = 0;
    while first < count {
        let entries = BLOCK.min(count - first);
        let mut used = 0;
        for slot in 0..slots {
            if stats.read(used, slot, first, entries)? {
                if let Some(blocks) = &mut blocks {
                    blocks.read(used, slot, first, entries)?;
                }
                used += 1;
            }
        }
        let mut parts = Vec::with_capacity(used);
        for entry in 0..if used > 0 { entries } else { 0 } {
            let index = u32::try_from(first + entry).unwrap_or(u32::MAX);
            parts.clear();
            parts.extend((0..used).map(|n| Part {
                stat: stats.entry(n, entry),
                block: blocks.as_ref().map_or(&[], |blocks| blocks.entry(n, entry)),
            }));
            visit(index, &parts);
        }
        first += entries;
    }
    Ok(())
}

/// Where the file has memory at or after `at`; the end of all numbers when it has none.
pub fn next_data(file: &OwnedFd, at: u64) -> io::Result<u64> {
    match rustix::fs::seek(file, SeekFrom::Data(at)) {
        Ok(found) => Ok(found),
        Err(Errno::NXIO) => Ok(u64::MAX),
        // A file system that does not know its holes.
        Err(Errno::INVAL) => Ok(at),
        Err(e) => Err(e.into()),
    }
}

/// Reads as many bytes as there is room for; what the file does not have is 0.
fn read(file: &OwnedFd, at: u64, out: &mut [u8]) -> io::Result<()> {
    let mut done = 0;
    while let Some(rest) = out.get_mut(done..).filter(|rest| !rest.is_empty()) {
        match rustix::io::pread(file, &mut *rest, at + done as u64) {
            Ok(0) => {
                rest.fill(0);
                break;
            }
            Ok(n) => done += n,
            Err(Errno::INTR) => {}
            Err(e) => return Err(e.into()),
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use skep::isa::MapType;
    use skep::maps::{MapDef, slots::SlotTable};
    use skep_testkit::temp::TempDir;

    #[test]
    fn values_are_those_of_lookups_and_holes_stay_holes() -> Result<(), Box<dyn std::error::Error>>
    {
        let dir = TempDir::new();
        SlotTable::open_or_create(dir.path())?;
        let (entries, size) = (3000_u32, 100_u32);
        let def = MapDef::new(MapType::PercpuArray, 4, size, entries);
        let map = Map::create_sparse(dir.path(), 1, &def)?;
        let mut seen = 0;
        each(&map, entries, |_, _| seen += 1)?;
        assert_eq!(seen, 0, "nothing was written");
        let stride = size.next_multiple_of(8) as usize;
        for index in [0, 511, 512, 2999] {
            let value: Vec<u8> = (0..map.user_value_size())
                .map(|i| if i % stride < size as usize { (i as u32 + index) as u8 } else { 0 })
                .collect();
            map.update(&u32::to_le_bytes(index), &value, 0)?;
        }
        let blocks = || rustix::fs::stat(map.file().path()).map(|s| s.st_blocks);
        let before = blocks()?;
        let mut all = Vec::new();
        each(&map, entries, |index, value| all.push((index, value.to_vec())))?;
        assert_eq!(blocks()?, before);
        for (index, value) in &all {
            assert_eq!(*value, map.lookup(&index.to_le_bytes())?, "{index}");
        }
        let there = |index| all.iter().any(|(i, _)| *i == index);
        assert!(there(0) && there(511) && there(512) && there(2999) && !there(1600));
        Ok(())
    }
}
