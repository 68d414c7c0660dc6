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
//! in the entries of device and CPU maps run on the frame then, before it is sent, and may drop it;
//! not so for broadcasts.

use std::ops::ControlFlow;
use std::time::Instant;

use skep_isa::{AttachType, ProgramType};
use skep_maps::Map;
use skep_net::port::{
    Batch, Context, Outputs, PumpError, Redirect, Source, Stats, Target, Until, Verdict, Verdicts,
    pump,
};

use crate::test_run::{Entered, Errno, Runner};

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
        if matches!(program.attach_type(), Some(AttachType::XdpDevmap | AttachType::XdpCpumap)) {
            return Err(PacketsError::Entry { program: name() });
        }
        let may_fragment = program.section().starts_with("xdp.frags");
        Ok(Self {
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

    /// Runs the program on each frame of a batch, and notes its verdicts.
    ///
    /// # Errors
    /// With [`Errno::EBUSY`] when the process has links of another directory, or the thread can
    /// have no slot. The frames are as they were then, and their verdicts too.
    pub fn run(&mut self, batch: &mut Batch, verdicts: &mut Verdicts) -> Result<(), Errno> {
        let Self { runner, frames, may_fragment, stats } = self;
        frames.begin();
        let started = Instant::now();
        runner.enter(|program| {
            for index in 0..batch.len() {
                // SAFETY: the program is an XDP program (checked when the runner was made), and
                // this is the context of one, pointed at a frame.
                let run = |ctx| unsafe { program.run(ctx) };
                // SAFETY: that runs on this thread, and the runner has the program's maps.
                let verdict = unsafe { frames.one(batch, verdicts, index, *may_fragment, run) };
                if let Some(count) = stats.verdicts.get_mut(verdict.kind()) {
                    *count += 1;
                }
            }
        })?;
        frames.run_entries(runner, batch, verdicts)?;
        stats.runs += batch.len() as u64;
        stats.ns += u64::try_from(started.elapsed().as_nanos()).unwrap_or(u64::MAX);
        Ok(())
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
        let mut failed = None;
        let stats =
            pump(source, outputs, until, |batch, verdicts| match self.run(batch, verdicts) {
                Ok(()) => ControlFlow::Continue(()),
                Err(errno) => {
                    failed = Some(errno);
                    ControlFlow::Break(())
                }
            })?;
        match failed {
            None => Ok(stats),
            Some(errno) => {
                let program = self.runner.program().name().to_owned();
                Err(PacketsError::Run { program, errno, stats: Box::new(stats) })
            }
        }
    }
}

/// Runs programs on frames of batches, and finds where these are redirected to.
#[derive(Debug, Default)]
pub(crate) struct OnFrames {
    context: Context,
    broadcasts: Broadcasts,
    entries: Entries,
}

impl OnFrames {
    /// Begins another batch.
    pub(crate) fn begin(&mut self) {
        self.broadcasts.begin();
        self.entries.pending.clear();
    }

    /// Runs the programs of the entries that frames of the batch are redirected to.
    fn run_entries(
        &mut self,
        runner: &Runner,
        batch: &mut Batch,
        verdicts: &mut Verdicts,
    ) -> Result<(), Errno> {
        match self.entries.pending.is_empty() {
            true => Ok(()),
            false => self.entries.run_pending(runner, &mut self.context, batch, verdicts),
        }
    }

    /// Runs something on one frame, and notes its verdict: what `run` returned, or `XDP_ABORTED`
    /// where that is nothing.
    ///
    /// # Safety
    /// `run` runs an XDP program with the context that it is given, on this thread, and the
    /// program's maps are still there when it returns.
    #[inline]
    pub(crate) unsafe fn one(
        &mut self,
        batch: &mut Batch,
        verdicts: &mut Verdicts,
        index: usize,
        may_fragment: bool,
        run: impl FnOnce(*mut u8) -> Option<u32>,
    ) -> Verdict {
        let Self { context, broadcasts, entries } = self;
        let raw = context.with(batch, index, may_fragment, run).flatten().unwrap_or_default();
        let mut target = Target::default();
        if raw == Verdict::Redirect(target).kind() as u32 {
            // SAFETY: the caller's promise.
            match unsafe { context.redirect() } {
                Some(Redirect::To(to)) => {
                    target = to;
                    if let Some(id) = context.entry_program() {
                        entries.pending.push((index, id, target));
                    }
                }
                Some(Redirect::Broadcast { map, exclude_ingress }) => {
                    let port = batch.meta(index).map_or(0, |meta| meta.port);
                    let without = exclude_ingress.then_some(port);
                    let mut to = broadcasts.of(map).filter(|port| Some(*port) != without);
                    target = Target::Port(to.next().unwrap_or_default());
                    to.for_each(|port| verdicts.copy(index, Target::Port(port)));
                }
                None => {}
            }
        }
        let verdict = Verdict::from_raw(raw, target);
        verdicts.set(index, verdict);
        verdict
    }
}

/// Runs the program on one frame; what it returned, or 0 (`XDP_ABORTED`) when it failed.
#[inline]
fn run_one(
    program: Entered<'_>,
    context: &mut Context,
    batch: &mut Batch,
    index: usize,
    may_fragment: bool,
) -> u32 {
    // SAFETY: the program is an XDP program (checked in `PacketRunner::new` and `run_entry`), and
    // this is the context of one, pointed at a frame.
    let run = |ctx| unsafe { program.run(ctx) };
    context.with(batch, index, may_fragment, run).flatten().unwrap_or_default()
}

/// Programs of the entries of device and CPU maps.
#[derive(Debug, Default)]
struct Entries {
    /// Those that were needed so far, by their ids. One that cannot be opened is kept as such.
    runners: Vec<(u32, Option<Runner>)>,
    /// Frames of the batch at hand, with the programs that they go through, and where to.
    pending: Vec<(usize, u32, Target)>,
}

impl Entries {
    /// Runs the programs of the entries that frames are redirected to, after those that redirected
    /// them: a program is opened outside of all runs, which somebody with another directory may be
    /// waiting for.
    #[cold]
    fn run_pending(
        &mut self,
        runner: &Runner,
        context: &mut Context,
        batch: &mut Batch,
        verdicts: &mut Verdicts,
    ) -> Result<(), Errno> {
        let Self { runners, pending } = self;
        for (_, id, _) in &*pending {
            if !runners.iter().any(|(known, _)| known == id) {
                runners.push((*id, runner.open_beside(*id)));
            }
        }
        runner.enter(|entered| {
            for (index, id, target) in pending.drain(..) {
                let found = runners.iter().find(|(known, _)| *known == id);
                let found = found.and_then(|(_, found)| found.as_ref());
                let ran = found
                    .and_then(|found| Some((found, found.enter_with(runner, entered)?)))
                    .and_then(|found| run_entry(found, context, (batch, index), target));
                verdicts.set(index, ran.unwrap_or(Verdict::Aborted));
            }
        })
    }
}

/// Runs the program of an entry on a frame; `None` when it is for entries of another kind. A frame
/// that passes goes to the target; from a CPU map it may be redirected again.
fn run_entry(
    (runner, program): (&Runner, Entered<'_>),
    context: &mut Context,
    (batch, index): (&mut Batch, usize),
    target: Target,
) -> Option<Verdict> {
    let (wanted, egress) = match target {
        Target::Port(port) => (AttachType::XdpDevmap, port),
        _ => (AttachType::XdpCpumap, 0),
    };
    let of = runner.program();
    if of.prog_type() != ProgramType::Xdp || of.attach_type() != Some(wanted) {
        return None;
    }
    context.set_egress(egress);
    let raw = run_one(program, context, batch, index, of.section().starts_with("xdp.frags"));
    context.set_egress(0);
    match Verdict::from_raw(raw, target) {
        Verdict::Pass => Some(Verdict::Redirect(target)),
        Verdict::Drop => Some(Verdict::Drop),
        Verdict::Redirect(_) if wanted == AttachType::XdpCpumap => {
            // SAFETY: the program ran on this thread just now, and its runner has its maps.
            match unsafe { context.redirect() } {
                Some(Redirect::To(target)) => Some(Verdict::Redirect(target)),
                _ => None,
            }
        }
        _ => None,
    }
}

/// The devices of maps that programs broadcast to, read once a batch.
#[derive(Debug, Default)]
struct Broadcasts {
    /// Maps by number, and whether their devices are those of this batch.
    maps: Vec<(u32, bool, Vec<u32>)>,
}

impl Broadcasts {
    fn begin(&mut self) {
        self.maps.iter_mut().for_each(|(_, is_new, _)| *is_new = false);
    }

    /// Returns the devices in a map.
    fn of(&mut self, map: &Map) -> impl Iterator<Item = u32> {
        let known = self.maps.iter().position(|(id, ..)| *id == map.id());
        let at = known.unwrap_or_else(|| {
            self.maps.push((map.id(), false, Vec::new()));
            self.maps.len() - 1
        });
        let devices = self.maps.get_mut(at).map(|(_, is_new, devices)| {
            if !std::mem::replace(is_new, true) {
                read_devices(map, devices);
            }
            devices
        });
        devices.into_iter().flat_map(|devices| devices.iter().copied())
    }
}

/// Reads the interface numbers of a device map.
fn read_devices(map: &Map, devices: &mut Vec<u32>) {
    devices.clear();
    let mut key = None;
    let mut value = [0; 8];
    let room = map.user_value_size().min(value.len());
    // At most as many as there are entries, also if the map changes meanwhile.
    for _ in 0..=map.def().max_entries {
        let Ok(next) = map.next_key(key.as_deref()) else { return };
        let found = map.lookup_into(&next, value.get_mut(..room).unwrap_or_default(), 0);
        let device = value.first_chunk().map_or(0, |bytes| u32::from_ne_bytes(*bytes));
        if found.is_ok() && device != 0 {
            devices.push(device);
        }
        key = Some(next);
    }
}
