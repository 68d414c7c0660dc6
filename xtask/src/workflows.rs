//! The files of public CI and of the container image: what they name is there. They run elsewhere, so
//! nobody here would notice a command that was renamed.
//!
//! A workflow is read as YAML and held against what GitHub documents (the keys, steps, contexts of
//! expressions). Scripts are parsed by `bash -n`, and each command in them has to be a file of this
//! repository, a command of `cargo xtask` with parts that it has, something that an earlier step
//! installs, or a program of the machines that GitHub lends.

use std::collections::BTreeSet;
use std::path::Path;
use std::process::Command;

use anyhow::{Context, Result, bail, ensure};
use yaml_rust2::{Yaml, YamlLoader};

use crate::{ci, files_below, relative, root};

/// Programs of GitHub's machines and of Debian's images, as far as scripts here use them.
const PROGRAMS: &[&str] = &[
    "apt-get", "cargo", "command", "curl", "docker", "dpkg", "mkdir", "rm", "rustup", "sh", "skep",
    "sudo", "tail", "useradd",
];
/// Words of the shell before a command.
const BEFORE: &[&str] = &["do", "then", "else", "!", "{", "if", "while"];
/// Commands of cargo that come with it.
const CARGO: &[&str] = &["build", "test", "install", "publish", "xtask"];
/// Commands of `cargo xtask`.
const XTASK: &[&str] = &[
    "bench",
    "ci",
    "clean-room",
    "dist",
    "man",
    "mutate",
    "objects",
    "picture",
    "try-package",
    "world",
];
const TOP_KEYS: &[&str] = &["name", "on", "permissions", "env", "concurrency", "jobs", "defaults"];
const JOB_KEYS: &[&str] = &[
    "name",
    "runs-on",
    "needs",
    "if",
    "permissions",
    "env",
    "strategy",
    "container",
    "services",
    "timeout-minutes",
    "continue-on-error",
    "steps",
    "outputs",
    "defaults",
];
const STEP_KEYS: &[&str] = &[
    "id",
    "if",
    "name",
    "uses",
    "run",
    "with",
    "env",
    "shell",
    "working-directory",
    "continue-on-error",
    "timeout-minutes",
];
/// What expressions may begin with, besides `matrix`.
const CONTEXTS: &[&str] = &["github", "env", "runner", "secrets", "inputs", "needs", "job"];
const INSTRUCTIONS: &[&str] =
    &["FROM", "WORKDIR", "COPY", "ARG", "RUN", "USER", "ENTRYPOINT", "CMD"];

/// Checks all of them.
pub fn check() -> Result<()> {
    let is_workflow = |path: &Path| path.extension().is_some_and(|e| e == "yml" || e == "yaml");
    let files = files_below(&root().join(".github/workflows"), &is_workflow)?;
    ensure!(!files.is_empty(), "there is no workflow");
    for file in files {
        let text = std::fs::read_to_string(&file)?;
        workflow(&text).with_context(|| relative(&file))?;
    }
    let image = std::fs::read_to_string(root().join("Containerfile"))?;
    container(&image).context("Containerfile")
}

/// Checks a workflow.
fn workflow(text: &str) -> Result<()> {
    let documents = YamlLoader::load_from_str(text)?;
    let [document] = documents.as_slice() else { bail!("it is {} documents", documents.len()) };
    known_keys(document, TOP_KEYS, "the workflow")?;
    ensure!(!document["on"].is_badvalue(), "nothing starts it");
    let jobs = document["jobs"].as_hash().context("it has no jobs")?;
    for (name, job) in jobs {
        let name = name.as_str().context("a job without a name")?;
        self::job(job).with_context(|| format!("job `{name}`"))?;
    }
    Ok(())
}

fn job(job: &Yaml) -> Result<()> {
    known_keys(job, JOB_KEYS, "a job")?;
    ensure!(job["runs-on"].as_str().is_some(), "it says not where it runs");
    let matrix: Vec<&str> = job["strategy"]["matrix"]
        .as_hash()
        .into_iter()
        .flat_map(|matrix| matrix.keys().filter_map(Yaml::as_str))
        .collect();
    let mut installed = BTreeSet::new();
    for (number, step) in (1..).zip(job["steps"].as_vec().context("it has no steps")?) {
        let done = self::step(step, &matrix, &mut installed);
        done.with_context(|| format!("step {number}"))?;
    }
    Ok(())
}

