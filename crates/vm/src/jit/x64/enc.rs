//! Machine instructions to bytes. One function a form, no knowledge of programs.

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

/// The operand that `modrm.rm` names.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Rm {
    Reg(u8),
    Mem(Mem),
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

/// The bytes of one instruction, at most fifteen.
#[derive(Default)]
struct Bytes {
    of: [u8; 16],
    len: usize,
}

impl Bytes {
    fn put(&mut self, b: u8) {
        self.of[self.len & 15] = b;
        self.len += 1;
    }

    fn operands(&mut self, reg: u8, rm: Rm) {
        let r = (reg & 7) << 3;
        let m = match rm {
            Rm::Reg(b) => return self.put(0xc0 | r | b & 7),
            Rm::Mem(m) => m,
        };
        // rbp and r13 as base always have a displacement, rsp and r12 always a SIB byte.
        let mode = if m.disp == 0 && m.base & 7 != 5 {
            0
        } else if i8::try_from(m.disp).is_ok() {
            0x40
        } else {
            0x80
        };
        match m.index {
            Some((i, scale)) => {
                self.put(mode | r | 4);
                self.put(scale << 6 | (i & 7) << 3 | m.base & 7);
            }
            None => {
                self.put(mode | r | m.base & 7);
                if m.base & 7 == 4 {
                    self.put(0x24);
                }
            }
        }
        match mode {
            0 => {}
            0x40 => self.put(m.disp as u8),
            _ => m.disp.to_le_bytes().into_iter().for_each(|b| self.put(b)),
        }
    }
}

/// Bytes being written.
#[derive(Default)]
pub(super) struct Enc {
    pub code: Vec<u8>,
}

impl Enc {
    pub fn len(&self) -> usize {
        self.code.len()
    }

    fn u8(&mut self, b: u8) {
        self.code.push(b);
    }

    fn u32(&mut self, v: u32) {
        self.code.extend_from_slice(&v.to_le_bytes());
    }

    /// Writes prefix, REX, opcode (one to three bytes, the first the most significant), and the operands.
    /// `byte`: `reg` or `rm` is a byte register, so 4 to 7 need a REX to mean spl to dil.
    fn op(&mut self, prefix: u8, w: bool, byte: bool, opcode: u32, reg: u8, rm: Rm) {
        let mut bytes = Bytes::default();
        if prefix != 0 {
            bytes.put(prefix);
        }
        let (base, index) = match rm {
            Rm::Reg(r) => (r, 0),
            Rm::Mem(m) => (m.base, m.index.map_or(0, |(r, _)| r)),
        };
        let rex = 0x40 | u8::from(w) << 3 | (reg >> 3) << 2 | (index >> 3) << 1 | base >> 3;
        let odd = byte && (reg >= 4 || matches!(rm, Rm::Reg(4..)));
        if rex != 0x40 || odd {
            bytes.put(rex);
        }
        if opcode > 0xffff {
            bytes.put((opcode >> 16) as u8);
        }
        if opcode > 0xff {
            bytes.put((opcode >> 8) as u8);
        }
        bytes.put(opcode as u8);
        bytes.operands(reg, rm);
        self.take(&bytes);
    }

    /// Adds bytes: as many as there may be, then without those that there are not, which is less work than a copy of any length.
    fn take(&mut self, bytes: &Bytes) {
        let len = self.code.len() + bytes.len;
        self.code.extend_from_slice(&bytes.of);
        self.code.truncate(len);
    }

    fn operands(&mut self, reg: u8, rm: Rm) {
        let mut bytes = Bytes::default();
        bytes.operands(reg, rm);
        self.take(&bytes);
    }

    /// `mov dst, src`.
    pub fn mov(&mut self, w: bool, dst: u8, src: u8) {
        self.op(0, w, false, 0x89, src, Rm::Reg(dst));
    }

