//! Program types and attach types with the kernel's numbers.

macro_rules! kernel_enum {
    ($(#[$doc:meta])* $ty:ident, $table:ident { $($var:ident = $n:expr, $name:literal;)* }) => {
        $(#[$doc])*
        #[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
        #[non_exhaustive]
        #[repr(u32)]
        #[allow(missing_docs, reason = "the names are the kernel's own")]
        pub enum $ty { $($var = $n,)* }

        /// Every value with its name as bpftool prints it.
        pub const $table: &[($ty, &str)] = &[$(($ty::$var, $name),)*];

        impl $ty {
            /// Finds the value with the kernel's number.
            #[must_use]
            pub fn from_raw(n: u32) -> Option<Self> {
                $table.iter().map(|(t, _)| *t).find(|t| *t as u32 == n)
            }

            /// Returns the name bpftool prints.
            #[must_use]
            pub fn name(self) -> &'static str {
                $table.iter().find(|(t, _)| *t == self).map_or("unknown", |(_, n)| n)
            }
        }

        impl std::fmt::Display for $ty {
            fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
                f.pad(self.name())
            }
        }
    };
}

kernel_enum! {
    /// Names what a program is for (`enum bpf_prog_type`).
    ProgramType, PROGRAM_TYPES {
        Unspec = 0, "unspec";
        SocketFilter = 1, "socket_filter";
        Kprobe = 2, "kprobe";
        SchedCls = 3, "sched_cls";
        SchedAct = 4, "sched_act";
        Tracepoint = 5, "tracepoint";
        Xdp = 6, "xdp";
        PerfEvent = 7, "perf_event";
        CgroupSkb = 8, "cgroup_skb";
        CgroupSock = 9, "cgroup_sock";
        LwtIn = 10, "lwt_in";
        LwtOut = 11, "lwt_out";
        LwtXmit = 12, "lwt_xmit";
        SockOps = 13, "sock_ops";
        SkSkb = 14, "sk_skb";
        CgroupDevice = 15, "cgroup_device";
        SkMsg = 16, "sk_msg";
        RawTracepoint = 17, "raw_tracepoint";
        CgroupSockAddr = 18, "cgroup_sock_addr";
        LwtSeg6local = 19, "lwt_seg6local";
        LircMode2 = 20, "lirc_mode2";
        SkReuseport = 21, "sk_reuseport";
        FlowDissector = 22, "flow_dissector";
        CgroupSysctl = 23, "cgroup_sysctl";
        RawTracepointWritable = 24, "raw_tracepoint_writable";
        CgroupSockopt = 25, "cgroup_sockopt";
        Tracing = 26, "tracing";
        StructOps = 27, "struct_ops";
        Ext = 28, "ext";
        Lsm = 29, "lsm";
        SkLookup = 30, "sk_lookup";
        Syscall = 31, "syscall";
        Netfilter = 32, "netfilter";
    }
}

