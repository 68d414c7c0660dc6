//! The kernel as oracle: what it computes for our cases and for random programs is what the engines
//! must compute. Needs root; says so and passes otherwise.
#![cfg(target_os = "linux")]
#![allow(clippy::print_stderr, reason = "says what was skipped and which seeds were used")]

#[path = "suite/case.rs"]
mod case;
#[path = "suite/fault.rs"]
mod fault;
#[path = "suite/host.rs"]
mod host;
#[path = "suite/random.rs"]
mod random;
mod suite;

use std::os::fd::AsFd;

use host::{Host, Memory};
use random::{BUFFER, Both, ENTRIES, ENTRY, FILLED, Judge, Rng, SLOTS, VALUE_SIZE, both};
use rustix::mm::{MapFlags, ProtFlags, mmap};
use skep_isa::{Insn, MapType, ProgramType, op};
use skep_kernel::{LoadError, Map, MapSpec, Program, ProgramSpec, TestRun, with_maps};
use skep_object::btf::{Btf, Kind};
use skep_testkit::skip::without_bpf;

fn load(
    kind: ProgramType,
    insns: &[Insn],
    functions: &[u32],
    maps: &[&Map],
) -> Result<Program, LoadError> {
    let bytes: Vec<u8> = insns.iter().flat_map(|i| i.to_bytes()).collect();
    let bytes = with_maps(&bytes, maps);
    // System call programs may sleep and must say so.
    let flags = if kind == ProgramType::Syscall { ProgramSpec::SLEEPABLE } else { 0 };
    Program::load(&ProgramSpec { flags, functions, ..ProgramSpec::new(kind, &bytes) })
}

#[test]
fn our_cases_have_the_kernels_results() {
    if without_bpf() {
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
        let loaded = load(ProgramType::SocketFilter, &case.insns, &[], &[])
            .unwrap_or_else(|e| panic!("{}: {e}", path.display()));
        let theirs = loaded.test_run(&TestRun { data_in: &[0; 64], ..TestRun::default() }).unwrap();
        assert_eq!(theirs.retval, case.result as u32, "{}", path.display());
        ran += 1;
    }
    assert!(ran > 100, "only {ran} cases");
}

/// Programs that share a program array: each is loaded and compiled once, and runs with its two
/// predecessors in the array.
const BATCH: u64 = 64;
/// Words of memory that a program changes: context, buffer, array.
const WORDS: usize = (BUFFER + VALUE_SIZE) / 8 + ENTRIES as usize * ENTRY / 8;

/// A map of the kernel and its contents.
struct Mapped {
    map: Map,
    base: *mut u64,
    words: usize,
}

impl Mapped {
    fn new(entries: u32, value_size: usize) -> Self {
        let spec = MapSpec::new(MapType::Array, 4, value_size as u32, entries)
            .flags(skep_isa::MapFlags::MMAPABLE);
        let map = Map::create(&spec).unwrap();
        let words = entries as usize * value_size / 8;
        // SAFETY: the descriptor is open, and the mapping a new one; it stays, and nothing but
        // these maps is in it.
        let base = unsafe {
            mmap(
                std::ptr::null_mut(),
                words * 8,
                ProtFlags::READ | ProtFlags::WRITE,
                MapFlags::SHARED,
                map.as_fd(),
                0,
            )
            .unwrap()
        };
        Self { map, base: base.cast(), words }
    }

    fn fill(&self, words: &[u64]) {
        for (n, w) in words.iter().enumerate().take(self.words) {
            // SAFETY: inside the mapping.
            unsafe { self.base.add(n).write_volatile(*w) };
        }
    }

    fn read(&self) -> impl Iterator<Item = u64> {
        // SAFETY: inside the mapping.
        (0..self.words).map(|n| unsafe { self.base.add(n).read_volatile() })
    }
}

/// The kernel's side.
struct Kernel {
    value: Mapped,
    table: Mapped,
    /// The type of `bpf_rdonly_cast`, when the kernel says.
    cast: Option<i32>,
}

impl Kernel {
    fn new() -> Self {
        let btf = std::fs::read("/sys/kernel/btf/vmlinux").ok().and_then(|b| Btf::parse(&b).ok());
        let cast = btf
            .and_then(|b| b.find("bpf_rdonly_cast", |k| matches!(k, Kind::Func(_))))
            .map(|id| id as i32);
        Self { value: Mapped::new(1, VALUE_SIZE), table: Mapped::new(ENTRIES, ENTRY), cast }
    }

    fn load(&self, both: &Both, array: &Map) -> Option<Program> {
        let mut insns = both.kernel.clone();
        for i in insns.iter_mut().filter(|i| i.code == op::CALL && i.src() == op::PSEUDO_KFUNC_CALL)
        {
            i.imm = self.cast?;
        }
        let kind = if both.in_ctx { ProgramType::Syscall } else { ProgramType::RawTracepoint };
        let functions = if both.functions.len() > 1 { both.functions.as_slice() } else { &[] };
        load(kind, &insns, functions, &[&self.value.map, array, &self.table.map]).ok()
    }

