//! One contestant of `cargo xtask bench chain`: what programs in sequence take, and programs on
//! packets.
//!
//! ```text
//! chain_costs links skep|kernel         2 to 32 programs in sequence
//! chain_costs packets [CASE]            a dropping chain on frames in memory, and on a capture file
//! chain_costs balancer skep|kernel      a load balancer on a mix of connections
//! chain_costs ahead                     what programs on a batch take whose memory is in the cache
//! chain_costs agree                     the balancer on both, packet for packet
//! chain_costs wire C_PROGRAM            frames of interfaces, by skep and by a program in C
//! chain_costs receive WAY               one side of that
//! chain_costs send WAY SECONDS
//! ```
//!
//! Output: a line `OPERATION NUMBER` each. Numbers are nanoseconds of one run or packet in the best
//! of several rounds, unless the name says something else. What is compared with the kernel runs
//! the same instructions there (`benches/chain/bpf`), by `BPF_PROG_TEST_RUN`, as root.
#![allow(clippy::print_stdout, clippy::print_stderr, reason = "the result")]

mod agree;
mod ahead;
mod balancer;
mod balancer_maps;
mod kernel;
mod links;
mod mark;
mod mix;
mod packets;
mod wire;

use std::process::ExitCode;
use std::time::{Duration, Instant};

type Result<T, E = Box<dyn std::error::Error>> = std::result::Result<T, E>;

/// Rounds of which the best counts; what is compared takes turns in each.
const ROUNDS: usize = 9;

/// Prints a figure.
fn tell(operation: &str, number: f64) {
    println!("{operation} {number:.4}");
}

fn timed<T>(f: impl FnOnce() -> Result<T>) -> Result<(Duration, T)> {
    let began = Instant::now();
    let done = f()?;
    Ok((began.elapsed(), done))
}

/// Nanoseconds for each of `parts`.
fn each(took: Duration, parts: u64) -> f64 {
    took.as_nanos() as f64 / parts as f64
}

/// Something to measure: its name, and a round of it, in nanoseconds.
type Case<'a> = (String, Box<dyn FnMut() -> Result<f64> + 'a>);

/// Measures all in turn, and prints the best of each.
fn take_turns(cases: &mut [Case<'_>]) -> Result<Vec<f64>> {
    let mut best = vec![f64::INFINITY; cases.len()];
    for _ in 0..ROUNDS {
        for ((_, run), best) in cases.iter_mut().zip(&mut best) {
            *best = best.min(run()?);
        }
    }
    for ((name, _), best) in cases.iter().zip(&best) {
        tell(name, *best);
    }
    Ok(best)
}

/// Prints what one more program costs: the difference between the shortest of these chains and the
/// longest of at most `most` programs, for each of the programs between.
fn tell_slope(name: &str, chains: &[(usize, f64)], most: usize) {
    let long = chains.iter().rev().find(|(programs, _)| *programs <= most);
    if let (Some((few, low)), Some((many, high))) = (chains.first(), long)
        && many > few
    {
        tell(name, (high - low) / (many - few) as f64);
    }
}

fn run(args: &[&str]) -> Result<()> {
    match args {
        ["links", "skep"] => links::ours(),
        ["links", "kernel"] => links::kernels(),
        ["packets"] => packets::run(None),
        ["packets", case] => packets::run(Some(case)),
        ["balancer", "skep"] => balancer::ours(),
        ["balancer", "kernel"] => balancer::kernels(),
        ["ahead"] => ahead::run(),
        ["agree"] => agree::run(),
        ["wire", c] => wire::compare(c.as_ref()),
        ["receive", way @ ("packet" | "native" | "generic")] => wire::receive(way),
        ["send", way @ ("packet" | "generic"), seconds] => wire::send(way, seconds.parse()?),
        _ => {
            Err("usage: chain_costs links|packets|balancer|ahead|agree|wire|receive|send …".into())
        }
    }
}

fn main() -> ExitCode {
    let args: Vec<String> = std::env::args().skip(1).collect();
    let args: Vec<&str> = args.iter().map(String::as_str).collect();
    match run(&args) {
        Ok(()) => ExitCode::SUCCESS,
        Err(e) => {
            eprintln!("error: {e}");
            ExitCode::FAILURE
        }
    }
}
