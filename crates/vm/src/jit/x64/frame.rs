//! Entering and leaving the functions of a program.

use skep_isa::{Insn, op};

use super::enc::{Mem, Size, group, reg};
use super::layout::Label;
use super::{Gen, machine};
use crate::MAY_GOTO_ROUNDS;
use crate::check::Func;
use crate::env::HelperCall;
use crate::jit::narrow;

/// Where the rounds left for `may_goto` are in the frame of a chain: below the stack.
pub(super) const ROUNDS_IN_CHAIN: i32 = -(op::STACK_SIZE + 8);

/// Machine registers that the C convention wants back as they were, rbp aside.
pub(super) const PRESERVED: [u8; 5] = [reg::RBX, reg::R12, reg::R13, reg::R14, reg::R15];

/// Those that it does not.
const CHANGED: [u8; 9] = [
    reg::RAX,
    reg::RCX,
    reg::RDX,
    reg::RSI,
    reg::RDI,
    reg::R8,
    reg::R9,
    reg::R10,
    reg::R11,
];

/// What the function being generated keeps on the machine stack.
#[derive(Clone, Copy, Default)]
pub(super) struct Frame {
    /// It has a frame pointer.
    framed: bool,
    /// Bytes between the frame pointer and the saved registers.
    size: i32,
    /// Which machine registers it saves, as bits.
    saved: u16,
    /// Where the rounds left for `may_goto` are, from the frame pointer; 0 when there are none.
    pub rounds: i32,
    /// Where the address of the count of tail calls is; 0 when there is none.
    pub tails: i32,
    /// Where r1 of a tail call is kept while the helper is asked; 0 when there is no tail call.
    pub ctx: i32,
}

impl Frame {
    /// Returns a number for all that programs must agree about to share a frame; for frames with a
    /// count of tail calls.
    pub fn kind(self) -> i32 {
        // Of the saved registers only rbx and r12 to r15 can be there, and the rest is in words.
        let saved =
            i32::from(self.saved >> reg::R12 & 15) << 1 | i32::from(self.saved >> reg::RBX & 1);
        1 | saved << 1 | (-self.tails / 8) << 6 | (self.size / 8) << 16
    }
}

