//! Running chains on one thread: on test packets, and on frames of batches.

use std::cell::RefCell;
use std::num::NonZeroU64;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::time::{Duration, Instant};

use skep_isa::ProgramType;
use skep_maps::slots;
use skep_net::chain::swap::{Current, Reader};
use skep_net::chain::{Graph, Stats};
use skep_net::port::{self, Batch, Outputs, Source, Until, Verdicts};
use skep_net::test_run::{self, Errno, Input, Outcome};
use skep_runtime::directory;
use skep_store::dir::Dir;
use skep_vm::chain::Count;

use super::compiled::{Compiled, Origin};
use super::counted::{self, Memory};
use super::explain::{Explained, Recorder};
use super::once::Once;
use super::step::{Look, Steps};
use super::watch::{Watch, Watcher};
use super::{ChainError, Result};
use crate::packets::{
    LookAhead, OnFrames, PacketsError, Trial, Workers, is_of_entries, nanoseconds,
    pump_until_failure,
};
use crate::test_run::{Engine, RunnerError, Slots};

/// Where a chain comes from; shared by the threads that run it.
struct Origins {
    dir: Dir,
    origin: Arc<dyn Origin>,
    engine: Engine,
    count: Count,
    slots: Slots,
    /// The version that was read last.
    version: AtomicU64,
    current: Arc<Current<Compiled>>,
}

/// How long a chain that is pumped goes on before somebody looks whether it was changed.
const LOOK: Duration = Duration::from_millis(1);

/// A chain ready to run on one thread, with what this thread counts.
///
/// [`ChainRunner::for_other_thread`] makes another one of the same compiled chain. Packets see the
/// chain as it was when somebody called [`ChainRunner::refresh`] last, on whichever thread.
pub struct ChainRunner {
    from: Arc<Origins>,
    reader: Reader<Compiled>,
    /// What `counters` belong to.
    counted: Arc<Compiled>,
    counters: Memory,
    /// What was counted of earlier revisions.
    before: Stats,
    frames: OnFrames,
    /// When this runner looked last whether the chain was changed.
    looked: Instant,
    /// Why the last change could not be taken over.
    stale: Option<ChainError>,
    watcher: Option<Watcher>,
}

impl std::fmt::Debug for ChainRunner {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let revision = self.counted.graph.revision();
        f.debug_struct("ChainRunner").field("revision", &revision).finish_non_exhaustive()
    }
}

impl ChainRunner {
    pub(super) fn open(
        dir: &Dir,
        origin: Arc<dyn Origin>,
        engine: Engine,
        count: Count,
    ) -> Result<Self> {
        skep_runtime::memory::guard();
        let slots = Slots::open(dir)?;
        // Before it is read: what comes between is another revision.
        let version = AtomicU64::new(origin.version()?);
        let current = Arc::new(Current::new(Compiled::new(dir, &*origin, engine, count)?));
        let dir = dir.clone();
        Ok(Self::of(Arc::new(Origins { dir, origin, engine, count, slots, version, current })))
    }

    fn of(from: Arc<Origins>) -> Self {
        let mut reader = Current::reader(&from.current);
        let counted = Arc::clone(reader.get());
        let counters = Memory::own(&counted);
        Self {
            from,
            reader,
            counted,
            counters,
            before: Stats::default(),
            frames: OnFrames::default(),
            looked: Instant::now(),
            stale: None,
            watcher: None,
        }
    }

    /// Shows what this runner counts to other processes ([`Chain::running`]).
    ///
    /// # Errors
    /// When there is no room for the counters in the skep directory.
    ///
    /// [`Chain::running`]: super::Chain::running
    pub fn publish(&mut self) -> Result<()> {
        let before = self.before.clone();
        self.keep_counts();
        match self.shared_counters() {
            Ok(counters) => self.counters = counters,
            Err(e) => {
                self.before = before;
                return Err(e);
            }
        }
        Ok(())
    }

