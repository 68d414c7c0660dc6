//! What a record says of the machine and of the source that was measured, so that a reader can
//! judge the numbers.

use std::path::Path;
use std::process::Command;

use anyhow::{Result, bail};
use serde_json::{Map, Value};

use crate::{output, root};

/// Fails when the numbers of a record would belong to no commit.
pub fn refuse_dirty_tree() -> Result<()> {
    let changed = changes(root())?;
    if changed.is_empty() {
        return Ok(());
    }
    bail!(
        "a record names the commit that was measured, but these files are not what it holds:\n  {}\n\nhint: commit them, or `git stash`, \
         then measure again; without `--record` a bench may measure anything",
        changed.join("\n  ")
    );
}

/// The files that differ from the commit, new ones that a build would take among them.
fn changes(tree: &Path) -> Result<Vec<String>> {
    // Older records are no part of what is measured, and each `--record` adds one.
    let text = output(
        Command::new("git")
            .args(["status", "--porcelain", "--", ".", ":!benches/record"])
            .current_dir(tree),
    )?;
    Ok(text.lines().filter_map(|line| line.get(3..)).map(str::to_owned).collect())
}

/// The commit that was measured; nothing when the command came from elsewhere, built from who knows
/// what.
pub fn commit() -> Result<Option<String>> {
    if std::env::var_os("SKEP_BIN").is_some() {
        return Ok(None);
    }
    Ok(Some(
        output(Command::new("git").args(["rev-parse", "--short", "HEAD"]).current_dir(root()))?
            .trim()
            .to_owned(),
    ))
}

/// The model and the number of processors.
pub fn cpu() -> Option<String> {
    let text = std::fs::read_to_string("/proc/cpuinfo").ok()?;
    let model = text
        .lines()
        .find_map(|line| line.strip_prefix("model name")?.split_once(": "))?
        .1
        .to_owned();
    let count = text.lines().filter(|line| line.starts_with("processor")).count();
    Some(format!("{count} x {model}"))
}

/// What the kernel does against each flaw of the processor. `spec_rstack_overflow`, for one, makes
/// every return in the kernel dearer, and its hash lookups twice as slow.
pub fn mitigations() -> Value {
    mitigations_in(Path::new("/sys/devices/system/cpu/vulnerabilities"))
}

fn mitigations_in(dir: &Path) -> Value {
    let Ok(entries) = std::fs::read_dir(dir) else {
        return Value::from(format!("unknown: `{}` cannot be read", dir.display()));
    };
    let mut rows: Vec<(String, Value)> = entries
        .flatten()
        .filter_map(|entry| {
            Some((
                entry.file_name().into_string().ok()?,
                Value::from(std::fs::read_to_string(entry.path()).ok()?.trim()),
            ))
        })
        .collect();
    rows.sort_by(|a, b| a.0.cmp(&b.0));
    Value::Object(Map::from_iter(rows))
}

#[cfg(test)]
mod tests {
    use serde_json::json;
    use skep_testkit::TempDir;

    use super::*;

    #[test]
    fn a_changed_and_a_new_file_make_a_tree_dirty_but_a_record_does_not() {
        let dir = TempDir::new();
        let git = |args: &[&str]| {
            let identity = [
                "-c",
                "user.name=x",
                "-c",
                "user.email=x@example.org",
                "-c",
                "commit.gpgsign=false",
            ];
            output(Command::new("git").args(identity).args(args).current_dir(dir.path())).unwrap()
        };
        if !skep_testkit::skip::has_command("git") {
            return skep_testkit::skip("git");
        }
        git(&["init", "--quiet"]);
        std::fs::write(dir.join("code"), "1").unwrap();
        git(&["add", "code"]);
        git(&["commit", "--quiet", "--message", "x"]);
        assert_eq!(changes(dir.path()).unwrap(), [""; 0]);
        std::fs::create_dir_all(dir.join("benches/record")).unwrap();
        std::fs::write(dir.join("benches/record/x.json"), "{}").unwrap();
        assert_eq!(changes(dir.path()).unwrap(), [""; 0]);
        std::fs::write(dir.join("code"), "2").unwrap();
        std::fs::write(dir.join("new"), "").unwrap();
        assert_eq!(changes(dir.path()).unwrap(), ["code", "new"]);
    }

    #[test]
    fn mitigations_are_a_map_and_a_machine_without_sys_says_so() {
        let dir = TempDir::new();
        std::fs::write(dir.join("retbleed"), "Not affected\n").unwrap();
        std::fs::write(dir.join("meltdown"), "Mitigation: PTI\n").unwrap();
        assert_eq!(
            mitigations_in(dir.path()),
            json!({"meltdown": "Mitigation: PTI", "retbleed": "Not affected"})
        );
        let missing = dir.join("missing");
        assert_eq!(
            mitigations_in(&missing),
            json!(format!("unknown: `{}` cannot be read", missing.display()))
        );
    }
}
