//! `cargo xtask mutate [--again] [WORD...]`: takes every check out of the verifier, one at a time,
//! and looks whether a test notices.
//!
//! All mutants are compiled at once: a copy of the workspace gets a switch at every site
//! ([`sites`]), `SKEP_MUTANT` turns one of them at run time. Sites that do not compile so are left
//! out. A run of each test program without a mutant tells which switches would have changed
//! something on its way; only those test programs are asked about a mutant, the quick ones first.
//! Before them all mutants meet all cases (`crates/verifier/tests/data`) in one process, which
//! takes seconds.
//!
//! A mutant that no test notices is a survivor: it needs a test, or a line with a reason in
//! `xtask/mutants.txt` (`FILE | KIND | LINE OF SOURCE | WHY NOTHING CHANGES`). What came out is
//! written down at once, so that `--again` tries those that are not known to be killed: the
//! survivors, and what an earlier run did not come to. It takes the word of `mutants.txt` for the
//! others.

mod sites;

use std::collections::{BTreeMap, BTreeSet};
use std::io::Write;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::Mutex;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail, ensure};
use sites::Site;

use crate::{files_below, relative, root};

/// Files whose mutants change words, not verdicts, and tests.
const LEFT_OUT: &[&str] =
    &["check/shortest.rs", "lib.rs", "log.rs", "prune/tests.rs", "show.rs", "slice.rs", "trace.rs"];
/// And folders of such files.
const LEFT_OUT_FOLDERS: &[&str] = &["reject/"];

/// Test programs in the order they are asked, quick ones first, and which of their tests.
const TESTS: &[(&str, &str)] = &[
    ("skep_verifier", ""),
    ("joins", ""),
    ("fields", ""),
    ("info", ""),
    ("cases", "loads_that_are_not_aligned_may_be_refused"),
    ("scalars", "no_operation_forgets_more_than_it_must"),
    ("objects", ""),
    ("log", ""),
    ("garbage", ""),
    ("forms", ""),
    ("scalars", ""),
    ("soundness", "real_programs_with_one_damaged_instruction_do_nothing_forbidden"),
    ("soundness", "accepted_programs_do_nothing_forbidden"),
];

/// Processor time beyond twice that of the run without a mutant: a mutant that takes longer has
/// lost its way.
const PATIENCE: Duration = Duration::from_secs(5);

/// Test programs that run at a time.
const WORKERS: usize = 2;

