//! Random programs.
//!
//! They end and stay inside their memory: r9 always points to a buffer, loops count in a stack slot
//! that nothing else touches, and no stack address gets into a result. With [`Judge::Kernel`] they
//! are also what the kernel's verifier accepts, mostly: the buffer is the context or the value of a
//! map, accesses to the stack are aligned, and the helpers are the kernel's.

use skep_isa::helper::id;
use skep_isa::{Insn, op};

/// Bytes of the shared buffer, and of the map's value that it is part of: what follows are counters
/// of loops.
pub const BUFFER: usize = 256;
#[allow(dead_code, reason = "each test binary uses a part")]
pub const VALUE_SIZE: usize = BUFFER + LOOPS as usize * 8;
/// Entries of the array that programs look values up in, and bytes of each.
pub const ENTRIES: u32 = 8;
pub const ENTRY: usize = 16;
/// The maps by their index: the one whose value is a buffer, the program array, and the array to
/// look up in.
pub const VALUE: u64 = 0;
pub const PROGRAMS: u64 = 1;
pub const TABLE: u64 = 2;
/// Stack bytes that random loads and stores use; below them lie the context's address, a key, and
/// loop counters.
const STACK: i16 = 128;
const CTX: i16 = -STACK - 8;
const KEY: i16 = -STACK - 16;
const LOOPS: i16 = 8;
/// A helper that no table knows, so all five arguments count.
pub const MIX: u32 = 0x9000;
/// A helper that calls its second argument with its first, as often as its third says.
pub const REPEAT: u32 = 0x9001;
/// The tail call helper, and how many slots the program array has. Slots from [`FILLED`] on are
/// empty.
pub const TAIL_CALL: u32 = id::TAIL_CALL;
pub const SLOTS: u32 = 4;
#[allow(dead_code, reason = "each test binary uses a part")]
pub const FILLED: u32 = 3;

/// Helpers of the kernel.
pub const LOOKUP: u32 = id::MAP_LOOKUP_ELEM;
pub const UPDATE: u32 = id::MAP_UPDATE_ELEM;
pub const LOOP: u32 = id::LOOP;

/// SplitMix64.
pub struct Rng(pub u64);

impl Rng {
    pub fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.0;
        z = (z ^ z >> 30).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ z >> 27).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ z >> 31
    }

    fn below(&mut self, n: u64) -> u64 {
        self.next() % n
    }

    fn pick<T: Copy>(&mut self, of: &[T]) -> T {
        of[self.below(of.len() as u64) as usize]
    }

    fn value(&mut self) -> u64 {
        match self.below(6) {
            0 => self.next(),
            1 => self.below(16),
            2 => 0u64.wrapping_sub(self.below(16)),
            3 => 1 << self.below(64),
            4 => self.pick(&[
                0x7fff_ffff,
                0x8000_0000,
                0xffff_ffff,
                i64::MAX as u64,
                i64::MIN as u64,
                0x8000_0000_0000_0001,
            ]),
            _ => self.next() & 0xffff_ffff,
        }
    }

    fn imm(&mut self) -> i32 {
        self.value() as i32
    }

    /// A register other than the buffer's and the frame pointer.
    fn reg(&mut self) -> u8 {
        self.below(9) as u8
    }
}

/// Who must accept the programs.
#[derive(Clone, Copy, PartialEq, Eq)]
#[allow(dead_code, reason = "each test binary uses one")]
pub enum Judge {
    Engines,
    Kernel,
}

struct Maker {
    judge: Judge,
    rng: Rng,
    out: Vec<Insn>,
    loops: i16,
    /// Local calls still to be pointed at a function: slots. And callbacks.
    calls: Vec<usize>,
    callbacks: Vec<usize>,
    main: bool,
    /// This function may make tail calls.
    tails: bool,
    /// r9 is the context.
    in_ctx: bool,
    /// This is the function that a helper calls.
    called_back: bool,
    /// Slots that the kernel is given something else in.
    differ: Vec<(usize, Insn)>,
}

impl Maker {
    fn push(&mut self, code: u8, dst: u8, src: u8, off: i16, imm: i32) {
        self.out.push(Insn::new(code, dst, src, off, imm));
    }

    fn set(&mut self, reg: u8) {
        let v = self.rng.value();
        match self.rng.below(3) {
            0 => self.out.extend(Insn::ld_imm64(reg, 0, v)),
            1 => self.push(op::ALU | op::K | op::MOV, reg, 0, 0, v as i32),
            _ => self.out.push(Insn::mov64_imm(reg, v as i32)),
        }
    }

