//! Facts about a program that make merging instructions sound: which registers are still needed after each slot, and
//! which lookups are of a known map.

use skep_isa::{Insn, MapShape, ShapeKind, helper, op};

use crate::check::{FUNC, Flow, Func, LOOP, SECOND, TARGET, is_goto, jump};
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

    /// Goes backwards through a function until nothing changes; without loops once is enough.
    fn flow_back(&mut self, insns: &[Insn], flow: &Flow, f: Func) {
        let mut before = vec![0 as Regs; f.end - f.start];
        loop {
            let mut again = false;
            let mut after: Regs = 0;
            for at in (f.start..f.end).rev() {
                let Some(&i) = insns.get(at) else { continue };
                let mark = flow.mark(at);
                if mark & SECOND != 0 {
                    continue;
                }
                if let Some(distance) = jump(i) {
                    let to = (at as i64 + 1 + distance) as usize;
                    let there = before.get(to.wrapping_sub(f.start)).copied().unwrap_or(Regs::MAX);
                    after = if is_goto(i) { there } else { after | there };
                } else if i.code == op::EXIT {
                    after = 0;
                }
                let (reads, writes) = self.effect(i, at, flow);
                if let Some(l) = self.live.get_mut(at) {
                    *l = after;
                }
                after = after & !writes | reads;
                if let Some(b) = before.get_mut(at - f.start) {
                    again |= mark & LOOP != 0 && *b != after;
                    *b = after;
                }
            }
            if !again {
                return;
            }
        }
    }

    /// Returns what an instruction reads, and what holds nothing of use after it.
    fn effect(&self, i: Insn, at: usize, flow: &Flow) -> (Regs, Regs) {
        let (d, s): (Regs, Regs) = (1 << i.dst(), 1 << i.src());
        let x = i.code & op::X != 0;
        match i.class() {
            op::ALU | op::ALU64 => match i.code & 0xf0 {
                op::MOV => (if x { s } else { 0 }, d),
                op::END | op::NEG => (d, d),
                _ => (if x { d | s } else { d }, d),
            },
            op::LD => (0, d),
            op::LDX => (s, d),
            op::ST => (d, 0),
            op::STX if i.code & 0xe0 == op::ATOMIC => match i.imm {
                op::ATOMIC_LOAD_ACQ => (s, d),
                op::ATOMIC_CMPXCHG => (d | s | 1, 1),
                op::ATOMIC_STORE_REL => (d | s, 0),
                n => (d | s, if n & op::ATOMIC_FETCH != 0 { s } else { 0 }),
            },
            op::STX => (d | s, 0),
            _ => match i.code {
                op::EXIT => (1, 0),
                op::CALL if i.src() == op::PSEUDO_CALL => (ARGS, ARGS | 1),
                op::CALL => (self.arguments(i.imm as u32, at, flow), ARGS | 1),
                _ if matches!(i.code & 0xf0, op::JA | op::JCOND) => (0, 0),
                _ => (if x { d | s } else { d }, 0),
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

/// What is known of a register inside a basic block.
#[derive(Clone, Copy)]
enum Value {
    Any,
    Map(MapRef),
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
                let map = if i.src() == op::PSEUDO_MAP_IDX { env.maps.get(i.imm as u32 as usize) } else { None };
                regs[d] = map.map_or(Value::Any, |m| Value::Map(*m));
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
                match (helper, regs[1], regs[2]) {
                    (Some(HelperCall::MapLookup), Value::Map(map), key) if is_indexed(map.shape) => {
                        let key = if let Value::Frame(off) = key { Some(off) } else { None };
                        lookups.push(Lookup { at, map, key });
                    }
                    (Some(HelperCall::TailCall), _, Value::Map(MapRef { shape, .. })) => {
                        if let ShapeKind::ProgArray { targets } = shape.kind
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
