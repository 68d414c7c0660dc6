//! What each opcode does, as a table: the passes over a program ask it of every instruction, and
//! look closer only where it says so.
//!
//! The second slot of a 64-bit immediate has opcode 0, which does nothing here.

use skep_isa::{Insn, op};

/// Registers as bits.
pub(crate) type Regs = u16;

/// It is a known opcode with registers below r10 and nothing in the offset field.
pub(crate) const PLAIN: u8 = 1;
/// Whatever is in the offset field.
pub(crate) const ANY_OFFSET: u8 = 2;
/// It jumps by the offset field.
pub(crate) const JUMPS: u8 = 4;
/// What is above a result of 32 bits: the upper half of its destination is zero, may be anything,
/// or takes a closer look.
pub(crate) const ZERO_ABOVE: u8 = 8;
pub(crate) const ANY_ABOVE: u8 = 16;
pub(crate) const SOME_ABOVE: u8 = ZERO_ABOVE | ANY_ABOVE;
/// The generator may have one instruction for it and those that follow.
pub(crate) const LEADS: u8 = 32;

/// One row of the table.
#[derive(Clone, Copy)]
pub(crate) struct Opcode {
    pub bits: u8,
    /// All ones when it writes the destination.
    writes: Regs,
    /// All ones in the lower half when it reads the destination, in the upper one when it reads
    /// the source.
    reads: u32,
}

/// The registers an instruction names: the destination in the lower half, the source in the upper
/// one.
static NAMED: [u32; 256] = {
    let mut named = [0; 256];
    let mut regs = 0;
    while regs < 256 {
        named[regs] = 1 << (regs & 15) | 1 << (16 + (regs >> 4));
        regs += 1;
    }
    named
};

static OPCODES: [Opcode; 256] = {
    let mut opcodes = [Opcode { bits: 0, writes: 0, reads: 0 }; 256];
    let mut code = 0;
    while code < 256 {
        opcodes[code] = row(code as u8);
        code += 1;
    }
    opcodes
};

const fn row(code: u8) -> Opcode {
    const DST: u32 = 0xffff;
    const SRC: u32 = 0xffff_0000;
    let src = if code & op::X != 0 { SRC } else { 0 };
    let (reads, writes) = match (code & 0x07, code & 0xf0) {
        _ if code == 0 => (0, 0),
        (op::ALU | op::ALU64, op::MOV) => (src, Regs::MAX),
        (op::ALU | op::ALU64, op::END | op::NEG) => (DST, Regs::MAX),
        (op::ALU | op::ALU64, _) => (src | DST, Regs::MAX),
        (op::LD, _) => (0, Regs::MAX),
        (op::LDX, _) => (SRC, Regs::MAX),
        (op::ST, _) => (DST, 0),
        (op::STX, _) if code & 0xe0 == op::ATOMIC => (0, 0),
        (op::STX, _) => (SRC | DST, 0),
        (_, op::JA | op::JCOND) => (0, 0),
        _ if code == op::CALL || code == op::EXIT => (0, 0),
        _ => (src | DST, 0),
    };
    let known = match (code & 0x07, code & 0xf0) {
        (op::ALU | op::ALU64, op::ADD..=op::RSH | op::MOD..=op::ARSH) => PLAIN,
        (op::LDX | op::ST | op::STX, _) if code & 0xe0 == op::MEM => PLAIN | ANY_OFFSET,
        (op::JMP | op::JMP32, op::JEQ..=op::JSGE | op::JLT..=op::JSLE) => {
            PLAIN | ANY_OFFSET | JUMPS
        }
        _ if code == op::JMP | op::JA => PLAIN | ANY_OFFSET | JUMPS,
        _ => 0,
    };
    let above = match (code & 0x07, code & 0xf0) {
        _ if code == 0 => 0,
        (op::ALU, op::END) | (op::LD, _) => SOME_ABOVE,
        (op::ALU, _) => ZERO_ABOVE,
        (op::ALU64, op::MOV | op::AND | op::OR | op::XOR | op::RSH | op::END) => SOME_ABOVE,
        (op::ALU64, _) => ANY_ABOVE,
        (op::LDX, _) if code & 0xe0 == op::MEM && code & op::DW != op::DW => ZERO_ABOVE,
        (op::LDX, _) => ANY_ABOVE,
        (op::STX, _) if code & 0xe0 == op::ATOMIC => SOME_ABOVE,
        _ if code == op::CALL => SOME_ABOVE,
        _ => 0,
    };
    let leads = match (code & 0x07, code & 0xf0) {
        (op::LD, _) if code == op::LD_IMM64 => LEADS,
        (op::ALU | op::ALU64, op::MOV) if code & op::X != 0 => LEADS,
        (op::ALU64, op::ADD) => LEADS,
        (op::ALU64, op::LSH) if code & op::X == 0 => LEADS,
        (op::LDX, _) if code & 0xe0 == op::MEM => LEADS,
        (op::JMP | op::JMP32, op::JEQ..=op::JSGE | op::JLT..=op::JSLE) => LEADS,
        _ => 0,
    };
    Opcode { bits: known | above | leads, writes, reads }
}

/// What an instruction reads, and what holds nothing of use after it.
#[derive(Clone, Copy, Default)]
pub(crate) struct Does {
    pub reads: Regs,
    pub writes: Regs,
}

impl Does {
    /// Returns what an instruction does; nothing when it is a call.
    pub fn of(i: Insn) -> Self {
        let (d, s): (Regs, Regs) = (1 << i.dst(), 1 << i.src());
        let (reads, writes) = match i.code {
            op::EXIT => (1, 0),
            c if c & 0x07 == op::STX && c & 0xe0 == op::ATOMIC => match i.imm {
                op::ATOMIC_LOAD_ACQ => (s, d),
                op::ATOMIC_CMPXCHG => (d | s | 1, 1),
                op::ATOMIC_STORE_REL => (d | s, 0),
                n => (d | s, if n & op::ATOMIC_FETCH != 0 { s } else { 0 }),
            },
            _ => return opcode(&i).does(&i),
        };
        Self { reads, writes }
    }
}

/// Returns the row of an instruction's opcode.
#[inline]
pub(crate) fn opcode(i: &Insn) -> &'static Opcode {
    &OPCODES[usize::from(i.code)]
}

impl Opcode {
    /// Returns what an instruction with this opcode does. Atomics take [`Does::of`], and calls
    /// depend on what is called.
    #[inline]
    pub fn does(&self, i: &Insn) -> Does {
        let named = NAMED[usize::from(i.regs)];
        let reads = named & self.reads;
        Does { reads: (reads | reads >> 16) as Regs, writes: named as Regs & self.writes }
    }

    /// Tells whether an instruction with this opcode is good without a closer look.
    #[inline]
    pub fn is_plain(&self, i: &Insn) -> bool {
        const HIGH: u32 = 0xfc00_fc00;
        self.bits & PLAIN != 0
            && (i.off == 0 || self.bits & ANY_OFFSET != 0)
            && NAMED[usize::from(i.regs)] & HIGH == 0
    }
}