    fn alu(&mut self) {
        let (d, s) = (self.rng.reg(), self.rng.reg());
        let class = self.rng.pick(&[op::ALU, op::ALU64]);
        let x = self.rng.pick(&[op::K, op::X]);
        let o = self.rng.pick(&[
            op::ADD,
            op::SUB,
            op::MUL,
            op::DIV,
            op::OR,
            op::AND,
            op::LSH,
            op::RSH,
            op::NEG,
            op::MOD,
            op::XOR,
            op::MOV,
            op::ARSH,
            op::END,
        ]);
        let imm = if x == op::X { 0 } else { self.rng.imm() };
        let s = if x == op::X { s } else { 0 };
        match o {
            op::NEG => self.push(class | o, d, 0, 0, 0),
            op::END if class == op::ALU => {
                let bits = self.rng.pick(&[16, 32, 64]);
                self.push(class | o | x, d, 0, 0, bits);
            }
            op::END => {
                let bits = self.rng.pick(&[16, 32, 64]);
                self.push(class | o, d, 0, 0, bits);
            }
            op::LSH | op::RSH | op::ARSH if x == op::K => {
                let n = self.rng.below(if class == op::ALU { 32 } else { 64 });
                self.push(class | o, d, 0, 0, n as i32);
            }
            op::DIV | op::MOD => {
                let signed = self.rng.below(2) as i16;
                let imm = if self.judge == Judge::Kernel && x == op::K { imm | 1 } else { imm };
                self.push(class | x | o, d, s, signed, imm);
            }
            op::MOV if x == op::X => {
                let bits = self.rng.pick(if class == op::ALU {
                    &[0, 0, 8, 16]
                } else {
                    &[0, 0, 8, 16, 32][..]
                });
                self.push(class | x | o, d, s, bits, 0);
            }
            _ => self.push(class | x | o, d, s, 0, imm),
        }
    }

    /// A place in the buffer or on the stack for an access of `bytes`, aligned when asked.
    fn place(&mut self, bytes: i16, aligned: bool) -> (u8, i16) {
        let (base, from, len) = self.rng.pick(&[(9, 0, BUFFER as i16), (10, -STACK, STACK)]);
        let off = from + self.rng.below((len - bytes + 1) as u64) as i16;
        let aligned = aligned || (self.judge == Judge::Kernel && (base == 10 || self.in_ctx));
        (base, if aligned { off & !(bytes - 1) } else { off })
    }

    fn memory(&mut self) {
        let (size, bytes) = self.rng.pick(&[(op::B, 1), (op::H, 2), (op::W, 4), (op::DW, 8)]);
        let (base, off) = self.place(bytes, false);
        let (r, imm) = (self.rng.reg(), self.rng.imm());
        match self.rng.below(4) {
            0 => self.push(op::LDX | op::MEM | size, r, base, off, 0),
            1 if size != op::DW => self.push(op::LDX | op::MEMSX | size, r, base, off, 0),
            2 => self.push(op::ST | op::MEM | size, base, 0, off, imm),
            _ => self.push(op::STX | op::MEM | size, base, r, off, 0),
        }
    }

    fn atomic(&mut self) {
        let (size, bytes) = self.rng.pick(&[(op::W, 4), (op::DW, 8)]);
        let (mut base, mut off) = self.place(bytes, true);
        if self.judge == Judge::Kernel && base == 9 && self.in_ctx {
            (base, off) = (10, -8);
        }
        let r = self.rng.reg();
        let any = self.rng.pick(&[op::B, op::H, size]);
        match self.rng.below(6) {
            0 => self.push(op::STX | op::ATOMIC | any, r, base, off, op::ATOMIC_LOAD_ACQ),
            1 => self.push(op::STX | op::ATOMIC | any, base, r, off, op::ATOMIC_STORE_REL),
            2 => {
                // Half of the time the comparison succeeds.
                if self.rng.below(2) == 0 {
                    self.push(op::LDX | op::MEM | size, 0, base, off, 0);
                }
                if self.judge == Judge::Kernel && size == op::W {
                    // Linux 6.18 clears the upper half of r0 after a comparison that succeeds only
                    // where its verifier has seen that half read, and it
                    // forgets that on paths which it takes for the same as others.
                    self.push(op::ALU | op::X | op::MOV, 0, 0, 0, 0);
                }
                self.push(op::STX | op::ATOMIC | size, base, r, off, op::ATOMIC_CMPXCHG);
            }
            3 => self.push(op::STX | op::ATOMIC | size, base, r, off, op::ATOMIC_XCHG),
            _ => {
                let what =
                    self.rng.pick(&[op::ATOMIC_ADD, op::ATOMIC_OR, op::ATOMIC_AND, op::ATOMIC_XOR]);
                let fetch = self.rng.pick(&[0, op::ATOMIC_FETCH]);
                // r0 as address is a case of its own.
                if self.rng.below(4) == 0 && base == 9 {
                    self.out.push(Insn::mov64_reg(0, 9));
                    let r = if r == 0 && self.judge == Judge::Kernel { 1 } else { r };
                    self.push(op::STX | op::ATOMIC | size, 0, r, off, what | fetch);
                    self.set(0);
                } else {
                    self.push(op::STX | op::ATOMIC | size, base, r, off, what | fetch);
                }
            }
        }
    }

    /// A forward jump over a few random instructions.
    fn branch(&mut self) {
        let (d, s, imm) = (self.rng.reg(), self.rng.reg(), self.rng.imm());
        let o = self.rng.pick(&[
            op::JA,
            op::JEQ,
            op::JGT,
            op::JGE,
            op::JSET,
            op::JNE,
            op::JSGT,
            op::JSGE,
            op::JLT,
            op::JLE,
            op::JSLT,
            op::JSLE,
        ]);
        let class = self.rng.pick(&[op::JMP, op::JMP32]);
        let imm = if self.rng.below(4) == 0 { 0 } else { imm };
        if o == op::JA && self.judge == Judge::Kernel {
            // What nothing leads to is refused.
            let c = self.condition();
            self.push(op::JMP | c, d, 0, 1, imm);
        }
        let at = self.out.len();
        if o == op::JA {
            self.push(class | o, 0, 0, 0, 0);
        } else if self.rng.below(2) == 0 {
            self.push(class | op::X | o, d, s, 0, 0);
        } else {
            self.push(class | op::K | o, d, 0, 0, imm);
        }
        // Sometimes far enough for the long form.
        for _ in 0..self.rng.pick(&[0, 1, 1, 2, 3, 5, 40]) {
            self.simple();
        }
        let distance = self.out.len() - at - 1;
        if self.out[at].code == op::JMP32 | op::JA {
            self.out[at].imm = distance as i32;
        } else {
            self.out[at].off = distance as i16;
        }
    }

