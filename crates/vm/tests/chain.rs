//! Random chains of random programs must leave the same verdict, memory and counters on every
//! engine, and as if somebody had run one program after the other.
#![cfg(all(target_arch = "x86_64", target_os = "linux", target_env = "gnu"))]

#[path = "suite/fault.rs"]
mod fault;
#[path = "suite/host.rs"]
mod host;
#[path = "suite/random.rs"]
mod random;
mod suite;

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

use host::{Host, Memory, helpers};
use random::{ENTRIES, ENTRY, FILLED, Judge, Rng, VALUE_SIZE, program};
use skep_isa::{Insn, text};
use skep_vm::chain::counters::{BYTES, Layout, STEP, TICKS};
use skep_vm::chain::plan::{ALL, SLOTS, slot};
use skep_vm::chain::{
    Count, Exhausted, Interpreted, Options, PacketSize, Part, Plan, PlanEdge, Step, To, Unit,
};
use skep_vm::{Cpu, Env, interp, tail};

const WORDS: usize = (VALUE_SIZE + ENTRIES as usize * ENTRY) / 8;
/// The buffer's first words are the packet's addresses.
const SIZE: PacketSize = PacketSize { start: 0, end: 8, more: 16 };

fn assemble(source: &str) -> Vec<Insn> {
    text::assemble(source).unwrap_or_else(|e| panic!("{source}: {e:?}"))
}

/// A random program whose verdict is small: as a function that a short main program calls.
fn with_small_verdict(seed: u64, most: u32) -> Vec<Insn> {
    let head = assemble(&format!("call local f\nand r0, {most}\nexit\nf: exit"));
    let mut insns = head[..3].to_vec();
    insns.extend(program(seed, Judge::Engines));
    insns
}

/// A program of one function, with several exits, a loop, and what it keeps on the stack.
fn plain(rng: &mut Rng) -> Vec<Insn> {
    let (word, most, other) = (8 * (rng.next() % 16), 1 << (rng.next() % 6), rng.next() % 40);
    let source = format!(
        "ldxdw r6, [r1+{word}]\nmov r7, 3\nstxdw [r10-8], r6\nl: add r6, r7\nmul r6, 0x9e3779b1\n\
         sub r7, 1\njne r7, 0, l\nldxdw r8, [r10-8]\nxor r6, r8\nstxdw [r1+{word}], r6\n\
         mov r0, {other}\njset r6, 64, out\nmov r0, r6\nrsh r0, 7\nand r0, {}\nout: exit",
        most - 1
    );
    assemble(&source)
}

fn any_program(rng: &mut Rng) -> Vec<Insn> {
    let seed = rng.next() % 100_000;
    match rng.next() % 4 {
        0 => program(seed, Judge::Engines),
        1 => with_small_verdict(seed, 7),
        2 => with_small_verdict(seed, 1),
        _ => plain(rng),
    }
}

/// A plan with every kind of edge; cycles have bounds, or end by the budget.
fn any_plan(rng: &mut Rng) -> Plan {
    let mut below = |n: u64| rng.next() % n;
    let count = 1 + below(7) as usize;
    let bounded = below(2) == 0;
    let mut steps = vec![Step::default(); count];
    for (n, step) in steps.iter_mut().enumerate() {
        let mut free = ALL;
        for _ in 0..below(7) {
            let on = free
                & match below(4) {
                    0 => 1 << below(SLOTS as u64),
                    1 => 0xff << below(SLOTS as u64),
                    2 => ALL,
                    _ => 1 << below(9),
                };
            if on == 0 {
                continue;
            }
            free &= !on;
            let to = match below(7) {
                0 => To::Keep,
                1 => To::End(below(5) as u32),
                2 => To::Node(below(count as u64) as usize),
                _ => To::Node((n + 1 + below(2) as usize).min(count - 1)),
            };
            let back = matches!(to, To::Node(to) if to <= n);
            let bound = (back && bounded).then(|| 1 + below(3) as u32);
            step.edges.push(PlanEdge { on, to, bound });
        }
        if free != 0 && n + 1 < count && below(3) > 0 {
            step.edges.push(PlanEdge { on: free, to: To::Node(n + 1), bound: None });
        }
    }
    let exhausted = if below(2) == 0 { Exhausted::Stop } else { Exhausted::Abort };
    Plan { steps, budget: 1 + below(9) as u32, exhausted }
}

