//! What the engines count of a chain: words, by step and by edge.
//!
//! ```text
//! step n   36 words: runs by slot of the verdict (34), bytes of packets, ticks
//! …
//! then, for each edge of each step: how often it was refused, by its bound or the budget
//! ```
//!
//! How often an edge was taken follows: the runs of its verdicts, without the refusals. So a program
//! in a chain costs one addition to memory, and two more for bytes and time.

use super::plan::{Plan, SLOTS};

/// Word of a step in which bytes are added up.
pub const BYTES: usize = SLOTS;
/// Word of a step in which ticks of the clock are added up.
pub const TICKS: usize = SLOTS + 1;
/// Words of a step.
pub const STEP: usize = SLOTS + 2;

/// Where the counters of a plan are.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Layout {
    /// Edges before those of each step, and all at the end.
    edges: Vec<usize>,
}

impl Layout {
    /// Lays out the counters of a plan.
    #[must_use]
    pub fn of(plan: &Plan) -> Self {
        let sums = plan.steps.iter().scan(0, |sum, step| {
            *sum += step.edges.len();
            Some(*sum)
        });
        Self { edges: std::iter::once(0).chain(sums).collect() }
    }

    /// Returns how many words there are.
    #[must_use]
    pub fn words(&self) -> usize {
        self.step(self.edges.len() - 1) + self.edges.last().copied().unwrap_or(0)
    }

    /// Returns the first word of a step.
    #[must_use]
    pub fn step(&self, step: usize) -> usize {
        step * STEP
    }

    /// Returns the word in which refusals of an edge are counted.
    #[must_use]
    pub fn refused(&self, step: usize, edge: usize) -> usize {
        let before = self.edges.get(step).copied().unwrap_or(0);
        self.step(self.edges.len() - 1) + before + edge
    }
}
