//! `skep report`: what a recording has, in any of the forms that a trace is printed in.

use std::collections::HashMap;
use std::fmt::{self, Display};
use std::io::{self, Write};

use skep::link::FunctionRecord;
use skep_proc::demangle::{bare, demangle};

use super::calls;
use super::calls::list::{Form, List};
use super::calls::record::unfinished;
use super::calls::timeline::{self, Named};
use super::recording::{Event, Item, Reader, Summary, Unreadable};
use super::report::{Counted, Ended, Outputs, Sums};
use super::tree::{Node, Thread, Tree};
use crate::args::RecordingArgs;
use crate::failure::{Failure, Result};
use crate::files;
use crate::missed;
use crate::printer::{Output, Printer, check_apart};
use crate::report::file_name;
use crate::sites::{Sites, module_path};

/// Shows a recording.
pub fn run(args: &RecordingArgs, printer: Printer) -> Result<u8> {
    check_apart(args.shown.report.output.as_deref(), &args.shown.files(), &[&args.file])?;
    let name = args.file.display();
    let file = files::read(&args.file)
        .map_err(|e| Failure::environment(format!("cannot read `{name}`: {e}")))?;
    let cannot = |why: Unreadable| {
        Failure::environment(format!("cannot read `{name}`"))
            .because(&why)
            .hint("`skep trace PATTERN… --record FILE -- COMMAND` writes one, when the trace ends")
    };
    let reader = Reader::new(&file).map_err(cannot)?;
    let (shown, wants_calls) = (&args.shown, args.calls || args.shown.timeline().is_some());
    // The summary is at the end, and says what the calls before it are.
    let mut calls = Calls::default();
    let mut summary = calls.summary(reader).map_err(cannot)?;
    let paths = summary.paths.take();
    if wants_calls && paths.is_some() {
        let what = format!("`{name}` has call paths, not single calls");
        return Err(Failure::environment(what).hint("record with `--calls` to have both"));
    }
    if wants_calls {
        let reader = Reader::new(&file).map_err(cannot)?;
        return list(reader, &summary, args, printer).map(|()| 0);
    }
    if calls.are_of_others(&summary) {
        return Err(cannot(Unreadable::Damaged));
    }
    let (nodes, threads) = paths.unwrap_or_else(|| calls.paths());
    if shown.wants_threads() && nodes.iter().any(|node| node.thread.is_none()) {
        let what = format!("threads are not told apart in `{name}`");
        return Err(Failure::environment(what).hint("record with `--tid`, or with `--calls`"));
    }
    let outputs = Outputs::open(shown)?;
    let depth = shown.depth.map_or(usize::MAX, |depth| depth as usize);
    let tree = Tree::new(nodes, threads, &summary.state).reduced(depth, shown.wants_threads());
    let sites = Sites::new(&summary.state);
    let sums = Sums {
        ended: ended(&summary),
        state: &summary.state,
        sites: &sites,
        missed: summary.missed,
        lost: summary.lost,
        lost_pages: summary.lost_pages,
        overhead_ns: summary.overhead_ns,
        caller_overhead_ns: summary.caller_overhead_ns,
        counted: Counted::Paths(tree),
    };
    note_dropped(&summary, printer);
    sums.print(shown, false, outputs, printer)?;
    Ok(0)
}

/// Prints single calls, and writes a timeline of them.
fn list(
    mut reader: Reader<'_>,
    summary: &Summary,
    args: &RecordingArgs,
    printer: Printer,
) -> Result {
    let shown = &args.shown;
    let output = Output::open(shown.report.output.as_deref())?;
    let file = shown.timeline().map(|path| Output::open(Some(path))).transpose()?;
    let form = match (shown.report.json, args.calls) {
        (true, _) => Form::Json,
        (_, true) => Form::Lines,
        _ => Form::Nothing,
    };
    let state = &summary.state;
    let name = |f: &FunctionRecord| {
        let module = file_name(module_path(state, f.module)).to_owned();
        (bare(&demangle(&f.name)).to_owned(), module)
    };
    let names: Vec<(String, String)> = state.functions.iter().map(name).collect();
    let sites = Sites::new(state);
    let rest = calls::rest(&ended(summary), &sites, summary.missed, summary.lost, summary.dropped)?;
    let mut list = List::new(form, shown.limit, timeline::of(shown));
    let mut print = |out: &mut dyn Write, mut file: Option<&mut dyn Write>| {
        while let Item::Call(event) = reader.next().map_err(io::Error::other)? {
            let (name, module) = names
                .get(event.function as usize)
                .ok_or(Unreadable::Damaged)
                .map_err(io::Error::other)?;
            let deep = shown.depth.is_some_and(|depth| event.depth >= depth.into());
            if deep || event.took_ns.is_some_and(|took| took < shown.min_ns()) {
                continue;
            }
            let process = reader.processes.get(&event.pid).map(String::as_str).unwrap_or_default();
            let named = Named { name, module, event: &event };
            list.call(&named, &Values(&event), &|| process.to_owned(), out, &mut file)?;
        }
        list.end(&rest, out, file, None)
    };
    match file {
        None => printer.data(output, |out| print(out, None))?,
        Some(file) => {
            let mut printed = Ok(());
            printer.data(file, |file| {
                printed = printer.data(output, |out| print(out, Some(file)));
                Ok(())
            })?;
            printed?;
        }
    }
    sites.note(printer, "", shown.report.verbose);
    missed::note(printer, "", summary.missed);
    note_dropped(summary, printer);
    let hidden = list.printed().hidden;
    if hidden > 0 {
        printer.note(&format!("{hidden} more calls; without `--limit` all are shown"));
    }
    Ok(())
}

