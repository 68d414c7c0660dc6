//! Facts about a program that make merging instructions sound: which registers are still needed
//! after each slot, and which lookups are of a known map.

use std::ops::Range;

use skep_isa::{Insn, MapShape, ShapeKind, helper, op};

use crate::check::{ENDS, FUNC, Flow, Func, SECOND, TARGET, is_goto, jump};
use crate::env::{Env, HelperCall, MapRef};
use crate::opcode::{Does, Regs};

const ARGS: Regs = 0b11_1110;

/// A lookup that needs no call.
#[derive(Clone, Copy, Debug)]
pub(super) struct Lookup {
    /// The call.
    pub at: usize,
    pub map: MapRef,
    /// Where the key lies from the frame pointer, when the program just took that address; else r2
    /// points to it.
    pub key: Option<i32>,
    /// The key, when it was just set to a number.
    pub number: Option<u32>,
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

/// Which registers a function has to do with.
#[derive(Clone, Copy, Default)]
pub(super) struct Uses {
    /// Those it reads or writes, calls of others left out.
    pub named: Regs,
    /// Those it writes, calls left out as well.
    pub written: Regs,
    /// Those it reads before it writes them.
    pub needed: Regs,
}

/// What is known of a program.
pub(super) struct Facts {
    /// Registers whose value is read after each slot.
    live: Vec<Regs>,
    /// One for each function.
    uses: Vec<Uses>,
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
        let calls = find_calls(insns, env, flow);
        let mut facts =
            Self { live: vec![0; insns.len()], uses: Vec::with_capacity(flow.funcs.len()), calls };
        let mut does = flow.does.clone();
        for f in &flow.funcs {
            let does = does.get(f.start..f.end).unwrap_or_default();
            let written = does.iter().fold(0, |all, d| all | d.writes);
            let named = does.iter().fold(written, |all, d| all | d.reads);
            facts.uses.push(Uses { named, written, needed: Regs::MAX });
        }
        for (at, i) in flow.looks(insns, 0..insns.len()).filter(|(_, i)| i.code == op::CALL) {
            if let Some(does) = does.get_mut(at) {
                *does = facts.call(i, at, flow);
            }
        }
        let mut liveness =
            Liveness { blocks: Vec::with_capacity(insns.len() / 4), before: Vec::new() };
        for (n, f) in flow.funcs.iter().enumerate() {
            let whole = facts.flow_back(
                insns,
                flow,
                *f,
                does.get(f.start..f.end).unwrap_or_default(),
                &mut liveness,
            );
            if let (true, Some(uses), Some(first)) =
                (whole, facts.uses.get_mut(n), liveness.before.first())
            {
                uses.needed = *first;
            }
        }
        facts
    }

    /// Returns which registers function number `n` has to do with.
    pub fn uses(&self, n: usize) -> Uses {
        self.uses.get(n).copied().unwrap_or_default()
    }

    /// Returns the registers whose value is read after each slot.
    pub fn live(&self) -> &[Regs] {
        &self.live
    }

    pub fn lookup(&self, at: usize) -> Option<&Lookup> {
        self.calls
            .lookups
            .binary_search_by_key(&at, |l| l.at)
            .ok()
            .and_then(|n| self.calls.lookups.get(n))
    }

    pub fn direct(&self, at: usize) -> Option<&Direct> {
        self.calls
            .directs
            .binary_search_by_key(&at, |d| d.at)
            .ok()
            .and_then(|n| self.calls.directs.get(n))
    }

    pub fn tail(&self, at: usize) -> Option<&Tail> {
        self.calls
            .tails
            .binary_search_by_key(&at, |t| t.at)
            .ok()
            .and_then(|n| self.calls.tails.get(n))
    }

    /// Sums blocks of straight code up, goes backwards through the blocks, and then once through
    /// each block's instructions. Where a loop's head turns out to need more than its end was
    /// told, the loop is gone through again at once, so that inner loops are done before outer
    /// ones see them. Returns `false` when that takes too long.
    fn flow_back(
        &mut self,
        insns: &[Insn],
        flow: &Flow,
        f: Func,
        does: &[Does],
        liveness: &mut Liveness,
    ) -> bool {
        let range = f.start..f.end;
        let (Some(insns), Some(marks)) = (insns.get(range.clone()), flow.marks.get(range.clone()))
        else {
            return false;
        };
        liveness.sum_up(insns, marks, does);
        let whole = liveness.settle(insns.len());
        let Some(live) = self.live.get_mut(range) else { return false };
        if !whole {
            // Loops within loops within loops, written to make this slow: everything is needed
            // everywhere.
            live.fill(Regs::MAX);
            return false;
        }
        let mut end = insns.len();
        for b in liveness.blocks.iter().rev() {
            let mut after = b.after(&liveness.before, end);
            let range = b.start as usize..end;
            end = range.start;
            let (Some(live), Some(does)) = (live.get_mut(range.clone()), does.get(range)) else {
                return false;
            };
            for (live, done) in live.iter_mut().zip(does).rev() {
                *live = after;
                after = after & !done.writes | done.reads;
            }
        }
        true
    }

