//! The engine's state behind one lock, which is held across `fork`.

use super::state::State;
use crate::fork_once::ForkOnce;
use crate::per_thread::{block, mute::mute, register};
use crate::signals::gone::Looking;
use crate::{process, signals, table};
use std::cell::UnsafeCell;
use std::ptr;
use std::sync::atomic::{AtomicPtr, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};

/// Never freed; null until the first call.
static STATE: AtomicPtr<Mutex<State>> = AtomicPtr::new(ptr::null_mut());

/// The engine's state, for as long as it is locked.
#[derive(Debug)]
pub(super) struct Locked {
    pub(super) state: MutexGuard<'static, State>,
    /// What is done with the state looks at code.
    _looking: Option<Looking>,
    // Dropped last.
    _signals: signals::Blocked,
}

/// Makes the state on the first call.
pub(super) fn prepare() -> &'static Mutex<State> {
    /// A child that was forked while another thread made the state makes its own; but what follows
    /// a fork is to be done once.
    static MADE: ForkOnce = ForkOnce::new();
    static WATCHES_FORKS: ForkOnce = ForkOnce::new();
    MADE.call(|| {
        WATCHES_FORKS.call(|| {
            // SAFETY: the functions stay for as long as the process, as everything here does.
            unsafe { pthread_atfork(before_fork, after_fork_parent, after_fork_child) };
        });
        process::claim();
        register::prepare();
        // SAFETY: this runs once in a process.
        let state = State::new(unsafe { table::Writer::new() });
        STATE.store(Box::into_raw(Box::new(Mutex::new(state))), Ordering::Release);
    });
    // SAFETY: made above, by whatever thread, and never freed. Pairs with the Release.
    unsafe { &*STATE.load(Ordering::Acquire) }
}

/// Locks the state. Signals wait meanwhile: their handlers may fork, and the lock is taken for
/// that.
pub(super) fn lock() -> Locked {
    let signals = signals::Blocked::new();
    let state = prepare().lock().unwrap_or_else(PoisonError::into_inner);
    Locked { state, _looking: None, _signals: signals }
}

/// Locks the state for what looks at code.
pub(super) fn lock_to_look() -> Locked {
    // In this order, as the signals before are those at the end.
    let locked = lock();
    Locked { _looking: Some(Looking::begin()), ..locked }
}

unsafe extern "C" {
    fn pthread_atfork(
        prepare: extern "C" fn(),
        parent: extern "C" fn(),
        child: unsafe extern "C" fn(),
    ) -> i32;
}

/// What somebody does around each `fork` who calls the engine with a lock held: it takes that lock
/// before the engine's, as there, and gives it back after.
#[derive(Debug)]
pub struct AroundForks {
    /// Before the fork, on the thread that forks.
    pub before: fn(),
    /// After it, in the parent.
    pub parent: fn(),
    /// After it, in the child.
    pub child: fn(),
}

static AROUND: AtomicPtr<AroundForks> = AtomicPtr::new(ptr::null_mut());

impl AroundForks {
    /// Does this around each `fork` from now on; once, before the engine is made. The thread is
    /// muted meanwhile.
    pub fn begin(&'static self) {
        AROUND.store(ptr::from_ref(self).cast_mut(), Ordering::Release);
    }
}

/// The engine's lock, held by the thread that forks so that the child finds everything in order,
/// and what is to be done after.
static FORKING: ForkGuard = ForkGuard(UnsafeCell::new(None));

struct ForkGuard(UnsafeCell<Option<(Locked, Option<&'static AroundForks>)>>);

// SAFETY: only touched by the thread that holds the engine's lock.
unsafe impl Sync for ForkGuard {}

extern "C" fn before_fork() {
    let _muted = mute();
    // SAFETY: null, or never freed. Pairs with the Release in `begin`.
    let around = unsafe { AROUND.load(Ordering::Acquire).as_ref() };
    if let Some(around) = around {
        (around.before)();
    }
    let lock = lock();
    // SAFETY: this thread has the lock.
    unsafe { *FORKING.0.get() = Some((lock, around)) };
}

extern "C" fn after_fork_parent() {
    let _muted = mute();
    if let Some(around) = give_back() {
        (around.parent)();
    }
}

/// # Safety
/// The process was just forked.
unsafe extern "C" fn after_fork_child() {
    // SAFETY: the caller's promise: no other thread is here.
    unsafe { block::after_fork() };
    // The child takes possession of its copy.
    process::is_own();
    let _muted = mute();
    if let Some(around) = give_back() {
        (around.child)();
    }
}

/// Gives the engine's lock back after a fork.
fn give_back() -> Option<&'static AroundForks> {
    // SAFETY: `before_fork` took the lock on this thread.
    let (lock, around) = unsafe { (*FORKING.0.get()).take() }?;
    drop(lock);
    around
}
