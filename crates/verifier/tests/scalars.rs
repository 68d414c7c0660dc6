//! The number domain never leaves out a value the machine can compute: all small operands, at every
//! place of the word where something can go wrong, and samples of wide ones. What the machine
//! computes is said by another piece of code.

#![allow(clippy::print_stdout, reason = "seeds are printed for whoever has to repeat a failure")]

#[path = "machine/arith.rs"]
#[allow(dead_code, reason = "the moves are tested elsewhere")]
mod arith;

use skep_isa::{Insn, op};
use skep_testkit::random::Random;
use skep_verifier::range::{Range32, Range64};
use skep_verifier::scalar::{Cmp, Op, Scalar};
use skep_verifier::tnum::Tnum;

const OPS: [Op; 13] = [
    Op::Add,
    Op::Sub,
    Op::Mul,
    Op::Div,
    Op::Sdiv,
    Op::Mod,
    Op::Smod,
    Op::And,
    Op::Or,
    Op::Xor,
    Op::Lsh,
    Op::Rsh,
    Op::Arsh,
];

const CMPS: [Cmp; 12] = [
    Cmp::Eq,
    Cmp::Ne,
    Cmp::Gt,
    Cmp::Ge,
    Cmp::Lt,
    Cmp::Le,
    Cmp::Sgt,
    Cmp::Sge,
    Cmp::Slt,
    Cmp::Sle,
    Cmp::Set,
    Cmp::NotSet,
];

/// The smallest description the domain has of a set of numbers.
fn hull(members: &[u64]) -> Scalar {
    let (mut both, mut either) = (u64::MAX, 0);
    let mut s = Scalar {
        bits: Tnum::UNKNOWN,
        r64: Range64 { umin: u64::MAX, umax: 0, smin: i64::MAX, smax: i64::MIN },
        r32: Range32 { umin: u32::MAX, umax: 0, smin: i32::MAX, smax: i32::MIN },
    };
    for &m in members {
        both &= m;
        either |= m;
        let (a, b) = (&mut s.r64, &mut s.r32);
        (a.umin, a.umax) = (a.umin.min(m), a.umax.max(m));
        (a.smin, a.smax) = (a.smin.min(m as i64), a.smax.max(m as i64));
        (b.umin, b.umax) = (b.umin.min(m as u32), b.umax.max(m as u32));
        (b.smin, b.smax) = (b.smin.min(m as i32), b.smax.max(m as i32));
    }
    s.bits = Tnum { value: both, mask: both ^ either };
    s
}

/// The instruction of an operation.
fn insn(o: Op, class: u8) -> Insn {
    let (code, signed) = match o {
        Op::Add => (op::ADD, 0),
        Op::Sub => (op::SUB, 0),
        Op::Mul => (op::MUL, 0),
        Op::Div => (op::DIV, 0),
        Op::Sdiv => (op::DIV, 1),
        Op::Mod => (op::MOD, 0),
        Op::Smod => (op::MOD, 1),
        Op::And => (op::AND, 0),
        Op::Or => (op::OR, 0),
        Op::Xor => (op::XOR, 0),
        Op::Lsh => (op::LSH, 0),
        Op::Rsh => (op::RSH, 0),
        Op::Arsh => (op::ARSH, 0),
    };
    Insn::new(class | op::X | code, 0, 1, signed, 0)
}

/// Tells whether a comparison holds; `NotSet` is the path a `jset` does not take.
fn holds(cmp: Cmp, a: u64, b: u64, is32: bool) -> bool {
    let code = match cmp {
        Cmp::Eq => op::JEQ,
        Cmp::Ne => op::JNE,
        Cmp::Gt => op::JGT,
        Cmp::Ge => op::JGE,
        Cmp::Lt => op::JLT,
        Cmp::Le => op::JLE,
        Cmp::Sgt => op::JSGT,
        Cmp::Sge => op::JSGE,
        Cmp::Slt => op::JSLT,
        Cmp::Sle => op::JSLE,
        Cmp::Set | Cmp::NotSet => op::JSET,
    };
    let class = if is32 { op::JMP32 } else { op::JMP };
    arith::taken(Insn::new(class | op::X | code, 0, 1, 0, 0), a, b) != (cmp == Cmp::NotSet)
}

