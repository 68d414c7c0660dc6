//! How long something takes that may be done again and again.

use std::hint::black_box;
use std::time::Instant;

const BATCH_NS: u128 = 2_000_000;
const BATCHES: u32 = 9;

/// Returns nanoseconds a call, the best of some batches: what disturbs only ever adds.
pub fn best(mut f: impl FnMut() -> u64) -> f64 {
    let (mut rounds, mut best, mut batches) = (8u32, f64::MAX, 0);
    while batches < BATCHES {
        let start = Instant::now();
        for _ in 0..rounds {
            black_box(f());
        }
        let took = start.elapsed().as_nanos();
        if took < BATCH_NS && rounds < 1 << 26 {
            rounds *= 2;
            continue;
        }
        best = best.min(took as f64 / f64::from(rounds));
        batches += 1;
    }
    best
}

/// As [`best`], for something that repeats itself `n` times in one call and says how long all of it
/// took.
pub fn best_of_repeats<E>(mut f: impl FnMut(u32) -> Result<(), E>) -> Result<f64, E> {
    let (mut n, mut best, mut batches) = (1000u32, f64::MAX, 0);
    while batches < BATCHES {
        let start = Instant::now();
        f(n)?;
        let took = start.elapsed().as_nanos();
        if took < BATCH_NS && n < 1 << 26 {
            n *= 2;
            continue;
        }
        best = best.min(took as f64 / f64::from(n));
        batches += 1;
    }
    Ok(best)
}
