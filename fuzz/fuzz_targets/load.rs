//! Any bytes as a file for `skep map load`: JSON, CSV or lines, by types or raw; the first byte
//! chooses the map and `--raw`. A file that cannot be read changes nothing.
//!
//! The command is no library, so its modules are part of this program, but for those that only
//! traced programs need.
#![no_main]
#![allow(dead_code, unused_imports, reason = "this is a part of the command")]

#[path = "../../crates/cli/src/args/mod.rs"]
mod args;
#[path = "../../crates/cli/src/directory.rs"]
mod directory;
#[path = "../../crates/cli/src/estimate.rs"]
mod estimate;
#[path = "../../crates/cli/src/failure.rs"]
mod failure;
#[path = "../../crates/cli/src/inherited.rs"]
mod inherited;
#[path = "../../crates/cli/src/kernel.rs"]
mod kernel;
#[path = "../../crates/cli/src/map/mod.rs"]
mod map;
#[path = "../../crates/cli/src/objects.rs"]
mod objects;
#[path = "../../crates/cli/src/orphans.rs"]
mod orphans;
#[path = "../../crates/cli/src/replace.rs"]
mod replace;
#[path = "../../crates/cli/src/report.rs"]
mod report;
#[path = "../../crates/cli/src/printer.rs"]
mod printer;
#[path = "../../crates/cli/src/rejection.rs"]
mod rejection;
#[path = "../../crates/cli/src/signals.rs"]
mod signals;
#[path = "../../crates/cli/src/units.rs"]
mod units;

use std::path::PathBuf;
use std::sync::LazyLock;

use clap::Parser;
use libfuzzer_sys::fuzz_target;
use skep::Session;
use skep::maps::{Map, Take};

use args::{Cli, Command};
use failure::ENVIRONMENT;
use printer::Printer;

const DATA: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../crates/cli/");
/// Name and definition: plain numbers, structures, texts, values of CPUs, byte strings, no keys.
const MAPS: [(&str, &[&str]); 6] = [
    ("plain", &["--type", "hash", "--key", "4", "--value", "8", "--entries", "64"]),
    ("odd", &["--type", "hash", "--key", "3", "--value", "5", "--entries", "64"]),
    ("cpus", &["--type", "percpu_hash", "--key", "8", "--value", "8", "--entries", "64"]),
    ("shapes", &["--from", "tests/data/typed.bpf.o:shapes"]),
    ("trie", &["--from", "bpf/allocations.bpf.o:allocations", "--entries", "64"]),
    ("queue", &["--type", "queue", "--value", "4", "--entries", "64"]),
];

struct Place {
    session: Session,
    file: PathBuf,
}

/// A directory with all maps. It stays when the fuzzer ends.
static PLACE: LazyLock<Place> = LazyLock::new(|| {
    let dir = format!("/dev/shm/skep-fuzz-{}", std::process::id());
    // SAFETY: the first thing that the only thread does.
    unsafe { std::env::set_var("SKEP_DIR", &dir) };
    let session = Session::open_in(&dir).expect("memory for a directory");
    for (name, definition) in MAPS {
        let definition = definition.iter().map(|word| match word.contains(".bpf.o") {
            true => format!("{DATA}{word}"),
            false => (*word).to_owned(),
        });
        let line = ["create".to_owned(), name.to_owned()].into_iter().chain(definition);
        skep(line).unwrap_or_else(|e| panic!("{name}: {e:?}"));
    }
    Place { session, file: PathBuf::from(dir).join("input") }
});

/// Does what `skep map` does.
fn skep(line: impl IntoIterator<Item = String>) -> failure::Result<u8> {
    let words = ["skep", "map"].map(str::to_owned).into_iter().chain(line);
    match Cli::try_parse_from(words).expect("a good command line").command {
        Command::Map(maps) => map::run(&maps.command, Printer::new(true)),
        _ => unreachable!("it says `map`"),
    }
}

/// Removes all elements; tells how many there were.
fn clear(map: &Map) -> usize {
    if map.def().key_size == 0 {
        let mut value = vec![0; map.user_value_size()];
        let pop = || map.lookup_and_delete(&[], &mut value, 0).ok();
        return std::iter::from_fn(pop).count();
    }
    let mut walk = map.walk().taking(Take::Fast);
    let mut rows = vec![0; 64 * walk.element_size()];
    let mut all = 0;
    loop {
        match walk.rows(&mut rows).expect("a whole map") {
            0 => return all,
            n => all += n,
        }
    }
}

fuzz_target!(|data: &[u8]| {
    let [form, file @ ..] = data else { return };
    let place = &*PLACE;
    let which = usize::from(*form) % MAPS.len();
    std::fs::write(&place.file, file).expect("memory for a file");
    let path = place.file.display().to_string();
    let words = ["load", MAPS[which].0, &path].map(str::to_owned).into_iter();
    let done = skep(words.chain((form & 0x80 != 0).then(|| "--raw".to_owned())));
    let map = place.session.open_map(which as u32 + 1).expect("a whole map");
    let stored = clear(&map);
    match done {
        Ok(status) => assert!(status == 0 && stored <= file.len()),
        Err(failure) if failure.status == ENVIRONMENT => assert_eq!(stored, 0, "{failure:?}"),
        Err(_) => {}
    }
});
