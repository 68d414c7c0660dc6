//! The walk: every path of the program, one instruction at a time, over states that describe sets
//! of machine states.

mod alu;
mod branch;
mod call;
mod callback;
mod dynptr;
mod global;
mod graph;
mod kfunc;
mod lock;
mod mem;
mod object;
mod shortest;

pub(crate) use mem::spec;
pub use shortest::Route;

use crate::cfg::Cfg;
use crate::compare::How;
use crate::fields::Field;
use crate::flow::Flow;
use crate::prune::{Comparison, Explored, Point};
use crate::reg::{Id, Kind, Reg};
use crate::reject::Reason;
use crate::scalar::Scalar;
use crate::state::{Frame, State};
use crate::trace::Watch;
use crate::turns::{LoopId, Since};
use crate::{Info, Options, Prune};
use skep_isa::{AttachType as A, Insn, ProgramType as P, op};
use skep_object::Linked;
use std::cell::RefCell;
use std::collections::{BTreeSet, HashMap, HashSet};
use std::rc::Rc;

/// Most paths put aside (kernel/bpf/verifier.c `BPF_COMPLEXITY_LIMIT_JMP_SEQ`).
const MAX_PENDING: usize = 8192;

/// The context of a program type that skep does not know: nothing in it may be touched.
const NO_CONTEXT: skep_isa::ctx::Layout =
    skep_isa::ctx::Layout { first: 0, size: 0, fields: &[], writable: false };

/// The context of an iterator whose function the target's types have: its arguments.
fn iterator_context(prog: &Linked, opts: &Options) -> Option<skep_isa::ctx::Layout> {
    let name = prog
        .target
        .as_deref()
        .filter(|_| prog.attach_type == Some(A::TraceIter) && !opts.offered_only)?;
    opts.target
        .as_deref()?
        .find(&format!("bpf_iter_{name}"), |k| matches!(k, skep_object::btf::Kind::Func(_)))?;
    Some(skep_isa::ctx::TRACING)
}

/// A path not walked yet.
struct Pending {
    state: State,
    insn: usize,
    parent: Option<Point>,
    trail: usize,
}

/// The walk over one program.
pub struct Walk<'a> {
    prog: &'a Linked,
    opts: &'a Options,
    cfg: Cfg,
    layout: skep_isa::ctx::Layout,
    state: State,
    flow: Flow,
    explored: Explored,
    pending: Vec<Pending>,
    parent: Option<Point>,
    last_id: Id,
    last_loop: LoopId,
    /// The instruction looked at.
    insn: usize,
    /// Instructions of the present path from the start.
    trail: Vec<u32>,
    /// Where this path forgot something at the head of a loop: length of the trail, state
    /// afterwards. The last ones.
    widened: Vec<(usize, State)>,
    jumps: u32,
    /// Jumps and instructions seen when a state was stored last.
    stored_at: (u32, u32),
    /// Deepest stack use by function.
    depths: Vec<u32>,
    /// What each instruction's pointer leads to, where that matters for how it is compiled.
    touched: HashMap<usize, Kind>,
    /// Global functions that are called: verified once each, one after the other.
    globals: Vec<usize>,
    /// Functions that run later, by their first instruction and the map that their timer lies in.
    later: HashSet<(usize, u32)>,
    /// The state that this path began with.
    start: State,
    /// Special fields of map values and objects, found when first asked for.
    fields: RefCell<HashMap<u32, Rc<[Field]>>>,
    info: Info,
    /// Turns of a loop that ends by itself in which numbers that decide something are kept as they are.
    turns: usize,
    /// A number that decides something was forgotten after so many turns.
    has_lost: bool,
    /// Most instructions looked at.
    limit: u32,
}

/// [`Walk::turns`] of the first walk, and of those that follow while a program is refused because
/// something was forgotten. Most programs need few, and where loops are nested, those of each are
/// multiplied.
pub const TURNS: [usize; 3] = [4, 16, usize::MAX];

/// [`Walk::limit`] where all turns are walked.
const LIMIT_OF_ALL: u32 = 100_000;

/// Where a path goes on; `None` at its end.
type Next = Option<usize>;

/// What tells the turns of a loop from those of the same loop when it was begun another time, as in the
/// turns of a loop around it: what differs between those is not the loop's.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Begun {
    /// By a call of a helper that calls back.
    Call(LoopId),
    /// By a call that made an iterator, with this reference.
    Iterator(Id),
}