    /// `mov dst, v` in the shortest form; `xor` when zero, so flags are lost.
    pub fn mov_imm(&mut self, dst: u8, v: u64) {
        if v == 0 {
            self.group(false, group::XOR, dst, dst);
        } else if let Ok(v) = u32::try_from(v) {
            if dst >= 8 {
                self.u8(0x41);
            }
            self.u8(0xb8 | dst & 7);
            self.u32(v);
        } else if let Ok(v) = i32::try_from(v as i64) {
            self.op(0, true, false, 0xc7, 0, Rm::Reg(dst));
            self.u32(v as u32);
        } else {
            self.u8(0x48 | dst >> 3);
            self.u8(0xb8 | dst & 7);
            self.code.extend_from_slice(&v.to_le_bytes());
        }
    }

    /// `op dst, src`.
    pub fn group(&mut self, w: bool, op: u8, dst: u8, src: u8) {
        self.op(0, w, false, u32::from(op << 3 | 1), src, Rm::Reg(dst));
    }

    /// `op dst, imm`.
    pub fn group_imm(&mut self, w: bool, op: u8, dst: u8, imm: i32) {
        if let Ok(imm) = i8::try_from(imm) {
            self.op(0, w, false, 0x83, op, Rm::Reg(dst));
            self.u8(imm as u8);
        } else {
            self.op(0, w, false, 0x81, op, Rm::Reg(dst));
            self.u32(imm as u32);
        }
    }

    /// `op dst, [mem]`.
    pub fn group_load(&mut self, w: bool, op: u8, dst: u8, mem: Mem) {
        self.op(0, w, false, u32::from(op << 3 | 3), dst, Rm::Mem(mem));
    }

    /// `op [mem], src`.
    pub fn group_store(&mut self, size: Size, op: u8, mem: Mem, src: u8) {
        let byte = size == Size::B;
        self.op(half(size), size.is_wide(), byte, u32::from(op << 3) | u32::from(!byte), src, Rm::Mem(mem));
    }

    /// `op [mem], imm`; only the size's low bits of `imm` count.
    pub fn group_store_imm(&mut self, size: Size, op: u8, mem: Mem, imm: i32) {
        let imm = match size {
            Size::B => i32::from(imm as i8),
            Size::H => i32::from(imm as i16),
            _ => imm,
        };
        if size == Size::B {
            self.op(0, false, false, 0x80, op, Rm::Mem(mem));
            self.u8(imm as u8);
        } else if let Ok(imm) = i8::try_from(imm) {
            self.op(half(size), size.is_wide(), false, 0x83, op, Rm::Mem(mem));
            self.u8(imm as u8);
        } else {
            self.op(half(size), size.is_wide(), false, 0x81, op, Rm::Mem(mem));
            if size == Size::H { self.code.extend_from_slice(&(imm as u16).to_le_bytes()) } else { self.u32(imm as u32) }
        }
    }

    /// `lock op [mem], src`.
    pub fn lock_group(&mut self, w: bool, op: u8, mem: Mem, src: u8) {
        self.op(LOCK, w, false, u32::from(op << 3 | 1), src, Rm::Mem(mem));
    }

    /// `test a, b`.
    pub fn test(&mut self, w: bool, a: u8, b: u8) {
        self.op(0, w, false, 0x85, b, Rm::Reg(a));
    }

    /// `test r, imm`; an immediate without sign bit needs only the low half.
    pub fn test_imm(&mut self, w: bool, r: u8, imm: i32) {
        self.op(0, w && imm < 0, false, 0xf7, 0, Rm::Reg(r));
        self.u32(imm as u32);
    }

    /// `test [mem], r`.
    pub fn test_store(&mut self, size: Size, mem: Mem, r: u8) {
        let byte = size == Size::B;
        self.op(half(size), size.is_wide(), byte, if byte { 0x84 } else { 0x85 }, r, Rm::Mem(mem));
    }

    /// `test [mem], imm`; of byte, word or wide size.
    pub fn test_store_imm(&mut self, size: Size, mem: Mem, imm: i32) {
        if size == Size::B {
            self.op(0, false, false, 0xf6, 0, Rm::Mem(mem));
            self.u8(imm as u8);
        } else {
            self.op(half(size), size.is_wide(), false, 0xf7, 0, Rm::Mem(mem));
            if size == Size::H { self.code.extend_from_slice(&(imm as u16).to_le_bytes()) } else { self.u32(imm as u32) }
        }
    }

