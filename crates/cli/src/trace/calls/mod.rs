//! `skep trace --args`, `--ret`, `--if`, `--chrome` and `--perfetto`: calls one by one, with values.
//!
//! Before the command starts, [`resolve`] finds the prototypes of the functions that it will have, and
//! makes a [`plan`] for each: what is read of its calls. Functions get numbers, which the link tells
//! to the traced processes, and plans are written to a map by number. A [`condition`] becomes a part
//! of the program. While the command runs, a thread takes [`record`]s out of the ring and prints them
//! ([`reader`]).

mod chrome;
mod condition;
mod history;
pub mod list;
mod perfetto;
mod plan;
mod prototypes;
pub mod reader;
pub mod record;
mod recorder;
mod resolve;
pub mod timeline;
mod variable;

use std::collections::HashSet;
use std::sync::Arc;

use serde::Serialize;
use serde_json::Value as Json;
use skep::Dir;
use skep::dir::Kind;
use skep::link::{Cookie, Link, LinkSpec, LinkState, Missed, describe};
use skep::load::Loader;
use skep::maps::Map;
use skep::prototypes::Catalog;

use super::objects::{carried, own_failure};
use super::recording::Summary;
use super::report::Ended;
use crate::args::TraceArgs;
use crate::failure::{Context, Failure, Result};
use crate::printer::{Output, Printer};
use crate::report::Wall;
use crate::sites::Sites;
use crate::{missed, rejection, stats, units};
use condition::Condition;
use history::Triggers;
use reader::{Reader, Tail};
use record::{FRAME_SIZE, Record, State};
use resolve::Resolved;

/// The compiled `bpf/calls.bpf.c`, compressed by the build script.
static OBJECT: &[u8] = include_bytes!(concat!(env!("OUT_DIR"), "/calls.bpf.z"));
const NAME: &str = "calls.bpf.o";
/// Frames of a thread: `MAX_DEPTH` and one that is none.
const FRAMES: u32 = 1024;
/// Bytes of `struct thread`.
const THREAD_SIZE: usize = 40;
/// When the program looks at the condition: `AT_ENTRY`, `AT_RETURN`.
const AT_ENTRY: u32 = 1;
const AT_RETURN: u32 = 2;

/// Where calls are written.
pub struct Outputs {
    report: Output,
    timeline: Option<Output>,
}

impl Outputs {
    /// Creates the files that were asked for.
    pub fn open(args: &TraceArgs) -> Result<Self> {
        let file = args.record.as_deref().or(args.shown.timeline());
        let timeline = file.map(|path| Output::open(Some(path))).transpose()?;
        Ok(Self { report: Output::open(args.shown.report.output.as_deref())?, timeline })
    }
}

/// A trace of calls.
pub struct Calls {
    pub link: Link,
    threads: Arc<Map>,
    frames: Arc<Map>,
    reader: Reader,
    condition: bool,
    /// Shorter calls are left out, in ticks.
    min: u64,
    /// Functions whose arguments are not known, by address and name, and why.
    unknown: Vec<(u64, String, String)>,
}

/// What the program keeps of its threads.
#[derive(Default)]
struct Threads {
    /// Threads, and the numbers of their innermost calls.
    tops: Vec<(u64, u64)>,
    lost: u64,
    dropped: u64,
    deepest: u64,
}

#[derive(Serialize)]
struct Rest<'a> {
    command: &'a Option<Vec<std::borrow::Cow<'a, str>>>,
    #[serde(skip_serializing_if = "<[u32]>::is_empty")]
    pids: &'a [u32],
    status: Option<i32>,
    #[serde(flatten)]
    wall: Wall,
    sites: Json,
    dropped: u64,
    lost: u64,
    missed: u64,
    missed_by: Json,
    processes: Json,
    not_traced: Json,
}

/// What stands behind the calls in JSON.
pub fn rest(
    ended: &Ended<'_>,
    sites: &Sites,
    missed: Missed,
    lost: u64,
    dropped: u64,
) -> Result<String> {
    let rest = Rest {
        command: &ended.command,
        pids: &ended.pids,
        status: ended.status,
        wall: ended.wall,
        sites: sites.json(),
        dropped,
        lost,
        missed: missed.total(),
        missed_by: missed::to_json(missed),
        processes: sites.processes_json(),
        not_traced: sites.not_traced_json(),
    };
    serde_json::to_string(&rest).map_err(|e| Failure::environment(e.to_string()))
}

