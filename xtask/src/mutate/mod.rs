//! `cargo xtask mutate [--again] [WORD...]`: takes every check out of the verifier, one at a time, and looks whether a test notices.
//!
//! All mutants are compiled at once: a copy of the workspace gets a switch at every site ([`sites`]), `SKEP_MUTANT` turns one
//! of them at run time. Sites that do not compile so are left out. A mutant that no test notices is a survivor: it needs a
//! test (`--again` tries only those that survived last time), or a line with a reason in `xtask/mutants.txt` (`FILE | KIND | LINE OF SOURCE | WHY NOTHING CHANGES`).

mod sites;

use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail, ensure};
use sites::Site;

use crate::{files_below, relative, root};

/// Files whose mutants change words, not verdicts.
const LEFT_OUT: &[&str] = &["lib.rs", "log.rs", "reject.rs"];

/// Test programs in the order they are asked, quick ones first.
const TESTS: &[&str] = &["skep_verifier", "cases", "forms", "objects", "scalars", "garbage", "soundness"];

/// A mutant that takes longer has lost its way.
const PATIENCE: Duration = Duration::from_secs(90);

/// The switch, in the copy.
const SWITCH: &str = r#"//! Switches of the mutants.
use std::sync::OnceLock;
static CHOSEN: OnceLock<u32> = OnceLock::new();
pub(crate) fn on(n: u32) -> bool {
    *CHOSEN.get_or_init(|| std::env::var("SKEP_MUTANT").ok().and_then(|s| s.parse().ok()).unwrap_or(0)) == n
}
pub(crate) fn keep<T: Accept, E>(n: u32, r: Result<T, E>) -> Result<T, E> {
    if on(n) { Ok(T::accept()) } else { r }
}
pub(crate) trait Accept {
    fn accept() -> Self;
}
macro_rules! accept {
    ($($t:ty = $v:expr;)*) => { $(impl Accept for $t { fn accept() -> Self { $v } })* };
}
accept! {
    () = ();
    bool = true;
    usize = 0;
    u32 = 0;
    u64 = 0;
    i32 = 0;
    i64 = 0;
    (i32, i32) = (-8, -8);
    Option<usize> = None;
    crate::reg::Reg = crate::reg::Reg::UNKNOWN;
    crate::scalar::Scalar = crate::scalar::Scalar::UNKNOWN;
}
"#;

/// Runs the mutants whose file or line has one of the words, or all.
pub fn run(args: &[&str]) -> Result<()> {
    let (again, words) = match args {
        ["--again", words @ ..] => (true, words),
        words => (false, words),
    };
    let place = root().join("target/mutate");
    let tree = place.join("tree");
    copy_workspace(&tree)?;
    let src = tree.join("crates/verifier/src");
    let sites = plant(&src, &place)?;
    let kept = place.join("survivors.txt");
    let last: BTreeSet<String> = if again { std::fs::read_to_string(&kept)?.lines().map(str::to_owned).collect() } else { BTreeSet::new() };
    let chosen: Vec<&Site> = sites
        .iter()
        .filter(|s| words.is_empty() || words.iter().any(|w| s.file.contains(w) || s.line.contains(w)))
        .filter(|s| !again || last.contains(&s.key()))
        .collect();
    println!("{} mutants, {} of them chosen", sites.len(), chosen.len());
    let tests = build(&tree, &place)?;
    for (name, path) in &tests {
        let start = Instant::now();
        ensure!(passes(path, 0, &tree)?, "`{name}` fails without a mutant");
        println!("  {name}: {:.1} s", start.elapsed().as_secs_f64());
    }
    let excused = excused()?;
    let (mut killed, mut equivalent, mut alive) = (BTreeMap::<&str, usize>::new(), 0, Vec::new());
    let start = Instant::now();
    for (n, site) in chosen.iter().enumerate() {
        let mut by = None;
        for (name, path) in &tests {
            if !passes(path, site.number, &tree)? {
                by = Some(name.as_str());
                break;
            }
        }
        match by {
            Some(name) => *killed.entry(TESTS.iter().find(|t| **t == name).unwrap_or(&"?")).or_default() += 1,
            None if excused.contains(&site.key()) => equivalent += 1,
            None => {
                println!("survives: {}:{}: {}: {}", site.file, site.at + 1, site.kind, site.line.trim());
                alive.push(site);
            }
        }
        if (n + 1) % 50 == 0 {
            println!("{} of {}, {} alive, {:.0} s", n + 1, chosen.len(), alive.len(), start.elapsed().as_secs_f64());
        }
    }
    std::fs::write(&kept, alive.iter().map(|s| s.key() + "\n").collect::<String>())?;
    let dead: usize = killed.values().sum();
    println!("{} mutants: {dead} killed ({killed:?}), {equivalent} change nothing, {} survive", chosen.len(), alive.len());
    if !alive.is_empty() {
        bail!("{} mutants that no test notices", alive.len());
    }
    Ok(())
}

/// What `xtask/mutants.txt` says changes nothing.
fn excused() -> Result<BTreeSet<String>> {
    let path = root().join("xtask/mutants.txt");
    let text = std::fs::read_to_string(&path).with_context(|| format!("cannot read `{}`", relative(&path)))?;
    let key = |line: &str| {
        let parts: Vec<&str> = line.split(" | ").collect();
        match parts.as_slice() {
            [file, kind, line @ .., _reason] if !line.is_empty() => Some(format!("{file} | {kind} | {}", line.join(" | "))),
            _ => None,
        }
    };
    Ok(text.lines().filter(|l| !l.starts_with('#')).filter_map(key).collect())
}

