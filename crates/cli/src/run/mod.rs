//! `skep run`: the programs of object files on the functions of a command, or of processes that run
//! already, and their maps at the end.

mod load;
mod report;
mod stacks;

use std::ffi::OsString;
use std::path::PathBuf;
use std::time::Duration;

use skep::link::create_log;
use skep::load::LoadedMap;
use skep::maps::Map;
use skep::object::{LinkOptions, Object};
use skep::prototypes::Catalog;
use skep_text::record::RecordTypes;

use crate::agent::Library;
use crate::args::RunArgs;
use crate::events::{self, Collector, Form};
use crate::failure::{Failure, Result};
use crate::launch::{self, Launch};
use crate::live::{self, Visit, namespace};
use crate::objects::Objects;
use crate::printer::{Output, Printer};
use crate::report::Wall;
use crate::sites::Sites;
use crate::trace::nanos;
use crate::{directory, rejection, signals, sites, unmatched};
use load::{Loaded, Loading};
use report::Ended;
use stacks::Stacks;

/// Entries of a map that are printed by default.
const ENTRIES: usize = 30;
/// Bytes of the buffer for printed lines.
const LOG: u32 = 1 << 20;
/// Numbers of `bpf_trace_printk` and `bpf_trace_vprintk`.
const PRINTING: [i32; 2] = [6, 177];

/// Runs the command, or attaches to processes, and prints the maps; the exit status is the command's.
pub fn run(args: &RunArgs, printer: Printer) -> Result<u8> {
    signals::note_early();
    if args.process.pids.is_empty() {
        return run_here(args, printer);
    }
    namespace::run(&args.process, printer, || run_here(args, printer))
}

fn run_here(args: &RunArgs, printer: Printer) -> Result<u8> {
    if args.process.pids.is_empty() {
        unmatched::know_command(&args.command);
    } else {
        unmatched::know_processes(&namespace::ids(&args.process));
    }
    let attach = attach_patterns(args)?;
    let exclude = unmatched::patterns(&args.exclude)?;
    let mut reading = Objects::read(&args.objects, &args.reading)?;
    let objects: Vec<(&PathBuf, Object)> =
        args.objects.iter().zip(std::mem::take(&mut reading.all)).collect();
    check_programs(args, &objects)?;
    let live = !args.process.pids.is_empty();
    let program = if live { None } else { Some(launch::resolve(&args.command)?) };
    let output = Output::open(args.report.output.as_deref())?;
    let dir = directory::create_to_attach()?;
    let library = Library::find(&dir)?;
    let agent = if live { Some(live::agent(library.path())?) } else { None };
    let visit = agent.as_ref().map(|agent| Visit::new(agent, &dir, &args.process));
    let log = if objects.iter().any(|(_, o)| prints(o, &reading.link_options())) {
        Some(create_log(&dir, LOG).map_err(|e| rejection::load_failure(e, ""))?)
    } else {
        None
    };
    let name = args.command.first().map(OsString::as_os_str).unwrap_or_default();
    let catalog = match &visit {
        Some(visit) => Catalog::of_files(visit.files(), reading.given(&args.reading)),
        None => reading.catalog(name, &args.reading),
    };
    let loading = Loading {
        dir: &dir,
        reading: &reading,
        catalog: &catalog,
        log: log.as_ref(),
        attach: &attach,
        exclude: &exclude,
        printer,
    };
    let loaded = objects
        .into_iter()
        .map(|(path, object)| loading.load(path, object))
        .collect::<Result<Vec<_>>>()?;
    let links = || loaded.iter().flat_map(|l| &l.links).map(|(.., link)| link);
    if !args.allow_unmatched && !live {
        // Those of probes were found already.
        for state in links().map(|link| link.read()) {
            let state = state?;
            if state.probes.is_empty() {
                unmatched::check(&args.command, &load::included(&state.spec))?;
            }
        }
    }
    let stacks = Stacks::open(args, &loaded)?;
    if stacks.is_some() {
        for link in links() {
            link.want_mapped()?;
        }
    }
    let collectors = collectors(&loaded, log.as_ref(), args)?;
    let ids: Vec<u32> = links().map(|link| link.id()).collect();
    let detach = || links().for_each(|link| link.detach());
    let Some(program) = program else {
        let Some(visit) = visit else { return Ok(0) };
        let unattached = || {
            for link in links() {
                let sites = Sites::new(&link.read()?);
                let failure = sites.unattached_with_reasons(printer, args.report.verbose);
                if failure.is_some() {
                    return Ok(failure);
                }
            }
            Ok(None)
        };
        let visited = visit.make(&ids, unattached, detach, None, printer)?;
        stacks.map_or(Ok(()), |stacks| stacks.write(&loaded, args, printer))?;
        let ended = Ended {
            pids: &visited.pids,
            status: None,
            wall: Wall::new(visited.wall_ns, Duration::ZERO),
        };
        report::print(&loaded, collectors, &ended, &|_| None, output, args, printer)?;
        return Ok(visited.code());
    };
    let (command, library) = (&*args.command, library.path());
    let agent = program.is_followed.then(|| live::agent(library)).transpose()?;
    let mut launch = Launch {
        command,
        library,
        dir: &dir,
        links: ids,
        held: None,
        agent: agent.as_ref(),
        printer,
    };
    let outcome = launch.run(detach, None)?;
    // Processes that the command started and that still run go on without the programs.
    detach();
    if outcome.status.is_none() {
        printer
            .note(&format!("`{}` still runs as process {}, untraced", program.name, outcome.pid));
    }
    let written = stacks.map_or(Ok(()), |stacks| stacks.write(&loaded, args, printer));
    let ended = Ended {
        pids: &[],
        status: outcome.status_number(),
        wall: Wall::new(nanos(&outcome), Duration::ZERO),
    };
    let failure = |sites: &Sites| sites.failure(&program, &outcome);
    let done = report::print(&loaded, collectors, &ended, &failure, output, args, printer);
    let done = written.and(done);
    sites::end(done, &outcome, printer)
}