impl Calls {
    /// Loads the program, creates the link and begins to read.
    pub fn load(
        dir: &Dir,
        args: &TraceArgs,
        patterns: &[String],
        exclude: Vec<String>,
        catalog: &Catalog,
        printer: Printer,
        outputs: Outputs,
    ) -> Result<(Self, Vec<(Kind, u32)>)> {
        let condition = args.condition.as_deref().map(Condition::parse).transpose();
        let condition = condition.map_err(|why| {
            let text = args.condition.as_deref().unwrap_or_default();
            Failure::environment(format!("--if: `{text}` is no condition: {why}"))
                .hint("write it as in C, with names of arguments, `arg0` or `ret`: `size > 4096 && ret != 0`, `path == \"/etc/*\"`, `file->mode & 4`")
        })?;
        let triggers = Triggers::find(args, patterns, &exclude, catalog)?;
        let resolved = Resolved::new(catalog, patterns, &exclude, args, condition.as_ref())?;
        let mut object = carried(OBJECT, NAME)?;
        if let Some(condition) = &condition
            && !object.replace_function("wanted", condition.compile())
        {
            return Err(Failure::environment(format!("`{NAME}` is damaged")));
        }
        let loaded = Loader::new(dir)
            .sparse("frames")
            .max_entries("plans", u32::try_from(resolved.plans.len()).unwrap_or(u32::MAX))
            .load(&object)
            .map_err(own_failure)?;
        let find = |name: &str| {
            let found = loaded.map(name).cloned();
            found.ok_or_else(|| Failure::environment(format!("`{NAME}` has no map `{name}`")))
        };
        let [traced] = loaded.programs() else {
            return Err(Failure::environment(format!("`{NAME}` is damaged")));
        };
        let store = |map: &str, key: u32, value: &[u8]| {
            let done = find(map)?.update(&key.to_le_bytes(), value, 0);
            done.map_err(|e| Failure::environment(format!("cannot set the trace up: {e}")))
        };
        for (number, plan) in resolved.plans.iter().enumerate() {
            store("plans", number as u32, &plan.bytes())?;
        }
        let spec = LinkSpec {
            cookie: Cookie::Index,
            entry_only: true,
            max_functions: args.max_functions,
            exclude,
            ..describe(traced, patterns).map_err(|e| rejection::attach_failure(e, NAME))?
        };
        let link = Link::create(dir, spec, None).map_err(own_failure)?;
        link.tell(0, &resolved.types).map_err(|e| Failure::environment(e.to_string()))?;
        let ticks =
            (args.shown.min_ns() as f64 / link.nanos(1 << 32) as f64 * 4_294_967_296.0) as u64;
        let when = match &condition {
            None => 0,
            Some(c) if c.wants_result() => AT_RETURN,
            Some(_) => AT_ENTRY,
        };
        let mut settings = ticks.to_le_bytes().to_vec();
        settings.extend(args.shown.depth.unwrap_or(FRAMES - 1).to_le_bytes());
        settings.extend(when.to_le_bytes());
        store("settings", 0, &settings)?;

        let control = link.read()?.spec.control;
        let maps = loaded.maps().iter().map(|m| (Kind::Map, m.map.id()));
        let objects = maps.chain([(Kind::Map, control), (Kind::Program, traced.id())]).collect();
        let calls = Self {
            threads: find("threads")?,
            frames: find("frames")?,
            reader: Reader::start(
                Link::open(dir, link.id()).context("cannot read the link")?,
                &*find("records")?,
                resolved.plans,
                triggers,
                args,
                outputs,
                printer,
            )?,
            condition: when == AT_RETURN,
            min: ticks,
            unknown: resolved.unknown,
            link,
        };
        Ok((calls, objects))
    }

