//! How many words above its return address a function uses.
//!
//! An exit trampoline calls the function's body with a frame of its own in between, so arguments on
//! the stack have to be copied. Most functions take none, which the code tells: the stack pointer
//! is followed from the entry through the function, and every access to memory through it, or
//! through rbp where that is the frame pointer, is looked at. What cannot be followed counts as
//! unknown, and unknown is answered with a larger copy.

use crate::code::Code;
use crate::spot::PATCH;
use iced_x86::{
    Code as Op, Decoder, DecoderOptions, FlowControl, Instruction, Mnemonic, OpKind, Register,
};
use std::borrow::Cow;
use std::collections::{HashMap, HashSet};
use std::ops::Range;

/// What a function does with the words from its return address upwards.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub(crate) struct Use {
    /// Words of arguments on the stack that it may read or write.
    pub(crate) words: u32,
    /// It reads, writes or jumps through its return address otherwise than by returning.
    pub(crate) return_address: bool,
    /// It leaves something above its return address for its caller to find, which a copy would
    /// lose.
    pub(crate) leaves: bool,
}

/// Words copied when a variadic function takes the address of its arguments: a call with more is
/// one nobody has been seen to write.
pub(crate) const TAKEN: u32 = 128;
/// Words copied when another function does: a struct by value that is indexed or handed on, whose
/// size the code does not tell.
pub(crate) const LARGE: u32 = 512;
/// Words copied when the code cannot be followed, and for functions that end in a jump to code that
/// is not known.
pub(crate) const UNKNOWN: u32 = 8;

/// Bytes of a cold part that are looked at.
const COLD: u64 = 4096;
/// Instructions of cold parts that are decoded for one function.
const BUDGET: u32 = 4096;

/// Follows functions, and the functions that they end in a jump to.
pub(crate) struct Follower<'a> {
    code: &'a Code,
    /// Tells the original bytes of a function that is changed at the moment, and where they were.
    original: &'a dyn Fn(u64) -> Option<(u64, [u8; PATCH])>,
    known: HashMap<u64, Option<Use>>,
    /// Parts of functions that were looked at, and with what state.
    parts: HashSet<(u64, At)>,
    depth: u32,
    /// Instructions of cold parts that may still be decoded for the function that was asked for.
    budget: u32,
}

/// Where rsp and rbp point, in bytes below the address of the return address; `None`: not known.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
struct At {
    rsp: Option<i64>,
    rbp: Option<i64>,
}

impl<'a> Follower<'a> {
    pub(crate) fn new(
        code: &'a Code,
        original: &'a dyn Fn(u64) -> Option<(u64, [u8; PATCH])>,
    ) -> Self {
        Self { code, original, known: HashMap::new(), parts: HashSet::new(), depth: 0, budget: 0 }
    }

    /// Looks at the function in `range`.
    pub(crate) fn follow(&mut self, range: &Range<u64>) -> Use {
        let Some(bytes) = self.readable(range) else {
            return Use { words: UNKNOWN, ..Use::default() };
        };
        if let Some(known) = self.known.get(&range.start) {
            // None: a circle of tail calls; whoever asked first adds up.
            return known.unwrap_or_default();
        }
        self.known.insert(range.start, None);
        if self.depth == 0 {
            self.budget = BUDGET;
        }
        let mut out = self.walk(range, &bytes, !self.code.is_start(range.start));
        if out.words >= TAKEN && !variadic(range.start, &bytes) {
            out.words = out.words.max(LARGE);
        }
        self.known.insert(range.start, Some(out));
        out
    }