    /// `lea dst, [mem]`.
    pub fn lea(&mut self, w: bool, dst: u8, mem: Mem) {
        self.op(0, w, false, 0x8d, dst, Rm::Mem(mem));
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
        self.op(0, w, false, 0x0faf, dst, Rm::Reg(src));
    }

    /// `imul dst, src, imm`.
    pub fn imul_imm(&mut self, w: bool, dst: u8, src: u8, imm: i32) {
        if let Ok(imm) = i8::try_from(imm) {
            self.op(0, w, false, 0x6b, dst, Rm::Reg(src));
            self.u8(imm as u8);
        } else {
            self.op(0, w, false, 0x69, dst, Rm::Reg(src));
            self.u32(imm as u32);
        }
    }

    /// `shl r, n` and its like.
    pub fn shift_imm(&mut self, w: bool, op: u8, r: u8, n: u8) {
        self.op(0, w, false, 0xc1, op, Rm::Reg(r));
        self.u8(n);
    }

    /// `shl r, cl` and its like.
    pub fn shift_cl(&mut self, w: bool, op: u8, r: u8) {
        self.op(0, w, false, 0xd3, op, Rm::Reg(r));
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
        self.u8(0xc4);
        self.u8((!reg >> 3 & 1) << 7 | 1 << 6 | (!rm >> 3 & 1) << 5 | (opcode >> 8) as u8);
        self.u8(u8::from(w) << 7 | (!vvvv & 15) << 3 | pp);
        self.u8(opcode as u8);
        self.operands(reg, Rm::Reg(rm));
    }

    /// `neg r`.
    pub fn neg(&mut self, w: bool, r: u8) {
        self.op(0, w, false, 0xf7, 3, Rm::Reg(r));
    }

    /// `div r`: rdx:rax by r.
    pub fn div(&mut self, w: bool, r: u8) {
        self.op(0, w, false, 0xf7, 6, Rm::Reg(r));
    }

