//! `skep trace`: one program on every matching function, and a table of what it counted.

use std::borrow::Cow;

use serde::Serialize;
use serde_json::Value as Json;
use skep::link::{Cookie, Link, LinkSpec, LinkState, Missed, Pattern};
use skep::load::{LoadError, Loaded, Loader};
use skep::maps::Map;
use skep::object::Object;
use skep_proc::demangle::demangle;

use crate::args::TraceArgs;
use crate::failure::{Context, ENVIRONMENT, Failure, Result};
use crate::launch::{self, Launch, Outcome};
use crate::printer::{Output, Printer};
use crate::report::{self, Function, Row, Stat};
use crate::session;
use crate::sites::{self, Sites, module_path};
use crate::stats;

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
/// Its name in messages; nobody should ever see it.
const OBJECT_NAME: &str = "trace.bpf.o";
/// One call in so many is timed of functions that are called often and return soon; a power of two up to 32.
const PERIOD: u32 = 32;
/// Rows of the table when nothing else is asked for.
const ROWS: usize = 30;

/// Runs the command and prints the report; the exit status is the command's.
pub fn run(args: &TraceArgs, printer: Printer) -> Result<u8> {
    for pattern in args.patterns.iter().chain(&args.exclude) {
        pattern.parse::<Pattern>()?;
    }
    let library = launch::library()?;
    let program = launch::resolve(&args.command)?;
    let output = Output::open(args.report.output.as_deref())?;
    let dir = session::directory()?;
    let object = Object::parse(OBJECT).context(format!("`{OBJECT_NAME}` is damaged"))?;
    let loaded = Loader::new(&dir).resize("stats", args.max_functions).load(&object).map_err(own_failure)?;
    let (stats_map, threads) = (map(&loaded, "stats")?, map(&loaded, "threads")?);
    let [traced] = loaded.programs.as_slice() else { return Err(Failure::environment(format!("`{OBJECT_NAME}` is damaged"))) };
    let spec = LinkSpec {
        cookie: Cookie::Index,
        entry_only: true,
        max_functions: args.max_functions,
        exclude: args.exclude.clone(),
        ..LinkSpec::of(traced, &args.patterns).map_err(|e| session::attach_failure(e, OBJECT_NAME))?
    };
    let period = if args.exact { 0 } else { PERIOD - 1 };
    map(&loaded, "period")?.update(&0_u32.to_le_bytes(), &period.to_le_bytes(), 0).map_err(|e| Failure::environment(e.to_string()))?;
    let link = Link::create(&dir, spec, None).map_err(own_failure)?;

    let launch = Launch { command: &args.command, library: &library, dir: &dir, links: vec![link.id()] };
    let outcome = launch.run(|| link.turn_off())?;
    // Processes that the command left behind go on untraced.
    link.turn_off();

    let state = link.read()?;
    let sites = Sites::new(&state);
    if outcome.status.is_none() {
        printer.note(&format!("`{}` still runs as process {}, untraced", program.name, outcome.pid));
    }
    sites.note(printer, "", args.report.verbose);
    let mut rows = rows(&state, stats_map, link.nanos(1 << 32) as f64 / 4_294_967_296.0)?;
    report::sort(&mut rows, args.sort);
    let lost = lost(threads);
    note_losses(printer, link.missed(), lost);
    if link.lost_pages() > 0 {
        let (pages, dir) = (link.lost_pages(), dir.path().display());
        printer.note(&format!("`{dir}` is full: {pages} pages of statistics are lost; `SKEP_DIR` names another place"));
    }
    let sampled = rows.iter().filter(|r| r.stat.sampled).count();
    if sampled > 0 {
        printer.note(&format!(
            "times of {sampled} short functions are estimated: one call in {PERIOD} was timed, all were counted (`--exact` times all)"
        ));
    }
    if args.report.json {
        let limit = args.limit.filter(|n| *n > 0).unwrap_or(usize::MAX);
        let document = Document {
            command: args.command.iter().map(|a| a.to_string_lossy()).collect(),
            status: outcome.status_number(),
            wall_ns: nanos(&outcome),
            sites: sites.json(),
            functions: rows.iter().take(limit).map(Function::from).collect(),
            missed: link.missed().total(),
            missed_by: session::missed_json(link.missed()),
            lost,
            start_ns: sites.start_ns(),
            attach_ns: sites.attach_ns(),
            processes: sites.processes_json(),
            not_traced: sites.not_traced_json(),
        };
        printer.json(output, &document)?;
    } else if sites.attached() > 0 {
        let limit = match args.limit {
            Some(0) => usize::MAX,
            limit => limit.unwrap_or(ROWS),
        };
        let shown = rows.get(..limit.min(rows.len())).unwrap_or_default();
        let width = output.width();
        printer.data(output, |out| report::table(out, shown, width))?;
        if rows.is_empty() {
            printer.note("none of them was called");
        } else if shown.len() < rows.len() {
            printer.note(&format!("{} more functions were called; `--limit 0` shows all", rows.len() - shown.len()));
        }
    }
    sites::end(sites.failure(&program, &outcome), &outcome, printer)
}