/// What a run left.
#[derive(PartialEq, Debug)]
struct Left {
    verdict: u32,
    memory: Vec<u64>,
    counters: Vec<u64>,
}

/// Runs one program after the other, each compiled by itself.
fn naive(plan: &Plan, counters: &mut [u64], mut run: impl FnMut(usize) -> (u32, u64)) -> u32 {
    let layout = Layout::of(plan);
    let mut taken = vec![0; 1000];
    let (mut at, mut ran) = (0, 0);
    loop {
        let (verdict, bytes) = run(at);
        ran += 1;
        counters[at * STEP + slot(verdict)] += 1;
        let sum = &mut counters[at * STEP + BYTES];
        *sum = sum.wrapping_add(bytes);
        let edges = &plan.steps[at].edges;
        let edge = edges.iter().position(|e| e.on & 1 << slot(verdict) != 0);
        let Some(n) = edge else { return verdict };
        let next = match edges[n].to {
            To::Keep => return verdict,
            To::End(end) => return end,
            To::Node(next) => next,
        };
        let word = layout.refused(at, n);
        taken[at * 20 + n] += 1;
        if edges[n].bound.is_some_and(|bound| taken[at * 20 + n] > bound) {
            counters[word] += 1;
            return verdict;
        }
        if ran == plan.budget {
            counters[word] += 1;
            return if plan.exhausted == Exhausted::Abort { 0 } else { verdict };
        }
        at = next;
    }
}

/// Compares the engines on one chain; returns how many programs ran, and how many edges were refused.
fn compare(seed: u64) -> (u64, u64) {
    let mut rng = Rng(seed);
    let plan = any_plan(&mut rng);
    assert_eq!(plan.check(), Ok(()), "seed {seed:#x}");
    let programs: Vec<Vec<Insn>> = plan.steps.iter().map(|_| any_program(&mut rng)).collect();
    let targets: Vec<Vec<Insn>> =
        (0..u64::from(FILLED)).map(|n| program(seed.wrapping_add(n), Judge::Engines)).collect();
    let fresh: Vec<u64> = (0..WORDS).map(|_| rng.next()).collect();
    let mut buffer = vec![0u64; WORDS];
    let value = buffer.as_mut_ptr() as u64;
    let memory = Memory { value, table: value + VALUE_SIZE as u64 };
    let words = Layout::of(&plan).words();
    let mut first: Option<Left> = None;
    for (engine, count) in [
        ("naive", Count::Runs),
        ("interp", Count::Runs),
        ("interp", Count::Timed),
        ("jit", Count::Off),
        ("jit", Count::Runs),
        ("jit", Count::Timed),
        ("jit baseline", Count::Runs),
    ] {
        let how = if engine == "naive" { "jit" } else { engine };
        let mut host = Host::new(how, memory);
        for (n, p) in (0..).zip(&targets) {
            host.put(n, p).unwrap_or_else(|e| panic!("seed {seed:#x}: {e}"));
        }
        host.enter();
        let (maps, options) = (host.maps(), Options { count, bytes: Some(SIZE) });
        let env = Env { maps: &maps, helper: &helpers };
        let parts: Vec<Part<'_>> = programs.iter().map(|insns| Part { insns, env: &env }).collect();
        let counters: Vec<AtomicU64> = (0..words).map(|_| AtomicU64::new(0)).collect();
        buffer.copy_from_slice(&fresh);
        let ctx = value as *mut u8;
        let verdict = match engine {
            "naive" => {
                let alone: Vec<Arc<tail::Target>> = programs
                    .iter()
                    .map(|p| host.put(u32::MAX, p).unwrap_or_else(|e| panic!("{e}")))
                    .collect();
                let mut sums = vec![0; words];
                let verdict = naive(&plan, &mut sums, |step| {
                    // SAFETY: the buffer is there, and nobody else uses it.
                    let word = |n: u64| unsafe { ((value + 8 * n) as *const u64).read_volatile() };
                    let bytes = word(1).wrapping_sub(word(0)).wrapping_add(word(2));
                    (host.run(&alone[step], value).expect("it runs") as u32, bytes)
                });
                counters.iter().zip(sums).for_each(|(c, n)| c.store(n, Relaxed));
                verdict
            }
            "interp" => {
                let all = programs
                    .iter()
                    .map(|p| interp::Program::new(p, &env).expect("they are programs"))
                    .collect();
                let chain = Interpreted::new(plan.clone(), all, options).expect("a plan");
                // SAFETY: test programs stay inside the memory they are given.
                unsafe { chain.run(ctx, &counters) }.expect("it runs")
            }
            _ => {
                let cpu = if engine == "jit" { Cpu::detect() } else { Cpu::baseline() };
                // SAFETY: test programs stay inside the memory they are given.
                let unit = unsafe { Unit::compile_for(&plan, &parts, &options, cpu) };
                let unit = unit.unwrap_or_else(|e| panic!("seed {seed:#x}: {e}"));
                // SAFETY: as above.
                unsafe { unit.run(ctx, &counters) }
            }
        };
        let mut counters: Vec<u64> = counters.iter().map(|c| c.load(Relaxed)).collect();
        let ticks = |n: usize| n < plan.steps.len() * STEP && n % STEP == TICKS;
        let total: u64 =
            counters.iter().enumerate().filter(|(n, _)| ticks(*n)).map(|(_, c)| c).sum();
        assert!(count != Count::Timed || total > 0, "seed {seed:#x}: {engine} takes time");
        counters.iter_mut().enumerate().filter(|(n, _)| ticks(*n)).for_each(|(_, c)| *c = 0);
        let left = Left { verdict, memory: buffer.clone(), counters };
        let Some(want) = &first else {
            first = Some(left);
            continue;
        };
        if count == Count::Off {
            assert!(left.counters.iter().all(|c| *c == 0));
            assert_eq!(
                (left.verdict, &left.memory),
                (want.verdict, &want.memory),
                "seed {seed:#x}: {engine} {count:?}\n{plan:?}"
            );
        } else {
            assert_eq!(left, *want, "seed {seed:#x}: {engine} {count:?}\n{plan:?}");
        }
    }
    let counters = first.map(|left| left.counters).unwrap_or_default();
    let (steps, refused) = counters.split_at(plan.steps.len() * STEP);
    (steps.chunks(STEP).flat_map(|s| &s[..SLOTS]).sum(), refused.iter().sum())
}

