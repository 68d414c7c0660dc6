//! What each operation of each map type takes a program, beside the kernel.
//!
//! Each number is a process of its own (`crates/maps/examples/operations`), the best of its passes; a row has the median of all
//! processes, contestants taking turns. We run the function behind the helper in a loop compiled by rustc, the kernel a BPF program in a
//! loop, by `BPF_PROG_TEST_RUN` (root), where some helpers are inlined by its verifier. Rows that end in "two threads" share
//! one map between two threads, each with half of the keys; the figure is the time an operation of either takes, so half of it
//! would be perfect.

use std::process::Command;

use anyhow::Result;
use skep_testkit::kernel;

use super::row::Row;
use super::sample::{Contestant, Sample, measured, take_turns};
use crate::{cargo, check, output, root};

const TURNS: usize = 3;
/// Beginnings of the cases that are tried with two threads too.
const SHARED: [&str; 5] = ["hash", "lpm_trie lookup, 16K IPv4", "lpm_trie overwrite", "ringbuf reserve", "ringbuf output, "];

/// The rows of all cases.
pub fn run() -> Result<Vec<Row>> {
    check(cargo().args(["build", "--quiet", "--release", "-p", "skep-maps", "--example", "operations"]))?;
    let target = std::env::var_os("CARGO_TARGET_DIR").map_or_else(|| root().join("target"), Into::into);
    let program = target.join("release/examples/operations");
    let cases = output(Command::new(&program).arg("list"))?;
    let cases: Vec<&str> = cases.lines().collect();
    let sides: &[&str] = if kernel::may_load() { &["skep", "kernel"] } else { &["skep"] };
    let mut wanted: Vec<(String, Vec<&str>)> = cases.iter().map(|c| ((*c).to_owned(), vec![*c, "1"])).collect();
    let shared = |c: &&&str| SHARED.iter().any(|s| c.starts_with(s)) && !c.contains("256K");
    wanted.extend(cases.iter().filter(shared).map(|c| (format!("{c}, two threads"), vec![*c, "2"])));
    let command = |side: &str, args: &[&str]| {
        let mut command = Command::new(&program);
        command.arg(side).args(args);
        command
    };
    let contestants: Vec<Contestant<'_>> = wanted
        .iter()
        .flat_map(|(name, args)| sides.iter().map(move |side| Contestant::new(name, move || measured(&mut command(side, args)))))
        .collect();
    let values = take_turns(TURNS, &contestants)?;
    let rows = wanted.iter().zip(values.chunks_exact(sides.len()));
    Ok(rows
        .map(|((name, _), values)| Row {
            case: name.clone(),
            ours: Sample::of(values[0].clone()),
            rival: values.get(1).map(|v| ("kernel, test run".to_owned(), Sample::of(v.clone()))),
        })
        .collect())
}
