//! The agent across `fork`: the child finds its locks free.

use std::cell::UnsafeCell;
use std::sync::MutexGuard;
use std::sync::atomic::Ordering::Relaxed;

use skep_attach::signals;

use super::link::ActiveLink;
use super::{AGENT, Agent};

/// The links' lock, held by the thread that forks so that the child finds it free. Another thread's
/// lock would last for ever there.
///
/// Signals wait for as long: a handler that interrupted the thread here, and forked, would wait for
/// its own thread. The engine's lock is taken and released within.
struct Fork {
    // Released in this order.
    _links: MutexGuard<'static, Vec<ActiveLink>>,
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

unsafe extern "C" {
    fn pthread_atfork(
        prepare: extern "C" fn(),
        parent: extern "C" fn(),
        child: extern "C" fn(),
    ) -> i32;
}

extern "C" fn before_fork() {
    let _muted = skep_attach::mute();
    let signals = signals::Blocked::new();
    let links = AGENT.links();
    AGENT.forker.store(skep_attach::thread(), Relaxed);
    // SAFETY: this thread has the lock.
    unsafe { *AGENT.forking.0.get() = Some(Fork { _links: links, _signals: signals }) };
}

extern "C" fn after_fork() {
    let _muted = skep_attach::mute();
    AGENT.forker.store(0, Relaxed);
    // SAFETY: `before_fork` took the lock on this thread.
    drop(unsafe { (*AGENT.forking.0.get()).take() });
}

impl Agent {
    /// Holds the agent's locks across each `fork` from now on; to be called once.
    pub(crate) fn watch_forks() {
        // SAFETY: the functions stay for as long as the process.
        unsafe { pthread_atfork(before_fork, after_fork, after_fork) };
    }

    /// Tells whether the calling thread is between `before_fork` and `after_fork`, in another
    /// library's handler for fork: it holds the locks of the links, the engine and the heap, and
    /// would wait for itself.
    pub(crate) fn is_forking(&self) -> bool {
        self.forker.load(Relaxed) == skep_attach::thread()
    }
}
