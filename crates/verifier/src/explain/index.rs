//! Where the variable part of an address comes from: the index, what it was multiplied by, and the
//! tests of it along the path.
//!
//! Followed backwards through the steps of the path, inside one function, through registers,
//! numbers added and multiplied, and slots of the stack that were filled whole. What cannot be
//! followed is left alone: then there is an offset and no index.

use skep_isa::{Insn, op};

use crate::cfg::{is_conditional, uses};
use crate::reject::Step;

/// A comparison of the index with a number, as the path took it.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct Test {
    /// Which step.
    pub step: usize,
    pub bound: Bound,
    /// The comparison takes numbers for signed.
    pub signed: bool,
    /// It looks at the lower 32 bits only.
    pub narrow: bool,
    /// A constant was added between it and the use.
    pub moved: bool,
    /// What the number that it looks at is multiplied by afterwards.
    pub scale: u64,
}

/// What a comparison leaves of the index.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Bound {
    /// At most so much.
    AtMost(i64),
    /// At least so much.
    AtLeast(i64),
    /// Something about a number in another register.
    Unknown,
    /// A single number, or all but one: no bound.
    None,
}

/// The index of an address.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(super) struct Index {
    /// What it is multiplied by.
    pub scale: u64,
    /// What was added, when that was known: it is part of the pointer's own offset then.
    pub known: Option<i64>,
    /// A mask that it went through: which step, the mask, and what the number was multiplied by
    /// afterwards.
    pub mask: Option<(usize, i32, u64)>,
    pub tests: Vec<Test>,
    /// The load that it comes from, if it does and the load is not of the stack.
    pub load: Option<usize>,
    /// It comes from other numbers, or out of a function of the program: those may have been
    /// tested.
    pub computed: bool,
    /// It comes from before the first step that is known.
    pub cut: bool,
}

/// What is followed.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Place {
    Reg(u8),
    /// An offset from the frame pointer.
    Slot(i16),
}

/// Finds the index that was added to the pointer in `reg`, before the step `end`.
pub(super) fn of_pointer(steps: &[Step], end: usize, reg: u8) -> Option<Index> {
    let mut pointer = Place::Reg(reg);
    for (n, call) in before(steps, end) {
        let code = steps[n].code;
        if call {
            if is_argument(pointer) {
                continue;
            }
            return None;
        }
        if !writes(code, pointer) {
            continue;
        }
        pointer = match source(code, pointer) {
            Some(from) => from,
            None if code.code == (op::ALU64 | op::ADD | op::K) => continue,
            None if code.code == (op::ALU64 | op::ADD | op::X) => {
                let added = added(&steps[n])?;
                return Some(Index {
                    known: known(&steps[n], added),
                    ..of_number(steps, n, added)
                });
            }
            None => return None,
        };
    }
    None
}

/// The number that an addition adds to a pointer.
pub(super) fn added(step: &Step) -> Option<u8> {
    let number = |what: &str| {
        what.starts_with("scalar(") || what.starts_with(|c: char| c == '-' || c.is_ascii_digit())
    };
    [step.code.src(), step.code.dst()]
        .into_iter()
        .find(|r| step.regs.iter().any(|(of, what)| of == r && number(what)))
}

/// The number that a register held, when it was only one.
fn known(step: &Step, reg: u8) -> Option<i64> {
    let (_, text) = step.regs.iter().find(|(r, _)| *r == reg)?;
    match text.strip_prefix("0x") {
        Some(hex) => u64::from_str_radix(hex, 16).ok().map(|n| n as i64),
        None => text.parse().ok(),
    }
}

/// Finds where the number in `reg` comes from, before the step `end`.
pub(super) fn of_number(steps: &[Step], end: usize, reg: u8) -> Index {
    let mut index = Index {
        scale: 1,
        known: None,
        mask: None,
        tests: Vec::new(),
        load: None,
        computed: false,
        cut: true,
    };
    let mut place = Place::Reg(reg);
    // Comparisons met so far, also those of registers that may turn out to hold the same number.
    let mut compared: Vec<usize> = Vec::new();
    let mut moved = false;
    // A shift to the right whose partner, a shift to the left, comes before it: together they
    // extend 32 bits to 64, or less far.
    let mut right: Option<i32> = None;
    for (n, call) in before(steps, end) {
        let code = steps[n].code;
        if call {
            // Its caller's registers are others.
            compared.clear();
            if is_argument(place) {
                continue;
            }
            index.cut = false;
            break;
        }
        if is_conditional(code) {
            compared.push(n);
            index.take(steps, place, &[n], moved);
            continue;
        }
        // What was compared of a register before it was written is of another number.
        let (_, written) = uses(code);
        if !writes(code, place) {
            compared.retain(|c| uses(steps[*c].code).0 & written == 0);
            continue;
        }
        let arithmetic = matches!(code.class(), op::ALU | op::ALU64);
        if let Some(from) = source(code, place) {
            index.take(steps, from, &compared, moved);
            place = from;
            continue;
        }
        if let Some(back) = right.take() {
            let left = code
                .imm
                .checked_sub(back)
                .filter(|n| (0..=32).contains(n) && code.code == op::ALU64 | op::LSH | op::K);
            let Some(left) = left else {
                index.cut = false;
                break;
            };
            index.scale = index.scale.saturating_mul(1 << left);
            compared.clear();
            continue;
        }
        match code.code & 0xf8 {
            c if arithmetic && c == op::LSH | op::K && (0..32).contains(&code.imm) => {
                index.scale = index.scale.saturating_mul(1 << code.imm)
            }
            c if arithmetic && c == op::MUL | op::K && code.imm > 0 => {
                index.scale = index.scale.saturating_mul(code.imm as u64)
            }
            c if code.class() == op::ALU64 && (c == op::RSH | op::K || c == op::ARSH | op::K) => {
                right = Some(code.imm)
            }
            // The user's, or one that compilers put behind a test.
            c if arithmetic && c == op::AND | op::K => {
                index.mask = index.mask.or(Some((n, code.imm, index.scale)))
            }
            c if arithmetic && c == op::ADD | op::K => moved = true,
            _ => {
                if code.class() == op::LDX {
                    index.load = Some(n);
                }
                index.cut = false;
                index.computed = arithmetic && code.code & 0xf0 != op::MOV || code.is_local_call();
                break;
            }
        }
        compared.clear();
    }
    index
}

