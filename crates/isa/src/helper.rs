//! Helper functions: number, name, and what goes in and out, one row each (include/uapi/linux/bpf.h `__BPF_FUNC_MAPPER`,
//! prototypes from kernel/bpf/helpers.c and kernel/trace/bpf_trace.c).
//!
//! A helper has a row here before the verifier will allow a call; whether a program type may use it is [`Helper::progs`].
//! Kernel functions (kfuncs) that skep offers have rows too, with numbers from [`KFUNC_BASE`] on: the object reader
//! finds them by name, since their kernel numbers are BTF ids of the running kernel.

use crate::prog::ProgramType as P;

/// A helper's number.
pub type HelperId = u32;

/// First number of kernel functions that skep offers under its own numbers.
pub const KFUNC_BASE: HelperId = 0x1_0000;

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
    /// A random or unknowable pointer-sized value (a pointer to traced memory).
    Untrusted,
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
}

impl Helper {
    /// Returns how many argument registers a call may read: those of the prototype, and all five for `trace_printk`, whose
    /// format tells how many more.
    #[must_use]
    pub fn registers(&self) -> usize {
        const TRACE_PRINTK: HelperId = 6;
        if self.id == TRACE_PRINTK { self.args.len() } else { self.args.iter().take_while(|a| **a != ArgType::None).count() }
    }

    /// Tells whether programs of type `p` may call this helper.
    #[must_use]
    pub fn allows(&self, p: P) -> bool {
        match self.progs {
            All => true,
            Tracing => matches!(
                p,
                P::Kprobe | P::Tracepoint | P::RawTracepoint | P::RawTracepointWritable | P::PerfEvent | P::Tracing | P::Lsm | P::Syscall
            ),
            Only(list) => list.contains(&p),
        }
    }
}

const fn row(id: HelperId, name: &'static str, args: &[ArgType], ret: RetType, progs: Progs, gpl_only: bool) -> Helper {
    let mut all = [ArgType::None; 5];
    let mut i = 0;
    while i < args.len() {
        all[i] = args[i];
        i += 1;
    }
    Helper { id, name, args: all, ret, progs, gpl_only }
}

use ArgType::{
    AllocMemRelease, Anything, ConstAllocSize, ConstMapPtr, ConstStr, Ctx, Func, MapKey, MapValue, Mem, MemOrNull, Size, SizeOrZero,
    StackOrNull, UninitLong, UninitMem,
};
use Progs::{All, Only, Tracing};
use RetType::{AllocMemOrNull, Integer, MapValueOrNull, Mem as RetMem, Untrusted, Void};

/// The helpers skep knows, in order of number.
pub const HELPERS: &[Helper] = &[
    row(1, "map_lookup_elem", &[ConstMapPtr, MapKey], MapValueOrNull, All, false),
    row(2, "map_update_elem", &[ConstMapPtr, MapKey, MapValue, Anything], Integer, All, false),
    row(3, "map_delete_elem", &[ConstMapPtr, MapKey], Integer, All, false),
    row(4, "probe_read", &[UninitMem, SizeOrZero, Anything], Integer, Tracing, true),
    row(5, "ktime_get_ns", &[], Integer, All, false),
    row(6, "trace_printk", &[Mem, Size], Integer, All, true),
    row(7, "get_prandom_u32", &[], Integer, All, false),
    row(8, "get_smp_processor_id", &[], Integer, All, false),
    row(14, "get_current_pid_tgid", &[], Integer, All, false),
    row(15, "get_current_uid_gid", &[], Integer, All, false),
    row(16, "get_current_comm", &[UninitMem, Size], Integer, All, false),
    row(35, "get_current_task", &[], Untrusted, Tracing, true),
    row(45, "probe_read_str", &[UninitMem, SizeOrZero, Anything], Integer, Tracing, true),
    row(112, "probe_read_user", &[UninitMem, SizeOrZero, Anything], Integer, Tracing, true),
    row(113, "probe_read_kernel", &[UninitMem, SizeOrZero, Anything], Integer, Tracing, true),
    row(114, "probe_read_user_str", &[UninitMem, SizeOrZero, Anything], Integer, Tracing, true),
    row(115, "probe_read_kernel_str", &[UninitMem, SizeOrZero, Anything], Integer, Tracing, true),
    row(118, "jiffies64", &[], Integer, All, false),
    row(125, "ktime_get_boot_ns", &[], Integer, All, false),
    row(130, "ringbuf_output", &[ConstMapPtr, Mem, SizeOrZero, Anything], Integer, All, false),
    row(131, "ringbuf_reserve", &[ConstMapPtr, ConstAllocSize, Anything], AllocMemOrNull, All, false),
    row(132, "ringbuf_submit", &[AllocMemRelease, Anything], Void, All, false),
    row(133, "ringbuf_discard", &[AllocMemRelease, Anything], Void, All, false),
    row(134, "ringbuf_query", &[ConstMapPtr, Anything], Integer, All, false),
    row(160, "ktime_get_coarse_ns", &[], Integer, All, false),
    row(165, "snprintf", &[UninitMem, SizeOrZero, ConstStr, MemOrNull, SizeOrZero], Integer, All, false),
    row(173, "get_func_ip", &[Ctx], Integer, Only(&[P::Tracing, P::Kprobe]), true),
    row(174, "get_attach_cookie", &[Ctx], Integer, Only(&[P::Tracing, P::Kprobe, P::Tracepoint, P::PerfEvent]), false),
    row(177, "trace_vprintk", &[Mem, Size, MemOrNull, SizeOrZero], Integer, All, true),
    row(181, "loop", &[Anything, Func, StackOrNull, Anything], Integer, All, false),
    row(182, "strncmp", &[Mem, Size, ConstStr], Integer, All, false),
    row(183, "get_func_arg", &[Ctx, Anything, UninitLong], Integer, Only(&[P::Tracing]), false),
    row(184, "get_func_ret", &[Ctx, UninitLong], Integer, Only(&[P::Tracing]), false),
    row(185, "get_func_arg_cnt", &[Ctx], Integer, Only(&[P::Tracing]), false),
    row(195, "map_lookup_percpu_elem", &[ConstMapPtr, MapKey, Anything], MapValueOrNull, All, false),
    row(208, "ktime_get_tai_ns", &[], Integer, All, false),
    row(KFUNC_BASE, "bpf_session_is_return", &[Ctx], Integer, Only(&[P::Tracing, P::Kprobe]), false),
    row(KFUNC_BASE + 1, "bpf_session_cookie", &[Ctx], RetMem(8), Only(&[P::Tracing, P::Kprobe]), false),
    row(KFUNC_BASE + 2, "bpf_get_cpu_time_counter", &[], Integer, All, false),
    row(KFUNC_BASE + 3, "bpf_cpu_time_counter_to_ns", &[Anything], Integer, All, false),
];

/// Finds the row of a helper number.
#[must_use]
pub fn by_id(id: HelperId) -> Option<&'static Helper> {
    HELPERS.binary_search_by_key(&id, |h| h.id).ok().map(|i| &HELPERS[i])
}

/// Finds the row of a kernel function by its whole name.
#[must_use]
pub fn kfunc(name: &str) -> Option<&'static Helper> {
    HELPERS.iter().find(|h| h.id >= KFUNC_BASE && h.name == name)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rows_are_sorted_so_that_the_search_finds_them() {
        assert!(HELPERS.is_sorted_by(|a, b| a.id < b.id));
        assert_eq!(by_id(131).map(|h| h.name), Some("ringbuf_reserve"));
        assert_eq!(by_id(0), None);
    }
}
