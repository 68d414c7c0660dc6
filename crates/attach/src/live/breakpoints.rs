//! The breakpoints of a change, and of all changes before it, as signal handlers look them up.

use super::limbo::{Limbo, Reading};
use crate::patch::change::{Change, Detour};
use std::ptr;
use std::sync::atomic::{AtomicBool, AtomicPtr, Ordering};

pub(crate) const BREAKPOINT: u8 = 0xcc;

/// What a thread that hits a breakpoint does.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Trapped {
    /// Goes on there.
    Jump(u64),
    /// Goes on there as if called.
    Call(u64),
    /// Runs the instruction again: the breakpoint is gone.
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
    /// In the middle of a patch site. Those stay valid for ever: a thread may have hit one long
    /// before its handler gets to run.
    inner: bool,
    active: AtomicBool,
}

/// All breakpoints, by address.
#[derive(Debug)]
pub(crate) struct Traps(Vec<Trap>);

static TRAPS: AtomicPtr<Traps> = AtomicPtr::new(ptr::null_mut());

fn all(_reading: &Reading) -> Option<&Traps> {
    // SAFETY: from a box, and freed only when nobody is reading.
    unsafe { TRAPS.load(Ordering::SeqCst).as_ref() }
}

fn find(reading: &Reading, at: u64) -> Option<&Trap> {
    let traps = all(reading)?;
    traps.0.binary_search_by_key(&at, |t| t.at).ok().and_then(|i| traps.0.get(i))
}

/// Looks an instruction in the middle of a patch site up in the relocated-instruction map: where
/// its copy is.
pub(super) fn relocated(reading: &Reading, at: u64) -> Option<u64> {
    find(reading, at).filter(|t| t.inner).map(|t| t.to)
}

/// Makes the breakpoints of `changes` known, besides those there were. The old table goes to
/// `limbo`.
pub(super) fn announce(changes: &[Change], limbo: &mut Limbo<Traps>) {
    let old = TRAPS.swap(Box::into_raw(Box::new(merge(changes))), Ordering::SeqCst);
    // SAFETY: from a box, by this function, and no handler finds it any more.
    unsafe { limbo.retire(old) };
}

/// Decides about a breakpoint at `at`. Runs in a signal handler.
///
/// # Safety
/// The calling thread has just run the instruction at this address.
pub(crate) unsafe fn trapped(at: u64) -> Trapped {
    let reading = Reading::begin();
    if let Some(t) = find(&reading, at)
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

/// Says whether the breakpoints of changes are ours now.
pub(crate) fn activate(changes: &[Change], active: bool) {
    let reading = Reading::begin();
    for c in changes {
        if let Some(t) = find(&reading, c.at) {
            t.active.store(active, Ordering::Release);
        }
    }
}

/// The table with the breakpoints of `changes` added to those there were.
fn merge(changes: &[Change]) -> Traps {
    let reading = Reading::begin();
    let old = all(&reading);
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
