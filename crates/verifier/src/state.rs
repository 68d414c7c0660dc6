//! The state of one path: frames with registers and stacks, and the references it must give back.

use crate::reg::{Id, Kind, Reg};
use crate::scalar::{Op, Scalar};
use crate::stack::{Slot, Stack};
use crate::turns::{LoopId, Loops};
use skep_isa::op;

/// One function activation.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Frame {
    /// r0 to r10.
    pub regs: [Reg; op::REGS],
    /// Its stack.
    pub stack: Stack,
    /// Index of the function.
    pub func: usize,
    /// Instruction after the call, or the call itself for a callback; meaningless for the first
    /// frame.
    pub ret: usize,
    /// For a callback: the references held when it was called.
    pub held: Option<Vec<Id>>,
    /// It compares the nodes of a tree that is being changed.
    pub less: bool,
    /// Turns taken by the callback of the helper that is being called.
    pub turns: u32,
    /// The loop that this helper is, in [`State::loops`].
    pub helper: LoopId,
    /// The loop that the function's `may_goto` are.
    pub may_goto: LoopId,
}

impl Frame {
    /// A frame as it is at a function's first instruction, arguments aside.
    #[must_use]
    pub fn new(depth: u8, func: usize, ret: usize) -> Self {
        let mut regs = [Reg::UNINIT; op::REGS];
        regs[op::FP as usize] = Reg::of(Kind::Stack(depth));
        Self {
            regs,
            stack: Stack::default(),
            func,
            ret,
            held: None,
            less: false,
            turns: 0,
            helper: 0,
            may_goto: 0,
        }
    }
}

/// A reference a path holds.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Reference {
    /// Its id, as in [`Reg::reference`].
    pub id: Id,
    /// The call that made it.
    pub insn: usize,
}

/// Everything known at one point of one path.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct State {
    /// The frames, the main program's first; never empty.
    pub frames: Vec<Frame>,
    /// References held.
    pub refs: Vec<Reference>,
    /// Loops that end by themselves (`may_goto`, callbacks, iterators) and that this is inside of:
    /// going round in one is no endless loop.
    pub loops: Loops,
    /// The spin lock held: what it lies in, and which one of those.
    pub lock: Option<(Kind, Id)>,
    /// This runs by itself, later than the program.
    pub later: bool,
    /// Read-side sections entered.
    pub rcu: u32,
    /// Times preemption was turned off.
    pub preempt: u32,
}

impl State {
    /// The state before the first instruction.
    #[must_use]
    pub fn entry() -> Self {
        let mut f = Frame::new(0, 0, 0);
        f.regs[1] = Reg::of(Kind::Ctx);
        Self { frames: vec![f], ..Self::default() }
    }

    /// Tells whether a function that compares the nodes of a tree runs: the tree and its lock must
    /// stay as they are.
    #[must_use]
    pub fn compares_nodes(&self) -> bool {
        self.frames.iter().any(|f| f.less)
    }

    /// Index of the running frame.
    #[must_use]
    pub fn depth(&self) -> usize {
        self.frames.len() - 1
    }

    /// The running frame.
    #[must_use]
    pub fn top(&self) -> &Frame {
        &self.frames[self.frames.len() - 1]
    }

    /// The running frame.
    pub fn top_mut(&mut self) -> &mut Frame {
        let n = self.frames.len() - 1;
        &mut self.frames[n]
    }

    /// A register of the running frame; numbers were checked before the walk.
    #[must_use]
    pub fn reg(&self, r: u8) -> &Reg {
        self.top().regs.get(r as usize).unwrap_or(&Reg::UNINIT)
    }

    /// Sets a register of the running frame.
    pub fn set(&mut self, r: u8, v: Reg) {
        if let Some(slot) = self.top_mut().regs.get_mut(r as usize) {
            *slot = v;
        }
    }

    /// Visits all registers and spilled registers of all frames.
    pub fn each(&mut self, mut f: impl FnMut(&mut Reg)) {
        for frame in &mut self.frames {
            for r in &mut frame.regs {
                f(r);
            }
            for s in frame.stack.slots_mut() {
                if s.is_pointer() || s.is_number() {
                    f(&mut s.reg);
                }
            }
        }
    }

    /// Turns pointers that `which` picks into plain numbers, also spilled ones; with `hide` into
    /// what must not be read, as their bits are still an address.
    pub fn invalidate(&mut self, hide: bool, which: impl Fn(&Reg) -> bool) {
        for frame in &mut self.frames {
            for r in &mut frame.regs {
                if which(r) {
                    *r = if hide { Reg::UNINIT } else { Reg::UNKNOWN };
                }
            }
            frame.stack.forget_if(hide, &which);
        }
    }

    /// Settles whether nullable pointers of one id are NULL.
    /// `keep` tells which kinds go on to need the id: two values of a map have two locks.
    pub fn settle_null(&mut self, id: Id, null: bool, keep: impl Fn(Kind) -> bool) {
        if null {
            // A reservation that failed needs no release.
            self.refs.retain(|r| r.id != id);
        }
        self.each(|r| {
            if r.nullable && r.id == id {
                if null {
                    *r = Reg::constant(0);
                } else {
                    r.nullable = false;
                    if !keep(r.kind) {
                        r.id = 0;
                    }
                }
            }
        });
    }

    /// Estimates the bytes held.
    #[must_use]
    pub fn weight(&self) -> usize {
        self.frames.iter().map(|f| size_of::<Frame>() + size_of_val(f.stack.slots())).sum::<usize>()
            + size_of::<Self>()
    }

    /// The slot behind a stack pointer's frame.
    #[must_use]
    pub fn slot(&self, frame: u8, off: i32) -> &Slot {
        self.frames.get(frame as usize).map_or(&Slot::UNINIT, |f| f.stack.slot(off))
    }
}

/// The scalar `was` turned out to be in `val`: narrows all that belong to its set of equal numbers.
pub fn narrow(state: &mut State, was: &Reg, val: Scalar, mut each: impl FnMut(&mut Reg)) {
    state.each(|r| {
        if !r.is_scalar() || r.id != was.id {
            return;
        }
        if r.low && !was.low {
            return;
        }
        let apart = i64::from(r.delta) - i64::from(was.delta);
        let step = Scalar::constant(apart as u64);
        let new = match (was.low, r.low) {
            (false, false) if apart == 0 => r.val.meet(val),
            (false, false) => r.val.meet(val.op64(Op::Add, step)),
            (_, true) => r.val.meet(val.op32(Op::Add, step)),
            (true, false) => r.val.meet_low(val.op32(Op::Add, step)),
        };
        // A contradiction means that this point is never reached; knowing less is sound.
        let new = new.unwrap_or(r.val);
        if new != r.val {
            r.val = new;
            each(r);
        }
    });
}
