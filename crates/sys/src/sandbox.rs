//! Whether this process may still make system calls that the program did not think of.
//!
//! A program may put itself under seccomp, and then a system call that its filter does not know
//! ends it. So nothing of ours makes one behind the program's back any more: threads and children
//! whose first event comes after that run without hooks, libraries that are opened then are not
//! looked at, hooks stay where they are when their link is detached. Threads that have had an
//! event go on as before: their events need no system call.
//!
//! Who finds out that the program is about to do so calls [`close`]. Whoever is about to make a
//! system call in the traced process asks [`may_call_system`] before; it is safe on the event path.
//! [`syscall`](crate::syscall) does so for all, `sys::call` of `skep_attach` for all but those that no
//! signal handler can do without:
//! `rt_sigprocmask`, `sigaltstack` and `rt_sigaction`.
//!
//! A child of `vfork` goes into a sandbox alone, and runs in its parent's memory, on its parent's
//! thread: [`close_for_child`] is for that thread only, until the child ends or executes a program
//! ([`open_for_parent`]).
//!
//! A thread of our own, which no filter of another thread is for, goes on as before ([`exempt`]).

use crate::thread;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::Relaxed};

/// Known to `tramp/x64.s`.
pub static CLOSED: AtomicBool = AtomicBool::new(false);

/// The thread, by its pointer, that [`CLOSED`] is only for; 0: it is for all.
static CHILD: AtomicU64 = AtomicU64::new(0);

/// A thread of ours, by its pointer, that [`CLOSED`] is not for; 0: there is none.
static EXEMPT: AtomicU64 = AtomicU64::new(0);

/// Tells whether system calls are still free to be made: one load.
#[inline(always)]
#[must_use]
pub fn may_call_system() -> bool {
    !CLOSED.load(Relaxed) || is_for_another()
}

#[inline(always)]
fn is_for_another() -> bool {
    let child = CHILD.load(Relaxed);
    (child != 0 && child != thread()) || EXEMPT.load(Relaxed) == thread()
}

/// Says that the calling thread, which is ours, is under no filter that the program's threads set for
/// themselves. Who sets one for all threads has to end this one before.
pub fn exempt() {
    EXEMPT.store(thread(), Relaxed);
}

/// Ends that, for this process and the children it forks. It cannot be undone, as
/// seccomp cannot.
pub fn close() {
    CHILD.store(0, Relaxed);
    CLOSED.store(true, Relaxed);
}

/// Ends it for the calling child of `vfork` in its parent's memory. Where that is another's
/// already, it is over for all: two such children at the same time are rare.
pub fn close_for_child() {
    if CLOSED.load(Relaxed) || CHILD.compare_exchange(0, thread(), Relaxed, Relaxed).is_err() {
        return close();
    }
    CLOSED.store(true, Relaxed);
}

/// Gives the thread back to the parent of a child that ends or executes a program. For others it
/// does nothing.
pub fn open_for_parent() {
    if CHILD.load(Relaxed) == thread() {
        CLOSED.store(false, Relaxed);
        CHILD.store(0, Relaxed);
    }
}
