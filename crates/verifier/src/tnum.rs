//! Tristate numbers: for each bit of a word whether it is 0, 1 or unknown (the kernel's
//! kernel/bpf/tnum.c domain).

/// What is known of the bits of a 64-bit word: where `mask` is 0 the bit is that of `value`, where
/// it is 1 the bit is unknown (and 0 in `value`).
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct Tnum {
    /// The known bits.
    pub value: u64,
    /// The unknown bits.
    pub mask: u64,
}

#[allow(
    clippy::should_implement_trait,
    reason = "abstract operations, named after the instructions"
)]
impl Tnum {
    /// Nothing known.
    pub const UNKNOWN: Self = Self { value: 0, mask: u64::MAX };

    /// One number.
    #[must_use]
    pub const fn constant(value: u64) -> Self {
        Self { value, mask: 0 }
    }

    /// The tightest description of all numbers from `min` to `max`; everything when `min > max`.
    #[must_use]
    pub const fn range(min: u64, max: u64) -> Self {
        let differ = min ^ max;
        let bits = 64 - differ.leading_zeros();
        if bits > 63 || min > max {
            return Self::UNKNOWN;
        }
        let mask = (1 << bits) - 1;
        Self { value: min & !mask, mask }
    }

    /// Tells whether exactly one number is described.
    #[must_use]
    pub const fn is_const(self) -> bool {
        self.mask == 0
    }

    /// Tells whether `n` is among the numbers described.
    #[must_use]
    pub const fn contains(self, n: u64) -> bool {
        n & !self.mask == self.value
    }

    /// Tells whether every number of `inner` is also in `self`.
    #[must_use]
    pub const fn covers(self, inner: Self) -> bool {
        inner.mask & !self.mask == 0 && inner.value & !self.mask == self.value
    }

    /// Smallest number as unsigned.
    #[must_use]
    pub const fn min(self) -> u64 {
        self.value
    }

    /// Largest number as unsigned.
    #[must_use]
    pub const fn max(self) -> u64 {
        self.value | self.mask
    }

    /// What both say; `None` when they contradict each other.
    #[must_use]
    pub const fn meet(self, o: Self) -> Option<Self> {
        if (self.value ^ o.value) & !self.mask & !o.mask != 0 {
            return None;
        }
        let mask = self.mask & o.mask;
        Some(Self { value: (self.value | o.value) & !mask, mask })
    }

    /// Keeps the low `bits` bits, the others become 0.
    #[must_use]
    pub const fn truncate(self, bits: u32) -> Self {
        if bits >= 64 {
            return self;
        }
        let keep = (1u64 << bits) - 1;
        Self { value: self.value & keep, mask: self.mask & keep }
    }

    /// Low 32 bits of `low` under the high 32 bits of `self`.
    #[must_use]
    pub const fn with_low(self, low: Self) -> Self {
        const HIGH: u64 = !(u32::MAX as u64);
        Self {
            value: (self.value & HIGH) | (low.value & !HIGH),
            mask: (self.mask & HIGH) | (low.mask & !HIGH),
        }
    }

    /// Sign-extends the low `bits` bits (1–64).
    #[must_use]
    pub const fn sign_extend(self, bits: u32) -> Self {
        let sh = 64 - bits;
        self.shl(sh).sar(sh, 64)
    }

    /// `self << n`, n below 64.
    #[must_use]
    pub const fn shl(self, n: u32) -> Self {
        Self { value: self.value << n, mask: self.mask << n }
    }

    /// `self >> n` without sign, n below 64.
    #[must_use]
    pub const fn shr(self, n: u32) -> Self {
        Self { value: self.value >> n, mask: self.mask >> n }
    }

    /// `self >> n` with the sign of a `width` (32 or 64) bit word, n below the width.
    #[must_use]
    pub const fn sar(self, n: u32, width: u32) -> Self {
        // An unknown sign bit is copied downwards as unknown, since it stands in the mask.
        if width == 32 {
            Self {
                value: ((self.value as i32) >> n) as u32 as u64,
                mask: ((self.mask as i32) >> n) as u32 as u64,
            }
        } else {
            Self {
                value: ((self.value as i64) >> n) as u64,
                mask: ((self.mask as i64) >> n) as u64,
            }
        }
    }

    /// `self + o`, wrapping.
    #[must_use]
    pub const fn add(self, o: Self) -> Self {
        // A bit of the sum is unknown if an operand's is, or if the carry into it differs between
        // the sums of the smallest and of the largest operands.
        let values = self.value.wrapping_add(o.value);
        let carries = self.mask.wrapping_add(o.mask).wrapping_add(values) ^ values;
        let mask = carries | self.mask | o.mask;
        Self { value: values & !mask, mask }
    }

    /// `self - o`, wrapping.
    #[must_use]
    pub const fn sub(self, o: Self) -> Self {
        let values = self.value.wrapping_sub(o.value);
        let borrows = values.wrapping_add(self.mask) ^ values.wrapping_sub(o.mask);
        let mask = borrows | self.mask | o.mask;
        Self { value: values & !mask, mask }
    }

