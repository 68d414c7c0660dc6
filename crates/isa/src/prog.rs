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
        TraceRawTp = 23, "trace_raw_tp";
        TraceFentry = 24, "trace_fentry";
        TraceFexit = 25, "trace_fexit";
        ModifyReturn = 26, "modify_return";
        LsmMac = 27, "lsm_mac";
        TraceIter = 28, "trace_iter";
        Xdp = 37, "xdp";
        PerfEvent = 41, "perf_event";
        TraceKprobeMulti = 42, "trace_kprobe_multi";
        TcxIngress = 46, "tcx_ingress";
        TcxEgress = 47, "tcx_egress";
        TraceUprobeMulti = 48, "trace_uprobe_multi";
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
    fn merged_multi_attach_numbers_are_those_of_linux_7_2() {
        assert_eq!(AttachType::from_raw(59), Some(AttachType::TraceFentryMulti));
        assert_eq!(AttachType::TraceFsessionMulti as u32, 61);
    }
}
