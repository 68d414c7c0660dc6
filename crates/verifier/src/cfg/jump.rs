//! Where instructions lead, and what kinds of them there are.

use skep_isa::{Insn, helper, kfunc, op};

/// Where a relative distance leads.
#[must_use]
pub fn relative(insn: usize, distance: i32) -> i64 {
    insn as i64 + i64::from(distance) + 1
}

/// Tells whether this is a jump that may also fall through.
#[must_use]
pub fn is_conditional(i: Insn) -> bool {
    matches!(i.class(), op::JMP | op::JMP32) && !matches!(i.code & 0xf0, op::JA | 0x80 | 0x90)
}

/// Tells whether this is `may_goto`: it jumps when the loops of the program have run for too long.
#[must_use]
pub fn is_may_goto(i: Insn) -> bool {
    i.code == (op::JMP | op::JCOND)
}

/// Tells whether this calls a helper that calls a function of the program.
#[must_use]
pub fn calls_back(i: Insn) -> bool {
    i.is_helper_call()
        && helper::by_id(i.imm as u32).is_some_and(|h| h.args.contains(&helper::ArgType::Func))
}

/// Tells whether this calls a kernel function that only the verifier knows.
#[must_use]
pub fn is_kfunc(i: Insn) -> bool {
    i.is_helper_call() && kfunc::by_id(i.imm as u32).is_some()
}

/// Tells whether this asks an iterator for its next element.
#[must_use]
pub fn is_iter_next(i: Insn) -> bool {
    i.is_helper_call()
        && kfunc::by_id(i.imm as u32).is_some_and(|k| k.flags.has(kfunc::KFlags::ITER_NEXT))
}

pub(super) fn is_func_address(i: Insn) -> bool {
    i.is_ld_imm64() && i.src() == op::PSEUDO_FUNC
}

/// The instruction a jump leads to.
#[must_use]
pub fn target(insns: &[Insn], i: usize) -> Option<i64> {
    let insn = insns.get(i)?;
    match insn.code {
        c if c == (op::JMP | op::JA) => Some(relative(i, insn.off.into())),
        c if c == (op::JMP32 | op::JA) => Some(relative(i, insn.imm)),
        _ if is_conditional(*insn) => Some(relative(i, insn.off.into())),
        _ => None,
    }
}

/// The instructions that may follow inside the function.
pub(super) fn successors(insns: &[Insn], i: usize) -> [Option<usize>; 2] {
    let insn = insns[i];
    let next = i + if insn.is_ld_imm64() { 2 } else { 1 };
    let next = (next < insns.len()).then_some(next);
    let jump = target(insns, i).and_then(|t| usize::try_from(t).ok()).filter(|t| *t < insns.len());
    match insn.code {
        op::EXIT => [None, None],
        _ if jump.is_some() && !is_conditional(insn) => [jump, None],
        _ => [next, jump],
    }
}
