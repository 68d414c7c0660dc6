//! A program with very many small functions, for measuring how long attaching to all of them takes.

use std::fmt::Write;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use crate::TempDir;
use crate::cc::{Build, Cc};
use crate::report::Report;
use crate::run::run;
use crate::trace::skep_bin;

/// Functions in one source file; several files let the compiler's memory stay small.
const PER_FILE: usize = 5000;
/// Functions that call each other in a row.
const CHAIN: usize = 50;

/// Writes and compiles a program with `functions` functions `many_0`, `many_1`, …, called in chains
/// of 50; it walks each chain as often as its first argument says (once, when there is none) and
/// prints a number that depends on every call.
pub fn build(functions: usize, build: Build, dir: &Path) -> PathBuf {
    let mut sources = Vec::new();
    for start in (0..functions).step_by(PER_FILE) {
        let path = dir.join(format!("many_{start}.c"));
        write(&path, &part(start, functions.min(start + PER_FILE), functions));
        sources.push(path);
    }
    let path = dir.join("main.c");
    write(&path, &main(functions));
    sources.push(path);
    let sources: Vec<&Path> = sources.iter().map(PathBuf::as_path).collect();
    Cc::c().build(build).arg("-w").compile(&sources, &dir.join("many"))
}

/// Builds the program and traces it by a shell script that gets skep, where the report goes, and the
/// program; checks what the program prints.
pub fn traced(functions: usize, build: Build, script: &str) -> Report {
    let dir = TempDir::new();
    let program = self::build(functions, build, dir.path());
    let out = dir.join("report.json");
    let mut command = Command::new("sh");
    command
        .args(["-c", script, "sh"])
        .arg(skep_bin())
        .arg(&out)
        .arg(&program)
        .env("SKEP_DIR", dir.join("skep"));
    let ended = run(&mut command, b"", Duration::from_secs(300));
    assert_eq!(
        String::from_utf8_lossy(&ended.stdout).trim(),
        expected(functions).to_string(),
        "{}",
        ended.transcript()
    );
    Report::parse(&std::fs::read_to_string(&out).expect("there is a report")).expect("it is whole")
}

/// What the program prints for one walk, computed here.
pub fn expected(functions: usize) -> u64 {
    let mut sum = 0u64;
    for head in (0..functions).step_by(CHAIN) {
        let mut x = head as u64;
        for function in head..functions.min(head + CHAIN) {
            x = step(x, function as u64);
        }
        sum = sum.wrapping_add(x);
    }
    sum
}

/// What one function does before it calls the next.
fn step(x: u64, function: u64) -> u64 {
    x.wrapping_mul(3).wrapping_add(function)
}

fn write(path: &Path, text: &str) {
    std::fs::write(path, text)
        .unwrap_or_else(|error| panic!("cannot write `{}`: {error}", path.display()));
}

fn part(start: usize, end: usize, functions: usize) -> String {
    let mut text = String::new();
    for function in (start..end).rev() {
        let next = function + 1;
        if next == functions || next % CHAIN == 0 {
            writeln!(
                text,
                "__attribute__((noinline, noclone)) unsigned long many_{function}(unsigned long x) {{ return x * 3 + {function}; }}"
            )
        } else {
            // An addition after the call keeps it from being a tail call; the barrier keeps it from being inlined away.
            writeln!(
                text,
                "unsigned long many_{next}(unsigned long);\n__attribute__((noinline)) unsigned long many_{function}(unsigned long x) \
                 {{ unsigned long r = many_{next}(x * 3 + {function}); __asm__ volatile(\"\" : \"+r\"(r)); return r; }}"
            )
        }
        .expect("writing into a string does not fail");
    }
    text
}

fn main(functions: usize) -> String {
    let heads: Vec<usize> = (0..functions).step_by(CHAIN).collect();
    let mut text = String::from("#include <stdio.h>\n#include <stdlib.h>\n");
    for head in &heads {
        writeln!(text, "unsigned long many_{head}(unsigned long);")
            .expect("writing into a string does not fail");
    }
    let list = heads.iter().map(|head| format!("many_{head}")).collect::<Vec<_>>().join(",\n");
    write!(
        text,
        "static unsigned long (*const heads[])(unsigned long) = {{\n{list}\n}};\n\
         int main(int argc, char **argv)\n{{\n\tlong rounds = argc > 1 ? atol(argv[1]) : 1;\n\tunsigned long sum = 0;\n\
         \tfor (long round = 0; round < rounds; round++)\n\t\tfor (unsigned long i = 0; i < sizeof heads / sizeof *heads; i++)\n\
         \t\t\tsum += heads[i](i * {CHAIN});\n\tprintf(\"%lu\\n\", sum);\n\treturn 0;\n}}\n"
    )
    .expect("writing into a string does not fail");
    text
}

#[cfg(test)]
mod tests {
    use std::process::Command;
    use std::time::Duration;

    use super::{build, expected};
    use crate::cc::Build;
    use crate::run::run;
    use crate::temp::TempDir;

    #[test]
    fn the_program_makes_every_call_once() {
        let dir = TempDir::new();
        let program = build(1234, Build::O2, dir.path());
        let ended = run(&mut Command::new(program), b"", Duration::from_secs(300));
        assert_eq!(String::from_utf8_lossy(&ended.stdout).trim(), expected(1234).to_string());
    }
}
