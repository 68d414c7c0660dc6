//! The kernel's helpers, one row each in order of number (include/uapi/linux/bpf.h
//! `___BPF_FUNC_MAPPER`).
//!
//! Prototypes are those of Linux 6.12 (the `bpf_func_proto` tables of kernel/bpf, kernel/trace and
//! net/core); which program types may call what was asked of a Linux 6.18, type by type. The table
//! ends with number 211, as the kernel's does: newer functions are kernel functions.

use super::ArgType::{
    AllocMemRelease, Anything, BtfId, BtfIdOrNull, BtfIdSockCommon, ConstAllocSize, ConstMapPtr,
    ConstStr, Ctx, CtxOrNull, CtxOrSocket, Dynptr, DynptrRelease, FixedMem, FixedMemWrite, Func,
    Kptr, KptrValue, MapKey, MapValue, MapValueOrNull, Mem, MemOrNull, MemWrite, PercpuVar, Scalar,
    Size, SizeOrZero, SockAssigned, SockCommon, SockRelease, SockStorageOwner, SocketOrCtx,
    SpinLock, StackOrNull, Timer, UninitDynptr, UninitLong, UninitMapValue, UninitMem,
    UninitMemOrNull, Zero,
};
use super::DynptrKind::{Local, Ringbuf};
use super::Progs::{All, Except, Only, Tracing};
use super::RetType::{
    AllocMemOrNull, BytesWritten, DynptrMemOrNull, Integer, KptrOrNull, Processor,
    SockCommonOrNull, SocketOrNull, TcpSockOrNull, Void,
};
use super::{AttachRule, Callback, LockRule, Reference, RetType as R, helpers, row};
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
const SIGNALS: &str = "a traced program must not be sent signals in the middle of a function";
const KPTRS: &str = "there are no pointers to kernel objects";
const SYNCOOKIES: &str = "it needs the kernel's secret for SYN cookies";
const TYPED_PACKETS: &str = "there are no packets of the kernel to trace";

const TRACED: &str = "reads the traced program; a kernel address is `-EFAULT`";
const KERNEL: &str = "reads the traced program, as that is what there is to trace; \
    `-ERANGE` where the kernel would say so, at kernel addresses `-EFAULT`";
const PRINTS: &str = "the line goes to whoever loaded the program; \
    `%p` and `%pK` print the address itself, `%ps`, `%pS` and `%pB` print `0x…`";
const FORMAT: &str = "`%p` and `%pK` print the address itself, `%ps`, `%pS` and `%pB` print `0x…`";
const STAYS: &str = "the answer is given; only packets that come from a port go where it says";
const STACKS: &str = "user stacks only (`BPF_F_USER_STACK`), by unwind tables, else along frame pointers; \
    a kernel stack is `-EFAULT`, build ids are `-EOPNOTSUPP`; \
    empty-handed (`-EFAULT`) where the context has no registers";
const NETLINK: &str = "routes and neighbors are asked for by netlink, without rules on the input \
                      interface; `BPF_FIB_LOOKUP_TBID` finds none, `BPF_FIB_LOOKUP_DIRECT` the \
                      local ones too";
const ROOM: &str =
    "room for at most 16,064 bytes, as there, and `-ENOMEM` where a packet was made with less";

