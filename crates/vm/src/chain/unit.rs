//! A chain as one piece of machine code.

use std::sync::atomic::AtomicU64;

use super::counters::Layout;
use super::{Options, Part, Plan, PlanError};
use crate::exec::Exec;
use crate::jit::{CompileError, Cpu, compile_chain};

/// Says why a chain was not compiled.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
#[non_exhaustive]
pub enum ChainError {
    /// The plan cannot be followed.
    #[error(transparent)]
    Plan(#[from] PlanError),
    /// There is not one program for each step.
    #[error("there are {parts} programs for {steps} steps")]
    Parts {
        /// Programs.
        parts: usize,
        /// Steps.
        steps: usize,
    },
    /// A program is for another context than the first.
    #[error("the program of step {step} is of another type than the first one")]
    Kind {
        /// Its step.
        step: usize,
    },
    /// A program cannot be compiled.
    #[error(transparent)]
    Compile(#[from] CompileError),
}

/// A compiled chain. It may be shared and sent between threads; dropping it frees the code, so
/// nobody may be running it then.
///
/// ```
/// use skep_isa::text;
/// use skep_vm::Env;
/// use skep_vm::chain::{PlanEdge, Options, Part, Plan, Step, To, Unit, plan};
///
/// let env = Env::empty();
/// let programs = ["mov r0, 2\nexit", "mov r0, 1\nexit"]
///     .map(|text| text::assemble(text).unwrap_or_default());
/// let parts = programs.each_ref().map(|insns| Part { insns, env: &env });
/// let on_pass = PlanEdge { on: 1 << plan::slot(2), to: To::Node(1), bound: None };
/// let steps = vec![Step { edges: vec![on_pass] }, Step::default()];
/// let plan = Plan { steps, budget: 32, exhausted: Default::default() };
/// // SAFETY: the programs touch no memory and end.
/// let unit = unsafe { Unit::compile(&plan, &parts, &Options::default()) }?;
/// // SAFETY: as above, and there are no counters.
/// assert_eq!(unsafe { unit.run(std::ptr::null_mut(), &[]) }, 1);
/// # Ok::<(), skep_vm::chain::ChainError>(())
/// ```
pub struct Unit {
    exec: Exec,
    /// Words of counters that the code adds to.
    words: usize,
}

/// The function that a chain is: of a context and counters.
type Entry = unsafe extern "C" fn(*mut u8, *const AtomicU64) -> u64;

/// A compiled chain with counters for what it does: [`Unit::counting`].
#[derive(Clone, Copy, Debug)]
pub struct Counting<'a> {
    entry: Entry,
    /// As many as the plan has, and the unit lives as long.
    counters: &'a [AtomicU64],
}

impl<'a> Counting<'a> {
    /// Takes a program by itself for a chain that counts nothing.
    ///
    /// # Safety
    /// The bytes are executable, and hold a whole function of a context from the first one on.
    pub(crate) unsafe fn of_program(code: &'a [u8]) -> Self {
        // SAFETY: the caller's promise; a function that is given one argument more does not see it.
        let entry = unsafe { std::mem::transmute::<*const u8, Entry>(code.as_ptr()) };
        Self { entry, counters: &[] }
    }
}

impl Counting<'_> {
    /// Runs the chain once, and returns its verdict.
    ///
    /// # Safety
    /// As [`Unit::run`].
    #[inline(always)]
    pub unsafe fn run(self, ctx: *mut u8) -> u32 {
        // SAFETY: the caller vouches for the context; the length was looked at.
        (unsafe { (self.entry)(ctx, self.counters.as_ptr()) }) as u32
    }
}

impl std::fmt::Debug for Unit {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Unit").field("bytes", &self.exec.bytes().len()).finish_non_exhaustive()
    }
}

impl Unit {
    /// Compiles a chain for this machine: one program for each step of the plan.
    ///
    /// # Errors
    /// The plan cannot be followed, or a program cannot be compiled.
    ///
    /// # Safety
    /// As [`crate::Code::compile`], for each program and its surroundings. All programs were
    /// verified for the same kind of context. [`Options::bytes`] names words that every such context
    /// has.
    pub unsafe fn compile(
        plan: &Plan,
        parts: &[Part<'_>],
        options: &Options,
    ) -> Result<Self, ChainError> {
        // SAFETY: the caller's duties are the same; the detected features are this machine's.
        unsafe { Self::compile_for(plan, parts, options, Cpu::detect()) }
    }

    /// Compiles a chain for a machine with the given features.
    ///
    /// # Errors
    /// As [`Unit::compile`].
    ///
    /// # Safety
    /// As [`Unit::compile`], and the machine must have the features.
    pub unsafe fn compile_for(
        plan: &Plan,
        parts: &[Part<'_>],
        options: &Options,
        cpu: Cpu,
    ) -> Result<Self, ChainError> {
        plan.check()?;
        let (parts_given, steps) = (parts.len(), plan.steps.len());
        if parts_given != steps {
            return Err(ChainError::Parts { parts: parts_given, steps });
        }
        let exec = compile_chain(plan, parts, options, cpu)?;
        let words = if options.is_counting() { Layout::of(plan).words() } else { 0 };
        Ok(Self { exec, words })
    }

    /// Runs the chain once, and returns its verdict. What it counts is added to `counters`, which
    /// no other thread adds to; others may read them.
    ///
    /// # Panics
    /// When there are fewer counters than the plan's [`Layout`] has.
    ///
    /// # Safety
    /// `ctx` is the kind of context that the programs were verified for.
    #[inline]
    pub unsafe fn run(&self, ctx: *mut u8, counters: &[AtomicU64]) -> u32 {
        // SAFETY: the caller's promise.
        unsafe { self.counting(counters).run(ctx) }
    }

    /// Makes the chain ready to run many times with the same counters, as [`Unit::run`] runs it
    /// once.
    ///
    /// # Panics
    /// When there are fewer counters than the plan's [`Layout`] has.
    #[inline]
    #[must_use]
    pub fn counting<'a>(&'a self, counters: &'a [AtomicU64]) -> Counting<'a> {
        assert!(counters.len() >= self.words, "the counters are those of the plan");
        // SAFETY: the memory holds a whole function of this type from its first byte on, and is
        // executable.
        let entry = unsafe { std::mem::transmute::<*const u8, Entry>(self.exec.bytes().as_ptr()) };
        Counting { entry, counters }
    }

    /// Returns the machine code.
    #[must_use]
    pub fn machine_code(&self) -> &[u8] {
        self.exec.bytes()
    }
}
