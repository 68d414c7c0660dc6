//! Registers whose upper half is zero: after an instruction, and all through a function.

use skep_isa::{Insn, op};

use crate::opcode::{ANY_ABOVE, Regs, SOME_ABOVE, ZERO_ABOVE, opcode};

/// Returns the registers with a zero upper half after the instruction in slot `at`, from those that
/// had one before it.
#[inline]
pub(super) fn after(insns: &[Insn], at: usize, i: &Insn, narrow: Regs) -> Regs {
    match opcode(i).bits & SOME_ABOVE {
        0 => narrow,
        SOME_ABOVE => after_a_look(i, insns.get(at + 1), narrow),
        above => {
            let d: Regs = 1 << i.dst();
            if above == ZERO_ABOVE { narrow | d } else { narrow & !d }
        }
    }
}

#[inline(never)]
fn after_a_look(i: &Insn, next: Option<&Insn>, narrow: Regs) -> Regs {
    let (d, s): (Regs, Regs) = (1 << i.dst(), 1 << i.src());
    let is = match i.class() {
        op::ALU => i.imm != 64,
        op::ALU64 => match (i.code & 0xf0, i.code & op::X != 0) {
            (op::MOV, false) => i.imm >= 0,
            (op::MOV, true) => i.off == 0 && narrow & s != 0,
            (op::AND, false) => i.imm >= 0 || narrow & d != 0,
            (op::AND, true) => narrow & (d | s) != 0,
            (op::OR | op::XOR, true) => narrow & d != 0 && narrow & s != 0,
            (op::RSH, false) => i.imm & 63 >= 32 || narrow & d != 0,
            (op::END, _) => i.imm != 64,
            _ => false,
        },
        op::LD => i.src() == 0 && next.is_some_and(|upper| upper.imm == 0),
        op::STX => return narrow & !(s | d | 1),
        // A call.
        _ => return narrow & !0b11_1111,
    };
    if is { narrow | d } else { narrow & !d }
}

/// Finds which of some registers have a zero upper half wherever a function reads them, having
/// written them before.
pub(super) fn always(insns: &[Insn], mut narrow: Regs) -> Regs {
    // What each register is made of.
    let mut made: [Regs; 16] = [0; 16];
    for (at, i) in insns.iter().enumerate() {
        if narrow == 0 {
            return 0;
        }
        match opcode(i).bits & SOME_ABOVE {
            ANY_ABOVE => narrow &= !(1 << i.dst()),
            SOME_ABOVE if narrow & 1 << i.dst() != 0 || !is_wide_alu(i) => match (i.code, i.off) {
                (MOV64 | OR64 | XOR64, 0) => made[usize::from(i.dst())] |= 1 << i.src(),
                _ => narrow &= after_a_look(i, insns.get(at + 1), narrow),
            },
            _ => {}
        }
    }
    loop {
        let known = narrow;
        for (r, of) in made.iter().enumerate() {
            if of & !narrow != 0 {
                narrow &= !(1 << r);
            }
        }
        if narrow == known {
            return narrow;
        }
    }
}

/// Tells whether an instruction writes its destination and nothing else.
fn is_wide_alu(i: &Insn) -> bool {
    i.class() == op::ALU64
}

const MOV64: u8 = op::ALU64 | op::X | op::MOV;
const OR64: u8 = op::ALU64 | op::X | op::OR;
const XOR64: u8 = op::ALU64 | op::X | op::XOR;

#[cfg(test)]
mod tests {
    use super::*;
    use skep_isa::text::assemble;

    fn narrow(text: &str, needed: Regs) -> Vec<u16> {
        let all = always(&assemble(text).unwrap(), !needed & 0x3ff);
        (0..10).filter(|r| all & 1 << r != 0).collect()
    }

    #[test]
    fn a_register_is_narrow_when_all_it_gets_is() {
        let text = "mov32 r0, -1\nmov r1, 5\nldxw r2, [r9]\nmov r3, r2\nadd32 r3, r9\nmov r4, r3\nmov r5, -1\nmov r6, 0\nmov r6, r5\n\
                    lddw r7, 0xffffffff\nlddw r8, 0x100000000\nexit";
        assert_eq!(narrow(text, 1 << 9), [0, 1, 2, 3, 4, 7]);
        // What is there before is copied before it is known.
        assert_eq!(narrow(text, 1 << 9 | 1 << 2), [0, 1, 7]);
    }

    #[test]
    fn what_wide_values_are_copied_to_is_wide_in_any_order() {
        assert_eq!(
            narrow("l: mov r1, r2\nmov r2, r3\nadd32 r4, 1\nadd r3, 1\nja l", 0),
            [0, 4, 5, 6, 7, 8, 9]
        );
        assert_eq!(narrow("mov r1, 1\nmov r6, 1\nmov r0, 1\ncall 1\nexit", 0), [6, 7, 8, 9]);
    }
}
