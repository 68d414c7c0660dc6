//! Random programs must leave the same registers and memory on every engine: alone, and where tail
//! calls lead on to others.
#![cfg(all(target_arch = "x86_64", target_os = "linux", target_env = "gnu"))]

#[path = "suite/fault.rs"]
mod fault;
#[path = "suite/host.rs"]
mod host;
#[path = "suite/random.rs"]
mod random;
mod suite;

use host::{Host, Memory};
use random::{ENTRIES, ENTRY, FILLED, Judge, Rng, VALUE_SIZE, program};

fn compare(seed: u64) {
    const WORDS: usize = (VALUE_SIZE + ENTRIES as usize * ENTRY) / 8;
    // The others of neighboring seeds have been compared by themselves as well.
    let programs: Vec<_> =
        (0..u64::from(FILLED)).map(|n| program(seed.wrapping_add(n), Judge::Engines)).collect();
    let mut rng = Rng(!seed);
    let fresh: Vec<u64> = (0..WORDS).map(|_| rng.next()).collect();
    let mut buffer = vec![0u64; WORDS];
    let value = buffer.as_mut_ptr() as u64;
    let memory = Memory { value, table: value + VALUE_SIZE as u64 };
    let mut first = None;
    for engine in suite::ENGINES {
        buffer.copy_from_slice(&fresh);
        let mut host = Host::new(engine, memory);
        let targets =
            (0..).zip(&programs).map(|(n, p)| host.put(n, p)).collect::<Result<Vec<_>, _>>();
        let got = targets.and_then(|t| host.run(&t[0], value)).map(|r0| (r0, buffer.clone()));
        let want = first.get_or_insert_with(|| got.clone());
        let texts = || {
            programs
                .iter()
                .map(|p| skep_isa::text::source(p).unwrap_or_default())
                .collect::<Vec<_>>()
                .join("\n\n")
        };
        assert!(
            got == *want,
            "seed {seed:#x}: {engine} differs from {}\n{got:x?}\n{want:x?}\n{}",
            suite::ENGINES[0],
            texts()
        );
    }
    assert!(first.as_ref().is_some_and(|f| f.is_ok()), "seed {seed:#x} runs: {first:x?}");
}

#[test]
fn random_programs_agree_for_fixed_seeds() {
    for seed in 0..600 {
        compare(seed);
    }
}

#[test]
#[allow(clippy::print_stderr, reason = "the seed is needed to repeat a failure")]
fn random_programs_agree_for_a_fresh_seed() {
    let now = std::time::UNIX_EPOCH.elapsed().map_or(0, |d| d.as_nanos() as u64);
    let rounds = if std::env::var_os("SKEP_STRESS").is_some() { 1_000_000 } else { 300 };
    eprintln!("fresh seed {now:#x}, {rounds} programs");
    for n in 0..rounds {
        compare(now.wrapping_add(n));
    }
}
