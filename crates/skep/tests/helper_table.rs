//! The table of helpers against the running kernel: which program types may call what, and with
//! which licence.

use skep::isa::helper::HELPERS;
use skep::isa::{AttachType as A, Insn, ProgramType as P};
use skep_kernel::{Program, ProgramSpec};
use skep_testkit::skip::without_bpf;

/// Newer than Linux 6.12, or compiled into some kernels only: no difference is a mistake.
const BY_CONFIGURATION: &[&str] = &[
    "override_return",
    "probe_write_user",
    "get_func_arg",
    "get_func_ret",
    "get_func_arg_cnt",
    "seq_printf",
    "seq_write",
    "seq_printf_btf",
    // In tracing programs with a kernel object instead of the context, which is not among what is
    // asked here.
    "get_socket_cookie",
    "xdp_get_buff_len",
];

/// Program types, with the attach type that the kernel wants to know.
const TYPES: &[(P, Option<A>)] = &[
    (P::SocketFilter, None),
    (P::Kprobe, None),
    (P::SchedCls, None),
    (P::SchedAct, None),
    (P::Tracepoint, None),
    (P::Xdp, None),
    (P::PerfEvent, None),
    (P::CgroupSkb, None),
    (P::LwtIn, None),
    (P::LwtOut, None),
    (P::LwtXmit, None),
    (P::RawTracepoint, None),
    (P::RawTracepointWritable, None),
    (P::SkLookup, Some(A::SkLookup)),
    (P::Syscall, None),
    (P::FlowDissector, Some(A::FlowDissector)),
    (P::SkReuseport, Some(A::SkReuseportSelect)),
    (P::SkSkb, Some(A::SkSkbStreamParser)),
    (P::SockOps, Some(A::CgroupSockOps)),
    (P::SkMsg, Some(A::SkMsgVerdict)),
];

/// What the kernel's verifier writes about a program that calls a helper with nothing in its
/// argument registers.
fn ask(prog: P, attach: Option<A>, id: u32, gpl: bool) -> String {
    let insns: Vec<u8> = [Insn::call(id), Insn::mov64_imm(0, 0), Insn::exit()]
        .iter()
        .flat_map(|i| i.to_bytes())
        .collect();
    let flags = if prog == P::Syscall { ProgramSpec::SLEEPABLE } else { 0 };
    match Program::load(&ProgramSpec {
        attach_type: attach,
        gpl,
        flags,
        log: true,
        ..ProgramSpec::new(prog, &insns)
    }) {
        Ok(_) => "accepted".to_owned(),
        Err(refused) => refused.log,
    }
}

#[test]
fn the_kernel_lets_the_same_programs_call_the_same_helpers() {
    if without_bpf() {
        return;
    }
    let refused = |log: &str| {
        ["cannot use helper", "unknown func", "invalid func", "not allowed in probe"]
            .iter()
            .any(|w| log.contains(w))
    };
    // A kernel without the newest helpers or without a program type is no judge of them.
    let mut wrong = Vec::new();
    for (prog, attach) in TYPES {
        if ask(*prog, *attach, 1, true).is_empty() {
            continue;
        }
        for h in HELPERS.iter().filter(|h| !BY_CONFIGURATION.contains(&h.name)) {
            let log = ask(*prog, *attach, h.id, true);
            if log.is_empty() || refused(&log) == h.allows(*prog) {
                wrong.push(format!(
                    "{prog}: {} is {} here: {log}",
                    h.name,
                    if h.allows(*prog) { "allowed" } else { "refused" }
                ));
            } else if h.allows(*prog) {
                let restricted = ask(*prog, *attach, h.id, false).contains("GPL-restricted");
                // One of three prototypes of that helper does without.
                if restricted != h.gpl_only && (*prog, h.name) != (P::PerfEvent, "get_stackid") {
                    wrong.push(format!("{prog}: {} needs the GPL: {restricted}", h.name));
                }
            }
        }
    }
    // Which kernel is as one of these rows was written is not known beforehand: older ones allow
    // less.
    let release = std::fs::read_to_string("/proc/sys/kernel/osrelease").unwrap_or_default();
    let number = |n: usize| {
        release.split(['.', '-']).nth(n).and_then(|v| v.parse::<u32>().ok()).unwrap_or(0)
    };
    if (number(0), number(1)) < (6, 18) {
        return skep_testkit::skip("Linux 6.18, whose table this is");
    }
    assert!(wrong.is_empty(), "{}\n{}", wrong.len(), wrong.join("\n"));
}
