//! Signed and unsigned intervals of one word, the same code for 64 and 32 bits.

macro_rules! range {
    ($(#[$doc:meta])* $name:ident, $u:ident, $i:ident) => {
        $(#[$doc])*
        #[derive(Clone, Copy, PartialEq, Eq, Debug)]
        pub struct $name {
            /// Smallest value as unsigned.
            pub umin: $u,
            /// Largest value as unsigned.
            pub umax: $u,
            /// Smallest value as signed.
            pub smin: $i,
            /// Largest value as signed.
            pub smax: $i,
        }

        #[allow(clippy::should_implement_trait, reason = "abstract operations, named after the instructions")]
        impl $name {
            /// Nothing known.
            pub const FULL: Self = Self { umin: 0, umax: $u::MAX, smin: $i::MIN, smax: $i::MAX };

            /// One number.
            #[must_use]
            pub const fn constant(v: $u) -> Self {
                Self { umin: v, umax: v, smin: v as $i, smax: v as $i }
            }

            /// An unsigned interval.
            #[must_use]
            pub const fn unsigned(umin: $u, umax: $u) -> Self {
                Self { umin, umax, ..Self::FULL }
            }

            /// A signed interval.
            #[must_use]
            pub const fn signed(smin: $i, smax: $i) -> Self {
                Self { smin, smax, ..Self::FULL }
            }

            /// Tells whether no number is left.
            #[must_use]
            pub const fn is_empty(&self) -> bool {
                self.umin > self.umax || self.smin > self.smax
            }

            /// Tells whether `n` is inside.
            #[must_use]
            pub const fn contains(&self, n: $u) -> bool {
                self.umin <= n && n <= self.umax && self.smin <= n as $i && n as $i <= self.smax
            }

            /// Tells whether all of `inner` is inside.
            #[must_use]
            pub const fn covers(&self, inner: &Self) -> bool {
                self.umin <= inner.umin && inner.umax <= self.umax && self.smin <= inner.smin && inner.smax <= self.smax
            }

            /// Keeps what both allow (possibly nothing).
            #[must_use]
            pub fn meet(self, o: Self) -> Self {
                Self {
                    umin: self.umin.max(o.umin),
                    umax: self.umax.min(o.umax),
                    smin: self.smin.max(o.smin),
                    smax: self.smax.min(o.smax),
                }
            }

            /// Lets the signed and the unsigned view teach each other.
            #[must_use]
            pub fn deduce(mut self) -> Self {
                // Unsigned numbers of one sign half are in the same order as signed ones.
                if (self.umin as $i) <= (self.umax as $i) {
                    self.smin = self.smin.max(self.umin as $i);
                    self.smax = self.smax.min(self.umax as $i);
                }
                if self.smin >= 0 || self.smax < 0 {
                    self.umin = self.umin.max(self.smin as $u);
                    self.umax = self.umax.min(self.smax as $u);
                } else if self.umin > self.smax as $u {
                    // Only the negative part is left: from max(umin, smin) to min(umax, -1).
                    self.umin = self.umin.max(self.smin as $u);
                    self.smin = self.smin.max(self.umin as $i);
                    self.smax = self.smax.min(-1).min(self.umax as $i);
                } else if self.umax < self.smin as $u {
                    self.umax = self.umax.min(self.smax as $u);
                    self.smin = self.smin.max(self.umin as $i);
                    self.smax = self.smax.min(self.umax as $i);
                }
                self
            }

            /// `self + o`, wrapping.
            #[must_use]
            pub const fn add(self, o: Self) -> Self {
                let mut r = Self::FULL;
                let (lo, c0) = self.umin.overflowing_add(o.umin);
                let (hi, c1) = self.umax.overflowing_add(o.umax);
                // When both ends wrap, all sums wrap, once: the order is kept.
                if c0 == c1 {
                    r.umin = lo;
                    r.umax = hi;
                }
                let (lo, c0) = self.smin.overflowing_add(o.smin);
                let (hi, c1) = self.smax.overflowing_add(o.smax);
                if c0 == c1 && lo <= hi {
                    r.smin = lo;
                    r.smax = hi;
                }
                r
            }

            /// `self - o`, wrapping.
            #[must_use]
            pub const fn sub(self, o: Self) -> Self {
                let mut r = Self::FULL;
                let (lo, c0) = self.umin.overflowing_sub(o.umax);
                let (hi, c1) = self.umax.overflowing_sub(o.umin);
                if c0 == c1 {
                    r.umin = lo;
                    r.umax = hi;
                }
                let (lo, c0) = self.smin.overflowing_sub(o.smax);
                let (hi, c1) = self.smax.overflowing_sub(o.smin);
                if c0 == c1 && lo <= hi {
                    r.smin = lo;
                    r.smax = hi;
                }
                r
            }

            /// `self * o`, wrapping.
            #[must_use]
            pub fn mul(self, o: Self) -> Self {
                let mut r = Self::FULL;
                if let Some(max) = self.umax.checked_mul(o.umax) {
                    r.umin = self.umin.wrapping_mul(o.umin);
                    r.umax = max;
                }
                let corners = [
                    self.smin.checked_mul(o.smin),
                    self.smin.checked_mul(o.smax),
                    self.smax.checked_mul(o.smin),
                    self.smax.checked_mul(o.smax),
                ];
                if let [Some(a), Some(b), Some(c), Some(d)] = corners {
                    r.smin = a.min(b).min(c).min(d);
                    r.smax = a.max(b).max(c).max(d);
                }
                r
            }

            /// `self & o`, as far as intervals tell.
            #[must_use]
            pub fn and(self, o: Self) -> Self {
                let mut r = Self::unsigned(0, self.umax.min(o.umax));
                // Both negative: the result is negative, and not above either.
                if self.smax < 0 && o.smax < 0 {
                    r.smax = self.smax.min(o.smax);
                }
                r
            }

            /// `self | o`, as far as intervals tell.
            #[must_use]
            pub fn or(self, o: Self) -> Self {
                Self::unsigned(self.umin.max(o.umin), $u::MAX)
            }

            /// `self << o`; amounts of the word size or more are unknown.
            #[must_use]
            pub fn shl(self, o: Self) -> Self {
                let mut r = Self::FULL;
                if o.umax >= $u::BITS as $u {
                    return r;
                }
                let (lo, hi) = (o.umin as u32, o.umax as u32);
                if (self.umax << hi) >> hi == self.umax {
                    r.umin = self.umin << lo;
                    r.umax = self.umax << hi;
                }
                if lo == hi && (self.smin << hi) >> hi == self.smin && (self.smax << hi) >> hi == self.smax {
                    r.smin = self.smin << hi;
                    r.smax = self.smax << hi;
                }
                r
            }

            /// `self >> o` without sign; amounts of the word size or more are unknown.
            #[must_use]
            pub fn shr(self, o: Self) -> Self {
                if o.umax >= $u::BITS as $u {
                    return Self::FULL;
                }
                Self::unsigned(self.umin >> o.umax as u32, self.umax >> o.umin as u32)
            }

            /// `self >> o` with sign; amounts of the word size or more are unknown.
            #[must_use]
            pub fn sar(self, o: Self) -> Self {
                if o.umax >= $u::BITS as $u {
                    return Self::FULL;
                }
                let (lo, hi) = (o.umin as u32, o.umax as u32);
                Self::signed((self.smin >> lo).min(self.smin >> hi), (self.smax >> lo).max(self.smax >> hi))
            }

            /// `self / o` unsigned; a division by zero yields 0.
            #[must_use]
            pub fn div(self, o: Self) -> Self {
                if o.umin == 0 {
                    return Self::unsigned(0, self.umax);
                }
                Self::unsigned(self.umin / o.umax.max(1), self.umax / o.umin)
            }

            /// `self % o` unsigned; a remainder by zero yields the dividend.
            #[must_use]
            pub fn rem(self, o: Self) -> Self {
                if o.umin == 0 {
                    return Self::unsigned(0, self.umax);
                }
                if self.umax < o.umin {
                    return self;
                }
                Self::unsigned(0, self.umax.min(o.umax - 1))
            }

            /// `self / o` signed, for one divisor above 1 only.
            #[must_use]
            pub fn sdiv(self, o: Self) -> Self {
                if o.smin != o.smax || o.smin <= 1 {
                    return if o.smin == 1 && o.smax == 1 { self } else { Self::FULL };
                }
                Self::signed(self.smin / o.smin, self.smax / o.smin)
            }

            /// `self % o` signed, for one divisor other than zero only.
            #[must_use]
            pub fn srem(self, o: Self) -> Self {
                if o.smin != o.smax || o.smin == 0 || o.smin == $i::MIN {
                    return Self::FULL;
                }
                let most = o.smin.abs() - 1;
                let lo = if self.smin >= 0 { 0 } else { self.smin.max(-most) };
                let hi = if self.smax < 0 { 0 } else { self.smax.min(most) };
                Self::signed(lo, hi)
            }
        }
    };
}

range!(
    /// Interval of a 64-bit word.
    Range64, u64, i64
);
range!(
    /// Interval of a 32-bit word.
    Range32, u32, i32
);