    /// `self & o`.
    #[must_use]
    pub const fn and(self, o: Self) -> Self {
        let value = self.value & o.value;
        Self { value, mask: (self.value | self.mask) & (o.value | o.mask) & !value }
    }

    /// `self | o`.
    #[must_use]
    pub const fn or(self, o: Self) -> Self {
        let value = self.value | o.value;
        Self { value, mask: (self.mask | o.mask) & !value }
    }

    /// `self ^ o`.
    #[must_use]
    pub const fn xor(self, o: Self) -> Self {
        let mask = self.mask | o.mask;
        Self { value: (self.value ^ o.value) & !mask, mask }
    }

    /// `self * o`, wrapping: long multiplication, known bits multiplied exactly and unknown ones
    /// summed up.
    #[must_use]
    pub const fn mul(self, o: Self) -> Self {
        let exact = self.value.wrapping_mul(o.value);
        let (mut a, mut b) = (self, o);
        let mut unknown = Self::constant(0);
        while a.value != 0 || a.mask != 0 {
            if a.value & 1 != 0 {
                unknown = unknown.add(Self { value: 0, mask: b.mask });
            } else if a.mask & 1 != 0 {
                unknown = unknown.add(Self { value: 0, mask: b.value | b.mask });
            }
            a = a.shr(1);
            b = b.shl(1);
        }
        Self::constant(exact).add(unknown)
    }
}

impl std::fmt::Display for Tnum {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match (self.value, self.mask) {
            (0, 0) => f.write_str("0"),
            (v, 0) => write!(f, "{v:#x}"),
            (v, m) => write!(f, "({v:#x}; {m:#x})"),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const BITS: u32 = 5;

    fn all() -> Vec<Tnum> {
        let n = 1u64 << BITS;
        (0..n)
            .flat_map(|mask| {
                (0..n).filter(move |v| v & mask == 0).map(move |value| Tnum { value, mask })
            })
            .collect()
    }

    fn members(t: Tnum) -> Vec<u64> {
        (0..1u64 << BITS).filter(|n| t.contains(*n)).collect()
    }

    #[test]
    fn every_binary_operation_covers_every_pair_of_five_bit_operands() {
        type Op = (&'static str, fn(Tnum, Tnum) -> Tnum, fn(u64, u64) -> u64);
        let ops: &[Op] = &[
            ("add", Tnum::add, u64::wrapping_add),
            ("sub", Tnum::sub, u64::wrapping_sub),
            ("and", Tnum::and, |a, b| a & b),
            ("or", Tnum::or, |a, b| a | b),
            ("xor", Tnum::xor, |a, b| a ^ b),
            ("mul", Tnum::mul, u64::wrapping_mul),
        ];
        let sets: Vec<_> = all().into_iter().map(|t| (t, members(t))).collect();
        for (name, op, real) in ops {
            for (a, am) in &sets {
                for (b, bm) in &sets {
                    let r = op(*a, *b);
                    assert_eq!(r.value & r.mask, 0, "{name} {a} {b}");
                    for x in am {
                        for y in bm {
                            assert!(
                                r.contains(real(*x, *y)),
                                "{name}: {x} in {a}, {y} in {b}, result {r}"
                            );
                        }
                    }
                }
            }
        }
    }

    #[test]
    fn meet_and_covers_agree_with_sets() {
        for a in all() {
            for b in all() {
                let both: Vec<u64> = members(a).into_iter().filter(|n| b.contains(*n)).collect();
                match a.meet(b) {
                    Some(m) => assert_eq!(members(m), both),
                    None => assert!(both.is_empty()),
                }
                assert_eq!(
                    a.covers(b),
                    members(b).iter().all(|n| a.contains(*n)),
                    "{a} covers {b}"
                );
            }
        }
    }

    #[test]
    fn a_range_covers_its_numbers_and_shifts_follow_the_machine() {
        for lo in 0..64u64 {
            for hi in lo..64 {
                let t = Tnum::range(lo, hi);
                assert!((lo..=hi).all(|n| t.contains(n)));
            }
        }
        for t in all() {
            for n in 0..BITS {
                for m in members(t) {
                    assert!(t.shl(n).contains(m << n) && t.shr(n).contains(m >> n));
                    let high = Tnum { value: t.value << 59, mask: t.mask << 59 };
                    assert!(high.sar(n, 64).contains((((m << 59) as i64) >> n) as u64));
                    let high = Tnum { value: t.value << 27, mask: t.mask << 27 };
                    assert!(
                        high.sar(n, 32)
                            .contains(u64::from((((m as u32) << 27) as i32 >> n) as u32))
                    );
                    assert!(t.sign_extend(BITS).contains((((m << 59) as i64) >> 59) as u64));
                }
            }
        }
    }
}
