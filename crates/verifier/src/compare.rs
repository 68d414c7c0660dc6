//! When one state stands for another: what is equal, what is wide enough, what does not matter.

use crate::cfg::{Cfg, RegSet};
use crate::flow::{Flow, Node};
use crate::reg::{Id, Kind, Reg};
use crate::scalar::Scalar;
use crate::stack::{Byte, Slot};
use crate::state::State;

/// What is asked of the old state.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum How {
    /// It is the same: the path goes round in circles.
    Same,
    /// Every machine state described by the new one is described by it.
    Within,
    /// As [`How::Within`], but numbers that decided nothing behind it may differ.
    Enough,
}

/// Registers of frame `i` that are still read when the running frame is at `insn`.
pub fn live_regs(state: &State, i: usize, insn: usize, cfg: &Cfg) -> RegSet {
    const KEPT: RegSet = 0x3c0;
    match state.frames.get(i + 1) {
        None => cfg.live.get(insn).copied().unwrap_or(RegSet::MAX),
        // A callback returns to its call, which then reads the arguments again.
        Some(callee) if callee.held.is_some() => {
            cfg.live.get(callee.ret).copied().unwrap_or(RegSet::MAX)
        }
        Some(callee) => cfg.live.get(callee.ret).copied().unwrap_or(RegSet::MAX) & KEPT,
    }
}

/// Tells whether both states are in the same chain of calls.
pub fn same_place(a: &State, b: &State) -> bool {
    a.frames.len() == b.frames.len()
        && a.frames.iter().zip(&b.frames).all(|(x, y)| x.func == y.func && x.ret == y.ret)
}

/// A hash of the chain of calls: states of other chains have other ones, nearly always.
pub fn place(s: &State) -> u64 {
    let mix = |h: u64, n: usize| (h ^ n as u64).wrapping_mul(0x9e37_79b9_7f4a_7c15).rotate_left(29);
    s.frames.iter().fold(0, |h, f| mix(mix(h, f.func), f.ret))
}

/// Where an old state does not stand for a new one.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Where {
    /// In a register: frame and number.
    Reg(u8, u8),
    /// In eight bytes of stack: frame and slot.
    Slot(u8, u8),
    /// In something else.
    Other,
}

/// Pairs of ids: what is equal in the old state must be equal in the new one.
#[derive(Default)]
pub struct Ids {
    one_to_one: Vec<(Id, Id)>,
    equal: Vec<(Id, Id, i64)>,
    fresh: Id,
}

