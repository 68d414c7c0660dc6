//! `skep trace`: one program on every matching function, and a table of what it counted.

use std::borrow::Cow;
use std::collections::HashMap;
use std::sync::Arc;

use serde::Serialize;
use serde_json::Value as Json;
use skep::Dir;
use skep::dir::Kind;
use skep::link::{Cookie, Link, LinkSpec, LinkState, Missed, describe};
use skep::load::{LoadError, Loader};
use skep::maps::{Access, Map};
use skep::object::Object;
use skep::prog::ProgramFile;
use skep_proc::demangle::demangle;

use crate::args::TraceArgs;
use crate::calibrate;
use crate::directory;
use crate::estimate::{Clock, Running, Stat};
use crate::failure::{Context, ENVIRONMENT, Failure, Result};
use crate::launch::{self, Launch, Outcome};
use crate::missed;
use crate::orphans::{self, TraceRecord};
use crate::printer::{Output, Printer};
use crate::rejection;
use crate::report::{self, Function, Row};
use crate::running::Threads;
use crate::sites::{self, Sites, module_path};
use crate::stats;
use crate::unmatched;

/// What `--json` prints.
#[derive(Serialize)]
struct Document<'a> {
    command: Vec<Cow<'a, str>>,
    status: Option<i32>,
    wall_ns: u64,
    sites: Json,
    functions: Vec<Function<'a>>,
    missed: u64,
    missed_by: Json,
    lost: u64,
    start_ns: u64,
    attach_ns: u64,
    processes: Json,
    not_traced: Json,
}

/// The compiled `bpf/trace.bpf.c`.
static OBJECT: &[u8] = include_bytes!("../bpf/trace.bpf.o");
/// Its name in messages.
const OBJECT_NAME: &str = "trace.bpf.o";
/// Up to so many calls go by before the next one is timed, where calls are sampled: 2^n - 1, at
/// most 63.
const SAMPLING: u32 = 63;
/// Rows of the table when nothing else is asked for.
const ROWS: usize = 30;
/// Functions in which a thread ends: if one of them is the innermost call of a stack, its thread has
/// ended.
const THREAD_ENDS: [&str; 5] = ["start_thread", "clone", "clone3", "__clone", "__clone3"];

/// Runs the command and prints the report; the exit status is the command's.
pub fn run(args: &TraceArgs, printer: Printer) -> Result<u8> {
    if let Some(id) = args.orphan {
        return report_orphan(args, id, printer);
    }
    let patterns = unmatched::patterns(&args.patterns)?;
    let exclude = unmatched::patterns(&args.exclude)?;
    let library = launch::library()?;
    let program = launch::resolve(&args.command)?;
    if !args.allow_unmatched {
        unmatched::check(&args.command, &patterns)?;
    }
    let output = Output::open(args.report.output.as_deref())?;
    let dir = directory::create()?;
    let object = Object::parse(OBJECT).context(format!("`{OBJECT_NAME}` is damaged"))?;
    let loaded = Loader::new(&dir)
        .max_entries("stats", args.max_functions)
        .sparse("stats")
        .load(&object)
        .map_err(own_failure)?;
    let find = |name: &str| {
        loaded
            .map(name)
            .cloned()
            .ok_or_else(|| Failure::environment(format!("`{OBJECT_NAME}` has no map `{name}`")))
    };
    let [traced] = loaded.programs() else {
        return Err(Failure::environment(format!("`{OBJECT_NAME}` is damaged")));
    };
    let spec = LinkSpec {
        cookie: Cookie::Index,
        entry_only: true,
        max_functions: args.max_functions,
        exclude,
        ..describe(traced, &patterns).map_err(|e| rejection::attach_failure(e, OBJECT_NAME))?
    };
    let mask = if args.exact { 0 } else { SAMPLING };
    let settings =
        [mask.to_le_bytes(), calibrate::overhead(&dir, &library, &object).to_le_bytes()].concat();
    find("settings")?
        .update(&0_u32.to_le_bytes(), &settings, 0)
        .map_err(|e| Failure::environment(e.to_string()))?;
    let link = Link::create(&dir, spec, None).map_err(own_failure)?;
    let trace = Trace {
        stats: find("stats")?,
        threads: find("threads")?,
        settings: find("settings")?,
        link,
    };

    let record = TraceRecord {
        command: args.command.iter().map(|a| a.to_string_lossy().into_owned()).collect(),
        start: trace.link.counter(),
    };
    let control = trace.link.read()?.spec.control;
    let objects: Vec<(Kind, u32)> = loaded.maps().iter().map(|m| (Kind::Map, m.map.id())).collect();
    let objects = [&objects[..], &[(Kind::Map, control), (Kind::Program, traced.id())]].concat();
    let pins = orphans::pin(&dir, &trace.link, &objects, &record);

    let launch = Launch {
        command: &args.command,
        library: &library,
        dir: &dir,
        links: vec![trace.link.id()],
    };
    let outcome = launch.run(|| trace.link.detach())?;
    let end = trace.link.counter();
    // Processes that the command started and that still run go on untraced.
    trace.link.detach();
    let done = (|| {
        let state = trace.link.read()?;
        let sites = Sites::new(&state);
        if outcome.status.is_none() {
            printer.note(&format!(
                "`{}` still runs as process {}, untraced",
                program.name, outcome.pid
            ));
        }
        let ended = Ended {
            command: record.command.iter().map(Cow::from).collect(),
            status: outcome.status_number(),
            wall_ns: nanos(&outcome),
            end,
            pid: Some(outcome.pid),
        };
        trace.print(&state, &sites, ended, args, output, printer)?;
        Ok(sites.failure(&program, &outcome))
    })();
    drop(pins);
    sites::end(done, &outcome, printer)
}

