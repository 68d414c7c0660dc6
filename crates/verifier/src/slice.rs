//! What matters on the path to a fault: the instructions that made the values it is about, and the
//! tests of these.
//!
//! Found backwards from the fault, by registers and slots of the stack. Values that go through
//! other memory are not followed.

use crate::cfg::{RegSet, is_conditional, uses};
use crate::reject::{Reason, Step};
use skep_isa::{Insn, op};

const FP: RegSet = 1 << op::FP;
const ARGUMENTS: RegSet = 0x3e;

/// What is looked for in one frame.
#[derive(Default)]
struct Wanted {
    regs: RegSet,
    /// Offsets of slots from the frame pointer.
    slots: Vec<i16>,
}

/// Marks the steps that matter for the fault at the end.
pub(crate) fn mark(steps: &mut [Step], reason: &Reason) {
    let Some(end) = steps.len().checked_sub(1) else { return };
    steps.iter_mut().enumerate().for_each(|(n, s)| s.matters = n == end);
    match reason {
        // The turn that leads back to where it began.
        Reason::InfiniteLoop { insn } => {
            let turn = steps[..end].iter().rposition(|s| s.insn == *insn).unwrap_or(0);
            steps[turn..].iter_mut().for_each(|s| s.matters = true);
        }
        Reason::TooComplex { .. } | Reason::TooManyForks { .. } => {
            steps.iter_mut().for_each(|s| s.matters = is_conditional(s.code));
        }
        // Where it was taken, and the tests that led past giving it back.
        Reason::Unreleased { insn, .. } => {
            let taken = steps.iter().rposition(|s| s.insn == *insn).unwrap_or(0);
            for (n, s) in steps.iter_mut().enumerate().skip(taken) {
                s.matters |= n == taken || is_conditional(s.code);
            }
        }
        // What is called may not be called, whatever its arguments.
        _ if reason.is_about_the_callee() => {}
        _ => backwards(steps, end, reason),
    }
}

fn backwards(steps: &mut [Step], end: usize, reason: &Reason) {
    let mut wanted: Vec<Wanted> = (0..=op::MAX_CALL_FRAMES).map(|_| Wanted::default()).collect();
    let read = uses(steps[end].code).0 & !FP;
    let mut lowest = steps[end].depth;
    if let Some(w) = wanted.get_mut(lowest) {
        w.regs = reason.register().map_or(read, |r| 1 << r);
    }
    for n in (0..end).rev() {
        let (code, depth, after) = (steps[n].code, steps[n].depth, steps[n + 1].depth);
        let (read, written) = uses(code);
        let inner = if after > depth { wanted.get_mut(after).map(std::mem::take) } else { None };
        let Some(w) = wanted.get_mut(depth) else { continue };
        steps[n].matters = if let Some(inner) = inner {
            // Into a function: what it was given, and in any case the calls that lead to the fault.
            let given = inner.regs & ARGUMENTS;
            if code.is_local_call() {
                w.regs |= given;
            }
            given != 0 || depth < lowest
        } else if after < depth {
            // Out of a function, which is walked backwards from here on: what it gave.
            w.regs = 0;
            let Some(outer) =
                wanted.get_mut(after).filter(|o| o.regs & 1 != 0 && code.code == op::EXIT)
            else {
                continue;
            };
            outer.regs &= !1;
            wanted[depth].regs = 1;
            true
        } else if let Some(slot) = w.slots.iter().position(|s| stores_to(code, *s)) {
            w.slots.swap_remove(slot);
            w.regs |= read & !FP;
            true
        } else if is_conditional(code) {
            // Any comparison of the packet tells of all pointers into it.
            let packet =
                *reason == Reason::OutsidePacket { reg: reason.register().unwrap_or_default() };
            w.regs & read != 0
                || packet && steps[n].regs.iter().any(|(_, what)| what.starts_with("pkt"))
        } else if w.regs & written != 0 {
            w.regs &= !written;
            match stack_slot(code) {
                Some(slot) if code.class() == op::LDX => w.slots.push(slot),
                // What a function makes of its arguments is its own affair.
                _ if code.code == op::CALL => {}
                _ => w.regs |= read & !FP,
            }
            true
        } else {
            false
        };
        lowest = lowest.min(depth);
    }
}

/// The slot that a load or store by the frame pointer begins in.
fn stack_slot(code: Insn) -> Option<i16> {
    let base = if code.class() == op::LDX { code.src() } else { code.dst() };
    (base == op::FP && matches!(code.class(), op::LDX | op::ST | op::STX)).then_some(code.off & !7)
}

fn stores_to(code: Insn, slot: i16) -> bool {
    code.class() != op::LDX && stack_slot(code) == Some(slot)
}

#[cfg(test)]
mod tests {
    use super::*;
    use skep_isa::text;

