//! The objects of a trace: its link and the maps that its report is made from.

use std::io;
use std::path::Path;
use std::sync::Arc;

use skep::Dir;
use skep::dir::Kind;
use skep::link::{Cookie, Link, LinkSpec, LinkState, describe};
use skep::load::{LoadError, Loader};
use skep::maps::{Access, Map};
use skep::object::Object;
use skep::prog::ProgramFile;

use crate::args::TraceArgs;
use crate::estimate::{BLOCK_SIZE, Clock, Part, STAT_SIZE, Stat};
use crate::failure::{Context, ENVIRONMENT, Failure, Result};
use crate::running::Threads;
use crate::{calibrate, rejection, stats};

/// The compiled `bpf/trace.bpf.c`, compressed by the build script.
static OBJECT: &[u8] = include_bytes!(concat!(env!("OUT_DIR"), "/trace.bpf.z"));
/// Its name in messages.
const OBJECT_NAME: &str = "trace.bpf.o";
/// The compiled `bpf/tree.bpf.c`.
static PATHS_OBJECT: &[u8] = include_bytes!(concat!(env!("OUT_DIR"), "/tree.bpf.z"));
/// Its name in messages.
const PATHS_NAME: &str = "tree.bpf.o";
/// Up to so many calls go by before the next one is timed, where calls are sampled: 2^n - 1, at
/// most 63.
const SAMPLING: u32 = 63;
/// The objects of a trace that its report is made from.
pub struct Trace {
    pub link: Link,
    pub stats: Arc<Map>,
    /// The rest of the statistics, of functions with more than a few calls; none by call paths.
    pub blocks: Option<Arc<Map>>,
    pub threads: Arc<Map>,
    /// The call paths; then `stats` is by their numbers, else by function.
    pub edges: Option<Arc<Map>>,
    /// Names of threads by node, where they are told apart.
    pub names: Option<Arc<Map>>,
    settings: Arc<Map>,
}

impl Trace {
    /// Loads the program, creates the link, and says what to pin while the trace runs.
    pub fn load(
        dir: &Dir,
        args: &TraceArgs,
        patterns: &[String],
        exclude: Vec<String>,
        library: &Path,
    ) -> Result<(Self, Vec<(Kind, u32)>)> {
        let object = carried(OBJECT, OBJECT_NAME)?;
        let loader = Loader::new(dir).sparse("stats").sparse("blocks");
        let loaded = if args.wants_paths() {
            loader.load(&carried(PATHS_OBJECT, PATHS_NAME)?)
        } else {
            let count = args.max_functions;
            loader.max_entries("stats", count).max_entries("blocks", count).load(&object)
        };
        let loaded = loaded.map_err(own_failure)?;
        let find = |name: &str| {
            loaded
                .map(name)
                .cloned()
                .ok_or_else(|| Failure::environment(format!("`{OBJECT_NAME}` has no map `{name}`")))
        };
        let [traced] = loaded.programs() else {
            return Err(Failure::environment(format!("`{OBJECT_NAME}` is damaged")));
        };
        let spec = LinkSpec {
            cookie: Cookie::Index,
            entry_only: true,
            max_functions: args.max_functions,
            // Call paths have numbers of their own.
            by_function: match args.wants_paths() {
                true => Vec::new(),
                false => vec![find("stats")?.id(), find("blocks")?.id()],
            },
            exclude,
            ..describe(traced, patterns).map_err(|e| rejection::attach_failure(e, OBJECT_NAME))?
        };
        let first = match (args.wants_paths(), args.exact) {
            (true, _) => args.shown.depth.unwrap_or(u32::MAX),
            (false, true) => 0,
            (false, false) => SAMPLING,
        };
        let mut settings = first.to_le_bytes().to_vec();
        if args.wants_paths() {
            let object = carried(PATHS_OBJECT, PATHS_NAME)?;
            let [inside, outside] = calibrate::of_paths(dir, library, &object);
            for word in [inside, 0, outside, u32::from(args.shown.wants_threads())] {
                settings.extend(word.to_le_bytes());
            }
        } else {
            settings.extend(calibrate::overhead(dir, library, &object).to_le_bytes());
        }
        find("settings")?
            .update(&0_u32.to_le_bytes(), &settings, 0)
            .map_err(|e| Failure::environment(e.to_string()))?;
        let link = Link::create(dir, spec, None).map_err(own_failure)?;
        let control = link.read()?.spec.control;
        let maps = loaded.maps().iter().map(|m| (Kind::Map, m.map.id()));
        let objects = maps.chain([(Kind::Map, control), (Kind::Program, traced.id())]).collect();
        let trace = Self {
            stats: find("stats")?,
            blocks: loaded.map("blocks").cloned(),
            threads: find("threads")?,
            edges: loaded.map("edges").cloned(),
            names: loaded.map("names").cloned(),
            settings: find("settings")?,
            link,
        };
        Ok((trace, objects))
    }

