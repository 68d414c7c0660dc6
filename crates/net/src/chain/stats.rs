//! What was counted of a chain, by node and edge.

use std::collections::BTreeMap;

use skep_vm::chain::Plan;
use skep_vm::chain::counters::{BYTES, Layout, TICKS};
use skep_vm::chain::plan::{OTHER, SLOTS};

use super::graph::{Graph, NodeId, To};
use super::verdicts::{Verdicts, name, of_slot};

/// What one node did.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct NodeStats {
    /// How often it ran, by slot of its verdict.
    by_slot: [u64; SLOTS],
    /// Bytes of the packets that it saw.
    pub bytes: u64,
    /// Nanoseconds, where time is taken.
    pub ns: u64,
}

impl Default for NodeStats {
    fn default() -> Self {
        Self { by_slot: [0; SLOTS], bytes: 0, ns: 0 }
    }
}

impl NodeStats {
    /// Returns how often it ran.
    #[must_use]
    pub fn runs(&self) -> u64 {
        self.by_slot.iter().sum()
    }

    /// Lists the verdicts that there were, by name, and how often.
    #[must_use]
    pub fn verdicts(&self) -> Vec<(String, u64)> {
        let label =
            |slot: usize| if slot == OTHER { "other".to_owned() } else { name(of_slot(slot)) };
        let counts = self.by_slot.iter().enumerate().filter(|(_, n)| **n > 0);
        counts.map(|(slot, n)| (label(slot), *n)).collect()
    }
}

/// An edge as it is counted: where it starts, its verdicts, where it leads.
pub type EdgeKey = (NodeId, Verdicts, To);

/// How often an edge was used.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct EdgeStats {
    /// How often it was taken.
    pub taken: u64,
    /// How often its bound or the budget was used up.
    pub refused: u64,
}

/// What a chain did, over all its revisions.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct Stats {
    /// By node.
    pub nodes: BTreeMap<NodeId, NodeStats>,
    /// By edge.
    pub edges: Vec<(EdgeKey, EdgeStats)>,
}

impl Stats {
    /// Adds the counters of a compiled graph; `order` says which node each step is, and `ns` how
    /// long ticks are.
    pub fn add(
        &mut self,
        graph: &Graph,
        plan: &Plan,
        order: &[NodeId],
        counter: impl Fn(usize) -> u64,
        ns: impl Fn(u64) -> u64,
    ) {
        let layout = Layout::of(plan);
        for (step, id) in order.iter().enumerate() {
            let base = layout.step(step);
            let mut runs = [0; SLOTS];
            runs.iter_mut().enumerate().for_each(|(slot, n)| *n = counter(base + slot));
            let sum = self.nodes.entry(*id).or_default();
            sum.by_slot.iter_mut().zip(&runs).for_each(|(sum, n)| *sum += n);
            sum.bytes = sum.bytes.wrapping_add(counter(base + BYTES));
            sum.ns = sum.ns.wrapping_add(ns(counter(base + TICKS)));
            let Some(node) = graph.node(*id) else { continue };
            let planned = plan.steps.get(step).map(|s| s.edges.as_slice()).unwrap_or_default();
            for (n, ((on, edge), plan)) in node.edges().into_iter().zip(planned).enumerate() {
                let came: u64 = runs
                    .iter()
                    .enumerate()
                    .filter(|(s, _)| plan.on >> s & 1 != 0)
                    .map(|r| r.1)
                    .sum();
                let refused = counter(layout.refused(step, n));
                let key = (*id, on, edge.to);
                let at = self.edges.iter().position(|(k, _)| *k == key).unwrap_or_else(|| {
                    self.edges.push((key, EdgeStats::default()));
                    self.edges.len() - 1
                });
                if let Some((_, sum)) = self.edges.get_mut(at) {
                    sum.taken += came.saturating_sub(refused);
                    sum.refused += refused;
                }
            }
        }
    }

