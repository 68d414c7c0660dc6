//! How long attaching to 10,000 and 50,000 functions takes, as skep's own report says; the rival is
//! what uftrace adds to the run of the same program, patching its NOPs.

use std::path::Path;
use std::process::Command;
use std::time::Instant;

use anyhow::{Context, Result, ensure};
use skep_testkit::cc::Build;
use skep_testkit::many;

use super::place::{Place, has_uftrace};
use super::row::Row;
use super::sample::{Contestant, Sample, take_turns};
use crate::output;

const TURNS: usize = 5;

/// Both sizes, with and without NOPs.
pub fn run(place: &Place) -> Result<Vec<Row>> {
    let mut rows = Vec::new();
    for functions in [10_000, 50_000] {
        for (build, name) in [(Build::O2, "plain"), (Build::Patchable5, "5 NOPs")] {
            let dir = place.dir.join(format!("many-{functions}-{build:?}"));
            std::fs::create_dir_all(&dir)?;
            let program = many::build(functions, build, &dir);
            rows.extend(one(place, functions, name, &program, build == Build::Patchable5)?);
        }
    }
    Ok(rows)
}

fn one(
    place: &Place,
    functions: usize,
    name: &str,
    program: &Path,
    nops: bool,
) -> Result<Vec<Row>> {
    let expected = many::expected(functions).to_string();
    let wall = |command: &mut Command| {
        let start = Instant::now();
        let text = output(command)?;
        let took = start.elapsed().as_secs_f64() * 1e9;
        ensure!(text.trim() == expected, "the program printed `{}`, not `{expected}`", text.trim());
        Ok(took)
    };
    let mut contestants = vec![
        Contestant::new("plain", || wall(&mut Command::new(program))),
        Contestant::new("skep trace", || {
            wall(&mut place.skep(&["trace", "many:many_*"], &[program], &[]))
        }),
        Contestant::new("attach_ns", || {
            wall(&mut place.skep(&["trace", "many:many_*"], &[program], &[]))?;
            let report = place.report()?;
            ensure!(
                report.attached == functions as u64,
                "{} of {functions} functions were attached",
                report.attached
            );
            Ok(report.attach_ns.context("the report has no `attach_ns`")? as f64)
        }),
    ];
    if has_uftrace() && nops {
        contestants.push(Contestant::new("uftrace", || {
            wall(&mut place.uftrace(&["-P", "."], program, &[]))
        }));
    }
    let values = take_turns(TURNS, &contestants)?;
    let uftrace = values
        .get(3)
        .map(|with| ("uftrace record -P., wall".to_owned(), Sample::added(with, &values[0])));
    Ok(vec![
        Row {
            case: format!("attach {functions} functions, {name}"),
            ours: Sample::of(values[2].clone()),
            rival: None,
        },
        Row {
            case: format!("trace {functions} functions once, {name}, added wall"),
            ours: Sample::added(&values[1], &values[0]),
            rival: uftrace,
        },
    ])
}
