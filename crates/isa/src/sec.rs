//! `SEC("…")` names: which program type and attach type a section asks for, as libbpf's
//! `section_defs` table.

use crate::prog::{AttachType as A, ProgramType as P};

/// Describes one family of section names.
#[derive(Clone, Copy, Debug)]
pub struct SecDef {
    /// The name; the part before the target when `target` is [`Target::Optional`].
    pub name: &'static str,
    /// The program type such a section holds.
    pub prog: P,
    /// The attach type, when the section fixes one.
    pub attach: Option<A>,
    /// What may follow the name.
    pub target: Target,
    /// The program may sleep (`.s` sections).
    pub sleepable: bool,
}

/// Tells what may follow a section's name.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Target {
    /// Nothing (`xdp`).
    None,
    /// Possibly `/target` (`uprobe`, `uprobe/PATH:FUNC`).
    Optional,
}

const fn row(
    name: &'static str,
    prog: P,
    attach: Option<A>,
    target: Target,
    sleepable: bool,
) -> SecDef {
    SecDef { name, prog, attach, target, sleepable }
}

use Target::{None as N, Optional as O};

/// All known section names, those of libbpf 1.7 (tools/lib/bpf/libbpf.c `section_defs`) and the
/// multi forms of tracing programs.
///
/// As in libbpf 1.0 and later, `xdp/name`, `tc/name` or `socket1` are not known: older versions
/// looked at the first letters only.
pub const SECTIONS: &[SecDef] = &[
    row("socket", P::SocketFilter, None, N, false),
    row("sk_reuseport/migrate", P::SkReuseport, Some(A::SkReuseportSelectOrMigrate), N, false),
    row("sk_reuseport", P::SkReuseport, Some(A::SkReuseportSelect), N, false),
    row("kprobe", P::Kprobe, None, O, false),
    row("uprobe", P::Kprobe, None, O, false),
    row("uprobe.s", P::Kprobe, None, O, true),
    row("kretprobe", P::Kprobe, None, O, false),
    row("uretprobe", P::Kprobe, None, O, false),
    row("uretprobe.s", P::Kprobe, None, O, true),
    row("kprobe.multi", P::Kprobe, Some(A::TraceKprobeMulti), O, false),
    row("kretprobe.multi", P::Kprobe, Some(A::TraceKprobeMulti), O, false),
    row("kprobe.session", P::Kprobe, Some(A::TraceKprobeSession), O, false),
    row("uprobe.multi", P::Kprobe, Some(A::TraceUprobeMulti), O, false),
    row("uretprobe.multi", P::Kprobe, Some(A::TraceUprobeMulti), O, false),
    row("uprobe.session", P::Kprobe, Some(A::TraceUprobeSession), O, false),
    row("uprobe.multi.s", P::Kprobe, Some(A::TraceUprobeMulti), O, true),
    row("uretprobe.multi.s", P::Kprobe, Some(A::TraceUprobeMulti), O, true),
    row("uprobe.session.s", P::Kprobe, Some(A::TraceUprobeSession), O, true),
    row("ksyscall", P::Kprobe, None, O, false),
    row("kretsyscall", P::Kprobe, None, O, false),
    row("usdt", P::Kprobe, None, O, false),
    row("usdt.s", P::Kprobe, None, O, true),
    row("tc/ingress", P::SchedCls, Some(A::TcxIngress), N, false),
    row("tc/egress", P::SchedCls, Some(A::TcxEgress), N, false),
    row("tcx/ingress", P::SchedCls, Some(A::TcxIngress), N, false),
    row("tcx/egress", P::SchedCls, Some(A::TcxEgress), N, false),
    row("tc", P::SchedCls, None, N, false),
    row("classifier", P::SchedCls, None, N, false),
    row("action", P::SchedAct, None, N, false),
    row("netkit/primary", P::SchedCls, Some(A::NetkitPrimary), N, false),
    row("netkit/peer", P::SchedCls, Some(A::NetkitPeer), N, false),
    row("tracepoint", P::Tracepoint, None, O, false),
    row("tp", P::Tracepoint, None, O, false),
    row("raw_tracepoint", P::RawTracepoint, None, O, false),
    row("raw_tp", P::RawTracepoint, None, O, false),
    row("raw_tracepoint.w", P::RawTracepointWritable, None, O, false),
    row("raw_tp.w", P::RawTracepointWritable, None, O, false),
    row("tp_btf", P::Tracing, Some(A::TraceRawTp), O, false),
    row("fentry", P::Tracing, Some(A::TraceFentry), O, false),
    row("fmod_ret", P::Tracing, Some(A::ModifyReturn), O, false),
    row("fexit", P::Tracing, Some(A::TraceFexit), O, false),
    row("fentry.s", P::Tracing, Some(A::TraceFentry), O, true),
    row("fmod_ret.s", P::Tracing, Some(A::ModifyReturn), O, true),
    row("fexit.s", P::Tracing, Some(A::TraceFexit), O, true),
    row("fsession", P::Tracing, Some(A::TraceFsession), O, false),
    row("fsession.s", P::Tracing, Some(A::TraceFsession), O, true),
    row("fentry.multi", P::Tracing, Some(A::TraceFentryMulti), O, false),
    row("fexit.multi", P::Tracing, Some(A::TraceFexitMulti), O, false),
    row("fmod_ret.multi", P::Tracing, Some(A::ModifyReturnMulti), O, false),
    row("fsession.multi", P::Tracing, Some(A::TraceFsessionMulti), O, false),
    row("fentry.multi.s", P::Tracing, Some(A::TraceFentryMulti), O, true),
    row("fexit.multi.s", P::Tracing, Some(A::TraceFexitMulti), O, true),
    row("fmod_ret.multi.s", P::Tracing, Some(A::ModifyReturnMulti), O, true),
    row("fsession.multi.s", P::Tracing, Some(A::TraceFsessionMulti), O, true),
    row("freplace", P::Ext, None, O, false),
    row("lsm", P::Lsm, Some(A::LsmMac), O, false),
    row("lsm.s", P::Lsm, Some(A::LsmMac), O, true),
    row("lsm_cgroup", P::Lsm, Some(A::LsmCgroup), O, false),
    row("iter", P::Tracing, Some(A::TraceIter), O, false),
    row("iter.s", P::Tracing, Some(A::TraceIter), O, true),
    row("syscall", P::Syscall, None, N, true),
    row("xdp.frags/devmap", P::Xdp, Some(A::XdpDevmap), N, false),
    row("xdp/devmap", P::Xdp, Some(A::XdpDevmap), N, false),
    row("xdp.frags/cpumap", P::Xdp, Some(A::XdpCpumap), N, false),
    row("xdp/cpumap", P::Xdp, Some(A::XdpCpumap), N, false),
    row("xdp.frags", P::Xdp, Some(A::Xdp), N, false),
    row("xdp", P::Xdp, Some(A::Xdp), N, false),
    row("perf_event", P::PerfEvent, None, N, false),
    row("lwt_in", P::LwtIn, None, N, false),
    row("lwt_out", P::LwtOut, None, N, false),
    row("lwt_xmit", P::LwtXmit, None, N, false),
    row("lwt_seg6local", P::LwtSeg6local, None, N, false),
    row("sockops", P::SockOps, Some(A::CgroupSockOps), N, false),
    row("sk_skb/stream_parser", P::SkSkb, Some(A::SkSkbStreamParser), N, false),
    row("sk_skb/stream_verdict", P::SkSkb, Some(A::SkSkbStreamVerdict), N, false),
    row("sk_skb/verdict", P::SkSkb, Some(A::SkSkbVerdict), N, false),
    row("sk_skb", P::SkSkb, None, N, false),
    row("sk_msg", P::SkMsg, Some(A::SkMsgVerdict), N, false),
    row("lirc_mode2", P::LircMode2, Some(A::LircMode2), N, false),
    row("flow_dissector", P::FlowDissector, Some(A::FlowDissector), N, false),
    row("cgroup_skb/ingress", P::CgroupSkb, Some(A::CgroupInetIngress), N, false),
    row("cgroup_skb/egress", P::CgroupSkb, Some(A::CgroupInetEgress), N, false),
    row("cgroup/skb", P::CgroupSkb, None, N, false),
    row("cgroup/sock_create", P::CgroupSock, Some(A::CgroupInetSockCreate), N, false),
    row("cgroup/sock_release", P::CgroupSock, Some(A::CgroupInetSockRelease), N, false),
    row("cgroup/sock", P::CgroupSock, Some(A::CgroupInetSockCreate), N, false),
    row("cgroup/post_bind4", P::CgroupSock, Some(A::CgroupInet4PostBind), N, false),
    row("cgroup/post_bind6", P::CgroupSock, Some(A::CgroupInet6PostBind), N, false),
    row("cgroup/bind4", P::CgroupSockAddr, Some(A::CgroupInet4Bind), N, false),
    row("cgroup/bind6", P::CgroupSockAddr, Some(A::CgroupInet6Bind), N, false),
    row("cgroup/connect4", P::CgroupSockAddr, Some(A::CgroupInet4Connect), N, false),
    row("cgroup/connect6", P::CgroupSockAddr, Some(A::CgroupInet6Connect), N, false),
    row("cgroup/connect_unix", P::CgroupSockAddr, Some(A::CgroupUnixConnect), N, false),
    row("cgroup/sendmsg4", P::CgroupSockAddr, Some(A::CgroupUdp4Sendmsg), N, false),
    row("cgroup/sendmsg6", P::CgroupSockAddr, Some(A::CgroupUdp6Sendmsg), N, false),
    row("cgroup/sendmsg_unix", P::CgroupSockAddr, Some(A::CgroupUnixSendmsg), N, false),
    row("cgroup/recvmsg4", P::CgroupSockAddr, Some(A::CgroupUdp4Recvmsg), N, false),
    row("cgroup/recvmsg6", P::CgroupSockAddr, Some(A::CgroupUdp6Recvmsg), N, false),
    row("cgroup/recvmsg_unix", P::CgroupSockAddr, Some(A::CgroupUnixRecvmsg), N, false),
    row("cgroup/getpeername4", P::CgroupSockAddr, Some(A::CgroupInet4Getpeername), N, false),
    row("cgroup/getpeername6", P::CgroupSockAddr, Some(A::CgroupInet6Getpeername), N, false),
    row("cgroup/getpeername_unix", P::CgroupSockAddr, Some(A::CgroupUnixGetpeername), N, false),
    row("cgroup/getsockname4", P::CgroupSockAddr, Some(A::CgroupInet4Getsockname), N, false),
    row("cgroup/getsockname6", P::CgroupSockAddr, Some(A::CgroupInet6Getsockname), N, false),
    row("cgroup/getsockname_unix", P::CgroupSockAddr, Some(A::CgroupUnixGetsockname), N, false),
    row("cgroup/sysctl", P::CgroupSysctl, Some(A::CgroupSysctl), N, false),
    row("cgroup/getsockopt", P::CgroupSockopt, Some(A::CgroupGetsockopt), N, false),
    row("cgroup/setsockopt", P::CgroupSockopt, Some(A::CgroupSetsockopt), N, false),
    row("cgroup/dev", P::CgroupDevice, Some(A::CgroupDevice), N, false),
    row("struct_ops", P::StructOps, None, O, false),
    row("struct_ops.s", P::StructOps, None, O, true),
    row("sk_lookup", P::SkLookup, Some(A::SkLookup), N, false),
    row("netfilter", P::Netfilter, Some(A::Netfilter), N, false),
];

