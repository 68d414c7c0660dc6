//! Whether this process may still make system calls that the program did not think of.
//!
//! A program may put itself under seccomp, and then a system call that its filter does not know ends it. So nothing of ours makes one
//! behind the program's back any more: threads and children whose first event comes after that run without hooks, libraries that are
//! opened then are not looked at, hooks stay where they are when their link is turned off. Threads that have had an event go on as
//! before: their events need no system call.
//!
//! Who finds out that the program is about to do so calls [`close`]. Whoever is about to make a system call in the traced process asks
//! [`may_call_system`] before; it is safe on the event path. `sys::call` does so for all of this crate's but those that no signal handler
//! can do without: `rt_sigprocmask`, `sigaltstack` and `rt_sigaction`.

use std::sync::atomic::{AtomicBool, Ordering::Relaxed};

/// Known to `tramp/x64.s`.
pub(crate) static CLOSED: AtomicBool = AtomicBool::new(false);

/// Tells whether system calls are still free to be made: one load.
#[inline(always)]
#[must_use]
pub fn may_call_system() -> bool {
    !CLOSED.load(Relaxed)
}

/// Ends that, for this process and the children it forks. There is no way back, as there is none out of seccomp.
pub fn close() {
    CLOSED.store(true, Relaxed);
}