    /// `open`: nobody knows where it ends, so it ends where nothing visible goes on.
    fn walk(&mut self, range: &Range<u64>, bytes: &[u8], open: bool) -> Use {
        let mut out = Use::default();
        // States at the targets of forward jumps, and the one that code reached in no visible way
        // is taken to be in.
        let mut ahead: HashMap<u64, At> = HashMap::new();
        let mut usual: Option<At> = None;
        // In code that only backward or indirect jumps lead to, so that its state is a guess.
        let mut guessed = false;
        let mut stores = Stores::default();
        let mut now = Some(At { rsp: Some(0), rbp: None });
        let mut decoder = Decoder::with_ip(64, bytes, range.start, DecoderOptions::NONE);
        let mut i = Instruction::default();
        while decoder.can_decode() {
            decoder.decode_out(&mut i);
            let mut landed = false;
            if let Some(at) = ahead.remove(&i.ip()) {
                landed = true;
                // What was guessed of the padding before it says nothing.
                now = Some(match now.filter(|_| !guessed) {
                    Some(n) => At { rsp: same(n.rsp, at.rsp), rbp: same(n.rbp, at.rbp) },
                    None => at,
                });
            }
            guessed = if now.is_none() { true } else { guessed && !landed };
            if now.is_none() && open && ahead.is_empty() {
                break;
            }
            let at = now.or(usual).unwrap_or(At { rsp: None, rbp: None });
            if guessed {
                // A landing pad, usually. What it seems to do to the return address is more likely
                // a wrong guess.
                let mut there = Use::default();
                self.guess(&i, at, range, &mut there);
                out.words = out.words.max(there.words);
            }
            if i.is_invalid() {
                out.words = out.words.max(UNKNOWN);
                now = None;
                continue;
            }
            if !guessed {
                memory(&i, at, &mut out);
                stores.look(&i, at);
            }
            match i.flow_control() {
                FlowControl::UnconditionalBranch | FlowControl::ConditionalBranch => {
                    if !guessed && matches!(i.op0_kind(), OpKind::NearBranch64) {
                        self.branch(&i, at, range, &mut ahead, &mut out);
                        stores.tail |=
                            at.rsp == Some(0) && !range.contains(&i.near_branch_target());
                    }
                    if i.flow_control() == FlowControl::UnconditionalBranch {
                        now = None;
                        continue;
                    }
                }
                FlowControl::IndirectBranch => {
                    stores.tail |= at.rsp == Some(0);
                    if at.rsp == Some(0) || at.rsp.is_none() {
                        out.words = out.words.max(UNKNOWN);
                    }
                    usual = Some(at);
                    now = None;
                    continue;
                }
                FlowControl::Return | FlowControl::Exception => {
                    now = None;
                    continue;
                }
                FlowControl::Call | FlowControl::IndirectCall if at.rsp.is_some_and(|r| r > 0) => {
                    usual = Some(at)
                }
                // Not on the way out, where the frame shrinks.
                FlowControl::Next
                    if at.rsp.is_some_and(|r| r > 0) && at.rsp >= usual.and_then(|u| u.rsp) =>
                {
                    usual = Some(at)
                }
                _ => {}
            }
            let mut moved = Use::default();
            now = Some(step(&i, at, &mut moved));
            out.words = out.words.max(moved.words);
            out.return_address |= moved.return_address && !guessed;
        }
        // Arguments of the function called at the end, most likely, unless the place is used
        // otherwise as well.
        out.leaves |= stores.first && (!stores.tail || out.words >= TAKEN);
        out
    }

    /// Looks at one instruction whose state is a guess.
    fn guess(&mut self, i: &Instruction, at: At, range: &Range<u64>, out: &mut Use) {
        memory(i, at, out);
        if matches!(i.memory_base(), Register::RSP | Register::RBP) {
            out.words = out.words.max(UNKNOWN);
        }
        if matches!(
            i.flow_control(),
            FlowControl::UnconditionalBranch | FlowControl::ConditionalBranch
        ) && matches!(i.op0_kind(), OpKind::NearBranch64)
        {
            // Where it leads to is looked at from elsewhere, if anything leads there that is not a
            // guess.
            self.branch(i, at, range, &mut HashMap::new(), out);
        }
    }