helpers! {
    from 0;
    1 MAP_LOOKUP_ELEM "map_lookup_elem" =>
        row(&[ConstMapPtr, MapKey], R::MapValueOrNull, All).packet();
    2 MAP_UPDATE_ELEM "map_update_elem" =>
        row(&[ConstMapPtr, MapKey, MapValue, Anything], Integer, All).packet().changes_map();
    3 MAP_DELETE_ELEM "map_delete_elem" =>
        row(&[ConstMapPtr, MapKey], Integer, All).packet().changes_map();
    4 PROBE_READ "probe_read" =>
        row(&[UninitMem, SizeOrZero, Anything], Integer, Tracing).gpl().differs(TRACED);
    5 KTIME_GET_NS "ktime_get_ns" => row(&[], Integer, All);
    6 TRACE_PRINTK "trace_printk" => row(&[Mem, Size], Integer, All).gpl().differs(PRINTS);
    7 GET_PRANDOM_U32 "get_prandom_u32" => row(&[], Integer, All).differs("a weaker generator");
    8 GET_SMP_PROCESSOR_ID "get_smp_processor_id" => row(&[], Processor, All);
    9 SKB_STORE_BYTES "skb_store_bytes" =>
        row(&[Ctx, Anything, Mem, Size, Anything], Integer, Only(SKB_WRITE)).moves_packet();
    10 L3_CSUM_REPLACE "l3_csum_replace" =>
        row(&[Ctx, Anything, Anything, Anything, Anything], Integer, Only(TC_LWT))
            .moves_packet();
    11 L4_CSUM_REPLACE "l4_csum_replace" =>
        row(&[Ctx, Anything, Anything, Anything, Anything], Integer, Only(TC_LWT))
            .moves_packet();
    12 TAIL_CALL "tail_call" =>
        row(&[Ctx, ConstMapPtr, Anything], Void, All)
            .moves_packet()
            .holds_nothing()
            .differs("those of functions that are called by others leave at most 20 KiB of frames");
    13 CLONE_REDIRECT "clone_redirect" =>
        row(&[Ctx, Anything, Anything], Integer, Only(TC_LWT)).moves_packet().refused(ROUTES);
    14 GET_CURRENT_PID_TGID "get_current_pid_tgid" => row(&[], Integer, All);
    15 GET_CURRENT_UID_GID "get_current_uid_gid" => row(&[], Integer, All);
    16 GET_CURRENT_COMM "get_current_comm" => row(&[UninitMem, Size], Integer, All);
    17 GET_CGROUP_CLASSID "get_cgroup_classid" => row(&[Ctx], Integer, All).refused(CGROUPS);
    18 SKB_VLAN_PUSH "skb_vlan_push" =>
        row(&[Ctx, Anything, Anything], Integer, Only(TC)).moves_packet();
    19 SKB_VLAN_POP "skb_vlan_pop" => row(&[Ctx], Integer, Only(TC)).moves_packet();
    20 SKB_GET_TUNNEL_KEY "skb_get_tunnel_key" =>
        row(&[Ctx, UninitMem, Size, Anything], Integer, Only(TC_LWT)).refused(ROUTES);
    21 SKB_SET_TUNNEL_KEY "skb_set_tunnel_key" =>
        row(&[Ctx, Mem, Size, Anything], Integer, Only(TC_LWT)).refused(ROUTES);
    22 PERF_EVENT_READ "perf_event_read" =>
        row(&[ConstMapPtr, Anything], Integer, All).gpl().refused(COUNTERS);
    23 REDIRECT "redirect" =>
        row(
            &[Anything, Anything],
            Integer,
            Only(&[P::SchedCls, P::SchedAct, P::Xdp, P::LwtXmit]),
        )
        .differs(STAYS);
    24 GET_ROUTE_REALM "get_route_realm" => row(&[Ctx], Integer, Only(TC_LWT_ALL)).refused(ROUTES);
    25 PERF_EVENT_OUTPUT "perf_event_output" =>
        row(
            &[Ctx, ConstMapPtr, Anything, Mem, SizeOrZero],
            Integer,
            Except(&[P::SkReuseport, P::FlowDissector, P::Netfilter]),
        )
        .gpl()
        .differs("a ring for each processor; without room the sample is lost and counted");
    26 SKB_LOAD_BYTES "skb_load_bytes" =>
        row(
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
        );
    27 GET_STACKID "get_stackid" =>
        row(&[Ctx, ConstMapPtr, Anything], Integer, Tracing).gpl().differs(STACKS);
    28 CSUM_DIFF "csum_diff" =>
        row(
            &[MemOrNull, SizeOrZero, MemOrNull, SizeOrZero, Anything],
            Integer,
            Only(&[
                P::SchedCls,
                P::SchedAct,
                P::Xdp,
                P::LwtIn,
                P::LwtOut,
                P::LwtXmit,
                P::LwtSeg6local,
            ]),
        )
        .packet();
    29 SKB_GET_TUNNEL_OPT "skb_get_tunnel_opt" =>
        row(&[Ctx, UninitMem, Size], Integer, Only(TC_LWT)).refused(ROUTES);
    30 SKB_SET_TUNNEL_OPT "skb_set_tunnel_opt" =>
        row(&[Ctx, Mem, Size], Integer, Only(TC_LWT)).refused(ROUTES);
    31 SKB_CHANGE_PROTO "skb_change_proto" =>
        row(&[Ctx, Anything, Anything], Integer, Only(TC)).moves_packet().refused(ROUTES);
    32 SKB_CHANGE_TYPE "skb_change_type" => row(&[Ctx, Anything], Integer, Only(TC));
    33 SKB_UNDER_CGROUP "skb_under_cgroup" =>
        row(&[Ctx, ConstMapPtr, Anything], Integer, Only(TC_LWT_ALL)).refused(CGROUPS);
    34 GET_HASH_RECALC "get_hash_recalc" =>
        row(&[Ctx], Integer, Only(TC_LWT_ALL))
            .differs("another hash, of addresses, protocol and ports");
    35 GET_CURRENT_TASK "get_current_task" =>
        row(&[], Integer, All).gpl().differs(
            "a number for the thread that is the address of nothing: reading there is `-EFAULT`",
        );
    36 PROBE_WRITE_USER "probe_write_user" => row(&[Anything, Mem, Size], Integer, Tracing).gpl();
    37 CURRENT_TASK_UNDER_CGROUP "current_task_under_cgroup" =>
        row(&[ConstMapPtr, Anything], Integer, All).differs(
            "the map holds numbers of groups (inodes of their directories), not descriptors",
        );
    38 SKB_CHANGE_TAIL "skb_change_tail" =>
        row(&[Ctx, Anything, Anything], Integer, Only(SKB_WRITE)).moves_packet().differs(ROOM);
    39 SKB_PULL_DATA "skb_pull_data" =>
        row(
            &[Ctx, Anything],
            Integer,
            Only(&[
                P::SchedCls,
                P::SchedAct,
                P::LwtIn,
                P::LwtOut,
                P::LwtXmit,
                P::SkSkb,
                P::LwtSeg6local,
            ]),
        )
        .moves_packet();
    40 CSUM_UPDATE "csum_update" =>
        row(&[Ctx, Anything], Integer, Only(TC_LWT))
            .differs("always `-ENOTSUPP`: no device has summed the packet");
    41 SET_HASH_INVALID "set_hash_invalid" => row(&[Ctx], Integer, Only(TC_LWT));
    42 GET_NUMA_NODE_ID "get_numa_node_id" => row(&[], Integer, All);
    43 SKB_CHANGE_HEAD "skb_change_head" =>
        row(&[Ctx, Anything, Anything], Integer, Only(SKB_WRITE)).moves_packet().differs(ROOM);
    44 XDP_ADJUST_HEAD "xdp_adjust_head" =>
        row(&[Ctx, Anything], Integer, Only(&[P::Xdp])).moves_packet();
    45 PROBE_READ_STR "probe_read_str" =>
        row(&[UninitMem, SizeOrZero, Anything], BytesWritten, Tracing).gpl().differs(TRACED);
    46 GET_SOCKET_COOKIE "get_socket_cookie" =>
        row(
            &[CtxOrSocket],
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
        .refused(SOCKETS);
    47 GET_SOCKET_UID "get_socket_uid" =>
        row(
            &[Ctx],
            Integer,
            Only(&[P::SocketFilter, P::SchedCls, P::SchedAct, P::CgroupSkb, P::SkSkb]),
        )
        .refused(SOCKETS);
    48 SET_HASH "set_hash" => row(&[Ctx, Anything], Integer, Only(TC));
    49 SETSOCKOPT "setsockopt" =>
        row(&[SocketOrCtx, Anything, Anything, Mem, Size], Integer, Only(SOCKOPT))
            .attach(AttachRule::SetsOption)
            .refused(SOCKETS);
    50 SKB_ADJUST_ROOM "skb_adjust_room" =>
        row(
            &[Ctx, Anything, Anything, Anything],
            Integer,
            Only(&[P::SchedCls, P::SchedAct, P::SkSkb]),
        )
        .moves_packet()
        .differs(ROOM);
    51 REDIRECT_MAP "redirect_map" =>
        row(&[ConstMapPtr, Anything, Anything], Integer, Only(&[P::Xdp])).differs(STAYS);
    52 SK_REDIRECT_MAP "sk_redirect_map" =>
        row(&[Ctx, ConstMapPtr, Anything, Anything], Integer, Only(&[P::SkSkb]))
            .refused(SOCKETS);
    53 SOCK_MAP_UPDATE "sock_map_update" =>
        row(&[Ctx, ConstMapPtr, MapKey, Anything], Integer, Only(&[P::SockOps]))
            .packet()
            .refused(SOCKETS);
    54 XDP_ADJUST_META "xdp_adjust_meta" =>
        row(&[Ctx, Anything], Integer, Only(&[P::Xdp])).moves_packet();
    55 PERF_EVENT_READ_VALUE "perf_event_read_value" =>
        row(&[ConstMapPtr, Anything, UninitMem, Size], Integer, All).gpl().refused(COUNTERS);
    56 PERF_PROG_READ_VALUE "perf_prog_read_value" =>
        row(&[Ctx, UninitMem, Size], Integer, Only(&[P::PerfEvent])).gpl().refused(COUNTERS);
    57 GETSOCKOPT "getsockopt" =>
        row(&[SocketOrCtx, Anything, Anything, UninitMem, Size], Integer, Only(SOCKOPT))
            .attach(AttachRule::SetsOption)
            .refused(SOCKETS);
    58 OVERRIDE_RETURN "override_return" =>
        row(&[Ctx, Anything], Integer, Only(&[P::Kprobe])).gpl()
            .differs("of any function, at its entry; elsewhere `-EOPNOTSUPP`");
    59 SOCK_OPS_CB_FLAGS_SET "sock_ops_cb_flags_set" =>
        row(&[Ctx, Anything], Integer, Only(&[P::SockOps])).refused(SOCKETS);
    60 MSG_REDIRECT_MAP "msg_redirect_map" =>
        row(&[Ctx, ConstMapPtr, Anything, Anything], Integer, Only(&[P::SkMsg]))
            .refused(SOCKETS);
    61 MSG_APPLY_BYTES "msg_apply_bytes" =>
        row(&[Ctx, Anything], Integer, Only(&[P::SkMsg])).refused(SOCKETS);
    62 MSG_CORK_BYTES "msg_cork_bytes" =>
        row(&[Ctx, Anything], Integer, Only(&[P::SkMsg])).refused(SOCKETS);
    63 MSG_PULL_DATA "msg_pull_data" =>
        row(&[Ctx, Anything, Anything, Anything], Integer, Only(&[P::SkMsg]))
            .moves_packet()
            .refused(SOCKETS);
    64 BIND "bind" => row(&[Ctx, Mem, Size], Integer, Only(&[P::CgroupSockAddr])).refused(SOCKETS);
    65 XDP_ADJUST_TAIL "xdp_adjust_tail" =>
        row(&[Ctx, Anything], Integer, Only(&[P::Xdp])).moves_packet();
    66 SKB_GET_XFRM_STATE "skb_get_xfrm_state" =>
        row(&[Ctx, Anything, UninitMem, Size, Anything], Integer, Only(TC)).refused(ROUTES);
    67 GET_STACK "get_stack" =>
        row(&[Ctx, UninitMem, SizeOrZero, Anything], BytesWritten, Tracing)
            .gpl()
            .differs(STACKS);
    68 SKB_LOAD_BYTES_RELATIVE "skb_load_bytes_relative" =>
        row(
            &[Ctx, Anything, UninitMem, Size, Anything],
            Integer,
            Only(&[P::SocketFilter, P::SchedCls, P::SchedAct, P::CgroupSkb, P::SkReuseport]),
        );
    69 FIB_LOOKUP "fib_lookup" =>
        row(&[Ctx, MemWrite, Size, Anything], Integer, Only(TC_XDP)).gpl().differs(NETLINK);
    70 SOCK_HASH_UPDATE "sock_hash_update" =>
        row(&[Ctx, ConstMapPtr, MapKey, Anything], Integer, Only(&[P::SockOps]))
            .packet()
            .refused(SOCKETS);
    71 MSG_REDIRECT_HASH "msg_redirect_hash" =>
        row(&[Ctx, ConstMapPtr, MapKey, Anything], Integer, Only(&[P::SkMsg])).refused(SOCKETS);
    72 SK_REDIRECT_HASH "sk_redirect_hash" =>
        row(&[Ctx, ConstMapPtr, MapKey, Anything], Integer, Only(&[P::SkSkb])).refused(SOCKETS);
    73 LWT_PUSH_ENCAP "lwt_push_encap" =>
        row(&[Ctx, Anything, Mem, Size], Integer, Only(&[P::LwtIn, P::LwtXmit]))
            .moves_packet()
            .refused(ROUTES);
    74 LWT_SEG6_STORE_BYTES "lwt_seg6_store_bytes" =>
        row(&[Ctx, Anything, Mem, Size], Integer, Only(&[P::LwtSeg6local]))
            .moves_packet()
            .refused(ROUTES);
    75 LWT_SEG6_ADJUST_SRH "lwt_seg6_adjust_srh" =>
        row(&[Ctx, Anything, Anything], Integer, Only(&[P::LwtSeg6local]))
            .moves_packet()
            .refused(ROUTES);
    76 LWT_SEG6_ACTION "lwt_seg6_action" =>
        row(&[Ctx, Anything, Mem, Size], Integer, Only(&[P::LwtSeg6local]))
            .moves_packet()
            .refused(ROUTES);
    77 RC_REPEAT "rc_repeat" => row(&[Ctx], Integer, Only(&[P::LircMode2])).gpl().refused(INFRARED);
    78 RC_KEYDOWN "rc_keydown" =>
        row(&[Ctx, Anything, Anything, Anything], Integer, Only(&[P::LircMode2]))
            .gpl()
            .refused(INFRARED);
    79 SKB_CGROUP_ID "skb_cgroup_id" => row(&[Ctx], Integer, Only(TC_CGROUP)).refused(CGROUPS);
    80 GET_CURRENT_CGROUP_ID "get_current_cgroup_id" =>
        row(&[], Integer, All)
            .differs("of the process, read anew once a second; 0 without control groups v2");
    81 GET_LOCAL_STORAGE "get_local_storage" =>
        row(&[ConstMapPtr, Zero], R::MapValue, Only(LOCAL_STORAGE)).refused(CGROUPS);
    82 SK_SELECT_REUSEPORT "sk_select_reuseport" =>
        row(&[Ctx, ConstMapPtr, MapKey, Anything], Integer, Only(&[P::SkReuseport]))
            .refused(SOCKETS);
    83 SKB_ANCESTOR_CGROUP_ID "skb_ancestor_cgroup_id" =>
        row(&[Ctx, Anything], Integer, Only(TC_CGROUP)).refused(CGROUPS);
    84 SK_LOOKUP_TCP "sk_lookup_tcp" =>
        row(&[Ctx, Mem, SizeOrZero, Anything, Anything], SocketOrNull, Only(SK_LOOKUP))
            .packet()
            .refused(SOCKETS)
            .result(Reference::Acquired);
    85 SK_LOOKUP_UDP "sk_lookup_udp" =>
        row(&[Ctx, Mem, SizeOrZero, Anything, Anything], SocketOrNull, Only(SK_LOOKUP))
            .packet()
            .refused(SOCKETS)
            .result(Reference::Acquired);
    86 SK_RELEASE "sk_release" =>
        row(
            &[SockRelease],
            Integer,
            Only(&[
                P::SchedCls,
                P::SchedAct,
                P::Xdp,
                P::CgroupSkb,
                P::SkSkb,
                P::CgroupSockAddr,
                P::SkLookup,
            ]),
        )
        .refused(SOCKETS);
    87 MAP_PUSH_ELEM "map_push_elem" =>
        row(&[ConstMapPtr, MapValue, Anything], Integer, All).packet().changes_map();
    88 MAP_POP_ELEM "map_pop_elem" =>
        row(&[ConstMapPtr, UninitMapValue], Integer, All).changes_map();
    89 MAP_PEEK_ELEM "map_peek_elem" => row(&[ConstMapPtr, UninitMapValue], Integer, All);
    90 MSG_PUSH_DATA "msg_push_data" =>
        row(&[Ctx, Anything, Anything, Anything], Integer, Only(&[P::SkMsg]))
            .moves_packet()
            .refused(SOCKETS);
    91 MSG_POP_DATA "msg_pop_data" =>
        row(&[Ctx, Anything, Anything, Anything], Integer, Only(&[P::SkMsg]))
            .moves_packet()
            .refused(SOCKETS);
    92 RC_POINTER_REL "rc_pointer_rel" =>
        row(&[Ctx, Anything, Anything], Integer, Only(&[P::LircMode2])).gpl().refused(INFRARED);
    93 SPIN_LOCK "spin_lock" =>
        row(&[SpinLock], Void, All)
            .differs("taken over from a holder that is gone, or that lets nobody in for a second")
            .lock(LockRule::Acquires);
    94 SPIN_UNLOCK "spin_unlock" => row(&[SpinLock], Void, All).lock(LockRule::Releases);
    95 SK_FULLSOCK "sk_fullsock" =>
        row(&[SockCommon], SocketOrNull, Only(TC_CGROUP))
            .refused(SOCKETS)
            .result(Reference::OfArgument);
    96 TCP_SOCK "tcp_sock" =>
        row(
            &[SockCommon],
            TcpSockOrNull,
            Only(&[P::SchedCls, P::SchedAct, P::CgroupSkb, P::SockOps, P::CgroupSockopt]),
        )
        .refused(SOCKETS)
        .result(Reference::OfArgument);
    97 SKB_ECN_SET_CE "skb_ecn_set_ce" => row(&[Ctx], Integer, Only(TC_CGROUP));
    98 GET_LISTENER_SOCK "get_listener_sock" =>
        row(&[SockCommon], SocketOrNull, Only(TC_CGROUP)).refused(SOCKETS);
    99 SKC_LOOKUP_TCP "skc_lookup_tcp" =>
        row(&[Ctx, Mem, SizeOrZero, Anything, Anything], SockCommonOrNull, Only(SK_LOOKUP))
            .packet()
            .refused(SOCKETS)
            .result(Reference::Acquired);
    100 TCP_CHECK_SYNCOOKIE "tcp_check_syncookie" =>
        row(&[BtfIdSockCommon, Mem, Size, Mem, Size], Integer, Only(TC_XDP))
            .gpl()
            .packet()
            .refused(SOCKETS);
    101 SYSCTL_GET_NAME "sysctl_get_name" =>
        row(&[Ctx, MemWrite, Size, Anything], Integer, Only(&[P::CgroupSysctl]))
            .refused(CGROUPS);
    102 SYSCTL_GET_CURRENT_VALUE "sysctl_get_current_value" =>
        row(&[Ctx, UninitMem, Size], Integer, Only(&[P::CgroupSysctl])).refused(CGROUPS);
    103 SYSCTL_GET_NEW_VALUE "sysctl_get_new_value" =>
        row(&[Ctx, UninitMem, Size], Integer, Only(&[P::CgroupSysctl])).refused(CGROUPS);
    104 SYSCTL_SET_NEW_VALUE "sysctl_set_new_value" =>
        row(&[Ctx, Mem, Size], Integer, Only(&[P::CgroupSysctl])).refused(CGROUPS);
    105 STRTOL "strtol" => row(&[Mem, Size, Anything, UninitLong], Integer, All);
    106 STRTOUL "strtoul" => row(&[Mem, Size, Anything, UninitLong], Integer, All);
    107 SK_STORAGE_GET "sk_storage_get" =>
        row(
            &[ConstMapPtr, SockStorageOwner, MapValueOrNull, Anything],
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
        .refused(SOCKETS);
    108 SK_STORAGE_DELETE "sk_storage_delete" =>
        row(
            &[ConstMapPtr, SockStorageOwner],
            Integer,
            Only(&[
                P::SchedCls,
                P::SchedAct,
                P::CgroupSkb,
                P::SockOps,
                P::SkMsg,
                P::CgroupSockAddr,
                P::CgroupSockopt,
                P::Tracing,
                P::Lsm,
            ]),
        )
        .refused(SOCKETS);
    109 SEND_SIGNAL "send_signal" => row(&[Anything], Integer, All).refused(SIGNALS);
    110 TCP_GEN_SYNCOOKIE "tcp_gen_syncookie" =>
        row(&[BtfIdSockCommon, Mem, Size, Mem, Size], Integer, Only(TC_XDP))
            .gpl()
            .packet()
            .refused(SOCKETS);
    111 SKB_OUTPUT "skb_output" =>
        row(&[BtfId("sk_buff"), ConstMapPtr, Anything, Mem, SizeOrZero], Integer, Only(TYPED))
            .gpl()
            .refused(TYPED_PACKETS);
    112 PROBE_READ_USER "probe_read_user" =>
        row(&[UninitMem, SizeOrZero, Anything], Integer, All).gpl().differs(TRACED);
    113 PROBE_READ_KERNEL "probe_read_kernel" =>
        row(&[UninitMem, SizeOrZero, Anything], Integer, All).gpl().differs(KERNEL);
    114 PROBE_READ_USER_STR "probe_read_user_str" =>
        row(&[UninitMem, SizeOrZero, Anything], BytesWritten, All).gpl().differs(TRACED);
    115 PROBE_READ_KERNEL_STR "probe_read_kernel_str" =>
        row(&[UninitMem, SizeOrZero, Anything], BytesWritten, All).gpl().differs(KERNEL);
    116 TCP_SEND_ACK "tcp_send_ack" =>
        row(&[BtfId("tcp_sock"), Anything], Integer, Only(&[P::StructOps])).refused(SOCKETS);
    117 SEND_SIGNAL_THREAD "send_signal_thread" => row(&[Anything], Integer, All).refused(SIGNALS);
    118 JIFFIES64 "jiffies64" =>
        row(&[], Integer, All).differs("250 a second, whatever the kernel's `HZ`");
    119 READ_BRANCH_RECORDS "read_branch_records" =>
        row(&[Ctx, UninitMemOrNull, SizeOrZero, Anything], Integer, Only(&[P::PerfEvent]))
            .gpl()
            .refused(COUNTERS);
    120 GET_NS_CURRENT_PID_TGID "get_ns_current_pid_tgid" =>
        row(&[Anything, Anything, UninitMem, Size], Integer, All);
    121 XDP_OUTPUT "xdp_output" =>
        row(&[BtfId("xdp_buff"), ConstMapPtr, Anything, Mem, SizeOrZero], Integer, Only(TYPED))
            .gpl()
            .refused(TYPED_PACKETS);
    122 GET_NETNS_COOKIE "get_netns_cookie" =>
        row(
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
        .refused(SOCKETS);
    123 GET_CURRENT_ANCESTOR_CGROUP_ID "get_current_ancestor_cgroup_id" =>
        row(&[Anything], Integer, All)
            .differs("levels count from what is mounted at `/sys/fs/cgroup`");
    124 SK_ASSIGN "sk_assign" =>
        row(
            &[Ctx, SockAssigned, Anything],
            Integer,
            Only(&[P::SchedCls, P::SchedAct, P::SkLookup]),
        )
        .refused(SOCKETS);
    125 KTIME_GET_BOOT_NS "ktime_get_boot_ns" => row(&[], Integer, All);
    126 SEQ_PRINTF "seq_printf" =>
        row(&[BtfId("seq_file"), Mem, Size, MemOrNull, SizeOrZero], Integer, Only(TRAMPOLINE))
            .gpl()
            .refused(ITERATORS)
            .attach(AttachRule::Iterator);
    127 SEQ_WRITE "seq_write" =>
        row(&[BtfId("seq_file"), Mem, SizeOrZero], Integer, Only(TRAMPOLINE))
            .gpl()
            .refused(ITERATORS)
            .attach(AttachRule::Iterator);
    128 SK_CGROUP_ID "sk_cgroup_id" =>
        row(&[BtfIdSockCommon], Integer, Only(&[P::CgroupSkb])).refused(SOCKETS);
    129 SK_ANCESTOR_CGROUP_ID "sk_ancestor_cgroup_id" =>
        row(&[BtfIdSockCommon, Anything], Integer, Only(&[P::CgroupSkb])).refused(SOCKETS);
    130 RINGBUF_OUTPUT "ringbuf_output" =>
        row(&[ConstMapPtr, Mem, SizeOrZero, Anything], Integer, All);
    131 RINGBUF_RESERVE "ringbuf_reserve" =>
        row(&[ConstMapPtr, ConstAllocSize, Anything], AllocMemOrNull, All)
            .result(Reference::Acquired);
    132 RINGBUF_SUBMIT "ringbuf_submit" => row(&[AllocMemRelease, Anything], Void, All);
    133 RINGBUF_DISCARD "ringbuf_discard" => row(&[AllocMemRelease, Anything], Void, All);
    134 RINGBUF_QUERY "ringbuf_query" => row(&[ConstMapPtr, Anything], Integer, All);
    135 CSUM_LEVEL "csum_level" => row(&[Ctx, Anything], Integer, Only(TC_LWT));
    136 SKC_TO_TCP6_SOCK "skc_to_tcp6_sock" =>
        row(&[BtfIdSockCommon], R::BtfIdOrNull("tcp6_sock"), Except(NOT_CASTING))
            .refused(SOCKETS)
            .result(Reference::OfArgument);
    137 SKC_TO_TCP_SOCK "skc_to_tcp_sock" =>
        row(&[BtfIdSockCommon], R::BtfIdOrNull("tcp_sock"), Except(NOT_CASTING))
            .refused(SOCKETS)
            .result(Reference::OfArgument);
    138 SKC_TO_TCP_TIMEWAIT_SOCK "skc_to_tcp_timewait_sock" =>
        row(&[BtfIdSockCommon], R::BtfIdOrNull("tcp_timewait_sock"), Except(NOT_CASTING))
            .refused(SOCKETS)
            .result(Reference::OfArgument);
    139 SKC_TO_TCP_REQUEST_SOCK "skc_to_tcp_request_sock" =>
        row(&[BtfIdSockCommon], R::BtfIdOrNull("tcp_request_sock"), Except(NOT_CASTING))
            .refused(SOCKETS)
            .result(Reference::OfArgument);
    140 SKC_TO_UDP6_SOCK "skc_to_udp6_sock" =>
        row(&[BtfIdSockCommon], R::BtfIdOrNull("udp6_sock"), Except(NOT_CASTING))
            .refused(SOCKETS)
            .result(Reference::OfArgument);
    141 GET_TASK_STACK "get_task_stack" =>
        row(&[BtfId("task_struct"), UninitMem, SizeOrZero, Anything], BytesWritten, All)
            .refused(TASKS);
    142 LOAD_HDR_OPT "load_hdr_opt" =>
        row(&[Ctx, MemWrite, Size, Anything], Integer, Only(&[P::SockOps])).refused(SOCKETS);
    143 STORE_HDR_OPT "store_hdr_opt" =>
        row(&[Ctx, Mem, Size, Anything], Integer, Only(&[P::SockOps]))
            .moves_packet()
            .refused(SOCKETS);
    144 RESERVE_HDR_OPT "reserve_hdr_opt" =>
        row(&[Ctx, Anything, Anything], Integer, Only(&[P::SockOps])).refused(SOCKETS);
    145 INODE_STORAGE_GET "inode_storage_get" =>
        row(
            &[ConstMapPtr, BtfIdOrNull("inode"), MapValueOrNull, Anything],
            R::MapValueOrNull,
            Only(&[P::Lsm]),
        )
        .refused(FILES);
    146 INODE_STORAGE_DELETE "inode_storage_delete" =>
        row(&[ConstMapPtr, BtfIdOrNull("inode")], Integer, Only(&[P::Lsm])).refused(FILES);
    147 D_PATH "d_path" =>
        row(&[BtfId("path"), MemWrite, SizeOrZero], Integer, Only(TRAMPOLINE))
            .refused(FILES)
            .attach(AttachRule::PathHooks);
    148 COPY_FROM_USER "copy_from_user" =>
        row(&[UninitMem, SizeOrZero, Anything], Integer, All).sleeps().differs(TRACED);
    149 SNPRINTF_BTF "snprintf_btf" =>
        row(&[MemWrite, Size, Mem, Size, Anything], Integer, All).refused(SYMBOLS);
    150 SEQ_PRINTF_BTF "seq_printf_btf" =>
        row(&[BtfId("seq_file"), Mem, SizeOrZero, Anything], Integer, Only(TRAMPOLINE))
            .gpl()
            .refused(ITERATORS)
            .attach(AttachRule::Iterator);
    151 SKB_CGROUP_CLASSID "skb_cgroup_classid" => row(&[Ctx], Integer, Only(TC)).refused(CGROUPS);
    152 REDIRECT_NEIGH "redirect_neigh" =>
        row(&[Anything, MemOrNull, SizeOrZero, Anything], Integer, Only(TC)).refused(ROUTES);
    153 PER_CPU_PTR "per_cpu_ptr" =>
        row(&[PercpuVar, Anything], R::PercpuVarOrNull, All).refused(SYMBOLS);
    154 THIS_CPU_PTR "this_cpu_ptr" => row(&[PercpuVar], R::PercpuVar, All).refused(SYMBOLS);
    155 REDIRECT_PEER "redirect_peer" =>
        row(&[Anything, Anything], Integer, Only(TC)).refused(ROUTES);
    156 TASK_STORAGE_GET "task_storage_get" =>
        row(
            &[ConstMapPtr, BtfIdOrNull("task_struct"), MapValueOrNull, Anything],
            R::MapValueOrNull,
            All,
        )
        .refused(TASKS);
    157 TASK_STORAGE_DELETE "task_storage_delete" =>
        row(&[ConstMapPtr, BtfIdOrNull("task_struct")], Integer, All).refused(TASKS);
    158 GET_CURRENT_TASK_BTF "get_current_task_btf" =>
        row(&[], R::BtfId("task_struct"), All).gpl().refused(TASKS);
    159 BPRM_OPTS_SET "bprm_opts_set" =>
        row(&[BtfId("linux_binprm"), Anything], Integer, Only(&[P::Lsm])).refused(FILES);
    160 KTIME_GET_COARSE_NS "ktime_get_coarse_ns" =>
        row(
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
        );
    161 IMA_INODE_HASH "ima_inode_hash" =>
        row(&[BtfId("inode"), UninitMem, Size], Integer, Only(&[P::Lsm]))
            .sleeps()
            .refused(FILES);
    162 SOCK_FROM_FILE "sock_from_file" =>
        row(&[BtfId("file")], R::BtfIdOrNull("socket"), Only(TYPED)).refused(SOCKETS);
    163 CHECK_MTU "check_mtu" =>
        row(&[Ctx, Anything, FixedMemWrite(4), Anything, Anything], Integer, Only(TC_XDP))
            .gpl()
            .differs("hardware headers count as 14 bytes");
    164 FOR_EACH_MAP_ELEM "for_each_map_elem" =>
        row(&[ConstMapPtr, Func, StackOrNull, Anything], Integer, All)
            .calls(Callback::EachElement);
    165 SNPRINTF "snprintf" =>
        row(&[UninitMemOrNull, SizeOrZero, ConstStr, MemOrNull, SizeOrZero], Integer, All)
            .gpl()
            .differs(FORMAT);
    166 SYS_BPF "sys_bpf" =>
        row(&[Anything, Mem, Size], Integer, Only(&[P::Syscall])).sleeps().refused(SYSCALLS);
    167 BTF_FIND_BY_NAME_KIND "btf_find_by_name_kind" =>
        row(&[Mem, Size, Anything, Anything], Integer, Only(&[P::Syscall]))
            .sleeps()
            .refused(SYSCALLS);
    168 SYS_CLOSE "sys_close" =>
        row(&[Anything], Integer, Only(&[P::Syscall])).sleeps().refused(SYSCALLS);
    169 TIMER_INIT "timer_init" =>
        row(&[Timer, ConstMapPtr, Anything], Integer, All).gpl().refused(TIMERS);
    170 TIMER_SET_CALLBACK "timer_set_callback" =>
        row(&[Timer, Func], Integer, All).gpl().refused(TIMERS).calls(Callback::Timer);
    171 TIMER_START "timer_start" =>
        row(&[Timer, Anything, Anything], Integer, All).gpl().refused(TIMERS);
    172 TIMER_CANCEL "timer_cancel" => row(&[Timer], Integer, All).gpl().refused(TIMERS);
    173 GET_FUNC_IP "get_func_ip" =>
        row(&[Ctx], Integer, Tracing).gpl().attach(AttachRule::TrampolineOfTracing);
    174 GET_ATTACH_COOKIE "get_attach_cookie" =>
        row(
            &[Ctx],
            Integer,
            Only(&[
                P::Kprobe,
                P::Tracepoint,
                P::PerfEvent,
                P::RawTracepoint,
                P::RawTracepointWritable,
                P::Tracing,
                P::Lsm,
            ]),
        )
        .attach(AttachRule::TrampolineOfTracing);
    175 TASK_PT_REGS "task_pt_regs" =>
        row(&[BtfId("task_struct")], R::BtfId("pt_regs"), All).gpl().refused(TASKS);
    176 GET_BRANCH_SNAPSHOT "get_branch_snapshot" =>
        row(&[UninitMem, SizeOrZero], Integer, All).gpl().refused(COUNTERS);
    177 TRACE_VPRINTK "trace_vprintk" =>
        row(&[Mem, Size, MemOrNull, SizeOrZero], Integer, All).gpl().differs(PRINTS);
    178 SKC_TO_UNIX_SOCK "skc_to_unix_sock" =>
        row(&[BtfIdSockCommon], R::BtfIdOrNull("unix_sock"), Except(NOT_CASTING))
            .refused(SOCKETS)
            .result(Reference::OfArgument);
    179 KALLSYMS_LOOKUP_NAME "kallsyms_lookup_name" =>
        row(&[MemWrite, SizeOrZero, Anything, UninitLong], Integer, Only(&[P::Syscall]))
            .refused(SYMBOLS);
    180 FIND_VMA "find_vma" =>
        row(&[BtfId("task_struct"), Anything, Func, StackOrNull, Anything], Integer, All)
            .refused(TASKS)
            .calls(Callback::Vma);
    181 LOOP "loop" =>
        row(&[Scalar, Func, StackOrNull, Anything], Integer, All).calls(Callback::Loop);
    182 STRNCMP "strncmp" => row(&[Mem, Size, ConstStr], Integer, All);
    183 GET_FUNC_ARG "get_func_arg" =>
        row(&[Ctx, Anything, UninitLong], Integer, Only(TRAMPOLINE))
            .attach(AttachRule::Trampoline);
    184 GET_FUNC_RET "get_func_ret" =>
        row(&[Ctx, UninitLong], Integer, Only(TRAMPOLINE)).attach(AttachRule::TrampolineExit);
    185 GET_FUNC_ARG_CNT "get_func_arg_cnt" =>
        row(&[Ctx], Integer, Only(TRAMPOLINE)).attach(AttachRule::Trampoline);
    186 GET_RETVAL "get_retval" =>
        row(&[], Integer, Only(RETVAL)).refused(CGROUPS).attach(AttachRule::Verdict);
    187 SET_RETVAL "set_retval" =>
        row(&[Anything], Integer, Only(RETVAL)).refused(CGROUPS).attach(AttachRule::Verdict);
    188 XDP_GET_BUFF_LEN "xdp_get_buff_len" => row(&[Ctx], Integer, Only(&[P::Xdp]));
    189 XDP_LOAD_BYTES "xdp_load_bytes" =>
        row(&[Ctx, Anything, UninitMem, Size], Integer, Only(&[P::Xdp]));
    190 XDP_STORE_BYTES "xdp_store_bytes" =>
        row(&[Ctx, Anything, Mem, Size], Integer, Only(&[P::Xdp]));
    191 COPY_FROM_USER_TASK "copy_from_user_task" =>
        row(&[UninitMem, SizeOrZero, Anything, BtfId("task_struct"), Anything], Integer, All)
            .gpl()
            .sleeps()
            .refused(TASKS);
    192 SKB_SET_TSTAMP "skb_set_tstamp" => row(&[Ctx, Anything, Anything], Integer, Only(TC));
    193 IMA_FILE_HASH "ima_file_hash" =>
        row(&[BtfId("file"), UninitMem, Size], Integer, Only(&[P::Lsm]))
            .sleeps()
            .refused(FILES);
    194 KPTR_XCHG "kptr_xchg" => row(&[Kptr, KptrValue], KptrOrNull, All).refused(KPTRS);
    195 MAP_LOOKUP_PERCPU_ELEM "map_lookup_percpu_elem" =>
        row(&[ConstMapPtr, MapKey, Anything], R::MapValueOrNull, All).packet();
    196 SKC_TO_MPTCP_SOCK "skc_to_mptcp_sock" =>
        row(&[BtfIdSockCommon], R::BtfIdOrNull("mptcp_sock"), Except(NOT_CASTING))
            .refused(SOCKETS)
            .result(Reference::OfArgument);
    197 DYNPTR_FROM_MEM "dynptr_from_mem" =>
        row(&[UninitMem, SizeOrZero, Anything, UninitDynptr(Local)], Integer, All);
    198 RINGBUF_RESERVE_DYNPTR "ringbuf_reserve_dynptr" =>
        row(&[ConstMapPtr, Anything, Anything, UninitDynptr(Ringbuf)], Integer, All);
    199 RINGBUF_SUBMIT_DYNPTR "ringbuf_submit_dynptr" => row(&[DynptrRelease, Anything], Void, All);
    200 RINGBUF_DISCARD_DYNPTR "ringbuf_discard_dynptr" =>
        row(&[DynptrRelease, Anything], Void, All);
    201 DYNPTR_READ "dynptr_read" =>
        row(&[UninitMem, SizeOrZero, Dynptr, Anything, Anything], Integer, All);
    202 DYNPTR_WRITE "dynptr_write" =>
        row(&[Dynptr, Anything, Mem, SizeOrZero, Anything], Integer, All)
            .moves_packet_of_dynptr();
    203 DYNPTR_DATA "dynptr_data" => row(&[Dynptr, Anything, ConstAllocSize], DynptrMemOrNull, All);
    204 TCP_RAW_GEN_SYNCOOKIE_IPV4 "tcp_raw_gen_syncookie_ipv4" =>
        row(&[FixedMem(20), MemWrite, SizeOrZero], Integer, Only(TC_XDP))
            .gpl()
            .packet()
            .refused(SYNCOOKIES);
    205 TCP_RAW_GEN_SYNCOOKIE_IPV6 "tcp_raw_gen_syncookie_ipv6" =>
        row(&[FixedMem(40), MemWrite, SizeOrZero], Integer, Only(TC_XDP))
            .gpl()
            .packet()
            .refused(SYNCOOKIES);
    206 TCP_RAW_CHECK_SYNCOOKIE_IPV4 "tcp_raw_check_syncookie_ipv4" =>
        row(&[FixedMem(20), FixedMem(20)], Integer, Only(TC_XDP))
            .gpl()
            .packet()
            .refused(SYNCOOKIES);
    207 TCP_RAW_CHECK_SYNCOOKIE_IPV6 "tcp_raw_check_syncookie_ipv6" =>
        row(&[FixedMem(40), FixedMem(20)], Integer, Only(TC_XDP))
            .gpl()
            .packet()
            .refused(SYNCOOKIES);
    208 KTIME_GET_TAI_NS "ktime_get_tai_ns" => row(&[], Integer, All);
    209 USER_RINGBUF_DRAIN "user_ringbuf_drain" =>
        row(&[ConstMapPtr, Func, StackOrNull, Anything], Integer, All)
            .differs("a sample that is still being filled ends the call")
            .calls(Callback::Samples);
    210 CGRP_STORAGE_GET "cgrp_storage_get" =>
        row(
            &[ConstMapPtr, BtfIdOrNull("cgroup"), MapValueOrNull, Anything],
            R::MapValueOrNull,
            All,
        )
        .refused(CGROUPS);
    211 CGRP_STORAGE_DELETE "cgrp_storage_delete" =>
        row(&[ConstMapPtr, BtfIdOrNull("cgroup")], Integer, All).refused(CGROUPS);
}
