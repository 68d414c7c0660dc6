//! Turning addresses of a process into files and offsets: does asking for a few mappings take much
//! less than reading all of `/proc/PID/maps`, and does the adaptive way lose nothing on either?
//!
//! `benches/procmap` measures all sides in one process, in turn; it is a workspace of its own, since
//! the rivals are no part of any other build. The rivals open the process each time, as their
//! interfaces want it; ours is measured with the process kept open, and with opening it (`opened`).
//! Rows of the grid have as rival the better one of asking for each mapping and of reading all;
//! adaptive should never take more than 1.1 times as long. All sides may keep build ids from round to
//! round.

use std::collections::HashMap;
use std::path::PathBuf;
use std::process::Command;

use anyhow::{Context, Result};

use super::row::Row;
use super::sample::Sample;
use crate::{cargo, check, output, root};

/// Sides of a case of one file: ours and the rival with its name.
const ROWS: [(&str, &str, &str); 9] = [
    ("adaptive", "scan", "reading and parsing the text"),
    ("adaptive", "blazesym-ioctl", "blazesym, PROCMAP_QUERY"),
    ("adaptive", "blazesym-text", "blazesym, text"),
    ("adaptive", "procfs", "procfs"),
    ("adaptive", "queries", "skep, queries"),
    ("adaptive", "text", "skep, text"),
    ("opened", "scan", "reading and parsing the text"),
    ("opened", "blazesym-ioctl", "blazesym, PROCMAP_QUERY"),
    ("kept", "adaptive", "skep, mappings not kept"),
];

/// The rows of all cases.
pub fn run() -> Result<Vec<Row>> {
    let text = output(&mut Command::new(program("procmap-bench")?))?;
    rows(&text)
}

/// Builds the programs that are measured, which also link the rivals; returns the path of one.
pub fn program(name: &str) -> Result<PathBuf> {
    let target = root().join("target/procmap");
    let mut build = cargo();
    build.args(["build", "--quiet", "--release", "--locked", "--manifest-path"]);
    build.arg(root().join("benches/procmap/Cargo.toml"));
    check(build.arg("--target-dir").arg(&target))?;
    Ok(target.join("release").join(name))
}

/// Makes rows of lines `CASE|SIDE|NANOSECONDS …`.
fn rows(text: &str) -> Result<Vec<Row>> {
    let mut cases: Vec<(&str, HashMap<&str, Sample>)> = Vec::new();
    for line in text.lines() {
        let mut parts = line.split('|');
        let (Some(case), Some(side), Some(times)) = (parts.next(), parts.next(), parts.next())
        else {
            anyhow::bail!("not `CASE|SIDE|NANOSECONDS`: `{line}`");
        };
        let times: Result<Vec<f64>, _> = times.split(' ').map(str::parse).collect();
        let sample = Sample::of(times.with_context(|| format!("numbers in `{line}`"))?);
        match cases.last_mut().filter(|(name, _)| *name == case) {
            Some((_, sides)) => drop(sides.insert(side, sample)),
            None => cases.push((case, HashMap::from([(side, sample)]))),
        }
    }
    let mut rows = Vec::new();
    for (case, sides) in &cases {
        if case.starts_with("grid: ") {
            let side = |name| sides.get(name).copied().with_context(|| format!("{name} of {case}"));
            let (queries, text) = (side("queries")?, side("text")?);
            let (name, best) = if queries.median <= text.median {
                ("the better: queries", queries)
            } else {
                ("the better: text", text)
            };
            let rival = Some((name.to_owned(), best));
            rows.push(Row { case: (*case).to_owned(), ours: side("adaptive")?, rival });
            continue;
        }
        for (ours, rival, name) in ROWS {
            let (Some(ours_sample), Some(rival)) = (sides.get(ours), sides.get(rival)) else {
                continue;
            };
            let opened = if ours == "opened" { ", with opening" } else { "" };
            let case = format!("{case}{opened}");
            rows.push(Row { case, ours: *ours_sample, rival: Some((name.to_owned(), *rival)) });
        }
    }
    Ok(rows)
}

#[cfg(test)]
mod tests {
    use super::rows;

    #[test]
    fn the_grid_is_compared_with_the_better_side_and_others_with_all() {
        let text = "grid: a|adaptive|3 1 2\ngrid: a|queries|9\ngrid: a|text|4\n\
                    b|adaptive|10\nb|opened|20\nb|scan|100\nb|blazesym-ioctl|30\n";
        let rows = rows(text).unwrap();
        let said: Vec<(String, f64, String, f64)> = rows
            .into_iter()
            .map(|row| {
                let (name, rival) = row.rival.unwrap();
                (row.case, row.ours.median, name, rival.median)
            })
            .collect();
        let expected = [
            ("grid: a", 2.0, "the better: text", 4.0),
            ("b", 10.0, "reading and parsing the text", 100.0),
            ("b", 10.0, "blazesym, PROCMAP_QUERY", 30.0),
            ("b, with opening", 20.0, "reading and parsing the text", 100.0),
            ("b, with opening", 20.0, "blazesym, PROCMAP_QUERY", 30.0),
        ];
        let expected: Vec<_> =
            expected.iter().map(|e| (e.0.to_owned(), e.1, e.2.to_owned(), e.3)).collect();
        assert_eq!(said, expected);
        assert!(super::rows("nonsense").is_err());
    }
}
