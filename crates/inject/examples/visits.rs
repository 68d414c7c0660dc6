//! Stops a process again and again, has it make a system call each time, and prints how long that
//! took, from the first thread that is asked to stop to the last one that is let go:
//! `visits PID [COUNT]`.

use std::io::Write;
use std::time::{Duration, Instant};

fn main() -> Result<(), Box<dyn std::error::Error>> {
    const GETPID: u64 = 39;
    let mut arguments = std::env::args().skip(1);
    let pid: u32 = arguments.next().ok_or("usage: visits PID [COUNT]")?.parse()?;
    let count: usize = arguments.next().map_or(Ok(1), |count| count.parse())?;
    let mut times: Vec<Duration> = Vec::new();
    let mut threads = 0;
    for _ in 0..count {
        let begin = Instant::now();
        threads = skep_inject::stop(pid, |target| {
            target.call("getpid", GETPID, [0; 6]).map(|_| target.threads().len())
        })??;
        times.push(begin.elapsed());
    }
    times.sort();
    let at = |part: usize| times.get(times.len() * part / 100).or(times.last());
    if let (Some(median), Some(p99)) = (at(50), at(99)) {
        let line = format!("{threads} threads, {count} times: median {median:?}, 99 % {p99:?}\n");
        std::io::stdout().write_all(line.as_bytes())?;
    }
    Ok(())
}
