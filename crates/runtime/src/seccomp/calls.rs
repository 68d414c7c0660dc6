//! Which system calls the agent makes in the traced process, and when: what a filter would do to them
//! decides what the agent does when it is set.
//!
//! Whoever has the agent make another one adds a row. `testkit/tests/e2e_sandbox.rs` has every single
//! system call punished in turn.

use skep_sys::syscall::{self, GETPID, PROCESS_VM_READV};

/// A system call as a filter sees it.
pub(super) struct Call {
    nr: u16,
    args: [i32; 6],
}

/// The rows of a table.
type Calls = &'static [Call];

/// A row: a number, and the first of its arguments, of which the others are 0.
const fn call<const N: usize>(nr: u64, given: [i32; N]) -> Call {
    let mut args = [0; 6];
    let mut at = 0;
    while at < N {
        args[at] = given[at];
        at += 1;
    }
    Call { nr: nr as u16, args }
}

impl Call {
    pub(super) fn nr(&self) -> u64 {
        u64::from(self.nr)
    }

    pub(super) fn args(&self) -> [u64; 6] {
        self.args.map(|arg| i64::from(arg) as u64)
    }

    /// Tells whether the kernel may answer with 0: that is no id, and says of an address or a descriptor
    /// that it is there.
    pub(super) fn may_return_0(&self) -> bool {
        let is_id = IDENTITY.iter().any(|call| call.nr == self.nr);
        !is_id && !self.args.iter().any(|arg| matches!(*arg, AT | NONE))
    }
}

/// Filters see no more of pointers. Nothing is there: the calls are made, to see what becomes of them.
const AT: i32 = -4096;
const AT_FDCWD: i32 = -100;
/// No descriptor.
const NONE: i32 = -1;
/// `PROCMAP_QUERY` (fs/proc/task_mmu.c).
const PROCMAP_QUERY: i32 = 0xc068_6611_u32.cast_signed();
/// No process, and no group of processes.
const NOBODY: i32 = i32::MIN;

/// Calls that only others than this crate make: the engine, maps, the standard library.
mod nr {
    pub(super) const OPEN: u64 = 2;
    pub(super) const STAT: u64 = 4;
    pub(super) const LSTAT: u64 = 6;
    pub(super) const LSEEK: u64 = 8;
    pub(super) const MPROTECT: u64 = 10;
    pub(super) const RT_SIGACTION: u64 = 13;
    pub(super) const RT_SIGRETURN: u64 = 15;
    pub(super) const IOCTL: u64 = 16;
    pub(super) const PWRITE64: u64 = 18;
    pub(super) const MREMAP: u64 = 25;
    pub(super) const MADVISE: u64 = 28;
    pub(super) const NANOSLEEP: u64 = 35;
    pub(super) const SENDTO: u64 = 44;
    pub(super) const RECVFROM: u64 = 45;
    pub(super) const RECVMSG: u64 = 47;
    pub(super) const SOCKETPAIR: u64 = 53;
    pub(super) const CLONE: u64 = 56;
    pub(super) const EXIT: u64 = 60;
    pub(super) const WAIT4: u64 = 61;
    pub(super) const KILL: u64 = 62;
    pub(super) const FCNTL: u64 = 72;
    pub(super) const FTRUNCATE: u64 = 77;
    pub(super) const GETCWD: u64 = 79;
    pub(super) const GETEUID: u64 = 107;
    pub(super) const GETPPID: u64 = 110;
    pub(super) const RT_SIGTIMEDWAIT: u64 = 128;
    pub(super) const RT_SIGQUEUEINFO: u64 = 129;
    pub(super) const SIGALTSTACK: u64 = 131;
    pub(super) const FSTATFS: u64 = 138;
    pub(super) const ARCH_PRCTL: u64 = 158;
    pub(super) const TKILL: u64 = 200;
    pub(super) const FUTEX: u64 = 202;
    pub(super) const SCHED_GETAFFINITY: u64 = 204;
    pub(super) const GETDENTS64: u64 = 217;
    pub(super) const SET_TID_ADDRESS: u64 = 218;
    pub(super) const RESTART_SYSCALL: u64 = 219;
    pub(super) const CLOCK_NANOSLEEP: u64 = 230;
    pub(super) const EXIT_GROUP: u64 = 231;
    pub(super) const TGKILL: u64 = 234;
    pub(super) const UNLINKAT: u64 = 263;
    pub(super) const RENAMEAT: u64 = 264;
    pub(super) const LINKAT: u64 = 265;
    pub(super) const READLINKAT: u64 = 267;
    pub(super) const PPOLL: u64 = 271;
    pub(super) const UNSHARE: u64 = 272;
    pub(super) const UTIMENSAT: u64 = 280;
    pub(super) const FALLOCATE: u64 = 285;
    pub(super) const SIGNALFD4: u64 = 289;
    pub(super) const RT_TGSIGQUEUEINFO: u64 = 297;
    pub(super) const PRLIMIT64: u64 = 302;
    pub(super) const GETCPU: u64 = 309;
    pub(super) const GETRANDOM: u64 = 318;
    pub(super) const MEMFD_CREATE: u64 = 319;
    pub(super) const MEMBARRIER: u64 = 324;
    pub(super) const STATX: u64 = 332;
    pub(super) const PIDFD_OPEN: u64 = 434;
    pub(super) const CLOSE_RANGE: u64 = 436;
}

