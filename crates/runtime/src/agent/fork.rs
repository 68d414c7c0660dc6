//! The agent across `fork`: the child finds its locks free.

use std::cell::UnsafeCell;
use std::sync::atomic::Ordering::Relaxed;

use skep_attach::{AroundForks, signals};
use skep_maps::slots::HeldTables;

use super::{AGENT, Agent, LockedLinks};
use crate::heap;

/// The links' lock, held by the thread that forks so that the child finds it free, and so the lock
/// of the slot tables. Another thread's lock would last for ever there.
///
/// Signals wait for as long: a handler that interrupted the thread here, and forked, would wait for
/// its own thread. The engine's lock is taken and released within.
struct Fork {
    links: LockedLinks<'static>,
    tables: HeldTables,
    _signals: signals::Blocked,
}

pub(super) struct ForkGuard(UnsafeCell<Option<Fork>>);

impl ForkGuard {
    pub(super) const fn new() -> Self {
        Self(UnsafeCell::new(None))
    }
}

// SAFETY: only touched by the thread that holds the links' lock.
unsafe impl Sync for ForkGuard {}

fn before_fork() {
    let signals = signals::Blocked::new();
    let links = AGENT.links();
    let tables = HeldTables::take();
    AGENT.forker.store(skep_attach::thread(), Relaxed);
    // SAFETY: this thread has the lock.
    unsafe { *AGENT.forking.0.get() = Some(Fork { links, tables, _signals: signals }) };
}

fn after_fork_parent() {
    AGENT.forker.store(0, Relaxed);
    // SAFETY: `before_fork` took the lock on this thread.
    if let Some(Fork { links, tables, _signals }) = unsafe { (*AGENT.forking.0.get()).take() } {
        // Before the libraries are looked at that were opened meanwhile.
        drop(tables);
        drop(links);
    }
}

/// A library that another thread of the parent was opening stays as it is: the next order looks at
/// it.
fn after_fork_child() {
    heap::forget_others();
    AGENT.forker.store(0, Relaxed);
    // SAFETY: `before_fork` took the lock on this thread.
    if let Some(Fork { links, tables, _signals }) = unsafe { (*AGENT.forking.0.get()).take() } {
        drop(tables);
        links.give_back_only();
    }
}

impl Agent {
    /// Holds the agent's locks across each `fork` from now on. To be called before the engine is
    /// made, whose handlers for fork call these: so there is no time when only one of both is held.
    pub(crate) fn watch_forks() {
        static AROUND: AroundForks =
            AroundForks { before: before_fork, parent: after_fork_parent, child: after_fork_child };
        AROUND.begin();
    }

    /// Tells whether the calling thread is between `before_fork` and `after_fork`, in another
    /// library's handler for fork: it holds the locks of the links, the engine and the heap, and
    /// would wait for itself.
    pub(crate) fn is_forking(&self) -> bool {
        self.forker.load(Relaxed) == skep_attach::thread()
    }
}
