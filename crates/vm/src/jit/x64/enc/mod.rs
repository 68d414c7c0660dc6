//! Machine instructions to bytes. One function a form, no knowledge of programs.

mod bytes;
mod flow;
mod memory;
mod operand;

pub(super) use operand::{Mem, Size, cc, group, reg, shift};

use std::ops::Range;

use bytes::{Bytes, HALF, Kind};

/// Bytes of room behind the code, at least; and how many are copied at once.
const ROOM: usize = 64;
const CHUNK: usize = 16;

/// Bytes being written.
pub(super) struct Enc {
    /// The code, and room.
    room: Vec<u8>,
    len: usize,
}

impl Enc {
    /// Makes room for about this many bytes.
    pub fn new(bytes: usize) -> Self {
        Self { room: vec![0; bytes + ROOM], len: 0 }
    }

    /// Writes a part of other code. Parts are short, so whole chunks are copied, and what is too
    /// much is written over.
    pub fn copy(&mut self, other: &Self, part: Range<usize>) {
        let mut left = part.len();
        let (mut from, mut at) = (other.room.get(part.start..).unwrap_or_default(), self.len);
        self.len += left;
        while left > 0 {
            let Some((chunk, rest)) = from.split_first_chunk::<CHUNK>() else { return };
            match self.room.get_mut(at..).and_then(|room| room.first_chunk_mut::<CHUNK>()) {
                Some(room) => *room = *chunk,
                None => {
                    self.room.resize(2 * self.room.len() + ROOM, 0);
                    continue;
                }
            }
            (from, at, left) = (rest, at + CHUNK, left.saturating_sub(CHUNK));
        }
    }

    pub fn len(&self) -> usize {
        self.len
    }

    pub fn into_code(mut self) -> Vec<u8> {
        self.room.truncate(self.len);
        self.room
    }

    /// Writes bytes. Eight are stored, so that one store does it, and room for a chunk is left
    /// behind them.
    #[inline(always)]
    fn put(&mut self, bytes: Bytes) {
        match self.room.get_mut(self.len..).and_then(|room| room.first_chunk_mut::<{ 8 + CHUNK }>())
        {
            Some(room) => room[..8].copy_from_slice(&bytes.of.to_le_bytes()),
            None => self.grow(bytes),
        }
        self.len += bytes.len as usize;
    }

    #[cold]
    #[inline(never)]
    fn grow(&mut self, bytes: Bytes) {
        self.room.resize(2 * self.room.len() + ROOM, 0);
        if let Some(room) = self.room.get_mut(self.len..self.len + 8) {
            room.copy_from_slice(&bytes.of.to_le_bytes());
        }
    }

    fn u8(&mut self, b: u8) {
        self.put(Bytes::one(b));
    }

    fn u32(&mut self, v: u32) {
        self.put(Bytes::imm32(v as i32));
    }

    /// Puts prefix, REX, opcode and `modrm` of an instruction on registers together. `byte`: one of
    /// them is a byte register, so 4 to 7 need a REX to mean spl to dil.
    #[inline(always)]
    fn of_regs(prefix: u8, w: bool, byte: bool, opcode: u32, reg: u8, rm: u8) -> Bytes {
        let rex = u8::from(w) << 3 | (reg >> 3) << 2 | rm >> 3;
        let odd = byte && (reg | rm) >= 4;
        let head =
            Bytes::one(prefix).when(prefix != 0).then(Bytes::one(0x40 | rex).when(rex != 0 || odd));
        head.then(Bytes::opcode(opcode)).then(Bytes::one(0xc0 | (reg & 7) << 3 | rm & 7))
    }

    /// Writes prefix, REX, opcode and the operands.
    #[inline(always)]
    fn regs(&mut self, w: bool, opcode: u32, reg: u8, rm: u8) {
        self.put(Self::of_regs(0, w, false, opcode, reg, rm));
    }

    /// Writes an instruction on memory, `imm` its immediate bytes.
    #[inline(always)]
    fn mem(&mut self, Kind { prefix, w, byte }: Kind, opcode: u32, reg: u8, m: Mem, imm: Bytes) {
        let index = m.index.map_or(0, |(r, _)| r);
        let rex = u8::from(w) << 3 | (reg >> 3) << 2 | (index >> 3) << 1 | m.base >> 3;
        let head = Bytes::one(prefix)
            .when(prefix != 0)
            .then(Bytes::one(0x40 | rex).when(rex != 0 || byte && reg >= 4));
        self.operands(head.then(Bytes::opcode(opcode)), reg, m, imm);
    }

