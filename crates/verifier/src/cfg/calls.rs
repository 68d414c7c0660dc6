//! Functions that call each other, and what that means for those that call.

use super::Cfg;
use super::jump::{is_func_address, is_kfunc, is_may_goto, relative};
use skep_isa::{Insn, helper, kfunc, op};

impl Cfg {
    /// Functions that do something which their callers must know of, themselves or by what they
    /// call.
    pub(super) fn find_effects(&mut self, insns: &[Insn]) {
        let helper = |i: &Insn| helper::by_id(i.imm as u32).filter(|_| i.is_helper_call());
        let sleeps = |i: &Insn| {
            let kernel = kfunc::by_id(i.imm as u32).filter(|_| is_kfunc(*i));
            helper(i).is_some_and(|h| h.sleeps)
                || kernel.is_some_and(|k| k.flags.has(kfunc::KFlags::SLEEPABLE))
        };
        let edges = call_edges(insns, self, |_| true);
        self.moves_packet = self.with_callers(insns, &edges, |i| {
            helper(i).is_some_and(|h| h.packet_effect == helper::PacketEffect::Moves)
        });
        self.sleeps = self.with_callers(insns, &edges, sleeps);
        self.may_goto = self.with_callers(insns, &[], |i| is_may_goto(*i));
    }

    /// The functions in which such an instruction stands, and those that call them.
    fn with_callers(
        &self,
        insns: &[Insn],
        edges: &[(usize, usize)],
        which: impl Fn(&Insn) -> bool,
    ) -> Vec<bool> {
        let mut found = vec![false; self.funcs.len()];
        for (at, _) in insns.iter().enumerate().filter(|(_, i)| which(i)) {
            found[self.func_of(at)] = true;
        }
        // At most as many rounds as there are functions in a chain.
        for _ in 0..=op::MAX_CALL_FRAMES {
            for (from, to) in edges {
                found[*from] |= found[*to];
            }
        }
        found
    }
}

/// Which function calls which, callbacks too if `which` says so of one, in order of caller; each pair
/// once.
#[must_use]
pub fn call_edges(insns: &[Insn], cfg: &Cfg, which: impl Fn(usize) -> bool) -> Vec<(usize, usize)> {
    let edge = |at: usize, i: &Insn| {
        let to = cfg.func_of(usize::try_from(relative(at, i.imm)).ok()?);
        let is_call = i.is_local_call() || (is_func_address(*i) && which(to));
        is_call.then_some((cfg.func_of(at), to))
    };
    let mut edges: Vec<(usize, usize)> =
        insns.iter().enumerate().filter_map(|(at, i)| edge(at, i)).collect();
    edges.sort_unstable();
    edges.dedup();
    edges
}

/// The chain of calls from a function that needs most stack: functions in the longest chain, bytes
/// of the largest. `None` when a function calls itself, directly or not.
#[must_use]
pub fn deepest_chain(first: usize, edges: &[(usize, usize)], own: &[u32]) -> Option<(usize, u32)> {
    let round = |f: usize| own.get(f).map_or(0, |d| d.next_multiple_of(16));
    let callees = |f: usize| {
        let from = edges.partition_point(|e| e.0 < f);
        edges.iter().skip(from).take_while(move |e| e.0 == f).map(|e| e.1)
    };
    // Functions in the order in which they are left: callees come before callers.
    let mut done: Vec<Option<(usize, u32)>> = vec![None; own.len()];
    let mut open = vec![false; own.len()];
    let mut work = vec![(first, false)];
    while let Some((f, leaving)) = work.pop() {
        if leaving {
            let below = callees(f)
                .filter_map(|c| done.get(c).copied().flatten())
                .fold((0, 0), |a, b| (a.0.max(b.0), a.1.max(b.1)));
            *done.get_mut(f)? = Some((below.0 + 1, below.1.saturating_add(round(f))));
            *open.get_mut(f)? = false;
            continue;
        }
        if done.get(f)?.is_some() {
            continue;
        }
        if std::mem::replace(open.get_mut(f)?, true) {
            return None;
        }
        work.push((f, true));
        for c in callees(f) {
            if *open.get(c)? {
                return None;
            }
            work.push((c, false));
        }
    }
    done.get(first).copied().flatten()
}
