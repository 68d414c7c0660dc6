//! Changing code that other threads may be running.
//!
//! The order of things, each for all places at once:
//!
//! 1. Running threads are halted by a signal. Threads asleep in system calls are left there.
//!    Nothing may be allocated from here on, nor may any lock be taken: a halted thread may hold
//!    it.
//! 2. Every instruction of the bytes to change becomes a breakpoint, and all cores notice
//!    (`membarrier`). A thread that wakes up and runs into a place is sent on by the `SIGTRAP`
//!    handler, as if it had found the change made.
//! 3. Threads that woke up in between are halted too. A halted thread that is about to run an
//!    instruction in the middle of a place goes on at that instruction's copy; so does one whose
//!    signal handler would return there.
//! 4. All bytes but the first are written; cores notice; then the first; cores notice. The halted
//!    threads go on.
//!
//! A thread that runs, and cannot be halted in time, because it blocks the signal, makes the places
//! impossible. So does one that waits for a child in its own memory (`vfork`, `posix_spawn`):
//! nobody sees the child, which may have no handler for breakpoints. A thread that sleeps with
//! `SIGTRAP` blocked is given some time to let it through; one that does not, as a thread that
//! sleeps in `sigwait`, would have to wake up into one of the places within these microseconds to
//! be killed by the kernel. So that they are microseconds, few places are changed at once
//! ([`AT_ONCE`]). Hooks are taken out in another way ([`crate::patch`]).

use crate::patch::{Change, Detour, Window};
use crate::skip::Skip;
use crate::spot::PATCH;
use crate::sys::{self, Barrier};
use crate::{signals, threads};
use std::ptr;
use std::sync::atomic::{AtomicBool, AtomicPtr, AtomicU32, AtomicU64, AtomicUsize, Ordering};

const BREAKPOINT: u8 = 0xcc;
/// How often a thread is looked at, with a tenth of a millisecond in between, before it counts as
/// out of reach.
const PATIENCE: u32 = 3000;
/// How often, while it sleeps with `SIGTRAP` blocked.
const PATIENCE_WITH_BLOCKED: u32 = 100;
/// Most places that have breakpoints at the same time.
pub(crate) const AT_ONCE: usize = 256;

/// What a thread that hits a breakpoint does.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Trapped {
    /// Goes on there.
    Jump(u64),
    /// Goes on there as if called.
    Call(u64),
    /// Runs the place again: the breakpoint is gone.
    Gone,
    /// It is somebody else's.
    Foreign,
}

/// Where a breakpoint of ours is or was.
#[derive(Debug)]
struct Trap {
    at: u64,
    to: u64,
    call: bool,
    /// In the middle of a place. Those stay valid for ever: a thread may have hit one long before
    /// its handler gets to run.
    inner: bool,
    active: AtomicBool,
}

/// All breakpoints, by address.
#[derive(Debug)]
struct Traps(Vec<Trap>);

/// The threads that are halted during one change.
#[derive(Debug)]
struct Halt {
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

static TRAPS: AtomicPtr<Traps> = AtomicPtr::new(ptr::null_mut());
static HALT: AtomicPtr<Halt> = AtomicPtr::new(ptr::null_mut());
/// Handlers that may be reading one of the two.
static READERS: AtomicUsize = AtomicUsize::new(0);

/// Tells the engine's signal from others by its value.
pub(crate) fn token() -> u64 {
    ptr::from_ref(&HALT) as u64
}

/// What is left from one change to the next.
#[derive(Debug, Default)]
pub(crate) struct Leftovers {
    traps: Vec<Garbage<Traps>>,
    halts: Vec<Garbage<Halt>>,
}

#[derive(Debug)]
struct Garbage<T>(*mut T);

// SAFETY: only the holder of the engine's lock uses it.
unsafe impl<T> Send for Garbage<T> {}

impl Leftovers {
    /// Frees what no handler can be reading. New handlers find the current ones only.
    fn collect(&mut self) {
        if READERS.load(Ordering::SeqCst) == 0 {
            // SAFETY: each pointer came from a box, is out of use, and has no reader.
            self.traps.drain(..).for_each(|g| drop(unsafe { Box::from_raw(g.0) }));
            // SAFETY: as above.
            self.halts.drain(..).for_each(|g| drop(unsafe { Box::from_raw(g.0) }));
        }
    }
}

/// While there is one, neither of the two is freed.
struct Reading;

impl Reading {
    fn begin() -> Self {
        READERS.fetch_add(1, Ordering::SeqCst);
        Self
    }

