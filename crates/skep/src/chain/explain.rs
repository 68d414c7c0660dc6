//! The way of one packet through a chain.

use skep_net::chain::{Graph, NodeId, To};
use skep_net::test_run::Outcome;

use super::step::{Look, Packet as Now};

/// A packet's address and bytes, without its metadata.
type Packet = (u64, Vec<u8>);

/// A packet with its metadata.
#[derive(Default)]
pub(super) struct Whole {
    packet: Packet,
    metadata: Vec<u8>,
}

impl Whole {
    fn of(now: Now<'_>) -> Self {
        let metadata = now.bytes.get(..now.metadata).unwrap_or_default().to_vec();
        Self { packet: (now.address + now.metadata as u64, now.payload().to_vec()), metadata }
    }
}

/// A program's run, as it was.
pub(super) struct Seen {
    pub node: NodeId,
    pub verdict: u32,
    /// The edge was used up, or the budget.
    pub refused: bool,
    pub before: Whole,
    pub after: Whole,
}

/// Notes all runs.
#[derive(Default)]
pub(super) struct Recorder {
    pub seen: Vec<Seen>,
    before: Whole,
}

impl Look for Recorder {
    fn before(&mut self, _: NodeId, packet: Now<'_>) {
        self.before = Whole::of(packet);
    }

    fn after(&mut self, node: NodeId, verdict: u32, packet: Now<'_>) {
        let before = std::mem::take(&mut self.before);
        let after = Whole::of(packet);
        self.seen.push(Seen { node, verdict, refused: false, before, after });
    }

    fn refused(&mut self) {
        if let Some(last) = self.seen.last_mut() {
            last.refused = true;
        }
    }
}

/// Bytes that a program changed in place.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Change {
    /// Where they begin in the packet that the program got, without metadata.
    pub offset: usize,
    /// What they were.
    pub before: Vec<u8>,
    /// What they are now.
    pub after: Vec<u8>,
}

/// A program on the way.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Visit {
    /// Its node.
    pub node: NodeId,
    /// Its name.
    pub program: String,
    /// What it said.
    pub verdict: u32,
    /// Where that led.
    pub to: To,
    /// Whether the edge's bound or the budget was used up, so that it led nowhere.
    pub refused: bool,
    /// Bytes that the packet became longer at its start; negative: shorter.
    pub head: i64,
    /// The same at its end.
    pub tail: i64,
    /// What it changed of the bytes that are still there.
    pub changes: Vec<Change>,
    /// The packet's metadata, if the program changed it, or how much there is.
    pub metadata: Option<Vec<u8>>,
}

/// The way of one packet, and what came of it.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Explained {
    /// The programs in order.
    pub visits: Vec<Visit>,
    /// The chain's verdict and the packet.
    pub outcome: Outcome,
}

impl Explained {
    pub(super) fn new(graph: &Graph, seen: Vec<Seen>, outcome: Outcome) -> Self {
        let visit = |seen: Seen| {
            let node = graph.node(seen.node);
            let end = |(at, bytes): &Packet| *at as i64 + bytes.len() as i64;
            let (before, after) = (&seen.before.packet, &seen.after.packet);
            let is_changed = seen.before.metadata != seen.after.metadata;
            Visit {
                node: seen.node,
                program: node.map(|n| n.program.name.clone()).unwrap_or_default(),
                verdict: seen.verdict,
                to: node.map_or(To::Keep, |n| n.follow(seen.verdict).to),
                refused: seen.refused,
                head: before.0 as i64 - after.0 as i64,
                tail: end(after) - end(before),
                changes: changes(before, after),
                metadata: is_changed.then_some(seen.after.metadata),
            }
        };
        Self { visits: seen.into_iter().map(visit).collect(), outcome }
    }
}

/// Compares the bytes that are at the same addresses.
fn changes(before: &Packet, after: &Packet) -> Vec<Change> {
    let mut all: Vec<Change> = Vec::new();
    let moved = after.0.wrapping_sub(before.0) as i64;
    for (n, old) in before.1.iter().enumerate() {
        let at = usize::try_from(n as i64 - moved).ok();
        let Some(new) = at.and_then(|at| after.1.get(at)).filter(|new| *new != old) else {
            continue;
        };
        match all.last_mut().filter(|c| c.offset + c.before.len() == n) {
            Some(change) => {
                change.before.push(*old);
                change.after.push(*new);
            }
            None => all.push(Change { offset: n, before: vec![*old], after: vec![*new] }),
        }
    }
    all
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn changes_are_found_where_bytes_stay() {
        let before = (100, vec![1, 2, 3, 4, 5, 6]);
        let one = |offset, before: &[u8], after: &[u8]| Change {
            offset,
            before: before.to_vec(),
            after: after.to_vec(),
        };
        assert_eq!(changes(&before, &before), []);
        assert_eq!(
            changes(&before, &(100, vec![9, 8, 3, 4, 7])),
            [one(0, &[1, 2], &[9, 8]), one(4, &[5], &[7])]
        );
        // Two bytes more at the start, and two less.
        assert_eq!(changes(&before, &(98, vec![0, 0, 1, 9])), [one(1, &[2], &[9])]);
        assert_eq!(changes(&before, &(102, vec![3, 9])), [one(3, &[4], &[9])]);
        assert_eq!(changes(&before, &(200, vec![3, 9])), []);
    }
}
