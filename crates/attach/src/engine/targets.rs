//! The targets of one call, sorted by module, and what becomes of them.

use crate::jump::PATCH;
use crate::sites::{Function, Module};
use crate::skip::Skip;
use std::ops::RangeInclusive;
use std::sync::Arc;

/// Functions of one module that lack something.
pub(super) struct ModuleTargets<'a> {
    pub(super) module: &'a Arc<Module>,
    pub(super) items: Vec<(usize, &'a Function)>,
}

/// The bytes that the targets of one call are going to change, where some of them are inside functions:
/// those may be too near to each other, or to a function's start.
pub(super) struct Taken(Option<Vec<u64>>);

impl Taken {
    /// `inside`: some of them are inside functions.
    pub(super) fn new(inside: bool) -> Self {
        Self(inside.then(Vec::new))
    }

    /// Takes the bytes at an address, unless they overlap with others.
    pub(super) fn take(&mut self, at: u64) -> Result<(), Skip> {
        let Some(all) = &mut self.0 else { return Ok(()) };
        let range = near(at);
        // Sorted; what comes is usually behind what came.
        let place = all.partition_point(|other| other < range.start());
        match all.get(place).filter(|other| range.contains(other)) {
            Some(&at) => Err(Skip::Overlap { at }),
            None => {
                all.insert(place, at);
                Ok(())
            }
        }
    }
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