#[test]
fn random_chains_agree_for_fixed_seeds() {
    let all: Vec<(u64, u64)> = (0..1500).map(compare).collect();
    // The chains are worth comparing.
    let long = all.iter().filter(|(ran, _)| *ran > 2).count();
    let refused = all.iter().filter(|(_, refused)| *refused > 0).count();
    assert!(long > 400 && refused > 100, "{long} long runs, {refused} with refusals");
}

#[test]
#[allow(clippy::print_stderr, reason = "the seed is needed to repeat a failure")]
fn random_chains_agree_for_a_fresh_seed() {
    let now = std::time::UNIX_EPOCH.elapsed().map_or(0, |d| d.as_nanos() as u64);
    let rounds = if std::env::var_os("SKEP_STRESS").is_some() { 300_000 } else { 300 };
    eprintln!("fresh seed {now:#x}, {rounds} chains");
    for n in 0..rounds {
        compare(now.wrapping_add(n));
    }
}

/// Compiles a chain of programs that touch no memory but their stack, and runs it.
fn verdict_of(plan: &Plan, programs: &[Vec<Insn>]) -> u32 {
    let env = Env::empty();
    let parts: Vec<Part<'_>> = programs.iter().map(|insns| Part { insns, env: &env }).collect();
    // SAFETY: the programs touch no memory of others and end.
    let unit = unsafe { Unit::compile(plan, &parts, &Options::default()) }.expect("a chain");
    // SAFETY: as above, and nothing is counted.
    unsafe { unit.run(std::ptr::null_mut(), &[]) }
}

#[test]
fn lines_of_31_32_and_33_programs_end_at_the_budget() {
    for length in [1, 31, 32, 33] {
        for exhausted in [Exhausted::Stop, Exhausted::Abort] {
            let programs: Vec<_> =
                (1..=length).map(|n| assemble(&format!("mov r0, {n}\nexit"))).collect();
            let line = |n: usize| PlanEdge { on: ALL, to: To::Node(n + 1), bound: None };
            let edges = |n| if n + 1 < length { vec![line(n)] } else { Vec::new() };
            let steps = (0..length).map(|n| Step { edges: edges(n) }).collect();
            let plan = Plan { steps, budget: 32, exhausted };
            let aborted = length == 33 && exhausted == Exhausted::Abort;
            let want = if aborted { 0 } else { length.min(32) as u32 };
            assert_eq!(verdict_of(&plan, &programs), want);
        }
    }
}

