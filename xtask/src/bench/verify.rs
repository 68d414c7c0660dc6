//! The bench of the verifier: how long does it take over the committed objects and large generated
//! programs, beside Linux loading the same programs on the same machine? Loading is more than
//! verifying: Linux also compiles, we have not yet. Needs root; without it there is no rival.

use std::path::PathBuf;
use std::process::Command;

use anyhow::Result;

use super::row::Row;
use super::sample::{Contestant, Sample, measured, take_turns};
use crate::{cargo, check, files_below, output, root};

const TURNS: usize = 5;

/// A row for each case, and the geometric mean of all.
pub fn run() -> Result<Vec<Row>> {
    check(cargo().args([
        "build",
        "-q",
        "--release",
        "-p",
        "skep-verifier",
        "--example",
        "measure",
    ]))?;
    let program = target().join("release/examples/measure");
    let objects =
        files_below(&root().join("crates"), &|path| path.to_string_lossy().ends_with(".bpf.o"))?;
    let list = output(Command::new(&program).arg("list").args(&objects))?;
    let mut rows = Vec::new();
    for line in list.lines() {
        let parts: Vec<&str> = line.split('\t').collect();
        let &[case, programs, insns] = parts.as_slice() else { continue };
        let side = |side: &'static str| {
            let mut command = Command::new(&program);
            command.args([side, case]).args(&objects);
            command
        };
        let contestants = [
            Contestant::new("ours", || measured(&mut side("ours"))),
            Contestant::new("linux", || measured(&mut side("linux"))),
        ];
        let values = take_turns(TURNS, &contestants)?;
        rows.push(Row {
            case: format!("{case}, programs {programs}, instructions {insns}"),
            ours: Sample::of(values[0].clone()),
            rival: Some(("Linux, loading".to_owned(), Sample::of(values[1].clone()))),
        });
    }
    rows.extend(mean(&rows));
    Ok(rows)
}

/// The geometric mean over all cases.
fn mean(rows: &[Row]) -> Option<Row> {
    let of = |values: Vec<f64>| {
        let logs: f64 = values.iter().map(|v| v.ln()).sum();
        (logs / values.len() as f64).exp()
    };
    let sample = |pick: &dyn Fn(&Row) -> Option<Sample>| {
        let all: Vec<Sample> = rows.iter().filter_map(pick).collect();
        let part = |f: &dyn Fn(&Sample) -> f64| of(all.iter().map(f).collect());
        (!all.is_empty()).then(|| Sample {
            median: part(&|s| s.median),
            low: part(&|s| s.low),
            high: part(&|s| s.high),
        })
    };
    let ours = sample(&|r| Some(r.ours))?;
    let rival = sample(&|r| r.rival.as_ref().map(|(_, s)| *s))?;
    Some(Row {
        case: "geometric mean".to_owned(),
        ours,
        rival: Some(("Linux, loading".to_owned(), rival)),
    })
}

/// Where cargo builds.
fn target() -> PathBuf {
    std::env::var_os("CARGO_TARGET_DIR").map_or_else(|| root().join("target"), PathBuf::from)
}
