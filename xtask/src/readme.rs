//! The commands that README.md gives, which are run as they stand there.

use anyhow::{Context, Result, bail};

use crate::root;

/// The first block of "Try it": builds the command and traces something.
pub fn try_command() -> Result<String> {
    block_after(&text()?, "## Try it")
}

/// The block after the `ci:test` mark, the same one that `.ci/run` takes.
pub fn test_command() -> Result<String> {
    block_after(&text()?, "<!-- ci:test -->")
}

fn text() -> Result<String> {
    std::fs::read_to_string(root().join("README.md")).context("cannot read `README.md`")
}

/// The first code block after `mark`.
fn block_after(readme: &str, mark: &str) -> Result<String> {
    let (_, after) =
        readme.split_once(mark).with_context(|| format!("README.md has no `{mark}`"))?;
    let block = after
        .split("```")
        .nth(1)
        .with_context(|| format!("README.md has no code block after `{mark}`"))?;
    let command = block.split_once('\n').map_or("", |(_, command)| command).trim();
    if command.is_empty() {
        bail!("the code block after `{mark}` in README.md is empty");
    }
    Ok(command.to_owned())
}

#[cfg(test)]
mod tests {
    use std::path::PathBuf;

    use serde_json::Value;

    use super::{block_after, test_command, text, try_command};
    use crate::root;

    /// Numbers of the README: the record, the case, whose time it is, and how that is written.
    const NUMBERS: &[(&str, &str, &str, &str)] = &[
        ("2026-11-30-trace", "hot call, entry, counter", "", "2.63 ns"),
        (
            "2026-11-30-trace",
            "hot call, entry, counter",
            "kernel uprobe.multi, 5-byte NOP, counter",
            "9.98 µs",
        ),
        ("2026-11-30-trace", "hot call, entry+exit, skep trace", "", "7.40 ns"),
        ("2026-11-30-trace", "hot call, entry+exit, skep trace", "uftrace record, -pg", "67.3 ns"),
        ("2026-11-30-trace", "sqlite, added to each call", "", "17.1 ns"),
        ("2026-11-30-trace", "sqlite, added to each call", "uftrace record, -pg", "75.7 ns"),
        ("2026-11-23-jit", "geometric mean of 11 programs", "", "128 ns"),
        ("2026-11-23-jit", "geometric mean of 11 programs", "kernel JIT, test run", "150 ns"),
        ("2026-11-23-jit", "geometric mean of 11 programs", "gcc -O2", "163 ns"),
        ("2026-11-23-jit", "compile 4,000 instructions", "", "80.8 µs"),
        ("2026-11-23-maps", "hash lookup hit, 8-byte keys, 16K", "", "10.0 ns"),
        ("2026-11-23-maps", "hash lookup hit, 8-byte keys, 16K", "kernel, test run", "86.4 ns"),
        ("2026-11-23-maps", "ringbuf output to a consumer at work, 8 bytes", "", "11.7 ns"),
        (
            "2026-11-23-maps",
            "ringbuf output to a consumer at work, 8 bytes",
            "kernel, test run",
            "5.09 µs",
        ),
        ("2026-11-23-dump", "hash, 100,000 entries, 5000 a call", "", "1.04 ms"),
        ("2026-11-23-dump", "hash, 100,000 entries, 5000 a call", "kernel, best batch", "25.2 ms"),
        ("2026-11-30-trace", "trace 50000 functions once, 5 NOPs, added wall", "", "104 ms"),
        (
            "2026-11-30-trace",
            "trace 50000 functions once, 5 NOPs, added wall",
            "uftrace record -P., wall",
            "80.5 ms",
        ),
    ];

    /// Writes a time with three digits.
    fn time(ns: f64) -> String {
        let units = [(1e9, "s"), (1e6, "ms"), (1e3, "µs"), (1.0, "ns")];
        let (unit, name) = units.into_iter().find(|(unit, _)| ns >= *unit).unwrap_or((1.0, "ns"));
        let value = ns / unit;
        let digits = if value < 9.995 {
            2
        } else if value < 99.95 {
            1
        } else {
            0
        };
        format!("{value:.digits$} {name}")
    }

