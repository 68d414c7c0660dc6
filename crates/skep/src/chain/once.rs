//! A chain as a program for test runs.

use std::cell::RefCell;
use std::sync::atomic::AtomicU64;
use std::time::Instant;

use skep_isa::{AttachType, ProgramType};
use skep_maps::slots;
use skep_net::packet::View;
use skep_net::test_run::{Errno, Program as RunOnce};
use skep_runtime::directory;
use skep_vm::chain::{Exhausted, To, Unit};

use super::compiled::Compiled;
use super::explain::Seen;
use crate::test_run::Slots;

/// The units of single programs, and what was seen of each run.
pub(super) type Watched<'a> = (&'a [Unit], &'a RefCell<Vec<Seen>>);

/// A chain as a program for a test run.
pub(super) struct Once<'a> {
    pub compiled: &'a Compiled,
    pub counters: &'a [AtomicU64],
    pub slots: &'a Slots,
    /// Runs one program at a time.
    pub seen: Option<Watched<'a>>,
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
