//! Jumps.

use skep_isa::{Insn, op};

use super::enc::{Mem, cc, group, reg};
use super::layout::Label;
use super::{Gen, machine};
use crate::check::{ENDS, FUNC, LOOP, MEETS, TARGET, is_goto, jump};
use crate::opcode::Regs;

/// Most instructions between two branches that ask the same.
const BETWEEN: usize = 4;

impl Gen<'_> {
    pub(super) fn jump(&mut self, at: usize, i: &Insn) -> bool {
        let Some(distance) = jump(*i) else { return false };
        if self.answered == Some(at) {
            return true;
        }
        let mut to = Label::Insn((at as i64 + 1 + distance) as usize);
        if distance == 0 && i.code & 0xf0 != op::JCOND {
            return true;
        }
        match i.code & 0xf0 {
            op::JA => {
                self.out.jump(None, to);
                return true;
            }
            op::JCOND => {
                let rounds = Mem::at(reg::RBP, self.frame.rounds);
                self.out.enc.group_store_imm(super::enc::Size::D, group::CMP, rounds, 0);
                self.out.jump(Some(cc::E), to);
                self.out.enc.dec(rounds);
                return true;
            }
            _ => {}
        }
        let Some(c) = condition(*i) else { return false };
        if let Some((second, far)) = self.asks_again(at, i) {
            self.answered = Some(second);
            to = Label::Insn(far);
        }
        self.compare(i);
        self.out.jump(Some(c), to);
        true
    }

    /// `if a op b goto l; …; l: if a op b goto far` with nothing between that changes the answer:
    /// how clang writes two choices by one question. Returns the second branch, and where it jumps;
    /// who comes to it otherwise does not.
    fn asks_again(&self, at: usize, i: &Insn) -> Option<(usize, usize)> {
        let second = at + 1 + usize::try_from(i.off).ok().filter(|n| (1..=BETWEEN).contains(n))?;
        let again = self.insn(second);
        let meets = self.flow.mark(second) & (MEETS | FUNC | LOOP) != 0;
        if meets || (again.code, again.regs, again.imm) != (i.code, i.regs, i.imm) {
            return None;
        }
        let asked: Regs = 1 << i.dst() | if i.code & op::X != 0 { 1 << i.src() } else { 0 };
        let straight = (at + 1..second).all(|n| {
            let changes = self.flow.does.get(n).is_none_or(|d| d.writes & asked != 0);
            self.flow.mark(n) & (TARGET | FUNC | ENDS) == 0
                && !changes
                && self.insn(n).code != op::CALL
        });
        straight.then_some((second, (second as i64 + 1 + i64::from(again.off)) as usize))
    }

    /// Generates the jump of the conditional instruction in slot `at`, its flags being set, and
    /// returns how many slots that took: two when all it does is skip a jump.
    pub(super) fn branch(&mut self, at: usize, i: Insn, c: u8) -> usize {
        let distance = jump(i).unwrap_or(0);
        if let (Some([_, goto]), 1) = (self.run::<2>(at), distance)
            && is_goto(goto)
        {
            let far = at as i64 + 2 + jump(goto).unwrap_or(0);
            self.out.jump(Some(c ^ 1), Label::Insn(far as usize));
            return 2;
        }
        self.out.jump(Some(c), Label::Insn((at as i64 + 1 + distance) as usize));
        1
    }

    /// Sets the flags for a conditional jump.
    pub(super) fn compare(&mut self, i: &Insn) {
        let (d, s) = (machine(i.dst()), machine(i.src()));
        let set = i.code & 0xf0 == op::JSET;
        // Halves known to be zero compare the same on 32 bits, but for their sign.
        let unsigned = matches!(
            i.code & 0xf0,
            op::JEQ | op::JNE | op::JGT | op::JGE | op::JLT | op::JLE | op::JSET
        );
        let narrow = |r: u8| self.known.narrow & 1 << r != 0;
        let x = i.code & op::X != 0;
        let w = i.class() == op::JMP
            && !(unsigned && narrow(i.dst()) && if x { narrow(i.src()) } else { i.imm >= 0 });
        let zero = !x && i.imm == 0 && matches!(i.code & 0xf0, op::JEQ | op::JNE);
        if zero && self.flags_tell(i, d) {
            return;
        }
        let e = &mut self.out.enc;
        match (set, x) {
            (true, true) => e.test(w, d, s),
            (true, false) => e.test_imm(w, d, i.imm),
            (false, true) => e.group(w, group::CMP, d, s),
            (false, false) if i.imm == 0 => e.test(w, d, d),
            (false, false) => e.group_imm(w, group::CMP, d, i.imm),
        }
    }

    /// Tells whether the instruction just before has already set the zero flag by this register.
    fn flags_tell(&self, i: &Insn, d: u8) -> bool {
        let Some((r, w, len)) = self.known.zero_flag else { return false };
        // A 32-bit result is the whole register; a 64-bit one says nothing of its lower half alone.
        r == d && len == self.out.enc.len() && (!w || i.class() == op::JMP)
    }
}

/// Returns the machine condition of a jump.
pub(super) fn condition(i: Insn) -> Option<u8> {
    Some(match i.code & 0xf0 {
        op::JEQ => cc::E,
        op::JNE | op::JSET => cc::NE,
        op::JGT => cc::A,
        op::JGE => cc::AE,
        op::JLT => cc::B,
        op::JLE => cc::BE,
        op::JSGT => cc::G,
        op::JSGE => cc::GE,
        op::JSLT => cc::L,
        op::JSLE => cc::LE,
        _ => return None,
    })
}
