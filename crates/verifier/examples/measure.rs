//! How long verifying takes: `measure list FILE.bpf.o…` prints a line for each case, `measure
//! ours|linux CASE FILE.bpf.o…` measures one: all programs of an object that both sides take, or a
//! large generated program.
//!
//! One measurement is the median of as many repetitions as fit into a tenth of a second, three at
//! least; maps are made before. Programs that need a target in the kernel's own types are taken as
//! kprobe programs, by both sides.
#![allow(clippy::print_stdout, reason = "a command-line example")]

#[path = "../tests/kernel_bpf/mod.rs"]
mod kernel_bpf;

use kernel_bpf::Prepared;
use skep_isa::helper::id;
use skep_isa::{Insn, MapType, ProgramType, op};
use skep_object::{Linked, LinkedMap, MapSpec, Object};
use skep_verifier::{Options, verify};
use std::path::Path;
use std::time::{Duration, Instant};

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let args: Vec<String> = std::env::args().skip(1).collect();
    match args.iter().map(String::as_str).collect::<Vec<_>>().as_slice() {
        ["list", files @ ..] => {
            for (name, programs) in cases(files, None) {
                println!(
                    "{name}\t{}\t{}",
                    programs.len(),
                    programs.iter().map(|(p, _)| p.insns.len()).sum::<usize>()
                );
            }
        }
        [side @ ("ours" | "linux"), case, files @ ..] => {
            let found = cases(files, Some(case)).pop();
            let (_, programs) = found.ok_or_else(|| format!("no case `{case}`"))?;
            println!("measured {}", measure(&programs, *side == "ours"));
        }
        _ => return Err("usage: measure list FILE… | measure ours|linux CASE FILE…".into()),
    }
    Ok(())
}

type Case = (String, Vec<(Linked, Prepared)>);

fn options() -> Options {
    let mut o = Options::default();
    o.log_level = 0;
    o
}

/// Cases with at least one program that both sides take; all, or one of them.
fn cases(files: &[&str], only: Option<&str>) -> Vec<Case> {
    let mut all: Vec<(String, Vec<Linked>)> = Vec::new();
    for file in files {
        let Some(object) = std::fs::read(file).ok().and_then(|b| Object::parse(&b).ok()) else {
            continue;
        };
        let path = Path::new(file);
        let name = path.file_name().unwrap_or_default().to_string_lossy();
        // Objects of two crates may have one name.
        let crates = path.components().skip_while(|c| c.as_os_str() != "crates").nth(1);
        let name = crates.map_or_else(
            || name.to_string(),
            |c| format!("{}: {name}", c.as_os_str().to_string_lossy()),
        );
        all.push((name, (0..object.programs.len()).filter_map(|i| object.link(i).ok()).collect()));
    }
    let made = |name: &str, insns| (format!("generated: {name}"), vec![with_map(insns)]);
    all.push(made("4000 numbers", numbers(4000)));
    all.push(made("500 branches that meet again", diamonds(500)));
    all.push(made("200 lookups", lookups(200)));
    all.push(made("a loop of 5000 laps", laps(5000)));
    all.push(made("100 calls of a function", calls(100)));
    let takes = |mut p: Linked| {
        if p.prog_type == ProgramType::Tracing {
            (p.prog_type, p.attach_type) = (ProgramType::Kprobe, None);
        }
        let prepared = Prepared::new(&p, None).ok()?;
        (verify(&p, &options()).is_ok() && prepared.load(false).is_ok()).then_some((p, prepared))
    };
    all.into_iter()
        .filter(|(name, _)| only.is_none_or(|only| only == name))
        .map(|(name, programs)| (name, programs.into_iter().filter_map(takes).collect::<Vec<_>>()))
        .filter(|(_, programs)| !programs.is_empty())
        .collect()
}

fn measure(programs: &[(Linked, Prepared)], ours: bool) -> u128 {
    let options = options();
    let mut times = Vec::new();
    let begun = Instant::now();
    while begun.elapsed() < Duration::from_millis(100) || times.len() < 3 {
        let mut sum = Duration::ZERO;
        for (p, prepared) in programs {
            let start = Instant::now();
            if ours {
                let proof = verify(p, &options);
                sum += start.elapsed();
                drop(proof);
            } else {
                let loaded = prepared.load(false);
                sum += start.elapsed();
                drop(loaded);
            }
        }
        times.push(sum.as_nanos());
    }
    times.sort_unstable();
    times[times.len() / 2]
}

fn with_map(insns: Vec<Insn>) -> Linked {
    let mut p = Linked::from_insns("generated", ProgramType::Kprobe, insns);
    p.maps.push(LinkedMap { index: 0, spec: MapSpec::new("m", MapType::Array, 4, 64, 16) });
    p
}