    /// `idiv r`: rdx:rax by r.
    pub fn idiv(&mut self, w: bool, r: u8) {
        self.op(0, w, false, 0xf7, 7, Rm::Reg(r));
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
            Size::B => self.op(0, false, true, 0x0fb6, dst, Rm::Reg(src)),
            Size::H => self.op(0, false, false, 0x0fb7, dst, Rm::Reg(src)),
            _ => self.mov(size.is_wide(), dst, src),
        }
    }

    /// `movsx dst, src` from the low bits of a register.
    pub fn sign_extend(&mut self, w: bool, size: Size, dst: u8, src: u8) {
        match size {
            Size::B => self.op(0, w, true, 0x0fbe, dst, Rm::Reg(src)),
            Size::H => self.op(0, w, false, 0x0fbf, dst, Rm::Reg(src)),
            Size::W if w => self.op(0, true, false, 0x63, dst, Rm::Reg(src)),
            _ => self.mov(w, dst, src),
        }
    }

    /// `bswap r`.
    pub fn bswap(&mut self, w: bool, r: u8) {
        let rex = 0x40 | u8::from(w) << 3 | r >> 3;
        if rex != 0x40 {
            self.u8(rex);
        }
        self.u8(0x0f);
        self.u8(0xc8 | r & 7);
    }

    /// `rol r16, 8`: swaps the two low bytes, keeps the rest.
    pub fn swap16(&mut self, r: u8) {
        self.op(HALF, false, false, 0xc1, shift::ROL, Rm::Reg(r));
        self.u8(8);
    }

    /// Loads, zero-extended to 64 bits.
    pub fn load(&mut self, size: Size, dst: u8, mem: Mem) {
        let opcode = match size {
            Size::B => 0x0fb6,
            Size::H => 0x0fb7,
            _ => 0x8b,
        };
        self.op(0, size.is_wide(), false, opcode, dst, Rm::Mem(mem));
    }

    /// Loads, sign-extended to 64 bits.
    pub fn load_signed(&mut self, size: Size, dst: u8, mem: Mem) {
        let opcode = match size {
            Size::B => 0x0fbe,
            Size::H => 0x0fbf,
            Size::W => 0x63,
            Size::D => 0x8b,
        };
        self.op(0, true, false, opcode, dst, Rm::Mem(mem));
    }

    /// `movbe dst, [mem]`: loads four or eight bytes in the other order.
    pub fn load_swapped(&mut self, w: bool, dst: u8, mem: Mem) {
        self.op(0, w, false, 0x0f_38f0, dst, Rm::Mem(mem));
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
        self.op(half(size), size.is_wide(), byte, if byte { 0x88 } else { 0x89 }, src, Rm::Mem(mem));
    }

    /// Stores an immediate, sign-extended where the access is wider.
    pub fn store_imm(&mut self, size: Size, mem: Mem, imm: i32) {
        let opcode = if size == Size::B { 0xc6 } else { 0xc7 };
        self.op(half(size), size.is_wide(), false, opcode, 0, Rm::Mem(mem));
        match size {
            Size::B => self.u8(imm as u8),
            Size::H => self.code.extend_from_slice(&(imm as u16).to_le_bytes()),
            _ => self.u32(imm as u32),
        }
    }

    /// `lock xadd [mem], r`.
    pub fn lock_xadd(&mut self, w: bool, mem: Mem, r: u8) {
        self.op(LOCK, w, false, 0x0fc1, r, Rm::Mem(mem));
    }

    /// `lock cmpxchg [mem], r`: compares with rax.
    pub fn lock_cmpxchg(&mut self, w: bool, mem: Mem, r: u8) {
        self.op(LOCK, w, false, 0x0fb1, r, Rm::Mem(mem));
    }

    /// `xchg [mem], r`: locks by itself.
    pub fn xchg(&mut self, w: bool, mem: Mem, r: u8) {
        self.op(0, w, false, 0x87, r, Rm::Mem(mem));
    }

    /// `dec qword [mem]`.
    pub fn dec(&mut self, mem: Mem) {
        self.op(0, true, false, 0xff, 1, Rm::Mem(mem));
    }

    pub fn push(&mut self, r: u8) {
        if r >= 8 {
            self.u8(0x41);
        }
        self.u8(0x50 | r & 7);
    }

    pub fn pop(&mut self, r: u8) {
        if r >= 8 {
            self.u8(0x41);
        }
        self.u8(0x58 | r & 7);
    }

    pub fn leave(&mut self) {
        self.u8(0xc9);
    }

    pub fn ret(&mut self) {
        self.u8(0xc3);
    }

    /// `call r`.
    pub fn call_reg(&mut self, r: u8) {
        self.op(0, false, false, 0xff, 2, Rm::Reg(r));
    }

    /// `jmp r`.
    pub fn jump_reg(&mut self, r: u8) {
        self.op(0, false, false, 0xff, 4, Rm::Reg(r));
    }

    /// `jmp [mem]`.
    pub fn jump_mem(&mut self, mem: Mem) {
        self.op(0, false, false, 0xff, 4, Rm::Mem(mem));
    }

    /// Writes `call rel32` and returns where its displacement is.
    pub fn call(&mut self) -> usize {
        self.u8(0xe8);
        self.u32(0);
        self.len() - 4
    }

    /// `movups [mem], xmm`: only for the code that saves vector registers around a helper.
    pub fn save_vector(&mut self, mem: Mem, xmm: u8) {
        self.op(0, false, false, 0x0f11, xmm, Rm::Mem(mem));
    }

    /// `movups xmm, [mem]`.
    pub fn restore_vector(&mut self, mem: Mem, xmm: u8) {
        self.op(0, false, false, 0x0f10, xmm, Rm::Mem(mem));
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
        if let Some(b) = self.code.get_mut(from.0 - 1) {
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

fn half(size: Size) -> u8 {
    if size == Size::H { HALF } else { 0 }
}