    /// Arithmetic on what lies in the buffer.
    fn churn(&mut self) {
        let (size, bytes) = self.rng.pick(&[(op::B, 1), (op::H, 2), (op::W, 4), (op::DW, 8)]);
        let mut off = || self.rng.below((BUFFER as i16 - bytes + 1) as u64) as i16 & !(bytes - 1);
        let (from, to) = (off(), off());
        let (r, imm, class) =
            (self.rng.reg(), self.rng.imm(), self.rng.pick(&[op::ALU, op::ALU64]));
        self.push(op::LDX | op::MEM | size, r, 9, from, 0);
        let o = self.rng.pick(&[op::ADD, op::SUB, op::MUL, op::OR, op::AND, op::XOR]);
        self.push(class | o, r, 0, 0, imm);
        self.push(op::STX | op::MEM | size, 9, r, to, 0);
    }

    /// Something without a jump.
    fn plain(&mut self) {
        match self.rng.below(10) {
            0..6 => self.alu(),
            6..9 => self.memory(),
            _ => self.atomic(),
        }
    }

    fn simple(&mut self) {
        match self.rng.below(10) {
            0..5 => self.alu(),
            5..8 => self.memory(),
            8 => self.atomic(),
            _ => self.idiom(),
        }
    }

    /// Sequences that the code generator treats as one, and near misses of them.
    fn idiom(&mut self) {
        let (a, mut u, mut t) = (self.rng.reg(), self.rng.reg(), self.rng.reg());
        if self.rng.below(8) != 0 {
            u = (a + 1 + u % 7) % 9;
            t = (0..9).find(|r| *r != a && *r != u).unwrap_or(t);
        }
        let class = self.rng.pick(&[op::ALU, op::ALU64]);
        let bits = if class == op::ALU { 32 } else { 64 };
        let k = 1 + self.rng.below(bits - 1) as i32;
        let rest = if self.rng.below(8) == 0 { k } else { bits as i32 - k };
        let (l, r) = self.rng.pick(&[(op::LSH, op::RSH), (op::RSH, op::LSH)]);
        match self.rng.below(15) {
            13 => self.count(a, u, t),
            14 => self.ask_twice(a, t),
            11 => self.bytes(u, t),
            12 if self.rng.below(2) == 0 => self.through_value(u, t),
            12 => self.wide_constant(u, t),
            8 => self.through_sum(u, t),
            9 => self.compare_memory(u),
            10 => {
                let o = self.condition();
                let jump = self.rng.pick(&[op::JMP, op::JMP32]);
                let imm = self.rng.imm();
                self.push(jump | o, a, 0, 1, imm);
                self.push(op::JMP | op::JA, 0, 0, 1, 0);
                self.alu_one();
            }
            0 => {
                self.push(class | op::X | op::MOV, u, a, 0, 0);
                self.push(class | l, u, 0, 0, k);
                self.push(class | r, a, 0, 0, rest);
                let (x, y) = self.rng.pick(&[(a, u), (u, a)]);
                self.push(class | op::X | op::OR, x, y, 0, 0);
                self.kill(y);
            }
            1 => {
                self.push(class | op::X | op::MOV, u, a, 0, 0);
                self.push(class | l, u, 0, 0, k);
                self.push(class | op::X | op::MOV, t, a, 0, 0);
                self.push(class | r, t, 0, 0, rest);
                let (x, y) = self.rng.pick(&[(t, u), (u, t)]);
                self.push(class | op::X | op::OR, x, y, 0, 0);
                self.kill(y);
            }
            2 => {
                if self.rng.below(2) == 0 {
                    self.out.push(Insn::mov64_reg(u, a));
                }
                self.push(op::ALU64 | op::LSH, u, 0, 0, 32);
                let right = self.rng.pick(&[op::RSH, op::ARSH]);
                self.push(op::ALU64 | right, u, 0, 0, 32);
            }
            3 => {
                self.out.push(Insn::mov64_reg(u, a));
                if self.rng.below(2) == 0 {
                    let n = self.rng.below(5) as i32;
                    self.push(op::ALU64 | op::LSH, u, 0, 0, n);
                }
                if self.rng.below(2) == 0 {
                    self.push(op::ALU64 | op::X | op::ADD, u, t, 0, 0);
                } else {
                    let imm = self.rng.imm();
                    self.push(op::ALU64 | op::ADD, u, 0, 0, imm);
                }
            }
            4 => {
                let (size, bytes) =
                    self.rng.pick(&[(op::B, 1), (op::H, 2), (op::W, 4), (op::DW, 8)]);
                let (base, off) = self.place(bytes, false);
                self.push(op::LDX | op::MEM | size, u, base, off, 0);
                let o = self.rng.pick(&[op::ADD, op::SUB, op::OR, op::AND, op::XOR, op::MUL]);
                let imm = self.rng.imm();
                if self.rng.below(2) == 0 {
                    self.push(class | o, u, 0, 0, imm);
                } else {
                    self.push(class | op::X | o, u, a, 0, 0);
                }
                self.push(op::STX | op::MEM | size, base, u, off, 0);
                self.kill(u);
            }
            5 => {
                let (size, bytes) = self.rng.pick(&[(op::B, 1), (op::W, 4), (op::DW, 8)]);
                let (base, off) = self.place(bytes, false);
                self.push(op::LDX | op::MEM | size, u, base, off, 0);
                let o = self.rng.pick(&[op::ADD, op::SUB, op::OR, op::AND, op::XOR]);
                self.push(class | op::X | o, t, u, 0, 0);
                self.kill(u);
                let zero = self.rng.pick(&[op::JEQ, op::JNE]);
                let jump = self.rng.pick(&[op::JMP, op::JMP32]);
                self.push(jump | zero, t, 0, 1, 0);
                self.alu_one();
            }
            6 => {
                let (size, bytes, swap) = self.rng.pick(&[
                    (op::H, 2, 16),
                    (op::W, 4, 32),
                    (op::DW, 8, 64),
                    (op::W, 4, 64),
                ]);
                let (base, off) = self.place(bytes, false);
                self.push(op::LDX | op::MEM | size, u, base, off, 0);
                let code = self.rng.pick(&[
                    op::ALU | op::X | op::END,
                    op::ALU64 | op::END,
                    op::ALU | op::END,
                ]);
                self.push(code, u, 0, 0, swap);
            }
            _ => {
                let o = self.rng.pick(&[op::ADD, op::SUB, op::OR, op::AND, op::XOR]);
                self.push(class | op::X | o, a, u, 0, 0);
                let zero = self.rng.pick(&[op::JEQ, op::JNE]);
                let jump = self.rng.pick(&[op::JMP, op::JMP32]);
                self.push(jump | zero, a, 0, 1, 0);
                self.alu_one();
            }
        }
    }