    fn branch(
        &mut self,
        i: &Instruction,
        at: At,
        range: &Range<u64>,
        ahead: &mut HashMap<u64, At>,
        out: &mut Use,
    ) {
        let target = i.near_branch_target();
        if range.contains(&target) {
            if target > i.ip() {
                let merged = ahead.get(&target).map_or(at, |old| At {
                    rsp: same(old.rsp, at.rsp),
                    rbp: same(old.rbp, at.rbp),
                });
                ahead.insert(target, merged);
            }
            return;
        }
        // Into another part of the function (its cold half), or the call of another function at its
        // end.
        if at.rsp == Some(0) {
            let there = self.elsewhere(target);
            out.words = out.words.max(there.words);
            out.return_address |= there.return_address;
            out.leaves |= there.leaves;
        } else if at.rsp.is_none() {
            out.words = out.words.max(UNKNOWN);
        } else {
            // A cold part uses the frame as it is here; what it needs of the arguments, the hot
            // part or an unknown copy has.
            if self.parts.contains(&(target, at)) {
                return;
            }
            let part = target..self.code.next_start(target).min(target.saturating_add(COLD));
            if let Some(bytes) = self.readable(&part) {
                let cold = cold_part(&part, &bytes, at, &mut self.budget);
                if cold == Use::default() {
                    self.parts.insert((target, at));
                }
                out.words = out.words.max(cold.words);
                out.return_address |= cold.return_address;
            }
        }
    }

    fn elsewhere(&mut self, target: u64) -> Use {
        if self.depth > 16 {
            return Use { words: UNKNOWN, ..Use::default() };
        }
        let range = target..self.code.next_start(target);
        self.depth += 1;
        let out = self.follow(&range);
        self.depth -= 1;
        out
    }

    /// The bytes of a range of code as the linker left them.
    fn readable(&self, range: &Range<u64>) -> Option<Cow<'a, [u8]>> {
        let text = self.code.text_of(range.start)?;
        if range.end > text.end || range.start >= range.end {
            return None;
        }
        // SAFETY: inside executable memory of a mapped module.
        let mut bytes = Cow::Borrowed(unsafe { crate::code::bytes(range) });
        if let Some((at, original)) = (self.original)(range.start) {
            let from = at.wrapping_sub(range.start) as usize;
            for (b, o) in bytes.to_mut().iter_mut().skip(from).zip(original) {
                *b = o;
            }
        }
        Some(bytes)
    }
}

/// Stores above the return address to places that were not read before.
///
/// Compilers do not write to an argument that they have not looked at. Hand-written code does that:
/// parts of one large function call each other and keep their variables in a frame that they share.
#[derive(Default)]
struct Stores {
    read: Vec<i64>,
    /// From this word on it was looked at by index or through its address: a struct by value,
    /// which a function may change.
    indexed: Option<i64>,
    first: bool,
    /// The function ends in a jump to another one, for which compilers do store arguments.
    tail: bool,
}

impl Stores {
    fn look(&mut self, i: &Instruction, at: At) {
        let depth = match i.memory_base() {
            Register::RSP => at.rsp,
            Register::RBP => at.rbp,
            _ => return,
        };
        let Some(depth) = depth else { return };
        let offset = (i.memory_displacement64() as i64).wrapping_sub(depth);
        if offset < 8 || i.mnemonic() == Mnemonic::Nop {
            return;
        }
        let word = offset / 8;
        if i.mnemonic() == Mnemonic::Lea || i.memory_index() != Register::None {
            self.indexed = Some(self.indexed.map_or(word, |from| from.min(word)));
            return;
        }
        if i.op0_kind() == OpKind::Memory
            && i.memory_index() == Register::None
            && is_store(i.mnemonic())
        {
            self.first |= !self.read.contains(&word) && self.indexed.is_none_or(|from| word < from);
        } else if (0..i.op_count()).any(|n| i.op_kind(n) == OpKind::Memory) {
            let words = (i.memory_size().size().max(1) as i64 + 7) / 8;
            self.read.extend(word..word + words);
        }
    }
}

