//! `skep trace`: one program on every matching function, and a table of what it counted, or the calls
//! one by one.

mod attach;
mod budget;
mod calls;
mod coverage;
mod csv;
mod diff;
mod faults;
mod graph;
mod objects;
pub mod recorded;
pub mod recording;
mod report;
mod top;
mod tracer;
mod tree;

use std::borrow::Cow;
use std::ffi::OsString;
use std::mem::ManuallyDrop;
use std::time::Duration;

use crate::agent::Library;
use crate::args::TraceArgs;
use crate::failure::{Context, Result};
use crate::held::Held;
use crate::launch::{self, Launch, Outcome};
use crate::live::{self, namespace};
use crate::orphans::{self, TraceRecord};
use crate::printer::Printer;
use crate::report::Wall;
use crate::sites::{self, Sites};
use crate::terminal::Terminal;
use crate::watch::Watch;
use crate::{directory, owner, signals, unmatched};
use budget::Budget;
use faults::Faults;
use objects::Trace;
use report::{Ended, is_alive};
use skep::Dir;
use skep::prototypes::Catalog;
use tracer::{Loading, Outputs, Tracer};

/// Runs the command and prints the report; the exit status is the command's.
pub fn run(args: &TraceArgs, printer: Printer) -> Result<u8> {
    if let Some(id) = args.orphan {
        return report_orphan(args, id, printer);
    }
    if !args.diff.is_empty() {
        return diff::run(args, printer);
    }
    signals::note_early();
    if !args.process.pids.is_empty() {
        return namespace::run(&args.process, printer, || attach::run(args, printer));
    }
    unmatched::know_command(&args.command);
    let patterns = unmatched::patterns(&args.patterns)?;
    let exclude = unmatched::patterns(&args.exclude)?;
    let program = launch::resolve(&args.command)?;
    if !args.allow_unmatched {
        unmatched::check(&args.command, &patterns)?;
        faults::check(args)?;
    }
    let terminal = args.top.then(Terminal::open).transpose()?;
    let outputs = Outputs::open(args)?;
    let dir = directory::create_to_trace()?;
    let library = Library::find(&dir)?;
    let loading =
        Loading { dir: &dir, args, patterns: &patterns, exclude, library: library.path(), printer };
    let name = args.command.first().map(OsString::as_os_str).unwrap_or_default();
    let (trace, mut objects) = Tracer::load(loading, outputs, || Catalog::of_command(name, None))?;
    let record = TraceRecord {
        command: args.command.iter().map(|a| a.to_string_lossy().into_owned()).collect(),
        start: trace.link().counter(),
    };
    let faults = Faults::load(&dir, args)?;
    objects.extend(faults.iter().flat_map(|f| &f.objects));
    let pins = orphans::pin(&dir, trace.link(), &objects, &record);

    let agent = program.is_followed.then(|| live::agent(library.path())).transpose()?;
    let held = terminal.is_some().then(Held::new).transpose();
    let held = held.context("cannot keep the command's output")?;
    let mut launch = Launch {
        command: &args.command,
        library: library.path(),
        dir: &dir,
        links: faults.iter().map(|f| f.link.id()).chain([trace.link().id()]).collect(),
        held,
        agent: agent.as_ref(),
        printer,
    };
    let detach = || {
        faults.iter().for_each(|f| f.link.detach());
        trace.link().detach();
    };
    let budget = trace.budget(args)?;
    let mut top = trace.top(terminal, args, &[]);
    let outcome = launch.run(detach, top.as_mut().map(|top| top as &mut dyn Watch));
    top::end(top, launch.held, printer);
    let outcome = outcome?;
    let let_go = budget.map(Budget::end).unwrap_or_default();
    let end = trace.link().counter();
    // Processes that the command started and that still run go on untraced.
    detach();
    let done = (|| {
        // The process ends soon: nobody needs the memory of a hundred thousand names.
        let state = ManuallyDrop::new(trace.link().read()?);
        let sites = Sites::new(&state);
        if outcome.status.is_none() {
            printer.note(&format!(
                "`{}` still runs as process {}, untraced",
                program.name, outcome.pid
            ));
        }
        let ended = Ended {
            command: Some(record.command.iter().map(Cow::from).collect()),
            pids: Vec::new(),
            status: outcome.status_number(),
            wall: Wall::new(nanos(&outcome), Duration::ZERO),
            end,
            pid: Some(outcome.pid),
            let_go,
        };
        trace.print(&state, &sites, ended, args, printer)?;
        faults.iter().try_for_each(|f| f.note(args, printer))?;
        Ok(sites.failure(&program, &outcome))
    })();
    drop(pins);
    sites::end(done, &outcome, printer)
}

/// Prints the report of a trace whose `skep` was killed.
fn report_orphan(args: &TraceArgs, id: Option<u32>, printer: Printer) -> Result<u8> {
    owner::begin()?;
    live::become_owner_of(&Dir::default_path(), printer)?;
    let dir = directory::open()?;
    let found = orphans::find(&dir, id)?;
    let trace = Trace::open(&dir, found.id)?;
    let record = orphans::record(&dir, found)?;
    let outputs = report::Outputs::open(&args.shown)?;
    let state = trace.link.read()?;
    let sites = Sites::new(&state);
    let pid = state.agents.first().map(|a| a.pid);
    let runs = pid.is_some_and(is_alive);
    // Nobody saw the end: the last time that was recorded takes its place.
    let end = if runs { trace.link.counter() } else { trace.seen(&state)? };
    let ago = trace.link.nanos(trace.link.counter().saturating_sub(end));
    let ago = Duration::from_nanos(ago);
    if runs {
        printer.note(&format!("the command still runs as process {}", pid.unwrap_or(0)));
    }
    let ended = Ended {
        command: Some(record.command.iter().map(Cow::from).collect()),
        pids: Vec::new(),
        status: None,
        wall: Wall::new(trace.link.nanos(end.saturating_sub(record.start)), ago),
        end,
        pid,
        let_go: Vec::new(),
    };
    // The report is a tree if the program counted one.
    trace.sums(&state, &sites, ended)?.print(&args.shown, true, outputs, printer)?;
    orphans::reported(&dir, found);
    Ok(0)
}

/// Wall time of the command as a number.
pub fn nanos(outcome: &Outcome) -> u64 {
    u64::try_from(outcome.wall.as_nanos()).unwrap_or(u64::MAX)
}
