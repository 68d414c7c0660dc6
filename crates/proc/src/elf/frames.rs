//! Function boundaries from `.eh_frame`, which also stripped files have.
//!
//! A frame description (FDE) covers one contiguous piece of code. A piece that begins with the return address on top of
//! the stack and no register saved is a function's start; any other is a part that the compiler moved away (`.cold`).
//! A cold part entered before anything was pushed looks like a function here: nothing in the tables tells them apart.

use std::ops::Range;

use super::{EM_X86_64, Elf, ElfError, u16_at, u32_at, u64_at};

const PT_GNU_EH_FRAME: u32 = 0x6474_e550;

/// One piece of code that has unwind information.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Fde {
    /// First link-time address.
    pub start: u64,
    /// First address after it.
    pub end: u64,
    /// The piece begins as a called function does: CFA is `rsp + 8`, only the return address is saved.
    pub function_entry: bool,
}

impl Fde {
    /// Link-time addresses covered.
    pub fn range(&self) -> Range<u64> {
        self.start..self.end
    }
}

impl Elf {
    /// Reads all frame descriptions of the code, sorted by address. A file without any gives none.
    ///
    /// A record that makes no sense ends the reading: what came before is kept, as unwinders do.
    pub fn fdes(&self) -> Result<Vec<Fde>, ElfError> {
        self.frames().map(<[Fde]>::to_vec)
    }

    /// The same, read once.
    pub(super) fn frames(&self) -> Result<&[Fde], ElfError> {
        if let Some(known) = self.fdes.get() {
            return Ok(known);
        }
        let fdes = self.read_frames()?;
        Ok(self.fdes.get_or_init(|| fdes))
    }

    fn read_frames(&self) -> Result<Vec<Fde>, ElfError> {
        if self.machine != EM_X86_64 {
            return Err(ElfError::Unsupported { what: "unwind tables of another machine" });
        }
        let mut out = Vec::new();
        for (vaddr, data) in self.frame_data()? {
            Walk { vaddr, data: &data, last: None }.run(&mut out);
        }
        let text = self.text();
        out.retain(|f: &Fde| f.start < f.end && super::range_of(&text, f.start).is_some_and(|t| f.end <= t.end));
        out.sort_by_key(|f| (f.start, f.end));
        out.dedup_by_key(|f| f.start);
        Ok(out)
    }

    /// Address and bytes of the `.eh_frame` sections; without section headers, the place the program header points to.
    fn frame_data(&self) -> Result<Vec<(u64, Vec<u8>)>, ElfError> {
        let sections = self.sections.iter().filter(|s| s.name == b".eh_frame" && s.size != 0 && s.kind != super::SHT_NOBITS);
        let found: Vec<_> = sections.map(|s| Ok((s.vaddr, self.section_data(s)?))).collect::<Result<_, ElfError>>()?;
        if !found.is_empty() {
            return Ok(found);
        }
        let Some(header) = self.segments.iter().find(|s| s.kind == PT_GNU_EH_FRAME) else { return Ok(found) };
        let head = self.read("unwind table header", header.offset, header.file_size.min(64))?;
        let mut at = Cursor { data: &head, pos: 4, vaddr: header.vaddr };
        let (Some(1), Some(&encoding)) = (head.first(), head.get(1)) else { return Ok(found) };
        let Some(start) = at.pointer(encoding, header.vaddr) else { return Ok(found) };
        let load = self.segments.iter().find(|s| s.kind == super::PT_LOAD && start >= s.vaddr && start - s.vaddr < s.file_size);
        match load {
            Some(s) => Ok(vec![(start, self.read_vaddr(start, s.file_size - (start - s.vaddr))?)]),
            None => Ok(found),
        }
    }
}

/// What of a CIE its FDEs need.
#[derive(Clone, Copy)]
struct Cie {
    at: usize,
    encoding: u8,
    augmented: bool,
    signal: bool,
    state: State,
}