/// Every verdict, by a table of jumps and by comparisons, with the wildcard behind.
#[test]
fn each_verdict_goes_its_own_way() {
    for own in [1, 2, 3, 5, 33] {
        let verdicts: Vec<u32> = (0..34).chain([u32::MAX, u32::MAX - 1, 1 << 31, 1000]).collect();
        for verdict in verdicts {
            let mut programs = vec![assemble(&format!("lddw r0, {verdict}\nexit"))];
            let mut edges = Vec::new();
            for n in 0..own {
                programs.push(assemble(&format!("mov r0, {}\nexit", 100 + n)));
                edges.push(PlanEdge { on: 1 << n, to: To::Node(1 + n), bound: None });
            }
            programs.push(assemble("mov r0, 99\nexit"));
            edges.push(PlanEdge {
                on: ALL & !((1 << own) - 1),
                to: To::Node(1 + own),
                bound: None,
            });
            let mut steps = vec![Step { edges }];
            steps.resize(own + 2, Step::default());
            let plan = Plan { steps, budget: 32, exhausted: Exhausted::Stop };
            let want = if slot(verdict) < own { 100 + slot(verdict) as u32 } else { 99 };
            assert_eq!(verdict_of(&plan, &programs), want, "{own} {verdict:#x}");
        }
    }
}

#[test]
fn what_is_no_chain_is_refused() {
    let env = Env::empty();
    let exit = assemble("mov r0, 0\nexit");
    let bad = [Insn::mov64_imm(0, 0)];
    let step = Step { edges: vec![PlanEdge { on: ALL, to: To::Node(1), bound: None }] };
    let plan = Plan { steps: vec![step, Step::default()], budget: 32, exhausted: Exhausted::Stop };
    let compile = |plan: &Plan, programs: &[&[Insn]]| {
        let parts: Vec<Part<'_>> = programs.iter().map(|insns| Part { insns, env: &env }).collect();
        // SAFETY: nothing is run.
        unsafe { Unit::compile(plan, &parts, &Options::default()) }.map(drop)
    };
    assert_eq!(compile(&plan, &[&exit, &exit]), Ok(()));
    for (plan, programs, text) in [
        (plan.clone(), vec![&exit[..]], "there are 1 programs for 2 steps"),
        (plan.clone(), vec![&exit[..], &bad], "falls off"),
        (Plan { budget: 0, ..plan.clone() }, vec![&exit[..], &exit], "budget"),
        (
            Plan { steps: vec![plan.steps[0].clone()], ..plan },
            vec![&exit[..]],
            "step 0 leads to step 1, which is not there",
        ),
    ] {
        let error = compile(&plan, &programs).expect_err(text).to_string();
        assert!(error.contains(text) || text == "falls off", "{error}");
    }
}

#[test]
fn a_chain_of_one_that_counts_nothing_is_the_program_itself() {
    let env = Env::empty();
    let insns = plain(&mut Rng(7));
    let plan = |edges| Plan { steps: vec![Step { edges }], budget: 1, exhausted: Exhausted::Stop };
    // SAFETY: only compiled.
    let chain = |plan: &Plan, options: &Options| unsafe {
        let unit = Unit::compile(plan, &[Part { insns: &insns, env: &env }], options);
        unit.expect("it compiles").machine_code().to_vec()
    };
    // SAFETY: only compiled.
    let alone = unsafe { skep_vm::Code::compile(&insns, &env) }.expect("it compiles");
    let keep = vec![PlanEdge { on: ALL, to: To::Keep, bound: None }];
    let end = vec![PlanEdge { on: ALL, to: To::End(3), bound: None }];
    let counted = Options { count: Count::Runs, bytes: None };
    assert_eq!(chain(&plan(Vec::new()), &Options::default()), alone.machine_code());
    assert_eq!(chain(&plan(keep), &Options::default()), alone.machine_code());
    assert_ne!(chain(&plan(end), &Options::default()), alone.machine_code());
    assert_ne!(chain(&plan(Vec::new()), &counted), alone.machine_code());
}
