//! The few system calls the event path may make, without libc and without touching errno.

mod memory;
mod thread;

use std::arch::asm;
use std::mem::MaybeUninit;
use std::os::fd::{FromRawFd, OwnedFd};
use std::path::Path;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};

use rustix::fs::OFlags;
use rustix::io::Errno;
use rustix::path::Arg;
use skep_sys::of_proc;

pub(crate) use memory::{lengthen, map_again, move_mapping, populate, release, reserve, unmap};
#[cfg(test)]
pub(super) use thread::tests::wait_for_state;
pub(crate) use thread::{Patience, gone, gone_from, gone_or_zombie, is_ready};

static CLOSED: AtomicBool = AtomicBool::new(false);

/// Says that a sandbox may punish system calls from here on, in this process and the children it
/// forks.
pub(crate) fn close() {
    CLOSED.store(true, Relaxed);
}

/// Tells whether a system call may be punished.
#[inline(always)]
pub(crate) fn is_closed() -> bool {
    CLOSED.load(Relaxed)
}

/// Makes a system call.
///
/// # Safety
/// As the call asks for.
#[inline]
unsafe fn syscall(nr: u64, a: [u64; 6]) -> i64 {
    let ret: i64;
    let [a0, a1, a2, a3, a4, a5] = a;
    // SAFETY: the kernel clobbers rcx and r11 only; what the call itself does is the caller's duty.
    unsafe {
        asm!("syscall", inlateout("rax") nr => ret, in("rdi") a0, in("rsi") a1, in("rdx") a2, in("r10") a3, in("r8") a4,
             in("r9") a5, lateout("rcx") _, lateout("r11") _, options(nostack));
    }
    ret
}

/// Opens a file, also below a `/proc` that this process does not see.
pub(crate) fn open(path: &Path, flags: OFlags) -> Result<OwnedFd, Errno> {
    path.into_with_c_str(|path| {
        // SAFETY: openat reads the terminated path, and makes a descriptor, which is nobody's yet.
        unsafe {
            let [dir, path] = of_proc::place(path.as_ptr() as u64);
            match syscall(257, [dir, path, u64::from(flags.bits()), 0, 0, 0]) {
                fd @ 0.. => Ok(OwnedFd::from_raw_fd(fd as i32)),
                error => Err(Errno::from_raw_os_error(-error as i32)),
            }
        }
    })
}

/// Returns the process id as the kernel sees it now (also right after a raw `fork`).
pub(crate) fn getpid() -> u32 {
    // SAFETY: getpid has no arguments and no effects.
    unsafe { syscall(39, [0; 6]) as u32 }
}

/// Returns the thread id.
pub(crate) fn gettid() -> u32 {
    // SAFETY: gettid has no arguments and no effects.
    unsafe { syscall(186, [0; 6]) as u32 }
}

/// Returns the process that made this one: 0 when that is in a pid namespace further out.
pub(crate) fn getppid() -> u32 {
    // SAFETY: getppid has no arguments and no effects.
    unsafe { syscall(110, [0; 6]) as u32 }
}

/// Finds this process's pid namespace, 0 where that cannot be told: without /proc, before Linux
/// 6.11.
pub(crate) fn pid_namespace() -> u64 {
    match inode(|stat| {
        // SAFETY: newfstatat reads the terminated path and writes a `struct stat`.
        unsafe {
            let [dir, path] = of_proc::place(c"/proc/thread-self/ns/pid".as_ptr() as u64);
            syscall(262, [dir, path, stat, 0, 0, 0])
        }
    }) {
        0 => pid_namespace_by_pidfd(),
        inode => inode,
    }
}

fn pid_namespace_by_pidfd() -> u64 {
    const PIDFD_GET_PID_NAMESPACE: u64 = 0xff05;
    // SAFETY: pidfd_open and ioctl make descriptors, which are closed here; fstat writes a `struct
    // stat`.
    unsafe {
        let process = syscall(434, [u64::from(getpid()), 0, 0, 0, 0, 0]);
        if process < 0 {
            return 0;
        }
        let namespace = syscall(16, [process as u64, PIDFD_GET_PID_NAMESPACE, 0, 0, 0, 0]);
        syscall(3, [process as u64, 0, 0, 0, 0, 0]);
        if namespace < 0 {
            return 0;
        }
        let found = inode(|stat| syscall(5, [namespace as u64, stat, 0, 0, 0, 0]));
        syscall(3, [namespace as u64, 0, 0, 0, 0, 0]);
        found
    }
}

