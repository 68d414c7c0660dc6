//! Reading a whole map of 100,000 entries of 8+8 bytes: through the library and by the command,
//! beside the kernel's ways.
//!
//! Of the library there are its walk, with room for so many entries a call, and the proposed
//! command with its `prev_key`, which gives the place back as a key, one entry a call: the same
//! work as the kernel's one by one.
//!
//! Rivals, with root: the kernel's own map of the same entries, one entry at a time (GET_NEXT_KEY
//! and LOOKUP_ELEM) and by LOOKUP_BATCH with the best of several sizes; and bpftool, which prints
//! the same map of the kernel that `skep map dump --kernel` does. Each number is a process of its
//! own, the best of five readings in it; contestants take turns.

use std::io::{BufRead, BufReader};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::Instant;

use anyhow::{Context, Result, ensure};
use skep_testkit::skip::{has_command, is_root};
use skep_testkit::trace::skep_bin;

use super::row::Row;
use super::sample::{Contestant, Sample, measured, take_turns};
use crate::{cargo, check, root};

const TURNS: usize = 7;
/// Entries a call, as the proposal of the DUMP command measured.
const ROOMS: [&str; 5] = ["1", "2", "230", "5000", "100000"];
/// Among these is the kernel's best.
const BATCHES: [&str; 3] = ["230", "5000", "100000"];

/// The rows of both parts.
pub fn run() -> Result<Vec<Row>> {
    let ours = example("skep-maps", "dump")?;
    let kernel = example("skep-kernel", "read_map")?;
    let kernel = is_root()
        .then_some(kernel.as_path())
        .filter(|k| measured(Command::new(k).args(["hash", "each"])).is_ok());
    let mut rows = library(&ours, kernel)?;
    if let Some(kernel) = kernel {
        rows.extend(command(kernel)?);
    }
    Ok(rows)
}

/// Builds an example and returns its path.
fn example(package: &str, name: &str) -> Result<PathBuf> {
    check(cargo().args(["build", "--quiet", "--release", "-p", package, "--example", name]))?;
    let target =
        std::env::var_os("CARGO_TARGET_DIR").map_or_else(|| root().join("target"), PathBuf::from);
    Ok(target.join("release/examples").join(name))
}

/// The library beside the kernel's system calls.
fn library(ours: &Path, kernel: Option<&Path>) -> Result<Vec<Row>> {
    let mut rows = Vec::new();
    for kind in ["hash", "array"] {
        let mut contestants: Vec<Contestant<'_>> = ROOMS
            .iter()
            .map(|room| {
                Contestant::new(room, move || measured(Command::new(ours).args([kind, room])))
            })
            .collect();
        contestants.push(Contestant::new("key", move || {
            measured(Command::new(ours).args([kind, "1", "key"]))
        }));
        if kind == "hash" {
            contestants.push(Contestant::new("take", move || {
                measured(Command::new(ours).args([kind, "5000", "take"]))
            }));
        }
        let own = contestants.len();
        if let Some(kernel) = kernel {
            contestants.push(Contestant::new("each", move || {
                measured(Command::new(kernel).args([kind, "each"]))
            }));
            for room in BATCHES {
                contestants.push(Contestant::new(room, move || {
                    measured(Command::new(kernel).args([kind, "batch", room]))
                }));
            }
        }
        let values = take_turns(TURNS, &contestants)?;
        let rival = |at: usize| values.get(at).map(|v| Sample::of(v.clone()));
        let each = rival(own);
        let batches = (own + 1..own + 1 + BATCHES.len()).filter_map(rival);
        let best = batches.min_by(|a, b| a.median.total_cmp(&b.median));
        for (i, contestant) in contestants[..own].iter().enumerate() {
            let case = match contestant.name {
                "key" => format!("{kind}, 100,000 entries, prev_key, 1 a call"),
                "take" => format!("{kind}, 100,000 entries, taken by 5000"),
                room => format!("{kind}, 100,000 entries, {room} a call"),
            };
            let sample = Sample::of(values[i].clone());
            let row = |rival: Option<Sample>, name: &str| Row {
                case: case.clone(),
                ours: sample,
                rival: rival.map(|r| (name.to_owned(), r)),
            };
            rows.push(row(each, "kernel, one by one"));
            if best.is_some() && !matches!(contestant.name, "1" | "key") {
                rows.push(row(best, "kernel, best batch"));
            }
        }
    }
    Ok(rows)
}

/// The command beside bpftool, on one map of the kernel.
fn command(kernel: &Path) -> Result<Vec<Row>> {
    if !has_command("bpftool") {
        return Ok(Vec::new());
    }
    let map = KeptMap::new(kernel)?;
    let skep = skep_bin();
    let timed = |program: &Path, args: &[&str]| -> Result<f64> {
        let begin = Instant::now();
        let status = Command::new(program).args(args).stdout(Stdio::null()).status()?;
        ensure!(status.success(), "`{}` failed", program.display());
        Ok(begin.elapsed().as_nanos() as f64)
    };
    let (id, bpftool) = (map.id.as_str(), Path::new("bpftool"));
    let contestants = [
        Contestant::new("skep text", || timed(skep, &["map", "dump", "--kernel", id])),
        Contestant::new("skep JSON", || timed(skep, &["map", "dump", "--kernel", id, "--json"])),
        Contestant::new("bpftool text", || timed(bpftool, &["map", "dump", "id", id])),
        Contestant::new("bpftool JSON", || timed(bpftool, &["-j", "map", "dump", "id", id])),
    ];
    let values = take_turns(TURNS, &contestants)?;
    let row = |form: &str, at: usize| Row {
        case: format!("kernel's hash, 100,000 entries, printed as {form}"),
        ours: Sample::of(values[at].clone()),
        rival: Some(("bpftool map dump".to_owned(), Sample::of(values[at + 2].clone()))),
    };
    Ok(vec![row("text", 0), row("JSON", 1)])
}

/// A map of the kernel, there as long as this.
struct KeptMap {
    child: Child,
    id: String,
}

impl KeptMap {
    fn new(kernel: &Path) -> Result<Self> {
        let mut child = Command::new(kernel)
            .args(["hash", "keep"])
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()?;
        let mut line = String::new();
        BufReader::new(child.stdout.take().context("a pipe")?).read_line(&mut line)?;
        let id =
            line.trim().strip_prefix("map ").context("the kernel's side printed no id")?.to_owned();
        Ok(Self { child, id })
    }
}

impl Drop for KeptMap {
    fn drop(&mut self) {
        drop(self.child.stdin.take());
        self.child.wait().ok();
    }
}