    /// Prints what is left, and what was lost.
    pub fn print(
        self,
        state: &LinkState,
        sites: &Sites,
        ended: &Ended<'_>,
        args: &TraceArgs,
        printer: Printer,
    ) -> Result {
        sites.note(printer, "", args.shown.report.verbose);
        let threads = self.threads()?;
        let (lost, dropped) = (threads.lost, threads.dropped);
        let unfinished =
            if self.condition { Vec::new() } else { self.unfinished(&threads, ended.end)? };
        let missed = self.link.missed();
        let rest = rest(ended, sites, missed, lost, dropped)?;
        let summary = args.record.is_some().then(|| {
            Box::new(Summary {
                lost,
                lost_pages: self.link.lost_pages(),
                dropped,
                ..Summary::of(ended, missed, state)
            })
        });
        let printed =
            self.reader.finish(Tail { running: unfinished, end: ended.end, rest, summary })?;
        missed::note(printer, "", missed);
        if dropped > 0 {
            printer.warning(&format!(
                "{} not shown, as calls came faster than they could be printed; `--if`, `--min` and `--depth` leave calls out before that",
                units::count(dropped, "call")
            ));
        }
        if lost > 0 {
            printer.note(&format!(
                "{} not shown, or not as what returned: nested deeper than {}, or returned on another thread or stack",
                units::count(lost, "call"),
                FRAMES - 1
            ));
        }
        if printed.hidden > 0 {
            let more = units::count(printed.hidden, "more call");
            printer.note(&format!("{more}; without `--limit` all are shown"));
        }
        let attached: HashSet<(u64, &str)> = state
            .functions
            .iter()
            .filter(|f| f.skipped.is_none())
            .map(|f| (f.vaddr, f.name.as_str()))
            .collect();
        let mut unknown =
            self.unknown.iter().filter(|(at, name, _)| attached.contains(&(*at, name)));
        if let Some((_, name, why)) = unknown.next() {
            let more = match unknown.count() {
                0 => String::new(),
                n => format!(" and of {n} more"),
            };
            let demangled = skep_proc::demangle::demangle(name);
            let name = skep_proc::demangle::bare(&demangled);
            printer.note(&format!(
                "the arguments of `{name}`{more} are not known: {why}; `--prototype 'int {name}(char *path, int flags)'` would declare them"
            ));
        }
        if printed.calls == 0 && !state.functions.is_empty() && sites.attached() > 0 {
            printer.note("no matching call was seen");
        }
        Ok(())
    }

    /// The innermost calls of all threads, and sums of what was lost and dropped.
    fn threads(&self) -> Result<Threads> {
        let mut all = Threads::default();
        let read = |value: &[u8], at: usize| {
            value.get(at..at + 8).and_then(|b| b.try_into().ok()).map_or(0, u64::from_le_bytes)
        };
        stats::each(&self.threads, 1, |_, values| {
            for value in values.chunks_exact(THREAD_SIZE) {
                all.tops.push((read(value, 0), read(value, 8)));
                all.lost = all.lost.saturating_add(read(value, 16));
                all.dropped = all.dropped.saturating_add(read(value, 24));
                all.deepest = all.deepest.max(read(value, 32));
            }
        })
        .context("cannot read what the threads do")?;
        Ok(all)
    }

    /// The frames of calls that had not returned at the end, and of those that were left.
    fn unfinished(&self, threads: &Threads, end: u64) -> Result<Vec<Vec<u8>>> {
        let mut all = Vec::new();
        let count = threads.deepest.saturating_add(1).min(FRAMES.into()) as u32;
        stats::each(&self.frames, count, |call, values| {
            for value in values.chunks_exact(FRAME_SIZE) {
                let Some(record) = Record::read(value).filter(|r| r.state != State::Over) else {
                    continue;
                };
                let thread = u64::from(record.pid) << 32 | u64::from(record.tid);
                let top = threads.tops.iter().filter(|(tid, _)| *tid == thread);
                let top = top.map(|(_, top)| *top).max();
                // Nobody saw that it was left, as nothing of its thread was seen since.
                let took = record.took.unwrap_or(end.saturating_sub(record.start));
                let left =
                    record.state == State::Left || top.is_some_and(|top| top < u64::from(call));
                if left && took < self.min {
                    continue;
                }
                let mut value = value.to_vec();
                if left {
                    record::leave(&mut value, took);
                }
                all.push(value);
            }
        })
        .context("cannot read the calls that run")?;
        Ok(all)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use skep::object::btf::Kind;

    /// The readers know the layouts of the program's structures by heart.
    #[test]
    fn structures_are_as_the_readers_think() -> Result {
        let object = carried(OBJECT, NAME)?;
        let size =
            |name: &str| object.maps.iter().find(|m| m.name == name).map(|m| m.value_size as usize);
        assert_eq!(size("plans"), Some(plan::PLAN_SIZE));
        assert_eq!(size("frames"), Some(FRAME_SIZE));
        assert_eq!((size("threads"), size("settings")), (Some(THREAD_SIZE), Some(16)));
        let btf = object.btf.as_deref().expect("made with -g");
        let id = btf.find("frame", |kind| matches!(kind, Kind::Struct(_))).expect("a structure");
        for (member, offset) in [
            ("data", record::HEAD),
            ("conditional", condition::CONDITIONAL as usize),
            ("vars", condition::NUMBERS as usize),
            ("texts", condition::TEXTS as usize),
        ] {
            let found = variable::member(btf, id, member, 0).map(|(at, _)| at as usize / 8);
            assert_eq!(found, Some(offset), "{member}");
        }
        Ok(())
    }
}
