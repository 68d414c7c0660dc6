//! Signals: actions, masks, sending.

use super::call::{
    KILL, RT_SIGACTION, RT_SIGPROCMASK, RT_SIGQUEUEINFO, RT_SIGTIMEDWAIT, RT_TGSIGQUEUEINFO, call,
};
use super::task::{getpid, gettid};

/// `struct sigaction` as the kernel's `rt_sigaction` takes it on x86-64.
#[repr(C)]
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct KernelAction {
    /// `SIG_DFL` (0), `SIG_IGN` (1), or the handler's address.
    pub handler: usize,
    /// `SA_…` flags.
    pub flags: u64,
    /// Where the handler returns to (`SA_RESTORER`).
    pub restorer: usize,
    /// Signals blocked while it runs.
    pub mask: u64,
}

/// Sets or reads the action for a signal.
///
/// # Safety
///
/// `new`'s handler is code that can handle the signal, or `SIG_DFL`/`SIG_IGN`.
pub(crate) unsafe fn sigaction(
    signal: i32,
    new: Option<&KernelAction>,
) -> Result<KernelAction, i64> {
    let mut old = KernelAction::default();
    let new = new.map_or(0, |n| std::ptr::from_ref(n) as u64);
    // SAFETY: both pointers are null or valid for the call; the rest is the caller's promise.
    match unsafe { call(RT_SIGACTION, [signal as u64, new, &raw mut old as u64, 8, 0, 0]) } {
        0 => Ok(old),
        e => Err(-e),
    }
}

#[inline(always)]
fn sigprocmask(how: u64, set: u64) -> u64 {
    let mut old = 0u64;
    // SAFETY: both sets are eight bytes; masks are the thread's own.
    unsafe { call(RT_SIGPROCMASK, [how, &raw const set as u64, &raw mut old as u64, 8, 0, 0]) };
    old
}

/// Blocks the thread's signals, except those that faults raise, and returns the mask before.
#[inline(always)]
pub(crate) fn block_signals() -> u64 {
    // ILL, TRAP, ABRT, BUS, FPE, SEGV.
    const FAULTS: u64 = 1 << 3 | 1 << 4 | 1 << 5 | 1 << 6 | 1 << 7 | 1 << 10;
    sigprocmask(0, !FAULTS)
}

/// The thread's mask.
#[inline(always)]
pub(crate) fn signal_mask() -> u64 {
    sigprocmask(0, 0)
}

/// Lets signals through, by bit.
#[inline(always)]
pub(crate) fn let_through(set: u64) {
    sigprocmask(1, set);
}

/// Blocks signals, by bit.
pub(crate) fn block_signal_set(set: u64) {
    sigprocmask(0, set);
}

/// Sends the own process, or the calling thread, a signal as it came; `info` is the address of a
/// whole `siginfo_t`. That another process has sent it by `kill` only the first thread may say: from others
/// it comes as by a `kill` of the own process. A signal that `sigqueue` sends is a fault for Go's runtime.
///
/// # Safety
/// There is one.
pub(crate) unsafe fn send_again(signal: i32, info: u64, to_thread: bool) {
    const EPERM: i64 = -1;
    let pid = u64::from(getpid());
    // SAFETY: the kernel reads the `siginfo_t`: 128 bytes.
    unsafe {
        if to_thread {
            call(RT_TGSIGQUEUEINFO, [pid, u64::from(gettid()), signal as u64, info, 0, 0]);
        } else if call(RT_SIGQUEUEINFO, [pid, signal as u64, info, 0, 0, 0]) == EPERM {
            call(KILL, [pid, signal as u64, 0, 0, 0, 0]);
        }
    }
}

/// Lets a signal through.
pub(crate) fn unblock_signal(signal: i32) {
    sigprocmask(1, 1 << (signal - 1));
}

/// `SIGXFSZ`, by bit: a file was to become larger than `RLIMIT_FSIZE`.
pub(crate) const TOO_LARGE: u64 = 1 << 24;

/// Takes one of these signals away that waits for the thread.
#[inline(never)]
pub(crate) fn take_waiting(set: u64) {
    let now = [0_u64; 2];
    // SAFETY: a set of eight bytes and a time.
    unsafe {
        let (set, now) = (&raw const set as u64, now.as_ptr() as u64);
        call(RT_SIGTIMEDWAIT, [set, 0, now, 8, 0, 0]);
    }
}

/// Sets the thread's mask.
#[inline(always)]
pub(crate) fn set_signal_mask(mask: u64) {
    sigprocmask(2, mask);
}

/// Sends a signal with a value to a thread of the own process.
pub(crate) fn queue(tid: u32, signal: i32, info: &[u64; 16]) -> i64 {
    // SAFETY: `info` is a whole siginfo_t.
    unsafe {
        call(
            RT_TGSIGQUEUEINFO,
            [u64::from(getpid()), u64::from(tid), signal as u64, info.as_ptr() as u64, 0, 0],
        )
    }
}