impl Begun {
    /// `None` where nobody can tell.
    fn of(head: Insn, state: &State) -> Option<Self> {
        if crate::cfg::calls_back(head) {
            return Some(Self::Call(state.top().helper));
        }
        let iterator = state.reg(1);
        let Kind::Stack(frame) = iterator.kind else { return None };
        let at = iterator.val.as_const()? as i64 + i64::from(iterator.off);
        let slot = state.slot(frame, i32::try_from(at).ok()?);
        crate::cfg::is_iter_next(head).then_some(Self::Iterator(slot.reg.reference))
    }
}

impl<'a> Walk<'a> {
    /// The context that the program is given.
    pub fn layout(&self) -> skep_isa::ctx::Layout {
        self.layout
    }

    /// Prepares the walk.
    pub fn new(prog: &'a Linked, opts: &'a Options, mut cfg: Cfg) -> Self {
        cfg.lax = opts.allow_uninit_stack && !opts.strict;
        let layout = skep_isa::ctx::layout(prog.prog_type, prog.attach_type)
            .or_else(|| iterator_context(prog, opts))
            .unwrap_or(NO_CONTEXT);
        // What the kernel alone can run is judged, and gets nothing where it is to run here.
        let layout = skep_isa::ctx::kernel_layout(prog.prog_type, prog.attach_type)
            .filter(|_| !opts.offered_only)
            .unwrap_or(layout);
        let depths = vec![0; cfg.funcs.len()];
        Self {
            prog,
            opts,
            layout,
            state: State::default(),
            flow: Flow::default(),
            explored: Explored::new(prog.insns.len()),
            pending: Vec::new(),
            parent: None,
            last_id: 0,
            last_loop: 0,
            insn: 0,
            trail: Vec::new(),
            widened: Vec::new(),
            jumps: 0,
            stored_at: (0, 0),
            depths,
            touched: HashMap::new(),
            globals: Vec::new(),
            later: HashSet::new(),
            start: State::default(),
            fields: RefCell::default(),
            info: Info::default(),
            turns: TURNS[0],
            has_lost: false,
            limit: opts.limit,
            cfg,
        }
    }

    /// Keeps numbers that decide something for so many turns of a loop.
    pub fn with_turns(self, turns: usize) -> Self {
        let limit = self.opts.limit.min(if turns == usize::MAX { LIMIT_OF_ALL } else { u32::MAX });
        Self { turns, limit, ..self }
    }

    /// Whether a number that decides something was forgotten.
    pub fn has_lost(&self) -> bool {
        self.has_lost
    }

    /// Walks all paths.
    pub(crate) fn run(&mut self, watch: &mut dyn Watch) -> Result<(), Reason> {
        self.check_maps()?;
        self.check_tags()?;
        let main = self.enter(State::entry());
        (self.start, self.state) = (main.clone(), main);
        self.walk_from(0, watch)?;
        let mut done = 0;
        while let Some(&func) = self.globals.get(done) {
            done += 1;
            let Some(params) = self.prototype(func)? else { continue };
            let Some(&start) = self.cfg.funcs.get(func) else { continue };
            self.state = self.global_entry(func, &params);
            self.start = self.state.clone();
            self.parent = None;
            self.trail.clear();
            self.widened.clear();
            watch.function(func, start);
            self.walk_from(start, watch)?;
            watch.proved(func, start);
        }
        self.check_stack_depth()
    }

    /// Walks all paths from an instruction, in the present state.
    fn walk_from(&mut self, first: usize, watch: &mut dyn Watch) -> Result<(), Reason> {
        let mut at = Some(first);
        while let Some(insn) = at {
            self.insn = insn;
            self.info.processed += 1;
            if self.pending.len() > MAX_PENDING {
                return Err(Reason::TooManyForks { jumps: self.pending.len() });
            }
            if self.info.processed > self.limit || self.flow.is_full() {
                return Err(Reason::TooComplex { processed: self.info.processed });
            }
            self.trail.push(insn as u32);
            watch.reach(insn, &self.state);
            let stop = self
                .cfg
                .prune
                .get(insn)
                .zip(self.cfg.heads.get(insn))
                .is_some_and(|(p, h)| *p || *h);
            let next = if stop && !self.visit(insn)? {
                watch.safe(insn);
                None
            } else {
                self.step(insn)?
            };
            at = match next {
                Some(n) => Some(n),
                None => {
                    self.explored.end(self.parent);
                    self.pending.pop().map(|p| {
                        self.state = p.state;
                        self.parent = p.parent;
                        self.trail.truncate(p.trail);
                        watch.resume(self.trail.last().map_or(0, |i| *i as usize));
                        self.widened.retain(|(at, _)| *at <= p.trail);
                        p.insn
                    })
                }
            };
        }
        Ok(())
    }

