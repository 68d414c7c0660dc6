//! From a frame to its caller's, in code with and without frame pointers.
//!
//! Compilers write unwind tables into every program (`.eh_frame`), because exceptions need them. For
//! each place in code a table says where the caller's frame is. The three registers that lead from
//! frame to frame on x86-64 are followed ([`Registers`]); what was in others is not known. Code that
//! has no tables, such as that of runtimes, is followed by frame pointers.
//!
//! What is known of a place fits into one word ([`Step`]), for those who want to keep it: reading
//! the tables takes a hundred times as long as following it.

pub(crate) mod cfi;
#[cfg(feature = "users")]
mod core;
#[cfg(feature = "users")]
mod index;

#[cfg(feature = "users")]
pub use core::{CoreStacks, CoreThread};

use cfi::{Cfa, RBP, RSP, Saved};

/// Where bytes come from.
pub trait Memory {
    /// Reads `size` bytes, 1, 2, 4 or 8, as a number, the lowest byte first; `None` where nothing
    /// is.
    fn number(&mut self, addr: u64, size: u64) -> Option<u64>;
}

/// The registers that lead from a frame to its caller's.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Registers {
    /// `rip`: where the frame's code runs.
    pub ip: u64,
    /// `rsp`.
    pub sp: u64,
    /// `rbp`.
    pub bp: u64,
    /// `ip` is where a call returns to; the call itself is before it, perhaps in another function.
    pub is_return: bool,
}

/// How to get from a place in code to its caller, in one word.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Step(u64);

/// Kinds of steps, in their lowest bits. Above are the offsets of the CFA and of where `rbp` was
/// saved, 29 bits each.
const UNKNOWN: u64 = 0;
/// The CFA is above `rsp`.
const BY_SP: u64 = 1;
/// The CFA is above `rbp`.
const BY_BP: u64 = 2;
/// The CFA is in memory above `rbp`, and `rbp` was saved above itself: a function that aligned its
/// stack.
const ALIGNED: u64 = 3;
/// Nothing called this.
const END: u64 = 4;
/// What the kernel puts below a signal handler.
const SIGNAL: u64 = 5;
const KIND_BITS: u32 = 6;
const OFFSET_BITS: u32 = 29;
/// In place of an offset: `rbp` was not saved.
const SAME: i32 = -(1 << (OFFSET_BITS - 1));

/// Places of `rbp`, `rsp` and `rip` in what the kernel puts below a signal handler (`ucontext`).
const SIGNAL_BP: u64 = 120;
const SIGNAL_SP: u64 = 160;
const SIGNAL_IP: u64 = 168;

/// Most records that a search may take in a table; more is a lie.
const MAX_RECORDS: u64 = 1 << 26;

impl Step {
    /// Nothing is known: frame pointers are followed.
    pub const UNKNOWN: Self = Self(UNKNOWN);

    /// The same as a word.
    pub fn to_bits(self) -> u64 {
        self.0
    }

    /// Of a word that [`Step::to_bits`] gave.
    pub fn from_bits(bits: u64) -> Self {
        Self(bits)
    }

    fn new(kind: u64, cfa: i32, bp: i32) -> Self {
        const LIMIT: i32 = 1 << (OFFSET_BITS - 1);
        if !(-LIMIT..LIMIT).contains(&cfa) || !(-LIMIT..LIMIT).contains(&bp) {
            return Self::UNKNOWN;
        }
        let mask = (1 << OFFSET_BITS) - 1;
        let field = |offset: i32| u64::from(offset as u32) & mask;
        Self(kind | field(cfa) << KIND_BITS | field(bp) << (KIND_BITS + OFFSET_BITS))
    }

    /// Finds the step of a place, by the table of a module (`PT_GNU_EH_FRAME`, `.eh_frame_hdr`) that
    /// lies at `header`.
    #[inline]
    pub fn find<M: Memory>(memory: &mut M, header: u64, pc: u64) -> Self {
        search(memory, header, pc).unwrap_or(Self::UNKNOWN)
    }

