//! `skep run`: the programs of object files on a command's functions, and their maps at the end.

use std::ffi::OsString;
use std::path::{Path, PathBuf};

use serde_json::{Value as Json, json};
use skep::Dir;
use skep::link::{Link, LinkSpec, LinkTarget, create_log, describe};
use skep::load::{LoadedMap, Loader};
use skep::object::{LinkOptions, Object};
use skep::prototypes::Catalog;

use crate::args::RunArgs;
use crate::entries::{Entries, Entry};
use crate::events::{self, Collector, Form, RecordTypes, Records};
use crate::failure::{Context, Failure, Result};
use crate::launch::{self, Launch, Outcome, Program};
use crate::objects::Objects;
use crate::printer::{Output, Printer};
use crate::report::file_name;
use crate::session;
use crate::sites::{self, Sites};
use crate::trace::nanos;
use crate::unmatched;

/// Entries of a map that are printed when nothing else is asked for.
const ENTRIES: usize = 30;

/// Bytes of the buffer for printed lines.
const LOG: u32 = 1 << 20;
/// Numbers of `bpf_trace_printk` and `bpf_trace_vprintk`.
const PRINTING: [i32; 2] = [6, 177];

/// One object, loaded and linked.
struct Loaded {
    object: Object,
    maps: Vec<LoadedMap>,
    /// Programs by name, with their links.
    links: Vec<(String, String, Link)>,
}

/// What the command line says of attaching.
struct How<'a> {
    /// Programs and where they attach.
    attach: Vec<(&'a str, String)>,
    exclude: Vec<String>,
}

/// Runs the command and prints the maps; the exit status is the command's.
pub fn run(args: &RunArgs, printer: Printer) -> Result<u8> {
    let mut attach = Vec::new();
    for (program, list) in &args.attach {
        attach.extend(
            unmatched::patterns(std::slice::from_ref(list))?
                .into_iter()
                .map(|pattern| (program.as_str(), pattern)),
        );
    }
    let how = How { attach, exclude: unmatched::patterns(&args.exclude)? };
    let mut reading = Objects::read(&args.objects, &args.reading)?;
    let objects: Vec<(&PathBuf, Object)> =
        args.objects.iter().zip(std::mem::take(&mut reading.all)).collect();
    for (name, _) in &args.attach {
        if !objects.iter().any(|(_, o)| o.programs.iter().any(|p| p.name == *name)) {
            let known: Vec<String> = objects
                .iter()
                .flat_map(|(_, o)| &o.programs)
                .map(|p| format!("`{}`", p.name))
                .collect();
            return Err(Failure::environment(format!("--attach: there is no program `{name}`"))
                .hint(format!("there is {}", known.join(", "))));
        }
    }
    let library = launch::library()?;
    let program = launch::resolve(&args.command)?;
    let output = Output::open(args.report.output.as_deref())?;
    let dir = session::directory()?;
    let log = if objects.iter().any(|(_, o)| prints(o, &reading.link_options())) {
        Some(create_log(&dir, LOG).map_err(|e| session::load_failure(e, ""))?)
    } else {
        None
    };
    let catalog = reading
        .catalog(args.command.first().map(OsString::as_os_str).unwrap_or_default(), &args.reading);
    let load = |(path, object): (&PathBuf, Object)| {
        load(&dir, path, object, &reading, &catalog, log.as_ref(), &how, printer)
    };
    let loaded = objects.into_iter().map(load).collect::<Result<Vec<_>>>()?;
    if !args.allow_unmatched {
        for (.., link) in loaded.iter().flat_map(|l| &l.links) {
            unmatched::check(&args.command, &included(&link.read()?.spec))?;
        }
    }

    let keep = match args.limit {
        Some(0) => usize::MAX,
        None if args.report.json => usize::MAX,
        limit => limit.unwrap_or(ENTRIES),
    };
    let rings = loaded
        .iter()
        .flat_map(|l| l.maps.iter().map(move |m| (l, m)))
        .filter(|(_, m)| events::is_stream(&m.map));
    let form = |object: &Object, m: &LoadedMap| match RecordTypes::of(object, &m.spec)
        .filter(|_| !args.raw)
    {
        Some(types) => Form::Typed(types),
        None => Form::Bytes,
    };
    let mut collectors = rings
        .map(|(l, m)| Collector::start(&m.name, &m.map, form(&l.object, m), keep))
        .collect::<Result<Vec<_>>>()?;
    if let Some(log) = &log {
        collectors.push(Collector::start("log", log, Form::Line, keep)?);
    }
    let links = || loaded.iter().flat_map(|l| &l.links);
    let launch = Launch {
        command: &args.command,
        library: &library,
        dir: &dir,
        links: links().map(|(.., l)| l.id()).collect(),
    };
    let turn_off = || links().for_each(|(.., l)| l.detach());
    let outcome = launch.run(turn_off)?;
    // Processes that the command left behind go on without the programs.
    turn_off();
    let done = report(&loaded, collectors, &program, &outcome, output, args, printer);
    sites::end(done, &outcome, printer)
}