/// A section name taken apart.
#[derive(Clone, Copy, Debug)]
pub struct Section<'a> {
    /// The table row.
    pub def: &'static SecDef,
    /// The text after the slash, if any.
    pub target: Option<&'a str>,
}

/// Takes a section name apart; `None` when no row knows it.
///
/// A leading `?` (do not load by itself) is the caller's business and must be stripped before.
///
/// ```
/// use skep_isa::{sec, AttachType};
/// let s = sec::parse("fentry.multi/sqlite3_*").ok_or("unknown section")?;
/// assert_eq!(s.def.attach, Some(AttachType::TraceFentryMulti));
/// assert_eq!(s.target, Some("sqlite3_*"));
/// # Ok::<(), &str>(())
/// ```
#[must_use]
pub fn parse(name: &str) -> Option<Section<'_>> {
    if let Some(def) = SECTIONS.iter().find(|d| d.name == name) {
        return Some(Section { def, target: None });
    }
    let (head, target) = name.split_once('/')?;
    let def = SECTIONS.iter().find(|d| d.name == head && d.target != Target::None)?;
    Some(Section { def, target: Some(target) })
}

/// Finds the section name that was likely meant, for messages about unknown ones: `xdp` for
/// `xdp/filter`, `kprobe` for `kprobes/x`.
#[must_use]
pub fn nearest(name: &str) -> Option<&'static str> {
    let head = name.split_once('/').map_or(name, |(head, _)| head);
    let shared = |d: &&SecDef| d.name.bytes().zip(head.bytes()).take_while(|(a, b)| a == b).count();
    let best = SECTIONS.iter().max_by_key(|d| (shared(d), std::cmp::Reverse(d.name.len())))?;
    (shared(&best) >= 3.min(best.name.len())).then_some(best.name)
}

