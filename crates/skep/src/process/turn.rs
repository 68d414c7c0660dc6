//! One `skep` at a time in a process: who comes later waits for its turn.
//!
//! The kernel knows one tracer of a process, and there is one agent, so two that begin at the same
//! time would each see half of what the other does. Whoever attaches holds a lock on the process's
//! `/proc/PID/maps` until it has left, which falls with it, however it ends. That is the same file for
//! all users, and only those can open it, and keep others out, who may look into the process. One in
//! another mount of `/proc` (a container) does not see the lock: such are kept apart by what
//! [`Mark`](super::mark::Mark) says, and by trying again.

use std::fs::File;
use std::time::Instant;

use rustix::fs::{FlockOperation, flock};
use rustix::io::Errno;

use super::{LOOK_FOR_END, Stopper};

/// The lock, until it is dropped.
#[derive(Debug)]
pub(super) struct Turn {
    /// None where the system knows no such locks.
    file: Option<File>,
    /// The process that has it: a forked child has a copy of the descriptor, and of the lock.
    by: u32,
}

impl Turn {
    /// Waits for the turn, until then at most; `None`: somebody else has it.
    pub(super) fn take(by: &mut dyn Stopper, pid: u32, until: Instant) -> Option<Self> {
        let dir = format!("/proc/{pid}");
        // An agent may take orders in a process that nobody may look into.
        let Ok(file) = File::open(format!("{dir}/maps")).or_else(|_| File::open(dir)) else {
            // Whoever stops the process says why.
            return Some(Self::of(None));
        };
        loop {
            match flock(&file, FlockOperation::NonBlockingLockExclusive) {
                Ok(()) => return Some(Self::of(Some(file))),
                Err(Errno::WOULDBLOCK) if Instant::now() < until && !by.is_over() => {
                    by.pause(LOOK_FOR_END);
                }
                Err(Errno::WOULDBLOCK) => return None,
                Err(_) => return Some(Self::of(None)),
            }
        }
    }

    fn of(file: Option<File>) -> Self {
        Self { file, by: std::process::id() }
    }

    /// Tells whether the lock keeps others away that see the same `/proc`.
    pub(super) fn is_kept(&self) -> bool {
        self.file.is_some()
    }
}

impl Drop for Turn {
    fn drop(&mut self) {
        if let Some(file) = self.file.as_ref().filter(|_| self.by == std::process::id()) {
            // Closing it ends it only where no child has a copy.
            flock(file, FlockOperation::Unlock).ok();
        }
    }
}
