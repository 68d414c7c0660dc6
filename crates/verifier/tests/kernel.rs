//! Nothing Linux refuses may be accepted here, exceptions with a reason aside; needs the right to use bpf(2).
#![allow(clippy::print_stdout, reason = "differences that are no errors are worth seeing")]

mod case;
mod kernel_bpf;

use kernel_bpf::Verdict;
use skep_isa::ProgramType;
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