    /// Returns what a call reads, and what holds nothing of use after it.
    fn call(&self, i: Insn, at: usize, flow: &Flow) -> Does {
        let reads =
            if i.src() == op::PSEUDO_CALL { ARGS } else { self.arguments(i.imm as u32, at, flow) };
        Does { reads, writes: ARGS | 1 }
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
        match helper::arguments(id) {
            Some(h) => (1..=h.registers()).fold(0, |m, n| m | 1 << n),
            None => ARGS,
        }
    }
}

/// How often a function's blocks may be looked at, as a multiple of its slots, before liveness
/// gives up.
const MOST_ROUNDS: usize = 64;

/// Straight code, up to the next block: only the first instruction is jumped to, only the last one
/// jumps.
#[derive(Clone, Copy)]
struct Block {
    /// Its first slot, counted from the function's first.
    start: u32,
    next: Next,
    /// The slot it jumps to.
    to: u32,
    /// The number, from one, of the last block that jumps back here; 0 when there is none.
    again: u32,
    /// What it reads and had not written before, and what it writes.
    reads: Regs,
    writes: Regs,
}

impl Block {
    fn at(start: usize) -> Self {
        Self { start: start as u32, next: Next::Fall, to: 0, again: 0, reads: 0, writes: 0 }
    }

    /// Returns what is needed after this block, which ends before slot `end`, as far as is known.
    fn after(&self, before: &[Regs], end: usize) -> Regs {
        let before = |n: usize| before.get(n).copied().unwrap_or(0);
        match self.next {
            Next::Fall => before(end),
            Next::Branch => before(end) | before(self.to as usize),
            Next::Goto => before(self.to as usize),
            Next::Exit => 0,
        }
    }
}

/// What is known of one function after the other.
struct Liveness {
    blocks: Vec<Block>,
    /// What is needed before each slot that starts a block, as far as is known.
    before: Vec<Regs>,
}

impl Liveness {
    /// Goes once through a function's instructions: where blocks begin, and what each does.
    fn sum_up(&mut self, insns: &[Insn], marks: &[u8], does: &[Does]) {
        self.before.clear();
        self.before.resize(insns.len(), 0);
        self.blocks.clear();
        let mut block = Block::at(0);
        for (at, (mark, done)) in marks.iter().zip(does).enumerate() {
            if mark & TARGET != 0 && at != block.start as usize {
                self.blocks.push(block);
                block = Block::at(at);
            }
            block.reads |= done.reads & !block.writes;
            block.writes |= done.writes;
            if mark & ENDS == 0 {
                continue;
            }
            let i = insns.get(at).copied().unwrap_or_default();
            let distance = jump(i);
            block.to = (at as i64 + 1 + distance.unwrap_or(0)) as u32;
            block.next = match distance {
                Some(_) if is_goto(i) => Next::Goto,
                Some(_) => Next::Branch,
                None => Next::Exit,
            };
            self.blocks.push(block);
            if block.to as usize <= at {
                jumps_back(&mut self.blocks, block.to);
            }
            block = Block::at(at + 1);
        }
    }

    /// Finds what is needed before each block; `false` when that takes too long for a function of
    /// this many slots.
    fn settle(&mut self, slots: usize) -> bool {
        let mut budget = slots * MOST_ROUNDS;
        let (mut at, mut end) = (self.blocks.len(), slots);
        while at > 0 {
            at -= 1;
            let Some(block) = self.blocks.get(at) else { return false };
            let before = block.after(&self.before, end) & !block.writes | block.reads;
            end = block.start as usize;
            let Some(known) = self.before.get_mut(end) else { return false };
            let grown = before != *known;
            *known = before;
            // The head of a loop is the first of its blocks, and `again` counts from one.
            let again = block.again as usize;
            if again > at && grown {
                budget = budget.saturating_sub(again - at);
                if budget == 0 {
                    return false;
                }
                at = again;
                end = self.blocks.get(at).map_or(slots, |b| b.start as usize);
            }
        }
        true
    }
}

