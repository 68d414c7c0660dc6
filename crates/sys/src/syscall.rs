//! System calls by number, for the event path: libc's own functions may be hooked, and would touch
//! `errno`.
//!
//! In a program that has put itself into a sandbox where a call could be its end, all of them fail
//! with `EPERM`.

use std::arch::asm;

/// Number of `read`.
pub const READ: u64 = 0;
/// Number of `write`.
pub const WRITE: u64 = 1;
/// Number of `close`.
pub const CLOSE: u64 = 3;
/// Number of `fstat`.
pub const FSTAT: u64 = 5;
/// Number of `mmap`.
pub const MMAP: u64 = 9;
/// Number of `mprotect`.
pub const MPROTECT: u64 = 10;
/// Number of `munmap`.
pub const MUNMAP: u64 = 11;
/// Number of `rt_sigprocmask`.
pub const RT_SIGPROCMASK: u64 = 14;
/// Number of `pread64`.
pub const PREAD64: u64 = 17;
/// Number of `mincore`.
pub const MINCORE: u64 = 27;
/// Number of `madvise`.
pub const MADVISE: u64 = 28;
/// Number of `sched_yield`.
pub const SCHED_YIELD: u64 = 24;
/// Number of `ioctl`.
pub const IOCTL: u64 = 16;
/// Number of `getpid`.
pub const GETPID: u64 = 39;
/// Number of `socket`.
pub const SOCKET: u64 = 41;
/// Number of `flock`.
pub const FLOCK: u64 = 73;
/// Number of `readlink`.
pub const READLINK: u64 = 89;
/// Number of `getrusage`.
pub const GETRUSAGE: u64 = 98;
/// Number of `getuid`.
pub const GETUID: u64 = 102;
/// Number of `getgid`.
pub const GETGID: u64 = 104;
/// Number of `munlock`.
pub const MUNLOCK: u64 = 150;
/// Number of `prctl`.
pub const PRCTL: u64 = 157;
/// Number of `gettid`.
pub const GETTID: u64 = 186;
/// Number of `fgetxattr`.
pub const FGETXATTR: u64 = 193;
/// Number of `clock_gettime`.
pub const CLOCK_GETTIME: u64 = 228;
/// Number of `openat`.
pub const OPENAT: u64 = 257;
/// Number of `newfstatat`.
pub const FSTATAT: u64 = 262;
/// Number of `faccessat`.
pub const FACCESSAT: u64 = 269;
/// Number of `process_vm_readv`.
pub const PROCESS_VM_READV: u64 = 310;
/// Number of `process_vm_writev`.
pub const PROCESS_VM_WRITEV: u64 = 311;

/// Makes a system call with four arguments; returns what the kernel does (`-errno` on failure).
///
/// # Safety
/// The arguments must be what the call asks for.
#[inline(always)]
pub unsafe fn call4(nr: u64, a: u64, b: u64, c: u64, d: u64) -> u64 {
    // SAFETY: as the caller promises.
    unsafe { call6(nr, a, b, c, d, 0, 0) }
}

/// Makes a system call with six arguments; returns what the kernel does (`-errno` on failure).
///
/// # Safety
/// The arguments must be what the call asks for.
#[inline(always)]
pub unsafe fn call6(nr: u64, a: u64, b: u64, c: u64, d: u64, e: u64, f: u64) -> u64 {
    const EPERM: u64 = -1_i64 as u64;
    if !crate::sandbox::may_call_system() {
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