/// Programs and the patterns that `--attach` gives them.
fn attach_patterns(args: &RunArgs) -> Result<Vec<(&str, String)>> {
    let mut attach = Vec::new();
    for (program, list) in &args.attach {
        let patterns = unmatched::patterns(std::slice::from_ref(list))?;
        attach.extend(patterns.into_iter().map(|pattern| (program.as_str(), pattern)));
    }
    Ok(attach)
}

/// Fails if `--attach` names a program that no object has.
fn check_programs(args: &RunArgs, objects: &[(&PathBuf, Object)]) -> Result {
    let programs = || objects.iter().flat_map(|(_, object)| &object.programs);
    let Some((unknown, _)) =
        args.attach.iter().find(|(name, _)| programs().all(|p| p.name != *name))
    else {
        return Ok(());
    };
    let known: Vec<String> = programs().map(|p| format!("`{}`", p.name)).collect();
    Err(Failure::environment(format!("--attach: there is no program `{unknown}`"))
        .hint(format!("the programs are {}", known.join(", "))))
}

/// Tells whether a program of the object can print lines.
fn prints(object: &Object, how: &LinkOptions<'_>) -> bool {
    let calls = |linked: skep::object::Linked| {
        linked.insns.iter().any(|i| i.is_helper_call() && PRINTING.contains(&i.imm))
    };
    (0..object.programs.len()).any(|i| object.link_with(i, how).is_ok_and(calls))
}

/// Starts a thread for every stream of records and for printed lines.
fn collectors(loaded: &[Loaded], log: Option<&Map>, args: &RunArgs) -> Result<Vec<Collector>> {
    let keep = match args.limit {
        Some(0) => usize::MAX,
        None if args.report.json => usize::MAX,
        limit => limit.unwrap_or(ENTRIES),
    };
    let form = |object: &Object, map: &LoadedMap| match RecordTypes::of(object, &map.spec) {
        Some(types) if !args.raw => Form::Typed(types),
        _ => Form::Bytes,
    };
    let mut collectors = Vec::new();
    for l in loaded {
        for map in l.maps.iter().filter(|m| events::is_stream(&m.map)) {
            collectors.push(Collector::start(&map.name, &map.map, form(&l.object, map), keep)?);
        }
    }
    if let Some(log) = log {
        collectors.push(Collector::start("log", log, Form::Line, keep)?);
    }
    Ok(collectors)
}
