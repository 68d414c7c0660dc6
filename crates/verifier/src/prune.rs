//! Stored states: a path that reaches an instruction in a state no worse than one already proved safe there can stop.

use crate::cfg::{Cfg, RegSet};
use crate::flow::Flow;
use crate::reg::{Id, Kind, Reg};
use crate::stack::{Byte, Slot, Stack};
use crate::state::State;
use skep_isa::op;

/// Index of a stored state.
pub type Point = usize;

/// A stored state.
pub struct Checkpoint {
    /// The state; dropped when it was not useful.
    pub state: Option<Box<State>>,
    /// The stored state the path came through before.
    pub parent: Option<Point>,
    /// Unfinished paths that came through here. At 0 everything behind it is proved safe.
    pub branches: u32,
    hits: u32,
    misses: u32,
}

/// All stored states.
pub struct Explored {
    points: Vec<Checkpoint>,
    at: Vec<Vec<u32>>,
    /// Most states at one instruction.
    pub most: usize,
    /// States ever stored.
    pub total: usize,
    /// States stored now, and at most.
    pub now: usize,
    /// Most states stored at a time.
    pub peak: usize,
    weight: usize,
}

/// Bytes of stored states beyond which no more are stored; the walk then ends by its instruction limit.
const WEIGHT_LIMIT: usize = 256 << 20;

/// How often a stored state may fail to match for each time it does.
const PATIENCE: u32 = 64;

/// Most states kept at one instruction.
const CROWD: usize = 1024;

/// What the stored states say about a new one.
pub enum Found {
    /// A proved state covers it: the index of that state.
    Covered(Point),
    /// The path has been in exactly this state before.
    Loop,
    /// Nothing; whether an unfinished state of this instruction is on the path.
    New {
        /// The path has been at this instruction before.
        looping: bool,
    },
}

impl Explored {
    /// Nothing stored yet.
    #[must_use]
    pub fn new(insns: usize) -> Self {
        Self { points: Vec::new(), at: vec![Vec::new(); insns], most: 0, total: 0, now: 0, peak: 0, weight: 0 }
    }

    /// Compares `cur` with all states stored at `insn`. `worth` tells whether a state will be stored here if nothing is
    /// found; given whether the path has been here before.
    pub fn find(&mut self, insn: usize, cur: &State, cfg: &Cfg, flow: &Flow, worth: impl Fn(bool) -> bool) -> Found {
        let mut looping = false;
        let mut list = self.at.get_mut(insn).map(std::mem::take).unwrap_or_default();
        let mut found = None;
        list.retain(|&p| {
            let Some(cp) = self.points.get_mut(p as usize) else { return false };
            let Some(old) = cp.state.as_deref() else { return false };
            if found.is_some() || !same_place(old, cur) {
                return true;
            }
            if cp.branches > 0 {
                looping = true;
                if covers(old, cur, insn, cfg, flow, true) {
                    found = Some(Found::Loop);
                    return true;
                }
            } else if covers(old, cur, insn, cfg, flow, false) {
                cp.hits += 1;
                found = Some(Found::Covered(p as usize));
                return true;
            }
            // A state that keeps failing to match costs more than it saves; but while no new ones are stored, as between
            // the iterations of a loop, it stays. The kernel gives up after 3 misses: with that, the loop over frames in
            // `skep trace`'s program was not done after a million instructions.
            cp.misses += u32::from(worth(looping));
            if cp.misses > cp.hits.saturating_mul(PATIENCE).saturating_add(PATIENCE) {
                self.weight = self.weight.saturating_sub(old.weight());
                self.now = self.now.saturating_sub(1);
                cp.state = None;
                return false;
            }
            true
        });
        if let Some(at) = self.at.get_mut(insn) {
            *at = list;
        }
        found.unwrap_or(Found::New { looping })
    }

