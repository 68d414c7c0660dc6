//! What is done once in a process, and again in a child that was forked in the middle of it.

use std::sync::atomic::{AtomicU32, Ordering};

use crate::sys;

/// Runs something once. Unlike [`std::sync::Once`], which waits for a thread that is not there, a
/// child that another thread forked meanwhile begins anew.
#[derive(Debug)]
pub(crate) struct ForkOnce {
    /// 0, the process that is at it, or [`DONE`].
    state: AtomicU32,
}

/// No process has this id.
const DONE: u32 = u32::MAX;

impl ForkOnce {
    /// Makes one that has not run.
    pub(crate) const fn new() -> Self {
        Self { state: AtomicU32::new(0) }
    }

    /// Runs `f` if that is still to be done. It is done when this returns, by whatever thread; but
    /// `f` must not come here again.
    pub(crate) fn call(&self, f: impl FnOnce()) {
        // What was done is seen: pairs with the Release below.
        let mut seen = self.state.load(Ordering::Acquire);
        let own = if seen == DONE { return } else { sys::getpid() };
        loop {
            if seen == DONE {
                return;
            }
            if seen == own {
                sys::yield_now();
                seen = self.state.load(Ordering::Acquire);
                continue;
            }
            // Nobody's, or a thread's of the process that this one was forked by.
            let taken =
                self.state.compare_exchange(seen, own, Ordering::Acquire, Ordering::Acquire);
            match taken {
                Ok(_) => break,
                Err(now) => seen = now,
            }
        }
        f();
        self.state.store(DONE, Ordering::Release);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn all_threads_find_it_done_once() {
        static ONCE: ForkOnce = ForkOnce::new();
        static RUNS: AtomicU32 = AtomicU32::new(0);
        std::thread::scope(|scope| {
            for _ in 0..8 {
                scope.spawn(|| {
                    ONCE.call(|| {
                        RUNS.fetch_add(1, Ordering::Relaxed);
                    });
                    assert_eq!(RUNS.load(Ordering::Relaxed), 1);
                });
            }
        });
    }

    /// The state is what a child finds whose parent was at it when another thread forked.
    #[test]
    fn what_another_process_began_is_done_anew() {
        let once = ForkOnce { state: AtomicU32::new(sys::getpid() ^ 1) };
        let mut runs = 0;
        once.call(|| runs += 1);
        once.call(|| runs += 1);
        assert_eq!(runs, 1);
    }
}
