//! Running one program alone and traced, and what came of it.

use std::collections::BTreeMap;
use std::os::unix::process::ExitStatusExt;
use std::path::{Path, PathBuf};
use std::process::{Command, ExitStatus, Stdio};
use std::time::{Duration, Instant};

use anyhow::{Context, Result};
use serde_json::Value;
use skep_testkit::TempDir;
use skep_testkit::run::run_limited;

use super::live::{self, Visitor, Visits};
use super::programs::Program;
use super::server;
use crate::root;

/// Longest a single run may take.
pub const LIMIT: Duration = Duration::from_secs(300);

/// A line of the table.
pub struct Row {
    /// The program's.
    pub name: &'static str,
    /// The program's.
    pub what: &'static str,
    /// What happened.
    pub outcome: Outcome,
}

/// What happened to a program.
pub enum Outcome {
    /// It is not installed, or does not do the work here, even alone.
    NotRun(String),
    /// It ran.
    Ran(Box<Ran>),
}

/// What runs showed.
pub struct Ran {
    /// The first line of what it says of itself.
    pub version: String,
    /// Traced runs, and as many alone or more.
    pub runs: usize,
    /// What differed, and how often; a run is in one of them.
    pub different: BTreeMap<String, usize>,
    /// Functions attached in a run.
    pub attached: u64,
    /// Calls counted in a run.
    pub calls: u64,
    /// How often skep attached while it ran.
    pub visits: usize,
    /// Seconds of all runs, alone and traced.
    pub seconds: [f64; 2],
    /// What skep said of itself, and what a reader should know.
    pub notes: Vec<String>,
    /// How to see a difference again.
    pub again: String,
}

impl Row {
    /// Tells whether some run was not the same under trace.
    pub fn is_different(&self) -> bool {
        matches!(&self.outcome, Outcome::Ran(ran) if !ran.different.is_empty())
    }
}

/// What one run showed, with nothing left in it that has to differ from run to run.
#[derive(Clone, PartialEq, Eq)]
pub struct Seen {
    /// What came on stdout; of a server, its answers.
    pub out: String,
    /// What came on stderr.
    pub err: String,
    /// How it ended: a status or a signal.
    pub end: String,
}

/// Replaces placeholders.
struct Words {
    found: Vec<PathBuf>,
    build: PathBuf,
}

impl Words {
    fn fill(&self, text: &str, here: &Path, port: u16) -> String {
        let mut text = text
            .replace("{work}", &work().to_string_lossy())
            .replace("{build}", &self.build.to_string_lossy());
        for (n, path) in self.found.iter().enumerate() {
            text = text.replace(&format!("{{{n}}}"), &path.to_string_lossy());
        }
        text.replace("{here}", &here.to_string_lossy())
            .replace("{port}", &port.to_string())
            .replace("{{", "{")
            .replace("}}", "}")
    }
}

fn work() -> PathBuf {
    root().join("xtask/world")
}