    fn step(insn: usize, depth: usize, line: &str) -> Step {
        let code = text::assemble(&format!("{line}\n")).expect("assembly")[0];
        Step { insn, code, next: None, line: None, regs: Vec::new(), depth, matters: false }
    }

    /// The steps of `asm` that matter, when run straight through, each line with its depth in
    /// front.
    fn marked(asm: &[(usize, &str)], reason: &Reason) -> Vec<usize> {
        let mut steps: Vec<Step> =
            asm.iter().enumerate().map(|(insn, (depth, line))| step(insn, *depth, line)).collect();
        mark(&mut steps, reason);
        steps.iter().filter(|s| s.matters).map(|s| s.insn).collect()
    }

    fn unbounded(reg: u8) -> Reason {
        Reason::Unbounded { reg }
    }

    #[test]
    fn values_are_followed_through_registers_and_slots() {
        let path = [
            (0, "mov %r6, %r1"),
            (0, "mov %r7, 5"),
            (0, "stxdw [%r10-8], %r6"),
            (0, "stdw [%r10-16], 3"),
            (0, "mov %r6, 0"),
            (0, "jgt %r7, 9, +1"),
            (0, "ldxdw %r2, [%r10-8]"),
            (0, "jgt %r2, 9, +1"),
            (0, "add %r2, %r7"),
            (0, "ldxb %r0, [%r2]"),
        ];
        assert_eq!(marked(&path, &unbounded(2)), [0, 1, 2, 5, 6, 7, 8, 9]);
        // Another register than the one that the instruction reads: the message knows better.
        assert_eq!(marked(&path, &unbounded(6)), [4, 9]);
        assert_eq!(marked(&path, &Reason::NoDynptr { reg: 7 }), [1, 5, 9]);
        assert_eq!(
            marked(&path, &Reason::VariableObject { what: "R10" }),
            [0, 1, 2, 5, 6, 7, 8, 9]
        );
    }

    #[test]
    fn values_are_followed_into_functions_and_out_of_them() {
        let path = [
            (0, "mov %r1, 1"),
            (0, "mov %r2, 2"),
            (0, "call local +1"),
            (1, "mov %r0, %r2"),
            (1, "mov %r3, 7"),
            (1, "exit"),
            (0, "mov %r7, %r0"),
            (0, "mov %r1, %r7"),
            (0, "call local +1"),
            (1, "mov %r6, 0"),
            (1, "ldxb %r0, [%r1]"),
        ];
        assert_eq!(marked(&path, &unbounded(1)), [1, 2, 3, 5, 6, 7, 8, 10]);
        assert_eq!(marked(&path, &unbounded(6)), [8, 9, 10]);
    }

    #[test]
    fn a_reference_is_followed_by_tests_from_where_it_was_taken() {
        let path = [
            (0, "jgt %r7, 9, +1"),
            (0, "call ringbuf_reserve"),
            (0, "mov %r6, %r0"),
            (0, "jeq %r0, 0, +1"),
            (0, "mov %r0, 0"),
            (0, "jeq %r8, 0, +1"),
            (0, "exit"),
        ];
        assert_eq!(marked(&path, &Reason::Unreleased { id: 1, insn: 1 }), [1, 3, 5, 6]);
    }

    #[test]
    fn comparisons_of_the_packet_matter_to_all_pointers_into_it() {
        let path = ["mov %r1, %r6", "jgt %r3, %r2, +1", "jgt %r4, %r5, +1", "ldxb %r0, [%r1]"];
        let mut steps: Vec<Step> =
            path.iter().enumerate().map(|(n, line)| step(n, 0, line)).collect();
        steps[1].regs = vec![(2, "pkt_end()".to_owned()), (3, "pkt(off=14,r=0)".to_owned())];
        steps[2].regs = vec![(4, "scalar()".to_owned()), (5, "scalar()".to_owned())];
        for (reason, wanted) in
            [(Reason::OutsidePacket { reg: 1 }, &[0, 1, 3][..]), (unbounded(1), &[0, 3])]
        {
            mark(&mut steps, &reason);
            assert_eq!(
                steps.iter().filter(|s| s.matters).map(|s| s.insn).collect::<Vec<_>>(),
                wanted
            );
        }
    }

    #[test]
    fn of_an_endless_loop_the_last_turn_matters() {
        let path = [(0, "mov %r6, 0"), (0, "add %r6, 0"), (0, "ja -2")];
        let twice: Vec<_> = path.iter().chain(&path[1..]).chain(&path[1..2]).copied().collect();
        assert_eq!(marked(&twice, &Reason::InfiniteLoop { insn: 3 }), [3, 4, 5]);
        assert_eq!(marked(&[], &Reason::Empty), [0usize; 0]);
    }
}
