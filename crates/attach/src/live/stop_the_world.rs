//! Stopping the world: all other threads stop, in a signal handler of ours or asleep in a system
//! call, until a change is made.

use super::breakpoints::{relocated, relocated_here};
use super::limbo::{Limbo, Reading};
use super::saved_contexts::Copy;
use crate::signals::context::Info;
use crate::{sys, threads};
use std::ptr;
use std::sync::atomic::{AtomicPtr, AtomicU32, AtomicU64, AtomicUsize, Ordering};

/// How often a thread is looked at, with a tenth of a millisecond in between, before it counts as
/// out of reach.
const PATIENCE: u32 = 3000;

/// How often, while it sleeps with `SIGTRAP` blocked.
const PATIENCE_WITH_BLOCKED: u32 = 100;

/// The threads that are stopped during one change.
#[derive(Debug)]
pub(crate) struct Stop {
    threads: Vec<StoppedThread>,
    used: AtomicUsize,
    go_on: AtomicU32,
}

#[derive(Debug)]
struct StoppedThread {
    tid: AtomicU32,
    state: AtomicU32,
    /// Where the thread's stack was when it stopped, or when it was last seen asleep.
    stack: AtomicU64,
    /// Where on its stack saved contexts have been looked for.
    searched: AtomicU64,
}

const ASKED: u32 = 1;

const STOPPED: u32 = 2;

static STOP: AtomicPtr<Stop> = AtomicPtr::new(ptr::null_mut());

/// Tells the engine's signal from others by its value.
pub(crate) fn token() -> u64 {
    ptr::from_ref(&STOP) as u64
}

/// Stops the calling thread, whose signal handler this is, until the change is made. It was about to
/// run the instruction at `rip`.
pub(crate) fn stop_here(rip: &mut u64, stack: u64) {
    let reading = Reading::begin();
    // SAFETY: from a box, and freed only when nobody is reading.
    let Some(stop) = (unsafe { STOP.load(Ordering::SeqCst).as_ref() }) else { return };
    // SAFETY: the caller's signal frame says so.
    if let Some(to) = unsafe { relocated_here(&reading, *rip) } {
        *rip = to;
    }
    let me = sys::gettid();
    let used = stop.used.load(Ordering::Acquire);
    let Some(thread) = stop.threads.iter().take(used).find(|s| s.tid.load(Ordering::Acquire) == me)
    else {
        return;
    };
    thread.stack.store(stack, Ordering::Release);
    thread.state.store(STOPPED, Ordering::Release);
    while stop.go_on.load(Ordering::Acquire) == 0 {
        sys::wait(&stop.go_on, 0, 100_000_000);
    }
}

impl Stop {
    fn thread(&self, tid: u32) -> Option<&StoppedThread> {
        let used = self.used.load(Ordering::Acquire);
        if let Some(thread) =
            self.threads.iter().take(used).find(|s| s.tid.load(Ordering::Acquire) == tid)
        {
            return Some(thread);
        }
        let thread = self.threads.get(used)?;
        thread.tid.store(tid, Ordering::Release);
        self.used.store(used + 1, Ordering::Release);
        Some(thread)
    }

    /// Stops every running thread. The error is the thread that could not be.
    fn stop_all(
        &self,
        tasks: &threads::Tasks,
        signal: i32,
        copy: &mut Copy,
        sleepers: &mut Sleepers,
    ) -> Result<(), u32> {
        let info = Info::stop_request(signal, token());
        let me = sys::gettid();
        let nothing = AtomicU32::new(0);
        let reading = Reading::begin();
        self.threads.iter().for_each(|s| s.searched.store(0, Ordering::Relaxed));
        for round in 0..PATIENCE {
            let mut missing = None;
            tasks.each(|tid| {
                if tid == me {
                    return;
                }
                let Some(thread) = self.thread(tid) else { return missing = Some(tid) };
                let state = thread.state.load(Ordering::Acquire);
                if state == STOPPED {
                    return thread.search(&reading, copy);
                }
                match threads::state(tid) {
                    threads::State::Gone => return,
                    threads::State::Asleep { stack, rip }
                        if round < PATIENCE_WITH_BLOCKED
                            && !sleepers.is_known((tid, stack, rip))
                            && threads::blocks_traps(tid) =>
                    {
                        if round + 1 == PATIENCE_WITH_BLOCKED {
                            sleepers.remember((tid, stack, rip));
                        }
                        return missing = Some(tid);
                    }
                    threads::State::Asleep { stack, rip } if relocated(&reading, rip).is_none() => {
                        thread.stack.store(stack, Ordering::Release);
                        return thread.search(&reading, copy);
                    }
                    _ => {}
                }
                missing = Some(tid);
                if state != ASKED {
                    thread.state.store(ASKED, Ordering::Release);
                    sys::queue(tid, signal, &info);
                }
            });
            match missing {
                None => return Ok(()),
                Some(tid) => self.pause(tid, &nothing),
            }
        }
        Err(0)
    }