impl SecDef {
    /// Tells whether the program deals with packets in several pieces (`xdp.frags`).
    #[must_use]
    pub fn has_frags(&self) -> bool {
        self.name.starts_with("xdp.frags")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn whole_names_are_no_targets() {
        assert!(
            parse("tc/ingress")
                .is_some_and(|s| s.def.attach == Some(A::TcxIngress) && s.target.is_none())
        );
        assert!(
            parse("xdp.frags/devmap")
                .is_some_and(|s| s.def.attach == Some(A::XdpDevmap) && s.def.has_frags())
        );
        assert!(parse("uprobe//bin/sh:main").is_some_and(|s| s.target == Some("/bin/sh:main")));
    }

    #[test]
    fn unknown_sections_are_not_guessed() {
        for name in [
            "fentry_multi/x",
            "syscall/x",
            "xdp/x",
            "tc/x",
            "socket1",
            "kprobes/x",
            "",
            "/",
            "tracepoints",
        ] {
            assert!(parse(name).is_none(), "{name}");
        }
    }

    #[test]
    fn the_likely_name_is_offered() {
        for (name, want) in [
            ("xdp/filter", Some("xdp")),
            ("tc/x", Some("tc")),
            ("kprobes/x", Some("kprobe")),
            ("fentry_multi/x", Some("fentry")),
            ("zzz", None),
        ] {
            assert_eq!(nearest(name), want, "{name}");
        }
    }

    #[test]
    fn names_tell_what_may_sleep() {
        for d in SECTIONS {
            assert_eq!(d.sleepable, d.name.ends_with(".s") || d.name == "syscall", "{}", d.name);
        }
    }
}
