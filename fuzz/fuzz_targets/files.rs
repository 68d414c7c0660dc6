//! Any bytes as files that the command reads: a recording behind its header and with a sum that fits,
//! reports in JSON, files that describe chains and tests, and instructions as text. The first byte chooses the file
//! and what is asked for.
//!
//! The command is no library, so its modules are part of this program.
#![no_main]
#![allow(dead_code, unused_imports, reason = "this is a part of the command")]

#[path = "../../crates/cli/src/agent/mod.rs"]
mod agent;
#[path = "../../crates/cli/src/args/mod.rs"]
mod args;
#[path = "../../crates/cli/src/calibrate.rs"]
mod calibrate;
#[path = "../../crates/cli/src/chain/mod.rs"]
mod chain;
#[path = "../../crates/cli/src/directory.rs"]
mod directory;
#[path = "../../crates/cli/src/doctor.rs"]
mod doctor;
#[path = "../../crates/cli/src/estimate.rs"]
mod estimate;
#[path = "../../crates/cli/src/events.rs"]
mod events;
#[path = "../../crates/cli/src/export/mod.rs"]
mod export;
#[path = "../../crates/cli/src/failure.rs"]
mod failure;
#[path = "../../crates/cli/src/held.rs"]
mod held;
#[path = "../../crates/cli/src/inherited.rs"]
mod inherited;
#[path = "../../crates/cli/src/kernel.rs"]
mod kernel;
#[path = "../../crates/cli/src/launch.rs"]
mod launch;
#[path = "../../crates/cli/src/live/mod.rs"]
mod live;
#[path = "../../crates/cli/src/map/mod.rs"]
mod map;
#[path = "../../crates/cli/src/missed.rs"]
mod missed;
#[path = "../../crates/cli/src/objects.rs"]
mod objects;
#[path = "../../crates/cli/src/order.rs"]
mod order;
#[path = "../../crates/cli/src/orphans.rs"]
mod orphans;
#[path = "../../crates/cli/src/printer.rs"]
mod printer;
#[path = "../../crates/cli/src/prog/mod.rs"]
mod prog;
#[path = "../../crates/cli/src/protobuf.rs"]
mod protobuf;
#[path = "../../crates/cli/src/rejection.rs"]
mod rejection;
#[path = "../../crates/cli/src/replace.rs"]
mod replace;
#[path = "../../crates/cli/src/report.rs"]
mod report;
#[path = "../../crates/cli/src/run/mod.rs"]
mod run;
#[path = "../../crates/cli/src/running.rs"]
mod running;
#[path = "../../crates/cli/src/signals.rs"]
mod signals;
#[path = "../../crates/cli/src/sites.rs"]
mod sites;
#[path = "../../crates/cli/src/stacks/mod.rs"]
mod stacks;
#[path = "../../crates/cli/src/stats.rs"]
mod stats;
#[path = "../../crates/cli/src/symbolize/mod.rs"]
mod symbolize;
#[path = "../../crates/cli/src/terminal.rs"]
mod terminal;
#[path = "../../crates/cli/src/trace/mod.rs"]
mod trace;
#[path = "../../crates/cli/src/unit/mod.rs"]
mod unit;
#[path = "../../crates/cli/src/units.rs"]
mod units;
#[path = "../../crates/cli/src/unmatched.rs"]
mod unmatched;
#[path = "../../crates/cli/src/vma.rs"]
mod vma;
#[path = "../../crates/cli/src/vma_target.rs"]
mod vma_target;
#[path = "../../crates/cli/src/watch.rs"]
mod watch;

use std::path::PathBuf;
use std::sync::LazyLock;

use clap::Parser;
use libfuzzer_sys::fuzz_target;

use args::{Cli, Command};
use printer::Printer;

const DATA: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../crates/");
/// What stands in for the file's name, and for the name of a file that is written.
const FILE: &str = "IN";
const OUT: &str = "OUT";

/// The name of a file, and the command lines that read it.
type Reader = (&'static str, &'static [&'static [&'static str]]);

