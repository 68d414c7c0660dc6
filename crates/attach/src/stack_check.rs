//! The check of the stack that functions of some runtimes begin with.

use crate::code;
use crate::flow::{Flow, flow, has_memory};
use iced_x86::{Decoder, DecoderOptions, Mnemonic, OpKind, Register};
use std::ops::Range;

/// Finds the end of the check of the stack that a function begins with: a comparison, and a branch
/// to a call that makes room and then begins the function again.
///
/// What comes before the branch must not touch the stack, and the path back must lead to the
/// function's first instruction.
///
/// # Safety
/// As [`code::bytes`].
pub(crate) unsafe fn behind_stack_check(own: &Range<u64>) -> Option<u64> {
    /// Instructions of the check, and of the path that makes room: it saves up to 24 registers, and
    /// loads them again.
    const CHECK: usize = 8;
    const PATH: usize = 64;
    // SAFETY: the caller's promise.
    let bytes = unsafe { code::bytes(own) };
    let mut compared = false;
    let mut makes_room = None;
    let mut behind = None;
    for i in Decoder::with_ip(64, bytes, own.start, DecoderOptions::NONE).into_iter().take(CHECK) {
        match flow(&i) {
            Flow::ConditionalBranch => {
                // Of two branches, for the largest frames, both lead to the same place.
                let target = i.near_branch_target();
                if !own.contains(&target)
                    || target <= i.ip()
                    || makes_room.is_some_and(|other| other != target)
                {
                    return None;
                }
                makes_room = Some(target);
                if compared {
                    behind = Some(i.next_ip());
                    break;
                }
            }
            Flow::Next => {
                let pushes = i.stack_pointer_increment() != 0
                    || (i.op0_kind() == OpKind::Register && i.op0_register() == Register::RSP);
                let looks = matches!(i.mnemonic(), Mnemonic::Cmp | Mnemonic::Test | Mnemonic::Nop);
                if !looks && (pushes || i.op0_kind() == OpKind::Memory) {
                    return None;
                }
                compared |= i.mnemonic() == Mnemonic::Cmp && has_memory(&i);
            }
            _ => return None,
        }
    }
    let (behind, start) = (behind?, makes_room?);
    let path = bytes.get((start - own.start) as usize..)?;
    let mut called = false;
    for i in Decoder::with_ip(64, path, start, DecoderOptions::NONE).into_iter().take(PATH) {
        match flow(&i) {
            Flow::Next => {}
            Flow::Call if !called => called = true,
            Flow::UnconditionalBranch => {
                return (called && i.near_branch_target() == own.start).then_some(behind);
            }
            _ => return None,
        }
    }
    None
}

/// Tells whether a function neither calls nor ends in another one, and uses hardly any stack.
///
/// # Safety
/// As [`code::bytes`].
pub(crate) unsafe fn calls_nothing(own: &Range<u64>) -> bool {
    /// A red zone's worth of pushes and locals.
    const FRAME: i64 = 128;
    // SAFETY: the caller's promise.
    let bytes = unsafe { code::bytes(own) };
    // Where a symbol table does not say how long it is, it reaches to the next function.
    let len = bytes.iter().rposition(|byte| *byte != 0xcc).map_or(0, |last| last + 1);
    let mut used = 0;
    Decoder::with_ip(64, bytes, own.start, DecoderOptions::NONE).into_iter().all(|i| {
        let to_rsp = i.op0_kind() == OpKind::Register && i.op0_register() == Register::RSP;
        match flow(&i) {
            Flow::Next if to_rsp && i.mnemonic() == Mnemonic::Sub => used += i.immediate(1) as i64,
            Flow::Next if to_rsp && i.mnemonic() != Mnemonic::Cmp => {
                used += if i.mnemonic() == Mnemonic::Add { 0 } else { FRAME }
            }
            Flow::Next => used -= i64::from(i.stack_pointer_increment().min(0)),
            Flow::Return | Flow::Exception => {}
            Flow::ConditionalBranch | Flow::UnconditionalBranch => {
                return own.contains(&i.near_branch_target());
            }
            _ if i.ip() - own.start >= len as u64 => {}
            _ => return false,
        }
        used <= FRAME
    })
}
