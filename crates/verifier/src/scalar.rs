//! What is known of a number: its bits, its range, and the range of its low half.
//!
//! Every operation over-approximates: the result describes at least all numbers that concrete
//! operands can yield. The tests prove that for all small operands and sample it for wide ones.

use crate::range::{Range32, Range64};
use crate::tnum::Tnum;

/// The set of values a register may hold.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Scalar {
    /// Bits.
    pub bits: Tnum,
    /// The whole word.
    pub r64: Range64,
    /// The low 32 bits.
    pub r32: Range32,
}

/// Binary operations on scalars.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[allow(missing_docs, reason = "the names are those of the instructions")]
pub enum Op {
    Add,
    Sub,
    Mul,
    Div,
    Sdiv,
    Mod,
    Smod,
    And,
    Or,
    Xor,
    Lsh,
    Rsh,
    Arsh,
}

impl Op {
    /// Tells whether this is a shift: by the word size or more it yields what the machine makes of
    /// it.
    #[must_use]
    pub const fn shifts(self) -> bool {
        matches!(self, Self::Lsh | Self::Rsh | Self::Arsh)
    }
}

/// Comparisons of scalars.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[allow(missing_docs, reason = "the names are those of the instructions")]
pub enum Cmp {
    Eq,
    Ne,
    Gt,
    Ge,
    Lt,
    Le,
    Sgt,
    Sge,
    Slt,
    Sle,
    Set,
    NotSet,
}

impl Cmp {
    /// Returns the comparison that holds exactly when this one does not.
    #[must_use]
    pub const fn negate(self) -> Self {
        match self {
            Self::Eq => Self::Ne,
            Self::Ne => Self::Eq,
            Self::Gt => Self::Le,
            Self::Le => Self::Gt,
            Self::Ge => Self::Lt,
            Self::Lt => Self::Ge,
            Self::Sgt => Self::Sle,
            Self::Sle => Self::Sgt,
            Self::Sge => Self::Slt,
            Self::Slt => Self::Sge,
            Self::Set => Self::NotSet,
            Self::NotSet => Self::Set,
        }
    }

    /// Evaluates the comparison for two numbers, on 64 bits or on the low 32.
    #[must_use]
    pub const fn holds(self, a: u64, b: u64, is32: bool) -> bool {
        let (sa, sb) = if is32 { (a as i32 as i64, b as i32 as i64) } else { (a as i64, b as i64) };
        let (a, b) = if is32 { (a as u32 as u64, b as u32 as u64) } else { (a, b) };
        match self {
            Self::Eq => a == b,
            Self::Ne => a != b,
            Self::Gt => a > b,
            Self::Ge => a >= b,
            Self::Lt => a < b,
            Self::Le => a <= b,
            Self::Sgt => sa > sb,
            Self::Sge => sa >= sb,
            Self::Slt => sa < sb,
            Self::Sle => sa <= sb,
            Self::Set => a & b != 0,
            Self::NotSet => a & b == 0,
        }
    }
}

impl Scalar {
    /// Nothing known.
    pub const UNKNOWN: Self = Self { bits: Tnum::UNKNOWN, r64: Range64::FULL, r32: Range32::FULL };

    /// One number.
    #[must_use]
    pub const fn constant(v: u64) -> Self {
        Self {
            bits: Tnum::constant(v),
            r64: Range64::constant(v),
            r32: Range32::constant(v as u32),
        }
    }

    /// Any number of `bytes` bytes, zero-extended.
    #[must_use]
    pub fn of_size(bytes: u32) -> Self {
        Self::UNKNOWN.truncate(bytes.saturating_mul(8))
    }

    /// All numbers from `min` to `max`, unsigned.
    #[must_use]
    pub fn between(min: u64, max: u64) -> Self {
        Self { r64: Range64::unsigned(min, max), ..Self::UNKNOWN }.tidy()
    }

    /// All numbers from `min` to `max`, signed.
    #[must_use]
    pub fn signed_between(min: i64, max: i64) -> Self {
        Self { r64: Range64::signed(min, max), ..Self::UNKNOWN }.tidy()
    }

    /// Any sign-extended number of `bytes` bytes.
    #[must_use]
    pub fn signed_of_size(bytes: u32) -> Self {
        Self::UNKNOWN.sign_extend(bytes.saturating_mul(8).clamp(8, 64))
    }