    /// One more or not, by a comparison.
    fn count(&mut self, a: u8, u: u8, t: u8) {
        if self.rng.below(2) == 0 {
            self.push(op::ALU | op::X | op::MOV, u, a, 0, 0);
        }
        let away = self.rng.pick(&[1, 1, 2]);
        let o = self.rng.pick(&[op::JGE, op::JLT, op::JGT, op::JLE, op::JEQ, op::JNE, op::JSGT]);
        self.ask(o, a, t, away);
        let (class, by) =
            (self.rng.pick(&[op::ALU, op::ALU64]), self.rng.pick(&[1, 1, 1, 1, 2, -1]));
        self.push(class | op::ADD, u, 0, 0, by);
        if away == 2 {
            self.push(op::JMP | op::JA, 0, 0, 0, 0);
        }
    }

    /// The same question again after a few instructions, which sometimes change what is asked.
    fn ask_twice(&mut self, a: u8, t: u8) {
        let o = self.condition();
        let between = 1 + self.rng.below(3) as i16;
        self.ask(o, a, t, between);
        let first = self.out.last().copied().unwrap_or_default();
        for _ in 0..between {
            self.alu();
        }
        self.push(first.code, first.dst(), first.src(), 1, first.imm);
        self.alu_one();
    }

    fn ask(&mut self, o: u8, a: u8, t: u8, off: i16) {
        let jump = self.rng.pick(&[op::JMP, op::JMP32]);
        let imm = self.rng.pick(&[0, 0, 1, -1, i32::MAX, i32::MIN]);
        let imm = if self.rng.below(2) == 0 { imm } else { self.rng.imm() };
        if self.rng.below(2) == 0 {
            self.push(jump | op::X | o, a, t, off, 0);
        } else {
            self.push(jump | o, a, 0, off, imm);
        }
    }

    fn condition(&mut self) -> u8 {
        self.rng.pick(&[
            op::JEQ,
            op::JGT,
            op::JGE,
            op::JSET,
            op::JNE,
            op::JSGT,
            op::JSGE,
            op::JLT,
            op::JLE,
            op::JSLT,
            op::JSLE,
        ])
    }

