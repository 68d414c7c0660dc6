//! What a thread that runs a chain counts, in an array map `chain.ID` of eight-byte words, so that
//! other processes can read it.
//!
//! ```text
//! word 0   MAGIC, stored last: the rest is there
//!      1   id of the chain            2   process that runs it
//!      3   nanoseconds per tick of the clock, times 2^32; 0: ticks are nanoseconds
//!      4   id of the map that this one replaces, or 0
//!      5   bytes of the graph         6   words of what was counted before
//!      7   words of counters
//!      8   the graph, as in the chain's file; what was counted before; the counters
//! ```
//!
//! A map belongs to one revision of the graph. Who takes over another one makes another map, with
//! all that was counted before in it, and then removes the old one. A reader that sees both knows
//! by word 4 which of them counts.

use std::os::unix::fs::FileExt;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{
    AtomicU64,
    Ordering::{Acquire, Relaxed, Release},
};

use rustix::fs::{FlockOperation, flock};
use skep_isa::MapType;
use skep_maps::{Access, Map, MapDef};

use crate::chain::ChainSpec;
use crate::dir::{Dir, Kind};
use crate::words;

const MAGIC: u64 = u64::from_le_bytes(*b"SKEPCNT1");
const HEAD: usize = 8;
/// Most words of a map that is looked at: far above a chain of all the nodes that there may be.
const MOST: u32 = 1 << 24;

fn name(chain: u32) -> String {
    format!("chain.{chain}")
}

/// Counters of a thread that runs a chain. Dropping them removes the map.
#[derive(Debug)]
pub struct Counters {
    map: Arc<Map>,
    from: usize,
    /// The process that made it: a forked child leaves the map to its parent.
    process: u32,
}

impl Counters {
    /// Makes a map of counters for a graph. `before` is what this thread has counted of earlier
    /// revisions, in the caller's words.
    ///
    /// # Errors
    /// When no id can be taken or the map cannot be created.
    pub fn create(
        dir: &Dir,
        chain: u32,
        (spec, before): (&ChainSpec, &[u64]),
        counters: usize,
        rate: u64,
        replaces: Option<&Self>,
    ) -> Result<Self, crate::Error> {
        let graph = spec.encode();
        let from = HEAD + graph.len().div_ceil(8) + before.len();
        let name = name(chain);
        let entries = u32::try_from(from + counters).unwrap_or(u32::MAX);
        let def = MapDef::new(MapType::Array, 4, 8, entries).named(&name);
        let id = dir.next_id(Kind::Map)?;
        let map = Map::create(&dir.kind(Kind::Map), id, &def)
            .map_err(|source| crate::Error::OwnMap { name, source })?;
        let process = std::process::id();
        let head = [
            u64::from(chain),
            u64::from(process),
            rate,
            replaces.map_or(0, |old| u64::from(old.map.id())),
            graph.len() as u64,
            before.len() as u64,
            counters as u64,
        ];
        let (whole, rest) = graph.as_chunks::<8>();
        let mut last = [0; 8];
        last.iter_mut().zip(rest).for_each(|(to, from)| *to = *from);
        let tail = (!rest.is_empty()).then_some(&last);
        let graph = whole.iter().chain(tail).map(|bytes| u64::from_le_bytes(*bytes));
        if let Some((magic, all)) = words::of(&map).split_first() {
            let values = head.into_iter().chain(graph).chain(before.iter().copied());
            all.iter().zip(values).for_each(|(word, value)| word.store(value, Relaxed));
            // Pairs with the Acquire of `read`.
            magic.store(MAGIC, Release);
        }
        Ok(Self { map: Arc::new(map), from, process })
    }

    /// Returns the counters, which only this thread adds to.
    #[inline]
    #[must_use]
    pub fn words(&self) -> &[AtomicU64] {
        words::of(&self.map).get(self.from..).unwrap_or_default()
    }
}

impl Drop for Counters {
    fn drop(&mut self) {
        if self.process == std::process::id() {
            drop(std::fs::remove_file(self.map.file().path()));
        }
    }
}

/// What a thread of some process has counted of a chain.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Counted {
    /// The process.
    pub process: u32,
    /// The graph that it runs.
    pub spec: ChainSpec,
    /// What it counted of earlier revisions.
    pub before: Vec<u64>,
    /// The counters.
    pub counters: Vec<u64>,
    /// Nanoseconds per tick, times 2^32; 0: ticks are nanoseconds.
    pub rate: u64,
}

/// Reads what all threads that run a chain have counted so far. What cannot be read is left out.
///
/// # Errors
/// When the directory cannot be read.
pub fn running(dir: &Dir, chain: u32) -> Result<Vec<Counted>, crate::DirError> {
    let name = name(chain);
    let mut all: Vec<(u32, u32, Counted)> = Vec::new();
    for id in dir.ids(Kind::Map)? {
        let path = dir.object(Kind::Map, id);
        if !is_used(&path, chain) {
            continue;
        }
        let Ok(map) = Map::open(&path, Access::ReadWrite) else { continue };
        if map.def().name == name
            && words::is_array(&map, HEAD as u32)
            && map.def().max_entries <= MOST
            && let Some((replaces, counted)) = read(&map, chain)
        {
            all.push((id, replaces, counted));
        }
    }
    let replaced: Vec<u32> = all.iter().map(|(_, replaces, _)| *replaces).collect();
    all.retain(|(id, ..)| !replaced.contains(id));
    Ok(all.into_iter().map(|(.., counted)| counted).collect())
}