/// The part of the unwind state that tells a function's entry.
#[derive(Clone, Copy, PartialEq, Eq)]
struct State {
    register: u64,
    offset: u64,
    saved: bool,
    expression: bool,
}

const RSP: u64 = 7;
const RETURN_ADDRESS: u64 = 16;

impl State {
    fn is_entry(self) -> bool {
        self == Self { register: RSP, offset: 8, saved: false, expression: false }
    }

    /// Runs instructions up to the first that moves to a later address; `None` if one is unknown.
    fn run(mut self, code: &[u8]) -> Option<Self> {
        let mut c = Cursor { data: code, pos: 0, vaddr: 0 };
        while let Some(op) = c.u8() {
            match (op >> 6, op & 63) {
                (1, _) => return Some(self), // DW_CFA_advance_loc
                (2, register) => {
                    c.uleb()?;
                    self.save(u64::from(register));
                }
                (3, _) | (0, 0 | 0x0a | 0x0b | 0x2d) => {} // restore, nop, remember, restore_state, window_save
                (0, 0x01..=0x04) => return Some(self),     // set_loc, advance_loc1, 2, 4
                (0, 0x06..=0x08) => drop(c.uleb()?),       // restore_extended, undefined, same_value
                (0, 0x2e) => drop(c.uleb()?),              // GNU_args_size
                (0, 0x05 | 0x09 | 0x11 | 0x14 | 0x15 | 0x2f) => {
                    let register = c.uleb()?;
                    c.uleb()?;
                    self.save(register);
                }
                (0, 0x0c) => {
                    self.register = c.uleb()?;
                    self.offset = c.uleb()?;
                    self.expression = false;
                }
                (0, 0x0d) => self.register = c.uleb()?,
                (0, 0x0e) => self.offset = c.uleb()?,
                (0, 0x0f) => {
                    c.skip_block()?;
                    self.expression = true;
                }
                (0, 0x10 | 0x16) => {
                    let register = c.uleb()?;
                    c.skip_block()?;
                    self.save(register);
                }
                // The signed forms are not emitted on x86-64 (its CFA offsets are never negative).
                _ => return None,
            }
        }
        Some(self)
    }

    fn save(&mut self, register: u64) {
        self.saved |= register != RETURN_ADDRESS;
    }
}

struct Walk<'a> {
    vaddr: u64,
    data: &'a [u8],
    last: Option<Cie>,
}

