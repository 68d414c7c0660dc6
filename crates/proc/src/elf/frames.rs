//! Function boundaries from `.eh_frame`, which also stripped files have.
//!
//! A frame description (FDE) covers one contiguous piece of code. A piece that begins with the
//! return address on top of the stack and no register saved is a function's start. Others are parts
//! that the compiler moved away (`.cold`), code that is jumped to with a frame of its own, code
//! that nothing returns from (`_start`, the place where a new thread begins), and the kernel's way
//! back from a signal handler. A cold part entered before anything was pushed looks like a function
//! here: nothing in the tables tells them apart.

use std::ops::Range;

use crate::order::sort_by_number;
use crate::unwind::{Memory, cfi};

use super::{EM_X86_64, Elf, ElfError};

/// One piece of code that has unwind information.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Fde {
    /// First link-time address.
    pub start: u64,
    /// First address after it.
    pub end: u64,
    /// The piece begins as a called function does: CFA is `rsp + 8`, the return address is at
    /// CFA-8, nothing else is saved.
    pub function_entry: bool,
}

impl Fde {
    /// Link-time addresses covered.
    pub fn range(&self) -> Range<u64> {
        self.start..self.end
    }
}

/// Bytes that a description takes at least, and those of most small functions.
const LEAST_SIZE: usize = 20;

impl Elf {
    /// Reads all frame descriptions of the code, sorted by address. A file without any gives none.
    ///
    /// A record that makes no sense ends the reading: what came before is kept, as unwinders do.
    pub fn fdes(&self) -> Result<Vec<Fde>, ElfError> {
        self.frames().map(<[Fde]>::to_vec)
    }

    /// The same, read once and lent.
    ///
    /// # Errors
    /// As for [`fdes`](Self::fdes).
    pub fn frames(&self) -> Result<&[Fde], ElfError> {
        if let Some(known) = self.fdes.get() {
            return Ok(known);
        }
        let fdes = self.read_frames()?;
        Ok(self.fdes.get_or_init(|| fdes))
    }

    /// Tells for each place whether the stack is there as it is at a function's start: for a second
    /// entry into a function, in the middle of a piece. Reads all tables again: ask for many at
    /// once.
    pub fn entered_at(&self, places: &[u64]) -> Result<Vec<bool>, ElfError> {
        let mut out = vec![false; places.len()];
        if places.is_empty() {
            return Ok(out);
        }
        let mut order: Vec<(u64, usize)> = places.iter().copied().zip(0..).collect();
        order.sort_by_cached_key(|(place, _)| *place);
        for (vaddr, data) in self.frame_data()? {
            each_frame(vaddr, &data, |fde, rows| {
                let first = order.partition_point(|o| o.0 < fde.start);
                let last = order.partition_point(|o| o.0 < fde.end);
                for (place, index) in order.get(first..last).unwrap_or_default() {
                    if let Some(entered) = out.get_mut(*index) {
                        *entered |= rows(*place);
                    }
                }
            });
        }
        Ok(out)
    }

    fn read_frames(&self) -> Result<Vec<Fde>, ElfError> {
        if self.machine != EM_X86_64 {
            return Err(ElfError::Unsupported { what: "unwind tables of another machine" });
        }
        let mut out = Vec::new();
        for (vaddr, data) in self.frame_data()? {
            out.reserve(data.len() / LEAST_SIZE);
            each_frame(vaddr, &data, |mut fde, entered_at| {
                fde.function_entry = entered_at(fde.start);
                out.push(fde);
            });
        }
        let text = self.text();
        out.retain(|f: &Fde| {
            f.start < f.end && super::range_of(&text, f.start).is_some_and(|t| f.end <= t.end)
        });
        sort_by_number(&mut out, |f| f.start);
        // Of those that begin together the shortest.
        out.dedup_by(|next, kept| {
            let same = next.start == kept.start;
            if same && next.end < kept.end {
                std::mem::swap(next, kept);
            }
            same
        });
        Ok(out)
    }

