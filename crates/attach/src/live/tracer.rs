//! Somebody outside the process who stops its threads wherever they are, by ptrace(2), and writes code
//! meanwhile.
//!
//! A thread that blocks all signals can neither be stopped by one nor survive a breakpoint; the C
//! library does that whenever it makes a thread or a child. One that a tracer has stopped runs nothing
//! at all, so no breakpoints are needed.
//!
//! The tracer may be killed at any time, and the kernel lets the threads go then. So it writes the
//! code itself: nothing is written any more when they go on. What they find is the old bytes or the
//! new ones, and none of them is in the middle of either.

use super::goroutines::Look;
use super::saved_contexts::Copy;
use crate::patch::change::{Change, current, word};
use crate::skip::Skip;
use crate::sys::{self, Barrier};
use std::ptr;
use std::sync::atomic::{AtomicPtr, AtomicU32, Ordering};

/// Most changes that are made while the threads stand: they wait for less than a millisecond.
const AT_ONCE: usize = 2048;

/// How often changes are tried that suspended goroutines are in the way of, and the pause between, in
/// nanoseconds.
const ROUNDS: usize = 20;
const PAUSE: u64 = 2_000_000;

/// What is told of bytes that were not written.
const EIO: i32 = 5;

/// Room for the stacks of so many threads that come meanwhile.
const MORE: usize = 1024;

/// Where an instruction is, and where its copy is.
pub type Move = [u64; 2];

/// An address, and five bytes each as a word: those that must be there, and those that shall be.
pub type Edit = [u64; 3];

/// What a tracer does, when the thread that speaks with it asks for it. None of it may allocate or
/// take a lock.
#[derive(Debug)]
pub struct Tracer {
    /// Stops all threads but the calling one. Those that were about to run an instruction go on at
    /// its copy; the list is sorted. Their stack pointers are written into the slice; the result is
    /// how many there are.
    pub stop: fn(&[Move], &mut [u64]) -> Result<usize, Unstopped>,
    /// Writes bytes where the old ones are found. If the tracer is killed, some may be written.
    pub write: fn(&[Edit]),
    /// Lets the threads go on.
    pub go_on: fn(),
}

/// Why threads do not stand.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Unstopped {
    /// One of them does not stop.
    Busy,
    /// The tracer is no more. Nobody wants the changes.
    Gone,
}

static TRACER: AtomicPtr<Tracer> = AtomicPtr::new(ptr::null_mut());

/// The thread that speaks with it.
static SPEAKER: AtomicU32 = AtomicU32::new(0);

impl Tracer {
    /// Has the tracer make the changes of code for which `f`, on this thread, would stop the others.
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

    /// That of the calling thread.
    pub(super) fn of_this_thread() -> Option<&'static Self> {
        let is_speaker = SPEAKER.load(Ordering::Acquire) == sys::gettid();
        // SAFETY: null, or from a reference that lives for ever.
        is_speaker.then(|| unsafe { TRACER.load(Ordering::Acquire).as_ref() }).flatten()
    }

    /// Makes changes in a process that has so many threads. There are fewer results than changes when it
    /// could not stop the threads: the rest is to be made without it.
    ///
    /// # Safety
    /// As for [`crate::patch::apply`].
    pub(super) unsafe fn apply(&self, changes: &[Change], threads: usize) -> Vec<Result<(), Skip>> {
        let mut stacks = vec![0; threads + MORE];
        let mut copy = Copy::new();
        let mut results = Vec::with_capacity(changes.len());
        for some in changes.chunks(AT_ONCE) {
            let (moves, mut look) = (moves(some), Look::new(some));
            for round in 0..ROUNDS {
                let mut edits: Vec<Edit> =
                    some.iter().map(|c| [c.at, word(c.old), word(c.new)]).collect();
                match self.make(&mut edits, &moves, &mut stacks, &mut copy, look.as_mut()) {
                    Ok(()) | Err(Unstopped::Gone) => {}
                    Err(Unstopped::Busy) if round == 0 => return results,
                    Err(Unstopped::Busy) => break,
                }
                if !look.as_ref().is_some_and(Look::is_any_blocked) || round + 1 == ROUNDS {
                    break;
                }
                // Those that are suspended go on soon.
                sys::wait(&AtomicU32::new(0), 0, PAUSE);
            }
            let is_blocked = |n| look.as_ref().is_some_and(|look| look.is_blocked(n));
            // SAFETY: the caller's promise: mapped code. A tracer that was killed says nothing.
            results.extend(some.iter().enumerate().map(|(n, c)| match unsafe { current(c.at) } {
                now if now == c.new => Ok(()),
                now if now == c.old && is_blocked(n) => Err(Skip::Suspended),
                now if now == c.old => Err(Skip::Protected { errno: EIO }),
                _ => Err(Skip::Foreign),
            }));
        }
        results
    }

    /// Has bytes written while no other thread runs or is in their middle, and no goroutine is suspended
    /// there: `look` says of which that is so. Nothing is allocated while they stand.
    fn make(
        &self,
        edits: &mut [Edit],
        moves: &[Move],
        stacks: &mut [u64],
        copy: &mut Copy,
        mut look: Option<&mut Look>,
    ) -> Result<(), Unstopped> {
        let mask = sys::block_signals();
        let stood = (self.stop)(moves, stacks);
        let stacks = stacks.get(..stood.unwrap_or(0)).unwrap_or_default();
        if let Some(look) = look.as_mut().filter(|_| stood.is_ok()) {
            look.search(stacks);
            for (n, [_, old, new]) in edits.iter_mut().enumerate() {
                if look.is_blocked(n) {
                    *new = *old;
                }
            }
        }
        for stack in stacks {
            let moved = |rip| {
                let n = moves.binary_search_by_key(&rip, |[from, _]| *from).ok()?;
                let stays = look.as_ref().is_some_and(|look| look.is_blocked_at(rip));
                moves.get(n).filter(|_| !stays).map(|[_, to]| *to)
            };
            // SAFETY: the word is the instruction pointer in a context that the thread, which stands,
            // goes back to; the copy of the instruction there does the same.
            copy.redirect(*stack, moved, |at, to| unsafe { sys::copy_out(at, &to) });
        }
        if stood.is_ok() {
            (self.write)(edits);
            let _ = sys::membarrier(Barrier::SyncCore);
            (self.go_on)();
        }
        sys::set_signal_mask(mask);
        stood.map(drop)
    }
}

/// Where threads go on that stand in the middle of what is about to change, by address.
fn moves(changes: &[Change]) -> Vec<Move> {
    let inner = |c: &Change| {
        let at = c.at;
        c.inner.into_iter().zip(at..).filter(|(to, _)| *to != 0).map(|(to, at)| [at, to])
    };
    let mut moves: Vec<Move> = changes.iter().flat_map(inner).collect();
    moves.sort_by_cached_key(|[at, _]| *at);
    moves
}
