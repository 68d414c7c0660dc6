//! Whether somebody is in the agent's heap.
//!
//! The heap calls functions of the C library, which may be hooked: an event of such a call that asks
//! for memory would wait for its own thread.

use std::sync::atomic::{AtomicU32, Ordering::Relaxed};

/// Threads in the heap.
static USERS: AtomicU32 = AtomicU32::new(0);

/// Somebody uses the heap until this is dropped.
pub struct HeapUser(());

impl HeapUser {
    /// Counts the calling thread.
    #[must_use]
    #[inline]
    pub fn new() -> Self {
        USERS.fetch_add(1, Relaxed);
        Self(())
    }
}

impl Default for HeapUser {
    fn default() -> Self {
        Self::new()
    }
}

impl Drop for HeapUser {
    #[inline]
    fn drop(&mut self) {
        USERS.fetch_sub(1, Relaxed);
    }
}

/// Tells whether a thread is in the heap: the calling one, whose own change is always seen, or
/// another.
pub(crate) fn is_in_use() -> bool {
    USERS.load(Relaxed) != 0
}

/// Forgets the threads that a child of `fork` does not have. To be called there, by its only thread.
pub(crate) fn forget_others() {
    USERS.store(0, Relaxed);
}
