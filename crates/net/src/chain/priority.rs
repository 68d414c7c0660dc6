//! Chains as libxdp makes them: a list of programs by priority, each with the verdicts upon which
//! the next one runs.
//!
//! After the last program libxdp answers `XDP_PASS` if the verdict is one of those: a program that
//! lists `XDP_DROP` and is the last lets packets pass that it would drop. [`AtEnd::Last`] is the
//! other choice, that the verdict stands.
//!
//! Verdict 31 always goes on, as it is what an empty place of libxdp's dispatcher answers.
//!
//! libxdp has ten programs at most, and shifts by the verdict without looking at it, so that codes
//! from 32 on mean what the machine makes of them; here they are in no bitmap and stand.

use std::cmp::Ordering;

use skep_isa::ProgramType;

use super::edit::EditError;
use super::graph::{Edge, Graph, Node, NodeId, ProgramRef, To};
use super::verdicts::{Verdicts, xdp};

/// Priority of programs that do not say (`XDP_DEFAULT_RUN_PRIO`).
pub const DEFAULT_PRIORITY: u32 = 50;
/// Verdicts upon which the next program runs, for programs that do not say
/// (`XDP_DEFAULT_CHAIN_CALL_ACTIONS`).
pub const DEFAULT_ACTIONS: u32 = 1 << xdp::PASS;

/// The verdict of an empty place (`XDP_DISPATCHER_RETVAL`), as a bit.
const EMPTY: u32 = 1 << 31;

/// How a program wants to be run: what `.xdp_run_config` of its object says, or who loads it.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct RunConfig {
    /// Smaller ones run first.
    pub priority: u32,
    /// The verdicts upon which the next program runs, as bits.
    #[doc(alias = "chain_call_actions")]
    pub actions: u32,
}

impl Default for RunConfig {
    fn default() -> Self {
        Self { priority: DEFAULT_PRIORITY, actions: DEFAULT_ACTIONS }
    }
}

/// A program of the list, with what decides about its place.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Entry {
    /// The program; its name decides between equal priorities.
    pub program: ProgramRef,
    /// How it wants to be run.
    pub config: RunConfig,
    /// It was there before the others.
    pub is_loaded: bool,
    /// Bytes of its instructions; of no account for a loaded program.
    pub size: u32,
    /// What tells its instructions from others'.
    pub tag: [u8; 8],
    /// When it was loaded.
    pub load_time: u64,
}

impl Entry {
    /// Compares as libxdp sorts: priority, name, loaded programs first, size of those that are not
    /// loaded, tag, time of loading.
    #[must_use]
    pub fn order(&self, other: &Self) -> Ordering {
        let size = |entry: &Self| if entry.is_loaded { 0 } else { entry.size };
        self.config
            .priority
            .cmp(&other.config.priority)
            .then_with(|| self.program.name.cmp(&other.program.name))
            .then_with(|| other.is_loaded.cmp(&self.is_loaded))
            .then_with(|| size(self).cmp(&size(other)))
            .then_with(|| self.tag.cmp(&other.tag))
            .then_with(|| self.load_time.cmp(&other.load_time))
    }
}

/// What the chain answers when the last program's verdict asks for another one.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub enum AtEnd {
    /// `XDP_PASS`, as libxdp does.
    #[default]
    Pass,
    /// That verdict.
    Last,
}

/// Makes the chain of these programs, sorted. Node n is the n-th program in order.
///
/// # Errors
/// When they are not of one kind, or too many.
pub fn graph(entries: &[Entry], at_end: AtEnd) -> Result<Graph, EditError> {
    let mut sorted: Vec<&Entry> = entries.iter().collect();
    sorted.sort_by(|a, b| a.order(b));
    let mut graph = Graph::new(ProgramType::Xdp);
    for (n, entry) in (1..).zip(&sorted) {
        let mut node = Node::new(entry.program.clone());
        let next = if n as usize == sorted.len() {
            match at_end {
                AtEnd::Pass => To::End(xdp::PASS),
                AtEnd::Last => To::Keep,
            }
        } else {
            To::Node(NodeId(n + 1))
        };
        for slot in Verdicts::bitmap(entry.config.actions | EMPTY).own() {
            if let Some(edge) = node.edges.get_mut(slot) {
                *edge = Some(Edge::to(next));
            }
        }
        graph.nodes.insert(NodeId(n), node);
    }
    let count = u32::try_from(sorted.len()).map_err(|_| EditError::Full)?;
    graph.entry = (count > 0).then_some(NodeId(1));
    graph.next = count + 1;
    // No list ends early.
    graph.budget = count.max(graph.budget);
    graph.check()?;
    Ok(graph)
}