    /// The instruction looked at last.
    pub fn insn(&self) -> usize {
        self.insn
    }

    /// What was learnt.
    pub fn into_info(mut self) -> Info {
        self.finish_info();
        self.info
    }

    /// What was learnt so far.
    pub fn info(&mut self) -> &Info {
        self.finish_info();
        &self.info
    }

    fn finish_info(&mut self) {
        let e = &self.explored;
        (self.info.max_states_per_insn, self.info.total_states, self.info.peak_states) =
            (e.most, e.total, e.peak);
        self.info.subprogs =
            self.cfg.funcs.iter().copied().zip(self.depths.iter().copied()).collect();
    }

    /// At the head of a loop that ends by itself: whatever its iterations do, after a few of them
    /// there is a state that stands for all.
    fn visit_head(&mut self, insn: usize) -> Result<bool, Reason> {
        let code = self.prog.insns.get(insn).copied();
        if code.is_some_and(crate::cfg::calls_back) && self.state.top().turns == 0 {
            let id = self.fresh_loop();
            self.state.top_mut().helper = id;
            self.state.loops.begin(id);
        }
        let done = if self.opts.prune == Prune::Never { How::Within } else { How::Enough };
        match self.explored.find_head(insn, &self.state, &self.cfg, &self.flow, done) {
            Comparison::Covered(p) => {
                self.explored.inherit_precision(p, &self.state, self.parent, &mut self.flow);
                return Ok(false);
            }
            Comparison::Loop => return Err(Reason::InfiniteLoop { insn }),
            Comparison::New { .. } => {}
        }
        let few = self.few_turns(insn);
        let begun = |s: &State| code.and_then(|code| Begun::of(code, s));
        let this = begun(&self.state);
        let is_turn =
            |s: &State| !few && self.state.loops.since(&s.loops) == Since::Turn && begun(s) == this;
        if let Some((last, visits)) = self.explored.last_visit(insn, &self.state, is_turn) {
            let keep = visits < self.turns;
            self.has_lost |= crate::compare::widen(last, &mut self.state, &self.flow, keep);
            if self.widened.len() >= 64 {
                self.widened.remove(0);
            }
            self.widened.push((self.trail.len(), self.state.clone()));
        }
        self.keep(insn);
        Ok(true)
    }

    /// Compares with the stored states; `false` ends the path.
    fn visit(&mut self, insn: usize) -> Result<bool, Reason> {
        if self.cfg.heads.get(insn) == Some(&true) {
            return self.visit_head(insn);
        }
        if self.opts.prune == Prune::Never {
            return Ok(true);
        }
        // Storing costs; the kernel's measured thresholds (`is_state_visited`).
        let (jumps, insns) =
            (self.jumps - self.stored_at.0, self.info.processed - self.stored_at.1);
        let always = self.opts.prune == Prune::Always;
        let worth = |looping| {
            if always {
                true
            } else if looping {
                jumps >= 20 || insns >= 100
            } else {
                jumps >= 2 && insns >= 8
            }
        };
        let looping = match self.explored.find(insn, &self.state, &self.cfg, &self.flow, worth) {
            Comparison::Covered(p) => {
                self.explored.inherit_precision(p, &self.state, self.parent, &mut self.flow);
                return Ok(false);
            }
            Comparison::Loop => return Err(Reason::InfiniteLoop { insn }),
            Comparison::New { looping } => looping,
        };
        if worth(looping) {
            self.keep(insn);
        }
        Ok(true)
    }

    /// Stores the state.
    fn keep(&mut self, insn: usize) {
        let flow = &mut self.flow;
        self.state.each(|r| {
            if r.is_scalar() {
                r.node = flow.renew(r.node);
            }
        });
        if let Some(p) = self.explored.store(insn, &self.state, self.parent, &self.cfg) {
            self.parent = Some(p);
            self.stored_at = (self.jumps, self.info.processed);
        }
    }

    /// Puts a path aside.
    fn fork(&mut self, state: State, insn: usize) {
        self.explored.fork(self.parent);
        self.pending.push(Pending { state, insn, parent: self.parent, trail: self.trail.len() });
    }

    fn fresh_id(&mut self) -> Id {
        self.last_id += 1;
        self.last_id
    }

    fn fresh_loop(&mut self) -> LoopId {
        self.last_loop += 1;
        self.last_loop
    }