/// The switch, in the copy. What it would have done is noted where it changes something: the sites
/// ask it last.
const SWITCH: &str = r#"//! Switches of the mutants.
use std::io::Write;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
static CHOSEN: AtomicU32 = AtomicU32::new(u32::MAX);
static SEEN: [AtomicBool; 8192] = [const { AtomicBool::new(false) }; 8192];
pub fn choose(n: u32) {
    CHOSEN.store(n, Ordering::Relaxed);
}
/// What was reached since the last call.
pub fn take_seen() -> Vec<u32> {
    (0..8192).filter(|n| SEEN[*n as usize].swap(false, Ordering::Relaxed)).collect()
}
pub(crate) fn on(n: u32) -> bool {
    match CHOSEN.load(Ordering::Relaxed) {
        0 => note(n),
        u32::MAX => {
            choose(std::env::var("SKEP_MUTANT").ok().and_then(|s| s.parse().ok()).unwrap_or(0));
            on(n)
        }
        chosen => chosen == n,
    }
}
fn note(n: u32) -> bool {
    if !SEEN[n as usize].swap(true, Ordering::Relaxed) {
        if let Some(path) = std::env::var_os("SKEP_REACHED") {
            let mut file = std::fs::OpenOptions::new().append(true).create(true).open(path).expect("the list of what was reached");
            file.write_all(format!("{n}\n").as_bytes()).expect("the list of what was reached");
        }
    }
    false
}
pub(crate) fn other(n: u32, is: bool, other: bool) -> bool {
    if is != other && on(n) { other } else { is }
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

/// A test of the copy: all mutants against all cases on whose way they change something, in one
/// process.
const MATRIX: &str = r#"#[allow(dead_code)]
mod case;
use skep_verifier::{Options, Prune, mutant, verify};
use std::io::Write;
fn good(c: &case::Case, prune: Prune) -> bool {
    let mut options = Options::default();
    options.limit = 50_000;
    options.prune = prune;
    options.strict = c.strict;
    options.offered_only = c.offered;
    options.target.clone_from(&c.target);
    let ok = match (verify(&c.prog, &options), &c.refuse) {
        (Ok(_), None) => true,
        (Err(r), Some((at, message))) => at.is_none_or(|at| r.insn == at) && r.reason.to_string().starts_with(message.as_str()),
        _ => false,
    };
    options.strict = false;
    ok && (!c.strict || c.refuse.is_none() || verify(&c.prog, &options).is_ok())
}
#[test]
fn mutants_against_cases() {
    let Some(path) = std::env::var_os("SKEP_MATRIX") else { return };
    let from: u32 = std::env::var("SKEP_FROM").ok().and_then(|s| s.parse().ok()).unwrap_or(1);
    let chosen = std::env::var("SKEP_CHOSEN").unwrap_or_default();
    let cases = case::all();
    let mut reach = vec![Vec::new(); 8192];
    mutant::choose(0);
    for c in &cases {
        for prune in [Prune::Usual, Prune::Always] {
            mutant::take_seen();
            assert!(good(c, prune), "{}", c.name);
            for n in mutant::take_seen() {
                reach[n as usize].push((c, prune));
            }
        }
    }
    std::panic::set_hook(Box::new(|_| {}));
    let mut file = std::fs::OpenOptions::new().append(true).create(true).open(path).expect("a list");
    for n in chosen.split(' ').filter_map(|n| n.parse::<u32>().ok()).filter(|n| *n >= from) {
        mutant::choose(n);
        let fails = |(c, prune): &(&case::Case, Prune)| {
            std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| !good(c, *prune))).unwrap_or(true)
        };
        let killed = reach[n as usize].iter().any(fails);
        writeln!(file, "{n} {}", if killed { "killed" } else { "alive" }).expect("a list");
    }
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
    let kept = place.join("results.txt");
    let mut known = if again { results(&kept)? } else { BTreeMap::new() };
    let excused = excused()?;
    let mut chosen: Vec<&Site> = sites
        .iter()
        .filter(|s| {
            words.is_empty() || words.iter().any(|w| s.file.contains(w) || s.line.contains(w))
        })
        .filter(|s| known.get(&s.name()) != Some(&true))
        .collect();
    let all = chosen.len();
    chosen.retain(|s| !(again && excused.contains(&s.key())));
    println!(
        "{} mutants, {all} of them chosen, of which {} are excused",
        sites.len(),
        all - chosen.len()
    );
    let mut built = build(&tree, &place)?;
    let (_, _, path) = built.remove(0);
    let numbers: Vec<u32> = chosen.iter().map(|s| s.number).collect();
    let by_cases = matrix(&path, &numbers, &tree, &place)?;
    println!("  cases: {} mutants killed", by_cases.len());
    let tests = baseline(built, &tree, &place)?;
    let reached = |s: &Site| tests.iter().any(|t| t.reaches.contains(&s.number));
    // What is known already, first.
    chosen.sort_by_key(|s| (!by_cases.contains(&s.number), reached(s)));
    println!(
        "{} of them change nothing on the way of any test",
        chosen.iter().filter(|s| !reached(s)).count()
    );
    let mut file = std::fs::File::create(&kept)?;
    known.retain(|_, killed| *killed);
    for name in known.keys() {
        writeln!(file, "killed | {name}")?;
    }
    let (next, out) = (
        AtomicUsize::new(0),
        Mutex::new((BTreeMap::<&str, usize>::new(), Vec::<&Site>::new(), file)),
    );
    let start = Instant::now();
    let worker = || -> Result<()> {
        loop {
            let n = next.fetch_add(1, Ordering::Relaxed);
            let Some(site) = chosen.get(n) else { return Ok(()) };
            let mut by = by_cases.contains(&site.number).then_some("cases");
            for test in tests.iter().filter(|t| t.reaches.contains(&site.number)) {
                if by.is_some() {
                    break;
                }
                by = (!test.passes(site.number, &tree)?).then_some(test.name);
            }
            let Ok(mut out) = out.lock() else { bail!("another worker has failed") };
            let (killed, alive, file) = &mut *out;
            writeln!(file, "{} | {}", if by.is_some() { "killed" } else { "alive" }, site.name())?;
            match by {
                Some(name) => *killed.entry(name).or_default() += 1,
                None => alive.push(site),
            }
            if (n + 1).is_multiple_of(100) {
                println!(
                    "{} of {}, {} alive, {:.0} s",
                    n + 1,
                    chosen.len(),
                    alive.len(),
                    start.elapsed().as_secs_f64()
                );
            }
        }
    };
    std::thread::scope(|scope| {
        let workers: Vec<_> = (0..WORKERS).map(|_| scope.spawn(worker)).collect();
        workers
            .into_iter()
            .try_for_each(|w| w.join().unwrap_or_else(|_| bail!("a worker panicked")))
    })?;
    let Ok((killed, mut alive, _)) = out.into_inner() else { bail!("a worker has failed") };
    alive.sort_by_key(|s| s.number);
    let (equivalent, alive): (Vec<&Site>, Vec<&Site>) =
        alive.into_iter().partition(|s| excused.contains(&s.key()));
    for site in &alive {
        let how = if reached(site) { "survives" } else { "untested" };
        println!("{how}: {}:{}: {}", site.file, site.at + 1, site.key());
    }
    let there: BTreeSet<String> = sites.iter().map(Site::key).collect();
    for line in excused.difference(&there) {
        println!("in mutants.txt, but no mutant: {line}");
    }
    let dead: usize = killed.values().sum();
    println!(
        "{} mutants: {dead} killed {killed:?}, {} change nothing, {} survive",
        chosen.len(),
        equivalent.len(),
        alive.len()
    );
    if !alive.is_empty() {
        bail!("{} mutants that no test notices", alive.len());
    }
    Ok(())
}