kernel_enum! {
    /// Names where a program hangs (`enum bpf_attach_type`); values from 0x1000 on are skep's own.
    AttachType, ATTACH_TYPES {
        CgroupInetIngress = 0, "cgroup_inet_ingress";
        CgroupInetEgress = 1, "cgroup_inet_egress";
        CgroupInetSockCreate = 2, "cgroup_inet_sock_create";
        CgroupSockOps = 3, "cgroup_sock_ops";
        SkSkbStreamParser = 4, "sk_skb_stream_parser";
        SkSkbStreamVerdict = 5, "sk_skb_stream_verdict";
        CgroupDevice = 6, "cgroup_device";
        SkMsgVerdict = 7, "sk_msg_verdict";
        CgroupInet4Bind = 8, "cgroup_inet4_bind";
        CgroupInet6Bind = 9, "cgroup_inet6_bind";
        CgroupInet4Connect = 10, "cgroup_inet4_connect";
        CgroupInet6Connect = 11, "cgroup_inet6_connect";
        CgroupInet4PostBind = 12, "cgroup_inet4_post_bind";
        CgroupInet6PostBind = 13, "cgroup_inet6_post_bind";
        CgroupUdp4Sendmsg = 14, "cgroup_udp4_sendmsg";
        CgroupUdp6Sendmsg = 15, "cgroup_udp6_sendmsg";
        LircMode2 = 16, "lirc_mode2";
        FlowDissector = 17, "flow_dissector";
        CgroupSysctl = 18, "cgroup_sysctl";
        CgroupUdp4Recvmsg = 19, "cgroup_udp4_recvmsg";
        CgroupUdp6Recvmsg = 20, "cgroup_udp6_recvmsg";
        CgroupGetsockopt = 21, "cgroup_getsockopt";
        CgroupSetsockopt = 22, "cgroup_setsockopt";
        TraceRawTp = 23, "trace_raw_tp";
        TraceFentry = 24, "trace_fentry";
        TraceFexit = 25, "trace_fexit";
        ModifyReturn = 26, "modify_return";
        LsmMac = 27, "lsm_mac";
        TraceIter = 28, "trace_iter";
        CgroupInet4Getpeername = 29, "cgroup_inet4_getpeername";
        CgroupInet6Getpeername = 30, "cgroup_inet6_getpeername";
        CgroupInet4Getsockname = 31, "cgroup_inet4_getsockname";
        CgroupInet6Getsockname = 32, "cgroup_inet6_getsockname";
        XdpDevmap = 33, "xdp_devmap";
        CgroupInetSockRelease = 34, "cgroup_inet_sock_release";
        XdpCpumap = 35, "xdp_cpumap";
        SkLookup = 36, "sk_lookup";
        Xdp = 37, "xdp";
        SkSkbVerdict = 38, "sk_skb_verdict";
        SkReuseportSelect = 39, "sk_reuseport_select";
        SkReuseportSelectOrMigrate = 40, "sk_reuseport_select_or_migrate";
        PerfEvent = 41, "perf_event";
        TraceKprobeMulti = 42, "trace_kprobe_multi";
        LsmCgroup = 43, "lsm_cgroup";
        StructOps = 44, "struct_ops";
        Netfilter = 45, "netfilter";
        TcxIngress = 46, "tcx_ingress";
        TcxEgress = 47, "tcx_egress";
        TraceUprobeMulti = 48, "trace_uprobe_multi";
        CgroupUnixConnect = 49, "cgroup_unix_connect";
        CgroupUnixSendmsg = 50, "cgroup_unix_sendmsg";
        CgroupUnixRecvmsg = 51, "cgroup_unix_recvmsg";
        CgroupUnixGetpeername = 52, "cgroup_unix_getpeername";
        CgroupUnixGetsockname = 53, "cgroup_unix_getsockname";
        NetkitPrimary = 54, "netkit_primary";
        NetkitPeer = 55, "netkit_peer";
        TraceKprobeSession = 56, "trace_kprobe_session";
        TraceUprobeSession = 57, "trace_uprobe_session";
        TraceFsession = 58, "trace_fsession";
        TraceFentryMulti = 59, "trace_fentry_multi";
        TraceFexitMulti = 60, "trace_fexit_multi";
        TraceFsessionMulti = 61, "trace_fsession_multi";
        ModifyReturnMulti = 0x1002, "modify_return_multi";
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn program_types_are_in_kernel_order() {
        for (i, (t, _)) in PROGRAM_TYPES.iter().enumerate() {
            assert_eq!(*t as usize, i);
        }
    }

    #[test]
    fn attach_types_are_in_kernel_order() {
        for (i, (t, _)) in ATTACH_TYPES.iter().enumerate().take_while(|(i, _)| *i < 62) {
            assert_eq!(*t as usize, i);
        }
    }

    #[test]
    fn merged_multi_attach_numbers_are_those_of_linux_7_2() {
        assert_eq!(AttachType::from_raw(59), Some(AttachType::TraceFentryMulti));
        assert_eq!(AttachType::TraceFsessionMulti as u32, 61);
    }
}