/// Prints the report of a trace whose `skep` was killed.
fn report_orphan(args: &TraceArgs, id: Option<u32>, printer: Printer) -> Result<u8> {
    let dir = directory::open()?;
    let found = orphans::find(&dir, id)?;
    let trace = Trace::open(&dir, found.id)?;
    let record = orphans::record(&dir, found)?;
    let output = Output::open(args.report.output.as_deref())?;
    let state = trace.link.read()?;
    let sites = Sites::new(&state);
    let pid = state.agents.first().map(|a| a.pid);
    let runs = pid.is_some_and(is_alive);
    // Nobody saw the end: the last time that was recorded takes its place.
    let end = if runs { trace.link.counter() } else { trace.seen(&state)? };
    if runs {
        printer.note(&format!("the command still runs as process {}", pid.unwrap_or(0)));
    }
    let ended = Ended {
        command: record.command.iter().map(Cow::from).collect(),
        status: None,
        wall_ns: trace.link.nanos(end.saturating_sub(record.start)),
        end,
        pid,
    };
    trace.print(&state, &sites, ended, args, output, printer)?;
    orphans::reported(&dir, found);
    Ok(0)
}

/// The objects of a trace that its report is made from.
struct Trace {
    link: Link,
    stats: Arc<Map>,
    threads: Arc<Map>,
    settings: Arc<Map>,
}

/// How a command ended, as far as that is known.
struct Ended<'a> {
    command: Vec<Cow<'a, str>>,
    status: Option<i32>,
    wall_ns: u64,
    /// By the clock of the link.
    end: u64,
    pid: Option<u32>,
}

impl Trace {
    /// Opens the objects of an orphan.
    fn open(dir: &Dir, id: u32) -> Result<Self> {
        let link = Link::open(dir, id).map_err(own_failure)?;
        let program =
            ProgramFile::open(dir, link.read()?.spec.programs.first().map_or(0, |p| p.id))?;
        let mut maps = Vec::new();
        for map in program.program().maps() {
            maps.push(Arc::new(Map::open(&dir.object(Kind::Map, *map), Access::ReadOnly)?));
        }
        let find = |name: &str| {
            let found = maps.iter().find(|m| m.def().name == name).cloned();
            found.ok_or_else(|| {
                Failure::environment(format!("link {id} is not that of a trace by this version of skep: it has no map `{name}`"))
            })
        };
        Ok(Self {
            stats: find("stats")?,
            threads: find("threads")?,
            settings: find("settings")?,
            link,
        })
    }

    fn clock(&self) -> Clock {
        let settings = self.settings.lookup(&0_u32.to_le_bytes()).unwrap_or_default();
        let overhead =
            settings.get(4..8).and_then(|b| b.try_into().ok()).map_or(0, u32::from_le_bytes);
        Clock { tick: self.link.nanos(1 << 32) as f64 / 4_294_967_296.0, overhead }
    }

    /// When anything was written down last, by the clock of the link.
    fn seen(&self, state: &LinkState) -> Result<u64> {
        let mut last = Threads::read(&self.threads).stacks().map(|s| s.seen()).max().unwrap_or(0);
        stats::each(&self.stats, count(state), |_, value| last = last.max(Stat::last(value)))
            .context("cannot read the statistics")?;
        Ok(last)
    }