fn check_pair(a: &Scalar, am: &[u64], b: &Scalar, bm: &[u64]) {
    for op in OPS {
        let (r64, r32) = (a.op64(op, *b), a.op32(op, *b));
        let (wide, narrow) = (insn(op, op::ALU64), insn(op, op::ALU));
        for &x in am {
            for &y in bm {
                let want = arith::binary(wide, x, y);
                assert!(
                    r64.contains(want),
                    "{x:#x} {op:?} {y:#x} = {want:#x} on 64 bits is not in {r64:?}\na {a:?}\nb {b:?}"
                );
                let want = arith::binary(narrow, x, y);
                assert!(
                    r32.contains(want),
                    "{x:#x} {op:?} {y:#x} = {want:#x} on 32 bits is not in {r32:?}\na {a:?}\nb {b:?}"
                );
            }
        }
    }
    for cmp in CMPS {
        for is32 in [false, true] {
            assert_eq!(cmp.negate().negate(), cmp);
            let narrowed = a.assume(cmp, *b, is32);
            for &x in am {
                for &y in bm {
                    if !holds(cmp, x, y, is32) {
                        assert!(
                            holds(cmp.negate(), x, y, is32),
                            "neither {cmp:?} nor its contrary holds for {x:#x} and {y:#x}"
                        );
                        continue;
                    }
                    let Some((p, q)) = narrowed else {
                        panic!(
                            "{x:#x} {cmp:?} {y:#x} holds, but was thought impossible\na {a:?}\nb {b:?}"
                        )
                    };
                    assert!(
                        p.contains(x) && q.contains(y),
                        "{x:#x} {cmp:?} {y:#x} (32: {is32}) narrows too far: {p:?} {q:?}\na {a:?}\nb {b:?}"
                    );
                }
            }
        }
    }
    let (both, low) = (a.meet(*b), a.meet_low(*b));
    for &x in am {
        if bm.contains(&x) {
            assert!(
                both.is_some_and(|m| m.contains(x)),
                "{x:#x} is in {a:?} and in {b:?}, but not in {both:?}"
            );
        }
        if bm.iter().any(|y| *y as u32 == x as u32) {
            assert!(
                low.is_some_and(|m| m.contains(x)),
                "{x:#x} is in {a:?}, its low half in {b:?}, but not in {low:?}"
            );
        }
    }
    if a.covers(b) {
        assert!(bm.iter().all(|y| a.contains(*y)), "{a:?} does not cover {b:?}");
    }
}

fn check_one(a: &Scalar, am: &[u64]) {
    for bits in [8, 16, 32, 64] {
        let (t, s) = (a.truncate(bits), a.sign_extend(bits));
        for &x in am {
            let sh = 64 - bits;
            assert!(t.contains(x << sh >> sh), "{x:#x} to {bits} bits is not in {t:?}, from {a:?}");
            let want = (((x << sh) as i64) >> sh) as u64;
            assert!(
                s.contains(want),
                "{x:#x} sign-extended from {bits} bits is not in {s:?}, from {a:?}"
            );
        }
    }
    moves_that_look_idle_are(a, am);
    let n = a.normalize();
    assert!(
        am.iter().all(|x| n.is_some_and(|n| n.contains(*x))),
        "{a:?} normalized loses values: {n:?}"
    );
}

/// Where a move's outcome is described as its source, the walk takes them for the same number.
fn moves_that_look_idle_are(a: &Scalar, am: &[u64]) {
    for (bits, word) in [(32, 32), (8, 32), (16, 32), (8, 64), (16, 64), (32, 64)] {
        let sh = 64 - bits;
        let moved = if bits == word { a.truncate(32) } else { a.sign_extend(bits).truncate(word) };
        for &x in am.iter().filter(|_| moved == *a) {
            let extended = if bits == word { x } else { (((x << sh) as i64) >> sh) as u64 };
            assert_eq!(extended << (64 - word) >> (64 - word), x, "{bits} bits of {word}, {a:?}");
        }
    }
}

