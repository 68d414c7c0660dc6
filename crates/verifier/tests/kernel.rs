//! Nothing Linux refuses may be accepted here, exceptions with a reason aside; needs the right to
//! use bpf(2).
#![allow(clippy::print_stdout, reason = "differences that are no errors are worth seeing")]

mod case;
#[allow(dead_code, reason = "numbers are compared by another test")]
mod claims;
mod kernel_bpf;
mod machine;
mod random;

use kernel_bpf::Verdict;
use skep_isa::{Insn, ProgramType, op};
use skep_object::Linked;
use skep_verifier::{Options, Reason, verify, verify_observed};
use std::collections::BTreeMap;

const NOT_PERMITTED: &str = "bpf(2) is not permitted";

#[test]
fn linux_accepts_what_is_accepted_here() {
    let mut wrong = Vec::new();
    let (mut asked, mut same_words) = (0, 0);
    let mut options = Options::default();
    options.limit = 50_000;
    // Tracing programs need a target in the kernel's own types.
    for c in case::all().into_iter().filter(|c| c.prog.prog_type != ProgramType::Tracing) {
        options.target.clone_from(&c.target);
        let ours = verify(&c.prog, &options);
        let theirs =
            match kernel_bpf::ask(&c.prog, c.prog.btf.as_ref().map(|_| &*case::types().bytes)) {
                Verdict::Skip(why) => {
                    println!("skipped: {}: {why}", c.name);
                    continue;
                }
                v => v,
            };
        asked += 1;
        match (&ours, &theirs) {
            (Ok(_), Verdict::Reject(why))
                if !c.kernel.as_ref().is_some_and(|k| k.starts_with("reject")) =>
            {
                wrong.push(format!("{}: Linux: {why}", c.name));
            }
            (Err(r), Verdict::Accept)
                if !c.kernel.as_ref().is_some_and(|k| k.starts_with("accept")) =>
            {
                println!("stricter than Linux: {}: {}", c.name, r.reason);
            }
            (Err(r), Verdict::Reject(why)) => {
                if why.contains(&r.reason.to_string()) {
                    same_words += 1;
                } else {
                    println!("other words: {}\n  {}\n  {why}", c.name, r.reason);
                }
            }
            _ => {}
        }
    }
    if asked == 0 {
        return skep_testkit::skip("the right to use bpf(2)");
    }
    println!("{asked} asked, {same_words} refused in the same words");
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}

/// The kernel's objects hold its addresses: only root may look into them, also here.
#[test]
fn strict_keeps_kernel_objects_closed() {
    let Ok(types) = std::fs::read("/sys/kernel/btf/vmlinux") else {
        return skep_testkit::skip("the types of the running kernel");
    };
    let asm = "lddw %r1, map 0\nldxdw %r0, [%r1]\nmov %r0, 0\nexit\n";
    let mut prog = Linked::from_insns(
        "case",
        ProgramType::Kprobe,
        skep_isa::text::assemble(asm).expect("assembly"),
    );
    let spec = skep_object::MapSpec::new("m", skep_isa::MapType::Array, 4, 8, 1);
    prog.maps.push(skep_object::LinkedMap { index: 0, spec });
    let mut options = Options::default();
    options.target =
        Some(std::sync::Arc::new(skep_object::Btf::parse(&types).expect("the kernel's types")));
    verify(&prog, &options).expect("accepted for root");
    options.strict = true;
    let refused = verify(&prog, &options).expect_err("refused for others");
    assert_eq!(
        refused.reason.to_string(),
        "bpf_map access is allowed only to CAP_PERFMON and CAP_SYS_ADMIN"
    );
}

