//! Jumps: which paths are possible, and what each path teaches.

use super::{Next, Walk};
use crate::cfg;
use crate::reg::{Flags, Id, Kind, Reg};
use crate::reject::Reason;
use crate::scalar::Cmp;
use crate::state::State;
use skep_isa::{Insn, helper, op};

impl Walk<'_> {
    pub(super) fn jump(&mut self, i: Insn, at: usize) -> Result<Next, Reason> {
        match i.code {
            op::EXIT => return self.exit(),
            op::CALL if i.src() == op::PSEUDO_CALL => return self.call_local(i, at),
            op::CALL if cfg::is_kfunc(i) => return self.call_kfunc(i, at),
            op::CALL if cfg::calls_back(i) => return self.call_back(i, at),
            op::CALL => {
                self.call_helper(i)?;
                if i.imm as u32 == helper::id::TAIL_CALL {
                    // Another program returns in place of this function, whatever it pleases.
                    self.may_return(Reg::UNKNOWN)?;
                }
                return Ok(Some(at + 1));
            }
            _ => {}
        }
        self.jumps += 1;
        let to = cfg::target(&self.prog.insns, at).and_then(|t| usize::try_from(t).ok());
        let Some(to) = to else { return Err(Reason::UnknownOpcode { code: i.code }) };
        if !cfg::is_conditional(i) {
            return Ok(Some(to));
        }
        if cfg::is_may_goto(i) {
            // Behind the loop first: mistakes in one more iteration are the same ones again.
            let mut more = self.state.clone();
            let rounds = more.top().may_goto;
            more.loops.take_turn(rounds);
            self.fork(more, at + 1);
            return Ok(Some(to));
        }
        self.conditional(i, at + 1, to)
    }

    fn conditional(&mut self, i: Insn, next: usize, to: usize) -> Result<Next, Reason> {
        let is32 = i.class() == op::JMP32;
        let a = self.read(i.dst())?;
        let b = if i.code & op::X != 0 {
            self.read(i.src())?
        } else {
            Reg::constant(i.imm as i64 as u64)
        };
        let cmp = comparison(i);
        if !(a.is_scalar() && b.is_scalar()) {
            let constant = i.code & op::X == 0;
            let bounds = |k: Kind| k.is_packet() || k == Kind::PacketEnd;
            let packet = bounds(a.kind) && bounds(b.kind) && a.kind != b.kind && !is32;
            let null = (constant && i.imm == 0)
                && matches!(i.code & 0xf0, op::JEQ | op::JNE)
                && !is32
                && (a.nullable || never_null(&a));
            if self.opts.strict && !packet && !null {
                return Err(Reason::ComparesPointer { reg: i.dst() });
            }
            return Ok(Some(self.compare_pointers((&a, &b), constant, cmp, is32, next, to)));
        }
        let same = i.code & op::X != 0
            && (i.dst() == i.src()
                || (a.id != 0 && (a.id, a.delta, a.low) == (b.id, b.delta, b.low)));
        let yes =
            if same && !reflexive(cmp, &a, is32) { None } else { a.val.assume(cmp, b.val, is32) };
        let no = if same && !reflexive(cmp.negate(), &a, is32) {
            None
        } else {
            a.val.assume(cmp.negate(), b.val, is32)
        };
        let (side, sides) = match (yes, no) {
            (Some(_), None) => (Some(to), None),
            (None, Some(_)) => (Some(next), None),
            // No number is left: this point is never reached.
            (None, None) => (None, None),
            (Some(y), Some(n)) => (Some(next), Some((y, n))),
        };
        let Some((y, n)) = sides else {
            // The outcome rests on these numbers.
            self.flow.mark(a.node);
            self.flow.mark(b.node);
            return Ok(side);
        };
        let mut taken = self.state.clone();
        self.learn(&mut taken, i, &a, &b, y);
        let mut fallen = std::mem::take(&mut self.state);
        self.learn(&mut fallen, i, &a, &b, n);
        self.state = fallen;
        self.fork(taken, to);
        Ok(side)
    }

    /// Writes what a comparison taught into a state, also into registers known to be equal.
    fn learn(
        &mut self,
        state: &mut State,
        i: Insn,
        a: &Reg,
        b: &Reg,
        vals: (crate::scalar::Scalar, crate::scalar::Scalar),
    ) {
        let mut sides = vec![(i.dst(), a, vals.0)];
        if i.code & op::X != 0 {
            sides.push((i.src(), b, vals.1));
        }
        let mut cause = None;
        for (reg, was, val) in sides {
            if was.val == val {
                continue;
            }
            let cause = *cause.get_or_insert_with(|| self.flow.derive(a.node, b.node));
            if was.id == 0 {
                let mut r = *was;
                r.val = val;
                r.node = self.flow.derive(was.node, cause);
                state.set(reg, r);
            } else {
                let flow = &mut self.flow;
                crate::state::narrow(state, was, val, |r| r.node = flow.derive(r.node, cause));
            }
        }
    }

    /// Comparisons with a pointer on at least one side.
    fn compare_pointers(
        &mut self,
        (a, b): (&Reg, &Reg),
        constant: bool,
        cmp: Cmp,
        is32: bool,
        next: usize,
        to: usize,
    ) -> usize {
        let equality = matches!(cmp, Cmp::Eq | Cmp::Ne) && !is32;
        let (if_equal, if_not) = if cmp == Cmp::Eq { (to, next) } else { (next, to) };
        if equality {
            let against_null = if b.is_zero() {
                Some((a, b))
            } else if a.is_zero() {
                Some((b, a))
            } else {
                None
            };
            if let Some((p, zero)) = against_null {
                self.flow.mark(zero.node);
                // The kernel learns from a comparison with the constant only.
                if constant && p.nullable && (p.off == 0 || matches!(p.kind, Kind::Local(_))) {
                    let mut null = self.state.clone();
                    null.settle_null(p.id, true, |_| false);
                    self.settle_not_null(p.id);
                    // Walk the path with the memory first: errors there are the interesting ones.
                    self.fork(null, if_equal);
                    return if_not;
                }
                if never_null(p) {
                    return if_not;
                }
            }
            // Equal to a pointer that is not NULL: not NULL.
            for (p, q) in [(a, b), (b, a)] {
                // What was cast to a pointer may be NULL, too.
                let kernel = |r: &Reg| {
                    matches!(r.kind, Kind::Btf(_) | Kind::Local(_)) || r.flags.has(Flags::UNTRUSTED)
                };
                if p.nullable
                    && p.off == 0
                    && q.kind.is_pointer()
                    && !q.nullable
                    && !kernel(p)
                    && !kernel(q)
                {
                    let other = self.state.clone();
                    self.settle_not_null(p.id);
                    let equal = std::mem::replace(&mut self.state, other);
                    self.fork(equal, if_equal);
                    return if_not;
                }
            }
        }
        if !is32 && let Some(next) = self.compare_packet(a, b, cmp, next, to) {
            return next;
        }
        self.fork(self.state.clone(), to);
        next
    }

    fn settle_not_null(&mut self, id: Id) {
        let mut state = std::mem::take(&mut self.state);
        state.settle_null(id, false, |k| self.may_hold_lock(k));
        self.state = state;
    }

    /// `data + n > data_end` and its kin: proves bytes to be inside the packet.
    fn compare_packet(
        &mut self,
        a: &Reg,
        b: &Reg,
        cmp: Cmp,
        next: usize,
        to: usize,
    ) -> Option<usize> {
        // Written with the position on the left: p ? end.
        let (p, cmp) = match (a.kind, b.kind) {
            (Kind::Packet, Kind::PacketEnd) => (a, cmp),
            (Kind::PacketEnd, Kind::Packet) => (b, mirror(cmp)),
            // Metadata ends where the packet starts.
            (Kind::PacketMeta, Kind::Packet)
                if b.off == 0 && b.val.as_const() == Some(0) && b.id == 0 =>
            {
                (a, cmp)
            }
            (Kind::Packet, Kind::PacketMeta)
                if a.off == 0 && a.val.as_const() == Some(0) && a.id == 0 =>
            {
                (b, mirror(cmp))
            }
            _ => return None,
        };
        // `inside` is the state in which p <= end, or p < end.
        let (strict, inside_is_jump) = match cmp {
            Cmp::Gt => (false, false),
            Cmp::Le => (false, true),
            Cmp::Ge => (true, false),
            Cmp::Lt => (true, true),
            _ => return None,
        };
        let mut inside = self.state.clone();
        extend_range(&mut inside, p, strict);
        if inside_is_jump {
            self.fork(inside, to);
        } else {
            self.fork(self.state.clone(), to);
            self.state = inside;
        }
        Some(next)
    }
}

