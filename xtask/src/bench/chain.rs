//! Programs in sequence: does one more of them cost less than in the kernel, and what do chains and
//! programs take on packets?
//!
//! What is measured is in `crates/skep/examples/chain_costs`, its programs in `benches/chain/bpf`.
//! What is compared with the kernel runs the same object there, by `BPF_PROG_TEST_RUN` with
//! `repeat`, timed from inside (root). Goals, on one processor:
//!
//! | what | goal |
//! |---|---|
//! | one more program, for one verdict or any, counted or not | 1.5 ns |
//! | one more program of a chain that is attached to the kernel | a third of the dispatcher's |
//! | a chain of one program | as the program alone |
//! | a chain that drops frames of 64 bytes, which lie in memory | 10 ns a frame |
//! | reading a capture file, and dropping | 100 ns a packet |
//! | the load balancer | 1 / 1.4 of the kernel |
//! | frames of interfaces | as a loop in C |
//!
//! Rivals of links: tail calls by constant and by variable index; a dispatcher with the components'
//! functions linked in, as libxdp's has them once they are put in by `freplace`, which needs a
//! kernel with BPF trampolines; and one program with all of them in it, as functions or as straight
//! code. What one more program costs there is measured with up to ten, ours with up to 32.
//!
//! The load balancer is of Katran's kind, on a mix of 10,000 connections. In a test run it is fed by
//! a program around it, in both engines alike; a row without that has it taken off. Before, 32,768
//! packets go through both engines, which must send the same.
//!
//! Rows of a batch say what lookups ahead of a program win: the rivals are the same program without
//! them, and without them on the same frames with all memory that it needs in the cache, which is the
//! most that could be won.
//!
//! Frames of interfaces go over a pair of veth devices in a network namespace of their own, against
//! `benches/chain/wire.c`: the sender is the same C program for both receivers. Frames that were
//! sent and did not arrive are lost.
//!
//! Each process measures all cases of one side in turn, the best of several rounds; a row has the
//! median of all processes, sides taking turns.

use std::collections::HashMap;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, Result};
use skep_testkit::TempDir;
use skep_testkit::cc::Cc;
use skep_testkit::skip::{has_command, is_root};

use super::row::Row;
use super::sample::Sample;
use crate::{cargo, check, output, root};

const TURNS: usize = 5;

/// Arguments of the program, by the name of the side.
const OURS: [(&str, &[&str]); 4] = [
    ("links", &["links", "skep"]),
    ("packets", &["packets"]),
    ("balancer", &["balancer", "skep"]),
    ("ahead", &["ahead"]),
];
const KERNELS: [(&str, &[&str]); 2] =
    [("kernel links", &["links", "kernel"]), ("kernel balancer", &["balancer", "kernel"])];
const WIRE: &str = "wire";

/// Where a figure comes from: side and operation, and perhaps an operation to take off.
type Figure = (&'static str, &'static str, Option<&'static str>);

const fn figure(side: &'static str, operation: &'static str) -> Figure {
    (side, operation, None)
}

const fn links(operation: &'static str) -> Figure {
    figure("links", operation)
}

const fn kernel(operation: &'static str) -> Figure {
    figure("kernel links", operation)
}

const fn wire(operation: &'static str) -> Figure {
    figure(WIRE, operation)
}

/// A row: its case, ours, the rival and its name.
type Wanted = (&'static str, Figure, Option<(Figure, &'static str)>);

const CONSTANT: &str = "kernel, constant tail call";
const VARIABLE: &str = "kernel, variable tail call";
const DISPATCHER: &str = "kernel, dispatcher, no freplace";
const CALLS: &str = "kernel, one program, functions";
const STRAIGHT: &str = "kernel, one program, straight";
const TEST_RUN: &str = "kernel, test run";
const C: &str = "C";
const AGAIN: &str = "the same frames again at once";
const NEVER: &str = "lookups as the program makes them";

