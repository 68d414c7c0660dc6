//! Random programs that have a fair chance to be accepted: a guess of what each register holds picks the next
//! instruction, and now and then the guess is ignored.

use skep_isa::{Insn, MapType, ProgramType, op};
use skep_object::{Linked, LinkedMap, MapSpec};
use std::cell::Cell;

/// xorshift64*: the seed is all there is to it.
pub struct Random(Cell<u64>);

impl Random {
    pub fn new(seed: u64) -> Self {
        Self(Cell::new(seed))
    }

    pub fn next(&self) -> u64 {
        let mut n = self.0.get();
        n ^= n >> 12;
        n ^= n << 25;
        n ^= n >> 27;
        self.0.set(n);
        n.wrapping_mul(0x2545_f491_4f6c_dd1d)
    }

    pub fn below(&self, n: u64) -> u64 {
        (self.next() >> 33) % n.max(1)
    }

    pub fn pick<T: Copy>(&self, of: &[T]) -> T {
        of[self.below(of.len() as u64) as usize]
    }

    pub fn chance(&self, percent: u64) -> bool {
        self.below(100) < percent
    }

    /// Numbers of all magnitudes, with a liking for small ones and edges.
    pub fn number(&self) -> u64 {
        let r = self.next();
        match self.below(6) {
            0 => r & 0xf,
            1 => (r & 3).wrapping_sub(1),
            2 => 1u64.wrapping_shl(r as u32 >> 26).wrapping_add(r & 3).wrapping_sub(1),
            3 => 1u64.wrapping_shl(r as u32 >> 26).wrapping_neg(),
            4 => r as u32 as u64,
            _ => r,
        }
    }
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Guess {
    Nothing,
    Number,
    Small,
    Ctx,
    Stack,
    Value,
    /// Four words of the caller's stack.
    Words,
}

/// Bytes of the values of map 0, an array of 4, and of map 1, a hash.
#[allow(dead_code, reason = "not all tests that share this file run the programs")]
pub const VALUE: [u32; 2] = [64, 24];

struct Maker<'a> {
    r: &'a Random,
    out: Vec<Insn>,
    guess: [Guess; 11],
    /// Stack bytes below fp that were written, in words.
    words: u64,
    /// Jumps whose target is still to come.
    open: Vec<usize>,
    /// Register with the context, in the main function.
    ctx: Option<u8>,
    /// Calls and addresses of the function and of the callback, to be filled in.
    calls: Vec<(usize, bool)>,
}

/// Makes a program.
pub fn program(r: &Random) -> Linked {
    let mut guess = [Guess::Nothing; 11];
    (guess[1], guess[10]) = (Guess::Ctx, Guess::Stack);
    let mut m = Maker { r, out: Vec::new(), guess, words: 0, open: Vec::new(), ctx: Some(9), calls: Vec::new() };
    m.emit(Insn::mov64_reg(9, 1));
    m.guess[9] = Guess::Ctx;
    m.body(24);
    m.emit(Insn::mov64_imm(0, 0));
    m.emit(Insn::exit());
    let calls = std::mem::take(&mut m.calls);
    for callback in [false, true] {
        if !calls.iter().any(|(_, c)| *c == callback) {
            continue;
        }
        let start = m.out.len();
        m.guess = [Guess::Nothing; 11];
        (m.guess[1], m.guess[2], m.guess[10]) = (Guess::Number, Guess::Words, Guess::Stack);
        (m.words, m.ctx) = (0, None);
        m.body(8);
        if callback {
            m.emit(Insn::mov64_imm(0, m.r.below(2) as i32));
        } else {
            let n = m.number();
            m.emit(Insn::mov64_reg(0, n));
        }
        m.emit(Insn::exit());
        for (at, c) in &calls {
            if *c == callback {
                m.out[*at].imm = (start - at - 1) as i32;
            }
        }
    }
    let mut prog = Linked::from_insns("random", ProgramType::Kprobe, m.out);
    for (index, (kind, size)) in [(MapType::Array, VALUE[0]), (MapType::Hash, VALUE[1])].into_iter().enumerate() {
        prog.maps.push(LinkedMap { index, spec: MapSpec::new("m", kind, 4, size, if index == 0 { 1 } else { 16 }) });
    }
    prog
}

const ALU: [u8; 12] = [op::ADD, op::SUB, op::MUL, op::DIV, op::OR, op::AND, op::LSH, op::RSH, op::MOD, op::XOR, op::ARSH, op::MOV];
const CMP: [u8; 11] = [op::JEQ, op::JGT, op::JGE, op::JSET, op::JNE, op::JSGT, op::JSGE, op::JLT, op::JLE, op::JSLT, op::JSLE];

