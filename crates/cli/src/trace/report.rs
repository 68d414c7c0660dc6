//! The report of a trace: notes on what was not counted or timed, then the table, CSV or JSON.

use std::borrow::Cow;
use std::collections::HashMap;
use std::hint::black_box;
use std::io::{self, Write};
use std::sync::mpsc;
use std::thread;

use serde::Serialize;
use serde_json::Value as Json;
use skep::Dir;
use skep::link::{LinkState, Missed};
use skep_proc::demangle::demangle;
use skep_text::fields::Text;

use super::budget::{self, LetGo, LetGoJson};
use super::objects::{Trace, count};
use super::recording::{Summary, Writer};
use super::tree::{self, Edges, NodeJson, Tree};
use super::{csv, graph};
use crate::args::ShownArgs;
use crate::estimate::{Running, Stat};
use crate::failure::{Context, Result};
use crate::printer::{Output, Printer};
use crate::report::{self, Function, Row, Wall};
use crate::running::Threads;
use crate::sites::{Sites, module_path};
use crate::stacks::Files;
use crate::{missed, units};

/// Rows of the table when nothing else is asked for.
const ROWS: usize = 30;
/// Functions in JSON that are written together.
const AT_ONCE: usize = 1024;
/// Functions whose names are looked at together.
const TOGETHER: usize = 32;
/// Call paths of the tree when nothing else is asked for.
const PATHS: usize = 100;
/// How a tree is written: at most so many rows, of at least so many ns, of a width; returns how many
/// more there were.
type Shape = fn(&Tree<'_>, &mut dyn Write, usize, u64, Option<usize>) -> io::Result<usize>;
/// Functions in which a thread ends: if one of them is the innermost call of a stack, its thread has
/// ended.
const THREAD_ENDS: [&str; 5] = ["start_thread", "clone", "clone3", "__clone", "__clone3"];

/// What `--json` prints in front of the functions.
#[derive(Serialize)]
struct Head<'a> {
    command: Option<Vec<Cow<'a, str>>>,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pids: Vec<u32>,
    status: Option<i32>,
    #[serde(flatten)]
    wall: Wall,
    sites: Json,
}

/// What it prints behind them.
#[derive(Serialize)]
struct Tail<'a> {
    /// Calls by call path, where they were counted so.
    #[serde(skip_serializing_if = "Option::is_none")]
    tree: Option<Vec<NodeJson<'a>>>,
    missed: u64,
    missed_by: Json,
    lost: u64,
    start_ns: u64,
    attach_ns: u64,
    /// What is taken off each timed call: that much of its time is skep's.
    overhead_ns: f64,
    /// What is taken off its caller, where calls are counted by path.
    #[serde(skip_serializing_if = "Option::is_none")]
    caller_overhead_ns: Option<f64>,
    processes: Json,
    not_traced: Json,
    /// With `--budget`: functions that were let go before the end.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    let_go: Vec<LetGoJson<'a>>,
}

