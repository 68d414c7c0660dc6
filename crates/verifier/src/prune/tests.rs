//! Which states end a path, and how long they are kept.

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
    s.loops.begin(1);
    s
}

/// After so many turns of the loop that all are inside of.
fn turned(mut s: State, turns: u32) -> State {
    (0..turns).for_each(|_| s.loops.take_turn(1));
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
            Comparison::Covered(p) => p as i64,
            Comparison::Loop => -1,
            Comparison::New { .. } => -2,
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
    let mix = |n: usize| (n as u64).wrapping_mul(0x9e37_79b9_7f4a_7c15).rotate_left(29) as usize;
    let mut s = Stored::new();
    s.put(0, 9, true);
    let mut other = state(5, 5);
    (other.top_mut().func, other.top_mut().ret) = (1, mix(1) ^ mix(0));
    assert_eq!(place(&other), place(&state(0, 0)));
    assert!(matches!(s.all.find(0, &other, &s.cfg, &s.flow, |_| false), Comparison::New { .. }));
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
    assert!(s.all.points[0].state.is_none() && s.all.points[1].state.is_some(), "the oldest went");
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
        |s: &mut Stored, cur: &State| match s.all.find_head(0, cur, &s.cfg, &s.flow, How::Enough) {
            Comparison::Covered(p) => p as i64,
            Comparison::Loop => -1,
            Comparison::New { .. } => -2,
        };
    let later = |min, max| turned(state(min, max), 1);
    assert_eq!(
        [find(&mut s, &state(0, 9)), find(&mut s, &state(5, 5)), find(&mut s, &state(50, 50))],
        [-1, -2, -2]
    );
    assert_eq!(
        [find(&mut s, &later(0, 9)), find(&mut s, &later(5, 5)), find(&mut s, &later(50, 50))],
        [p as i64, p as i64, -2]
    );
    let last = |s: &Stored| {
        let visit = s.all.last_visit(0, &state(1, 1), |s| s.reg(6).val != Scalar::between(30, 39));
        visit.map(|(last, visits)| (last.reg(6).val, visits))
    };
    assert_eq!(last(&s), Some((Scalar::between(0, 9), 1)));
    s.put(20, 29, false);
    assert_eq!(last(&s), Some((Scalar::between(20, 29), 2)));
    s.put(30, 39, false);
    assert_eq!(last(&s), Some((Scalar::between(20, 29), 2)), "another loop's");
    s.all.end(Some(p));
    assert_eq!([find(&mut s, &state(0, 9)), find(&mut s, &state(5, 5))], [p as i64, p as i64]);
    assert_eq!(last(&s), Some((Scalar::between(20, 29), 1)));
}

/// At the head of a loop, too, numbers may differ that decided nothing; but only when all
/// behind it was walked.
#[test]
fn at_a_loop_head_numbers_that_decide_nothing_may_differ_once_all_is_walked() {
    let mut s = Stored::new();
    let with = |n, node, loops| {
        let mut st = turned(state(0, 0), loops);
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
        let covered = |s: &mut Stored, loops, how| match s.all.find_head(
            0,
            &with(at + 1, node, loops),
            &s.cfg,
            &s.flow,
            how,
        ) {
            Comparison::Covered(by) => by == p,
            _ => false,
        };
        assert!(
            stage(&mut s.all.points, p) == Stage::Open
                && !covered(&mut s, 0, How::Enough)
                && !covered(&mut s, 1, How::Enough)
        );
        s.all.end(Some(p));
        assert!((stage(&mut s.all.points, p) == Stage::Known));
        assert_eq!(
            [covered(&mut s, 0, How::Enough), covered(&mut s, 1, How::Enough)],
            [!decides; 2]
        );
        assert_eq!([covered(&mut s, 0, How::Within), covered(&mut s, 1, How::Within)], [false; 2]);
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
        s.all.inherit_precision(p, &cur, None, &mut s.flow);
        let nodes =
            [cur.reg(6).node, cur.slot(0, -8).reg.node, cur.reg(1).node, cur.slot(0, -16).reg.node];
        assert_eq!(nodes.map(|n| s.flow.is_precise(n)), [decides, decides, false, false]);
    }
    // A number that stands where a pointer was, and the other way round.
    let (mut old, mut cur) = (make(&mut s.flow, true), make(&mut s.flow, false));
    let pointer = |st: &State, off| Reg { node: st.slot(0, off).reg.node, ..Reg::of(Kind::Ctx) };
    let (decides, other) = (old.slot(0, -8).reg, pointer(&cur, -16));
    spill(&mut old, -16, decides);
    spill(&mut cur, -16, other);
    let other = pointer(&old, -8);
    spill(&mut old, -8, other);
    let p = s.all.store(0, &old, None, &s.cfg).expect("room");
    s.all.inherit_precision(p, &cur, None, &mut s.flow);
    assert_eq!([-8, -16].map(|off| s.flow.is_precise(cur.slot(0, off).reg.node)), [false, false]);
}

