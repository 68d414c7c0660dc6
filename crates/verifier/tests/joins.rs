//! When an old state stands for a new one, part by part: each row changes one thing, and says
//! whether either still stands for the other as the same, within, and within but for numbers that
//! decided nothing.

use skep_isa::{HelperId, ProgramType, text};
use skep_object::Linked;
use skep_verifier::cfg::Cfg;
use skep_verifier::compare::{How, Ids, Where, covers, difference, differs_at, same_place, widen};
use skep_verifier::flow::{Flow, Node};
use skep_verifier::reg::{Flags, Kind, Reg};
use skep_verifier::scalar::Scalar;
use skep_verifier::stack::{Byte, DynptrKind, Slot};
use skep_verifier::state::{Reference, State};

/// At its first instruction all registers are still read.
fn cfg() -> Cfg {
    let reads: String = (1..10).map(|r| format!("add %r0, %r{r}\n")).collect();
    let insns = text::assemble(&(reads + "exit\n")).expect("assembly");
    Cfg::new(&Linked::from_insns("p", ProgramType::Kprobe, insns))
        .unwrap_or_else(|(at, r)| panic!("{at}: {r}"))
}

const SPILL: [Byte; 8] = [Byte::Spill; 8];

fn slot(bytes: [Byte; 8], reg: Reg) -> Slot {
    Slot { bytes, reg }
}

/// A number that decided nothing in r2, a value that may be missing in r3, a packet in r4, a record
/// in r5, two numbers of one set in r6 and r7, memory of a dynptr in r8; on the stack a number,
/// part of an iterator, zeroes, and half of a slot.
fn base(flow: &mut Flow) -> State {
    let mut s = State::entry();
    let mut number = Reg::scalar(Scalar::between(3, 9));
    number.node = flow.renew(Node::NONE);
    s.set(2, number);
    let with = |kind, id| Reg { id, ..Reg::of(kind) };
    s.set(3, Reg { nullable: true, ..with(Kind::Value(0), 5) });
    s.set(4, Reg { range: 8, ..with(Kind::Packet, 6) });
    s.set(5, Reg { reference: 7, ..with(Kind::Record(16), 0) });
    s.refs = vec![Reference { id: 7, insn: 1 }];
    let decides = Reg::scalar(Scalar::between(0, 99));
    s.set(6, Reg { id: 8, ..decides });
    s.set(7, Reg { id: 8, delta: 1, ..decides });
    s.set(8, Reg { parent: 9, ..Reg::of(Kind::Mem(16)) });
    let stack = &mut s.top_mut().stack;
    *stack.slot_mut(-8) = slot(SPILL, decides);
    let iter =
        Reg { id: 10, range: 1, ..Reg::of(Kind::Iter { of: HelperId::default(), drained: false }) };
    *stack.slot_mut(-16) = slot([Byte::Special; 8], iter);
    *stack.slot_mut(-24) = slot([Byte::Zero; 8], Reg::UNINIT);
    let mut half = SPILL;
    half[4..].fill(Byte::Uninit);
    *stack.slot_mut(-32) = slot(half, Reg::scalar(Scalar::of_size(4)));
    s
}