/// What stands behind the name of a call.
struct Values<'e>(&'e Event);

impl Display for Values<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.0.values.as_str() {
            "" => write!(f, "(…){}", unfinished(self.0.running, self.0.left)),
            values => f.write_str(values),
        }
    }
}

fn ended(summary: &Summary) -> Ended<'_> {
    Ended {
        command: summary.command.as_ref().map(|c| c.iter().map(Into::into).collect()),
        pids: summary.pids.clone(),
        status: summary.status,
        wall: summary.wall,
        end: 0,
        pid: None,
        let_go: Vec::new(),
    }
}

fn note_dropped(summary: &Summary, printer: Printer) {
    if summary.dropped > 0 {
        printer.warning(&format!(
            "{} calls are missing: they came faster than they could be recorded; without `--calls` all are counted",
            summary.dropped
        ));
    }
}

/// The calls of a recording by thread, in the order in which they returned.
#[derive(Default)]
struct Calls {
    by_thread: HashMap<(u32, u32), Vec<Timed>>,
    processes: HashMap<u32, String>,
    last_function: u32,
}

/// When a call of which function ran.
#[derive(Clone, Copy)]
struct Timed {
    start: u64,
    end: u64,
    depth: u64,
    function: u32,
    took: Option<u64>,
    running: bool,
    left: bool,
}

impl Calls {
    /// Reads all, up to the summary.
    fn summary(&mut self, mut reader: Reader<'_>) -> Result<Summary, Unreadable> {
        loop {
            match reader.next()? {
                Item::Call(call) => {
                    self.last_function = self.last_function.max(call.function);
                    let Event { start_ns: start, depth, function, took_ns: took, .. } = call;
                    let Event { running, left, .. } = call;
                    let end = start.saturating_add(took.unwrap_or(0));
                    let timed = Timed { start, end, depth, function, took, running, left };
                    self.by_thread.entry((call.pid, call.tid)).or_default().push(timed);
                }
                Item::End(summary) => {
                    self.processes = reader.processes;
                    return Ok(*summary);
                }
            }
        }
    }

    /// Tells whether there are calls of functions that are not there.
    fn are_of_others(&self, summary: &Summary) -> bool {
        !self.by_thread.is_empty() && self.last_function as usize >= summary.state.functions.len()
    }

    /// What the calls add up to. A call's caller is the innermost one around it. One that was left has no
    /// time of its own: it is its caller's, but for the calls from it.
    fn paths(self) -> (Vec<Node>, Vec<Thread>) {
        let (mut nodes, mut threads): (Vec<Node>, Vec<Thread>) = Default::default();
        let mut all: Vec<((u32, u32), Vec<Timed>)> = self.by_thread.into_iter().collect();
        all.sort_unstable_by_key(|(thread, _)| *thread);
        for ((pid, tid), mut calls) in all {
            let thread = Some(threads.len());
            let name = self.processes.get(&pid).cloned().unwrap_or_default();
            threads.push(Thread { pid, tid, name });
            calls.sort_unstable_by_key(|c| (c.start, c.depth));
            let mut places: HashMap<(Option<usize>, u32), usize> = HashMap::new();
            let mut open: Vec<(usize, Timed)> = Vec::new();
            for call in calls {
                while open
                    .last()
                    .is_some_and(|(_, above)| above.depth >= call.depth || above.end < call.end)
                {
                    open.pop();
                }
                let caller = open.last().map(|(place, _)| *place);
                let place = *places.entry((caller, call.function)).or_insert(nodes.len());
                if place == nodes.len() {
                    let function = call.function as usize;
                    nodes.push(Node { caller, function, thread, ..Node::default() });
                }
                let took = call.took.filter(|_| !call.left).unwrap_or(0);
                let timed = open.iter().rev().find(|(_, above)| !above.left);
                if let Some(above) = timed.and_then(|(place, _)| nodes.get_mut(*place)) {
                    above.self_ns = above.self_ns.saturating_sub(took);
                }
                if let Some(node) = nodes.get_mut(place) {
                    node.calls += 1;
                    node.running += u64::from(call.running);
                    node.self_ns = node.self_ns.saturating_add(took);
                    node.longest_ns = node.longest_ns.max(took);
                }
                open.push((place, call));
            }
        }
        (nodes, threads)
    }
}
