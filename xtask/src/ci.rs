//! `cargo xtask ci`: everything that must hold before a change is handed over, one part a row.

use std::process::Command;
use std::time::{Duration, Instant};

use anyhow::{Result, bail};

use crate::transcript::{self, Transcript};
use crate::{cargo, check, imports, objects, readme, room, root, unsafety, workflows};

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
    Part {
        name: "imports",
        what: "the table of allowed imports, circles of modules, the agent's small tree",
        run: imports::check,
    },
    Part { name: "unsafe", what: "unsafe code only in its named leaves", run: unsafety::check },
    Part {
        name: "workflows",
        what: "the files of public CI and of the image name what is there",
        run: workflows::check,
    },
    Part {
        name: "objects",
        what: "committed BPF objects equal their sources (needs clang-19)",
        run: objects::check_committed,
    },
    Part { name: "clippy", what: "cargo clippy on every target, warnings are errors", run: clippy },
    Part { name: "test", what: "the README's test command, counting skips", run: test },
    Part { name: "docs", what: "cargo doc, warnings are errors", run: docs },
    Part {
        name: "clean-room",
        what: "the README's commands on a Debian with nothing on it (needs debootstrap)",
        run: room::check_all,
    },
];

/// Runs the named parts, or all of them; every part runs even when an earlier one failed.
pub fn run(names: &[&str]) -> Result<()> {
    if let Some(unknown) = names.iter().find(|name| PARTS.iter().all(|part| part.name != **name)) {
        bail!(
            "no part named `{unknown}`; there are: {}",
            PARTS.iter().map(|p| p.name).collect::<Vec<_>>().join(" ")
        );
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

/// Longest the tests may take, builds included: a slow machine needs half of it.
const TEST_LIMIT: Duration = Duration::from_secs(60 * 60);

/// Runs the one test command there is (the README's) and says how many tests were skipped for want
/// of something.
fn test() -> Result<()> {
    let line = readme::test_command()?;
    println!("$ {line}");
    let mut command = Command::new("bash");
    let Transcript { status, skips } = transcript::run(
        command.args(["-euo", "pipefail", "-c", &line]).current_dir(root()),
        TEST_LIMIT,
    )?;
    println!("skips: {}", skips.len());
    if !status.success() {
        bail!("`{line}` failed: {status}");
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use std::process::Command;
    use std::time::Duration;

    use skep_testkit::TempDir;
    use skep_testkit::program::script;
    use skep_testkit::run::run;

    /// Cargo's runner, given a program in a folder of test programs and one elsewhere.
    #[test]
    fn a_test_program_that_hangs_is_ended_and_other_programs_are_not() {
        if !skep_testkit::skip::has_command("timeout") {
            return skep_testkit::skip("timeout");
        }
        let dir = TempDir::new();
        for (folder, status, said) in
            [("deps", Some(124), "did not end within 0.1 s"), ("examples", Some(3), "")]
        {
            std::fs::create_dir(dir.join(folder)).unwrap();
            let program = dir.join(folder).join("program");
            let text = if folder == "deps" { "sleep 1000" } else { "sleep 0.3; exit 3" };
            script(&program, &format!("#!/bin/sh\n{text}\n"));
            let mut runner = Command::new(crate::root().join(".cargo/run-test"));
            let runner =
                runner.arg(&program).env("SKEP_TEST_LIMIT", "0.1").env_remove("SKEP_STRESS");
            let ended = run(runner, b"", Duration::from_secs(300));
            assert_eq!(ended.status.code(), status, "{}", ended.transcript());
            assert!(
                String::from_utf8_lossy(&ended.stderr).contains(said),
                "{}",
                ended.transcript()
            );
        }
    }

    /// Tests use caches, as commands and libraries do, but not the caches of who runs them.
    #[test]
    fn tests_have_a_cache_of_their_own() {
        let dir = TempDir::new();
        for (program, cache) in [
            ("target/debug/deps/program", "target/debug/test-cache"),
            ("rustdoctestXy12/rust_out", "rustdoctestXy12/test-cache"),
        ] {
            let program = dir.join(program);
            std::fs::create_dir_all(program.parent().unwrap()).unwrap();
            script(&program, "#!/bin/sh\necho $XDG_CACHE_HOME\n");
            let mut runner = Command::new(crate::root().join(".cargo/run-test"));
            let runner = runner.arg(&program).env("XDG_CACHE_HOME", "/home/ada/.cache");
            let ended = run(runner, b"", Duration::from_secs(300));
            let said = String::from_utf8_lossy(&ended.stdout).into_owned();
            assert_eq!(said, format!("{}\n", dir.join(cache).display()), "{}", ended.transcript());
        }
    }
}
