//! Running a target under `skep trace` and comparing the tracer's counts with the target's own.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::OnceLock;
use std::time::Duration;

use crate::cc::Build;
use crate::compiled::target_dir;
use crate::report::Report;
use crate::run::Ended;
use crate::target::{Counts, Program, Target};
use crate::temp::TempDir;

/// Which functions are traced.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Scope {
    /// Those of the program itself.
    Own,
    /// Those of every module in the process.
    All,
}

/// The path of the `skep` command: `$SKEP_BIN`, else built once for this process. It carries the
/// agent, whose symbols are beside it ([`agent_symbols`]).
///
/// It is a release build, as users have it, whatever the profile of the tests: code that is not
/// optimized may use vector registers where an event must not. The command is that of the README,
/// so whoever has run it does not wait for anything here.
pub fn skep_bin() -> &'static Path {
    static BIN: OnceLock<PathBuf> = OnceLock::new();
    BIN.get_or_init(|| {
        if let Some(path) = std::env::var_os("SKEP_BIN") {
            return path.into();
        }
        let target = target_dir().expect("this program lies in a cargo target folder");
        let mut cargo = Command::new(std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into()));
        // Cargo holds no lock on its folders while it runs tests; other test programs that build
        // the same wait for each other.
        cargo
            .args(["build", "--quiet", "--release", "--package", "skep-cli", "--target-dir"])
            .arg(&target);
        let done = cargo
            .current_dir(env!("CARGO_MANIFEST_DIR"))
            .output()
            .unwrap_or_else(|error| panic!("cannot run {cargo:?}: {error}"));
        assert!(
            done.status.success(),
            "{cargo:?} failed:\n{}",
            String::from_utf8_lossy(&done.stderr)
        );
        target.join("release/skep")
    })
}

/// The agent that [`skep_bin`] carries, with all symbols, as a file of its own.
pub fn agent_symbols() -> PathBuf {
    skep_bin().with_file_name("libskep_preload.so.debug")
}

/// A traced run.
#[derive(Debug)]
pub struct Traced {
    /// How `skep` ended, and what came through of the target's output.
    pub ended: Ended,
    /// The target's own counts.
    pub own: Counts,
    /// The report.
    pub report: Report,
}

/// Runs a program under `skep trace`, with a folder for skep's objects that is removed afterwards.
pub fn run(program: &Program, patterns: &[String]) -> Traced {
    let dir = TempDir::in_memory();
    let out = dir.join("report.json");
    let mut command = Command::new(skep_bin());
    command
        .args(["--quiet", "trace"])
        .args(patterns)
        .arg("--json")
        .arg("-o")
        .arg(&out)
        .arg("--")
        .args(program.command_line());
    command.env("SKEP_DIR", dir.join("skep"));
    let (ended, own) = program.run_counted(&mut command, Duration::from_secs(300));
    let text = std::fs::read_to_string(&out).unwrap_or_else(|error| {
        panic!("{command:?} left no report: {error}\n{}", ended.transcript())
    });
    let report = Report::parse(&text)
        .unwrap_or_else(|error| panic!("{command:?}: bad report: {error}\n{text}"));
    Traced { ended, own, report }
}

/// Builds a target, runs it alone and traced, and panics with every difference: output, status, the
/// target's own counts, and the tracer's counts against them.
pub fn check(target: &'static Target, build: Build, scope: Scope) {
    let program = target.build(build);
    let (alone, alone_counts) = program.run();
    assert_eq!(
        alone.shell_status(),
        target.status,
        "{} ({build:?}) alone: {}",
        target.name,
        alone.transcript()
    );

    let patterns = match scope {
        Scope::Own => vec![format!("{}:*", target.name), "plugin.so:*".to_owned()],
        Scope::All => vec!["*".to_owned()],
    };
    let patterns = if target.args.contains(&"PLUGIN") { patterns } else { patterns[..1].to_vec() };
    let traced = run(&program, &patterns);

    let mut wrong = Vec::new();
    if traced.ended.stdout != alone.stdout {
        wrong.push("stdout differs from that of a run alone".to_owned());
    }
    // After the target's own words, skep may add a warning.
    if !traced.ended.stderr.starts_with(&alone.stderr) {
        wrong.push("stderr differs from that of a run alone".to_owned());
    }
    if !same_status(traced.report.status, target.status) {
        wrong.push(format!(
            "the report's status is {}, not {}",
            traced.report.status, target.status
        ));
    }
    if target.repeatable && traced.own != alone_counts {
        wrong.push(format!(
            "the target made other calls: alone {alone_counts:?}, traced {:?}",
            traced.own
        ));
    }
    if build == Build::Stripped {
        compare_unnamed(target, &traced, &mut wrong);
    } else {
        compare_named(target, &traced, &mut wrong);
    }
    assert!(
        wrong.is_empty(),
        "{} ({build:?}, {scope:?}):\n  {}\n{}",
        target.name,
        wrong.join("\n  "),
        traced.ended.transcript()
    );
}

/// A death by signal may be told as a shell does, or as the negative number of the signal.
fn same_status(reported: i64, expected: i32) -> bool {
    reported == i64::from(expected) || (expected > 128 && reported == i64::from(128 - expected))
}

fn compare_named(target: &Target, traced: &Traced, wrong: &mut Vec<String>) {
    let mut lost = 0;
    for (name, &own) in &traced.own {
        let module = if name.starts_with("plugin_") { "plugin.so" } else { target.name };
        let calls = match (traced.report.calls(module, name), traced.report.reason(module, name)) {
            (Some(calls), _) => calls,
            (None, Some(_)) if target.maybe_skipped.contains(&name.as_str()) => continue,
            (None, Some(reason)) => {
                wrong.push(format!("`{name}` was not hooked: {reason}"));
                continue;
            }
            (None, None) => 0,
        };
        let fewer = target.fewer.contains(&name.as_str());
        if calls > own || (calls < own && !fewer) {
            wrong.push(format!("`{name}`: {calls} calls traced, {own} made"));
        }
        if module == target.name && name != "second_life" {
            lost += own.saturating_sub(calls);
        }
    }
    if lost > traced.report.missed {
        wrong.push(format!(
            "{lost} calls were not traced, but only {} are reported as missed",
            traced.report.missed
        ));
    }
}

/// Without symbols nobody knows names: each own count must be among the tracer's, as often as it
/// occurs.
fn compare_unnamed(target: &Target, traced: &Traced, wrong: &mut Vec<String>) {
    let mut calls = BTreeMap::<u64, usize>::new();
    for row in traced
        .report
        .functions
        .iter()
        .filter(|row| row.module.rsplit('/').next() == Some(target.name))
    {
        *calls.entry(row.calls).or_default() += 1;
    }
    for (name, own) in &traced.own {
        let exempt =
            target.fewer.contains(&name.as_str()) || target.maybe_skipped.contains(&name.as_str());
        if exempt || name.starts_with("plugin_") || *own == 0 {
            continue;
        }
        match calls.get_mut(own) {
            Some(left) if *left > 0 => *left -= 1,
            _ => wrong.push(format!("no traced function was called {own} times, as `{name}` was")),
        }
    }
}
