//! Loads of single bytes that are put together: one load.
//!
//! clang takes packed structures, and whatever it does not know to be aligned, one byte at a time,
//! and every parser of network headers does the same by hand. A run of loads through one register,
//! shifts by whole bytes and ors is followed byte by byte; where a register then holds two, four or
//! eight neighbors in either order, and nothing else of the run is needed, they are loaded at
//! once.

use skep_isa::{Insn, op};

use super::enc::{Mem, Size};
use super::{Gen, machine};
use crate::check::{FUNC, SECOND, TARGET};

/// Most instructions a run may have: eight loads, seven shifts, seven ors, and copies.
const LONGEST: usize = 24;

/// What each byte of a register is, the lowest first: 0, or the byte at this distance from the
/// base.
type Bytes = [Option<i32>; 8];

/// Registers that a run has set.
#[derive(Default)]
struct Run {
    bytes: [Option<Bytes>; op::REGS],
    set: u16,
}

impl Run {
    fn get(&self, r: u8) -> Option<Bytes> {
        self.bytes.get(usize::from(r)).copied().flatten()
    }

    fn put(&mut self, r: u8, bytes: Bytes) {
        if let Some(b) = self.bytes.get_mut(usize::from(r)) {
            *b = Some(bytes);
            self.set |= 1 << r;
        }
    }

    /// Does one instruction; `None` when it is none of a run through `base`.
    fn step(&mut self, i: Insn, base: u8) -> Option<()> {
        let (d, s) = (i.dst(), i.src());
        if d == base {
            return None;
        }
        let keep = match i.class() {
            op::ALU => 4,
            _ => 8,
        };
        let mut to = [None; 8];
        match (i.class(), i.code & 0xf0) {
            (op::LDX, _) => {
                let n = match i.code & op::DW {
                    op::B => 1,
                    op::H => 2,
                    op::W => 4,
                    _ => return None,
                };
                if i.code & 0xe0 != op::MEM || s != base {
                    return None;
                }
                for (n, byte) in to.iter_mut().take(n).enumerate() {
                    *byte = Some(i32::from(i.off) + n as i32);
                }
            }
            (op::ALU | op::ALU64, op::LSH) if i.code & op::X == 0 && i.imm % 8 == 0 => {
                let by = usize::try_from(i.imm / 8).ok()?;
                let from = self.get(d)?;
                for (byte, old) in to.iter_mut().take(keep).skip(by).zip(from) {
                    *byte = old;
                }
            }
            (op::ALU | op::ALU64, op::OR) if i.code & op::X != 0 => {
                let (a, b) = (self.get(d)?, self.get(s)?);
                for ((byte, a), b) in to.iter_mut().take(keep).zip(a).zip(b) {
                    *byte = if a.is_some() && b.is_some() { return None } else { a.or(b) };
                }
            }
            (op::ALU | op::ALU64, op::MOV) if i.code & op::X != 0 && i.off == 0 => {
                for (byte, old) in to.iter_mut().take(keep).zip(self.get(s)?) {
                    *byte = old;
                }
            }
            _ => return None,
        }
        self.put(d, to);
        Some(())
    }
}

/// Bytes that lie side by side.
#[derive(Clone, Copy)]
struct Word {
    size: Size,
    off: i32,
    swapped: bool,
}

/// Tells which word a register holds, if all of it is one.
fn word(bytes: Bytes) -> Option<Word> {
    let n = bytes.iter().take_while(|b| b.is_some()).count();
    let size = match n {
        2 => Size::H,
        4 => Size::W,
        8 => Size::D,
        _ => return None,
    };
    if bytes.iter().skip(n).any(Option::is_some) {
        return None;
    }
    let (first, last) = (bytes[0]?, bytes[n - 1]?);
    let step = if last > first { 1 } else { -1 };
    let in_order = bytes.iter().take(n).zip(0..).all(|(b, at)| *b == Some(first + at * step));
    in_order.then_some(Word { size, off: first.min(last), swapped: step < 0 })
}

impl Gen<'_> {
    /// Generates the longest run from `at` on that is one load.
    pub(super) fn wide_load(&mut self, at: usize) -> Option<usize> {
        let base = self.insn(at).src();
        let mut run = Run::default();
        let mut best = None;
        for len in 1..=LONGEST {
            let slot = at + len - 1;
            let mark = self.flow.marks.get(slot)?;
            if len > 1 && mark & (TARGET | FUNC | SECOND) != 0 {
                break;
            }
            let i = self.insn(slot);
            if run.step(i, base).is_none() {
                break;
            }
            if i.code & 0xf0 != op::OR || i.class() == op::LDX {
                continue;
            }
            let d = i.dst();
            let others = run.set & !(1 << d);
            let Some(word) = run.get(d).and_then(word) else { continue };
            if (0..op::REGS as u8).all(|r| others & 1 << r == 0 || self.dead_after(slot, r)) {
                best = Some((len, d, word));
            }
        }
        let (len, d, word) = best?;
        let (d, mem) = (machine(d), Mem::at(machine(base), word.off));
        let e = &mut self.out.enc;
        match (word.size, word.swapped) {
            (Size::H, true) => {
                e.load(Size::H, d, mem);
                e.swap16(d);
            }
            (size, true) if self.cpu.movbe => e.load_swapped(size.is_wide(), d, mem),
            (size, true) => {
                e.load(size, d, mem);
                e.bswap(size.is_wide(), d);
            }
            (size, false) => e.load(size, d, mem),
        }
        Some(len)
    }
}
