//! skep that attaches to what runs already, and leaves it, again and again until it ends.

use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use skep_testkit::TempDir;
use skep_testkit::run::children;

/// Rounds of requests that a visited server is asked.
pub const ROUNDS: usize = 3000;

/// How long a visit lasts.
const STAY: &str = "50ms";

/// Visits a program until it ends.
pub struct Visitor {
    ended: Arc<AtomicBool>,
    thread: JoinHandle<Visits>,
}

/// What came of all visits to one run.
#[derive(Default)]
pub struct Visits {
    /// Those that attached to something.
    pub made: usize,
    /// What skep said.
    pub said: Vec<String>,
    /// The reports, as JSON.
    pub reports: Vec<PathBuf>,
}

/// The file in which a program's process is named.
fn named_in(reports: &Path) -> PathBuf {
    reports.join("process")
}

impl Visitor {
    /// Waits for the program whose command line [`Visitor::told_of`] made, and then so long; all in all
    /// at most for `limit`.
    pub fn new(reports: &TempDir, after: Duration, limit: Duration) -> Self {
        let ended = Arc::new(AtomicBool::new(false));
        let (has_ended, reports) = (ended.clone(), reports.path().to_owned());
        let thread = std::thread::spawn(move || visit(&reports, after, limit, &has_ended));
        Self { ended, thread }
    }

    /// The same command, which names its process in the folder first.
    pub fn told_of(line: &[String], reports: &TempDir) -> Vec<String> {
        let file = named_in(reports.path()).display().to_string();
        // Not before the whole number is there.
        let script = "echo $$ > \"$0.new\" && mv \"$0.new\" \"$0\" && exec \"$@\"";
        ["sh", "-c", script, &file].map(str::to_owned).into_iter().chain(line.to_vec()).collect()
    }

    /// Waits for the last visit; the program has ended.
    pub fn end(self) -> Visits {
        self.ended.store(true, Ordering::Relaxed);
        self.thread.join().expect("visits do not panic")
    }
}

fn visit(reports: &Path, after: Duration, limit: Duration, ended: &AtomicBool) -> Visits {
    let mut visits = Visits::default();
    let start = Instant::now();
    let is_over = || ended.load(Ordering::Relaxed) || start.elapsed() > limit;
    let process = loop {
        if is_over() {
            return visits;
        }
        let named = std::fs::read_to_string(named_in(reports)).unwrap_or_default();
        match named.trim().parse::<u32>() {
            Ok(process) => break process,
            Err(_) => std::thread::sleep(Duration::from_millis(1)),
        }
    };
    std::thread::sleep(after);
    for n in 0.. {
        if is_over() {
            break;
        }
        // By turns the program itself, and who does its work now.
        let target = if n % 2 == 0 { process } else { youngest(process) };
        let report = reports.join(format!("visit-{n}.json"));
        let done = Command::new(skep_testkit::trace::skep_bin())
            .args([
                "trace",
                "*",
                "--quiet",
                "--json",
                "--for",
                STAY,
                "-p",
                &target.to_string(),
                "-o",
            ])
            .arg(&report)
            .env("SKEP_DIR", reports.join("skep"))
            .stdin(Stdio::null())
            .output();
        let Ok(done) = done else { continue };
        let said = String::from_utf8_lossy(&done.stderr).into_owned();
        visits.made += usize::from(done.status.success());
        // A process that ends meanwhile is no news.
        let is_there = runs(target);
        for line in said
            .lines()
            .filter(|line| line.starts_with("warning: ") || is_there && line.starts_with("error: "))
        {
            let line = line.replace(&target.to_string(), "N");
            if !visits.said.contains(&line) {
                visits.said.push(line);
            }
        }
        visits.reports.push(report);
        std::thread::sleep(Duration::from_millis(20));
    }
    visits
}

/// Tells whether a process runs: it is there, and not only its status is left.
fn runs(process: u32) -> bool {
    let stat = std::fs::read_to_string(format!("/proc/{process}/stat")).unwrap_or_default();
    // Behind the name, which may have anything in it.
    stat.rsplit_once(") ").is_some_and(|(_, state)| !state.starts_with(['Z', 'X']))
}

/// The last child of the last child and so on; the process itself when it has none.
fn youngest(process: u32) -> u32 {
    let mut last = process;
    while let Some(child) = children(last).last() {
        last = *child;
    }
    last
}
