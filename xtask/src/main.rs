//! Developer commands: `cargo xtask ci`, `cargo xtask objects`, `cargo xtask bench`.
//!
//! Nothing here is shipped. `DEVELOPING.md` describes each command; [`ci::PARTS`] and
//! [`bench::BENCHES`] are the tables to extend.
#![forbid(unsafe_code)]
// A command line tool for people: it prints.
#![allow(clippy::print_stdout, clippy::print_stderr)]

mod bench;
mod book;
mod ci;
mod circles;
mod dist;
mod imports;
mod links;
mod mutate;
mod objects;
mod picture;
mod readme;
mod room;
mod transcript;
mod unsafety;
mod workflows;
mod world;

use std::path::{Path, PathBuf};
use std::process::{Command, ExitCode};

use anyhow::{Context, Result, bail};

fn main() -> ExitCode {
    let args: Vec<String> = std::env::args().skip(1).collect();
    let words: Vec<&str> = args.iter().map(String::as_str).collect();
    let done = match words.as_slice() {
        ["ci", parts @ ..] => ci::run(parts),
        ["objects", rest @ ..] => objects::run(rest),
        ["bench", rest @ ..] => bench::run(rest),
        ["clean-room", rest @ ..] => room::run(rest),
        ["clean-room-inside", rest @ ..] => room::run_inside(rest),
        ["try-package", suites @ ..] => room::package::run(suites),
        ["try-package-inside", rest @ ..] => room::package::run_inside(rest),
        ["world", rest @ ..] => world::run(rest),
        ["picture", rest @ ..] => picture::run(rest),
        ["book", rest @ ..] => book::run(rest),
        ["man", rest @ ..] => dist::man(rest),
        ["dist", rest @ ..] => dist::dist(rest),
        ["mutate", words @ ..] => mutate::run(words),
        _ => {
            eprint!("{}", usage());
            return ExitCode::from(2);
        }
    };
    match done {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("error: {error:#}");
            ExitCode::FAILURE
        }
    }
}

fn usage() -> String {
    let mut text = String::from(
        "usage: cargo xtask COMMAND\n\n  ci [PART...]            every check before handing over, or only some:\n",
    );
    for part in ci::PARTS {
        text.push_str(&format!("      {:<10} {}\n", part.name, part.what));
    }
    text.push_str("  objects [--check] [WORD...]\n                          rebuild every committed BPF object (with WORD in its path), or only compare\n");
    text.push_str("  bench NAME [--json] [--record]\n                          measure against a rival; --record keeps the result under benches/record:\n");
    for bench in bench::BENCHES {
        text.push_str(&format!("      {:<10} {}\n", bench.name, bench.what));
    }
    text.push_str("  clean-room [--keep] [--limit MINUTES] [SUITE...] [-- COMMAND...]\n                          the README's commands on a Debian with nothing on it (debootstrap)\n");
    text.push_str("  world [--runs N] [--live] [--json] [NAME...]\n                          real programs, alone and under `skep trace '*'`, or while it attaches\n                          and leaves: docs/works-with.md, docs/works-with-live.md\n");
    text.push_str("  picture                 draw the README's terminal (docs/terminal.svg)\n");
    text.push_str(
        "  book                    what `mdbook build` runs, to have pages of linked files\n",
    );
    text.push_str("  man [DIR]               write the manual's pages (target/man)\n");
    text.push_str("  dist [--twice] [DIR]    a tarball and a Debian package (target/dist); --twice compares two builds\n");
    text.push_str("  try-package [SUITE...]  that package installed, used and removed on a Debian with nothing on it\n");
    text.push_str("  mutate [--again] [WORD...]\n                          take each check out of the verifier (with WORD in file or line): does a test notice?\n");
    text
}

/// The root of the workspace, where every command runs.
fn root() -> &'static Path {
    Path::new(env!("CARGO_MANIFEST_DIR")).parent().expect("xtask lies one level below the root")
}

/// The `cargo` that started us.
fn cargo() -> Command {
    let mut command = Command::new(std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into()));
    command.current_dir(root());
    command
}

/// Runs a command to its end; a status other than zero is an error that names the command.
fn check(command: &mut Command) -> Result<()> {
    let line = shell_line(command);
    let status = command.status().with_context(|| format!("cannot run `{line}`"))?;
    if !status.success() {
        bail!("`{line}` failed: {status}");
    }
    Ok(())
}

/// Runs a command and returns what it printed on stdout.
fn output(command: &mut Command) -> Result<String> {
    let line = shell_line(command);
    let out = command.output().with_context(|| format!("cannot run `{line}`"))?;
    if !out.status.success() {
        bail!("`{line}` failed: {}\n{}", out.status, String::from_utf8_lossy(&out.stderr));
    }
    String::from_utf8(out.stdout)
        .with_context(|| format!("`{line}` printed something that is not UTF-8"))
}

fn shell_line(command: &Command) -> String {
    let mut line = Path::new(command.get_program())
        .file_name()
        .unwrap_or_default()
        .to_string_lossy()
        .into_owned();
    for arg in command.get_args() {
        line.push(' ');
        line.push_str(&arg.to_string_lossy());
    }
    line
}

/// Every file below `dir` that `keep` accepts, sorted; build directories are left out.
fn files_below(dir: &Path, keep: &dyn Fn(&Path) -> bool) -> Result<Vec<PathBuf>> {
    let mut found = Vec::new();
    let mut todo = vec![dir.to_path_buf()];
    while let Some(dir) = todo.pop() {
        if !dir.is_dir() {
            continue;
        }
        for entry in
            std::fs::read_dir(&dir).with_context(|| format!("cannot read `{}`", dir.display()))?
        {
            let path = entry?.path();
            if path.is_dir() {
                if path.file_name().is_some_and(|name| name != "target") {
                    todo.push(path);
                }
            } else if keep(&path) {
                found.push(path);
            }
        }
    }
    found.sort();
    Ok(found)
}

/// The path as the repository names it.
fn relative(path: &Path) -> String {
    path.strip_prefix(root()).unwrap_or(path).display().to_string()
}