    /// Shows every `every`-th packet of [`ChainRunner::run`] and [`ChainRunner::pump`], the first one
    /// at once, before and after each program that it comes to. Such a packet goes through the
    /// programs one at a time; it has the verdict that it would have, and is counted as others are.
    /// Another watch takes the place of this one.
    ///
    /// ```
    /// use std::num::NonZeroU64;
    /// use std::sync::mpsc::{Sender, channel};
    ///
    /// use skep::chain::{Chain, Glimpse, Place, Watch};
    /// use skep::isa::{Insn, ProgramType};
    /// use skep::object::RawProgram;
    /// use skep::port::generator::Generator;
    /// use skep::port::{Outputs, PortError, Until};
    ///
    /// struct Lengths(Sender<(u64, Option<u32>, usize)>);
    ///
    /// impl Watch for Lengths {
    ///     fn look(&mut self, seen: &Glimpse<'_>) -> Result<(), PortError> {
    ///         let _ = self.0.send((seen.number, seen.verdict, seen.frame.bytes.len()));
    ///         Ok(())
    ///     }
    /// }
    ///
    /// # fn main() -> Result<(), skep::Error> {
    /// let session = skep::Session::scratch()?;
    /// let insns = [Insn::mov64_imm(0, 2), Insn::exit()];
    /// let pass = session.load_instructions(&RawProgram::new("pass", ProgramType::Xdp, &insns), &[])?;
    /// let chain = Chain::create(&session, "fw", ProgramType::Xdp)?;
    /// chain.add(pass.program("pass")?, Place::First { on: Default::default() })?;
    /// let mut runner = chain.runner()?;
    /// let (to, seen) = channel();
    /// runner.watch(NonZeroU64::MIN.saturating_add(9), Lengths(to))?;
    /// let mut source = Generator::new(&[60]).packets(20);
    /// runner.pump(&mut source, &mut Outputs::new(), &Until::default())?;
    /// drop(runner);
    /// let all: Vec<_> = seen.iter().collect();
    /// assert_eq!(all, [(1, None, 60), (1, Some(2), 60), (11, None, 60), (11, Some(2), 60)]);
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// # Errors
    /// When a program cannot be compiled by itself.
    pub fn watch(&mut self, every: NonZeroU64, watch: impl Watch + 'static) -> Result<()> {
        self.update();
        let with = (self.from.engine, self.from.count);
        self.watcher = Some(Watcher::new(Box::new(watch), every, &self.counted, with)?);
        Ok(())
    }

    /// Says when what the first program looks up is fetched from memory for a whole batch before it
    /// runs.
    pub fn look_ahead(&mut self, when: LookAhead) {
        self.frames.trial = Trial::new(when);
    }

    /// Makes a runner for another thread, which shares the compiled chain and counts for itself.
    #[must_use]
    pub fn for_other_thread(&self) -> Self {
        Self::of(Arc::clone(&self.from))
    }

    /// Looks whether somebody changed the chain, and compiles it anew then, for all threads. To be
    /// called between batches. Tells whether there is another revision.
    ///
    /// # Errors
    /// When the chain cannot be read or compiled; then the old one goes on, until the next change.
    pub fn refresh(&mut self) -> Result<bool> {
        let from = &self.from;
        let version = from.origin.version()?;
        if from.version.swap(version, Relaxed) == version {
            return Ok(false);
        }
        from.current.publish(Compiled::new(&from.dir, &*from.origin, from.engine, from.count)?);
        Ok(true)
    }

    /// Takes the reason why the last change of the chain could not be taken over while it was
    /// pumped.
    pub fn take_stale(&mut self) -> Option<ChainError> {
        self.stale.take()
    }

    /// Returns the graph that runs now.
    pub fn graph(&mut self) -> &Graph {
        self.update();
        &self.counted.graph
    }

    /// Takes the current chain, and begins to count anew when it is another one.
    #[inline]
    fn update(&mut self) {
        if !Arc::ptr_eq(self.reader.get(), &self.counted) {
            self.replace();
        }
    }

    #[cold]
    fn replace(&mut self) {
        self.keep_counts();
        self.counted = Arc::clone(self.reader.get());
        self.counters = match &self.counters {
            Memory::Own(_) => Memory::own(&self.counted),
            // Without room for it, others do not see it any more; it is counted all the same.
            Memory::Shared(_) => self.shared_counters().unwrap_or_else(|e| {
                self.stale = Some(e);
                Memory::own(&self.counted)
            }),
        };
        let with = (self.from.engine, self.from.count);
        let watched = self.watcher.as_mut().map_or(Ok(()), |w| w.replace(&self.counted, with));
        self.stale = watched.err().or(self.stale.take());
    }

    /// Adds the counters to what was counted before; others take their place then.
    fn keep_counts(&mut self) {
        let rate = self.rate();
        counted::add(&mut self.before, &self.counted, &self.counters, rate);
    }

    fn shared_counters(&self) -> Result<Memory> {
        let Origins { dir, origin, .. } = &*self.from;
        let before = (&self.before, self.rate());
        Memory::shared(dir, &**origin, &self.counted, before, &self.counters)
    }

    fn rate(&self) -> u64 {
        counted::rate(self.from.engine, self.from.count)
    }

    /// Runs the chain as `BPF_PROG_TEST_RUN` would run a program.
    ///
    /// # Errors
    /// With the errno that the kernel's call fails with, as
    /// [`Runner::test_run`](crate::test_run::Runner::test_run).
    pub fn test_run(&mut self, input: &Input<'_>) -> Result<Outcome> {
        self.update();
        let once = Once {
            compiled: &self.counted,
            counters: self.counters.words(),
            slots: &self.from.slots,
            watched: None,
        };
        let done = test_run::test_run(&once, input);
        done.unwrap_or(Err(Errno::ENOTSUPP)).map_err(ChainError::TestRun)
    }

