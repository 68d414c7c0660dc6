//! Pages whose commands are run: their blocks of commands, what these need, and what they print.
//!
//! A block of `sh` is a shell script. A block of `text` right behind it is what it prints: each line
//! comes, in this order, with other numbers perhaps; of `text exact` with these, and of `text any`, whose
//! order depends on times, in any order. `…` stands for lines that are left out. What a reader does not
//! see is in comments before a block:
//!
//! * `<!-- needs: WORDS -->`: programs that it takes; `python3-NAME`, a module; `root`; `network`, a network
//!   and a mount namespace of its own;
//! * `<!-- setup` and lines up to `-->`: what is run before it in the same shell, unseen. What that starts
//!   in the background, with the ids in `PID` and `OTHER`, is ended with the block.

use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use skep_testkit::TempDir;
use skep_testkit::run::{Ended, run};
use skep_testkit::skip::{has_command, is_root, skip};
use skep_testkit::trace::skep_bin;

use super::{Skep, text};

const LIMIT: Duration = Duration::from_secs(300);
/// Lines that are recorded of what a command prints.
const RECORDED: usize = 12;

/// How pages call the folder that they are tried in.
const FOLDER: &str = "/home/ada";

/// The workspace.
pub fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../..")
}

/// A block of commands.
pub struct Block<'p> {
    /// The section that it is in.
    pub title: &'p str,
    /// What stands behind the fence: `sh`, or `sh` and a word.
    pub language: &'p str,
    needs: Vec<&'p str>,
    setup: &'p str,
    script: &'p str,
    output: Option<&'p str>,
    /// `text`, `text exact` or `text any`.
    form: &'p str,
}

/// A fence with what is in it: what is before, its language, its text, what is behind.
fn fence(page: &str) -> Option<(&str, &str, &str, &str)> {
    let at = if page.starts_with("```") { 0 } else { page.find("\n```")? + 1 };
    let (language, rest) = page[at + 3..].split_once('\n')?;
    let end = if rest.starts_with("```") { 0 } else { rest.find("\n```")? + 1 };
    let behind = rest[end + 3..].strip_prefix('\n').unwrap_or(&rest[end + 3..]);
    Some((&page[..at], language, &rest[..end], behind))
}

/// What stands between two words, the last time that they are there.
fn last_between<'p>(text: &'p str, from: &str, to: &str) -> &'p str {
    text.rsplit_once(from).and_then(|(_, rest)| rest.split_once(to)).map_or("", |(it, _)| it)
}

/// The blocks of commands of a page.
pub fn blocks(page: &str) -> Vec<Block<'_>> {
    let mut all = Vec::new();
    let (mut title, mut rest) = ("", page);
    while let Some((before, language, script, behind)) = fence(rest) {
        rest = behind;
        let mut headings = before.lines().filter_map(|l| l.strip_prefix("## "));
        title = headings.next_back().unwrap_or(title);
        if language != "sh" && !language.starts_with("sh ") {
            continue;
        }
        let mut block = Block {
            title,
            language,
            needs: last_between(before, "<!-- needs: ", " -->").split_whitespace().collect(),
            setup: last_between(before, "<!-- setup\n", "-->"),
            script,
            output: None,
            form: "text",
        };
        if let Some((between, language, output, _)) = fence(rest)
            && matches!(language, "text" | "text exact" | "text any")
            && between.trim().is_empty()
        {
            block.output = Some(output);
            block.form = language;
        }
        all.push(block);
    }
    all
}

/// The languages of the blocks of a page that are neither commands nor what those right before print.
pub fn other_blocks(page: &str) -> Vec<String> {
    let mut all = Vec::new();
    let (mut rest, mut is_behind_commands) = (page, false);
    while let Some((before, language, _, behind)) = fence(rest) {
        let is_commands = language == "sh" || language.starts_with("sh ");
        let is_text = matches!(language, "text" | "text exact" | "text any");
        let is_output = is_text && is_behind_commands && before.trim().is_empty();
        if !is_commands && !is_output {
            all.push(language.to_owned());
        }
        (rest, is_behind_commands) = (behind, is_commands);
    }
    all
}