impl Index {
    /// The lowest upper bound that was tested; one of the number itself goes before one of what it
    /// was before an addition.
    pub fn at_most(&self) -> Option<(i64, Test)> {
        let bounds = self
            .tests
            .iter()
            .filter_map(|t| if let Bound::AtMost(n) = t.bound { Some((n, *t)) } else { None });
        bounds.min_by_key(|(n, t)| (t.moved, *n))
    }

    /// Keeps the comparisons of the number in `place`.
    fn take(&mut self, steps: &[Step], place: Place, compared: &[usize], moved: bool) {
        let Place::Reg(reg) = place else { return };
        for &n in compared {
            if self.tests.iter().all(|t| t.step != n) {
                self.tests.extend(test(steps, n, reg).map(|t| Test {
                    moved,
                    scale: self.scale,
                    ..t
                }));
            }
        }
    }
}

/// The steps before `end`, the latest first, of its function's activation and of those that called
/// it. The calls that lead into it are marked.
fn before(steps: &[Step], end: usize) -> impl Iterator<Item = (usize, bool)> + '_ {
    let mut depth = steps.get(end).map_or(0, |s| s.depth);
    (0..end).rev().filter_map(move |n| {
        let at = steps[n].depth;
        let call = at < depth;
        depth = depth.min(at);
        (at == depth).then_some((n, call))
    })
}

/// Tells whether a function is given it by its caller.
fn is_argument(place: Place) -> bool {
    matches!(place, Place::Reg(1..=5))
}

fn writes(code: Insn, place: Place) -> bool {
    match place {
        Place::Reg(r) => uses(code).1 & (1 << r) != 0,
        Place::Slot(off) => {
            matches!(code.class(), op::ST | op::STX)
                && code.dst() == op::FP
                && code.off & !7 == off & !7
        }
    }
}

/// Where a copy comes from.
fn source(code: Insn, place: Place) -> Option<Place> {
    match place {
        Place::Reg(_)
            if code.off == 0
                && matches!(code.code, c if c == (op::ALU64 | op::MOV | op::X) || c == (op::ALU | op::MOV | op::X)) =>
        {
            Some(Place::Reg(code.src()))
        }
        Place::Reg(_) if code.class() == op::LDX && code.src() == op::FP => {
            Some(Place::Slot(code.off))
        }
        Place::Slot(off)
            if code.class() == op::STX && code.code & 0xe0 == op::MEM && code.off == off =>
        {
            Some(Place::Reg(code.src()))
        }
        _ => None,
    }
}

/// What a comparison says of the number in a register, on the path that was taken.
fn test(steps: &[Step], n: usize, reg: u8) -> Option<Test> {
    let code = steps[n].code;
    let narrow = code.class() == op::JMP32;
    if code.dst() != reg {
        let other = code.code & op::X != 0 && code.src() == reg;
        return other.then_some(Test {
            step: n,
            bound: Bound::Unknown,
            signed: false,
            narrow,
            moved: false,
            scale: 1,
        });
    }
    let taken = steps.get(n + 1).is_some_and(|s| s.insn != steps[n].insn + 1);
    let condition = code.code & 0xf0;
    let signed = matches!(condition, op::JSGT | op::JSGE | op::JSLT | op::JSLE);
    if code.code & op::X != 0 {
        let equal = matches!(condition, op::JEQ | op::JNE | op::JSET);
        return Some(Test {
            step: n,
            bound: if equal { Bound::None } else { Bound::Unknown },
            signed,
            narrow,
            moved: false,
            scale: 1,
        });
    }
    let k = i64::from(code.imm);
    let bound = match (condition, taken) {
        // A number of 64 bits with the upper ones set.
        _ if !signed && k < 0 => Bound::None,
        (op::JGT | op::JSGT, true) => Bound::AtLeast(k.saturating_add(1)),
        (op::JGT | op::JSGT, false) | (op::JLE | op::JSLE, true) => Bound::AtMost(k),
        (op::JGE | op::JSGE, true) | (op::JLT | op::JSLT, false) => Bound::AtLeast(k),
        (op::JGE | op::JSGE, false) | (op::JLT | op::JSLT, true) => Bound::AtMost(k - 1),
        (op::JLE | op::JSLE, false) => Bound::AtLeast(k.saturating_add(1)),
        _ => Bound::None,
    };
    Some(Test { step: n, bound, signed, narrow, moved: false, scale: 1 })
}

/// The load of the same place that was tested before this one loaded it again: what was tested is
/// not what is used.
pub(super) fn loaded_before(steps: &[Step], load: usize) -> Option<usize> {
    let again = steps.get(load)?.code;
    before(steps, load).take_while(|(_, call)| !call).map(|(n, _)| n).find(|n| {
        let code = steps[*n].code;
        let same = code.class() == op::LDX
            && (code.src(), code.off, code.code) == (again.src(), again.off, again.code);
        let tested = |m: usize| {
            is_conditional(steps[m].code) && uses(steps[m].code).0 & (1 << code.dst()) != 0
        };
        same && code.src() != op::FP && (*n + 1..load).any(tested)
    })
}