    /// Stores a state; `None` when there is no room.
    pub fn store(&mut self, insn: usize, cur: &State, parent: Option<Point>, cfg: &Cfg) -> Option<Point> {
        if self.weight > WEIGHT_LIMIT {
            return None;
        }
        let mut state = Box::new(cur.clone());
        let n = state.frames.len();
        for i in 0..n {
            let live = live_regs(cur, i, insn, cfg);
            for (r, reg) in state.frames[i].regs.iter_mut().enumerate() {
                if live & (1 << r) == 0 && r != op::FP as usize {
                    *reg = Reg::UNINIT;
                }
            }
        }
        unlink_single(&mut state);
        let p = self.points.len();
        let at = self.at.get_mut(insn)?;
        if at.len() >= CROWD {
            let oldest = at.remove(0);
            if let Some(old) = self.points.get_mut(oldest as usize).and_then(|cp| cp.state.take()) {
                self.weight = self.weight.saturating_sub(old.weight());
                self.now = self.now.saturating_sub(1);
            }
        }
        at.push(u32::try_from(p).ok()?);
        self.most = self.most.max(at.len());
        self.weight += state.weight();
        self.total += 1;
        self.now += 1;
        self.peak = self.peak.max(self.now);
        self.points.push(Checkpoint { state: Some(state), parent, branches: 1, hits: 0, misses: 0 });
        Some(p)
    }

    /// A path forks behind `p`.
    pub fn fork(&mut self, p: Option<Point>) {
        if let Some(cp) = p.and_then(|p| self.points.get_mut(p)) {
            cp.branches += 1;
        }
    }

    /// A path that came through `p` has ended.
    pub fn end(&mut self, mut p: Option<Point>) {
        while let Some(cp) = p.and_then(|p| self.points.get_mut(p)) {
            cp.branches = cp.branches.saturating_sub(1);
            if cp.branches > 0 {
                break;
            }
            p = cp.parent;
        }
    }

    /// After `cur` was found covered by `p`: what decides behind `p` also decides for `cur`.
    pub fn inherit_precision(&self, p: Point, cur: &State, flow: &mut Flow) {
        let Some(old) = self.points.get(p).and_then(|cp| cp.state.as_deref()) else { return };
        for (fo, fc) in old.frames.iter().zip(&cur.frames) {
            for (o, c) in fo.regs.iter().zip(&fc.regs) {
                if o.is_scalar() && flow.is_precise(o.node) {
                    flow.mark(c.node);
                }
            }
            for (o, c) in fo.stack.slots().iter().zip(fc.stack.slots()) {
                if o.is_number() && c.is_number() && flow.is_precise(o.reg.node) {
                    flow.mark(c.reg.node);
                }
            }
        }
    }
}

/// Takes scalars out of sets they are alone in: nothing can be learnt through them, so they need not match.
fn unlink_single(state: &mut State) {
    let mut seen: Vec<(Id, u32)> = Vec::new();
    state.each(|r| {
        if r.is_scalar() && r.id != 0 {
            match seen.iter_mut().find(|(id, _)| *id == r.id) {
                Some((_, n)) => *n += 1,
                None => seen.push((r.id, 1)),
            }
        }
    });
    state.each(|r| {
        if r.is_scalar() && seen.iter().any(|(id, n)| *id == r.id && *n == 1) {
            r.id = 0;
        }
    });
}

/// Registers of frame `i` that are still read when the running frame is at `insn`.
fn live_regs(state: &State, i: usize, insn: usize, cfg: &Cfg) -> RegSet {
    const KEPT: RegSet = 0x3c0;
    match state.frames.get(i + 1) {
        None => cfg.live.get(insn).copied().unwrap_or(RegSet::MAX),
        Some(callee) => cfg.live.get(callee.ret).copied().unwrap_or(RegSet::MAX) & KEPT,
    }
}

fn same_place(a: &State, b: &State) -> bool {
    a.frames.len() == b.frames.len() && a.frames.iter().zip(&b.frames).all(|(x, y)| x.func == y.func && x.ret == y.ret)
}

/// Pairs of ids: what is equal in the old state must be equal in the new one.
#[derive(Default)]
struct Ids {
    one_to_one: Vec<(Id, Id)>,
    equal: Vec<(Id, Id, i64)>,
    fresh: Id,
}

impl Ids {
    /// Ids that must correspond one to one: references, pointers that are null together.
    fn same(&mut self, old: Id, cur: Id) -> bool {
        if old == 0 || cur == 0 {
            return old == cur;
        }
        for (o, c) in &self.one_to_one {
            if *o == old || *c == cur {
                return *o == old && *c == cur;
            }
        }
        self.one_to_one.push((old, cur));
        true
    }

