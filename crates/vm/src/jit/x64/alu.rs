//! Arithmetic.

use skep_isa::{Insn, op};

use super::enc::{Size, cc, group, reg, shift};
use super::{Gen, machine};

impl Gen<'_> {
    /// Generates an arithmetic instruction; `false` when there is no such instruction.
    pub(super) fn alu(&mut self, i: &Insn) -> bool {
        let w = i.class() == op::ALU64;
        let (d, s) = (machine(i.dst()), machine(i.src()));
        let x = i.code & op::X != 0;
        let e = &mut self.out.enc;
        match i.code & 0xf0 {
            op::MOV => return self.mov(i),
            o @ (op::ADD | op::SUB | op::OR | op::AND | op::XOR) => {
                let Some(g) = group_of(o) else { return false };
                if x {
                    e.group(w, g, d, s);
                } else {
                    // A mask without sign bit clears the upper half, as the shorter instruction
                    // does.
                    let w = w && !(g == group::AND && i.imm >= 0);
                    e.group_imm(w, g, d, i.imm);
                }
                self.flags_of(d, w);
            }
            op::MUL if x => e.imul(w, d, s),
            op::MUL if i.imm > 0 && i.imm & (i.imm - 1) == 0 => {
                e.shift_imm(w, shift::SHL, d, i.imm.trailing_zeros() as u8)
            }
            op::MUL => e.imul_imm(w, d, d, i.imm),
            o @ (op::DIV | op::MOD) => self.divide(i, o == op::MOD),
            o @ (op::LSH | op::RSH | op::ARSH) => self.shift(i, o),
            op::NEG => e.neg(w, d),
            op::END => self.byte_order(i),
            _ => return false,
        }
        true
    }

    fn mov(&mut self, i: &Insn) -> bool {
        let w = i.class() == op::ALU64;
        let (d, s) = (machine(i.dst()), machine(i.src()));
        let narrow = self.known.narrow & 1 << i.src() != 0;
        let e = &mut self.out.enc;
        if i.code & op::X == 0 {
            e.mov_imm(d, if w { i64::from(i.imm) as u64 } else { u64::from(i.imm as u32) });
            return true;
        }
        match i.off {
            // Moving a register to itself does nothing, or clears an upper half that may be clear
            // already.
            0 if d == s && (w || narrow) => {}
            0 => e.mov(w && !narrow, d, s),
            8 => e.sign_extend(w, Size::B, d, s),
            16 => e.sign_extend(w, Size::H, d, s),
            32 => e.sign_extend(w, Size::W, d, s),
            _ => return false,
        }
        true
    }

    fn byte_order(&mut self, i: &Insn) {
        let d = machine(i.dst());
        let swap = i.class() == op::ALU64 || i.code & op::X != 0;
        let e = &mut self.out.enc;
        match (i.imm, swap) {
            (16, true) => {
                e.swap16(d);
                e.zero_extend(Size::H, d, d);
            }
            (32, true) => e.bswap(false, d),
            (_, true) => e.bswap(true, d),
            (16, false) => e.zero_extend(Size::H, d, d),
            (32, false) => e.zero_extend(Size::W, d, d),
            _ => {}
        }
    }

    fn shift(&mut self, i: &Insn, o: u8) {
        let w = i.class() == op::ALU64;
        let (d, s) = (machine(i.dst()), machine(i.src()));
        let o = match o {
            op::LSH => shift::SHL,
            op::RSH => shift::SHR,
            _ => shift::SAR,
        };
        let e = &mut self.out.enc;
        if i.code & op::X == 0 {
            let n = i.imm as u8 & if w { 63 } else { 31 };
            match n {
                0 if w => {}
                0 => e.mov(false, d, d),
                _ => e.shift_imm(w, o, d, n),
            }
        } else if self.cpu.bmi2 {
            e.shift_x(w, o, d, d, s);
        } else if s == reg::RCX && d != reg::RCX {
            e.shift_cl(w, o, d);
        } else if d == reg::RCX {
            e.mov(true, reg::R11, reg::RCX);
            e.mov(false, reg::RCX, s);
            e.shift_cl(w, o, reg::R11);
            e.mov(w, reg::RCX, reg::R11);
        } else {
            e.mov(true, reg::R11, reg::RCX);
            e.mov(false, reg::RCX, s);
            e.shift_cl(w, o, d);
            e.mov(true, reg::RCX, reg::R11);
        }
    }

    /// Division wants the dividend in rdx:rax and leaves quotient and remainder there. Dividing by
    /// zero gives 0, its remainder is the dividend, and the one signed overflow wraps, so the
    /// processor never sees either.
    fn divide(&mut self, i: &Insn, remainder: bool) {
        let w = i.class() == op::ALU64;
        let signed = i.off == 1;
        let d = machine(i.dst());
        if i.code & op::X == 0 {
            return self.divide_by(i, remainder);
        }
        let e = &mut self.out.enc;
        let divisor = match machine(i.src()) {
            s @ (reg::RAX | reg::RDX) => {
                e.mov(w, reg::R11, s);
                reg::R11
            }
            s => s,
        };
        e.test(w, divisor, divisor);
        let zero = e.skip(Some(cc::E));
        let minus_one = signed.then(|| {
            e.group_imm(w, group::CMP, divisor, -1);
            e.skip(Some(cc::E))
        });
        self.divide_core(w, signed, remainder, d, divisor);
        let e = &mut self.out.enc;
        let done = e.skip(None);
        let over = minus_one.map(|minus_one| {
            e.land(minus_one);
            if remainder {
                e.mov_imm(d, 0)
            } else {
                e.neg(w, d)
            }
            e.skip(None)
        });
        e.land(zero);
        if !remainder {
            e.mov_imm(d, 0);
        } else if !w {
            e.mov(false, d, d);
        }
        if let Some(over) = over {
            e.land(over);
        }
        e.land(done);
    }

    fn divide_by(&mut self, i: &Insn, remainder: bool) {
        let w = i.class() == op::ALU64;
        let signed = i.off == 1;
        let d = machine(i.dst());
        let e = &mut self.out.enc;
        let power = i.imm > 0 && i.imm & (i.imm - 1) == 0;
        match i.imm {
            0 if !remainder => e.mov_imm(d, 0),
            0 if !w => e.mov(false, d, d),
            0 => {}
            -1 if signed && remainder => e.mov_imm(d, 0),
            -1 if signed => e.neg(w, d),
            n if power && !signed && remainder => e.group_imm(false, group::AND, d, n - 1),
            1 if power && !signed && w => {}
            1 if power && !signed => e.mov(false, d, d),
            n if power && !signed => e.shift_imm(w, shift::SHR, d, n.trailing_zeros() as u8),
            n => {
                e.mov_imm(reg::R11, if w { i64::from(n) as u64 } else { u64::from(n as u32) });
                self.divide_core(w, signed, remainder, d, reg::R11);
            }
        }
    }

    /// Divides `d` by `divisor`, which is neither rax nor rdx, and keeps all registers but `d`, r9
    /// and r10.
    fn divide_core(&mut self, w: bool, signed: bool, remainder: bool, d: u8, divisor: u8) {
        let e = &mut self.out.enc;
        if d != reg::RAX {
            e.mov(true, reg::R10, reg::RAX);
            e.mov(w, reg::RAX, d);
        }
        if d != reg::RDX {
            e.mov(true, reg::R9, reg::RDX);
        }
        if signed {
            e.sign_to_rdx(w);
            e.idiv(w, divisor);
        } else {
            e.mov_imm(reg::RDX, 0);
            e.div(w, divisor);
        }
        let result = if remainder { reg::RDX } else { reg::RAX };
        if d != result {
            e.mov(w, d, result);
        }
        if d != reg::RAX {
            e.mov(true, reg::RAX, reg::R10);
        }
        if d != reg::RDX {
            e.mov(true, reg::RDX, reg::R9);
        }
    }
}

/// Returns the machine's number of an operation that shares the arithmetic group's forms.
pub(super) fn group_of(o: u8) -> Option<u8> {
    const NONE: u8 = u8::MAX;
    const GROUPS: [u8; 16] = {
        let mut groups = [NONE; 16];
        groups[(op::ADD >> 4) as usize] = group::ADD;
        groups[(op::SUB >> 4) as usize] = group::SUB;
        groups[(op::OR >> 4) as usize] = group::OR;
        groups[(op::AND >> 4) as usize] = group::AND;
        groups[(op::XOR >> 4) as usize] = group::XOR;
        groups
    };
    Some(GROUPS[usize::from(o >> 4)]).filter(|g| *g != NONE)
}
