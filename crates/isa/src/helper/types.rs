//! What goes into a helper and what comes out of it.

use crate::prog::ProgramType as P;

/// Tells what the verifier must see in an argument register (`enum bpf_arg_type`).
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
#[non_exhaustive]
pub enum ArgType {
    /// Not an argument.
    None,
    /// Any initialized value.
    Anything,
    /// The number 0.
    Zero,
    /// A map.
    ConstMapPtr,
    /// A key of the map: what its [`KeyShape`](crate::KeyShape) says.
    MapKey,
    /// Readable memory of the map's value size.
    MapValue,
    /// Writable memory of the map's value size, need not be initialized.
    UninitMapValue,
    /// Readable memory; its size is the next argument.
    Mem,
    /// Readable memory or NULL (then the size must be 0); its size is the next argument.
    MemOrNull,
    /// Writable memory, need not be initialized; its size is the next argument.
    UninitMem,
    /// Size of the memory before it, above zero.
    Size,
    /// Size of the memory before it, may be zero.
    SizeOrZero,
    /// A size known at verification time (ring buffer reservation).
    ConstAllocSize,
    /// The program's context.
    Ctx,
    /// A ring buffer record that this call releases.
    AllocMemRelease,
    /// Writable aligned memory of eight bytes, need not be initialized.
    UninitLong,
    /// A NUL-terminated string in a read-only map.
    ConstStr,
    /// A function of the same program, as callback.
    Func,
    /// A pointer to the stack, or NULL.
    StackOrNull,
    /// A pointer to a value with a spin lock.
    SpinLock,
    /// A number, no pointer.
    Scalar,
    /// Initialized memory that the helper also writes; its size is the next argument.
    MemWrite,
    /// As [`ArgType::UninitMem`], or NULL (then the size must be 0).
    UninitMemOrNull,
    /// Readable memory of this many bytes.
    FixedMem(u32),
    /// Aligned, initialized memory of this many bytes that the helper also writes.
    FixedMemWrite(u32),
    /// Readable memory of the map's value size, or NULL.
    MapValueOrNull,
    /// The program's context, or NULL.
    CtxOrNull,
    /// The program's context; in tracing and `sk_reuseport` programs a socket of any kind, or NULL.
    CtxOrSocket,
    /// A socket of any kind; in programs whose context stands for one, the context.
    SocketOrCtx,
    /// Sixteen bytes of stack that become a dynptr.
    UninitDynptr(DynptrKind),
    /// A dynptr of any kind.
    Dynptr,
    /// A dynptr over a ring buffer record that this call releases.
    DynptrRelease,
    /// A pointer to the `bpf_timer` in a map value.
    Timer,
    /// A pointer to a typed kernel pointer in a map value.
    Kptr,
    /// An object of the type that the [`ArgType::Kptr`] argument leads to, or NULL; the map then
    /// owns it.
    KptrValue,
    /// A per-CPU variable of the kernel.
    PercpuVar,
    /// A kernel object of this type.
    BtfId(&'static str),
    /// A kernel object of this type, or NULL.
    BtfIdOrNull(&'static str),
    /// A socket of any kind, also one that a program knows as `struct bpf_sock` only
    /// (`ARG_PTR_TO_SOCK_COMMON`).
    SockCommon,
    /// A socket of any kind (`ARG_PTR_TO_BTF_ID_SOCK_COMMON`).
    BtfIdSockCommon,
    /// A socket of any kind, or NULL.
    SockCommonOrNull,
    /// A full socket, or NULL (`ARG_PTR_TO_SOCKET_OR_NULL`).
    SocketOrNull,
    /// The socket that a packet goes to: of any kind; where it was looked up, a full one or NULL.
    SockAssigned,
    /// A socket of any kind; tracing programs need not know whether it is there, and programs that
    /// are about one socket give their context.
    SockStorageOwner,
    /// A socket that this call releases.
    SockRelease,
}

impl ArgType {
    /// Returns what programs of type `p` pass: helpers that are about a socket have other
    /// prototypes where the context stands for it (net/core/filter.c).
    #[must_use]
    pub const fn in_programs(self, p: P) -> Self {
        match (self, p) {
            (Self::CtxOrSocket, P::Tracing | P::SkReuseport) => Self::SockCommonOrNull,
            (Self::SocketOrCtx, P::SockOps | P::CgroupSockAddr)
            | (Self::SockStorageOwner, P::CgroupSock)
            | (Self::CtxOrSocket, _) => Self::Ctx,
            (Self::SockAssigned, P::SkLookup) => Self::SocketOrNull,
            (Self::SocketOrCtx | Self::SockAssigned, _) => Self::BtfIdSockCommon,
            _ => self,
        }
    }
}

/// Tells what a dynptr is over (`enum bpf_dynptr_type`).
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
#[non_exhaustive]
pub enum DynptrKind {
    /// Memory of the program.
    Local = 1,
    /// A ring buffer record.
    Ringbuf = 2,
    /// A socket buffer.
    Skb = 3,
    /// An XDP packet.
    Xdp = 4,
}

/// Tells what the verifier knows of r0 after the call (`enum bpf_return_type`).
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
#[non_exhaustive]
pub enum RetType {
    /// Any 64-bit value.
    Integer,
    /// The number of a processor.
    Processor,
    /// How many bytes were written, at most the [`ArgType::SizeOrZero`] argument; or a negative
    /// error number.
    BytesWritten,
    /// Nothing: r0 is unreadable.
    Void,
    /// A value of the map in argument 1, or NULL.
    MapValueOrNull,
    /// Memory of the size in the [`ArgType::ConstAllocSize`] argument, or NULL.
    AllocMemOrNull,
    /// Writable memory of this many bytes.
    Mem(u32),
    /// A value of the map in argument 1.
    MapValue,
    /// Memory of the dynptr, of the size in the [`ArgType::ConstAllocSize`] argument, or NULL.
    DynptrMemOrNull,
    /// A kernel object of this type.
    BtfId(&'static str),
    /// A kernel object of this type, or NULL.
    BtfIdOrNull(&'static str),
    /// The object that the [`ArgType::Kptr`] argument led to, or NULL; must be released.
    KptrOrNull,
    /// A full socket, or NULL.
    SocketOrNull,
    /// A socket of any kind, or NULL.
    SockCommonOrNull,
    /// A TCP socket, or NULL.
    TcpSockOrNull,
    /// A per-CPU variable of the kernel.
    PercpuVar,
    /// A per-CPU variable of the kernel, or NULL.
    PercpuVarOrNull,
}
