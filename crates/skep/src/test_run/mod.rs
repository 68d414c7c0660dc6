//! Runs programs outside any target, with the semantics of the kernel's `BPF_PROG_TEST_RUN`
//! (net/bpf/test_run.c).
//!
//! A [`Runner`] is one program of a loaded object, ready to run in this process;
//! [`Runner::test_run`] makes its context from [`Input`], runs it, and returns what the kernel
//! would copy out, or fails with the errno the kernel would return.
//!
//! ```no_run
//! use skep::load::Loader;
//! use skep::test_run::{Engine, Input, Runner};
//!
//! let object = skep::object::Object::parse(&std::fs::read("filter.bpf.o")?)?;
//! let scratch = skep::dir::Scratch::create()?;
//! let loaded = Loader::new(scratch.dir()).autoload_only("drop_short").load(&object)?;
//! let runner = Runner::new(scratch.dir(), &loaded, "drop_short", Engine::Jit)?;
//! let done = runner.test_run(&Input::data(&[0; 64]))?;
//! println!("retval {}, packet {:02x?}", done.retval, done.data_out);
//! if let Some(counts) = loaded.map("counts") {
//!     for element in counts.iter() {
//!         println!("{:?}", element?);
//!     }
//! }
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```
//!
//! Where the kernel has no test run (kprobes, tracepoints, perf events) or calls functions of its
//! own (fentry and its like), the context is what is given.

mod coverage;
mod plain;
mod printed;

pub use coverage::Coverage;
pub use printed::Printed;
pub use skep_net::test_run::{
    Cause, DEFAULT_BATCH, Errno, Input, LiveFrames, MAX_BATCH, Outcome, SIZES,
};

use std::path::PathBuf;
use std::sync::Arc;
use std::time::Instant;

use skep_isa::{AttachType, ProgramType as P};
use skep_maps::{Access, Map, SlotTable, slots};
use skep_vm::chain::Counting;
use skep_vm::{Code, CompileError, interp};

use crate::load::Loaded;
use skep_runtime::directory::{self, OtherDirectory};
use skep_runtime::prepare::NoHandler;
use skep_runtime::tail::{Form, TailCalls};
use skep_store::dir::{Dir, Kind};
use skep_store::prog::{OtherMap, Program, ProgramFile};

/// Tells how instructions are executed.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub enum Engine {
    /// As machine code.
    #[default]
    Jit,
    /// One by one.
    Interp,
}

/// Says why a program cannot be made ready.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum RunnerError {
    /// The object was loaded without it.
    #[error("program `{program}` was not loaded")]
    NotLoaded {
        /// Which program.
        program: String,
    },
    /// Its maps are not there any more; others are in their place.
    #[error("program `{program}` cannot be run: {source}")]
    Maps {
        /// Which program.
        program: String,
        /// Which map.
        source: OtherMap,
    },
    /// Loads that may find nothing cannot be watched.
    #[error("program `{program}` cannot be run: {source}")]
    Loads {
        /// Which program.
        program: String,
        /// Why.
        source: NoHandler,
    },
    /// It cannot be compiled.
    #[error("program `{program}` cannot be compiled: {source}")]
    Compile {
        /// Which program.
        program: String,
        /// Why.
        source: CompileError,
    },
    /// It cannot be interpreted.
    #[error("program `{program}` cannot be interpreted: {source}")]
    Interp {
        /// Which program.
        program: String,
        /// Why.
        source: interp::RunError,
    },
    /// The process has links of another directory.
    #[error(transparent)]
    Directory(#[from] OtherDirectory),
    /// The table of slots cannot be used.
    #[error(transparent)]
    Slots(#[from] skep_maps::MapError),
}

/// What a program became on this machine.
#[derive(Clone, Copy, Debug)]
pub struct MachineCode<'a> {
    /// The program's type.
    pub prog_type: P,
    /// Where it lies in this process.
    pub address: u64,
    /// The code.
    pub bytes: &'a [u8],
    /// Where each instruction's code begins.
    pub offsets: &'a [u32],
}

/// Names the helper that programs of a type find at an address of this process.
#[must_use]
pub fn helper_at(prog_type: P, address: u64) -> Option<&'static str> {
    let lies_there =
        |id| crate::helper(prog_type, id).is_some_and(|i| i.func as usize as u64 == address);
    skep_isa::helper::HELPERS.iter().find(|h| lies_there(h.id)).map(|h| h.name)
}

enum Compiled {
    Jit(Code),
    Interp(interp::Program),
}

/// A program on a thread that has its slot and the directory: [`Runner::enter`].
#[derive(Clone, Copy)]
pub(crate) struct Entered<'r>(&'r Compiled);

impl Entered<'_> {
    /// Returns the program as a function of its context; `None` when it is for the interpreter.
    #[inline]
    pub(crate) fn entry(&self) -> Option<unsafe extern "C" fn(*mut u8) -> u64> {
        match self.0 {
            Compiled::Jit(code) => Some(code.entry()),
            Compiled::Interp(_) => None,
        }
    }

    /// Runs the program once; `None` when the interpreter fails.
    ///
    /// # Safety
    /// As for [`skep_net::test_run::Program::run`].
    #[inline]
    pub(crate) unsafe fn run(self, ctx: *mut u8) -> Option<u32> {
        match self.0 {
            // SAFETY: the caller's promise; the code was compiled from a verified program.
            Compiled::Jit(code) => Some(unsafe { code.entry()(ctx) } as u32),
            Compiled::Interp(program) => {
                // SAFETY: the caller's promise; it was made from a verified program.
                unsafe { program.run([ctx as u64, 0, 0, 0, 0]) }.ok().map(|r0| r0 as u32)
            }
        }
    }
}

/// The slots of a directory, which a thread claims to run.
#[derive(Debug)]
pub(crate) struct Slots {
    pub(crate) table: Arc<SlotTable>,
    pub(crate) path: PathBuf,
}

impl Slots {
    /// Opens them, and makes sure that no link of another directory is in the way.
    pub(crate) fn open(dir: &Dir) -> Result<Self, RunnerError> {
        let table = SlotTable::open_or_create(dir.path())?;
        directory::check(&table, dir.path())?;
        Ok(Self { table, path: dir.path().to_owned() })
    }
}

/// A thread that has its slot, and the directory: [`Slots::enter`].
#[derive(Clone, Copy)]
pub(crate) struct OnSlot<'s>(&'s Slots);

impl Slots {
    /// Takes the directory and a slot for as long as `runs` takes, which runs programs as often as
    /// it likes. Waits as [`Runner::test_run`] does, and is waited for.
    ///
    /// # Errors
    /// With [`Errno::EBUSY`], as that.
    pub(crate) fn enter<R>(&self, runs: impl FnOnce(OnSlot<'_>) -> R) -> Result<R, Errno> {
        let _directory =
            directory::use_for_run(&self.table, &self.path).map_err(|_| Errno::EBUSY)?;
        let slot = slots::enter();
        let done = if slot.is_refused() { Err(Errno::EBUSY) } else { Ok(runs(OnSlot(self))) };
        slots::exit(slot);
        done
    }
}

/// A program ready to run. It keeps the compiled code and the open maps until it is dropped, but not
/// the process's directory: that is taken for each run ([`Runner::test_run`]).
pub struct Runner {
    program: Program,
    compiled: Compiled,
    /// Bytes of the context that the program, or one that tail calls lead to, may touch.
    ctx_size: usize,
    slots: Slots,
    /// The code has the addresses of these in it.
    _calls: Option<Box<TailCalls>>,
    maps: Vec<Arc<Map>>,
}

impl std::fmt::Debug for Runner {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Runner").field("program", &self.program.name()).finish_non_exhaustive()
    }
}

impl Runner {
    /// Makes a program of a loaded object ready. The directory is the one it was loaded into.
    ///
    /// # Errors
    /// When the program was not loaded, an engine cannot run it, or the process has links of another
    /// directory.
    pub fn new(
        dir: &Dir,
        loaded: &Loaded,
        program: &str,
        engine: Engine,
    ) -> Result<Self, RunnerError> {
        let found = loaded
            .program(program)
            .ok_or_else(|| RunnerError::NotLoaded { program: program.to_owned() })?;
        let slots = Slots::open(dir)?;
        Self::prepare(found.program().clone(), loaded.maps_of(found), slots, engine)
    }

    /// Makes a program ready that somebody loaded into a directory, with its maps.
    ///
    /// # Errors
    /// When a map cannot be opened, an engine cannot run the program, or the process has links of
    /// another directory.
    pub fn open(dir: &Dir, program: &Program, engine: Engine) -> Result<Self, RunnerError> {
        skep_runtime::memory::guard();
        let slots = Slots::open(dir)?;
        let open =
            |id: &u32| Map::open(&dir.object(Kind::Map, *id), Access::ReadWrite).map(Arc::new);
        let maps = program.maps().iter().map(open).collect::<Result<_, _>>()?;
        Self::prepare(program.clone(), maps, slots, engine)
    }

    fn prepare(
        program: Program,
        maps: Vec<Arc<Map>>,
        slots: Slots,
        engine: Engine,
    ) -> Result<Self, RunnerError> {
        let name = || program.name().to_owned();
        let verified = program
            .with_maps(&maps)
            .map_err(|source| RunnerError::Maps { program: name(), source })?;
        skep_runtime::prepare::expect_bad_loads(&program)
            .map_err(|source| RunnerError::Loads { program: name(), source })?;
        let (calls, compiled) = match engine {
            Engine::Jit => {
                let calls = TailCalls::of(verified, Form::Code, crate::helper);
                let code =
                    skep_runtime::compile::compile(verified, calls.as_deref(), crate::helper);
                (
                    calls,
                    Compiled::Jit(
                        code.map_err(|source| RunnerError::Compile { program: name(), source })?,
                    ),
                )
            }
            Engine::Interp => {
                let calls = TailCalls::of(verified, Form::Interp, crate::helper);
                let interp =
                    skep_runtime::compile::interpretable(verified, calls.as_deref(), crate::helper);
                (
                    calls,
                    Compiled::Interp(
                        interp.map_err(|source| RunnerError::Interp { program: name(), source })?,
                    ),
                )
            }
        };
        let ctx_size =
            if calls.is_some() { usize::from(u16::MAX) } else { program.ctx_read() as usize };
        Ok(Self { program, compiled, ctx_size, slots, _calls: calls, maps })
    }

    /// Returns the machine code, when that is what runs.
    #[must_use]
    pub fn machine_code(&self) -> Option<MachineCode<'_>> {
        match &self.compiled {
            Compiled::Jit(code) => {
                let bytes = code.machine_code();
                Some(MachineCode {
                    prog_type: self.program.prog_type(),
                    address: bytes.as_ptr() as u64,
                    bytes,
                    offsets: code.offsets(),
                })
            }
            Compiled::Interp(_) => None,
        }
    }

    /// From now on, counts how often each instruction runs; only an interpreter can
    /// ([`Engine::Interp`]). What tail calls lead to is not counted.
    ///
    /// Returns whether it is counted.
    pub fn count_hits(&mut self) -> bool {
        match &mut self.compiled {
            Compiled::Jit(_) => false,
            Compiled::Interp(program) => {
                program.count_hits();
                true
            }
        }
    }

    /// Returns how often each instruction of [`Runner::program`] has run since
    /// [`Runner::count_hits`]; nothing before.
    #[must_use]
    pub fn hits(&self) -> Vec<u64> {
        match &self.compiled {
            Compiled::Jit(_) => Vec::new(),
            Compiled::Interp(program) => program.hits(),
        }
    }

    /// Returns the program.
    #[must_use]
    pub fn program(&self) -> &Program {
        &self.program
    }

    /// Runs the program as often as `runs` likes, as [`Slots::enter`].
    ///
    /// # Errors
    /// As that.
    pub(crate) fn enter<R>(&self, runs: impl FnOnce(Entered<'_>) -> R) -> Result<R, Errno> {
        self.slots.enter(|_| runs(Entered(&self.compiled)))
    }

    /// Runs the program on a thread that has its slot; `None` when that is of another directory.
    pub(crate) fn entered(&self, on: OnSlot<'_>) -> Option<Entered<'_>> {
        (self.slots.path == on.0.path).then_some(Entered(&self.compiled))
    }

    /// Compiles the part of a program on packets that finds its first lookups in large maps, if that
    /// is compiled and has such lookups. It is good while this runner is there.
    pub(crate) fn lookups(&self) -> Option<Code> {
        let Compiled::Jit(_) = self.compiled else { return None };
        let verified = self.program.with_maps(&self.maps).ok()?;
        skep_runtime::compile::lookahead(verified, skep_net::lookahead::is_far, crate::helper)
    }

    /// Opens a program by its id, of the directory that the slots are of.
    pub(crate) fn open_by_id(slots: &Slots, id: u32, engine: Engine) -> Option<Self> {
        let dir = Dir::open(&slots.path).ok()?;
        Self::open(&dir, ProgramFile::open(&dir, id).ok()?.program(), engine).ok()
    }

    /// Returns what programs run with that are called from this one.
    pub(crate) fn with(&self) -> (&Slots, Engine) {
        let engine = match self.compiled {
            Compiled::Jit(_) => Engine::Jit,
            Compiled::Interp(_) => Engine::Interp,
        };
        (&self.slots, engine)
    }

    /// Runs the program as `BPF_PROG_TEST_RUN` would. Waits for runs of other directories to end: all
    /// that run at a time have their slots in one.
    ///
    /// # Errors
    /// With the errno that the kernel's call fails with; [`Errno::ENOTSUPP`] for types that have no
    /// test run. With [`Errno::EBUSY`] when the process has links of another directory by now, or
    /// the thread can have no slot.
    #[doc(alias = "BPF_PROG_TEST_RUN")]
    pub fn test_run(&self, input: &Input<'_>) -> Result<Outcome, Errno> {
        if let Some(done) = skep_net::test_run::test_run(self, input) {
            return done;
        }
        match self.program.prog_type() {
            P::RawTracepoint => plain::raw_tracepoint(self, input),
            P::Syscall => plain::syscall(self, input),
            // The kernel has no way to make up what an iterator walks over.
            P::Tracing if self.program.attach_type() == Some(AttachType::TraceIter) => {
                Err(Errno::EFAULT.because(Cause::Iterator))
            }
            P::Tracing => plain::tracing(self, input),
            P::Kprobe => plain::kprobe(self, input),
            P::Tracepoint => plain::record(self, input),
            P::PerfEvent => plain::perf_event(self, input),
            P::SkLookup => plain::sk_lookup(self, input),
            _ => Err(Errno::ENOTSUPP),
        }
    }
}

// SAFETY: what runs was verified for the type that the program file says.
unsafe impl skep_net::test_run::Program for Runner {
    fn prog_type(&self) -> P {
        self.program.prog_type()
    }

    fn attach_type(&self) -> Option<AttachType> {
        self.program.attach_type()
    }

    fn section(&self) -> &str {
        self.program.section()
    }

    unsafe fn run(&self, ctx: *mut u8, repeat: u32) -> Result<(u32, u64), Errno> {
        let repeat = repeat.max(1);
        let _directory = directory::use_for_run(&self.slots.table, &self.slots.path)
            .map_err(|_| Errno::EBUSY)?;
        match &self.compiled {
            // SAFETY: the caller's promise; the code was compiled from a verified program.
            Compiled::Jit(code) => unsafe { again_compiled(repeat, code.as_chain(), ctx) },
            Compiled::Interp(program) => again(repeat, || {
                // SAFETY: the caller's promise; it was made from a verified program.
                let done = unsafe { program.run([ctx as u64, 0, 0, 0, 0]) };
                done.map(|r0| r0 as u32).map_err(|_| Errno::EIO)
            }),
        }
    }
}

/// Runs code so often, as [`again`]. One function for programs and chains, so that a chain of one program
/// takes what the program takes.
///
/// # Safety
/// `ctx` is the kind of context that the programs were verified for.
#[inline(never)]
pub(crate) unsafe fn again_compiled(
    repeat: u32,
    code: Counting<'_>,
    ctx: *mut u8,
) -> Result<(u32, u64), Errno> {
    // SAFETY: the caller's promise.
    again(repeat, || Ok(unsafe { code.run(ctx) }))
}

/// Runs something so often, each time with a slot of the thread, which has the directory; returns
/// what the last run did, and the nanoseconds of one.
#[inline(always)]
pub(crate) fn again(
    repeat: u32,
    mut run: impl FnMut() -> Result<u32, Errno>,
) -> Result<(u32, u64), Errno> {
    // The thread's first slot is not what is measured.
    slots::exit(slots::enter());
    let began = Instant::now();
    let mut last = 0;
    for _ in 0..repeat {
        let entered = slots::enter();
        if entered.is_refused() {
            slots::exit(entered);
            return Err(Errno::EBUSY);
        }
        let done = run();
        slots::exit(entered);
        last = done?;
    }
    let ns = began.elapsed().as_nanos() / u128::from(repeat);
    Ok((last, u64::try_from(ns).unwrap_or(u64::MAX)))
}