    /// Waits a little for the thread to stop.
    fn pause(&self, tid: u32, nothing: &AtomicU32) {
        for _ in 0..200 {
            if self.thread(tid).is_some_and(|s| s.state.load(Ordering::Acquire) == STOPPED) {
                return;
            }
            std::hint::spin_loop();
        }
        sys::wait(nothing, 0, 100_000);
    }
}

/// Threads that sleep with `SIGTRAP` blocked and were waited for: thread, stack and place. Pools of
/// threads often block all signals, and changes are many: while such a thread stays where it is, it
/// is not waited for once more.
#[derive(Debug)]
pub(crate) struct Sleepers(Vec<(u32, u64, u64)>);

impl Sleepers {
    /// Has room for those of a process with so many threads; it does not grow.
    pub(crate) fn new(threads: usize) -> Self {
        Self(Vec::with_capacity(threads))
    }

    fn is_known(&self, sleeper: (u32, u64, u64)) -> bool {
        self.0.contains(&sleeper)
    }

    fn remember(&mut self, sleeper: (u32, u64, u64)) {
        // Nothing may be allocated while threads are stopped.
        if let Some(known) = self.0.iter_mut().find(|(tid, ..)| *tid == sleeper.0) {
            *known = sleeper;
        } else if self.0.len() < self.0.capacity() {
            self.0.push(sleeper);
        }
    }
}

impl StoppedThread {
    /// Redirects the contexts saved on the thread's stack, once for each place where the stack was.
    fn search(&self, reading: &Reading, copy: &mut Copy) {
        let stack = self.stack.load(Ordering::Acquire);
        if self.searched.swap(stack, Ordering::Relaxed) != stack {
            // SAFETY: the word is the instruction pointer in a context that the thread, which is
            // stopped or asleep, goes back to: an instruction that a breakpoint is about
            // to replace, whose copy does the same.
            copy.redirect(
                stack,
                |at| relocated(reading, at),
                |at, to| unsafe { sys::copy_out(at, &to) },
            );
        }
    }
}

/// Calls `f` while all other threads are stopped or asleep; not at all when one could not be
/// stopped. `f` gets what stops those that woke up since.
pub(crate) fn with_world_stopped(
    tasks: &threads::Tasks,
    signal: i32,
    copy: &mut Copy,
    sleepers: &mut Sleepers,
    limbo: &mut Limbo<Stop>,
    f: impl FnOnce(&mut dyn FnMut() -> Result<(), u32>),
) {
    limbo.collect();
    let count = tasks.count();
    let thread = || StoppedThread {
        tid: AtomicU32::new(0),
        state: AtomicU32::new(0),
        stack: AtomicU64::new(0),
        searched: AtomicU64::new(0),
    };
    let threads = std::iter::repeat_with(thread).take(count + 1024).collect();
    let raw = Box::into_raw(Box::new(Stop {
        threads,
        used: AtomicUsize::new(0),
        go_on: AtomicU32::new(0),
    }));
    // SAFETY: the box lives until `collect` finds it unread.
    let stop = unsafe { &*raw };
    STOP.store(raw, Ordering::SeqCst);

    // From here to the end of the block: no allocation, no lock, and no handler of the program on
    // this thread, which might want one. Faults must still find their handlers.
    {
        let mask = sys::block_signals();
        if stop.stop_all(tasks, signal, copy, sleepers).is_ok() {
            f(&mut || stop.stop_all(tasks, signal, copy, sleepers));
        }
        STOP.store(ptr::null_mut(), Ordering::SeqCst);
        stop.go_on.store(1, Ordering::SeqCst);
        sys::wake(&stop.go_on);
        sys::set_signal_mask(mask);
    }
    // SAFETY: from the box above, and no handler finds it any more.
    unsafe { limbo.retire(raw) };
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_sleeper_is_known_as_long_as_it_stays_where_it_is() {
        let mut sleepers = Sleepers::new(2);
        sleepers.remember((7, 100, 200));
        assert!(sleepers.is_known((7, 100, 200)));
        assert!(!sleepers.is_known((7, 100, 201)) && !sleepers.is_known((8, 100, 200)));
        sleepers.remember((7, 100, 201));
        assert!(sleepers.is_known((7, 100, 201)) && !sleepers.is_known((7, 100, 200)));
        let room = sleepers.0.capacity();
        (0..2 * room as u32).for_each(|tid| sleepers.remember((100 + tid, 0, 0)));
        assert_eq!((sleepers.0.len(), sleepers.0.capacity()), (room, room));
    }
}
