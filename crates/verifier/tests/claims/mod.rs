//! Holds what a machine has at an instruction against the states that the verifier walked there:
//! one of them must describe every register, every stack byte, which numbers are equal, and how
//! many records are held.

use crate::machine::memory::{Kind as Thing, Tag, Value};
use crate::machine::{Frame as Real, Machine, Reach, Return};
use skep_isa::{ArgType, Insn, helper};
use skep_verifier::cfg::Cfg;
use skep_verifier::compare::live_regs;
use skep_verifier::reg::{Flags, Kind, Reg};
use skep_verifier::stack::{Byte, Slot};
use skep_verifier::state::State;

/// How much a state must say.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Sharp {
    /// All of it: every path was walked to its end.
    Exactly,
    /// All but numbers: paths that were cut short may have had other ones, where those decide
    /// nothing.
    Pointers,
}

/// Tells whether one of the states describes the machine; else what the last one gets wrong.
pub fn described(
    claims: &[State],
    m: &Machine<'_>,
    pc: usize,
    cfg: &Cfg,
    sharp: Sharp,
) -> Result<(), String> {
    let mut why = "this place was never walked".to_owned();
    for s in claims.iter().rev() {
        match describes(s, m, pc, cfg, sharp) {
            Ok(()) => return Ok(()),
            Err(e) => why = e,
        }
    }
    Err(why)
}

/// Notes how much memory the helper called at `pc` may be asked to fill, as this state has it.
pub fn note_reach(reach: &mut Reach, i: Insn, pc: usize, s: &State) {
    let Some(h) = helper::by_id(i.imm as u32).filter(|_| i.is_helper_call()) else { return };
    if let Some(n) = h.args.iter().position(|a| *a == ArgType::UninitMem)
        && let Some(size) = s.top().regs.get(n + 2)
    {
        let most = reach.entry(pc).or_insert(0);
        *most = (*most).max(size.val.r64.umax.min(1 << 20));
    }
}

/// A set of equal numbers: the value its id stands for, and whether only the low half is meant.
#[derive(Default)]
struct Sets {
    whole: Vec<(u32, u64)>,
    low: Vec<(u32, u32)>,
    /// Pointers that are NULL together.
    null: Vec<(u32, bool)>,
}

impl Sets {
    fn agree<K: PartialEq, V: PartialEq + Copy>(list: &mut Vec<(K, V)>, id: K, v: V) -> bool {
        match list.iter().find(|(i, _)| *i == id) {
            Some((_, old)) => *old == v,
            None => {
                list.push((id, v));
                true
            }
        }
    }

    fn number(&mut self, r: &Reg, n: u64) -> bool {
        if r.id == 0 {
            return true;
        }
        let base = n.wrapping_sub(i64::from(r.delta) as u64);
        (r.low || Self::agree(&mut self.whole, r.id, base))
            && Self::agree(&mut self.low, r.id, base as u32)
    }
}

fn describes(s: &State, m: &Machine<'_>, pc: usize, cfg: &Cfg, sharp: Sharp) -> Result<(), String> {
    // A function that was walked by itself knows nothing of its callers.
    let Some(outer) = m.frames.len().checked_sub(s.frames.len()) else {
        return Err("more frames than there are".to_owned());
    };
    let frames = &m.frames[outer..];
    for (claim, real) in s.frames.iter().zip(frames).skip(1) {
        let ret = match real.ret {
            Return::Program => 0,
            Return::Call(to) => to,
            Return::Lap { call, .. } => call,
        };
        if claim.ret != ret {
            return Err("another chain of calls".to_owned());
        }
    }
    // A reservation that failed is held until the program finds out.
    if outer == 0 && s.refs.len() < m.records() {
        return Err(format!("{} records held, {} claimed", m.records(), s.refs.len()));
    }
    let mut sets = Sets::default();
    for (n, (claim, real)) in s.frames.iter().zip(frames).enumerate() {
        let live = live_regs(s, n, pc, cfg);
        for (r, (c, v)) in claim.regs.iter().zip(&real.regs).enumerate() {
            if live & (1 << r) != 0 {
                check(c, *v, m, frames, &mut sets, sharp)
                    .map_err(|e| format!("frame {n}, r{r}: {e}; claimed {c:?}"))?;
            }
        }
        for (k, slot) in claim.stack.slots().iter().enumerate() {
            let at = 512 - 8 * (k as u64 + 1);
            check_slot(slot, at, real.stack, m, frames, &mut sets, sharp)
                .map_err(|e| format!("frame {n}, fp-{}: {e}; claimed {slot:?}", 8 * (k + 1)))?;
        }
    }
    Ok(())
}