/// Writes all of it as one object.
fn document(
    out: &mut dyn Write,
    head: &Head<'_>,
    rows: &[&Row<'_>],
    tail: &Tail<'_>,
) -> io::Result<()> {
    let head = serde_json::to_vec(head)?;
    out.write_all(head.strip_suffix(b"}").unwrap_or_default())?;
    out.write_all(b",\"functions\":[")?;
    functions(out, rows, AT_ONCE)?;
    let tail = serde_json::to_vec(tail)?;
    out.write_all(b"],")?;
    out.write_all(tail.get(1..).unwrap_or_default())?;
    out.write_all(b"\n")
}

/// Writes functions, `at_once` together, every second lot of which another thread makes ready.
fn functions(out: &mut dyn Write, rows: &[&Row<'_>], at_once: usize) -> io::Result<()> {
    let mut own = Text::default();
    thread::scope(|scope| {
        let (give, take) = mpsc::sync_channel(1);
        let (give_back, used) = mpsc::channel::<Text>();
        if rows.len() > at_once {
            let lots = rows.chunks(at_once).skip(1).step_by(2);
            let work = move || {
                for lot in lots {
                    // Its room has been touched already.
                    let mut text = used.try_recv().unwrap_or_default();
                    text.clear();
                    list(&mut text, lot);
                    if give.send(text).is_err() {
                        return;
                    }
                }
            };
            // Where no thread can be started, nothing comes.
            drop(thread::Builder::new().spawn_scoped(scope, work));
        }
        for (n, lot) in rows.chunks(at_once).enumerate() {
            let made = if n % 2 == 1 { take.recv().ok() } else { None };
            let text = made.as_ref().unwrap_or_else(|| {
                own.clear();
                list(&mut own, lot);
                &own
            });
            // A comma is before each.
            out.write_all(text.bytes().get(usize::from(n == 0)..).unwrap_or_default())?;
            if let Some(text) = made {
                // Once the last lot is made, nobody wants it.
                let _ = give_back.send(text);
            }
        }
        Ok(())
    })
}

/// Adds functions, each behind a comma.
fn list(text: &mut Text, rows: &[&Row<'_>]) {
    for some in rows.chunks(TOGETHER) {
        // Their names are anywhere in memory: the processor waits for all at once.
        black_box(some.iter().fold(0, |all, row| all ^ row.name.bytes().next().unwrap_or(0)));
        for row in some {
            text.put(b",");
            Function::from(*row).write(text);
        }
    }
}

/// Where the report and the call paths go.
pub struct Outputs {
    report: Output,
    files: Files,
}

impl Outputs {
    /// Creates the files that were asked for.
    pub fn open(args: &ShownArgs) -> Result<Self> {
        let (folded, flame, pprof) = (&args.folded, &args.flame, &args.pprof);
        Ok(Self {
            report: Output::open(args.report.output.as_deref())?,
            files: Files::open(folded.as_ref(), flame.as_ref(), pprof.as_ref())?,
        })
    }
}

/// How a command ended, as far as that is known.
pub struct Ended<'a> {
    pub command: Option<Vec<Cow<'a, str>>>,
    /// The processes that it was attached to while they ran.
    pub pids: Vec<u32>,
    pub status: Option<i32>,
    pub wall: Wall,
    /// By the clock of the link.
    pub end: u64,
    pub pid: Option<u32>,
    /// Functions that were let go before that.
    pub let_go: Vec<LetGo>,
}

/// What a report is made from.
pub struct Sums<'a> {
    pub ended: Ended<'a>,
    pub state: &'a LinkState,
    pub sites: &'a Sites,
    pub missed: Missed,
    /// Calls without times.
    pub lost: u64,
    pub lost_pages: u64,
    /// What is taken off each timed call.
    pub overhead_ns: f64,
    /// What is taken off its caller, where calls are counted by path.
    pub caller_overhead_ns: Option<f64>,
    pub counted: Counted<'a>,
}

/// What calls were counted by.
pub enum Counted<'a> {
    Functions(Vec<Row<'a>>),
    Paths(Tree<'a>),
}

/// The rows of a table that is made from call paths.
pub fn rows_of<'a>(tree: &'a Tree<'_>, args: &ShownArgs) -> Vec<Row<'a>> {
    match (args.caller, args.wants_threads()) {
        (true, _) => tree.rows_by_caller(),
        (_, true) => tree.rows_by_thread(args.tgid),
        _ => tree.rows(),
    }
}

impl Trace {
    /// Reads what was counted.
    pub fn sums<'a>(
        &self,
        state: &'a LinkState,
        sites: &'a Sites,
        ended: Ended<'a>,
    ) -> Result<Sums<'a>> {
        let threads = Threads::read(&self.threads);
        let edges = self.edges.as_deref().map(tree::edges).transpose()?;
        let running = running(&threads, state, edges.as_ref(), &ended);
        let clock = self.clock();
        let counted = match edges {
            Some(edges) => {
                let names = self.names.as_deref().map(tree::names).transpose()?;
                let names = names.unwrap_or_default();
                let outside = self.outside();
                Counted::Paths(Tree::read(
                    &self.stats,
                    &edges,
                    names,
                    clock,
                    outside,
                    &running,
                    state,
                )?)
            }
            None => Counted::Functions(self.rows(state, &running)?),
        };
        let paths = matches!(counted, Counted::Paths(_));
        Ok(Sums {
            ended,
            state,
            sites,
            missed: self.link.missed(),
            lost: threads.lost(),
            lost_pages: self.link.lost_pages(),
            overhead_ns: f64::from(clock.overhead) * clock.tick,
            caller_overhead_ns: paths.then(|| f64::from(self.outside()) * clock.tick),
            counted,
        })
    }

    /// The functions that were called.
    fn rows<'a>(
        &self,
        state: &'a LinkState,
        running: &HashMap<u32, Running>,
    ) -> Result<Vec<Row<'a>>> {
        let mut rows = skep_sys::vec_in_huge_pages(state.functions.len());
        let clock = self.clock();
        self.each(count(state), |index, value| {
            let Some(function) = state.functions.get(index as usize) else { return };
            let stat = Stat::sum(value, clock, running.get(&index).copied().unwrap_or_default());
            if stat.calls > 0 {
                let path = module_path(state, function.module);
                rows.push(Row {
                    name: demangle(&function.name),
                    symbol: &function.name,
                    path,
                    entry_only: function.entry_only.as_deref(),
                    stat: stat.into(),
                    part: None,
                });
            }
        })
        .context("cannot read the statistics")?;
        Ok(rows)
    }
}

