//! The targets of one call, sorted by module, and what becomes of them.

use crate::sites::{Function, Module};
use crate::skip::Skip;
use std::sync::Arc;

/// Functions of one module that lack something.
pub(super) struct ModuleTargets<'a> {
    pub(super) module: &'a Arc<Module>,
    pub(super) items: Vec<(usize, &'a Function)>,
}

pub(super) fn set_result(results: &mut [Result<(), Skip>], n: usize, to: Result<(), Skip>) {
    if let Some(r) = results.get_mut(n) {
        *r = to;
    }
}