    /// Returns the number if there is only one.
    #[must_use]
    pub const fn as_const(&self) -> Option<u64> {
        if self.bits.is_const() { Some(self.bits.value) } else { None }
    }

    /// Tells whether nothing at all is known.
    #[must_use]
    pub fn is_unknown(&self) -> bool {
        *self == Self::UNKNOWN
    }

    /// Tells whether `n` is possible.
    #[must_use]
    pub const fn contains(&self, n: u64) -> bool {
        self.bits.contains(n) && self.r64.contains(n) && self.r32.contains(n as u32)
    }

    /// Tells whether every number of `inner` is possible here too.
    #[must_use]
    pub const fn covers(&self, inner: &Self) -> bool {
        self.bits.covers(inner.bits) && self.r64.covers(&inner.r64) && self.r32.covers(&inner.r32)
    }

    /// Makes the parts agree; `None` when they contradict each other, so that no number is left.
    #[must_use]
    pub fn normalize(mut self) -> Option<Self> {
        if let Some(n) = self.as_const() {
            return self.contains(n).then(|| Self::constant(n));
        }
        for _ in 0..3 {
            let before = self;
            self = self.learn_from_bits().learn_across();
            if self.r64.is_empty() || self.r32.is_empty() {
                return None;
            }
            self.bits = self.bits.meet(Tnum::range(self.r64.umin, self.r64.umax))?;
            let low = Tnum::range(u64::from(self.r32.umin), u64::from(self.r32.umax)).truncate(32);
            let low = self.bits.truncate(32).meet(low)?;
            self.bits = self.bits.with_low(low);
            if self == before {
                break;
            }
        }
        self = self.learn_from_bits();
        (!self.r64.is_empty() && !self.r32.is_empty()).then_some(self)
    }

    /// Makes the parts agree after an operation whose result cannot be empty.
    fn tidy(self) -> Self {
        // Were it empty, the operands were: nothing executes here, and "anything" is a sound
        // answer.
        self.normalize().unwrap_or(Self::UNKNOWN)
    }

    fn learn_from_bits(mut self) -> Self {
        const SIGN: u64 = 1 << 63;
        const SIGN32: u32 = 1 << 31;
        let b = self.bits;
        self.r64 = self.r64.meet(Range64 {
            umin: b.min(),
            umax: b.max(),
            smin: (b.value | (b.mask & SIGN)) as i64,
            smax: (b.value | (b.mask & !SIGN)) as i64,
        });
        let (value, mask) = (b.value as u32, b.mask as u32);
        self.r32 = self.r32.meet(Range32 {
            umin: value,
            umax: value | mask,
            smin: (value | (mask & SIGN32)) as i32,
            smax: (value | (mask & !SIGN32)) as i32,
        });
        self
    }

    /// Lets the four intervals teach each other.
    fn learn_across(mut self) -> Self {
        const HIGH: u64 = !(u32::MAX as u64);
        self.r64 = self.r64.deduce();
        self.r32 = self.r32.deduce();
        if self.r64.is_empty() || self.r32.is_empty() {
            return self;
        }
        // 64 to 32: with one high half, the low halves are in order.
        if self.r64.umin & HIGH == self.r64.umax & HIGH {
            self.r32 = self.r32.meet(Range32::unsigned(self.r64.umin as u32, self.r64.umax as u32));
        }
        if self.r64.smin as u64 & HIGH == self.r64.smax as u64 & HIGH {
            self.r32 = self.r32.meet(Range32::unsigned(self.r64.smin as u32, self.r64.smax as u32));
        }
        // A number that fits i32 is the sign extension of its low half.
        if self.r64.smin >= i64::from(i32::MIN) && self.r64.smax <= i64::from(i32::MAX) {
            self.r32 = self.r32.meet(Range32::signed(self.r64.smin as i32, self.r64.smax as i32));
            self.r64 =
                self.r64.meet(Range64::signed(i64::from(self.r32.smin), i64::from(self.r32.smax)));
        }
        // 32 to 64: the smallest number has the smallest high half and at least the smallest low
        // half.
        let (lo, hi) = (u64::from(self.r32.umin), u64::from(self.r32.umax));
        self.r64 = self.r64.meet(Range64 {
            umin: (self.r64.umin & HIGH) | lo,
            umax: (self.r64.umax & HIGH) | hi,
            smin: ((self.r64.smin as u64 & HIGH) | lo) as i64,
            smax: ((self.r64.smax as u64 & HIGH) | hi) as i64,
        });
        self.r64 = self.r64.deduce();
        self.r32 = self.r32.deduce();
        self
    }

