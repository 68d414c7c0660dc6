//! What debuggers are told: the object file in memory, read back by binutils.
#![cfg(target_arch = "x86_64")]

use std::process::Command;

use skep_isa::{Insn, text};
use skep_testkit::skip::has_command;
use skep_testkit::{TempDir, skip};
use skep_vm::perf::{Function, Line, Listing};
use skep_vm::{Code, Env, gdb};

/// A function with a frame, a stack and a saved register, and one with a saved register and no
/// frame.
const PROGRAM: &str = "mov r6, r1\nstxdw [r10-8], r6\nmov r1, 1\ncall local f\nldxdw r1, [r10-8]\nadd r0, r6\nexit\n\
    f: mov r6, r1\nadd r6, 41\nmov r0, r6\nexit";
/// The first slot of `f`.
const F: usize = 7;

const FUNCTIONS: [Function<'_>; 2] =
    [Function { insn: 0, name: "main" }, Function { insn: F, name: "f" }];
const LINES: [Line<'_>; 4] = [
    Line { insn: 0, file: "a.bpf.c", line: 7 },
    Line { insn: 2, file: "a.bpf.c", line: 300 },
    Line { insn: F, file: "a.h", line: 3 },
    Line { insn: F + 1, file: "a.h", line: 2 },
];

fn program() -> (Vec<Insn>, Code) {
    let insns = text::assemble(PROGRAM).unwrap();
    // SAFETY: the program touches its own stack only, and ends.
    let code = unsafe { Code::compile(&insns, &Env::empty()) }.unwrap();
    (insns, code)
}

fn listing(code: &Code) -> Listing<'_> {
    Listing { code, name: "count", functions: &FUNCTIONS, lines: &LINES }
}

fn readelf(image: &[u8], args: &[&str]) -> String {
    let dir = TempDir::new();
    let path = dir.join("image");
    std::fs::write(&path, image).unwrap();
    let out = Command::new("readelf")
        .args(args)
        .arg("--wide")
        .arg(&path)
        .env("LC_ALL", "C")
        .output()
        .unwrap();
    assert!(
        out.status.success() && out.stderr.is_empty(),
        "{}",
        String::from_utf8_lossy(&out.stderr)
    );
    String::from_utf8(out.stdout).unwrap()
}

/// Splits each line into words.
fn words(text: &str) -> Vec<Vec<&str>> {
    text.lines().map(|l| l.split_whitespace().collect()).collect()
}

#[test]
fn symbols_are_where_the_functions_are() {
    if !has_command("readelf") {
        return skip("readelf");
    }
    let (insns, code) = program();
    let text = readelf(&gdb::image(&listing(&code), &insns), &["--syms", "--sections"]);
    let (base, f) = (code.machine_code().as_ptr() as u64, code.function_offset(F).unwrap());
    let size = code.machine_code().len();
    let line = |name: &str, words: &[Vec<&str>]| -> Vec<String> {
        let found = words
            .iter()
            .find(|w| w.last() == Some(&name))
            .unwrap_or_else(|| panic!("no `{name}`:\n{text}"));
        found.iter().map(|w| (*w).to_owned()).collect()
    };
    let words = words(&text);
    assert_eq!(
        line("bpf_prog_count", &words)[1..5],
        [format!("{base:016x}"), f.to_string(), "FUNC".into(), "GLOBAL".into()]
    );
    let inner = line("bpf_prog_count.f", &words);
    assert_eq!(
        inner[1..4],
        [format!("{:016x}", base + f as u64), (size - f).to_string(), "FUNC".into()]
    );
    let section = text.lines().find(|l| l.contains(" .text ")).unwrap();
    assert!(
        section.contains("NOBITS")
            && section.contains(&format!("{base:016x}"))
            && section.contains(&format!("{size:06x}")),
        "{section}"
    );
}

