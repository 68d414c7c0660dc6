//! `skep trace -p`: attaches to processes that run already, and leaves them.

use std::path::{Path, PathBuf};
use std::time::Instant;

use skep::live::Order;
use skep::prototypes::Catalog;

use super::faults::Faults;
use super::report::Ended;
use super::tracer::{Loading, Outputs, Tracer};
use crate::agent::Library;
use crate::args::TraceArgs;
use crate::failure::{Context, Failure, Result};
use crate::live::{self, Agent, Live};
use crate::orphans::{self, TraceRecord};
use crate::printer::Printer;
use crate::signals::Signals;
use crate::sites::Sites;
use crate::{directory, unmatched};

/// Attaches, waits and prints the report; the exit status is 0, or that of an interruption.
pub fn run(args: &TraceArgs, printer: Printer) -> Result<u8> {
    let patterns = unmatched::patterns(&args.patterns)?;
    let exclude = unmatched::patterns(&args.exclude)?;
    let mut pids = args.pids.clone();
    pids.sort_unstable();
    pids.dedup();
    let outputs = Outputs::open(args)?;
    let dir = directory::create()?;
    let library = Library::find(&dir)?;
    let agent = Agent::read(library.path())?;
    let loading =
        Loading { dir: &dir, args, patterns: &patterns, exclude, library: library.path(), printer };
    let catalog = || Catalog::of_files(pids.iter().flat_map(|pid| files_of(*pid)));
    let (trace, mut objects) = Tracer::load(loading, outputs, catalog)?;
    let words = pids.iter().flat_map(|pid| ["-p".to_owned(), pid.to_string()]);
    let record = TraceRecord { command: words.collect(), start: trace.link().counter() };
    let faults = Faults::load(&dir, args)?;
    objects.extend(faults.iter().flat_map(|f| &f.objects));
    let pins = orphans::pin(&dir, trace.link(), &objects, &record);

    let links: Vec<u32> = faults.iter().map(|f| f.link.id()).chain([trace.link().id()]).collect();
    let mut signals = Signals::install().context("cannot handle signals")?;
    let began = Instant::now();
    let mut all: Vec<Live> = Vec::new();
    let mut failed = None;
    for &pid in &pids {
        let attached = agent.enter(pid, &dir).and_then(|live| {
            let done = links.iter().try_for_each(|link| live.order(Order::Attach(*link)).map(drop));
            all.push(live);
            done.map_err(|why| {
                Failure::environment(format!("cannot attach to process {pid}: {why}"))
            })
        });
        if let Err(e) = attached {
            failed = Some(e);
            break;
        }
    }
    if failed.is_none() {
        failed = Sites::new(&trace.link().read()?).unattached();
    }
    let interrupted = match failed {
        Some(_) => None,
        None => {
            let until = if args.time.is_some() { "" } else { "; Ctrl-C ends the trace" };
            printer.note(&format!("attached to {}{until}", processes(&pids)));
            live::wait(&all, &mut signals, args.time)?
        }
    };
    let wall_ns = u64::try_from(began.elapsed().as_nanos()).unwrap_or(u64::MAX);
    let end = trace.link().counter();
    faults.iter().for_each(|f| f.link.detach());
    trace.link().detach();
    for live in all {
        let pid = live.pid;
        if let Some(why) = live.leave(&agent) {
            printer.warning(&format!("process {pid} was not left as it was: {why}"));
        }
    }
    if let Some(failure) = failed {
        return Err(failure);
    }
    let state = trace.link().read()?;
    let sites = Sites::new(&state);
    let pid = pids.first().copied().filter(|_| pids.len() == 1);
    let ended = Ended { command: None, pids, status: None, wall_ns, end, pid };
    trace.print(&state, &sites, ended, args, printer)?;
    faults.iter().try_for_each(|f| f.note(args, printer))?;
    drop(pins);
    // Ctrl-C is how one ends this.
    Ok(match interrupted {
        None | Some(libc::SIGINT) => 0,
        Some(signal) => u8::try_from(128 + signal).unwrap_or(255),
    })
}

fn processes(pids: &[u32]) -> String {
    match pids {
        [pid] => format!("process {pid}"),
        pids => format!("{} processes", pids.len()),
    }
}

/// The files with code that a process has mapped, its program first: as they are named here, or else by
/// its own root.
fn files_of(pid: u32) -> Vec<PathBuf> {
    let program = std::fs::read_link(format!("/proc/{pid}/exe"));
    let maps = std::fs::read_to_string(format!("/proc/{pid}/maps")).unwrap_or_default();
    let mapped = maps.lines().filter_map(|line| {
        let mut fields = line.split_ascii_whitespace();
        fields.nth(1).filter(|perms| perms.contains('x'))?;
        let path = line.get(line.find('/')?..)?;
        fields.nth(2).filter(|inode| *inode != "0").map(|_| PathBuf::from(path))
    });
    let mut files: Vec<PathBuf> = Vec::new();
    for path in program.into_iter().chain(mapped) {
        let path = if path.exists() {
            path
        } else {
            let inside = path.strip_prefix("/").unwrap_or(&path).to_owned();
            Path::new(&format!("/proc/{pid}/root")).join(inside)
        };
        if !files.contains(&path) {
            files.push(path);
        }
    }
    files
}
