//! Zstandard, decompressed (RFC 8878), for what foreign files have in it: sections of debug information,
//! recordings of `perf`.
//!
//! A block of the format becomes 128 KiB at most. That is checked here while it is decoded, so who asks
//! for one block after the other decides how much memory they take, whatever a file claims. Checksums
//! and dictionaries are not read.

mod bits;
mod fse;
mod huffman;
mod sequences;

use huffman::Code;
use sequences::Sequences;

use crate::elf::{u32_at, u64_at};

const MAGIC: u32 = 0xfd2f_b528;
/// Frames without data have one of sixteen.
const SKIPPED: u32 = 0x184d_2a50;
/// What a block becomes at most.
pub(crate) const MAX_BLOCK: usize = 128 << 10;

/// Frames that follow one another, decoded block by block.
#[derive(Debug)]
pub(crate) struct Frames<'a> {
    rest: &'a [u8],
    frame: Option<Frame>,
    /// What was decoded.
    out: Vec<u8>,
    literals: Vec<u8>,
}

/// What blocks take over from those before.
#[derive(Debug)]
struct Frame {
    /// How far back repetitions may reach.
    window: u64,
    checksum: bool,
    code: Option<Code>,
    sequences: Sequences,
}

impl<'a> Frames<'a> {
    pub fn new(data: &'a [u8]) -> Self {
        Self { rest: data, frame: None, out: Vec::new(), literals: Vec::new() }
    }

    /// What was decoded and is still kept.
    pub fn out(&mut self) -> &mut Vec<u8> {
        &mut self.out
    }

    pub fn into_out(self) -> Vec<u8> {
        self.out
    }

    /// Forgets the first `count` bytes of what was decoded, but not what may still be repeated; returns
    /// how many are gone.
    #[cfg(feature = "symbolize")]
    pub fn forget(&mut self, count: usize) -> usize {
        let window = self.frame.as_ref().map_or(0, |frame| frame.window);
        let kept = usize::try_from(window).unwrap_or(usize::MAX);
        let gone = self.out.len().saturating_sub(kept).min(count);
        self.out.drain(..gone);
        gone
    }

    /// How far back the current frame may reach.
    #[cfg(feature = "symbolize")]
    pub fn window(&self) -> u64 {
        self.frame.as_ref().map_or(0, |frame| frame.window)
    }

    /// Decodes the next block; tells whether there was one. `None` if it is damaged. Data may end behind
    /// any block.
    pub fn block(&mut self) -> Option<bool> {
        let mut frame = match self.frame.take() {
            Some(frame) => frame,
            None => match self.next_frame()? {
                Some(frame) => frame,
                None => return Some(false),
            },
        };
        if self.rest.is_empty() {
            return Some(false);
        }
        let ([low, middle, high], rest) = self.rest.split_first_chunk::<3>()?;
        let head = u32::from_le_bytes([*low, *middle, *high, 0]);
        let size = (head >> 3) as usize;
        let most = MAX_BLOCK.min(usize::try_from(frame.window).unwrap_or(MAX_BLOCK));
        if size > most {
            return None;
        }
        let packed = if head >> 1 & 3 == 1 { 1 } else { size };
        let (body, rest) = rest.split_at_checked(packed)?;
        match (head >> 1 & 3, body) {
            (0, _) => self.out.extend_from_slice(body),
            (1, [byte]) => self.out.extend(std::iter::repeat_n(*byte, size)),
            (2, _) => frame.decode(body, most, &mut self.literals, &mut self.out)?,
            _ => return None,
        }
        self.rest = rest;
        if head & 1 == 0 {
            self.frame = Some(frame);
        } else if frame.checksum {
            self.rest = rest.get(4..)?;
        }
        Some(true)
    }

