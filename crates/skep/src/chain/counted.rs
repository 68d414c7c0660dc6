//! What threads count that run a chain: for themselves, or where other processes can read it.

use std::sync::OnceLock;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::time::Duration;

use skep_helpers::clock;
use skep_net::chain::{Graph, Stats};
use skep_store::counters::{self, Counters};
use skep_store::dir::Dir;
use skep_vm::chain::counters::Layout;
use skep_vm::chain::{Count, Plan};

use super::compiled::{Compiled, Origin};
use super::{Chain, ChainError, Result, convert};
use crate::test_run::Engine;

/// The counters of a compiled chain.
pub(super) enum Memory {
    /// Of this thread alone.
    Own(Vec<AtomicU64>),
    /// In a map.
    Shared(Counters),
}

impl Memory {
    /// Makes counters that only this thread sees.
    pub fn own(compiled: &Compiled) -> Self {
        Self::Own((0..count(compiled)).map(|_| AtomicU64::new(0)).collect())
    }

    /// Makes counters that other processes see, with what was counted before; in place of others.
    pub fn shared(
        dir: &Dir,
        origin: &dyn Origin,
        compiled: &Compiled,
        (before, rate): (&Stats, u64),
        replaces: &Self,
    ) -> Result<Self> {
        let Some(id) = origin.id() else { return Ok(Self::own(compiled)) };
        let spec = convert::to_spec(&compiled.graph, compiled.prog_type);
        let replaces = if let Self::Shared(old) = replaces { Some(old) } else { None };
        skep_runtime::memory::guard();
        let before = before.to_words();
        let made = Counters::create(dir, id, (&spec, &before), count(compiled), rate, replaces);
        Ok(Self::Shared(made.map_err(ChainError::Store)?))
    }

    /// Returns the counters.
    #[inline]
    pub fn words(&self) -> &[AtomicU64] {
        match self {
            Self::Own(words) => words,
            Self::Shared(counters) => counters.words(),
        }
    }
}

fn count(compiled: &Compiled) -> usize {
    compiled.ready.as_ref().map_or(0, |r| Layout::of(&r.plan).words())
}

/// Returns nanoseconds per tick, times 2^32, of the times that a chain takes; 0 where it takes none
/// or they are nanoseconds.
pub(super) fn rate(engine: Engine, count: Count) -> u64 {
    static RATE: OnceLock<u64> = OnceLock::new();
    match (engine, count) {
        (Engine::Jit, Count::Timed) => *RATE.get_or_init(|| clock::rate(Duration::from_millis(2))),
        _ => 0,
    }
}

/// Adds counters to what was counted before.
pub(super) fn add(stats: &mut Stats, compiled: &Compiled, counters: &Memory, rate: u64) {
    let Some(ready) = &compiled.ready else { return };
    let words = counters.words();
    let counter = |n: usize| words.get(n).map_or(0, |c| c.load(Relaxed));
    let ns = |ticks| clock::scale(ticks, rate);
    stats.add(&compiled.graph, &ready.plan, &ready.order, counter, ns);
}

/// A thread that runs a chain, in this process or another one.
#[derive(Clone, PartialEq, Eq, Debug)]
#[non_exhaustive]
pub struct Running {
    /// The process.
    pub process: u32,
    /// The revision of the chain that it runs.
    pub revision: u64,
    /// What it has counted, over all revisions.
    pub stats: Stats,
}

impl Running {
    fn new(counted: counters::Counted) -> Option<Self> {
        let graph: Graph = convert::to_graph(counted.spec).ok()?;
        let mut stats = Stats::from_words(&counted.before)?;
        if let Some((plan, order)) = graph.plan() {
            let plan: Plan = plan;
            if counted.counters.len() < Layout::of(&plan).words() {
                return None;
            }
            let counter = |n: usize| counted.counters.get(n).copied().unwrap_or(0);
            stats.add(&graph, &plan, &order, counter, |t| clock::scale(t, counted.rate));
        }
        Some(Self { process: counted.process, revision: graph.revision(), stats })
    }
}

impl Chain {
    /// Lists the threads that run this chain and show what they count
    /// ([`ChainRunner::publish`](super::ChainRunner::publish)), of all processes.
    ///
    /// # Errors
    /// When the directory cannot be read.
    pub fn running(&self) -> Result<Vec<Running>> {
        let all = counters::running(&self.place.dir, self.id())?;
        Ok(all.into_iter().filter_map(Running::new).collect())
    }
}
