//! What the generator guesses of registers and stack, and how guesses meet where paths do.

use super::Random;
use skep_isa::{Insn, ProgramType, op};

/// What a register is thought to hold.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Content {
    Nothing,
    Number,
    /// A number below that.
    Below(u32),
    Ctx,
    /// Map value with that many bytes from the pointer on.
    Value(usize, u32),
    /// A record of that many bytes.
    Record(u32),
    /// A packet pointer with so many bytes behind it known to be there.
    Packet(u32),
    Meta(u32),
    /// Four words of the caller's stack.
    Words,
    /// The key a callback is shown.
    Key,
    /// The same, when it is a dynptr.
    DynptrKey,
}

/// Functions of a program.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Callee {
    Function,
    /// Verified by its prototype alone.
    Global,
    /// Called by `bpf_loop`.
    Lap,
    /// Called by `bpf_for_each_map_elem`, for each element of that map.
    Each(usize),
    /// Gives back what it is given.
    Same,
    /// A callback that must never be called.
    Never,
    /// A callback whose paths give different answers.
    Answer,
}

/// All of them.
pub const CALLEES: [Callee; 9] = [
    Callee::Function,
    Callee::Global,
    Callee::Lap,
    Callee::Each(super::map::HASH),
    Callee::Each(super::map::ARRAY),
    Callee::Each(super::map::TRIE),
    Callee::Same,
    Callee::Never,
    Callee::Answer,
];

impl Content {
    pub fn is_number(self) -> bool {
        matches!(self, Self::Number | Self::Below(_))
    }

    fn meet(self, o: Self) -> Self {
        match (self, o) {
            (a, b) if a == b => a,
            (Self::Below(a), Self::Below(b)) => Self::Below(a.max(b)),
            (a, b) if a.is_number() && b.is_number() => Self::Number,
            (Self::Packet(a), Self::Packet(b)) => Self::Packet(a.min(b)),
            (Self::Meta(a), Self::Meta(b)) => Self::Meta(a.min(b)),
            (Self::Value(m, a), Self::Value(n, b)) if m == n => Self::Value(m, a.min(b)),
            _ => Self::Nothing,
        }
    }
}

/// A word of the stack: which of its bytes were written, and what a whole one holds.
#[derive(Clone, Copy, PartialEq, Eq)]
pub struct Word {
    pub written: u8,
    pub holds: Content,
}

/// Words of the stack that programs use, from the top down.
pub const WORDS: usize = 9;

/// The guesses at one place.
#[derive(Clone, Copy)]
pub struct Known {
    pub regs: [Content; 11],
    pub stack: [Word; WORDS],
}

impl Known {
    pub fn nothing() -> Self {
        Self {
            regs: [Content::Nothing; 11],
            stack: [Word { written: 0, holds: Content::Nothing }; WORDS],
        }
    }

    pub fn meet(&mut self, o: &Self) {
        for (a, b) in self.regs.iter_mut().zip(&o.regs) {
            *a = a.meet(*b);
        }
        for (a, b) in self.stack.iter_mut().zip(&o.stack) {
            a.written &= b.written;
            a.holds = a.holds.meet(b.holds);
        }
    }
}

/// Makes one program.
pub struct Maker<'a> {
    pub r: &'a Random,
    pub kind: ProgramType,
    pub out: Vec<Insn>,
    pub known: Known,
    /// Jumps whose target is still to come, with what was known there.
    open: Vec<(usize, Known)>,
    /// In the main function.
    pub main: bool,
    /// Registers that must not be overwritten.
    pub kept: u16,
    /// Calls and addresses of functions, to be filled in.
    pub calls: Vec<(usize, Callee)>,
    /// First instruction of the global function, when there is one.
    pub global: Option<usize>,
    /// First instructions of all functions but the main one.
    pub starts: Vec<usize>,
    /// It may call what only the kernel has.
    pub kernel: bool,
    /// How deep pieces stand in each other.
    depth: u32,
    /// Chance of ignoring a guess, in percent.
    pub sloppy: u64,
}

impl<'a> Maker<'a> {
    pub fn new(r: &'a Random, kind: ProgramType) -> Self {
        let mut known = Known::nothing();
        (known.regs[1], known.regs[10]) = (Content::Ctx, Content::Nothing);
        let sloppy = r.pick(&[0, 2, 6, 12, 25, 40]);
        Self {
            r,
            kind,
            out: Vec::new(),
            known,
            open: Vec::new(),
            main: true,
            kept: 1 << 9,
            calls: Vec::new(),
            global: None,
            starts: Vec::new(),
            kernel: kind == ProgramType::CgroupSkb || r.chance(15),
            depth: 0,
            sloppy,
        }
    }

