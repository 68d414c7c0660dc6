//! Cold parts of functions, which are only jumped to.

use super::ahead::Ahead;
use super::effect::Effect;
use super::track::{At, UNKNOWN, Use, memory};
use crate::flow::Flow;
use crate::predecode::{Instructions, Kind};
use iced_x86::DecoderOptions;
use std::ops::Range;

/// A part that is only jumped to. Other places in it that the hot part jumps to are looked at with
/// the state that they are reached in, from there. What nothing visible leads to, a landing pad
/// usually, is taken to be in the state of the first place: that is a guess, and what it seems to
/// do to the return address does not count.
pub(super) fn cold_part(range: &Range<u64>, bytes: &[u8], at: At, budget: &mut u32) -> Use {
    let mut out = Use::default();
    let mut ahead = Ahead::default();
    let (mut now, mut guessed) = (at, false);
    let size = (range.end - range.start) as usize;
    let mut all = Instructions::within(bytes, size, range.start, DecoderOptions::NONE);
    while let Some(found) = all.next() {
        if found.kind == Kind::Unknown && all.full().is_invalid() {
            break;
        }
        let Some(rest) = budget.checked_sub(1) else {
            out.words = out.words.max(UNKNOWN);
            break;
        };
        *budget = rest;
        if let Some(other) = ahead.take(all.ip()) {
            now = if guessed { other } else { now.or(other) };
            guessed = false;
        }
        let mut one = Use::default();
        let effect = match Effect::of(found, all.next_ip(), now) {
            Some(effect) => effect,
            None => {
                let i = all.full();
                memory(i, now, &mut one);
                Effect::of_full(i, now)
            }
        };
        if let Some(target) = effect.target
            && !guessed
            && range.contains(&target)
            && target > all.ip()
        {
            ahead.add(target, now);
        }
        let goes_on = !matches!(
            effect.flow,
            Flow::Return | Flow::UnconditionalBranch | Flow::IndirectBranch | Flow::Exception
        );
        if goes_on {
            one.words = one.words.max(effect.moved.words);
            one.return_address |= effect.moved.return_address;
        }
        out.words = out.words.max(one.words);
        out.return_address |= one.return_address && !guessed;
        (now, guessed) = if goes_on { (effect.next, guessed) } else { (at, true) };
    }
    out
}
