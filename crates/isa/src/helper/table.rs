//! The kernel's helpers, one row each in order of number (include/uapi/linux/bpf.h
//! `___BPF_FUNC_MAPPER`).
//!
//! Prototypes are those of Linux 6.12 (the `bpf_func_proto` tables of kernel/bpf, kernel/trace and
//! net/core); which program types may call what was asked of a Linux 6.18, type by type. A helper
//! whose first argument depends on the program type has the form that most types know
//! (`get_socket_cookie`: tracing programs give it the socket itself, or NULL).

use super::ArgType::{
    AllocMemRelease, Anything, BtfId, BtfIdOrNull, ConstAllocSize, ConstMapPtr, ConstStr, Ctx,
    CtxOrNull, Dynptr, DynptrRelease, FixedMem, FixedMemWrite, Func, Kptr, MapKey, MapValue,
    MapValueOrNull, Mem, MemOrNull, MemWrite, PercpuVar, Scalar, Size, SizeOrZero, SockCommon,
    SockRelease, SpinLock, StackOrNull, Timer, UninitDynptr, UninitLong, UninitMapValue, UninitMem,
    UninitMemOrNull,
};
use super::DynptrKind::{Local, Ringbuf};
use super::Progs::{All, Except, Only, Tracing};
use super::RetType::{
    AllocMemOrNull, DynptrMemOrNull, Integer, SockCommonOrNull, SocketOrNull, TcpSockOrNull, Void,
};
use super::{Helper, RetType as R, row};
use crate::prog::ProgramType as P;

const TC: &[P] = &[P::SchedCls, P::SchedAct];
const TC_LWT: &[P] = &[P::SchedCls, P::SchedAct, P::LwtXmit];
const TC_XDP: &[P] = &[P::SchedCls, P::SchedAct, P::Xdp];
const TC_CGROUP: &[P] = &[P::SchedCls, P::SchedAct, P::CgroupSkb];
const SKB_WRITE: &[P] = &[P::SchedCls, P::SchedAct, P::LwtXmit, P::SkSkb];
const TC_LWT_ALL: &[P] =
    &[P::SchedCls, P::SchedAct, P::LwtIn, P::LwtOut, P::LwtXmit, P::LwtSeg6local];
const SK_LOOKUP: &[P] =
    &[P::SchedCls, P::SchedAct, P::Xdp, P::CgroupSkb, P::SkSkb, P::CgroupSockAddr];
const SOCKOPT: &[P] = &[P::SockOps, P::CgroupSockAddr, P::CgroupSockopt, P::StructOps, P::Lsm];
const LOCAL_STORAGE: &[P] = &[
    P::CgroupSkb,
    P::CgroupSock,
    P::SockOps,
    P::CgroupDevice,
    P::CgroupSockAddr,
    P::CgroupSysctl,
    P::CgroupSockopt,
];
const RETVAL: &[P] =
    &[P::CgroupSock, P::CgroupDevice, P::CgroupSockAddr, P::CgroupSysctl, P::CgroupSockopt];
const NOT_CASTING: &[P] = &[
    P::Kprobe,
    P::Tracepoint,
    P::PerfEvent,
    P::CgroupSock,
    P::CgroupDevice,
    P::RawTracepoint,
    P::SkReuseport,
    P::CgroupSysctl,
    P::RawTracepointWritable,
    P::CgroupSockopt,
    P::Netfilter,
];
const TRAMPOLINE: &[P] = &[P::Tracing, P::Lsm];
const TYPED: &[P] = &[P::Tracing, P::Lsm, P::Syscall];

const SOCKETS: &str = "it works on sockets of the kernel";
const CGROUPS: &str = "it works on control groups of the kernel";
const ROUTES: &str = "it works on the kernel's routes and tunnels";
const INFRARED: &str = "it works on an infrared receiver";
const ITERATORS: &str = "it writes to the file of a kernel iterator";
const FILES: &str = "it works on the kernel's files and inodes";
const TASKS: &str = "it works on the kernel's tasks";
const SYSCALLS: &str = "it makes system calls for a loader inside the kernel";
const TIMERS: &str = "a timer would need a thread of its own in the traced program";
const SYMBOLS: &str = "it needs the types and symbols of the running kernel";
const COUNTERS: &str = "it reads hardware counters that only the kernel has open";
const OVERRIDE: &str = "a `fmod_ret` program changes what a function returns";
const SIGNALS: &str = "a traced program must not be sent signals in the middle of a function";
const KPTRS: &str = "there are no pointers to kernel objects";
const SYNCOOKIES: &str = "it needs the kernel's secret for SYN cookies";
const TYPED_PACKETS: &str = "there are no packets of the kernel to trace";