type Row = (&'static str, fn(&mut State), [bool; 3], [bool; 3]);

const ALL: [bool; 3] = [true; 3];
const NONE: [bool; 3] = [false; 3];
const NOT_SAME: [bool; 3] = [false, true, true];
const ENOUGH: [bool; 3] = [false, false, true];

fn reg(s: &mut State, n: usize) -> &mut Reg {
    &mut s.top_mut().regs[n]
}

/// What is changed; whether the base then stands for the changed state, and the changed one for the
/// base.
const ROWS: &[Row] = &[
    ("nothing", |_| (), ALL, ALL),
    ("it runs later", |s| s.later = true, NONE, NONE),
    ("in a read-side section", |s| s.rcu = 1, NONE, NONE),
    ("preemption is off", |s| s.preempt = 1, NONE, NONE),
    ("a lock is held", |s| s.lock = Some((Kind::Value(0), 5)), NONE, NONE),
    ("one more reference", |s| s.refs.push(Reference { id: 77, insn: 1 }), NONE, NONE),
    ("another reference", |s| s.refs[0].id = 77, NONE, NONE),
    (
        "the same reference by another number",
        |s| {
            s.refs[0].id = 77;
            reg(s, 5).reference = 77;
        },
        ALL,
        ALL,
    ),
    ("a pointer without its reference", |s| reg(s, 5).reference = 0, NONE, NONE),
    ("more turns taken", |s| s.top_mut().turns = 1, NOT_SAME, NONE),
    ("references were held before", |s| s.top_mut().held = Some(vec![7]), NONE, NONE),
    ("a register not written", |s| *reg(s, 2) = Reg::UNINIT, NONE, NOT_SAME),
    ("a register written", |s| *reg(s, 9) = Reg::constant(1), NOT_SAME, NONE),
    ("another kind", |s| reg(s, 8).kind = Kind::Mem(17), NONE, NONE),
    ("tested", |s| reg(s, 3).nullable = false, NONE, NONE),
    ("other flags", |s| reg(s, 8).flags = Flags::RDONLY, NONE, NONE),
    ("another offset", |s| reg(s, 8).off = 1, NONE, NONE),
    ("more of the packet is known", |s| reg(s, 4).range = 9, NOT_SAME, NONE),
    ("of one packet offset with what may be missing", |s| reg(s, 3).id = 6, NONE, NONE),
    ("of no packet offset", |s| reg(s, 4).id = 0, NONE, NONE),
    ("memory of nobody", |s| reg(s, 8).parent = 0, NONE, NONE),
    (
        "fewer numbers, and they decide",
        |s| reg(s, 6).val = Scalar::between(1, 99),
        [false, true, true],
        NONE,
    ),
    (
        "fewer numbers, and they decide nothing",
        |s| reg(s, 2).val = Scalar::between(4, 9),
        NOT_SAME,
        ENOUGH,
    ),
    (
        "other numbers, and they decide nothing",
        |s| reg(s, 2).val = Scalar::between(30, 40),
        ENOUGH,
        ENOUGH,
    ),
    ("no set of numbers", |s| reg(s, 7).id = 0, NONE, ALL),
    ("another distance in the set", |s| reg(s, 7).delta = 2, NONE, NONE),
    ("the low half of the set", |s| reg(s, 7).low = true, NONE, NONE),
    (
        "more stack",
        |s| *s.top_mut().stack.slot_mut(-40) = slot([Byte::Misc; 8], Reg::UNINIT),
        NOT_SAME,
        NONE,
    ),
    (
        "another spilled number",
        |s| s.top_mut().stack.slot_mut(-8).reg.val = Scalar::between(0, 9),
        NOT_SAME,
        NONE,
    ),
    (
        "a spilled pointer",
        |s| s.top_mut().stack.slot_mut(-8).reg = Reg::of(Kind::Mem(8)),
        NONE,
        NONE,
    ),
    (
        "bytes instead of a number",
        |s| *s.top_mut().stack.slot_mut(-8) = slot([Byte::Misc; 8], Reg::UNINIT),
        NONE,
        NOT_SAME,
    ),
    (
        "no iterator any more",
        |s| s.top_mut().stack.slot_mut(-16).bytes = [Byte::Misc; 8],
        NONE,
        NONE,
    ),
    (
        "a dynptr instead",
        |s| s.top_mut().stack.slot_mut(-16).reg.kind = Kind::Dynptr(DynptrKind::Local),
        NONE,
        NONE,
    ),
    (
        "an iterator of other trust",
        |s| s.top_mut().stack.slot_mut(-16).reg.flags = Flags::RCU,
        NONE,
        NONE,
    ),
    ("another part of it", |s| s.top_mut().stack.slot_mut(-16).reg.range = 0, NONE, NONE),
    ("an iterator by another number", |s| s.top_mut().stack.slot_mut(-16).reg.id = 11, ALL, ALL),
    (
        "one with the number of the packet's offset",
        |s| s.top_mut().stack.slot_mut(-16).reg.id = 6,
        NONE,
        NONE,
    ),
    (
        "an iterator with a reference",
        |s| s.top_mut().stack.slot_mut(-16).reg.reference = 7,
        NONE,
        NONE,
    ),
    (
        "bytes instead of zeroes",
        |s| s.top_mut().stack.slot_mut(-24).bytes = [Byte::Misc; 8],
        NONE,
        NOT_SAME,
    ),
    (
        "one byte not written",
        |s| s.top_mut().stack.slot_mut(-24).bytes[3] = Byte::Uninit,
        NONE,
        NOT_SAME,
    ),
    ("a whole slot instead of half", |s| s.top_mut().stack.slot_mut(-32).bytes = SPILL, NONE, NONE),
];

#[test]
fn each_part_of_a_state_counts() {
    let cfg = cfg();
    let mut wrong = Vec::new();
    for (name, change, there, back) in ROWS {
        let mut flow = Flow::default();
        let old = base(&mut flow);
        let mut new = old.clone();
        change(&mut new);
        for (what, a, b, want) in
            [("base for changed", &old, &new, there), ("changed for base", &new, &old, back)]
        {
            let got =
                [How::Same, How::Within, How::Enough].map(|how| covers(a, b, 0, &cfg, &flow, how));
            if got != *want {
                wrong.push(format!("{name}, {what}: {got:?}"));
            }
        }
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}

/// References that correspond one to one, but not to what else has their numbers.
#[test]
fn references_correspond_with_locks_and_what_was_held() {
    let (cfg, flow) = (cfg(), Flow::default());
    let locked = |lock: u32, held: Option<Vec<u32>>| {
        let mut s = State::entry();
        s.refs = vec![Reference { id: 5, insn: 1 }, Reference { id: 6, insn: 2 }];
        s.lock = Some((Kind::Local(1), lock));
        s.top_mut().held = held;
        s
    };
    for how in [How::Same, How::Within, How::Enough] {
        let covers = |a: &State, b: &State| covers(a, b, 0, &cfg, &flow, how);
        assert!(
            covers(&locked(5, None), &locked(5, None))
                && !covers(&locked(5, None), &locked(6, None)),
            "the lock of another object"
        );
        let held = |id| locked(5, Some(vec![id]));
        assert!(
            covers(&held(6), &held(6))
                && !covers(&held(5), &held(6))
                && !covers(&held(6), &held(5)),
            "another was held before"
        );
    }
}

/// The room for pairs is used again and again: nothing of an earlier comparison stays.
#[test]
fn comparisons_do_not_see_each_other() {
    let (cfg, mut flow, mut ids) = (cfg(), Flow::default(), Ids::default());
    let old = base(&mut flow);
    let mut new = old.clone();
    for n in 0..3 {
        assert_eq!(
            difference(&old, &new, 0, &cfg, &flow, How::Within, &mut ids),
            None,
            "round {n}"
        );
        let place = Where::Reg(0, 4);
        assert!(!differs_at(place, &old, &new, &cfg, &flow, How::Within, &mut ids), "round {n}");
        (reg(&mut new, 4).id, reg(&mut new, 6).id, reg(&mut new, 7).id) = (60 + n, 80 + n, 80 + n);
        assert!(!differs_at(place, &old, &new, &cfg, &flow, How::Within, &mut ids), "round {n}");
    }
    reg(&mut new, 4).range = 0;
    assert_eq!(
        difference(&old, &new, 0, &cfg, &flow, How::Within, &mut ids),
        Some(Where::Reg(0, 4))
    );
    assert!(differs_at(Where::Reg(0, 4), &old, &new, &cfg, &flow, How::Within, &mut ids));
    assert!(!differs_at(Where::Reg(0, 3), &old, &new, &cfg, &flow, How::Within, &mut ids));
}

#[test]
fn a_place_is_a_chain_of_calls() {
    let here = State::entry();
    for change in [
        |s: &mut State| s.top_mut().func = 1,
        |s: &mut State| s.top_mut().ret = 1,
        |s: &mut State| s.frames.push(s.frames[0].clone()),
    ] {
        let mut there = here.clone();
        change(&mut there);
        assert!(
            same_place(&here, &here)
                && same_place(&there, &there)
                && !same_place(&here, &there)
                && !same_place(&there, &here)
        );
    }
}

/// Registers in the state of the iteration before, in this one, and what is left of it; `None`:
/// all.
#[test]
fn a_loop_forgets_what_changes_and_nothing_else() {
    const WORD: u64 = u32::MAX as u64;
    let (number, word) =
        (|min, max| Reg::scalar(Scalar::between(min, max)), Reg::scalar(Scalar::of_size(4)));
    let rows = [
        (number(0, 0), number(1, 1), Some(word)),
        (number(1, WORD), number(0, 5), Some(word)),
        (number(5, 5), number(0, WORD), Some(word)),
        (number(5, 5), number(0, WORD + 1), Some(Reg::UNKNOWN)),
        (number(1, WORD + 1), number(0, 5), Some(Reg::UNKNOWN)),
        (number(0, 5), number(1, 4), None),
        (Reg::UNKNOWN, number(3, 3), None),
        (Reg::of(Kind::Ctx), number(5, 5), None),
        (number(5, 5), Reg::of(Kind::Ctx), None),
    ];
    for (n, (old, new, want)) in rows.into_iter().enumerate() {
        let mut flow = Flow::default();
        let decides = flow.renew(Node::NONE);
        flow.mark(decides);
        for (keep, node, kept) in [
            (false, Node::NONE, false),
            (true, flow.renew(Node::NONE), false),
            (true, decides, true),
            (false, decides, false),
        ] {
            let (old, new) = (Reg { node, ..old }, Reg { node, ..new });
            let (mut a, mut b) = (State::entry(), State::entry());
            for (s, r) in [(&mut a, old), (&mut b, new)] {
                s.set(6, r);
                *s.top_mut().stack.slot_mut(-8) = slot(SPILL, r);
            }
            widen(&a, &mut b, &flow, keep);
            // A word is one because of what it was computed from.
            let widened = want.map(|w| Reg { node: if w == word { node } else { w.node }, ..w });
            let want = widened.filter(|_| !kept).unwrap_or(new);
            assert_eq!(*b.reg(6), want, "row {n}, keep {keep}");
            assert_eq!(b.top().stack.slots()[0].reg, want, "row {n}, keep {keep}, on the stack");
        }
    }
    // Slots that were made in other ways.
    let (misc, zero) = (slot([Byte::Misc; 8], Reg::UNINIT), slot([Byte::Zero; 8], Reg::UNINIT));
    let (spilled, pointer) = (slot(SPILL, number(5, 5)), slot(SPILL, Reg::of(Kind::Ctx)));
    let rows = [
        (misc, spilled, [misc, spilled]),
        (misc, pointer, [pointer, pointer]),
        (pointer, spilled, [spilled, spilled]),
        (misc, zero, [misc, misc]),
        (zero, zero, [zero, zero]),
        (zero, misc, [misc, misc]),
    ];
    for (n, (old, new, want)) in rows.into_iter().enumerate() {
        for (keep, want) in [false, true].into_iter().zip(want) {
            let (mut a, mut b) = (State::entry(), State::entry());
            *a.top_mut().stack.slot_mut(-8) = old;
            *b.top_mut().stack.slot_mut(-8) = new;
            widen(&a, &mut b, &Flow::default(), keep);
            assert_eq!(b.top().stack.slots()[0], want, "slot {n}, keep {keep}");
        }
    }
}

/// What one comparison of whole states paired is nothing to the next.
#[test]
fn comparisons_of_states_know_nothing_of_each_other() {
    let mut flow = Flow::default();
    let old = base(&mut flow);
    let mut ids = Ids::default();
    for other in [7, 77, 78] {
        let mut cur = old.clone();
        cur.refs[0].id = other;
        reg(&mut cur, 5).reference = other;
        assert_eq!(
            difference(&old, &cur, 0, &cfg(), &flow, How::Within, &mut ids),
            None,
            "reference {other}"
        );
    }
}

/// Where stack may be read that was never written, it is like stack that is not known.
#[test]
fn stack_that_was_never_written_may_be_unknown() {
    let mut cfg = cfg();
    let mut flow = Flow::default();
    let mut old = base(&mut flow);
    *old.top_mut().stack.slot_mut(-8) = slot([Byte::Misc; 8], Reg::UNINIT);
    *old.top_mut().stack.slot_mut(-40) = slot(SPILL, Reg::UNKNOWN);
    let mut new = old.clone();
    for off in [-8, -40] {
        *new.top_mut().stack.slot_mut(off) = Slot::UNINIT;
    }
    for lax in [false, true] {
        cfg.lax = lax;
        assert_eq!(covers(&old, &new, 0, &cfg, &flow, How::Within), lax);
        assert!(!covers(&old, &new, 0, &cfg, &flow, How::Same));
    }
    // A number that must be small, or zeroes, are more than that.
    for known in
        [slot(SPILL, Reg::scalar(Scalar::between(0, 9))), slot([Byte::Zero; 8], Reg::UNINIT)]
    {
        *old.top_mut().stack.slot_mut(-40) = known;
        assert!(!covers(&old, &new, 0, &cfg, &flow, How::Within));
    }
}
