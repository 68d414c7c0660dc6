//! Stored states: a path that reaches an instruction in a state no worse than one already proved
//! safe there can stop.

mod entry;

use crate::cfg::Cfg;
use crate::compare::{How, Ids, live_regs, place, same_place};
use crate::flow::Flow;
use crate::reg::{Id, Reg};
use crate::state::State;
use crate::turns::{LoopId, Since};
use entry::{Apart, Entry, Stage};

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
    /// A path behind it ended in a loop that this state is inside of: at this state, which was stored
    /// before it, or at one that waits for that. What decides something behind it is known when
    /// everything behind the other one is.
    waits: Option<Point>,
    /// The loop that began last of those that it is inside of.
    newest: LoopId,
}

/// All stored states.
pub struct Explored {
    points: Vec<Checkpoint>,
    at: Vec<Vec<Entry>>,
    ids: Ids,
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

/// Bytes of stored states beyond which no more are stored; the walk then ends by its instruction
/// limit.
const WEIGHT_LIMIT: usize = 256 << 20;

/// How often a stored state may fail to match for each time it does.
const PATIENCE: u32 = 64;

/// Most states looked into at a time, the newest ones of those whose entries do not rule them out.
const LOOKS: usize = 64;

/// Most states kept at one instruction.
const CROWD: usize = 1024;

/// Unfinished states at one instruction that are compared: the newest ones, and one landmark in so
/// many. Most circles are short; a longer one comes by a landmark before that is dropped.
const NEWEST: usize = 4;

/// Every so many-th state stored at an instruction is a landmark.
const LANDMARK: usize = 16;

/// What the stored states say about a new one.
pub enum Comparison {
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
        Self {
            points: Vec::new(),
            at: (0..insns).map(|_| Vec::new()).collect(),
            ids: Ids::default(),
            most: 0,
            total: 0,
            now: 0,
            peak: 0,
            weight: 0,
        }
    }

    /// Compares `cur` with all states stored at `insn`. `worth` tells whether a state will be
    /// stored here if nothing is found; given whether the path has been here before.
    pub fn find(
        &mut self,
        insn: usize,
        cur: &State,
        cfg: &Cfg,
        flow: &Flow,
        worth: impl Fn(bool) -> bool,
    ) -> Comparison {
        let mut looping = false;
        let mut list = self.at.get_mut(insn).map(std::mem::take).unwrap_or_default();
        let (mut found, mut dropped, mut looks) = (None, false, 0);
        let here = place(cur);
        let newest = list.len().saturating_sub(NEWEST);
        // The newest first: paths that were put aside late go on first.
        for (n, e) in list.iter_mut().enumerate().rev().filter(|(_, e)| e.place == here) {
            e.advance(stage(&mut self.points, e.point as usize));
            let open = e.stage == Stage::Open;
            looping |= open;
            if (!open || n >= newest || e.landmark) && looks < LOOKS && !e.is_apart(cur) {
                looks += 1;
                let since = since(&mut self.points, e, cur);
                let Some(old) =
                    self.points.get(e.point as usize).and_then(|cp| cp.state.as_deref())
                else {
                    continue;
                };
                let how = match e.stage {
                    Stage::Open => How::Same,
                    Stage::Done => How::Within,
                    Stage::Known => How::Enough,
                };
                match e.compare(old, cur, since, (insn, cfg, flow, how), &mut self.ids) {
                    None if !open => {
                        e.hits += 1;
                        found = Some(Comparison::Covered(e.point as usize));
                        break;
                    }
                    None => {
                        found = Some(Comparison::Loop);
                        break;
                    }
                    Some(_) => {}
                }
            }
            // A state that keeps failing to match costs more than it saves; but while no new ones
            // are stored, as between the iterations of a loop, it stays. The kernel
            // gives up after 3 misses: with that, the loop over frames in `skep trace`'
            // s program was not done after a million instructions.
            e.misses += u32::from(worth(looping));
            if e.misses > e.hits.saturating_mul(PATIENCE).saturating_add(PATIENCE)
                && let Some(old) =
                    self.points.get_mut(e.point as usize).and_then(|cp| cp.state.take())
            {
                self.weight = self.weight.saturating_sub(old.weight());
                self.now = self.now.saturating_sub(1);
                dropped = true;
            }
        }
        if dropped {
            list.retain(|e| self.points.get(e.point as usize).is_some_and(|cp| cp.state.is_some()));
        }
        if let Some(at) = self.at.get_mut(insn) {
            *at = list;
        }
        found.unwrap_or(Comparison::New { looping })
    }

