//! A compiled chain run one program at a time, for who looks at packets between the programs.

use std::cell::Cell;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

use skep_net::chain::NodeId;
use skep_net::packet::View;
use skep_net::test_run::Errno;
use skep_vm::chain::counters::{Layout, STEP};
use skep_vm::chain::{Count, Exhausted, Plan, Step};

use super::Result;
use super::compiled::{Code, Compiled};
use crate::test_run::Engine;

/// A packet as it lies before or after a program.
#[derive(Clone, Copy)]
pub(super) struct Packet<'a> {
    /// Where its metadata begins, or the packet if it has none.
    pub address: u64,
    /// Bytes of metadata, which come first.
    pub metadata: usize,
    /// Its bytes, with the fragments.
    pub bytes: &'a [u8],
}

impl<'a> Packet<'a> {
    /// Returns the bytes without the metadata.
    pub fn payload(self) -> &'a [u8] {
        self.bytes.get(self.metadata..).unwrap_or_default()
    }
}

/// Who looks at packets between programs.
pub(super) trait Look {
    /// A program is about to run.
    fn before(&mut self, node: NodeId, packet: Packet<'_>);

    /// It has run.
    fn after(&mut self, node: NodeId, verdict: u32, packet: Packet<'_>);

    /// The edge that the last verdict leads to is used up, or the budget.
    fn refused(&mut self) {}
}

/// The programs of a compiled chain, each by itself.
pub(super) struct Steps {
    /// Goes before what it has the addresses of.
    codes: Vec<Code>,
    layout: Option<Layout>,
    compiled: Arc<Compiled>,
}

impl Steps {
    /// Makes every program ready to run by itself.
    pub fn new(compiled: &Arc<Compiled>, engine: Engine, count: Count) -> Result<Self> {
        let alone = Plan { steps: vec![Step::default()], budget: 1, exhausted: Exhausted::Stop };
        let ready = compiled.ready.as_ref();
        let parts = ready.map(|r| r.parts.as_slice()).unwrap_or_default();
        let code = |part| Code::new(&alone, std::slice::from_ref(part), engine, count);
        let codes = parts.iter().map(code).collect::<Result<_>>()?;
        let layout = ready.filter(|_| count != Count::Off).map(|r| Layout::of(&r.plan));
        Ok(Self { codes, layout, compiled: Arc::clone(compiled) })
    }

    /// Runs the chain once. What is counted is what the chain as one piece counts.
    ///
    /// # Safety
    /// `ctx` is a packet's context of the type that the programs were verified for.
    pub unsafe fn run(
        &self,
        ctx: *mut u8,
        counters: &[AtomicU64],
        look: &mut dyn Look,
    ) -> Result<u32, Errno> {
        let Some(ready) = &self.compiled.ready else {
            return Ok(self.compiled.graph.empty_verdict());
        };
        // SAFETY: the caller's promise: the words below and in the context are there.
        let view = unsafe { View::of(ctx as u64) };
        let refused = Cell::new(None);
        let run = |step: usize| {
            let (Some(code), Some(node)) = (self.codes.get(step), ready.order.get(step)) else {
                return Err(Errno::EIO);
            };
            let own = self.layout.as_ref().map(|layout| layout.step(step));
            let own = own.and_then(|base| counters.get(base..base + STEP)).unwrap_or_default();
            // SAFETY: no program runs now.
            look.before(*node, unsafe { packet(&view) });
            // SAFETY: the caller's promise.
            let verdict = unsafe { code.run(ctx, own) }?;
            // SAFETY: no program runs any more.
            look.after(*node, verdict, unsafe { packet(&view) });
            Ok(verdict)
        };
        let verdict = ready.plan.walk(run, |step, edge| refused.set(Some((step, edge))))?;
        if let Some((step, edge)) = refused.get() {
            look.refused();
            let word = self.layout.as_ref().and_then(|l| counters.get(l.refused(step, edge)));
            if let Some(word) = word {
                word.store(word.load(Relaxed).wrapping_add(1), Relaxed);
            }
        }
        Ok(verdict)
    }
}

/// Finds the bytes of a packet.
///
/// # Safety
/// Nobody changes the packet while the bytes are used.
unsafe fn packet<'a>(view: &View<'a>) -> Packet<'a> {
    let (from, to) = (view.data_meta(), view.end());
    let len = to.saturating_sub(from) as usize;
    // SAFETY: metadata, packet and fragments are one run of bytes, and the caller's promise.
    let bytes = unsafe { std::slice::from_raw_parts(from as *const u8, len) };
    Packet { address: from, metadata: view.data().saturating_sub(from) as usize, bytes }
}