    /// Runs XDP programs on the frames of a batch, where they lie, and notes their verdicts. Each
    /// frame sees one revision of the chain. Programs in the entries of CPU maps run in the same
    /// thread.
    ///
    /// # Errors
    /// When the chain is of another type, the thread can have no slot, or the process has links of
    /// another directory. With the error of a watch, when all frames have their verdicts.
    pub fn run(&mut self, batch: &mut Batch, verdicts: &mut Verdicts) -> Result<()> {
        self.run_with(batch, verdicts, None)
    }

    fn run_with(
        &mut self,
        batch: &mut Batch,
        verdicts: &mut Verdicts,
        workers: Option<&mut Workers<'_, '_, '_>>,
    ) -> Result<()> {
        self.check_frames()?;
        let from = Arc::clone(&self.from);
        let directory = directory::use_for_run(&from.slots.table, &from.slots.path)
            .map_err(RunnerError::Directory)?;
        self.frames.begin(batch);
        let slot = slots::enter();
        if slot.is_refused() {
            slots::exit(slot);
            return Err(ChainError::TestRun(Errno::EBUSY));
        }
        self.update();
        let compared = self.fetch_lookups(batch);
        let mut next = 0;
        while next < batch.len() {
            self.update();
            next = self.run_revision(batch, verdicts, next);
        }
        if let Some(began) = compared {
            self.frames.trial.end(nanoseconds(began), batch.len());
        }
        slots::exit(slot);
        drop(directory);
        let with = (&from.slots, from.engine);
        self.frames.run_entries(with, batch, verdicts, workers).map_err(ChainError::TestRun)?;
        match self.watcher.as_mut().and_then(Watcher::take_failed) {
            Some(failed) => Err(ChainError::Watch(failed)),
            None => Ok(()),
        }
    }

    /// Fetches what the first program will look up, if it pays. Returns when that began, if it is to be
    /// found out on this batch.
    fn fetch_lookups(&mut self, batch: &mut Batch) -> Option<Instant> {
        let ready = self.counted.ready.as_ref().filter(|_| self.watcher.is_none())?;
        let part = ready.lookups.as_ref()?;
        let (ahead, is_compared) = self.frames.trial.begin(batch.len());
        let began = is_compared.then(Instant::now);
        if ahead {
            let may_fragment = self.counted.graph.takes_fragments();
            // SAFETY: it is a part of a program of the chain, which are XDP programs, and has its maps.
            unsafe { self.frames.look_ahead(batch, may_fragment, part.entry()) };
        }
        began
    }

    /// Runs the chain on frames from number `first` on, as long as there is no other revision; returns
    /// the number of the next frame. What is the same for all frames is looked up once.
    fn run_revision(&mut self, batch: &mut Batch, verdicts: &mut Verdicts, first: usize) -> usize {
        let Self { reader, counted: compiled, counters, frames, watcher, .. } = self;
        let (counters, may_fragment) = (counters.words(), compiled.graph.takes_fragments());
        let ready = compiled.ready.as_ref().filter(|_| watcher.is_none());
        if let Some(chain) = ready.and_then(|ready| ready.compiled(counters)) {
            let first = (first, may_fragment);
            // SAFETY: the context is that of an XDP program, which the programs are.
            let run = |ctx| Some(unsafe { chain.run(ctx) });
            // SAFETY: that runs on this thread, and the compiled chain has the programs' maps.
            return unsafe { frames.each(batch, verdicts, first, run, || reader.is_current()) };
        }
        for index in first..batch.len() {
            if !reader.is_current() {
                return index;
            }
            let watched = watcher.as_mut().and_then(|w| w.next(batch.frame(index)));
            let run = |ctx| match (&compiled.ready, watched) {
                (None, _) => Some(compiled.graph.empty_verdict()),
                // SAFETY: the context is that of an XDP program, which the programs are.
                (Some(ready), None) => unsafe { ready.run(ctx, counters) }.ok(),
                (Some(_), Some(watched)) => {
                    // SAFETY: as above.
                    unsafe { watched.run(ctx, &compiled.graph, counters) }.ok()
                }
            };
            // SAFETY: that runs on this thread, and the compiled chain has the programs' maps.
            unsafe { frames.one(batch, verdicts, index, may_fragment, run) };
        }
        batch.len()
    }