/// Packet pointers with the variable part of `p` may be followed up to `p`, or one byte further.
fn extend_range(state: &mut State, p: &Reg, strict: bool) {
    let (min, max) = p.offsets();
    // A negative offset says nothing, and a huge one could have wrapped round the address space.
    if min < 0 || max > 0xffff {
        return;
    }
    let Ok(range) = u32::try_from(i64::from(p.off) + i64::from(strict)) else { return };
    state.each(|r| {
        if r.kind == p.kind && r.id == p.id {
            r.range = r.range.max(range);
        }
    });
}

fn comparison(i: Insn) -> Cmp {
    match i.code & 0xf0 {
        op::JEQ => Cmp::Eq,
        op::JNE => Cmp::Ne,
        op::JGT => Cmp::Gt,
        op::JGE => Cmp::Ge,
        op::JLT => Cmp::Lt,
        op::JLE => Cmp::Le,
        op::JSGT => Cmp::Sgt,
        op::JSGE => Cmp::Sge,
        op::JSLT => Cmp::Slt,
        op::JSLE => Cmp::Sle,
        _ => Cmp::Set,
    }
}

/// The same comparison with the sides exchanged.
fn mirror(c: Cmp) -> Cmp {
    match c {
        Cmp::Gt => Cmp::Lt,
        Cmp::Ge => Cmp::Le,
        Cmp::Lt => Cmp::Gt,
        Cmp::Le => Cmp::Ge,
        Cmp::Sgt => Cmp::Slt,
        Cmp::Sge => Cmp::Sle,
        Cmp::Slt => Cmp::Sgt,
        Cmp::Sle => Cmp::Sge,
        c => c,
    }
}

