//! What becomes of a frame.

/// Where a frame is redirected to. These are numbers of three kinds, so that processor 1 is not
/// port 1.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub enum Target {
    /// A port, by the number of an interface (`bpf_redirect`, device maps). No port is 0.
    Port(u32),
    /// A processor, by its key in a CPU map.
    Cpu(u32),
    /// A socket, by the number that an XSK map has for it.
    Socket(u32),
}

impl Default for Target {
    /// No port.
    fn default() -> Self {
        Self::Port(0)
    }
}

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
    /// It goes elsewhere.
    #[doc(alias = "XDP_REDIRECT")]
    Redirect(Target),
}

impl Verdict {
    /// Kinds of verdicts.
    pub const KINDS: usize = 5;
    /// Their names, by number.
    pub const NAMES: [&'static str; Self::KINDS] = ["aborted", "drop", "pass", "tx", "redirect"];

    /// Reads what a program returned; `target` is where it redirected to. Numbers that are no verdict
    /// are [`Verdict::Aborted`], as in drivers.
    #[inline(always)]
    #[must_use]
    pub fn from_raw(raw: u32, target: Target) -> Self {
        match raw {
            1 => Self::Drop,
            2 => Self::Pass,
            3 => Self::Tx,
            4 => Self::Redirect(target),
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
        let names: Vec<_> =
            (0..7).map(|raw| Verdict::from_raw(raw, Target::Cpu(9)).name()).collect();
        assert_eq!(names, ["aborted", "drop", "pass", "tx", "redirect", "aborted", "aborted"]);
        assert_eq!(Verdict::from_raw(4, Target::Cpu(9)), Verdict::Redirect(Target::Cpu(9)));
        assert_eq!(Verdict::from_raw(u32::MAX, Target::default()), Verdict::Aborted);
    }
}
