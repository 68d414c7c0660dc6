//! Sets of verdicts, and their names.

use std::fmt;
use std::str::FromStr;

use skep_vm::chain::plan::{ALL, OTHER, SLOTS, slot};

/// Names of verdicts of XDP programs (include/uapi/linux/bpf.h, `enum xdp_action`).
const XDP: [&str; 5] = ["aborted", "drop", "pass", "tx", "redirect"];

/// Verdicts of XDP programs.
pub mod xdp {
    /// `XDP_ABORTED`
    pub const ABORTED: u32 = 0;
    /// `XDP_DROP`
    pub const DROP: u32 = 1;
    /// `XDP_PASS`
    pub const PASS: u32 = 2;
    /// `XDP_TX`
    pub const TX: u32 = 3;
    /// `XDP_REDIRECT`
    pub const REDIRECT: u32 = 4;
}

/// Verdicts of tcx programs (include/uapi/linux/bpf.h, `enum tcx_action_base`).
pub mod tcx {
    /// `TCX_NEXT`
    pub const NEXT: u32 = u32::MAX;
    /// `TCX_PASS`
    pub const PASS: u32 = 0;
    /// `TCX_DROP`
    pub const DROP: u32 = 2;
    /// `TCX_REDIRECT`
    pub const REDIRECT: u32 = 7;
}

/// Returns the name of an XDP verdict, or its number.
#[must_use]
pub fn name(verdict: u32) -> String {
    match (XDP.get(verdict as usize), verdict) {
        (Some(name), _) => (*name).to_owned(),
        (None, u32::MAX) => "next".to_owned(),
        (None, n) => n.to_string(),
    }
}

/// Reads a verdict: a name, or a number.
///
/// # Errors
/// When it is neither.
pub fn parse(text: &str) -> Result<u32, UnknownVerdict> {
    let unknown = || UnknownVerdict { text: text.to_owned() };
    match XDP.iter().position(|name| *name == text) {
        Some(n) => Ok(n as u32),
        None if text == "next" || text == "-1" => Ok(u32::MAX),
        None => text.parse().map_err(|_| unknown()),
    }
}

/// Says that a text names no verdict.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
#[error(
    "`{text}` names no verdict: give `aborted`, `drop`, `pass`, `tx`, `redirect`, `next`, a number \
     from 0 to 31, a range `0-3`, or `*`"
)]
pub struct UnknownVerdict {
    /// What was given.
    pub text: String,
}

/// A set of verdicts: any of those with a slot of their own (0 to 31, and -1), or all there are.
///
/// ```
/// use skep_net::chain::Verdicts;
/// let on: Verdicts = "pass,redirect".parse()?;
/// assert!(on.contains(2) && on.contains(4) && !on.contains(1));
/// assert_eq!(on.to_string(), "pass,redirect");
/// # Ok::<(), skep_net::chain::UnknownVerdict>(())
/// ```
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, Default)]
pub struct Verdicts(u64);

impl Verdicts {
    /// Every verdict: the wildcard.
    pub const ANY: Self = Self(ALL);
    /// No verdict.
    pub const NONE: Self = Self(0);

    /// Makes the set of one verdict; `None` when it has no slot of its own.
    #[must_use]
    pub fn one(verdict: u32) -> Option<Self> {
        let slot = slot(verdict);
        (slot != OTHER).then_some(Self(1 << slot))
    }

    /// Makes the set of the verdicts whose bits are set: bit 0 for verdict 0.
    #[must_use]
    pub fn bitmap(bits: u32) -> Self {
        Self(u64::from(bits) << 1)
    }

    /// Tells whether this is the wildcard.
    #[must_use]
    pub fn is_any(self) -> bool {
        self == Self::ANY
    }

    /// Tells whether a verdict is in it.
    #[must_use]
    pub fn contains(self, verdict: u32) -> bool {
        self.0 >> slot(verdict) & 1 != 0
    }

    /// Returns the slots, as bits.
    #[must_use]
    pub fn bits(self) -> u64 {
        self.0
    }

    /// Takes slots given as bits.
    #[must_use]
    pub fn from_bits(bits: u64) -> Option<Self> {
        (bits & !ALL == 0 && (bits >> OTHER == 0 || bits == ALL)).then_some(Self(bits))
    }

