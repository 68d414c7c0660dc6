//! Programs with their verdicts, `tests/data/*.cases`.

mod case;

/// The instruction limit here: the programs that reach it need not take a second each.
const LIMIT: u32 = 50_000;

use skep_verifier::{Options, Prune, verify};

#[test]
fn every_case_gets_its_verdict() {
    run(Prune::Usual);
}

/// Most cases are too short to be pruned usually.
#[test]
fn every_case_gets_its_verdict_when_states_are_stored_everywhere() {
    run(Prune::Always);
}

/// "infinite loop detected at insn 4 at insn 4"
#[test]
fn no_message_says_twice_where_it_is() {
    let mut named = 0;
    for c in case::all() {
        let mut options = Options::default();
        options.limit = LIMIT;
        (options.strict, options.offered_only) = (c.strict, c.offered);
        options.target.clone_from(&c.target);
        let Err(r) = verify(&c.prog, &options) else { continue };
        let said = r.to_string();
        let words: Vec<&str> = said.split(|ch: char| !ch.is_ascii_alphanumeric()).collect();
        let here = r.insn.to_string();
        let times = words.windows(2).filter(|w| w[0] == "insn" && w[1] == here).count();
        assert_eq!(times, 1, "{}: {said}", c.name);
        named += usize::from(r.reason.to_string().contains("insn "));
    }
    assert!(named > 5, "only {named} reasons name an instruction");
}

#[test]
fn loads_that_are_not_aligned_may_be_refused() {
    let asm = "mov %r0, 0\nlddw %r1, value 0\nldxw %r2, [%r1+2]\nexit\n";
    let mut prog = skep_object::Linked::from_insns(
        "p",
        skep_isa::ProgramType::Kprobe,
        skep_isa::text::assemble(asm).expect("assembly"),
    );
    let spec = skep_object::MapSpec::new("m", skep_isa::MapType::Array, 4, 8, 1);
    prog.maps.push(skep_object::LinkedMap { index: 0, spec });
    let mut options = Options::default();
    verify(&prog, &options).expect("accepted");
    options.strict_alignment = true;
    let refused = verify(&prog, &options).expect_err("refused");
    assert_eq!(refused.reason.to_string(), "misaligned value access off 0+0+2 size 4");
}

fn run(prune: Prune) {
    let mut options = Options::default();
    options.limit = LIMIT;
    options.prune = prune;
    let mut wrong = Vec::new();
    for c in case::all() {
        options.strict = c.strict;
        options.offered_only = c.offered;
        options.target.clone_from(&c.target);
        let got = verify(&c.prog, &options);
        let ok = match (&got, &c.refuse) {
            (Ok(_), None) => true,
            (Err(r), Some((at, message))) => {
                at.is_none_or(|at| r.insn == at)
                    && r.reason.to_string().starts_with(message.as_str())
            }
            _ => false,
        };
        if c.strict && got.is_err() {
            // Nothing but this option refuses it.
            options.strict = false;
            if let Err(r) = verify(&c.prog, &options) {
                wrong.push(format!("{}\n  is refused without `strict`: {}", c.name, r.reason));
            }
        }
        if !ok {
            let got = match got {
                Ok(v) => format!("accept, {}", v.log()),
                Err(r) => format!("reject {} {}\n{}", r.insn, r.reason, tail(r.log())),
            };
            wrong.push(format!("{}\n  wanted {:?}\n  got {got}", c.name, c.refuse));
        }
    }
    assert!(wrong.is_empty(), "{} cases:\n{}", wrong.len(), wrong.join("\n"));
}

fn tail(log: &str) -> String {
    let lines: Vec<&str> = log.lines().collect();
    lines[lines.len().saturating_sub(12)..].join("\n")
}
