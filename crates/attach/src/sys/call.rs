//! The system call instruction, and the numbers of calls and errors.

use crate::sandbox;
use std::arch::asm;

pub(crate) const READ: u64 = 0;
pub(crate) const CLOSE: u64 = 3;
pub(crate) const LSEEK: u64 = 8;
pub(crate) const MMAP: u64 = 9;
pub(crate) const MPROTECT: u64 = 10;
pub(crate) const MUNMAP: u64 = 11;
pub(crate) const RT_SIGACTION: u64 = 13;
pub(crate) const RT_SIGPROCMASK: u64 = 14;
pub(crate) const PWRITE64: u64 = 18;
pub(crate) const MADVISE: u64 = 28;
pub(crate) const SCHED_YIELD: u64 = 24;
pub(crate) const GETPID: u64 = 39;
pub(crate) const KILL: u64 = 62;
pub(crate) const SIGALTSTACK: u64 = 131;
pub(crate) const ARCH_PRCTL: u64 = 158;
pub(crate) const GETTID: u64 = 186;
pub(crate) const FUTEX: u64 = 202;
pub(crate) const GETDENTS64: u64 = 217;
pub(crate) const TGKILL: u64 = 234;
pub(crate) const OPENAT: u64 = 257;
pub(crate) const RT_SIGTIMEDWAIT: u64 = 128;
pub(crate) const RT_SIGQUEUEINFO: u64 = 129;
pub(crate) const RT_TGSIGQUEUEINFO: u64 = 297;
pub(crate) const PROCESS_VM_READV: u64 = 310;
pub(crate) const PROCESS_VM_WRITEV: u64 = 311;
pub(crate) const MEMBARRIER: u64 = 324;
pub(crate) const EFAULT: i64 = 14;
pub(crate) const EINVAL: i64 = 22;
pub(crate) const EPERM: i64 = 1;
pub(crate) const ESRCH: i64 = 3;

/// Makes a system call; `EPERM` where a sandbox may punish it.
///
/// # Safety
///
/// The call and its arguments do what the caller may do.
#[inline(always)]
pub(crate) unsafe fn call(nr: u64, a: [u64; 6]) -> i64 {
    if !matches!(nr, RT_SIGPROCMASK | SIGALTSTACK | RT_SIGACTION) && !sandbox::may_call_system() {
        return -EPERM;
    }
    let ret: i64;
    // SAFETY: the kernel's calling convention; it changes rax, rcx and r11 and the memory the
    // caller answers for.
    unsafe {
        asm!("syscall", inlateout("rax") nr as i64 => ret, in("rdi") a[0], in("rsi") a[1], in("rdx") a[2], in("r10") a[3],
             in("r8") a[4], in("r9") a[5], lateout("rcx") _, lateout("r11") _, options(nostack));
    }
    ret
}
