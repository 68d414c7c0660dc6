//! Stopping the world: all other threads halt, in a signal handler of ours or asleep in a system call, until a
//! change is made.

use super::breakpoints::relocated;
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

/// The threads that are halted during one change.
#[derive(Debug)]
pub(crate) struct Halt {
    slots: Vec<Slot>,
    used: AtomicUsize,
    go_on: AtomicU32,
}

#[derive(Debug)]
struct Slot {
    tid: AtomicU32,
    state: AtomicU32,
    /// Where the thread's stack was when it halted, or when it was last seen asleep.
    stack: AtomicU64,
    /// Where on its stack saved contexts have been looked for.
    searched: AtomicU64,
}

const ASKED: u32 = 1;

const HALTED: u32 = 2;

static HALT: AtomicPtr<Halt> = AtomicPtr::new(ptr::null_mut());

/// Tells the engine's signal from others by its value.
pub(crate) fn token() -> u64 {
    ptr::from_ref(&HALT) as u64
}

/// Halts the calling thread, whose signal handler this is, until the change is made.
pub(crate) fn halt(rip: &mut u64, stack: u64) {
    let reading = Reading::begin();
    // SAFETY: from a box, and freed only when nobody is reading.
    let Some(halt) = (unsafe { HALT.load(Ordering::SeqCst).as_ref() }) else { return };
    if let Some(to) = relocated(&reading, *rip) {
        *rip = to;
    }
    let me = sys::gettid();
    let used = halt.used.load(Ordering::Acquire);
    let Some(slot) = halt.slots.iter().take(used).find(|s| s.tid.load(Ordering::Acquire) == me)
    else {
        return;
    };
    slot.stack.store(stack, Ordering::Release);
    slot.state.store(HALTED, Ordering::Release);
    while halt.go_on.load(Ordering::Acquire) == 0 {
        sys::wait(&halt.go_on, 0, 100_000_000);
    }
}

impl Halt {
    fn slot(&self, tid: u32) -> Option<&Slot> {
        let used = self.used.load(Ordering::Acquire);
        if let Some(slot) =
            self.slots.iter().take(used).find(|s| s.tid.load(Ordering::Acquire) == tid)
        {
            return Some(slot);
        }
        let slot = self.slots.get(used)?;
        slot.tid.store(tid, Ordering::Release);
        self.used.store(used + 1, Ordering::Release);
        Some(slot)
    }

    /// Halts every running thread. The error is the thread that could not be.
    fn gather(&self, tasks: &threads::Tasks, signal: i32, copy: &mut Copy) -> Result<(), u32> {
        let info = Info::nudge(signal, token());
        let me = sys::gettid();
        let nothing = AtomicU32::new(0);
        let reading = Reading::begin();
        self.slots.iter().for_each(|s| s.searched.store(0, Ordering::Relaxed));
        for round in 0..PATIENCE {
            let mut missing = None;
            tasks.each(|tid| {
                if tid == me {
                    return;
                }
                let Some(slot) = self.slot(tid) else { return missing = Some(tid) };
                let state = slot.state.load(Ordering::Acquire);
                if state == HALTED {
                    return slot.search(&reading, copy);
                }
                match threads::state(tid) {
                    threads::State::Gone => return,
                    threads::State::Asleep { .. }
                        if round < PATIENCE_WITH_BLOCKED && threads::blocks_traps(tid) =>
                    {
                        return missing = Some(tid);
                    }
                    threads::State::Asleep { stack, rip } if relocated(&reading, rip).is_none() => {
                        slot.stack.store(stack, Ordering::Release);
                        return slot.search(&reading, copy);
                    }
                    _ => {}
                }
                missing = Some(tid);
                if state != ASKED {
                    slot.state.store(ASKED, Ordering::Release);
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

    /// Waits a little for the thread to halt.
    fn pause(&self, tid: u32, nothing: &AtomicU32) {
        for _ in 0..200 {
            if self.slot(tid).is_some_and(|s| s.state.load(Ordering::Acquire) == HALTED) {
                return;
            }
            std::hint::spin_loop();
        }
        sys::wait(nothing, 0, 100_000);
    }
}

impl Slot {
    /// Redirects the contexts saved on the thread's stack, once for each place where the stack was.
    fn search(&self, reading: &Reading, copy: &mut Copy) {
        let stack = self.stack.load(Ordering::Acquire);
        if self.searched.swap(stack, Ordering::Relaxed) != stack {
            // SAFETY: the word is the instruction pointer in a context that the thread, which is
            // halted or asleep, goes back to: an instruction that a breakpoint is about
            // to replace, whose copy does the same.
            copy.redirect(
                stack,
                |at| relocated(reading, at),
                |at, to| unsafe { sys::copy_out(at, &to) },
            );
        }
    }
}

/// Calls `f` while all other threads are halted or asleep; not at all when one could not be halted.
/// `f` gets what halts those that woke up since.
pub(crate) fn with_halted(
    tasks: &threads::Tasks,
    signal: i32,
    copy: &mut Copy,
    limbo: &mut Limbo<Halt>,
    f: impl FnOnce(&mut dyn FnMut() -> Result<(), u32>),
) {
    limbo.collect();
    let mut count = 0;
    tasks.each(|_| count += 1);
    let slot = || Slot {
        tid: AtomicU32::new(0),
        state: AtomicU32::new(0),
        stack: AtomicU64::new(0),
        searched: AtomicU64::new(0),
    };
    let slots = std::iter::repeat_with(slot).take(count + 1024).collect();
    let halt = Box::into_raw(Box::new(Halt {
        slots,
        used: AtomicUsize::new(0),
        go_on: AtomicU32::new(0),
    }));
    // SAFETY: the box lives until `collect` finds it unread.
    let gathering = unsafe { &*halt };
    HALT.store(halt, Ordering::SeqCst);

    // From here to the end of the block: no allocation, no lock, and no handler of the program on
    // this thread, which might want one. Faults must still find their handlers.
    {
        let mask = sys::block_signals();
        if gathering.gather(tasks, signal, copy).is_ok() {
            f(&mut || gathering.gather(tasks, signal, copy));
        }
        HALT.store(ptr::null_mut(), Ordering::SeqCst);
        gathering.go_on.store(1, Ordering::SeqCst);
        sys::wake(&gathering.go_on);
        sys::set_signal_mask(mask);
    }
    // SAFETY: from the box above, and no handler finds it any more.
    unsafe { limbo.retire(halt) };
}
