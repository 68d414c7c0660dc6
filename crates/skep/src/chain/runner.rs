//! Running chains: a graph with its programs, open and compiled, and what a thread counts.

use std::cell::RefCell;
use std::ops::ControlFlow;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::sync::{Arc, OnceLock};
use std::time::{Duration, Instant};

use skep_helpers::clock;
use skep_isa::{AttachType, ProgramType};
use skep_maps::{Access, Map, slots};
use skep_net::chain::swap::{Current, Reader};
use skep_net::chain::{Graph, NodeId, Stats};
use skep_net::packet::View;
use skep_net::port::{self, Batch, Outputs, Source, Until, Verdicts, pump};
use skep_net::test_run::{self, Errno, Input, Outcome, Program as RunOnce};
use skep_runtime::compile;
use skep_runtime::directory;
use skep_runtime::prepare::expect_bad_loads;
use skep_runtime::tail::{Form, TailCalls};
use skep_store::chain::ChainFile;
use skep_store::dir::{Dir, Kind};
use skep_store::prog::{ProgramFile, WithMaps};
use skep_vm::chain::counters::Layout;
use skep_vm::chain::{Count, Exhausted, Interpreted, Plan, Step, To, Unit};

use super::explain::{Explained, Seen};
use super::{ChainError, Result, convert};
use crate::packets::OnFrames;
use crate::test_run::{Engine, RunnerError, Slots};

/// A program of a chain, open with its maps.
struct Part {
    calls: Option<Box<TailCalls>>,
    file: ProgramFile,
    maps: Vec<Arc<Map>>,
}

impl Part {
    fn open(dir: &Dir, id: u32, engine: Engine) -> Result<Self> {
        let file = ProgramFile::open(dir, id)?;
        let name = || file.program().name().to_owned();
        let open =
            |id: &u32| Map::open(&dir.object(Kind::Map, *id), Access::ReadWrite).map(Arc::new);
        let maps: Vec<_> = file
            .program()
            .maps()
            .iter()
            .map(open)
            .collect::<Result<_, _>>()
            .map_err(RunnerError::Slots)?;
        expect_bad_loads(file.program())
            .map_err(|source| RunnerError::Loads { program: name(), source })?;
        let form = match engine {
            Engine::Jit => Form::Code,
            Engine::Interp => Form::Interp,
        };
        let calls = TailCalls::of(
            file.program()
                .with_maps(&maps)
                .map_err(|source| RunnerError::Maps { program: name(), source })?,
            form,
            crate::helper,
        );
        Ok(Self { calls, file, maps })
    }

    fn verified(&self) -> Result<WithMaps<'_>> {
        let program = self.file.program();
        let name = || program.name().to_owned();
        let with = program.with_maps(&self.maps);
        Ok(with.map_err(|source| RunnerError::Maps { program: name(), source })?)
    }
}

enum Code {
    Jit(Unit),
    Interp(Interpreted),
}

/// A graph that has programs, ready to run.
struct Ready {
    /// Goes before what it has the addresses of.
    code: Code,
    plan: Plan,
    order: Vec<NodeId>,
    parts: Vec<Part>,
}

/// A graph at one revision. Not changed any more.
pub(super) struct Compiled {
    graph: Graph,
    ready: Option<Ready>,
    prog_type: ProgramType,
}

impl Compiled {
    fn new(dir: &Dir, file: &ChainFile, engine: Engine, count: Count) -> Result<Self> {
        let spec = file.read()?;
        let prog_type = spec.prog_type;
        let graph = convert::to_graph(spec)?;
        let ready = match graph.plan() {
            Some((plan, order)) => Some(Ready::new(dir, &graph, plan, order, engine, count)?),
            None => None,
        };
        Ok(Self { graph, ready, prog_type })
    }
}

