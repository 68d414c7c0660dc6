//! Go programs without symbols and debug information: what Go's own `addr2line` says of them before
//! they were stripped; and damaged tables.

use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use skep_proc::elf::{Elf, Kind, SymbolSource};
use skep_proc::symbolize::{Answers, SymbolFile, Want};
use skep_testkit::TempDir;
use skep_testkit::random::Random;
use skep_testkit::run::run;
use skep_testkit::skip::{has_command, skip};

const LIMIT: Duration = Duration::from_secs(300);
const LINES: Want = Want { lines: true, inlined: true };
const GO: &str = "package main

import \"fmt\"

func leaf(x int) int { return x*3 + 1 }

//go:noinline
func outer(x int) int {
\treturn leaf(x) + leaf(x+1)
}

func main() { fmt.Println(outer(2)) }
";
const CGO: &str = "package main

// int twice(int x) { return 2 * x; }
import \"C\"

//go:noinline
func outer(x int) int {
\treturn int(C.twice(C.int(x))) + 1
}

func main() { println(outer(2)) }
";

/// Builds a program; returns it, and a copy without symbols and debug information.
fn program(dir: &TempDir, source: &str, flags: &[&str]) -> Option<(PathBuf, PathBuf)> {
    if !has_command("go") || !has_command("strip") {
        skip("go and strip");
        return None;
    }
    let (full, stripped) = (dir.join("full"), dir.join("stripped"));
    std::fs::write(dir.join("main.go"), source).unwrap();
    let mut go = Command::new("go");
    go.args(["build", "-o"]).arg(&full).args(flags).arg("main.go").current_dir(dir.path());
    go.env("GO111MODULE", "off").env("CGO_ENABLED", if source == CGO { "1" } else { "0" });
    let built = run(&mut go, b"", LIMIT);
    assert!(built.status.success(), "{}", built.transcript());
    let cut = run(Command::new("strip").arg("-o").arg(&stripped).arg(&full), b"", LIMIT);
    assert!(cut.status.success(), "{}", cut.transcript());
    let elf = Elf::open(&stripped).unwrap();
    assert!(elf.section(".symtab").is_none() && elf.section(".debug_info").is_none());
    Some((full, stripped))
}

fn line_of(answers: &Answers, addr: u64) -> (String, String) {
    let answer = answers.get(addr).unwrap();
    let text = |bytes: &[u8]| String::from_utf8(bytes.to_vec()).unwrap();
    let name = answer.symbol().map_or_else(|| "?".to_owned(), |s| text(s.name));
    let frame = answer.frames().next();
    let line = frame.map_or_else(
        || "?:0".to_owned(),
        |f| format!("{}:{}", f.file.map_or_else(|| "?".to_owned(), text), f.line),
    );
    (name, line)
}

fn same_as_go(source: &str, flags: &[&str]) {
    let dir = TempDir::new();
    let Some((full, stripped)) = program(&dir, source, flags) else { return };
    let text = Elf::open(&full).unwrap().section(".text").unwrap().range();
    let addrs: Vec<u64> = text.step_by(41).collect();
    let input: String = addrs.iter().map(|a| format!("{a:#x}\n")).collect();
    let go =
        run(Command::new("go").args(["tool", "addr2line"]).arg(&full), input.as_bytes(), LIMIT);
    let want = String::from_utf8(go.stdout).unwrap();
    let want: Vec<&str> = want.lines().collect();
    assert_eq!(want.len(), addrs.len() * 2);
    let answers = SymbolFile::open(&stripped).unwrap().find(&addrs, LINES);
    let (mut named, mut outer) = (0, 0);
    for (addr, want) in addrs.iter().zip(want.chunks_exact(2)) {
        let got = line_of(&answers, *addr);
        // Go's own knows functions of C from the symbols that are gone.
        if got.0 == "?" {
            assert!(source == CGO || want[0] == "?", "{addr:#x}: {want:?}");
            continue;
        }
        // Between functions it has the name of the one before, and no line.
        let line = if want[1].starts_with(":-") { "?:0" } else { want[1] };
        assert_eq!((got.0.as_str(), got.1.as_str()), (want[0], line), "{addr:#x} {flags:?}");
        named += 1;
        outer += usize::from(got.0 == "main.outer");
    }
    assert!(named > 5_000 && outer > 0, "{named} of {}, {outer}", addrs.len());
}

#[test]
fn a_program_without_symbols_has_the_functions_and_lines_of_go() {
    same_as_go(GO, &[]);
}