    #[inline]
    fn of_row(row: &cfi::Row) -> Self {
        let sp = RSP as u8;
        match row.ra {
            Saved::At(register) if register == sp && row.cfa == Cfa::Deref(sp) => {
                return Self::new(SIGNAL, 0, 0);
            }
            Saved::Undefined => return Self::new(END, 0, 0),
            Saved::AtCfa if row.ra_offset == -8 => {}
            _ => return Self::UNKNOWN,
        }
        let bp = match row.bp {
            Saved::AtCfa => row.bp_offset,
            _ => SAME,
        };
        let known = matches!(row.bp, Saved::AtCfa | Saved::Same | Saved::Undefined);
        match row.cfa {
            Cfa::Offset(register) if known && u64::from(register) == RSP => {
                Self::new(BY_SP, row.cfa_offset, bp)
            }
            Cfa::Offset(register) if known && u64::from(register) == RBP => {
                Self::new(BY_BP, row.cfa_offset, bp)
            }
            Cfa::Deref(register) if u64::from(register) == RBP && row.bp == Saved::At(register) => {
                Self::new(ALIGNED, row.cfa_offset, row.bp_offset)
            }
            _ => Self::UNKNOWN,
        }
    }

    /// Goes from a frame to its caller's; `None` where the stack ends or makes no sense.
    #[inline]
    pub fn take<M: Memory>(self, memory: &mut M, frame: Registers) -> Option<Registers> {
        let field = |shift: u32| ((self.0 >> shift << 35) as i64 >> 35) as i32;
        let (cfa_offset, bp_offset) = (field(KIND_BITS), field(KIND_BITS + OFFSET_BITS));
        let above = |base: u64, offset: i32| base.wrapping_add_signed(offset.into());
        let kind = self.0 & ((1 << KIND_BITS) - 1);
        let cfa = match kind {
            BY_SP => above(frame.sp, cfa_offset),
            BY_BP => above(frame.bp, cfa_offset),
            ALIGNED => memory.number(above(frame.bp, cfa_offset), 8)?,
            UNKNOWN => frame.bp.wrapping_add(16),
            SIGNAL => {
                let mut word = |at: u64| memory.number(frame.sp.wrapping_add(at), 8);
                let (ip, sp, bp) = (word(SIGNAL_IP)?, word(SIGNAL_SP)?, word(SIGNAL_BP)?);
                return Some(Registers { ip, sp, bp, is_return: false });
            }
            _ => return None,
        };
        let bp_at = match kind {
            UNKNOWN => Some(frame.bp),
            ALIGNED => Some(above(frame.bp, bp_offset)),
            _ if bp_offset == SAME => None,
            _ => Some(above(cfa, bp_offset)),
        };
        // A caller's frame lies above. Frame pointers are followed wherever they lead, as the kernel
        // does.
        if kind != UNKNOWN && cfa <= frame.sp {
            return None;
        }
        let bp = match bp_at {
            Some(at) => memory.number(at, 8)?,
            None => frame.bp,
        };
        let ip = memory.number(cfa.wrapping_sub(8), 8)?;
        (ip != 0).then_some(Registers { ip, sp: cfa, bp, is_return: true })
    }
}

impl Registers {
    /// The place whose step leads to the caller.
    pub fn place(self) -> u64 {
        self.ip.wrapping_sub(self.is_return.into())
    }
}

/// Searches the sorted table of a header, and follows the record found.
#[inline]
fn search<M: Memory>(memory: &mut M, header: u64, pc: u64) -> Option<Step> {
    // Version 1; the pointer to the section, relative to itself; the number of entries in four bytes;
    // entries of two offsets of four bytes, relative to the header. All linkers write these.
    if memory.number(header, 4)? != 0x3b03_1b01 {
        return None;
    }
    let count = memory.number(header.wrapping_add(8), 4)?;
    let place = i32::try_from(pc.wrapping_sub(header) as i64).ok()?;
    let entry = |memory: &mut M, i: u64, part: u64| -> Option<i32> {
        Some(memory.number(header.wrapping_add(12 + i * 8 + part * 4), 4)? as i32)
    };
    let (mut low, mut high) = (0, count.min(MAX_RECORDS));
    while low < high {
        let middle = low.midpoint(high);
        if entry(memory, middle, 0)? <= place { low = middle + 1 } else { high = middle }
    }
    let mut at = header.wrapping_add_signed(entry(memory, low.checked_sub(1)?, 1)?.into());
    let cfi::Record::Piece(piece) = cfi::record(memory, &mut at, u64::MAX, None)? else {
        return None;
    };
    if !(piece.start..piece.end).contains(&pc) {
        return None;
    }
    let row = cfi::row(memory, &piece, pc)?;
    Some(Step::of_row(&row))
}
