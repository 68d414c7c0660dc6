//! The conventions of a module's functions, each once: there may be a million functions.

use crate::runtime::Convention;

/// The conventions that a module's functions have.
#[derive(Debug)]
pub(super) struct ConventionTable(Vec<Convention>);

/// Which of its module's conventions a function has.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct ConventionNumber(u16);

impl ConventionNumber {
    /// That of C, which all tables begin with.
    pub(super) const C: Self = Self(0);
}

impl Default for ConventionTable {
    fn default() -> Self {
        Self(vec![Convention::C])
    }
}

impl ConventionTable {
    /// Of functions whose convention nobody knows.
    pub(super) const UNKNOWN: Convention = Convention::NoHook("nobody knows how it is called");

    /// The number of a convention.
    pub(super) fn add(&mut self, convention: Convention) -> ConventionNumber {
        let known = self.0.iter().position(|known| *known == convention);
        let at = known.unwrap_or_else(|| {
            self.0.push(convention);
            self.0.len() - 1
        });
        // There are as many as reasons in the sources.
        ConventionNumber(u16::try_from(at).unwrap_or(u16::MAX))
    }

    /// The convention that has the number.
    pub(super) fn get(&self, number: ConventionNumber) -> Convention {
        self.0.get(usize::from(number.0)).copied().unwrap_or(Self::UNKNOWN)
    }
}