/// Tells whether an instruction with memory as its first operand writes there without reading.
fn is_store(m: Mnemonic) -> bool {
    matches!(m, Mnemonic::Mov | Mnemonic::Movq | Mnemonic::Movd | Mnemonic::Movss | Mnemonic::Movsd)
        || matches!(
            m,
            Mnemonic::Movaps
                | Mnemonic::Movapd
                | Mnemonic::Movups
                | Mnemonic::Movupd
                | Mnemonic::Movdqa
                | Mnemonic::Movdqu
        )
        || matches!(
            m,
            Mnemonic::Vmovaps | Mnemonic::Vmovapd | Mnemonic::Vmovups | Mnemonic::Vmovupd
        )
        || matches!(
            m,
            Mnemonic::Vmovdqa | Mnemonic::Vmovdqu | Mnemonic::Vmovdqa64 | Mnemonic::Vmovdqu64
        )
        || matches!(
            m,
            Mnemonic::Vmovdqa32
                | Mnemonic::Vmovdqu32
                | Mnemonic::Vmovdqu8
                | Mnemonic::Vmovq
                | Mnemonic::Vmovd
        )
}

/// Tells whether a function begins as compilers begin variadic ones: by looking whether vector
/// registers were used (`test al, al`).
fn variadic(start: u64, bytes: &[u8]) -> bool {
    let decoder = Decoder::with_ip(64, bytes, start, DecoderOptions::NONE);
    decoder.into_iter().take(48).any(|i| {
        i.code() == Op::Test_rm8_r8
            && i.op0_register() == Register::AL
            && i.op1_register() == Register::AL
    })
}

/// A part that is only jumped to. Other places in it that the hot part jumps to are looked at with
/// the state that they are reached in, from there. What nothing visible leads to, a landing pad
/// usually, is taken to be in the state of the first place: that is a guess, and what it seems to
/// do to the return address does not count.
fn cold_part(range: &Range<u64>, bytes: &[u8], at: At, budget: &mut u32) -> Use {
    let mut out = Use::default();
    let mut ahead: HashMap<u64, At> = HashMap::new();
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
        let flow = i.flow_control();
        let branches =
            matches!(flow, FlowControl::UnconditionalBranch | FlowControl::ConditionalBranch);
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
            FlowControl::Return
            | FlowControl::UnconditionalBranch
            | FlowControl::IndirectBranch
            | FlowControl::Exception => (at, true),
            _ => (step(&i, now, &mut one), guessed),
        };
        out.words = out.words.max(one.words);
        out.return_address |= one.return_address && !guess;
    }
    out
}

fn same(a: Option<i64>, b: Option<i64>) -> Option<i64> {
    if a == b { a } else { None }
}

/// Looks at the memory that an instruction touches.
fn memory(i: &Instruction, at: At, out: &mut Use) {
    let base = i.memory_base();
    let depth = match base {
        Register::RSP => at.rsp,
        Register::RBP => at.rbp,
        _ => return,
    };
    if !(0..i.op_count()).any(|n| i.op_kind(n) == OpKind::Memory) {
        return;
    }
    let Some(depth) = depth else {
        if base == Register::RSP {
            out.words = out.words.max(UNKNOWN);
        }
        return;
    };
    // Offset from the address of the return address.
    let offset = (i.memory_displacement64() as i64).wrapping_sub(depth);
    if i.mnemonic() == Mnemonic::Lea {
        // `lea` is also how stack pointers are moved; those go to rsp or rbp.
        let to_stack = matches!(i.op0_register(), Register::RSP | Register::RBP);
        if offset >= 8 && !to_stack {
            out.words = out.words.max(TAKEN);
        } else if offset >= 0 && !to_stack {
            out.return_address = true;
        }
        return;
    }
    if i.mnemonic() == Mnemonic::Nop {
        return;
    }
    let size = i.memory_size().size().max(1) as i64;
    if offset >= 8 {
        let words = (offset - 8 + size + 7) / 8;
        let words = u32::try_from(words).unwrap_or(TAKEN);
        // An index walks on from there.
        out.words = out.words.max(if i.memory_index() == Register::None {
            words
        } else {
            words.max(TAKEN)
        });
    } else if offset + size > 0 && i.memory_index() == Register::None {
        out.return_address = true;
        if offset + size > 8 {
            out.words = out.words.max(((offset + size - 8 + 7) / 8) as u32);
        }
    }
}

