//! Stored states: a path that reaches an instruction in a state no worse than one already proved
//! safe there can stop.

use crate::cfg::Cfg;
use crate::compare::{
    How, Ids, Where, covers, difference, differs_at, live_regs, place, same_place,
};
use crate::flow::Flow;
use crate::reg::{Id, Reg};
use crate::stack::Slot;
use crate::state::State;

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
}

/// A stored state in the list of its instruction, with what spares most comparisons.
struct Entry {
    point: u32,
    hits: u32,
    misses: u32,
    /// While unfinished it is compared for as long as it is kept, not only while it is one of the
    /// newest.
    landmark: bool,
    /// Everything behind it is proved safe.
    done: bool,
    /// [`place`] of the state.
    place: u64,
    apart: Apart,
}

/// Why a state did not match the last time; the next time it is likely the same.
#[derive(Clone, Copy)]
enum Apart {
    /// Not known.
    No,
    /// This register of the running frame must hold that number.
    Number(u8, u64),
    /// The same of a slot of its stack.
    Spilled(u8, u64),
    /// It is here.
    At(Where),
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
pub enum Found {
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

impl Entry {
    /// Tells from the entry alone that the state does not match.
    fn is_apart(&self, cur: &State) -> bool {
        match self.apart {
            Apart::Number(reg, n) => cur.reg(reg).as_const() != Some(n),
            Apart::Spilled(slot, n) => cur
                .top()
                .stack
                .slots()
                .get(usize::from(slot))
                .is_none_or(|s| !s.is_number() || s.reg.as_const() != Some(n)),
            Apart::No | Apart::At(_) => false,
        }
    }

