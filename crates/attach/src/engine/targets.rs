//! The targets of one call, sorted by module, and what becomes of them.

use crate::jump::PATCH;
use crate::patch_site::{MOST_MOVED, PatchSite};
use crate::sites::{Function, Module};
use crate::skip::Skip;
use std::ops::{Range, RangeInclusive};
use std::sync::Arc;

/// Functions of one module that lack something.
pub(super) struct ModuleTargets<'a> {
    pub(super) module: &'a Arc<Module>,
    /// They need a path to an exit trampoline.
    pub(super) exits: bool,
    pub(super) items: Vec<(usize, &'a Function)>,
}

/// The bytes that the targets of one call are going to change, where some of them are inside functions:
/// those may be too near to each other, or to a function's start.
pub(super) struct Taken(Option<Vec<(u64, u64)>>);

impl Taken {
    /// `inside`: some of them are inside functions.
    pub(super) fn new(inside: bool) -> Self {
        Self(inside.then(Vec::new))
    }

    /// Takes the bytes of a site, unless they overlap with others, or what was moved from one ends
    /// among the bytes of another.
    pub(super) fn take(&mut self, site: &PatchSite) -> Result<(), Skip> {
        let Some(all) = &mut self.0 else { return Ok(()) };
        let (at, end) = (site.at, site.end());
        // Sorted; what comes is usually behind what came.
        let place = all.partition_point(|(other, _)| *other < at);
        let first = all.partition_point(|(other, _)| other + MOST_MOVED < at);
        let others = all.get(first..).unwrap_or_default().iter();
        let clash = others.take_while(|(other, _)| *other <= end).find(|(other, other_end)| {
            near(at).contains(other) || cuts(at, *other_end) || cuts(*other, end)
        });
        match clash {
            Some(&(at, _)) => Err(Skip::Overlap { at }),
            None => {
                all.insert(place, (at, end));
                Ok(())
            }
        }
    }
}

/// Tells whether the instruction at `end` begins behind the first of the five bytes at `at`: who goes
/// on there, after the instructions before it were moved, would do so in their middle.
pub(super) fn cuts(at: u64, end: u64) -> bool {
    cut_by(at).contains(&end)
}

/// The ends of instructions that the five bytes at an address cut.
pub(super) fn cut_by(at: u64) -> Range<u64> {
    at + 1..at + PATCH as u64
}

/// Where five bytes overlap with five bytes at an address.
pub(super) fn near(at: u64) -> RangeInclusive<u64> {
    let reach = PATCH as u64 - 1;
    at.saturating_sub(reach)..=at.saturating_add(reach)
}

pub(super) fn set_result(results: &mut [Result<(), Skip>], n: usize, to: Result<(), Skip>) {
    if let Some(r) = results.get_mut(n) {
        *r = to;
    }
}
