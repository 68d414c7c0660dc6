//! The `long double` of x86: 80 bits, of which 64 are the number and one of those is in front of the
//! point.

use std::cmp::Ordering;
use std::fmt;

/// A `long double` of x86 as its ten bytes. It is written with as few digits as tell it from all others.
///
/// ```
/// use skep_object::btf::LongDouble;
/// // As in memory, little-endian.
/// let third = LongDouble([0xab, 0xaa, 0xaa, 0xaa, 0xaa, 0xaa, 0xaa, 0xaa, 0xfd, 0x3f]);
/// assert_eq!(third.to_string(), "0.33333333333333333334");
/// ```
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct LongDouble(pub [u8; 10]);

/// Of the number in front of its point, in the exponent's field.
const BIAS: i32 = 16383;
const INFINITE: u16 = 0x7fff;
/// Decimal exponents from which on numbers are written without a point that far away.
const LARGE: i32 = 15;
const SMALL: i32 = -5;

impl LongDouble {
    /// Tells whether it is 0 or -0.
    #[must_use]
    pub fn is_zero(&self) -> bool {
        let (_, exponent, number) = self.parts();
        exponent != INFINITE && number == 0
    }

    /// Its sign, exponent and number.
    fn parts(&self) -> (bool, u16, u64) {
        let (number, high) = self.0.split_at(8);
        let number = number.try_into().map_or(0, u64::from_le_bytes);
        let high = high.try_into().map_or(0, u16::from_le_bytes);
        (high >> 15 != 0, high & INFINITE, number)
    }

    /// The fewest digits, and the place of the point behind the first: Steele and White's algorithm, with
    /// exact integers. `number` is not 0.
    fn digits(exponent: u16, number: u64) -> (Vec<u8>, i32) {
        // The number is `value / scale`; half the distance to the next one above and below are `above / scale`
        // and `below / scale`.
        let power = i32::from(exponent.max(1)) - BIAS - 63;
        let is_lowest = number == 1 << 63 && exponent > 1;
        let mut value = Big::of(number);
        let (mut scale, mut below) = (Big::of(1), Big::of(1));
        value.shift(1 + u32::from(is_lowest) + power.max(0).cast_unsigned());
        scale.shift(1 + u32::from(is_lowest) + (-power).max(0).cast_unsigned());
        below.shift(power.max(0).cast_unsigned());
        let mut above = below.clone();
        above.shift(is_lowest.into());
        // As the reader rounds to even.
        let even = number & 1 == 0;
        let at_most = |order: Ordering| order == Ordering::Less || even && order == Ordering::Equal;

        let bits = 63 - number.leading_zeros() as i32;
        let mut place = (f64::from(power + bits) * std::f64::consts::LOG10_2).floor() as i32;
        for _ in 0..place.max(0) {
            scale.times(10);
        }
        for _ in 0..(-place).max(0) {
            [&mut value, &mut above, &mut below].into_iter().for_each(|n| n.times(10));
        }
        if at_most(scale.times_ten_against(&value, &above)) {
            place += 1;
            scale.times(10);
        }
        let mut digits = Vec::new();
        loop {
            let mut digit = 0;
            while value.cmp(&scale) != Ordering::Less && digit < 9 {
                value.minus(&scale);
                digit += 1;
            }
            let low = at_most(value.cmp(&below));
            let high = at_most(scale.cmp(&value.plus(&above)));
            if !low && !high && digits.len() < 40 {
                digits.push(digit);
                [&mut value, &mut above, &mut below].into_iter().for_each(|n| n.times(10));
                continue;
            }
            let nearer_above = value.plus(&value).cmp(&scale) != Ordering::Less;
            digits.push(digit + u8::from(high && (!low || nearer_above)));
            return (digits, place);
        }
    }
}

impl fmt::Display for LongDouble {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (negative, exponent, number) = self.parts();
        let sign = if negative { "-" } else { "" };
        match (exponent, number << 1) {
            (INFINITE, 0) => return write!(f, "{sign}inf"),
            (INFINITE, _) => return f.write_str("NaN"),
            _ if number == 0 => return write!(f, "{sign}0"),
            _ => {}
        }
        let (digits, place) = Self::digits(exponent, number);
        let text: String = digits.iter().map(|d| char::from(b'0' + d)).collect();
        let (first, rest) = text.split_at(1);
        let point = |rest: &str| if rest.is_empty() { String::new() } else { format!(".{rest}") };
        if !(SMALL..LARGE).contains(&place) {
            return write!(f, "{sign}{first}{}e{place}", point(rest));
        }
        match usize::try_from(place) {
            Err(_) => {
                let zeros = "0".repeat(place.unsigned_abs() as usize - 1);
                write!(f, "{sign}0.{zeros}{text}")
            }
            Ok(place) if place >= rest.len() => {
                write!(f, "{sign}{text}{}", "0".repeat(place - rest.len()))
            }
            Ok(place) => {
                let (whole, rest) = text.split_at(place + 1);
                write!(f, "{sign}{whole}{}", point(rest))
            }
        }
    }
}