const K: u8 = op::ALU64 | op::K;
const X: u8 = op::ALU64 | op::X;

fn end(mut out: Vec<Insn>) -> Vec<Insn> {
    out.extend([Insn::mov64_imm(0, 0), Insn::exit()]);
    out
}

/// Arithmetic in a row, with numbers that are not known.
fn numbers(n: usize) -> Vec<Insn> {
    let ops = [op::ADD, op::XOR, op::AND, op::OR, op::SUB, op::MUL, op::LSH, op::RSH];
    let mut out: Vec<Insn> = (2..6u8)
        .map(|r| Insn::new(op::LDX | op::MEM | op::DW, r, 1, i16::from(r) * 8, 0))
        .collect();
    for i in 0..n {
        let (d, s, code) = ((2 + i % 4) as u8, (2 + i / 4 % 4) as u8, ops[i % ops.len()]);
        let shift = matches!(code, op::LSH | op::RSH);
        out.push(if i % 3 == 0 && !shift {
            Insn::new(X | code, d, s, 0, 0)
        } else {
            Insn::new(K | code, d, 0, 0, (i % 31) as i32 + 1)
        });
    }
    end(out)
}

/// Tests of numbers whose two paths meet again.
fn diamonds(n: usize) -> Vec<Insn> {
    let mut out = vec![Insn::mov64_reg(6, 1), Insn::mov64_imm(7, 0)];
    for i in 0..n {
        out.push(Insn::new(op::LDX | op::MEM | op::DW, 2, 6, (i % 20) as i16 * 8, 0));
        out.push(Insn::new(op::JMP | op::JGT, 2, 0, 1, i as i32));
        out.push(Insn::new(K | op::ADD, 7, 0, 0, 1));
        out.push(Insn::new(op::STX | op::MEM | op::DW, 10, 7, -8 * ((i % 8) as i16 + 1), 0));
    }
    end(out)
}

/// Lookups with their checks, and accesses at a bounded offset.
fn lookups(n: usize) -> Vec<Insn> {
    let mut out = vec![Insn::mov64_reg(6, 1)];
    for i in 0..n {
        out.push(Insn::new(op::ST | op::MEM | op::W, 10, 0, -4, (i % 16) as i32));
        out.push(Insn::mov64_reg(2, 10));
        out.push(Insn::new(K | op::ADD, 2, 0, 0, -4));
        out.extend(Insn::ld_imm64(1, op::PSEUDO_MAP_IDX, 0));
        out.push(Insn::call(id::MAP_LOOKUP_ELEM));
        out.push(Insn::new(op::JMP | op::JEQ, 0, 0, 5, 0));
        out.push(Insn::new(op::LDX | op::MEM | op::DW, 3, 6, 8, 0));
        out.push(Insn::new(op::JMP | op::JGT, 3, 0, 3, 56));
        out.push(Insn::new(X | op::ADD, 0, 3, 0, 0));
        out.push(Insn::new(op::LDX | op::MEM | op::DW, 4, 0, 0, 0));
        out.push(Insn::new(op::STX | op::MEM | op::DW, 0, 4, 0, 0));
    }
    end(out)
}

/// A loop with a constant bound, walked lap by lap.
fn laps(n: i32) -> Vec<Insn> {
    let mut out = vec![Insn::mov64_reg(6, 1), Insn::mov64_imm(7, 0), Insn::mov64_imm(8, 0)];
    out.push(Insn::new(op::LDX | op::MEM | op::DW, 2, 6, 8, 0));
    out.push(Insn::new(op::JMP | op::JSET, 2, 0, 1, 1));
    out.push(Insn::new(X | op::ADD, 8, 2, 0, 0));
    out.push(Insn::new(op::STX | op::MEM | op::DW, 10, 8, -8, 0));
    out.push(Insn::new(K | op::ADD, 7, 0, 0, 1));
    out.push(Insn::new(op::JMP | op::JLT, 7, 0, -6, n));
    end(out)
}

/// Calls of one function from many places.
fn calls(n: usize) -> Vec<Insn> {
    let mut out = Vec::new();
    for i in 0..n {
        out.push(Insn::mov64_imm(1, i as i32));
        out.push(Insn::new(op::CALL, 0, op::PSEUDO_CALL, 0, 0));
    }
    let mut out = end(out);
    let start = out.len();
    for (at, call) in out.iter_mut().enumerate().filter(|(_, i)| i.is_local_call()) {
        call.imm = (start - at - 1) as i32;
    }
    for i in 0..20 {
        out.push(Insn::new(K | op::ADD, 1, 0, 0, i));
        out.push(Insn::new(op::STX | op::MEM | op::DW, 10, 1, -8 * (i as i16 + 1), 0));
    }
    out.extend([Insn::mov64_reg(0, 1), Insn::exit()]);
    out
}