    /// An access through a sum of a base, a scaled index and constants.
    fn through_sum(&mut self, u: u8, t: u8) {
        let t = if t == u { (u + 1) % 9 } else { t };
        let (size, bytes) = self.rng.pick(&[(op::B, 1), (op::H, 2), (op::W, 4), (op::DW, 8)]);
        let base =
            if self.judge == Judge::Kernel && self.in_ctx { 10 } else { self.rng.pick(&[9, 10]) };
        let low = if base == 10 { -STACK } else { 0 };
        let (index, scale) = (self.rng.below(8) as i16 * 8, self.rng.below(4) as i32);
        let (more, off) = (self.rng.below(3) as i16 * 8, self.rng.below(3) as i16 * 8);
        let index = (index >> scale) & !7;
        self.out.push(Insn::mov64_imm(u, i32::from(index)));
        let shift = scale != 0 || self.rng.below(2) == 0;
        if self.rng.below(2) == 0 && scale == 0 {
            self.out.push(Insn::mov64_reg(t, base));
            self.push(op::ALU64 | op::X | op::ADD, t, u, 0, 0);
        } else if self.judge == Judge::Kernel && !self.main {
            // In a local function the verifier of Linux 6.18 takes `number += r10` for the caller's
            // frame, believes the caller's values, and removes branches that are taken.
            self.push(op::ALU64 | op::LSH, u, 0, 0, scale);
            self.out.push(Insn::mov64_reg(t, base));
            self.push(op::ALU64 | op::X | op::ADD, t, u, 0, 0);
        } else {
            self.out.push(Insn::mov64_reg(t, u));
            if shift {
                self.push(op::ALU64 | op::LSH, t, 0, 0, scale);
            }
            self.push(op::ALU64 | op::X | op::ADD, t, base, 0, 0);
        }
        for part in [low, more] {
            if part != 0 || self.rng.below(4) == 0 {
                self.push(op::ALU64 | op::ADD, t, 0, 0, i32::from(part));
            }
        }
        let (r, imm) = (self.rng.reg(), self.rng.imm());
        // The address itself, and half-made ones, must not get into results.
        let r = if r == t { u } else { r };
        debug_assert!(index * (1 << scale) + more + off + bytes <= STACK);
        match self.rng.below(5) {
            0 => self.push(op::LDX | op::MEM | size, t, t, off, 0),
            1 => self.push(op::LDX | op::MEM | size, r, t, off, 0),
            2 if size != op::DW => self.push(op::LDX | op::MEMSX | size, r, t, off, 0),
            3 => self.push(op::ST | op::MEM | size, t, 0, off, imm),
            _ => self.push(op::STX | op::MEM | size, t, r, off, 0),
        }
        // The buffer is at the same address for all engines, so there its address may live on.
        let may_stay = self.judge == Judge::Engines && base == 9 && self.rng.below(2) == 0;
        if !may_stay && self.out.last().is_some_and(|i| i.class() != op::LDX || i.dst() != t) {
            self.set(t);
        }
    }

    fn compare_memory(&mut self, u: u8) {
        let (size, bytes) = self.rng.pick(&[(op::B, 1), (op::H, 2), (op::W, 4), (op::DW, 8)]);
        let (base, off) = self.place(bytes, false);
        let (o, s) = (self.condition(), self.rng.reg());
        let jump = self.rng.pick(&[op::JMP, op::JMP32]);
        let imm = if self.rng.below(2) == 0 { self.rng.below(256) as i32 } else { self.rng.imm() };
        self.push(op::LDX | op::MEM | size, u, base, off, 0);
        if self.rng.below(2) == 0 {
            self.push(jump | op::X | o, u, s, 1, 0);
        } else {
            self.push(jump | o, u, 0, 1, imm);
        }
        if self.rng.below(2) == 0 {
            self.push(op::JMP | op::JA, 0, 0, 1, 0);
        }
        self.alu_one();
        self.kill(u);
    }

    /// Loads of single bytes, put together in some order, and near misses.
    fn bytes(&mut self, u: u8, t: u8) {
        let n = self.rng.pick(&[2i16, 2, 4, 8]);
        let (base, off) = self.place(n, false);
        let big = self.rng.below(2) == 0;
        let wrong = if self.rng.below(4) == 0 { self.rng.below(n as u64) as i16 } else { n };
        let class = if n == 8 || self.rng.below(3) == 0 { op::ALU64 } else { op::ALU };
        for at in 0..n {
            // Byte `at` of the word goes into the place that the order says.
            let shift = 8 * i32::from(if big { n - 1 - at } else { at });
            let r = if at == 0 { u } else { t };
            let from = if at == wrong { off } else { off + at };
            self.push(op::LDX | op::MEM | op::B, r, base, from, 0);
            if shift != 0 || self.rng.below(4) == 0 {
                let class = if shift < 32 { class } else { op::ALU64 };
                self.push(class | op::LSH, r, 0, 0, shift);
            }
            if at != 0 {
                let class = if self.rng.below(16) == 0 { op::ALU } else { class };
                self.push(class | op::X | op::OR, u, t, 0, 0);
            }
        }
        if self.rng.below(8) != 0 {
            self.kill(t);
        }
    }

    /// An access to the buffer as to a global variable: by an address in the code and an index.
    fn through_value(&mut self, u: u8, t: u8) {
        let t = if t == u { (u + 1) % 9 } else { t };
        let (size, bytes) = self.rng.pick(&[(op::B, 1), (op::H, 2), (op::W, 4), (op::DW, 8)]);
        let (index, scale) = (self.rng.below(16) as i32, self.rng.below(4) as i32);
        let off = self.rng.below((BUFFER - 15 * 8 - bytes + 1) as u64) as i16;
        self.out.push(Insn::mov64_imm(t, index));
        let at = self.rng.below(2) * 8;
        let off = off.saturating_sub(at as i16);
        if self.rng.below(2) == 0 {
            self.push(op::ALU64 | op::LSH, t, 0, 0, scale);
            self.out.extend(Insn::ld_imm64(u, op::PSEUDO_MAP_IDX_VALUE, VALUE | at << 32));
            self.push(op::ALU64 | op::X | op::ADD, u, t, 0, 0);
        } else {
            self.out.extend(Insn::ld_imm64(u, op::PSEUDO_MAP_IDX_VALUE, VALUE | at << 32));
            self.push(op::ALU64 | op::X | op::ADD, t, u, 0, 0);
            self.out.push(Insn::mov64_reg(u, t));
            self.hide(t);
        }
        let (r, imm) = (self.rng.reg(), self.rng.imm());
        let r = if r == u && self.judge == Judge::Kernel { t } else { r };
        match self.rng.below(4) {
            0 => self.push(op::LDX | op::MEM | size, u, u, off, 0),
            1 => self.push(op::LDX | op::MEM | size, r, u, off, 0),
            2 => self.push(op::ST | op::MEM | size, u, 0, off, imm),
            _ => self.push(op::STX | op::MEM | size, u, r, off, 0),
        }
        if self.out.last().is_some_and(|i| i.class() != op::LDX || i.dst() != u) {
            self.hide(u);
        }
    }

