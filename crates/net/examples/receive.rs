//! How many frames a second come through a pair of veth devices: packet sockets and `AF_XDP`, with
//! what is lost. As root; the devices are in a network namespace of the example's own.
//!
//! `cargo run --release -p skep-net --example receive -- [SECONDS]`. One thread sends frames of 60
//! bytes without pause, one receives; so where there are two processors, the sender is often what
//! limits.

use std::error::Error;
use std::process::Command;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::time::{Duration, Instant};

use skep_net::port::generator::Generator;
use skep_net::port::interface::xdp::{self, Copying, XdpOptions};
use skep_net::port::interface::{PacketSink, PacketSource};
use skep_net::port::{Batch, Received, Sink, Source};

const WAIT: Duration = Duration::from_millis(20);

fn ip(line: &str) -> Result<(), Box<dyn Error>> {
    let done = Command::new("ip").args(line.split(' ')).status()?;
    if done.success() { Ok(()) } else { Err(format!("`ip {line}` failed").into()) }
}

/// Sends until the flag is set; returns how many frames went.
fn send(sink: &mut dyn Sink, stop: &AtomicBool) -> Result<u64, Box<dyn Error + Send + Sync>> {
    let (mut frames, mut batch, mut sent) = (Generator::new(&[60]), Batch::new(), 0);
    frames.receive(&mut batch, WAIT)?;
    let all: Vec<u16> = (0..batch.len() as u16).collect();
    while !stop.load(Relaxed) {
        sent += sink.send(&batch, &all)?.packets;
    }
    sink.flush()?;
    Ok(sent)
}

/// Receives until the sender has stopped and nothing comes any more; returns the frames, and the
/// time until the last.
fn receive(
    source: &mut dyn Source,
    stop: &AtomicBool,
) -> Result<(u64, Duration), Box<dyn Error + Send + Sync>> {
    let (mut batch, mut frames) = (Batch::new(), 0);
    let (started, mut last) = (Instant::now(), Duration::ZERO);
    loop {
        batch.clear();
        if source.receive(&mut batch, WAIT)? == Received::Frames {
            frames += batch.len() as u64;
            last = started.elapsed();
        } else if stop.load(Relaxed) {
            return Ok((frames, last));
        }
    }
}

#[allow(clippy::print_stdout, reason = "it is a report")]
fn measure(
    what: &str,
    mut source: Box<dyn Source>,
    mut sink: Box<dyn Sink>,
    time: Duration,
) -> Result<(), Box<dyn Error>> {
    let stop = AtomicBool::new(false);
    let (sent, received) = std::thread::scope(|scope| {
        let sender = scope.spawn(|| send(&mut *sink, &stop));
        let receiver = scope.spawn(|| receive(&mut *source, &stop));
        std::thread::sleep(time);
        stop.store(true, Relaxed);
        (sender.join(), receiver.join())
    });
    let sent = sent.map_err(|_| "the sender panicked")?.map_err(|e| e.to_string())?;
    let (frames, took) =
        received.map_err(|_| "the receiver panicked")?.map_err(|e| e.to_string())?;
    let lost = source.lost()?.ring_full;
    let rate = |n: u64| n as f64 / took.as_secs_f64() / 1000.0;
    println!(
        "{what:36} {:6.0} thousand/s received, {:6.0} sent, {lost} lost in the ring",
        rate(frames),
        rate(sent),
    );
    Ok(())
}

fn main() -> Result<(), Box<dyn Error>> {
    let seconds = std::env::args().nth(1).map_or(Ok(2), |n| n.parse())?;
    let time = Duration::from_secs(seconds);
    // SAFETY: changes the namespace of this thread, and of those that it starts.
    if unsafe { libc::unshare(libc::CLONE_NEWNET) } != 0 {
        return Err("network namespaces need root".into());
    }
    ip("link add one type veth peer name two")?;
    ip("link set one up")?;
    ip("link set two up")?;
    for round in 1..=3 {
        let sink = || PacketSink::open("one").map(|sink| Box::new(sink) as Box<dyn Sink>);
        let source = Box::new(PacketSource::open("two")?);
        measure(&format!("{round} TPACKET_V3"), source, sink()?, time)?;
        for (name, generic) in [("native", false), ("generic", true)] {
            let options = XdpOptions { generic, copying: Copying::Always, ..Default::default() };
            let (source, _) = xdp::open("two", &options)?;
            let what = format!("{round} AF_XDP, {name}, copy");
            measure(&what, Box::new(source), sink()?, time)?;
        }
        let options = XdpOptions { generic: true, copying: Copying::Always, ..Default::default() };
        let (_, sink) = xdp::open("two", &options)?;
        let source = Box::new(PacketSource::open("one")?);
        measure(&format!("{round} TPACKET_V3 of AF_XDP"), source, Box::new(sink), time)?;
    }
    Ok(())
}