    fn step(&mut self, at: usize) -> Result<Next, Reason> {
        let Some(&i) = self.prog.insns.get(at) else { return Err(Reason::FallsOff) };
        if crate::cfg::uses(i).1 & (1 << op::FP) != 0 {
            return Err(Reason::FramePointerWrite);
        }
        match i.class() {
            op::ALU | op::ALU64 => self.alu(i)?,
            op::LD if i.code != op::LD_IMM64 => self.load_packet(i)?,
            op::LD => {
                let high = self.prog.insns.get(at + 1).map_or(0, |h| h.imm);
                self.load_imm64(i, high, at);
                return Ok(Some(at + 2));
            }
            op::LDX => self.load(i)?,
            op::ST | op::STX if i.class() == op::STX && i.code & 0xe0 == op::ATOMIC => {
                self.atomic(i)?
            }
            op::ST | op::STX => self.store(i)?,
            _ => return self.jump(i, at),
        }
        Ok(Some(at + 1))
    }

    fn load_imm64(&mut self, i: Insn, high: i32, at: usize) {
        let reg = match i.src() {
            op::PSEUDO_MAP_IDX => Reg::of(Kind::Map(i.imm as u32)),
            op::PSEUDO_MAP_IDX_VALUE => {
                let mut r = Reg::of(Kind::Value(i.imm as u32));
                r.off = high;
                r
            }
            op::PSEUDO_FUNC => Reg::of(Kind::Func(crate::cfg::relative(at, i.imm).max(0) as u32)),
            _ => Reg::constant(u64::from(i.imm as u32) | (u64::from(high as u32) << 32)),
        };
        self.state.set(i.dst(), reg);
    }

    /// A register that must have been written.
    fn read(&self, reg: u8) -> Result<Reg, Reason> {
        let r = *self.state.reg(reg);
        if r.kind == Kind::Uninit { Err(Reason::Unreadable { reg }) } else { Ok(r) }
    }

    /// `exit`, of a function or of the program.
    fn exit(&mut self) -> Result<Next, Reason> {
        let r0 = *self.state.reg(0);
        if self.state.depth() > 0 {
            let depth = self.state.depth() as u8;
            if r0.kind == Kind::Stack(depth) {
                return Err(Reason::ReturnsStack);
            }
            let ret = self.state.top().ret;
            if self.state.top().held.is_some() {
                return self.exit_callback(ret);
            }
            self.leave();
            // A function without a result leaves r0 as it found it: unwritten.
            self.state.set(0, r0);
            // No pointer into the frame that ended may survive (it could only be in a register:
            // stores were refused).
            self.state.invalidate(self.opts.strict, |r| r.kind == Kind::Stack(depth));
            return Ok(Some(ret));
        }
        self.check_nothing_held("BPF_EXIT instruction in main prog")?;
        let r0 = self.read(0)?;
        if self.state.later {
            return self.exit_later(&r0);
        }
        if self.state.top().func != 0 {
            return if r0.is_scalar() {
                Ok(None)
            } else {
                Err(Reason::GlobalReturn { found: r0.type_name() })
            };
        }
        if self.opts.strict && !r0.is_scalar() {
            return Err(Reason::LeaksReturn);
        }
        if let Some((min, max)) = return_range(self.prog.prog_type, self.prog.attach_type) {
            if !r0.is_scalar() {
                return Err(Reason::ReturnsPointer { found: r0.type_name() });
            }
            self.flow.mark(r0.node);
            // The kernel looks at the low half: programs return int.
            let (lo, hi) = (i64::from(r0.val.r32.smin), i64::from(r0.val.r32.smax));
            if lo < min || hi > max {
                let found = match r0.val.is_unknown() {
                    true => "unknown scalar value".to_owned(),
                    false => format!("smin={lo} smax={hi}"),
                };
                return Err(Reason::BadReturn { found, min, max });
            }
        }
        Ok(None)
    }

    /// Inside a function of the program: it may return here, with that in r0.
    fn may_return(&mut self, r0: Reg) -> Result<(), Reason> {
        if self.state.depth() == 0 {
            return Ok(());
        }
        let whole = self.state.clone();
        self.state.set(0, r0);
        let back = self.exit()?;
        let left = std::mem::replace(&mut self.state, whole);
        if let Some(to) = back {
            self.fork(left, to);
        }
        Ok(())
    }

