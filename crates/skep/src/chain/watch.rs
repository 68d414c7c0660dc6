//! Looking at packets before and after each program of a chain that runs.

use std::num::NonZeroU64;
use std::sync::Arc;
use std::sync::atomic::AtomicU64;

use skep_net::chain::{Graph, NodeId};
use skep_net::port::batch::Meta;
use skep_net::port::{Frame, PortError};
use skep_net::test_run::Errno;
use skep_vm::chain::Count;

use super::Result;
use super::compiled::Compiled;
use super::step::{Look, Packet, Steps};
use crate::test_run::Engine;

/// A packet before or after a program of a chain.
#[derive(Clone, Copy, Debug)]
#[non_exhaustive]
pub struct Glimpse<'a> {
    /// The program's node.
    pub node: NodeId,
    /// Its name.
    pub program: &'a str,
    /// What it said of the packet; `None`: it has not run yet.
    pub verdict: Option<u32>,
    /// Which packet of this runner it is, counted from 1 on.
    pub number: u64,
    /// The packet as it is now.
    pub frame: Frame<'a>,
}

/// Who looks at packets between the programs of a chain ([`ChainRunner::watch`]).
///
/// [`ChainRunner::watch`]: super::ChainRunner::watch
pub trait Watch: Send {
    /// Looks at a packet: twice for each program that it comes to.
    ///
    /// # Errors
    /// When it cannot be noted; nothing is shown any more then.
    fn look(&mut self, seen: &Glimpse<'_>) -> Result<(), PortError>;

    /// Writes out what it keeps.
    ///
    /// # Errors
    /// When it cannot be written.
    fn flush(&mut self) -> Result<(), PortError> {
        Ok(())
    }
}

/// A watch of a runner.
pub(super) struct Watcher {
    to: Box<dyn Watch>,
    every: NonZeroU64,
    number: u64,
    /// `None`: the programs of this revision could not be compiled by themselves.
    steps: Option<Steps>,
    failed: Option<PortError>,
    /// It failed and has said so: nothing is shown any more.
    ended: bool,
}

impl Watcher {
    pub fn new(
        to: Box<dyn Watch>,
        every: NonZeroU64,
        compiled: &Arc<Compiled>,
        with: (Engine, Count),
    ) -> Result<Self> {
        let steps = Some(Steps::new(compiled, with.0, with.1)?);
        Ok(Self { to, every, number: 0, steps, failed: None, ended: false })
    }

    /// Takes another revision of the chain.
    pub fn replace(&mut self, compiled: &Arc<Compiled>, with: (Engine, Count)) -> Result<()> {
        self.steps = None;
        self.steps = Some(Steps::new(compiled, with.0, with.1)?);
        Ok(())
    }

    /// Counts a packet; returns how it is to be run when it is one that is shown.
    #[inline]
    pub fn next(&mut self, frame: Option<Frame<'_>>) -> Option<Watched<'_>> {
        self.number += 1;
        if !(self.number - 1).is_multiple_of(self.every.get()) {
            return None;
        }
        let Self { to, number, steps, failed, ended, .. } = self;
        let steps = steps.as_ref().filter(|_| failed.is_none() && !*ended)?;
        let first = frame.map(|f| (f.meta, f.bytes.len() as u32))?;
        Some(Watched { steps, show: Show { to: &mut **to, number: *number, first, failed } })
    }

    /// Takes the error of the watch.
    pub fn take_failed(&mut self) -> Option<PortError> {
        let failed = self.failed.take();
        self.ended |= failed.is_some();
        failed
    }

    pub fn flush(&mut self) -> Result<(), PortError> {
        if self.ended { Ok(()) } else { self.to.flush() }
    }
}

/// One packet that is shown.
pub(super) struct Watched<'a> {
    steps: &'a Steps,
    show: Show<'a>,
}

impl Watched<'_> {
    /// Runs the chain once.
    ///
    /// # Safety
    /// As [`Steps::run`].
    pub unsafe fn run(
        self,
        ctx: *mut u8,
        graph: &Graph,
        counters: &[AtomicU64],
    ) -> Result<u32, Errno> {
        let mut shown = Shown { show: self.show, graph };
        // SAFETY: the caller's promise.
        unsafe { self.steps.run(ctx, counters, &mut shown) }
    }
}

/// Where a packet is shown.
struct Show<'a> {
    to: &'a mut dyn Watch,
    number: u64,
    /// What it was when it came, and how long.
    first: (Meta, u32),
    failed: &'a mut Option<PortError>,
}

struct Shown<'a, 'g> {
    show: Show<'a>,
    graph: &'g Graph,
}

impl Shown<'_, '_> {
    fn show(&mut self, node: NodeId, verdict: Option<u32>, packet: Packet<'_>) {
        let Show { to, number, first, failed } = &mut self.show;
        if failed.is_some() {
            return;
        }
        let bytes = packet.payload();
        let program = self.graph.node(node).map_or("", |n| n.program.name.as_str());
        let frame = Frame { bytes, meta: first.0.resized(first.1, bytes.len() as u32) };
        let seen = Glimpse { node, program, verdict, number: *number, frame };
        **failed = to.look(&seen).err();
    }
}

impl Look for Shown<'_, '_> {
    fn before(&mut self, node: NodeId, packet: Packet<'_>) {
        self.show(node, None, packet);
    }

    fn after(&mut self, node: NodeId, verdict: u32, packet: Packet<'_>) {
        self.show(node, Some(verdict), packet);
    }
}
