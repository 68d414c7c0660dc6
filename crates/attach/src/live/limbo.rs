//! What signal handlers read without a lock, and when it is freed.
//!
//! A table that handlers look up is replaced by one store. The old one goes to a limbo list, as in
//! epoch-based reclamation (K. Fraser, "Practical lock-freedom", 2004, 5.2.3), and is freed once
//! no handler is reading anything: those that begin later find the new one.

use std::sync::atomic::{AtomicUsize, Ordering};

/// Handlers that may be reading.
static READERS: AtomicUsize = AtomicUsize::new(0);

/// While there is one, nothing in a limbo list is freed.
pub(super) struct Reading(());

impl Reading {
    pub(super) fn begin() -> Self {
        READERS.fetch_add(1, Ordering::SeqCst);
        Self(())
    }
}

impl Drop for Reading {
    fn drop(&mut self) {
        READERS.fetch_sub(1, Ordering::SeqCst);
    }
}

/// What was taken out of use, perhaps still being read.
#[derive(Debug)]
pub(super) struct Limbo<T>(Vec<*mut T>);

// SAFETY: the pointers are owned by the list; nobody but handlers, which only read, has them too.
unsafe impl<T: Send + Sync> Send for Limbo<T> {}

impl<T> Default for Limbo<T> {
    fn default() -> Self {
        Self(Vec::new())
    }
}

impl<T> Limbo<T> {
    /// Adds what a handler can no longer find. Null is nothing.
    ///
    /// # Safety
    /// The pointer is null or came from [`Box::into_raw`], is given once, and whoever has it still
    /// found it under a [`Reading`].
    pub(super) unsafe fn retire(&mut self, old: *mut T) {
        if !old.is_null() {
            self.0.push(old);
        }
    }

    /// Frees all, if no handler is reading.
    pub(super) fn collect(&mut self) {
        if READERS.load(Ordering::SeqCst) == 0 {
            // SAFETY: by the promise of `retire`, each came from a box, and nobody has it who is
            // not reading.
            self.0.drain(..).for_each(|old| drop(unsafe { Box::from_raw(old) }));
        }
    }
}
