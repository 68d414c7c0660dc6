//! Which earlier values a number was computed from: lets the verifier forget the numbers that never
//! mattered.
//!
//! Two states are interchangeable at an instruction if the numbers that later *decide* something
//! (an address, a size, a branch that was taken for certain) agree; other numbers may differ. The
//! kernel finds the deciding ones by walking the instruction history backwards
//! (`mark_chain_precision`); here every number carries a node of a graph whose edges lead
//! to the numbers it came from, so "this one decides" is a walk along edges that stops at nodes
//! already marked. Stored states give their numbers nodes of their own, so what decided something
//! *before* a state does not count after it.
//!
//! A path may end at the head of a loop, in a state that an earlier turn stands for. What decides
//! something in that turn is known when everything behind it was walked; until then the numbers of the
//! two states are tied ([`Flow::follow`]).

use std::collections::HashMap;

/// A value in the graph.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, Default)]
pub struct Node(u32);

impl Node {
    /// A value with no history: a constant, or something read from memory.
    pub const NONE: Self = Self(0);
}

#[derive(Clone, Copy)]
struct Entry {
    from: [Node; 2],
    precise: bool,
}

/// The graph.
pub struct Flow {
    nodes: Vec<Entry>,
    /// Once the first decides something, so does the second.
    promises: HashMap<Node, Vec<Node>>,
    /// How many were ever made.
    promised: usize,
    work: Vec<Node>,
}

/// Most nodes and promises kept; a program that needs more is too complex.
const LIMIT: usize = 24 << 20;

impl Default for Flow {
    fn default() -> Self {
        let none = Entry { from: [Node::NONE; 2], precise: true };
        Self { nodes: vec![none], promises: HashMap::new(), promised: 0, work: Vec::new() }
    }
}

impl Flow {
    /// Makes a value that was computed from `a` and `b`.
    pub fn derive(&mut self, a: Node, b: Node) -> Node {
        if a == Node::NONE && b == Node::NONE {
            return Node::NONE;
        }
        self.push(a, b)
    }

    /// Makes a value of its own that stands for `a` from here on.
    pub fn renew(&mut self, a: Node) -> Node {
        self.push(a, Node::NONE)
    }

    fn push(&mut self, a: Node, b: Node) -> Node {
        let node = Node(u32::try_from(self.nodes.len()).unwrap_or(u32::MAX));
        self.nodes.push(Entry { from: [a, b], precise: false });
        node
    }

    /// Tells whether the graph has grown past what the verifier is willing to hold.
    #[must_use]
    pub fn is_full(&self) -> bool {
        self.nodes.len() + self.promised >= LIMIT
    }

    /// Records that the value decides something, and with it all it was computed from.
    pub fn mark(&mut self, node: Node) {
        self.work.push(node);
        while let Some(n) = self.work.pop() {
            if let Some(e) = self.nodes.get_mut(n.0 as usize)
                && !e.precise
            {
                e.precise = true;
                self.work.extend(e.from);
                self.work.extend(self.promises.remove(&n).into_iter().flatten());
            }
        }
    }

    /// Records that `new` decides something if `old` does, now or as soon as that is known.
    pub fn follow(&mut self, old: Node, new: Node) {
        if self.is_precise(old) {
            self.mark(new);
        } else if !self.is_precise(new) {
            self.promises.entry(old).or_default().push(new);
            self.promised += 1;
        }
    }

    /// Tells whether the value decided something.
    #[must_use]
    pub fn is_precise(&self, node: Node) -> bool {
        self.nodes.get(node.0 as usize).is_none_or(|e| e.precise)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn marking_reaches_all_ancestors_and_no_others() {
        let mut f = Flow::default();
        let (a, b) = (f.renew(Node::NONE), f.renew(Node::NONE));
        let sum = f.derive(a, b);
        let other = f.derive(b, Node::NONE);
        let later = f.renew(sum);
        f.mark(later);
        assert!(f.is_precise(a) && f.is_precise(b) && f.is_precise(sum));
        assert!(!f.is_precise(other));
    }

    #[test]
    fn tied_values_decide_together() {
        let mut f = Flow::default();
        let [first, old, new] = [(); 3].map(|()| f.renew(Node::NONE));
        let before = f.renew(first);
        let cur = f.derive(before, new);
        f.follow(old, cur);
        assert!(!f.is_precise(first) && !f.is_precise(old));
        f.mark(cur);
        assert!(f.is_precise(first) && !f.is_precise(old), "the other way");
        let (a, b) = (f.renew(first), f.renew(first));
        f.follow(a, b);
        f.follow(b, old);
        f.mark(a);
        assert!(f.is_precise(b) && f.is_precise(old), "one after another");
        let late = f.renew(first);
        f.follow(a, late);
        assert!(f.is_precise(late), "known already");
        assert!(f.promises.is_empty());
    }

    #[test]
    fn what_decided_before_a_state_was_stored_does_not_count_after_it() {
        let mut f = Flow::default();
        let a = f.renew(Node::NONE);
        f.mark(a);
        let stored = f.renew(a);
        assert!(!f.is_precise(stored));
    }
}