/// All intervals and bit patterns of `bits` bits that stand at `place` in the word, with the
/// numbers they describe: signed and unsigned intervals of the whole word or of its low half,
/// whichever has its sign there.
fn shapes(bits: u32, place: u32) -> Vec<(Scalar, Vec<u64>)> {
    let n = 1u64 << bits;
    let at = |v: u64| v << place;
    // Below zero are those with the highest bit, when that is a sign.
    let signed = |v: u64| at(if v < n / 2 { v + n / 2 } else { v - n / 2 });
    let only = Scalar { bits: Tnum { value: 0, mask: at(n - 1) }, ..Scalar::UNKNOWN };
    let mut all = Vec::new();
    for lo in 0..n {
        for hi in lo..n {
            let members: Vec<u64> = (lo..=hi).map(at).collect();
            all.push((Scalar { r64: Range64::unsigned(at(lo), at(hi)), ..only }, members.clone()));
            if place + bits <= 32 {
                all.push((
                    Scalar { r32: Range32::unsigned(at(lo) as u32, at(hi) as u32), ..only },
                    members,
                ));
            }
            let members: Vec<u64> = (lo..=hi).map(signed).collect();
            if place + bits == 64 {
                all.push((
                    Scalar { r64: Range64::signed(signed(lo) as i64, signed(hi) as i64), ..only },
                    members,
                ));
            } else if place + bits == 32 {
                all.push((
                    Scalar { r32: Range32::signed(signed(lo) as i32, signed(hi) as i32), ..only },
                    members,
                ));
            }
            if place == 0 {
                // Around zero, with the sign in all bits above.
                let (lo, hi) = (lo as i64 - n as i64 / 2, hi as i64 - n as i64 / 2);
                let members = (lo..=hi).map(|v| v as u64).collect();
                all.push((Scalar { r64: Range64::signed(lo, hi), ..Scalar::UNKNOWN }, members));
            }
        }
    }
    for mask in 0..n {
        for value in (0..n).filter(|v| v & mask == 0) {
            let members = (0..n).filter(|v| v & !mask == value).map(at).collect();
            all.push((
                Scalar { bits: Tnum { value: at(value), mask: at(mask) }, ..Scalar::UNKNOWN },
                members,
            ));
        }
    }
    for (s, m) in &mut all {
        *s = s.normalize().unwrap_or_else(|| panic!("{s:?} describes {m:x?}"));
    }
    all
}

/// Low, at the sign of the low half, across it, at the sign of the word.
fn places(bits: u32) -> [u32; 4] {
    [0, 32 - bits, 32 - bits / 2, 64 - bits]
}

fn all_pairs(of: &[(Scalar, Vec<u64>)], with: &[(Scalar, Vec<u64>)]) {
    for (a, am) in of {
        check_one(a, am);
        for (b, bm) in with {
            check_pair(a, am, b, bm);
        }
    }
}

#[test]
fn all_small_operands_stay_inside() {
    let stress = std::env::var_os("SKEP_STRESS").is_some();
    let bits = if stress { 4 } else { 2 };
    let low = shapes(bits, 0);
    for place in places(bits) {
        let here = shapes(bits, place);
        all_pairs(&here, &here);
        all_pairs(&here, &low);
        all_pairs(&low, &here);
    }
    if stress {
        // The widest that can be gone through: where words wrap, and around zero.
        for place in [0, 59] {
            let here = shapes(5, place);
            all_pairs(&here, &here);
        }
    }
}

