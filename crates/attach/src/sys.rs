//! Raw system calls.
//!
//! libc's wrappers are functions of the traced program: they may be hooked, they set `errno`, and some take locks. The engine
//! and the event path come here instead. Every function returns the kernel's word, negative for an error number.

use std::arch::asm;

pub(crate) const MMAP: u64 = 9;
pub(crate) const MPROTECT: u64 = 10;
pub(crate) const MUNMAP: u64 = 11;
pub(crate) const RT_SIGACTION: u64 = 13;
pub(crate) const RT_SIGPROCMASK: u64 = 14;
pub(crate) const PWRITE64: u64 = 18;
pub(crate) const SCHED_YIELD: u64 = 24;
pub(crate) const GETPID: u64 = 39;
pub(crate) const SIGALTSTACK: u64 = 131;
pub(crate) const GETTID: u64 = 186;
pub(crate) const TGKILL: u64 = 234;
pub(crate) const MEMBARRIER: u64 = 324;

pub(crate) const PROT_NONE: u64 = 0;
pub(crate) const PROT_READ: u64 = 1;
pub(crate) const PROT_WRITE: u64 = 2;
pub(crate) const PROT_EXEC: u64 = 4;

const MAP_PRIVATE: u64 = 2;
const MAP_ANONYMOUS: u64 = 0x20;
const MAP_FIXED_NOREPLACE: u64 = 0x10_0000;

pub(crate) const EINVAL: i64 = 22;
pub(crate) const EPERM: i64 = 1;
pub(crate) const ESRCH: i64 = 3;

/// Makes a system call.
///
/// # Safety
///
/// The call and its arguments do what the caller may do.
#[inline(always)]
pub(crate) unsafe fn call(nr: u64, a: [u64; 6]) -> i64 {
    let ret: i64;
    // SAFETY: the kernel's calling convention; it changes rax, rcx and r11 and the memory the caller answers for.
    unsafe {
        asm!("syscall", inlateout("rax") nr as i64 => ret, in("rdi") a[0], in("rsi") a[1], in("rdx") a[2], in("r10") a[3],
             in("r8") a[4], in("r9") a[5], lateout("rcx") _, lateout("r11") _, options(nostack));
    }
    ret
}

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

/// Gives the processor away.
pub(crate) fn yield_now() {
    // SAFETY: takes and changes nothing.
    unsafe { call(SCHED_YIELD, [0; 6]) };
}

/// Maps private zeroed memory, at `at` exactly when that is not 0.
pub(crate) fn map(at: u64, len: u64, prot: u64) -> Result<u64, i64> {
    let fixed = if at == 0 { 0 } else { MAP_FIXED_NOREPLACE };
    // SAFETY: never replaces a mapping.
    let got = unsafe { call(MMAP, [at, len, prot, MAP_PRIVATE | MAP_ANONYMOUS | fixed, u64::MAX, 0]) };
    if got < 0 {
        return Err(-got);
    }
    if at != 0 && got as u64 != at {
        // Kernels before 4.17 take the address as a hint.
        // SAFETY: the mapping was just made and nobody knows it.
        unsafe { unmap(got as u64, len) };
        return Err(17);
    }
    Ok(got as u64)
}

/// Unmaps memory.
///
/// # Safety
///
/// Nobody uses the memory any more.
pub(crate) unsafe fn unmap(at: u64, len: u64) {
    // SAFETY: passed on to the caller.
    unsafe { call(MUNMAP, [at, len, 0, 0, 0, 0]) };
}

/// Changes the protection of memory.
///
/// # Safety
///
/// Whoever uses the memory can live with the new protection.
pub(crate) unsafe fn protect(at: u64, len: u64, prot: u64) -> Result<(), i64> {
    // SAFETY: passed on to the caller.
    match unsafe { call(MPROTECT, [at, len, prot, 0, 0, 0]) } {
        0 => Ok(()),
        e => Err(-e),
    }
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

/// `struct sigaction` as the kernel takes it.
pub(crate) use crate::signals::KernelAction;

/// Sets or reads the action for a signal.
///
/// # Safety
///
/// `new`'s handler is code that can handle the signal, or `SIG_DFL`/`SIG_IGN`.
pub(crate) unsafe fn sigaction(signal: i32, new: Option<&KernelAction>) -> Result<KernelAction, i64> {
    let mut old = KernelAction::default();
    let new = new.map_or(0, |n| std::ptr::from_ref(n) as u64);
    // SAFETY: both pointers are null or valid for the call; the rest is the caller's promise.
    match unsafe { call(RT_SIGACTION, [signal as u64, new, &raw mut old as u64, 8, 0, 0]) } {
        0 => Ok(old),
        e => Err(-e),
    }
}