const READERS: [Reader; 5] = [
    (
        "in.skep",
        &[
            &["report", FILE],
            &["report", FILE, "--calls"],
            &["report", FILE, "--calls", "--json"],
            &["report", FILE, "--chrome", OUT],
            &["report", FILE, "--perfetto", OUT],
            &["report", FILE, "--tree", "--depth", "3"],
            &["report", FILE, "--tree", "--json"],
            &["report", FILE, "--graph"],
            &["report", FILE, "--flame", OUT],
            &["report", FILE, "--folded", OUT],
            &["report", FILE, "--pprof", OUT],
            &["report", FILE, "--json"],
            &["report", FILE, "--csv"],
            &["report", FILE, "--caller"],
            &["report", FILE, "--tid"],
            &["report", FILE, "--tgid", "--json"],
        ],
    ),
    (
        "in.json",
        &[
            &["trace", "--diff", FILE, FILE],
            &["trace", "--json", "--diff", FILE, FILE],
            &["export", "prometheus", FILE],
            &["export", "otlp", FILE],
            &["export", "parquet", FILE, "-o", OUT],
        ],
    ),
    (
        "in.chain.toml",
        &[&["chain", "create", "one", FILE], &["chain", "create", "one", FILE, "--set", "limit=7"]],
    ),
    ("in.test.toml", &[&["test", FILE], &["test", FILE, "--json", "--engine", "interp"]]),
    ("in.s", &[&["prog", "asm", FILE]]),
];

/// A directory with objects that files name. It stays when the fuzzer ends.
static PLACE: LazyLock<PathBuf> = LazyLock::new(|| {
    let dir = PathBuf::from(format!("/dev/shm/skep-fuzz-{}", std::process::id()));
    // SAFETY: the first thing that the only thread does.
    unsafe { std::env::set_var("SKEP_DIR", dir.join("skep")) };
    std::fs::create_dir_all(&dir).expect("memory for a directory");
    for (name, from) in
        [("f.o", "cli/tests/data/filter.bpf.o"), ("l.o", "skep/tests/data/library.bpf.o")]
    {
        std::fs::copy(format!("{DATA}{from}"), dir.join(name)).expect("the fixture is there");
    }
    // What is printed is nothing for the fuzzer's own output.
    let null = std::fs::File::options().write(true).open("/dev/null").expect("it is everywhere");
    rustix::stdio::dup2_stdout(&null).expect("both are open");
    dir
});

/// Does what the command does.
fn skep(line: impl IntoIterator<Item = String>) -> failure::Result<u8> {
    let words = std::iter::once("skep".to_owned()).chain(line);
    let printer = Printer::new(true);
    match Cli::try_parse_from(words).expect("a good command line").command {
        Command::Report(args) => trace::recorded::run(&args, printer),
        Command::Trace(args) => trace::run(&args, printer),
        Command::Export(args) => export::run(&args, printer),
        Command::Chain(command) => chain::run(&command, printer),
        Command::Test(args) => unit::run(&args, printer),
        Command::Prog(command) => prog::run(&command, printer),
        _ => unreachable!("no reader has such a line"),
    }
}

/// Puts items into a recording.
fn recording(items: &[u8]) -> Vec<u8> {
    let sum = items.iter().fold(0xcbf2_9ce4_8422_2325u64, |hash, byte| {
        (hash ^ u64::from(*byte)).wrapping_mul(0x0000_0100_0000_01b3)
    });
    let words = [trace::recording::VERSION, items.len() as u64, sum].map(u64::to_le_bytes);
    [b"SKEPREC\n", &words[0][..], items, &words[1], &words[2]].concat()
}

fuzz_target!(|data: &[u8]| {
    let [form, file @ ..] = data else { return };
    let (name, lines) = READERS[usize::from(form >> 4) % READERS.len()];
    let line = lines[usize::from(form & 15) % lines.len()];
    let place = &*PLACE;
    let [path, out] = [name, "out"].map(|name| place.join(name));
    let file = if name == "in.skep" { recording(file) } else { file.to_vec() };
    std::fs::write(&path, file).expect("memory for a file");
    let word = |word: &&str| match *word {
        FILE => path.display().to_string(),
        OUT => out.display().to_string(),
        word => word.to_owned(),
    };
    let done = skep(line.iter().map(word));
    if let Err(failure) = &done {
        assert!(!format!("{failure:?}").is_empty());
    }
    if name == "in.chain.toml" && done.is_ok() {
        skep(["chain", "show", "one"].map(str::to_owned)).expect("it was made");
        skep(["chain", "del", "one"].map(str::to_owned)).expect("it was made");
    }
});
