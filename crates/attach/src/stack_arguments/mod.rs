//! How many words above its return address a function uses.
//!
//! An exit trampoline calls the function's body with a frame of its own in between, so arguments on
//! the stack have to be copied. Most functions take none, which the code tells: the stack pointer
//! is followed from the entry through the function, and every access to memory through it, or
//! through rbp where that is the frame pointer, is looked at. What cannot be followed counts as
//! unknown, and unknown is answered with a larger copy.

use crate::addresses::{AddressMap, AddressSet};
use crate::code::{Code, Originals, original_bytes};
use crate::flow::Flow;
use crate::predecode::{Instructions, Kind, Pass, WINDOW};
use ahead::Ahead;
use cold::cold_part;
use effect::{Effect, onward};
use iced_x86::{Code as Op, Decoder, DecoderOptions, Register};
use std::borrow::Cow;
use std::ops::Range;
use stores::Stores;
use track::{At, LARGE, TAKEN, UNKNOWN, Use, memory};

mod ahead;
mod cold;
mod effect;
mod stores;
mod track;
mod uses;

pub(crate) use uses::Uses;

/// Bytes of a cold part that are looked at.
const COLD: u64 = 4096;

/// Instructions of cold parts that are decoded for one function.
const BUDGET: u32 = 4096;

/// Functions that are followed, each from the end of the one before, at most.
const DEEPEST: usize = 17;

/// What is known of code that was followed and is no function's start; of those, the module's [`Code`]
/// knows.
#[derive(Default)]
pub(crate) struct Followed {
    known: AddressMap<Use>,
    /// Parts of functions that were looked at, and with what state.
    parts: AddressSet<(u64, At)>,
}

/// Follows functions, and the functions that they end in a jump to.
pub(crate) struct Follower<'a, 'f> {
    code: &'a Code,
    originals: Originals<'a>,
    followed: &'f mut Followed,
    /// The functions that are being looked at: each ends in a jump to the next.
    looking: Vec<u64>,
    /// Functions that were looked at and lead back to one that is being looked at: what that uses, they
    /// use. With what they use themselves, and the number of the first one that they lead back to.
    circles: Vec<(u64, Use, usize)>,
    /// The first of `looking` that is led back to, since the last of them was come to.
    back_to: usize,
    /// Instructions of cold parts that may still be decoded for the function that was asked for.
    budget: u32,
}

impl<'a, 'f> Follower<'a, 'f> {
    pub(crate) fn new(
        code: &'a Code,
        originals: Originals<'a>,
        followed: &'f mut Followed,
    ) -> Self {
        Self {
            code,
            originals,
            followed,
            looking: Vec::with_capacity(DEEPEST + 1),
            circles: Vec::new(),
            back_to: usize::MAX,
            budget: 0,
        }
    }

    /// Looks at the function in `range`, which is known to begin and end there.
    pub(crate) fn follow(&mut self, range: &Range<u64>) -> Use {
        let number = self.code.number(range.start);
        if let Some(known) = self.known(number, range.start) {
            return known;
        }
        let Some(bytes) = self.readable(range) else {
            return Use { words: UNKNOWN, ..Use::default() };
        };
        if let Some(depth) = self.looking.iter().position(|start| *start == range.start) {
            // A circle of tail calls.
            self.back_to = self.back_to.min(depth);
            return Use::default();
        }
        if let Some(&(_, own, depth)) =
            self.circles.iter().find(|(start, ..)| *start == range.start)
        {
            self.back_to = self.back_to.min(depth);
            return own;
        }
        let depth = self.looking.len();
        if depth == 0 {
            self.budget = BUDGET;
        }
        let before = std::mem::replace(&mut self.back_to, usize::MAX);
        let circles = self.circles.len();
        self.looking.push(range.start);
        let mut out = self.walk(range, &bytes, depth > 0 && number.is_none());
        self.looking.pop();
        if out.words >= TAKEN && !variadic(range, &bytes) {
            out.words = out.words.max(LARGE);
        }
        if self.back_to < depth {
            self.circles.push((range.start, out, self.back_to));
            self.back_to = self.back_to.min(before);
            return out;
        }
        self.back_to = before;
        self.know(number, range.start, out);
        // All that lead back to this one, from which they were come to.
        while self.circles.len() > circles
            && let Some((start, ..)) = self.circles.pop()
        {
            self.know(self.code.number(start), start, out);
        }
        out
    }

