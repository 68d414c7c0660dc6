//! A chain run by the interpreter: the plan, followed one step at a time.

use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::time::Instant;

use super::counters::{BYTES, Layout, TICKS};
use super::{Count, Options, Plan, PlanError, plan};
use crate::interp::{Program, RunError};

/// A chain for the interpreter.
#[derive(Debug)]
pub struct Interpreted {
    plan: Plan,
    programs: Vec<Program>,
    layout: Layout,
    options: Options,
}

impl Interpreted {
    /// Keeps a plan and the programs of its steps.
    ///
    /// # Errors
    /// When the plan cannot be followed, or there are not as many programs as steps.
    pub fn new(plan: Plan, programs: Vec<Program>, options: Options) -> Result<Self, PlanError> {
        plan.check()?;
        if programs.len() != plan.steps.len() {
            return Err(PlanError::Steps { steps: programs.len() });
        }
        Ok(Self { layout: Layout::of(&plan), plan, programs, options })
    }

    /// Runs the chain once, as [`Unit::run`](super::Unit::run). Times are in nanoseconds.
    ///
    /// # Errors
    /// When a program stops without a verdict.
    ///
    /// # Safety
    /// As [`Program::run`] for each program, and [`Options::bytes`] names words of the context.
    pub unsafe fn run(&self, ctx: *mut u8, counters: &[AtomicU64]) -> Result<u32, RunError> {
        let add = |n: usize, value: u64| {
            if let Some(word) = counters.get(n).filter(|_| self.options.is_counting()) {
                word.store(word.load(Relaxed).wrapping_add(value), Relaxed);
            }
        };
        let run = |step: usize| {
            let Some(program) = self.programs.get(step) else { return Ok(0) };
            let base = self.layout.step(step);
            if let Some(bytes) = self.options.bytes.filter(|_| self.options.is_counting()) {
                // SAFETY: the caller vouches for these words of the context.
                let word = |off: i32| unsafe {
                    ctx.wrapping_offset(off as isize).cast::<u64>().read_unaligned()
                };
                let length = word(bytes.end).wrapping_sub(word(bytes.start));
                add(base + BYTES, length.wrapping_add(word(bytes.more)));
            }
            let began = (self.options.count == Count::Timed).then(Instant::now);
            // SAFETY: the caller vouches for the programs.
            let verdict = unsafe { program.run([ctx as u64, 0, 0, 0, 0]) }? as u32;
            if let Some(began) = began {
                add(base + TICKS, began.elapsed().as_nanos() as u64);
            }
            add(base + plan::slot(verdict), 1);
            Ok(verdict)
        };
        self.plan.walk(run, |step, edge| add(self.layout.refused(step, edge), 1))
    }
}