impl Ready {
    fn new(
        dir: &Dir,
        graph: &Graph,
        plan: Plan,
        order: Vec<NodeId>,
        engine: Engine,
        count: Count,
    ) -> Result<Self> {
        let ids = order.iter().filter_map(|id| graph.node(*id)).map(|n| n.program.id);
        let parts = ids.map(|id| Part::open(dir, id, engine)).collect::<Result<Vec<_>>>()?;
        let code = match engine {
            Engine::Jit => {
                let with = parts
                    .iter()
                    .map(|p| Ok((p.verified()?, p.calls.as_deref())))
                    .collect::<Result<Vec<_>>>()?;
                Code::Jit(compile::chain(&plan, &with, crate::helper, count)?)
            }
            Engine::Interp => {
                let programs = parts
                    .iter()
                    .map(|p| {
                        let program = || p.file.program().name().to_owned();
                        let with = p.verified()?;
                        compile::interpretable(with, p.calls.as_deref(), crate::helper)
                            .map_err(|source| RunnerError::Interp { program: program(), source })
                            .map_err(ChainError::from)
                    })
                    .collect::<Result<Vec<_>>>()?;
                let prog_type =
                    parts.first().map_or(ProgramType::Xdp, |p| p.file.program().prog_type());
                let options = compile::chain_options(prog_type, count);
                let chain = Interpreted::new(plan.clone(), programs, options);
                Code::Interp(chain.map_err(super::CompileError::from)?)
            }
        };
        Ok(Self { code, plan, order, parts })
    }

    /// Runs the chain once.
    ///
    /// # Safety
    /// `ctx` is the kind of context that the programs were verified for.
    unsafe fn run(&self, ctx: *mut u8, counters: &[AtomicU64]) -> Result<u32, Errno> {
        match &self.code {
            // SAFETY: the caller's promise; it was compiled from verified programs.
            Code::Jit(unit) => Ok(unsafe { unit.run(ctx, counters) }),
            // SAFETY: the caller's promise; it was made from verified programs.
            Code::Interp(chain) => unsafe { chain.run(ctx, counters) }.map_err(|_| Errno::EIO),
        }
    }
}