impl Sums<'_> {
    /// Writes a recording.
    pub fn record(&mut self, file: Output, printer: Printer) -> Result {
        let mut summary = Summary {
            lost: self.lost,
            lost_pages: self.lost_pages,
            overhead_ns: self.overhead_ns,
            caller_overhead_ns: self.caller_overhead_ns,
            ..Summary::of(&self.ended, self.missed, self.state)
        };
        if let Counted::Paths(tree) = &mut self.counted {
            let (nodes, threads) = (&mut tree.nodes, &mut tree.threads);
            summary.paths = Some((std::mem::take(nodes), std::mem::take(threads)));
        }
        let done = printer.data(file, |out| Writer::default().end(out, &mut summary));
        if let (Counted::Paths(tree), Some(paths)) = (&mut self.counted, summary.paths) {
            (tree.nodes, tree.threads) = paths;
        }
        done
    }

    /// Prints the report. `wants_tree`: a tree, if nothing else is asked for.
    pub fn print(
        self,
        args: &ShownArgs,
        wants_tree: bool,
        outputs: Outputs,
        printer: Printer,
    ) -> Result {
        let Outputs { report: output, files } = outputs;
        let Sums { ended, sites, missed, lost, overhead_ns, caller_overhead_ns, .. } = self;
        sites.note(printer, "", args.report.verbose);
        let (tree, mut rows) = match self.counted {
            Counted::Paths(tree) => (Some(tree), Vec::new()),
            Counted::Functions(rows) => (None, rows),
        };
        if let Some(tree) = &tree {
            rows = rows_of(tree, args);
        }
        rows.retain(|row| row.stat.total_ns >= args.min_ns());
        report::carry(&mut rows);
        let all = args.limit.filter(|n| *n > 0).unwrap_or(usize::MAX);
        let printed = if args.csv || args.report.json || args.limit.is_some() { all } else { ROWS };
        let sorted = report::sorted(&rows, args.sort, printed);
        note_losses(printer, missed, lost, tree.is_some());
        budget::note(&ended.let_go, self.state, printer);
        if let Some(tree) = &tree {
            files.write(&tree.frames(), printer)?;
        }
        if self.lost_pages > 0 {
            let (pages, dir) = (self.lost_pages, Dir::default_path());
            let dir = dir.display();
            printer.note(&format!("`{dir}` is full: {pages} pages of statistics are lost; set `SKEP_DIR` to use another directory"));
        } else if self.state.agents.is_empty() && !self.state.functions.is_empty() {
            printer.note("no process could note that it is attached, so nothing is counted: the skep directory may be full; set `SKEP_DIR` to use another one");
        }
        note_marks(printer, &rows);
        if args.report.verbose {
            let caller = caller_overhead_ns.map(|ns| format!(", and {ns:.1}ns off its caller"));
            printer.note(&format!(
                "skep's own time is taken off: {overhead_ns:.1}ns off each timed call{}",
                caller.unwrap_or_default()
            ));
        }
        if args.csv {
            let columns: &[&str] = match (args.caller, args.tid, args.tgid) {
                (true, ..) => &["caller"],
                (_, true, _) => &["pid", "tid", "comm"],
                (.., true) => &["pid", "comm"],
                _ => &[],
            };
            return printer.data(output, |out| csv::write(out, &sorted, columns));
        }
        if args.report.json {
            let names = tree.as_ref().map(Tree::names).unwrap_or_default();
            let head = Head {
                command: ended.command,
                pids: ended.pids,
                status: ended.status,
                wall: ended.wall,
                sites: sites.json(),
            };
            let tail = Tail {
                tree: tree.as_ref().map(|t| t.json(&names)),
                missed: missed.total(),
                missed_by: missed::to_json(missed),
                lost,
                start_ns: sites.start_ns(),
                attach_ns: sites.attach_ns(),
                overhead_ns,
                caller_overhead_ns,
                processes: sites.processes_json(),
                not_traced: sites.not_traced_json(),
                let_go: budget::json(&ended.let_go, self.state),
            };
            return printer.data(output, |out| document(out, &head, &sorted, &tail));
        }
        if sites.attached() == 0 {
            return Ok(());
        }
        let wants_tree = args.tree || args.depth.is_some() || wants_tree;
        let shape = match (args.graph, wants_tree) {
            (true, _) => Some(("functions", ROWS, graph::write as Shape)),
            (false, true) => Some((
                "call paths",
                PATHS,
                (|t, out, limit, min, width| t.write(out, limit, min, width)) as Shape,
            )),
            (false, false) => None,
        };
        let rows_wanted = shape.map_or(ROWS, |(_, rows, _)| rows);
        let limit = match args.limit {
            Some(0) => usize::MAX,
            limit => limit.unwrap_or(rows_wanted),
        };
        if let (Some(tree), Some((what, _, write))) = (&tree, shape) {
            let (width, mut hidden) = (output.width(), 0);
            printer.data(output, |out| {
                hidden = write(tree, out, limit, args.min_ns(), width)?;
                Ok(())
            })?;
            if hidden > 0 {
                printer.note(&format!("{hidden} more {what}; `--limit 0` shows all"));
            }
            return Ok(());
        }
        let shown = sorted.get(..limit.min(sorted.len())).unwrap_or_default();
        let width = output.width();
        printer.data(output, |out| report::table(out, shown, width))?;
        if rows.is_empty() {
            let complete =
                missed.total() == 0 && lost == 0 && self.lost_pages == 0 && sites.all_traced();
            printer.note(if complete {
                "none of them was called"
            } else {
                "none of their calls was counted"
            });
        } else if shown.len() < rows.len() {
            printer.note(&format!(
                "{} more {}; `--limit 0` shows all",
                rows.len() - shown.len(),
                if args.caller || args.wants_threads() { "rows" } else { "functions were called" }
            ));
        }
        Ok(())
    }
}