/// Notes that the last block jumps back to a slot.
fn jumps_back(blocks: &mut [Block], to: u32) {
    let last = blocks.len() as u32;
    let head = blocks.partition_point(|b| b.start < to);
    if let Some(head) = blocks.get_mut(head) {
        head.again = last;
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
    if !flow
        .helpers
        .iter()
        .any(|(_, h)| matches!(h.how, HelperCall::MapLookup | HelperCall::TailCall))
    {
        return calls;
    }
    let is_start = |mark: &u8| mark & (TARGET | FUNC) != 0;
    let mut end = 0;
    for (call, i) in flow.looks(insns, 0..insns.len()) {
        let how = if i.is_helper_call() && call >= end {
            flow.helper(i.imm as u32).map(|h| h.how)
        } else {
            None
        };
        if !matches!(how, Some(HelperCall::MapLookup | HelperCall::TailCall)) {
            continue;
        }
        let start = flow.marks.iter().take(call + 1).rposition(is_start).unwrap_or(0);
        end = flow
            .marks
            .iter()
            .skip(call + 1)
            .position(is_start)
            .map_or(insns.len(), |n| call + 1 + n);
        in_block(insns, env, flow, start..end, &mut calls);
    }
    calls
}

/// Finds those of one run of instructions that nothing jumps into.
fn in_block(insns: &[Insn], env: &Env<'_>, flow: &Flow, range: Range<usize>, calls: &mut Calls) {
    let mut regs = [Value::Any; 16];
    regs[usize::from(op::FP)] = Value::Frame(0);
    // The word of the frame that was written last, while nothing else was.
    let mut word = None;
    for (at, &i) in range.clone().zip(insns.get(range).unwrap_or_default()) {
        if flow.mark(at) & SECOND != 0 {
            continue;
        }
        let (d, s) = (usize::from(i.dst()), usize::from(i.src()));
        match i.class() {
            op::LD => {
                regs[d] = if i.src() == op::PSEUDO_MAP_IDX {
                    Value::Map(i.imm as u32)
                } else {
                    Value::Any
                };
            }
            op::ALU64 if i.code & 0xf0 == op::MOV && i.code & op::X != 0 && i.off == 0 => {
                regs[d] = regs[s]
            }
            op::ALU | op::ALU64 if i.code & 0xf8 == op::MOV | op::K => {
                regs[d] = Value::Number(i.imm as u32)
            }
            op::ALU64 if i.code == op::ALU64 | op::ADD | op::K => {
                regs[d] = match regs[d] {
                    Value::Frame(off) => off.checked_add(i.imm).map_or(Value::Any, Value::Frame),
                    _ => Value::Any,
                }
            }
            op::ALU | op::ALU64 | op::LDX => regs[d] = Value::Any,
            op::ST | op::STX if i.code & 0xe0 == op::MEM => {
                let number = match (i.class(), regs[s]) {
                    (op::ST, _) => Some(i.imm as u32),
                    (_, Value::Number(n)) => Some(n),
                    _ => None,
                };
                word = match (number, regs[d]) {
                    (Some(n), Value::Frame(off)) if i.code & op::DW == op::W => {
                        off.checked_add(i.off.into()).map(|off| (off, n))
                    }
                    _ => None,
                };
            }
            op::STX if i.code & 0xe0 == op::ATOMIC => {
                regs[d] = if i.imm == op::ATOMIC_LOAD_ACQ { Value::Any } else { regs[d] };
                regs[s] = if i.imm & op::ATOMIC_FETCH != 0 { Value::Any } else { regs[s] };
                regs[0] = Value::Any;
                word = None;
            }
            op::JMP if i.code == op::CALL => {
                note_call(i, at, (&regs, word), env, flow, calls);
                regs[..6].fill(Value::Any);
                word = None;
            }
            _ => {}
        }
    }
}

/// Notes a lookup or a tail call whose map is known, with what is known of its key: `word` is the
/// word of the frame that was written last, and what it holds.
fn note_call(
    i: Insn,
    at: usize,
    (regs, word): (&[Value; 16], Option<(i32, u32)>),
    env: &Env<'_>,
    flow: &Flow,
    calls: &mut Calls,
) {
    if i.src() == op::PSEUDO_CALL {
        return;
    }
    let known =
        |v: Value| if let Value::Map(n) = v { env.maps.get(n as usize).copied() } else { None };
    match flow.helper(i.imm as u32).map(|h| h.how) {
        Some(HelperCall::MapLookup) => match known(regs[1]) {
            Some(map) if is_indexed(map.shape) => {
                let key = if let Value::Frame(off) = regs[2] { Some(off) } else { None };
                let number = word.filter(|(off, _)| key == Some(*off)).map(|(_, n)| n);
                calls.lookups.push(Lookup { at, map, key, number });
            }
            Some(MapRef {
                shape: MapShape { kind: ShapeKind::Direct { func, map }, .. }, ..
            }) => {
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
}

/// Tells whether generated code can find values in a map of this shape.
fn is_indexed(shape: MapShape) -> bool {
    let array = matches!(shape.kind, ShapeKind::Array | ShapeKind::PercpuArray { .. });
    array && shape.entries > 0 && i32::try_from(shape.stride).is_ok()
}
