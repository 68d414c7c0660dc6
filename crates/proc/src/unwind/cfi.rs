//! Call frame information of `.eh_frame`: for a place in code, where the caller's frame is, and
//! where registers were saved.
//!
//! Bytes come from a file or from memory that may be gone ([`Memory`]). Nothing here allocates or
//! recurses, so that it can run inside of events. A record that makes no sense gives `None`.

use super::Memory;

/// Numbers of registers in DWARF for x86-64.
pub(crate) const RBP: u64 = 6;
pub(crate) const RSP: u64 = 7;
const RA: u64 = 16;

/// Where a frame begins: its canonical frame address, the value of `rsp` before the call.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Cfa {
    /// This far above what a register has.
    Offset(u8),
    /// In memory, this far above what a register has.
    Deref(u8),
    Other,
}

/// Where a register of the caller is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Saved {
    Undefined,
    Same,
    /// In memory, this far from the CFA.
    AtCfa,
    /// In memory, this far from what a register has.
    At(u8),
    Other,
}

/// What is known at a place.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Row {
    pub(crate) cfa: Cfa,
    pub(crate) bp: Saved,
    pub(crate) ra: Saved,
    pub(crate) cfa_offset: i32,
    pub(crate) bp_offset: i32,
    pub(crate) ra_offset: i32,
    /// A bit for each register other than the return address that is not where the caller left it.
    pub(crate) saved: u32,
}

/// What several pieces of code share.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Cie {
    /// Its address.
    pub(crate) at: u64,
    code_align: u64,
    data_align: i64,
    /// Encoding of the addresses of its pieces.
    encoding: u8,
    /// Its pieces have lengths of their own for what follows their addresses.
    augmented: bool,
    /// What the kernel leaves on the stack for a signal handler to return through.
    pub(crate) is_signal: bool,
    instructions: (u64, u64),
}

/// A piece of code.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Piece {
    pub(crate) cie: Cie,
    pub(crate) start: u64,
    pub(crate) end: u64,
    instructions: (u64, u64),
}

/// A record of the section.
pub(crate) enum Record {
    Cie,
    Piece(Piece),
    End,
}

/// Reads on from an address.
struct Cursor<'m, M> {
    memory: &'m mut M,
    at: u64,
    end: u64,
}

impl<M: Memory> Cursor<'_, M> {
    fn number(&mut self, size: u64) -> Option<u64> {
        if self.end.checked_sub(self.at)? < size {
            return None;
        }
        let value = self.memory.number(self.at, size)?;
        self.at += size;
        Some(value)
    }

    fn byte(&mut self) -> Option<u8> {
        Some(self.number(1)? as u8)
    }

    fn uleb(&mut self) -> Option<u64> {
        self.leb().map(|(value, ..)| value)
    }

    fn sleb(&mut self) -> Option<i64> {
        let (value, bits, negative) = self.leb()?;
        let sign = if negative && bits < 64 { u64::MAX << bits } else { 0 };
        Some((value | sign) as i64)
    }

    /// A number of any length, how many bits it has, and the last of them.
    fn leb(&mut self) -> Option<(u64, u32, bool)> {
        let (mut value, mut bits) = (0_u64, 0);
        loop {
            let byte = self.byte()?;
            if bits < 64 {
                value |= u64::from(byte & 0x7f) << bits;
            }
            bits += 7;
            if byte & 0x80 == 0 {
                return Some((value, bits, byte & 0x40 != 0));
            }
            if bits > 70 {
                return None;
            }
        }
    }

    /// An address; of an indirect one, where it lies.
    fn address(&mut self, encoding: u8) -> Option<u64> {
        let base = match encoding & 0x70 {
            0 => 0,
            0x10 => self.at,
            _ => return None,
        };
        let value = self.value(encoding)?;
        Some(base.wrapping_add(value))
    }

    fn value(&mut self, encoding: u8) -> Option<u64> {
        Some(match encoding & 0x0f {
            0 | 4 | 12 => self.number(8)?,
            1 => self.uleb()?,
            2 => self.number(2)?,
            3 => self.number(4)?,
            9 => self.sleb()? as u64,
            10 => self.number(2)? as i16 as u64,
            11 => self.number(4)? as i32 as u64,
            _ => return None,
        })
    }

    fn skip(&mut self, len: u64) -> Option<()> {
        self.at = self.at.checked_add(len).filter(|at| *at <= self.end)?;
        Some(())
    }

    /// A block of bytes that begins with its length.
    fn block(&mut self) -> Option<(u64, u64)> {
        let len = self.uleb()?;
        let start = self.at;
        self.skip(len)?;
        Some((start, self.at))
    }
}

