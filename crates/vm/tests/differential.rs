//! Random programs must leave the same registers and memory on every engine: alone, and where tail calls lead on to others.

#[path = "suite/host.rs"]
mod host;
#[path = "suite/random.rs"]
mod random;
mod suite;

use random::{BUFFER, FILLED, Rng, Taste, program};
use skep_isa::{MapShape, ShapeKind};
use skep_vm::MapRef;

fn compare(seed: u64) {
    // The others of neighbouring seeds have been compared by themselves as well.
    let programs: Vec<_> = (0..u64::from(FILLED)).map(|n| Some(program(seed.wrapping_add(n), Taste::Engines))).collect();
    let mut rng = Rng(!seed);
    let fresh: Vec<u8> = (0..BUFFER).map(|_| rng.next() as u8).collect();
    let mut buffer = vec![0u64; BUFFER / 8];
    let at = buffer.as_mut_ptr() as u64;
    let shape = MapShape { base: at, stride: 8, entries: 1, kind: ShapeKind::Opaque };
    let before = [MapRef { handle: 0, value: at, shape }];
    let mut first = None;
    for engine in suite::ENGINES {
        for (word, bytes) in buffer.iter_mut().zip(fresh.as_chunks::<8>().0) {
            *word = u64::from_le_bytes(*bytes);
        }
        let got = host::run(engine, &programs, &before, at).map(|r0| (r0, buffer.clone()));
        let want = first.get_or_insert_with(|| got.clone());
        let texts = || programs.iter().flatten().map(|p| skep_isa::text::source(p).unwrap_or_default()).collect::<Vec<_>>().join("\n\n");
        assert!(got == *want, "seed {seed:#x}: {engine} differs from {}\n{got:x?}\n{want:x?}\n{}", suite::ENGINES[0], texts());
    }
    assert!(first.is_some_and(|f| f.is_ok()), "seed {seed:#x} runs");
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
