//! Facts about a program that make merging instructions sound: which registers are still needed after each slot, and
//! which lookups are of a known map.

use std::ops::Range;

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

/// A lookup that goes straight to the map's own function.
#[derive(Clone, Copy, Debug)]
pub(super) struct Direct {
    /// The call.
    pub at: usize,
    pub func: u64,
    pub map: u64,
}

/// A tail call through an array that the code can read.
#[derive(Clone, Copy, Debug)]
pub(super) struct Tail {
    /// The call.
    pub at: usize,
    pub shape: MapShape,
    /// The array's table of targets.
    pub targets: u64,
    /// The index, when it was just set to a number.
    pub number: Option<u32>,
}

/// What is known of a program.
pub(super) struct Facts {
    /// Registers whose value is read after each slot.
    live: Vec<Regs>,
    calls: Calls,
}

/// Calls of which more is known than the helper's number, in order.
#[derive(Default)]
struct Calls {
    lookups: Vec<Lookup>,
    directs: Vec<Direct>,
    tails: Vec<Tail>,
}

impl Facts {
    pub fn of(insns: &[Insn], env: &Env<'_>, flow: &Flow) -> Self {
        let mut facts = Self { live: vec![0; insns.len()], calls: find_calls(insns, env, flow) };
        let (mut does, mut blocks) = (Vec::with_capacity(insns.len()), Vec::with_capacity(insns.len() / 4));
        for f in &flow.funcs {
            facts.flow_back(insns, flow, *f, &mut does, &mut blocks);
        }
        facts
    }

    /// Tells whether nothing reads `reg` after slot `at`.
    pub fn dead_after(&self, at: usize, reg: u8) -> bool {
        self.live.get(at).is_some_and(|l| l & 1 << reg == 0)
    }

    pub fn lookup(&self, at: usize) -> Option<&Lookup> {
        self.calls.lookups.binary_search_by_key(&at, |l| l.at).ok().and_then(|n| self.calls.lookups.get(n))
    }

    pub fn direct(&self, at: usize) -> Option<&Direct> {
        self.calls.directs.binary_search_by_key(&at, |d| d.at).ok().and_then(|n| self.calls.directs.get(n))
    }

    pub fn tail(&self, at: usize) -> Option<&Tail> {
        self.calls.tails.binary_search_by_key(&at, |t| t.at).ok().and_then(|n| self.calls.tails.get(n))
    }

    /// Sums blocks of straight code up, goes backwards through the blocks, and then once through each block's instructions. Where a
    /// loop's head turns out to need more than its end was told, the loop is gone through again at once, so that inner loops are done
    /// before outer ones see them.
    fn flow_back(&mut self, insns: &[Insn], flow: &Flow, f: Func, does: &mut Vec<Does>, blocks: &mut Vec<Block>) {
        let (Some(insns), Some(marks)) = (insns.get(f.start..f.end), flow.marks.get(f.start..f.end)) else { return };
        does.clear();
        blocks.clear();
        let mut block = Block::at(0);
        for ((at, i), mark) in insns.iter().enumerate().zip(marks) {
            if mark & TARGET != 0 && at != block.start as usize {
                blocks.push(Block { end: at as u32, ..block });
                block = Block::at(at);
            }
            let done = if mark & SECOND == 0 { self.effect(*i, f.start + at, flow) } else { Does::default() };
            does.push(done);
            block.reads |= done.reads & !block.writes;
            block.writes |= done.writes;
            if SHAPES[usize::from(i.code)] & ENDS == 0 || mark & SECOND != 0 {
                continue;
            }
            (block.next, block.to) = match jump(*i) {
                Some(distance) => (if is_goto(*i) { Next::Goto } else { Next::Branch }, (at as i64 + 1 + distance) as u32),
                None if i.code == op::EXIT => (Next::Exit, 0),
                None => continue,
            };
            blocks.push(Block { end: at as u32 + 1, ..block });
            block = Block::at(at + 1);
        }
        let find = |blocks: &[Block], slot: u32| blocks.binary_search_by_key(&slot, |b| b.start).unwrap_or(0);
        for n in 0..blocks.len() {
            if let Some(Block { next: Next::Goto | Next::Branch, to, .. }) = blocks.get(n).copied() {
                let to = find(blocks, to);
                if let Some(b) = blocks.get_mut(n) {
                    b.to = to as u32;
                }
                if let Some(head) = blocks.get_mut(to) {
                    head.again = n as u32 + 1;
                }
            }
        }
        let whole = self.settle(blocks, insns.len());
        let Some(live) = self.live.get_mut(f.start..f.end) else { return };
        if !whole {
            // Loops within loops within loops, written to make this slow: everything is needed everywhere.
            return live.fill(Regs::MAX);
        }
        for (n, b) in blocks.iter().enumerate() {
            let mut after = b.after(blocks, n);
            let range = b.start as usize..b.end as usize;
            let (Some(live), Some(does)) = (live.get_mut(range.clone()), does.get(range)) else { return };
            for (live, done) in live.iter_mut().zip(does).rev() {
                *live = after;
                after = after & !done.writes | done.reads;
            }
        }
    }