    /// Makes an address in a register dead here: always where it differs from engine to engine.
    fn hide(&mut self, reg: u8) {
        if self.judge == Judge::Kernel { self.set(reg) } else { self.kill(reg) }
    }

    /// The same wide constant in several places.
    fn wide_constant(&mut self, u: u8, t: u8) {
        let v = 0x0123_4567_89ab_cdef_u64.rotate_left(self.rng.below(3) as u32 * 8);
        self.out.extend(Insn::ld_imm64(u, 0, v));
        match self.rng.below(4) {
            0 => self.push(op::ALU64 | op::X | op::ADD, u, t, 0, 0),
            1 => {
                self.push(op::ALU64 | op::X | op::ADD, u, t, 0, 0);
                let imm = self.rng.imm();
                self.push(op::ALU64 | op::ADD, u, 0, 0, imm);
            }
            2 => {
                self.push(op::ALU64 | op::X | op::AND, t, u, 0, 0);
                self.kill(u);
            }
            _ => {}
        }
    }

    /// One arithmetic instruction of exactly one slot.
    fn alu_one(&mut self) {
        let (r, imm) = (self.rng.reg(), self.rng.imm());
        self.push(op::ALU64 | op::XOR, r, 0, 0, imm);
    }

    /// Makes a register dead here, usually.
    fn kill(&mut self, reg: u8) {
        if self.rng.below(4) != 0 {
            self.set(reg);
        }
    }

    /// Leaves the program, or goes on when there is nothing to call or enough has been called.
    fn tail_call(&mut self) {
        if self.rng.below(2) == 0 {
            let index = self.rng.below(u64::from(SLOTS) + 2) as i32;
            self.push(op::ALU | op::MOV, 3, 0, 0, index);
        } else {
            let r = self.rng.reg();
            self.out.push(Insn::mov64_reg(3, r));
            self.push(op::ALU64 | op::AND, 3, 0, 0, 7);
        }
        self.push(op::LDX | op::MEM | op::DW, 1, 10, CTX, 0);
        self.out.extend(Insn::ld_imm64(2, op::PSEUDO_MAP_IDX, PROGRAMS));
        self.out.push(Insn::call(TAIL_CALL));
        self.set_scratch(0);
    }

    /// Sets what a call leaves behind, from this register on.
    fn set_scratch(&mut self, from: u8) {
        for r in from..=5 {
            self.set(r);
        }
    }

    fn call(&mut self) {
        if self.tails && self.rng.below(3) == 0 {
            return self.tail_call();
        }
        match self.rng.below(8) {
            0 | 1 => return self.lookup(),
            2 => return self.update(),
            3 => return self.probe(),
            _ => {}
        }
        if self.judge == Judge::Kernel && !self.main {
            return;
        }
        // One of them in a program is all that the kernel's verifier follows in little time.
        let enough = self.judge == Judge::Kernel && !self.callbacks.is_empty();
        if self.main && !enough && self.rng.below(3) == 0 {
            return self.call_back();
        }
        if self.main && (self.judge == Judge::Kernel || self.rng.below(2) == 0) {
            self.out.push(Insn::mov64_reg(1, 9));
            self.push(op::LDX | op::MEM | op::DW, 2, 10, CTX, 0);
            self.calls.push(self.out.len());
            self.push(op::CALL, 0, op::PSEUDO_CALL, 0, 0);
        } else {
            self.out.push(Insn::call(MIX));
        }
        self.set_scratch(1);
    }

    /// A helper that calls a function of the program a few times.
    fn call_back(&mut self) {
        let (r, rounds) = (self.rng.reg(), self.rng.below(4) as i32);
        let (count, data) = if self.judge == Judge::Kernel { (1, 3) } else { (3, 1) };
        if self.rng.below(2) == 0 {
            self.out.push(Insn::mov64_reg(count, r));
            self.push(op::ALU64 | op::AND, count, 0, 0, 3);
        } else {
            self.out.push(Insn::mov64_imm(count, rounds));
        }
        self.callbacks.push(self.out.len());
        self.out.extend(Insn::ld_imm64(2, op::PSEUDO_FUNC, 0));
        if self.judge == Judge::Kernel {
            self.out.push(Insn::mov64_imm(data, 0));
            self.out.push(Insn::mov64_imm(4, 0));
            self.out.push(Insn::call(LOOP));
        } else {
            self.out.push(Insn::mov64_reg(data, 9));
            self.out.push(Insn::call(REPEAT));
        }
        self.set_scratch(1);
    }

    /// Puts a key on the stack, and its address into r2; one in three is out of range.
    fn key(&mut self) {
        if self.rng.below(2) == 0 {
            let key = self.rng.below(u64::from(ENTRIES) * 3 / 2) as i32;
            self.push(op::ST | op::MEM | op::W, 10, 0, KEY, key);
        } else {
            let r = self.rng.reg();
            self.push(op::ALU64 | op::AND, r, 0, 0, 15);
            self.push(op::STX | op::MEM | op::W, 10, r, KEY, 0);
        }
        self.out.push(Insn::mov64_reg(2, 10));
        self.push(op::ALU64 | op::ADD, 2, 0, 0, i32::from(KEY));
    }