/// What an earlier run found: names of mutants, and whether they were killed.
fn results(path: &Path) -> Result<BTreeMap<String, bool>> {
    let text = std::fs::read_to_string(path)
        .with_context(|| format!("cannot read `{}`: run without `--again`", path.display()))?;
    let line =
        |l: &str| l.split_once(" | ").map(|(what, name)| (name.to_owned(), what == "killed"));
    Ok(text.lines().filter_map(line).collect())
}

/// What `xtask/mutants.txt` says changes nothing.
fn excused() -> Result<BTreeSet<String>> {
    let path = root().join("xtask/mutants.txt");
    let text = std::fs::read_to_string(&path)
        .with_context(|| format!("cannot read `{}`", relative(&path)))?;
    let key = |line: &str| {
        let parts: Vec<&str> = line.split(" | ").collect();
        match parts.as_slice() {
            [file, kind, line @ .., _reason] if !line.is_empty() => {
                Some(format!("{file} | {kind} | {}", line.join(" | ")))
            }
            _ => None,
        }
    };
    Ok(text.lines().filter(|l| !l.starts_with('#')).filter_map(key).collect())
}

/// Copies what is committed or lies there, without what was built.
fn copy_workspace(tree: &Path) -> Result<()> {
    for dir in ["crates", "xtask", "benches"] {
        // The verifier itself gets its switches.
        for path in
            files_below(&root().join(dir), &|p| !p.starts_with(root().join("crates/verifier/src")))?
        {
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
    put(&std::fs::read(from).with_context(|| format!("cannot read `{}`", from.display()))?, to)
}

fn put(bytes: &[u8], to: &Path) -> Result<()> {
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
        if !LEFT_OUT.contains(&name.as_str())
            && !LEFT_OUT_FOLDERS.iter().any(|folder| name.starts_with(folder))
        {
            sites.extend(sites::find(&name, &text));
        }
        sources.push((PathBuf::from(name), text));
    }
    for (n, site) in sites.iter_mut().enumerate() {
        site.number = n as u32 + 1;
    }
    let tree = src.ancestors().nth(3).context("a folder of a workspace")?;
    // Those of the last time at once.
    let refused = place.join("refused.txt");
    let mut dropped: BTreeSet<String> =
        std::fs::read_to_string(&refused).unwrap_or_default().lines().map(str::to_owned).collect();
    sites.retain(|s| !dropped.contains(&s.name()));
    for _ in 0..25 {
        put(SWITCH.as_bytes(), &src.join("mutant.rs"))?;
        put(MATRIX.as_bytes(), &src.with_file_name("tests").join("matrix.rs"))?;
        for (name, text) in &sources {
            let mut text = sites::apply(text, sites.iter().filter(|s| Path::new(&s.file) == name));
            if name == Path::new("lib.rs") {
                text = text
                    .replacen("\nmod check;", "\npub mod mutant;\nmod check;", 1)
                    .replace("#![forbid(unsafe_code)]", "#![allow(warnings)]");
            }
            put(text.as_bytes(), &src.join(name))?;
        }
        let bad = errors(tree, place)?;
        if bad.is_empty() {
            println!("{} sites, {} more do not compile with a switch", sites.len(), dropped.len());
            return Ok(sites);
        }
        let before = dropped.len();
        let is_bad = |s: &Site| bad.contains(&(s.file.clone(), s.at));
        dropped.extend(sites.iter().filter(|s| is_bad(s)).map(Site::name));
        sites.retain(|s| !is_bad(s));
        ensure!(dropped.len() > before, "the copy does not compile: {bad:?}");
        std::fs::write(&refused, dropped.iter().map(|n| n.clone() + "\n").collect::<String>())?;
    }
    bail!("too many sites do not compile with a switch");
}

/// Where the copy does not compile.
fn errors(tree: &Path, place: &Path) -> Result<BTreeSet<(String, usize)>> {
    let out = command(tree, place)
        .args(["check", "-q", "-p", "skep-verifier", "--lib", "--message-format", "short"])
        .output()?;
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
fn build(tree: &Path, place: &Path) -> Result<Vec<(&'static str, &'static str, PathBuf)>> {
    let mut c = command(tree, place);
    c.args(["test", "--release", "--no-run", "-p", "skep-verifier", "--lib", "--tests"])
        .env("CARGO_PROFILE_RELEASE_DEBUG_ASSERTIONS", "true")
        // Many programs that run for seconds.
        .env("CARGO_PROFILE_RELEASE_LTO", "off")
        .env("CARGO_PROFILE_RELEASE_CODEGEN_UNITS", "16");
    let out = c.output()?;
    let text = String::from_utf8_lossy(&out.stderr);
    ensure!(out.status.success(), "the tests do not compile:\n{text}");
    let mut found = Vec::new();
    for (name, only) in [("matrix", "")].iter().chain(TESTS) {
        let path = text.lines().find_map(|l| {
            let path = l.rsplit_once('(')?.1.strip_suffix(')')?;
            let stem = Path::new(path).file_name()?.to_str()?.rsplit_once('-')?.0;
            (stem == *name).then(|| tree.join(path))
        });
        found.push((*name, *only, path.with_context(|| format!("no test `{name}` in:\n{text}"))?));
    }
    Ok(found)
}

/// Mutants that cases kill. A mutant that ends the process, or takes a minute, is started behind.
fn matrix(path: &Path, chosen: &[u32], tree: &Path, place: &Path) -> Result<BTreeSet<u32>> {
    let list = place.join("matrix.txt");
    std::fs::write(&list, "")?;
    let numbers = chosen.iter().map(u32::to_string).collect::<Vec<_>>().join(" ");
    let (mut killed, mut from) = (BTreeSet::new(), 1);
    loop {
        let mut child = command_of(path, "", 0, tree)
            .env("SKEP_MATRIX", &list)
            .env("SKEP_CHOSEN", &numbers)
            .env("SKEP_FROM", from.to_string())
            .spawn()?;
        let (mut size, mut since) = (0, Instant::now());
        let done = loop {
            if let Some(status) = child.try_wait()? {
                break status.success();
            }
            let now = std::fs::metadata(&list)?.len();
            if now != size {
                (size, since) = (now, Instant::now());
            } else if since.elapsed() > Duration::from_secs(60) {
                child.kill()?;
                child.wait()?;
                break false;
            }
            std::thread::sleep(Duration::from_millis(20));
        };
        let text = std::fs::read_to_string(&list)?;
        killed.extend(text.lines().filter_map(|l| l.strip_suffix(" killed")?.parse::<u32>().ok()));
        if done {
            return Ok(killed);
        }
        let last = text
            .lines()
            .last()
            .and_then(|l| l.split(' ').next()?.parse::<u32>().ok())
            .unwrap_or(0)
            .max(from - 1);
        ensure!(!text.is_empty() || from > 1, "the cases fail without a mutant");
        let Some(at_fault) = chosen.iter().copied().find(|n| *n > last) else { return Ok(killed) };
        killed.insert(at_fault);
        from = at_fault + 1;
    }
}

/// A test program.
struct Test {
    name: &'static str,
    /// The one of its tests that is meant, or all.
    only: &'static str,
    path: PathBuf,
    /// Processor time without a mutant.
    takes: Duration,
    /// Mutants that change something on its way.
    reaches: BTreeSet<u32>,
}

/// Runs all test programs without a mutant.
fn baseline(
    found: Vec<(&'static str, &'static str, PathBuf)>,
    tree: &Path,
    place: &Path,
) -> Result<Vec<Test>> {
    let mut tests = Vec::new();
    for (name, only, path) in found {
        let list = place.join(format!("{name}-{only}.reached"));
        std::fs::write(&list, "")?;
        let mut child = command_of(&path, only, 0, tree).env("SKEP_REACHED", &list).spawn()?;
        let (passed, takes) = wait(&mut child, Duration::MAX)?;
        ensure!(passed, "`{name}` fails without a mutant");
        let reaches: BTreeSet<u32> =
            std::fs::read_to_string(&list)?.lines().filter_map(|l| l.parse().ok()).collect();
        println!("  {name} {only}: {:.1} s, {} mutants", takes.as_secs_f64(), reaches.len());
        tests.push(Test { name, only, path, takes, reaches });
    }
    Ok(tests)
}

fn command_of(test: &Path, only: &str, mutant: u32, tree: &Path) -> Command {
    let mut c = Command::new(test);
    if !only.is_empty() {
        c.args(["--exact", only]);
    }
    c.current_dir(tree.join("crates/verifier"))
        .env("SKEP_MUTANT", mutant.to_string())
        .env("SKEP_SEED", "5eed")
        .env("RUST_BACKTRACE", "0")
        .env("RUST_TEST_THREADS", "1")
        .stdout(Stdio::null())
        .stderr(Stdio::null());
    c
}

impl Test {
    /// Runs it with one switch turned; one that does not come to an end has failed.
    fn passes(&self, mutant: u32, tree: &Path) -> Result<bool> {
        let mut child = command_of(&self.path, self.only, mutant, tree)
            .spawn()
            .with_context(|| format!("cannot run `{}`", self.path.display()))?;
        Ok(wait(&mut child, self.takes * 2 + PATIENCE)?.0)
    }
}

/// Waits for a process to end, with success or not, and ends it when it has taken too much
/// processor time; that time.
fn wait(child: &mut std::process::Child, limit: Duration) -> Result<(bool, Duration)> {
    let mut pause = Duration::from_millis(2);
    let mut taken = Duration::ZERO;
    loop {
        if let Some(status) = child.try_wait()? {
            return Ok((status.success(), taken));
        }
        taken = cpu_time(child.id()).unwrap_or(taken);
        if taken > limit {
            child.kill()?;
            child.wait()?;
            return Ok((false, taken));
        }
        std::thread::sleep(pause);
        pause = (pause * 2).min(Duration::from_millis(20));
    }
}

/// Processor time of a process, in ticks of 10 ms.
fn cpu_time(pid: u32) -> Option<Duration> {
    let stat = std::fs::read_to_string(format!("/proc/{pid}/stat")).ok()?;
    // Behind the name, which may hold anything: state is field 3, times are 14 and 15.
    let ticks: u64 = stat
        .rsplit_once(')')?
        .1
        .split_whitespace()
        .skip(11)
        .take(2)
        .filter_map(|t| t.parse::<u64>().ok())
        .sum();
    Some(Duration::from_millis(ticks * 10))
}
