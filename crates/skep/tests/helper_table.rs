//! The table of helpers against the running kernel: which program types may call what, and with
//! which licence.

use skep::isa::helper::HELPERS;
use skep::isa::{Insn, ProgramType as P};
use skep_testkit::kernel::{Load, Program, may_load};

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
const TYPES: &[(P, u32)] = &[
    (P::SocketFilter, 0),
    (P::Kprobe, 0),
    (P::SchedCls, 0),
    (P::SchedAct, 0),
    (P::Tracepoint, 0),
    (P::Xdp, 0),
    (P::PerfEvent, 0),
    (P::CgroupSkb, 0),
    (P::LwtIn, 0),
    (P::LwtOut, 0),
    (P::LwtXmit, 0),
    (P::RawTracepoint, 0),
    (P::RawTracepointWritable, 0),
    (P::SkLookup, 36),
    (P::Syscall, 0),
    (P::FlowDissector, 17),
    (P::SkReuseport, 39),
    (P::SkSkb, 4),
    (P::SockOps, 3),
    (P::SkMsg, 7),
];

const SLEEPABLE: u32 = 1 << 4;

/// What the kernel's verifier writes about a program that calls a helper with nothing in its
/// argument registers.
fn ask(prog: P, attach: u32, id: u32, gpl: bool) -> String {
    let insns: Vec<u8> = [Insn::call(id), Insn::mov64_imm(0, 0), Insn::exit()]
        .iter()
        .flat_map(|i| i.to_bytes())
        .collect();
    let flags = if prog == P::Syscall { SLEEPABLE } else { 0 };
    match Program::load(&Load {
        attach_type: attach,
        gpl,
        flags,
        log: true,
        ..Load::new(prog as u32, &insns)
    }) {
        Ok(_) => "accepted".to_owned(),
        Err(refused) => refused.log,
    }
}

#[test]
fn the_kernel_lets_the_same_programs_call_the_same_helpers() {
    if !may_load() {
        return skep_testkit::skip("the right to use bpf(2)");
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