/// Programs Linux refuses and we do not: it does not follow quotients, remainders and comparisons
/// of a register with itself, and does not put bytes together. Whoever says it is safe must show
/// that it is.
#[test]
fn random_programs_that_only_linux_refuses_are_harmless() {
    let fresh = std::time::SystemTime::now()
        .duration_since(std::time::UNIX_EPOCH)
        .map_or(7, |d| d.as_nanos() as u64)
        | 1;
    let stress = std::env::var_os("SKEP_STRESS").is_some();
    let (rounds, runs) = if stress { (1_200, 200) } else { (80, 100) };
    let mut options = Options::default();
    options.limit = 20_000;
    let mut as_root = options.clone();
    as_root.allow_uninit_stack = true;
    for seed in [fresh] {
        let r = random::Random::new(seed);
        let [mut both, mut neither, mut stricter, mut looser, mut skipped, mut unwritten] =
            [0u32; 6];
        let (mut differ, mut wrong) = (BTreeMap::<String, u32>::new(), Vec::new());
        for round in 0..rounds {
            let prog = random::program(&r);
            // Needs a target in the kernel's own types.
            if prog.prog_type == ProgramType::Tracing {
                continue;
            }
            let mut reach = machine::Reach::new();
            let ours = verify_observed(&prog, &options, &mut |insn, state| {
                claims::note_reach(&mut reach, prog.insns[insn], insn, state);
            });
            // Linux would walk a million instructions of it.
            if ours.as_ref().is_err_and(|e| {
                matches!(e.reason, Reason::TooComplex { .. } | Reason::TooManyForks { .. })
            }) {
                skipped += 1;
                continue;
            }
            match (&ours, kernel_bpf::ask(&prog, Some(&random::types::bytes()))) {
                (_, Verdict::Skip(why)) if why == NOT_PERMITTED => {
                    return skep_testkit::skip("the right to use bpf(2)");
                }
                (_, Verdict::Skip(why)) => {
                    skipped += 1;
                    *differ.entry(format!("nobody: {}", reason(&why))).or_default() += 1;
                }
                (Ok(_), Verdict::Accept) => both += 1,
                (Ok(proof), Verdict::Reject(why)) => {
                    looser += 1;
                    let list: String = skep_isa::text::lines(&prog.insns)
                        .map(|(n, l)| format!("{n}: {l}\n"))
                        .collect();
                    for _ in 0..runs {
                        let mut machine = machine::Machine::new(&prog, &r);
                        machine.reach = reach.clone();
                        machine.probes = proof.info().object_loads.clone();
                        if let Err((at, what)) = machine.run(|_, _| Ok(())) {
                            panic!(
                                "seed {seed:#x}, round {round}, at {at}: {what}; Linux: {why}\n{list}"
                            );
                        }
                    }
                    *differ.entry(format!("Linux only: {}", reason(&why))).or_default() += 1;
                    if !excused(&prog, &why) && !known(&why) {
                        wrong.push(format!("seed {seed:#x}, round {round}: Linux: {why}\n{list}"));
                    }
                }
                // Programs that read what they never wrote are judged so by `prog verify`, and do
                // not run here.
                (Err(_), Verdict::Accept) if verify(&prog, &as_root).is_ok() => unwritten += 1,
                (Err(e), Verdict::Accept) => {
                    stricter += 1;
                    *differ
                        .entry(format!("here only: {}", reason(&e.reason.to_string())))
                        .or_default() += 1;
                    if stress {
                        let list: String = skep_isa::text::lines(&prog.insns)
                            .map(|(n, l)| format!("{n}: {l}\n"))
                            .collect();
                        println!(
                            "seed {seed:#x}, round {round}: here only, at {}: {}\n{list}",
                            e.insn, e.reason
                        );
                    }
                }
                (Err(_), Verdict::Reject(_)) => neither += 1,
            }
        }
        println!(
            "seed {seed:#x}: {both} accepted by both, {neither} by neither, {stricter} by Linux only, {unwritten} more with unwritten stack, {looser} here only, {skipped} not asked"
        );
        for (what, n) in &differ {
            println!("  {n} refused by {what}");
        }
        // A kernel of another version may have reasons of its own: harmless as they are shown to
        // be, they are looked at by hand.
        let text = wrong.join("\n");
        assert!(
            wrong.is_empty() || !stress,
            "{} programs are accepted here only:\n{text}",
            wrong.len()
        );
        println!("{text}");
    }
}

/// A reason without its numbers.
fn reason(why: &str) -> String {
    why.chars().filter(|c| !c.is_ascii_digit()).take(100).collect()
}

/// What is accepted here only is told to readers, all of it: the marks of the cases, and what Linux
/// says to random programs.
#[test]
fn all_that_is_wider_than_linux_is_in_the_page() {
    let page =
        std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join("../../docs/parity/verifier.md");
    let page = std::fs::read_to_string(page).expect("a page of the project");
    let (_, list) = page.split_once("\n## Wider than Linux\n").expect("a chapter");
    let list = list
        .split("\n## ")
        .next()
        .unwrap_or_default()
        .split_whitespace()
        .collect::<Vec<_>>()
        .join(" ");
    let marks = case::all().into_iter().filter_map(|c| Some((c.kernel?, c.name)));
    let marks = marks.filter_map(|(mark, name)| {
        Some((mark.strip_prefix("reject")?.trim_start_matches([',', ' ']).to_owned(), name))
    });
    let known = KNOWN.iter().map(|(words, why)| ((*words).to_owned(), (*why).to_owned()));
    for (mark, of) in marks.chain(known) {
        assert!(
            !mark.is_empty() && list.contains(&format!("[{mark}]")),
            "`{of}`: the page does not have [{mark}]"
        );
    }
}

/// Tells whether Linux would have to know more of a number.
fn about_numbers(why: &str) -> bool {
    let words = [
        "unbounded min value",
        "min value is negative",
        "zero-sized read",
        "outside of the allowed memory range",
        "unbounded memory access",
    ];
    words.iter().any(|w| why.contains(w))
}

/// Tells whether Linux refuses for a reason that does not go for us.
fn known(why: &str) -> bool {
    KNOWN.iter().any(|(words, _)| why.contains(words))
}

/// What Linux 6.18 says to programs that are accepted here, and why they are.
const KNOWN: &[(&str, &str)] = &[
    (
        "cannot spill pointers to stack into stack frame of the caller",
        "here a pointer to the caller's own stack may lie there",
    ),
    ("verifier bug", "it says so itself"),
    (
        "Sleepable programs can only use",
        "which maps outlive a sleeping program is the kernel's affair",
    ),
    (
        "= *(u32 *)(r9 +20)",
        "`egress_ifindex` is only for programs of a device map there; here it is 0 for others",
    ),
];

/// Tells whether a program has the things that are known to be followed better here: quotients and
/// remainders bound numbers, what a register never is to itself is not walked, and bytes of the
/// stack are put together.
fn excused(prog: &Linked, why: &str) -> bool {
    let narrow = |i: &&Insn| {
        matches!(i.class(), op::ST | op::STX)
            && i.code & 0xe0 == op::MEM
            && i.dst() == op::FP
            && i.code & op::DW != op::DW
    };
    // Zeroes that several stores wrote.
    if prog.insns.iter().filter(narrow).count() > 1 && about_numbers(why) {
        return true;
    }
    prog.insns.iter().any(|i| match i.class() {
        op::ALU | op::ALU64 => matches!(i.code & 0xf0, op::DIV | op::MOD),
        op::JMP | op::JMP32 => i.code & op::X != 0 && i.dst() == i.src(),
        _ => false,
    })
}