/// Bits alone, on six.
#[test]
fn all_patterns_of_bits_stay_inside() {
    let bits = if std::env::var_os("SKEP_STRESS").is_some() { 6 } else { 3 };
    let n = 1u64 << bits;
    for place in places(bits) {
        let all: Vec<(Tnum, Vec<u64>)> = (0..n)
            .flat_map(|mask| (0..n).filter(move |v| v & mask == 0).map(move |value| (value, mask)))
            .map(|(value, mask)| {
                let t = Tnum { value: value << place, mask: mask << place };
                (t, (0..n).filter(|v| v & !mask == value).map(|v| v << place).collect())
            })
            .collect();
        for (a, am) in &all {
            for (b, bm) in &all {
                let made = [a.add(*b), a.sub(*b), a.and(*b), a.or(*b), a.xor(*b), a.mul(*b)];
                let ops = [Op::Add, Op::Sub, Op::And, Op::Or, Op::Xor, Op::Mul]
                    .map(|o| insn(o, op::ALU64));
                assert!(made.iter().all(|t| t.value & t.mask == 0));
                for x in am {
                    for y in bm {
                        for (t, i) in made.iter().zip(ops) {
                            assert!(
                                t.contains(arith::binary(i, *x, *y)),
                                "{i:?}: {x:#x} of {a}, {y:#x} of {b} is not in {t}"
                            );
                        }
                    }
                }
                assert_eq!(a.covers(*b), bm.iter().all(|n| a.contains(*n)), "{a} covers {b}");
                let common = am.iter().any(|n| bm.contains(n));
                assert_eq!(a.meet(*b).is_some(), common, "{a} and {b}");
            }
        }
    }
}

/// Numbers of all magnitudes, with a liking for powers of two and their neighbors.
fn number(r: &mut Random) -> u64 {
    let word = r.next_u64();
    let near = |n: u64| n.wrapping_add(word & 3).wrapping_sub(1);
    match word >> 61 {
        0 => near(0),
        1 => near(1 << ((word >> 8) & 63)),
        2 => near((1u64 << ((word >> 8) & 63)).wrapping_neg()),
        3 => (word >> 8) & 0xff,
        4 => r.next_u64() >> ((word >> 8) & 63),
        5 => ((r.next_u64() as i64) >> ((word >> 8) & 63)) as u64,
        6 => u64::from(r.next_u64() as u32) | (word & 0xff) << 32,
        _ => r.next_u64(),
    }
}

#[test]
fn wide_operands_stay_inside() {
    let fresh = std::time::SystemTime::now()
        .duration_since(std::time::UNIX_EPOCH)
        .map_or(7, |d| d.as_nanos() as u64)
        | 1;
    let rounds = if std::env::var_os("SKEP_STRESS").is_some() { 2_000_000 } else { 15_000 };
    for seed in [0x5eed, fresh] {
        println!("seed {seed:#x}");
        let mut r = Random::new(seed);
        for _ in 0..rounds {
            let set = |r: &mut Random| {
                let n = r.next_u64() % 4 + 1;
                let base = number(r);
                let mut m: Vec<u64> = (0..n).map(|_| number(r)).collect();
                if r.next_u64() & 1 == 0 {
                    m = m.iter().map(|x| base.wrapping_add(x & 0xf)).collect();
                }
                (hull(&m), m)
            };
            let ((a, am), (b, bm)) = (set(&mut r), set(&mut r));
            let (a, b) = if r.next_u64() & 1 == 0 {
                (a, b)
            } else {
                (a.normalize().unwrap_or(a), b.normalize().unwrap_or(b))
            };
            check_one(&a, &am);
            check_pair(&a, &am, &b, &bm);
        }
    }
}

/// Each view of an interval teaches the other all it can, at once: around zero, where they differ.
#[test]
fn both_views_of_an_interval_teach_each_other() {
    let near: Vec<i64> = (-6..6).collect();
    let mut crossed = 0;
    for (&smin, &smax) in
        near.iter().flat_map(|a| near.iter().map(move |b| (a, b))).filter(|(a, b)| a <= b)
    {
        for (&umin, &umax) in near
            .iter()
            .flat_map(|a| near.iter().map(move |b| (a, b)))
            .filter(|(a, b)| **a as u64 <= **b as u64)
        {
            let r = Range64 { umin: umin as u64, umax: umax as u64, smin, smax };
            let members: Vec<u64> =
                near.iter().map(|n| *n as u64).filter(|n| r.contains(*n)).collect();
            if members.is_empty() {
                continue;
            }
            // Both signs are left, and no interval of one view says so in the other.
            let split = members.contains(&0) && members.contains(&u64::MAX);
            crossed += u32::from(split);
            let best = hull(&members).r64;
            assert!(r.deduce().covers(&best), "{r:?} loses numbers");
            assert!(
                split || r.deduce().deduce() == best,
                "{r:?} becomes {:?}, not {best:?}",
                r.deduce()
            );
            if !split && smin < 0 && smax >= 0 {
                assert_eq!(r.deduce(), best, "{r:?}");
            }
        }
    }
    assert!(crossed > 0);
    // Of two negative numbers, what both have is below both.
    let and = Range64::signed(-9, -3).and(Range64::signed(-5, -2));
    assert!(
        (-9..=-3)
            .flat_map(|x| (-5..=-2).map(move |y: i64| x & y))
            .all(|n| n <= and.smax && and.smin <= n)
            && and.smax == -3
    );
}