const TRACED: &str = "reads the traced program; a kernel address is `-EFAULT`";
const KERNEL: &str = "reads the traced program, as that is what there is to trace; `-ERANGE` where the kernel would say so, at kernel addresses `-EFAULT`";
const PRINTS: &str = "the line goes to whoever loaded the program; `%p` and `%pK` print the address itself, `%ps`, `%pS` and `%pB` print `0x…`";
const FORMAT: &str = "`%p` and `%pK` print the address itself, `%ps`, `%pS` and `%pB` print `0x…`";
const STAYS: &str = "the answer is given, but no packet leaves by itself";
const STACKS: &str = "user stacks only (`BPF_F_USER_STACK`), along frame pointers; a kernel stack is `-EFAULT`, build ids are `-EOPNOTSUPP`; empty-handed (`-EFAULT`) where the context has no registers";
const ROOM: &str =
    "room for at most 16,064 bytes, as there, and `-ENOMEM` where a packet was made with less";

/// Every helper of the kernel up to number 211, which is all there will be: newer ones are kernel
/// functions.
pub(super) const HELPERS: &[Helper] = &[
    row(1, "map_lookup_elem", &[ConstMapPtr, MapKey], R::MapValueOrNull, All).packet(),
    row(2, "map_update_elem", &[ConstMapPtr, MapKey, MapValue, Anything], Integer, All).packet(),
    row(3, "map_delete_elem", &[ConstMapPtr, MapKey], Integer, All).packet(),
    row(4, "probe_read", &[UninitMem, SizeOrZero, Anything], Integer, Tracing).gpl().differs(TRACED),
    row(5, "ktime_get_ns", &[], Integer, All),
    row(6, "trace_printk", &[Mem, Size], Integer, All).gpl().differs(PRINTS),
    row(7, "get_prandom_u32", &[], Integer, All).differs("a weaker generator"),
    row(8, "get_smp_processor_id", &[], Integer, All),
    row(9, "skb_store_bytes", &[Ctx, Anything, Mem, Size, Anything], Integer, Only(SKB_WRITE)).moves_packet(),
    row(10, "l3_csum_replace", &[Ctx, Anything, Anything, Anything, Anything], Integer, Only(TC_LWT)).moves_packet(),
    row(11, "l4_csum_replace", &[Ctx, Anything, Anything, Anything, Anything], Integer, Only(TC_LWT)).moves_packet(),
    row(12, "tail_call", &[Ctx, ConstMapPtr, Anything], Void, All).moves_packet(),
    row(13, "clone_redirect", &[Ctx, Anything, Anything], Integer, Only(TC_LWT)).moves_packet().refused(ROUTES),
    row(14, "get_current_pid_tgid", &[], Integer, All),
    row(15, "get_current_uid_gid", &[], Integer, All),
    row(16, "get_current_comm", &[UninitMem, Size], Integer, All),
    row(17, "get_cgroup_classid", &[Ctx], Integer, All).refused(CGROUPS),
    row(18, "skb_vlan_push", &[Ctx, Anything, Anything], Integer, Only(TC)).moves_packet(),
    row(19, "skb_vlan_pop", &[Ctx], Integer, Only(TC)).moves_packet(),
    row(20, "skb_get_tunnel_key", &[Ctx, UninitMem, Size, Anything], Integer, Only(TC_LWT)).refused(ROUTES),
    row(21, "skb_set_tunnel_key", &[Ctx, Mem, Size, Anything], Integer, Only(TC_LWT)).refused(ROUTES),
    row(22, "perf_event_read", &[ConstMapPtr, Anything], Integer, All).gpl().refused(COUNTERS),
    row(23, "redirect", &[Anything, Anything], Integer, Only(&[P::SchedCls, P::SchedAct, P::Xdp, P::LwtXmit])).differs(STAYS),
    row(24, "get_route_realm", &[Ctx], Integer, Only(TC_LWT_ALL)).refused(ROUTES),
    row(
        25,
        "perf_event_output",
        &[Ctx, ConstMapPtr, Anything, Mem, SizeOrZero],
        Integer,
        Except(&[P::SkReuseport, P::FlowDissector, P::Netfilter]),
    )
    .gpl()
    .differs("a ring for each processor; without room the sample is lost and counted"),
    row(
        26,
        "skb_load_bytes",
        &[Ctx, Anything, UninitMem, Size],
        Integer,
        Only(&[
            P::SocketFilter,
            P::SchedCls,
            P::SchedAct,
            P::CgroupSkb,
            P::LwtIn,
            P::LwtOut,
            P::LwtXmit,
            P::SkSkb,
            P::LwtSeg6local,
            P::SkReuseport,
            P::FlowDissector,
        ]),
    ),
    row(27, "get_stackid", &[Ctx, ConstMapPtr, Anything], Integer, Tracing).gpl().differs(STACKS),
    row(
        28,
        "csum_diff",
        &[MemOrNull, SizeOrZero, MemOrNull, SizeOrZero, Anything],
        Integer,
        Only(&[P::SchedCls, P::SchedAct, P::Xdp, P::LwtIn, P::LwtOut, P::LwtXmit, P::LwtSeg6local]),
    )
    .packet(),
    row(29, "skb_get_tunnel_opt", &[Ctx, UninitMem, Size], Integer, Only(TC_LWT)).refused(ROUTES),
    row(30, "skb_set_tunnel_opt", &[Ctx, Mem, Size], Integer, Only(TC_LWT)).refused(ROUTES),
    row(31, "skb_change_proto", &[Ctx, Anything, Anything], Integer, Only(TC)).moves_packet().refused(ROUTES),
    row(32, "skb_change_type", &[Ctx, Anything], Integer, Only(TC)),
    row(33, "skb_under_cgroup", &[Ctx, ConstMapPtr, Anything], Integer, Only(TC_LWT_ALL)).refused(CGROUPS),
    row(34, "get_hash_recalc", &[Ctx], Integer, Only(TC_LWT_ALL)).differs("another hash, of addresses, protocol and ports"),
    row(35, "get_current_task", &[], Integer, All)
        .gpl()
        .differs("a number for the thread that is the address of nothing: reading there is `-EFAULT`"),
    row(36, "probe_write_user", &[Anything, Mem, Size], Integer, Tracing).gpl(),
    row(37, "current_task_under_cgroup", &[ConstMapPtr, Anything], Integer, All)
        .differs("the map holds numbers of groups (inodes of their directories), not descriptors"),
    row(38, "skb_change_tail", &[Ctx, Anything, Anything], Integer, Only(SKB_WRITE)).moves_packet().differs(ROOM),
    row(
        39,
        "skb_pull_data",
        &[Ctx, Anything],
        Integer,
        Only(&[P::SchedCls, P::SchedAct, P::LwtIn, P::LwtOut, P::LwtXmit, P::SkSkb, P::LwtSeg6local]),
    )
    .moves_packet(),
    row(40, "csum_update", &[Ctx, Anything], Integer, Only(TC_LWT)).differs("always `-ENOTSUPP`: no device has summed the packet"),
    row(41, "set_hash_invalid", &[Ctx], Integer, Only(TC_LWT)),
    row(42, "get_numa_node_id", &[], Integer, All),
    row(43, "skb_change_head", &[Ctx, Anything, Anything], Integer, Only(SKB_WRITE)).moves_packet().differs(ROOM),
    row(44, "xdp_adjust_head", &[Ctx, Anything], Integer, Only(&[P::Xdp])).moves_packet(),
    row(45, "probe_read_str", &[UninitMem, SizeOrZero, Anything], Integer, Tracing).gpl().differs(TRACED),
    row(
        46,
        "get_socket_cookie",
        &[Ctx],
        Integer,
        Only(&[
            P::SocketFilter,
            P::SchedCls,
            P::SchedAct,
            P::CgroupSkb,
            P::CgroupSock,
            P::SockOps,
            P::SkSkb,
            P::CgroupSockAddr,
            P::SkReuseport,
            P::Tracing,
        ]),
    )
    .refused(SOCKETS),
    row(47, "get_socket_uid", &[Ctx], Integer, Only(&[P::SocketFilter, P::SchedCls, P::SchedAct, P::CgroupSkb, P::SkSkb])).refused(SOCKETS),
    row(48, "set_hash", &[Ctx, Anything], Integer, Only(TC)),
    row(49, "setsockopt", &[SockCommon, Anything, Anything, Mem, Size], Integer, Only(SOCKOPT)).refused(SOCKETS),
    row(50, "skb_adjust_room", &[Ctx, Anything, Anything, Anything], Integer, Only(&[P::SchedCls, P::SchedAct, P::SkSkb]))
        .moves_packet()
        .differs(ROOM),
    row(51, "redirect_map", &[ConstMapPtr, Anything, Anything], Integer, Only(&[P::Xdp])).differs(STAYS),
    row(52, "sk_redirect_map", &[Ctx, ConstMapPtr, Anything, Anything], Integer, Only(&[P::SkSkb])).refused(SOCKETS),
    row(53, "sock_map_update", &[Ctx, ConstMapPtr, MapKey, Anything], Integer, Only(&[P::SockOps])).packet().refused(SOCKETS),
    row(54, "xdp_adjust_meta", &[Ctx, Anything], Integer, Only(&[P::Xdp])).moves_packet(),
    row(55, "perf_event_read_value", &[ConstMapPtr, Anything, UninitMem, Size], Integer, All).gpl().refused(COUNTERS),
    row(56, "perf_prog_read_value", &[Ctx, UninitMem, Size], Integer, Only(&[P::PerfEvent])).gpl().refused(COUNTERS),
    row(57, "getsockopt", &[SockCommon, Anything, Anything, UninitMem, Size], Integer, Only(SOCKOPT)).refused(SOCKETS),
    row(58, "override_return", &[Ctx, Anything], Integer, Only(&[P::Kprobe])).gpl().refused(OVERRIDE),
    row(59, "sock_ops_cb_flags_set", &[Ctx, Anything], Integer, Only(&[P::SockOps])).refused(SOCKETS),
    row(60, "msg_redirect_map", &[Ctx, ConstMapPtr, Anything, Anything], Integer, Only(&[P::SkMsg])).refused(SOCKETS),
    row(61, "msg_apply_bytes", &[Ctx, Anything], Integer, Only(&[P::SkMsg])).refused(SOCKETS),
    row(62, "msg_cork_bytes", &[Ctx, Anything], Integer, Only(&[P::SkMsg])).refused(SOCKETS),
    row(63, "msg_pull_data", &[Ctx, Anything, Anything, Anything], Integer, Only(&[P::SkMsg])).moves_packet().refused(SOCKETS),
    row(64, "bind", &[Ctx, Mem, Size], Integer, Only(&[P::CgroupSockAddr])).refused(SOCKETS),
    row(65, "xdp_adjust_tail", &[Ctx, Anything], Integer, Only(&[P::Xdp])).moves_packet(),
    row(66, "skb_get_xfrm_state", &[Ctx, Anything, UninitMem, Size, Anything], Integer, Only(TC)).refused(ROUTES),
    row(67, "get_stack", &[Ctx, UninitMem, SizeOrZero, Anything], Integer, Tracing).gpl().differs(STACKS),
    row(
        68,
        "skb_load_bytes_relative",
        &[Ctx, Anything, UninitMem, Size, Anything],
        Integer,
        Only(&[P::SocketFilter, P::SchedCls, P::SchedAct, P::CgroupSkb, P::SkReuseport]),
    ),
    row(69, "fib_lookup", &[Ctx, MemWrite, Size, Anything], Integer, Only(TC_XDP)).gpl().differs(
        "no route is looked up: `BPF_FIB_LKUP_RET_FWD_DISABLED` where the interface forwards nothing, else `BPF_FIB_LKUP_RET_NOT_FWDED`",
    ),
    row(70, "sock_hash_update", &[Ctx, ConstMapPtr, MapKey, Anything], Integer, Only(&[P::SockOps])).packet().refused(SOCKETS),
    row(71, "msg_redirect_hash", &[Ctx, ConstMapPtr, MapKey, Anything], Integer, Only(&[P::SkMsg])).refused(SOCKETS),
    row(72, "sk_redirect_hash", &[Ctx, ConstMapPtr, MapKey, Anything], Integer, Only(&[P::SkSkb])).refused(SOCKETS),
    row(73, "lwt_push_encap", &[Ctx, Anything, Mem, Size], Integer, Only(&[P::LwtIn, P::LwtXmit])).moves_packet().refused(ROUTES),
    row(74, "lwt_seg6_store_bytes", &[Ctx, Anything, Mem, Size], Integer, Only(&[P::LwtSeg6local])).moves_packet().refused(ROUTES),
    row(75, "lwt_seg6_adjust_srh", &[Ctx, Anything, Anything], Integer, Only(&[P::LwtSeg6local])).moves_packet().refused(ROUTES),
    row(76, "lwt_seg6_action", &[Ctx, Anything, Mem, Size], Integer, Only(&[P::LwtSeg6local])).moves_packet().refused(ROUTES),
    row(77, "rc_repeat", &[Ctx], Integer, Only(&[P::LircMode2])).gpl().refused(INFRARED),
    row(78, "rc_keydown", &[Ctx, Anything, Anything, Anything], Integer, Only(&[P::LircMode2])).gpl().refused(INFRARED),
    row(79, "skb_cgroup_id", &[Ctx], Integer, Only(TC_CGROUP)).refused(CGROUPS),
    row(80, "get_current_cgroup_id", &[], Integer, All).differs("of the process, read anew once a second; 0 without control groups v2"),
    row(81, "get_local_storage", &[ConstMapPtr, Anything], R::MapValue, Only(LOCAL_STORAGE)).refused(CGROUPS),
    row(82, "sk_select_reuseport", &[Ctx, ConstMapPtr, MapKey, Anything], Integer, Only(&[P::SkReuseport])).refused(SOCKETS),
    row(83, "skb_ancestor_cgroup_id", &[Ctx, Anything], Integer, Only(TC_CGROUP)).refused(CGROUPS),
    row(84, "sk_lookup_tcp", &[Ctx, Mem, SizeOrZero, Anything, Anything], SocketOrNull, Only(SK_LOOKUP)).packet().refused(SOCKETS),
    row(85, "sk_lookup_udp", &[Ctx, Mem, SizeOrZero, Anything, Anything], SocketOrNull, Only(SK_LOOKUP)).packet().refused(SOCKETS),
    row(
        86,
        "sk_release",
        &[SockRelease],
        Integer,
        Only(&[P::SchedCls, P::SchedAct, P::Xdp, P::CgroupSkb, P::SkSkb, P::CgroupSockAddr, P::SkLookup]),
    )
    .refused(SOCKETS),
    row(87, "map_push_elem", &[ConstMapPtr, MapValue, Anything], Integer, All).packet(),
    row(88, "map_pop_elem", &[ConstMapPtr, UninitMapValue], Integer, All),
    row(89, "map_peek_elem", &[ConstMapPtr, UninitMapValue], Integer, All),
    row(90, "msg_push_data", &[Ctx, Anything, Anything, Anything], Integer, Only(&[P::SkMsg])).moves_packet().refused(SOCKETS),
    row(91, "msg_pop_data", &[Ctx, Anything, Anything, Anything], Integer, Only(&[P::SkMsg])).moves_packet().refused(SOCKETS),
    row(92, "rc_pointer_rel", &[Ctx, Anything, Anything], Integer, Only(&[P::LircMode2])).gpl().refused(INFRARED),
    row(93, "spin_lock", &[SpinLock], Void, All).differs("taken over from a holder that is gone, or that lets nobody in for a second"),
    row(94, "spin_unlock", &[SpinLock], Void, All),
    row(95, "sk_fullsock", &[SockCommon], SocketOrNull, Only(TC_CGROUP)).refused(SOCKETS),
    row(96, "tcp_sock", &[SockCommon], TcpSockOrNull, Only(&[P::SchedCls, P::SchedAct, P::CgroupSkb, P::SockOps, P::CgroupSockopt]))
        .refused(SOCKETS),
    row(97, "skb_ecn_set_ce", &[Ctx], Integer, Only(TC_CGROUP)),
    row(98, "get_listener_sock", &[SockCommon], SocketOrNull, Only(TC_CGROUP)).refused(SOCKETS),
    row(99, "skc_lookup_tcp", &[Ctx, Mem, SizeOrZero, Anything, Anything], SockCommonOrNull, Only(SK_LOOKUP)).packet().refused(SOCKETS),
    row(100, "tcp_check_syncookie", &[SockCommon, Mem, Size, Mem, Size], Integer, Only(TC_XDP)).gpl().packet().refused(SOCKETS),
    row(101, "sysctl_get_name", &[Ctx, MemWrite, Size, Anything], Integer, Only(&[P::CgroupSysctl])).refused(CGROUPS),
    row(102, "sysctl_get_current_value", &[Ctx, UninitMem, Size], Integer, Only(&[P::CgroupSysctl])).refused(CGROUPS),
    row(103, "sysctl_get_new_value", &[Ctx, UninitMem, Size], Integer, Only(&[P::CgroupSysctl])).refused(CGROUPS),
    row(104, "sysctl_set_new_value", &[Ctx, Mem, Size], Integer, Only(&[P::CgroupSysctl])).refused(CGROUPS),
    row(105, "strtol", &[Mem, Size, Anything, UninitLong], Integer, All),
    row(106, "strtoul", &[Mem, Size, Anything, UninitLong], Integer, All),
    row(
        107,
        "sk_storage_get",
        &[ConstMapPtr, SockCommon, MapValueOrNull, Anything],
        R::MapValueOrNull,
        Only(&[
            P::SchedCls,
            P::SchedAct,
            P::CgroupSkb,
            P::CgroupSock,
            P::SockOps,
            P::SkMsg,
            P::CgroupSockAddr,
            P::CgroupSockopt,
            P::Tracing,
            P::Lsm,
        ]),
    )
    .refused(SOCKETS),
    row(
        108,
        "sk_storage_delete",
        &[ConstMapPtr, SockCommon],
        Integer,
        Only(&[P::SchedCls, P::SchedAct, P::CgroupSkb, P::SockOps, P::SkMsg, P::CgroupSockAddr, P::CgroupSockopt, P::Tracing, P::Lsm]),
    )
    .refused(SOCKETS),
    row(109, "send_signal", &[Anything], Integer, All).refused(SIGNALS),
    row(110, "tcp_gen_syncookie", &[SockCommon, Mem, Size, Mem, Size], Integer, Only(TC_XDP)).gpl().packet().refused(SOCKETS),
    row(111, "skb_output", &[BtfId("sk_buff"), ConstMapPtr, Anything, Mem, SizeOrZero], Integer, Only(TYPED)).gpl().refused(TYPED_PACKETS),
    row(112, "probe_read_user", &[UninitMem, SizeOrZero, Anything], Integer, All).gpl().differs(TRACED),
    row(113, "probe_read_kernel", &[UninitMem, SizeOrZero, Anything], Integer, All).gpl().differs(KERNEL),
    row(114, "probe_read_user_str", &[UninitMem, SizeOrZero, Anything], Integer, All).gpl().differs(TRACED),
    row(115, "probe_read_kernel_str", &[UninitMem, SizeOrZero, Anything], Integer, All).gpl().differs(KERNEL),
    row(116, "tcp_send_ack", &[BtfId("tcp_sock"), Anything], Integer, Only(&[P::StructOps])).refused(SOCKETS),
    row(117, "send_signal_thread", &[Anything], Integer, All).refused(SIGNALS),
    row(118, "jiffies64", &[], Integer, All).differs("250 a second, whatever the kernel's `HZ`"),
    row(119, "read_branch_records", &[Ctx, UninitMemOrNull, SizeOrZero, Anything], Integer, Only(&[P::PerfEvent])).gpl().refused(COUNTERS),
    row(120, "get_ns_current_pid_tgid", &[Anything, Anything, UninitMem, Size], Integer, All),
    row(121, "xdp_output", &[BtfId("xdp_buff"), ConstMapPtr, Anything, Mem, SizeOrZero], Integer, Only(TYPED)).gpl().refused(TYPED_PACKETS),
    row(
        122,
        "get_netns_cookie",
        &[CtxOrNull],
        Integer,
        Only(&[
            P::SocketFilter,
            P::SchedCls,
            P::SchedAct,
            P::CgroupSkb,
            P::CgroupSock,
            P::SockOps,
            P::SkMsg,
            P::CgroupSockAddr,
            P::CgroupSockopt,
        ]),
    )
    .refused(SOCKETS),
    row(123, "get_current_ancestor_cgroup_id", &[Anything], Integer, All).differs("levels count from what is mounted at `/sys/fs/cgroup`"),
    row(124, "sk_assign", &[Ctx, SockCommon, Anything], Integer, Only(&[P::SchedCls, P::SchedAct, P::SkLookup])).refused(SOCKETS),
    row(125, "ktime_get_boot_ns", &[], Integer, All),
    row(126, "seq_printf", &[BtfId("seq_file"), Mem, Size, MemOrNull, SizeOrZero], Integer, Only(TRAMPOLINE)).gpl().refused(ITERATORS),
    row(127, "seq_write", &[BtfId("seq_file"), Mem, SizeOrZero], Integer, Only(TRAMPOLINE)).gpl().refused(ITERATORS),
    row(128, "sk_cgroup_id", &[SockCommon], Integer, Only(&[P::CgroupSkb])).refused(SOCKETS),
    row(129, "sk_ancestor_cgroup_id", &[SockCommon, Anything], Integer, Only(&[P::CgroupSkb])).refused(SOCKETS),
    row(130, "ringbuf_output", &[ConstMapPtr, Mem, SizeOrZero, Anything], Integer, All),
    row(131, "ringbuf_reserve", &[ConstMapPtr, ConstAllocSize, Anything], AllocMemOrNull, All),
    row(132, "ringbuf_submit", &[AllocMemRelease, Anything], Void, All),
    row(133, "ringbuf_discard", &[AllocMemRelease, Anything], Void, All),
    row(134, "ringbuf_query", &[ConstMapPtr, Anything], Integer, All),
    row(135, "csum_level", &[Ctx, Anything], Integer, Only(TC_LWT)),
    row(136, "skc_to_tcp6_sock", &[SockCommon], R::BtfIdOrNull("tcp6_sock"), Except(NOT_CASTING)).refused(SOCKETS),
    row(137, "skc_to_tcp_sock", &[SockCommon], R::BtfIdOrNull("tcp_sock"), Except(NOT_CASTING)).refused(SOCKETS),
    row(138, "skc_to_tcp_timewait_sock", &[SockCommon], R::BtfIdOrNull("tcp_timewait_sock"), Except(NOT_CASTING)).refused(SOCKETS),
    row(139, "skc_to_tcp_request_sock", &[SockCommon], R::BtfIdOrNull("tcp_request_sock"), Except(NOT_CASTING)).refused(SOCKETS),
    row(140, "skc_to_udp6_sock", &[SockCommon], R::BtfIdOrNull("udp6_sock"), Except(NOT_CASTING)).refused(SOCKETS),
    row(141, "get_task_stack", &[BtfId("task_struct"), UninitMem, SizeOrZero, Anything], Integer, All).refused(TASKS),
    row(142, "load_hdr_opt", &[Ctx, MemWrite, Size, Anything], Integer, Only(&[P::SockOps])).refused(SOCKETS),
    row(143, "store_hdr_opt", &[Ctx, Mem, Size, Anything], Integer, Only(&[P::SockOps])).moves_packet().refused(SOCKETS),
    row(144, "reserve_hdr_opt", &[Ctx, Anything, Anything], Integer, Only(&[P::SockOps])).refused(SOCKETS),
    row(145, "inode_storage_get", &[ConstMapPtr, BtfIdOrNull("inode"), MapValueOrNull, Anything], R::MapValueOrNull, Only(&[P::Lsm]))
        .refused(FILES),
    row(146, "inode_storage_delete", &[ConstMapPtr, BtfIdOrNull("inode")], Integer, Only(&[P::Lsm])).refused(FILES),
    row(147, "d_path", &[BtfId("path"), MemWrite, SizeOrZero], Integer, Only(TRAMPOLINE)).refused(FILES),
    row(148, "copy_from_user", &[UninitMem, SizeOrZero, Anything], Integer, All).sleeps().differs(TRACED),
    row(149, "snprintf_btf", &[MemWrite, Size, Mem, Size, Anything], Integer, All).refused(SYMBOLS),
    row(150, "seq_printf_btf", &[BtfId("seq_file"), Mem, SizeOrZero, Anything], Integer, Only(TRAMPOLINE)).gpl().refused(ITERATORS),
    row(151, "skb_cgroup_classid", &[Ctx], Integer, Only(TC)).refused(CGROUPS),
    row(152, "redirect_neigh", &[Anything, MemOrNull, SizeOrZero, Anything], Integer, Only(TC)).refused(ROUTES),
    row(153, "per_cpu_ptr", &[PercpuVar, Anything], R::PercpuVarOrNull, All).refused(SYMBOLS),
    row(154, "this_cpu_ptr", &[PercpuVar], R::PercpuVar, All).refused(SYMBOLS),
    row(155, "redirect_peer", &[Anything, Anything], Integer, Only(TC)).refused(ROUTES),
    row(156, "task_storage_get", &[ConstMapPtr, BtfIdOrNull("task_struct"), MapValueOrNull, Anything], R::MapValueOrNull, All)
        .refused(TASKS),
    row(157, "task_storage_delete", &[ConstMapPtr, BtfIdOrNull("task_struct")], Integer, All).refused(TASKS),
    row(158, "get_current_task_btf", &[], R::BtfId("task_struct"), All).gpl().refused(TASKS),
    row(159, "bprm_opts_set", &[BtfId("linux_binprm"), Anything], Integer, Only(&[P::Lsm])).refused(FILES),
    row(
        160,
        "ktime_get_coarse_ns",
        &[],
        Integer,
        Except(&[
            P::Kprobe,
            P::Tracepoint,
            P::PerfEvent,
            P::CgroupDevice,
            P::RawTracepoint,
            P::RawTracepointWritable,
            P::CgroupSockopt,
            P::Tracing,
            P::Lsm,
            P::Syscall,
            P::Netfilter,
        ]),
    ),
    row(161, "ima_inode_hash", &[BtfId("inode"), UninitMem, Size], Integer, Only(&[P::Lsm])).sleeps().refused(FILES),
    row(162, "sock_from_file", &[BtfId("file")], R::BtfIdOrNull("socket"), Only(TYPED)).refused(SOCKETS),
    row(163, "check_mtu", &[Ctx, Anything, FixedMemWrite(4), Anything, Anything], Integer, Only(TC_XDP))
        .gpl()
        .differs("hardware headers count as 14 bytes"),
    row(164, "for_each_map_elem", &[ConstMapPtr, Func, StackOrNull, Anything], Integer, All),
    row(165, "snprintf", &[UninitMemOrNull, SizeOrZero, ConstStr, MemOrNull, SizeOrZero], Integer, All).gpl().differs(FORMAT),
    row(166, "sys_bpf", &[Anything, Mem, Size], Integer, Only(&[P::Syscall])).sleeps().refused(SYSCALLS),
    row(167, "btf_find_by_name_kind", &[Mem, Size, Anything, Anything], Integer, Only(&[P::Syscall])).sleeps().refused(SYSCALLS),
    row(168, "sys_close", &[Anything], Integer, Only(&[P::Syscall])).sleeps().refused(SYSCALLS),
    row(169, "timer_init", &[Timer, ConstMapPtr, Anything], Integer, All).gpl().refused(TIMERS),
    row(170, "timer_set_callback", &[Timer, Func], Integer, All).gpl().refused(TIMERS),
    row(171, "timer_start", &[Timer, Anything, Anything], Integer, All).gpl().refused(TIMERS),
    row(172, "timer_cancel", &[Timer], Integer, All).gpl().refused(TIMERS),
    row(173, "get_func_ip", &[Ctx], Integer, Tracing).gpl(),
    row(
        174,
        "get_attach_cookie",
        &[Ctx],
        Integer,
        Only(&[P::Kprobe, P::Tracepoint, P::PerfEvent, P::RawTracepoint, P::RawTracepointWritable, P::Tracing, P::Lsm]),
    ),
    row(175, "task_pt_regs", &[BtfId("task_struct")], R::BtfId("pt_regs"), All).gpl().refused(TASKS),
    row(176, "get_branch_snapshot", &[UninitMem, SizeOrZero], Integer, All).gpl().refused(COUNTERS),
    row(177, "trace_vprintk", &[Mem, Size, MemOrNull, SizeOrZero], Integer, All).gpl().differs(PRINTS),
    row(178, "skc_to_unix_sock", &[SockCommon], R::BtfIdOrNull("unix_sock"), Except(NOT_CASTING)).refused(SOCKETS),
    row(179, "kallsyms_lookup_name", &[MemWrite, SizeOrZero, Anything, UninitLong], Integer, Only(&[P::Syscall])).refused(SYMBOLS),
    row(180, "find_vma", &[BtfId("task_struct"), Anything, Func, StackOrNull, Anything], Integer, All).refused(TASKS),
    row(181, "loop", &[Scalar, Func, StackOrNull, Anything], Integer, All),
    row(182, "strncmp", &[Mem, Size, ConstStr], Integer, All),
    row(183, "get_func_arg", &[Ctx, Anything, UninitLong], Integer, Only(TRAMPOLINE)),
    row(184, "get_func_ret", &[Ctx, UninitLong], Integer, Only(TRAMPOLINE)),
    row(185, "get_func_arg_cnt", &[Ctx], Integer, Only(TRAMPOLINE)),
    row(186, "get_retval", &[], Integer, Only(RETVAL)).refused(CGROUPS),
    row(187, "set_retval", &[Anything], Integer, Only(RETVAL)).refused(CGROUPS),
    row(188, "xdp_get_buff_len", &[Ctx], Integer, Only(&[P::Xdp])),
    row(189, "xdp_load_bytes", &[Ctx, Anything, UninitMem, Size], Integer, Only(&[P::Xdp])),
    row(190, "xdp_store_bytes", &[Ctx, Anything, Mem, Size], Integer, Only(&[P::Xdp])),
    row(191, "copy_from_user_task", &[UninitMem, SizeOrZero, Anything, BtfId("task_struct"), Anything], Integer, All)
        .gpl()
        .sleeps()
        .refused(TASKS),
    row(192, "skb_set_tstamp", &[Ctx, Anything, Anything], Integer, Only(TC)),
    row(193, "ima_file_hash", &[BtfId("file"), UninitMem, Size], Integer, Only(&[P::Lsm])).sleeps().refused(FILES),
    row(194, "kptr_xchg", &[Kptr, BtfIdOrNull("kptr")], R::BtfIdOrNull("kptr"), All).refused(KPTRS),
    row(195, "map_lookup_percpu_elem", &[ConstMapPtr, MapKey, Anything], R::MapValueOrNull, All).packet(),
    row(196, "skc_to_mptcp_sock", &[SockCommon], R::BtfIdOrNull("mptcp_sock"), Except(NOT_CASTING)).refused(SOCKETS),
    row(197, "dynptr_from_mem", &[UninitMem, SizeOrZero, Anything, UninitDynptr(Local)], Integer, All),
    row(198, "ringbuf_reserve_dynptr", &[ConstMapPtr, Anything, Anything, UninitDynptr(Ringbuf)], Integer, All),
    row(199, "ringbuf_submit_dynptr", &[DynptrRelease, Anything], Void, All),
    row(200, "ringbuf_discard_dynptr", &[DynptrRelease, Anything], Void, All),
    row(201, "dynptr_read", &[UninitMem, SizeOrZero, Dynptr, Anything, Anything], Integer, All),
    row(202, "dynptr_write", &[Dynptr, Anything, Mem, SizeOrZero, Anything], Integer, All),
    row(203, "dynptr_data", &[Dynptr, Anything, ConstAllocSize], DynptrMemOrNull, All),
    row(204, "tcp_raw_gen_syncookie_ipv4", &[FixedMem(20), MemWrite, SizeOrZero], Integer, Only(TC_XDP)).gpl().packet().refused(SYNCOOKIES),
    row(205, "tcp_raw_gen_syncookie_ipv6", &[FixedMem(40), MemWrite, SizeOrZero], Integer, Only(TC_XDP)).gpl().packet().refused(SYNCOOKIES),
    row(206, "tcp_raw_check_syncookie_ipv4", &[FixedMem(20), FixedMem(20)], Integer, Only(TC_XDP)).gpl().packet().refused(SYNCOOKIES),
    row(207, "tcp_raw_check_syncookie_ipv6", &[FixedMem(40), FixedMem(20)], Integer, Only(TC_XDP)).gpl().packet().refused(SYNCOOKIES),
    row(208, "ktime_get_tai_ns", &[], Integer, All),
    row(209, "user_ringbuf_drain", &[ConstMapPtr, Func, StackOrNull, Anything], Integer, All)
        .differs("a sample that is still being filled ends the call"),
    row(210, "cgrp_storage_get", &[ConstMapPtr, BtfIdOrNull("cgroup"), MapValueOrNull, Anything], R::MapValueOrNull, All).refused(CGROUPS),
    row(211, "cgrp_storage_delete", &[ConstMapPtr, BtfIdOrNull("cgroup")], Integer, All).refused(CGROUPS),
];