#[rustfmt::skip]
const ROWS: &[Wanted] = &[
    ("one more program, for a verdict, not counted", links("verdict-off-more"), Some((kernel("tail-constant-more"), CONSTANT))),
    ("one more program, for a verdict, not counted", links("verdict-off-more"), Some((kernel("tail-variable-more"), VARIABLE))),
    ("one more program, for a verdict, not counted", links("verdict-off-more"), Some((kernel("dispatcher-more"), DISPATCHER))),
    ("one more program, for a verdict, not counted", links("verdict-off-more"), Some((kernel("calls-more"), CALLS))),
    ("one more program, for a verdict, not counted", links("verdict-off-more"), Some((kernel("straight-more"), STRAIGHT))),
    ("one more program, for any, not counted", links("any-off-more"), Some((kernel("tail-constant-more"), CONSTANT))),
    ("one more program, for a verdict, counted", links("verdict-counted-more"), Some((kernel("tail-constant-more"), CONSTANT))),
    ("one more program, for any, counted", links("any-counted-more"), Some((kernel("tail-constant-more"), CONSTANT))),
    ("one more program, for a verdict, timed", links("verdict-timed-more"), Some((kernel("tail-constant-more"), CONSTANT))),
    ("chain of 1, test run, not counted", links("verdict-off-1"), Some((links("alone"), "no chain"))),
    ("chain of 1, test run, counted", links("verdict-counted-1"), Some((links("alone"), "no chain"))),
    ("no chain, test run", links("alone"), Some((kernel("straight-1"), TEST_RUN))),
    ("chain of 2, not counted", links("verdict-off-2"), Some((kernel("tail-constant-2"), CONSTANT))),
    ("chain of 4, not counted", links("verdict-off-4"), Some((kernel("tail-constant-4"), CONSTANT))),
    ("chain of 8, not counted", links("verdict-off-8"), Some((kernel("tail-constant-8"), CONSTANT))),
    ("chain of 16, not counted", links("verdict-off-16"), Some((kernel("tail-constant-16"), CONSTANT))),
    ("chain of 32, not counted", links("verdict-off-32"), Some((kernel("tail-constant-32"), CONSTANT))),
    ("chain of 8, counted", links("verdict-counted-8"), Some((kernel("dispatcher-8"), DISPATCHER))),
    ("chain of 32, counted", links("verdict-counted-32"), Some((kernel("calls-32"), CALLS))),
    ("attached to the kernel: one more program, not counted", kernel("chain-off-more"), Some((kernel("tail-constant-more"), CONSTANT))),
    ("attached to the kernel: one more program, not counted", kernel("chain-off-more"), Some((kernel("tail-variable-more"), VARIABLE))),
    ("attached to the kernel: one more program, not counted", kernel("chain-off-more"), Some((kernel("dispatcher-more"), DISPATCHER))),
    ("attached to the kernel: one more program, not counted", kernel("chain-off-more"), Some((kernel("calls-more"), CALLS))),
    ("attached to the kernel: one more program, counted", kernel("chain-counted-more"), Some((kernel("dispatcher-more"), DISPATCHER))),
    ("attached to the kernel: one more program, timed", kernel("chain-timed-more"), Some((kernel("dispatcher-more"), DISPATCHER))),
    ("attached to the kernel: chain of 1, counted", kernel("chain-counted-1"), Some((kernel("straight-1"), "no chain"))),
    ("attached to the kernel: chain of 8, counted", kernel("chain-counted-8"), Some((kernel("dispatcher-8"), DISPATCHER))),
    ("attached to the kernel: chain of 32, counted", kernel("chain-counted-32"), Some((kernel("calls-32"), CALLS))),
    ("kernel, one program, straight: one more", kernel("straight-more"), Some((kernel("dispatcher-more"), DISPATCHER))),
    ("kernel, one program, functions: one more", kernel("calls-more"), Some((kernel("dispatcher-more"), DISPATCHER))),
    ("drop, 64 bytes that stay in memory, 1 program", figure("packets", "in-place-1-off"), Some((figure("packets", "in-place-alone"), "no chain"))),
    ("drop, 64 bytes that stay in memory, 1, counted", figure("packets", "in-place-1-counted"), Some((figure("packets", "in-place-alone"), "no chain"))),
    ("drop, 64 bytes that stay in memory, 3 programs", figure("packets", "in-place-3-off"), None),
    ("drop, 64 bytes that stay in memory, 3, counted", figure("packets", "in-place-3-counted"), None),
    ("drop, 64 bytes copied from memory, 2 programs", figure("packets", "memory"), None),
    ("drop, 64 bytes made by the generator, 2, counted", figure("packets", "generator"), None),
    ("drop, 64 bytes read from pcap, 2, counted", figure("packets", "pcap"), None),
    ("drop, 64 bytes read from pcapng, 2, counted", figure("packets", "pcapng"), None),
    ("load balancer, test run", figure("balancer", "driven"), Some((figure("kernel balancer", "driven"), TEST_RUN))),
    ("load balancer, test run, without what feeds it", ("balancer", "driven", Some("driver")), Some((("kernel balancer", "driven", Some("driver")), TEST_RUN))),
    ("load balancer, frames copied from memory", figure("balancer", "frames"), Some((figure("kernel balancer", "driven"), TEST_RUN))),
    ("a batch, one lookup in a hash of 100,000", figure("ahead", "small-hash-ahead"), Some((figure("ahead", "small-hash-first"), NEVER))),
    ("a batch, one lookup in a hash of 100,000", figure("ahead", "small-hash-ahead"), Some((figure("ahead", "small-hash-again"), AGAIN))),
    ("a batch, one lookup in a hash of 1,000,000", figure("ahead", "large-hash-ahead"), Some((figure("ahead", "large-hash-first"), NEVER))),
    ("a batch, one lookup in a hash of 1,000,000", figure("ahead", "large-hash-ahead"), Some((figure("ahead", "large-hash-again"), AGAIN))),
    ("a batch, load balancer", figure("ahead", "balancer-ahead"), Some((figure("ahead", "balancer-first"), NEVER))),
    ("a batch, load balancer", figure("ahead", "balancer-ahead"), Some((figure("ahead", "balancer-again"), AGAIN))),
    ("receive, TPACKET_V3", wire("receive-packet-skep"), Some((wire("receive-packet-c"), C))),
    ("receive, TPACKET_V3, lost, per_mille", wire("receive-packet-skep-lost"), Some((wire("receive-packet-c-lost"), C))),
    ("receive, AF_XDP, copied, native", wire("receive-native-skep"), Some((wire("receive-native-c"), C))),
    ("receive, AF_XDP, copied, native, lost, per_mille", wire("receive-native-skep-lost"), Some((wire("receive-native-c-lost"), C))),
    ("receive, AF_XDP, copied, generic", wire("receive-generic-skep"), Some((wire("receive-generic-c"), C))),
    ("receive, AF_XDP, copied, generic, lost, per_mille", wire("receive-generic-skep-lost"), Some((wire("receive-generic-c-lost"), C))),
    ("send, AF_PACKET", wire("send-packet-skep"), Some((wire("send-packet-c"), C))),
    ("send, AF_XDP, copied", wire("send-generic-skep"), Some((wire("send-generic-c"), C))),
];

