//! A chain as a program for test runs.

use std::cell::RefCell;
use std::sync::atomic::AtomicU64;

use skep_isa::{AttachType, ProgramType};
use skep_net::test_run::{Errno, Program as RunOnce};
use skep_runtime::directory;

use super::compiled::Compiled;
use super::step::{Look, Steps};
use crate::test_run::{Slots, again, again_compiled};

/// The programs each by itself, and who looks at packets between them.
pub(super) type Watched<'a> = (&'a Steps, &'a RefCell<&'a mut dyn Look>);

/// A chain as a program for a test run.
pub(super) struct Once<'a> {
    pub compiled: &'a Compiled,
    pub counters: &'a [AtomicU64],
    pub slots: &'a Slots,
    /// Runs one program at a time.
    pub watched: Option<Watched<'a>>,
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
        match self.watched {
            // SAFETY: the caller's promise.
            None => unsafe { ready.run(ctx, self.counters) },
            // SAFETY: the caller's promise; packet programs alone get here.
            Some((steps, look)) => unsafe {
                steps.run(ctx, self.counters, &mut **look.borrow_mut())
            },
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
        let ready = self.compiled.ready.as_ref().filter(|_| self.watched.is_none());
        match ready.and_then(|ready| ready.compiled(self.counters)) {
            // SAFETY: the caller's promise.
            Some(chain) => unsafe { again_compiled(repeat, chain, ctx) },
            // SAFETY: as above.
            None => again(repeat, || unsafe { self.one(ctx) }),
        }
    }
}
