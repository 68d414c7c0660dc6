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

/// Entries looked at together.
const BLOCK: u64 = 512;

/// Calls `visit` for the first `count` entries of a per-CPU array, with the values of the slots
/// that were ever used, one after the other. Entries that no slot has memory for are left out.
///
/// # Errors
/// When the file cannot be read.
pub fn each(map: &Map, count: u32, mut visit: impl FnMut(u32, &[u8])) -> io::Result<()> {
    let def = map.def();
    let stride = u64::from(def.value_size).next_multiple_of(8).max(8);
    let slots = map.user_value_size() as u64 / stride;
    let ShapeKind::PercpuArray { slot_stride, .. } = map.shape().kind else {
        return Err(io::ErrorKind::Unsupported.into());
    };
    let file = map.file().reopen().map_err(io::Error::other)?;
    let count = u64::from(count.min(def.max_entries));
    // Memory that is used again costs no page faults.
    let mut blocks: Vec<Vec<u8>> = Vec::new();
    let mut value = Vec::new();
    let mut first = 0;
    while first < count {
        let entries = BLOCK.min(count - first);
        let mut used = 0;
        for slot in 0..slots {
            let at = slot * slot_stride + first * stride;
            if next_data(&file, at)? < at + entries * stride {
                if blocks.len() == used {
                    blocks.push(Vec::new());
                }
                if let Some(block) = blocks.get_mut(used) {
                    block.resize((entries * stride) as usize, 0);
                    read(&file, at, block)?;
                }
                used += 1;
            }
        }
        let used = blocks.get(..used).unwrap_or_default();
        let mut parts: Vec<_> =
            used.iter().map(|block| block.chunks_exact(stride as usize)).collect();
        for index in first..first + entries {
            let index = u32::try_from(index).unwrap_or(u32::MAX);
            if let [only] = &mut *parts {
                only.next().into_iter().for_each(|part| visit(index, part));
                continue;
            }
            value.clear();
            parts
                .iter_mut()
                .filter_map(Iterator::next)
                .for_each(|part| value.extend_from_slice(part));
            if !value.is_empty() {
                visit(index, &value);
            }
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
