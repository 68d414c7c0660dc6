//! What does a program cost on each engine, and what does compiling it cost?
//!
//! Small programs, the best of many batches, all engines interleaved in one run; the rival is the
//! interpreter. For comparisons with the kernel and with gcc see the benches of the workspace. Give
//! a program's name to see it only.

use std::hint::black_box;
use std::time::Instant;

use skep_isa::{MapShape, ShapeKind, text};
use skep_vm::{Code, Env, HelperCall, HelperImpl, MapRef, interp};

/// Name, and text; r1 points to 256 bytes. The map has 16 values of eight bytes.
const PROGRAMS: [(&str, &str); 5] = [
    ("empty", "mov r0, 0\nexit"),
    ("count", "ldxdw r2, [r1]\nadd r2, 1\nstxdw [r1], r2\nmov r0, 0\nexit"),
    (
        "array x64",
        "mov r6, 0\nl: mov r2, r6\nand r2, 15\nstxw [r10-4], r2\nmov r2, r10\nadd r2, -4\nlddw r1, map 0\ncall 1\njeq r0, 0, n\n\
         ldxdw r1, [r0]\nadd r1, 1\nstxdw [r0], r1\nn: add r6, 1\njne r6, 64, l\nmov r0, 0\nexit",
    ),
    (
        "rotate x64",
        "mov r0, 1\nmov r6, 64\nl: mov r2, r0\nrsh r2, 51\nlsh r0, 13\nor r0, r2\nadd r0, r6\nsub r6, 1\njne r6, 0, l\nexit",
    ),
    (
        "sum 256 B",
        "mov r0, 0\nmov r2, 0\nl: mov r3, r1\nadd r3, r2\nldxb r3, [r3]\nadd r0, r3\nadd r2, 1\njeq r2, 256, +1\nja l\nexit",
    ),
];

unsafe extern "C" fn lookup(map: u64, key: u64, _: u64, _: u64, _: u64) -> u64 {
    // SAFETY: the program passes its key.
    let key = unsafe { (key as *const u32).read() };
    if key < 16 { map + u64::from(key) * 8 } else { 0 }
}

fn helpers(id: u32) -> Option<HelperImpl> {
    (id == 1).then_some(HelperImpl { func: lookup, how: HelperCall::MapLookup })
}

/// Returns nanoseconds a call, the best of some batches.
fn best(mut f: impl FnMut() -> u64) -> f64 {
    let mut rounds = 8u32;
    let mut best = f64::MAX;
    let mut batches = 0;
    while batches < 20 {
        let start = Instant::now();
        for _ in 0..rounds {
            black_box(f());
        }
        let ns = start.elapsed().as_nanos() as f64;
        if ns < 500_000.0 && rounds < 1 << 24 {
            rounds *= 2;
            continue;
        }
        best = best.min(ns / f64::from(rounds));
        batches += 1;
    }
    best
}

#[allow(clippy::print_stdout, reason = "the result")]
fn main() -> Result<(), Box<dyn std::error::Error>> {
    let wanted = std::env::args().nth(1);
    let (mut values, mut memory) = ([0u64; 16], [0u8; 256]);
    let (base, ctx) = (values.as_mut_ptr() as u64, memory.as_mut_ptr());
    let shape = MapShape { base, stride: 8, entries: 16, kind: ShapeKind::Array };
    let maps = [MapRef { handle: base, value: base, shape }];
    let env = Env { maps: &maps, helper: &helpers };
    println!(
        "{:<12}{:>6}{:>8}{:>14}{:>10}{:>12}{:>8}",
        "program", "insns", "bytes", "compile ns", "run ns", "interp ns", "ratio"
    );
    for (name, asm) in PROGRAMS {
        if wanted.as_deref().is_some_and(|w| w != name) {
            continue;
        }
        let insns = text::assemble(asm)?;
        let compile = best(|| {
            // SAFETY: the programs above stay inside their memory and end.
            unsafe { Code::compile(&insns, &env) }.map_or(0, |c| c.machine_code().len() as u64)
        });
        // SAFETY: the programs above stay inside their memory and end.
        let code = unsafe { Code::compile(&insns, &env) }?;
        let program = interp::Program::new(&insns, &env)?;
        let entry = code.entry();
        // SAFETY: as above.
        let run = best(|| unsafe { entry(ctx) });
        // SAFETY: as above.
        let slow = best(|| unsafe { program.run([ctx as u64, 0, 0, 0, 0]) }.unwrap_or(0));
        let (n, bytes) = (insns.len(), code.machine_code().len());
        println!(
            "{name:<12}{n:>6}{bytes:>8}{compile:>14.0}{run:>10.2}{slow:>12.1}{:>8.1}",
            slow / run
        );
    }
    Ok(())
}