fn check(
    c: &Reg,
    v: Option<Value>,
    m: &Machine<'_>,
    frames: &[Real],
    sets: &mut Sets,
    sharp: Sharp,
) -> Result<(), String> {
    let Some(v) = v else {
        return if c.kind == Kind::Uninit { Ok(()) } else { Err("never written".to_owned()) };
    };
    let wrong = || Err(format!("is {:?} {:#x}", v.tag, v.bits));
    if c.nullable {
        let null = v == Value::number(0);
        if c.id != 0 && !Sets::agree(&mut sets.null, c.id, null) {
            return Err("one of two pointers with one id is NULL".to_owned());
        }
        if null {
            return Ok(());
        }
    }
    // Where the pointer's constant part began.
    let start = v.bits.wrapping_sub(i64::from(c.off) as u64);
    let inside = |base: u64| {
        if c.val.contains(start.wrapping_sub(base)) {
            Ok(())
        } else {
            Err(format!("is at {:#x}", v.bits.wrapping_sub(base)))
        }
    };
    let object = |o: usize| &m.memory.objects[o];
    match (c.kind, v.tag) {
        (Kind::Uninit, _) => Ok(()),
        (Kind::Scalar, _) if sharp == Sharp::Pointers => Ok(()),
        (Kind::Scalar, _) if !c.val.contains(v.bits) => Err(format!("is {:#x}", v.bits)),
        (Kind::Scalar, _) if !sets.number(c, v.bits) => {
            Err("not as far from its equals as claimed".to_owned())
        }
        (Kind::Scalar, _) => Ok(()),
        (Kind::Ctx, Tag::Memory(o)) if o == m.ctx => inside(object(o).base),
        (Kind::Stack(f), Tag::Memory(o))
            if frames.get(f as usize).is_some_and(|f| f.stack == o) =>
        {
            inside(object(o).base + 512)
        }
        (Kind::Value(map), Tag::Memory(o)) if object(o).kind == Thing::Element(of_map(map)) => {
            inside(object(o).base)
        }
        (Kind::Key(_), Tag::Memory(o)) if object(o).kind == Thing::Lent && !object(o).writable => {
            inside(object(o).base)
        }
        (Kind::Mem(n), Tag::Memory(o)) if object(o).kind == Thing::Lent && c.parent == 0 => {
            let fits = object(o).alive && object(o).size() >= n.into();
            if fits { inside(object(o).base) } else { wrong() }
        }
        (Kind::Mem(_), Tag::Wild) if c.flags.has(Flags::UNTRUSTED) => Ok(()),
        (Kind::Mem(n), Tag::Memory(_))
            if c.parent != 0
                && c.val.as_const() == Some(0)
                && !m.slices.contains(&(start, n.into())) =>
        {
            Err(format!("no memory of {n} bytes begins there"))
        }
        // Memory of a dynptr, or given to a function that knows nothing of where it lies.
        (Kind::Mem(n), Tag::Memory(o)) => {
            let room = (object(o).base + object(o).size())
                .wrapping_sub(start.wrapping_sub(c.val.r64.umax));
            if object(o).alive && room >= n.into() { Ok(()) } else { wrong() }
        }
        (Kind::Record(n), Tag::Memory(o))
            if object(o).alive && object(o).size() == u64::from(n) =>
        {
            inside(object(o).base)
        }
        (Kind::Packet | Kind::PacketMeta, Tag::Memory(o)) => {
            let at = if c.kind == Kind::Packet { m.packet } else { m.meta };
            if o != at {
                return wrong();
            }
            inside(object(o).base)?;
            let past = start.wrapping_add(c.range.into()).wrapping_sub(object(o).base);
            if c.range > 0 && past > object(o).size() {
                return Err(format!(
                    "{} bytes are not in a packet of {}",
                    c.range,
                    object(o).size()
                ));
            }
            Ok(())
        }
        (Kind::PacketEnd, Tag::End(_)) => Ok(()),
        (Kind::Map(n), tag) if tag == of_map(n) => Ok(()),
        (Kind::Func(n), Tag::Func(o)) if n as usize == o => Ok(()),
        (
            Kind::Ctx
            | Kind::Stack(_)
            | Kind::Value(_)
            | Kind::Key(_)
            | Kind::Mem(_)
            | Kind::Record(_)
            | Kind::Packet
            | Kind::PacketMeta
            | Kind::PacketEnd
            | Kind::Map(_)
            | Kind::Func(_),
            _,
        ) => wrong(),
        // Kinds the machine has no idea of.
        _ => Ok(()),
    }
}

/// A map's number in the verifier: the top bit says that the map inside that one is meant.
fn of_map(n: u32) -> Tag {
    if n >> 31 == 0 { Tag::Map(n) } else { Tag::Inner(n & !(1 << 31)) }
}

fn check_slot(
    slot: &Slot,
    at: u64,
    stack: usize,
    m: &Machine<'_>,
    frames: &[Real],
    sets: &mut Sets,
    sharp: Sharp,
) -> Result<(), String> {
    for (k, b) in slot.bytes.iter().enumerate() {
        let real = m.memory.peek(stack, at + k as u64);
        let ok = match b {
            Byte::Uninit => true,
            Byte::Zero => real == Some(0),
            Byte::Misc | Byte::Spill | Byte::Special => real.is_some(),
        };
        if !ok {
            return Err(format!("byte {k} is {real:?}"));
        }
    }
    if slot.bytes[0] != Byte::Spill {
        return Ok(());
    }
    let spilled = slot.bytes.iter().filter(|b| **b == Byte::Spill).count() as u64;
    let Some(mut v) = m.memory.peek_word(stack, at) else {
        return Err("outside the stack".to_owned());
    };
    if spilled < 8 {
        v = Value::number(v.bits & ((1 << (8 * spilled)) - 1));
    }
    check(&slot.reg, Some(v), m, frames, sets, sharp)
}