    /// The records of the same bench that were made after one.
    fn newer_than(record: &str) -> Vec<PathBuf> {
        let folder = std::fs::read_dir(root().join("benches/record")).unwrap();
        let paths = folder.map(|entry| entry.unwrap().path());
        let bench = record.rsplit('-').next().unwrap();
        let of_bench = |path: &PathBuf| {
            let name = path.file_stem().unwrap().to_str().unwrap();
            name.rsplit('-').next() == Some(bench) && name > record
        };
        paths.filter(of_bench).collect()
    }

    /// Each number is what its record has, the newest one with the case and who is beside it, and
    /// stands in a row that points at the record.
    #[test]
    fn the_numbers_are_those_of_the_records() {
        let readme = text().unwrap();
        let rows: Vec<&str> = readme.lines().filter(|l| l.contains("](benches/record/")).collect();
        let mut claimed = 0;
        for (record, case, rival, shown) in NUMBERS {
            let path = format!("benches/record/{record}.json");
            let file = std::fs::read_to_string(root().join(&path)).unwrap();
            let file: Value = serde_json::from_str(&file).unwrap();
            let all = file["rows"].as_array().unwrap();
            let is_it =
                |r: &&Value| r["case"] == *case && (rival.is_empty() || r["rival"] == *rival);
            let row = all.iter().find(is_it).unwrap_or_else(|| panic!("{record}: {case}, {rival}"));
            let ns = &row[if rival.is_empty() { "ours_ns" } else { "rival_ns" }];
            assert_eq!(time(ns.as_f64().unwrap()), *shown, "{record}: {case}, {rival}");
            let there = |r: &&&str| r.contains(&format!("]({path})")) && r.contains(shown);
            assert!(rows.iter().any(|r| there(&r)), "{shown} of {record}: {case}");
            claimed += 1;
            let beside = |(of, c, rival): (&str, &str, &str)| {
                of == *record && c == *case && !rival.is_empty()
            };
            let rivals: Vec<&str> = match rival {
                &"" => NUMBERS.iter().filter(|n| beside((n.0, n.1, n.2))).map(|n| n.2).collect(),
                rival => vec![*rival],
            };
            for newer in newer_than(record) {
                let file = std::fs::read_to_string(&newer).unwrap();
                let file: Value = serde_json::from_str(&file).unwrap();
                let has = |rival: &str| {
                    let mut all = file["rows"].as_array().unwrap().iter();
                    all.any(|r| r["case"] == *case && (rival.is_empty() || r["rival"] == *rival))
                };
                let is_old = rivals.iter().all(|rival| has(rival)) && has("");
                assert!(!is_old, "{}: {case}: newer than {record}", newer.display());
            }
        }
        let written =
            |row: &&str| ["ns", "µs", "ms"].map(|u| row.matches(&format!(" {u}")).count());
        let written: usize = rows.iter().flat_map(written).sum();
        assert_eq!(written, claimed, "a number of the README's table is not in this test");
    }

    #[test]
    fn a_command_is_the_block_after_its_mark() {
        let readme =
            "# x\n```sh\nother\n```\n<!-- ci:test -->\n```sh\ncargo test --workspace\n```\n";
        assert_eq!(block_after(readme, "<!-- ci:test -->").unwrap(), "cargo test --workspace");
        assert!(
            block_after("# x\n", "## Try it").unwrap_err().to_string().contains("no `## Try it`")
        );
        assert!(
            block_after("## Try it\n```sh\n\n```\n", "## Try it")
                .unwrap_err()
                .to_string()
                .contains("is empty")
        );
    }

    #[test]
    fn the_readme_has_both() {
        assert!(test_command().unwrap().starts_with("cargo test"));
        let try_it = try_command().unwrap();
        assert!(try_it.starts_with("cargo run --release -- trace "), "{try_it}");
        assert_eq!(try_it.lines().count(), 1, "{try_it}");
    }
}