/// Runs one row of the table; `live`: skep attaches while the program runs.
pub fn row(program: &Program, runs: usize, live: bool) -> Result<Row> {
    let row = |outcome| Ok(Row { name: program.name, what: program.what, outcome });
    let mut found = Vec::new();
    for need in program.needs {
        match need.split('|').find_map(find) {
            Some(path) => found.push(path),
            None => {
                return row(Outcome::NotRun(format!(
                    "`{}` is not installed",
                    need.split('|').next().unwrap_or(need)
                )));
            }
        }
    }
    let build = TempDir::new();
    let words = Words { found, build: build.path().to_owned() };
    let version = match version(program, &words, build.path()) {
        Some(version) => version,
        None => {
            return row(Outcome::NotRun(format!(
                "`{}` does not tell its version",
                words.found[0].display()
            )));
        }
    };
    for line in program.prepare {
        let line: Vec<String> = line.iter().map(|word| words.fill(word, build.path(), 0)).collect();
        let mut command = command(&line, build.path());
        // What compilers keep for the next time.
        command.env("HOME", std::env::var_os("HOME").unwrap_or_else(|| build.path().into()));
        let (ended, _) = run_limited(&mut command, b"", LIMIT)
            .with_context(|| format!("cannot run `{}`", line.join(" ")))?;
        if !ended.status.success() {
            let said = String::from_utf8_lossy(&ended.stderr)
                .lines()
                .next()
                .unwrap_or_default()
                .to_owned();
            return row(Outcome::NotRun(format!("`{}` fails: {said}", line.join(" "))));
        }
    }
    let mut ran = Ran {
        version,
        runs,
        different: BTreeMap::new(),
        attached: 0,
        calls: 0,
        visits: 0,
        seconds: [0.0; 2],
        notes: Vec::new(),
        again: again(program, &words, live),
    };
    let rounds = if live { live::ROUNDS } else { server::ROUNDS };
    let mut alone: Vec<Seen> = Vec::new();
    for _ in 0..runs {
        let start = Instant::now();
        let seen = once(program, rounds, &words, &Tracing::None)?.seen;
        ran.seconds[0] += start.elapsed().as_secs_f64();
        if seen.end != told(program.status) {
            let last = seen.err.lines().last().map_or(String::new(), |line| format!(": {line}"));
            return row(Outcome::NotRun(format!(
                "alone, {}, not {}{last}",
                seen.end,
                told(program.status)
            )));
        }
        if !alone.contains(&seen) {
            alone.push(seen);
        }
    }
    if alone.len() > 1 {
        ran.notes.push(format!("alone, {} different outcomes", alone.len()));
    }
    for n in 0..runs {
        let reports = TempDir::in_memory();
        let start = Instant::now();
        let tracing = if live {
            // At another point of the work each time.
            let alone = ran.seconds[0] / runs as f64;
            Tracing::Live(&reports, Duration::from_secs_f64(alone * n as f64 / runs as f64))
        } else {
            Tracing::Started(&reports)
        };
        let Once { seen, said, visits } = once(program, rounds, &words, &tracing)?;
        ran.seconds[1] += start.elapsed().as_secs_f64();
        take_report(&mut ran, &reports.join("report.json"));
        visits.reports.iter().for_each(|report| take_report(&mut ran, report));
        ran.visits += visits.made;
        for line in said.into_iter().chain(visits.said) {
            if !ran.notes.contains(&line) {
                ran.notes.push(line);
            }
        }
        if !alone.contains(&seen) {
            if ran.different.is_empty() {
                keep(program.name, n, &alone[0], &seen)?;
            }
            *ran.different.entry(difference(&alone[0], &seen)).or_default() += 1;
            if seen.end == NEVER {
                // One such run has taken long enough.
                ran.runs = n + 1;
                break;
            }
        }
    }
    row(Outcome::Ran(Box::new(ran)))
}

/// One run.
struct Once {
    seen: Seen,
    /// What skep itself said, after the program's own words.
    said: Vec<String>,
    visits: Visits,
}

/// How a run that had to be ended is told.
const NEVER: &str = "did not end";