impl Ids {
    fn clear(&mut self) {
        self.one_to_one.clear();
        self.equal.clear();
        self.fresh = 0;
    }

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

/// Tells whether `old`, stored at `insn`, stands for `cur`.
pub fn covers(old: &State, cur: &State, insn: usize, cfg: &Cfg, flow: &Flow, how: How) -> bool {
    difference(old, cur, insn, cfg, flow, how, &mut Ids::default()).is_none()
}

/// Tells whether `old` does not stand for `cur` already for what is at one place. What `covers`
/// says of all places together is no milder.
pub fn differs_at(
    place: Where,
    old: &State,
    cur: &State,
    cfg: &Cfg,
    flow: &Flow,
    how: How,
    ids: &mut Ids,
) -> bool {
    ids.clear();
    let frames = |f: u8| old.frames.get(usize::from(f)).zip(cur.frames.get(usize::from(f)));
    match place {
        Where::Reg(f, r) => frames(f)
            .and_then(|(fo, fc)| fo.regs.get(usize::from(r)).zip(fc.regs.get(usize::from(r))))
            .is_some_and(|(o, c)| !reg_covers(o, c, ids, flow, how)),
        Where::Slot(f, s) => frames(f)
            .and_then(|(fo, fc)| {
                Some((
                    fo.stack.slots().get(usize::from(s))?,
                    fc.stack.slots().get(usize::from(s)).unwrap_or(&Slot::UNINIT),
                ))
            })
            .is_some_and(|(o, c)| !slot_covers(o, c, cfg.lax, ids, flow, how)),
        Where::Other => false,
    }
}

/// Finds where `old`, stored at `insn`, does not stand for `cur`; `None` if it does. `ids` is room
/// for pairs, its contents do not matter.
pub fn difference(
    old: &State,
    cur: &State,
    insn: usize,
    cfg: &Cfg,
    flow: &Flow,
    how: How,
    ids: &mut Ids,
) -> Option<Where> {
    ids.clear();
    if old.later != cur.later || old.rcu != cur.rcu || old.preempt != cur.preempt {
        return Some(Where::Other);
    }
    let same_lock = match (&old.lock, &cur.lock) {
        (None, None) => true,
        (Some((a, i)), Some((b, j))) => a == b && ids.same(*i, *j),
        _ => false,
    };
    if !same_lock {
        return Some(Where::Other);
    }
    if old.refs.len() != cur.refs.len()
        || !old.refs.iter().zip(&cur.refs).all(|(o, c)| ids.same(o.id, c.id))
    {
        return Some(Where::Other);
    }
    for (i, (fo, fc)) in old.frames.iter().zip(&cur.frames).enumerate() {
        // More turns were left in the old state, or as many.
        if fo.turns > fc.turns || (how == How::Same && fo.turns != fc.turns) {
            return Some(Where::Other);
        }
        let (held_old, held) =
            (fo.held.as_deref().unwrap_or_default(), fc.held.as_deref().unwrap_or_default());
        if held_old.len() != held.len() || !held_old.iter().zip(held).all(|(o, c)| ids.same(*o, *c))
        {
            return Some(Where::Other);
        }
        let live = live_regs(cur, i, insn, cfg);
        for (r, (o, c)) in fo.regs.iter().zip(&fc.regs).enumerate() {
            if live & (1 << r) != 0 && !reg_covers(o, c, ids, flow, how) {
                return Some(Where::Reg(i as u8, r as u8));
            }
        }
        if how == How::Same && fo.stack.slots().len() != fc.stack.slots().len() {
            return Some(Where::Other);
        }
        for (n, o) in fo.stack.slots().iter().enumerate() {
            let c = fc.stack.slots().get(n).unwrap_or(&Slot::UNINIT);
            if !slot_covers(o, c, cfg.lax, ids, flow, how) {
                return Some(Where::Slot(i as u8, n as u8));
            }
        }
    }
    None
}

fn reg_covers(old: &Reg, cur: &Reg, ids: &mut Ids, flow: &Flow, how: How) -> bool {
    if old.kind == Kind::Uninit {
        // Whoever read it was refused.
        return how != How::Same || cur.kind == Kind::Uninit;
    }
    if old.kind != cur.kind || old.nullable != cur.nullable || old.flags != cur.flags {
        return false;
    }
    if how == How::Same {
        let linked =
            if old.is_scalar() { ids.at_least(old, cur) } else { ids.same(old.id, cur.id) };
        let equal = linked && old.off == cur.off && old.val == cur.val && old.range == cur.range;
        return equal && ids.same(old.reference, cur.reference) && ids.same(old.parent, cur.parent);
    }
    if old.is_scalar() {
        return (how == How::Enough && !flow.is_precise(old.node))
            || (old.val.covers(&cur.val) && ids.at_least(old, cur));
    }
    let id_matters =
        old.nullable || old.kind.is_packet() || matches!(old.kind, Kind::Value(_) | Kind::Local(_));
    old.off == cur.off
        && old.val.covers(&cur.val)
        && old.range <= cur.range
        && ids.same(old.reference, cur.reference)
        && ids.same(old.parent, cur.parent)
        && (!id_matters || ids.same(old.id, cur.id))
}

fn slot_covers(old: &Slot, cur: &Slot, lax: bool, ids: &mut Ids, flow: &Flow, how: How) -> bool {
    if how == How::Same {
        if old.bytes[0] == Byte::Special {
            return cur.bytes[0] == Byte::Special && same_object(&old.reg, &cur.reg, ids);
        }
        return old.has_same_bytes(cur)
            && (old.bytes[0] != Byte::Spill || reg_covers(&old.reg, &cur.reg, ids, flow, how));
    }
    if old.is_unwritten() {
        return true;
    }
    // Bytes of one kind stand for each other.
    if old.has_same_bytes(cur) && old.bytes[0] == Byte::Spill {
        return reg_covers(&old.reg, &cur.reg, ids, flow, how);
    }
    for (o, c) in old.bytes.iter().zip(&cur.bytes) {
        let unknown = matches!(c, Byte::Misc | Byte::Zero) || (lax && *c == Byte::Uninit);
        let ok = match o {
            Byte::Uninit => true,
            Byte::Misc => unknown || (*c == Byte::Spill && cur.reg.is_scalar()),
            Byte::Zero => *c == Byte::Zero,
            Byte::Special => *c == Byte::Special,
            Byte::Spill => *c == Byte::Spill || (old.reg.is_scalar() && unknown),
        };
        if !ok {
            return false;
        }
    }
    if old.bytes[0] == Byte::Special {
        return same_object(&old.reg, &cur.reg, ids);
    }
    if old.bytes[0] != Byte::Spill {
        return true;
    }
    let extent = |s: &Slot| s.bytes.iter().filter(|b| **b == Byte::Spill).count();
    if cur.bytes[0] != Byte::Spill {
        return reg_covers(&old.reg, &Reg::UNKNOWN, ids, flow, how);
    }
    extent(old) == extent(cur) && reg_covers(&old.reg, &cur.reg, ids, flow, how)
}

/// Dynptrs and iterators: the same part of the same kind, with references that correspond.
fn same_object(old: &Reg, cur: &Reg, ids: &mut Ids) -> bool {
    old.kind == cur.kind
        && old.flags == cur.flags
        && old.range == cur.range
        && ids.same(old.id, cur.id)
        && ids.same(old.reference, cur.reference)
}

/// Makes `cur` forget in what it differs from `old`, the state of the iteration before: a few
/// iterations later there is nothing left to differ in. What is forgotten in vain shows as a
/// rejection, never as a wrong proof.
///
/// Numbers that decided something so far are spared if `keep` says so: a few iterations may be all
/// there are. Tells whether such a number was forgotten.
pub fn widen(old: &State, cur: &mut State, flow: &Flow, keep: bool) -> bool {
    let mut lost = false;
    let mut widen_number = |o: &Reg, c: &mut Reg| {
        if o.is_scalar() && c.is_scalar() && o.id != 0 && c.id != 0 && o.delta != c.delta {
            // Each turn would be another step away from the same number.
            (c.id, c.delta, c.low) = (0, 0, false);
        }
        let decides = o.is_scalar() && flow.is_precise(o.node);
        if !(keep && decides) {
            lost |= widen_number(o, c) && decides;
        }
    };
    for (fo, fc) in old.frames.iter().zip(&mut cur.frames) {
        for (o, c) in fo.regs.iter().zip(&mut fc.regs) {
            widen_number(o, c);
        }
        for (o, c) in fo.stack.slots().iter().zip(fc.stack.slots_mut()) {
            if o.has_same_bytes(c) {
                widen_number(&o.reg, &mut c.reg);
            } else if c.is_number() && !keep {
                c.forget();
            }
            for (ob, cb) in o.bytes.iter().zip(&mut c.bytes) {
                if *cb == Byte::Zero && *ob != Byte::Zero {
                    *cb = Byte::Misc;
                }
            }
        }
    }
    lost
}

fn widen_number(old: &Reg, cur: &mut Reg) -> bool {
    if !old.is_scalar() || !cur.is_scalar() || old.val.covers(&cur.val) {
        return false;
    }
    let word = u64::from(u32::MAX);
    let val = if old.val.r64.umax <= word && cur.val.r64.umax <= word {
        Scalar::of_size(4)
    } else {
        Scalar::UNKNOWN
    };
    // That it is a word still depends on what it was computed from.
    let node = if val.is_unknown() { Node::NONE } else { cur.node };
    *cur = Reg { node, ..Reg::scalar(val) };
    true
}
