//! Code that goes while it is looked at: another thread closes its library.
//!
//! Nothing keeps a library in place. The dynamic linker's lock would, but nobody may wait for it in a
//! process that was entered from outside, and programs unmap code of their own as well. So whoever
//! looks at code says so ([`Looking`]), and where it finds no memory, the handler of `SIGSEGV` puts
//! an empty page, only where nothing else is. What was read then is worth nothing, which the guard
//! tells ([`Looking::is_lost`]); the pages go with it.

use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};

use super::action::{SEGV, SIGSEGV};
use super::fault;
use crate::per_thread::block::own;
use crate::per_thread::register::let_through;
use crate::{patch, sandbox, sys};

const PAGE: u64 = 4096;
/// Where no code is: a load through a null pointer is a fault of ours.
const LOWEST: u64 = 16 * PAGE;

/// Why there was a fault: nothing is mapped there, or it may not be used so.
const SEGV_MAPERR: i32 = 1;
const SEGV_ACCERR: i32 = 2;
/// In the error code of a fault: it was a store.
const STORE: u64 = 2;

/// Threads that may look at the same time; more are not protected.
const LOOKERS: usize = 16;
/// Parts of memory that may be replaced at the same time.
const PARTS: usize = 256;
/// Faults of one look, at most: a page that is mapped and unmapped again and again.
const FAULTS: u32 = 1 << 16;

/// A thread that looks at code, and its faults so far.
struct Looker {
    tid: AtomicU32,
    faults: AtomicU32,
}

static THREADS: [Looker; LOOKERS] =
    [const { Looker { tid: AtomicU32::new(0), faults: AtomicU32::new(0) } }; LOOKERS];

/// A part that was replaced, and for whom.
struct Part {
    tid: AtomicU32,
    start: AtomicU64,
    /// 0: nothing was mapped, a page was protected that nobody could read.
    len: AtomicU64,
}

static REPLACED: [Part; PARTS] =
    [const { Part { tid: AtomicU32::new(0), start: AtomicU64::new(0), len: AtomicU64::new(0) } };
        PARTS];

/// As long as this lives, the calling thread looks at code that may go.
#[derive(Debug)]
pub(crate) struct Looking {
    /// The thread's place, and its faults before this.
    thread: Option<(usize, u32)>,
    /// The thread looked already.
    within: bool,
    /// Signals, by bit, that are blocked again at the end.
    blocked: u64,
}

impl Looking {
    /// Begins. In a process with one thread there is nobody who could take code away.
    pub(crate) fn begin() -> Self {
        let none = Self { thread: None, within: false, blocked: 0 };
        if !sandbox::may_call_system() {
            return none;
        }
        let tid = sys::gettid();
        let at = |tid| THREADS.iter().position(|t| t.tid.load(Ordering::Relaxed) == tid);
        if let Some(at) = at(tid) {
            return Self { thread: Some((at, faults(at))), within: true, blocked: 0 };
        }
        if patch::is_alone() || !is_ready() {
            return none;
        }
        for (at, thread) in THREADS.iter().enumerate() {
            if thread.tid.compare_exchange(0, tid, Ordering::SeqCst, Ordering::Relaxed).is_ok() {
                thread.faults.store(0, Ordering::SeqCst);
                // SAFETY: blocks are never unmapped.
                let own = unsafe { own().as_ref() };
                let blocked = let_through(own, sys::signal_mask(), 1 << (SIGSEGV - 1), true);
                return Self { thread: Some((at, 0)), within: false, blocked };
            }
        }
        none
    }

    /// Tells whether some of what was read was not there.
    pub(crate) fn is_lost(&self) -> bool {
        self.thread.is_some_and(|(at, before)| faults(at) != before)
    }
}

impl Drop for Looking {
    fn drop(&mut self) {
        let Some((at, _)) = self.thread.filter(|_| !self.within) else { return };
        let Some(thread) = THREADS.get(at) else { return };
        let tid = thread.tid.load(Ordering::Relaxed);
        for part in REPLACED.iter().filter(|part| part.tid.load(Ordering::SeqCst) == tid) {
            let (start, len) =
                (part.start.load(Ordering::Relaxed), part.len.load(Ordering::Relaxed));
            // SAFETY: `replace` has mapped it, or made it readable; nobody else knows of it.
            unsafe {
                match len {
                    0 => {
                        let _ = sys::protect(start, PAGE, 0);
                    }
                    len => sys::unmap(start, len),
                }
            }
            part.tid.store(0, Ordering::SeqCst);
        }
        thread.tid.store(0, Ordering::SeqCst);
        if self.blocked != 0 {
            sys::block_signal_set(self.blocked);
            // SAFETY: blocks are never unmapped.
            if let Some(own) = unsafe { own().as_ref() } {
                own.held.fetch_and(!self.blocked as u32, Ordering::Relaxed);
            }
        }
        let is_last = || THREADS.iter().all(|t| t.tid.load(Ordering::SeqCst) == 0);
        if is_last() && !fault::is_wanted() && sandbox::may_call_system() {
            SEGV.give_back();
            if !is_last() {
                is_ready();
            }
        }
    }
}

fn faults(at: usize) -> u32 {
    THREADS.get(at).map_or(0, |thread| thread.faults.load(Ordering::SeqCst))
}

/// Tells whether faults come here.
fn is_ready() -> bool {
    // SAFETY: only asks.
    let now = unsafe { sys::sigaction(SIGSEGV, None) };
    let own = SEGV.own.load(Ordering::Acquire);
    (own != 0 && now.is_ok_and(|now| now.handler == own)) || fault::handle_segv().is_ok()
}

/// Puts memory where the calling thread found none while it looked at code. Runs in the handler.
/// `error`: the processor's.
///
/// # Safety
/// The calling thread has had a fault at the address.
pub(super) unsafe fn replace(address: u64, code: i32, error: u64) -> bool {
    if address < LOWEST || !matches!(code, SEGV_MAPERR | SEGV_ACCERR) {
        return false;
    }
    let tid = sys::gettid();
    let Some(thread) = THREADS.iter().find(|t| t.tid.load(Ordering::Relaxed) == tid) else {
        return false;
    };
    if thread.faults.fetch_add(1, Ordering::SeqCst) >= FAULTS {
        return false;
    }
    let page = address & !(PAGE - 1);
    if code == SEGV_ACCERR && error & STORE != 0 {
        // Code that was made writable to be changed, and is there once more. If it has gone again,
        // that is the next fault.
        let all = sys::PROT_READ | sys::PROT_WRITE | sys::PROT_EXEC;
        // SAFETY: a right more.
        let _ = unsafe { sys::protect(page, PAGE, all) };
        return true;
    }
    let free = |part: &&Part| {
        part.tid.compare_exchange(0, tid, Ordering::SeqCst, Ordering::Relaxed).is_ok()
    };
    let Some(part) = REPLACED.iter().find(free) else { return false };
    part.start.store(page, Ordering::Relaxed);
    if code == SEGV_ACCERR {
        part.len.store(0, Ordering::Relaxed);
        // SAFETY: a right more, until the look is over.
        if unsafe { sys::protect(page, PAGE, sys::PROT_READ) }.is_ok() {
            return true;
        }
    }
    // What comes next is gone as well, usually.
    for len in [256 * PAGE, 16 * PAGE, PAGE] {
        if code == SEGV_MAPERR && sys::map(page, len, sys::PROT_READ | sys::PROT_WRITE).is_ok() {
            part.len.store(len, Ordering::Relaxed);
            return true;
        }
    }
    part.tid.store(0, Ordering::SeqCst);
    // Something is there now: it is read.
    true
}
