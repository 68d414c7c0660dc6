//! Accepted programs are run in a machine that traps whatever the verifier must have ruled out, and
//! holds what it has against what was claimed.
#![allow(clippy::print_stdout, reason = "seeds are printed for whoever has to repeat a failure")]

mod claims;
mod machine;
mod random;

use claims::{Sharp, described, note_reach};
use machine::{End, Machine, Reach};
use random::Random;
use skep_isa::{Insn, op, text};
use skep_object::{Linked, Object};
use skep_verifier::cfg::Cfg;
use skep_verifier::state::State;
use skep_verifier::{Options, Prune, verify_observed};
use std::collections::BTreeMap;
use std::ops::RangeInclusive;
use std::path::{Path, PathBuf};

/// States kept at one instruction for comparison; a program with more is run, but not compared.
const CLAIMS: usize = 600;

fn listing(prog: &Linked) -> String {
    text::lines(&prog.insns).map(|(n, l)| format!("{n}: {l}\n")).collect()
}

fn fresh_seed() -> u64 {
    std::time::SystemTime::now()
        .duration_since(std::time::UNIX_EPOCH)
        .map_or(7, |d| d.as_nanos() as u64)
        | 1
}

/// The seeds to start from: a known one and one of today, or the one to repeat.
fn seeds() -> Vec<u64> {
    let given = std::env::var("SKEP_SEED")
        .ok()
        .and_then(|s| u64::from_str_radix(s.trim_start_matches("0x"), 16).ok());
    given.map_or_else(|| vec![0x5eed, fresh_seed()], |s| vec![s])
}

fn rounds(few: usize, many: usize) -> usize {
    if std::env::var_os("SKEP_STRESS").is_some() { many } else { few }
}

/// What came out of many programs.
#[derive(Default)]
struct Tally {
    programs: u64,
    accepted: u64,
    runs: u64,
    steps: u64,
    unmodeled: BTreeMap<&'static str, u64>,
    refused: BTreeMap<String, u64>,
}

impl Tally {
    fn show(&self, seed: u64) {
        let share = 100 * self.accepted / self.programs.max(1);
        println!(
            "seed {seed:#x}: {} of {} programs accepted ({share} %), {} runs, {} steps",
            self.accepted, self.programs, self.runs, self.steps
        );
        for (what, n) in &self.unmodeled {
            println!("  {n} runs ended at {what}");
        }
        let mut all: Vec<_> = self.refused.iter().collect();
        all.sort_by_key(|(_, n)| std::cmp::Reverse(**n));
        for (why, n) in all.iter().take(40) {
            println!("  {n} refused: {why}");
        }
    }
}

/// Verifies a program and, when it is accepted, runs it; panics when it does what it must not.
fn try_program(
    prog: &Linked,
    prune: Prune,
    offered: bool,
    runs: usize,
    r: &Random,
    tally: &mut Tally,
    name: &dyn Fn() -> String,
) {
    // The machine has neither sockets nor flow keys: `__sk_buff.sk` and `.flow_keys`.
    if prog.insns.iter().any(|i| i.code == op::LDX | op::MEM | op::DW && matches!(i.off, 144 | 168))
    {
        return;
    }
    let mut options = Options::default();
    // As for programs that are to run here.
    options.offered_only = offered;
    options.limit = if prune == Prune::Never { 4_000 } else { 20_000 };
    options.prune = prune;
    options.log_level = 0;
    let mut claims: Vec<Vec<State>> = vec![Vec::new(); prog.insns.len()];
    let (mut room, mut reach) = (true, Reach::new());
    let verdict = verify_observed(prog, &options, &mut |insn, state| {
        note_reach(&mut reach, prog.insns[insn], insn, state);
        match claims.get_mut(insn) {
            Some(list) if list.len() < CLAIMS => list.push(state.clone()),
            _ => room = false,
        }
    });
    tally.programs += 1;
    let proof = match verdict {
        Ok(p) => p,
        Err(e) => {
            let why: String =
                e.reason.to_string().chars().filter(|c| !c.is_ascii_digit()).take(44).collect();
            *tally.refused.entry(why).or_default() += 1;
            return;
        }
    };
    tally.accepted += 1;
    assert!(proof.info().processed <= options.limit);
    let Ok(cfg) = Cfg::new(prog) else { panic!("{}: accepted without a shape", name()) };
    let sharp = if prune == Prune::Never { Sharp::Exactly } else { Sharp::Pointers };
    for _ in 0..runs {
        tally.runs += 1;
        let mut machine = Machine::new(prog, r);
        machine.reach = reach.clone();
        machine.probes = proof.info().object_loads.clone();
        let result = machine.run(|pc, m| {
            tally.steps += 1;
            if room {
                return described(&claims[pc], m, pc, &cfg, sharp)
                    .map_err(|e| format!("not as claimed: {e}"));
            }
            Ok(())
        });
        match result {
            Ok(End::Exit) => {}
            Ok(End::Unmodeled(what)) => *tally.unmodeled.entry(what).or_default() += 1,
            Err((pc, why)) => panic!("{}, {prune:?}, at {pc}: {why}\n{}", name(), listing(prog)),
        }
    }
}

const PRUNES: [Prune; 4] = [Prune::Never, Prune::Usual, Prune::Always, Prune::Always];

