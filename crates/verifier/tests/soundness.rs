//! Accepted programs are run in an interpreter that traps what the verifier must have ruled out: accesses outside
//! memory, registers and stack bytes that were never written. Their registers must also hold what was claimed.
#![allow(clippy::print_stdout, reason = "seeds are printed for whoever has to repeat a failure")]

mod machine;
mod random;

use machine::{CTX, Machine, STACK};
use random::Random;
use skep_isa::text;
use skep_object::Linked;
use skep_verifier::cfg::{Cfg, RegSet};
use skep_verifier::reg::Kind;
use skep_verifier::state::State;
use skep_verifier::{Options, Prune, verify_observed};

/// Tells whether one of the claimed states describes these registers, as far as they are still read.
fn described(claims: &[State], regs: &[Option<u64>; 11], live: RegSet) -> bool {
    claims.iter().any(|s| {
        s.top().regs.iter().zip(regs).zip(0..).all(|((claim, real), r)| match (claim.kind, real) {
            _ if live & (1 << r) == 0 => true,
            (Kind::Scalar, Some(n)) => claim.val.contains(*n),
            (Kind::Uninit, _) => true,
            (Kind::Stack(frame), Some(n)) => {
                claim.val.contains(n.wrapping_sub(STACK + (u64::from(frame) << 32)).wrapping_sub(claim.off as i64 as u64))
            }
            (Kind::Ctx, Some(n)) => claim.val.contains(n.wrapping_sub(CTX).wrapping_sub(claim.off as i64 as u64)),
            (Kind::Value(_), Some(0)) => claim.nullable,
            (_, Some(_)) => true,
            (_, None) => false,
        })
    })
}

fn listing(prog: &Linked) -> String {
    text::lines(&prog.insns).map(|(n, l)| format!("{n}: {l}\n")).collect()
}

#[test]
fn accepted_programs_do_nothing_forbidden() {
    let fresh = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH).map_or(7, |d| d.as_nanos() as u64) | 1;
    let rounds = if std::env::var_os("SKEP_STRESS").is_some() { 300_000 } else { 1_000 };
    for seed in [0x5eed, fresh] {
        let r = Random::new(seed);
        let (mut accepted, mut runs) = (0, 0);
        for round in 0..rounds {
            let prog = random::program(&r);
            let mut options = Options::default();
            options.limit = 20_000;
            options.prune = [Prune::Never, Prune::Usual, Prune::Always, Prune::Always][round % 4];
            let claiming = options.prune == Prune::Never;
            let mut claims: Vec<Vec<State>> = vec![Vec::new(); prog.insns.len()];
            let verdict = verify_observed(&prog, &options, &mut |insn, state| {
                if claiming {
                    claims[insn].push(state.clone());
                }
            });
            let Ok(proof) = verdict else { continue };
            accepted += 1;
            let live = Cfg::new(&prog).map(|c| c.live).unwrap_or_default();
            assert!(proof.info().processed <= options.limit);
            for _ in 0..12 {
                runs += 1;
                let claims = &claims;
                let result = Machine::new(&prog, &r).run(|pc, regs| {
                    // With pruning, numbers that decide nothing may differ from what was walked.
                    if claiming && !described(&claims[pc], regs, live[pc]) {
                        return Err(format!("the registers are not what was claimed: {regs:x?}"));
                    }
                    Ok(())
                });
                if let Err((pc, why)) = result {
                    panic!("seed {seed:#x}, round {round}, at {pc}: {why}\n{}", listing(&prog));
                }
            }
        }
        println!("seed {seed:#x}: {accepted} of {rounds} programs accepted, {runs} runs");
        assert!(accepted * 20 > rounds, "only {accepted} of {rounds} programs were accepted");
    }
}
