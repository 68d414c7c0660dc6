//! Facts about a program that make merging instructions sound: which registers are still needed after each slot, and
//! which lookups are of a known map.

use skep_isa::{Insn, MapShape, ShapeKind, helper, op};

use crate::check::{FUNC, Flow, Func, SECOND, TARGET, is_goto, jump};
use crate::env::{Env, HelperCall, MapRef};

/// Registers as bits.
pub(super) type Regs = u16;

const ARGS: Regs = 0b11_1110;

/// A lookup that needs no call.
#[derive(Clone, Copy, Debug)]
pub(super) struct Lookup {
    /// The call.
    pub at: usize,
    pub map: MapRef,
    /// Where the key lies from the frame pointer, when the program just took that address; else r2 points to it.
    pub key: Option<i32>,
}

/// A tail call through an array that the code can read.
#[derive(Clone, Copy, Debug)]
pub(super) struct Tail {
    /// The call.
    pub at: usize,
    pub shape: MapShape,
    /// The array's table of targets.
    pub targets: u64,
}

/// What is known of a program.
pub(super) struct Facts {
    /// Registers whose value is read after each slot.
    live: Vec<Regs>,
    lookups: Vec<Lookup>,
    tails: Vec<Tail>,
}

impl Facts {
    pub fn of(insns: &[Insn], env: &Env<'_>, flow: &Flow) -> Self {
        let (lookups, tails) = find_calls(insns, env, flow);
        let mut facts = Self { live: vec![0; insns.len()], lookups, tails };
        for f in &flow.funcs {
            facts.flow_back(insns, flow, *f);
        }
        facts
    }

    /// Tells whether nothing reads `reg` after slot `at`.
    pub fn dead_after(&self, at: usize, reg: u8) -> bool {
        self.live.get(at).is_some_and(|l| l & 1 << reg == 0)
    }

    pub fn lookup(&self, at: usize) -> Option<&Lookup> {
        self.lookups.binary_search_by_key(&at, |l| l.at).ok().and_then(|n| self.lookups.get(n))
    }

    pub fn tail(&self, at: usize) -> Option<&Tail> {
        self.tails.binary_search_by_key(&at, |t| t.at).ok().and_then(|n| self.tails.get(n))
    }

    /// Goes backwards through a function. Where a loop's head turns out to need more than its end was told, the loop is gone
    /// through again at once, so that inner loops are done before outer ones see them.
    fn flow_back(&mut self, insns: &[Insn], flow: &Flow, f: Func) {
        let mut steps: Vec<Step> = Vec::with_capacity(f.end - f.start);
        for at in f.start..f.end {
            let (i, mark) = (insns.get(at).copied().unwrap_or_default(), flow.mark(at));
            let mut step = Step { next: Next::Skip, to: 0, again: 0, reads: 0, writes: 0, before: 0 };
            if mark & SECOND == 0 {
                (step.reads, step.writes) = self.effect(i, at, flow);
                step.next = match jump(i) {
                    Some(distance) => {
                        let to = (at as i64 + 1 + distance) as usize - f.start;
                        if let Some(head) = steps.get_mut(to) {
                            head.again = (at - f.start + 1) as u32;
                        } else if to == at - f.start {
                            step.again = to as u32 + 1;
                        }
                        step.to = to as u32;
                        if is_goto(i) { Next::Goto } else { Next::Branch }
                    }
                    None if i.code == op::EXIT => Next::Exit,
                    None => Next::Fall,
                };
            }
            steps.push(step);
        }
        let mut budget = steps.len() * MOST_ROUNDS;
        let mut after: Regs = 0;
        let mut at = steps.len();
        while at > 0 {
            at -= 1;
            let before = |at: u32| steps.get(at as usize).map_or(0, |s| s.before);
            let Some(&step) = steps.get(at) else { return };
            match step.next {
                Next::Skip => continue,
                Next::Fall => {}
                Next::Branch => after |= before(step.to),
                Next::Goto => after = before(step.to),
                Next::Exit => after = 0,
            }
            if let Some(l) = self.live.get_mut(f.start + at) {
                *l = after;
            }
            after = after & !step.writes | step.reads;
            let grown = after != step.before;
            if let Some(s) = steps.get_mut(at) {
                s.before = after;
            }
            budget = budget.saturating_sub(1);
            if budget == 0 {
                // Loops within loops within loops, written to make this slow: everything is needed everywhere.
                if let Some(live) = self.live.get_mut(f.start..f.end) {
                    live.fill(Regs::MAX);
                }
                return;
            }
            if step.again != 0 && grown {
                at = step.again as usize;
                after = steps.get(at).map_or(0, |s| s.before);
            }
        }
    }

