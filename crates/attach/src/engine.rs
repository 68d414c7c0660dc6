//! The engine: one for the process, owner of everything that is hooked.

use crate::hook::Hook;
use crate::sites::Function;
use crate::skip::{AttachError, Skip};

/// Hooks functions of the own process.
#[derive(Debug)]
pub struct Engine {}

/// What [`Engine::attach`] did.
#[derive(Debug)]
pub struct Attachment {
    /// Names the attachment; give it to [`Engine::detach`].
    pub id: u64,
    /// For each target, in the order given: attached, or why not.
    pub results: Vec<Result<(), Skip>>,
}

/// What [`Engine::detach`] did.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Detached {
    /// Functions whose original first instructions are back in place.
    pub restored: usize,
    /// Whether no thread can be inside a hook of the attachment any more. If not, what its [`Hook`]s point at must stay.
    pub drained: bool,
}

impl Engine {
    /// Gives the engine, and makes it on the first call.
    pub fn get() -> Result<&'static Self, AttachError> {
        static ENGINE: Engine = Engine {};
        Ok(&ENGINE)
    }

    /// Attaches all `hooks` to all `targets`, each a function and the cookie its hooks see.
    ///
    /// Functions that cannot be hooked are skipped and reported; the others are attached when this returns. Within a function,
    /// hooks of one kind run in the order of attaching.
    pub fn attach(&self, targets: &[(&Function, u64)], hooks: &[Hook]) -> Attachment {
        let _ = hooks;
        Attachment { id: 0, results: targets.iter().map(|_| Err(Skip::NoRoom)).collect() }
    }

    /// Takes an attachment away: no new run of its hooks begins after this returns.
    ///
    /// # Errors
    ///
    /// [`AttachError::NoAttachment`] when the id is not attached.
    pub fn detach(&self, id: u64) -> Result<Detached, AttachError> {
        Err(AttachError::NoAttachment { id })
    }
}