    /// What is known of the code at `start`, or of the function that has the number.
    fn known(&self, number: Option<usize>, start: u64) -> Option<Use> {
        match number {
            Some(number) => self.code.uses().get(number),
            None => self.followed.known.get(&start).copied(),
        }
    }

    fn know(&mut self, number: Option<usize>, start: u64, what: Use) {
        match number {
            Some(number) => self.code.uses().set(number, what),
            None => drop(self.followed.known.insert(start, what)),
        }
    }

    /// `open`: nobody knows where it ends, so it ends where nothing visible goes on.
    fn walk(&mut self, range: &Range<u64>, bytes: &[u8], open: bool) -> Use {
        let mut out = Use::default();
        // States at the targets of forward jumps, and the one that code without a visible path to
        // it is taken to be in.
        let mut ahead = Ahead::default();
        let mut usual: Option<At> = None;
        // In code that only backward or indirect jumps lead to, so that its state is a guess.
        let mut guessed = false;
        let mut stores = Stores::default();
        let mut now = Some(At { rsp: Some(0), rbp: None });
        let size = (range.end - range.start) as usize;
        let mut all = Instructions::within(bytes, size, range.start, DecoderOptions::NONE);
        loop {
            // Most leave all as it is.
            if let Some(at) = now.filter(|_| !guessed)
                && all.pass_over(Pass::OffStack, ahead.next())
                && at.is_within_frame(usual)
            {
                usual = now;
            }
            let Some(found) = all.next() else { break };
            if let Some(at) = now
                && !guessed
                && !ahead.is_due(all.ip())
                && let Some(next) = onward(found, at)
            {
                // So do most others, but for the pointers.
                let calls = matches!(found.kind, Kind::Call | Kind::IndirectCall);
                let is_usual = match calls {
                    true => at.rsp.is_some_and(|rsp| rsp > 0),
                    false => at.is_within_frame(usual),
                };
                if is_usual {
                    usual = now;
                }
                now = Some(next);
                continue;
            }
            let mut landed = false;
            if let Some(at) = ahead.take(all.ip()) {
                landed = true;
                // What was guessed of the padding before it says nothing.
                now = Some(match now.filter(|_| !guessed) {
                    Some(n) => n.or(at),
                    None => at,
                });
            }
            guessed = if now.is_none() { true } else { guessed && !landed };
            if now.is_none() && open && ahead.is_empty() {
                break;
            }
            let at = now.or(usual).unwrap_or(At { rsp: None, rbp: None });
            let effect = match Effect::of(found, all.next_ip(), at) {
                Some(effect) => effect,
                None => {
                    let i = all.full();
                    if guessed {
                        // A landing pad, usually. What it seems to do to the return address is more
                        // likely a wrong guess.
                        let mut there = Use::default();
                        memory(i, at, &mut there);
                        out.words = out.words.max(there.words);
                    }
                    if i.is_invalid() {
                        out.words = out.words.max(UNKNOWN);
                        now = None;
                        continue;
                    }
                    if !guessed {
                        memory(i, at, &mut out);
                        stores.look(i, at);
                    }
                    Effect::of_full(i, at)
                }
            };
            if guessed && effect.on_stack {
                out.words = out.words.max(UNKNOWN);
            }
            match effect.flow {
                Flow::UnconditionalBranch | Flow::ConditionalBranch => {
                    match effect.target {
                        Some(target) if guessed => {
                            // It is looked at when a branch that is no guess leads there.
                            let mut there = Use::default();
                            let ahead = &mut Ahead::default();
                            self.branch(target, all.ip(), at, range, ahead, &mut there);
                            out.words = out.words.max(there.words);
                        }
                        Some(target) => {
                            self.branch(target, all.ip(), at, range, &mut ahead, &mut out);
                            stores.tail |= at.rsp == Some(0) && !range.contains(&target);
                        }
                        None => {}
                    }
                    if effect.flow == Flow::UnconditionalBranch {
                        now = None;
                        continue;
                    }
                }
                Flow::IndirectBranch => {
                    stores.tail |= at.rsp == Some(0);
                    if at.rsp == Some(0) || at.rsp.is_none() {
                        out.words = out.words.max(UNKNOWN);
                    }
                    usual = Some(at);
                    now = None;
                    continue;
                }
                Flow::Return | Flow::Exception => {
                    now = None;
                    continue;
                }
                Flow::Call | Flow::IndirectCall if at.rsp.is_some_and(|r| r > 0) => {
                    usual = Some(at)
                }
                // Not in the epilogue, where the frame shrinks.
                Flow::Next if at.is_within_frame(usual) => usual = Some(at),
                _ => {}
            }
            now = Some(effect.next);
            out.words = out.words.max(effect.moved.words);
            out.return_address |= effect.moved.return_address && !guessed;
        }
        // Arguments of the function called at the end, most likely, unless the place is used
        // otherwise as well.
        out.writes_caller |= stores.first && (!stores.tail || out.words >= TAKEN);
        out
    }