    /// Opens the objects of an orphan.
    pub fn open(dir: &Dir, id: u32) -> Result<Self> {
        let link = Link::open(dir, id).map_err(own_failure)?;
        let program =
            ProgramFile::open(dir, link.read()?.spec.programs.first().map_or(0, |p| p.id))?;
        let nothing = match program.program().name() {
            "calls" => Some("printed calls as they came"),
            "coverage" => Some("was for `--coverage`"),
            _ => None,
        };
        if let Some(why) = nothing {
            let what = format!("trace {id} {why}: there is nothing to report");
            return Err(Failure::environment(what));
        }
        let mut maps = Vec::new();
        for map in program.program().maps() {
            maps.push(Arc::new(Map::open(&dir.object(Kind::Map, *map), Access::ReadOnly)?));
        }
        let foreign = |why: String| {
            let what = "is not that of a trace by this version of skep";
            Failure::environment(format!("link {id} {what}: {why}"))
        };
        let find = |name: &str| {
            let found = maps.iter().find(|m| m.def().name == name).cloned();
            found.ok_or_else(|| foreign(format!("it has no map `{name}`")))
        };
        let with_values = |name: &str, size: usize| {
            let map = find(name)?;
            let found = map.def().value_size;
            if found as usize == size {
                return Ok(map);
            }
            Err(foreign(format!("values of its map `{name}` have {found} bytes, not {size}")))
        };
        let edges = find("edges").ok();
        let blocks = edges.is_none().then(|| with_values("blocks", BLOCK_SIZE)).transpose()?;
        let stat_size = if edges.is_some() { super::tree::STAT_SIZE } else { STAT_SIZE };
        Ok(Self {
            stats: with_values("stats", stat_size)?,
            blocks,
            threads: find("threads")?,
            edges,
            names: find("names").ok(),
            settings: find("settings")?,
            link,
        })
    }

    /// Returns what turns the program's times into nanoseconds.
    pub fn clock(&self) -> Clock {
        let settings = self.settings.lookup(&0_u32.to_le_bytes()).unwrap_or_default();
        let overhead =
            settings.get(4..8).and_then(|b| b.try_into().ok()).map_or(0, u32::from_le_bytes);
        Clock { tick: self.link.nanos(1 << 32) as f64 / 4_294_967_296.0, overhead }
    }

    /// Ticks that timing a call adds to its caller, where calls are counted by path.
    pub fn outside(&self) -> u32 {
        let settings = self.settings.lookup(&0_u32.to_le_bytes()).unwrap_or_default();
        settings.get(12..16).and_then(|b| b.try_into().ok()).map_or(0, u32::from_le_bytes)
    }

