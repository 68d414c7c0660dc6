//! Helper functions: number, name, and what goes in and out, one row each.
//!
//! [`HELPERS`] has every helper of the kernel, so that any can be named; a row that says
//! `Helper::refused` cannot be called here, and why. Whether a program type may use it is
//! [`Helper::progs`]. Kernel functions (kfuncs) that skep offers are [`KFUNCS`], with numbers from
//! [`KFUNC_BASE`] on: the object reader finds them by name, since their kernel numbers are BTF ids
//! of the running kernel.

mod kfuncs;
mod table;

use crate::prog::ProgramType as P;

/// A helper's number.
pub type HelperId = u32;

/// First number of kernel functions that skep offers under its own numbers.
pub const KFUNC_BASE: HelperId = 0x1_0000;

/// What loads from packets call (`ld_abs`, `ld_ind`): context, offset, and size in bytes to a
/// number, or -1. No program can name it.
pub const LOAD_PACKET: HelperId = 0x2_0000;

/// The kernel's helpers, in order of number.
pub const HELPERS: &[Helper] = table::HELPERS;

/// The kernel functions skep knows, in order of number.
pub const KFUNCS: &[Helper] = kfuncs::KFUNCS;

/// Tells what the verifier must see in an argument register (`enum bpf_arg_type`).
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
#[non_exhaustive]
pub enum ArgType {
    /// Not an argument.
    None,
    /// Any initialised value.
    Anything,
    /// A map.
    ConstMapPtr,
    /// Readable memory of the map's key size.
    MapKey,
    /// Readable memory of the map's value size.
    MapValue,
    /// Writable memory of the map's value size, need not be initialised.
    UninitMapValue,
    /// Readable memory; its size is the next argument.
    Mem,
    /// Readable memory or NULL (then the size must be 0); its size is the next argument.
    MemOrNull,
    /// Writable memory, need not be initialised; its size is the next argument.
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
    /// Writable aligned memory of eight bytes, need not be initialised.
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
    /// Initialised memory that the helper also writes; its size is the next argument.
    MemWrite,
    /// As [`ArgType::UninitMem`], or NULL (then the size must be 0).
    UninitMemOrNull,
    /// Readable memory of this many bytes.
    FixedMem(u32),
    /// Aligned, initialised memory of this many bytes that the helper also writes.
    FixedMemWrite(u32),
    /// Readable memory of the map's value size, or NULL.
    MapValueOrNull,
    /// The program's context, or NULL.
    CtxOrNull,
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
    /// A per-CPU variable of the kernel.
    PercpuVar,
    /// A kernel object of this type.
    BtfId(&'static str),
    /// A kernel object of this type, or NULL.
    BtfIdOrNull(&'static str),
    /// A socket of any kind.
    SockCommon,
    /// A socket that this call releases.
    SockRelease,
}

/// Tells what a dynptr is over (`enum bpf_dynptr_type`).
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
#[non_exhaustive]
pub enum DynptrKind {
    /// Memory of the program.
    Local,
    /// A ring buffer record.
    Ringbuf,
    /// A socket buffer.
    Skb,
    /// An XDP packet.
    Xdp,
}

/// Tells what the verifier knows of r0 after the call (`enum bpf_return_type`).
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
#[non_exhaustive]
pub enum RetType {
    /// Any 64-bit value.
    Integer,
    /// Nothing: r0 is unreadable.
    Void,
    /// A value of the map in argument 1, or NULL.
    MapValueOrNull,
    /// Memory of the size in the [`ArgType::ConstAllocSize`] argument, or NULL; must be released.
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
    /// A full socket or NULL; must be released.
    SocketOrNull,
    /// A socket of any kind or NULL; must be released.
    SockCommonOrNull,
    /// A TCP socket, or NULL.
    TcpSockOrNull,
    /// A per-CPU variable of the kernel.
    PercpuVar,
    /// A per-CPU variable of the kernel, or NULL.
    PercpuVarOrNull,
}

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

/// One helper.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Helper {
    /// The kernel's number, or one from [`KFUNC_BASE`] on.
    pub id: HelperId,
    /// The name without the `bpf_` prefix for helpers, the whole name for kernel functions.
    pub name: &'static str,
    /// The five arguments.
    pub args: [ArgType; 5],
    /// The result.
    pub ret: RetType,
    /// Who may call it.
    pub progs: Progs,
    /// Only programs under a GPL-compatible licence may call it.
    pub gpl_only: bool,
    /// Its memory arguments may lie in the packet of a packet program.
    pub packet: bool,
    /// It may move or resize the packet: pointers into it are void afterwards.
    pub moves_packet: bool,
    /// Only programs that may sleep may call it.
    pub sleeps: bool,
    /// Why it cannot be called outside the kernel; `None` when it can.
    pub refused: Option<&'static str>,
    /// What it does other than in the kernel; empty when nothing.
    pub differs: &'static str,
}

impl Helper {
    /// Returns how many argument registers a call may read: those of the prototype, and all five
    /// for `trace_printk`, whose format tells how many more.
    #[must_use]
    pub fn registers(&self) -> usize {
        const TRACE_PRINTK: HelperId = 6;
        if self.id == TRACE_PRINTK {
            self.args.len()
        } else {
            self.args.iter().take_while(|a| **a != ArgType::None).count()
        }
    }

