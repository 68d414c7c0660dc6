//! The one way for a test to say that this machine lacks something.

use std::collections::BTreeSet;
use std::io::Write;
use std::process::{Command, Stdio};
use std::sync::{Mutex, PoisonError};

/// Says that a test does not run, or not all of it, for want of `what`, in the words `skipped:
/// needs WHAT (PROGRAM: TEST)`. A test that lacks several things, or one thing several times, says
/// it once.
///
/// It goes to the process's stderr past the test runner's capture, so that it is seen although the
/// test passes, and `.ci/run` and `cargo xtask ci` can count it.
///
/// ```
/// fn test_with_root() {
///     if !skep_testkit::skip::is_root() {
///         return skep_testkit::skip("root");
///     }
///     // …
/// }
/// test_with_root();
/// ```
pub fn skip(what: &str) {
    // The test runner names the thread of each test after it; one that a test starts itself has no
    // name.
    let test = std::thread::current().name().unwrap_or("?").to_owned();
    if !is_first(&test) {
        return;
    }
    // The macros are captured, the handle is not. One write, so that lines of two tests do not mix.
    let line = format!("skipped: needs {what} ({}: {test})\n", program());
    std::io::stderr().write_all(line.as_bytes()).ok();
}

/// Tells whether this test of this process has not said yet that it was skipped.
fn is_first(test: &str) -> bool {
    static SAID: Mutex<BTreeSet<String>> = Mutex::new(BTreeSet::new());
    SAID.lock().unwrap_or_else(PoisonError::into_inner).insert(test.to_owned())
}

/// The name of the test program without the hash that cargo adds.
fn program() -> String {
    let exe = std::env::current_exe().unwrap_or_default();
    let name = exe.file_name().unwrap_or_default().to_string_lossy();
    name.rsplit_once('-').map_or(name.as_ref(), |(name, _)| name).to_owned()
}

/// Tells whether `command --version` runs, or what does the same.
pub fn has_command(command: &str) -> bool {
    let version = match command {
        "go" => "version",
        _ => "--version",
    };
    Command::new(command)
        .arg(version)
        .stdin(Stdio::null())
        .stdout(Stdio::null())
        .stderr(Stdio::null())
        .status()
        .is_ok_and(|s| s.success())
}

/// Tells whether the kernel refuses to load programs for this process, and says so as [`skip`]
/// does.
pub fn without_bpf() -> bool {
    let Err(error) = skep_kernel::probe() else { return false };
    match error.requirement() {
        Some(requirement) => skip(requirement),
        None => skip(&format!("the right to use bpf(2): {error}")),
    }
    true
}

/// Tells whether we are the superuser.
pub fn is_root() -> bool {
    let status = std::fs::read_to_string("/proc/self/status").unwrap_or_default();
    status
        .lines()
        .find_map(|line| line.strip_prefix("Uid:"))
        .and_then(|ids| ids.split_whitespace().nth(1))
        == Some("0")
}

#[cfg(test)]
mod tests {
    use std::process::Command;
    use std::time::Duration;

    use super::skip;
    use crate::run::run;

    #[test]
    #[ignore = "run by the test below"]
    fn lacks_much() {
        skip("a fairy");
        skip("a dragon");
        skip("a fairy");
    }

    #[test]
    fn a_test_says_once_that_it_was_skipped() {
        let mut again =
            Command::new(std::env::current_exe().expect("the system knows our executable"));
        let ended = run(
            again.args(["--ignored", "--exact", "skip::tests::lacks_much"]),
            b"",
            Duration::from_secs(300),
        );
        let said = String::from_utf8_lossy(&ended.stderr).into_owned();
        assert_eq!(said, "skipped: needs a fairy (skep_testkit: skip::tests::lacks_much)\n");
    }
}