    /// As [`difference`], at first where it was the last time.
    fn compare(
        &mut self,
        old: &State,
        cur: &State,
        (insn, cfg, flow, how): (usize, &Cfg, &Flow, How),
        ids: &mut Ids,
    ) -> Option<Where> {
        let depth = cur.depth();
        if !same_place(old, cur) || (how == How::Same && old.loops != cur.loops) {
            return Some(Where::Other);
        }
        if let Apart::At(place) = self.apart
            && differs_at(place, old, cur, cfg, flow, how, ids)
        {
            return Some(place);
        }
        let place = difference(old, cur, insn, cfg, flow, how, ids)?;
        // A number in the running frame that decides something, or must be the same: that is for
        // good, unless only its id is another.
        let settled = |old: &Reg, cur: &Reg| {
            let n = old.as_const().filter(|n| cur.as_const() != Some(*n))?;
            (how == How::Same || flow.is_precise(old.node)).then_some(n)
        };
        let (old, cur) = (old.top(), cur.top());
        let slots = |s: u8| {
            Some((
                old.stack.slots().get(usize::from(s))?,
                cur.stack.slots().get(usize::from(s)).unwrap_or(&Slot::UNINIT),
            ))
        };
        self.apart = match place {
            Where::Reg(frame, r) if usize::from(frame) == depth => {
                settled(&old.regs[usize::from(r)], &cur.regs[usize::from(r)])
                    .map(|n| Apart::Number(r, n))
            }
            Where::Slot(frame, s) if usize::from(frame) == depth => slots(s)
                .filter(|(o, _)| o.is_number())
                .and_then(|(o, c)| settled(&o.reg, &c.reg))
                .map(|n| Apart::Spilled(s, n)),
            _ => None,
        }
        .unwrap_or(Apart::At(place));
        Some(place)
    }
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
    ) -> Found {
        let mut looping = false;
        let mut list = self.at.get_mut(insn).map(std::mem::take).unwrap_or_default();
        let (mut found, mut dropped, mut looks) = (None, false, 0);
        let here = place(cur);
        let newest = list.len().saturating_sub(NEWEST);
        // The newest first: paths that were put aside late go on first.
        for (n, e) in list.iter_mut().enumerate().rev().filter(|(_, e)| e.place == here) {
            if !e.done && self.points.get(e.point as usize).is_none_or(|cp| cp.branches == 0) {
                // From here on numbers that decide nothing may differ.
                (e.done, e.apart) = (true, Apart::No);
            }
            looping |= !e.done;
            if (e.done || n >= newest || e.landmark) && looks < LOOKS && !e.is_apart(cur) {
                looks += 1;
                let Some(old) =
                    self.points.get(e.point as usize).and_then(|cp| cp.state.as_deref())
                else {
                    continue;
                };
                let how = if e.done { How::Enough } else { How::Same };
                match e.compare(old, cur, (insn, cfg, flow, how), &mut self.ids) {
                    None if e.done => {
                        e.hits += 1;
                        found = Some(Found::Covered(e.point as usize));
                        break;
                    }
                    None => {
                        found = Some(Found::Loop);
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
        found.unwrap_or(Found::New { looping })
    }

    /// Compares `cur` with the states stored at a loop head, also unfinished ones: all that follows
    /// them will be walked. Of those on this very path only a state of an earlier iteration
    /// ends it; to be back without one is to go round in circles (`may_goto` that jumps
    /// backwards, a jump back to a call of a helper that calls nothing). As long as it is not
    /// known which numbers will decide something there, all must agree; once everything is walked,
    /// `done` is enough.
    pub fn find_head(&self, insn: usize, cur: &State, cfg: &Cfg, flow: &Flow, done: How) -> Found {
        for e in self.at.get(insn).map_or(&[][..], |l| l) {
            let Some(cp) = self.points.get(e.point as usize) else { continue };
            let Some(old) = cp.state.as_deref().filter(|old| same_place(old, cur)) else {
                continue;
            };
            let how = match cp.branches == 0 {
                true => done,
                false if old.loops != cur.loops => How::Within,
                false => How::Same,
            };
            if covers(old, cur, insn, cfg, flow, how) {
                return if how == How::Same {
                    Found::Loop
                } else {
                    Found::Covered(e.point as usize)
                };
            }
        }
        Found::New { looping: false }
    }

    /// Tells whether everything behind a stored state is proved safe.
    pub fn is_done(&self, p: Point) -> bool {
        self.points.get(p).is_some_and(|cp| cp.branches == 0)
    }

    /// The state in which this path was at a loop head last.
    pub fn last_visit(&self, insn: usize, cur: &State) -> Option<&State> {
        self.stored(insn, cur)
            .filter(|cp| cp.branches > 0)
            .last()
            .and_then(|cp| cp.state.as_deref())
    }

    /// How often this path has been at a loop head.
    pub fn visits(&self, insn: usize, cur: &State) -> usize {
        self.stored(insn, cur).filter(|cp| cp.branches > 0).count()
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
            done: false,
            place: place(&state),
            apart: Apart::No,
        });
        self.most = self.most.max(at.len());
        self.weight += state.weight();
        self.total += 1;
        self.now += 1;
        self.peak = self.peak.max(self.now);
        self.points.push(Checkpoint { state: Some(state), parent, branches: 1 });
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
            p = cp.parent;
        }
    }

    /// After `cur` was found covered by `p`: what decides behind `p` also decides for `cur`.
    pub fn inherit_precision(&self, p: Point, cur: &State, flow: &mut Flow) {
        let Some(old) = self.points.get(p).and_then(|cp| cp.state.as_deref()) else { return };
        for (fo, fc) in old.frames.iter().zip(&cur.frames) {
            for (o, c) in fo.regs.iter().zip(&fc.regs) {
                if o.is_scalar() && flow.is_precise(o.node) {
                    flow.mark(c.node);
                }
            }
            for (o, c) in fo.stack.slots().iter().zip(fc.stack.slots()) {
                if o.is_number() && c.is_number() && flow.is_precise(o.reg.node) {
                    flow.mark(c.reg.node);
                }
            }
        }
    }
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
mod tests {
    use super::*;
    use crate::flow::Node;
    use crate::reg::Kind;
    use crate::scalar::Scalar;
    use skep_isa::{ProgramType, text};
    use skep_object::Linked;

    /// At its first instruction r1 and r6 are still read.
    fn cfg() -> Cfg {
        let insns = text::assemble("mov %r0, %r6\nadd %r0, %r1\nexit\n").expect("assembly");
        Cfg::new(&Linked::from_insns("p", ProgramType::Kprobe, insns))
            .unwrap_or_else(|(at, r)| panic!("{at}: {r}"))
    }

    fn state(min: u64, max: u64) -> State {
        let mut s = State::entry();
        s.set(6, Reg::scalar(Scalar::between(min, max)));
        s
    }

    struct Stored {
        all: Explored,
        cfg: Cfg,
        flow: Flow,
    }

    impl Stored {
        fn new() -> Self {
            Self { all: Explored::new(3), cfg: cfg(), flow: Flow::default() }
        }

        /// Stores r6 from `min` to `max`, proved safe if `done`.
        fn put(&mut self, min: u64, max: u64, done: bool) -> Point {
            let p = self.all.store(0, &state(min, max), None, &self.cfg).expect("room");
            if done {
                self.all.end(Some(p));
            }
            p
        }

        /// What the stored states say about a number: the state that covers it, `-1` for a circle,
        /// `-2` for nothing.
        fn find(&mut self, n: u64, worth: bool) -> i64 {
            match self.all.find(0, &state(n, n), &self.cfg, &self.flow, |_| worth) {
                Found::Covered(p) => p as i64,
                Found::Loop => -1,
                Found::New { .. } => -2,
            }
        }

        /// The weight by another count, and the number of states.
        fn held(&self) -> (usize, usize) {
            let states = || self.all.points.iter().filter_map(|p| p.state.as_deref());
            (states().map(State::weight).sum(), states().count())
        }
    }

    #[test]
    fn a_state_that_missed_may_match_later() {
        let mut s = Stored::new();
        let p = s.put(0, 9, true) as i64;
        assert_eq!([5, 10, 5, 10, 9].map(|n| s.find(n, false)), [p, -2, p, -2, p]);
        let q = s.put(10, 10, true) as i64;
        assert_eq!([5, 10, 11, 10, 5].map(|n| s.find(n, false)), [p, q, -2, q, p]);
    }

    /// The hash of the chain of calls is only a hash: this is the other chain with that hash.
    #[test]
    fn chains_of_calls_of_one_hash_are_told_apart() {
        let mix =
            |n: usize| (n as u64).wrapping_mul(0x9e37_79b9_7f4a_7c15).rotate_left(29) as usize;
        let mut s = Stored::new();
        s.put(0, 9, true);
        let mut other = state(5, 5);
        (other.top_mut().func, other.top_mut().ret) = (1, mix(1) ^ mix(0));
        assert_eq!(place(&other), place(&state(0, 0)));
        assert!(matches!(s.all.find(0, &other, &s.cfg, &s.flow, |_| false), Found::New { .. }));
    }

    /// Unfinished states are compared while they are new, and one in sixteen for ever.
    #[test]
    fn circles_are_found_by_the_newest_states_and_by_landmarks() {
        let mut s = Stored::new();
        for n in 0..20 {
            s.put(n, n, false);
        }
        for n in 0..20 {
            let compared = n >= 16 || n == 0;
            assert_eq!(s.find(n, false), if compared { -1 } else { -2 }, "state {n}");
        }
        s.put(20, 20, false);
        assert_eq!([0, 15, 16, 17, 20].map(|n| s.find(n, false)), [-1, -2, -1, -1, -1]);
    }

    /// The newest 64 states are looked into, but those that are known to be apart cost nothing.
    #[test]
    fn looks_are_limited() {
        let mut s = Stored::new();
        let wide = s.put(0, 9, true) as i64;
        for n in 0..63 {
            s.put(100 + n, 200 + n, true);
        }
        assert_eq!(s.find(5, false), wide);
        s.put(100, 101, true);
        assert_eq!(s.find(5, false), -2);
        let mut s = Stored::new();
        let wide = s.put(0, 9, true) as i64;
        for n in 0..64 {
            s.put(100 + n, 100 + n, true);
        }
        assert_eq!([s.find(5, false), s.find(5, false), s.find(100, false)], [-2, wide, wide + 1]);
    }

    /// 64 misses for each hit, and 64 on credit.
    #[test]
    fn a_state_that_keeps_missing_is_dropped() {
        for hits in 0..3u32 {
            let mut s = Stored::new();
            let p = s.put(0, 9, true) as i64;
            let (kept, n) = (s.put(50, 50, true) as i64, 64 * hits + 64);
            for _ in 0..hits {
                assert_eq!(s.find(5, true), p);
            }
            for _ in 0..n {
                assert_eq!(s.find(77, false), -2, "nothing is to be stored: no miss");
            }
            for _ in 0..n {
                assert_eq!(s.find(50, true), kept);
                assert_eq!(s.find(77, true), -2);
            }
            assert_eq!((s.all.now, s.all.at[0].len()), (2, 2));
            assert_eq!(s.find(77, true), -2);
            assert_eq!(
                (s.find(5, true), s.all.now, s.all.at[0].len()),
                (-2, 1, 1),
                "after {hits} hits"
            );
            assert_eq!(s.held(), (s.all.weight, s.all.now));
        }
    }

    #[test]
    fn an_instruction_keeps_a_thousand_states_or_so() {
        let mut s = Stored::new();
        for n in 0..CROWD as u64 {
            s.put(n, n, false);
            assert_eq!(
                (s.all.most, s.all.peak, s.all.total, s.all.now),
                (n as usize + 1, n as usize + 1, n as usize + 1, n as usize + 1)
            );
        }
        assert_eq!(s.held(), (s.all.weight, CROWD));
        s.put(7_000, 7_000, false);
        assert_eq!(
            (s.all.most, s.all.peak, s.all.total, s.all.now, s.all.at[0].len()),
            (CROWD, CROWD, CROWD + 1, CROWD, CROWD)
        );
        assert_eq!(s.held(), (s.all.weight, CROWD));
        assert!(
            s.all.points[0].state.is_none() && s.all.points[1].state.is_some(),
            "the oldest went"
        );
        s.all.weight = WEIGHT_LIMIT + 1;
        assert!(s.all.store(0, &state(0, 0), None, &s.cfg).is_none());
    }

    /// What is no longer read, and sets of one number, are not part of a stored state.
    #[test]
    fn a_stored_state_holds_what_matters() {
        let mut s = Stored::new();
        let mut cur = state(0, 9);
        let number = |id| Reg { id, ..Reg::scalar(Scalar::between(0, 9)) };
        cur.set(7, number(4));
        cur.set(6, number(4));
        cur.set(1, number(5));
        let spilled = cur.top_mut().stack.slot_mut(-8);
        (spilled.bytes, spilled.reg) = ([crate::stack::Byte::Spill; 8], number(5));
        let p = s.all.store(0, &cur, None, &s.cfg).expect("room");
        let kept = s.all.points[p].state.as_deref().expect("just stored");
        assert_eq!([6, 7, 1].map(|r| kept.reg(r).id), [0, 0, 5]);
        assert_eq!(*kept.reg(7), Reg::UNINIT);
        assert_eq!(kept.slot(0, -8).reg.id, 5);
    }

    #[test]
    fn at_a_loop_head_only_an_earlier_turn_ends_a_path() {
        let mut s = Stored::new();
        let p = s.put(0, 9, false);
        let find =
            |s: &Stored, cur: &State| match s.all.find_head(0, cur, &s.cfg, &s.flow, How::Enough) {
                Found::Covered(p) => p as i64,
                Found::Loop => -1,
                Found::New { .. } => -2,
            };
        let later = |min, max| State { loops: 1, ..state(min, max) };
        assert_eq!(
            [find(&s, &state(0, 9)), find(&s, &state(5, 5)), find(&s, &state(50, 50))],
            [-1, -2, -2]
        );
        assert_eq!(
            [find(&s, &later(0, 9)), find(&s, &later(5, 5)), find(&s, &later(50, 50))],
            [p as i64, p as i64, -2]
        );
        assert_eq!(
            (
                s.all.visits(0, &state(1, 1)),
                s.all.last_visit(0, &state(1, 1)).map(|l| l.reg(6).val)
            ),
            (1, Some(Scalar::between(0, 9)))
        );
        s.put(20, 29, false);
        assert_eq!(
            (
                s.all.visits(0, &state(1, 1)),
                s.all.last_visit(0, &state(1, 1)).map(|l| l.reg(6).val)
            ),
            (2, Some(Scalar::between(20, 29)))
        );
        s.all.end(Some(p));
        assert_eq!(
            [find(&s, &state(0, 9)), find(&s, &state(5, 5)), s.all.visits(0, &state(1, 1)) as i64],
            [p as i64, p as i64, 1]
        );
    }

    /// At the head of a loop, too, numbers may differ that decided nothing; but only when all
    /// behind it was walked.
    #[test]
    fn at_a_loop_head_numbers_that_decide_nothing_may_differ_once_all_is_walked() {
        let mut s = Stored::new();
        let with = |n, node, loops| {
            let mut st = State { loops, ..state(0, 0) };
            st.set(6, Reg { node, ..Reg::constant(n) });
            st
        };
        for decides in [false, true] {
            let node = s.flow.renew(Node::NONE);
            if decides {
                s.flow.mark(node);
            }
            let at = if decides { 100 } else { 0 };
            let p = s.all.store(0, &with(at, node, 0), None, &s.cfg).expect("room");
            let covered = |s: &Stored, loops, how| match s.all.find_head(
                0,
                &with(at + 1, node, loops),
                &s.cfg,
                &s.flow,
                how,
            ) {
                Found::Covered(by) => by == p,
                _ => false,
            };
            assert!(
                !s.all.is_done(p) && !covered(&s, 0, How::Enough) && !covered(&s, 1, How::Enough)
            );
            s.all.end(Some(p));
            assert!(s.all.is_done(p));
            assert_eq!([covered(&s, 0, How::Enough), covered(&s, 1, How::Enough)], [!decides; 2]);
            assert_eq!([covered(&s, 0, How::Within), covered(&s, 1, How::Within)], [false; 2]);
            s.all.points[p].state = None;
        }
    }

    /// Numbers that decided something behind a stored state do so for whoever it covers; pointers,
    /// and what was not marked, do not.
    #[test]
    fn what_decides_behind_a_state_decides_for_those_it_covers() {
        let mut s = Stored::new();
        let spill = |s: &mut State, off, reg| {
            let slot = s.top_mut().stack.slot_mut(off);
            (slot.bytes, slot.reg) = ([crate::stack::Byte::Spill; 8], reg);
        };
        let make = |flow: &mut Flow, decides: bool| {
            let mut node = || {
                let n = flow.renew(Node::NONE);
                (decides).then(|| flow.mark(n));
                n
            };
            let mut st = state(0, 9);
            let number = |node| Reg { node, ..Reg::scalar(Scalar::between(0, 9)) };
            st.set(6, number(node()));
            st.set(1, Reg { node: node(), ..Reg::of(Kind::Mem(4)) });
            spill(&mut st, -8, number(node()));
            spill(&mut st, -16, Reg { node: node(), ..Reg::of(Kind::Mem(4)) });
            st
        };
        for decides in [true, false] {
            let (old, cur) = (make(&mut s.flow, decides), make(&mut s.flow, false));
            let p = s.all.store(0, &old, None, &s.cfg).expect("room");
            s.all.inherit_precision(p, &cur, &mut s.flow);
            let nodes = [
                cur.reg(6).node,
                cur.slot(0, -8).reg.node,
                cur.reg(1).node,
                cur.slot(0, -16).reg.node,
            ];
            assert_eq!(nodes.map(|n| s.flow.is_precise(n)), [decides, decides, false, false]);
        }
        // A number that stands where a pointer was, and the other way round.
        let (mut old, mut cur) = (make(&mut s.flow, true), make(&mut s.flow, false));
        let pointer =
            |st: &State, off| Reg { node: st.slot(0, off).reg.node, ..Reg::of(Kind::Ctx) };
        let (decides, other) = (old.slot(0, -8).reg, pointer(&cur, -16));
        spill(&mut old, -16, decides);
        spill(&mut cur, -16, other);
        let other = pointer(&old, -8);
        spill(&mut old, -8, other);
        let p = s.all.store(0, &old, None, &s.cfg).expect("room");
        s.all.inherit_precision(p, &cur, &mut s.flow);
        assert_eq!(
            [-8, -16].map(|off| s.flow.is_precise(cur.slot(0, off).reg.node)),
            [false, false]
        );
    }
}
