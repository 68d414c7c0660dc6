//! The answer, written into an instruction.

use super::answer::Answer;
use super::{CoreError, POISON_CORE};
use skep_isa::{Insn, op};

/// Writes an answer into the first of `insns`, which is checked to hold what the compiler meant to
/// put there.
pub(super) fn write(answer: &Answer, insns: &mut [Insn]) -> Result<(), CoreError> {
    let Some(first) = insns.first().copied() else { return Err("no instruction".into()) };
    let Some(new) = answer.new else {
        poison(first, insns);
        return Ok(());
    };
    let expect = |found: u64| match answer.old {
        Some(old) if old != found => {
            Err(CoreError::Other(format!("the instruction holds {found}, not {old}")))
        }
        _ => Ok(()),
    };
    let patched = match first.class() {
        op::ALU | op::ALU64 if first.code & op::X == op::K => {
            expect_imm(first.imm, answer)?;
            Insn {
                imm: i32::try_from(new as i64)
                    .or_else(|_| u32::try_from(new).map(|n| n as i32))
                    .map_err(|_| too_large(new))?,
                ..first
            }
        }
        op::LDX | op::ST | op::STX => {
            expect(first.off as i64 as u64)?;
            if answer.width_is_fixed {
                poison(first, insns);
                return Ok(());
            }
            let off = i16::try_from(new).map_err(|_| too_large(new))?;
            let code = match answer.widths {
                Some((before, after)) if before != after => with_size(first.code, before, after)?,
                _ => first.code,
            };
            Insn { code, off, ..first }
        }
        op::LD if first.is_ld_imm64() && first.src() == 0 => {
            let Some(second) = insns.get(1).copied() else {
                return Err("64-bit immediate without its second half".into());
            };
            expect(u64::from(first.imm as u32) | u64::from(second.imm as u32) << 32)?;
            if let Some(slot) = insns.get_mut(1) {
                slot.imm = (new >> 32) as u32 as i32;
            }
            Insn { imm: new as u32 as i32, ..first }
        }
        _ => return Err(format!("instruction {first:?} takes no relocation").into()),
    };
    if let Some(slot) = insns.first_mut() {
        *slot = patched;
    }
    Ok(())
}

fn expect_imm(found: i32, answer: &Answer) -> Result<(), CoreError> {
    match answer.old {
        Some(old) if old as u32 != found as u32 => {
            Err(format!("the instruction holds {found}, not {old}").into())
        }
        _ => Ok(()),
    }
}

fn too_large(new: u64) -> CoreError {
    CoreError::Other(format!("{new} does not fit the instruction"))
}

/// Changes the width of a memory access.
fn with_size(code: u8, before: u64, after: u64) -> Result<u8, CoreError> {
    const WIDTHS: &[(u64, u8)] = &[(1, op::B), (2, op::H), (4, op::W), (8, op::DW)];
    let width = |bytes: u64| WIDTHS.iter().find(|(n, _)| *n == bytes).map(|(_, w)| *w);
    let (Some(old), Some(new)) = (width(before), width(after)) else {
        return Err(format!("no access is {after} bytes wide").into());
    };
    if code & op::DW != old {
        return Err(format!("the access is not {before} bytes wide").into());
    }
    Ok(code & !op::DW | new)
}

/// Turns an instruction, and the other half of a 64-bit immediate, into a call that no verifier
/// lets pass.
fn poison(first: Insn, insns: &mut [Insn]) {
    let slots = if first.is_ld_imm64() { 2 } else { 1 };
    insns.iter_mut().take(slots).for_each(|slot| *slot = Insn::call(POISON_CORE as u32));
}