/// Tells whether `x cmp x` can hold.
fn reflexive(c: Cmp, r: &Reg, is32: bool) -> bool {
    match c {
        Cmp::Eq | Cmp::Ge | Cmp::Le | Cmp::Sge | Cmp::Sle => true,
        Cmp::Set => !(r.is_zero() || (is32 && r.val.r32.umax == 0)),
        Cmp::NotSet => r.val.contains(0) || (is32 && r.val.r32.contains(0)),
        Cmp::Ne | Cmp::Gt | Cmp::Lt | Cmp::Sgt | Cmp::Slt => false,
    }
}

/// A pointer that cannot be NULL: nothing was added to it that could bring it there.
fn never_null(r: &Reg) -> bool {
    // Those of the kernel's `reg_not_null`: neither the context nor the stack.
    let memory = matches!(
        r.kind,
        Kind::Value(_)
            | Kind::Key(_)
            | Kind::Mem(_)
            | Kind::Record(_)
            | Kind::Map(_)
            | Kind::SockCommon
            | Kind::Socket
            | Kind::TcpSock
    ) || matches!(r.kind, Kind::Btf(_) | Kind::Local(_) if r.flags.has(Flags::TRUSTED) || r.reference != 0);
    let near = r.val.as_const() == Some(0) && (-4096..=4096).contains(&r.off);
    memory && !r.nullable && near
}