    /// Tells whether programs of type `p` may call this helper.
    #[must_use]
    pub fn allows(&self, p: P) -> bool {
        match self.progs {
            Progs::All => true,
            Progs::Tracing => matches!(
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
            Progs::Only(list) => list.contains(&p),
            Progs::Except(list) => !list.contains(&p),
        }
    }

    const fn gpl(mut self) -> Self {
        self.gpl_only = true;
        self
    }

    const fn packet(mut self) -> Self {
        self.packet = true;
        self
    }

    const fn moves_packet(mut self) -> Self {
        self.moves_packet = true;
        self
    }

    const fn sleeps(mut self) -> Self {
        self.sleeps = true;
        self
    }

    const fn differs(mut self, how: &'static str) -> Self {
        self.differs = how;
        self
    }

    const fn refused(mut self, why: &'static str) -> Self {
        self.refused = Some(why);
        self
    }
}

const fn row(
    id: HelperId,
    name: &'static str,
    args: &[ArgType],
    ret: RetType,
    progs: Progs,
) -> Helper {
    let mut all = [ArgType::None; 5];
    let mut i = 0;
    while i < args.len() {
        all[i] = args[i];
        i += 1;
    }
    Helper {
        id,
        name,
        args: all,
        ret,
        progs,
        gpl_only: false,
        packet: false,
        moves_packet: false,
        sleeps: false,
        refused: None,
        differs: "",
    }
}

/// Finds the row of a helper number.
#[must_use]
pub fn by_id(id: HelperId) -> Option<&'static Helper> {
    let (table, first) = if id >= KFUNC_BASE { (KFUNCS, KFUNC_BASE) } else { (HELPERS, 1) };
    table.get(id.checked_sub(first)? as usize)
}

/// Finds the row of a helper by its name, with or without `bpf_`, or of a kernel function by its
/// whole name.
#[must_use]
pub fn by_name(name: &str) -> Option<&'static Helper> {
    let short = name.strip_prefix("bpf_").unwrap_or(name);
    HELPERS.iter().find(|h| h.name == short).or_else(|| kfunc(name))
}

/// Finds the row of a kernel function by its whole name.
#[must_use]
pub fn kfunc(name: &str) -> Option<&'static Helper> {
    KFUNCS.iter().find(|h| h.name == name)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rows_stand_where_their_numbers_say() {
        for (first, table) in [(1, HELPERS), (KFUNC_BASE, KFUNCS)] {
            for (n, h) in (first..).zip(table) {
                assert_eq!(h.id, n, "{}", h.name);
                assert_eq!((by_id(n), by_name(h.name)), (Some(h), Some(h)));
                assert_eq!(
                    table.iter().filter(|other| other.name == h.name).count(),
                    1,
                    "{}",
                    h.name
                );
            }
        }
        assert_eq!(HELPERS.len(), 211);
        assert_eq!(by_id(131).map(|h| h.name), Some("ringbuf_reserve"));
        assert_eq!((by_id(0), by_id(212)), (None, None));
    }

    #[test]
    fn every_size_follows_the_memory_it_measures() {
        for h in HELPERS.iter().chain(KFUNCS) {
            for (i, arg) in h.args.iter().enumerate() {
                let size = matches!(arg, ArgType::Size | ArgType::SizeOrZero);
                let before = i.checked_sub(1).map_or(ArgType::None, |i| h.args[i]);
                let memory = matches!(
                    before,
                    ArgType::Mem
                        | ArgType::MemOrNull
                        | ArgType::MemWrite
                        | ArgType::UninitMem
                        | ArgType::UninitMemOrNull
                );
                assert_eq!(size, memory, "argument {} of {}", i + 1, h.name);
            }
        }
    }
}