/// A whole number of any size, lowest words first, without zeros at its end.
#[derive(Clone, Default)]
struct Big(Vec<u32>);

impl Big {
    fn of(n: u64) -> Self {
        let mut out = Self(vec![n as u32, (n >> 32) as u32]);
        out.trim();
        out
    }

    fn trim(&mut self) {
        while self.0.last() == Some(&0) {
            self.0.pop();
        }
    }

    fn times(&mut self, by: u32) {
        let mut carry = 0;
        for word in &mut self.0 {
            let wide = u64::from(*word) * u64::from(by) + carry;
            *word = wide as u32;
            carry = wide >> 32;
        }
        if carry != 0 {
            self.0.push(carry as u32);
        }
    }

    fn shift(&mut self, bits: u32) {
        self.times(1 << (bits % 32));
        if !self.0.is_empty() {
            self.0.splice(0..0, std::iter::repeat_n(0, bits as usize / 32));
        }
    }

    fn plus(&self, other: &Self) -> Self {
        let (mut out, mut carry) = (Vec::new(), 0);
        for at in 0..self.0.len().max(other.0.len()) {
            let word = |n: &Self| n.0.get(at).copied().map_or(0, u64::from);
            let wide = word(self) + word(other) + carry;
            out.push(wide as u32);
            carry = wide >> 32;
        }
        out.push(carry as u32);
        let mut out = Self(out);
        out.trim();
        out
    }

    /// Takes a number away that is not larger.
    fn minus(&mut self, other: &Self) {
        let mut borrow = 0;
        for (at, word) in self.0.iter_mut().enumerate() {
            let less = other.0.get(at).copied().map_or(0, i64::from) + borrow;
            let wide = i64::from(*word) - less;
            *word = wide as u32;
            borrow = i64::from(wide < 0);
        }
        self.trim();
    }

    fn cmp(&self, other: &Self) -> Ordering {
        let by_words = || self.0.iter().rev().cmp(other.0.iter().rev());
        self.0.len().cmp(&other.0.len()).then_with(by_words)
    }

    /// Compares ten times this one with a sum.
    fn times_ten_against(&self, a: &Self, b: &Self) -> Ordering {
        let mut ten = self.clone();
        ten.times(10);
        ten.cmp(&a.plus(b))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The one that is nearest to a `double`, which it is exactly.
    fn exact(x: f64) -> LongDouble {
        let (bits, mut exponent) = (x.to_bits(), (x.to_bits() >> 52 & 0x7ff) as i32);
        let mut number = bits << 11 | 1 << 63;
        if exponent == 0 {
            number = (bits << 12) >> 1;
            let zeros = number.leading_zeros();
            number <<= zeros;
            exponent = 1 - zeros as i32 + 1;
        }
        let high = (exponent - 1023 + BIAS) as u16 | ((bits >> 63) as u16) << 15;
        let mut out = [0; 10];
        out[..8].copy_from_slice(&number.to_le_bytes());
        out[8..].copy_from_slice(&high.to_le_bytes());
        LongDouble(out)
    }

    #[test]
    fn numbers_with_few_digits_are_written_as_them() {
        for x in [1.0, -2.5, 0.25, 1e10, 123_456_789.5, 0.000_030_517_578_125, 4096.0, 9.5] {
            assert_eq!(exact(x).to_string(), x.to_string());
        }
        assert_eq!(exact(1e15).to_string(), "1e15");
        assert_eq!(exact(0.000_001_907_348_632_812_5).to_string(), "1.9073486328125e-6");
        assert_eq!(LongDouble([0; 10]).to_string(), "0");
        assert!(LongDouble([0; 10]).is_zero());
    }

    /// As `%.21Lg` of the C library has them: the same digits, or fewer where those are enough.
    #[test]
    fn the_largest_and_the_smallest_are_written() {
        let of = |high: u16, number: u64| {
            let mut out = [0; 10];
            out[..8].copy_from_slice(&number.to_le_bytes());
            out[8..].copy_from_slice(&high.to_le_bytes());
            LongDouble(out).to_string()
        };
        assert_eq!(of(0x7ffe, u64::MAX), "1.189731495357231765e4932");
        assert_eq!(of(0, 1), "4e-4951");
        assert_eq!(of(1, 1 << 63), "3.3621031431120935063e-4932");
        assert_eq!(of(0xffff, 1 << 63), "-inf");
        assert_eq!(of(0x7fff, 3 << 62), "NaN");
        assert_eq!(of(0x8000, 0), "-0");
        assert_eq!(of(0x4000, 0xc90f_daa2_2168_c235), "3.1415926535897932385");
        assert_eq!(of(0x3ffb, 0xcccc_cccc_cccc_cccd), "0.1");
    }
}