/// What the machine makes of such an amount is not followed.
#[test]
fn moves_of_what_loads_and_moves_yield_are_followed() {
    let numbers: Vec<u64> = [
        0,
        1,
        0x7f,
        0x80,
        0xff,
        0x7fff,
        0x8000,
        0xffff,
        0x7fff_ffff,
        0x8000_0000,
        0xffff_ff80,
        0xffff_8000,
        0xffff_ffff,
    ]
    .into_iter()
    .flat_map(|n: u64| [n, !n, n << 32, (n as i32) as u64])
    .collect();
    let mut found = vec![Scalar::UNKNOWN];
    for size in [1, 2, 4, 8] {
        found.push(Scalar::of_size(size));
    }
    for a in found.clone() {
        for (from, to) in [(8, 32), (16, 32), (32, 32), (8, 64), (16, 64), (32, 64)] {
            found.extend([a.truncate(from).truncate(to), a.sign_extend(from).truncate(to)]);
        }
    }
    for a in &found {
        let members: Vec<u64> = numbers.iter().copied().filter(|n| a.contains(*n)).collect();
        assert!(members.len() > 3);
        check_one(a, &members);
    }
}

#[test]
fn shifts_by_the_width_are_unknown() {
    let (five, by) = (Scalar::constant(5), Scalar::constant);
    // Half of clang's sign extension: what the low half says, in the high one.
    let low = Scalar { r32: Range32::signed(-5, 7), ..Scalar::UNKNOWN }.op64(Op::Lsh, by(32));
    assert_eq!((low.r64.smin, low.r64.smax), (-5 << 32, 7 << 32));
    // A whole word has no sign above it.
    assert_eq!(
        [32, 64].map(|bits| Scalar::between(3, 9).sign_extend(bits)),
        [Scalar::between(3, 9); 2]
    );
    for op in [Op::Lsh, Op::Rsh, Op::Arsh] {
        let (wide, narrow) =
            (|n| five.op64(op, by(n)).as_const(), |n| five.op32(op, by(n)).as_const());
        assert!(
            wide(63).is_some()
                && wide(64).is_none()
                && narrow(31).is_some()
                && narrow(32).is_none(),
            "{op:?}"
        );
    }
}

#[test]
fn comparisons_are_as_sharp_as_their_operands_allow() {
    let below =
        |n| Scalar::UNKNOWN.assume(Cmp::Lt, Scalar::constant(n), false).map(|(a, _)| a.r64.umax);
    assert_eq!(below(1024), Some(1023));
    assert_eq!(below(0), None);
    let small = Scalar::between(0, 9);
    assert!(small.assume(Cmp::Sgt, Scalar::constant(9), false).is_none());
    assert_eq!(small.assume(Cmp::Ne, Scalar::constant(9), false).map(|(a, _)| a.r64.umax), Some(8));
    // A 32-bit test of a zero-extended number bounds the whole register.
    let word = Scalar::of_size(4);
    assert_eq!(word.assume(Cmp::Lt, Scalar::constant(16), true).map(|(a, _)| a.r64.umax), Some(15));
    // clang's sign extension of an int index.
    let index = word.assume(Cmp::Slt, Scalar::constant(16), true).map_or(word, |(a, _)| a);
    let index = index.op64(Op::Lsh, Scalar::constant(32)).op64(Op::Arsh, Scalar::constant(32));
    assert_eq!(index.r64.smax, 15);
    // Remainders and divisions bound too.
    assert_eq!(Scalar::UNKNOWN.op64(Op::Mod, Scalar::constant(10)).r64.umax, 9);
    assert_eq!(word.op64(Op::Div, Scalar::constant(1 << 16)).r64.umax, 0xffff);
}