    /// Returns what an instruction reads, and what holds nothing of use after it.
    fn effect(&self, i: Insn, at: usize, flow: &Flow) -> (Regs, Regs) {
        let (d, s): (Regs, Regs) = (1 << i.dst(), 1 << i.src());
        let shape = SHAPES[usize::from(i.code)];
        if shape & OTHER == 0 {
            let of = |bit: u8, r: Regs| if shape & bit != 0 { r } else { 0 };
            return (of(READS_DST, d) | of(READS_SRC, s), of(WRITES_DST, d));
        }
        match i.code {
            op::EXIT => (1, 0),
            op::CALL if i.src() == op::PSEUDO_CALL => (ARGS, ARGS | 1),
            op::CALL => (self.arguments(i.imm as u32, at, flow), ARGS | 1),
            _ => match i.imm {
                op::ATOMIC_LOAD_ACQ => (s, d),
                op::ATOMIC_CMPXCHG => (d | s | 1, 1),
                op::ATOMIC_STORE_REL => (d | s, 0),
                n => (d | s, if n & op::ATOMIC_FETCH != 0 { s } else { 0 }),
            },
        }
    }

    fn arguments(&self, id: u32, at: usize, flow: &Flow) -> Regs {
        if let Some(l) = self.lookup(at) {
            return if l.key.is_some() { 0 } else { 1 << 2 };
        }
        match flow.helper(id).map(|h| h.how) {
            Some(HelperCall::LoadCtx(_)) => return 1 << 1,
            Some(HelperCall::TailCall) => return 0b1110,
            _ => {}
        }
        match helper::by_id(id) {
            Some(h) => (1..=h.registers()).fold(0, |m, n| m | 1 << n),
            None => ARGS,
        }
    }
}

/// What an opcode does with the registers it names; [`OTHER`] when that takes a closer look.
const READS_DST: u8 = 1;
const READS_SRC: u8 = 2;
const WRITES_DST: u8 = 4;
const OTHER: u8 = 8;

static SHAPES: [u8; 256] = {
    let mut shapes = [0; 256];
    let mut code = 0;
    while code < 256 {
        shapes[code] = shape(code as u8);
        code += 1;
    }
    shapes
};

const fn shape(code: u8) -> u8 {
    let src = if code & op::X != 0 { READS_SRC } else { 0 };
    match (code & 0x07, code & 0xf0) {
        (op::ALU | op::ALU64, op::MOV) => src | WRITES_DST,
        (op::ALU | op::ALU64, op::END | op::NEG) => READS_DST | WRITES_DST,
        (op::ALU | op::ALU64, _) => src | READS_DST | WRITES_DST,
        (op::LD, _) => WRITES_DST,
        (op::LDX, _) => READS_SRC | WRITES_DST,
        (op::ST, _) => READS_DST,
        (op::STX, _) if code & 0xe0 == op::ATOMIC => OTHER,
        (op::STX, _) => READS_DST | READS_SRC,
        _ if code == op::EXIT || code == op::CALL => OTHER,
        (_, op::JA | op::JCOND) => 0,
        _ => src | READS_DST,
    }
}

/// How often a function's instructions may be looked at on average, before liveness gives up.
const MOST_ROUNDS: usize = 64;

