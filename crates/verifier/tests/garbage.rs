//! Whatever the bytes are, there is a verdict, soon: no panic, no endless walk.

mod random;

use random::Random;
use skep_isa::helper::id;
use skep_isa::{Insn, ProgramType, op};
use skep_object::{Linked, Object};
use skep_verifier::{Options, verify};

fn rounds(few: usize, many: usize) -> usize {
    if std::env::var_os("SKEP_STRESS").is_some() { many } else { few }
}

fn options() -> Options {
    let mut o = Options::default();
    o.limit = 5_000;
    o
}

fn fresh_seed() -> u64 {
    std::time::SystemTime::now()
        .duration_since(std::time::UNIX_EPOCH)
        .map_or(7, |d| d.as_nanos() as u64)
        | 1
}

#[test]
fn random_bytes() {
    for seed in [0x5eed, fresh_seed()] {
        let r = Random::new(seed);
        for _ in 0..rounds(20_000, 2_000_000) {
            let n = r.below(12) as usize;
            let mut insns: Vec<Insn> =
                (0..n).map(|_| Insn::from_bytes(r.next().to_le_bytes())).collect();
            // Real opcodes and registers, or nothing gets past the first look.
            for i in &mut insns {
                if r.chance(90) {
                    let known = [
                        0x07, 0x0f, 0xb7, 0xbf, 0x61, 0x63, 0x7a, 0x85, 0x95, 0x15, 0x2d, 0x05,
                        0x18, 0xdb, 0xdc, 0xc4, 0xb4, 0x66,
                    ];
                    i.code = r.pick(&known);
                    i.regs = (i.regs % 11) | ((i.regs >> 4) % 11) << 4;
                    i.off %= 12;
                    i.imm %= 300;
                }
            }
            insns.push(Insn::exit());
            let types = [
                ProgramType::Kprobe,
                ProgramType::Xdp,
                ProgramType::Tracing,
                ProgramType::SocketFilter,
                ProgramType::Syscall,
            ];
            let prog = Linked::from_insns("garbage", r.pick(&types), insns);
            let _ = verify(&prog, &options());
        }
    }
}

#[test]
fn damaged_programs() {
    for file in ["tracers.bpf.o", "refused.bpf.o"] {
        let path = format!("{}/tests/data/{file}", env!("CARGO_MANIFEST_DIR"));
        let object =
            Object::parse(&std::fs::read(path).expect("test data")).expect("a readable object");
        let programs: Vec<Linked> = (0..object.programs.len())
            .map(|i| object.link(i).expect("a program that links"))
            .collect();
        for seed in [0x5eed, fresh_seed()] {
            let r = Random::new(seed);
            for _ in 0..rounds(400, 100_000) {
                let at = r.below(programs.len() as u64 * 2) as usize;
                let mut prog = programs.get(at).cloned().unwrap_or_else(|| random::program(&r));
                for _ in 0..=r.below(3) {
                    let at = r.below(prog.insns.len() as u64) as usize;
                    match r.below(6) {
                        0 => prog.insns[at].imm = r.number() as i32,
                        1 => prog.insns[at].off = r.number() as i16,
                        2 => prog.insns[at].regs = r.next() as u8,
                        3 => prog.insns[at].code = r.next() as u8,
                        4 => drop(prog.insns.remove(at)),
                        _ => prog.insns.truncate(at),
                    }
                    if prog.insns.is_empty() {
                        prog.insns.push(Insn::exit());
                    }
                }
                if let Err(e) = verify(&prog, &options()) {
                    assert!(e.insn < prog.insns.len(), "{e}");
                    assert!(!e.to_string().is_empty() && e.log().ends_with('\n'));
                }
            }
        }
    }
}

/// Eight frames with full stacks and a fork at every other instruction: what is put aside stays
/// bounded.
#[test]
fn forks_without_end_are_refused() {
    let mut insns = Vec::new();
    for _ in 0..9000 {
        insns.push(Insn::call(id::GET_PRANDOM_U32));
        insns.push(Insn::new(op::JMP | op::JSET, 0, 0, 1, 1));
        insns.push(Insn::new(op::ALU64 | op::ADD, 6, 0, 0, 1));
    }
    insns.insert(0, Insn::mov64_imm(6, 0));
    insns.push(Insn::mov64_imm(0, 0));
    insns.push(Insn::exit());
    let prog = Linked::from_insns("forks", ProgramType::Kprobe, insns);
    let e = verify(&prog, &Options::default()).expect_err("too complex");
    assert!(e.reason.to_string().ends_with("jumps is too complex."), "{e}");
}

/// The number behind a word of the last line of a log.
fn counted(log: &str, word: &str) -> usize {
    let mut words = log.lines().last().unwrap_or_default().split(' ').skip_while(|w| *w != word);
    words.nth(1).and_then(|n| n.parse().ok()).unwrap_or_else(|| panic!("no {word}: {log}"))
}

