//! Frames of interfaces, against a loop in C: over a pair of veth devices, `one` and `two`, in a
//! network namespace of this process. As root.
//!
//! Both sides print the same lines: a receiver `ready`, then how many frames there were, and the
//! time from the first to the last of them.

use std::io::{BufRead, BufReader, Read};
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use skep::port::generator::Generator;
use skep::port::interface::xdp::{self, Copying, XdpOptions};
use skep::port::interface::{PacketSink, PacketSource};
use skep::port::{Batch, Received, Sink, Source};

use crate::{Result, tell};

const FRAME: usize = 60;
const SECONDS: &str = "0.7";
/// A receiver ends when nothing has come for so long.
const IDLE: Duration = Duration::from_millis(100);
const RECEIVE: [&str; 3] = ["packet", "native", "generic"];
const SEND: [&str; 2] = ["packet", "generic"];

/// Measures all ways, ours and those of the C program, in turn.
pub fn compare(c: &Path) -> Result<()> {
    // SAFETY: changes the network namespace of this thread, and of the processes that it starts.
    if unsafe { libc::unshare(libc::CLONE_NEWNET) } != 0 {
        return Err("network namespaces need root".into());
    }
    for line in ["link add one type veth peer name two", "link set one up", "link set two up"] {
        if !Command::new("ip").args(line.split(' ')).status()?.success() {
            return Err(format!("`ip {line}` failed").into());
        }
    }
    let own = std::env::current_exe()?;
    let sides = [("skep", own.as_path()), ("c", c)];
    for way in RECEIVE {
        for (side, program) in sides {
            let mut receiver = Output::start(Command::new(program).args(["receive", way]))?;
            receiver.wait_until_ready()?;
            let sent = Output::start(Command::new(c).args(["send", "packet", SECONDS]))?.end()?;
            let received = receiver.end()?;
            tell(&format!("receive-{way}-{side}"), received.ns_each()?);
            let lost = sent.frames.saturating_sub(received.frames);
            let per_mille = lost as f64 * 1000.0 / sent.frames.max(1) as f64;
            tell(&format!("receive-{way}-{side}-lost"), per_mille);
        }
    }
    for way in SEND {
        for (side, program) in sides {
            let sent = Output::start(Command::new(program).args(["send", way, SECONDS]))?.end()?;
            tell(&format!("send-{way}-{side}"), sent.ns_each()?);
        }
    }
    Ok(())
}

/// What a process saw.
struct Seen {
    frames: u64,
    ns: u64,
}

impl Seen {
    fn ns_each(&self) -> Result<f64> {
        match self.frames {
            0 | 1 => Err("no frames came".into()),
            frames => Ok(self.ns as f64 / frames as f64),
        }
    }
}

/// A process, ended when this is dropped, and what it prints.
struct Output(Child);

impl Drop for Output {
    fn drop(&mut self) {
        self.0.kill().and_then(|()| self.0.wait()).ok();
    }
}

impl Output {
    fn start(command: &mut Command) -> Result<Self> {
        Ok(Self(command.stdout(Stdio::piped()).spawn()?))
    }

    fn wait_until_ready(&mut self) -> Result<()> {
        let out = self.0.stdout.as_mut().ok_or("no output")?;
        let mut line = String::new();
        // Byte by byte: what follows is for `end`.
        BufReader::with_capacity(1, out).read_line(&mut line)?;
        if line == "ready\n" { Ok(()) } else { Err("a receiver did not begin".into()) }
    }

    fn end(mut self) -> Result<Seen> {
        let mut text = String::new();
        self.0.stdout.take().ok_or("no output")?.read_to_string(&mut text)?;
        if !self.0.wait()?.success() {
            return Err("a sender or receiver failed".into());
        }
        let number = |name: &str| -> Result<u64> {
            let line = text.lines().find_map(|line| line.strip_prefix(name));
            Ok(line.ok_or_else(|| format!("no line `{name}`"))?.trim().parse()?)
        };
        Ok(Seen { frames: number("frames")?, ns: number("ns")? })
    }
}

fn options(way: &str) -> XdpOptions {
    XdpOptions { generic: way == "generic", copying: Copying::Always, ..Default::default() }
}

/// Receives on `two` until nothing comes any more.
pub fn receive(way: &str) -> Result<()> {
    let mut source: Box<dyn Source> = match way {
        "packet" => Box::new(PacketSource::open("two")?),
        _ => Box::new(xdp::open("two", &options(way))?.0),
    };
    println!("ready");
    let (mut batch, mut frames, mut sum) = (Batch::new(), 0, 0);
    let (mut first, mut last) = (None, Instant::now());
    loop {
        batch.clear();
        match source.receive(&mut batch, IDLE)? {
            Received::Frames => {
                for frame in batch.frames().filter(|frame| frame.bytes.len() == FRAME) {
                    sum += u64::from(frame.bytes[0]) + u64::from(frame.bytes[12]);
                    frames += 1;
                }
                last = Instant::now();
                first = first.or(Some(last));
            }
            _ if frames > 64 => break,
            _ => {}
        }
    }
    print(frames, last - first.unwrap_or(last), sum);
    Ok(())
}

/// Sends out of `one` for so many seconds.
pub fn send(way: &str, seconds: f64) -> Result<()> {
    let mut sink: Box<dyn Sink> = match way {
        "packet" => Box::new(PacketSink::open("one")?),
        _ => Box::new(xdp::open("one", &options(way))?.1),
    };
    let (mut batch, mut frames) = (Batch::new(), 0);
    Generator::new(&[FRAME]).receive(&mut batch, IDLE)?;
    let all: Vec<u16> = (0..batch.len() as u16).collect();
    let (began, time) = (Instant::now(), Duration::from_secs_f64(seconds));
    while began.elapsed() < time {
        frames += sink.send(&batch, &all)?.packets;
    }
    sink.flush()?;
    print(frames, began.elapsed(), 0);
    Ok(())
}

fn print(frames: u64, took: Duration, sum: u64) {
    println!("frames {frames}\nns {}\nsum {sum}", took.as_nanos());
}
