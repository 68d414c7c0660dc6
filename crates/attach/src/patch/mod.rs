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

/// What is mapped in the process.
#[derive(Debug)]
pub(crate) struct Mapped {
    /// Executable mappings, sorted, merged where they touch.
    pub(crate) text: Vec<Range<u64>>,
    /// All mappings, sorted.
    pub(crate) all: Vec<Range<u64>>,
}

/// Looks at what is mapped. `None`: it cannot be looked at, as where no more files may be open.
pub(crate) fn mapped() -> Option<Mapped> {
    let mut out = Mapped { text: Vec::new(), all: Vec::new() };
    for vma in maps::own().ok()? {
        out.all.push(vma.range());
        match out.text.last_mut() {
            _ if !vma.perms.contains(Perms::EXEC) => {}
            Some(last) if last.end == vma.start => last.end = vma.end,
            _ => out.text.push(vma.range()),
        }
    }
    Some(out)
}

/// [`mapped`], once somebody has asked.
pub(crate) type Looked = Option<Option<Mapped>>;

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
    let done = if !threads::Tasks::open().is_ok_and(|t| t.is_one()) {
        // SAFETY: the caller's promise.
        unsafe { live::apply(&writable, &rest, limbo) }
    } else if sys::has_memory_alone() {
        // The other threads have ended since that was said.
        // SAFETY: the caller's promise.
        unsafe { apply_alone(&writable, &rest) }
    } else {
        // Nobody can stop a child that runs in this memory.
        vec![Err(Skip::Busy { tid: 0 }); rest.len()]
    };
    let of_rest = results.iter_mut().zip(changes).filter(|(_, c)| !c.is_one_store());
    for ((result, _), done) in of_rest.zip(done) {
        *result = done;
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

#[cfg(test)]
mod tests {
    use super::*;
    use change::{Detour, Hooked};
    use std::arch::global_asm;
    use std::ffi::c_int;

    // `mov eax, 1` over the end of a word.
    global_asm!(
        ".pushsection .text",
        ".balign 64",
        ".skip 4",
        // The tests may come into other objects.
        ".globl skep_test_patch_one",
        ".hidden skep_test_patch_one",
        "skep_test_patch_one: mov eax, 1",
        "ret",
        ".balign 64",
        ".popsection",
    );

    unsafe extern "C" {
        #[link_name = "skep_test_patch_one"]
        fn one() -> u32;
        fn fork() -> c_int;
        fn setrlimit(resource: c_int, limits: &[u64; 2]) -> c_int;
        fn waitpid(pid: c_int, status: *mut c_int, flags: c_int) -> c_int;
        fn _exit(code: c_int) -> !;
    }

    /// Changes the code in a child, which runs it.
    fn is_changed_in_child(alone: bool, prepare: impl FnOnce()) {
        let at = one as *const () as u64;
        let new = [0xb8, 2, 0, 0, 0];
        let change = Change {
            at,
            old: [0xb8, 1, 0, 0, 0],
            new,
            text: at..at + 6,
            head: Detour::Jump(at),
            inner: [0; 5],
            hooked: Hooked { entry: new, meta: 0 },
            goroutines: None,
        };
        assert!(!change.is_one_store());
        // SAFETY: a child with one thread, which runs the code below and ends.
        match unsafe { fork() } {
            0 => {
                let mut limbo = live::LimboLists::default();
                prepare();
                // SAFETY: no other thread runs the code, which does nothing but return the number.
                let done = unsafe { apply(&[change], alone, &mut limbo) };
                // SAFETY: the code above; ends the child.
                unsafe { _exit(if done == [Ok(())] && one() == 2 { 33 } else { 1 }) }
            }
            pid => {
                let mut status = 0;
                // SAFETY: waits for the child made above.
                assert_eq!(unsafe { waitpid(pid, &raw mut status, 0) }, pid);
                assert_eq!(status, 33 << 8);
            }
        }
    }

    /// They were there when that was looked at, and nobody is left who has to be stopped.
    #[test]
    fn threads_may_end_before_a_change() {
        is_changed_in_child(false, || ());
    }

    /// Where the process may not have more memory that is written to, code does not become writable: that
    /// was taken for code that is not there any more, and then written to.
    #[test]
    fn code_is_changed_without_memory() {
        const RLIMIT_DATA: c_int = 2;
        for alone in [true, false] {
            is_changed_in_child(alone, || {
                // What is allocated from now on is what was freed.
                drop(vec![1_u8; 100_000]);
                // SAFETY: the limits of the child.
                assert_eq!(unsafe { setrlimit(RLIMIT_DATA, &[0; 2]) }, 0);
            });
        }
    }
}
