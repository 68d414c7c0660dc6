//! What the programs found, printed after the command: records of streams, and entries of maps.

use serde_json::{Value as Json, json};
use skep_text::entries::{Entries, Entry};

use super::ENTRIES;
use super::load::Loaded;
use crate::args::RunArgs;
use crate::events::{Collector, Records};
use crate::failure::{Context, Failure, Result};
use crate::missed;
use crate::printer::{Output, Printer};
use crate::report::Wall;
use crate::sites::Sites;

/// How the command ended, or the visit to processes.
pub struct Ended<'a> {
    /// The processes that the programs were attached to while they ran.
    pub pids: &'a [u32],
    /// The command's status.
    pub status: Option<i32>,
    pub wall: Wall,
}

/// Says why nothing was attached, if so.
type Judge<'a> = &'a dyn Fn(&Sites) -> Option<Failure>;

/// Prints the report. Returns why nothing was attached, if so.
pub fn print(
    loaded: &[Loaded],
    collectors: Vec<Collector>,
    ended: &Ended<'_>,
    judge: Judge<'_>,
    output: Output,
    args: &RunArgs,
    printer: Printer,
) -> Result<Option<Failure>> {
    let records =
        collectors.into_iter().map(Collector::finish).collect::<Result<Vec<Records>>>()?;
    let (programs, failure) = programs(loaded, judge, args, printer)?;
    for r in &records {
        if let Some(damage) = r.damage() {
            printer.warning(&format!("records of `{}` were lost: {damage}", r.name));
        }
    }
    if args.report.json {
        let command = args.command.iter().map(|a| a.to_string_lossy()).collect::<Vec<_>>();
        let mut document = json!({
            "command": Some(command).filter(|_| ended.pids.is_empty()),
            "status": ended.status,
            "wall_ns": ended.wall.ns,
            "ended_unix_ns": ended.wall.ended_unix_ns,
            "programs": programs,
            "maps": maps_json(loaded, args)?,
            "events": records.iter().map(Records::json).collect::<Json>(),
        });
        if let Some(document) = document.as_object_mut().filter(|_| !ended.pids.is_empty()) {
            document.insert("pids".to_owned(), ended.pids.into());
        }
        printer.json(output, &document)?;
    } else {
        let text = text(loaded, &records, args)?;
        printer.data(output, |out| out.write_all(&text))?;
    }
    Ok(failure)
}

/// Says what is to be said of each program's link. Returns their JSON, and why nothing was
/// attached.
fn programs(
    loaded: &[Loaded],
    judge: Judge<'_>,
    args: &RunArgs,
    printer: Printer,
) -> Result<(Vec<Json>, Option<Failure>)> {
    let (mut programs, mut failure) = (Vec::new(), None);
    for (name, section, link) in loaded.iter().flat_map(|l| &l.links) {
        let sites = Sites::new(&link.read()?);
        let missed = link.missed();
        sites.note(printer, &format!("{name}: "), args.report.verbose);
        missed::note(printer, &format!("{name}: "), missed);
        failure = failure.or(judge(&sites));
        programs.push(json!({
            "name": name,
            "section": section,
            "patterns": sites.patterns(),
            "sites": sites.json(),
            "missed": missed.total(),
            "missed_by": missed::to_json(missed),
            "start_ns": sites.start_ns(),
            "attach_ns": sites.attach_ns(),
            "processes": sites.processes_json(),
            "not_traced": sites.not_traced_json(),
        }));
    }
    Ok((programs, failure))
}

fn maps_json(loaded: &[Loaded], args: &RunArgs) -> Result<Vec<Json>> {
    let limit = args.limit.filter(|n| *n > 0);
    let mut maps = Vec::new();
    for object in loaded {
        each_map(object, args.raw, |entries| {
            let (all, _) = collect(entries, limit)?;
            let all: Json = all.iter().map(|e| e.json_of(entries)).collect();
            maps.push(json!({"map": entries.map_json(), "entries": all}));
            Ok(())
        })?;
    }
    Ok(maps)
}

fn text(loaded: &[Loaded], records: &[Records], args: &RunArgs) -> Result<Vec<u8>> {
    let limit = if args.limit == Some(0) { None } else { Some(args.limit.unwrap_or(ENTRIES)) };
    let mut text = Vec::new();
    for r in records {
        r.write(&mut text)?;
    }
    for object in loaded {
        each_map(object, args.raw, |entries| {
            let (shown, more) = collect(entries, limit)?;
            Ok(entries.write(&mut text, &shown, more)?)
        })?;
    }
    Ok(text)
}

/// Calls `f` with every map that is for people: constants are not, nor those of libbpf's `usdt.bpf.h`.
fn each_map(loaded: &Loaded, raw: bool, mut f: impl FnMut(&Entries<'_>) -> Result) -> Result {
    let has_bytes = |def: &skep::maps::MapDef| def.value_size + def.key_size > 0;
    for m in loaded.maps.iter().filter(|m| !m.spec.frozen && has_bytes(m.map.def())) {
        if m.name.starts_with("__bpf_usdt_") {
            continue;
        }
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