/// Reads the record at `at` and moves `at` behind it; `end` is that of the section. `known` is a CIE
/// that was read before.
pub(crate) fn record<M: Memory>(
    memory: &mut M,
    at: &mut u64,
    end: u64,
    known: Option<Cie>,
) -> Option<Record> {
    let mut cursor = Cursor { memory, at: *at, end };
    if cursor.at == end {
        return Some(Record::End);
    }
    let len = match cursor.number(4)? {
        0 => return Some(Record::End),
        0xffff_ffff => cursor.number(8)?,
        len => len,
    };
    let from = cursor.at;
    cursor.skip(len)?;
    (*at, cursor.end, cursor.at) = (cursor.at, cursor.at, from);
    let distance = cursor.number(4)?;
    if distance == 0 {
        return Some(Record::Cie);
    }
    let cie_at = from.checked_sub(distance)?;
    let cie = match known.filter(|cie| cie.at == cie_at) {
        Some(cie) => cie,
        None => read_cie(&mut Cursor { memory: &mut *cursor.memory, at: cie_at, end })?,
    };
    let start = cursor.address(cie.encoding)?;
    let size = cursor.value(cie.encoding)?;
    if cie.augmented {
        cursor.block()?;
    }
    let instructions = (cursor.at, cursor.end);
    Some(Record::Piece(Piece { cie, start, end: start.checked_add(size)?, instructions }))
}

fn read_cie<M: Memory>(cursor: &mut Cursor<'_, M>) -> Option<Cie> {
    let at = cursor.at;
    let len = match cursor.number(4)? {
        0xffff_ffff => cursor.number(8)?,
        len => len,
    };
    let from = cursor.at;
    cursor.skip(len)?;
    (cursor.end, cursor.at) = (cursor.at, from);
    if cursor.number(4)? != 0 {
        return None;
    }
    let version = cursor.byte()?;
    if !matches!(version, 1 | 3) {
        return None;
    }
    let mut letters = cursor.at;
    while cursor.byte()? != 0 {}
    let mut cie = Cie {
        at,
        code_align: cursor.uleb()?,
        data_align: cursor.sleb()?,
        encoding: 0,
        augmented: false,
        is_signal: false,
        instructions: (0, 0),
    };
    let ra = if version == 1 { cursor.byte()?.into() } else { cursor.uleb()? };
    if ra != RA {
        return None;
    }
    let mut data_end = None;
    loop {
        let letter = cursor.memory.number(letters, 1)? as u8;
        letters += 1;
        match letter {
            0 => break,
            b'z' => {
                let (start, end) = cursor.block()?;
                cursor.at = start;
                data_end = Some(end);
                cie.augmented = true;
            }
            b'R' => cie.encoding = cursor.byte()?,
            b'L' => cursor.skip(1)?,
            b'P' => {
                let encoding = cursor.byte()?;
                cursor.value(encoding)?;
            }
            b'S' => cie.is_signal = true,
            // What is not known is skipped by its length, if that is known.
            _ if cie.augmented => break,
            _ => return None,
        }
    }
    cie.instructions = (data_end.unwrap_or(cursor.at), cursor.end);
    Some(cie)
}

