//! `skep prog run --in` and `--live-frames`: an XDP program on the packets of a port or on one packet, and where
//! they went.

use std::fs::Metadata;
use std::io::{self, Write};
use std::os::fd::AsFd;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::time::{Duration, Instant};

use rustix::event::{PollFd, PollFlags, poll};
use serde_json::{Map as Object, Value as Json, json};
use skep::packets::{PacketRunner, PacketsError};
use skep::port::capture::split;
use skep::port::interface::machine;
use skep::port::name::{Input, InterfaceSink, open_sink, open_source};
use skep::port::{Outputs, PortError, Source, Stats, Target, Until, Verdict};
use skep::test_run::{LiveFrames, Runner};

use crate::args::PacketArgs;
use crate::failure::{FAILED, Failure, Result};
use crate::signals::Signals;
use crate::units;

/// The output that is the interface that packets come from.
const BACK: &str = "in";

/// What one program did.
pub struct Row {
    /// Its name, and what else tells it from others.
    pub program: String,
    /// How often it ran.
    pub runs: u64,
    /// What all runs took together; 0: that was not measured.
    pub ns: u64,
    /// The row of the JSON report.
    pub json: Json,
}

/// What became of the packets.
pub struct Report {
    /// What was moved.
    pub stats: Stats,
    /// The programs in order.
    pub rows: Vec<Row>,
    /// What leads from program to program.
    pub edges: Json,
    /// How long it all took.
    pub took: Duration,
    /// Why it ended early; the rest of the report is what was done until then.
    pub failure: Option<Failure>,
}

/// Runs the program on the packets of a port.
pub fn run(args: &PacketArgs, input: &str, runner: Runner) -> Result<Report> {
    let packets = on_packets(runner)?;
    let (mut source, mut outputs) = ports(args, input)?;
    pump(args, packets, &mut *source, &mut outputs)
}

/// Runs the program on live frames, which were read from these files; to the interfaces of this machine, if
/// no other outputs are named.
pub fn run_live(
    args: &PacketArgs,
    files: &[&Path],
    runner: Runner,
    mut frames: LiveFrames,
) -> Result<Report> {
    let packets = on_packets(runner)?;
    let mut outputs = if args.out.is_empty() {
        machine(frames.port()).map_err(|e| {
            Failure::from(e)
                .hint("with --out, frames go to files, as in `--out 'pass+tx=sent.pcap'`")
        })?
    } else {
        files.iter().try_for_each(|file| check_targets(args, &file.to_string_lossy()))?;
        outputs(args, None)?
    };
    pump(args, packets, &mut frames, &mut outputs)
}

fn on_packets(runner: Runner) -> Result<PacketRunner> {
    PacketRunner::new(runner).map_err(|e| Failure { status: FAILED, ..Failure::from(e) })
}

fn pump(
    args: &PacketArgs,
    mut packets: PacketRunner,
    source: &mut dyn Source,
    outputs: &mut Outputs,
) -> Result<Report> {
    let program = packets.runner().program().name().to_owned();
    let stop = stop_flag()?;
    let until = Until { packets: args.packets, time: args.duration, stop: Some(&stop) };
    let started = Instant::now();
    let pumped = packets.pump(source, outputs, &until);
    let took = started.elapsed();
    let (stats, failure) = match pumped {
        Ok(stats) => (stats, None),
        // Nobody reads on.
        Err(PacketsError::Port(error)) if is_closed_pipe(&error.source) => (*error.stats, None),
        Err(error) => {
            let failure = Failure { status: FAILED, ..Failure::from(&error) };
            let stats = match error {
                PacketsError::Port(error) => *error.stats,
                PacketsError::Run { stats, .. } => *stats,
                _ => Stats::default(),
            };
            (stats, Some(failure))
        }
    };
    let ran = packets.stats();
    let json = json!({
        "program": program, "runs": ran.runs, "ns": ran.ns, "verdicts": verdicts(&ran.verdicts),
    });
    let rows = vec![Row { program, runs: ran.runs, ns: ran.ns, json }];
    Ok(Report { stats, rows, edges: json!([]), took, failure })
}

/// Opens the ports that packets come from and go to.
pub fn ports(args: &PacketArgs, input: &str) -> Result<(Box<dyn Source>, Outputs)> {
    check_targets(args, input)?;
    let Input { source, back } = open_source(input)?;
    Ok((source, outputs(args, back)?))
}