/// Finds the calls that had not returned when the command ended, and what they took until then.
fn running(
    threads: &Threads,
    state: &LinkState,
    edges: Option<&Edges>,
    ended: &Ended<'_>,
) -> HashMap<u32, Running> {
    let mut all = HashMap::new();
    let function = |id: u32| match edges {
        None => id,
        Some(edges) => edges.get(&id).map_or(u32::MAX, |(_, function)| *function),
    };
    let name = |id: u32| state.functions.get(function(id) as usize).map(|f| f.name.as_str());
    for mut stack in threads.stacks() {
        if state.agents.iter().filter(|a| a.pid == stack.pid).count() > 1 {
            stack.only_last_image();
        }
        let over = stack.innermost().and_then(name).is_none_or(|n| THREAD_ENDS.contains(&n));
        let lasted = !over && (ended.pid == Some(stack.pid) || is_alive(stack.pid));
        stack.add(if lasted { ended.end } else { stack.seen() }, &mut all);
    }
    all
}

/// Tells whether a process runs.
pub fn is_alive(pid: u32) -> bool {
    // The name in parentheses may hold anything.
    let stat = std::fs::read_to_string(format!("/proc/{pid}/stat")).unwrap_or_default();
    stat.rsplit_once(") ").is_some_and(|(_, rest)| !rest.starts_with(['Z', 'X']))
}

