//! Functions of the program that helpers call: any number of times, also never, or later.

use super::{Next, Walk};
use crate::reg::{Flags, Kind, Reg};
use crate::reject::Reason;
use crate::stack::DynptrKind;
use crate::state::{Frame, State};
use skep_isa::helper::{self, ArgType, Callback};
use skep_isa::{Insn, KeyShape, op};

/// Turns of a `bpf_loop` that are walked one by one: what the next one finds need not be forgotten.
const FEW: u64 = 4;

/// Callbacks around such a loop at most: each level multiplies the paths by [`FEW`].
const NESTED: usize = 1;

impl Walk<'_> {
    /// A callback returns to its helper, which may call it again.
    pub(super) fn exit_callback(&mut self, call: usize) -> Result<Next, Reason> {
        let r0 = self.read(0)?;
        let (min, max) = (0, 1);
        self.flow.mark(r0.node);
        if !r0.is_scalar() || r0.val.r64.smin < min || r0.val.r64.smax > max {
            let found = if r0.is_scalar() { r0.val.to_string() } else { r0.type_name() };
            return Err(Reason::BadCallbackReturn { found, min, max });
        }
        let frame = self.leave();
        let (less, held) = frame.map_or_else(Default::default, |f| (f.less, f.held));
        let held = held.unwrap_or_default();
        if let Some(r) = self.state.refs.iter().find(|r| !held.contains(&r.id)) {
            return Err(Reason::Unreleased { id: r.id, insn: r.insn });
        }
        if self.state.refs.len() != held.len() {
            return Err(Reason::ReleasedInCallback);
        }
        let depth = self.state.frames.len() as u8;
        self.state.invalidate(self.opts.strict, |r| r.kind == Kind::Stack(depth));
        if !less {
            let caller = self.state.top_mut();
            caller.turns = caller.turns.saturating_add(1);
        }
        Ok(Some(call))
    }

    /// The end of a function that a timer or work queue calls.
    pub(super) fn exit_later(&mut self, r0: &Reg) -> Result<Next, Reason> {
        self.flow.mark(r0.node);
        if r0.as_const() == Some(0) {
            return Ok(None);
        }
        let found = if r0.is_scalar() { r0.val.to_string() } else { r0.type_name() };
        Err(Reason::BadLaterReturn { found })
    }

    /// Tells whether a `bpf_loop` takes so few turns that each is walked as it is.
    pub(super) fn few_turns(&self, insn: usize) -> bool {
        let is_loop = self
            .prog
            .insns
            .get(insn)
            .is_some_and(|i| i.is_helper_call() && i.imm as u32 == helper::id::LOOP);
        let callbacks = self.state.frames.iter().filter(|f| f.held.is_some()).count();
        is_loop
            && callbacks <= NESTED
            && self.state.reg(1).is_scalar()
            && self.state.reg(1).val.r64.umax <= FEW
    }

    /// A helper that calls a function of the program.
    pub(super) fn call_back(&mut self, i: Insn, at: usize) -> Result<Next, Reason> {
        let h = helper::by_id(i.imm as u32);
        let arg = h
            .and_then(|h| h.args.iter().position(|a| *a == ArgType::Func))
            .map_or(2, |n| n as u8 + 1);
        let callback = h.and_then(|h| h.callback);
        let Kind::Func(to) = self.state.reg(arg).kind else {
            return self.call_helper(i).map(|()| Some(at + 1));
        };
        let to = to as usize;
        let frames = self.state.frames.len() + 1;
        if frames > op::MAX_CALL_FRAMES {
            return Err(Reason::CallStackTooDeep { frames });
        }
        // Behind the call, with the state before this turn.
        let mut called = self.state.clone();
        let top = self.state.top_mut();
        top.turns = 0;
        let rounds = std::mem::take(&mut top.helper);
        self.state.loops.end(rounds);
        let func = self.cfg.func_of(to);
        let mut callee = Frame::new(called.depth() as u8 + 1, func, at);
        callee.held = Some(called.refs.iter().map(|r| r.id).collect());
        let first = *called.reg(1);
        match (callback, first.kind) {
            (Some(Callback::Loop), _) => {
                callee.regs[1] = Reg::UNKNOWN;
                callee.regs[2] = *called.reg(3);
                // The number of turns decides whether there is another.
                self.flow.mark(first.node);
            }
            (Some(Callback::EachElement), Kind::Map(map)) => {
                self.show_element(&mut callee, map);
                callee.regs[4] = *called.reg(3);
            }
            (Some(Callback::Vma), _) => {
                callee.regs[1] = first;
                callee.regs[2] = self.kernel_pointer("vm_area_struct", Flags::NONE);
                callee.regs[3] = *called.reg(4);
            }
            (Some(Callback::Samples), _) => {
                callee.regs[1] = Reg::of(Kind::Dynptr(DynptrKind::Local));
                callee.regs[2] = *called.reg(3);
            }
            (Some(Callback::Timer), Kind::Value(map)) => {
                self.call_helper(i)?;
                self.call_later(to, map);
                return Ok(Some(at + 1));
            }
            // What is wrong with the call itself comes first.
            _ => {
                return self
                    .call_helper(i)
                    .and(Err(Reason::Unsupported { what: "the callback of this helper" }));
            }
        }
        let turns = called.top().turns;
        called.loops.take_turn(rounds);
        called.frames.push(callee);
        let called = self.enter(called);
        self.info.calls.insert((self.cfg.func_of(at), func));
        self.call_helper(i)?;
        if callback != Some(Callback::Loop) || u64::from(turns) < first.val.r64.umax {
            self.fork(called, to);
        }
        Ok(Some(at + 1))
    }

    /// What a function sees of an element of a map.
    fn show_element(&mut self, callee: &mut Frame, map: u32) {
        let key = match self.spec(map).map(|m| m.keys) {
            // One that may only be read; the helpers that would write to it see that.
            Some(KeyShape::Bytes { .. }) => Kind::Dynptr(DynptrKind::Local),
            _ => Kind::Key(map),
        };
        for (reg, kind) in [(1, Kind::Map(map)), (2, key), (3, Kind::Value(map))] {
            callee.regs[reg] = Reg::of(kind);
        }
        if self.may_hold_lock(Kind::Value(map)) {
            // Each turn another one.
            callee.regs[3].id = self.fresh_id();
        }
    }

    /// A function that runs later, by itself: with nothing held, and an element of the map that its
    /// timer lies in. It always begins like that, also where it sees to it itself that it runs again: it
    /// is walked once.
    pub(super) fn call_later(&mut self, to: usize, map: u32) {
        if !self.later.insert((to, map)) {
            return;
        }
        let mut state = State::entry();
        state.later = true;
        let top = state.top_mut();
        top.func = self.cfg.func_of(to);
        self.show_element(top, map);
        let state = self.enter(state);
        self.fork(state, to);
    }
}