fn step(step: &Yaml, matrix: &[&str], installed: &mut BTreeSet<String>) -> Result<()> {
    known_keys(step, STEP_KEYS, "a step")?;
    match (step["uses"].as_str(), step["run"].as_str()) {
        (Some(action), None) => {
            let (name, version) = action.split_once('@').context("an action without a version")?;
            ensure!(name.split('/').count() >= 2 && !version.is_empty(), "`{action}` is no action");
            Ok(())
        }
        (None, Some(script)) => {
            expressions(script, matrix)?;
            self::script(script, installed)
        }
        _ => bail!("it neither uses an action nor runs a script, or does both"),
    }
}

fn known_keys(map: &Yaml, known: &[&str], what: &str) -> Result<()> {
    for key in map.as_hash().with_context(|| format!("{what} is no map"))?.keys() {
        // `on` is a word for `true` in YAML 1.1, and a string in 1.2.
        let key = key.as_str().with_context(|| format!("{what} has a key that is no text"))?;
        ensure!(known.contains(&key), "{what} has no key `{key}`");
    }
    Ok(())
}

/// Checks what stands in `${{ … }}`.
fn expressions(script: &str, matrix: &[&str]) -> Result<()> {
    for part in script.split("${{").skip(1) {
        let (inside, _) = part.split_once("}}").context("`${{` without its end")?;
        let inside = inside.trim();
        let (context, name) = inside.split_once('.').unwrap_or((inside, ""));
        let is_known =
            if context == "matrix" { matrix.contains(&name) } else { CONTEXTS.contains(&context) };
        ensure!(is_known, "there is no `{inside}`");
    }
    Ok(())
}

/// Checks a script: its syntax, and each command in it.
fn script(script: &str, installed: &mut BTreeSet<String>) -> Result<()> {
    let mut bash = Command::new("bash");
    let parsed = bash.args(["-n", "-c", script]).output().context("cannot run `bash`")?;
    ensure!(parsed.status.success(), "{}", String::from_utf8_lossy(&parsed.stderr).trim());
    for words in commands(script) {
        command(&words, installed).with_context(|| format!("`{}`", words.join(" ")))?;
    }
    Ok(())
}

/// The commands of a script, each as its words. Good enough for scripts that do nothing clever: quotes
/// go, and with `sh -c` what is quoted is a script too.
fn commands(script: &str) -> Vec<Vec<String>> {
    let separated = script.replace("&&", "\n").replace("||", "\n").replace(['|', ';'], "\n");
    let mut out = Vec::new();
    for line in separated.lines() {
        let mut words: Vec<String> = line
            .split_whitespace()
            .map(|word| word.trim_matches(['"', '\'']).to_owned())
            .filter(|word| !word.is_empty())
            .collect();
        while words.first().is_some_and(|w| BEFORE.contains(&w.as_str()) || is_assignment(w)) {
            words.remove(0);
        }
        let skips = ["for", "done", "fi", ".", "#"];
        if words.first().is_some_and(|w| !skips.contains(&w.as_str())) {
            out.push(words);
        }
    }
    out
}

fn is_assignment(word: &str) -> bool {
    let name = word.split_once('=').map(|(name, _)| name);
    name.is_some_and(|n| n.chars().all(|c| c == '_' || c.is_ascii_alphanumeric()))
}

fn command(words: &[String], installed: &mut BTreeSet<String>) -> Result<()> {
    let words: Vec<&str> = words.iter().map(String::as_str).collect();
    match words.as_slice() {
        // What runs with other rights: options and `$(command -v cargo)` stand before it.
        ["sudo", rest @ ..] => {
            let rest = rest.iter().skip_while(|w| w.starts_with(['-', '$']));
            let rest: Vec<String> = rest.map(|w| w.trim_end_matches(')').to_owned()).collect();
            command(&rest, installed)
        }
        ["cargo", "xtask", name, rest @ ..] => {
            ensure!(XTASK.contains(name), "`cargo xtask` has no `{name}`");
            if *name == "ci" {
                for part in rest {
                    ensure!(ci::PARTS.iter().any(|p| p.name == *part), "`ci` has no part `{part}`");
                }
            }
            Ok(())
        }
        ["cargo", "install", name, ..] => {
            installed.insert(name.strip_prefix("cargo-").unwrap_or(name).to_owned());
            Ok(())
        }
        ["cargo", name, rest @ ..] => {
            let name = if name.starts_with('+') { rest.first().unwrap_or(name) } else { name };
            let is_known = CARGO.contains(name) || installed.contains(*name);
            ensure!(is_known, "nothing installs `cargo {name}`");
            Ok(())
        }
        [file, ..] if file.contains('/') => {
            let path = root().join(file);
            ensure!(path.is_file(), "there is no `{file}`");
            Ok(())
        }
        [name, ..] => {
            let is_there = PROGRAMS.contains(name) || installed.contains(*name);
            ensure!(is_there, "nothing installs `{name}`");
            Ok(())
        }
        [] => Ok(()),
    }
}

