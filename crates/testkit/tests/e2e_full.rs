//! A skep directory on a file system that runs full: the program must not notice, and the report must say so.

use std::process::Command;
use std::time::Duration;

use skep_testkit::cc::Build;
use skep_testkit::skip::{self, is_root};
use skep_testkit::trace::skep_bin;
use skep_testkit::{TempDir, many, run};

#[test]
fn a_full_file_system_costs_statistics_and_nothing_else() {
    if !is_root() || !skip::has_command("unshare") {
        skep_testkit::skip("root and unshare, to mount a small file system");
        return;
    }
    let dir = TempDir::new();
    let program = many::build(10_000, Build::O2, dir.path());
    let place = dir.join("small");
    std::fs::create_dir(&place).expect("the folder is new");
    // The file system goes with the mount namespace. One MiB has no room for ten thousand functions' statistics.
    let script = r#"mount -t tmpfs -o size=1m,mode=0700 none "$1" && SKEP_DIR="$1/skep" exec "$2" trace 'many:*' --limit 1 -- "$3""#;
    let mut command = Command::new("unshare");
    command.args(["-m", "sh", "-c", script, "sh"]).arg(&place).arg(skep_bin()).arg(&program);
    let ended = run::run(&mut command, b"", Duration::from_secs(120));
    if ended.shell_status() == 1 && ended.transcript().contains("unshare failed") {
        skep_testkit::skip("a mount namespace");
        return;
    }
    assert_eq!(ended.shell_status(), 0, "{}", ended.transcript());
    let out = String::from_utf8_lossy(&ended.stdout);
    assert!(out.starts_with(&many::expected(10_000).to_string()), "{}", ended.transcript());
    let told = String::from_utf8_lossy(&ended.stderr);
    assert!(told.contains("is full") && told.contains("pages of statistics are lost"), "{}", ended.transcript());
}
