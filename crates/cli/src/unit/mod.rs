//! `skep test`: unit tests of programs, described by files.

mod case;
mod file;
pub mod junit;
mod table;

use std::io::{self, Write};
use std::path::{Path, PathBuf};

use serde_json::json;
use skep::test_run::{Coverage, Engine};

use self::case::{Done, How};
use self::file::TestFile;
use crate::args::{EngineName, TestArgs};
use crate::failure::{FAILED, Failure, Result};
use crate::printer::{Output, Printer, check_apart, one_line};
use crate::units;

/// Runs the tests of all files and reports.
pub fn run(args: &TestArgs, printer: Printer) -> Result<u8> {
    let engine = match (&args.engine, &args.lcov) {
        (Some(EngineName::Jit), Some(_)) => {
            return Err(Failure::environment("`--lcov` needs the interpreter, which counts lines")
                .hint("leave `--engine` out"));
        }
        (Some(EngineName::Interp), _) | (None, Some(_)) => Engine::Interp,
        (Some(EngineName::Jit) | None, None) => Engine::Jit,
    };
    let written = [("--junit", args.junit.as_deref()), ("--lcov", args.lcov.as_deref())];
    let read: Vec<&Path> = args.files.iter().map(PathBuf::as_path).collect();
    check_apart(None, &written, &read)?;
    // A file that cannot be read is known before anything runs.
    let files = args.files.iter().map(|path| Ok((path, TestFile::read(path)?)));
    let files = files.collect::<Result<Vec<_>>>()?;
    let mut coverage = args.lcov.as_ref().map(|_| Coverage::default());
    let mut how = How { reading: &args.reading, engine, coverage: coverage.as_mut() };
    let (mut all, mut left_out) = (Vec::new(), 0);
    for (path, file) in &files {
        for test in &file.tests {
            if args.filter.as_ref().is_some_and(|text| !test.name.contains(text)) {
                left_out += 1;
            } else {
                all.push(case::run(file, test, path, &mut how)?);
            }
        }
    }
    if all.is_empty() {
        let filter = args.filter.as_deref().unwrap_or_default();
        return Err(Failure::failed(format!("no test's name contains `{filter}`")));
    }
    let failed = all.iter().filter(|d| !d.problems.is_empty()).count();
    if let Some(path) = &args.junit {
        printer.data(Output::open(Some(path))?, |out| junit::write(out, &all))?;
    }
    if let (Some(path), Some(coverage)) = (&args.lcov, &coverage) {
        let text = coverage.lcov("skep test");
        printer.data(Output::open(Some(path))?, |out| out.write_all(text.as_bytes()))?;
        let (ran, lines) = coverage.lines();
        printer.note(&format!("{ran} of {lines} source lines ran"));
    }
    if args.format.json {
        let each = all.iter().map(|d| {
            json!({
                "file": d.file.display().to_string(), "test": d.name,
                "passed": d.problems.is_empty(), "problems": d.problems,
                "duration_ns": u64::try_from(d.took.as_nanos()).unwrap_or(u64::MAX),
            })
        });
        let mut out =
            json!({"tests": each.collect::<Vec<_>>(), "failed": failed, "left_out": left_out});
        if let Some(coverage) = &coverage {
            let (ran, lines) = coverage.lines();
            out["coverage"] = json!({"lines": lines, "ran": ran});
        }
        printer.json(Output::Stdout, &out)?;
    } else {
        printer.data(Output::Stdout, |out| write(out, &all, failed, left_out))?;
    }
    Ok(if failed == 0 { 0 } else { FAILED })
}

fn write(out: &mut dyn Write, all: &[Done], failed: usize, left_out: usize) -> io::Result<()> {
    for suite in all.chunk_by(|a, b| a.file == b.file) {
        if let Some(first) = suite.first() {
            writeln!(out, "{}", one_line(&first.file.display().to_string()))?;
        }
        for done in suite {
            let result = if done.problems.is_empty() { "ok    " } else { "FAILED" };
            writeln!(out, "  {result}  {}", one_line(&done.name))?;
            for line in done.problems.iter().flat_map(|p| p.lines()) {
                writeln!(out, "          {}", one_line(line))?;
            }
        }
    }
    let took = all.iter().map(|d| d.took).sum::<std::time::Duration>();
    let passed = units::count((all.len() - failed) as u64, "test");
    write!(out, "{passed} passed, {failed} failed")?;
    if left_out > 0 {
        write!(out, ", {left_out} left out")?;
    }
    writeln!(out, ", in {}", units::time(u64::try_from(took.as_nanos()).unwrap_or(u64::MAX)))
}
