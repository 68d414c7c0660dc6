//! The qp-trie as a map of byte strings: is it as small and nearly as fast as maps that keep no
//! order, and faster than those that do?
//!
//! Four sets of keys (`crates/skep/examples/qp_trie/sets.rs`): those in the directory that
//! `SKEP_KEY_SETS` names, else generated ones of the same kind. Rivals: `hashbrown` with the fx
//! hash, `BTreeMap` and an adaptive radix tree (`blart`), each with boxed keys.
//!
//! Rows of programs have a BPF program (`benches/qptrie/bpf`) that goes through an array of keys,
//! compiled by skep; its rivals are the same loop with a hash whose keys are filled up to the
//! longest, compiled by skep, and by the kernel (root). The kernel's hash also is the rival in
//! memory: what it says (`memlock`), and all pages that it takes. Rows of lookups "of 16 at once"
//! have single ones as rival, rows with two writers the same with one: there the figure is the time
//! for a key of either, so a ratio of 2 would be perfect. A walk copies elements into a buffer of
//! 64 KiB and adds them up; of the kernel it is reading by batches.
//!
//! Each process measures one map with one set, every operation the best of several passes; a row
//! has the median of all processes, contestants taking turns.

use std::collections::HashMap;
use std::path::PathBuf;
use std::process::Command;

use anyhow::{Context, Result};

use super::row::Row;
use super::sample::Sample;
use crate::{cargo, check, output, root};

const TURNS: usize = 3;
const SETS: [&str; 4] = ["btf_strings", "kernel_paths", "domains", "random_bin"];
/// Ours with and without the cache, our hash, the rivals.
const SIDES: [&str; 6] = ["skep", "uncached", "padded", "hashbrown", "btreemap", "blart"];

/// What a row has, ours and the rival's: operation, side and name of the case.
struct Wanted {
    case: &'static str,
    ours: (&'static str, &'static str),
    rival: (&'static str, &'static str),
    name: &'static str,
}

const fn wanted(
    case: &'static str,
    ours: (&'static str, &'static str),
    rival: (&'static str, &'static str),
    name: &'static str,
) -> Wanted {
    Wanted { case, ours, rival, name }
}

/// Operations that all maps have, and what rows call them.
const COMMON: [(&str, &str); 7] = [
    ("hit-random", "lookup hit, random order"),
    ("hit-file", "lookup hit, order of the file"),
    ("miss-random", "lookup miss, random order"),
    ("insert", "insert, random order"),
    ("delete", "delete, random order"),
    ("walk", "walk over all"),
    ("memory", "memory, bytes"),
];
/// Operations of programs.
const PROGRAMS: [(&str, &str); 6] = [
    ("program-hit-random", "program's lookup hit, random order"),
    ("program-hit-file", "program's lookup hit, order of the file"),
    ("program-miss-random", "program's lookup miss, random order"),
    ("program-insert", "program's insert, random order"),
    ("program-delete", "program's delete, random order"),
    ("program-walk", "program's walk over all"),
];
const OF_PROGRAMS: [(&str, &str); 3] = [
    ("kernel", "kernel hash, test run"),
    ("padded", "our hash, padded keys"),
    ("uncached", "no cache"),
];
const RIVALS: [(&str, &str); 3] =
    [("hashbrown", "hashbrown, fx hash"), ("btreemap", "BTreeMap"), ("blart", "blart, ART")];

#[rustfmt::skip]
const OTHERS: [Wanted; 17] = [
    wanted("lookup of 16 at once, random order", ("skep", "many-hit-random"), ("skep", "hit-random"), "one by one"),
    wanted("lookup of 16 at once, order of the file", ("skep", "many-hit-file"), ("skep", "hit-file"), "one by one"),
    wanted("no cache, lookup of 16 at once, random order", ("uncached", "many-hit-random"), ("uncached", "hit-random"), "one by one"),
    wanted("no cache, lookup hit, random order", ("uncached", "hit-random"), ("btreemap", "hit-random"), "BTreeMap"),
    wanted("no cache, lookup hit, order of the file", ("uncached", "hit-file"), ("btreemap", "hit-file"), "BTreeMap"),
    wanted("no cache, lookup miss, random order", ("uncached", "miss-random"), ("btreemap", "miss-random"), "BTreeMap"),
    wanted("no cache, insert, random order", ("uncached", "insert"), ("btreemap", "insert"), "BTreeMap"),
    wanted("no cache, delete, random order", ("uncached", "delete"), ("btreemap", "delete"), "BTreeMap"),
    wanted("no cache, memory, bytes", ("uncached", "memory"), ("btreemap", "memory"), "BTreeMap"),
    wanted("insert by two writers", ("skep", "insert-two"), ("skep", "insert"), "by one"),
    wanted("delete by two writers", ("skep", "delete-two"), ("skep", "delete"), "by one"),
    wanted("iterator over all, a key and value at a time", ("skep", "iterate"), ("btreemap", "walk"), "BTreeMap"),
    wanted("visit of all, key and value lent", ("skep", "visit"), ("btreemap", "walk"), "BTreeMap"),
    wanted("walk over all", ("skep", "walk"), ("kernel", "walk"), "kernel hash, batches"),
    wanted("walk over all", ("skep", "walk"), ("uncached", "walk"), "no cache"),
    wanted("memory, bytes", ("skep", "memory"), ("kernel", "memory"), "kernel hash, memlock"),
    wanted("memory, bytes", ("skep", "memory"), ("kernel", "taken"), "kernel hash, pages taken"),
];

/// The rows of all sets.
pub fn run() -> Result<Vec<Row>> {
    check(cargo().args(["build", "--quiet", "--release", "-p", "skep", "--example", "qp_trie"]))?;
    let target =
        std::env::var_os("CARGO_TARGET_DIR").map_or_else(|| root().join("target"), PathBuf::from);
    let program = target.join("release/examples/qp_trie");
    let kernel = skep_kernel::probe().is_ok().then_some("kernel");
    let mut rows = Vec::new();
    for set in SETS {
        let mut values: HashMap<(&str, String), Vec<f64>> = HashMap::new();
        for _ in 0..TURNS {
            for side in SIDES.into_iter().chain(kernel) {
                let text = output(Command::new(&program).args([side, set]))?;
                for line in text.lines() {
                    let (operation, number) =
                        line.split_once(' ').with_context(|| format!("a figure in `{line}`"))?;
                    values.entry((side, operation.to_owned())).or_default().push(number.parse()?);
                }
            }
        }
        let sample = |(side, operation): (&'static str, &str)| {
            values.get(&(side, operation.to_owned())).cloned().map(Sample::of)
        };
        let row = |case: &str, ours, rival, name: &str| {
            let ours = sample(ours).with_context(|| format!("no figure for `{case}`"))?;
            let rival = sample(rival).map(|rival| (name.to_owned(), rival));
            anyhow::Ok(Row { case: format!("{set}, {case}"), ours, rival })
        };
        for (operation, case) in COMMON {
            for (side, name) in RIVALS {
                rows.push(row(case, ("skep", operation), (side, operation), name)?);
            }
        }
        for w in OTHERS {
            rows.push(row(w.case, w.ours, w.rival, w.name)?);
        }
        for (operation, case) in PROGRAMS {
            for (side, name) in OF_PROGRAMS {
                rows.push(row(case, ("skep", operation), (side, operation), name)?);
            }
        }
    }
    Ok(rows)
}