    /// Writes the bytes before, `modrm` and what follows it.
    fn operands(&mut self, head: Bytes, reg: u8, m: Mem, imm: Bytes) {
        let r = (reg & 7) << 3;
        // rbp and r13 as base always have a displacement, rsp and r12 always a SIB byte.
        let (mode, disp) = if m.disp == 0 && m.base & 7 != 5 {
            (0, Bytes::NONE)
        } else if i8::try_from(m.disp).is_ok() {
            (0x40, Bytes::imm8(m.disp))
        } else {
            (0x80, Bytes::imm32(m.disp))
        };
        let operands = match m.index {
            Some((i, scale)) => {
                Bytes::one(mode | r | 4).then(Bytes::one(scale << 6 | (i & 7) << 3 | m.base & 7))
            }
            None => Bytes::one(mode | r | m.base & 7).then(Bytes::one(0x24).when(m.base & 7 == 4)),
        };
        self.put(head.then(operands));
        self.put(disp.then(imm));
    }

    /// `mov dst, src`.
    pub fn mov(&mut self, w: bool, dst: u8, src: u8) {
        self.regs(w, 0x89, src, dst);
    }

    /// `mov dst, v` in the shortest form; `xor` when zero, so flags are lost.
    pub fn mov_imm(&mut self, dst: u8, v: u64) {
        if v == 0 {
            self.group(false, group::XOR, dst, dst);
        } else if let Ok(v) = u32::try_from(v) {
            self.put(
                Bytes::one(0x41)
                    .when(dst >= 8)
                    .then(Bytes::one(0xb8 | dst & 7))
                    .then(Bytes::imm32(v as i32)),
            );
        } else if let Ok(v) = i32::try_from(v as i64) {
            self.put(Self::of_regs(0, true, false, 0xc7, 0, dst).then(Bytes::imm32(v)));
        } else {
            self.put(Bytes::one(0x48 | dst >> 3).then(Bytes::one(0xb8 | dst & 7)));
            self.put(Bytes { of: v, len: 8 });
        }
    }

    /// `op dst, src`.
    pub fn group(&mut self, w: bool, op: u8, dst: u8, src: u8) {
        self.regs(w, u32::from(op << 3 | 1), src, dst);
    }

    /// `op dst, imm`.
    pub fn group_imm(&mut self, w: bool, op: u8, dst: u8, imm: i32) {
        let (opcode, imm) = if i8::try_from(imm).is_ok() {
            (0x83, Bytes::imm8(imm))
        } else {
            (0x81, Bytes::imm32(imm))
        };
        self.put(Self::of_regs(0, w, false, opcode, op, dst).then(imm));
    }

    /// `test a, b`.
    pub fn test(&mut self, w: bool, a: u8, b: u8) {
        self.regs(w, 0x85, b, a);
    }

    /// `test r, imm`; an immediate without sign bit needs only the low half.
    pub fn test_imm(&mut self, w: bool, r: u8, imm: i32) {
        self.put(Self::of_regs(0, w && imm < 0, false, 0xf7, 0, r).then(Bytes::imm32(imm)));
    }

    /// `lea dst, [mem]`.
    pub fn lea(&mut self, w: bool, dst: u8, mem: Mem) {
        self.mem(Kind::plain(w), 0x8d, dst, mem, Bytes::NONE);
    }

    /// Writes `lea dst, [rip + 0]` and returns where its displacement is.
    pub fn lea_rip(&mut self, dst: u8) -> usize {
        self.u8(0x48 | (dst >> 3) << 2);
        self.u8(0x8d);
        self.u8((dst & 7) << 3 | 5);
        self.u32(0);
        self.len() - 4
    }

    /// `cmovcc dst, src`.
    pub fn cmov(&mut self, cc: u8, w: bool, dst: u8, src: u8) {
        self.regs(w, 0x0f40 | u32::from(cc), dst, src);
    }

    /// `bt value, bit`: the carry flag is that bit of the 64.
    pub fn bit_test(&mut self, value: u8, bit: u8) {
        self.regs(true, 0x0fa3, bit, value);
    }

    /// `rdtsc`: the time-stamp counter into edx:eax.
    pub fn rdtsc(&mut self) {
        self.u8(0x0f);
        self.u8(0x31);
    }

