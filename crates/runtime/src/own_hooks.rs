//! Hooks of the agent's own, in functions of the C library and the dynamic linker. They are collected,
//! and attached together: each time that something is attached, all mappings are looked at.

use skep_attach::sites::Function;
use skep_attach::{Engine, Group, Hook, Position, RunFn};

/// Hooks that are to be attached.
#[derive(Default, Debug)]
pub(crate) struct OwnHooks {
    functions: Vec<(Function, Vec<Hook>)>,
}

impl OwnHooks {
    /// Adds hooks of a function, behind those that it has. Not found: then it is as if there were none.
    pub(crate) fn add(&mut self, function: Option<Function>, hooks: &[Hook]) {
        let Some(function) = function else { return };
        match self.functions.iter_mut().find(|(known, _)| known.addr() == function.addr()) {
            Some((_, all)) => all.extend_from_slice(hooks),
            None => self.functions.push((function, hooks.to_vec())),
        }
    }

    /// Attaches them; returns the attachment. Functions that are refused go without, as if they were not
    /// found.
    pub(crate) fn attach(self) -> Option<u64> {
        if self.functions.is_empty() {
            return None;
        }
        let targets: Vec<_> = self.functions.iter().map(|(function, _)| [(function, 0)]).collect();
        let all = targets.iter().zip(&self.functions);
        let groups: Vec<_> = all.map(|(targets, (_, hooks))| Group { targets, hooks }).collect();
        Some(Engine::get().ok()?.attach_groups(&groups).id)
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