impl Block<'_> {
    /// What it needs and this machine lacks.
    fn missing(&self) -> Vec<&str> {
        let is_called = |name: &&str| self.script.contains(&format!("{name} "));
        let compilers = ["cc", "clang"].into_iter().filter(is_called);
        let traced = ["gdb", "-p $PID"].iter().any(|name| self.script.contains(name));
        let ptrace = traced.then_some("the right to trace others");
        let is_there = |name: &str| match name {
            "root" => is_root(),
            "network" => is_root() && has_command("unshare"),
            // Debian's may have its version in its name: `tools`.
            "clang" => has_command("clang") || has_command("clang-19"),
            // Has no option that does nothing.
            "ip" => Command::new("ip").arg("-V").output().is_ok(),
            // May be there and not be allowed.
            "perf" => {
                let mut perf = Command::new("perf");
                perf.args(["stat", "-e", "cpu-clock", "true"]);
                perf.output().is_ok_and(|out| out.status.success())
            }
            "the right to trace others" => {
                let scope = std::fs::read_to_string("/proc/sys/kernel/yama/ptrace_scope");
                let scope: u32 = scope.ok().and_then(|s| s.trim().parse().ok()).unwrap_or(0);
                scope == 0 || scope < 3 && is_root()
            }
            _ => match name.strip_prefix("python3-") {
                Some(module) => {
                    let mut python = Command::new("python3");
                    let import = python.args(["-c", &format!("import {module}")]);
                    import.output().is_ok_and(|out| out.status.success())
                }
                None => has_command(name),
            },
        };
        let needed = self.needs.iter().copied().chain(compilers).chain(ptrace);
        needed.filter(|name| !is_there(name)).collect()
    }

    /// Runs it in a folder, with other words for some of its own.
    pub fn run_with(&self, skep: &Skep, from: &str, to: &str) -> Ended {
        self.run(skep, tools().path(), &self.script.replace(from, to))
    }

    /// Runs a script in a folder.
    fn run(&self, skep: &Skep, tools: &Path, script: &str) -> Ended {
        let bin = skep_bin().parent().expect("a folder").display().to_string();
        let path = std::env::var("PATH").unwrap_or_default();
        let mut shell = if self.needs.contains(&"network") {
            let mut unshare = Command::new("unshare");
            unshare.args(["-m", "-n", "sh"]);
            unshare
        } else {
            Command::new("sh")
        };
        // A subshell, as of `$(jobs -p)`, has no jobs in some shells.
        let script = format!(
            "trap 'kill ${{PID-}} ${{OTHER-}} 2>/dev/null || true' EXIT\n\
             {{\n:\n{}}} >/dev/null 2>setup.log\nexec 2>&1\n{}",
            self.setup, script
        );
        shell
            .args(["-eu", "-c", &script])
            .current_dir(skep.path("."))
            .env("PATH", format!("{bin}:{}:{path}", tools.display()))
            .env("SKEP_DIR", skep.path("skep"))
            .env("LC_ALL", "C")
            .env_remove("SKEP_PRELOAD")
            .env_remove("LD_PRELOAD");
        run(&mut shell, b"", LIMIT)
    }
}

/// Programs under the names that pages call them by.
fn tools() -> TempDir {
    let tools = TempDir::new();
    if !has_command("clang") {
        let path = std::env::var("PATH").unwrap_or_default();
        let found = path.split(':').map(|dir| Path::new(dir).join("clang-19")).find(|f| f.exists());
        if let Some(clang) = found {
            std::os::unix::fs::symlink(clang, tools.join("clang")).expect("a new folder");
        }
    }
    tools
}