impl Maker<'_> {
    /// Some instructions, and no jump left open.
    fn body(&mut self, most: u64) {
        for _ in 0..self.r.below(most) + 4 {
            self.step();
            self.close();
        }
        let end = self.out.len();
        for at in std::mem::take(&mut self.open) {
            self.out[at].off = (end - at - 1) as i16;
        }
    }

    fn emit(&mut self, i: Insn) {
        self.out.push(i);
    }

    fn any(&mut self) -> u8 {
        self.r.below(10) as u8
    }

    /// A register that holds something of that kind, most of the time.
    fn with(&mut self, which: impl Fn(Guess) -> bool) -> Option<u8> {
        let fit: Vec<u8> = (0..10).filter(|r| which(self.guess[*r as usize])).collect();
        (!fit.is_empty()).then(|| self.r.pick(&fit))
    }

    fn number(&mut self) -> u8 {
        if self.r.chance(2) {
            return self.any();
        }
        match self.with(|g| matches!(g, Guess::Number | Guess::Small)) {
            Some(r) => r,
            None => {
                let r = self.r.below(8) as u8;
                self.constant(r);
                r
            }
        }
    }

    fn constant(&mut self, r: u8) {
        let n = self.r.number();
        if self.r.chance(70) {
            self.emit(Insn::mov64_imm(r, n as i32));
        } else {
            self.out.extend(Insn::ld_imm64(r, 0, n));
        }
        self.guess[r as usize] = Guess::Number;
    }

    /// Lets some of the open jumps land here.
    fn close(&mut self) {
        while !self.open.is_empty() && self.r.chance(40) {
            let at = self.open.remove(0);
            self.out[at].off = (self.out.len() - at - 1) as i16;
            if self.out[at].off == 0 {
                self.emit(Insn::new(op::JMP | op::JA, 0, 0, 0, 0));
                self.out[at].off = 1;
            }
        }
    }

    fn step(&mut self) {
        match self.r.below(100) {
            0..=9 => {
                let d = self.r.below(9) as u8;
                self.constant(d);
            }
            10..=34 => self.alu(),
            35..=49 => self.branch(),
            50..=57 => self.lookup(),
            58..=67 => self.stack(),
            68..=82 => self.index(),
            83..=88 => self.unknown(),
            89..=92 => self.call(),
            93..=94 => self.counted(),
            95..=96 => self.bounded(),
            97..=98 => self.call_function(),
            _ => self.atomic(),
        }
    }

    fn alu(&mut self) {
        let d = self.number();
        let code = self.r.pick(&ALU);
        let class = self.r.pick(&[op::ALU64, op::ALU64, op::ALU]);
        let signed = i16::from(matches!(code, op::DIV | op::MOD) && self.r.chance(30));
        if code == op::MOV && self.r.chance(40) {
            let width = self.r.pick(if class == op::ALU64 { &[8, 16, 32][..] } else { &[8, 16][..] });
            let s = self.number();
            self.emit(Insn::new(class | op::X | op::MOV, d, s, width, 0));
        } else if self.r.chance(50) {
            let s = self.number();
            self.emit(Insn::new(class | op::X | code, d, s, signed, 0));
        } else {
            let mut n = self.r.number() as i32;
            if matches!(code, op::LSH | op::RSH | op::ARSH) {
                n &= if class == op::ALU64 { 63 } else { 31 };
            } else if matches!(code, op::DIV | op::MOD) && n == 0 {
                n = 3;
            }
            self.emit(Insn::new(class | op::K | code, d, 0, signed, n));
        }
        if d < 10 {
            self.guess[d as usize] = Guess::Number;
        }
        if self.r.chance(5) {
            let width = self.r.pick(&[16, 32, 64]);
            let code = self.r.pick(&[op::ALU | op::K | op::END, op::ALU | op::X | op::END, op::ALU64 | op::END]);
            self.emit(Insn::new(code, d, 0, 0, width));
        }
    }

    fn branch(&mut self) {
        let class = self.r.pick(&[op::JMP, op::JMP, op::JMP32]);
        let code = self.r.pick(&CMP);
        let d = self.number();
        let insn = if self.r.chance(40) {
            let s = self.number();
            Insn::new(class | op::X | code, d, s, 0, 0)
        } else {
            Insn::new(class | op::K | code, d, 0, 0, self.r.number() as i32)
        };
        self.open.push(self.out.len());
        self.emit(insn);
    }

    /// Makes a register hold something the verifier cannot know.
    fn unknown(&mut self) {
        let Some(ctx) = self.ctx else {
            if let Some(p) = self.with(|g| g == Guess::Words) {
                let off = self.r.below(4) as i16 * 8;
                if self.r.chance(50) {
                    let s = self.number();
                    self.emit(Insn::new(op::STX | op::MEM | op::DW, p, s, off, 0));
                } else {
                    let d = self.r.pick(&[0, 3, 4, 5]);
                    self.emit(Insn::new(op::LDX | op::MEM | op::DW, d, p, off, 0));
                    self.guess[d as usize] = Guess::Number;
                }
            } else {
                self.call();
            }
            return;
        };
        let d = self.r.below(9) as u8;
        let size = self.r.pick(&[op::B, op::H, op::W, op::DW]);
        self.emit(Insn::new(op::LDX | op::MEM | size, d, ctx, self.r.below(20) as i16 * 8, 0));
        self.guess[d as usize] = Guess::Number;
    }

    fn clobber(&mut self) {
        for r in 0..6 {
            self.guess[r] = Guess::Nothing;
        }
    }

    fn call(&mut self) {
        self.emit(Insn::call(self.r.pick(&[5, 7, 14])));
        self.clobber();
        self.guess[0] = Guess::Number;
    }

    fn lookup(&mut self) {
        let map = self.r.below(2);
        self.emit(Insn::new(op::ST | op::MEM | op::W, 10, 0, -4, self.r.below(2) as i32));
        self.emit(Insn::mov64_reg(2, 10));
        self.emit(Insn::new(op::ALU64 | op::ADD, 2, 0, 0, -4));
        self.out.extend(Insn::ld_imm64(1, op::PSEUDO_MAP_IDX, map));
        self.emit(Insn::call(1));
        self.clobber();
        if self.r.chance(95) {
            self.open.push(self.out.len());
            self.emit(Insn::new(op::JMP | op::JEQ, 0, 0, 0, 0));
        }
        let keep = self.r.pick(&[6, 7, 8, 0]);
        if keep != 0 {
            self.emit(Insn::mov64_reg(keep, 0));
            self.guess[keep as usize] = Guess::Value;
        }
        self.guess[0] = Guess::Value;
    }

    fn stack(&mut self) {
        let size = self.r.pick(&[(op::DW, 8), (op::DW, 8), (op::W, 4), (op::H, 2), (op::B, 1)]);
        let word = self.r.below(4);
        let off = -8 * (word as i16 + 2) + if size.1 < 8 { self.r.below(8 / size.1) as i16 * size.1 as i16 } else { 0 };
        if self.words >> word & 1 != 0 && self.r.chance(60) {
            let d = self.r.below(9) as u8;
            self.emit(Insn::new(op::LDX | op::MEM | size.0, d, 10, off, 0));
            self.guess[d as usize] = Guess::Number;
            return;
        }
        if self.r.chance(30) {
            self.emit(Insn::new(op::ST | op::MEM | size.0, 10, 0, off, self.r.number() as i32));
        } else {
            let s = if self.r.chance(10) { self.any() } else { self.number() };
            self.emit(Insn::new(op::STX | op::MEM | size.0, 10, s, off, 0));
        }
        if size.1 == 8 {
            self.words |= 1 << word;
        }
    }

    /// An access to a value, or to the stack, at an offset that was tested or masked, about as much as needed.
    fn index(&mut self) {
        let Some(base) = self.with(|g| g == Guess::Value) else { return self.unknown() };
        let room = i64::from(self.r.pick(&VALUE));
        let size = self.r.pick(&[(op::B, 1), (op::H, 2), (op::W, 4), (op::DW, 8)]);
        if self.r.chance(30) {
            let off = self.r.below(room as u64 + 2) as i64 - size.1 + self.r.below(2) as i64;
            self.access(base, off as i16, size.0);
            return;
        }
        let n = self.number();
        match self.r.below(5) {
            0 => self.emit(Insn::new(op::ALU64 | op::AND, n, 0, 0, (room / 2 - 1) as i32)),
            1 => {
                self.open.push(self.out.len());
                let class = self.r.pick(&[op::JMP, op::JMP32]);
                let code = self.r.pick(&[op::JGT, op::JGE, op::JSGT]);
                self.emit(Insn::new(class | code, n, 0, 0, (room - size.1 + self.r.below(3) as i64 - 1) as i32));
            }
            2 => {
                // A copy is tested.
                let copy = self.r.below(6) as u8;
                if copy != n {
                    self.emit(Insn::mov64_reg(copy, n));
                    self.guess[copy as usize] = Guess::Number;
                    if self.r.chance(50) {
                        self.emit(Insn::new(op::ALU64 | op::ADD, copy, 0, 0, self.r.below(5) as i32 - 2));
                    }
                }
                self.open.push(self.out.len());
                self.emit(Insn::new(op::JMP | op::JGT, copy, 0, 0, (room - size.1 + self.r.below(3) as i64 - 1) as i32));
            }
            3 => self.emit(Insn::new(op::ALU64 | op::MOD, n, 0, 0, (room - size.1 + 1) as i32)),
            _ => {
                self.emit(Insn::new(op::ALU64 | op::RSH, n, 0, 0, 58 + self.r.below(4) as i32));
            }
        }
        let p = self.r.pick(&[6, 7, 8]);
        if p != base {
            self.emit(Insn::mov64_reg(p, base));
        }
        self.emit(Insn::new(op::ALU64 | op::X | op::ADD, p, n, 0, 0));
        self.guess[p as usize] = Guess::Nothing;
        let off = if self.r.chance(70) { 0 } else { self.r.below(4) as i16 - 2 };
        self.access(p, off, size.0);
    }

    fn access(&mut self, p: u8, off: i16, size: u8) {
        if self.r.chance(50) {
            let d = self.r.below(6) as u8;
            self.emit(Insn::new(op::LDX | self.r.pick(&[op::MEM, op::MEM, op::MEM]) | size, d, p, off, 0));
            self.guess[d as usize] = Guess::Number;
        } else {
            let s = self.number();
            self.emit(Insn::new(op::STX | op::MEM | size, p, s, off, 0));
        }
    }

    /// A loop with a constant bound.
    fn counted(&mut self) {
        let n = self.r.below(6) as u8;
        let sum = self.number();
        self.emit(Insn::mov64_imm(n, 0));
        let top = self.out.len();
        if sum != n {
            self.emit(Insn::new(op::ALU64 | op::X | self.r.pick(&[op::ADD, op::XOR, op::MUL]), sum, n, 0, 0));
        }
        if let Some(ctx) = self.ctx
            && self.r.chance(50)
        {
            let d = self.r.below(6) as u8;
            if d != n {
                self.emit(Insn::new(op::LDX | op::MEM | op::DW, d, ctx, 8, 0));
                self.emit(Insn::new(op::JMP | op::JSET, d, 0, 1, 1));
                self.emit(Insn::new(op::ALU64 | op::ADD, d, 0, 0, 1));
                self.guess[d as usize] = Guess::Number;
            }
        }
        self.emit(Insn::new(op::ALU64 | op::ADD, n, 0, 0, 1));
        let back = top as i64 - self.out.len() as i64 - 1;
        self.emit(Insn::new(op::JMP | op::JLT, n, 0, back as i16, self.r.below(12) as i32 + 1));
        self.guess[n as usize] = Guess::Small;
    }

    /// A loop that `may_goto` ends.
    fn bounded(&mut self) {
        let top = self.out.len();
        self.emit(Insn::new(op::JMP | op::JCOND, 0, 0, 0, 0));
        let outer = std::mem::take(&mut self.open);
        let steps = self.r.below(4) + 1;
        for _ in 0..steps {
            self.step();
            self.close();
        }
        for at in std::mem::replace(&mut self.open, outer) {
            self.out[at].off = (self.out.len() - at - 1) as i16;
        }
        let back = top as i64 - self.out.len() as i64 - 1;
        self.emit(Insn::new(op::JMP | op::JA, 0, 0, back as i16, 0));
        self.out[top].off = (self.out.len() - top - 1) as i16;
        // Somewhere for the jump to land.
        self.emit(Insn::new(op::JMP | op::JA, 0, 0, 0, 0));
    }

    /// Calls the function, or has the callback called; both get four words of stack.
    fn call_function(&mut self) {
        if self.ctx.is_none() {
            return;
        }
        let arg = self.number();
        for word in 0..4 {
            if self.words >> word & 1 == 0 {
                self.emit(Insn::new(op::ST | op::MEM | op::DW, 10, 0, -8 * (word + 2), self.r.number() as i32));
                self.words |= 1 << word;
            }
        }
        let callback = self.r.chance(60);
        let pointer = if callback { 3 } else { 2 };
        self.emit(Insn::mov64_reg(1, arg));
        self.emit(Insn::mov64_reg(pointer, 10));
        self.emit(Insn::new(op::ALU64 | op::ADD, pointer, 0, 0, -40));
        self.calls.push((self.out.len(), callback));
        if callback {
            self.out.extend(Insn::ld_imm64(2, op::PSEUDO_FUNC, 0));
            self.emit(Insn::mov64_imm(4, 0));
            self.emit(Insn::call(181));
        } else {
            self.emit(Insn::new(op::CALL, 0, op::PSEUDO_CALL, 0, 0));
        }
        self.clobber();
        self.guess[0] = Guess::Number;
    }

    fn atomic(&mut self) {
        let Some(base) = self.with(|g| g == Guess::Value) else { return };
        let s = self.number();
        let imm = self.r.pick(&[op::ATOMIC_ADD, op::ATOMIC_ADD | op::ATOMIC_FETCH, op::ATOMIC_XCHG, op::ATOMIC_OR]);
        self.emit(Insn::new(op::STX | op::ATOMIC | self.r.pick(&[op::W, op::DW]), base, s, self.r.below(3) as i16 * 8, imm));
    }
}
