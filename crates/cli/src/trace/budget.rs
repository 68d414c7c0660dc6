//! `skep trace --budget`: functions whose calls would take more of the time than the tracer may take
//! are let go while the trace runs, those with the most calls first.
//!
//! A thread looks at the statistics and adds up what calls since its last look took the tracer, by what
//! a call costs. Where that is more than the budget allows, it marks functions in their statistics, in
//! the values of all threads; the program takes its hook out of a marked function at the next call
//! that it times.

use std::collections::BTreeMap;
use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::sync::mpsc::{RecvTimeoutError, Sender, channel};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use serde::Serialize;
use skep::isa::ShapeKind;
use skep::link::LinkState;
use skep::maps::Map;
use skep_proc::demangle::demangle;

use super::objects::Trace;
use crate::estimate::{Clock, Running, Stat, timed_calls};
use crate::failure::{Context, Failure, Result};
use crate::printer::Printer;
use crate::report::file_name;
use crate::sites::module_path;
use crate::stats;

/// How often is looked.
const LOOK: Duration = Duration::from_millis(50);
/// What a call costs that is counted, and one that is timed, in ns (docs/call-paths.md has the second
/// one; benches/record the first).
const COUNTED_NS: f64 = 8.0;
const TIMED_NS: f64 = 46.0;
/// The byte of `struct stat` that has `DROP` (`bpf/trace.bpf.c`).
const MARK: u64 = 47;

/// A function that was let go.
#[derive(Clone, Copy, Debug)]
pub struct LetGo {
    function: u32,
    /// Its calls until then.
    calls: u64,
    /// When, since the first look.
    after: Duration,
    /// The part of the time that it took by itself, when it was looked at last.
    share: f64,
}

/// The thread that looks.
pub struct Budget {
    stop: Sender<()>,
    thread: JoinHandle<Vec<LetGo>>,
}

/// A function let go, in JSON.
#[derive(Serialize)]
pub struct LetGoJson<'a> {
    name: String,
    module: &'a str,
    calls: u64,
    after_ns: u64,
    share: f64,
}

impl Budget {
    /// Begins to look. `part`: of the time that passes.
    pub fn start(trace: &Trace, part: f64) -> Result<Self> {
        let (stop, stopped) = channel();
        let mut looks = Looks {
            stats: Arc::clone(&trace.stats),
            blocks: trace
                .blocks
                .clone()
                .ok_or_else(|| Failure::environment("calls are counted by path"))?,
            file: trace.stats.file().reopen().context("cannot open the statistics")?,
            clock: trace.clock(),
            before: BTreeMap::new(),
            let_go: BTreeMap::new(),
        };
        let run = move || {
            let (first, mut last) = (Instant::now(), Instant::now());
            while stopped.recv_timeout(LOOK) == Err(RecvTimeoutError::Timeout) {
                let now = Instant::now();
                // Without statistics nothing is let go.
                drop(looks.look(now - last, now - first, part));
                last = now;
            }
            looks.let_go.into_values().collect()
        };
        let thread = std::thread::Builder::new()
            .name("budget".to_owned())
            .spawn(run)
            .context("cannot start a thread")?;
        Ok(Self { stop, thread })
    }

    /// Ends it; those that were let go.
    pub fn end(self) -> Vec<LetGo> {
        drop(self.stop);
        self.thread.join().unwrap_or_default()
    }
}

/// What is known from one look to the next.
struct Looks {
    stats: Arc<Map>,
    blocks: Arc<Map>,
    file: OwnedFd,
    clock: Clock,
    /// Calls, timed calls and self times of functions.
    before: BTreeMap<u32, (u64, u64, u64)>,
    let_go: BTreeMap<u32, LetGo>,
}

impl Looks {
    /// Looks once, `passed` after the last time.
    fn look(&mut self, passed: Duration, after: Duration, part: f64) -> std::io::Result<()> {
        let mut costs: Vec<(u64, LetGo)> = Vec::new();
        let nanos = passed.as_nanos() as f64;
        let (before, clock) = (&mut self.before, self.clock);
        let functions = self.stats.def().max_entries;
        stats::each_with(&self.stats, &self.blocks, functions, |function, value| {
            let stat = Stat::sum(value, clock, Running::default());
            let now = (stat.calls, timed_calls(value), stat.self_ns);
            let old = before.insert(function, now).unwrap_or_default();
            let (calls, timed) = (now.0.saturating_sub(old.0), now.1.saturating_sub(old.1));
            if calls > 0 {
                let counted = calls.saturating_sub(timed);
                let cost = timed as f64 * TIMED_NS + counted as f64 * COUNTED_NS;
                let share = now.2.saturating_sub(old.2) as f64 / nanos;
                costs.push((cost as u64, LetGo { function, calls: now.0, after, share }));
            }
        })?;
        let mut total: u64 = costs.iter().map(|(cost, _)| cost).sum();
        let allowed = (part * nanos) as u64;
        costs.sort_by_cached_key(|(cost, _)| std::cmp::Reverse(*cost));
        for (cost, function) in costs {
            if total <= allowed {
                break;
            }
            total = total.saturating_sub(cost);
            self.mark(function.function)?;
            // Calls that came until its hook was out are not a second reason.
            let known = self.let_go.entry(function.function).or_insert(function);
            known.calls = function.calls;
        }
        Ok(())
    }

    /// Marks a function in the values of all threads.
    fn mark(&self, function: u32) -> std::io::Result<()> {
        let ShapeKind::PercpuArray { slot_stride, .. } = self.stats.shape().kind else {
            return Ok(());
        };
        let stride = u64::from(self.stats.def().value_size).next_multiple_of(8);
        let slots = self.stats.user_value_size() as u64 / stride;
        for slot in 0..slots {
            let at = slot * slot_stride + u64::from(function) * stride;
            // What no thread has counted has no memory, and gets none.
            if stats::next_data(&self.file, at)? <= at {
                rustix::io::pwrite(&self.file, &[1], at + MARK)?;
            }
        }
        Ok(())
    }
}

/// Says which functions were let go.
pub fn note(all: &[LetGo], state: &LinkState, printer: Printer) {
    if all.is_empty() {
        return;
    }
    printer.note(&format!(
        "{} let go to stay within the budget, with the calls and times until then:",
        match all.len() {
            1 => "1 function was".to_owned(),
            n => format!("{n} functions were"),
        }
    ));
    for f in json(all, state) {
        printer.note(&format!(
            "  {}:{}: {} in {}, about {:.0} % of the time",
            f.module,
            f.name,
            crate::units::count(f.calls, "call"),
            crate::units::time(f.after_ns),
            100.0 * f.share
        ));
    }
}

/// The same for `--json`.
pub fn json<'a>(all: &[LetGo], state: &'a LinkState) -> Vec<LetGoJson<'a>> {
    let one = |f: &LetGo| {
        let function = state.functions.get(f.function as usize)?;
        Some(LetGoJson {
            name: demangle(&function.name).into_owned(),
            module: file_name(module_path(state, function.module)),
            calls: f.calls,
            after_ns: u64::try_from(f.after.as_nanos()).unwrap_or(u64::MAX),
            share: f.share,
        })
    };
    all.iter().filter_map(one).collect()
}
