//! Orphans: traces whose `skep` was killed before it printed the report.
//!
//! Objects that nothing uses and nobody pinned are garbage, which the next loader removes. So a
//! trace pins its own: hard links to its link, its program and its maps are in `traces/ID` of the
//! skep directory while it runs, with a lock that ends with the process. They are removed after the
//! report. A folder there whose lock is free is an orphan. `skep trace --report` reads it and marks
//! it as reported, and [`sweep`] removes it. Of the orphans that nobody asked for, `sweep` keeps the
//! last few: somebody may still want them. A folder in which [`RECORD`] is not whole is of a `skep` that
//! was killed before its trace began, and has nothing to report.

use std::fs::File;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use rustix::fs::{FlockOperation, flock};
use rustix::io::Errno;
use serde::{Deserialize, Serialize};
use skep::Dir;
use skep::dir::Kind;
use skep::link::Link;

use crate::failure::{Context, FAILED, Failure, Result};

/// How many orphans stay that nobody reported.
const KEPT: usize = 3;
/// File names in a trace's folder.
const LOCK: &str = "lock";
const RECORD: &str = "trace.json";
const REPORTED: &str = "reported";
/// Whoever makes a folder has a lock in it by then.
const MAKING: Duration = Duration::from_secs(60);
/// How long that lock is tried to be had, and how often.
const PATIENCE: Duration = Duration::from_secs(1);
const PAUSE: Duration = Duration::from_micros(100);

/// What the objects of a trace do not tell.
#[derive(Serialize, Deserialize, Debug)]
pub struct TraceRecord {
    /// The command and its arguments.
    pub command: Vec<String>,
    /// When it was started, in ticks of its clock.
    pub start: u64,
}

/// The pins of a running trace; dropping this removes them.
#[derive(Debug)]
pub struct TracePins {
    path: PathBuf,
    _lock: File,
}

impl Drop for TracePins {
    fn drop(&mut self) {
        drop(std::fs::remove_dir_all(&self.path));
    }
}

fn folder(dir: &Dir) -> PathBuf {
    dir.path().join("traces")
}

fn lock(path: &Path) -> std::io::Result<File> {
    File::options().write(true).create(true).truncate(false).open(path.join(LOCK))
}

/// Locks the folder of a trace of our own. Whoever looks whether it runs has it locked for that moment.
fn lock_own(file: &File) -> rustix::io::Result<()> {
    let end = Instant::now() + PATIENCE;
    loop {
        match flock(file, FlockOperation::NonBlockingLockExclusive) {
            Err(Errno::WOULDBLOCK) if Instant::now() < end => {
                std::thread::sleep(PAUSE);
            }
            done => return done,
        }
    }
}

/// Pins the objects of a trace. Without hard links in the file system they end with this process.
pub fn pin(
    dir: &Dir,
    link: &Link,
    objects: &[(Kind, u32)],
    record: &TraceRecord,
) -> Option<TracePins> {
    let path = folder(dir).join(link.id().to_string());
    std::fs::create_dir_all(&path).ok()?;
    let lock = lock(&path).ok()?;
    lock_own(&lock).ok()?;
    let pins = TracePins { path, _lock: lock };
    for (kind, id) in [(Kind::Link, link.id())].iter().chain(objects) {
        std::fs::hard_link(dir.object(*kind, *id), pins.path.join(format!("{}-{id}", kind.dir())))
            .ok()?;
    }
    // Last: where it is whole, all is there.
    std::fs::write(pins.path.join(RECORD), serde_json::to_vec(record).ok()?).ok()?;
    Some(pins)
}

/// A trace in the directory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Trace {
    /// Its link.
    pub id: u32,
    /// Its `skep` still runs.
    pub runs: bool,
}

/// Lists the traces there are, by id.
pub fn list(dir: &Dir) -> Vec<Trace> {
    let entries = std::fs::read_dir(folder(dir)).into_iter().flatten().flatten();
    let ids = entries.filter_map(|e| e.file_name().to_str()?.parse().ok());
    let runs = |id: u32| {
        let lock = File::open(folder(dir).join(id.to_string()).join(LOCK));
        lock.is_ok_and(|f| flock(&f, FlockOperation::NonBlockingLockShared).is_err())
    };
    let mut all: Vec<Trace> = ids.map(|id| Trace { id, runs: runs(id) }).collect();
    all.sort_by_cached_key(|t| u64::from(t.id));
    all
}

/// Removes orphans that were reported, those that have nothing to report, and all but the last few of the
/// others.
pub fn sweep(dir: &Dir) {
    let place = |t: &Trace| folder(dir).join(t.id.to_string());
    let orphans = list(dir).into_iter().filter(|t| !t.runs);
    let (reported, others): (Vec<_>, Vec<_>) =
        orphans.partition(|t| place(t).join(REPORTED).exists());
    let (whole, empty): (Vec<_>, Vec<_>) =
        others.into_iter().partition(|t| record(dir, *t).is_ok());
    let is_old = |t: &&Trace| {
        let made = std::fs::metadata(place(t)).and_then(|meta| meta.modified()).ok();
        made.and_then(|at| at.elapsed().ok()).is_some_and(|age| age > MAKING)
    };
    let empty = empty.iter().filter(is_old);
    for trace in reported.iter().chain(empty).chain(whole.iter().rev().skip(KEPT)) {
        drop(std::fs::remove_dir_all(folder(dir).join(trace.id.to_string())));
    }
}

