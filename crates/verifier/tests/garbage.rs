//! Whatever the bytes are, there is a verdict, soon: no panic, no endless walk.

mod random;

use random::Random;
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
    std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH).map_or(7, |d| d.as_nanos() as u64) | 1
}

#[test]
fn random_bytes() {
    for seed in [0x5eed, fresh_seed()] {
        let r = Random::new(seed);
        for _ in 0..rounds(20_000, 2_000_000) {
            let n = r.below(12) as usize;
            let mut insns: Vec<Insn> = (0..n).map(|_| Insn::from_bytes(r.next().to_le_bytes())).collect();
            // Real opcodes and registers, or nothing gets past the first look.
            for i in &mut insns {
                if r.chance(90) {
                    let known =
                        [0x07, 0x0f, 0xb7, 0xbf, 0x61, 0x63, 0x7a, 0x85, 0x95, 0x15, 0x2d, 0x05, 0x18, 0xdb, 0xdc, 0xc4, 0xb4, 0x66];
                    i.code = r.pick(&known);
                    i.regs = (i.regs % 11) | ((i.regs >> 4) % 11) << 4;
                    i.off %= 12;
                    i.imm %= 300;
                }
            }
            insns.push(Insn::exit());
            let types = [ProgramType::Kprobe, ProgramType::Xdp, ProgramType::Tracing, ProgramType::SocketFilter, ProgramType::Syscall];
            let prog = Linked::from_insns("garbage", r.pick(&types), insns);
            let _ = verify(&prog, &options());
        }
    }
}

#[test]
fn damaged_programs() {
    for file in ["tracers.bpf.o", "refused.bpf.o"] {
        let path = format!("{}/tests/data/{file}", env!("CARGO_MANIFEST_DIR"));
        let object = Object::parse(&std::fs::read(path).expect("test data")).expect("a readable object");
        let programs: Vec<Linked> = (0..object.programs.len()).map(|i| object.link(i).expect("a program that links")).collect();
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

/// Eight frames with full stacks and a fork at every other instruction: what is put aside stays bounded.
#[test]
fn forks_without_end_are_refused() {
    let mut insns = Vec::new();
    for _ in 0..9000 {
        insns.push(Insn::call(7));
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
