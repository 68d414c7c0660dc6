//! The kernel as oracle: what it computes for our cases and for random programs is what the engines must compute.
//! Needs root; says so and passes otherwise.
#![cfg(target_os = "linux")]
#![allow(clippy::print_stderr, reason = "says what was skipped and which seeds were used")]

#[path = "suite/case.rs"]
mod case;
#[path = "suite/random.rs"]
mod random;
mod suite;

use std::os::fd::{FromRawFd, OwnedFd};

use random::{BUFFER, Rng, Taste, program};
use skep_isa::{Insn, ProgramType};
use skep_vm::Env;

const SYS_BPF: i64 = 321;
const PROG_LOAD: i64 = 5;
const PROG_TEST_RUN: i64 = 10;

unsafe extern "C" {
    fn syscall(number: i64, ...) -> i64;
}

/// The part of `union bpf_attr` that both commands need.
#[repr(C, align(8))]
#[derive(Default)]
struct Load {
    prog_type: u32,
    insn_cnt: u32,
    insns: u64,
    license: u64,
    log_level: u32,
    log_size: u32,
    log_buf: u64,
    kern_version: u32,
    prog_flags: u32,
    rest: [u64; 10],
}

#[repr(C, align(8))]
#[derive(Default)]
struct TestRun {
    prog_fd: u32,
    retval: u32,
    data_size_in: u32,
    data_size_out: u32,
    data_in: u64,
    data_out: u64,
    repeat: u32,
    duration: u32,
    ctx_size_in: u32,
    ctx_size_out: u32,
    ctx_in: u64,
    ctx_out: u64,
    flags: u32,
    cpu: u32,
    batch_size: u32,
    pad: u32,
}

fn bpf<T>(command: i64, attr: &mut T) -> std::io::Result<i64> {
    // SAFETY: the attribute's pointers are to live memory of the sizes beside them.
    let r = unsafe { syscall(SYS_BPF, command, std::ptr::from_mut(attr), size_of::<T>()) };
    if r < 0 { Err(std::io::Error::last_os_error()) } else { Ok(r) }
}

fn load(kind: ProgramType, insns: &[Insn]) -> std::io::Result<OwnedFd> {
    let mut attr = Load {
        prog_type: kind as u32,
        insn_cnt: insns.len() as u32,
        insns: insns.as_ptr() as u64,
        license: c"GPL".as_ptr() as u64,
        // System call programs may sleep and must say so.
        prog_flags: if kind == ProgramType::Syscall { 1 << 4 } else { 0 },
        ..Load::default()
    };
    let fd = bpf(PROG_LOAD, &mut attr)?;
    // SAFETY: a new descriptor of ours.
    Ok(unsafe { OwnedFd::from_raw_fd(fd as i32) })
}

fn number(fd: &OwnedFd) -> u32 {
    use std::os::fd::AsRawFd;
    fd.as_raw_fd() as u32
}

fn may_load() -> bool {
    let ok = load(ProgramType::SocketFilter, &[Insn::mov64_imm(0, 0), Insn::exit()]).is_ok();
    if !ok {
        eprintln!("skipped: needs the right to load programs into the kernel");
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
        let fd = load(ProgramType::SocketFilter, &case.insns).unwrap_or_else(|e| panic!("{}: {e}", path.display()));
        let packet = [0u8; 64];
        let mut run = TestRun { prog_fd: number(&fd), data_size_in: 64, data_in: packet.as_ptr() as u64, repeat: 1, ..TestRun::default() };
        bpf(PROG_TEST_RUN, &mut run).unwrap();
        assert_eq!(run.retval, case.result as u32, "{}", path.display());
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
    let (mut ran, mut refused) = (0, 0);
    for seed in (0..rounds).flat_map(|n| [n, now.wrapping_add(n)]) {
        let insns = program(seed, Taste::Kernel);
        let mut rng = Rng(!seed);
        let fresh: Vec<u64> = (0..BUFFER / 8).map(|_| rng.next()).collect();
        let mut kernel = fresh.clone();
        let Ok(fd) = load(ProgramType::Syscall, &insns) else {
            refused += 1;
            continue;
        };
        let mut run =
            TestRun { prog_fd: number(&fd), ctx_size_in: BUFFER as u32, ctx_in: kernel.as_mut_ptr() as u64, ..TestRun::default() };
        bpf(PROG_TEST_RUN, &mut run).unwrap();
        ran += 1;
        for engine in suite::ENGINES {
            let mut buffer = fresh.clone();
            let r0 = suite::run_in(engine, &insns, &Env::empty(), [buffer.as_mut_ptr() as u64, 0, 0, 0, 0]).unwrap();
            let text = || skep_isa::text::source(&insns).unwrap_or_default();
            assert_eq!(r0 as u32, run.retval, "seed {seed:#x}: {engine}\n{}", text());
            let differ = (0..buffer.len()).filter(|n| buffer[*n] != kernel[*n]).collect::<Vec<_>>();
            assert!(differ.is_empty(), "seed {seed:#x}: {engine}: words {differ:?}\n{buffer:x?}\n{kernel:x?}\n{}", text());
        }
    }
    eprintln!("{ran} programs compared, {refused} refused by the kernel's verifier");
    assert!(ran > refused, "{ran} ran, {refused} refused");
}