/// Finds the trace to report: the one asked for, else the newest orphan that has something to report.
pub fn find(dir: &Dir, id: Option<u32>) -> Result<Trace> {
    let (all, empty): (Vec<_>, Vec<_>) =
        list(dir).into_iter().partition(|t| t.runs || record(dir, *t).is_ok());
    let found = match id {
        Some(id) => all.iter().find(|t| t.id == id),
        None => all.iter().rev().find(|t| !t.runs).or(all.last()),
    };
    found.copied().ok_or_else(|| {
        let message = match id {
            Some(id) if empty.iter().any(|t| t.id == id) => {
                format!("trace {id} has nothing to report: its `skep` was killed before it began")
            }
            Some(id) => format!("there is no trace {id} to report"),
            None => "there is no trace to report".to_owned(),
        };
        let there: Vec<String> = all
            .iter()
            .map(|t| format!("{}{}", t.id, if t.runs { " (still runs)" } else { "" }))
            .collect();
        let hint = if let (true, Some(last)) = (there.is_empty(), empty.last()) {
            format!("the `skep` of trace {} was killed before it began: it has no report", last.id)
        } else if there.is_empty() {
            format!(
                "`{}` has none: a trace stays there only if `skep` was killed before its report",
                dir.path().display()
            )
        } else {
            format!("the traces are {}", there.join(", "))
        };
        Failure { status: FAILED, ..Failure::failed(message) }.hint(hint)
    })
}

/// Reads what is known of a trace beside its objects.
pub fn record(dir: &Dir, trace: Trace) -> Result<TraceRecord> {
    let path = folder(dir).join(trace.id.to_string()).join(RECORD);
    let bytes = std::fs::read(&path).context(format!("cannot read `{}`", path.display()))?;
    serde_json::from_slice(&bytes).context(format!("`{}` is damaged", path.display()))
}

/// Notes that there was a report.
pub fn reported(dir: &Dir, trace: Trace) {
    if !trace.runs {
        drop(File::create(folder(dir).join(trace.id.to_string()).join(REPORTED)));
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use skep_testkit::temp::TempDir;

    fn whole(dir: &Dir, id: u32) {
        let place = folder(dir).join(id.to_string());
        std::fs::create_dir_all(&place).unwrap();
        let record = TraceRecord { command: vec!["true".to_owned()], start: 1 };
        std::fs::write(place.join(RECORD), serde_json::to_vec(&record).unwrap()).unwrap();
    }

    /// The newest one was killed before it had written what it traces: `--report` failed because of it.
    #[test]
    fn a_trace_that_did_not_begin_is_passed_over() {
        let temp = TempDir::new();
        let dir = Dir::create(&temp.join("skep")).unwrap();
        let place = |id: u32| folder(&dir).join(id.to_string());
        std::fs::create_dir_all(place(8)).unwrap();
        std::fs::create_dir_all(place(9)).unwrap();
        std::fs::write(place(9).join(RECORD), b"{\"command\":[").unwrap();
        let refused = find(&dir, None).unwrap_err();
        assert_eq!(refused.message, "there is no trace to report");
        assert!(refused.hint.unwrap().contains("the `skep` of trace 9 was killed before it began"));
        let refused = find(&dir, Some(8)).unwrap_err();
        assert!(refused.message.contains("trace 8 has nothing to report"));
        whole(&dir, 7);
        assert_eq!(find(&dir, None).unwrap().id, 7);
        // It may be that somebody only begins to make it.
        sweep(&dir);
        assert_eq!(list(&dir).len(), 3);
        let hour = std::time::SystemTime::now() - 60 * MAKING;
        for id in [7, 8, 9] {
            File::open(place(id)).unwrap().set_modified(hour).unwrap();
        }
        sweep(&dir);
        assert_eq!(list(&dir), [Trace { id: 7, runs: false }]);
    }

    #[test]
    fn reported_orphans_go_and_of_the_others_the_last_stay() {
        let temp = TempDir::new();
        let dir = Dir::create(&temp.join("skep")).unwrap();
        for id in 1..=6 {
            whole(&dir, id);
        }
        let running = lock(&folder(&dir).join("1")).unwrap();
        flock(&running, FlockOperation::LockExclusive).unwrap();
        reported(&dir, Trace { id: 6, runs: false });
        sweep(&dir);
        let ids = |dir: &Dir| list(dir).iter().map(|t| (t.id, t.runs)).collect::<Vec<_>>();
        assert_eq!(ids(&dir), [(1, true), (3, false), (4, false), (5, false)]);
        assert_eq!(find(&dir, None).unwrap().id, 5);
        assert_eq!(
            find(&dir, Some(9)).unwrap_err().hint.unwrap(),
            "the traces are 1 (still runs), 3, 4, 5"
        );
    }

    /// Another `skep` that looked at that moment whether the trace runs kept it from being pinned, and its maps
    /// were garbage.
    #[test]
    fn who_looks_is_waited_for() {
        let temp = TempDir::new();
        let own = File::create(temp.join(LOCK)).unwrap();
        let other = File::open(temp.join(LOCK)).unwrap();
        flock(&other, FlockOperation::NonBlockingLockShared).unwrap();
        std::thread::scope(|scope| {
            let locking = scope.spawn(|| lock_own(&own));
            drop(other);
            assert_eq!(locking.join().unwrap(), Ok(()));
        });
    }
}
