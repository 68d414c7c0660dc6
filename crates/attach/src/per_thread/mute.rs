//! The tracer's own work inside the traced process: calls without events.

use super::block::{MUTED, own};
use super::register::register;
use super::shared_tls::current;
use std::marker::PhantomData;
use std::sync::atomic::Ordering;

/// Ends the muting of the thread when dropped.
#[derive(Debug)]
#[must_use = "events are muted until this is dropped"]
pub struct Muted {
    /// How it was done.
    how: How,
    _thread: PhantomData<*const ()>,
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum How {
    /// It was muted already, or has no block.
    Nothing,
    Muted,
    /// The thread is inside a hook, which stays visible to those who wait for it to leave.
    Silenced,
}

/// Mutes the calling thread: until the guard is dropped, hooked functions that it calls run no
/// hooks, and nobody counts them as missed. For the tracer's own work inside the traced process.
/// May be nested.
pub fn mute() -> Muted {
    let block = if own().is_null() { register() } else { current() };
    let how = if block.is_null() {
        How::Nothing
    } else {
        // SAFETY: a block that is not null is never unmapped; this one is the calling thread's.
        let (inside, silent) = unsafe { (&(*block).inside, &(*block).silent) };
        match inside.compare_exchange(0, MUTED, Ordering::SeqCst, Ordering::Relaxed) {
            Ok(_) => How::Muted,
            Err(MUTED) => How::Nothing,
            Err(_) => {
                silent.fetch_add(1, Ordering::Relaxed);
                How::Silenced
            }
        }
    };
    Muted { how, _thread: PhantomData }
}

impl Drop for Muted {
    fn drop(&mut self) {
        let block = current();
        if block.is_null() {
            return;
        }
        // SAFETY: blocks are never unmapped.
        unsafe {
            match self.how {
                How::Nothing => {}
                How::Muted => (*block).inside.store(0, Ordering::Release),
                How::Silenced => (*block).silent.store(
                    (*block).silent.load(Ordering::Relaxed).saturating_sub(1),
                    Ordering::Relaxed,
                ),
            }
        }
    }
}
