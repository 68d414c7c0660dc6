//! Threads: ids, signals to them, waiting, memory barriers.

use super::call::{EINVAL, EPERM, FUTEX, GETPID, GETTID, MEMBARRIER, SCHED_YIELD, TGKILL, call};

/// Id of the calling thread.
#[inline(always)]
pub(crate) fn gettid() -> u32 {
    // SAFETY: takes and changes nothing.
    unsafe { call(GETTID, [0; 6]) as u32 }
}

/// Id of the process.
#[inline(always)]
pub(crate) fn getpid() -> u32 {
    // SAFETY: takes and changes nothing.
    unsafe { call(GETPID, [0; 6]) as u32 }
}

/// Sends a signal to a thread of the own process; 0 only asks whether it lives.
#[inline(always)]
pub(crate) fn tgkill(tid: u32, signal: i32) -> i64 {
    // SAFETY: what the signal does is its handler's matter.
    unsafe { call(TGKILL, [u64::from(getpid()), u64::from(tid), signal as u64, 0, 0, 0]) }
}

/// Sends a signal to a thread of any process; 0 as the signal asks whether there is one.
#[inline(always)]
pub(crate) fn tkill(tid: u32, signal: i32) -> i64 {
    const TKILL: u64 = 200;
    // SAFETY: touches no memory.
    unsafe { call(TKILL, [u64::from(tid), signal as u64, 0, 0, 0, 0]) }
}

/// Tells whether no other task has this memory: not another thread, nor a child of
/// `clone(CLONE_VM)`. Where the kernel may not be asked (seccomp profiles of containers refuse
/// `unshare`), nobody is taken to have it.
pub(crate) fn has_memory_alone() -> bool {
    const UNSHARE: u64 = 272;
    const CLONE_VM: u64 = 0x100;
    // SAFETY: does nothing: the kernel refuses when there is something to do (`unshare(2)`).
    unsafe { call(UNSHARE, [CLONE_VM, 0, 0, 0, 0, 0]) != -EINVAL }
}

/// Gives the processor away.
#[inline(always)]
pub(crate) fn yield_now() {
    // SAFETY: takes and changes nothing.
    unsafe { call(SCHED_YIELD, [0; 6]) };
}

/// The commands of `membarrier` that the engine uses.
#[derive(Clone, Copy)]
pub(crate) enum Barrier {
    /// Every running thread of the process passes a full memory barrier.
    Memory = 1 << 3,
    /// Every running thread also throws away what it has decoded.
    SyncCore = 1 << 5,
}

/// Makes all threads of the process pass a barrier.
pub(crate) fn membarrier(what: Barrier) -> Result<(), i64> {
    // SAFETY: changes no memory.
    let raw = |command: u64| unsafe { call(MEMBARRIER, [command, 0, 0, 0, 0, 0]) };
    let mut got = raw(what as u64);
    if got == -EPERM {
        // A process registers once; the registration is the command's next bit.
        raw((what as u64) << 1);
        got = raw(what as u64);
    }
    if got == 0 { Ok(()) } else { Err(-got) }
}

/// Waits until `word` is no longer `value`, at most `nanos` nanoseconds; may return early.
pub(crate) fn wait(word: &std::sync::atomic::AtomicU32, value: u32, nanos: u64) {
    let time = [0u64, nanos];
    // SAFETY: FUTEX_WAIT_PRIVATE reads the word and the time.
    unsafe {
        call(
            FUTEX,
            [std::ptr::from_ref(word) as u64, 128, u64::from(value), time.as_ptr() as u64, 0, 0],
        )
    };
}

/// Wakes all that wait on `word`.
pub(crate) fn wake(word: &std::sync::atomic::AtomicU32) {
    // SAFETY: FUTEX_WAKE_PRIVATE changes no memory.
    unsafe { call(FUTEX, [std::ptr::from_ref(word) as u64, 129, i32::MAX as u64, 0, 0, 0]) };
}
