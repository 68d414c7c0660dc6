//! What becomes of a frame.

/// What a packet program decided on a frame, by the numbers of `enum xdp_action`.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, Default)]
pub enum Verdict {
    /// The program failed, or returned a number that is none of these.
    #[default]
    #[doc(alias = "XDP_ABORTED")]
    Aborted,
    /// It ends here.
    #[doc(alias = "XDP_DROP")]
    Drop,
    /// It goes on to the stack.
    #[doc(alias = "XDP_PASS")]
    Pass,
    /// It goes back to where it came from.
    #[doc(alias = "XDP_TX")]
    Tx,
    /// It goes to another port, by number.
    #[doc(alias = "XDP_REDIRECT")]
    Redirect(u32),
}

impl Verdict {
    /// Kinds of verdicts.
    pub const KINDS: usize = 5;
    /// Their names, by number.
    pub const NAMES: [&'static str; Self::KINDS] = ["aborted", "drop", "pass", "tx", "redirect"];

    /// Reads what a program returned; `port` is where it redirected to. Numbers that are no verdict
    /// are [`Verdict::Aborted`], as in drivers.
    #[inline]
    #[must_use]
    pub fn from_raw(raw: u32, port: u32) -> Self {
        match raw {
            1 => Self::Drop,
            2 => Self::Pass,
            3 => Self::Tx,
            4 => Self::Redirect(port),
            _ => Self::Aborted,
        }
    }

    /// Returns the number of its kind, an index of [`Verdict::NAMES`].
    #[inline]
    #[must_use]
    pub fn kind(self) -> usize {
        match self {
            Self::Aborted => 0,
            Self::Drop => 1,
            Self::Pass => 2,
            Self::Tx => 3,
            Self::Redirect(_) => 4,
        }
    }

    /// Returns the name of its kind.
    #[must_use]
    pub fn name(self) -> &'static str {
        Self::NAMES.get(self.kind()).copied().unwrap_or("aborted")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_are_those_of_xdp_action() {
        let names: Vec<_> = (0..7).map(|raw| Verdict::from_raw(raw, 9).name()).collect();
        assert_eq!(names, ["aborted", "drop", "pass", "tx", "redirect", "aborted", "aborted"]);
        assert_eq!(Verdict::from_raw(4, 9), Verdict::Redirect(9));
        assert_eq!(Verdict::from_raw(u32::MAX, 9), Verdict::Aborted);
    }
}