    /// A local call: walks into the function.
    fn call_local(&mut self, i: Insn, at: usize) -> Result<Next, Reason> {
        let frames = self.state.frames.len() + 1;
        if frames > op::MAX_CALL_FRAMES {
            return Err(Reason::CallStackTooDeep { frames });
        }
        let to = usize::try_from(crate::cfg::relative(at, i.imm)).unwrap_or(usize::MAX);
        let func = self.cfg.func_of(to);
        if let Some(params) = self.prototype(func)? {
            self.info.calls.insert((self.cfg.func_of(at), func));
            self.call_global(func, &params)?;
            return Ok(Some(at + 1));
        }
        let mut callee = Frame::new(self.state.depth() as u8 + 1, self.cfg.func_of(to), at + 1);
        for r in 1..=5u8 {
            if let Some(slot) = callee.regs.get_mut(r as usize) {
                *slot = *self.state.reg(r);
            }
        }
        for r in 0..=5 {
            self.state.set(r, Reg::UNINIT);
        }
        self.state.frames.push(callee);
        let state = std::mem::take(&mut self.state);
        self.state = self.enter(state);
        self.info.calls.insert((self.cfg.func_of(at), self.cfg.func_of(to)));
        Ok(Some(to))
    }

    /// The function whose frame came last begins.
    fn enter(&mut self, mut state: State) -> State {
        if self.cfg.may_goto.get(state.top().func) == Some(&true) {
            let id = self.fresh_loop();
            state.top_mut().may_goto = id;
            state.loops.begin(id);
        }
        state
    }

    /// The path leaves the function that runs.
    fn leave(&mut self) -> Option<Frame> {
        let frame = self.state.frames.pop()?;
        self.state.loops.end(frame.may_goto);
        Some(frame)
    }

    /// The stack of the longest chain of calls must fit, whether the walk took it or not. What runs
    /// later has a stack of its own.
    fn check_stack_depth(&mut self) -> Result<(), Reason> {
        let later: BTreeSet<usize> =
            self.later.iter().map(|(at, _)| self.cfg.func_of(*at)).collect();
        let is_called = |f: usize| self.info.calls.iter().any(|(_, to)| *to == f);
        let edges = crate::cfg::call_edges(&self.prog.insns, &self.cfg, |f| {
            !later.contains(&f) || is_called(f)
        });
        for first in std::iter::once(0).chain(later) {
            let chain = crate::cfg::deepest_chain(first, &edges, &self.depths);
            let stack = chain.map_or(0, |(_, size)| size);
            self.info.stack_depth = self.info.stack_depth.max(stack);
            let reason = match chain {
                Some((calls, size))
                    if calls <= op::MAX_CALL_FRAMES && size > op::STACK_SIZE as u32 =>
                {
                    Reason::StackTooLarge { calls, size }
                }
                Some((calls, _)) if calls <= op::MAX_CALL_FRAMES => continue,
                _ => Reason::CallStackTooDeep { frames: op::MAX_CALL_FRAMES },
            };
            self.insn = self.cfg.funcs.get(first).copied().unwrap_or_default();
            return Err(reason);
        }
        Ok(())
    }
}

/// What a program may return, as the kernel's `check_return_code`; `None` is anything.
fn return_range(prog: P, attach: Option<A>) -> Option<(i64, i64)> {
    match (prog, attach) {
        (
            P::Tracing,
            Some(A::TraceFentry | A::TraceFexit | A::TraceFentryMulti | A::TraceFexitMulti),
        ) => Some((0, 0)),
        (P::Tracing, Some(A::TraceFsession | A::TraceFsessionMulti | A::TraceIter)) => Some((0, 1)),
        (P::Kprobe, Some(A::TraceKprobeSession | A::TraceUprobeSession)) => Some((0, 1)),
        (P::CgroupSkb, Some(A::CgroupInetEgress)) => Some((0, 3)),
        (P::CgroupSockAddr, Some(a))
            if ["recvmsg", "getpeername", "getsockname"].iter().any(|w| a.name().contains(w)) =>
        {
            Some((1, 1))
        }
        (P::CgroupSockAddr, Some(A::CgroupInet4Bind | A::CgroupInet6Bind)) => Some((0, 3)),
        (P::Netfilter, _) => Some((0, 1)),
        (
            P::CgroupSkb
            | P::CgroupSock
            | P::CgroupDevice
            | P::CgroupSysctl
            | P::CgroupSockopt
            | P::SockOps
            | P::CgroupSockAddr,
            _,
        ) => Some((0, 1)),
        (P::SkLookup, _) => Some((0, 1)),
        _ => None,
    }
}

/// Any number of the size a load has.
fn loaded(size: u32, signed: bool) -> Scalar {
    if signed { Scalar::signed_of_size(size) } else { Scalar::of_size(size) }
}
