//! The shortest path to a fault: the walk goes deep first, and the path on which it finds one may
//! be a long way round.

use super::Walk;
use crate::compare::{How, covers, same_place};
use crate::reject::Reason;
use crate::state::State;
use std::cmp::Ordering;
use std::collections::BinaryHeap;

/// Most instructions looked at in search of a shorter path: so many, and so many for each that the
/// walk itself looked at.
const EFFORT: u32 = 100_000;
const EFFORT_AT_LEAST: u32 = 1_000;
const EFFORT_EACH: u32 = 4;

/// Most paths open at a time, and most states kept at one instruction.
const OPEN: usize = 4_096;
const KEPT: usize = 256;

/// Most jumps to one and the same place whose sides are tried.
const FORKS_TRIED: u32 = 4;
/// Longest path that is walked several times for it.
const LONGEST_TRIED: usize = 20_000;

/// A path through a program.
pub struct Route {
    /// The state it begins in.
    pub start: State,
    /// Its instructions.
    pub trail: Vec<u32>,
    /// Where something was forgotten: length of the trail, state afterwards.
    pub widened: Vec<(usize, State)>,
}

/// A path not followed to its end.
struct Open {
    /// Instructions on it so far, and paths found before it: the shortest goes on first, of equal
    /// ones the oldest.
    rank: (u32, u32),
    insn: usize,
    /// Its last instruction, in the list of all that were looked at.
    last: Option<u32>,
    state: State,
}

impl Ord for Open {
    fn cmp(&self, other: &Self) -> Ordering {
        other.rank.cmp(&self.rank)
    }
}

impl PartialOrd for Open {
    fn partial_cmp(&self, other: &Self) -> Option<Ordering> {
        Some(self.cmp(other))
    }
}

impl PartialEq for Open {
    fn eq(&self, other: &Self) -> bool {
        self.rank == other.rank
    }
}

impl Eq for Open {}