    /// Writes all as words, for [`Stats::from_words`] of the same version.
    #[must_use]
    pub fn to_words(&self) -> Vec<u64> {
        let mut words = vec![self.nodes.len() as u64];
        for (id, node) in &self.nodes {
            words.push(u64::from(id.0));
            words.extend(node.by_slot);
            words.extend([node.bytes, node.ns]);
        }
        for ((from, on, to), edge) in &self.edges {
            let (kind, value) = match to {
                To::Keep => (0, 0),
                To::Node(id) => (1, id.0),
                To::End(verdict) => (2, *verdict),
            };
            let to = kind << 32 | u64::from(value);
            words.extend([u64::from(from.0), on.bits(), to, edge.taken, edge.refused]);
        }
        words
    }

    /// Reads words; `None` when they are not what [`Stats::to_words`] writes.
    #[must_use]
    pub fn from_words(words: &[u64]) -> Option<Self> {
        let id = |word: u64| u32::try_from(word).ok().map(NodeId);
        let (count, rest) = words.split_first()?;
        let nodes = usize::try_from(*count).ok()?.checked_mul(SLOTS + 3)?;
        let (nodes, edges) = rest.split_at_checked(nodes)?;
        let mut stats = Self::default();
        for node in nodes.chunks_exact(SLOTS + 3) {
            let [number, slots @ .., bytes, ns] = node else { return None };
            let by_slot = slots.try_into().ok()?;
            stats.nodes.insert(id(*number)?, NodeStats { by_slot, bytes: *bytes, ns: *ns });
        }
        let (edges, []) = edges.as_chunks::<5>() else { return None };
        for [from, on, to, taken, refused] in edges {
            let to = match (to >> 32, *to as u32) {
                (0, _) => To::Keep,
                (1, node) => To::Node(NodeId(node)),
                (2, verdict) => To::End(verdict),
                _ => return None,
            };
            let key = (id(*from)?, Verdicts::from_bits(*on)?, to);
            stats.edges.push((key, EdgeStats { taken: *taken, refused: *refused }));
        }
        Some(stats)
    }

    /// Adds what others counted.
    pub fn merge(&mut self, other: &Self) {
        for (id, node) in &other.nodes {
            let sum = self.nodes.entry(*id).or_default();
            sum.by_slot.iter_mut().zip(&node.by_slot).for_each(|(sum, n)| *sum += n);
            sum.bytes = sum.bytes.wrapping_add(node.bytes);
            sum.ns = sum.ns.wrapping_add(node.ns);
        }
        for (key, edge) in &other.edges {
            match self.edges.iter_mut().find(|(k, _)| k == key) {
                Some((_, sum)) => {
                    sum.taken += edge.taken;
                    sum.refused += edge.refused;
                }
                None => self.edges.push((*key, *edge)),
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn counts_come_back_from_their_words_and_others_are_refused() {
        let mut stats = Stats::default();
        for id in [3, 9] {
            let mut node = NodeStats { bytes: 1 << 40, ns: 7, ..NodeStats::default() };
            node.by_slot.iter_mut().enumerate().for_each(|(n, count)| *count = n as u64);
            stats.nodes.insert(NodeId(id), node);
        }
        for to in [To::Keep, To::Node(NodeId(9)), To::End(u32::MAX)] {
            let edge = EdgeStats { taken: 5, refused: 6 };
            stats.edges.push(((NodeId(3), Verdicts::ANY, to), edge));
        }
        let words = stats.to_words();
        assert_eq!(Stats::from_words(&words), Some(stats));
        for len in (0..words.len()).filter(|len| *len < 75 || (len - 75) % 5 != 0) {
            assert_eq!(Stats::from_words(&words[..len]), None, "{len} words");
        }
        for (at, bad) in [(0, u64::MAX), (1, 1 << 32), (76, 1 << 50), (77, 3 << 32)] {
            let mut words = words.clone();
            words[at] = bad;
            assert_eq!(Stats::from_words(&words), None, "word {at}");
        }
    }
}
