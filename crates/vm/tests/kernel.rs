//! The kernel as oracle: what it computes for our cases and for random programs is what the engines must compute.
//! Needs root; says so and passes otherwise.
#![cfg(target_os = "linux")]
#![allow(clippy::print_stderr, reason = "says what was skipped and which seeds were used")]

#[path = "suite/case.rs"]
mod case;
#[path = "suite/host.rs"]
mod host;
#[path = "suite/random.rs"]
mod random;
mod suite;

use random::{BUFFER, FILLED, Rng, SLOTS, Taste, program};
use skep_isa::{Insn, MapType, ProgramType};
use skep_testkit::kernel::{self, Load, Map, MapSpec, Program, Refused, TestRun};

fn load(kind: ProgramType, insns: &[Insn], maps: &[&Map]) -> Result<Program, Refused> {
    let bytes: Vec<u8> = insns.iter().flat_map(|i| i.to_bytes()).collect();
    let bytes = kernel::with_maps(&bytes, maps);
    // System call programs may sleep and must say so.
    let flags = if kind == ProgramType::Syscall { 1 << 4 } else { 0 };
    Program::load(&Load { flags, ..Load::new(kind as u32, &bytes) })
}

fn may_load() -> bool {
    let ok = kernel::may_load();
    if !ok {
        skep_testkit::skip("the right to load programs into the kernel");
    }
    ok
}

#[test]
fn our_cases_have_the_kernels_results() {
    if !may_load() {
        return;
    }
    let mut ran = 0;
    for entry in std::fs::read_dir(concat!(env!("CARGO_MANIFEST_DIR"), "/tests/data")).unwrap() {
        let path = entry.unwrap().path();
        let text = std::fs::read_to_string(&path).unwrap();
        if text.contains("-- engines only") || text.contains("-- mem") {
            continue;
        }
        let case = case::parse(&text).unwrap();
        let loaded = load(ProgramType::SocketFilter, &case.insns, &[]).unwrap_or_else(|e| panic!("{}: {e}", path.display()));
        let theirs = loaded.test_run(&TestRun { data_in: &[0; 64], ..TestRun::default() }).unwrap();
        assert_eq!(theirs.retval, case.result as u32, "{}", path.display());
        ran += 1;
    }
    assert!(ran > 100, "only {ran} cases");
}

#[test]
fn random_programs_do_what_they_do_in_the_kernel() {
    if !may_load() {
        return;
    }
    let now = std::time::UNIX_EPOCH.elapsed().map_or(0, |d| d.as_nanos() as u64);
    eprintln!("fresh seed {now:#x}");
    let rounds = if std::env::var_os("SKEP_STRESS").is_some() { 5000 } else { 100 };
    let (mut compared, mut refused) = (0, 0);
    for seed in (0..rounds).flat_map(|n| [n, now.wrapping_add(n)]) {
        let array =
            Map::create(MapSpec { map_type: MapType::ProgArray as u32, key_size: 4, value_size: 4, max_entries: SLOTS, flags: 0 }).unwrap();
        let all: Vec<_> = (0..u64::from(FILLED)).map(|n| program(seed.wrapping_add(n), Taste::Kernel)).collect();
        let loaded: Vec<_> = all.iter().map(|p| load(ProgramType::Syscall, p, &[&array]).ok()).collect();
        let [Some(first), ..] = loaded.as_slice() else {
            refused += 1;
            continue;
        };
        // What the kernel's verifier does not like is in neither array.
        for (n, program) in (0u32..).zip(&loaded) {
            if let Some(program) = program {
                array.update(&n.to_le_bytes(), &program.fd().to_le_bytes(), 0).unwrap();
            }
        }
        let programs: Vec<_> = all.iter().zip(&loaded).map(|(p, l)| l.as_ref().map(|_| p.clone())).collect();
        let mut rng = Rng(!seed);
        let fresh: Vec<u64> = (0..BUFFER / 8).map(|_| rng.next()).collect();
        let ctx: Vec<u8> = fresh.iter().flat_map(|w| w.to_le_bytes()).collect();
        let theirs = first.test_run(&TestRun { ctx_in: &ctx, ..TestRun::default() }).unwrap();
        let kernel: Vec<u64> = theirs.ctx_out.as_chunks::<8>().0.iter().map(|w| u64::from_le_bytes(*w)).collect();
        compared += 1;
        for engine in suite::ENGINES {
            let mut buffer = fresh.clone();
            let r0 = host::run(engine, &programs, &[], buffer.as_mut_ptr() as u64).unwrap();
            let text = || all.iter().map(|p| skep_isa::text::source(p).unwrap_or_default()).collect::<Vec<_>>().join("\n\n");
            assert_eq!(r0 as u32, theirs.retval, "seed {seed:#x}: {engine}\n{}", text());
            let differ = (0..buffer.len()).filter(|n| buffer[*n] != kernel[*n]).collect::<Vec<_>>();
            assert!(differ.is_empty(), "seed {seed:#x}: {engine}: words {differ:?}\n{buffer:x?}\n{kernel:x?}\n{}", text());
        }
    }
    eprintln!("{compared} programs compared, {refused} refused by the kernel's verifier");
    assert!(compared > refused, "{compared} compared, {refused} refused");
}