/// Copies what is committed or lies there, without what was built.
fn copy_workspace(tree: &Path) -> Result<()> {
    for dir in ["crates", "xtask", "benches"] {
        for path in files_below(&root().join(dir), &|_| true)? {
            copy(&path, &tree.join(relative(&path)))?;
        }
    }
    for file in ["Cargo.toml", "Cargo.lock", "README.md"] {
        copy(&root().join(file), &tree.join(file))?;
    }
    Ok(())
}

/// Copies unless nothing changed, so that little is built again.
fn copy(from: &Path, to: &Path) -> Result<()> {
    let bytes = std::fs::read(from).with_context(|| format!("cannot read `{}`", from.display()))?;
    if std::fs::read(to).is_ok_and(|old| old == bytes) {
        return Ok(());
    }
    std::fs::create_dir_all(to.parent().context("a file has a folder")?)?;
    std::fs::write(to, bytes).with_context(|| format!("cannot write `{}`", to.display()))
}

/// Puts a switch at every site of the copy that compiles with one.
fn plant(src: &Path, place: &Path) -> Result<Vec<Site>> {
    let original = root().join("crates/verifier/src");
    let mut sites = Vec::new();
    let mut sources: Vec<(PathBuf, String)> = Vec::new();
    for path in files_below(&original, &|p| p.extension().is_some_and(|e| e == "rs"))? {
        let name = path.strip_prefix(&original)?.display().to_string();
        let text = std::fs::read_to_string(&path)?;
        if !LEFT_OUT.contains(&name.as_str()) {
            sites.extend(sites::find(&name, &text));
        }
        sources.push((PathBuf::from(name), text));
    }
    for (n, site) in sites.iter_mut().enumerate() {
        site.number = n as u32 + 1;
    }
    let tree = src.ancestors().nth(3).context("a folder of a workspace")?;
    let mut dropped = 0;
    for _ in 0..25 {
        std::fs::write(src.join("mutant.rs"), SWITCH)?;
        for (name, text) in &sources {
            let mut text = sites::apply(text, sites.iter().filter(|s| Path::new(&s.file) == name));
            if name == Path::new("lib.rs") {
                text =
                    text.replacen("\nmod check;", "\nmod mutant;\nmod check;", 1).replace("#![forbid(unsafe_code)]", "#![allow(warnings)]");
            }
            std::fs::write(src.join(name), text)?;
        }
        let bad = errors(tree, place)?;
        if bad.is_empty() {
            println!("{} sites, {dropped} more do not compile with a switch", sites.len());
            return Ok(sites);
        }
        let before = sites.len();
        sites.retain(|s| !bad.contains(&(s.file.clone(), s.at)));
        ensure!(sites.len() < before, "the copy does not compile: {bad:?}");
        dropped += before - sites.len();
    }
    bail!("too many sites do not compile with a switch");
}

/// Where the copy does not compile.
fn errors(tree: &Path, place: &Path) -> Result<BTreeSet<(String, usize)>> {
    let out = command(tree, place).args(["check", "-q", "-p", "skep-verifier", "--lib", "--message-format", "short"]).output()?;
    let text = String::from_utf8_lossy(&out.stderr);
    let place = |line: &str| {
        let rest = line.strip_prefix("crates/verifier/src/")?;
        let mut parts = rest.split(':');
        let (file, at) = (parts.next()?, parts.next()?.parse::<usize>().ok()?);
        rest.contains(": error").then(|| (file.to_owned(), at - 1))
    };
    let found: BTreeSet<_> = text.lines().filter_map(place).collect();
    ensure!(out.status.success() || !found.is_empty(), "the copy does not compile:\n{text}");
    Ok(found)
}

fn command(tree: &Path, place: &Path) -> Command {
    let mut c = Command::new(std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into()));
    c.current_dir(tree).env("CARGO_TARGET_DIR", place.join("build"));
    c
}

/// Builds the tests of the copy; name and path of each.
fn build(tree: &Path, place: &Path) -> Result<Vec<(String, PathBuf)>> {
    let mut c = command(tree, place);
    c.args(["test", "--release", "--no-run", "-p", "skep-verifier", "--lib", "--tests"])
        .env("CARGO_PROFILE_RELEASE_DEBUG_ASSERTIONS", "true");
    let out = c.output()?;
    let text = String::from_utf8_lossy(&out.stderr);
    ensure!(out.status.success(), "the tests do not compile:\n{text}");
    let mut found = Vec::new();
    for name in TESTS {
        let path = text.lines().find_map(|l| {
            let path = l.rsplit_once('(')?.1.strip_suffix(')')?;
            let stem = Path::new(path).file_name()?.to_str()?.rsplit_once('-')?.0;
            (stem == *name).then(|| tree.join(path))
        });
        found.push(((*name).to_owned(), path.with_context(|| format!("no test `{name}` in:\n{text}"))?));
    }
    Ok(found)
}

/// Runs a test program with one switch turned; one that does not come to an end has failed.
fn passes(test: &Path, mutant: u32, tree: &Path) -> Result<bool> {
    let mut child = Command::new(test)
        .current_dir(tree.join("crates/verifier"))
        .env("SKEP_MUTANT", mutant.to_string())
        .env("SKEP_SEED", "5eed")
        .env("RUST_BACKTRACE", "0")
        .stdout(Stdio::null())
        .stderr(Stdio::null())
        .spawn()
        .with_context(|| format!("cannot run `{}`", test.display()))?;
    let start = Instant::now();
    let mut pause = Duration::from_millis(5);
    loop {
        if let Some(status) = child.try_wait()? {
            return Ok(status.success());
        }
        if start.elapsed() > PATIENCE {
            child.kill()?;
            child.wait()?;
            return Ok(false);
        }
        std::thread::sleep(pause);
        pause = (pause * 2).min(Duration::from_millis(50));
    }
}