/// Twenty forks that each leave another word on the stack, and all of them decide something later:
/// no two of a million paths are alike, and what is kept of them stays bounded.
#[test]
fn states_that_never_match_are_kept_in_bounds() {
    const BITS: i16 = 20;
    let mut insns = vec![Insn::mov64_reg(6, 1)];
    insns.extend((1..=BITS).map(|n| Insn::new(op::ST | op::MEM | op::DW, 10, 0, -8 * n, 0)));
    for n in 1..=BITS {
        insns.push(Insn::new(op::LDX | op::MEM | op::DW, 2, 6, n % 14 * 8, 0));
        insns.push(Insn::new(op::JMP | op::JGT, 2, 0, 1, n.into()));
        insns.push(Insn::new(op::ST | op::MEM | op::DW, 10, 0, -8 * n, 1));
    }
    for n in 1..=BITS {
        insns.push(Insn::new(op::LDX | op::MEM | op::DW, 3, 10, -8 * n, 0));
        insns.push(Insn::new(op::JMP | op::JEQ, 3, 0, 1, 0));
        insns.push(Insn::mov64_imm(4, 1));
    }
    insns.extend([Insn::mov64_imm(0, 0), Insn::exit()]);
    let prog = Linked::from_insns("bits", ProgramType::Kprobe, insns);
    let mut options = Options::default();
    options.limit = 60_000;
    let e = verify(&prog, &options).expect_err("too complex");
    assert_eq!(e.reason.to_string(), "BPF program is too large. Processed 60001 insn");
    let (most, peak) = (counted(e.log(), "max_states_per_insn"), counted(e.log(), "peak_states"));
    assert!(
        most <= 1024 && peak < counted(e.log(), "total_states"),
        "{most} at one, {peak} at a time"
    );
}

/// A loop whose counter decides how long it goes: one state in so many laps is stored, and the
/// forks inside find those.
#[test]
fn a_long_counted_loop_with_a_fork_inside_is_walked_little_more_than_once() {
    const LAPS: i32 = 5_000;
    let mut insns = vec![Insn::mov64_reg(6, 1), Insn::mov64_imm(7, 0), Insn::mov64_imm(8, 0)];
    insns.push(Insn::new(op::LDX | op::MEM | op::DW, 2, 6, 8, 0));
    insns.push(Insn::new(op::JMP | op::JSET, 2, 0, 1, 1));
    insns.push(Insn::new(op::ALU64 | op::X | op::ADD, 8, 2, 0, 0));
    insns.push(Insn::new(op::STX | op::MEM | op::DW, 10, 8, -8, 0));
    insns.push(Insn::new(op::ALU64 | op::ADD, 7, 0, 0, 1));
    insns.push(Insn::new(op::JMP | op::JLT, 7, 0, -6, LAPS));
    insns.extend([Insn::mov64_imm(0, 0), Insn::exit()]);
    let prog = Linked::from_insns("laps", ProgramType::Kprobe, insns);
    let proof = verify(&prog, &Options::default()).expect("accepted");
    // Six instructions a lap; the other path of each fork goes on to the next stored state.
    let laps = proof.info().processed / LAPS as u32;
    assert!(
        (6..20).contains(&laps),
        "{} instructions, {} states",
        proof.info().processed,
        proof.info().total_states
    );
    assert!(proof.info().peak_states < 1_000, "{} states at a time", proof.info().peak_states);
}

/// As many instructions as there may be, one more, and calls that multiply.
#[test]
fn the_longest_programs_have_a_verdict() {
    let straight = |n: usize| {
        let mut insns = vec![Insn::new(op::ALU64 | op::ADD, 0, 0, 0, 3); n - 1];
        insns[0] = Insn::mov64_imm(0, 0);
        insns.push(Insn::exit());
        Linked::from_insns("straight", ProgramType::Kprobe, insns)
    };
    let proof = verify(&straight(op::MAX_INSNS), &Options::default()).expect("accepted");
    assert_eq!((proof.info().processed as usize, proof.info().peak_states), (op::MAX_INSNS, 0));
    let e = verify(&straight(op::MAX_INSNS + 1), &Options::default()).expect_err("too long");
    assert!(e.reason.to_string().starts_with("program has 1000001 instructions"), "{e}");

    // Eight functions that call the next one eight times each: two million calls.
    let mut insns: Vec<Insn> = Vec::new();
    for f in 0..8usize {
        let calls = if f < 7 { 8 } else { 0 };
        insns.extend((0..calls).map(|n| Insn::new(op::CALL, 0, op::PSEUDO_CALL, 0, 8 - n + 1)));
        insns.extend([Insn::mov64_imm(0, 0), Insn::exit()]);
    }
    let mut options = Options::default();
    options.limit = 100_000;
    let prog = Linked::from_insns("calls", ProgramType::Kprobe, insns);
    let e = verify(&prog, &options).expect_err("too complex");
    assert_eq!(e.reason.to_string(), "BPF program is too large. Processed 100001 insn");
}