/// Moves the pointers as the instruction does.
fn step(i: &Instruction, at: At, out: &mut Use) -> At {
    let mut next = at;
    let to_rsp = i.op0_kind() == OpKind::Register && i.op0_register() == Register::RSP;
    let to_rbp = i.op0_kind() == OpKind::Register && i.op0_register() == Register::RBP;
    match i.mnemonic() {
        Mnemonic::Push | Mnemonic::Pushfq => {
            next.rsp = at.rsp.map(|r| r - i64::from(i.stack_pointer_increment()))
        }
        Mnemonic::Pop | Mnemonic::Popfq => {
            if at.rsp == Some(0) {
                out.return_address = true;
            }
            next.rsp = at.rsp.map(|r| r - i64::from(i.stack_pointer_increment()));
            if to_rsp {
                next.rsp = None;
            }
            if to_rbp {
                next.rbp = None;
            }
        }
        Mnemonic::Leave => {
            next.rsp = at.rbp.map(|r| r - 8);
            next.rbp = None;
        }
        Mnemonic::Enter => next = At { rsp: None, rbp: None },
        Mnemonic::Sub | Mnemonic::Add if to_rsp || to_rbp => {
            let sign = if i.mnemonic() == Mnemonic::Sub { 1 } else { -1 };
            let by = matches!(i.op1_kind(), OpKind::Immediate8to64 | OpKind::Immediate32to64)
                .then(|| sign * (i.immediate(1) as i64));
            let slot = if to_rsp { &mut next.rsp } else { &mut next.rbp };
            *slot = slot.zip(by).map(|(r, b)| r + b);
        }
        Mnemonic::Lea if to_rsp || to_rbp => {
            let from = match i.memory_base() {
                Register::RSP => at.rsp,
                Register::RBP => at.rbp,
                _ => None,
            };
            let plain = i.memory_index() == Register::None;
            let to = from.filter(|_| plain).map(|r| r - i.memory_displacement64() as i64);
            *(if to_rsp { &mut next.rsp } else { &mut next.rbp }) = to;
        }
        Mnemonic::Mov if i.code() == Op::Mov_r64_rm64 || i.code() == Op::Mov_rm64_r64 => {
            let from = match (i.op1_kind(), i.op1_register()) {
                (OpKind::Register, Register::RSP) => Some(at.rsp),
                (OpKind::Register, Register::RBP) => Some(at.rbp),
                _ => None,
            };
            if to_rsp {
                next.rsp = from.flatten();
            } else if to_rbp {
                next.rbp = from.flatten();
            } else if i.op0_kind() == OpKind::Register
                && i.op1_kind() == OpKind::Register
                && i.op1_register() == Register::RSP
                && at.rsp == Some(0)
            {
                // A copy of the stack pointer as it was at entry can reach everything above.
                out.words = out.words.max(TAKEN);
                out.return_address = true;
            }
        }
        _ if to_rsp => next.rsp = None,
        _ if to_rbp && !matches!(i.mnemonic(), Mnemonic::Cmp | Mnemonic::Test) => next.rbp = None,
        _ => {}
    }
    next
}