/// What events of threads that had one before may do: block signals while they are on another
/// stack, and look which stack a handler runs on.
pub(super) const EVERY_EVENT: Calls = &[
    call(syscall::RT_SIGPROCMASK, [0, AT, AT, 8]),
    call(syscall::RT_SIGPROCMASK, [2, AT, AT, 8]),
    call(nr::SIGALTSTACK, [0, AT]),
];

/// The same where time comes from the kernel.
pub(super) const TIME: Calls = &[call(syscall::CLOCK_GETTIME, [1, AT])];

/// Who we are: a wrong answer is worse than none.
pub(super) const IDENTITY: Calls = &[call(GETPID, []), call(syscall::GETTID, [])];

/// Everything else: a thread's first event, libraries that come and go, turning off, executing,
/// helpers, memory for maps, who holds a lock.
pub(super) const OTHERS: Calls = &[
    call(syscall::RT_SIGPROCMASK, [1, AT, 0, 8]),
    call(syscall::READ, [NONE, AT, 96]),
    call(syscall::WRITE, [NONE, AT, 96]),
    call(nr::OPEN, [AT, 0o2_104_400]),
    call(syscall::CLOSE, [NONE]),
    call(nr::STAT, [AT, AT]),
    call(syscall::FSTAT, [NONE, AT]),
    call(nr::LSTAT, [AT, AT]),
    call(nr::LSEEK, [NONE]),
    call(syscall::MMAP, [0, 4096, 0, 0x22, NONE]),
    call(syscall::MMAP, [0, 4096, 3, 0x22, NONE]),
    call(nr::MPROTECT, [AT, 4096, 3]),
    call(nr::MPROTECT, [AT, 4096, 5]),
    call(syscall::MUNMAP, [AT, 4096]),
    call(nr::RT_SIGACTION, [5, AT, AT, 8]),
    call(nr::IOCTL, [NONE, PROCMAP_QUERY, AT]),
    call(syscall::PREAD64, [NONE, AT, 96]),
    call(nr::PWRITE64, [NONE, AT, 96]),
    call(syscall::SCHED_YIELD, []),
    call(nr::MREMAP, [AT, 4096, 8192]),
    call(nr::MADVISE, [AT, 65536, 14]),
    call(nr::MADVISE, [AT, 65536, 18]),
    call(nr::MADVISE, [AT, 65536, 23]),
    call(nr::NANOSLEEP, [AT]),
    call(nr::FCNTL, [NONE, 1030]),
    call(syscall::FLOCK, [NONE, 2]),
    call(nr::FTRUNCATE, [NONE]),
    call(nr::GETCWD, [AT, 96]),
    call(syscall::READLINK, [AT, AT, 96]),
    call(syscall::GETRUSAGE, [1, AT]),
    call(syscall::GETUID, []),
    call(syscall::GETGID, []),
    call(nr::GETEUID, []),
    call(nr::KILL, [NOBODY]),
    call(nr::GETPPID, []),
    call(nr::RT_SIGTIMEDWAIT, [AT, 0, AT, 8]),
    call(nr::RT_SIGQUEUEINFO, [NOBODY, 0, AT]),
    call(nr::FSTATFS, [NONE, AT]),
    call(syscall::MUNLOCK, [AT, 4096]),
    call(syscall::PRCTL, [16, AT]),
    call(syscall::FGETXATTR, [NONE, AT]),
    call(nr::TKILL, [2]),
    call(nr::FUTEX, [AT, 128, 0, AT]),
    call(nr::FUTEX, [AT, 129, 1]),
    call(nr::FUTEX, [AT, 1, 1]),
    call(nr::SCHED_GETAFFINITY, [0, 8, AT]),
    call(nr::GETDENTS64, [NONE, AT, 4096]),
    call(syscall::CLOCK_GETTIME, [1, AT]),
    call(nr::CLOCK_NANOSLEEP, [0, 0, AT]),
    call(nr::TGKILL, [1, 2]),
    call(syscall::OPENAT, [AT_FDCWD, AT, 0o2_000_000]),
    call(syscall::FSTATAT, [AT_FDCWD, AT, AT]),
    call(nr::UNLINKAT, [AT_FDCWD, AT]),
    call(nr::RENAMEAT, [NONE, AT, NONE, AT]),
    call(nr::LINKAT, [AT_FDCWD, AT, NONE, AT, 0x400]),
    call(nr::READLINKAT, [AT_FDCWD, AT, AT, 96]),
    call(syscall::FACCESSAT, [AT_FDCWD, AT, 4]),
    call(nr::UNSHARE, [0x100]),
    call(nr::UTIMENSAT, [NONE]),
    call(nr::FALLOCATE, [NONE, 0, 0, 4096]),
    call(nr::RT_TGSIGQUEUEINFO, [NOBODY, NOBODY, 0, AT]),
    call(nr::PRLIMIT64, [0, 3, 0, AT]),
    call(nr::PRLIMIT64, [0, 0x7fff_ffff, AT]),
    call(nr::GETCPU, [AT]),
    call(PROCESS_VM_READV, [1, AT, 1, AT, 1]),
    call(syscall::PROCESS_VM_WRITEV, [1, AT, 1, AT, 1]),
    call(nr::MEMBARRIER, [8]),
    call(nr::MEMBARRIER, [16]),
    call(nr::STATX, [AT_FDCWD, AT, 0, 0xfff, AT]),
    call(nr::PIDFD_OPEN, [1]),
];

