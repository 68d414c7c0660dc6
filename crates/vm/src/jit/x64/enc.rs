//! Machine instructions to bytes. One function a form, no knowledge of programs.

use std::ops::Range;

/// The machine registers by number.
pub(super) mod reg {
    pub const RAX: u8 = 0;
    pub const RCX: u8 = 1;
    pub const RDX: u8 = 2;
    pub const RBX: u8 = 3;
    pub const RSP: u8 = 4;
    pub const RBP: u8 = 5;
    pub const RSI: u8 = 6;
    pub const RDI: u8 = 7;
    pub const R8: u8 = 8;
    pub const R9: u8 = 9;
    pub const R10: u8 = 10;
    pub const R11: u8 = 11;
    pub const R12: u8 = 12;
    pub const R13: u8 = 13;
    pub const R14: u8 = 14;
    pub const R15: u8 = 15;
}

/// Condition codes as in `jcc`.
pub(super) mod cc {
    pub const B: u8 = 2;
    pub const AE: u8 = 3;
    pub const E: u8 = 4;
    pub const NE: u8 = 5;
    pub const BE: u8 = 6;
    pub const A: u8 = 7;
    pub const L: u8 = 12;
    pub const GE: u8 = 13;
    pub const LE: u8 = 14;
    pub const G: u8 = 15;
}

/// The eight arithmetic operations that share their forms, by their `/n` and `opcode >> 3`.
pub(super) mod group {
    pub const ADD: u8 = 0;
    pub const OR: u8 = 1;
    pub const ADC: u8 = 2;
    pub const SBB: u8 = 3;
    pub const AND: u8 = 4;
    pub const SUB: u8 = 5;
    pub const XOR: u8 = 6;
    pub const CMP: u8 = 7;
}

/// Shifts by their `/n`.
pub(super) mod shift {
    pub const ROL: u8 = 0;
    pub const SHL: u8 = 4;
    pub const SHR: u8 = 5;
    pub const SAR: u8 = 7;
}

/// A place in memory: `[base + (index << scale) + disp]`.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct Mem {
    pub base: u8,
    pub index: Option<(u8, u8)>,
    pub disp: i32,
}

impl Mem {
    pub const fn at(base: u8, disp: i32) -> Self {
        Self { base, index: None, disp }
    }
}

/// Width of an operation on memory.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Size {
    B,
    H,
    W,
    D,
}

impl Size {
    pub const fn is_wide(self) -> bool {
        matches!(self, Self::D)
    }
}

const LOCK: u8 = 0xf0;
const HALF: u8 = 0x66;

/// Up to eight bytes of an instruction, the first the lowest.
#[derive(Clone, Copy)]
struct Bytes {
    of: u64,
    len: u32,
}

impl Bytes {
    const NONE: Self = Self { of: 0, len: 0 };

    #[inline(always)]
    fn one(of: u8) -> Self {
        Self { of: u64::from(of), len: 1 }
    }

    /// Opcodes have one to three bytes, the first the most significant.
    #[inline(always)]
    fn opcode(o: u32) -> Self {
        let len = if o > 0xffff {
            3
        } else if o > 0xff {
            2
        } else {
            1
        };
        Self { of: u64::from(o.swap_bytes() >> (32 - 8 * len)), len }
    }

    #[inline(always)]
    fn imm8(v: i32) -> Self {
        Self::one(v as u8)
    }

    #[inline(always)]
    fn imm32(v: i32) -> Self {
        Self { of: u64::from(v as u32), len: 4 }
    }

    /// The size's low bytes of an immediate, four of a wide one.
    #[inline(always)]
    fn imm_of(size: Size, v: i32) -> Self {
        match size {
            Size::B => Self::imm8(v),
            Size::H => Self { of: u64::from(v as u16), len: 2 },
            _ => Self::imm32(v),
        }
    }

    #[inline(always)]
    fn then(self, more: Self) -> Self {
        Self { of: self.of | more.of << (8 * self.len), len: self.len + more.len }
    }

    #[inline(always)]
    fn when(self, there: bool) -> Self {
        if there { self } else { Self::NONE }
    }
}

/// What stands before the opcode of an instruction on memory.
struct Kind {
    prefix: u8,
    w: bool,
    /// The register is a byte register, so 4 to 7 need a REX to mean spl to dil.
    byte: bool,
}

impl Kind {
    #[inline(always)]
    fn plain(w: bool) -> Self {
        Self { prefix: 0, w, byte: false }
    }

    #[inline(always)]
    fn locked(w: bool) -> Self {
        Self { prefix: LOCK, w, byte: false }
    }

    /// With a register of this size.
    #[inline(always)]
    fn of(size: Size) -> Self {
        Self { byte: size == Size::B, ..Self::of_imm(size) }
    }

