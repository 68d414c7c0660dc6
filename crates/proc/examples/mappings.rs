//! Times the ways to ask for mappings of a process: how long does one question, or all of them,
//! take?
//!
//! `cargo run -p skep-proc --release --example mappings -- PID`

#![allow(clippy::print_stdout, reason = "a command-line example")]

use std::error::Error;
use std::time::Instant;

use skep_proc::maps::{Filter, Live, MapSource, Want};

fn main() -> Result<(), Box<dyn Error>> {
    let pid = std::env::args().nth(1).ok_or("usage: mappings PID")?.parse()?;
    let (live, text) = (Live::of(pid)?, Live::of(pid)?.text_only());
    let all = text.all(&Filter::default(), Want::NAME)?;
    println!("{} mappings, ioctl: {}", all.len(), live.has_ioctl());
    let middle = all.get(all.len() / 2).map_or(0, |v| v.start);
    for (name, want) in
        [("bare", Want::default()), ("named", Want::NAME), ("named, build id", Want::ALL)]
    {
        time(&format!("ioctl query, {name}"), || {
            live.query(middle, &Filter::default(), want).is_ok()
        });
    }
    time("text query, named", || text.query(middle, &Filter::default(), Want::NAME).is_ok());
    time("ioctl walk, named", || live.walk(&Filter::default(), Want::NAME).count() > 0);
    time("ioctl walk of text, named", || live.walk(&Filter::TEXT, Want::NAME).count() > 0);
    time("text, all", || text.all(&Filter::default(), Want::NAME).is_ok());
    Ok(())
}

/// Prints the median of rounds that last a few milliseconds each.
fn time(what: &str, mut f: impl FnMut() -> bool) {
    let mut rounds: Vec<_> = (0..31)
        .map(|_| {
            let (start, mut n) = (Instant::now(), 0u32);
            while start.elapsed().as_millis() < 3 {
                assert!(f());
                n += 1;
            }
            start.elapsed().as_nanos() as f64 / f64::from(n)
        })
        .collect();
    rounds.sort_by(f64::total_cmp);
    println!("{what:<28} {:>10.2} µs", rounds[15] / 1000.0);
}