/// Prints what the programs found. Returns why nothing was attached, if so.
fn report(
    loaded: &[Loaded],
    collectors: Vec<Collector>,
    program: &Program,
    outcome: &Outcome,
    output: Output,
    args: &RunArgs,
    printer: Printer,
) -> Result<Option<Failure>> {
    let records =
        collectors.into_iter().map(Collector::finish).collect::<Result<Vec<Records>>>()?;

    if outcome.status.is_none() {
        printer
            .note(&format!("`{}` still runs as process {}, untraced", program.name, outcome.pid));
    }
    let mut failure = None;
    let mut programs = Vec::new();
    for (name, section, link) in loaded.iter().flat_map(|l| &l.links) {
        let sites = Sites::new(&link.read()?);
        sites.note(printer, &format!("{name}: "), args.report.verbose);
        session::note_missed(printer, &format!("{name}: "), link.missed());
        failure = failure.or(sites.failure(program, outcome));
        programs.push(json!({
            "name": name, "section": section, "patterns": sites.patterns(), "sites": sites.json(), "missed": link.missed().total(), "missed_by": session::missed_json(link.missed()),
            "start_ns": sites.start_ns(), "attach_ns": sites.attach_ns(), "processes": sites.processes_json(),
            "not_traced": sites.not_traced_json(),
        }));
    }
    for r in &records {
        if let Some(damage) = r.damage() {
            printer.warning(&format!("records of `{}` were lost: {damage}", r.name));
        }
    }
    if args.report.json {
        let mut maps = Vec::new();
        for object in loaded {
            each_map(object, args.raw, |entries| {
                let (all, _) = collect(entries, args.limit.filter(|n| *n > 0))?;
                maps.push(json!({"map": entries.map_json(), "entries": all.iter().map(|e| e.json_of(entries)).collect::<Json>()}));
                Ok(())
            })?;
        }
        let document = json!({
            "command": args.command.iter().map(|a| a.to_string_lossy()).collect::<Vec<_>>(),
            "status": outcome.status_number(),
            "wall_ns": nanos(outcome),
            "programs": programs,
            "maps": maps,
            "events": records.iter().map(Records::json).collect::<Json>(),
        });
        printer.json(output, &document)?;
    } else {
        let limit = if args.limit == Some(0) { None } else { Some(args.limit.unwrap_or(ENTRIES)) };
        let mut text = Vec::new();
        for r in &records {
            r.write(&mut text)?;
        }
        for object in loaded {
            each_map(object, args.raw, |entries| {
                let (shown, more) = collect(entries, limit)?;
                Ok(entries.write(&mut text, &shown, more)?)
            })?;
        }
        printer.data(output, |out| out.write_all(&text))?;
    }
    Ok(failure)
}

/// Tells whether a program of the object can print lines.
fn prints(object: &Object, how: &LinkOptions<'_>) -> bool {
    let calls = |linked: skep::object::Linked| {
        linked.insns.iter().any(|i| i.is_helper_call() && PRINTING.contains(&i.imm))
    };
    (0..object.programs.len()).any(|i| object.link_with(i, how).is_ok_and(calls))
}

#[allow(clippy::too_many_arguments, reason = "each is a part of one command line")]
fn load(
    dir: &Dir,
    path: &Path,
    object: Object,
    reading: &Objects,
    catalog: &Catalog,
    log: Option<&skep::maps::Map>,
    how: &How<'_>,
    printer: Printer,
) -> Result<Loaded> {
    let file = path.display().to_string();
    let loader = Loader::new(dir)
        .core_target(reading.target.as_ref())
        .functions(catalog)
        .exclude(&how.exclude);
    let loader = how
        .attach
        .iter()
        .fold(loader, |loader, (program, pattern)| loader.attach(program, pattern));
    let loaded = loader.load(&object).map_err(|e| session::load_failure(e, &file))?;
    let mut links = Vec::new();
    for program in loaded.programs() {
        let p = program.program();
        let patterns: Vec<String> = how
            .attach
            .iter()
            .filter(|(name, _)| *name == p.name())
            .map(|(_, pattern)| pattern.clone())
            .collect();
        let spec = describe(program, &patterns).map_err(|e| session::attach_failure(e, &file))?;
        let spec = LinkSpec { exclude: how.exclude.clone(), ..spec };
        let include = unmatched::patterns(&included(&spec));
        let section = || format!("see section `{}` of `{}`", p.section(), file_name(&file));
        let spec =
            LinkSpec { include: LinkTarget::all(include.map_err(|e| e.hint(section()))?), ..spec };
        let link = Link::create(dir, spec, log).map_err(|e| session::load_failure(e, &file))?;
        link.tell(0, &program.functions().types)?;
        if let Some((note, hint)) = &program.functions().note {
            printer.warning(&format!("{}: {note}", p.name()));
            printer.note(&format!("hint: {hint}"));
        }
        links.push((p.name().to_owned(), p.section().to_owned(), link));
    }
    Ok(Loaded { object, maps: loaded.into_parts().1, links })
}

/// Lists the patterns of functions that a link attaches to.
fn included(spec: &LinkSpec) -> Vec<String> {
    spec.include.iter().map(|t| t.pattern.clone()).collect()
}

/// Calls `f` with every map that is for people: constants are not.
fn each_map(loaded: &Loaded, raw: bool, mut f: impl FnMut(&Entries<'_>) -> Result) -> Result {
    for m in loaded
        .maps
        .iter()
        .filter(|m| !m.spec.frozen && m.map.def().value_size + m.map.def().key_size > 0)
    {
        let entries = Entries::new(&m.map, &m.name, loaded.object.btf.as_deref(), raw);
        if entries.has_elements() {
            f(&entries)?;
        }
    }
    Ok(())
}

/// Reads a map in order of keys, up to a number of entries; returns them and how many more there
/// are. Elements of arrays that were never written are left out.
fn collect(entries: &Entries<'_>, limit: Option<usize>) -> Result<(Vec<Entry>, usize)> {
    let skip_zero = entries.is_array() && !entries.is_global_data();
    let mut all = Vec::new();
    for entry in entries.iter() {
        let entry = entry.context("cannot read a map")?;
        if !skip_zero || !entry.zero {
            all.push(entry);
        }
    }
    all.sort_by(|a, b| a.order.cmp(&b.order));
    let more = all.len().saturating_sub(limit.unwrap_or(usize::MAX));
    all.truncate(all.len() - more);
    Ok((all, more))
}