/// Tells whether a file begins as the counters of a chain, and a process has it: who opens a map
/// holds a lock, which ends with the process. Other maps are not locked, not even for a moment:
/// somebody may be opening them.
fn is_used(path: &Path, chain: u32) -> bool {
    let mut start = [0; 16];
    let [magic, id] = [MAGIC, u64::from(chain)].map(u64::to_ne_bytes);
    std::fs::File::open(path).is_ok_and(|file| {
        file.read_exact_at(&mut start, 0).is_ok()
            && start.starts_with(&magic)
            && start.ends_with(&id)
            && flock(&file, FlockOperation::NonBlockingLockExclusive).is_err()
    })
}

/// Reads one map, which may hold anything.
fn read(map: &Map, chain: u32) -> Option<(u32, Counted)> {
    let [magic, head @ ..] = words::of(map) else { return None };
    // Pairs with the Release of `Counters::create`.
    if magic.load(Acquire) != MAGIC {
        return None;
    }
    let word = |n: usize| head.get(n).map(|word| word.load(Relaxed));
    let size = |n: usize| word(n).and_then(|n| usize::try_from(n).ok());
    let (graph, before, counters) = (size(4)?, size(5)?, size(6)?);
    let rest = head.get(HEAD - 1..)?;
    let (graph_words, rest) = rest.split_at_checked(graph.div_ceil(8))?;
    let (before, rest) = rest.split_at_checked(before)?;
    let counters = rest.get(..counters)?;
    let load = |words: &[AtomicU64]| words.iter().map(|w| w.load(Relaxed)).collect::<Vec<u64>>();
    let bytes: Vec<u8> = load(graph_words).iter().flat_map(|w| w.to_le_bytes()).collect();
    let counted = Counted {
        process: u32::try_from(word(1)?).ok()?,
        spec: ChainSpec::decode(bytes.get(..graph)?).ok()?,
        before: load(before),
        counters: load(counters),
        rate: word(2)?,
    };
    let replaces = u32::try_from(word(3)?).ok()?;
    (word(0)? == u64::from(chain)).then_some((replaces, counted))
}

#[cfg(test)]
mod tests {
    use super::*;
    use skep_isa::ProgramType;

    fn spec(revision: u64) -> ChainSpec {
        ChainSpec {
            prog_type: ProgramType::Xdp,
            revision,
            next: 1,
            entry: None,
            budget: 32,
            aborts: false,
            empty: 2,
            nodes: Vec::new(),
            objects: Vec::new(),
        }
    }

    #[test]
    fn others_see_what_is_counted_once_and_as_long_as_it_runs()
    -> Result<(), Box<dyn std::error::Error>> {
        let path = std::env::temp_dir().join(format!("skep-counters-{}", std::process::id()));
        drop(std::fs::remove_dir_all(&path));
        let dir = Dir::create(&path)?;
        let mine = Counters::create(&dir, 7, (&spec(3), &[1, 2]), 5, 9, None)?;
        let other = Counters::create(&dir, 7, (&spec(3), &[]), 5, 9, None)?;
        let elsewhere = Counters::create(&dir, 8, (&spec(3), &[]), 5, 9, None)?;
        mine.words()[4].store(77, Relaxed);
        other.words()[0].store(11, Relaxed);
        let process = std::process::id();
        let expected = |revision, before: &[u64], counters: &[u64]| Counted {
            process,
            spec: spec(revision),
            before: before.to_vec(),
            counters: counters.to_vec(),
            rate: 9,
        };
        let second = expected(3, &[], &[11, 0, 0, 0, 0]);
        assert_eq!(running(&dir, 7)?, [expected(3, &[1, 2], &[0, 0, 0, 0, 77]), second.clone()]);
        let newer = Counters::create(&dir, 7, (&spec(4), &[5]), 1, 9, Some(&mine))?;
        let third = expected(4, &[5], &[0]);
        assert_eq!(running(&dir, 7)?, [second.clone(), third.clone()]);
        drop(mine);
        assert_eq!(running(&dir, 7)?, [second, third.clone()]);
        // A child's exit takes nothing from its parent.
        let (map, from) = (Arc::clone(&newer.map), newer.from);
        drop(Counters { map, from, process: process + 1 });
        assert_eq!(running(&dir, 7)?.last(), Some(&third));
        drop((other, newer, elsewhere));
        assert_eq!(running(&dir, 7)?, []);
        assert_eq!(dir.ids(Kind::Map)?, Vec::<u32>::new());
        std::fs::remove_dir_all(&path)?;
        Ok(())
    }

    #[test]
    fn damaged_words_are_no_counters() -> Result<(), Box<dyn std::error::Error>> {
        let path = std::env::temp_dir().join(format!("skep-counters-bad-{}", std::process::id()));
        drop(std::fs::remove_dir_all(&path));
        let dir = Dir::create(&path)?;
        let counters = Counters::create(&dir, 1, (&spec(1), &[4]), 2, 0, None)?;
        let all = words::of(&counters.map);
        for word in all.iter().take(HEAD) {
            let good = word.load(Relaxed);
            for bad in [0, 1, 1 << 20, u64::from(u32::MAX), u64::MAX - 6, u64::MAX] {
                word.store(bad, Relaxed);
                // Sizes that are too large, another chain, another mark: nothing, or other numbers.
                drop(running(&dir, 1)?);
            }
            word.store(good, Relaxed);
        }
        assert_eq!(running(&dir, 1)?.len(), 1);
        drop(counters);
        std::fs::remove_dir_all(&path)?;
        Ok(())
    }
}