impl Walk<'_> {
    /// The path that was walked last.
    pub fn route(&self) -> Route {
        Route {
            start: self.start.clone(),
            trail: self.trail.clone(),
            widened: self.widened.clone(),
        }
    }

    /// Looks for the shortest path to the fault that ended the walk `long`, breadth first from
    /// where that began; `None` when none is shorter than its own, or it is too far away.
    ///
    /// A state within another one that was reached by a path no longer leads to no fault that the
    /// other does not lead to.
    pub fn shortest(&mut self, long: &Walk<'_>, reason: &Reason) -> Option<Route> {
        if matches!(reason, Reason::InfiniteLoop { .. }) || reason.is_of_effort() {
            return None;
        }
        let longest = u32::try_from(long.trail.len()).unwrap_or(u32::MAX);
        let mut effort =
            long.info.processed.saturating_mul(EFFORT_EACH).clamp(EFFORT_AT_LEAST, EFFORT);
        let mut seen: Vec<Vec<State>> = vec![Vec::new(); self.prog.insns.len()];
        // All instructions looked at, each with the one before it.
        let mut all: Vec<(u32, Option<u32>)> = Vec::new();
        let first = *long.trail.first()? as usize;
        let mut open = BinaryHeap::from([Open {
            rank: (0, 0),
            insn: first,
            last: None,
            state: long.start.clone(),
        }]);
        let mut found = 0;
        while let Some(path) = open.pop() {
            let (len, at) = (path.rank.0 + 1, path.insn);
            if len >= longest || open.len() > OPEN || self.flow.is_full() {
                return None;
            }
            effort = effort.checked_sub(1)?;
            if self.cfg.prune.get(at) == Some(&true) || self.cfg.heads.get(at) == Some(&true) {
                let here = seen.get_mut(at)?;
                let within = |old: &State| {
                    same_place(old, &path.state)
                        && covers(old, &path.state, at, &self.cfg, &self.flow, How::Within)
                };
                if here.iter().any(within) {
                    continue;
                }
                if here.len() < KEPT {
                    here.push(path.state.clone());
                }
            }
            let last = u32::try_from(all.len()).ok()?;
            all.push((at as u32, path.last));
            (self.state, self.insn) = (path.state, at);
            self.later.clear();
            let next = match self.step(at) {
                Err(r) if at == long.insn && same_fault(&r, reason) => {
                    return Some(Route {
                        start: long.start.clone(),
                        trail: trail(&all, last),
                        widened: Vec::new(),
                    });
                }
                Err(_) => None,
                Ok(next) => next.map(|insn| (std::mem::take(&mut self.state), insn)),
            };
            for (state, insn) in
                next.into_iter().chain(self.pending.drain(..).map(|p| (p.state, p.insn)))
            {
                found += 1;
                open.push(Open { rank: (len, found), insn, last: Some(last), state });
            }
        }
        None
    }

    /// Walks a path again and shows every step; ends at its end or at a fault. It is walked so that
    /// it ends with `reason`, if it can be.
    ///
    /// A trail does not tell which side of a jump was taken that leads to the same instruction on
    /// both: so both are tried.
    pub fn retrace(&mut self, route: &Route, reason: &Reason, observer: &mut crate::Observer<'_>) {
        let no_step = matches!(reason, Reason::InfiniteLoop { .. }) || reason.is_of_effort();
        if no_step || route.trail.len() > LONGEST_TRIED {
            self.walk_again(route, None, observer);
            return;
        }
        let first = self.last_id;
        let ends_so =
            |end: &Option<Reason>| end.as_ref().is_some_and(|end| same_fault(end, reason));
        let (forks, end) = self.walk_again(route, None, &mut |_, _| {});
        let mut sides = None;
        if !ends_so(&end) {
            // The last few of them decide, if any do.
            let from = forks.saturating_sub(FORKS_TRIED);
            sides = (1..1_u32 << (forks - from)).map(|bits| (from, bits)).find(|sides| {
                self.last_id = first;
                ends_so(&self.walk_again(route, Some(*sides), &mut |_, _| {}).1)
            });
        }
        self.last_id = first;
        self.walk_again(route, sides, observer);
    }

    /// `sides`: from which fork on the bits say whether the jump is taken; else it is not. How many
    /// forks there are, and the fault.
    fn walk_again(
        &mut self,
        route: &Route,
        sides: Option<(u32, u32)>,
        observer: &mut crate::Observer<'_>,
    ) -> (u32, Option<Reason>) {
        let mut forks = 0;
        self.state = route.start.clone();
        for (n, &insn) in route.trail.iter().enumerate() {
            self.insn = insn as usize;
            if let Some((_, state)) = route.widened.iter().find(|(at, _)| *at == n + 1) {
                self.state = state.clone();
            }
            observer(self.insn, &self.state);
            self.later.clear();
            let next = match self.step(self.insn) {
                Ok(next) => next,
                Err(reason) => {
                    self.pending.clear();
                    return (forks, Some(reason));
                }
            };
            let wanted = route.trail.get(n + 1).map(|i| *i as usize);
            let other = self.pending.pop().filter(|p| Some(p.insn) == wanted);
            self.pending.clear();
            match other {
                Some(p) if next == wanted => {
                    let jumps = sides.is_some_and(|(from, bits)| {
                        forks >= from && bits >> (forks - from) & 1 == 1
                    });
                    forks += 1;
                    if jumps {
                        self.state = p.state;
                    }
                }
                Some(p) => self.state = p.state,
                None if next == wanted => {}
                None => break,
            }
        }
        (forks, None)
    }
}

/// Tells whether one fault is the other, found on another path.
fn same_fault(a: &Reason, b: &Reason) -> bool {
    match (a, b) {
        // Ids tell in which order things were made, which depends on the paths walked before.
        (Reason::Unreleased { insn: x, .. }, Reason::Unreleased { insn: y, .. }) => x == y,
        _ => a == b,
    }
}

/// The path that ends with the instruction `last`.
fn trail(all: &[(u32, Option<u32>)], last: u32) -> Vec<u32> {
    let mut out: Vec<u32> =
        std::iter::successors(all.get(last as usize), |(_, before)| all.get((*before)? as usize))
            .map(|(insn, _)| *insn)
            .collect();
    out.reverse();
    out
}