/// A line without what differs from run to run: numbers with their units, the widths of columns, and
/// addresses.
pub fn shape(line: &str) -> String {
    let mut out = String::new();
    let mut rest = line;
    while let Some(c) = rest.chars().next() {
        let hex = |c: char| c.is_ascii_hexdigit();
        if let Some(after) = rest.strip_prefix("sub_") {
            rest = after.trim_start_matches(hex);
            out.push_str("sub_#");
        } else if let Some(after) = rest.strip_prefix("0x").filter(|r| r.starts_with(hex)) {
            rest = after.trim_start_matches(hex);
            out.push_str("0x#");
        } else if c == '~' && rest[1..].starts_with(|c: char| c.is_ascii_digit()) {
            // Whether a time is estimated depends on how busy the machine is.
            rest = &rest[1..];
        } else if c.is_ascii_digit() {
            let number = |c: char| c.is_ascii_digit() || c == '.';
            rest = rest.trim_start_matches(number);
            for unit in ["ns", "us", "µs", "ms", "s"] {
                let after = rest.strip_prefix(unit);
                rest = after.filter(|r| !r.starts_with(char::is_alphanumeric)).unwrap_or(rest);
            }
            out.truncate(out.trim_end_matches(' ').len());
            out.push_str(" #");
        } else if c == ' ' {
            // Columns are as wide as what is in them.
            out.push(' ');
            rest = rest.trim_start_matches(' ');
        } else {
            out.push(c);
            rest = &rest[c.len_utf8()..];
        }
    }
    out
}

/// The page with what a block printed.
fn recorded(page: &str, block: &Block<'_>, printed: &str) -> String {
    let Some(old) = block.output else { return page.to_owned() };
    let mut lines: Vec<&str> = printed.lines().take(RECORDED).collect();
    lines.extend((printed.lines().count() > RECORDED).then_some("…"));
    let head = format!("```{}\n", block.form);
    let at = format!("{}```\n\n{head}{old}```", block.script);
    let with = format!("{}```\n\n{head}{}\n```", block.script, lines.join("\n"));
    assert!(page.contains(&at), "{at}");
    page.replacen(&at, &with, 1)
}

/// Runs the commands of a page, each block in a folder of its own or all in one.
///
/// `SKEP_RECORD=1` writes what they print into the page.
pub fn check(name: &str, folder: &dyn Fn() -> Skep, is_shared: bool) {
    let path = root().join(name);
    let page = std::fs::read_to_string(&path).expect("it is there");
    let mut new = page.clone();
    let tools = tools();
    let shared = is_shared.then(folder);
    let mut problems = Vec::new();
    for block in &blocks(&page) {
        let missing = block.missing();
        if !missing.is_empty() {
            skip(&format!("{} ({name}: {})", missing.join(", "), block.title));
            if is_shared && block.needs.is_empty() {
                // What is behind wants what this one makes.
                break;
            }
            continue;
        }
        let own = if is_shared { None } else { Some(folder()) };
        let skep = own.as_ref().or(shared.as_ref()).expect("one of them");
        let ended = block.run(skep, tools.path(), block.script);
        if ended.shell_status() != 0 {
            let setup = std::fs::read_to_string(skep.path("setup.log")).unwrap_or_default();
            problems.push(format!("{}: {}\n{setup}", block.title, ended.transcript()));
            continue;
        }
        let folder = skep.path("").display().to_string();
        let printed = text(&ended.stdout).replace(folder.trim_end_matches('/'), FOLDER);
        if std::env::var_os("SKEP_RECORD").is_some() {
            new = recorded(&new, block, &printed);
            continue;
        }
        let is_exact = block.form == "text exact";
        let normal = |line: &str| if is_exact { line.to_owned() } else { shape(line) };
        let all: Vec<String> = printed.lines().map(normal).collect();
        let mut there = all.iter();
        for line in block.output.unwrap_or_default().lines().filter(|line| *line != "…") {
            if block.form == "text any" {
                there = all.iter();
            }
            if !there.any(|t| *t == normal(line)) {
                problems.push(format!("{}: no line `{line}` in\n{printed}", block.title));
                break;
            }
        }
    }
    if new != page {
        std::fs::write(&path, new).expect("it can be written");
    }
    assert!(problems.is_empty(), "{name}: {}", problems.join("\n"));
}