fn check_targets(args: &PacketArgs, input: &str) -> Result<()> {
    let targets = targets(args);
    for (n, path) in targets.iter().enumerate() {
        let before: Vec<_> = targets.iter().take(n).map(PathBuf::as_path).collect();
        check_target(path, input, &before)?;
    }
    Ok(())
}

/// Opens the ports that packets go to, `back` among them.
fn outputs(args: &PacketArgs, mut back: Option<InterfaceSink>) -> Result<Outputs> {
    let mut outputs = Outputs::new();
    for list in &args.out {
        for part in split::parse(list)? {
            let (sink, port) = match part.path.as_os_str() == BACK {
                true => {
                    let (sink, port) = back.take().ok_or_else(|| {
                        let message = format!("`{BACK}` needs an interface as input, once");
                        Failure::environment(message)
                    })?;
                    (sink, Some(port))
                }
                false => open_sink(&part.path)?,
            };
            let sink = outputs.add(sink);
            if let Some(port) = port {
                outputs.send_target(Target::Port(port), sink);
            }
            let kinds = part.verdicts.iter().enumerate().filter(|(_, on)| **on);
            kinds.for_each(|(kind, _)| outputs.send_verdict(kind, sink));
        }
    }
    Ok(outputs)
}

/// Refuses to write over the files that what is run comes from.
pub fn check_kept<'a>(targets: impl IntoIterator<Item = &'a Path>, kept: &[PathBuf]) -> Result<()> {
    for path in targets {
        let same = |kept: &PathBuf| file(path).is_some_and(|f| file(kept) == Some(f));
        if kept.iter().any(same) {
            let shown = path.display();
            let what = format!("`{shown}` is a part of what is run, and would be overwritten");
            return Err(Failure::environment(what).hint("write to another file"));
        }
    }
    Ok(())
}

/// What tells a file from others.
fn file(path: &Path) -> Option<(u64, u64)> {
    use std::os::unix::fs::MetadataExt as _;
    path.metadata().ok().filter(Metadata::is_file).map(|meta| (meta.dev(), meta.ino()))
}

/// Does the same for a file that the shell opened.
fn opened(fd: impl AsFd) -> Option<(u64, u64)> {
    let meta = rustix::fs::fstat(fd).ok()?;
    let is_file = rustix::fs::FileType::from_raw_mode(meta.st_mode).is_file();
    is_file.then_some((meta.st_dev, meta.st_ino))
}

/// Does the same for what is written to under a name: `-` is standard output.
fn written(path: &Path) -> Option<(u64, u64)> {
    if path.as_os_str() == "-" { opened(io::stdout()) } else { file(path) }
}

/// Refuses to write a file that packets are read from, or that another output has.
pub fn check_target(path: &Path, input: &str, others: &[&Path]) -> Result<()> {
    // An interface may be several outputs.
    let interface = !path.exists() && Path::new("/sys/class/net").join(path).exists();
    let same = |other: &Path| path == other && !interface;
    let ours = written(path);
    let is = |other: &Path| same(other) || ours.is_some_and(|f| written(other) == Some(f));
    let shown = path.display();
    let read = if input == "-" { opened(io::stdin()) } else { file(Path::new(input)) };
    if ours.is_some() && read == ours {
        return Err(Failure::environment(format!("`{shown}` is the input, and would be emptied"))
            .hint("write to another file"));
    }
    match others.iter().any(|other| is(other)) {
        true => Err(Failure::environment(format!("`{shown}` is an output already"))
            .hint("write to another file")),
        false => Ok(()),
    }
}

/// Lists the files and interfaces that packets are written to.
pub fn targets(args: &PacketArgs) -> Vec<PathBuf> {
    let parts = args.out.iter().filter_map(|list| split::parse(list).ok()).flatten();
    parts.map(|part| part.path).filter(|path| path.as_os_str() != BACK).collect()
}

/// Tells whether a port failed because nobody reads what it writes any more.
pub fn is_closed_pipe(error: &PortError) -> bool {
    matches!(error, PortError::Write { source, .. }
        if source.kind() == io::ErrorKind::BrokenPipe)
}