    /// With an immediate in place of the register.
    #[inline(always)]
    fn of_imm(size: Size) -> Self {
        Self { prefix: if size == Size::H { HALF } else { 0 }, w: size.is_wide(), byte: false }
    }
}

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

    /// `op dst, [mem]`.
    pub fn group_load(&mut self, w: bool, op: u8, dst: u8, mem: Mem) {
        self.mem(Kind::plain(w), u32::from(op << 3 | 3), dst, mem, Bytes::NONE);
    }

    /// `op [mem], src`.
    pub fn group_store(&mut self, size: Size, op: u8, mem: Mem, src: u8) {
        let byte = size == Size::B;
        self.mem(Kind::of(size), u32::from(op << 3) | u32::from(!byte), src, mem, Bytes::NONE);
    }

    /// `op [mem], imm`; only the size's low bits of `imm` count.
    pub fn group_store_imm(&mut self, size: Size, op: u8, mem: Mem, imm: i32) {
        let imm = match size {
            Size::B => i32::from(imm as i8),
            Size::H => i32::from(imm as i16),
            _ => imm,
        };
        let short = i8::try_from(imm).is_ok();
        let opcode = match size {
            Size::B => 0x80,
            _ if short => 0x83,
            _ => 0x81,
        };
        let imm = if short { Bytes::imm8(imm) } else { Bytes::imm_of(size, imm) };
        self.mem(Kind::of_imm(size), opcode, op, mem, imm);
    }

    /// `lock op [mem], src`.
    pub fn lock_group(&mut self, w: bool, op: u8, mem: Mem, src: u8) {
        self.mem(Kind::locked(w), u32::from(op << 3 | 1), src, mem, Bytes::NONE);
    }

    /// `test a, b`.
    pub fn test(&mut self, w: bool, a: u8, b: u8) {
        self.regs(w, 0x85, b, a);
    }

    /// `test r, imm`; an immediate without sign bit needs only the low half.
    pub fn test_imm(&mut self, w: bool, r: u8, imm: i32) {
        self.put(Self::of_regs(0, w && imm < 0, false, 0xf7, 0, r).then(Bytes::imm32(imm)));
    }

    /// `test [mem], r`.
    pub fn test_store(&mut self, size: Size, mem: Mem, r: u8) {
        let byte = size == Size::B;
        self.mem(Kind::of(size), if byte { 0x84 } else { 0x85 }, r, mem, Bytes::NONE);
    }

    /// `test [mem], imm`; of byte, word or wide size.
    pub fn test_store_imm(&mut self, size: Size, mem: Mem, imm: i32) {
        let opcode = if size == Size::B { 0xf6 } else { 0xf7 };
        self.mem(Kind::of_imm(size), opcode, 0, mem, Bytes::imm_of(size, imm));
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

    /// Loads, zero-extended to 64 bits.
    pub fn load(&mut self, size: Size, dst: u8, mem: Mem) {
        let opcode = match size {
            Size::B => 0x0fb6,
            Size::H => 0x0fb7,
            _ => 0x8b,
        };
        self.mem(Kind::plain(size.is_wide()), opcode, dst, mem, Bytes::NONE);
    }

    /// Loads, sign-extended to 64 bits.
    pub fn load_signed(&mut self, size: Size, dst: u8, mem: Mem) {
        let opcode = match size {
            Size::B => 0x0fbe,
            Size::H => 0x0fbf,
            Size::W => 0x63,
            Size::D => 0x8b,
        };
        self.mem(Kind::plain(true), opcode, dst, mem, Bytes::NONE);
    }

    /// `movbe dst, [mem]`: loads four or eight bytes in the other order.
    pub fn load_swapped(&mut self, w: bool, dst: u8, mem: Mem) {
        self.mem(Kind::plain(w), 0x0f_38f0, dst, mem, Bytes::NONE);
    }

    /// `mov rax, fs:[disp]`, into any register.
    pub fn load_tls(&mut self, dst: u8, disp: i32) {
        self.u8(0x64);
        self.u8(0x48 | (dst >> 3) << 2);
        self.u8(0x8b);
        self.u8((dst & 7) << 3 | 4);
        self.u8(0x25);
        self.u32(disp as u32);
    }

    /// Stores the low bits of a register.
    pub fn store(&mut self, size: Size, mem: Mem, src: u8) {
        let byte = size == Size::B;
        self.mem(Kind::of(size), if byte { 0x88 } else { 0x89 }, src, mem, Bytes::NONE);
    }

    /// Stores an immediate, sign-extended where the access is wider.
    pub fn store_imm(&mut self, size: Size, mem: Mem, imm: i32) {
        let opcode = if size == Size::B { 0xc6 } else { 0xc7 };
        self.mem(Kind::of_imm(size), opcode, 0, mem, Bytes::imm_of(size, imm));
    }

    /// `lock xadd [mem], r`.
    pub fn lock_xadd(&mut self, w: bool, mem: Mem, r: u8) {
        self.mem(Kind::locked(w), 0x0fc1, r, mem, Bytes::NONE);
    }

    /// `lock cmpxchg [mem], r`: compares with rax.
    pub fn lock_cmpxchg(&mut self, w: bool, mem: Mem, r: u8) {
        self.mem(Kind::locked(w), 0x0fb1, r, mem, Bytes::NONE);
    }

    /// `xchg [mem], r`: locks by itself.
    pub fn xchg(&mut self, w: bool, mem: Mem, r: u8) {
        self.mem(Kind::plain(w), 0x87, r, mem, Bytes::NONE);
    }

    /// `dec qword [mem]`.
    pub fn dec(&mut self, mem: Mem) {
        self.mem(Kind::plain(true), 0xff, 1, mem, Bytes::NONE);
    }

    pub fn push(&mut self, r: u8) {
        self.put(Bytes::one(0x41).when(r >= 8).then(Bytes::one(0x50 | r & 7)));
    }

    pub fn pop(&mut self, r: u8) {
        self.put(Bytes::one(0x41).when(r >= 8).then(Bytes::one(0x58 | r & 7)));
    }

    pub fn leave(&mut self) {
        self.u8(0xc9);
    }

    pub fn ret(&mut self) {
        self.u8(0xc3);
    }

    /// `call r`.
    pub fn call_reg(&mut self, r: u8) {
        self.regs(false, 0xff, 2, r);
    }

    /// `jmp r`.
    pub fn jump_reg(&mut self, r: u8) {
        self.regs(false, 0xff, 4, r);
    }

    /// `jmp [mem]`.
    pub fn jump_mem(&mut self, mem: Mem) {
        self.mem(Kind::plain(false), 0xff, 4, mem, Bytes::NONE);
    }

    /// `jmp` or `jcc` over a distance of one byte.
    pub fn jump_short(&mut self, cc: Option<u8>, distance: i8) {
        self.put(Bytes::one(cc.map_or(0xeb, |c| 0x70 | c)).then(Bytes::one(distance as u8)));
    }

    /// `jmp` or `jcc` over any distance.
    pub fn jump_long(&mut self, cc: Option<u8>, distance: i32) {
        let opcode = cc.map_or(Bytes::one(0xe9), |c| Bytes::one(0x0f).then(Bytes::one(0x80 | c)));
        self.put(opcode.then(Bytes::imm32(distance)));
    }

    /// `call rel32`.
    pub fn call_near(&mut self, distance: i32) {
        self.put(Bytes::one(0xe8).then(Bytes::imm32(distance)));
    }

    /// `mov r11, target; call r11`.
    pub fn call_far(&mut self, target: u64) {
        self.put(Bytes::one(0x49).then(Bytes::one(0xbb)));
        self.put(Bytes { of: target, len: 8 });
        self.call_reg(reg::R11);
    }

    /// Pads with the processors' recommended long no-operations.
    pub fn pad(&mut self, to: usize) {
        // Of one to eight bytes, the first the lowest.
        const NOPS: [u64; 8] = [
            0x90,
            0x90_66,
            0x00_1f_0f,
            0x00_40_1f_0f,
            0x00_00_44_1f_0f,
            0x00_00_44_1f_0f_66,
            0x00_00_00_00_80_1f_0f,
            0x00_00_00_00_84_1f_0f,
        ];
        let mut left = self.len.wrapping_neg() & (to - 1);
        while left > 0 {
            if left > NOPS.len() {
                // The longest has one prefix more.
                self.u8(0x66);
                left -= 1;
            }
            let n = left.min(NOPS.len());
            self.put(Bytes { of: NOPS[n - 1], len: n as u32 });
            left -= n;
        }
    }

    /// Sets the four bytes at `at`.
    pub fn set(&mut self, at: usize, v: i32) {
        if let Some(bytes) = self.room.get_mut(at..at + 4) {
            bytes.copy_from_slice(&v.to_le_bytes());
        }
    }

    /// Writes `call rel32` and returns where its displacement is.
    pub fn call(&mut self) -> usize {
        self.u8(0xe8);
        self.u32(0);
        self.len() - 4
    }

    /// `movups [mem], xmm`: only for the code that saves vector registers around a helper.
    pub fn save_vector(&mut self, mem: Mem, xmm: u8) {
        self.mem(Kind::plain(false), 0x0f11, xmm, mem, Bytes::NONE);
    }

    /// `movups xmm, [mem]`.
    pub fn restore_vector(&mut self, mem: Mem, xmm: u8) {
        self.mem(Kind::plain(false), 0x0f10, xmm, mem, Bytes::NONE);
    }

    /// Writes a short forward jump over what follows until [`Enc::land`].
    pub fn skip(&mut self, cc: Option<u8>) -> Skip {
        self.u8(cc.map_or(0xeb, |c| 0x70 | c));
        self.u8(0);
        Skip(self.len())
    }

    /// Makes a short forward jump land here.
    pub fn land(&mut self, from: Skip) {
        let distance = self.len() - from.0;
        debug_assert!(distance < 128, "a skip bridges one instruction's code");
        if let Some(b) = self.room.get_mut(from.0 - 1) {
            *b = distance as u8;
        }
    }

    /// A short backward jump to `to`, a length seen before.
    pub fn back(&mut self, cc: u8, to: usize) {
        self.u8(0x70 | cc);
        let distance = self.len() + 1 - to;
        self.u8((distance as u8).wrapping_neg());
    }
}

/// A short jump that waits for its target.
#[must_use]
pub(super) struct Skip(usize);
