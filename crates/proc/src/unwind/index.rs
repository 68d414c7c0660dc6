//! The records of a section that no table leads to: where the code of each is.

use std::ops::Range;

use super::{Memory, Step, cfi};

/// Pieces of code, sorted by start: start, end, and where their record is.
#[derive(Debug)]
pub(crate) struct Index {
    pieces: Vec<(u64, u64, u64)>,
    end: u64,
}

/// More records are a lie.
const MOST: usize = 1 << 24;

impl Index {
    /// Reads all records of a section, as far as they make sense.
    pub(crate) fn new<M: Memory>(memory: &mut M, section: Range<u64>) -> Self {
        let (mut at, end) = (section.start, section.end);
        let (mut pieces, mut last) = (Vec::new(), None);
        while pieces.len() < MOST {
            let from = at;
            match cfi::record(memory, &mut at, end, last) {
                Some(cfi::Record::Piece(piece)) => {
                    last = Some(piece.cie);
                    if piece.start < piece.end {
                        pieces.push((piece.start, piece.end, from));
                    }
                }
                Some(cfi::Record::Cie) => {}
                Some(cfi::Record::End) | None => break,
            }
        }
        pieces.sort_by_cached_key(|(start, ..)| *start);
        Self { pieces, end }
    }

    /// The step of a place.
    pub(crate) fn find<M: Memory>(&self, memory: &mut M, pc: u64) -> Step {
        let after = self.pieces.partition_point(|(start, ..)| *start <= pc);
        let piece = after.checked_sub(1).and_then(|before| self.pieces.get(before));
        let row = piece.filter(|(_, end, _)| pc < *end).and_then(|(_, _, record)| {
            let cfi::Record::Piece(piece) =
                cfi::record(memory, &mut record.clone(), self.end, None)?
            else {
                return None;
            };
            cfi::row(memory, &piece, pc)
        });
        row.map_or(Step::UNKNOWN, |row| Step::of_row(&row))
    }
}
