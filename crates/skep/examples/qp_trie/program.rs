//! The programs of `benches/qptrie/bpf`, and skep running them.

use std::collections::BTreeMap;
use std::time::{Duration, Instant};

use skep::isa::{KeyShape, MapFlags};
use skep::load::{Loaded, Loader};
use skep::object::{MapSpec, Object};
use skep::test_run::{Engine, Input, Runner};
use skep::{Session, maps};

use crate::sets::Keys;
use crate::{Orders, Result, tell};

const OBJECT: &[u8] = include_bytes!("../../../../benches/qptrie/bpf/programs.bpf.o");
/// Operations, with the ends of the programs' names.
pub const OPERATIONS: [&str; 4] = ["look_up", "insert", "delete", "walk"];

/// Which maps the programs work on.
#[derive(Clone, Copy)]
pub enum Maps {
    /// The trie, with or without its cache.
    Trie { cached: bool },
    /// The hash with padded keys.
    Padded,
}

impl Maps {
    fn name(self) -> &'static str {
        match self {
            Self::Trie { .. } => "trie",
            Self::Padded => "padded",
        }
    }

    /// The name of the program that does an operation with them.
    pub fn program(self, operation: &str) -> String {
        format!("{}_{operation}", self.name())
    }
}

/// Something that runs the programs on maps of its own.
pub trait Side {
    /// Fills the array of keys with cells of this size.
    fn set_keys(&self, cells: &[u8], cell_size: usize) -> Result<()>;
    /// Runs a program once: how long it took, and what it counted.
    fn run(&self, operation: &str) -> Result<(Duration, u64)>;
}

/// Reads the object, and gives its maps the sizes of a set.
pub fn object(maps: Maps, orders: &Orders) -> Result<Object> {
    let mut object = Object::parse(OBJECT)?;
    let (n, longest) = (orders.len() as u32, orders.file.longest());
    object.set_global("longest", &longest.to_string())?;
    let sized = |map: &mut MapSpec| {
        map.max_entries = n;
        // Their types have other sizes.
        (map.key_type_id, map.value_type_id) = (0, 0);
    };
    for map in &mut object.maps {
        match map.name.as_str() {
            "keys" => {
                sized(map);
                map.value_size = cell_size(longest) as u32;
            }
            "padded" => {
                sized(map);
                map.keys = KeyShape::Fixed(longest as u32);
            }
            "trie" => {
                map.max_entries = n;
                map.keys = KeyShape::Bytes { max: longest as u32 };
                map.map_extra = longest as u64;
                if matches!(maps, Maps::Trie { cached: false }) {
                    map.flags.0 |= MapFlags::NO_LEAF_CACHE;
                }
            }
            _ => {}
        }
    }
    Ok(object)
}

fn cell_size(longest: usize) -> usize {
    4 + longest
}

fn cells(keys: &Keys, longest: usize) -> Vec<u8> {
    let size = cell_size(longest);
    let mut cells = vec![0; keys.len() * size];
    for (cell, key) in cells.chunks_exact_mut(size).zip(keys.iter()) {
        cell[..4].copy_from_slice(&(key.len() as u32).to_ne_bytes());
        cell[4..][..key.len()].copy_from_slice(key);
    }
    cells
}

/// Measures all operations, each in the best of several runs over all keys.
pub fn measure(side: &impl Side, orders: &Orders) -> Result<()> {
    let longest = orders.file.longest();
    let all = orders.len() as u64;
    let run = |operation: &str, want: u64| -> Result<Duration> {
        let (took, counted) = side.run(operation)?;
        if counted == want {
            Ok(took)
        } else {
            Err(format!("`{operation}` counted {counted} of {want}").into())
        }
    };
    // Insertion is in one order, deletion in another, as with maps of Rust.
    let (insert, delete) = (cells(&orders.insert, longest), cells(&orders.delete, longest));
    let cell_size = cell_size(longest);
    let mut best: BTreeMap<&str, Duration> = BTreeMap::new();
    let mut keep = |case, took: Duration| {
        best.entry(case).and_modify(|best| *best = took.min(*best)).or_insert(took);
    };
    for _ in 0..orders.passes() {
        side.set_keys(&insert, cell_size)?;
        keep("insert", run("insert", all)?);
        side.set_keys(&delete, cell_size)?;
        keep("delete", run("delete", all)?);
    }
    side.set_keys(&insert, cell_size)?;
    run("insert", all)?;
    for (case, keys, found) in [
        ("hit-random", &orders.lookup, all),
        ("hit-file", &orders.file, all),
        ("miss-random", &orders.miss, 0),
    ] {
        side.set_keys(&cells(keys, longest), cell_size)?;
        for _ in 0..orders.passes() {
            keep(case, run("look_up", found)?);
        }
    }
    for _ in 0..orders.passes() {
        keep("walk", run("walk", all)?);
    }
    best.into_iter().for_each(|(case, took)| tell(&format!("program-{case}"), took, &orders.file));
    Ok(())
}

/// Programs in this process.
struct Here {
    loaded: Loaded,
    runners: BTreeMap<&'static str, Runner>,
}

impl Here {
    fn map(&self, name: &str) -> Result<&maps::Map> {
        Ok(self.loaded.map(name).ok_or_else(|| format!("no map `{name}`"))?)
    }
}

impl Side for Here {
    fn set_keys(&self, cells: &[u8], cell_size: usize) -> Result<()> {
        let keys = self.map("keys")?;
        for (i, cell) in (0u32..).zip(cells.chunks_exact(cell_size)) {
            keys.update(&i.to_ne_bytes(), cell, 0)?;
        }
        Ok(())
    }

    fn run(&self, operation: &str) -> Result<(Duration, u64)> {
        let began = Instant::now();
        self.runners[operation].test_run(&Input::none())?;
        let took = began.elapsed();
        Ok((took, counted(&self.map(".bss")?.lookup(&[0; 4])?)))
    }
}

/// The first word of what a program leaves.
pub fn counted(result: &[u8]) -> u64 {
    result.first_chunk().map_or(0, |word| u64::from_ne_bytes(*word))
}

/// Loads the programs for these maps, compiles and measures them.
pub fn run(session: &Session, maps: Maps, orders: &Orders) -> Result<()> {
    let object = object(maps, orders)?;
    let loader = OPERATIONS
        .iter()
        .fold(Loader::new(session.dir()), |l, operation| l.autoload_only(&maps.program(operation)));
    let loaded = loader.load(&object)?;
    let runner = |operation: &&'static str| {
        let program = maps.program(operation);
        Ok((*operation, Runner::new(session.dir(), &loaded, &program, Engine::Jit)?))
    };
    let runners = OPERATIONS.iter().map(runner).collect::<Result<_>>()?;
    measure(&Here { loaded, runners }, orders)
}