    /// `imul dst, src`.
    pub fn imul(&mut self, w: bool, dst: u8, src: u8) {
        self.regs(w, 0x0faf, dst, src);
    }

    /// `imul dst, src, imm`.
    pub fn imul_imm(&mut self, w: bool, dst: u8, src: u8, imm: i32) {
        let (opcode, imm) = if i8::try_from(imm).is_ok() {
            (0x6b, Bytes::imm8(imm))
        } else {
            (0x69, Bytes::imm32(imm))
        };
        self.put(Self::of_regs(0, w, false, opcode, dst, src).then(imm));
    }

    /// `shl r, n` and its like.
    pub fn shift_imm(&mut self, w: bool, op: u8, r: u8, n: u8) {
        self.put(Self::of_regs(0, w, false, 0xc1, op, r).then(Bytes::one(n)));
    }

    /// `shl r, cl` and its like.
    pub fn shift_cl(&mut self, w: bool, op: u8, r: u8) {
        self.regs(w, 0xd3, op, r);
    }

    /// `shlx dst, src, count` and its like (BMI2).
    pub fn shift_x(&mut self, w: bool, op: u8, dst: u8, src: u8, count: u8) {
        let pp = match op {
            shift::SHL => 1,
            shift::SHR => 3,
            _ => 2,
        };
        self.vex(0x2f7, w, pp, count, dst, src);
    }

    /// `rorx dst, src, n` (BMI2).
    pub fn rorx(&mut self, w: bool, dst: u8, src: u8, n: u8) {
        self.vex(0x3f0, w, 3, 0, dst, src);
        self.u8(n);
    }

    /// Writes a VEX-coded instruction on general registers; `opcode` is the map, then the byte.
    fn vex(&mut self, opcode: u16, w: bool, pp: u8, vvvv: u8, reg: u8, rm: u8) {
        let high = (!reg >> 3 & 1) << 7 | 1 << 6 | (!rm >> 3 & 1) << 5 | (opcode >> 8) as u8;
        let low = u8::from(w) << 7 | (!vvvv & 15) << 3 | pp;
        let of = u32::from_le_bytes([0xc4, high, low, opcode as u8]);
        self.put(Bytes::imm32(of as i32).then(Bytes::one(0xc0 | (reg & 7) << 3 | rm & 7)));
    }

    /// `neg r`.
    pub fn neg(&mut self, w: bool, r: u8) {
        self.regs(w, 0xf7, 3, r);
    }

    /// `div r`: rdx:rax by r.
    pub fn div(&mut self, w: bool, r: u8) {
        self.regs(w, 0xf7, 6, r);
    }

    /// `idiv r`: rdx:rax by r.
    pub fn idiv(&mut self, w: bool, r: u8) {
        self.regs(w, 0xf7, 7, r);
    }

    /// `cqo` or `cdq`: the sign of rax into rdx.
    pub fn sign_to_rdx(&mut self, w: bool) {
        if w {
            self.u8(0x48);
        }
        self.u8(0x99);
    }

    /// `movzx dst, src` from the low bits of a register.
    pub fn zero_extend(&mut self, size: Size, dst: u8, src: u8) {
        match size {
            Size::B => self.put(Self::of_regs(0, false, true, 0x0fb6, dst, src)),
            Size::H => self.regs(false, 0x0fb7, dst, src),
            _ => self.mov(size.is_wide(), dst, src),
        }
    }

    /// `movsx dst, src` from the low bits of a register.
    pub fn sign_extend(&mut self, w: bool, size: Size, dst: u8, src: u8) {
        match size {
            Size::B => self.put(Self::of_regs(0, w, true, 0x0fbe, dst, src)),
            Size::H => self.regs(w, 0x0fbf, dst, src),
            Size::W if w => self.regs(true, 0x63, dst, src),
            _ => self.mov(w, dst, src),
        }
    }

    /// `bswap r`.
    pub fn bswap(&mut self, w: bool, r: u8) {
        let rex = u8::from(w) << 3 | r >> 3;
        self.put(
            Bytes::one(0x40 | rex)
                .when(rex != 0)
                .then(Bytes::one(0x0f))
                .then(Bytes::one(0xc8 | r & 7)),
        );
    }

    /// `rol r16, 8`: swaps the two low bytes, keeps the rest.
    pub fn swap16(&mut self, r: u8) {
        self.put(Self::of_regs(HALF, false, false, 0xc1, shift::ROL, r).then(Bytes::one(8)));
    }
}