impl Walk<'_> {
    fn run(mut self, out: &mut Vec<Fde>) {
        let mut pos = 0usize;
        while let Some((body, end)) = self.record(pos) {
            if u32_at(self.data, body) != 0 {
                let Some(fde) = self.fde(body, end) else { return };
                out.push(fde);
            }
            pos = end;
        }
    }

    /// Start (of the id field) and end of the record at `pos`; `None` at the end of the table.
    fn record(&self, pos: usize) -> Option<(usize, usize)> {
        self.data.get(pos..pos.checked_add(8)?)?;
        let short = u32_at(self.data, pos);
        let (body, len) = match short {
            0 => return None,
            0xffff_ffff => (pos + 12, usize::try_from(u64_at(self.data, pos + 4)).ok()?),
            n => (pos + 4, n as usize),
        };
        let end = body.checked_add(len)?;
        (len >= 4 && end <= self.data.len()).then_some((body, end))
    }

    fn fde(&mut self, body: usize, end: usize) -> Option<Fde> {
        let cie = self.cie(body.checked_sub(u32_at(self.data, body) as usize)?)?;
        let mut c = Cursor { data: self.data.get(..end)?, pos: body + 4, vaddr: self.vaddr };
        let start = c.pointer(cie.encoding, 0)?;
        let size = c.pointer(cie.encoding & 0x0f, 0)?;
        if cie.augmented {
            c.skip_block()?;
        }
        let state = cie.state.run(c.data.get(c.pos..)?);
        let function_entry = !cie.signal && state.is_some_and(State::is_entry);
        Some(Fde { start, end: start.checked_add(size)?, function_entry })
    }

    /// Reads the CIE whose record starts at `at`; the last one is remembered, as neighbours share it.
    fn cie(&mut self, at: usize) -> Option<Cie> {
        if let Some(cie) = self.last.filter(|c| c.at == at) {
            return Some(cie);
        }
        let (body, end) = self.record(at)?;
        if u32_at(self.data, body) != 0 {
            return None;
        }
        let mut c = Cursor { data: self.data.get(..end)?, pos: body + 4, vaddr: self.vaddr };
        let version = c.u8()?;
        let augmentation = c.string()?;
        if !matches!(version, 1 | 3) || augmentation.first().is_some_and(|&b| b != b'z') {
            return None;
        }
        c.uleb()?; // code alignment
        c.uleb()?; // data alignment (signed, the length is the same)
        if version == 1 {
            u64::from(c.u8()?)
        } else {
            c.uleb()?
        };
        let mut cie = Cie {
            at,
            encoding: 0,
            augmented: !augmentation.is_empty(),
            signal: false,
            state: State { register: 0, offset: 0, saved: false, expression: false },
        };
        if cie.augmented {
            let len = usize::try_from(c.uleb()?).ok()?;
            let after = c.pos.checked_add(len)?;
            for &letter in augmentation.get(1..)? {
                match letter {
                    b'R' => cie.encoding = c.u8()?,
                    b'P' => {
                        let encoding = c.u8()?;
                        c.pointer(encoding & 0x7f, 0)?;
                    }
                    b'L' => drop(c.u8()?),
                    b'S' => cie.signal = true,
                    b'B' => {}
                    _ => return None,
                }
            }
            c.pos = after;
        }
        cie.state = cie.state.run(c.data.get(c.pos..)?)?;
        self.last = Some(cie);
        Some(cie)
    }
}

struct Cursor<'a> {
    data: &'a [u8],
    pos: usize,
    vaddr: u64,
}

impl<'a> Cursor<'a> {
    fn take(&mut self, n: usize) -> Option<&'a [u8]> {
        let end = self.pos.checked_add(n)?;
        let out = self.data.get(self.pos..end)?;
        self.pos = end;
        Some(out)
    }

    fn u8(&mut self) -> Option<u8> {
        self.take(1)?.first().copied()
    }

    fn uleb(&mut self) -> Option<u64> {
        let mut out = 0u64;
        for shift in (0..70).step_by(7) {
            let b = self.u8()?;
            out |= u64::from(b & 0x7f).checked_shl(shift).unwrap_or(0);
            if b & 0x80 == 0 {
                return Some(out);
            }
        }
        None
    }

    fn skip_block(&mut self) -> Option<()> {
        let len = usize::try_from(self.uleb()?).ok()?;
        self.take(len).map(drop)
    }

    fn string(&mut self) -> Option<&'a [u8]> {
        let rest = self.data.get(self.pos..)?;
        let len = rest.iter().position(|&b| b == 0)?;
        self.take(len + 1)?.get(..len)
    }

    /// An encoded pointer (`DW_EH_PE_*`), absolute or relative to its own place or to `base`.
    fn pointer(&mut self, encoding: u8, base: u64) -> Option<u64> {
        let here = self.vaddr.wrapping_add(self.pos as u64);
        let value = match encoding & 0x0f {
            0x00 | 0x04 | 0x0c => u64_at(self.take(8)?, 0),
            0x01 => self.uleb()?,
            0x02 => u64::from(u16_at(self.take(2)?, 0)),
            0x03 => u64::from(u32_at(self.take(4)?, 0)),
            0x0a => i64::from(u16_at(self.take(2)?, 0).cast_signed()).cast_unsigned(),
            0x0b => i64::from(u32_at(self.take(4)?, 0).cast_signed()).cast_unsigned(),
            _ => return None,
        };
        match encoding & 0x70 {
            0x00 => Some(value),
            0x10 => Some(here.wrapping_add(value)),
            0x30 => Some(base.wrapping_add(value)),
            _ => None,
        }
    }
}