    /// Looks a value up and does something with it when it is there.
    fn lookup(&mut self) {
        self.key();
        self.out.extend(Insn::ld_imm64(1, op::PSEUDO_MAP_IDX, TABLE));
        self.out.push(Insn::call(LOOKUP));
        let (size, bytes) = self.rng.pick(&[(op::B, 1), (op::H, 2), (op::W, 4), (op::DW, 8)]);
        let off = self.rng.below(ENTRY as u64 - bytes as u64 + 1) as i16 & !(bytes - 1);
        let (r, imm) = (6 + self.rng.below(3) as u8, self.rng.imm());
        let found = self.rng.below(2) == 0;
        if found {
            self.push(op::JMP | op::JEQ, 0, 0, 1, 0);
        } else {
            self.push(op::JMP | op::JNE, 0, 0, 1, 0);
            self.push(op::JMP | op::JA, 0, 0, 1, 0);
        }
        match self.rng.below(5) {
            0 => self.push(op::LDX | op::MEM | size, r, 0, off, 0),
            1 => self.push(op::ST | op::MEM | size, 0, 0, off, imm),
            2 => self.push(
                op::STX | op::ATOMIC | op::DW,
                0,
                r,
                off & 8,
                op::ATOMIC_ADD | op::ATOMIC_FETCH,
            ),
            3 => self.push(op::STX | op::ATOMIC | op::W, 0, r, off & 12, op::ATOMIC_XOR),
            _ => self.push(op::STX | op::MEM | size, 0, r, off, 0),
        }
        self.set_scratch(0);
    }

    /// Stores a value that lies on the stack.
    fn update(&mut self) {
        self.key();
        self.out.push(Insn::mov64_reg(3, 10));
        let at = self.rng.below(((STACK as usize - ENTRY) / 8) as u64 + 1) as i32 * 8;
        self.push(op::ALU64 | op::ADD, 3, 0, 0, at - i32::from(STACK));
        let flags = self.rng.pick(&[0, 0, 1, 2, 3]);
        self.out.push(Insn::mov64_imm(4, flags));
        self.out.extend(Insn::ld_imm64(1, op::PSEUDO_MAP_IDX, TABLE));
        self.out.push(Insn::call(UPDATE));
        self.set_scratch(1);
    }

    /// A load that may find nothing: from the buffer, or from where neither here nor in the kernel
    /// there is memory.
    fn probe(&mut self) {
        let nowhere = [
            0,
            16,
            0x7fff_ffff_f000,
            1 << 47,
            0x0123_4567_89ab_cdef,
            0xffff_8000_0000_0000,
            0u64.wrapping_sub(64),
        ];
        let off = if self.rng.below(2) == 0 {
            self.out.push(Insn::mov64_reg(1, 9));
            self.rng.below(BUFFER as u64 - 8) as i16
        } else {
            let at = self.rng.pick(&nowhere);
            self.out.extend(Insn::ld_imm64(1, 0, at));
            self.rng.below(32) as i16
        };
        self.out.push(Insn::mov64_imm(2, 0));
        // The kernel's `bpf_rdonly_cast(at, void)`.
        self.differ.push((self.out.len(), Insn::new(op::CALL, 0, op::PSEUDO_KFUNC_CALL, 0, 0)));
        self.out.push(Insn::mov64_reg(0, 1));
        let (size, r) = (self.rng.pick(&[op::B, op::H, op::W, op::DW]), self.rng.reg());
        let (ours, kernels) = if size != op::DW && self.rng.below(3) == 0 {
            (op::PROBE_MEMSX, op::MEMSX)
        } else {
            (op::PROBE_MEM, op::MEM)
        };
        self.differ.push((self.out.len(), Insn::new(op::LDX | kernels | size, r, 0, off, 0)));
        self.push(op::LDX | ours | size, r, 0, off, 0);
        for other in (0..=5).filter(|o| *o != r) {
            self.set(other);
        }
    }

    /// A loop of a few rounds.
    fn repeat(&mut self) {
        // The kernel's verifier goes all rounds of all paths.
        let kernel = self.judge == Judge::Kernel;
        if self.loops == if kernel { 3 } else { LOOPS } || (kernel && self.called_back) {
            return;
        }
        self.loops += 1;
        let slot = KEY - 8 * self.loops;
        let rounds = 1 + self.rng.below(if kernel { 3 } else { 5 }) as i32;
        // Where nobody knows how many rounds there will be, the kernel wants a `may_goto`; it knows
        // nothing of values in maps, and there must be nothing else that differs from round
        // to round. Where it does know, it must not meet a `may_goto`, which
        // makes it forget.
        let unknown = self.rng.below(3) == 0;
        let (t, u) = (self.rng.reg(), self.rng.reg());
        let u = if t == u { (u + 1) % 9 } else { u };
        let counter = Insn::ld_imm64(
            u,
            op::PSEUDO_MAP_IDX_VALUE,
            VALUE | (BUFFER as u64 + 8 * (self.loops - 1) as u64) << 32,
        );
        if unknown {
            self.out.extend(counter);
            self.push(op::ALU64 | op::AND, t, 0, 0, 7);
            self.push(op::STX | op::MEM | op::DW, u, t, 0, 0);
            self.hide(u);
        } else {
            self.push(op::ST | op::MEM | op::DW, 10, 0, slot, rounds);
        }
        let head = self.out.len();
        for _ in 0..1 + self.rng.below(if kernel { 4 } else { 8 }) {
            match self.rng.below(4) {
                _ if kernel && unknown => self.churn(),
                0 if kernel => self.simple(),
                _ if kernel => self.plain(),
                _ => self.step(false),
            }
        }
        let (base, off) = if unknown { (u, 0) } else { (10, slot) };
        if unknown {
            self.out.extend(counter);
        }
        self.push(op::LDX | op::MEM | op::DW, t, base, off, 0);
        self.push(op::ALU64 | op::ADD, t, 0, 0, -1);
        self.push(op::STX | op::MEM | op::DW, base, t, off, 0);
        if unknown {
            self.hide(u);
            self.push(op::JMP | op::JCOND, 0, 0, 1, 0);
        }
        let back = head as i64 - self.out.len() as i64 - 1;
        self.push(op::JMP | if unknown { op::JSGT } else { op::JNE }, t, 0, back as i16, 0);
    }