/// How far a description is from the tightest one of the same numbers, in bits over all its parts:
/// 0 is the best there is.
fn lost(got: &Scalar, best: &Scalar) -> u64 {
    let wide = |n: u64| u64::from(u64::BITS - n.leading_zeros());
    let (a, b) = (&got.r64, &best.r64);
    let whole = [
        b.umin - a.umin,
        a.umax - b.umax,
        b.smin.wrapping_sub(a.smin) as u64,
        a.smax.wrapping_sub(b.smax) as u64,
    ];
    let (a, b) = (&got.r32, &best.r32);
    let low = [
        b.umin - a.umin,
        a.umax - b.umax,
        b.smin.wrapping_sub(a.smin) as u32,
        a.smax.wrapping_sub(b.smax) as u32,
    ];
    let bits = u64::from((got.bits.mask & !best.bits.mask).count_ones());
    bits + whole.iter().map(|n| wide(*n)).sum::<u64>()
        + low.iter().map(|n| wide(u64::from(*n))).sum::<u64>()
}

/// What is lost by each operation and comparison, on 64 bits and on 32, over all pairs.
#[derive(Default)]
struct Losses(std::collections::BTreeMap<String, [u64; 2]>);

impl Losses {
    fn note(&mut self, what: &str, is32: bool, got: &Scalar, members: &[u64]) {
        if !members.is_empty() {
            self.0.entry(what.to_owned()).or_default()[usize::from(is32)] +=
                lost(got, &hull(members));
        }
    }

    fn pair(&mut self, a: &Scalar, am: &[u64], b: &Scalar, bm: &[u64]) {
        let pairs: Vec<(u64, u64)> = am.iter().flat_map(|x| bm.iter().map(|y| (*x, *y))).collect();
        for is32 in [false, true] {
            for op in OPS {
                let i = insn(op, if is32 { op::ALU } else { op::ALU64 });
                let made: Vec<u64> = pairs.iter().map(|(x, y)| arith::binary(i, *x, *y)).collect();
                self.note(
                    &format!("{op:?}"),
                    is32,
                    &if is32 { a.op32(op, *b) } else { a.op64(op, *b) },
                    &made,
                );
            }
            for cmp in CMPS {
                let (p, q): (Vec<u64>, Vec<u64>) =
                    pairs.iter().filter(|(x, y)| holds(cmp, *x, *y, is32)).copied().unzip();
                let name = format!("{cmp:?}");
                match a.assume(cmp, *b, is32) {
                    Some((l, r)) if !p.is_empty() => {
                        self.note(&name, is32, &l, &p);
                        self.note(&name, is32, &r, &q);
                    }
                    // A comparison that cannot hold, taken for possible.
                    Some(_) => self.0.entry(name).or_default()[usize::from(is32)] += 100,
                    None => {}
                }
            }
        }
        let both: Vec<u64> = am.iter().copied().filter(|x| bm.contains(x)).collect();
        let low: Vec<u64> =
            am.iter().copied().filter(|x| bm.iter().any(|y| *y as u32 == *x as u32)).collect();
        for (what, is32, got, members) in
            [("meet", false, a.meet(*b), both), ("meet", true, a.meet_low(*b), low)]
        {
            match got {
                Some(got) if members.is_empty() => {
                    self.0.entry(what.to_owned()).or_default()[usize::from(is32)] +=
                        1 + lost(&got, &got)
                }
                Some(got) => self.note(what, is32, &got, &members),
                None => {}
            }
        }
    }

