//! Jumps.

use skep_isa::{Insn, op};

use super::enc::{Mem, cc, group, reg};
use super::layout::Label;
use super::{Gen, machine};
use crate::check::{is_goto, jump};

impl Gen<'_> {
    pub(super) fn jump(&mut self, at: usize, i: &Insn) -> bool {
        let Some(distance) = jump(*i) else { return false };
        let to = Label::Insn((at as i64 + 1 + distance) as usize);
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
        self.compare(i);
        self.out.jump(Some(c), to);
        true
    }

    /// Generates the jump of the conditional instruction in slot `at`, its flags being set, and returns how many slots
    /// that took: two when all it does is skip a jump.
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
        let unsigned = matches!(i.code & 0xf0, op::JEQ | op::JNE | op::JGT | op::JGE | op::JLT | op::JLE | op::JSET);
        let narrow = |r: u8| self.known.narrow & 1 << r != 0;
        let x = i.code & op::X != 0;
        let w = i.class() == op::JMP && !(unsigned && narrow(i.dst()) && if x { narrow(i.src()) } else { i.imm >= 0 });
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
