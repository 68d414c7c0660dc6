//! The kernel's hash map, whose keys are as long as the longest and filled up with zeros, as its
//! users must do.

use std::time::Duration;

use skep_isa::{MapType, ProgramType, text};
use skep_kernel::{Map, MapSpec, Program, ProgramSpec, TestRun, with_maps};

use crate::sets::Keys;
use crate::{Orders, Result, tell};

/// Keys a run of the program goes through: the kernel's verifier walks the loop.
const ROUNDS: u32 = 256;

/// Measures a program's lookups.
pub fn run(orders: &Orders) -> Result<()> {
    let n = orders.len() as u32;
    // A pointer to a value of the array is the key, so values are as long; their distance is a
    // multiple of eight.
    let size = orders.file.longest();
    let map = Map::create(&MapSpec::new(MapType::Hash, size as u32, 4, n))?;
    for (i, key) in (0u32..).zip(orders.insert.iter()) {
        map.update(&padded(key, size), &i.to_ne_bytes(), 0)?;
    }
    let text = std::fs::read_to_string(format!("/proc/self/fdinfo/{}", map.fd()))?;
    let line = text.lines().find_map(|l| l.strip_prefix("memlock:")).ok_or("no line `memlock`")?;
    println!("memory {}", line.trim().parse::<f64>()? / f64::from(n));
    for (operation, order) in
        [("program-hit-random", &orders.lookup), ("program-hit-file", &orders.file)]
    {
        let took = lookups(&map, order, size, orders.passes())?;
        tell(operation, took, order);
    }
    Ok(())
}

fn padded(key: &[u8], size: usize) -> Vec<u8> {
    let mut key = key.to_vec();
    key.resize(size, 0);
    key
}

/// Looks all keys up, in their order; the best of several passes.
fn lookups(map: &Map, order: &Keys, size: usize, passes: usize) -> Result<Duration> {
    let n = order.len() as u32;
    let keys = Map::create(&MapSpec::new(MapType::Array, 4, size as u32, n))?;
    for (i, key) in (0u32..).zip(order.iter()) {
        keys.update(&i.to_ne_bytes(), &padded(key, size), 0)?;
    }
    // Where the next run goes on, and how many were found.
    let state = Map::create(&MapSpec::new(MapType::Array, 4, 16, 1))?;
    let source = format!(
        "stw [%r10-4], 0
         mov %r2, %r10
         add %r2, -4
         lddw %r1, map 2
         call 1
         jeq %r0, 0, out
         mov %r7, %r0
         mov %r9, 0
         next:
         ldxdw %r8, [%r7]
         stxw [%r10-4], %r8
         add %r8, 1
         stxdw [%r7], %r8
         mov %r2, %r10
         add %r2, -4
         lddw %r1, map 1
         call 1
         jeq %r0, 0, skip
         mov %r2, %r0
         lddw %r1, map 0
         call 1
         jeq %r0, 0, skip
         ldxdw %r1, [%r7+8]
         add %r1, 1
         stxdw [%r7+8], %r1
         skip:
         add %r9, 1
         jlt %r9, {ROUNDS}, next
         out:
         mov %r0, 0
         exit"
    );
    let bytes: Vec<u8> = text::assemble(&source)?.iter().flat_map(|i| i.to_bytes()).collect();
    let bytes = with_maps(&bytes, &[map, &keys, &state]);
    let program = Program::load(&ProgramSpec::new(ProgramType::SocketFilter, &bytes))?;
    let repeat = n.div_ceil(ROUNDS);
    let mut best = Duration::MAX;
    for _ in 0..passes {
        state.update(&[0; 4], &[0; 16], 0)?;
        let run = TestRun { data_in: &[0; 64], repeat, ..TestRun::default() };
        let ran = program.test_run(&run)?;
        let after = state.lookup(&[0; 4])?;
        let found = after[8..].iter().rev().fold(0u64, |n, b| n << 8 | u64::from(*b));
        if found != u64::from(n) {
            return Err(format!("only {found} of {n} were found").into());
        }
        // The figure is that of one run; the last one ends early, at no key.
        best = best.min(Duration::from_nanos(u64::from(ran.duration) * u64::from(repeat)));
    }
    Ok(best)
}