/// The object is ours: what is wrong with it is not the user's to mend.
fn own_failure(error: LoadError) -> Failure {
    Failure { hint: None, status: ENVIRONMENT, ..session::load_failure(error, OBJECT_NAME) }
}

/// Wall time of the command as a number.
pub fn nanos(outcome: &Outcome) -> u64 {
    u64::try_from(outcome.wall.as_nanos()).unwrap_or(u64::MAX)
}

fn map<'a>(loaded: &'a Loaded, name: &str) -> Result<&'a Map> {
    let found = loaded.maps.iter().find(|m| m.name == name);
    found.map(|m| &*m.map).ok_or_else(|| Failure::environment(format!("`{OBJECT_NAME}` has no map `{name}`")))
}

/// The functions that were called. `tick`: nanoseconds in a unit of their times.
fn rows<'a>(state: &'a LinkState, stats: &Map, tick: f64) -> Result<Vec<Row<'a>>> {
    let mut rows = Vec::new();
    let count = u32::try_from(state.functions.len()).unwrap_or(u32::MAX);
    stats::each(stats, count, |index, value| {
        let Some(function) = state.functions.get(index as usize) else { return };
        let stat = Stat::sum(value, tick);
        if stat.calls > 0 {
            let path = module_path(state, function.module);
            let entry_only = function.entry_only.as_deref();
            rows.push(Row { name: demangle(&function.name), symbol: &function.name, path, entry_only, stat: stat.into() });
        }
    })
    .context("cannot read the statistics")?;
    Ok(rows)
}

/// Where `lost` stands in `struct thread` (`bpf/trace.bpf.c`).
const LOST: usize = 24;

/// Adds up over all threads the returns whose entry was not known.
fn lost(threads: &Map) -> u64 {
    let stride = (threads.def().value_size as usize).next_multiple_of(8).max(1);
    let Ok(value) = threads.lookup(&0_u32.to_le_bytes()) else { return 0 };
    let word = |thread: &[u8]| thread.get(LOST..LOST + 8).and_then(|b| b.try_into().ok()).map_or(0, u64::from_le_bytes);
    value.chunks_exact(stride).map(word).fold(0, u64::saturating_add)
}

fn note_losses(printer: Printer, missed: Missed, lost: u64) {
    session::note_missed(printer, "", missed);
    if lost > 0 {
        printer.note(&format!(
            "{lost} calls were deeper than the tracer's stack of 1023 or returned on another thread: counted, but not timed"
        ));
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::report::STAT_SIZE;

    /// The reader knows the layout of the program's statistics by heart.
    #[test]
    fn the_statistics_are_as_large_as_their_reader_thinks() -> std::result::Result<(), Box<dyn std::error::Error>> {
        let object = Object::parse(OBJECT)?;
        let stats = object.maps.iter().find(|m| m.name == "stats").ok_or("no map `stats`")?;
        assert_eq!(stats.value_size as usize, STAT_SIZE);
        Ok(())
    }
}
