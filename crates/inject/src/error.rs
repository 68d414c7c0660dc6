//! Why a process cannot be stopped or changed: the step that failed, and what would help.

use std::fmt;

use rustix::io::Errno;

use crate::image::ImageError;
use crate::task::{self, Status};

/// Why a process was not stopped, or not changed. The process runs on in every case.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// The process is not there, or has ended meanwhile.
    #[error("cannot stop process {pid}: there is no such process")]
    NoProcess {
        /// Its id.
        pid: u32,
    },
    /// Tracing was refused.
    #[error("cannot stop process {pid}: {reason}")]
    Refused {
        /// Its id.
        pid: u32,
        /// By what, and what would help.
        reason: Refusal,
    },
    /// A thread did not stop in time.
    #[error(
        "cannot stop process {pid}: its thread {tid} does not stop (state {state}), as while it \
         waits for a child of `vfork` or for a device; try again"
    )]
    Unstoppable {
        /// The process.
        pid: u32,
        /// The thread.
        tid: u32,
        /// The thread's state, as in `/proc/PID/stat`.
        state: char,
    },
    /// New threads came faster than they were stopped.
    #[error(
        "cannot stop process {pid}: it makes threads faster than they can be stopped; try again"
    )]
    Restless {
        /// Its id.
        pid: u32,
    },
    /// No thread can make system calls for the caller.
    #[error("cannot change process {pid}: no thread of it can make a system call: {reason}")]
    NoCaller {
        /// The process.
        pid: u32,
        /// What is against the last thread that was looked at.
        reason: Unfit,
    },
    /// There is no place for the instructions that make system calls.
    #[error(
        "cannot change process {pid}: neither its vDSO nor any other code ends with unused bytes"
    )]
    NoPlace {
        /// The process.
        pid: u32,
    },
    /// A system call that the process made for the caller failed.
    #[error("process {pid} cannot make the call `{call}`: {errno}")]
    Call {
        /// The process.
        pid: u32,
        /// The call's name.
        call: &'static str,
        /// Its result.
        errno: Errno,
    },
    /// A system call of the caller's own failed.
    #[error("cannot change process {pid}: `{call}` failed: {errno}")]
    Os {
        /// The process.
        pid: u32,
        /// The call's name.
        call: &'static str,
        /// Its result.
        errno: Errno,
    },
    /// Memory cannot be read or written.
    #[error("cannot {what} {len} bytes at {address:#x} of process {pid}: {errno}")]
    Memory {
        /// The process.
        pid: u32,
        /// `read` or `write`.
        what: &'static str,
        /// Where.
        address: u64,
        /// How many bytes.
        len: usize,
        /// Why.
        errno: Errno,
    },
    /// A library cannot be loaded.
    #[error("cannot load a library into process {pid}: {error}")]
    Image {
        /// The process.
        pid: u32,
        /// What is against it.
        error: ImageError,
    },
    /// A thread executes code of a library that is to be unloaded, or given a thread.
    #[error("cannot change a library in process {pid}: its thread {tid} is in it; try again")]
    InUse {
        /// The process.
        pid: u32,
        /// The thread.
        tid: u32,
    },
    /// The process's mappings cannot be read, or have no room.
    #[error("process {pid} has no free {len} bytes of address space near {address:#x}")]
    NoRoom {
        /// The process.
        pid: u32,
        /// Near what.
        address: u64,
        /// How many bytes.
        len: u64,
    },
}

/// Why tracing is refused.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub enum Refusal {
    /// What `/proc` has is of another PID namespace.
    OthersProc,
    /// It is the caller.
    Itself,
    /// It is a thread that does not lead its process.
    Thread {
        /// The process.
        of: u32,
    },
    /// A thread of the kernel.
    KernelThread,
    /// It has ended, and its parent has not asked for its status.
    Zombie,
    /// Another process traces it.
    Traced {
        /// The id of the tracing thread.
        by: u32,
        /// The tracer's name.
        name: String,
    },
    /// It belongs to another user.
    OtherUser {
        /// The user's id.
        uid: u32,
    },
    /// The Yama security module has such a `ptrace_scope`.
    Scope {
        /// 1 to 3.
        scope: u32,
    },
    /// Something else: a security module, the sandbox of a container, or privileges of the process.
    Other,
    /// It executes 32-bit code.
    Compat,
    /// A thread uses the GS base for something of its own.
    UsesGs {
        /// The thread.
        tid: u32,
    },
    /// Another process shares its memory, and would run on.
    SharedMemory {
        /// The other one's id.
        with: u32,
    },
}

