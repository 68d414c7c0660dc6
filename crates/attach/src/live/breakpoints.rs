//! The breakpoints of a change, and of all changes before it, as signal handlers look them up.

use super::limbo::{Limbo, Reading};
use crate::jump::PATCH;
use crate::patch::change::{Change, Detour, Hooked, current};
use crate::sys;
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
    /// In the middle of a patch site.
    inner: bool,
    /// The change is being made.
    active: AtomicBool,
    /// The patch site, its bytes before the change, and those of its hooks.
    site: u64,
    old: [u8; PATCH],
    hooked: Hooked,
}

impl Trap {
    /// Tells whether a thread must not run the instruction here: it is in the middle of a change
    /// that is being made, or that is made. `bytes` reads the site's, unless the code is gone.
    ///
    /// Entries stay for ever, and another library may come to lie where one was closed. Its bytes
    /// are not those of a jump to an island, which no two patch sites share.
    fn is_covered(&self, bytes: impl FnOnce(u64) -> Option<[u8; PATCH]>) -> bool {
        let is_made = || bytes(self.site).is_some_and(|now| self.hooked.includes(self.site, now));
        self.inner && (self.active.load(Ordering::Acquire) || is_made())
    }

    /// Tells whether a thread that has hit the breakpoint is sent on. In the middle of a patch site
    /// that is so as well after the change was taken back, as the thread may have hit it long before
    /// its handler got to run: were it told to run the instruction again, another change could be
    /// made before it does, and nothing would say where the thread is.
    fn sends_on(&self, bytes: impl FnOnce(u64) -> Option<[u8; PATCH]>) -> bool {
        let is_ours = |now| now == self.old || self.hooked.includes(self.site, now);
        self.active.load(Ordering::Acquire) || (self.inner && bytes(self.site).is_some_and(is_ours))
    }
}

/// Reads the bytes of a patch site, which may not be mapped any more.
fn copied(site: u64) -> Option<[u8; PATCH]> {
    let mut word = [0];
    let got = sys::copy_in(&mut word, &[[site, PATCH as u64]]);
    word[0].to_le_bytes().first_chunk().copied().filter(|_| got == PATCH as i64)
}

/// Reads the bytes of a patch site for a thread that is at `at`, so that no system call is needed
/// where the site lies on that page: a sandbox may end the thread for one.
///
/// # Safety
/// Code is mapped at `at`.
unsafe fn read(site: u64, at: u64) -> Option<[u8; PATCH]> {
    const PAGE: u64 = 4096;
    let page = at & !(PAGE - 1);
    if site < page || site + PATCH as u64 > page + PAGE {
        return copied(site);
    }
    // SAFETY: on the page of `at`, which is mapped by the caller's promise.
    Some(unsafe { current(site) })
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
/// its copy is. `at` is anything.
pub(super) fn relocated(reading: &Reading, at: u64) -> Option<u64> {
    find(reading, at).filter(|t| t.is_covered(copied)).map(|t| t.to)
}

/// The same for the calling thread's own place, when a signal stopped it.
///
/// # Safety
/// The thread is about to run the instruction at `at`.
pub(super) unsafe fn relocated_here(reading: &Reading, at: u64) -> Option<u64> {
    // SAFETY: the caller's promise: it is mapped.
    find(reading, at).filter(|t| t.is_covered(|site| unsafe { read(site, at) })).map(|t| t.to)
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
    // SAFETY: the caller's promise: code is mapped there.
    if let Some(t) = find(&reading, at).filter(|t| t.sends_on(|site| unsafe { read(site, at) })) {
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
        let inner = c.inner.iter().zip(c.at..).filter(|(to, _)| **to != 0).map(|(_, at)| at);
        for t in inner.chain([c.at]).filter_map(|at| find(&reading, at)) {
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
        let trap = |at, to, call, inner| {
            let (site, old, hooked) = (c.at, c.old, c.hooked);
            Trap { at, to, call, inner, active: AtomicBool::new(false), site, old, hooked }
        };
        all.push(trap(c.at, to, call, false));
        let inner = c.inner.iter().zip(c.at..).filter(|(to, _)| **to != 0);
        all.extend(inner.map(|(to, at)| trap(at, *to, false, true)));
    }
    // Stable sort and de-duplication: what is new stands before what was there.
    for t in old.into_iter().flat_map(|t| &t.0) {
        all.push(Trap { active: AtomicBool::new(false), ..*t });
    }
    all.sort_by_cached_key(|t| t.at);
    all.dedup_by_key(|t| t.at);
    Traps(all)
}