    /// Moves the frames of a source through the chain to the outputs, until the source ends or
    /// `until` says so. Changes of the chain are taken over between batches; one that cannot be is
    /// kept for [`ChainRunner::take_stale`].
    ///
    /// # Errors
    /// When a port fails, or the chain cannot run, with what was done before.
    pub fn pump(
        &mut self,
        source: &mut dyn Source,
        outputs: &mut Outputs,
        until: &Until<'_>,
    ) -> Result<port::Stats> {
        let from = Arc::clone(&self.from);
        let with = (&from.slots, from.engine);
        let run = |batch: &mut _, verdicts: &mut _, workers: &mut Workers<'_, '_, '_>| {
            if self.looked.elapsed() >= LOOK {
                self.looked = Instant::now();
                self.stale = self.refresh().err().or(self.stale.take());
            }
            self.run_with(batch, verdicts, Some(workers))
        };
        let (stats, failed) = pump_until_failure(source, outputs, until, with, run)?;
        let flushed = self.watcher.as_mut().map_or(Ok(()), Watcher::flush);
        match failed.or(flushed.err().map(ChainError::Watch)) {
            None => Ok(stats),
            Some(error) => {
                Err(ChainError::Stopped { source: Box::new(error), stats: Box::new(stats) })
            }
        }
    }

    /// Returns what this thread has counted, over all revisions.
    #[must_use]
    pub fn stats(&self) -> Stats {
        let mut all = self.before.clone();
        counted::add(&mut all, &self.counted, &self.counters, self.rate());
        all
    }

    /// Runs the chain on a frame of a batch as [`ChainRunner::run`] does, one program at a time, and
    /// tells which way it went and what each program did to the frame; of the outcome, `data_out` is
    /// the frame then. Nothing is counted, and nothing runs behind the chain's redirects.
    ///
    /// # Errors
    /// As [`ChainRunner::run`], and when a program cannot be compiled by itself, or there is no such
    /// frame.
    pub fn explain_frame(&mut self, batch: &mut Batch, index: usize) -> Result<Explained> {
        self.update();
        self.check_frames()?;
        let steps = Steps::new(&self.counted, Engine::Jit, Count::Off)?;
        let mut seen = Recorder::default();
        let from = Arc::clone(&self.from);
        let directory = directory::use_for_run(&from.slots.table, &from.slots.path)
            .map_err(RunnerError::Directory)?;
        let slot = slots::enter();
        if slot.is_refused() {
            slots::exit(slot);
            return Err(ChainError::TestRun(Errno::EBUSY));
        }
        let may_fragment = self.counted.graph.takes_fragments();
        let mut context = port::Context::new();
        // SAFETY: the context is that of an XDP program, which the programs are.
        let run = |ctx| unsafe { steps.run(ctx, &[], &mut seen) };
        let done = context.with(batch, index, may_fragment, run);
        slots::exit(slot);
        drop(directory);
        let retval = done.unwrap_or(Err(Errno::EINVAL)).map_err(ChainError::TestRun)?;
        let data_out = batch.frame(index).map(|frame| frame.bytes.to_vec());
        let outcome = Outcome { retval, data_out, ..Outcome::default() };
        Ok(Explained::new(&self.counted.graph, seen.seen, outcome))
    }

    /// Tells whether the programs run on frames of batches, or why not: they are of another type, or for
    /// the entries of maps.
    ///
    /// # Errors
    /// When they do not.
    pub fn check_frames(&self) -> Result<()> {
        let first = self.counted.graph.nodes().next().map(|(_, node)| &node.program);
        let prog_type = self.counted.prog_type;
        if prog_type != ProgramType::Xdp {
            let program = first.map(|p| p.name.clone()).unwrap_or_default();
            return Err(ChainError::Packets(PacketsError::Type { program, prog_type }));
        }
        match first {
            Some(program) if is_of_entries(program.attach_type) => {
                Err(ChainError::Packets(PacketsError::Entry { program: program.name.clone() }))
            }
            _ => Ok(()),
        }
    }

    /// Runs the chain on one input, one program at a time, and tells which way it went and what
    /// each program did to the packet. Nothing is counted.
    ///
    /// # Errors
    /// As [`ChainRunner::test_run`], and when a program cannot be compiled by itself.
    pub fn explain(&mut self, input: &Input<'_>) -> Result<Explained> {
        self.update();
        let steps = Steps::new(&self.counted, Engine::Jit, Count::Off)?;
        let mut seen = Recorder::default();
        let look = RefCell::new(&mut seen as &mut dyn Look);
        let once = Once {
            compiled: &self.counted,
            counters: &[],
            slots: &self.from.slots,
            watched: Some((&steps, &look)),
        };
        let done = test_run::test_run(&once, input).unwrap_or(Err(Errno::ENOTSUPP));
        let outcome = done.map_err(ChainError::TestRun)?;
        Ok(Explained::new(&self.counted.graph, seen.seen, outcome))
    }
}
