//! Nothing Linux refuses may be accepted here, exceptions with a reason aside; needs the right to use bpf(2).
#![allow(clippy::print_stdout, reason = "differences that are no errors are worth seeing")]

mod case;
mod kernel_bpf;
mod machine;
mod random;

use kernel_bpf::Verdict;
use skep_isa::{ProgramType, op};
use skep_object::Linked;
use skep_verifier::{Options, verify};

#[test]
fn linux_accepts_what_is_accepted_here() {
    let mut wrong = Vec::new();
    let (mut asked, mut same_words) = (0, 0);
    let mut options = Options::default();
    options.limit = 50_000;
    // Tracing programs need a target in the kernel's own types.
    for c in case::all().into_iter().filter(|c| c.prog.prog_type != ProgramType::Tracing) {
        let ours = verify(&c.prog, &options);
        let theirs = match kernel_bpf::ask(&c.prog) {
            Verdict::Skip(why) => {
                println!("skipped: {}: {why}", c.name);
                continue;
            }
            v => v,
        };
        asked += 1;
        match (&ours, &theirs) {
            (Ok(_), Verdict::Reject(why)) if !c.kernel.as_ref().is_some_and(|k| k.starts_with("reject")) => {
                wrong.push(format!("{}: Linux: {why}", c.name));
            }
            (Err(r), Verdict::Accept) if !c.kernel.as_ref().is_some_and(|k| k.starts_with("accept")) => {
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
    println!("{asked} asked, {same_words} refused in the same words");
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}

/// Programs Linux refuses and we do not: it does not follow quotients, remainders and comparisons of a register with
/// itself, and does not put bytes together. Whoever says it is safe must show that it is.
#[test]
fn random_programs_that_only_linux_refuses_are_harmless() {
    let fresh = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH).map_or(7, |d| d.as_nanos() as u64) | 1;
    let (rounds, runs) = if std::env::var_os("SKEP_STRESS").is_some() { (20_000, 1_000) } else { (300, 200) };
    let mut options = Options::default();
    options.limit = 50_000;
    for seed in [0x5eed, fresh] {
        let r = random::Random::new(seed);
        let [mut both, mut neither, mut stricter, mut looser] = [0u32; 4];
        for round in 0..rounds {
            let prog = random::program(&r);
            let ours = verify(&prog, &options);
            match (&ours, kernel_bpf::ask(&prog)) {
                (_, Verdict::Skip(why)) => {
                    println!("skipped: {why}");
                    return;
                }
                (Ok(_), Verdict::Accept) => both += 1,
                (Ok(_), Verdict::Reject(why)) => {
                    looser += 1;
                    let list: String = skep_isa::text::lines(&prog.insns).map(|(n, l)| format!("{n}: {l}\n")).collect();
                    for _ in 0..runs {
                        if let Err((at, what)) = machine::Machine::new(&prog, &r).run(|_, _| Ok(())) {
                            panic!("seed {seed:#x}, round {round}, at {at}: {what}; Linux: {why}\n{list}");
                        }
                    }
                    if !excused(&prog) {
                        println!("looser: Linux: {why}\n{list}");
                    }
                }
                (Err(_), Verdict::Accept) => stricter += 1,
                (Err(_), Verdict::Reject(_)) => neither += 1,
            }
        }
        println!("seed {seed:#x}: {both} accepted by both, {neither} by neither, {stricter} by Linux only, {looser} here only");
    }
}

/// Tells whether a program has the things that are known to be followed better here.
fn excused(prog: &Linked) -> bool {
    prog.insns.iter().any(|i| match i.class() {
        op::ALU | op::ALU64 => matches!(i.code & 0xf0, op::DIV | op::MOD),
        op::JMP | op::JMP32 => i.code & op::X != 0 && i.dst() == i.src(),
        _ => false,
    })
}