    /// Keeps the low `bits` bits, zero-extended.
    #[must_use]
    pub fn truncate(self, bits: u32) -> Self {
        if bits >= 64 {
            return self;
        }
        let max = (1u64 << bits) - 1;
        let mut r = Self {
            bits: self.bits.truncate(bits),
            r64: Range64::unsigned(0, max),
            r32: Range32::FULL,
        };
        if bits == 32 {
            r.r32 = self.r32;
        }
        if self.r64.umin & !max == self.r64.umax & !max {
            r.r64 = Range64::unsigned(self.r64.umin & max, self.r64.umax & max);
        }
        r.tidy()
    }

    /// Sign-extends the low `bits` bits, 1 or more (64 changes nothing).
    #[must_use]
    pub fn sign_extend(self, bits: u32) -> Self {
        if bits >= 64 {
            return self;
        }
        let half = 1i64 << (bits - 1);
        let mut r = Self {
            bits: self.bits.sign_extend(bits),
            r64: Range64::signed(-half, half - 1),
            r32: Range32::FULL,
        };
        if bits == 32 {
            r.r64 = Range64::signed(i64::from(self.r32.smin), i64::from(self.r32.smax));
            r.r32 = self.r32;
        } else if self.r64.smin >= -half && self.r64.smax < half {
            return self;
        }
        r.tidy()
    }

    /// Computes `self op o` on 64 bits.
    #[must_use]
    pub fn op64(self, op: Op, o: Self) -> Self {
        if let (Some(a), Some(b)) = (self.as_const(), o.as_const())
            && !(op.shifts() && b >= 64)
        {
            return Self::constant(concrete64(op, a, b));
        }
        let mut r = Self::UNKNOWN;
        let (a, b) = (self.r64, o.r64);
        r.r64 = match op {
            Op::Add => a.add(b),
            Op::Sub => a.sub(b),
            Op::Mul => a.mul(b),
            Op::Div => a.div(b),
            Op::Sdiv => a.sdiv(b),
            Op::Mod => a.rem(b),
            Op::Smod => a.srem(b),
            Op::And => a.and(b),
            Op::Or => a.or(b),
            Op::Xor => Range64::FULL,
            Op::Lsh => a.shl(b),
            Op::Rsh => a.shr(b),
            Op::Arsh => a.sar(b),
        };
        // The low half of these depends on the low halves only.
        let (a, b) = (self.r32, o.r32);
        r.r32 = match op {
            Op::Add => a.add(b),
            Op::Sub => a.sub(b),
            Op::Mul => a.mul(b),
            Op::And => a.and(b),
            Op::Or => a.or(b),
            _ => Range32::FULL,
        };
        r.bits = bits(op, self.bits, o, 64);
        if op == Op::Lsh && o.as_const() == Some(32) {
            // Half of clang's sign extension: `r <<= 32; r s>>= 32`.
            r.r64.smin = r.r64.smin.max(i64::from(self.r32.smin) << 32);
            r.r64.smax = r.r64.smax.min(i64::from(self.r32.smax) << 32);
        }
        r.tidy()
    }

    /// Computes `self op o` on 32 bits, the result zero-extended.
    #[must_use]
    pub fn op32(self, op: Op, o: Self) -> Self {
        if let (Some(a), Some(b)) = (self.truncate(32).as_const(), o.truncate(32).as_const())
            && !(op.shifts() && b >= 32)
        {
            return Self::constant(u64::from(concrete32(op, a as u32, b as u32)));
        }
        let (a, b) = (self.r32, o.r32);
        let r32 = match op {
            Op::Add => a.add(b),
            Op::Sub => a.sub(b),
            Op::Mul => a.mul(b),
            Op::Div => a.div(b),
            Op::Sdiv => a.sdiv(b),
            Op::Mod => a.rem(b),
            Op::Smod => a.srem(b),
            Op::And => a.and(b),
            Op::Or => a.or(b),
            Op::Xor => Range32::FULL,
            Op::Lsh => a.shl(b),
            Op::Rsh => a.shr(b),
            Op::Arsh => a.sar(b),
        };
        let low = bits(op, self.bits.truncate(32), o.truncate(32), 32).truncate(32);
        Self { bits: low, r64: Range64::unsigned(0, u64::from(u32::MAX)), r32 }.tidy()
    }

