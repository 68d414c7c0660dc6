//! `skep trace -p`: attaches to processes that run already, and leaves them.

use std::time::Duration;

use skep::prototypes::Catalog;

use super::budget::Budget;
use super::faults::Faults;
use super::report::Ended;
use super::top;
use super::tracer::{Loading, Outputs, Tracer};
use crate::agent::Library;
use crate::args::TraceArgs;
use crate::failure::Result;
use crate::live::{self, Visit, namespace};
use crate::orphans::{self, TraceRecord};
use crate::printer::Printer;
use crate::report::Wall;
use crate::sites::Sites;
use crate::terminal::Terminal;
use crate::watch::Watch;
use crate::{directory, unmatched};

/// Attaches, waits and prints the report; the exit status is 0, or that of an interruption.
pub fn run(args: &TraceArgs, printer: Printer) -> Result<u8> {
    unmatched::know_processes(&namespace::ids(&args.process));
    let patterns = unmatched::patterns(&args.patterns)?;
    let exclude = unmatched::patterns(&args.exclude)?;
    let terminal = args.top.then(Terminal::open).transpose()?;
    let outputs = Outputs::open(args)?;
    let dir = directory::create_to_trace()?;
    let library = Library::find(&dir)?;
    let agent = live::agent(library.path())?;
    let visit = Visit::new(&agent, &dir, &args.process);
    let loading =
        Loading { dir: &dir, args, patterns: &patterns, exclude, library: library.path(), printer };
    let (trace, mut objects) =
        Tracer::load(loading, outputs, || Catalog::of_files(visit.files(), None))?;
    let words = visit.pids().iter().flat_map(|pid| ["-p".to_owned(), pid.to_string()]);
    let record = TraceRecord { command: words.collect(), start: trace.link().counter() };
    let faults = Faults::load(&dir, args)?;
    objects.extend(faults.iter().flat_map(|f| &f.objects));
    let pins = orphans::pin(&dir, trace.link(), &objects, &record);

    let links: Vec<u32> = faults.iter().map(|f| f.link.id()).chain([trace.link().id()]).collect();
    let budget = trace.budget(args)?;
    let mut end = 0;
    let mut top = trace.top(terminal, args, visit.pids());
    let visited = visit.make(
        &links,
        || {
            let sites = Sites::new(&trace.link().read()?);
            Ok(sites.unattached_with_reasons(printer, args.shown.report.verbose))
        },
        || {
            end = trace.link().counter();
            faults.iter().for_each(|f| f.link.detach());
            trace.link().detach();
        },
        top.as_mut().map(|top| top as &mut dyn Watch),
        printer,
    );
    top::end(top, None, printer);
    let visited = visited?;
    let let_go = budget.map(Budget::end).unwrap_or_default();
    let state = trace.link().read()?;
    let sites = Sites::new(&state);
    let code = visited.code();
    let pids = visited.pids;
    let pid = pids.first().copied().filter(|_| pids.len() == 1);
    let wall = Wall::new(visited.wall_ns, Duration::ZERO);
    let ended = Ended { command: None, pids, status: None, wall, end, pid, let_go };
    trace.print(&state, &sites, ended, args, printer)?;
    faults.iter().try_for_each(|f| f.note(args, printer))?;
    drop(pins);
    Ok(code)
}