    /// Compares `cur` with the states stored at a loop head, also unfinished ones: all that follows
    /// them will be walked. Of those on this very path only a state of an earlier iteration
    /// ends it; to be back without one is to go round in circles (`may_goto` that jumps
    /// backwards, a jump back to a call of a helper that calls nothing). As long as it is not
    /// known which numbers will decide something there, all must agree; once that is known,
    /// `done` is enough.
    pub fn find_head(
        &mut self,
        insn: usize,
        cur: &State,
        cfg: &Cfg,
        flow: &Flow,
        done: How,
    ) -> Comparison {
        let here = place(cur);
        let list = self.at.get_mut(insn).map_or(&mut [][..], |l| l);
        for e in list.iter_mut().filter(|e| e.place == here) {
            e.advance(stage(&mut self.points, e.point as usize));
            if e.is_apart(cur) {
                continue;
            }
            let since = since(&mut self.points, e, cur);
            let old = self.points.get(e.point as usize).and_then(|cp| cp.state.as_deref());
            let Some(old) = old else { continue };
            let how = match e.stage {
                Stage::Known => done,
                Stage::Open if since != Since::Turn => How::Same,
                Stage::Open | Stage::Done => How::Within,
            };
            if e.compare(old, cur, since, (insn, cfg, flow, how), &mut self.ids).is_none() {
                return if how == How::Same {
                    Comparison::Loop
                } else {
                    Comparison::Covered(e.point as usize)
                };
            }
        }
        Comparison::New { looping: false }
    }

    /// The state in which this path was at a loop head last, and how often it was, of those that
    /// `is_turn` says are turns of the same loop.
    pub fn last_visit(
        &self,
        insn: usize,
        cur: &State,
        is_turn: impl Fn(&State) -> bool,
    ) -> Option<(&State, usize)> {
        let open = self.stored(insn, cur).filter(|cp| cp.branches > 0);
        let turns = open.filter_map(|cp| cp.state.as_deref()).filter(|s| is_turn(s));
        turns.fold(None, |last, s| Some((s, last.map_or(1, |(_, n)| n + 1))))
    }

    fn stored(&self, insn: usize, cur: &State) -> impl Iterator<Item = &Checkpoint> {
        let list = self.at.get(insn).map_or(&[][..], |l| l);
        list.iter()
            .filter_map(|e| self.points.get(e.point as usize))
            .filter(|cp| cp.state.as_deref().is_some_and(|old| same_place(old, cur)))
    }

    /// Stores a state; `None` when there is no room.
    pub fn store(
        &mut self,
        insn: usize,
        cur: &State,
        parent: Option<Point>,
        cfg: &Cfg,
    ) -> Option<Point> {
        if self.weight > WEIGHT_LIMIT {
            return None;
        }
        let mut state = Box::new(cur.clone());
        let n = state.frames.len();
        for i in 0..n {
            let live = live_regs(cur, i, insn, cfg);
            for (r, reg) in state.frames[i].regs.iter_mut().enumerate() {
                if live & (1 << r) == 0 {
                    *reg = Reg::UNINIT;
                }
            }
        }
        unlink_single(&mut state);
        let p = self.points.len();
        let at = self.at.get_mut(insn)?;
        if at.len() >= CROWD {
            let oldest = at.remove(0);
            if let Some(old) =
                self.points.get_mut(oldest.point as usize).and_then(|cp| cp.state.take())
            {
                self.weight = self.weight.saturating_sub(old.weight());
                self.now = self.now.saturating_sub(1);
            }
        }
        let landmark = !at.iter().rev().take(LANDMARK - 1).any(|e| e.landmark);
        let point = u32::try_from(p).ok()?;
        at.push(Entry {
            point,
            hits: 0,
            misses: 0,
            landmark,
            stage: Stage::Open,
            place: place(&state),
            apart: Apart::No,
        });
        self.most = self.most.max(at.len());
        self.weight += state.weight();
        self.total += 1;
        self.now += 1;
        self.peak = self.peak.max(self.now);
        let newest = state.loops.newest();
        let state = Some(state);
        self.points.push(Checkpoint { state, parent, branches: 1, waits: None, newest });
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
            let waits = cp.waits;
            p = cp.parent;
            self.wait(p, waits);
        }
    }

    /// What is behind `p` is known when what is behind `other` is, which was stored before it.
    fn wait(&mut self, p: Option<Point>, other: Option<Point>) {
        let (Some(p), Some(other)) = (p, other) else { return };
        if let Some(cp) = self.points.get_mut(p)
            && other < p
        {
            cp.waits = Some(cp.waits.map_or(other, |first| first.min(other)));
        }
    }

    /// After `cur`, whose path came through `parent`, was found covered by `p`: what decides behind `p`
    /// also decides for `cur`.
    pub fn inherit_precision(
        &mut self,
        p: Point,
        cur: &State,
        parent: Option<Point>,
        flow: &mut Flow,
    ) {
        let open = first_open(&mut self.points, p);
        self.wait(parent, open);
        let Some(old) = self.points.get(p).and_then(|cp| cp.state.as_deref()) else { return };
        let mut tie = |o: &Reg, c: &Reg| {
            if open.is_some() {
                flow.follow(o.node, c.node);
            } else if flow.is_precise(o.node) {
                flow.mark(c.node);
            }
        };
        for (fo, fc) in old.frames.iter().zip(&cur.frames) {
            for (o, c) in fo.regs.iter().zip(&fc.regs).filter(|(o, _)| o.is_scalar()) {
                tie(o, c);
            }
            for (o, c) in fo.stack.slots().iter().zip(fc.stack.slots()) {
                if o.is_number() && c.is_number() {
                    tie(&o.reg, &c.reg);
                }
            }
        }
    }
}