    /// Finds what is needed before each block; `false` when that takes too long for a function of this many slots.
    fn settle(&self, blocks: &mut [Block], slots: usize) -> bool {
        let mut budget = slots * MOST_ROUNDS;
        let mut at = blocks.len();
        while at > 0 {
            at -= 1;
            let Some(&block) = blocks.get(at) else { return false };
            let before = block.after(blocks, at) & !block.writes | block.reads;
            let grown = before != block.before;
            if let Some(b) = blocks.get_mut(at) {
                b.before = before;
            }
            budget = budget.saturating_sub(1);
            if budget == 0 {
                return false;
            }
            // The head of a loop is the first of its blocks, and `again` counts from one.
            if block.again as usize > at && grown {
                at = block.again as usize;
            }
        }
        true
    }

    /// Returns what an instruction reads, and what holds nothing of use after it.
    fn effect(&self, i: Insn, at: usize, flow: &Flow) -> Does {
        let (d, s): (Regs, Regs) = (1 << i.dst(), 1 << i.src());
        let shape = Regs::from(SHAPES[usize::from(i.code)]);
        if shape & Regs::from(OTHER) == 0 {
            let reads = (shape & 1) << i.dst() | (shape >> 1 & 1) << i.src();
            return Does { reads, writes: (shape >> 2 & 1) << i.dst() };
        }
        let (reads, writes) = match i.code {
            op::EXIT => (1, 0),
            op::CALL if i.src() == op::PSEUDO_CALL => (ARGS, ARGS | 1),
            op::CALL => (self.arguments(i.imm as u32, at, flow), ARGS | 1),
            _ => match i.imm {
                op::ATOMIC_LOAD_ACQ => (s, d),
                op::ATOMIC_CMPXCHG => (d | s | 1, 1),
                op::ATOMIC_STORE_REL => (d | s, 0),
                n => (d | s, if n & op::ATOMIC_FETCH != 0 { s } else { 0 }),
            },
        };
        Does { reads, writes }
    }

    fn arguments(&self, id: u32, at: usize, flow: &Flow) -> Regs {
        if let Some(l) = self.lookup(at) {
            return if l.key.is_some() { 0 } else { 1 << 2 };
        }
        if self.direct(at).is_some() {
            return 1 << 2;
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

/// What an opcode does with the registers it names, by bits that [`Facts::effect`] shifts; [`OTHER`] when that takes a closer look.
const READS_DST: u8 = 1;
const READS_SRC: u8 = 2;
const WRITES_DST: u8 = 4;
const OTHER: u8 = 8;
/// It may go on elsewhere than at the next instruction.
const ENDS: u8 = 16;

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
        _ if code == op::CALL => OTHER,
        _ if code == op::EXIT => OTHER | ENDS,
        (_, op::JA | op::JCOND) => ENDS,
        _ => src | READS_DST | ENDS,
    }
}

/// How often a function's blocks may be looked at, as a multiple of its slots, before liveness gives up.
const MOST_ROUNDS: usize = 64;

/// What an instruction reads, and what holds nothing of use after it.
#[derive(Clone, Copy, Default)]
struct Does {
    reads: Regs,
    writes: Regs,
}

/// Straight code: only the first instruction is jumped to, only the last one jumps.
#[derive(Clone, Copy)]
struct Block {
    /// Its slots, counted from the function's first.
    start: u32,
    end: u32,
    next: Next,
    /// Where it jumps: the slot at first, then the number of the block.
    to: u32,
    /// The number, from one, of the last block that jumps here; 0 when there is none.
    again: u32,
    /// What it reads and had not written before, and what it writes.
    reads: Regs,
    writes: Regs,
    /// What is needed before it, as far as is known.
    before: Regs,
}

impl Block {
    fn at(start: usize) -> Self {
        Self { start: start as u32, end: 0, next: Next::Fall, to: 0, again: 0, reads: 0, writes: 0, before: 0 }
    }