    /// What both say; `None` when they contradict each other.
    #[must_use]
    pub fn meet(self, o: Self) -> Option<Self> {
        Self { bits: self.bits.meet(o.bits)?, r64: self.r64.meet(o.r64), r32: self.r32.meet(o.r32) }
            .normalize()
    }

    /// What is known when the low half is that of `o`; `None` when that cannot be.
    #[must_use]
    pub fn meet_low(self, o: Self) -> Option<Self> {
        let low = self.bits.truncate(32).meet(o.bits.truncate(32))?;
        Self { bits: self.bits.with_low(low), r64: self.r64, r32: self.r32.meet(o.r32) }.normalize()
    }

    /// Narrows both sides knowing that `self cmp o` holds; `None` when it cannot.
    #[must_use]
    pub fn assume(self, cmp: Cmp, o: Self, is32: bool) -> Option<(Self, Self)> {
        let (mut a, mut b) = (self, o);
        if cmp == Cmp::Eq && !is32 {
            let both = self.r32.meet(o.r32);
            (a.r32, b.r32) = (both, both);
        }
        if is32 {
            assume32(&mut a, cmp, &mut b)?;
        } else {
            assume64(&mut a, cmp, &mut b)?;
        }
        Some((a.normalize()?, b.normalize()?))
    }
}

fn bits(op: Op, a: Tnum, o: Scalar, width: u32) -> Tnum {
    let b = o.bits;
    let amount = o.as_const().filter(|n| *n < u64::from(width)).map(|n| n as u32);
    match op {
        Op::Add => a.add(b),
        Op::Sub => a.sub(b),
        Op::Mul => a.mul(b),
        Op::And => a.and(b),
        Op::Or => a.or(b),
        Op::Xor => a.xor(b),
        Op::Lsh => amount.map_or(Tnum::UNKNOWN, |n| a.shl(n)),
        Op::Rsh => amount.map_or(Tnum::UNKNOWN, |n| a.shr(n)),
        Op::Arsh => amount.map_or(Tnum::UNKNOWN, |n| a.sar(n, width)),
        Op::Div | Op::Sdiv | Op::Mod | Op::Smod => Tnum::UNKNOWN,
    }
}

/// What the machine computes on 64 bits.
#[must_use]
pub fn concrete64(op: Op, a: u64, b: u64) -> u64 {
    let (sa, sb) = (a as i64, b as i64);
    match op {
        Op::Add => a.wrapping_add(b),
        Op::Sub => a.wrapping_sub(b),
        Op::Mul => a.wrapping_mul(b),
        Op::Div => a.checked_div(b).unwrap_or(0),
        Op::Sdiv => (if sb == 0 { 0 } else { sa.wrapping_div(sb) }) as u64,
        Op::Mod => a.checked_rem(b).unwrap_or(a),
        Op::Smod => (if sb == 0 { sa } else { sa.wrapping_rem(sb) }) as u64,
        Op::And => a & b,
        Op::Or => a | b,
        Op::Xor => a ^ b,
        Op::Lsh => a.wrapping_shl(b as u32),
        Op::Rsh => a.wrapping_shr(b as u32),
        Op::Arsh => sa.wrapping_shr(b as u32) as u64,
    }
}