/// What is better done where memory is gone, and can be left out.
pub(super) const SWEEP: Calls = &[call(syscall::MINCORE, [AT, 4096, AT])];

/// Calls of the start alone: tables get their seeds, the agent moves out of its file.
pub(super) const START: Calls =
    &[call(nr::GETRANDOM, [AT, 1, 1]), call(nr::MEMFD_CREATE, [AT, 17])];

/// What a program that is executed needs to find out what becomes of the others: those cannot be tried
/// there. A child goes by a signal where it may not exit.
pub(super) const TRYING: Calls = &[
    call(nr::CLONE, [0x0100_0000, 0, 0, AT]),
    call(nr::WAIT4, [1, AT, 0x4000_0000]),
    call(nr::EXIT_GROUP, []),
];

/// What gives a thread and memory that were put into a process their names (`PR_SET_NAME`, `PR_SET_VMA`).
pub(super) const NAMES: Calls =
    &[call(syscall::PRCTL, [15, AT]), call(syscall::PRCTL, [0x5356_4d41, 0, AT, 4096, AT])];

/// What gives an agent's thread a descriptor table of its own, and wakes it there.
pub(super) const OWN_TABLE: Calls = &[
    call(nr::CLOSE_RANGE, [i32::MAX, i32::MAX, 2]),
    call(nr::SIGNALFD4, [NONE, AT, 8, 0x8_0800]),
    call(nr::TGKILL, [i32::MAX, i32::MAX, 16]),
];

/// What an agent on a thread of its own cannot do without, and whoever puts it into a process
/// (`skep_inject`), and what cannot be tried, but is made by each program with threads.
pub(super) const ALONE: [Calls; 2] = [
    ALONE_TRIED,
    &[call(nr::RT_SIGRETURN, []), call(nr::CLONE, [0xd_0f00, AT, 0, 0, AT]), call(nr::EXIT, [])],
];
pub(super) const ALONE_TRIED: Calls = &[
    call(syscall::CLOSE, [NONE]),
    call(syscall::MMAP, [0, 4096, 3, 0x22, NONE]),
    call(nr::MPROTECT, [AT, 4096, 5]),
    call(syscall::MUNMAP, [AT, 4096]),
    call(nr::RT_SIGACTION, [5, AT, AT, 8]),
    call(syscall::RT_SIGPROCMASK, [0, AT, AT, 8]),
    call(nr::SENDTO, [NONE, AT, 8, 0x4040]),
    call(nr::RECVFROM, [NONE, AT, 96, 0x40]),
    call(nr::RECVMSG, [NONE, AT, 0x4000_0000]),
    call(nr::SOCKETPAIR, [1, 0x8_0002, 0, AT]),
    call(nr::SOCKETPAIR, [1, 0x8_0005, 0, AT]),
    call(nr::ARCH_PRCTL, [0x1001]),
    call(nr::ARCH_PRCTL, [0x1003, AT]),
    call(nr::SET_TID_ADDRESS, [AT]),
    call(nr::RESTART_SYSCALL, []),
    call(nr::PPOLL, [AT, 1, AT, AT, 8]),
];