    /// Visits what threads wrote of each function, where they are not counted by path.
    pub fn each(&self, count: u32, visit: impl FnMut(u32, &[Part<'_>])) -> io::Result<()> {
        let Some(blocks) = &self.blocks else { return Ok(()) };
        stats::each_with(&self.stats, blocks, count, visit)
    }

    /// When anything was written down last, by the clock of the link.
    pub fn seen(&self, state: &LinkState) -> Result<u64> {
        let mut last = Threads::read(&self.threads).stacks().map(|s| s.seen()).max().unwrap_or(0);
        if self.edges.is_some() {
            return Ok(last);
        }
        self.each(count(state), |_, value| last = last.max(Stat::last(value)))
            .context("cannot read the statistics")?;
        Ok(last)
    }
}

/// Unpacks and parses an object that this command carries.
pub fn carried(compressed: &[u8], name: &str) -> Result<Object> {
    let bytes = compressed.split_first_chunk().and_then(|(size, data)| {
        skep_proc::inflate::zlib(data, u32::from_le_bytes(*size) as usize)
    });
    let bytes = bytes.ok_or_else(|| Failure::environment(format!("`{name}` is damaged")))?;
    Object::parse(&bytes).context(format!("`{name}` is damaged"))
}

/// The number of functions of a link.
pub fn count(state: &LinkState) -> u32 {
    u32::try_from(state.functions.len()).unwrap_or(u32::MAX)
}

/// The object is ours: what is wrong with it is not the user's to mend.
pub fn own_failure(error: LoadError) -> Failure {
    Failure { hint: None, status: ENVIRONMENT, ..rejection::load_failure(error, OBJECT_NAME) }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::estimate::{BLOCK_WORDS, WORDS};
    use skep::object::btf::Kind;

    /// Sizes do not tell where members are: structures end with unused bytes.
    #[test]
    fn the_statistics_are_where_their_reader_looks() -> Result {
        let object = carried(OBJECT, OBJECT_NAME)?;
        let btf = object.btf.unwrap();
        let is_at = |structure: &str, name: &str, at: usize| {
            let id = btf.find(structure, |kind| matches!(kind, Kind::Struct(_))).unwrap();
            let Kind::Struct(found) = &btf.get(id).unwrap().kind else { unreachable!() };
            let member = found.members.iter().find(|m| btf.string(m.name_off) == name).unwrap();
            assert_eq!(member.bit_offset as usize / 8, at, "{structure}.{name}");
        };
        for (n, name) in [
            (0, "calls"),
            (3, "mean_self"),
            (4, "entered"),
            (6, "timed"),
            (7, "outermost"),
            (8, "total"),
            (9, "self"),
            (10, "last"),
            (WORDS, "first"),
        ] {
            is_at("stat", name, 8 * n);
        }
        for (n, name) in [
            (0, "unsure"),
            (2, "sum"),
            (3, "self_sum"),
            (4, "squares"),
            (5, "n"),
            (7, "mean"),
            (8, "spread"),
            (10, "pending"),
            (12, "guessed"),
            (13, "guessed_total"),
            (14, "guessed_self"),
            (15, "variance"),
            (BLOCK_WORDS, "hist"),
        ] {
            is_at("block", name, 8 * n);
        }
        Ok(())
    }

    /// The reader knows the layout of the program's statistics by heart.
    #[test]
    fn the_statistics_are_as_large_as_their_reader_thinks() -> Result {
        let object = carried(OBJECT, OBJECT_NAME)?;
        let stats = object.maps.iter().find(|m| m.name == "stats").unwrap();
        assert_eq!(stats.value_size as usize, STAT_SIZE);
        let blocks = object.maps.iter().find(|m| m.name == "blocks").unwrap();
        assert_eq!(blocks.value_size as usize, BLOCK_SIZE);
        let object = carried(PATHS_OBJECT, PATHS_NAME)?;
        let stats = object.maps.iter().find(|m| m.name == "stats").unwrap();
        assert_eq!(stats.value_size as usize, crate::trace::tree::STAT_SIZE);
        Ok(())
    }
}