/// Where a chain comes from; shared by the threads that run it.
struct Origins {
    dir: Dir,
    file: Arc<ChainFile>,
    engine: Engine,
    count: Count,
    slots: Slots,
    /// Length of the file when it was read last.
    length: AtomicU64,
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
    counters: Vec<AtomicU64>,
    /// What was counted of earlier revisions.
    before: Stats,
    frames: OnFrames,
    /// When this runner looked last whether the chain was changed.
    looked: Instant,
    /// Why the last change could not be taken over.
    stale: Option<ChainError>,
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
        file: &Arc<ChainFile>,
        engine: Engine,
        count: Count,
    ) -> Result<Self> {
        skep_runtime::memory::guard();
        let slots = Slots::open(dir)?;
        // Before it is read: what comes between is another revision.
        let length = AtomicU64::new(file.length()?);
        let current = Arc::new(Current::new(Compiled::new(dir, file, engine, count)?));
        let (dir, file) = (dir.clone(), Arc::clone(file));
        Ok(Self::of(Arc::new(Origins { dir, file, engine, count, slots, length, current })))
    }

    fn of(from: Arc<Origins>) -> Self {
        let mut reader = Current::reader(&from.current);
        let counted = Arc::clone(reader.get());
        let counters = counters(&counted);
        Self {
            from,
            reader,
            counted,
            counters,
            before: Stats::default(),
            frames: OnFrames::default(),
            looked: Instant::now(),
            stale: None,
        }
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
        let length = from.file.length()?;
        if from.length.swap(length, Relaxed) == length {
            return Ok(false);
        }
        from.current.publish(Compiled::new(&from.dir, &from.file, from.engine, from.count)?);
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
        add(&mut self.before, &self.counted, &self.counters, self.from.engine);
        self.counted = Arc::clone(self.reader.get());
        self.counters = counters(&self.counted);
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
            counters: &self.counters,
            slots: &self.from.slots,
            seen: None,
        };
        let done = test_run::test_run(&once, input);
        done.unwrap_or(Err(Errno::ENOTSUPP)).map_err(ChainError::TestRun)
    }

    /// Runs XDP programs on the frames of a batch, where they lie, and notes their verdicts. Each
    /// frame sees one revision of the chain.
    ///
    /// # Errors
    /// When the chain is of another type, the thread can have no slot, or the process has links of
    /// another directory.
    pub fn run(&mut self, batch: &mut Batch, verdicts: &mut Verdicts) -> Result<()> {
        if self.counted.prog_type != ProgramType::Xdp {
            return Err(ChainError::TestRun(Errno::ENOTSUPP));
        }
        let from = Arc::clone(&self.from);
        let _directory = directory::use_for_run(&from.slots.table, &from.slots.path)
            .map_err(RunnerError::Directory)?;
        self.frames.begin();
        let slot = slots::enter();
        if slot.is_refused() {
            slots::exit(slot);
            return Err(ChainError::TestRun(Errno::EBUSY));
        }
        // Of the revision at this address; finding out looks at its nodes.
        let mut fragments = (std::ptr::null(), false);
        for index in 0..batch.len() {
            self.update();
            let (compiled, counters) = (&self.counted, &self.counters);
            let run = |ctx| match &compiled.ready {
                // SAFETY: the context is that of an XDP program, which the programs are.
                Some(ready) => unsafe { ready.run(ctx, counters) }.ok(),
                None => Some(compiled.graph.empty_verdict()),
            };
            if fragments.0 != Arc::as_ptr(compiled) {
                fragments = (Arc::as_ptr(compiled), compiled.graph.takes_fragments());
            }
            let may_fragment = fragments.1;
            // SAFETY: that runs on this thread, and the compiled chain has the programs' maps.
            unsafe { self.frames.one(batch, verdicts, index, may_fragment, run) };
        }
        slots::exit(slot);
        Ok(())
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
        let mut failed = None;
        let stats = pump(source, outputs, until, |batch, verdicts| {
            if self.looked.elapsed() >= LOOK {
                self.looked = Instant::now();
                self.stale = self.refresh().err().or(self.stale.take());
            }
            match self.run(batch, verdicts) {
                Ok(()) => ControlFlow::Continue(()),
                Err(error) => {
                    failed = Some(error);
                    ControlFlow::Break(())
                }
            }
        })?;
        match failed {
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
        add(&mut all, &self.counted, &self.counters, self.from.engine);
        all
    }

    /// Runs the chain on one input, one program at a time, and tells which way it went and what
    /// each program did to the packet. Nothing is counted.
    ///
    /// # Errors
    /// As [`ChainRunner::test_run`], and when a program cannot be compiled by itself.
    pub fn explain(&mut self, input: &Input<'_>) -> Result<Explained> {
        self.update();
        let alone = Plan { steps: vec![Step::default()], budget: 1, exhausted: Exhausted::Stop };
        let parts = self.counted.ready.as_ref().map(|r| r.parts.as_slice()).unwrap_or_default();
        let units = parts
            .iter()
            .map(|p| {
                let with = [(p.verified()?, p.calls.as_deref())];
                Ok(compile::chain(&alone, &with, crate::helper, Count::Off)?)
            })
            .collect::<Result<Vec<_>>>()?;
        let seen = RefCell::new(Vec::new());
        let once = Once {
            compiled: &self.counted,
            counters: &[],
            slots: &self.from.slots,
            seen: Some((&units, &seen)),
        };
        let done = test_run::test_run(&once, input).unwrap_or(Err(Errno::ENOTSUPP));
        let outcome = done.map_err(ChainError::TestRun)?;
        Ok(Explained::new(&self.counted.graph, seen.into_inner(), outcome))
    }
}

/// Makes the counters of a compiled chain.
fn counters(compiled: &Compiled) -> Vec<AtomicU64> {
    let words = compiled.ready.as_ref().map_or(0, |r| Layout::of(&r.plan).words());
    (0..words).map(|_| AtomicU64::new(0)).collect()
}

/// Adds counters to what was counted before.
fn add(stats: &mut Stats, compiled: &Compiled, counters: &[AtomicU64], engine: Engine) {
    static RATE: OnceLock<u64> = OnceLock::new();
    let Some(ready) = &compiled.ready else { return };
    let ns = |ticks: u64| match engine {
        Engine::Jit if ticks > 0 => {
            clock::scale(ticks, *RATE.get_or_init(|| clock::rate(Duration::from_millis(2))))
        }
        _ => ticks,
    };
    let counter = |n: usize| counters.get(n).map_or(0, |c| c.load(Relaxed));
    stats.add(&compiled.graph, &ready.plan, &ready.order, counter, ns);
}