#[test]
fn position_independent_programs_have_them_too() {
    same_as_go(GO, &["-buildmode=pie"]);
}

/// Another linker put code of C before that of Go.
#[test]
fn programs_with_code_of_c_have_them_too() {
    if has_command("cc") { same_as_go(CGO, &[]) } else { skip("cc") }
}

/// The name that Go's runtime says for the name of a symbol: without the types of a generic function, and
/// without what marks functions of assembly.
fn as_go_says(name: &[u8]) -> String {
    let name = String::from_utf8(name.to_vec()).unwrap().replace('·', ".");
    let name = name.strip_suffix(".abi0").unwrap_or(&name);
    match (name.find('['), name.rfind(']')) {
        (Some(from), Some(to)) => format!("{}[...]{}", &name[..from], &name[to + 1..]),
        _ => name.to_owned(),
    }
}

/// The functions that can be hooked are where those of the symbol table are, under the same names.
fn same_functions(source: &str, flags: &[&str]) {
    let dir = TempDir::new();
    let Some((full, stripped)) = program(&dir, source, flags) else { return };
    let (full, stripped) = (Elf::open(&full).unwrap(), Elf::open(&stripped).unwrap());
    let (full, stripped) = (full.functions().unwrap(), stripped.functions().unwrap());
    assert_eq!(*stripped.source(), SymbolSource::Pclntab);
    let (mut same, mut assembly, mut missing) = (0, 0, 0);
    for function in full.iter() {
        let Some(found) = stripped.at(function.vaddr) else {
            missing += 1;
            continue;
        };
        if found.name.starts_with(b"sub_") {
            assert!(source == CGO, "{}", function.name_lossy());
            continue;
        }
        let names: Vec<String> = function.symbols().map(|s| as_go_says(s.name)).collect();
        assert!(names.contains(&as_go_says(found.name)), "{} {names:?}", found.name_lossy());
        assert!(function.size <= found.size, "{}", found.name_lossy());
        same += 1;
        assembly += usize::from(found.kind == Kind::Assembly);
    }
    assert!(same > 1000 && assembly > 100 && missing < 100, "{same} {assembly} {missing}");
    let named = |name: &[u8]| stripped.iter().find(|f| f.name == name).unwrap();
    assert_eq!(named(b"main.outer").kind, Kind::Func);
    assert_eq!(named(b"runtime.memmove").kind, Kind::Assembly);
}

#[test]
fn a_program_without_symbols_has_its_functions() {
    same_functions(GO, &[]);
}

#[test]
fn position_independent_programs_have_their_functions() {
    same_functions(GO, &["-buildmode=pie"]);
}

#[test]
fn programs_with_code_of_c_have_their_functions() {
    if has_command("cc") { same_functions(CGO, &[]) } else { skip("cc") }
}

/// No byte of the table is trusted.
#[test]
fn damaged_tables_do_no_harm() {
    let dir = TempDir::new();
    let Some((_, stripped)) = program(&dir, GO, &[]) else { return };
    let whole = std::fs::read(&stripped).unwrap();
    let elf = Elf::open(&stripped).unwrap();
    let addrs: Vec<u64> = elf.section(".text").unwrap().range().step_by(97).collect();
    let table = elf.section(".gopclntab").unwrap();
    let (start, size) = (table.offset as usize, table.size as usize);
    let mut random = Random::new(7);
    let (mut answered, mut silent) = (0, 0);
    for round in 0..200 {
        let mut bytes = whole.clone();
        for _ in 0..1 + random.below(200) {
            // The header, else anything.
            let within = if round % 2 == 0 { 72 } else { size };
            let at = random.below(within);
            // The magic number stays mostly.
            if at >= 8 || random.below(20) == 0 {
                bytes[start + at] = random.next_u64() as u8;
            }
        }
        let elf = Elf::from_bytes(bytes).unwrap();
        let text = elf.text();
        for function in elf.functions().unwrap().iter() {
            let range = function.range();
            assert!(
                text.iter().any(|t| t.start <= range.start && range.end <= t.end),
                "{range:x?}"
            );
        }
        let mut file = SymbolFile::new(elf, Path::new("/nowhere"), Path::new("/")).unwrap();
        let answers = file.find(&addrs, LINES);
        let known = addrs.iter().filter(|a| answers.get(**a).unwrap().frames().len() > 0).count();
        answered += known;
        silent += usize::from(known == 0);
    }
    assert!(answered > addrs.len() * 20 && silent > 20, "{answered} {silent}");
}