/// What holds at a place of the piece.
pub(crate) fn row<M: Memory>(memory: &mut M, piece: &Piece, pc: u64) -> Option<Row> {
    let initial = initial(memory, &piece.cie)?;
    row_from(memory, piece, initial, pc)
}

/// What holds where pieces begin, before anything that they say themselves: the same for all pieces
/// of a CIE.
pub(crate) fn initial<M: Memory>(memory: &mut M, cie: &Cie) -> Option<Row> {
    let first = Row {
        cfa: Cfa::Other,
        bp: Saved::Same,
        ra: Saved::Undefined,
        cfa_offset: 0,
        bp_offset: 0,
        ra_offset: 0,
        saved: 0,
    };
    run(memory, cie, 0, cie.instructions, first, None, u64::MAX)
}

/// As [`row`], where the [`initial`] one is known.
pub(crate) fn row_from<M: Memory>(
    memory: &mut M,
    piece: &Piece,
    initial: Row,
    pc: u64,
) -> Option<Row> {
    run(memory, &piece.cie, piece.start, piece.instructions, initial, Some(initial), pc)
}

/// Follows instructions up to a place, from `start` on. `initial` has what the CIE says, once it is
/// known.
fn run<M: Memory>(
    memory: &mut M,
    cie: &Cie,
    start: u64,
    (at, end): (u64, u64),
    mut row: Row,
    initial: Option<Row>,
    pc: u64,
) -> Option<Row> {
    let mut cursor = Cursor { memory, at, end };
    let mut loc = start;
    // The rows that were remembered: compilers remember one, at most two.
    let (mut depth, mut last, mut before, mut first) = (0, row, row, row);
    while cursor.at < end {
        let op = cursor.byte()?;
        let low = u64::from(op & 0x3f);
        let delta = match op {
            0x40..=0x7f => Some(low),
            0x02 => Some(cursor.number(1)?),
            0x03 => Some(cursor.number(2)?),
            0x04 => Some(cursor.number(4)?),
            _ => None,
        };
        if let Some(delta) = delta {
            loc = loc.wrapping_add(delta.wrapping_mul(cie.code_align));
            if loc > pc {
                return Some(row);
            }
            continue;
        }
        match op {
            // DW_CFA_nop; DW_CFA_GNU_args_size
            0x00 => {}
            0x2e => drop(cursor.uleb()?),
            // DW_CFA_set_loc
            0x01 => {
                loc = cursor.address(cie.encoding)?;
                if loc > pc {
                    return Some(row);
                }
            }
            // DW_CFA_offset; DW_CFA_offset_extended, _sf
            0x80..=0xbf | 0x05 | 0x11 => {
                let register = if op & 0x80 != 0 { low } else { cursor.uleb()? };
                let factor = if op == 0x11 { cursor.sleb()? } else { cursor.uleb()? as i64 };
                row.set(register, Saved::AtCfa, factor.wrapping_mul(cie.data_align));
            }
            // DW_CFA_restore; DW_CFA_restore_extended
            0xc0..=0xff | 0x06 => {
                let register = if op & 0x80 != 0 { low } else { cursor.uleb()? };
                row.restore(register, &initial?);
            }
            // DW_CFA_undefined; DW_CFA_same_value
            0x07 => row.set(cursor.uleb()?, Saved::Undefined, 0),
            0x08 => row.set(cursor.uleb()?, Saved::Same, 0),
            // DW_CFA_register
            0x09 => {
                row.set(cursor.uleb()?, Saved::Other, 0);
                cursor.uleb()?;
            }
            // DW_CFA_remember_state; DW_CFA_restore_state
            0x0a => {
                (first, before, last) = (before, last, row);
                depth += 1;
                if depth > 3 {
                    return None;
                }
            }
            0x0b => {
                if depth == 0 {
                    return None;
                }
                (row, last, before) = (last, before, first);
                depth -= 1;
            }
            // DW_CFA_def_cfa, _sf
            0x0c => row.cfa(cursor.uleb()?, cursor.uleb()? as i64),
            0x12 => row.cfa(cursor.uleb()?, cursor.sleb()?.wrapping_mul(cie.data_align)),
            // DW_CFA_def_cfa_register
            0x0d => match row.cfa {
                Cfa::Offset(_) => row.cfa(cursor.uleb()?, row.cfa_offset.into()),
                _ => return None,
            },
            // DW_CFA_def_cfa_offset, _sf
            0x0e | 0x13 => {
                let Cfa::Offset(register) = row.cfa else { return None };
                let offset = match op {
                    0x0e => cursor.uleb()? as i64,
                    _ => cursor.sleb()?.wrapping_mul(cie.data_align),
                };
                row.cfa(register.into(), offset);
            }
            // DW_CFA_def_cfa_expression
            0x0f => {
                let block = cursor.block()?;
                (row.cfa, row.cfa_offset) = match expression(cursor.memory, block) {
                    Some((register, offset, true)) => (Cfa::Deref(register), offset),
                    Some((register, offset, false)) => (Cfa::Offset(register), offset),
                    None => (Cfa::Other, 0),
                };
            }
            // DW_CFA_expression
            0x10 => {
                let register = cursor.uleb()?;
                let block = cursor.block()?;
                match expression(cursor.memory, block) {
                    Some((base, offset, false)) => {
                        row.set(register, Saved::At(base), offset.into());
                    }
                    _ => row.set(register, Saved::Other, 0),
                }
            }
            // DW_CFA_val_offset, _sf
            0x14 | 0x15 => {
                row.set(cursor.uleb()?, Saved::Other, 0);
                cursor.uleb()?;
            }
            // DW_CFA_val_expression
            0x16 => {
                row.set(cursor.uleb()?, Saved::Other, 0);
                cursor.block()?;
            }
            _ => return None,
        }
    }
    Some(row)
}

