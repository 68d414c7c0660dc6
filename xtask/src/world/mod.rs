//! `cargo xtask world [--runs N] [--json] [NAME...]`: real programs, alone and under `skep trace
//! '*'`.
//!
//! Each program of the [table](programs::PROGRAMS) that is installed does some work of ours
//! (`xtask/world/`) N times alone and N times traced; output, errors and exit status have to be the
//! same. The whole table becomes `docs/works-with.md`; with names only those rows are run, and
//! printed. What differed first is kept below `target/world/`, for a person to read.

mod page;
mod programs;
mod run;
mod server;

use anyhow::{Context, Result, bail};

use crate::{check, root};
use programs::PROGRAMS;

/// Runs the table, or the rows with these names.
pub fn run(args: &[&str]) -> Result<()> {
    let (mut runs, mut json, mut names) = (20, false, Vec::new());
    let mut args = args.iter();
    while let Some(arg) = args.next() {
        match *arg {
            "--runs" => {
                runs = args
                    .next()
                    .and_then(|n| n.parse().ok())
                    .filter(|n| *n > 0)
                    .context("`--runs` takes a number")?
            }
            "--json" => json = true,
            option if option.starts_with('-') => {
                bail!("unknown option `{option}`; there are --runs N and --json")
            }
            name => names.push(name),
        }
    }
    if let Some(unknown) = names.iter().find(|name| PROGRAMS.iter().all(|p| p.name != **name)) {
        bail!(
            "no program named `{unknown}`; there are: {}",
            PROGRAMS.iter().map(|p| p.name).collect::<Vec<_>>().join(" ")
        );
    }
    if std::env::var_os("SKEP_BIN").is_none() {
        check(crate::cargo().args(["build", "--quiet", "--release", "--package", "skep-cli"]))?;
    }
    let mut rows = Vec::new();
    for program in PROGRAMS.iter().filter(|p| names.is_empty() || names.contains(&p.name)) {
        let row = run::row(program, runs)?;
        eprintln!("{}", page::line(&row));
        rows.push(row);
    }
    if json {
        println!("{}", page::json(&rows));
    }
    if names.is_empty() {
        let path = root().join("docs/works-with.md");
        std::fs::write(&path, page::page(&rows, runs))
            .with_context(|| format!("cannot write `{}`", path.display()))?;
        eprintln!("wrote {}", crate::relative(&path));
    }
    let differ: Vec<&str> =
        rows.iter().filter(|row| row.is_different()).map(|row| row.name).collect();
    if !differ.is_empty() {
        bail!(
            "{} of {} programs are not the same under trace: {}",
            differ.len(),
            rows.len(),
            differ.join(" ")
        );
    }
    Ok(())
}