#[test]
fn lines_are_those_of_the_listing() {
    if !has_command("readelf") {
        return skip("readelf");
    }
    let (insns, code) = program();
    let text = readelf(&gdb::image(&listing(&code), &insns), &["--debug-dump=decodedline"]);
    let base = code.machine_code().as_ptr() as u64;
    let at = |slot: usize| base + u64::from(code.offsets()[slot]);
    let f = base + code.function_offset(F).unwrap() as u64;
    let rows: Vec<(String, u64, u64)> = words(&text)
        .iter()
        .filter_map(|w| {
            Some((
                (*w.first()?).to_owned(),
                w.get(1)?.parse().ok()?,
                u64::from_str_radix(w.get(2)?.strip_prefix("0x")?, 16).ok()?,
            ))
        })
        .collect();
    let mut want = vec![
        ("a.bpf.c", 7, base),
        ("a.bpf.c", 7, at(0)),
        ("a.bpf.c", 300, at(2)),
        ("a.h", 3, f),
        ("a.h", 3, at(F)),
        ("a.h", 2, at(F + 1)),
    ];
    want.dedup();
    let want: Vec<(String, u64, u64)> =
        want.into_iter().map(|(file, line, at)| (file.to_owned(), line, at)).collect();
    assert_eq!(rows, want, "{text}");
}

#[test]
fn functions_are_known_to_debug_information() {
    if !has_command("readelf") {
        return skip("readelf");
    }
    let (insns, code) = program();
    let text = readelf(&gdb::image(&listing(&code), &insns), &["--debug-dump=info"]);
    let names: Vec<&str> = text
        .lines()
        .filter(|l| l.contains("DW_AT_name"))
        .filter_map(|l| l.split_whitespace().last())
        .collect();
    assert_eq!(names, ["a.bpf.c", "bpf_prog_count", "bpf_prog_count.f"], "{text}");
    assert!(text.contains("DW_OP_call_frame_cfa"), "{text}");
}

#[test]
fn frames_can_be_unwound_at_every_instruction() {
    if !has_command("readelf") {
        return skip("readelf");
    }
    let (insns, code) = program();
    let text = readelf(&gdb::image(&listing(&code), &insns), &["--debug-dump=frames-interp"]);
    let base = code.machine_code().as_ptr() as u64;
    // Runs through each function by a disassembler, and compares where it finds the return address
    // with the rules.
    let rules: Vec<(u64, String)> = words(&text)
        .iter()
        .filter_map(|w| {
            Some((
                u64::from_str_radix(w.first()?, 16).ok().filter(|_| w[0].len() == 16)?,
                (*w.get(1)?).to_owned(),
            ))
        })
        .collect();
    let rule = |at: u64| {
        rules.iter().rev().find(|(from, rule)| *from <= at && rule.contains('+')).unwrap().1.clone()
    };
    let mut decoder = iced_x86::Decoder::with_ip(64, code.machine_code(), base, 0);
    let (mut depth, mut frame, mut seen) = (8i64, None, 0);
    let f = base + code.function_offset(F).unwrap() as u64;
    while decoder.can_decode() {
        let i = decoder.decode();
        if i.ip() == f {
            (depth, frame) = (8, None);
        }
        if i.mnemonic() == iced_x86::Mnemonic::Nop {
            continue;
        }
        let want = frame.map_or_else(|| format!("rsp+{depth}"), |d| format!("rbp+{d}"));
        assert_eq!(rule(i.ip()), want, "at {:#x}: {:?}\n{text}", i.ip() - base, i.mnemonic());
        seen += 1;
        match i.mnemonic() {
            iced_x86::Mnemonic::Push => depth += 8,
            iced_x86::Mnemonic::Pop if i.op0_register() != iced_x86::Register::RBP => depth -= 8,
            iced_x86::Mnemonic::Mov
                if i.op0_register() == iced_x86::Register::RBP
                    && i.op1_register() == iced_x86::Register::RSP =>
            {
                frame = Some(depth)
            }
            iced_x86::Mnemonic::Leave | iced_x86::Mnemonic::Pop => (depth, frame) = (8, None),
            _ => {}
        }
    }
    assert!(seen > 10, "{text}");
}

#[test]
fn programs_come_into_the_list_and_go() {
    let all: Vec<(Vec<Insn>, Code)> = (0..3).map(|_| program()).collect();
    let registered: Vec<_> =
        all.iter().map(|(insns, code)| gdb::register(&listing(code), insns).unwrap()).collect();
    let [a, b, c] = registered.try_into().unwrap();
    // The middle one, the last, the only one.
    drop(b);
    drop(c);
    drop(a);
}
