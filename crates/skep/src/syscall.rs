//! System calls by number, for the event path: libc's own functions may be hooked, and would touch
//! `errno`.
//!
//! In a program that has put itself into a sandbox where a call could be its end, all of them fail
//! with `EPERM`.

use std::arch::asm;

pub(crate) const READ: u64 = 0;
pub(crate) const WRITE: u64 = 1;
pub(crate) const CLOSE: u64 = 3;
pub(crate) const FSTAT: u64 = 5;
pub(crate) const MMAP: u64 = 9;
pub(crate) const MUNMAP: u64 = 11;
pub(crate) const RT_SIGPROCMASK: u64 = 14;
pub(crate) const PREAD64: u64 = 17;
pub(crate) const MINCORE: u64 = 27;
pub(crate) const SCHED_YIELD: u64 = 24;
#[cfg(feature = "loader")]
pub(crate) const IOCTL: u64 = 16;
pub(crate) const GETPID: u64 = 39;
#[cfg(feature = "loader")]
pub(crate) const SOCKET: u64 = 41;
pub(crate) const FLOCK: u64 = 73;
pub(crate) const READLINK: u64 = 89;
pub(crate) const GETRUSAGE: u64 = 98;
pub(crate) const GETUID: u64 = 102;
pub(crate) const GETGID: u64 = 104;
pub(crate) const PRCTL: u64 = 157;
pub(crate) const FGETXATTR: u64 = 193;
pub(crate) const CLOCK_GETTIME: u64 = 228;
pub(crate) const OPENAT: u64 = 257;
pub(crate) const FSTATAT: u64 = 262;
pub(crate) const FACCESSAT: u64 = 269;
pub(crate) const PROCESS_VM_READV: u64 = 310;
pub(crate) const PROCESS_VM_WRITEV: u64 = 311;

/// Makes a system call with four arguments; returns what the kernel does (`-errno` on failure).
///
/// # Safety
/// The arguments must be what the call asks for.
#[inline(always)]
pub(crate) unsafe fn call4(nr: u64, a: u64, b: u64, c: u64, d: u64) -> u64 {
    // SAFETY: as the caller promises.
    unsafe { call6(nr, a, b, c, d, 0, 0) }
}

/// Makes a system call with six arguments; returns what the kernel does (`-errno` on failure).
///
/// # Safety
/// The arguments must be what the call asks for.
#[inline(always)]
pub(crate) unsafe fn call6(nr: u64, a: u64, b: u64, c: u64, d: u64, e: u64, f: u64) -> u64 {
    const EPERM: u64 = -1_i64 as u64;
    if !skep_attach::sandbox::may_call_system() {
        return EPERM;
    }
    let r;
    // SAFETY: the kernel changes rax, rcx and r11 only, and memory as the caller promised.
    unsafe {
        asm!(
            "syscall",
            inlateout("rax") nr => r,
            in("rdi") a, in("rsi") b, in("rdx") c, in("r10") d, in("r8") e, in("r9") f,
            lateout("rcx") _, lateout("r11") _,
            options(nostack)
        );
    }
    r
}