    fn step(&mut self, loops: bool) {
        match self.rng.below(17) {
            16 => {
                // Never out of rounds here.
                self.push(op::JMP | op::JCOND, 0, 0, 1, 0);
                self.alu_one();
            }
            0..8 => self.simple(),
            8..11 => self.idiom(),
            11..14 => self.branch(),
            14 => self.call(),
            _ if loops => self.repeat(),
            _ => self.simple(),
        }
    }

    /// A function: sets every register and stack slot, works, and leaves all registers in the
    /// buffer.
    fn function(&mut self, steps: u64) {
        if self.called_back && self.judge == Judge::Kernel {
            self.out.extend(Insn::ld_imm64(9, op::PSEUDO_MAP_IDX_VALUE, VALUE));
            self.in_ctx = false;
        } else {
            self.push(op::STX | op::MEM | op::DW, 10, if self.main { 1 } else { 2 }, CTX, 0);
            self.out.push(Insn::mov64_reg(9, 1));
        }
        if self.main && !self.in_ctx {
            self.out.extend(Insn::ld_imm64(9, op::PSEUDO_MAP_IDX_VALUE, VALUE));
        }
        for off in (-STACK..0).step_by(8) {
            let imm = self.rng.imm();
            self.push(op::ST | op::MEM | op::DW, 10, 0, off, imm);
        }
        for r in 0..9 {
            self.set(r);
        }
        self.loops = 0;
        for _ in 0..steps {
            self.step(true);
        }
        for r in 0..9 {
            self.push(op::STX | op::MEM | op::DW, 9, r, i16::from(r) * 8, 0);
        }
        if self.called_back {
            // The kernel's callbacks say 0 or 1.
            self.push(op::ALU64 | op::AND, 0, 0, 0, 1);
        }
        self.out.push(Insn::exit());
    }
}

/// A program as the engines take it, and as the kernel does.
#[allow(dead_code, reason = "each test binary uses a part")]
pub struct Both {
    pub insns: Vec<Insn>,
    /// A call of a kernel function stands for `bpf_rdonly_cast`.
    pub kernel: Vec<Insn>,
    /// First slots of the functions.
    pub functions: Vec<u32>,
    /// The buffer is the context: the program makes no tail calls, and is none to continue with.
    pub in_ctx: bool,
}

/// Makes the program of a seed.
#[allow(dead_code, reason = "each test binary uses one")]
pub fn program(seed: u64, judge: Judge) -> Vec<Insn> {
    both(seed, judge).insns
}

/// Makes both forms of the program of a seed.
pub fn both(seed: u64, judge: Judge) -> Both {
    let mut rng = Rng(seed);
    // The kernel's verifier goes all paths.
    let (steps, more) =
        if judge == Judge::Kernel { (3 + rng.below(12), 5) } else { (4 + rng.below(60), 10) };
    let in_ctx = judge == Judge::Engines || rng.below(8) == 0;
    let tails = (judge == Judge::Engines || !in_ctx) && rng.below(3) == 0;
    let mut m = Maker {
        judge,
        rng,
        out: Vec::new(),
        loops: 0,
        calls: Vec::new(),
        callbacks: Vec::new(),
        main: true,
        tails,
        in_ctx,
        called_back: false,
        differ: Vec::new(),
    };
    m.function(steps);
    m.main = false;
    let calls = std::mem::take(&mut m.calls);
    let mut starts = Vec::new();
    for _ in 0..calls.len().min(2) {
        starts.push(m.out.len());
        m.function(more);
    }
    for (n, at) in calls.iter().enumerate() {
        m.out[*at].imm = (starts[n % starts.len()] - at - 1) as i32;
    }
    // Nobody may leave from a callback.
    m.tails = false;
    let callbacks = std::mem::take(&mut m.callbacks);
    if !callbacks.is_empty() {
        let start = m.out.len();
        m.called_back = true;
        m.function(more);
        for at in callbacks {
            m.out[at].imm = (start - at - 1) as i32;
        }
        starts.push(start);
    }
    let functions = [0].into_iter().chain(starts).map(|f| f as u32).collect();
    let mut kernel = m.out.clone();
    for (at, insn) in m.differ {
        kernel[at] = insn;
    }
    Both { insns: m.out, kernel, functions, in_ctx }
}
