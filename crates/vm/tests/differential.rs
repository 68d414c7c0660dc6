//! Random programs must leave the same registers and memory on every engine.

#[path = "suite/random.rs"]
mod random;
mod suite;

use random::{BUFFER, MIX, Rng, Taste, program};
use skep_isa::{MapShape, ShapeKind};
use skep_vm::{Env, HelperImpl, MapRef};

unsafe extern "C" fn mix(a: u64, b: u64, c: u64, d: u64, e: u64) -> u64 {
    [b, c, d, e].iter().fold(a, |h, v| (h ^ v).wrapping_mul(0x0000_0100_0000_01b3).rotate_left(29))
}

fn compare(seed: u64) {
    let insns = program(seed, Taste::Engines);
    let mut rng = Rng(!seed);
    let fresh: Vec<u8> = (0..BUFFER).map(|_| rng.next() as u8).collect();
    let mut buffer = vec![0u64; BUFFER / 8];
    let at = buffer.as_mut_ptr() as u64;
    let shape = MapShape { base: at, stride: 8, entries: 1, kind: ShapeKind::Opaque };
    let maps = [MapRef { handle: 0, value: at, shape }];
    let env = Env { maps: &maps, helper: &|id| (id == MIX).then_some(HelperImpl::plain(mix)) };
    let mut first = None;
    for engine in suite::ENGINES {
        for (word, bytes) in buffer.iter_mut().zip(fresh.as_chunks::<8>().0) {
            *word = u64::from_le_bytes(*bytes);
        }
        let got = suite::run_in(engine, &insns, &env, [at, 0, 0, 0, 0]).map(|r0| (r0, buffer.clone()));
        let want = first.get_or_insert_with(|| got.clone());
        assert!(
            got == *want,
            "seed {seed:#x}: {engine} differs from {}\n{got:x?}\n{want:x?}\n{}",
            suite::ENGINES[0],
            skep_isa::text::source(&insns).unwrap_or_default()
        );
    }
    assert!(first.is_some_and(|f| f.is_ok()), "seed {seed:#x} runs");
}

#[test]
fn random_programs_agree_for_fixed_seeds() {
    for seed in 0..1500 {
        compare(seed);
    }
}

#[test]
#[allow(clippy::print_stderr, reason = "the seed is needed to repeat a failure")]
fn random_programs_agree_for_a_fresh_seed() {
    let now = std::time::UNIX_EPOCH.elapsed().map_or(0, |d| d.as_nanos() as u64);
    let rounds = if std::env::var_os("SKEP_STRESS").is_some() { 100_000 } else { 500 };
    eprintln!("fresh seed {now:#x}");
    for n in 0..rounds {
        compare(now.wrapping_add(n));
    }
}
