//! What each operation of each map type takes a program, beside the kernel.
//!
//! Each number is a process of its own (`crates/maps/examples/operations`), the best of its passes;
//! a row has the median of all processes, contestants taking turns. We run the function behind the
//! helper in a loop compiled by rustc, the kernel a BPF program in a loop, by `BPF_PROG_TEST_RUN`
//! (root), where some helpers are inlined by its verifier. Rows that end in "two threads" share one
//! map between two threads, each with half of the keys and a processor of its own; the figure is
//! the time an operation of either takes, so half of it would be perfect. Rows of a user's
//! operations have the library beside system calls; those of a million keys at random have it
//! beside maps of Rust that threads of one process share: `dashmap`, and `hashbrown` in 64 parts
//! with a lock each. Rows about memory have bytes for each entry of a full map: of the file, beside
//! what the kernel says of its map (`memlock`), and beside what it really takes for one, seen in
//! its counts of slab, per-CPU and `vmalloc` pages. (Of per-CPU maps the file has the values of
//! slots that were used: here one.) Why some have no rival stands in the example, at `in_kernel`.

use std::process::Command;

use anyhow::{Context, Result};

use super::row::Row;
use super::sample::{Contestant, Sample, measured, take_turns};
use crate::{cargo, check, output, root};

const TURNS: usize = 3;
/// Beginnings of the cases that are tried with two threads too.
const SHARED: [&str; 5] = [
    "hash ",
    "lpm_trie lookup, 16K IPv4",
    "lpm_trie overwrite",
    "ringbuf reserve",
    "ringbuf output, ",
];

/// The rows of all cases.
pub fn run() -> Result<Vec<Row>> {
    check(cargo().args([
        "build",
        "--quiet",
        "--release",
        "-p",
        "skep-maps",
        "--example",
        "operations",
    ]))?;
    let target =
        std::env::var_os("CARGO_TARGET_DIR").map_or_else(|| root().join("target"), Into::into);
    let program = target.join("release/examples/operations");
    let list = |of: &[&str]| output(Command::new(&program).arg("list").args(of));
    let (cases, rivals, filled, rust) =
        (list(&[])?, list(&["kernel"])?, list(&["memory"])?, list(&["rust"])?);
    let rust: Vec<&str> = rust.lines().collect();
    let rivals: Vec<&str> =
        if skep_kernel::probe().is_ok() { rivals.lines().collect() } else { vec![] };
    let shared = |c: &&str| {
        SHARED.iter().any(|s| c.starts_with(s)) && !c.contains("256K") && !c.contains("user")
    };
    let one = |c| Wanted { name: str::to_owned(c), case: c, what: What::Time("1") };
    let mut wanted: Vec<Wanted<'_>> =
        cases.lines().filter(|c| !rust.contains(c)).map(one).collect();
    for c in &rust {
        wanted.extend(["dashmap", "hashbrown"].map(|rival| Wanted {
            name: (*c).to_owned(),
            case: c,
            what: What::Beside(rival),
        }));
    }
    let two = |c| Wanted { name: format!("{c}, two threads"), case: c, what: What::Time("2") };
    wanted.extend(cases.lines().filter(shared).map(two));
    for rival in ["kernel", "taken"] {
        wanted.extend(filled.lines().map(|c| Wanted {
            name: format!("{c}: memory, bytes"),
            case: c,
            what: What::Memory(rival),
        }));
    }
    let contestant = |wanted: &Wanted<'_>, side: &'static str| {
        let mut command = Command::new(&program);
        match wanted.what {
            What::Time(threads) => command.args([side, wanted.case, threads]),
            What::Beside(_) => command.args([side, wanted.case, "1"]),
            What::Memory(_) => command.args(["memory", side, wanted.case]),
        };
        command
    };
    let sides = |w: &Wanted<'_>| match w.what {
        What::Beside(rival) => vec!["skep", rival],
        _ if !rivals.contains(&w.case) => vec!["skep"],
        What::Time(_) => vec!["skep", "kernel"],
        What::Memory(rival) => vec!["skep", rival],
    };
    let contestants: Vec<Contestant<'_>> = wanted
        .iter()
        .flat_map(|w| {
            sides(w).into_iter().map(move |side| {
                Contestant::new(&w.name, move || measured(&mut contestant(w, side)))
            })
        })
        .collect();
    let mut values = take_turns(TURNS, &contestants)?.into_iter().map(Sample::of);
    let rows = wanted.iter().map(|w| {
        let (ours, rival) = (values.next(), if sides(w).len() > 1 { values.next() } else { None });
        let name = match w.what {
            What::Beside("hashbrown") => "hashbrown, 64 locks",
            What::Beside(rival) => rival,
            What::Memory("kernel") => "kernel, memlock",
            What::Memory(_) => "kernel, pages taken",
            What::Time(_) if w.name.contains("user's") => "kernel, system call",
            What::Time(_) => "kernel, test run",
        };
        Some(Row { case: w.name.clone(), ours: ours?, rival: rival.map(|r| (name.to_owned(), r)) })
    });
    rows.collect::<Option<Vec<_>>>().context("a value for each contestant")
}

/// A row.
struct Wanted<'a> {
    name: String,
    case: &'a str,
    what: What,
}

enum What {
    /// With so many threads.
    Time(&'static str),
    /// Beside a map of Rust.
    Beside(&'static str),
    /// Beside one of the kernel's two figures.
    Memory(&'static str),
}