    fn branch(
        &mut self,
        target: u64,
        from: u64,
        at: At,
        range: &Range<u64>,
        ahead: &mut Ahead,
        out: &mut Use,
    ) {
        if range.contains(&target) {
            if target > from {
                ahead.add(target, at);
            }
            return;
        }
        // Into another part of the function (its cold half), or the call of another function at its
        // end.
        if at.rsp == Some(0) {
            let there = self.other_function(target);
            out.words = out.words.max(there.words);
            out.return_address |= there.return_address;
            out.writes_caller |= there.writes_caller;
        } else if at.rsp.is_none() {
            out.words = out.words.max(UNKNOWN);
        } else {
            // A cold part uses the frame as it is here; what it needs of the arguments, the hot
            // part or an unknown copy has.
            if self.followed.parts.contains(&(target, at)) {
                return;
            }
            let part = target..self.code.next_start(target).min(target.saturating_add(COLD));
            if let Some(bytes) = self.readable(&part) {
                let cold = cold_part(&part, &bytes, at, &mut self.budget);
                if cold == Use::default() {
                    self.followed.parts.insert((target, at));
                }
                out.words = out.words.max(cold.words);
                out.return_address |= cold.return_address;
            }
        }
    }

    fn other_function(&mut self, target: u64) -> Use {
        if self.looking.len() > DEEPEST {
            return Use { words: UNKNOWN, ..Use::default() };
        }
        self.follow(&(target..self.code.next_start(target)))
    }

    /// The bytes of a range of code as the linker left them, and some of those behind it.
    fn readable(&self, range: &Range<u64>) -> Option<Cow<'a, [u8]>> {
        let text = self.code.text_of(range.start)?;
        if range.end > text.end || range.start >= range.end {
            return None;
        }
        let more = range.start..text.end.min(range.end + WINDOW as u64);
        // SAFETY: inside executable memory of a mapped module.
        Some(unsafe { original_bytes(&more, self.originals) })
    }
}

/// Tells whether a function begins as compilers begin variadic ones: by looking whether vector
/// registers were used (`test al, al`).
fn variadic(range: &Range<u64>, bytes: &[u8]) -> bool {
    let code = bytes.get(..(range.end - range.start) as usize).unwrap_or(bytes);
    let decoder = Decoder::with_ip(64, code, range.start, DecoderOptions::NONE);
    decoder.into_iter().take(48).any(|i| {
        i.code() == Op::Test_rm8_r8
            && i.op0_register() == Register::AL
            && i.op1_register() == Register::AL
    })
}
