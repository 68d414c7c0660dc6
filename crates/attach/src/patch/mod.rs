//! Changing code that may be running.
//!
//! Five bytes that lie in one aligned word and hold one instruction are changed by one store:
//! whoever fetches them finds the old instruction or the new one, and nobody is in their middle. No
//! thread is stopped and no breakpoint is set for that. It is how hooks are taken out while threads
//! run; a breakpoint would end a child of `vfork` that has no handler for it, or a thread that
//! has `SIGTRAP` blocked, as the C library does around `posix_spawn`. AMD promises this
//! for aligned words (Architecture Programmer's Manual, volume 2, 7.6.1); on Intel's processors
//! just-in-time compilers have relied on it for decades.

use crate::live;
use crate::skip::Skip;
use crate::{sys, threads};
use change::{Change, current};
use skep_proc::maps::{self, Perms};
use std::ops::Range;
use writable::WritableCode;

pub(crate) mod change;
pub(crate) mod writable;

/// Tells whether no other thread can run the code that is changed. A child of `clone(CLONE_VM)` is
/// in no list of threads.
pub(crate) fn is_alone() -> bool {
    threads::Tasks::open().is_ok_and(|t| t.is_one()) && sys::has_memory_alone()
}

/// The executable mappings of the process, sorted, merged where they touch. `None`: they cannot be
/// looked at, as where no more files may be open.
pub(crate) fn executable() -> Option<Vec<Range<u64>>> {
    let mut out: Vec<Range<u64>> = Vec::new();
    for vma in maps::own().ok()? {
        match out.last_mut() {
            _ if !vma.perms.contains(Perms::EXEC) => {}
            Some(last) if last.end == vma.start => last.end = vma.end,
            _ => out.push(vma.range()),
        }
    }
    Some(out)
}

/// [`executable`], once somebody has asked.
pub(crate) type Executable = Option<Option<Vec<Range<u64>>>>;

/// Makes all changes, and tells for each whether it was made. `changes` are sorted by address. `alone`:
/// what [`is_alone`] says, of this thread's time with the engine's lock: only it could make others.
///
/// # Safety
/// Each lies in mapped code; what shall be there is code that does what was there before, wherever
/// it is entered, and the places where a thread goes on that is in the middle of it are those of
/// the instructions it was about to run. The caller has the engine's lock.
pub(crate) unsafe fn apply(
    changes: &[Change],
    alone: bool,
    limbo: &mut live::LimboLists,
) -> Vec<Result<(), Skip>> {
    if changes.is_empty() {
        return Vec::new();
    }
    // One store, as a function makes that takes itself out of its own code, takes less time than a
    // look at the mappings.
    let unwatched = alone || matches!(changes, [one] if one.is_one_store());
    // SAFETY: the caller's promise.
    let writable = match unsafe { WritableCode::open(changes, unwatched) } {
        Ok(w) => w,
        Err(skip) => return vec![Err(skip); changes.len()],
    };
    if alone {
        // SAFETY: the caller's promise.
        return unsafe { apply_alone(&writable, changes) };
    }
    // SAFETY: the caller's promise.
    let store = |c: &Change| if c.is_one_store() { unsafe { writable.store(c) } } else { Ok(()) };
    let mut results: Vec<Result<(), Skip>> = changes.iter().map(store).collect();
    let _ = sys::membarrier(sys::Barrier::SyncCore);
    let rest: Vec<Change> = changes.iter().filter(|c| !c.is_one_store()).cloned().collect();
    if rest.is_empty() {
        return results;
    }
    if threads::Tasks::open().is_ok_and(|t| t.is_one()) {
        // Nobody can stop a child that runs in this memory.
        let of_rest = results.iter_mut().zip(changes).filter(|(_, c)| !c.is_one_store());
        of_rest.for_each(|(result, _)| *result = Err(Skip::Busy { tid: 0 }));
    } else {
        let of_rest = results.iter_mut().zip(changes).filter(|(_, c)| !c.is_one_store());
        // SAFETY: the caller's promise.
        let done = unsafe { live::apply(&writable, &rest, limbo) };
        for ((result, _), done) in of_rest.zip(done) {
            *result = done;
        }
    }
    results
}

/// Makes the changes in a process with one thread: nobody but its signal handlers can be running
/// the bytes.
///
/// # Safety
/// As [`apply`], and the code of these changes is writable.
unsafe fn apply_alone(writable: &WritableCode, changes: &[Change]) -> Vec<Result<(), Skip>> {
    let mask = sys::block_signals();
    // SAFETY: the caller's promise.
    let one = |c: &Change| unsafe {
        if current(c.at) == c.old { writable.write(c.at, &c.new) } else { Err(Skip::Foreign) }
    };
    let results = changes.iter().map(one).collect();
    sys::set_signal_mask(mask);
    results
}