    pub fn emit(&mut self, i: Insn) {
        self.out.push(i);
    }

    /// Some pieces, and no jump left open.
    pub fn body(&mut self, most: u64) {
        for _ in 0..self.r.below(most) + 4 {
            self.piece();
            while !self.open.is_empty() && self.r.chance(35) {
                self.land(0);
            }
        }
        self.land_all();
    }

    /// Pieces that no jump leaves.
    pub fn nested(&mut self, most: u64) {
        if self.depth >= 2 {
            return;
        }
        self.depth += 1;
        let outer = std::mem::take(&mut self.open);
        for _ in 0..self.r.below(most) + 1 {
            self.piece();
        }
        self.land_all();
        self.open = outer;
        self.depth -= 1;
    }

    /// Tells whether pieces should not stand in each other any more.
    pub fn is_deep(&self) -> bool {
        self.depth >= 2
    }

    /// As [`nested`](Self::nested): what a jump leaves lands behind it.
    pub fn apart(&mut self, part: impl FnOnce(&mut Self)) {
        self.depth += 1;
        let outer = std::mem::take(&mut self.open);
        part(self);
        self.land_all();
        self.open = outer;
        self.depth -= 1;
    }

    pub fn land_all(&mut self) {
        while !self.open.is_empty() {
            self.land(0);
        }
    }

    /// Lets an open jump land here.
    fn land(&mut self, n: usize) {
        let (at, known) = self.open.remove(n);
        let distance = self.out.len() - at - 1;
        if distance == 0 {
            // A jump to the next instruction, which need not differ from falling through.
            self.emit(Insn::new(op::ALU64 | op::X | op::MOV, 9, 9, 0, 0));
            if !self.main {
                self.out.pop();
                self.emit(Insn::new(op::JMP | op::JA, 0, 0, 0, 0));
            }
        }
        self.out[at].off = distance.max(1) as i16;
        self.known.meet(&known);
    }

    /// Emits a jump that lands later, with what is known where it is taken.
    pub fn jump_out(&mut self, i: Insn) {
        self.open.push((self.out.len(), self.known));
        self.emit(i);
    }

    /// Meets what is known at the jump left open last, without landing it.
    pub fn meet_last(&mut self) {
        if let Some((_, known)) = self.open.pop() {
            self.known.meet(&known);
        }
    }

    /// As [`leave`](Self::leave), taken with `reg` holding something else.
    pub fn jump_out_with(&mut self, i: Insn, reg: u8, guess: Content) {
        self.jump_out(i);
        if let Some((_, known)) = self.open.last_mut() {
            known.regs[reg as usize] = guess;
        }
    }

    pub fn slips(&self) -> bool {
        self.sloppy > 0 && self.r.chance(self.sloppy)
    }

    /// A register that may be overwritten.
    pub fn free(&self) -> u8 {
        let free: Vec<u8> = (0..9).filter(|r| self.kept & (1 << r) == 0).collect();
        self.r.pick(&free)
    }

    /// A register of r6 to r8 that may be overwritten, if there is one.
    pub fn saved(&self) -> Option<u8> {
        let free: Vec<u8> = (6..9).filter(|r| self.kept & (1 << r) == 0).collect();
        (!free.is_empty()).then(|| self.r.pick(&free))
    }

    /// A register that holds something of that kind.
    pub fn with(&self, which: impl Fn(Content) -> bool) -> Option<u8> {
        let fit: Vec<u8> = (0..10).filter(|r| which(self.known.regs[*r as usize])).collect();
        (!fit.is_empty()).then(|| self.r.pick(&fit))
    }

    /// A register with a number.
    pub fn number(&mut self) -> u8 {
        // Most of these were never written: little is learnt from them.
        if self.slips() && self.r.chance(10) {
            return self.r.below(10) as u8;
        }
        match self.with(Content::is_number) {
            Some(r) => r,
            None => {
                let r = self.free();
                self.constant(r);
                r
            }
        }
    }

    /// A register with a number that may be changed.
    pub fn changeable(&mut self) -> u8 {
        let n = self.number();
        if self.kept & (1 << n) == 0 && n != 9 {
            return n;
        }
        let d = self.free();
        self.emit(Insn::mov64_reg(d, n));
        self.set(d, Content::Number);
        d
    }

    pub fn set(&mut self, r: u8, g: Content) {
        self.known.regs[r as usize] = g;
    }

    pub fn get(&self, r: u8) -> Content {
        self.known.regs[r as usize]
    }

    /// What is left after a call.
    pub fn clobber(&mut self, r0: Content) {
        self.known.regs[..6].fill(Content::Nothing);
        self.known.regs[0] = r0;
    }
}