    /// Prints the report.
    fn print(
        &self,
        state: &LinkState,
        sites: &Sites,
        ended: Ended<'_>,
        args: &TraceArgs,
        output: Output,
        printer: Printer,
    ) -> Result {
        let link = &self.link;
        sites.note(printer, "", args.report.verbose);
        let threads = Threads::read(&self.threads);
        let mut rows = self.rows(state, &running(&threads, state, &ended))?;
        report::carry(&mut rows);
        report::sort(&mut rows, args.sort);
        let lost = threads.lost();
        note_losses(printer, link.missed(), lost);
        if link.lost_pages() > 0 {
            let (pages, dir) = (link.lost_pages(), Dir::default_path());
            let dir = dir.display();
            printer.note(&format!("`{dir}` is full: {pages} pages of statistics are lost; set `SKEP_DIR` to use another directory"));
        }
        note_marks(printer, &rows);
        if args.report.json {
            let limit = args.limit.filter(|n| *n > 0).unwrap_or(usize::MAX);
            let document = Document {
                command: ended.command,
                status: ended.status,
                wall_ns: ended.wall_ns,
                sites: sites.json(),
                functions: rows.iter().take(limit).map(Function::from).collect(),
                missed: link.missed().total(),
                missed_by: missed::to_json(link.missed()),
                lost,
                start_ns: sites.start_ns(),
                attach_ns: sites.attach_ns(),
                processes: sites.processes_json(),
                not_traced: sites.not_traced_json(),
            };
            return printer.json(output, &document);
        }
        if sites.attached() == 0 {
            return Ok(());
        }
        let limit = match args.limit {
            Some(0) => usize::MAX,
            limit => limit.unwrap_or(ROWS),
        };
        let shown = rows.get(..limit.min(rows.len())).unwrap_or_default();
        let width = output.width();
        printer.data(output, |out| report::table(out, shown, width))?;
        if rows.is_empty() {
            let complete = link.missed().total() == 0
                && lost == 0
                && link.lost_pages() == 0
                && sites.all_traced();
            printer.note(if complete {
                "none of them was called"
            } else {
                "none of their calls was counted"
            });
        } else if shown.len() < rows.len() {
            printer.note(&format!(
                "{} more functions were called; `--limit 0` shows all",
                rows.len() - shown.len()
            ));
        }
        Ok(())
    }

    /// The functions that were called.
    fn rows<'a>(
        &self,
        state: &'a LinkState,
        running: &HashMap<u32, Running>,
    ) -> Result<Vec<Row<'a>>> {
        let mut rows = Vec::new();
        let clock = self.clock();
        stats::each(&self.stats, count(state), |index, value| {
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
                });
            }
        })
        .context("cannot read the statistics")?;
        Ok(rows)
    }
}

fn count(state: &LinkState) -> u32 {
    u32::try_from(state.functions.len()).unwrap_or(u32::MAX)
}

/// Finds the calls that had not returned when the command ended, and what they took until then.
fn running(threads: &Threads, state: &LinkState, ended: &Ended<'_>) -> HashMap<u32, Running> {
    let mut all = HashMap::new();
    let name = |function: u32| state.functions.get(function as usize).map(|f| f.name.as_str());
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
fn is_alive(pid: u32) -> bool {
    // The name in parentheses may hold anything.
    let stat = std::fs::read_to_string(format!("/proc/{pid}/stat")).unwrap_or_default();
    stat.rsplit_once(") ").is_some_and(|(_, rest)| !rest.starts_with(['Z', 'X']))
}

/// The object is ours: what is wrong with it is not the user's to mend.
fn own_failure(error: LoadError) -> Failure {
    Failure { hint: None, status: ENVIRONMENT, ..rejection::load_failure(error, OBJECT_NAME) }
}

/// Wall time of the command as a number.
pub fn nanos(outcome: &Outcome) -> u64 {
    u64::try_from(outcome.wall.as_nanos()).unwrap_or(u64::MAX)
}

/// Says what `~` and `+` mean, where there are any.
fn note_marks(printer: Printer, rows: &[Row<'_>]) {
    let estimated = rows.iter().filter(|r| r.stat.error_ns.is_some()).count();
    if estimated > 0 {
        printer.note(&format!(
            "~ times of {estimated} short functions are estimated from a random sample of their calls; every call was counted (`--exact` times every call)"
        ));
    }
    let running = rows.iter().filter(|r| r.stat.running > 0).count();
    if running > 0 {
        printer.note(&format!(
            "+ calls of {running} functions had not returned at the end: they are timed until then"
        ));
    }
}

fn note_losses(printer: Printer, missed: Missed, lost: u64) {
    missed::note(printer, "", missed);
    if lost > 0 {
        printer.note(&format!(
            "{lost} calls were nested deeper than 1023 or returned on another thread: counted, but not timed"
        ));
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::estimate::STAT_SIZE;

    /// The reader knows the layout of the program's statistics by heart.
    #[test]
    fn the_statistics_are_as_large_as_their_reader_thinks()
    -> std::result::Result<(), Box<dyn std::error::Error>> {
        let object = Object::parse(OBJECT)?;
        let stats = object.maps.iter().find(|m| m.name == "stats").ok_or("no map `stats`")?;
        assert_eq!(stats.value_size as usize, STAT_SIZE);
        Ok(())
    }
}