/// The units of single programs, and what was seen of each run.
type Watched<'a> = (&'a [Unit], &'a RefCell<Vec<Seen>>);

/// A chain as a program for a test run.
struct Once<'a> {
    compiled: &'a Compiled,
    counters: &'a [AtomicU64],
    slots: &'a Slots,
    /// Runs one program at a time.
    seen: Option<Watched<'a>>,
}

impl Once<'_> {
    /// Runs the chain once.
    ///
    /// # Safety
    /// As [`RunOnce::run`].
    unsafe fn one(&self, ctx: *mut u8) -> Result<u32, Errno> {
        let Some(ready) = &self.compiled.ready else {
            return Ok(self.compiled.graph.empty_verdict());
        };
        let Some((units, seen)) = self.seen else {
            // SAFETY: the caller's promise.
            return unsafe { ready.run(ctx, self.counters) };
        };
        // SAFETY: packet programs alone get here, so the context is that of a packet.
        let view = unsafe { View::of(ctx as u64) };
        let packet = || {
            let (from, to) = (view.data_meta(), view.end());
            let bytes = (from..to).map(|at| {
                // SAFETY: metadata, packet and fragments are one run of bytes.
                unsafe { (at as *const u8).read_volatile() }
            });
            (from, bytes.collect::<Vec<u8>>())
        };
        let mut left = ready.plan.budget;
        let mut taken: Vec<(usize, usize)> = Vec::new();
        let mut step = 0;
        loop {
            let (Some(unit), Some(at), Some(node)) =
                (units.get(step), ready.plan.steps.get(step), ready.order.get(step))
            else {
                return Err(Errno::EIO);
            };
            let before = packet();
            // SAFETY: the caller's promise; it was compiled from a verified program.
            let verdict = unsafe { unit.run(ctx, &[]) };
            left -= 1;
            let found = at.edge(verdict).and_then(|n| Some((n, at.edges.get(n)?)));
            let times = |n: usize| taken.iter().filter(|t| **t == (step, n)).count();
            let bound =
                found.is_some_and(|(n, e)| e.bound.is_some_and(|bound| times(n) >= bound as usize));
            let leads = found.map_or(To::Keep, |(_, e)| e.to);
            let budget = matches!(leads, To::Step(_)) && !bound && left == 0;
            let after = packet();
            let refused = bound || budget;
            seen.borrow_mut().push(Seen { node: *node, verdict, refused, before, after });
            match leads {
                To::End(end) => return Ok(end),
                To::Step(next) if !refused => {
                    taken.extend(found.map(|(n, _)| (step, n)));
                    step = next;
                }
                To::Step(_) if budget && ready.plan.exhausted == Exhausted::Abort => return Ok(0),
                _ => return Ok(verdict),
            }
        }
    }
}

// SAFETY: all programs of a chain were verified for its type.
unsafe impl RunOnce for Once<'_> {
    fn prog_type(&self) -> ProgramType {
        self.compiled.prog_type
    }

    fn attach_type(&self) -> Option<AttachType> {
        self.compiled.graph.nodes().next().and_then(|(_, n)| n.program.attach_type)
    }

    fn section(&self) -> &str {
        if self.compiled.graph.takes_fragments() { "xdp.frags" } else { "" }
    }

    unsafe fn run(&self, ctx: *mut u8, repeat: u32) -> Result<(u32, u64), Errno> {
        let repeat = repeat.max(1);
        let _directory = directory::use_for_run(&self.slots.table, &self.slots.path)
            .map_err(|_| Errno::EBUSY)?;
        // The thread's first slot is not what is measured.
        slots::exit(slots::enter());
        let began = Instant::now();
        let mut r0 = 0;
        for _ in 0..repeat {
            let entered = slots::enter();
            if entered.is_refused() {
                slots::exit(entered);
                return Err(Errno::EBUSY);
            }
            // SAFETY: the caller's promise.
            let done = unsafe { self.one(ctx) };
            slots::exit(entered);
            r0 = done?;
        }
        let ns = began.elapsed().as_nanos() / u128::from(repeat);
        Ok((r0, u64::try_from(ns).unwrap_or(u64::MAX)))
    }
}