impl Gen<'_> {
    /// Generates the start of the function whose first slot is `at`.
    pub(super) fn enter(&mut self, at: usize) {
        let Some(n) = self.flow.function_at(at) else { return };
        let Some(&f) = self.flow.funcs.get(n) else { return };
        self.constants = self.choose_constants(f, n);
        let uses = self.facts.uses(n);
        self.narrow = narrow::always(
            self.insns.get(f.start..f.end).unwrap_or_default(),
            uses.written & !uses.needed,
        );
        self.is_main = at == 0;
        if self.is_main && self.exit.is_some() {
            return self.enter_in_chain(f);
        }
        let frame = self.frame_of(f, n);
        self.frame = frame;
        if at != 0 {
            self.out.align(16);
        } else if frame.tails != 0 {
            self.start_counting();
        }
        self.out.func();
        let e = &mut self.out.enc;
        if frame.framed {
            e.push(reg::RBP);
            e.mov(true, reg::RBP, reg::RSP);
        }
        if frame.size > 0 {
            e.group_imm(true, group::SUB, reg::RSP, frame.size);
        }
        for r in PRESERVED {
            if frame.saved & 1 << r != 0 {
                e.push(r);
            }
        }
        if frame.tails != 0 {
            e.store(Size::D, Mem::at(reg::RBP, frame.tails), reg::R10);
            if at == 0 {
                self.out.inner();
                self.shared = Some(frame.kind() as u64);
            }
        }
        let e = &mut self.out.enc;
        if frame.rounds != 0 {
            e.store_imm(Size::D, Mem::at(reg::RBP, frame.rounds), MAY_GOTO_ROUNDS as i32);
        }
        for c in &self.constants {
            e.mov_imm(c.reg, c.value);
        }
    }

    /// Generates the start of a main function in the frame of its chain.
    fn enter_in_chain(&mut self, f: Func) {
        self.out.func();
        let needs_rounds = self.frame_of(f, 0).rounds != 0;
        let rounds = if needs_rounds { ROUNDS_IN_CHAIN } else { 0 };
        self.frame = Frame { framed: true, rounds, ..Frame::default() };
        let e = &mut self.out.enc;
        if needs_rounds {
            e.store_imm(Size::D, Mem::at(reg::RBP, rounds), MAY_GOTO_ROUNDS as i32);
        }
        for c in &self.constants {
            e.mov_imm(c.reg, c.value);
        }
    }

    /// Returns the registers that the main function wants saved.
    pub(super) fn saved_by_main(&mut self) -> u16 {
        let Some(&f) = self.flow.funcs.first() else { return 0 };
        self.constants = self.choose_constants(f, 0);
        self.frame_of(f, 0).saved
    }

    /// Generates the C function around a program that makes tail calls.
    fn start_counting(&mut self) {
        let e = &mut self.out.enc;
        e.push(reg::RBP);
        e.mov(true, reg::RBP, reg::RSP);
        e.group_imm(true, group::SUB, reg::RSP, 16);
        e.store_imm(Size::W, Mem::at(reg::RSP, 0), 0);
        e.mov(true, reg::R10, reg::RSP);
        self.out.call(Label::Func(0));
        self.out.enc.leave();
        self.out.enc.ret();
        self.out.align(16);
    }

    /// Generates the return from the function.
    pub(super) fn epilogue(&mut self) {
        self.take_down();
        self.out.enc.ret();
    }

    /// Generates what makes the registers and the stack those of the caller again.
    pub(super) fn take_down(&mut self) {
        let frame = self.frame;
        let e = &mut self.out.enc;
        for r in PRESERVED.iter().rev() {
            if frame.saved & 1 << r != 0 {
                e.pop(*r);
            }
        }
        if frame.size > 0 {
            e.leave();
        } else if frame.framed {
            e.pop(reg::RBP);
        }
    }

    /// Looks for what the frame of function number `n` must hold.
    fn frame_of(&self, f: Func, n: usize) -> Frame {
        let (mut deepest, mut fp, mut calls, mut may_goto, mut tails) =
            (0i32, false, false, false, false);
        // Whether it may leave the program.
        let may_tail_call = self.flow.may_tail_call(n);
        for (at, i) in self.flow.looks(self.insns, f.start..f.end) {
            may_goto |= i.code == op::JMP | op::JCOND;
            calls |= i.code == op::CALL && self.is_real_call(at, i);
            tails |= i.is_helper_call()
                && self.flow.helper(i.imm as u32).is_some_and(|h| h.how == HelperCall::TailCall);
            // An access at a fixed place needs the stack down to there; once the pointer is copied,
            // all of it is needed.
            let memory = |base: u8| base == op::FP;
            let (through, copied) = match i.class() {
                op::LDX => (memory(i.src()), false),
                op::ST => (memory(i.dst()), false),
                op::STX if i.code & 0xe0 == op::ATOMIC && i.imm == op::ATOMIC_LOAD_ACQ => {
                    (memory(i.src()), false)
                }
                op::STX => (memory(i.dst()), i.src() == op::FP),
                op::LD => (false, false),
                op::ALU | op::ALU64 => {
                    (false, i.code & op::X != 0 && i.code & 0xf0 != op::END && i.src() == op::FP)
                }
                _ if i.code == op::CALL || i.code == op::EXIT => (false, false),
                _ => (false, i.dst() == op::FP || (i.code & op::X != 0 && i.src() == op::FP)),
            };
            fp |= through || copied;
            if through {
                deepest = deepest.min(i32::from(i.off));
            }
            if copied {
                deepest = deepest.min(-op::STACK_SIZE);
            }
        }
        let written = self.facts.uses(n).written;
        let saved: u16 =
            (0..op::FP).filter(|r| written & 1 << r != 0).fold(0, |s, r| s | 1 << machine(r));
        let saved = self.constants.iter().fold(saved, |s, c| s | 1 << c.reg)
            & PRESERVED.iter().fold(0, |s, r| s | 1 << r);
        let framed = fp || calls || may_goto;
        // Programs that tail calls lead between are to have the same frame.
        let alike = may_tail_call && f.start == 0;
        let mut size = if alike { op::STACK_SIZE } else { (-deepest + 7) & !7 };
        let mut word = |wanted: bool| {
            size += if wanted { 8 } else { 0 };
            if wanted { -size } else { 0 }
        };
        let (rounds, tails, ctx) =
            (word(may_goto || alike), word(may_tail_call), word(tails || alike));
        let rounds = if may_goto { rounds } else { 0 };
        // Two words are pushed before; calls want a multiple of sixteen.
        if calls && (size + 8 * saved.count_ones() as i32) % 16 != 0 {
            size += 8;
        }
        Frame { framed, size, saved, rounds, tails, ctx }
    }

    /// Returns the registers that the program may change and that the C convention does not want
    /// back.
    pub(super) fn changes(&self) -> u16 {
        let bits = |registers: &[u8]| registers.iter().fold(0, |sum, r| sum | 1 << r);
        let mut calls = self.flow.looks(self.insns, 0..self.insns.len());
        if calls.any(|(at, i)| {
            i.code == op::CALL && i.src() != op::PSEUDO_CALL && self.is_real_call(at, i)
        }) {
            return bits(&CHANGED);
        }
        // Those that are scratch within an instruction, and what the program names.
        let written = (0..self.flow.funcs.len()).fold(0, |sum, n| sum | self.facts.uses(n).written);
        (0..op::FP)
            .filter(|r| written & 1 << r != 0)
            .fold(bits(&[reg::RAX, reg::R9, reg::R10, reg::R11]), |sum, r| sum | 1 << machine(r))
            & bits(&CHANGED)
    }

    pub(super) fn is_real_call(&self, at: usize, i: Insn) -> bool {
        if i.src() == op::PSEUDO_CALL {
            return true;
        }
        let inlined =
            self.flow.helper(i.imm as u32).is_some_and(|h| matches!(h.how, HelperCall::LoadCtx(_)));
        !inlined && self.facts.lookup(at).is_none()
    }
}