    fn one(&mut self, a: &Scalar, am: &[u64]) {
        for bits in [8, 16, 32] {
            let sh = 64 - bits;
            let cut: Vec<u64> = am.iter().map(|x| x << sh >> sh).collect();
            let extended: Vec<u64> = am.iter().map(|x| (((x << sh) as i64) >> sh) as u64).collect();
            self.note("truncate", bits == 32, &a.truncate(bits), &cut);
            self.note("sign_extend", bits == 32, &a.sign_extend(bits), &extended);
        }
        // Parts that were forgotten are found again as far as the others tell.
        for forget in 1..7u32 {
            let keep = |n: u32| forget & (1 << n) == 0;
            let part = Scalar {
                bits: if keep(0) { a.bits } else { Tnum::UNKNOWN },
                r64: if keep(1) { a.r64 } else { Range64::FULL },
                r32: if keep(2) { a.r32 } else { Range32::FULL },
            };
            self.note("normalize", false, &part.normalize().unwrap_or(part), am);
        }
        for part in [
            Range64 { smin: i64::MIN, smax: i64::MAX, ..a.r64 },
            Range64 { umin: 0, umax: u64::MAX, ..a.r64 },
            Range64 { umin: 0, smax: i64::MAX, ..a.r64 },
            Range64 { umax: u64::MAX, smin: i64::MIN, ..a.r64 },
        ] {
            let part = Scalar { r64: part, ..Scalar::UNKNOWN };
            self.note("normalize", false, &part.normalize().unwrap_or(part), am);
        }
        for part in [
            Range32 { smin: i32::MIN, smax: i32::MAX, ..a.r32 },
            Range32 { umin: 0, umax: u32::MAX, ..a.r32 },
            Range32 { umin: 0, smax: i32::MAX, ..a.r32 },
            Range32 { umax: u32::MAX, smin: i32::MIN, ..a.r32 },
        ] {
            let part = Scalar { r32: part, ..Scalar::UNKNOWN };
            self.note("normalize", true, &part.normalize().unwrap_or(part), am);
        }
    }
}

/// What the domain forgets is known, in bits beside the tightest description, and no operation may
/// forget more: a program that was accepted would be refused. Who makes one sharper lowers its
/// number.
#[test]
fn no_operation_forgets_more_than_it_must() {
    let mut losses = Losses::default();
    let low = shapes(2, 0);
    for place in places(2) {
        let here = shapes(2, place);
        for (of, with) in [(&here, &here), (&here, &low), (&low, &here)] {
            for (a, am) in of.iter() {
                losses.one(a, am);
                for (b, bm) in with.iter() {
                    losses.pair(a, am, b, bm);
                }
            }
        }
    }
    let mut r = Random::new(0x5eed);
    for _ in 0..2_000 {
        let mut set = || {
            let base = number(&mut r);
            let mut m: Vec<u64> = (0..r.next_u64() % 4 + 1).map(|_| number(&mut r)).collect();
            if r.next_u64() & 1 == 0 {
                m = m.iter().map(|x| base.wrapping_add(x & 0xf)).collect();
            }
            (hull(&m), m)
        };
        let ((a, am), (b, bm)) = (set(), set());
        losses.one(&a, &am);
        losses.pair(&a, &am, &b, &bm);
    }
    let got: String =
        losses.0.iter().map(|(what, [wide, low])| format!("{what} {wide} {low}\n")).collect();
    assert_eq!(got, LOSSES, "what operations and comparisons forget, on 64 and on 32 bits");
}

const LOSSES: &str = "\
Add 73330 95845
And 135371 72928
Arsh 3070149 1290555
Div 848792 397002
Eq 16756 40838
Ge 82827 91716
Gt 189424 161075
Le 77712 87078
Lsh 3295839 1485286
Lt 183984 156437
Mod 892418 389421
Mul 496661 317932
Ne 54198 35554
NotSet 172364 165858
Or 516726 215091
Rsh 3188357 1326797
Sdiv 3659728 1824873
Set 398621 327447
Sge 91850 91403
Sgt 193773 140965
Sle 89629 94481
Slt 191818 146608
Smod 3646565 1819312
Sub 115242 126401
Xor 774772 409723
meet 1371 10264
normalize 1949920 2468739
sign_extend 80794 0
truncate 35428 0
";