/// Checks the recipe of an image.
fn container(text: &str) -> Result<()> {
    let mut stages = BTreeSet::new();
    let mut from_base = false;
    for line in text.lines().filter(|line| !line.is_empty() && !line.starts_with('#')) {
        let (instruction, rest) = line.split_once(' ').unwrap_or((line, ""));
        ensure!(INSTRUCTIONS.contains(&instruction), "`{instruction}` is no instruction");
        ensure!(from_base || instruction == "FROM", "`{line}` is before `FROM`");
        let words: Vec<&str> = rest.split_whitespace().collect();
        match (instruction, words.as_slice()) {
            ("FROM", [image, more @ ..]) => {
                ensure!(image.contains(':'), "`{image}` has no tag");
                from_base = true;
                if let ["AS", name] = more {
                    stages.insert((*name).to_owned());
                }
            }
            ("COPY", [stage, ..]) if stage.starts_with("--from=") => {
                let name = stage.trim_start_matches("--from=");
                ensure!(stages.contains(name), "there is no stage `{name}`");
            }
            ("COPY", [from @ .., _]) => {
                for from in from {
                    ensure!(root().join(from).exists(), "there is no `{from}`");
                }
            }
            ("RUN", _) => {
                script(rest, &mut BTreeSet::new()).with_context(|| format!("`{line}`"))?
            }
            ("ENTRYPOINT" | "CMD", _) => {
                let words: Vec<String> =
                    serde_json::from_str(rest).with_context(|| format!("`{line}`"))?;
                ensure!(!words.is_empty(), "`{line}` names no command");
            }
            _ => ensure!(!words.is_empty(), "`{line}` says nothing"),
        }
    }
    ensure!(from_base, "it is empty");
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_the_files_name_is_there() {
        check().unwrap();
    }

    #[test]
    fn commands_of_xtask_are_those_that_it_has() {
        let usage = crate::usage();
        for name in XTASK {
            assert!(usage.contains(&format!("\n  {name} ")), "{name}");
        }
    }

    #[test]
    fn what_is_not_there_is_found() {
        let of = |step: &str| {
            let text = format!(
                "on: push\njobs:\n  a:\n    runs-on: x\n    strategy:\n      matrix:\n        s: [b]\n    steps:\n      - {step}\n"
            );
            workflow(&text).map_err(|e| format!("{e:#}")).err().unwrap_or_default()
        };
        for (step, wrong) in [
            ("run: cargo xtask ci fmt imports", ""),
            ("run: cargo xtask ci fnt", "`ci` has no part `fnt`"),
            ("run: cargo xtask dst", "`cargo xtask` has no `dst`"),
            ("run: cargo fuzz list", "nothing installs `cargo fuzz`"),
            ("run: cargo install cargo-fuzz && cargo +nightly fuzz list", ""),
            ("run: .ci/run", ""),
            ("run: .ci/rum", "there is no `.ci/rum`"),
            ("run: if true; then rustup show", "syntax error"),
            ("run: actionlint", "nothing installs `actionlint`"),
            ("run: cargo xtask clean-room ${{ matrix.s }}", ""),
            ("run: cargo xtask clean-room ${{ matrix.t }}", "there is no `matrix.t`"),
            ("uses: actions/checkout@v4", ""),
            ("uses: actions/checkout", "an action without a version"),
            ("rum: x", "a step has no key `rum`"),
            ("name: x", "neither uses an action nor runs a script"),
        ] {
            let said = of(step);
            assert!(said.contains(wrong) && said.is_empty() == wrong.is_empty(), "{step}: {said}");
        }
        for (text, wrong) in [
            (
                "FROM a:1 AS b\nCOPY . .\nRUN cargo xtask dist /x\nFROM c:2\nCOPY --from=b /x /x\n",
                "",
            ),
            ("FROM a\n", "`a` has no tag"),
            ("FROM a:1\nCOPY --from=b /x /x\n", "there is no stage `b`"),
            ("FROM a:1\nCOPY nothing .\n", "there is no `nothing`"),
            ("FROM a:1\nRAN x\n", "`RAN` is no instruction"),
            ("FROM a:1\nCMD doctor\n", "`CMD doctor`"),
            ("RUN x\n", "before `FROM`"),
        ] {
            let said = container(text).map_err(|e| format!("{e:#}")).err().unwrap_or_default();
            assert!(said.contains(wrong) && said.is_empty() == wrong.is_empty(), "{text}: {said}");
        }
    }
}