/// Returns the inode that a call writes into a `struct stat` at an address; 0 when it fails.
fn inode(call: impl FnOnce(u64) -> i64) -> u64 {
    // 144 bytes on x86-64; the inode is the second word. Not cleared: the compiler would do that
    // with vector registers.
    let mut stat = MaybeUninit::<[u64; 18]>::uninit();
    if call(stat.as_mut_ptr() as u64) != 0 {
        return 0;
    }
    // SAFETY: the kernel wrote all of it.
    unsafe { stat.as_ptr().cast::<u64>().add(1).read() }
}

/// Lets others run.
pub(crate) fn sched_yield() {
    // SAFETY: sched_yield has no arguments.
    unsafe { syscall(24, [0; 6]) };
}

/// Sleeps for about `ns` nanoseconds (below one second).
pub(crate) fn sleep_ns(ns: u64) {
    #[cfg(test)]
    SLEEPS.with(|n| n.set(n.get() + 1));
    let ts = [0u64, ns];
    // SAFETY: nanosleep reads the timespec, which lives until it returns.
    unsafe { syscall(35, [ts.as_ptr() as u64, 0, 0, 0, 0, 0]) };
}

/// Waits until every thread of the system has passed a full memory barrier; `false` when the kernel
/// offers no such thing.
pub(crate) fn membarrier_global() -> bool {
    #[cfg(test)]
    BARRIERS.with(|n| n.set(n.get() + 1));
    // SAFETY: MEMBARRIER_CMD_GLOBAL (1) has no arguments.
    unsafe { syscall(324, [1, 0, 0, 0, 0, 0]) == 0 }
}

/// Makes every running thread of the processes that signed up pass a full memory barrier; `false`
/// when the kernel offers no such thing.
pub(crate) fn membarrier_expedited() -> bool {
    // SAFETY: MEMBARRIER_CMD_GLOBAL_EXPEDITED (2) has no arguments.
    unsafe { syscall(324, [2, 0, 0, 0, 0, 0]) == 0 }
}

/// Signs this process, and those it forks, up for [`membarrier_expedited`]; `false` when the kernel
/// offers no such thing.
pub(crate) fn membarrier_sign_up() -> bool {
    // SAFETY: MEMBARRIER_CMD_REGISTER_GLOBAL_EXPEDITED (4) has no arguments.
    unsafe { syscall(324, [4, 0, 0, 0, 0, 0]) == 0 }
}

/// Waits while the 32-bit word at `word` is `seen`, at most `ns` nanoseconds.
pub(crate) fn futex_wait(word: &std::sync::atomic::AtomicU32, seen: u32, ns: u64) {
    let ts = [ns / 1_000_000_000, ns % 1_000_000_000];
    // SAFETY: FUTEX_WAIT (0, shared) reads the word and the timespec.
    unsafe { syscall(202, [word.as_ptr() as u64, 0, u64::from(seen), ts.as_ptr() as u64, 0, 0]) };
}

/// Wakes everyone who waits on `word`, in any process.
pub(crate) fn futex_wake(word: &std::sync::atomic::AtomicU32) {
    // SAFETY: FUTEX_WAKE (1, shared) uses the address only.
    unsafe { syscall(202, [word.as_ptr() as u64, 1, i32::MAX as u64, 0, 0, 0]) };
}

#[cfg(test)]
thread_local! {
    /// Sleeps of this thread.
    pub(super) static SLEEPS: std::cell::Cell<u32> = const { std::cell::Cell::new(0) };
    /// Barriers that this thread asked for.
    pub(crate) static BARRIERS: std::cell::Cell<u32> = const { std::cell::Cell::new(0) };
}
