//! How fast capture files are read and written: packets of 64 bytes from the page cache.
//!
//! `cargo run --release -p skep-net --example replay -- [PACKETS]` writes a file of each format below
//! `/dev/shm`, then reads it several times, and prints millions of packets a second: the best run,
//! and the worst.

use std::path::Path;
use std::time::{Duration, Instant};

use skep_net::port::batch::Meta;
use skep_net::port::capture::{Format, Reader, Unit, Writer};
use skep_net::port::{Batch, PortError, Received, Sink, Source};

const RUNS: usize = 7;

fn write(path: &Path, format: Format, packets: u64) -> Result<(), PortError> {
    let (mut file, mut batch) = (Writer::create(path, format)?, Batch::new());
    let mut n = 0;
    while n < packets {
        while n < packets
            && batch.push(Meta { ns: n, wire_len: 64, port: 1, queue: 0 }, &[n as u8; 64])
        {
            n += 1;
        }
        let all: Vec<u16> = (0..batch.len() as u16).collect();
        file.send(&batch, &all)?;
        batch.clear();
    }
    file.flush()
}

fn read(path: &Path) -> Result<(u64, u64), PortError> {
    let (mut file, mut batch) = (Reader::open(path)?, Batch::new());
    let (mut packets, mut sum) = (0, 0);
    while file.receive(&mut batch, Duration::ZERO)? == Received::Frames {
        packets += batch.len() as u64;
        sum += batch.frames().map(|f| u64::from(f.bytes[0])).sum::<u64>();
        batch.clear();
    }
    Ok((packets, sum))
}

#[allow(clippy::print_stdout, reason = "it is a report")]
fn main() -> Result<(), Box<dyn std::error::Error>> {
    let packets = std::env::args().nth(1).map_or(Ok(2_000_000), |n| n.parse())?;
    let formats = [("pcap", Format::Pcap(Unit::Nanoseconds)), ("pcapng", Format::Pcapng)];
    for (name, format) in formats {
        let path = format!("/dev/shm/skep-replay-{}.{name}", std::process::id());
        let mut rates = [Vec::new(), Vec::new()];
        for _ in 0..RUNS {
            let start = Instant::now();
            write(path.as_ref(), format, packets)?;
            rates[0].push(packets as f64 / start.elapsed().as_secs_f64() / 1e6);
            let start = Instant::now();
            let (found, sum) = read(path.as_ref())?;
            rates[1].push(packets as f64 / start.elapsed().as_secs_f64() / 1e6);
            assert_eq!((found, sum), (packets, (0..packets).map(|n| n & 0xff).sum()));
        }
        std::fs::remove_file(&path)?;
        for (what, mut rates) in ["written", "read"].into_iter().zip(rates) {
            rates.sort_by(f64::total_cmp);
            let (worst, best) = (rates[0], rates[RUNS - 1]);
            println!("{name:8} {what:8} {best:6.1} M packets/s (worst of {RUNS}: {worst:.1})");
        }
    }
    Ok(())
}
