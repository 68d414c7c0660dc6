//! `cargo xtask ci`: everything that must hold before a change is handed over, one part a row.

use std::io::{BufRead, BufReader, Write};
use std::process::Stdio;
use std::time::Instant;

use anyhow::{Context, Result, bail};

use crate::{cargo, check, imports, objects, root, unsafety};

/// One check that can be run alone.
pub struct Part {
    /// The word on the command line.
    pub name: &'static str,
    /// One line for the usage text.
    pub what: &'static str,
    run: fn() -> Result<()>,
}

/// All parts, cheap ones first.
pub const PARTS: &[Part] = &[
    Part { name: "fmt", what: "cargo fmt --check", run: fmt },
    Part { name: "imports", what: "the table of allowed imports, and the agent's small tree", run: imports::check },
    Part { name: "unsafe", what: "unsafe code only in its named leaves", run: unsafety::check },
    Part { name: "objects", what: "committed BPF objects equal their sources (needs clang-19)", run: objects::check_committed },
    Part { name: "clippy", what: "cargo clippy on every target, warnings are errors", run: clippy },
    Part { name: "test", what: "the README's test command, counting skips", run: test },
    Part { name: "docs", what: "cargo doc, warnings are errors", run: docs },
];

/// Runs the named parts, or all of them; every part runs even when an earlier one failed.
pub fn run(names: &[&str]) -> Result<()> {
    if let Some(unknown) = names.iter().find(|name| PARTS.iter().all(|part| part.name != **name)) {
        bail!("no part named `{unknown}`; there are: {}", PARTS.iter().map(|p| p.name).collect::<Vec<_>>().join(" "));
    }
    let mut failed = Vec::new();
    for part in PARTS.iter().filter(|part| names.is_empty() || names.contains(&part.name)) {
        println!("== {}: {}", part.name, part.what);
        let start = Instant::now();
        if let Err(error) = (part.run)() {
            eprintln!("error: {error:#}");
            failed.push(part.name);
        }
        println!("== {}: {:.1} s", part.name, start.elapsed().as_secs_f64());
    }
    if !failed.is_empty() {
        bail!("failed: {}", failed.join(" "));
    }
    Ok(())
}

fn fmt() -> Result<()> {
    check(cargo().args(["fmt", "--all", "--check"]))
}

fn clippy() -> Result<()> {
    check(cargo().args(["clippy", "--workspace", "--all-targets", "--", "-D", "warnings"]))
}

fn docs() -> Result<()> {
    check(cargo().args(["doc", "--workspace", "--no-deps"]).env("RUSTDOCFLAGS", "-D warnings"))
}

/// Runs the one test command there is (the README's) and says how many tests were skipped for want of something.
fn test() -> Result<()> {
    let readme = std::fs::read_to_string(root().join("README.md")).context("cannot read `README.md`")?;
    let line = test_command(&readme)?;
    println!("$ {line}");
    // Tests print their skips on stderr, cargo prints its progress there: pass everything on, count on the way.
    let mut child = std::process::Command::new("bash")
        .args(["-euo", "pipefail", "-c", &line])
        .current_dir(root())
        .stderr(Stdio::piped())
        .spawn()
        .context("cannot run `bash`")?;
    let mut skipped = 0;
    for text in BufReader::new(child.stderr.take().expect("stderr was asked for as a pipe")).split(b'\n') {
        let text = text?;
        skipped += usize::from(String::from_utf8_lossy(&text).contains("skipped: needs "));
        let mut stderr = std::io::stderr().lock();
        stderr.write_all(&text)?;
        stderr.write_all(b"\n")?;
    }
    let status = child.wait()?;
    println!("skips: {skipped}");
    if !status.success() {
        bail!("`{line}` failed: {status}");
    }
    Ok(())
}

/// The command in the code block after the `ci:test` mark, the same one `.ci/run` takes.
fn test_command(readme: &str) -> Result<String> {
    let (_, after) = readme.split_once("<!-- ci:test -->").context("README.md has no `ci:test` mark")?;
    let mut blocks = after.split("```");
    let block = blocks.nth(1).context("README.md has no code block after the `ci:test` mark")?;
    let command = block.split_once('\n').map_or("", |(_, command)| command).trim();
    if command.is_empty() {
        bail!("the code block after the `ci:test` mark in README.md is empty");
    }
    Ok(command.to_owned())
}

#[cfg(test)]
mod tests {
    use super::test_command;

    #[test]
    fn the_test_command_is_the_block_after_the_mark() {
        let readme = "# x\n```sh\nother\n```\n<!-- ci:test -->\n```sh\ncargo test --workspace\n```\n";
        assert_eq!(test_command(readme).unwrap(), "cargo test --workspace");
        assert!(test_command("# x\n").unwrap_err().to_string().contains("no `ci:test` mark"));
        assert!(test_command("<!-- ci:test -->\n```sh\n\n```\n").unwrap_err().to_string().contains("is empty"));
    }

    #[test]
    fn the_readme_has_one() {
        let readme = std::fs::read_to_string(crate::root().join("README.md")).unwrap();
        assert!(test_command(&readme).unwrap().starts_with("cargo test"));
    }
}
