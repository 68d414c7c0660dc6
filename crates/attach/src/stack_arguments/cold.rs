//! Cold parts of functions, which are only jumped to.

use super::track::{At, UNKNOWN, Use, memory, same, step};
use crate::addresses::AddressMap;
use crate::flow::{Flow, flow};
use iced_x86::{Decoder, DecoderOptions, OpKind};
use std::ops::Range;

/// A part that is only jumped to. Other places in it that the hot part jumps to are looked at with
/// the state that they are reached in, from there. What nothing visible leads to, a landing pad
/// usually, is taken to be in the state of the first place: that is a guess, and what it seems to
/// do to the return address does not count.
pub(super) fn cold_part(range: &Range<u64>, bytes: &[u8], at: At, budget: &mut u32) -> Use {
    let mut out = Use::default();
    let mut ahead: AddressMap<At> = AddressMap::default();
    let (mut now, mut guessed) = (at, false);
    let mut decoder = Decoder::with_ip(64, bytes, range.start, DecoderOptions::NONE);
    while decoder.can_decode() {
        let i = decoder.decode();
        if i.is_invalid() {
            break;
        }
        let Some(rest) = budget.checked_sub(1) else {
            out.words = out.words.max(UNKNOWN);
            break;
        };
        *budget = rest;
        if let Some(other) = ahead.remove(&i.ip()) {
            now = if guessed {
                other
            } else {
                At { rsp: same(now.rsp, other.rsp), rbp: same(now.rbp, other.rbp) }
            };
            guessed = false;
        }
        let mut one = Use::default();
        let guess = guessed;
        memory(&i, now, &mut one);
        let flow = flow(&i);
        let branches = matches!(flow, Flow::UnconditionalBranch | Flow::ConditionalBranch);
        if branches && !guessed && matches!(i.op0_kind(), OpKind::NearBranch64) {
            let target = i.near_branch_target();
            if range.contains(&target) && target > i.ip() {
                let merged = ahead.get(&target).map_or(now, |old| At {
                    rsp: same(old.rsp, now.rsp),
                    rbp: same(old.rbp, now.rbp),
                });
                ahead.insert(target, merged);
            }
        }
        (now, guessed) = match flow {
            Flow::Return | Flow::UnconditionalBranch | Flow::IndirectBranch | Flow::Exception => {
                (at, true)
            }
            _ => (step(&i, now, &mut one), guessed),
        };
        out.words = out.words.max(one.words);
        out.return_address |= one.return_address && !guess;
    }
    out
}
