//! Hooks of the agent's own, in functions of the C library and the dynamic linker. They are collected,
//! and attached together: each time that something is attached, all mappings are looked at.

use skep_attach::sites::Function;
use skep_attach::{Engine, Group, Hook, Position, RunFn};

/// Functions, and hooks that are to be attached to them. A function is there once: what one hook wants may
/// be what the function refuses, and others do without.
#[derive(Default, Debug)]
pub(crate) struct OwnHooks(Vec<(Function, Vec<Hook>)>);

impl OwnHooks {
    /// Adds hooks of a function. Not found: then it is as if there were none.
    pub(crate) fn add(&mut self, function: Option<Function>, hooks: &[Hook]) {
        if let Some(function) = function {
            self.0.push((function, hooks.to_vec()));
        }
    }

    /// Attaches them; returns the attachment. Functions that are refused go without, as if they were not
    /// found.
    #[inline(never)]
    pub(crate) fn attach(&self) -> Option<u64> {
        let engine = Engine::get().ok().filter(|_| !self.0.is_empty())?;
        let targets: Vec<_> = self.0.iter().map(|(function, _)| [(function, 0)]).collect();
        let all = targets.iter().zip(&self.0);
        let groups: Vec<_> = all.map(|(targets, (_, hooks))| Group { targets, hooks }).collect();
        Some(engine.attach_groups(&groups).id)
    }
}

/// A hook that takes no data.
///
/// # Safety
/// The function keeps to the rules of the event path, but that it may use vector registers where the
/// function that it is attached to keeps nothing in them.
pub(crate) unsafe fn hook(position: Position, run: RunFn) -> Hook {
    // SAFETY: the caller's promise; the data are null.
    unsafe { Hook::new(position, run, std::ptr::null()) }
}
