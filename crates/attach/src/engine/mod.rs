//! The engine: one for the process, owner of everything that is hooked.

use crate::deny;
use crate::hook::Hook;
use crate::per_thread::mute::mute;
use crate::process;
use crate::sites::{Function, Module};
use crate::skip::{AttachError, Skip};
use crate::threads;
pub use detached::Detached;
pub use lock::AroundForks;
use lock::{lock, lock_to_look};
pub use repatch::Bypassed;
use std::sync::Arc;
use std::sync::atomic::AtomicUsize;

mod detached;
mod divert;
mod entries;
mod lock;
mod prepare;
mod repatch;
mod site;
mod state;
mod targets;

/// Hooks functions of the own process.
#[derive(Debug)]
pub struct Engine(());

/// Functions, each with the cookie its hooks see, and the hooks that all of them get.
#[derive(Clone, Copy, Debug)]
pub struct Group<'a> {
    /// The functions.
    pub targets: &'a [(&'a Function, u64)],
    /// Their hooks.
    pub hooks: &'a [Hook],
}

/// What [`Engine::attach`] did.
#[derive(Debug)]
pub struct Attachment {
    /// Names the attachment; give it to [`Engine::detach`].
    pub id: u64,
    /// For each target, in the order given: attached, or why not.
    pub results: Vec<Result<(), Skip>>,
}

impl Engine {
    /// Gives the engine, and makes it on the first call.
    ///
    /// # Errors
    ///
    /// [`AttachError::System`] when the kernel lacks something that cannot be done without.
    pub fn get() -> Result<&'static Self, AttachError> {
        static ENGINE: Engine = Engine(());
        lock::prepare();
        Ok(&ENGINE)
    }

    /// Attaches all `hooks` to all `targets`, each a function and the cookie its hooks see.
    ///
    /// Nothing that a caller gives can lead it to change anything but the first instructions of
    /// functions, as their module's file tells of them: a [`Function`] comes from there, and
    /// what a [`Hook`] does, whoever made it with [`Hook::new`] answers for. A library that was
    /// closed before, or that another thread closes meanwhile, is skipped.
    ///
    /// Functions that cannot be hooked are skipped and reported; the others are attached when this
    /// returns. Within a function, hooks of one kind run in the order of attaching.
    ///
    /// In a child that shares its parent's memory (`vfork`) nothing is attached.
    pub fn attach(&self, targets: &[(&Function, u64)], hooks: &[Hook]) -> Attachment {
        self.attach_groups(&[Group { targets, hooks }])
    }

    /// As [`attach`](Self::attach), with other hooks for other functions, in one attachment: all that
    /// is looked at before anything can be changed is looked at once. A function belongs to one group.
    pub fn attach_groups(&self, groups: &[Group<'_>]) -> Attachment {
        let _muted = mute();
        if !process::is_own() {
            let count = groups.iter().map(|group| group.targets.len()).sum();
            return Attachment { id: 0, results: vec![Err(Skip::SharedMemory); count] };
        }
        let mut locked = lock_to_look();
        let state = &mut *locked.state;
        let (id, results) = state.attach(groups, None);
        state.collect_limbo();
        Attachment { id, results }
    }

    /// Takes an attachment away: no new run of its hooks begins after this returns.
    ///
    /// Functions without any other attachment get their original bytes back. Calls that are in
    /// progress return as usual, without running its exit hooks; [`Detached`] tells when the last
    /// of them has. From inside a hook nothing is freed: the answer is that the attachment is not
    /// drained.
    ///
    /// # Errors
    ///
    /// [`AttachError::NoAttachment`] when the id is not attached; [`AttachError::SharedMemory`] in
    /// a child of `vfork`.
    pub fn detach(&self, id: u64) -> Result<Detached, AttachError> {
        let _muted = mute();
        if !process::is_own() {
            return Err(AttachError::SharedMemory);
        }
        let mut locked = lock_to_look();
        let removed = locked.state.detach(id)?;
        let drained = locked.state.collect();
        Ok(Detached::new(removed, drained))
    }

    /// Takes the hooks whose data `is_meant` accepts out of a function, which may be running one of
    /// them. They are the attachment's still, which forgets them when it is taken away.
    ///
    /// Tells whether calls find the function as it was, or are led past the hooks. Nothing is freed.
    pub fn detach_func(&self, addr: u64, is_meant: &dyn Fn(*const ()) -> bool) -> bool {
        let _muted = mute();
        process::is_own() && lock().state.detach_func(addr, is_meant)
    }

    /// Sends all calls of a function elsewhere; returns the attachment, for
    /// [`detach`](Self::detach). Nothing else can be attached to the function meanwhile.
    ///
    /// # Errors
    /// Why it cannot be done.
    ///
    /// # Safety
    /// Code begins at `to` that does what callers of the function expect, and is there for ever.
    /// It may call the function itself, or go on there: where that is has been put into `itself`
    /// before the first call comes.
    pub unsafe fn divert(
        &self,
        function: &Function,
        to: usize,
        itself: &AtomicUsize,
    ) -> Result<u64, Skip> {
        let _muted = mute();
        if !process::is_own() {
            return Err(Skip::SharedMemory);
        }
        let mut locked = lock_to_look();
        // SAFETY: the caller's promise.
        unsafe { locked.state.divert(function, to as u64, itself) }
    }

    /// Tells whether a call is in progress, of whatever function that is or was hooked, that returns
    /// through a trampoline.
    #[must_use]
    pub fn has_calls_in_progress(&self) -> bool {
        let _muted = mute();
        lock().state.has_calls_in_progress()
    }

    /// Tells whether threads can be looked at from here: not where no more files may be open, nor where
    /// there is no `/proc`. Else [`Detached::is_quiescent`] is always false.
    #[must_use]
    pub fn sees_threads(&self) -> bool {
        let _muted = mute();
        threads::Tasks::open().is_ok()
    }

    /// Refuses to hook functions of this process at their return from now on, for the first reason
    /// given.
    pub fn refuse_exits(&self, why: &'static str) {
        let _ = deny::NO_EXITS.set(why);
    }

    /// Returns the attachments that there are, without [diversions](Self::divert).
    #[must_use]
    pub fn attachments(&self) -> Vec<u64> {
        let _muted = mute();
        lock().state.attachments()
    }

    /// Returns the places where a jump stayed when its hooks were taken out ([`Self::detach`]).
    /// Whoever can stop all threads may write the original bytes there; then
    /// [`notice_restored`](Self::notice_restored).
    #[must_use]
    pub fn bypassed(&self) -> Vec<Bypassed> {
        let _muted = mute();
        lock().state.bypassed()
    }

    /// Looks which of these places have their bytes back.
    pub fn notice_restored(&self) {
        let _muted = mute();
        if process::is_own() {
            lock_to_look().state.notice_restored();
        }
    }

    /// Tells whether no thread is inside a hook that was taken out before this call, and frees what
    /// was kept for such threads: what the [`Hook`]s of all former attachments point at may go
    /// then. False in a child that shares its parent's memory, and inside of a hook.
    pub fn drain(&self) -> bool {
        let _muted = mute();
        process::is_own() && lock().state.collect()
    }

    /// Forgets functions of libraries that were closed: their code is no module's any more, and
    /// other code may come to lie there.
    ///
    /// `modules` are those of now ([`crate::sites::scan`]). Nothing is written to the old places.
    pub fn forget(&self, modules: &[Arc<Module>]) {
        let _muted = mute();
        if !process::is_own() {
            return;
        }
        let mut locked = lock_to_look();
        locked.state.forget_closed(modules);
    }
}
