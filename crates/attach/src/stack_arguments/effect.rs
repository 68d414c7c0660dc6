//! What one instruction does to the stack, and where it goes on.

use super::track::{At, Use, step};
use crate::flow::{Flow, flow};
use crate::predecode::{Kind, Predecoded};
use iced_x86::{Instruction, OpKind, Register};

/// What an instruction does, apart from what it finds in memory.
pub(super) struct Effect {
    pub(super) flow: Flow,
    /// Where it jumps to.
    pub(super) target: Option<u64>,
    /// It finds memory through rsp or rbp.
    pub(super) on_stack: bool,
    /// Where the pointers are behind it.
    pub(super) next: At,
    /// What moving them says.
    pub(super) moved: Use,
}

/// More bytes than any instruction reads or writes that [`Kind`] tells of: the state of the x87 is 108.
const LARGEST: i64 = 128;

/// Where the pointers are behind an instruction that goes on there, or calls; `None`: it leads away, or
/// may look at the return address or above, where all must be known of it.
#[inline(always)]
pub(super) fn onward(found: Predecoded, at: At) -> Option<At> {
    let is_below = |depth: Option<i64>| {
        depth.is_some_and(|depth| i64::from(found.by).saturating_sub(depth) <= -LARGEST)
    };
    let moved = |by: i64| Some(At { rsp: at.rsp.map(|rsp| rsp + by), ..at });
    match found.kind {
        Kind::Plain | Kind::Relative | Kind::Call | Kind::IndirectCall => Some(at),
        Kind::Rsp if is_below(at.rsp) => Some(at),
        Kind::Rbp if is_below(at.rbp) => Some(at),
        Kind::Push => moved(8),
        Kind::Pop if at.rsp != Some(0) => moved(-8),
        Kind::Adjust => moved(-i64::from(found.by)),
        _ => None,
    }
}

impl Effect {
    /// What an instruction does that ends at `end`; `None`: it may look at the return address or above,
    /// where all must be known of it.
    #[inline]
    pub(super) fn of(found: Predecoded, end: u64, at: At) -> Option<Self> {
        let (flow, target, next) = match found.kind {
            Kind::Jump => (Flow::UnconditionalBranch, Some(found.target(end)), at),
            Kind::Branch => (Flow::ConditionalBranch, Some(found.target(end)), at),
            Kind::IndirectJump | Kind::LinkageJump => (Flow::IndirectBranch, None, at),
            Kind::Return => (Flow::Return, None, at),
            Kind::Call => (Flow::Call, None, at),
            Kind::IndirectCall => (Flow::IndirectCall, None, at),
            _ => (Flow::Next, None, onward(found, at)?),
        };
        let on_stack = matches!(found.kind, Kind::Rsp | Kind::Rbp);
        Some(Self { flow, target, on_stack, next, moved: Use::default() })
    }

    /// The same of an instruction of which all is known.
    pub(super) fn of_full(i: &Instruction, at: At) -> Self {
        let mut moved = Use::default();
        let next = step(i, at, &mut moved);
        let flow = flow(i);
        let jumps = matches!(flow, Flow::UnconditionalBranch | Flow::ConditionalBranch)
            && matches!(i.op0_kind(), OpKind::NearBranch64);
        let target = jumps.then(|| i.near_branch_target());
        let on_stack = matches!(i.memory_base(), Register::RSP | Register::RBP);
        Self { flow, target, on_stack, next, moved }
    }
}

#[cfg(test)]
mod tests {
    use super::super::track::memory;
    use super::*;
    use crate::predecode::{predecode, tests::each_encoding};
    use iced_x86::{Decoder, DecoderOptions};

    /// Where the quick answer says something, it is what is found by all that is known of the
    /// instruction.
    #[test]
    fn quick_answers_are_those_of_a_full_look() {
        let states = [(Some(0), None), (Some(72), None), (Some(4096), Some(8)), (None, Some(240))];
        let mut compared = 0;
        each_encoding(|bytes| {
            let i = Decoder::with_ip(64, bytes, 0x4000, DecoderOptions::NONE).decode();
            let quick = predecode(bytes);
            if i.is_invalid() {
                return;
            }
            for (rsp, rbp) in states {
                let at = At { rsp, rbp };
                let Some(ours) = Effect::of(quick, i.next_ip(), at) else { continue };
                let full = Effect::of_full(&i, at);
                let seen = (ours.flow, ours.on_stack, ours.next, ours.moved);
                assert_eq!(seen, (full.flow, full.on_stack, full.next, full.moved), "{bytes:02x?}");
                assert_eq!(ours.target, full.target, "{bytes:02x?}");
                let mut touched = Use::default();
                memory(&i, at, &mut touched);
                assert_eq!(touched, Use::default(), "{bytes:02x?} {at:?}");
                compared += 1;
            }
        });
        assert!(compared > 1_000_000, "{compared}");
    }
}