    /// Address and bytes of the `.eh_frame` sections; without section headers, the place the
    /// program header points to.
    fn frame_data(&self) -> Result<Vec<(u64, Vec<u8>)>, ElfError> {
        let sections = self
            .sections
            .iter()
            .filter(|s| s.name == b".eh_frame" && s.size != 0 && s.kind != super::SHT_NOBITS);
        let found: Vec<_> = sections
            .map(|s| Ok((s.vaddr, self.section_data(s)?)))
            .collect::<Result<_, ElfError>>()?;
        if !found.is_empty() {
            return Ok(found);
        }
        let Some(header) = self.segments.iter().find(|s| s.kind == super::PT_GNU_EH_FRAME) else {
            return Ok(found);
        };
        let head = self.read("unwind table header", header.offset, header.file_size.min(64))?;
        let Some(start) = frame_pointer(header.vaddr, &head) else { return Ok(found) };
        let load = self.segments.iter().find(|s| {
            s.kind == super::PT_LOAD && start >= s.vaddr && start - s.vaddr < s.file_size
        });
        match load {
            Some(s) => Ok(vec![(start, self.read_vaddr(start, s.file_size - (start - s.vaddr))?)]),
            None => Ok(found),
        }
    }
}

/// Where the header says that the frame descriptions begin.
fn frame_pointer(vaddr: u64, head: &[u8]) -> Option<u64> {
    let head = Bytes { vaddr, data: head };
    // Version 1; the pointer is relative to itself, or absolute.
    let (version, encoding) = (head.number(vaddr, 1)?, head.number(vaddr.wrapping_add(1), 1)?);
    let at = vaddr.wrapping_add(4);
    match (version, encoding) {
        (1, 0x1b) => Some(at.wrapping_add_signed(i64::from(head.number(at, 4)? as i32))),
        (1, 0x10 | 0x1c) => Some(at.wrapping_add(head.number(at, 8)?)),
        (1, 0 | 4) => head.number(at, 8),
        _ => None,
    }
}

/// Bytes of a file at their link-time addresses.
struct Bytes<'a> {
    vaddr: u64,
    data: &'a [u8],
}

impl Bytes<'_> {
    fn number(&self, addr: u64, size: u64) -> Option<u64> {
        let at = usize::try_from(addr.checked_sub(self.vaddr)?).ok()?;
        let rest = self.data.get(at..)?;
        // Nearly all are of these sizes.
        Some(match size {
            1 => u64::from(*rest.first()?),
            4 => u64::from(u32::from_le_bytes(*rest.first_chunk()?)),
            8 => u64::from_le_bytes(*rest.first_chunk()?),
            _ => {
                let bytes = rest.get(..size as usize)?;
                bytes.iter().rev().fold(0, |value, byte| value << 8 | u64::from(*byte))
            }
        })
    }
}

impl Memory for Bytes<'_> {
    fn number(&mut self, addr: u64, size: u64) -> Option<u64> {
        Bytes::number(self, addr, size)
    }
}

/// Reads the records of one section, as far as they make sense. `each` gets a piece of code and can
/// ask whether the stack is at a place in it as at a function's start.
fn each_frame(vaddr: u64, data: &[u8], mut each: impl FnMut(Fde, &mut dyn FnMut(u64) -> bool)) {
    let mut bytes = Bytes { vaddr, data };
    let end = vaddr.saturating_add(data.len() as u64);
    // Neighbors share their CIE, and what it says.
    let (mut at, mut last) = (vaddr, None);
    let mut initial: Option<(u64, Option<cfi::Row>)> = None;
    while let Some(record) = cfi::record(&mut bytes, &mut at, end, last) {
        let piece = match record {
            cfi::Record::Piece(piece) => piece,
            cfi::Record::Cie => continue,
            cfi::Record::End => return,
        };
        last = Some(piece.cie);
        each(Fde { start: piece.start, end: piece.end, function_entry: false }, &mut |place| {
            if piece.cie.is_signal || !(piece.start..piece.end).contains(&place) {
                return false;
            }
            let said = match initial {
                Some((cie, said)) if cie == piece.cie.at => said,
                _ => initial.insert((piece.cie.at, cfi::initial(&mut bytes, &piece.cie))).1,
            };
            said.and_then(|said| cfi::row_from(&mut bytes, &piece, said, place))
                .is_some_and(|row| is_entry(&row))
        });
    }
}

/// Tells whether a row is that of a function just called: nothing on the stack but the return
/// address.
fn is_entry(row: &cfi::Row) -> bool {
    let on_top = row.cfa == cfi::Cfa::Offset(cfi::RSP as u8) && row.cfa_offset == 8;
    on_top && row.ra == cfi::Saved::AtCfa && row.ra_offset == -8 && row.saved == 0
}
