//! Changing code that other threads may be running.
//!
//! Where somebody outside can stop all threads, it does so and writes the code ([`tracer`]). Otherwise
//! the process has to do it by itself. The order of things, each for all patch sites at once:
//!
//! 1. Running threads are stopped by a signal. Threads asleep in system calls stay there.
//!    Nothing may be allocated from here on, nor may any lock be taken: a stopped thread may hold
//!    it.
//! 2. Every instruction of the bytes to change becomes a breakpoint, and all cores notice
//!    (`membarrier`). A thread that wakes up and runs into a patch site is sent on by the `SIGTRAP`
//!    handler, as if it had found the change made.
//! 3. Threads that woke up in between are stopped too. A stopped thread that is about to run an
//!    instruction in the middle of a patch site goes on at that instruction's copy, by the
//!    relocated-instruction map; so does one whose signal handler would return there.
//! 4. All bytes but the first are written; cores notice; then the first; cores notice. The stopped
//!    threads go on.
//!
//! A running thread that blocks the signal, and so cannot be stopped in time, makes the changes
//! impossible. So does one that waits for a child in its own memory (`vfork`, `posix_spawn`):
//! nobody sees the child, which may have no handler for breakpoints. A thread that sleeps with
//! `SIGTRAP` blocked is given some time to unblock it. One that does not, such as a thread in
//! `sigwait`, is killed by the kernel only if it wakes up into one of the sites while they have
//! breakpoints. That takes microseconds, because few sites are changed at once ([`AT_ONCE`]).
//! Taking hooks out needs none of this ([`crate::patch`]).

use crate::jump::PATCH;
use crate::patch::change::{Change, current};
use crate::patch::writable::WritableCode;
use crate::skip::Skip;
use crate::sys::{self, Barrier};
use crate::threads;
use breakpoints::{BREAKPOINT, Traps, activate, announce};
use limbo::Limbo;
use saved_contexts::Copy;
use stop_the_world::{Sleepers, Stop, with_world_stopped};
pub use tracer::{Edit, Move, Tracer, Unstopped};

mod breakpoints;
mod goroutines;
mod handlers;
mod limbo;
mod saved_contexts;
mod stop_the_world;
mod tracer;
pub(crate) mod vacancy;

/// Most patch sites that have breakpoints at the same time.
pub(crate) const AT_ONCE: usize = 256;

/// Limbo lists that are kept from one change to the next.
#[derive(Debug, Default)]
pub(crate) struct LimboLists {
    traps: Limbo<Traps>,
    stops: Limbo<Stop>,
}

impl LimboLists {
    fn collect(&mut self) {
        self.traps.collect();
        self.stops.collect();
    }
}

/// Makes all changes while other threads run.
///
/// # Safety
/// As [`crate::patch::apply`], and the code of these changes is writable.
pub(crate) unsafe fn apply(
    writable: &WritableCode,
    changes: &[Change],
    limbo: &mut LimboLists,
) -> Vec<Result<(), Skip>> {
    let Ok(tasks) = threads::Tasks::open() else {
        return vec![Err(Skip::Protected { errno: 2 }); changes.len()];
    };
    // SAFETY: the caller's promise.
    let traced = Tracer::of_this_thread().map(|t| unsafe { t.apply(changes, tasks.count()) });
    let mut results = traced.unwrap_or_default();
    let rest = changes.get(results.len()..).unwrap_or_default();
    // Signals reach threads only: of goroutines that are suspended nobody knows where.
    if rest.iter().any(|c| c.goroutines.is_some() && c.inner.iter().any(|to| *to != 0)) {
        results.resize(changes.len(), Err(Skip::Suspended));
    } else if !rest.is_empty() {
        // SAFETY: the caller's promise.
        results.extend(unsafe { apply_by_signals(writable, rest, &tasks, limbo) });
    }
    results
}

/// Makes changes while other threads run, [`AT_ONCE`] at a time.
///
/// # Safety
/// As [`apply`].
unsafe fn apply_by_signals(
    writable: &WritableCode,
    changes: &[Change],
    tasks: &threads::Tasks,
    limbo: &mut LimboLists,
) -> Vec<Result<(), Skip>> {
    limbo.collect();
    let fail = |skip: Skip| vec![Err(skip); changes.len()];
    let signal = match handlers::install() {
        Ok(s) => s,
        Err(skip) => return fail(skip),
    };
    let mut copy = Copy::new();
    // More than there are: some come while this goes on.
    let mut sleepers = Sleepers::new(tasks.count() + 1024);
    announce(changes, &mut limbo.traps);
    let mut results: Vec<Result<(), Skip>> = Vec::with_capacity(changes.len());
    for some in changes.chunks(AT_ONCE) {
        activate(some, true);
        let done = results.len();
        // SAFETY: the caller's promise; the other threads are stopped.
        with_world_stopped(
            tasks,
            signal,
            &mut copy,
            &mut sleepers,
            &mut limbo.stops,
            |stop_all| unsafe { change(writable, some, stop_all, &mut results) },
        );
        // Nothing was done when some thread could not be stopped.
        for _ in results.len()..done + some.len() {
            results.push(Err(Skip::Busy { tid: 0 }));
        }
        activate(some, false);
    }
    results
}

/// Makes some changes, and adds a result for each to those there are.
///
/// # Safety
/// As [`apply`]; all other threads are stopped or asleep, and the traps of the changes are active.
unsafe fn change(
    writable: &WritableCode,
    changes: &[Change],
    stop_all: &mut dyn FnMut() -> Result<(), u32>,
    results: &mut Vec<Result<(), Skip>>,
) {
    // SAFETY: bytes of the changes: a breakpoint, for which the trap says what is done, or what the
    // caller vouches for.
    let write = |at: u64, bytes: &[u8]| unsafe { writable.write(at, bytes) };
    let before = results.len();
    for c in changes {
        // SAFETY: the caller's promise.
        let untouched = unsafe { current(c.at) } == c.old;
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
        let inner = c.inner.iter().enumerate().filter(|(_, to)| **to != 0);
        inner.map(|(n, _)| c.at + n as u64).try_for_each(|at| write(at, &[BREAKPOINT]))
    });
    let _ = sys::membarrier(Barrier::SyncCore);
    if changes.iter().any(inner)
        && let Err(tid) = stop_all()
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