/// The expression `register + offset`, perhaps with what is in memory there: register, offset, and
/// whether it is.
fn expression<M: Memory>(memory: &mut M, (at, end): (u64, u64)) -> Option<(u8, i32, bool)> {
    let mut cursor = Cursor { memory, at, end };
    let op = cursor.byte()?;
    let register = op.checked_sub(0x70).filter(|r| *r < 16)?;
    let offset = i32::try_from(cursor.sleb()?).ok()?;
    let deref = cursor.at < end;
    if deref && (cursor.byte()? != 0x06 || cursor.at < end) {
        return None;
    }
    Some((register, offset, deref))
}

impl Row {
    fn cfa(&mut self, register: u64, offset: i64) {
        (self.cfa, self.cfa_offset) = match (u8::try_from(register), i32::try_from(offset)) {
            (Ok(register), Ok(offset)) => (Cfa::Offset(register), offset),
            _ => (Cfa::Other, 0),
        };
    }

    fn set(&mut self, register: u64, rule: Saved, offset: i64) {
        let (rule, offset) = i32::try_from(offset).map_or((Saved::Other, 0), |o| (rule, o));
        match register {
            RA => (self.ra, self.ra_offset) = (rule, offset),
            RBP => (self.bp, self.bp_offset) = (rule, offset),
            _ => {}
        }
        if register != RA {
            let bit = 1_u32.checked_shl(register.min(31) as u32).unwrap_or(0);
            let kept = matches!(rule, Saved::Undefined | Saved::Same);
            self.saved = if kept { self.saved & !bit } else { self.saved | bit };
        }
    }

    fn restore(&mut self, register: u64, initial: &Self) {
        match register {
            RA => (self.ra, self.ra_offset) = (initial.ra, initial.ra_offset),
            RBP => (self.bp, self.bp_offset) = (initial.bp, initial.bp_offset),
            _ => {}
        }
        if register != RA {
            let bit = 1_u32.checked_shl(register.min(31) as u32).unwrap_or(0);
            self.saved = self.saved & !bit | initial.saved & bit;
        }
    }
}