impl fmt::Display for Refusal {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::OthersProc => f.write_str(
                "`/proc` is that of another PID namespace; mount one, as `unshare --mount-proc` does",
            ),
            Self::Itself => f.write_str("it is the tracer itself"),
            Self::Thread { of } => write!(f, "it is a thread of process {of}; use that id"),
            Self::KernelThread => f.write_str("it is a thread of the kernel"),
            Self::Zombie => {
                f.write_str("it has ended, and only its parent has not asked for its status yet")
            }
            Self::Traced { by, name } => write!(
                f,
                "`{name}` ({by}) traces it, and a process has one tracer only; end that first"
            ),
            Self::OtherUser { uid } => {
                write!(f, "it belongs to user {uid}: run skep as that user, or as root")
            }
            Self::Scope { scope: 3 } => f.write_str(
                "`/proc/sys/kernel/yama/ptrace_scope` is 3, which forbids tracing until the next boot",
            ),
            Self::Scope { scope } => write!(
                f,
                "`/proc/sys/kernel/yama/ptrace_scope` is {scope}; write 0 there, use root's \
                 account, or have the process call `prctl(PR_SET_PTRACER)`"
            ),
            Self::Other => f.write_str(
                "the system does not permit ptrace: the process has more privileges than the \
                 tracer, or a security module or a container's seccomp filter refuses; \
                 use root's account outside of the container",
            ),
            Self::Compat => f.write_str("it executes 32-bit code"),
            Self::UsesGs { tid } => write!(
                f,
                "its thread {tid} uses the GS register for something of its own, as Wine does"
            ),
            Self::SharedMemory { with } => {
                write!(f, "process {with} shares its memory, and would run on; try again")
            }
        }
    }
}

impl Refusal {
    /// Finds out why the kernel refuses to trace a thread.
    pub(crate) fn of(pid: u32, tid: u32) -> Self {
        let status = Status::of(pid, tid);
        let number = |name| status.as_ref().and_then(|status| status.number(name));
        // First: an end may have been seen by its tracer, who is ourselves.
        match task::stat(pid, tid) {
            Some(stat) if stat.is_kernel_thread() => return Self::KernelThread,
            Some(stat) if stat.is_dead() => return Self::Zombie,
            _ => {}
        }
        if let Some(by) = number("TracerPid").filter(|&by| by != 0) {
            return Self::Traced { by, name: task::name(by) };
        }
        let own = rustix::process::geteuid();
        match number("Uid") {
            Some(uid) if uid != own.as_raw() && !own.is_root() => return Self::OtherUser { uid },
            _ => {}
        }
        match task::ptrace_scope() {
            Some(scope @ 1..) => Self::Scope { scope },
            _ => Self::Other,
        }
    }
}

/// Why a thread cannot make system calls for the tracer.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub enum Unfit {
    /// Its system calls are filtered, and the filter would not let it make ours.
    Seccomp,
    /// Its system calls are filtered, and the kernel does not let the filter be read.
    UnknownFilter,
    /// Its system calls become signals, as under Wine.
    Dispatch,
    /// It executes one instruction at a time.
    SingleStep,
    /// It is in a restartable sequence, which must not lose its place.
    Sequence,
    /// It entered the system by something else than the instruction `syscall`.
    Entry,
    /// It ended.
    Ended,
}

impl fmt::Display for Unfit {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Seccomp => {
                "a seccomp filter is against calls that this takes; trace the program from its \
                 start instead"
            }
            Self::UnknownFilter => {
                "a seccomp filter could end the process for a call that it does not know, and \
                 only root may read it, outside of containers; use root's account, or trace the \
                 program from its start"
            }
            Self::Dispatch => "its system calls are turned into signals (Syscall User Dispatch)",
            Self::SingleStep => "it is being executed step by step",
            Self::Sequence => "it stays in a restartable sequence (rseq); try again",
            Self::Entry => "it made its last call by another instruction than `syscall`",
            Self::Ended => "the process is ending",
        })
    }
}
