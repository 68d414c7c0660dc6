//! When a helper may be called, and what a call does besides its result.

use crate::prog::{AttachType as A, ProgramType as P};

/// Tells which program types may call a helper.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Progs {
    /// Every type.
    All,
    /// The tracing types: kprobe, tracepoints, perf event, tracing, lsm, syscall.
    Tracing,
    /// Exactly these.
    Only(&'static [P]),
    /// All but these.
    Except(&'static [P]),
}

impl Progs {
    /// Tells whether programs of type `p` may call the helper.
    #[must_use]
    pub fn allow(self, p: P) -> bool {
        match self {
            Self::All => true,
            Self::Tracing => matches!(
                p,
                P::Kprobe
                    | P::Tracepoint
                    | P::RawTracepoint
                    | P::RawTracepointWritable
                    | P::PerfEvent
                    | P::Tracing
                    | P::Lsm
                    | P::Syscall
            ),
            Self::Only(list) => list.contains(&p),
            Self::Except(list) => !list.contains(&p),
        }
    }
}

/// Tells what a program must be attached to, beyond its type.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[non_exhaustive]
pub enum AttachRule {
    /// Anything.
    Any,
    /// The entry and the exit of a function, as one session.
    Session,
    /// A function, through a trampoline: the words that the helper reads are in its frame.
    Trampoline,
    /// As [`AttachRule::Trampoline`], and not only to the entry of the function.
    TrampolineExit,
    /// As [`AttachRule::Trampoline`] for programs of type tracing; others may be attached to
    /// anything.
    TrampolineOfTracing,
    /// A kernel function that holds no lock which the helper takes (kernel/trace/bpf_trace.c
    /// `btf_allowlist_d_path`).
    PathHooks,
    /// A hook whose verdict is a number that the program can look at and set.
    Verdict,
    /// In programs on socket options the setting of one, whose socket is locked.
    SetsOption,
    /// An iterator of the kernel.
    Iterator,
}

impl AttachRule {
    /// Tells whether a program of type `prog` may call the helper that is attached as `attach` to
    /// `target`.
    #[must_use]
    pub fn allows(self, prog: P, attach: Option<A>, target: Option<&str>) -> bool {
        let session = matches!(
            attach,
            Some(
                A::TraceFsession
                    | A::TraceFsessionMulti
                    | A::TraceKprobeSession
                    | A::TraceUprobeSession
            )
        );
        let entry = matches!(attach, Some(A::TraceFentry | A::TraceFentryMulti));
        match self {
            Self::Any => true,
            Self::Session => session,
            Self::Trampoline => attach.is_some_and(has_trampoline),
            Self::TrampolineExit => attach.is_some_and(has_trampoline) && !entry,
            Self::TrampolineOfTracing => prog != P::Tracing || attach.is_some_and(has_trampoline),
            Self::PathHooks => target.is_some_and(may_ask_for_paths),
            Self::Verdict => !attach.is_some_and(has_no_verdict),
            Self::SetsOption => prog != P::CgroupSockopt || attach == Some(A::CgroupSetsockopt),
            Self::Iterator => attach == Some(A::TraceIter),
        }
    }
}

fn has_trampoline(attach: A) -> bool {
    matches!(
        attach,
        A::TraceFentry
            | A::TraceFexit
            | A::ModifyReturn
            | A::TraceFsession
            | A::TraceFentryMulti
            | A::TraceFexitMulti
            | A::ModifyReturnMulti
            | A::TraceFsessionMulti
    )
}

fn may_ask_for_paths(function: &str) -> bool {
    function.starts_with("security_file_")
        || matches!(
            function,
            "vfs_truncate" | "vfs_fallocate" | "dentry_open" | "vfs_getattr" | "filp_close"
        )
}

/// Hooks whose programs' verdicts are ignored, or are no error number: there is no value to look
/// at or set.
fn has_no_verdict(hook: A) -> bool {
    matches!(
        hook,
        A::CgroupInetIngress
            | A::CgroupInetEgress
            | A::CgroupSockOps
            | A::CgroupUdp4Recvmsg
            | A::CgroupUdp6Recvmsg
            | A::CgroupUnixRecvmsg
            | A::CgroupInet4Getpeername
            | A::CgroupInet6Getpeername
            | A::CgroupUnixGetpeername
            | A::CgroupInet4Getsockname
            | A::CgroupInet6Getsockname
            | A::CgroupUnixGetsockname
    )
}

/// Tells what a call means for the spin lock that a program holds.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum LockRule {
    /// No lock may be held.
    Unlocked,
    /// The call takes the lock in its argument.
    Acquires,
    /// The call gives the lock in its argument back.
    Releases,
}

/// Tells what the pointer in r0 means for references. What a call gives back is in its arguments
/// ([`ArgType::AllocMemRelease`](super::ArgType::AllocMemRelease) and its like).
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Reference {
    /// Nothing.
    None,
    /// It is a new reference, which the program must release.
    Acquired,
    /// It is valid as long as the reference in the argument is held.
    OfArgument,
}

/// Tells which function of the program a helper calls, and with what.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[non_exhaustive]
pub enum Callback {
    /// The number of the turn, and the context argument; as many times as argument 1 says.
    Loop,
    /// The map, the key and the value of an element, and the context argument.
    EachElement,
    /// A task, an area of its memory, and the context argument.
    Vma,
    /// A sample of the ring buffer as a dynptr, and the context argument.
    Samples,
    /// The map, the key and the value that a timer lies in: later, not during the call.
    Timer,
}

/// Tells whether a call may move or resize the packet: pointers into it are void afterwards.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum PacketEffect {
    /// It does not.
    None,
    /// It may.
    Moves,
    /// It may where the dynptr among its arguments is that of a packet.
    MovesThroughDynptr,
}
