//! What one event adds to a call of a tiny function, hot: an entry program that counts, and `skep
//! trace`.

use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, Result};
use skep_testkit::cc::Cc;
use skep_testkit::skip::{has_command, is_root};

use super::place::{Place, has_uftrace};
use super::row::Row;
use super::sample::{Contestant, Sample, measured, take_turns};
use crate::{output, root};

/// Processes of each contestant.
const TURNS: usize = 7;
const CALLS: &str = "2000000";
/// Each costs the kernel a trap, so fewer will do.
const CALLS_UPROBE: &str = "20000";

/// Measures plain, entry, entry and exit, and the rivals.
pub fn run(place: &Place) -> Result<Vec<Row>> {
    let source = root().join("benches/trace/micro.c");
    let plain = Cc::c().args(&["-O2"]).compile(&[&source], &place.dir.join("micro"));
    std::fs::create_dir_all(place.dir.join("pg"))?;
    let pg = Cc::c().args(&["-O2", "-pg"]).compile(&[&source], &place.dir.join("pg/micro"));
    std::fs::create_dir_all(place.dir.join("nops"))?;
    let nops = Cc::c()
        .args(&["-O2", "-fpatchable-function-entry=5"])
        .compile(&[&source], &place.dir.join("nops/micro"));
    let object = root().join("crates/testkit/bpf/count_entry.bpf.o");
    let object = object.to_str().context("the path of the repository is not UTF-8")?;

    let uprobe = Uprobe::create(&plain);
    let entry = |program: &Path| measured(&mut place.skep(&["run", object], &[program], &[CALLS]));
    let both =
        |program: &Path| measured(&mut place.skep(&["trace", "micro:tiny"], &[program], &[CALLS]));
    let mut contestants = vec![
        Contestant::new("plain", || measured(Command::new(&plain).arg(CALLS))),
        Contestant::new("skep run, entry", || entry(&plain)),
        Contestant::new("skep run, entry, NOPs", || entry(&nops)),
        Contestant::new("skep trace", || both(&plain)),
        Contestant::new("skep trace, NOPs", || both(&nops)),
    ];
    let uftrace_at = has_uftrace().then(|| {
        contestants.push(Contestant::new("uftrace", || {
            measured(&mut place.uftrace(&["-b", "32m"], &pg, &[CALLS]))
        }));
        contestants.len() - 1
    });
    let uprobe_at = uprobe.as_ref().map(|uprobe| {
        contestants.push(Contestant::new("uprobe", || measured(&mut uprobe.count(&plain))));
        contestants.len() - 1
    });
    let values = take_turns(TURNS, &contestants)?;
    let added = |at: usize| Sample::added(&values[at], &values[0]);
    let uftrace = uftrace_at.map(|at| ("uftrace record, -pg".to_owned(), added(at)));
    let kernel = uprobe_at.map(|at| ("kernel uprobe, perf stat".to_owned(), added(at)));
    Ok(vec![
        Row { case: "hot call, entry, counter".into(), ours: added(1), rival: kernel.clone() },
        Row { case: "hot call, entry, counter, 5 NOPs".into(), ours: added(2), rival: kernel },
        Row {
            case: "hot call, entry+exit, skep trace".into(),
            ours: added(3),
            rival: uftrace.clone(),
        },
        Row {
            case: "hot call, entry+exit, skep trace, 5 NOPs".into(),
            ours: added(4),
            rival: uftrace,
        },
    ])
}

const EVENTS: &str = "/sys/kernel/tracing/uprobe_events";

/// A uprobe of the kernel on `tiny`, removed when dropped.
struct Uprobe {
    group: String,
}

impl Uprobe {
    /// `None` without root, perf or tracefs.
    fn create(program: &Path) -> Option<Self> {
        if !is_root() || !has_command("perf") {
            return None;
        }
        let symbols = output(Command::new("nm").arg(program)).ok()?;
        let address =
            symbols.lines().find(|line| line.ends_with(" T tiny"))?.split(' ').next()?.to_owned();
        // In a position-independent program linked the usual way, the text's file offsets are its
        // addresses.
        let group = format!("skepbench{}", std::process::id());
        let line = format!("p:{group}/tiny {}:0x{address}\n", program.display());
        append(Path::new(EVENTS), &line).ok()?;
        Some(Self { group })
    }

    fn count(&self, program: &Path) -> Command {
        let mut command = Command::new("perf");
        command
            .args(["stat", "-o", "/dev/null", "-e", &format!("{}:tiny", self.group)])
            .arg(program)
            .arg(CALLS_UPROBE);
        command
    }
}

impl Drop for Uprobe {
    fn drop(&mut self) {
        append(Path::new(EVENTS), &format!("-:{}/tiny\n", self.group)).ok();
    }
}

fn append(path: &Path, text: &str) -> std::io::Result<()> {
    use std::io::Write;
    let path = PathBuf::from(path);
    std::fs::OpenOptions::new().append(true).open(path)?.write_all(text.as_bytes())
}