/// What the machine computes on 32 bits.
#[must_use]
pub fn concrete32(op: Op, a: u32, b: u32) -> u32 {
    let (sa, sb) = (a as i32, b as i32);
    match op {
        Op::Add => a.wrapping_add(b),
        Op::Sub => a.wrapping_sub(b),
        Op::Mul => a.wrapping_mul(b),
        Op::Div => a.checked_div(b).unwrap_or(0),
        Op::Sdiv => (if sb == 0 { 0 } else { sa.wrapping_div(sb) }) as u32,
        Op::Mod => a.checked_rem(b).unwrap_or(a),
        Op::Smod => (if sb == 0 { sa } else { sa.wrapping_rem(sb) }) as u32,
        Op::And => a & b,
        Op::Or => a | b,
        Op::Xor => a ^ b,
        Op::Lsh => a.wrapping_shl(b),
        Op::Rsh => a.wrapping_shr(b),
        Op::Arsh => sa.wrapping_shr(b) as u32,
    }
}

macro_rules! assume {
    ($name:ident, $r:ident, $u:ident, $i:ident, $low:expr, $join:expr) => {
        /// Narrows two scalars; the reads of the other side are those before narrowing.
        fn $name(a: &mut Scalar, cmp: Cmp, b: &mut Scalar) -> Option<()> {
            let (x, y) = (a.$r, b.$r);
            match cmp {
                Cmp::Eq => {
                    let both = x.meet(y);
                    let low = $low(a.bits).meet($low(b.bits))?;
                    (a.$r, b.$r) = (both, both);
                    (a.bits, b.bits) = ($join(a.bits, low), $join(b.bits, low));
                }
                Cmp::Ne => {
                    // Only an end of an interval can be cut off.
                    if y.umin == y.umax {
                        a.$r = cut_off!(x, y.umin, $i)?;
                    }
                    if x.umin == x.umax {
                        b.$r = cut_off!(y, x.umin, $i)?;
                    }
                }
                Cmp::Lt => {
                    a.$r.umax = x.umax.min(y.umax.checked_sub(1)?);
                    b.$r.umin = y.umin.max(x.umin.checked_add(1)?);
                }
                Cmp::Le => {
                    a.$r.umax = x.umax.min(y.umax);
                    b.$r.umin = y.umin.max(x.umin);
                }
                Cmp::Slt => {
                    a.$r.smax = x.smax.min(y.smax.checked_sub(1)?);
                    b.$r.smin = y.smin.max(x.smin.checked_add(1)?);
                }
                Cmp::Sle => {
                    a.$r.smax = x.smax.min(y.smax);
                    b.$r.smin = y.smin.max(x.smin);
                }
                Cmp::Gt => return $name(b, Cmp::Lt, a),
                Cmp::Ge => return $name(b, Cmp::Le, a),
                Cmp::Sgt => return $name(b, Cmp::Slt, a),
                Cmp::Sge => return $name(b, Cmp::Sle, a),
                Cmp::Set => {
                    let (p, q) = ($low(a.bits), $low(b.bits));
                    if p.max() & q.max() == 0 {
                        return None;
                    }
                    // One bit asked for: it is set.
                    if q.is_const() && q.value.is_power_of_two() {
                        a.bits =
                            Tnum { value: a.bits.value | q.value, mask: a.bits.mask & !q.value };
                    } else if p.is_const() && p.value.is_power_of_two() {
                        b.bits =
                            Tnum { value: b.bits.value | p.value, mask: b.bits.mask & !p.value };
                    }
                }
                Cmp::NotSet => {
                    let (p, q) = ($low(a.bits), $low(b.bits));
                    if p.value & q.value != 0 {
                        return None;
                    }
                    // Where one side is known to be 1, the other is 0.
                    a.bits.mask &= !q.value;
                    b.bits.mask &= !p.value;
                }
            }
            Some(())
        }
    };
}

macro_rules! cut_off {
    ($range:expr, $v:expr, $i:ident) => {{
        let (mut r, v) = ($range, $v);
        if r.umin == v {
            r.umin = r.umin.checked_add(1)?;
        }
        if r.umax == v {
            r.umax = r.umax.checked_sub(1)?;
        }
        if r.smin == v as $i {
            r.smin = r.smin.checked_add(1)?;
        }
        if r.smax == v as $i {
            r.smax = r.smax.checked_sub(1)?;
        }
        Some(r)
    }};
}

assume!(assume64, r64, u64, i64, |t: Tnum| t, |_whole: Tnum, low: Tnum| low);
assume!(assume32, r32, u32, i32, |t: Tnum| t.truncate(32), |whole: Tnum, low: Tnum| whole
    .with_low(low));