    /// Returns both sets' verdicts.
    #[must_use]
    pub fn with(self, other: Self) -> Self {
        Self(self.0 | other.0)
    }

    /// Tells whether two edges would want the same verdict: the wildcard leaves to others what they
    /// name.
    #[must_use]
    pub fn meets(self, other: Self) -> bool {
        match (self.is_any(), other.is_any()) {
            (false, false) => self.0 & other.0 != 0,
            (any, of_other) => any && of_other,
        }
    }

    /// Goes through the slots of single verdicts.
    pub(super) fn own(self) -> impl Iterator<Item = usize> {
        let bits = if self.is_any() { 0 } else { self.0 };
        (0..OTHER).filter(move |n| bits >> n & 1 != 0)
    }
}

/// Returns the verdict of a slot that is not [`OTHER`].
pub(super) fn of_slot(slot: usize) -> u32 {
    (slot as u32).wrapping_sub(1)
}

/// Verdicts by name, runs of numbers as ranges.
impl fmt::Display for Verdicts {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.is_any() {
            return f.write_str("*");
        }
        let mut between = "";
        let mut slot = 0;
        while slot < SLOTS {
            let run = (self.0 >> slot).trailing_ones() as usize;
            let named = |slot: usize| slot == 0 || slot <= XDP.len();
            if run == 0 {
                slot += 1;
            } else if named(slot) || run < 3 {
                write!(f, "{between}{}", name(of_slot(slot)))?;
                between = ",";
                slot += 1;
            } else {
                write!(f, "{between}{}-{}", of_slot(slot), of_slot(slot + run - 1))?;
                between = ",";
                slot += run;
            }
        }
        Ok(())
    }
}

impl FromStr for Verdicts {
    type Err = UnknownVerdict;

    fn from_str(text: &str) -> Result<Self, UnknownVerdict> {
        if text == "*" {
            return Ok(Self::ANY);
        }
        let mut set = Self::NONE;
        for part in text.split(',') {
            let part = part.trim();
            let unknown = || UnknownVerdict { text: part.to_owned() };
            let (from, to) = match part.split_once('-') {
                Some((from, to)) if !from.is_empty() => (parse(from)?, parse(to)?),
                _ => (parse(part)?, parse(part)?),
            };
            if from > to || (from != to && to > 31) {
                return Err(unknown());
            }
            for verdict in from..=to {
                set = set.with(Self::one(verdict).ok_or_else(unknown)?);
            }
        }
        Ok(set)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sets_are_read_and_written() -> Result<(), UnknownVerdict> {
        for (text, bits, printed) in [
            ("pass", 1 << 3, "pass"),
            ("drop, pass", 3 << 2, "drop,pass"),
            ("0-4", 31 << 1, "aborted,drop,pass,tx,redirect"),
            ("8-31", 0xff_ffff << 9, "8-31"),
            ("next,0,7", 1 | 1 << 1 | 1 << 8, "next,aborted,7"),
            ("-1", 1, "next"),
            ("*", ALL, "*"),
        ] {
            let set: Verdicts = text.parse()?;
            assert_eq!((set.bits(), set.to_string().as_str()), (bits, printed), "{text}");
            assert_eq!(printed.parse::<Verdicts>()?, set);
        }
        Ok(())
    }

    #[test]
    fn sets_meet_in_what_both_name() -> Result<(), UnknownVerdict> {
        for (one, other, meet) in [
            ("pass", "drop", false),
            ("pass,tx", "0-2", true),
            ("*", "pass", false),
            ("*", "*", true),
            ("0-31", "-1", false),
        ] {
            let (one, other): (Verdicts, Verdicts) = (one.parse()?, other.parse()?);
            assert_eq!([one.meets(other), other.meets(one)], [meet; 2], "{one} and {other}");
        }
        Ok(())
    }

    #[test]
    fn what_names_no_verdict_is_refused() {
        for text in ["", "32", "pas", "4-2", "0-32", "1,,2", "pass,*", "4294967294", "-2"] {
            assert!(text.parse::<Verdicts>().is_err(), "{text}");
        }
    }
}