    fn run(&self, program: &Program, in_ctx: bool, fresh: &[u64]) -> (u32, Vec<u64>) {
        let (ctx, rest) = fresh.split_at(BUFFER / 8);
        let (value, table) = rest.split_at(VALUE_SIZE / 8);
        self.value.fill(value);
        self.table.fill(table);
        let ctx: Vec<u8> = ctx.iter().flat_map(|w| w.to_le_bytes()).collect();
        // A tracepoint has twelve arguments at most, and they stay as they are.
        let ctx_in = if in_ctx { &ctx } else { &ctx[..96] };
        let ran = program.test_run(&TestRun { ctx_in, ..TestRun::default() }).unwrap();
        let ctx = if in_ctx { ran.ctx_out } else { ctx };
        let ctx = ctx.as_chunks::<8>().0.iter().map(|w| u64::from_le_bytes(*w));
        (ran.retval, ctx.chain(self.value.read()).chain(self.table.read()).collect())
    }
}

/// Compares the programs of [`BATCH`] seeds; returns how many the kernel took.
fn compare(first: u64, kernel: &Kernel) -> u64 {
    let array = Map::create(&MapSpec::new(MapType::ProgArray, 4, 4, SLOTS)).unwrap();
    let mut buffer = vec![0u64; WORDS];
    let ctx = buffer.as_mut_ptr() as u64;
    let memory = Memory { value: ctx + BUFFER as u64, table: ctx + (BUFFER + VALUE_SIZE) as u64 };
    let mut hosts: Vec<_> = suite::ENGINES.iter().map(|e| Host::new(e, memory)).collect();
    let mut compared = 0u32;
    let mut texts: Vec<String> = Vec::new();
    for seed in (0..BATCH).map(|n| first.wrapping_add(n)) {
        let both = both(seed, Judge::Kernel);
        let Some(program) = kernel.load(&both, &array) else { continue };
        let slot = if both.in_ctx { SLOTS } else { seed as u32 % FILLED };
        if !both.in_ctx {
            array.update(&slot.to_le_bytes(), &program.fd().to_le_bytes(), 0).unwrap();
        }
        compared += 1;
        texts.push(skep_isa::text::source(&both.insns).unwrap_or_default());
        let text =
            || texts.iter().rev().take(FILLED as usize).cloned().collect::<Vec<_>>().join("\n\n");
        let mut rng = Rng(!seed);
        let fresh: Vec<u64> = (0..WORDS).map(|_| rng.next()).collect();
        let (retval, theirs) = kernel.run(&program, both.in_ctx, &fresh);
        for (engine, host) in suite::ENGINES.iter().zip(&mut hosts) {
            buffer.copy_from_slice(&fresh);
            let target = host.put(slot, &both.insns).unwrap();
            let r0 = host.run(&target, ctx).unwrap();
            assert_eq!(r0 as u32, retval, "batch {first:#x}, seed {seed:#x}: {engine}\n{}", text());
            let differ: Vec<_> = (0..WORDS)
                .filter(|n| buffer[*n] != theirs[*n])
                .map(|n| (n, buffer[n], theirs[n]))
                .collect();
            assert!(
                differ.is_empty(),
                "batch {first:#x}, seed {seed:#x}: {engine}: word, ours, the kernel's: {differ:x?}\n{}",
                text()
            );
        }
    }
    u64::from(compared)
}

/// Interpreter, generated code for this machine and for any, and the kernel must leave the same
/// registers and memory.
///
/// `SKEP_STRESS=1 cargo test --release -p skep-vm --test kernel` as root compares a million
/// programs, which takes one processor about ten minutes; `SKEP_SEED=HEX` compares one batch again.
#[test]
fn random_programs_do_what_they_do_in_the_kernel() {
    if without_bpf() {
        return;
    }
    let kernel = Kernel::new();
    if let Some(seed) = std::env::var("SKEP_SEED")
        .ok()
        .and_then(|s| u64::from_str_radix(s.trim_start_matches("0x"), 16).ok())
    {
        eprintln!("{} programs of seed {seed:#x} compared", compare(seed, &kernel));
        return;
    }
    let now = std::time::UNIX_EPOCH.elapsed().map_or(0, |d| d.as_nanos() as u64);
    eprintln!("fresh seed {now:#x}");
    let goal = if std::env::var_os("SKEP_STRESS").is_some() { 1_000_000 } else { 500 };
    let (mut compared, mut made) = (0, 0);
    for seed in [0, 1000, 2000, 3000].into_iter().chain((0..).map(|n| now.wrapping_add(n * BATCH)))
    {
        compared += compare(seed, &kernel);
        made += BATCH;
        if made % (BATCH << 10) == 0 {
            eprintln!("{compared} of {made} programs compared");
        }
        if compared >= goal || made >= 4 * goal {
            break;
        }
    }
    eprintln!("{compared} programs compared, {} refused by the kernel's verifier", made - compared);
    assert!(compared >= goal, "{compared} of {made} compared");
}