    /// Sets of equal scalars: the new state may know of more equalities, not of fewer.
    fn at_least(&mut self, old: &Reg, cur: &Reg) -> bool {
        if old.id == 0 {
            return true;
        }
        let id = if cur.id == 0 || cur.low != old.low {
            self.fresh += 1;
            Id::MAX - self.fresh
        } else {
            cur.id
        };
        let apart = i64::from(cur.delta) - i64::from(old.delta);
        match self.equal.iter().find(|(o, ..)| *o == old.id) {
            Some((_, i, a)) => (*i, *a) == (id, apart),
            None => {
                self.equal.push((old.id, id, apart));
                true
            }
        }
    }
}

/// Tells whether all that can happen from `cur` was covered by exploring from `old`; with `exact`, whether the two are
/// the same.
fn covers(old: &State, cur: &State, insn: usize, cfg: &Cfg, flow: &Flow, exact: bool) -> bool {
    let mut ids = Ids::default();
    if old.refs.len() != cur.refs.len() || !old.refs.iter().zip(&cur.refs).all(|(o, c)| ids.same(o.id, c.id)) {
        return false;
    }
    for (i, (fo, fc)) in old.frames.iter().zip(&cur.frames).enumerate() {
        let live = live_regs(cur, i, insn, cfg);
        for (r, (o, c)) in fo.regs.iter().zip(&fc.regs).enumerate() {
            if live & (1 << r) != 0 && !reg_covers(o, c, &mut ids, flow, exact) {
                return false;
            }
        }
        if !stack_covers(&fo.stack, &fc.stack, &mut ids, flow, exact) {
            return false;
        }
    }
    true
}

fn reg_covers(old: &Reg, cur: &Reg, ids: &mut Ids, flow: &Flow, exact: bool) -> bool {
    if old.kind == Kind::Uninit {
        // Whoever read it was refused.
        return !exact || cur.kind == Kind::Uninit;
    }
    if old.kind != cur.kind || old.nullable != cur.nullable {
        return false;
    }
    if exact {
        let linked = if old.is_scalar() { ids.at_least(old, cur) } else { ids.same(old.id, cur.id) };
        return linked && old.off == cur.off && old.val == cur.val && old.range == cur.range && ids.same(old.reference, cur.reference);
    }
    if old.is_scalar() {
        return !flow.is_precise(old.node) || (old.val.covers(&cur.val) && ids.at_least(old, cur));
    }
    let id_matters = old.nullable || old.kind.is_packet();
    old.off == cur.off
        && old.val.covers(&cur.val)
        && old.range <= cur.range
        && ids.same(old.reference, cur.reference)
        && (!id_matters || ids.same(old.id, cur.id))
}

fn stack_covers(old: &Stack, cur: &Stack, ids: &mut Ids, flow: &Flow, exact: bool) -> bool {
    if exact && old.slots().len() != cur.slots().len() {
        return false;
    }
    let missing = std::iter::repeat(&Slot::UNINIT);
    old.slots().iter().zip(cur.slots().iter().chain(missing)).all(|(o, c)| slot_covers(o, c, ids, flow, exact))
}

fn slot_covers(old: &Slot, cur: &Slot, ids: &mut Ids, flow: &Flow, exact: bool) -> bool {
    if exact {
        return old.bytes == cur.bytes && (old.bytes[0] != Byte::Spill || reg_covers(&old.reg, &cur.reg, ids, flow, true));
    }
    for (o, c) in old.bytes.iter().zip(&cur.bytes) {
        let ok = match o {
            Byte::Uninit => true,
            Byte::Misc => matches!(c, Byte::Misc | Byte::Zero) || (*c == Byte::Spill && cur.reg.is_scalar()),
            Byte::Zero => *c == Byte::Zero,
            Byte::Spill => *c == Byte::Spill || (old.reg.is_scalar() && matches!(c, Byte::Misc | Byte::Zero)),
        };
        if !ok {
            return false;
        }
    }
    if old.bytes[0] != Byte::Spill {
        return true;
    }
    let extent = |s: &Slot| s.bytes.iter().filter(|b| **b == Byte::Spill).count();
    if cur.bytes[0] != Byte::Spill {
        return reg_covers(&old.reg, &Reg::UNKNOWN, ids, flow, false);
    }
    extent(old) == extent(cur) && reg_covers(&old.reg, &cur.reg, ids, flow, false)
}
