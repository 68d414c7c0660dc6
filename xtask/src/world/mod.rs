//! `cargo xtask world [--runs N] [--live] [--json] [NAME...]`: real programs, alone and under `skep
//! trace '*'`, or, with `--live`, while it attaches to them and leaves again.
//!
//! Each program of the [table](programs::PROGRAMS) that is installed does some work of ours
//! (`xtask/world/`) N times alone and N times traced; output, errors and exit status have to be the
//! same. The whole table becomes `docs/works-with.md` or `docs/works-with-live.md`; with names only
//! those rows are run, and printed. What differed first is kept below `target/world/`, for a person
//! to read.

mod live;
mod longer;
mod page;
mod programs;
mod run;
mod server;

use anyhow::{Context, Result, bail};

use crate::{check, root};
use programs::PROGRAMS;

/// Runs the table, or the rows with these names.
pub fn run(args: &[&str]) -> Result<()> {
    let (mut runs, mut json, mut live, mut names) = (20, false, false, Vec::new());
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
            "--live" => live = true,
            option if option.starts_with('-') => {
                bail!("unknown option `{option}`; there are --runs N, --live and --json")
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
        let program = if live { longer::longer_work(program) } else { *program };
        let row = run::row(&program, runs, live)?;
        eprintln!("{}", page::line(&row));
        rows.push(row);
    }
    if json {
        println!("{}", page::json(&rows));
    }
    if names.is_empty() {
        let name = if live { "docs/works-with-live.md" } else { "docs/works-with.md" };
        let path = root().join(name);
        std::fs::write(&path, page::page(&rows, runs, live))
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
