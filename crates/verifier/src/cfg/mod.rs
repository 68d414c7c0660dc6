//! What can be said of a program without running it: every instruction well formed, every jump
//! inside its function, every instruction reachable; where states are worth storing, and which
//! registers are still read.

mod calls;
mod form;
mod jump;
mod live;

pub use calls::{call_edges, deepest_chain};
pub use jump::{calls_back, is_conditional, is_iter_next, is_kfunc, is_may_goto, relative, target};
pub use live::{RegSet, uses};

use crate::reject::Reason;
use form::check_forms;
use jump::{is_func_address, successors};
use skep_isa::{Insn, op};
use skep_object::Linked;

/// A rejection with its place.
pub type Fault = (usize, Reason);

/// The shape of a program.
pub struct Cfg {
    /// First instruction of each function, ascending; the main program's is 0.
    pub funcs: Vec<usize>,
    /// Instructions where states are stored and compared.
    pub prune: Vec<bool>,
    /// Heads of loops that end by themselves: `may_goto` and calls of helpers that call back.
    pub heads: Vec<bool>,
    /// Registers read before written, from each instruction on.
    pub live: Vec<RegSet>,
    /// Stack that was never written may be read: it holds what is not known, as other stack does.
    pub lax: bool,
    /// Functions that may move the packet, themselves or by what they call.
    pub moves_packet: Vec<bool>,
    /// By function: whether it may sleep, or calls one that may.
    pub sleeps: Vec<bool>,
    /// By function: whether a `may_goto` stands in it.
    pub may_goto: Vec<bool>,
}

impl Cfg {
    /// Checks the program's shape.
    pub fn new(prog: &Linked) -> Result<Self, Fault> {
        let insns = &prog.insns;
        if insns.is_empty() {
            return Err((0, Reason::Empty));
        }
        if insns.len() > op::MAX_INSNS {
            return Err((0, Reason::TooManyInsns { count: insns.len(), limit: op::MAX_INSNS }));
        }
        let second = check_forms(prog)?;
        let funcs = find_funcs(prog, &second)?;
        let mut cfg = Self {
            funcs,
            prune: vec![false; insns.len()],
            heads: vec![false; insns.len()],
            live: vec![0; insns.len()],
            lax: false,
            moves_packet: Vec::new(),
            sleeps: Vec::new(),
            may_goto: Vec::new(),
        };
        cfg.check_jumps(insns, &second)?;
        cfg.check_reach(insns, &second)?;
        cfg.find_live(insns);
        cfg.find_effects(insns);
        Ok(cfg)
    }

    /// Index of the function that holds an instruction.
    #[must_use]
    pub fn func_of(&self, insn: usize) -> usize {
        self.funcs.partition_point(|f| *f <= insn).saturating_sub(1)
    }

    fn check_jumps(&mut self, insns: &[Insn], second: &[bool]) -> Result<(), Fault> {
        for (f, start) in self.funcs.iter().enumerate() {
            let end = self.funcs.get(f + 1).copied().unwrap_or(insns.len());
            let mut last = *start;
            for i in *start..end {
                if second[i] {
                    continue;
                }
                last = i;
                if let Some(to) = target(insns, i) {
                    let to = usize::try_from(to)
                        .ok()
                        .filter(|t| (*start..end).contains(t))
                        .ok_or((i, Reason::JumpOutOfRange { from: i, to }))?;
                    if second[to] {
                        return Err((i, Reason::JumpIntoLdImm64 { to: to - 1 }));
                    }
                    self.prune[to] = true;
                    self.prune[i] |= is_conditional(insns[i]);
                }
                self.heads[i] =
                    is_may_goto(insns[i]) || calls_back(insns[i]) || is_iter_next(insns[i]);
                if insns[i].is_local_call() {
                    self.prune[i] = true;
                    if let Some(after) = self.prune.get_mut(i + 1) {
                        *after = true;
                    }
                }
            }
            let ends = insns[last].code == op::EXIT
                || (target(insns, last).is_some() && !is_conditional(insns[last]));
            if !ends {
                return Err((last, Reason::FallsOff));
            }
            self.prune[*start] = true;
        }
        Ok(())
    }

    fn check_reach(&self, insns: &[Insn], second: &[bool]) -> Result<(), Fault> {
        let mut seen = vec![false; insns.len()];
        let mut work = vec![0usize];
        while let Some(i) = work.pop() {
            if std::mem::replace(&mut seen[i], true) {
                continue;
            }
            work.extend(successors(insns, i).into_iter().flatten());
            if insns[i].is_local_call() || is_func_address(insns[i]) {
                work.extend(usize::try_from(relative(i, insns[i].imm)).ok());
            }
        }
        match (0..insns.len()).find(|i| !seen[*i] && !second[*i]) {
            Some(insn) => Err((insn, Reason::Unreachable { insn })),
            None => Ok(()),
        }
    }
}

/// Finds the functions: those the object names and those that are called.
fn find_funcs(prog: &Linked, second: &[bool]) -> Result<Vec<usize>, Fault> {
    let mut funcs: Vec<usize> =
        prog.subprogs.iter().map(|s| s.start).filter(|s| *s < prog.insns.len()).collect();
    funcs.push(0);
    for (i, insn) in prog.insns.iter().enumerate() {
        if !second[i] && (insn.is_local_call() || is_func_address(*insn)) {
            let to = relative(i, insn.imm);
            let at = usize::try_from(to)
                .ok()
                .filter(|t| *t < prog.insns.len())
                .ok_or((i, Reason::JumpOutOfRange { from: i, to }))?;
            funcs.push(at);
        }
    }
    funcs.sort_unstable();
    funcs.dedup();
    match funcs.iter().find(|f| second[**f]) {
        Some(f) => Err((*f, Reason::JumpIntoLdImm64 { to: f.saturating_sub(1) })),
        None => Ok(funcs),
    }
}