/// What skep does in a run. Its report goes into the folder.
enum Tracing<'a> {
    None,
    Started(&'a TempDir),
    /// It attaches so long after the start.
    Live(&'a TempDir, Duration),
}

/// A server is asked so many rounds of requests.
fn once(program: &Program, rounds: usize, words: &Words, tracing: &Tracing<'_>) -> Result<Once> {
    let here = TempDir::new();
    let port =
        if program.client.is_some() || program.config.is_some() { server::free_port()? } else { 0 };
    if let Some(config) = program.config {
        let text = std::fs::read_to_string(work().join(config))
            .with_context(|| format!("cannot read `{config}`"))?;
        std::fs::write(here.join(config), text.replace("{port}", &port.to_string()))
            .with_context(|| format!("cannot write `{config}`"))?;
    }
    let line: Vec<String> =
        program.command.iter().map(|word| words.fill(word, here.path(), port)).collect();
    let visitor = match tracing {
        Tracing::Live(reports, after) => Some(Visitor::new(reports, *after, LIMIT)),
        _ => None,
    };
    let line = match tracing {
        Tracing::None => line,
        Tracing::Live(reports, _) => Visitor::told_of(&line, reports),
        Tracing::Started(reports) => {
            let out = reports.join("report.json").display().to_string();
            let skep = skep_testkit::trace::skep_bin().display().to_string();
            [
                skep,
                "trace".into(),
                "*".into(),
                "--quiet".into(),
                "--json".into(),
                "-o".into(),
                out,
                "--".into(),
            ]
            .into_iter()
            .chain(line)
            .collect()
        }
    };
    let mut command = command(&line, here.path());
    let started = matches!(tracing, Tracing::Started(_));
    if let Tracing::Started(reports) = tracing {
        command.env("SKEP_DIR", reports.join("skep"));
    }
    let (out, err, end) = match program.client {
        Some(client) => server::run(&mut command, client, port, rounds, started)?,
        None => {
            let (ended, late) = run_limited(&mut command, b"", LIMIT)
                .with_context(|| format!("cannot run `{}`", line.join(" ")))?;
            (ended.stdout, ended.stderr, if late { NEVER.to_owned() } else { how(ended.status) })
        }
    };
    let visits = visitor.map(Visitor::end).unwrap_or_default();
    let plain = |bytes: Vec<u8>| normal(&String::from_utf8_lossy(&bytes), here.path(), port);
    let (err, said) = split_own(&plain(err), started);
    Ok(Once { seen: Seen { out: plain(out), err, end }, said, visits })
}

/// A command in a folder and an environment that are the same for both runs.
fn command(line: &[String], here: &Path) -> Command {
    let mut command = Command::new(&line[0]);
    command.args(&line[1..]).current_dir(here).env_clear();
    for name in [
        "PATH",
        "RUSTUP_HOME",
        "RUSTUP_TOOLCHAIN",
        "CARGO_HOME",
        "JAVA_HOME",
        "GOROOT",
        "GOPATH",
        "PYENV_ROOT",
    ] {
        if let Some(value) = std::env::var_os(name) {
            command.env(name, value);
        }
    }
    if let Some(home) =
        std::env::var_os("HOME").filter(|_| std::env::var_os("RUSTUP_HOME").is_none())
    {
        // Where rustup keeps its compilers when nothing is said.
        command.env("RUSTUP_HOME", Path::new(&home).join(".rustup"));
    }
    command
        .envs([("LC_ALL", "C.UTF-8"), ("TZ", "UTC"), ("TERM", "dumb")])
        .env("HOME", here)
        .env("WORK", work());
    command
}

/// Takes out what differs from run to run by its nature: the folder, the port, numbers of processes
/// where programs print them.
fn normal(text: &str, here: &Path, port: u16) -> String {
    let text = text.replace(&*here.to_string_lossy(), "HERE");
    let text = if port == 0 { text } else { without_number(&text, &port.to_string(), "PORT") };
    text.lines().map(|line| without_numbers_of_processes(line) + "\n").collect()
}

/// Puts a word in the place of a number, where it is not a part of a longer one.
fn without_number(text: &str, number: &str, word: &str) -> String {
    let (mut out, mut done) = (String::new(), 0);
    for (at, found) in text.match_indices(number) {
        let end = at + found.len();
        let is_digit = |byte: Option<&u8>| byte.is_some_and(u8::is_ascii_digit);
        let bytes = text.as_bytes();
        if !is_digit(at.checked_sub(1).and_then(|at| bytes.get(at))) && !is_digit(bytes.get(end)) {
            out.push_str(&text[done..at]);
            out.push_str(word);
            done = end;
        }
    }
    out + &text[done..]
}

/// `process 123`, `pid 123` (gdb and shells say such things).
fn without_numbers_of_processes(line: &str) -> String {
    let mut out = String::new();
    for word in line.split_inclusive(' ') {
        let digits = word.trim_end_matches([' ', ')', ']', ':', ',']);
        let is_number = !digits.is_empty() && digits.bytes().all(|b| b.is_ascii_digit());
        if is_number && ["process ", "pid ", "(process "].iter().any(|before| out.ends_with(before))
        {
            out.push('N');
            out.push_str(&word[digits.len()..]);
        } else {
            out.push_str(word);
        }
    }
    out
}

/// Parts the program's errors from what skep adds to them.
fn split_own(err: &str, traced: bool) -> (String, Vec<String>) {
    let is_own = |line: &&str| {
        traced
            && ["warning: ", "hint: ", "not traced: "].iter().any(|start| line.starts_with(start))
            && line.contains("skep")
    };
    let own = err.lines().filter(is_own).map(str::to_owned).collect();
    (err.lines().filter(|line| !is_own(line)).map(|line| format!("{line}\n")).collect(), own)
}

/// A status or a signal, as a shell tells it: a tracer's status says no more.
pub fn how(status: ExitStatus) -> String {
    told(status.code().unwrap_or_else(|| 128 + status.signal().unwrap_or(0)))
}

fn told(status: i32) -> String {
    match status {
        code @ 129..=159 => format!("status {code} (signal {})", code - 128),
        code => format!("status {code}"),
    }
}

fn take_report(ran: &mut Ran, path: &Path) {
    let Some(report) = std::fs::read_to_string(path)
        .ok()
        .and_then(|text| serde_json::from_str::<Value>(&text).ok())
    else {
        return;
    };
    let calls = report["functions"]
        .as_array()
        .into_iter()
        .flatten()
        .filter_map(|f| f["calls"].as_u64())
        .sum::<u64>();
    ran.attached = ran.attached.max(report["sites"]["attached"].as_u64().unwrap_or(0));
    ran.calls = ran.calls.max(calls);
}

/// In a few words, the first thing that is not the same.
fn difference(alone: &Seen, traced: &Seen) -> String {
    if traced.end == NEVER {
        return format!("did not end within {} s", LIMIT.as_secs());
    }
    if alone.end != traced.end {
        return format!("{}, not {}", traced.end, alone.end);
    }
    let first = |name: &str, alone: &str, traced: &str| {
        let line = alone.lines().zip(traced.lines()).take_while(|(a, b)| a == b).count();
        let show = |text: &str| {
            text.lines().nth(line).map_or("nothing".to_owned(), |l| {
                format!("`{}`", l.chars().take(60).collect::<String>())
            })
        };
        format!("{name} line {}: {}, not {}", line + 1, show(traced), show(alone))
    };
    if alone.out != traced.out {
        first("stdout", &alone.out, &traced.out)
    } else {
        first("stderr", &alone.err, &traced.err)
    }
}

/// Keeps both sides of the first difference.
fn keep(name: &str, run: usize, alone: &Seen, traced: &Seen) -> Result<()> {
    let dir = root().join("target/world");
    std::fs::create_dir_all(&dir).with_context(|| format!("cannot make `{}`", dir.display()))?;
    for (side, seen) in [("alone", alone), ("traced", traced)] {
        let text = format!(
            "traced run {}, {side}: {}\n--- stdout\n{}--- stderr\n{}",
            run + 1,
            seen.end,
            seen.out,
            seen.err
        );
        let path = dir.join(format!("{name}.{side}"));
        std::fs::write(&path, text)
            .with_context(|| format!("cannot write `{}`", path.display()))?;
    }
    Ok(())
}

/// The first command of this name in `PATH`.
fn find(name: &str) -> Option<PathBuf> {
    use std::os::unix::fs::PermissionsExt;
    let path = std::env::var_os("PATH")?;
    // Servers are where only root's path leads.
    let dirs = std::env::split_paths(&path).chain(["/usr/sbin", "/sbin"].map(PathBuf::from));
    let runs = |file: &PathBuf| {
        std::fs::metadata(file).is_ok_and(|m| m.is_file() && m.permissions().mode() & 0o111 != 0)
    };
    dirs.map(|dir| dir.join(name)).find(runs)
}

fn version(program: &Program, words: &Words, here: &Path) -> Option<String> {
    let mut line = vec![words.found[0].to_string_lossy().into_owned()];
    line.extend(program.version.iter().map(|word| words.fill(word, here, 0)));
    let ended = command(&line, here).stdin(Stdio::null()).output().ok()?;
    let said = [ended.stdout, ended.stderr].concat();
    let said = String::from_utf8_lossy(&said)
        .lines()
        .map(str::trim)
        .find(|line| !line.is_empty())?
        .to_owned();
    (ended.status.success() || !program.version.contains(&"--version")).then(|| shortened(&said))
}

/// As many whole words as fit a column.
fn shortened(text: &str) -> String {
    let mut out = String::new();
    for word in text.split_whitespace() {
        if out.len() + word.len() > 60 {
            return format!("{out} …");
        }
        out.extend([if out.is_empty() { "" } else { " " }, word]);
    }
    out
}

/// The command for a person.
fn again(program: &Program, words: &Words, live: bool) -> String {
    let line: Vec<String> =
        program.command.iter().map(|word| words.fill(word, Path::new("."), 0)).collect();
    let shown = line.iter().map(|word| {
        if word.contains([' ', ';', '\'']) { format!("{word:?}") } else { word.clone() }
    });
    let line = shown
        .collect::<Vec<_>>()
        .join(" ")
        .replace(&*root().to_string_lossy(), ".")
        .replace(&*words.build.to_string_lossy(), "BUILD");
    if live {
        return format!("WORK=xtask/world {line} & skep trace '*' --for 50ms -p $!");
    }
    format!("WORK=xtask/world skep trace '*' -o /dev/null -- {line}")
}

#[cfg(test)]
mod tests {
    use super::*;

    fn seen(out: &str, err: &str, end: &str) -> Seen {
        Seen { out: out.into(), err: err.into(), end: end.into() }
    }

    #[test]
    fn the_first_difference_is_told() {
        let alone = seen("a\nb\n", "x\n", "status 0");
        assert_eq!(
            difference(&alone, &seen("a\n", "", "status 139 (signal 11)")),
            "status 139 (signal 11), not status 0"
        );
        assert_eq!(
            difference(&alone, &seen("a\nc\n", "", "status 0")),
            "stdout line 2: `c`, not `b`"
        );
        assert_eq!(
            difference(&alone, &seen("a\nb\n", "", "status 0")),
            "stderr line 1: nothing, not `x`"
        );
    }

    #[test]
    fn what_differs_by_nature_is_taken_out() {
        let text = "[Inferior 1 (process 123) exited]\nat /tmp/x/file:8080 pid 7 at 5\n";
        assert_eq!(
            normal(text, Path::new("/tmp/x"), 8080),
            "[Inferior 1 (process N) exited]\nat HERE/file:PORT pid N at 5\n"
        );
    }

    /// Redis counted to a number that its port was a part of, and differed from itself.
    #[test]
    fn a_port_is_a_number_of_its_own() {
        let text = ":14028900 40289 402890 x40289:40289\n40289";
        assert_eq!(
            normal(text, Path::new("/tmp/x"), 40289),
            ":14028900 PORT 402890 xPORT:PORT\nPORT\n"
        );
    }

    #[test]
    fn a_program_that_dies_only_under_trace_is_seen() {
        // A stand-in for a tracer that breaks its program; a real one must not.
        let tracer = TempDir::new();
        let alone = how(Command::new("sh").args(["-c", "exit 0"]).status().unwrap());
        let killed = how(Command::new("sh")
            .args(["-c", "kill -SEGV $$"])
            .current_dir(tracer.path())
            .status()
            .unwrap());
        assert_eq!((alone.as_str(), killed.as_str()), ("status 0", "status 139 (signal 11)"));
    }
}
