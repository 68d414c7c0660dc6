//! `SEC("…")` names: which program type and attach type a section asks for, as libbpf's `section_defs` table.

use crate::prog::{AttachType as A, ProgramType as P};

/// Describes one family of section names.
#[derive(Clone, Copy, Debug)]
pub struct SecDef {
    /// The name, or the part before the target when `target` is not [`Target::None`].
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
    /// Always `/target` (`tp/…`).
    Required,
}

const fn row(name: &'static str, prog: P, attach: Option<A>, target: Target, sleepable: bool) -> SecDef {
    SecDef { name, prog, attach, target, sleepable }
}

use Target::{None as N, Optional as O, Required as R};

/// All known section names (tools/lib/bpf/libbpf.c `section_defs`), and the multi forms of both lineages.
pub const SECTIONS: &[SecDef] = &[
    row("socket", P::SocketFilter, None, O, false),
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
    row("ksyscall", P::Kprobe, None, R, false),
    row("kretsyscall", P::Kprobe, None, R, false),
    row("usdt", P::Kprobe, None, O, false),
    row("usdt.s", P::Kprobe, None, O, true),
    row("tc", P::SchedCls, None, O, false),
    row("tc/ingress", P::SchedCls, Some(A::TcxIngress), N, false),
    row("tc/egress", P::SchedCls, Some(A::TcxEgress), N, false),
    row("tcx/ingress", P::SchedCls, Some(A::TcxIngress), N, false),
    row("tcx/egress", P::SchedCls, Some(A::TcxEgress), N, false),
    row("classifier", P::SchedCls, None, O, false),
    row("action", P::SchedAct, None, O, false),
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
    row("fsession", P::Tracing, Some(A::TraceFsession), O, false),
    row("fentry.s", P::Tracing, Some(A::TraceFentry), O, true),
    row("fmod_ret.s", P::Tracing, Some(A::ModifyReturn), O, true),
    row("fexit.s", P::Tracing, Some(A::TraceFexit), O, true),
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
    row("iter", P::Tracing, Some(A::TraceIter), O, false),
    row("iter.s", P::Tracing, Some(A::TraceIter), O, true),
    row("syscall", P::Syscall, None, N, true),
    row("xdp", P::Xdp, Some(A::Xdp), O, false),
    row("xdp.frags", P::Xdp, Some(A::Xdp), O, false),
    row("perf_event", P::PerfEvent, None, N, false),
    row("sockops", P::SockOps, None, N, false),
    row("sk_lookup", P::SkLookup, None, N, false),
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
    if let Some(def) = SECTIONS.iter().find(|d| d.name == name && d.target != Target::Required) {
        return Some(Section { def, target: None });
    }
    let (head, target) = name.split_once('/')?;
    let def = SECTIONS.iter().find(|d| d.name == head && d.target != Target::None)?;
    Some(Section { def, target: Some(target) })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_longer_name_wins_over_a_target() {
        assert!(parse("tc/ingress").is_some_and(|s| s.def.attach == Some(A::TcxIngress) && s.target.is_none()));
        assert!(parse("tc/whatever").is_some_and(|s| s.def.attach.is_none() && s.target == Some("whatever")));
    }

    #[test]
    fn unknown_sections_and_missing_targets_are_not_guessed() {
        assert!(parse("fentry_multi/x").is_none());
        assert!(parse("ksyscall").is_none());
        assert!(parse("syscall/x").is_none());
    }
}
