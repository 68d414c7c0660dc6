//! The engine's state behind one lock, which is held across `fork`.

use super::state::State;
use crate::per_thread::{block, mute::mute, register};
use crate::{process, signals, table};
use std::cell::UnsafeCell;
use std::sync::{Mutex, MutexGuard, OnceLock, PoisonError};

static STATE: OnceLock<Mutex<State>> = OnceLock::new();

/// The engine's state, for as long as it is locked.
#[derive(Debug)]
pub(super) struct Locked {
    pub(super) state: MutexGuard<'static, State>,
    // Dropped last.
    _signals: signals::Blocked,
}

/// Makes the state on the first call.
pub(super) fn prepare() -> &'static Mutex<State> {
    STATE.get_or_init(|| {
        // SAFETY: the functions stay for as long as the process, as everything here does.
        unsafe { pthread_atfork(before_fork, after_fork_parent, after_fork_child) };
        process::claim();
        register::prepare();
        // SAFETY: this runs once.
        Mutex::new(State::new(unsafe { table::Writer::new() }))
    })
}

/// Locks the state. Signals wait meanwhile: their handlers may fork, and the lock is taken for
/// that.
pub(super) fn lock() -> Locked {
    let signals = signals::Blocked::new();
    Locked { state: prepare().lock().unwrap_or_else(PoisonError::into_inner), _signals: signals }
}

unsafe extern "C" {
    fn pthread_atfork(
        prepare: extern "C" fn(),
        parent: extern "C" fn(),
        child: unsafe extern "C" fn(),
    ) -> i32;
}

/// The engine's lock, held by the thread that forks so that the child finds everything in order.
static FORKING: ForkGuard = ForkGuard(UnsafeCell::new(None));

struct ForkGuard(UnsafeCell<Option<Locked>>);

// SAFETY: only touched by the thread that holds the engine's lock.
unsafe impl Sync for ForkGuard {}

extern "C" fn before_fork() {
    let _muted = mute();
    let lock = lock();
    // SAFETY: this thread has the lock.
    unsafe { *FORKING.0.get() = Some(lock) };
}

extern "C" fn after_fork_parent() {
    let _muted = mute();
    // SAFETY: `before_fork` took the lock on this thread.
    drop(unsafe { (*FORKING.0.get()).take() });
}

/// # Safety
/// The process was just forked.
unsafe extern "C" fn after_fork_child() {
    // SAFETY: the caller's promise: no other thread is here.
    unsafe { block::after_fork() };
    // The child takes possession of its copy.
    process::is_own();
    after_fork_parent();
}
