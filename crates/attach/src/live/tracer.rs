//! Somebody outside the process who can stop its threads wherever they are, by ptrace(2).
//!
//! A thread that blocks all signals can neither be stopped by one nor survive a breakpoint; the C
//! library does that whenever it makes a thread or a child. One that a tracer has stopped runs nothing
//! at all. Breakpoints are set nevertheless: if the tracer is killed in the middle of a change, the
//! kernel lets the threads go at once.

use crate::patch::change::Change;
use crate::sys;
use std::ptr;
use std::sync::atomic::{AtomicPtr, AtomicU32, Ordering};

/// What a tracer does, when the thread that speaks with it asks for it. None of it may allocate or
/// take a lock.
#[derive(Debug)]
pub struct Tracer {
    /// Stops all threads but the calling one. A thread that was about to run the instruction at the
    /// first address of a pair goes on at the second. Their stack pointers are written into the
    /// second slice; the result is how many there are. `None`: no thread was stopped.
    pub stop: fn(&[[u64; 2]], &mut [u64]) -> Option<usize>,
    /// Tells whether the tracer still has them.
    pub holds: fn() -> bool,
    /// Lets them go on.
    pub go_on: fn(),
}

static TRACER: AtomicPtr<Tracer> = AtomicPtr::new(ptr::null_mut());

/// The thread that speaks with it.
static SPEAKER: AtomicU32 = AtomicU32::new(0);

impl Tracer {
    /// Has the tracer help with the changes of code that `f` makes on this thread.
    pub fn during<T>(&'static self, f: impl FnOnce() -> T) -> T {
        struct Reset;
        impl Drop for Reset {
            fn drop(&mut self) {
                SPEAKER.store(0, Ordering::Release);
            }
        }
        TRACER.store(ptr::from_ref(self).cast_mut(), Ordering::Release);
        SPEAKER.store(sys::gettid(), Ordering::Release);
        let _reset = Reset;
        f()
    }

    fn of_this_thread() -> Option<&'static Self> {
        let is_speaker = SPEAKER.load(Ordering::Acquire) == sys::gettid();
        // SAFETY: null, or from a reference that lives for ever.
        is_speaker.then(|| unsafe { TRACER.load(Ordering::Acquire).as_ref() }).flatten()
    }
}

/// The calling thread's tracer, and room for what is said.
#[derive(Debug)]
pub(super) struct Traced {
    tracer: &'static Tracer,
    moves: Vec<[u64; 2]>,
    stacks: Vec<u64>,
}

impl Traced {
    /// Has room for the stacks of so many threads. `None`: this thread has no tracer.
    pub(super) fn new(threads: usize) -> Option<Self> {
        let tracer = Tracer::of_this_thread()?;
        Some(Self { tracer, moves: Vec::new(), stacks: vec![0; threads] })
    }

    /// Notes where threads go that stand in the middle of what is about to change.
    pub(super) fn prepare(&mut self, changes: &[Change]) {
        self.moves.clear();
        for c in changes {
            let inner = c.inner.iter().zip(c.at..).filter(|(to, _)| **to != 0);
            self.moves.extend(inner.map(|(to, at)| [at, *to]));
        }
        self.moves.sort_unstable();
    }

    /// Stops all other threads; their stack pointers. Nothing is allocated.
    pub(super) fn stop(&mut self) -> Option<&[u64]> {
        let count = (self.tracer.stop)(&self.moves, &mut self.stacks)?;
        self.stacks.get(..count)
    }

    pub(super) fn holds(&self) -> bool {
        (self.tracer.holds)()
    }

    pub(super) fn go_on(&self) {
        (self.tracer.go_on)();
    }
}
