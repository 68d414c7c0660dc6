//! The one way for a test to say that this machine lacks something.

use std::io::Write;
use std::process::{Command, Stdio};

/// Says that a test does not run for want of `what`, in the words `skipped: needs WHAT`.
///
/// It goes to the process's stderr past the test runner's capture, so that it is seen although the test passes, and
/// `.ci/run` and `cargo xtask ci` can count it.
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
    let test = std::thread::current().name().unwrap_or("?").to_owned();
    // The macros are captured, the handle is not. One write, so that lines of two tests do not mix.
    let line = format!("skipped: needs {what} ({test})\n");
    std::io::stderr().write_all(line.as_bytes()).ok();
}

/// Tells whether `command --version` runs.
pub fn has_command(command: &str) -> bool {
    Command::new(command)
        .arg("--version")
        .stdin(Stdio::null())
        .stdout(Stdio::null())
        .stderr(Stdio::null())
        .status()
        .is_ok_and(|s| s.success())
}

/// Tells whether we are the superuser.
pub fn is_root() -> bool {
    let status = std::fs::read_to_string("/proc/self/status").unwrap_or_default();
    status.lines().find_map(|line| line.strip_prefix("Uid:")).and_then(|ids| ids.split_whitespace().nth(1)) == Some("0")
}
