//! `skep trace -p`: attaches to processes that run already, and leaves them.

use std::time::Instant;

use skep::live::Order;

use super::objects::Trace;
use super::report::{Ended, Outputs};
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
    let (trace, objects) = Trace::load(&dir, args, &patterns, exclude, library.path())?;
    let words = pids.iter().flat_map(|pid| ["-p".to_owned(), pid.to_string()]);
    let record = TraceRecord { command: words.collect(), start: trace.link.counter() };
    let pins = orphans::pin(&dir, &trace.link, &objects, &record);

    let mut signals = Signals::install().context("cannot handle signals")?;
    let began = Instant::now();
    let mut all: Vec<Live> = Vec::new();
    let mut failed = None;
    for &pid in &pids {
        let attached = agent.enter(pid, &dir).and_then(|live| {
            let done = live.order(Order::Attach(trace.link.id()));
            all.push(live);
            done.map(drop).map_err(|why| {
                Failure::environment(format!("cannot attach to process {pid}: {why}"))
            })
        });
        if let Err(e) = attached {
            failed = Some(e);
            break;
        }
    }
    if failed.is_none() {
        failed = Sites::new(&trace.link.read()?).unattached();
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
    let end = trace.link.counter();
    trace.link.detach();
    for live in all {
        let pid = live.pid;
        if let Some(why) = live.leave(&agent) {
            printer.warning(&format!("process {pid} was not left as it was: {why}"));
        }
    }
    if let Some(failure) = failed {
        return Err(failure);
    }
    let state = trace.link.read()?;
    let sites = Sites::new(&state);
    let pid = pids.first().copied().filter(|_| pids.len() == 1);
    let ended = Ended { command: None, pids, status: None, wall_ns, end, pid };
    trace.print(&state, &sites, ended, args, outputs, printer)?;
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
