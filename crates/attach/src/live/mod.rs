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
    let before = results.len();
    // Who has put a breakpoint there keeps it.
    // SAFETY: the caller's promise.
    let is_old = |c: &Change| unsafe { current(c.at) } == c.old;
    results.extend(changes.iter().map(|c| if is_old(c) { Ok(()) } else { Err(Skip::Foreign) }));
    let results = results.get_mut(before..).unwrap_or_default();
    // SAFETY: bytes of the changes: breakpoints, for which the traps say what is done, or what the
    // caller vouches for.
    let step = |results: &mut [_], which: fn(&Change) -> bool, from: State, to: State| unsafe {
        step(writable, changes.iter().zip(results).filter(|(c, _)| which(c)), from, to);
    };
    // First all cores stop at the first bytes; then nobody new gets in the middle, and the
    // breakpoints there are for those inside.
    step(results, any, old, first_of_old);
    step(results, any, first_of_old, all_of_old);
    if changes.iter().any(has_inner)
        && let Err(tid) = stop_all()
    {
        // Back to what it was: the middle first, then the first byte.
        step(results, has_inner, all_of_old, first_of_old);
        step(results, has_inner, first_of_old, old);
        for (c, result) in changes.iter().zip(&mut *results) {
            if result.is_ok() && has_inner(c) {
                *result = Err(Skip::Busy { tid: tid as i32 });
            }
        }
    }
    step(results, any, all_of_old, first_of_new);
    step(results, any, first_of_new, new);
}

/// The five bytes of a change at some time.
type State = fn(&Change) -> [u8; PATCH];

/// Takes changes without an error one step further, and has all cores know of it.
///
/// # Safety
/// As for [`WritableCode::swap`].
unsafe fn step<'a>(
    writable: &WritableCode,
    changes: impl Iterator<Item = (&'a Change, &'a mut Result<(), Skip>)>,
    from: State,
    to: State,
) {
    for (c, result) in changes.filter(|(_, result)| result.is_ok()) {
        // SAFETY: the caller's promise.
        let swap = |from: State, to: State| unsafe { writable.swap(c.at, from(c), to(c)) };
        *result = swap(from, to);
        if result.is_err() {
            // A thread that slept has closed the library; or somebody else changes the code.
            for now in [first_of_new, all_of_old, first_of_old] {
                let _ = swap(now, old);
            }
        }
    }
    let _ = sys::membarrier(Barrier::SyncCore);
}

fn any(_: &Change) -> bool {
    true
}

/// Tells whether an instruction begins in the middle.
fn has_inner(c: &Change) -> bool {
    c.inner.iter().any(|to| *to != 0)
}

fn old(c: &Change) -> [u8; PATCH] {
    c.old
}

fn new(c: &Change) -> [u8; PATCH] {
    c.new
}

fn first_of_old(c: &Change) -> [u8; PATCH] {
    first(c.old)
}

fn first_of_new(c: &Change) -> [u8; PATCH] {
    first(c.new)
}

/// The old bytes of a change with a breakpoint for each of their instructions.
fn all_of_old(c: &Change) -> [u8; PATCH] {
    let mut bytes = first(c.old);
    for (byte, _) in bytes.iter_mut().zip(c.inner).filter(|(_, to)| *to != 0) {
        *byte = BREAKPOINT;
    }
    bytes
}

/// Bytes with a breakpoint as the first.
fn first(mut bytes: [u8; PATCH]) -> [u8; PATCH] {
    bytes[0] = BREAKPOINT;
    bytes
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::patch::change::{Detour, Hooked};

    const OLD: [u8; PATCH] = [0x53, 0x48, 0x89, 0xfb, 0x90];
    const NEW: [u8; PATCH] = [0xe9, 1, 2, 3, 4];
    const OTHER: [u8; PATCH] = [0x0f, 0x1f, 0x44, 0, 0];

    /// Changes bytes that begin so; `meanwhile` has them once the threads stand.
    fn changed(
        at: usize,
        begin: [u8; PATCH],
        meanwhile: &dyn Fn(&mut [u8]) -> Result<(), u32>,
    ) -> (Result<(), Skip>, [u8; PATCH]) {
        let mut memory = [0_u64; 2];
        let base = memory.as_mut_ptr().cast::<u8>();
        // SAFETY: memory of this function.
        let bytes = || unsafe { std::slice::from_raw_parts_mut(base.wrapping_add(at), PATCH) };
        bytes().copy_from_slice(&begin);
        let change = Change {
            at: base as u64 + at as u64,
            old: OLD,
            new: NEW,
            text: 0..u64::MAX,
            head: Detour::Jump(0),
            inner: [0, 1, 0, 0, 1],
            hooked: Hooked { entry: NEW, meta: 0 },
            goroutines: None,
        };
        let mut results = Vec::new();
        let writable = WritableCode::of_memory();
        // SAFETY: nobody runs it.
        unsafe { super::change(&writable, &[change], &mut || meanwhile(bytes()), &mut results) };
        (results.pop().expect("one"), std::array::from_fn(|n| bytes()[n]))
    }

    #[test]
    fn only_what_is_as_it_was_is_changed() {
        for at in 0..8 {
            assert_eq!(changed(at, OLD, &|_| Ok(())), (Ok(()), NEW));
            let busy = Err(Skip::Busy { tid: 7 });
            assert_eq!(changed(at, OLD, &|_| Err(7)), (busy, OLD), "{at}");
            // A debugger's.
            let stopped = [BREAKPOINT, OLD[1], OLD[2], OLD[3], OLD[4]];
            let foreign = || Err(Skip::Foreign);
            assert_eq!(changed(at, stopped, &|_| Ok(())), (foreign(), stopped), "{at}");
            // Another library, and one byte.
            let replace = |bytes: &mut [u8]| {
                bytes.copy_from_slice(&OTHER);
                Ok(())
            };
            assert_eq!(changed(at, OLD, &replace), (foreign(), OTHER), "{at}");
            for n in 0..PATCH {
                let spoil = |bytes: &mut [u8]| {
                    bytes[n] = 0x77;
                    Ok(())
                };
                let (result, now) = changed(at, OLD, &spoil);
                assert_eq!(result, foreign());
                // What lies in another word than that byte is as it was.
                for m in (0..PATCH).filter(|m| (at + m) / 8 != (at + n) / 8) {
                    assert_eq!(now[m], OLD[m], "{at} {n} {m}");
                }
                assert_eq!(now[n], 0x77, "{at} {n}");
            }
        }
    }
}