    /// Reads the header of the next frame; the inner `None` is the end.
    fn next_frame(&mut self) -> Option<Option<Frame>> {
        while !self.rest.is_empty() {
            let magic = self.rest.first_chunk::<4>().map(|bytes| u32::from_le_bytes(*bytes))?;
            if magic & !15 == SKIPPED {
                let size = self.rest.get(4..8).map(|size| u32_at(size, 0) as usize)?;
                self.rest = self.rest.get(8..)?.get(size..)?;
                continue;
            }
            let descriptor = *self.rest.get(4)?;
            if magic != MAGIC || descriptor & 8 != 0 {
                return None;
            }
            let single = descriptor >> 5 & 1 == 1;
            let dictionary = [0, 1, 2, 4][usize::from(descriptor & 3)];
            let content = match descriptor >> 6 {
                0 => usize::from(single),
                log => 1 << log,
            };
            let at = 5 + usize::from(!single);
            let fields = self.rest.get(5..at + dictionary + content)?;
            let (fields, content) = fields.split_at_checked(fields.len() - content)?;
            let window = if single {
                // As the window: all of the frame.
                u64_at(&[content, &[0; 8]].concat(), 0) + u64::from(content.len() == 2) * 256
            } else {
                let log = u32::from(fields.first()? >> 3) + 10;
                let base = 1_u64 << log;
                base + base / 8 * u64::from(fields.first()? & 7)
            };
            let ids = fields.get(usize::from(!single)..)?;
            if ids.iter().any(|byte| *byte != 0) {
                return None;
            }
            self.rest = self.rest.get(at + dictionary + content.len()..)?;
            return Some(Some(Frame {
                window,
                checksum: descriptor >> 2 & 1 == 1,
                code: None,
                sequences: Sequences::new(),
            }));
        }
        Some(None)
    }
}

impl Frame {
    /// Appends what a compressed block becomes: at most `most` bytes.
    fn decode(
        &mut self,
        body: &[u8],
        most: usize,
        literals: &mut Vec<u8>,
        out: &mut Vec<u8>,
    ) -> Option<()> {
        literals.clear();
        let sequences = self.literals(body, most, literals)?;
        self.sequences.run(sequences, literals, most, out)
    }

    /// Reads the literals; returns what is behind them.
    fn literals<'a>(&mut self, body: &'a [u8], most: usize, out: &mut Vec<u8>) -> Option<&'a [u8]> {
        let first = *body.first()?;
        let format = first >> 2 & 3;
        // The sizes of the header, and of each number in it.
        let (head, width) = match (first & 3, format) {
            (0 | 1, 0 | 2) => (1, 5),
            (0 | 1, 1) => (2, 12),
            (0 | 1, _) => (3, 20),
            (_, 0 | 1) => (3, 10),
            (_, 2) => (4, 14),
            _ => (5, 18),
        };
        let (fields, body) = body.split_at_checked(head)?;
        let fields = fields.iter().rev().fold(0_u64, |word, byte| word << 8 | u64::from(*byte));
        let mask = (1 << width) - 1;
        let size = (fields >> if width == 5 { 3 } else { 4 } & mask) as usize;
        if size > most {
            return None;
        }
        let packed = match first & 3 {
            0 => size,
            1 => 1,
            _ => (fields >> (4 + width) & mask) as usize,
        };
        let (mut packed, rest) = body.split_at_checked(packed)?;
        match first & 3 {
            0 => out.extend_from_slice(packed),
            1 => out.extend(std::iter::repeat_n(*packed.first()?, size)),
            kind => {
                if kind == 2 {
                    let (code, taken) = Code::read(packed)?;
                    (self.code, packed) = (Some(code), packed.get(taken..)?);
                }
                let code = self.code.as_ref()?;
                if format == 0 {
                    code.decode(packed, size, out)?;
                } else {
                    four(code, packed, size, out)?;
                }
            }
        }
        Some(rest)
    }
}

/// Decodes literals in four streams, the sizes of the first three of which stand before them.
fn four(code: &Code, packed: &[u8], size: usize, out: &mut Vec<u8>) -> Option<()> {
    let (sizes, mut rest) = packed.split_at_checked(6)?;
    let each = size.div_ceil(4);
    for bytes in sizes.chunks_exact(2) {
        let (stream, behind) = rest.split_at_checked(crate::elf::u16_at(bytes, 0).into())?;
        code.decode(stream, each, out)?;
        rest = behind;
    }
    code.decode(rest, size.checked_sub(3 * each)?, out)
}

#[cfg(test)]
mod tests;
