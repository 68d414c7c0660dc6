//! An XDP program on real packets: frames of a source get its verdicts and go to sinks.
//!
//! ```no_run
//! use skep::packets::PacketRunner;
//! use skep::port::capture::{Format, Reader, Writer};
//! use skep::port::{Outputs, Until};
//! use skep::test_run::Engine;
//!
//! let session = skep::Session::scratch()?;
//! let object = session.load("filter.bpf.o")?;
//! let mut program = object.program("filter")?.packets(Engine::Jit)?;
//!
//! let mut source = Reader::open("capture.pcap".as_ref())?;
//! let mut outputs = Outputs::new();
//! let passed = outputs.add(Box::new(Writer::create("ok.pcapng".as_ref(), Format::Pcapng)?));
//! outputs.send_verdict(2, passed);
//! let stats = program.pump(&mut source, &mut outputs, &Until::default())?;
//! println!("{} packets, {} passed", stats.packets, stats.verdicts[2]);
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```
//!
//! A frame is changed where it lies: what the program does to it, and where it moves its ends, is
//! what sinks get. Metadata ends with the program. Redirects go to the outputs' targets: interfaces
//! by number, processors of a CPU map by key, sockets of an XSK map by their number in it. Programs
//! in the entries of device maps run on the frame then, before it is sent, and may drop it; those of
//! a broadcast on a copy each. Each entry of a CPU map has a thread while frames are pumped, which runs the
//! entry's program and sends on; a queue of the entry's size leads there, which drops what it has no
//! room for.

mod broadcasts;
mod entries;
mod frames;
mod lookahead;
mod workers;

use std::time::Instant;

use skep_isa::{AttachType, ProgramType};
use skep_net::port::{Batch, Outputs, PumpError, Source, Stats, Until, Verdict, Verdicts};
use skep_vm::Code;

use crate::test_run::{Errno, Runner};
pub(crate) use frames::OnFrames;
pub use lookahead::LookAhead;
pub(crate) use lookahead::Trial;
pub(crate) use workers::{Workers, pump_until_failure};

/// Says why a program cannot run on packets, or stopped.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum PacketsError {
    /// It is a program of another type.
    #[error(
        "program `{program}` is of type `{prog_type}`; packets of a source go to `xdp` programs"
    )]
    Type {
        /// Which program.
        program: String,
        /// Its type.
        prog_type: ProgramType,
    },
    /// It runs behind a redirect only.
    #[error("program `{program}` is for the entries of a map, it gets no packets of a source")]
    Entry {
        /// Which program.
        program: String,
    },
    /// The program could not run.
    #[error("program `{program}` cannot run: {errno}")]
    Run {
        /// Which program.
        program: String,
        /// Why.
        errno: Errno,
        /// What was done before.
        stats: Box<Stats>,
    },
    /// A port failed.
    #[error(transparent)]
    Port(#[from] PumpError),
}

/// Tells whether programs of an attach type run behind redirects, in the entries of device and CPU maps.
pub(crate) fn is_of_entries(attach_type: Option<AttachType>) -> bool {
    matches!(attach_type, Some(AttachType::XdpDevmap | AttachType::XdpCpumap))
}

/// What a program did with the packets it was given.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
#[non_exhaustive]
pub struct ProgramStats {
    /// How often it ran.
    pub runs: u64,
    /// What all runs took together, in nanoseconds.
    pub ns: u64,
    /// Its verdicts, by [`Verdict::kind`].
    pub verdicts: [u64; Verdict::KINDS],
}

/// An XDP program that is ready to run on batches of frames.
#[derive(Debug)]
pub struct PacketRunner {
    /// The part of the program that finds its lookups. Goes before what it has the addresses of.
    lookups: Option<Code>,
    runner: Runner,
    frames: OnFrames,
    may_fragment: bool,
    stats: ProgramStats,
}

impl PacketRunner {
    /// Takes a program that is ready to run.
    ///
    /// # Errors
    /// When it is no XDP program, or one for the entries of device and CPU maps.
    pub fn new(runner: Runner) -> Result<Self, PacketsError> {
        let program = runner.program();
        let name = || program.name().to_owned();
        if program.prog_type() != ProgramType::Xdp {
            return Err(PacketsError::Type { program: name(), prog_type: program.prog_type() });
        }
        if is_of_entries(program.attach_type()) {
            return Err(PacketsError::Entry { program: name() });
        }
        let may_fragment = program.section().starts_with("xdp.frags");
        Ok(Self {
            lookups: runner.lookups(),
            runner,
            frames: OnFrames::default(),
            may_fragment,
            stats: ProgramStats::default(),
        })
    }

    /// Returns the program.
    #[must_use]
    pub fn runner(&self) -> &Runner {
        &self.runner
    }

    /// Returns what it did so far.
    #[must_use]
    pub fn stats(&self) -> &ProgramStats {
        &self.stats
    }

    /// Says when what the program looks up is fetched from memory for a whole batch before it runs.
    pub fn look_ahead(&mut self, when: LookAhead) {
        self.frames.trial = Trial::new(when);
    }

    /// Runs the program on each frame of a batch, and notes its verdicts. Programs in the entries of
    /// CPU maps run in the same thread.
    ///
    /// # Errors
    /// With [`Errno::EBUSY`] when the process has links of another directory, or the thread can
    /// have no slot. The frames are as they were then, and their verdicts too.
    pub fn run(&mut self, batch: &mut Batch, verdicts: &mut Verdicts) -> Result<(), Errno> {
        self.split().run(batch, verdicts, None)
    }

    /// What runs, and what it changes.
    fn split(&mut self) -> Running<'_> {
        let Self { lookups, runner, frames, may_fragment, stats } = self;
        Running { lookups: lookups.as_ref(), runner, frames, may_fragment: *may_fragment, stats }
    }

    /// Moves the frames of a source through the program to the outputs, until the source ends or
    /// `until` says so.
    ///
    /// # Errors
    /// When a port fails, or the program cannot run, with what was done before.
    pub fn pump(
        &mut self,
        source: &mut dyn Source,
        outputs: &mut Outputs,
        until: &Until<'_>,
    ) -> Result<Stats, PacketsError> {
        let mut running = self.split();
        let with = running.runner.with();
        let run = |batch: &mut _, verdicts: &mut _, workers: &mut Workers<'_, '_, '_>| {
            running.run(batch, verdicts, Some(workers))
        };
        let (stats, failed) = pump_until_failure(source, outputs, until, with, run)?;
        match failed {
            None => Ok(stats),
            Some(errno) => {
                let program = self.runner.program().name().to_owned();
                Err(PacketsError::Run { program, errno, stats: Box::new(stats) })
            }
        }
    }
}

/// A [`PacketRunner`] that runs.
struct Running<'a> {
    lookups: Option<&'a Code>,
    runner: &'a Runner,
    frames: &'a mut OnFrames,
    may_fragment: bool,
    stats: &'a mut ProgramStats,
}

impl Running<'_> {
    fn run(
        &mut self,
        batch: &mut Batch,
        verdicts: &mut Verdicts,
        workers: Option<&mut Workers<'_, '_, '_>>,
    ) -> Result<(), Errno> {
        let Self { lookups, runner, frames, may_fragment, stats } = self;
        frames.begin(batch);
        let started = Instant::now();
        let (ahead, is_compared) =
            lookups.map_or((false, false), |_| frames.trial.begin(batch.len()));
        runner.enter(|program| {
            if let Some(part) = lookups.filter(|_| ahead) {
                // SAFETY: it is a part of the program, which is an XDP program (checked when the
                // runner was made), and the runner has its maps.
                unsafe { frames.look_ahead(batch, *may_fragment, part.entry()) };
            }
            let first = (0, *may_fragment);
            match program.entry() {
                Some(entry) => {
                    // SAFETY: the program is an XDP program (checked when the runner was made), and
                    // this is the context of one, pointed at a frame.
                    let run = |ctx| Some(unsafe { entry(ctx) } as u32);
                    // SAFETY: that runs on this thread, and the runner has the program's maps.
                    unsafe { frames.each(batch, verdicts, first, run, || true) };
                }
                None => {
                    // SAFETY: as above.
                    let run = |ctx| unsafe { program.run(ctx) };
                    // SAFETY: as above.
                    unsafe { frames.each(batch, verdicts, first, run, || true) };
                }
            }
        })?;
        if is_compared {
            frames.trial.end(nanoseconds(started), batch.len());
        }
        // What programs of entries say is not this program's.
        for (count, more) in stats.verdicts.iter_mut().zip(verdicts.counts()) {
            *count += more;
        }
        frames.run_entries(runner.with(), batch, verdicts, workers)?;
        stats.runs += batch.len() as u64;
        stats.ns += nanoseconds(started);
        Ok(())
    }
}

/// Counts the nanoseconds since then.
pub(crate) fn nanoseconds(since: Instant) -> u64 {
    u64::try_from(since.elapsed().as_nanos()).unwrap_or(u64::MAX)
}