/// One slot on the way backwards.
#[derive(Clone, Copy)]
struct Step {
    next: Next,
    /// Where it jumps, from the function's first slot.
    to: u32,
    /// The slot after the last jump back to here; 0 when there is none.
    again: u32,
    reads: Regs,
    writes: Regs,
    /// What is needed before it, as far as is known.
    before: Regs,
}

/// Where an instruction goes on.
#[derive(Clone, Copy)]
enum Next {
    /// It is half of another.
    Skip,
    Fall,
    Branch,
    Goto,
    Exit,
}

/// What is known of a register inside a basic block.
#[derive(Clone, Copy)]
enum Value {
    Any,
    /// The map with this index: small, as there is one for each register at each label.
    Map(u32),
    Frame(i32),
}

/// Finds the calls whose map is known and need not be asked.
fn find_calls(insns: &[Insn], env: &Env<'_>, flow: &Flow) -> (Vec<Lookup>, Vec<Tail>) {
    let (mut lookups, mut tails) = (Vec::new(), Vec::new());
    if !flow.helpers.iter().any(|(_, h)| matches!(h.how, HelperCall::MapLookup | HelperCall::TailCall)) {
        return (lookups, tails);
    }
    let unknown = || {
        let mut v = [Value::Any; 16];
        v[usize::from(op::FP)] = Value::Frame(0);
        v
    };
    let mut regs = unknown();
    for (at, &i) in insns.iter().enumerate() {
        let mark = flow.mark(at);
        if mark & SECOND != 0 {
            continue;
        }
        if mark & (TARGET | FUNC) != 0 {
            regs = unknown();
        }
        let (d, s) = (usize::from(i.dst()), usize::from(i.src()));
        match i.class() {
            op::LD => {
                regs[d] = if i.src() == op::PSEUDO_MAP_IDX { Value::Map(i.imm as u32) } else { Value::Any };
            }
            op::ALU64 if i.code & 0xf0 == op::MOV && i.code & op::X != 0 && i.off == 0 => regs[d] = regs[s],
            op::ALU64 if i.code == op::ALU64 | op::ADD | op::K => {
                regs[d] = match regs[d] {
                    Value::Frame(off) => off.checked_add(i.imm).map_or(Value::Any, Value::Frame),
                    _ => Value::Any,
                }
            }
            op::ALU | op::ALU64 | op::LDX => regs[d] = Value::Any,
            op::STX if i.code & 0xe0 == op::ATOMIC => {
                regs[d] = if i.imm == op::ATOMIC_LOAD_ACQ { Value::Any } else { regs[d] };
                regs[s] = if i.imm & op::ATOMIC_FETCH != 0 { Value::Any } else { regs[s] };
                regs[0] = Value::Any;
            }
            op::JMP if i.code == op::CALL => {
                let helper = if i.src() == op::PSEUDO_CALL { None } else { flow.helper(i.imm as u32).map(|h| h.how) };
                let known = |v: Value| if let Value::Map(n) = v { env.maps.get(n as usize).copied() } else { None };
                match helper {
                    Some(HelperCall::MapLookup) => {
                        if let Some(map) = known(regs[1]).filter(|m| is_indexed(m.shape)) {
                            let key = if let Value::Frame(off) = regs[2] { Some(off) } else { None };
                            lookups.push(Lookup { at, map, key });
                        }
                    }
                    Some(HelperCall::TailCall) => {
                        if let Some(MapRef { shape, .. }) = known(regs[2])
                            && let ShapeKind::ProgArray { targets } = shape.kind
                            && targets != 0
                            && matches!(shape.stride, 4 | 8)
                        {
                            tails.push(Tail { at, shape, targets });
                        }
                    }
                    _ => {}
                }
                regs[..6].fill(Value::Any);
            }
            _ => {}
        }
    }
    (lookups, tails)
}

/// Tells whether generated code can find values in a map of this shape.
fn is_indexed(shape: MapShape) -> bool {
    let array = matches!(shape.kind, ShapeKind::Array | ShapeKind::PercpuArray { .. });
    array && shape.entries > 0 && i32::try_from(shape.stride).is_ok()
}