/// Becomes true when this process is asked to end.
pub fn stop_flag() -> Result<Arc<AtomicBool>> {
    let signals = Signals::install()?;
    let stop = Arc::new(AtomicBool::new(false));
    let flag = Arc::clone(&stop);
    // Handlers and thread stay until the process ends.
    let wait = move || {
        let mut signals = signals;
        while signals.take().is_none() {
            let _ = poll(&mut [PollFd::from_borrowed_fd(signals.fd(), PollFlags::IN)], None);
            signals.clear();
        }
        flag.store(true, Relaxed);
    };
    std::thread::Builder::new().name("skep-signals".to_owned()).spawn(wait)?;
    Ok(stop)
}

/// Tells whether a list of outputs writes packets to standard output.
pub fn uses_stdout(args: &PacketArgs) -> bool {
    targets(args).iter().any(|path| path == Path::new("-"))
}

impl Report {
    /// Returns the report as JSON, in the shape that runs of chains have.
    pub fn json(&self) -> Json {
        let Stats { packets, bytes, sent, lost, .. } = &self.stats;
        let mut out = json!({
            "packets": packets,
            "bytes": bytes,
            "duration_ns": u64::try_from(self.took.as_nanos()).unwrap_or(u64::MAX),
            "verdicts": verdicts(&self.stats.verdicts),
            "nodes": self.rows.iter().map(|row| row.json.clone()).collect::<Json>(),
            "edges": self.edges,
            "sent": {"packets": sent.packets, "bytes": sent.bytes},
            "dropped": {
                "ring_full": sent.ring_full, "too_large": sent.too_large,
                "too_short": sent.too_short, "down": sent.down, "unwritten": sent.unwritten,
                "queue_full": self.stats.queue_full,
                "copies": self.stats.copies_dropped,
                "no_target": self.stats.no_target, "before_receive": lost.ring_full,
            },
            "shortened": lost.shortened,
            "cut_at": lost.cut_at,
        });
        if let Some(failure) = &self.failure {
            out["error"] = json!(failure.message);
        }
        out
    }

    /// Writes the report for people.
    pub fn write(&self, out: &mut dyn Write) -> io::Result<()> {
        let Stats { packets, bytes, sent, lost, .. } = &self.stats;
        let took = units::time(u64::try_from(self.took.as_nanos()).unwrap_or(u64::MAX));
        writeln!(out, "{}  {}  {took}", units::count(*packets, "packet"), units::size(*bytes))?;
        for (name, count) in Verdict::NAMES.iter().zip(self.stats.verdicts) {
            if count > 0 {
                writeln!(out, "  {name:<9} {count}")?;
            }
        }
        for Row { program, runs, ns, .. } in &self.rows {
            let each = match ns.checked_div(*runs).filter(|_| *ns > 0) {
                Some(each) => format!("  {} each", units::time(each)),
                None => String::new(),
            };
            writeln!(out, "program {program}  {}{each}", units::count(*runs, "run"))?;
        }
        let packets = units::count(sent.packets, "packet");
        writeln!(out, "sent  {packets}  {}", units::size(sent.bytes))?;
        let dropped = [
            ("output full", sent.ring_full),
            ("too large for their output", sent.too_large),
            ("too short for their output", sent.too_short),
            ("their interface is down, or not connected", sent.down),
            ("not written, their output failed", sent.unwritten),
            ("queue of a processor full", self.stats.queue_full),
            ("copies, by programs of devices", self.stats.copies_dropped),
            ("redirected to no output", self.stats.no_target),
            ("by the kernel before they were received", lost.ring_full),
        ];
        for (why, count) in dropped.into_iter().filter(|(_, count)| *count > 0) {
            writeln!(out, "dropped  {}  {why}", units::count(count, "packet"))?;
        }
        if lost.shortened > 0 {
            writeln!(out, "shortened at capture  {}", units::count(lost.shortened, "packet"))?;
        }
        Ok(())
    }

    /// Says what the input lacks; `None` when it is whole.
    pub fn warning(&self, input: &str) -> Option<String> {
        let at = self.stats.lost.cut_at?;
        Some(format!("`{input}` ends inside the packet at byte {at}; what comes before was used"))
    }
}

/// Verdicts by name.
pub fn verdicts(counts: &[u64; Verdict::KINDS]) -> Json {
    let pairs = Verdict::NAMES.iter().zip(counts);
    Json::Object(pairs.map(|(name, n)| ((*name).to_owned(), json!(n))).collect::<Object<_, _>>())
}