/// Says what `~` and `+` mean, where there are any.
fn note_marks(printer: Printer, rows: &[Row<'_>]) {
    let estimated = rows.iter().filter(|r| r.is_estimated()).count();
    if estimated > 0 {
        printer.note(&format!(
            "~ times of {} are estimated from a random sample of calls; every call was counted (`--exact` times every call)",
            units::count(estimated as u64, "short function")
        ));
    }
    let running = rows.iter().filter(|r| r.stat.running > 0).count();
    if running > 0 {
        printer.note(&format!(
            "+ calls of {} had not returned at the end: they are timed until then",
            units::count(running as u64, "function")
        ));
    }
}

fn note_losses(printer: Printer, missed: Missed, lost: u64, paths: bool) {
    missed::note(printer, "", missed);
    if lost > 0 && paths {
        printer.note(&format!(
            "{} not in the tree, but in the time of the callers: nested deeper than 1023, returned on another thread, or beyond 262,143 call paths",
            units::count(lost, "call")
        ));
    } else if lost > 0 {
        printer.note(&format!(
            "{} counted, but not timed: nested deeper than 1023, or returned on another thread",
            units::count(lost, "call")
        ));
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::report::Figures;

    fn row(calls: u64) -> Row<'static> {
        let stat = Figures {
            calls,
            total_ns: 1,
            self_ns: 1,
            error_ns: None,
            self_error_ns: None,
            running: 0,
            p50_ns: None,
            p99_ns: None,
        };
        let name = format!("f{calls}").into();
        Row { name, symbol: "f", path: "/lib/x.so", entry_only: None, stat, part: None }
    }

    fn written(rows: &[&Row<'_>], at_once: usize) -> String {
        let mut out = Vec::new();
        functions(&mut out, rows, at_once).expect("memory takes all");
        String::from_utf8(out).expect("JSON is")
    }

    #[test]
    fn functions_are_in_order_whoever_makes_them_ready() {
        let rows: Vec<Row<'_>> = (0..200).map(row).collect();
        let rows: Vec<&Row<'_>> = rows.iter().collect();
        for count in [0, 1, 2, 3, 4, 7, 8, 9, 100, 200] {
            let rows = &rows[..count];
            let mut expected = Text::default();
            list(&mut expected, rows);
            let expected = String::from_utf8_lossy(expected.bytes());
            let expected = expected.strip_prefix(',').unwrap_or_default();
            for at_once in [1, 2, 3, 8, 1000] {
                assert_eq!(written(rows, at_once), expected, "{count} by {at_once}");
            }
        }
    }

    /// As a file system that is full.
    #[test]
    fn who_cannot_write_waits_for_nobody() {
        struct Full(usize);
        impl Write for Full {
            fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
                self.0 = self.0.checked_sub(bytes.len()).ok_or(io::ErrorKind::StorageFull)?;
                Ok(bytes.len())
            }
            fn flush(&mut self) -> io::Result<()> {
                Ok(())
            }
        }
        let row = row(1);
        let rows = vec![&row; 100];
        let whole = written(&rows, 5).len();
        assert!(functions(&mut Full(whole), &rows, 5).is_ok());
        for room in [0, 1, whole / 3, whole - 1] {
            let error = functions(&mut Full(room), &rows, 5).expect_err("there is no room");
            assert_eq!(error.kind(), io::ErrorKind::StorageFull);
        }
    }
}