/// Tries many programs that `make` makes at random, each in so many runs; `share` of a hundred are to be
/// accepted.
fn try_random(make: impl Fn(&Random) -> Linked, runs: usize, share: RangeInclusive<u64>) {
    let rounds = rounds(800, 500_000);
    for seed in seeds() {
        let mut tally = Tally::default();
        for round in 0..rounds {
            // Each program can be made again from its own number.
            let own = seed.wrapping_add(round as u64).wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1;
            let r = Random::new(own);
            let prog = make(&r);
            let offered = !random::needs_kernel(&prog);
            try_program(&prog, PRUNES[round % 4], offered, runs, &r, &mut tally, &|| {
                format!("seed {seed:#x}, round {round}")
            });
        }
        tally.show(seed);
        let accepted = 100 * tally.accepted / tally.programs;
        assert!(
            share.contains(&accepted),
            "{accepted} % of the programs were accepted: the generator tests little"
        );
    }
}

#[test]
fn accepted_programs_do_nothing_forbidden() {
    try_random(random::program, 10, 20..=70);
}

#[test]
fn what_one_turn_leaves_does_nothing_forbidden_in_another() {
    try_random(random::turns::program, 20, 10..=70);
}

/// The programs of every committed object that can be linked alone.
fn real_programs() -> Vec<Linked> {
    let mut objects = Vec::new();
    let mut todo = vec![Path::new(env!("CARGO_MANIFEST_DIR")).join("..")];
    while let Some(dir) = todo.pop() {
        for path in std::fs::read_dir(dir).expect("the crates").filter_map(|e| Some(e.ok()?.path()))
        {
            let name = path.file_name().and_then(|n| n.to_str()).unwrap_or_default().to_owned();
            if path.is_dir() && name != "target" {
                todo.push(path);
            } else if name.ends_with(".bpf.o") {
                objects.push(path);
            }
        }
    }
    objects.sort();
    let link = |path: &PathBuf| {
        let object = Object::parse(&std::fs::read(path).expect("a committed object")).ok()?;
        Some((0..object.programs.len()).filter_map(|i| object.link(i).ok()).collect::<Vec<_>>())
    };
    // The machine has no flow keys.
    let known = |l: &Linked| l.prog_type != skep_isa::ProgramType::FlowDissector;
    objects.iter().filter_map(link).flatten().filter(known).collect()
}

#[test]
fn real_programs_with_one_damaged_instruction_do_nothing_forbidden() {
    let programs = real_programs();
    assert!(programs.len() > 30, "only {} programs", programs.len());
    let rounds = rounds(1_000, 300_000);
    for seed in seeds() {
        let mut tally = Tally::default();
        for round in 0..rounds {
            let r = Random::new(
                seed.wrapping_add(round as u64).wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1,
            );
            let mut prog = programs[r.below(programs.len() as u64) as usize].clone();
            let mut at = 0;
            if round % 10 != 0 {
                at = damage(&mut prog.insns, &r);
            }
            let name = || format!("seed {seed:#x}, round {round}, `{}` damaged at {at}", prog.name);
            try_program(&prog, PRUNES[r.below(4) as usize], true, 3, &r, &mut tally, &name);
        }
        tally.show(seed);
        assert!(
            tally.accepted * 8 > tally.programs,
            "{} of {} accepted",
            tally.accepted,
            tally.programs
        );
    }
}

/// Changes one instruction into a neighbor of what it was; its place.
fn damage(insns: &mut [Insn], r: &Random) -> usize {
    let at = r.below(insns.len() as u64) as usize;
    let i = &mut insns[at];
    let other = |n: u8| (n + 1 + r.below(10) as u8) % 11;
    match r.below(12) {
        0 => i.regs = (i.regs & 0xf0) | other(i.dst()),
        1 => *i = i.with_src(other(i.src())),
        2 => i.off = i.off.wrapping_add(r.pick(&[-8, -4, -1, 1, 4, 8])),
        3 => i.off = r.number() as i16,
        4 => i.imm = i.imm.wrapping_add(r.pick(&[-8, -1, 1, 8])),
        5 => i.imm = r.number() as i32,
        6 if matches!(i.class(), op::LDX | op::ST | op::STX) => {
            i.code = (i.code & !0x18) | r.pick(&[op::B, op::H, op::W, op::DW])
        }
        6 => i.code ^= op::X,
        // Another operation, or the other width.
        7 | 8 => i.code = (i.code & 0x0f) | (r.below(16) as u8) << 4,
        9 if matches!(i.class(), op::JMP | op::JMP32) => i.code ^= op::JMP ^ op::JMP32,
        9 if matches!(i.class(), op::ALU | op::ALU64) => i.code ^= op::ALU ^ op::ALU64,
        9 => i.code = r.next() as u8,
        // Gone.
        10 => *i = Insn::new(op::JMP | op::JA, 0, 0, 0, 0),
        _ => *i = Insn::mov64_imm(r.below(10) as u8, r.number() as i32),
    }
    if r.chance(80) {
        well_formed(i);
    }
    at
}

/// Clears what the operation does not use, so that the damage gets past the first look.
fn well_formed(i: &mut Insn) {
    let by_reg = i.code & op::X != 0;
    match i.class() {
        op::ALU | op::ALU64 | op::JMP | op::JMP32 if i.code == op::CALL || i.code == op::EXIT => {}
        op::ALU | op::ALU64 | op::JMP | op::JMP32 => {
            if by_reg {
                i.imm = 0;
            } else {
                *i = i.with_src(0);
            }
            if matches!(i.class(), op::ALU | op::ALU64) {
                let signed = matches!(i.code & 0xf0, op::DIV | op::MOD);
                i.off = if signed { i.off & 1 } else { 0 };
            }
        }
        op::LDX => i.imm = 0,
        op::ST => *i = i.with_src(0),
        op::STX if i.code & 0xe0 == op::MEM => i.imm = 0,
        _ => {}
    }
}