/// The state that is not done yet and that `p` waits for, which may be `p` itself; `None` when it is
/// known which numbers decide something behind `p`.
fn first_open(points: &mut [Checkpoint], p: Point) -> Option<Point> {
    let mut at = Some(p);
    let open = loop {
        let Some(cp) = at.and_then(|at| points.get(at)) else { break None };
        if cp.branches > 0 {
            break at;
        }
        // Always one that was stored earlier.
        at = cp.waits;
    };
    // All on the way wait for that: it is asked for again and again, and the way may be long.
    let mut at = Some(p).filter(|p| Some(*p) != open);
    while let Some(cp) = at.and_then(|at| points.get_mut(at)) {
        at = std::mem::replace(&mut cp.waits, open).filter(|next| Some(*next) != open);
    }
    open
}

/// How far the paths through a stored state have come.
fn stage(points: &mut [Checkpoint], p: Point) -> Stage {
    match first_open(points, p) {
        None => Stage::Known,
        Some(open) if open == p => Stage::Open,
        Some(_) => Stage::Done,
    }
}

/// What the path of `cur` has done since a stored state, as far as that tells whether a way round
/// through both of them ends.
fn since(points: &mut [Checkpoint], e: &Entry, cur: &State) -> Since {
    let p = e.point as usize;
    let old = points.get(p).and_then(|cp| cp.state.as_deref());
    match old.filter(|_| e.stage != Stage::Known).map(|old| cur.loops.since(&old.loops)) {
        // Both began behind the last state that both paths came through. A way round comes through
        // that, or through one before it, where there was neither of them.
        Some(Since::Apart(id)) if id > newest_before(points, p) => Since::Nothing,
        since => since.unwrap_or(Since::Nothing),
    }
}

/// The loop that began last of those that the last state before `p`, or `p` itself, is inside of that
/// this path came through, too.
fn newest_before(points: &mut [Checkpoint], p: Point) -> LoopId {
    let mut at = Some(p);
    while let Some(cp) = at.and_then(|at| points.get(at)).filter(|cp| cp.branches == 0) {
        at = cp.parent;
    }
    // What is done will not be asked for its parent again but here.
    let (mut from, open) = (p, at);
    while Some(from) != open
        && let Some(cp) = points.get_mut(from)
        && let Some(next) = std::mem::replace(&mut cp.parent, open)
    {
        from = next;
    }
    open.and_then(|open| points.get(open)).map_or(0, |cp| cp.newest)
}

/// Takes scalars out of sets they are alone in: nothing can be learnt through them, so they need
/// not match.
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
        if seen.contains(&(r.id, 1)) {
            r.id = 0;
        }
    });
}

#[cfg(test)]
mod tests;
