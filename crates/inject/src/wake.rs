//! Waiting for threads that are traced and for descriptors at once.
//!
//! `waitid` has no time limit and knows no descriptors, and a library cannot have `SIGCHLD` for
//! itself. So a thread waits by `waitid` for the tracing thread, leaves what it finds to that, and
//! makes a descriptor readable.

use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::{Arc, Condvar, Mutex, PoisonError};
use std::time::Duration;

use rustix::event::{EventfdFlags, eventfd};

use crate::sys;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum State {
    /// It has found something, or was not asked yet.
    Idle,
    /// It shall wait.
    Asked,
    Waiting,
    Ended,
}

#[derive(Debug)]
struct Shared {
    state: Mutex<State>,
    changed: Condvar,
    found: OwnedFd,
}

impl Shared {
    fn set(&self, change: impl Fn(State) -> State) {
        let mut state = self.state.lock().unwrap_or_else(PoisonError::into_inner);
        *state = change(*state);
        self.changed.notify_all();
    }

    /// What the thread does.
    fn watch(&self) {
        /// While there is nothing to wait for, for whatever reason.
        const PAUSE: Duration = Duration::from_millis(5);
        loop {
            let state = self.state.lock().unwrap_or_else(PoisonError::into_inner);
            let state = self.changed.wait_while(state, |state| *state == State::Idle);
            let mut state = state.unwrap_or_else(PoisonError::into_inner);
            if *state == State::Ended {
                return;
            }
            *state = State::Waiting;
            drop(state);
            if sys::wait_for_any().is_err() {
                std::thread::sleep(PAUSE);
            }
            self.set(|state| if state == State::Ended { state } else { State::Idle });
            rustix::io::write(&self.found, &1_u64.to_ne_bytes()).ok();
        }
    }
}

/// The thread, which ends some time after this was dropped.
#[derive(Debug)]
pub(crate) struct Wake(Arc<Shared>);

impl Wake {
    pub(crate) fn new() -> std::io::Result<Self> {
        let found = eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK)?;
        let (state, changed) = (Mutex::new(State::Idle), Condvar::new());
        let shared = Arc::new(Shared { state, changed, found });
        let watcher = shared.clone();
        std::thread::Builder::new().name("skep-wait".into()).spawn(move || watcher.watch())?;
        Ok(Self(shared))
    }

    /// What will be readable when something has happened that is not asked for yet.
    pub(crate) fn ask(&self) -> BorrowedFd<'_> {
        rustix::io::read(&self.0.found, &mut [0_u8; 8]).ok();
        self.0.set(|state| if state == State::Idle { State::Asked } else { state });
        self.0.found.as_fd()
    }
}

impl Drop for Wake {
    fn drop(&mut self) {
        self.0.set(|_| State::Ended);
    }
}