/// A path ends at the head of a loop: what is inside of the loop is proved, but what decides something
/// there is known when all that is behind the head is.
#[test]
fn inside_of_a_loop_what_decides_is_known_when_all_behind_its_head_is() {
    let mut s = Stored::new();
    let with = |flow: &mut Flow, n| {
        let mut st = state(0, 0);
        st.set(6, Reg { node: flow.renew(Node::NONE), ..Reg::constant(n) });
        st
    };
    for levels in [0, 1] {
        // The outer head, the inner one (that a path from outside of it leads to, too), a place inside.
        let [outer, inner, inside] = [7, 7, 50].map(|n| with(&mut s.flow, n));
        let a = s.all.store(0, &outer, None, &s.cfg).expect("room");
        let b = s.all.store(0, &inner, Some(a), &s.cfg).expect("room");
        let c = s.all.store(0, &inside, Some(b), &s.cfg).expect("room");
        s.all.fork(Some(a));
        s.all.fork(Some(b));
        let find = |s: &mut Stored, n| s.find(n, false) == c as i64;
        // The turn ends at the inner head, or at the outer one.
        let end = with(&mut s.flow, 7);
        s.all.inherit_precision([b, a][levels], &end, Some(c), &mut s.flow);
        s.all.end(Some(c));
        assert_eq!([find(&mut s, 50), find(&mut s, 51)], [true, false], "only within");
        // Another path ends at the place inside: it waits as well.
        let covered = with(&mut s.flow, 50);
        let d = s.all.store(2, &with(&mut s.flow, 1), Some(b), &s.cfg).expect("room");
        s.all.fork(Some(b));
        s.all.inherit_precision(c, &covered, Some(d), &mut s.flow);
        s.all.end(Some(d));
        assert!(stage(&mut s.all.points, d) == Stage::Done);
        s.all.end(Some(b));
        assert_eq!(
            (stage(&mut s.all.points, c) == Stage::Known),
            levels == 0,
            "the inner loop is done"
        );
        assert_eq!((stage(&mut s.all.points, d) == Stage::Known), levels == 0);
        assert_eq!([find(&mut s, 50), find(&mut s, 51)], [true, levels == 0]);
        // What decides something behind the head does so where the turn ended.
        let heads = [&inner, &outer].map(|head| head.reg(6).node);
        s.flow.mark(heads[1 - levels]);
        assert!(!s.flow.is_precise(end.reg(6).node));
        s.flow.mark(heads[levels]);
        assert!(s.flow.is_precise(end.reg(6).node));
        s.all.end(Some(a));
        s.all.end(Some(a));
        for p in [a, b, c, d] {
            assert!(stage(&mut s.all.points, p) == Stage::Known);
        }
        s.all.points[c].state = None;
    }
}

/// Each of many turns waits for the one before: that is not walked along each time.
#[test]
fn a_long_way_to_what_a_state_waits_for_is_walked_once() {
    let mut s = Stored::new();
    let turns: Vec<Point> = (0..50u64)
        .map(|n| s.all.store(0, &state(n, n), n.checked_sub(1).map(|n| n as Point), &s.cfg))
        .map(|p| p.expect("room"))
        .collect();
    // Two ways on from each, of which the other one ends in the turn before.
    for (before, p) in turns.iter().zip(&turns[1..]) {
        s.all.wait(Some(*p), Some(*before));
        s.all.points[*p].branches = 0;
    }
    let waits = |s: &Stored| turns.iter().map(|p| s.all.points[*p].waits).collect::<Vec<_>>();
    assert!(stage(&mut s.all.points, 49) == Stage::Done);
    assert_eq!(waits(&s)[1..], [Some(0); 49]);
    assert!(stage(&mut s.all.points, 0) == Stage::Open);
    s.all.points[0].branches = 0;
    assert!(stage(&mut s.all.points, 20) == Stage::Known);
    assert_eq!((waits(&s)[20], waits(&s)[21]), (None, Some(0)));
}
