//! Where the records of a file begin: files that are written again and again would grow without end.
//!
//! ```text
//! 16  place 0   offset u64  check u64      the newer of those whose check is right counts; none:
//! 32  place 1   offset u64  check u64      the records begin behind them
//! ```
//!
//! Who has a whole state to write appends it, and then says in the older place that the file begins
//! there. The room of what lies before the other place's offset is given back (a hole), its
//! numbering stays: offsets and the file's length only grow. A writer that dies before the place is
//! written has appended records as any other; one that dies while it writes it leaves a wrong check,
//! and the other place counts; one that dies before the hole is made leaves that to the next.
//!
//! A reader begins at the newer place, and what it read was there if the hole does not reach it
//! afterwards. What lies between the two places stays for it meanwhile.

use std::fs::File;
use std::io;
use std::os::unix::fs::FileExt;

use rustix::fs::{FallocateFlags, fallocate};

use crate::record::check;

const PLACES: usize = 2;
const PLACE: usize = 16;
/// Bytes of the places.
pub const SIZE: usize = PLACES * PLACE;
/// What the file system gives back.
const PAGE: u64 = 4096;

/// Where records begin, by both places.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Restarts([Option<u64>; PLACES]);

fn sum(offset: u64) -> u64 {
    let bytes = offset.to_le_bytes();
    u64::from(check(1, &bytes)) << 32 | u64::from(check(2, &bytes))
}

impl Restarts {
    /// Reads the places, which are at `at`.
    ///
    /// # Errors
    /// When the file cannot be read or is too short.
    pub fn read(file: &File, at: u64) -> io::Result<Self> {
        let mut bytes = [[0; PLACE]; PLACES];
        file.read_exact_at(bytes.as_flattened_mut(), at)?;
        Ok(Self(bytes.map(|place| {
            let (offset, check) = (u64_at(&place, 0), u64_at(&place, 8));
            (check == sum(offset) && offset >= at).then_some(offset)
        })))
    }

    /// Returns where the newest state begins; `None` is behind the places.
    #[must_use]
    pub fn newest(&self) -> Option<u64> {
        self.0.iter().flatten().max().copied()
    }

    /// Returns before which offset nothing may be left; `None` is behind the places.
    #[must_use]
    pub fn kept(&self) -> Option<u64> {
        let [a, b] = self.0;
        Some(a?.min(b?))
    }

    /// Says that the records begin at `offset`, and gives back what lies before the place that was
    /// the newest. The caller holds the lock; `file` does not append, which would take no offset.
    ///
    /// # Errors
    /// When the place cannot be written.
    pub fn begin_at(mut self, file: &File, at: u64, offset: u64) -> io::Result<()> {
        let older = usize::from(self.0[0].is_some_and(|a| self.0[1].is_none_or(|b| a > b)));
        let mut place = [0; PLACE];
        place[..8].copy_from_slice(&offset.to_le_bytes());
        place[8..].copy_from_slice(&sum(offset).to_le_bytes());
        file.write_all_at(&place, at + (older * PLACE) as u64)?;
        self.0[older] = Some(offset);
        let hole = PAGE..self.kept().unwrap_or(0) / PAGE * PAGE;
        if !hole.is_empty() {
            let how = FallocateFlags::PUNCH_HOLE | FallocateFlags::KEEP_SIZE;
            // A file system without holes keeps the room.
            fallocate(file, how, hole.start, hole.end - hole.start).ok();
        }
        Ok(())
    }
}

fn u64_at(bytes: &[u8; PLACE], at: usize) -> u64 {
    let mut word = [0; 8];
    word.iter_mut().zip(bytes.iter().skip(at)).for_each(|(to, from)| *to = *from);
    u64::from_le_bytes(word)
}
