//! SQLite with every function of it traced: a real program with small, hot functions.
//!
//! The source comes out of the crates.io package `libsqlite3-sys`, see `benches/sqlite/Cargo.toml`.

use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, Result};
use serde_json::Value;
use skep_testkit::cc::Cc;

use super::place::{Place, has_uftrace};
use super::row::Row;
use super::sample::{Contestant, Sample, measured, take_turns};
use crate::{cargo, output, root};

const TURNS: usize = 5;
const ROWS: &str = "100000";

/// Whole runs, plain and traced; and the same for each call.
pub fn run(place: &Place) -> Result<Vec<Row>> {
    let source = source()?;
    let build = |name: &str, flags: &[&str]| -> Result<PathBuf> {
        let dir = place.dir.join(format!("sqlite-{name}"));
        std::fs::create_dir_all(&dir)?;
        let driver = root().join("benches/sqlite/driver.c");
        let include = format!("-I{}", source.display());
        let cc = Cc::c()
            .args(&["-O2", "-w", "-DSQLITE_THREADSAFE=0", "-DSQLITE_OMIT_LOAD_EXTENSION"])
            .args(flags)
            .arg(include);
        Ok(cc.compile(&[&driver, &source.join("sqlite3.c")], &dir.join("sqlite")))
    };
    let plain = build("plain", &[])?;
    let nops = build("nops", &["-fpatchable-function-entry=21,16"])?;
    let pg = build("pg", &["-pg"])?;
    let traced =
        |program: &Path| measured(&mut place.skep(&["trace", "sqlite:*"], &[program], &[ROWS]));
    let mut contestants = vec![
        Contestant::new("plain", || measured(Command::new(&plain).arg(ROWS))),
        Contestant::new("skep trace", || traced(&plain)),
        Contestant::new("skep trace, NOPs", || traced(&nops)),
    ];
    if has_uftrace() {
        contestants.push(Contestant::new("uftrace", || {
            measured(&mut place.uftrace(&["-b", "32m"], &pg, &[ROWS]))
        }));
    }
    let values = take_turns(TURNS, &contestants)?;

    traced(&plain)?;
    let report = place.report()?;
    let calls: u64 = report.functions.iter().map(|function| function.calls).sum();
    eprintln!(
        "sqlite: {calls} calls, {} of {} functions attached, {} missed",
        report.attached, report.matched, report.missed
    );
    let rival = |per: Option<f64>| {
        values.get(3).map(|with| {
            let sample = per.map_or_else(
                || Sample::of(with.clone()),
                |per| Sample::added(with, &values[0]).per(per),
            );
            ("uftrace record, -pg".to_owned(), sample)
        })
    };
    let untraced = Some(("not traced".to_owned(), Sample::of(values[0].clone())));
    let each = |at: usize| Sample::added(&values[at], &values[0]).per(calls as f64);
    Ok(vec![
        Row {
            case: "sqlite 100k rows, all functions".into(),
            ours: Sample::of(values[1].clone()),
            rival: untraced.clone(),
        },
        Row {
            case: "sqlite 100k rows, all functions, 21,16 NOPs".into(),
            ours: Sample::of(values[2].clone()),
            rival: untraced,
        },
        Row {
            case: "sqlite 100k rows, all functions, by uftrace".into(),
            ours: Sample::of(values[1].clone()),
            rival: rival(None),
        },
        Row {
            case: "sqlite, added to each call".into(),
            ours: each(1),
            rival: rival(Some(calls as f64)),
        },
        Row {
            case: "sqlite, added to each call, 21,16 NOPs".into(),
            ours: each(2),
            rival: rival(Some(calls as f64)),
        },
    ])
}

/// The folder with `sqlite3.c`, fetched by cargo when it is not there yet.
fn source() -> Result<PathBuf> {
    let manifest = root().join("benches/sqlite/Cargo.toml");
    let text = output(
        cargo()
            .args(["metadata", "--format-version", "1", "--locked", "--manifest-path"])
            .arg(manifest),
    )?;
    let metadata: Value =
        serde_json::from_str(&text).context("`cargo metadata` did not print JSON")?;
    let packages =
        metadata["packages"].as_array().context("`cargo metadata` has an unknown shape")?;
    let package = packages
        .iter()
        .find(|package| package["name"] == "libsqlite3-sys")
        .context("no package `libsqlite3-sys`")?;
    let path = Path::new(
        package["manifest_path"].as_str().context("`cargo metadata` has an unknown shape")?,
    );
    Ok(path.with_file_name("sqlite3"))
}
