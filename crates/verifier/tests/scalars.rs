//! The number domain never leaves out a value the machine can compute: all small operands, and samples of wide ones.

#![allow(clippy::print_stdout, reason = "seeds are printed for whoever has to repeat a failure")]

use skep_verifier::range::{Range32, Range64};
use skep_verifier::scalar::{Cmp, Op, Scalar, concrete32, concrete64};
use skep_verifier::tnum::Tnum;

const OPS: [Op; 13] =
    [Op::Add, Op::Sub, Op::Mul, Op::Div, Op::Sdiv, Op::Mod, Op::Smod, Op::And, Op::Or, Op::Xor, Op::Lsh, Op::Rsh, Op::Arsh];

const CMPS: [Cmp; 12] =
    [Cmp::Eq, Cmp::Ne, Cmp::Gt, Cmp::Ge, Cmp::Lt, Cmp::Le, Cmp::Sgt, Cmp::Sge, Cmp::Slt, Cmp::Sle, Cmp::Set, Cmp::NotSet];

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

fn check_pair(a: &Scalar, am: &[u64], b: &Scalar, bm: &[u64]) {
    for op in OPS {
        let (r64, r32) = (a.op64(op, *b), a.op32(op, *b));
        for &x in am {
            for &y in bm {
                let want = concrete64(op, x, y);
                assert!(r64.contains(want), "{x:#x} {op:?} {y:#x} = {want:#x} on 64 bits is not in {r64:?}\na {a:?}\nb {b:?}");
                let want = u64::from(concrete32(op, x as u32, y as u32));
                assert!(r32.contains(want), "{x:#x} {op:?} {y:#x} = {want:#x} on 32 bits is not in {r32:?}\na {a:?}\nb {b:?}");
            }
        }
    }
    for cmp in CMPS {
        for is32 in [false, true] {
            let narrowed = a.assume(cmp, *b, is32);
            for &x in am {
                for &y in bm {
                    if !cmp.holds(x, y, is32) {
                        continue;
                    }
                    let Some((p, q)) = narrowed else {
                        panic!("{x:#x} {cmp:?} {y:#x} holds, but was thought impossible\na {a:?}\nb {b:?}")
                    };
                    assert!(
                        p.contains(x) && q.contains(y),
                        "{x:#x} {cmp:?} {y:#x} (32: {is32}) narrows too far: {p:?} {q:?}\na {a:?}\nb {b:?}"
                    );
                }
            }
        }
    }
}

fn check_one(a: &Scalar, am: &[u64]) {
    for bits in [8, 16, 32, 64] {
        let (t, s) = (a.truncate(bits), a.sign_extend(bits));
        for &x in am {
            let sh = 64 - bits;
            assert!(t.contains(x << sh >> sh), "{x:#x} to {bits} bits is not in {t:?}, from {a:?}");
            let want = (((x << sh) as i64) >> sh) as u64;
            assert!(s.contains(want), "{x:#x} sign-extended from {bits} bits is not in {s:?}, from {a:?}");
        }
    }
    let n = a.normalize();
    assert!(am.iter().all(|x| n.is_some_and(|n| n.contains(*x))), "{a:?} normalized loses values: {n:?}");
}

/// All intervals and bit patterns of `bits` bits, around zero.
fn small(bits: u32) -> Vec<(Scalar, Vec<u64>)> {
    let n = 1i64 << bits;
    let mut all = Vec::new();
    for lo in 0..n {
        for hi in lo..n {
            let u: Vec<u64> = (lo..=hi).map(|v| v as u64).collect();
            let s: Vec<u64> = (lo..=hi).map(|v| (v - n / 2) as u64).collect();
            all.push((Scalar { r64: Range64::unsigned(lo as u64, hi as u64), ..Scalar::UNKNOWN }, u.clone()));
            all.push((Scalar { r64: Range64::signed(lo - n / 2, hi - n / 2), ..Scalar::UNKNOWN }, s.clone()));
            // The same around the sign change of the low half, with an arbitrary upper half.
            let edge: Vec<u64> = s.iter().map(|v| v.wrapping_add(1 << 31)).collect();
            let r32 = Range32::unsigned(edge[0] as u32, edge[edge.len() - 1] as u32);
            all.push((Scalar { r32, ..Scalar::UNKNOWN }, edge));
        }
    }
    for mask in 0..n as u64 {
        for value in (0..n as u64).filter(|v| v & mask == 0) {
            let t = Tnum { value, mask };
            all.push((Scalar { bits: t, ..Scalar::UNKNOWN }, (0..n as u64).filter(|v| t.contains(*v)).collect()));
        }
    }
    all.into_iter().map(|(s, m)| (s.normalize().unwrap_or(s), m)).collect()
}

#[test]
fn all_small_operands_stay_inside() {
    let sets = small(if std::env::var_os("SKEP_STRESS").is_some() { 4 } else { 2 });
    for (a, am) in &sets {
        check_one(a, am);
        for (b, bm) in &sets {
            check_pair(a, am, b, bm);
        }
    }
}

/// xorshift64*: the seed is all there is to it.
struct Random(u64);

impl Random {
    fn next(&mut self) -> u64 {
        self.0 ^= self.0 >> 12;
        self.0 ^= self.0 << 25;
        self.0 ^= self.0 >> 27;
        self.0.wrapping_mul(0x2545_f491_4f6c_dd1d)
    }

    /// Numbers of all magnitudes, with a liking for powers of two and their neighbours.
    fn number(&mut self) -> u64 {
        let r = self.next();
        let near = |n: u64| n.wrapping_add(r & 3).wrapping_sub(1);
        match r >> 61 {
            0 => near(0),
            1 => near(1 << ((r >> 8) & 63)),
            2 => near((1u64 << ((r >> 8) & 63)).wrapping_neg()),
            3 => (r >> 8) & 0xff,
            4 => self.next() >> ((r >> 8) & 63),
            5 => ((self.next() as i64) >> ((r >> 8) & 63)) as u64,
            6 => u64::from(self.next() as u32) | (r & 0xff) << 32,
            _ => self.next(),
        }
    }
}

#[test]
fn wide_operands_stay_inside() {
    let fresh = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH).map_or(7, |d| d.as_nanos() as u64) | 1;
    let rounds = if std::env::var_os("SKEP_STRESS").is_some() { 2_000_000 } else { 15_000 };
    for seed in [0x5eed, fresh] {
        println!("seed {seed:#x}");
        let mut r = Random(seed);
        for _ in 0..rounds {
            let set = |r: &mut Random| {
                let n = r.next() % 4 + 1;
                let base = r.number();
                let mut m: Vec<u64> = (0..n).map(|_| r.number()).collect();
                if r.next() & 1 == 0 {
                    m = m.iter().map(|x| base.wrapping_add(x & 0xf)).collect();
                }
                (hull(&m), m)
            };
            let ((a, am), (b, bm)) = (set(&mut r), set(&mut r));
            let (a, b) = if r.next() & 1 == 0 { (a, b) } else { (a.normalize().unwrap_or(a), b.normalize().unwrap_or(b)) };
            check_one(&a, &am);
            check_pair(&a, &am, &b, &bm);
        }
    }
}

#[test]
fn comparisons_are_as_sharp_as_their_operands_allow() {
    let below = |n| Scalar::UNKNOWN.assume(Cmp::Lt, Scalar::constant(n), false).map(|(a, _)| a.r64.umax);
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