    fn traps(&self) -> Option<&Traps> {
        // SAFETY: from a box, and freed only when nobody is reading.
        unsafe { TRAPS.load(Ordering::SeqCst).as_ref() }
    }

    fn find(&self, at: u64) -> Option<&Trap> {
        let traps = self.traps()?;
        traps.0.binary_search_by_key(&at, |t| t.at).ok().and_then(|i| traps.0.get(i))
    }

    /// The copy of an instruction in the middle of a place.
    fn twin(&self, at: u64) -> Option<u64> {
        self.find(at).filter(|t| t.inner).map(|t| t.to)
    }
}

impl Drop for Reading {
    fn drop(&mut self) {
        READERS.fetch_sub(1, Ordering::SeqCst);
    }
}

/// Decides about a breakpoint at `at`. Runs in a signal handler.
///
/// # Safety
/// The calling thread has just run the instruction at this address.
pub(crate) unsafe fn trapped(at: u64) -> Trapped {
    let reading = Reading::begin();
    if let Some(t) = reading.find(at)
        && (t.inner || t.active.load(Ordering::Acquire))
    {
        return if t.call { Trapped::Call(t.to) } else { Trapped::Jump(t.to) };
    }
    // SAFETY: the caller's promise.
    if unsafe { (at as *const u8).read_volatile() } == BREAKPOINT {
        Trapped::Foreign
    } else {
        Trapped::Gone
    }
}

/// Halts the calling thread, whose signal handler this is, until the change is made.
pub(crate) fn halt(rip: &mut u64, stack: u64) {
    let reading = Reading::begin();
    // SAFETY: from a box, and freed only when nobody is reading.
    let Some(halt) = (unsafe { HALT.load(Ordering::SeqCst).as_ref() }) else { return };
    if let Some(to) = reading.twin(*rip) {
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
    fn gather(
        &self,
        tasks: &threads::Tasks,
        signal: i32,
        copy: &mut threads::Copy,
    ) -> Result<(), u32> {
        let info = signals::Info::nudge(signal, token());
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
                    threads::State::Asleep { stack, rip } if reading.twin(rip).is_none() => {
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
    fn search(&self, reading: &Reading, copy: &mut threads::Copy) {
        let stack = self.stack.load(Ordering::Acquire);
        if self.searched.swap(stack, Ordering::Relaxed) != stack {
            // SAFETY: the word is the instruction pointer in a context that the thread, which is
            // halted or asleep, goes back to: an instruction that a breakpoint is about
            // to replace, whose copy does the same.
            copy.redirect(stack, |at| reading.twin(at), |at, to| unsafe { sys::copy_out(at, &to) });
        }
    }
}

/// Makes all changes while other threads run, [`AT_ONCE`] at a time.
///
/// # Safety
/// As [`crate::patch::apply`], and the window is open for these changes.
pub(crate) unsafe fn apply(
    window: &Window,
    changes: &[Change],
    left: &mut Leftovers,
) -> Vec<Result<(), Skip>> {
    left.collect();
    let fail = |skip: Skip| vec![Err(skip); changes.len()];
    let signal = match signals::install() {
        Ok(s) => s,
        Err(errno) => return fail(Skip::Protected { errno }),
    };
    let Ok(tasks) = threads::Tasks::open() else { return fail(Skip::Protected { errno: 2 }) };
    let mut copy = threads::Copy::new();
    let old = TRAPS.swap(Box::into_raw(Box::new(merge(changes))), Ordering::SeqCst);
    let mut results: Vec<Result<(), Skip>> = Vec::with_capacity(changes.len());
    for some in changes.chunks(AT_ONCE) {
        activate(some, true);
        let done = results.len();
        // SAFETY: the caller's promise; the other threads are halted.
        with_halted(&tasks, signal, &mut copy, left, |gather| unsafe {
            change(window, some, gather, &mut results)
        });
        // Nothing was done when some thread could not be halted.
        for _ in results.len()..done + some.len() {
            results.push(Err(Skip::Busy { tid: 0 }));
        }
        activate(some, false);
    }
    if !old.is_null() {
        left.traps.push(Garbage(old));
    }
    results
}

/// Says whether the breakpoints of changes are ours now.
fn activate(changes: &[Change], active: bool) {
    let reading = Reading::begin();
    for c in changes {
        if let Some(t) = reading.find(c.at) {
            t.active.store(active, Ordering::Release);
        }
    }
}

/// Calls `f` while all other threads are halted or asleep; not at all when one could not be halted.
/// `f` gets what halts those that woke up since.
fn with_halted(
    tasks: &threads::Tasks,
    signal: i32,
    copy: &mut threads::Copy,
    left: &mut Leftovers,
    f: impl FnOnce(&mut dyn FnMut() -> Result<(), u32>),
) {
    left.collect();
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
    left.halts.push(Garbage(halt));
}

/// The table with the breakpoints of `changes` added to those there were.
fn merge(changes: &[Change]) -> Traps {
    let reading = Reading::begin();
    let old = reading.traps();
    let mut all: Vec<Trap> = Vec::with_capacity(old.map_or(0, |t| t.0.len()) + changes.len() * 3);
    for c in changes {
        let (to, call) = match c.head {
            Detour::Jump(to) => (to, false),
            Detour::Call(to) => (to, true),
        };
        all.push(Trap { at: c.at, to, call, inner: false, active: AtomicBool::new(false) });
        let inner = c.inner.iter().enumerate().filter(|(_, to)| **to != 0);
        all.extend(inner.map(|(n, to)| Trap {
            at: c.at + n as u64,
            to: *to,
            call: false,
            inner: true,
            active: AtomicBool::new(false),
        }));
    }
    // Stable sort and de-duplication: what is new stands before what was there.
    for t in old.into_iter().flat_map(|t| &t.0) {
        all.push(Trap {
            at: t.at,
            to: t.to,
            call: t.call,
            inner: t.inner,
            active: AtomicBool::new(false),
        });
    }
    all.sort_by_key(|t| t.at);
    all.dedup_by_key(|t| t.at);
    Traps(all)
}

/// Makes some changes, and adds a result for each to those there are.
///
/// # Safety
/// As [`apply`]; all other threads are halted or asleep, and the traps of the changes are active.
unsafe fn change(
    window: &Window,
    changes: &[Change],
    gather: &mut dyn FnMut() -> Result<(), u32>,
    results: &mut Vec<Result<(), Skip>>,
) {
    // SAFETY: bytes of the changes: a breakpoint, for which the trap says what is done, or what the
    // caller vouches for.
    let write = |at: u64, bytes: &[u8]| unsafe { window.write(at, bytes) };
    let before = results.len();
    for c in changes {
        // SAFETY: the caller's promise.
        let untouched = unsafe { crate::patch::current(c.at) } == c.old;
        results.push(if untouched { write(c.at, &[BREAKPOINT]) } else { Err(Skip::Foreign) });
    }
    let each = |results: &mut Vec<Result<(), Skip>>, f: &dyn Fn(&Change) -> Result<(), Skip>| {
        for (r, c) in results.iter_mut().skip(before).zip(changes) {
            if r.is_ok()
                && let Err(skip) = f(c)
            {
                *r = Err(skip);
            }
        }
    };
    let inner = |c: &Change| c.inner.iter().any(|to| *to != 0);
    // First all cores stop at the first bytes; then nobody new gets in the middle, and the
    // breakpoints there are for those inside.
    let _ = sys::membarrier(Barrier::SyncCore);
    each(results, &|c| {
        let places = c.inner.iter().enumerate().filter(|(_, to)| **to != 0);
        places.map(|(n, _)| c.at + n as u64).try_for_each(|at| write(at, &[BREAKPOINT]))
    });
    let _ = sys::membarrier(Barrier::SyncCore);
    if changes.iter().any(inner)
        && let Err(tid) = gather()
    {
        // Back to what it was: the middle first, then the first byte.
        let back = |c: &Change, n: usize, m: usize| {
            write(c.at + n as u64, c.old.get(n..m).unwrap_or_default())
        };
        each(results, &|c| if inner(c) { back(c, 1, PATCH) } else { Ok(()) });
        let _ = sys::membarrier(Barrier::SyncCore);
        each(results, &|c| {
            if inner(c) { back(c, 0, 1).and(Err(Skip::Busy { tid: tid as i32 })) } else { Ok(()) }
        });
    }
    each(results, &|c| write(c.at + 1, c.new.get(1..).unwrap_or_default()));
    let _ = sys::membarrier(Barrier::SyncCore);
    each(results, &|c| write(c.at, c.new.get(..1).unwrap_or_default()));
    let _ = sys::membarrier(Barrier::SyncCore);
}
