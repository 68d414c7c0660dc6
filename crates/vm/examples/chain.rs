//! What one more program in a chain costs: chains of 1 to 32 programs that each read a byte of
//! their context, beside the same programs called one by one.
//!
//! `cargo run --release -p skep-vm --example chain`. Prints the median of 21 rounds, in nanoseconds
//! a run, and what a program adds.
#![allow(clippy::print_stdout, reason = "it is what this prints")]

use std::hint::black_box;
use std::sync::atomic::AtomicU64;
use std::time::Instant;

use skep_isa::text;
use skep_vm::chain::counters::Layout;
use skep_vm::chain::plan::{ALL, slot};
use skep_vm::chain::{Count, Options, PacketSize, Part, Plan, PlanEdge, Step, To, Unit};
use skep_vm::{Code, Env};

const RUNS: u32 = 200_000;
const LENGTHS: [usize; 6] = [1, 2, 4, 8, 16, 32];

/// Returns the median of rounds, in nanoseconds a run.
fn measure(mut run: impl FnMut()) -> f64 {
    let mut rounds: Vec<f64> = (0..21)
        .map(|_| {
            let began = Instant::now();
            (0..RUNS).for_each(|_| run());
            began.elapsed().as_nanos() as f64 / f64::from(RUNS)
        })
        .collect();
    rounds.sort_by(f64::total_cmp);
    rounds[rounds.len() / 2]
}

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let program = text::assemble("ldxb r2, [r1+24]\nmov r0, 2\njne r2, 0, l\nmov r0, 1\nl: exit")
        .map_err(|e| format!("{e:?}"))?;
    let env = Env::empty();
    let mut ctx = [1u64; 16];
    let at = ctx.as_mut_ptr().cast::<u8>();
    // SAFETY: the program reads a byte of the context.
    let code = unsafe { Code::compile(&program, &env) }?;
    let size = PacketSize { start: 0, end: 8, more: 16 };
    let pass = 1 << slot(2);
    let rows: [(&str, u64, Options); 5] = [
        ("wildcard, not counted", ALL, Options::default()),
        ("verdict, not counted", pass, Options::default()),
        ("verdict, counted", pass, Options { count: Count::Runs, bytes: None }),
        ("verdict, counted with bytes", pass, Options { count: Count::Runs, bytes: Some(size) }),
        ("verdict, timed", pass, Options { count: Count::Timed, bytes: Some(size) }),
    ];
    println!("{:28}{}  one more", "programs", LENGTHS.map(|n| format!("{n:8}")).concat());
    let print = |name: &str, ns: &[f64]| {
        let more = (ns[ns.len() - 1] - ns[0]) / (LENGTHS[LENGTHS.len() - 1] - LENGTHS[0]) as f64;
        let cells: String = ns.iter().map(|ns| format!("{ns:8.2}")).collect();
        println!("{name:28}{cells}  {more:8.2}");
    };
    let calls: Vec<f64> = LENGTHS
        .iter()
        .map(|n| {
            measure(|| {
                for _ in 0..*n {
                    // SAFETY: as above.
                    black_box(unsafe { code.entry()(black_box(at)) });
                }
            })
        })
        .collect();
    print("calls, one by one", &calls);
    for (name, on, options) in rows {
        let mut all = Vec::new();
        for length in LENGTHS {
            let edge = |n| PlanEdge { on, to: To::Node(n), bound: None };
            let steps = (1..=length)
                .map(|n| Step { edges: if n < length { vec![edge(n)] } else { Vec::new() } })
                .collect();
            let plan = Plan { steps, budget: 32, exhausted: Default::default() };
            let counters: Vec<AtomicU64> =
                (0..Layout::of(&plan).words()).map(|_| AtomicU64::new(0)).collect();
            let parts: Vec<Part<'_>> =
                (0..length).map(|_| Part { insns: &program, env: &env }).collect();
            // SAFETY: as above; the context has the words of the packet's size.
            let unit = unsafe { Unit::compile(&plan, &parts, &options) }?;
            all.push(measure(|| {
                // SAFETY: as above.
                black_box(unsafe { unit.run(black_box(at), &counters) });
            }));
        }
        print(name, &all);
    }
    Ok(())
}