    /// Returns what is needed after this block, number `n`, as far as is known.
    fn after(&self, blocks: &[Self], n: usize) -> Regs {
        let before = |n: usize| blocks.get(n).map_or(0, |b| b.before);
        match self.next {
            Next::Fall => before(n + 1),
            Next::Branch => before(n + 1) | before(self.to as usize),
            Next::Goto => before(self.to as usize),
            Next::Exit => 0,
        }
    }
}

/// Where a block goes on.
#[derive(Clone, Copy)]
enum Next {
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
    /// The lower half, as after a move of an immediate; the upper one does not matter to what asks.
    Number(u32),
}

/// Finds the calls whose map is known and need not be asked.
fn find_calls(insns: &[Insn], env: &Env<'_>, flow: &Flow) -> Calls {
    let mut calls = Calls::default();
    if !flow.helpers.iter().any(|(_, h)| matches!(h.how, HelperCall::MapLookup | HelperCall::TailCall)) {
        return calls;
    }
    let is_start = |mark: &u8| mark & (TARGET | FUNC) != 0;
    let mut end = 0;
    for (call, i) in insns.iter().enumerate() {
        let how = if i.is_helper_call() && call >= end { flow.helper(i.imm as u32).map(|h| h.how) } else { None };
        if !matches!(how, Some(HelperCall::MapLookup | HelperCall::TailCall)) {
            continue;
        }
        let start = flow.marks.iter().take(call + 1).rposition(is_start).unwrap_or(0);
        end = flow.marks.iter().skip(call + 1).position(is_start).map_or(insns.len(), |n| call + 1 + n);
        in_block(insns, env, flow, start..end, &mut calls);
    }
    calls
}

/// Finds those of one run of instructions that nothing jumps into.
fn in_block(insns: &[Insn], env: &Env<'_>, flow: &Flow, range: Range<usize>, calls: &mut Calls) {
    let mut regs = [Value::Any; 16];
    regs[usize::from(op::FP)] = Value::Frame(0);
    for (at, &i) in range.clone().zip(insns.get(range).unwrap_or_default()) {
        if flow.mark(at) & SECOND != 0 {
            continue;
        }
        let (d, s) = (usize::from(i.dst()), usize::from(i.src()));
        match i.class() {
            op::LD => {
                regs[d] = if i.src() == op::PSEUDO_MAP_IDX { Value::Map(i.imm as u32) } else { Value::Any };
            }
            op::ALU64 if i.code & 0xf0 == op::MOV && i.code & op::X != 0 && i.off == 0 => regs[d] = regs[s],
            op::ALU | op::ALU64 if i.code & 0xf8 == op::MOV | op::K => regs[d] = Value::Number(i.imm as u32),
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
                    Some(HelperCall::MapLookup) => match known(regs[1]) {
                        Some(map) if is_indexed(map.shape) => {
                            let key = if let Value::Frame(off) = regs[2] { Some(off) } else { None };
                            calls.lookups.push(Lookup { at, map, key });
                        }
                        Some(MapRef { shape: MapShape { kind: ShapeKind::Direct { func, map }, .. }, .. }) => {
                            calls.directs.push(Direct { at, func, map });
                        }
                        _ => {}
                    },
                    Some(HelperCall::TailCall) => {
                        if let Some(MapRef { shape, .. }) = known(regs[2])
                            && let ShapeKind::ProgArray { targets } = shape.kind
                            && targets != 0
                            && matches!(shape.stride, 4 | 8)
                        {
                            let number = if let Value::Number(n) = regs[3] { Some(n) } else { None };
                            calls.tails.push(Tail { at, shape, targets, number });
                        }
                    }
                    _ => {}
                }
                regs[..6].fill(Value::Any);
            }
            _ => {}
        }
    }
}

/// Tells whether generated code can find values in a map of this shape.
fn is_indexed(shape: MapShape) -> bool {
    let array = matches!(shape.kind, ShapeKind::Array | ShapeKind::PercpuArray { .. });
    array && shape.entries > 0 && i32::try_from(shape.stride).is_ok()
}