/// The values of each operation, by side.
#[derive(Default)]
struct Values(HashMap<(&'static str, String), Vec<f64>>);

impl Values {
    /// Adds the figures that a program printed.
    fn add(&mut self, side: &'static str, text: &str) -> Result<()> {
        for line in text.lines() {
            let (operation, number) =
                line.split_once(' ').with_context(|| format!("a figure in `{line}`"))?;
            self.0.entry((side, operation.to_owned())).or_default().push(number.parse()?);
        }
        Ok(())
    }

    fn sample(&self, (side, operation, without): Figure) -> Option<Sample> {
        let of = |operation: &str| self.0.get(&(side, operation.to_owned()));
        match without {
            None => of(operation).cloned().map(Sample::of),
            Some(without) => Some(Sample::added(of(operation)?, of(without)?)),
        }
    }
}

/// The rows of all parts.
pub fn run() -> Result<Vec<Row>> {
    check(cargo().args([
        "build",
        "--quiet",
        "--release",
        "-p",
        "skep",
        "--example",
        "chain_costs",
    ]))?;
    let target =
        std::env::var_os("CARGO_TARGET_DIR").map_or_else(|| root().join("target"), PathBuf::from);
    let program = target.join("release/examples/chain_costs");
    let dir = TempDir::new();
    let wire = wire_program(dir.path());
    let mut sides = OURS.to_vec();
    match skep_kernel::probe() {
        Ok(()) => {
            eprintln!(
                "balancer: {}",
                output(Command::new(&program).arg("agree"))?.replace('\n', " ")
            );
            sides.extend(KERNELS);
        }
        Err(e) => {
            eprintln!("no rows of the kernel: {}", e.requirement().unwrap_or("it refuses bpf(2)"))
        }
    }
    let mut values = Values::default();
    for turn in 1..=TURNS {
        eprintln!("turn {turn} of {TURNS}");
        for (side, arguments) in &sides {
            values.add(side, &output(Command::new(&program).args(*arguments))?)?;
        }
        match &wire {
            Ok(wire) => values.add(WIRE, &output(Command::new(&program).arg(WIRE).arg(wire))?)?,
            Err(why) if turn == 1 => eprintln!("no rows of interfaces: {why}"),
            Err(_) => {}
        }
    }
    let row = |(case, ours, rival): &Wanted| {
        let rival = rival.and_then(|(rival, name)| Some((name.to_owned(), values.sample(rival)?)));
        Some(Row { case: (*case).to_owned(), ours: values.sample(*ours)?, rival })
    };
    Ok(ROWS.iter().filter_map(row).collect())
}

/// Builds the rival of what goes over interfaces; else says what is missing.
fn wire_program(dir: &Path) -> Result<PathBuf, &'static str> {
    if !is_root() {
        return Err("network namespaces and AF_XDP need root");
    }
    // `ip` knows no `--version`.
    if !has_command("gcc") || Command::new("ip").arg("-Version").output().is_err() {
        return Err("they need gcc and ip");
    }
    let source = root().join("benches/chain/wire.c");
    Ok(Cc::c().args(&["-O2"]).compile(&[&source], &dir.join("wire")))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn figures_are_found_by_side_and_taken_off_turn_by_turn() {
        let mut values = Values::default();
        for text in ["driven 110\ndriver 4", "driven 130\ndriver 5", "driven 118\ndriver 3"] {
            values.add("balancer", text).unwrap();
        }
        let medians = [None, Some("driver")].map(|without| {
            values.sample(("balancer", "driven", without)).map(|sample| sample.median)
        });
        assert_eq!(medians, [Some(118.0), Some(115.0)]);
        assert_eq!(values.sample(figure("links", "driven")), None);
        assert!(values.add("links", "no-number").is_err());
    }

    #[test]
    fn no_row_is_there_twice() {
        for (n, (case, _, rival)) in ROWS.iter().enumerate() {
            let name = |rival: &Option<(Figure, &'static str)>| rival.map(|(_, name)| name);
            let same = |other: &&Wanted| other.0 == *case && name(&other.2) == name(rival);
            assert_eq!(ROWS[..n].iter().find(same), None, "{case}");
        }
    }
}
