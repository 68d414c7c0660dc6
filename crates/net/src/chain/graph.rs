//! The graph of a chain: nodes, edges, and what holds for all of it.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;

use skep_isa::{AttachType, ProgramType};
use skep_vm::chain::plan::{OTHER, SLOTS, slot};
use skep_vm::chain::{self, Exhausted, Plan, Step};

use super::edit::EditError;
use super::verdicts::{Verdicts, tcx, xdp};

/// Most programs of one run, if nobody says otherwise (the limit of the proposed chain calls).
pub const BUDGET: u32 = 32;

/// What a program is, as far as chains care.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct ProgramRef {
    /// Its id in the skep directory.
    pub id: u32,
    /// Its name.
    pub name: String,
    /// Its type.
    pub prog_type: ProgramType,
    /// Its attach type, when the section fixed one.
    pub attach_type: Option<AttachType>,
    /// It takes packets of several buffers.
    pub frags: bool,
    /// The interface that it is bound to.
    pub device: Option<u32>,
}

/// Names a node of one chain. Numbers grow and are not used again.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct NodeId(pub u32);

impl fmt::Display for NodeId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}", self.0)
    }
}

/// Where an edge leads.
pub type To = chain::To<NodeId>;

/// An edge without its start.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct Edge {
    /// Where it leads.
    pub to: To,
    /// How often one run may take it. Edges that close a cycle have such a bound; the verdict
    /// stands after that.
    pub bound: Option<u32>,
}

impl Edge {
    /// Makes an edge that may be taken any number of times.
    #[must_use]
    pub fn to(to: To) -> Self {
        Self { to, bound: None }
    }
}

impl From<NodeId> for Edge {
    fn from(node: NodeId) -> Self {
        Self::to(To::Node(node))
    }
}

/// A program in a chain. The same program may be several nodes.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Node {
    /// The program.
    pub program: ProgramRef,
    /// Edges of single verdicts, by slot; the last is the wildcard's.
    pub(super) edges: [Option<Edge>; SLOTS],
}

impl Node {
    pub(super) fn new(program: ProgramRef) -> Self {
        Self { program, edges: [None; SLOTS] }
    }

    /// Returns where a run goes on after a verdict: the verdict's own edge, else the wildcard,
    /// else the verdict stands.
    #[must_use]
    pub fn follow(&self, verdict: u32) -> Edge {
        self.at(slot(verdict))
    }

    /// The same by slot.
    pub(super) fn at(&self, slot: usize) -> Edge {
        let own = self.edges.get(slot).copied().flatten();
        own.or(self.any()).unwrap_or(Edge::to(To::Keep))
    }

    /// Returns the wildcard.
    #[must_use]
    pub fn any(&self) -> Option<Edge> {
        self.edges.get(OTHER).copied().flatten()
    }

    /// Returns the edge of a single verdict, without the wildcard.
    #[must_use]
    pub fn own(&self, verdict: u32) -> Option<Edge> {
        let slot = slot(verdict);
        if slot == OTHER { None } else { self.edges.get(slot).copied().flatten() }
    }

    /// Lists the edges, each with the verdicts that take it; the wildcard comes last.
    #[must_use]
    pub fn edges(&self) -> Vec<(Verdicts, Edge)> {
        let mut all: Vec<(u64, Edge)> = Vec::new();
        for (slot, edge) in self.edges.iter().enumerate().take(OTHER) {
            let Some(edge) = edge else { continue };
            match all.iter_mut().find(|(_, e)| e == edge) {
                Some((bits, _)) => *bits |= 1 << slot,
                None => all.push((1 << slot, *edge)),
            }
        }
        let own = all.into_iter().filter_map(|(bits, e)| Some((Verdicts::from_bits(bits)?, e)));
        own.chain(self.any().map(|e| (Verdicts::ANY, e))).collect()
    }
}

/// Which cycles a graph may have.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub enum Cycles {
    /// Those with an edge that has a bound.
    #[default]
    Bounded,
    /// All: the proposed chain calls check nothing.
    Any,
}

/// A chain as its users edit it: a directed graph of programs. It is changed by
/// [`Graph::transaction`], and becomes a [`Plan`] for the engines.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Graph {
    pub(super) nodes: BTreeMap<NodeId, Node>,
    pub(super) entry: Option<NodeId>,
    pub(super) next: u32,
    pub(super) budget: u32,
    pub(super) exhausted: Exhausted,
    pub(super) cycles: Cycles,
    pub(super) revision: u64,
    /// The answer of a chain without programs.
    pub(super) empty: u32,
}

impl Graph {
    /// Makes an empty graph for programs of a type. Without programs it answers what the kernel
    /// does without: `XDP_PASS`, `TCX_NEXT`, else 0.
    #[must_use]
    pub fn new(prog_type: ProgramType) -> Self {
        let empty = match prog_type {
            ProgramType::Xdp => xdp::PASS,
            ProgramType::SchedCls => tcx::NEXT,
            _ => 0,
        };
        Self {
            nodes: BTreeMap::new(),
            entry: None,
            next: 1,
            budget: BUDGET,
            exhausted: Exhausted::Stop,
            cycles: Cycles::Bounded,
            revision: 1,
            empty,
        }
    }

    /// Returns the number of changes so far, from 1.
    #[must_use]
    pub fn revision(&self) -> u64 {
        self.revision
    }

    /// Returns the node that runs first.
    #[must_use]
    pub fn entry(&self) -> Option<NodeId> {
        self.entry
    }

    /// Returns a node.
    #[must_use]
    pub fn node(&self, id: NodeId) -> Option<&Node> {
        self.nodes.get(&id)
    }

    /// Goes through the nodes in order of their numbers.
    pub fn nodes(&self) -> impl Iterator<Item = (NodeId, &Node)> {
        self.nodes.iter().map(|(id, node)| (*id, node))
    }

    /// Returns how many programs one run may have.
    #[must_use]
    pub fn budget(&self) -> u32 {
        self.budget
    }

    /// Returns what happens to a run that would have more.
    #[must_use]
    pub fn exhausted(&self) -> Exhausted {
        self.exhausted
    }

    /// Returns the answer of a chain without programs.
    #[must_use]
    pub fn empty_verdict(&self) -> u32 {
        self.empty
    }

    /// Tells whether packets of several buffers may come: every program takes them.
    #[must_use]
    pub fn takes_fragments(&self) -> bool {
        !self.nodes.is_empty() && self.nodes.values().all(|n| n.program.frags)
    }

    /// Lists the nodes that can be reached, the first one first, each before those that it leads
    /// to for the first time.
    #[must_use]
    pub fn reachable(&self) -> Vec<NodeId> {
        let (mut order, mut seen) = (Vec::new(), BTreeSet::new());
        let mut todo: Vec<NodeId> = self.entry.into_iter().collect();
        while let Some(id) = todo.pop() {
            let Some(node) = self.nodes.get(&id).filter(|_| seen.insert(id)) else { continue };
            order.push(id);
            // The wildcard, which is last, is looked at first: it is what most packets take.
            for (_, edge) in node.edges() {
                if let To::Node(next) = edge.to {
                    todo.push(next);
                }
            }
        }
        order
    }

    /// Turns the graph into a plan, and says which node each step is. `None` without programs.
    #[must_use]
    pub fn plan(&self) -> Option<(Plan, Vec<NodeId>)> {
        let order = self.reachable();
        if order.is_empty() {
            return None;
        }
        let places: BTreeMap<NodeId, usize> = order.iter().copied().zip(0..).collect();
        let place = |to: To| match to {
            To::Node(id) => places.get(&id).map_or(chain::To::Keep, |n| chain::To::Node(*n)),
            To::End(verdict) => chain::To::End(verdict),
            To::Keep => chain::To::Keep,
        };
        let step = |id: &NodeId| {
            let edges = self.nodes.get(id).map(Node::edges).unwrap_or_default();
            let own = edges.iter().filter(|(on, _)| !on.is_any()).map(|(on, _)| on.bits());
            let rest = Verdicts::ANY.bits() & !own.fold(0, |all, on| all | on);
            let edges = edges.into_iter().map(|(on, edge)| chain::PlanEdge {
                on: if on.is_any() { rest } else { on.bits() },
                to: place(edge.to),
                bound: edge.bound,
            });
            Step { edges: edges.collect() }
        };
        let steps = order.iter().map(step).collect();
        Some((Plan { steps, budget: self.budget, exhausted: self.exhausted }, order))
    }

    /// Finds a cycle without a bounded edge: its nodes, the first one again at the end.
    #[must_use]
    pub fn cycle(&self) -> Option<Vec<NodeId>> {
        let next = |id: NodeId| -> Vec<NodeId> {
            let edges = self.nodes.get(&id).map(Node::edges).unwrap_or_default();
            let open = edges.into_iter().filter(|(_, e)| e.bound.is_none());
            open.filter_map(|(_, e)| if let To::Node(n) = e.to { Some(n) } else { None }).collect()
        };
        let mut done = BTreeSet::new();
        for start in self.nodes.keys() {
            let mut path = vec![(*start, next(*start))];
            while let Some((id, todo)) = path.last_mut() {
                let id = *id;
                match todo.pop() {
                    None => {
                        done.insert(id);
                        path.pop();
                    }
                    Some(to) if done.contains(&to) => {}
                    Some(to) => {
                        if let Some(from) = path.iter().position(|(n, _)| *n == to) {
                            let round = path.iter().skip(from).map(|(n, _)| *n);
                            return Some(round.chain([to]).collect());
                        }
                        path.push((to, next(to)));
                    }
                }
            }
        }
        None
    }

    /// Describes a path by numbers and names.
    #[must_use]
    pub fn path_text(&self, path: &[NodeId]) -> String {
        let name = |id: &NodeId| {
            let name = self.nodes.get(id).map_or("?", |n| n.program.name.as_str());
            format!("{id} ({name})")
        };
        path.iter().map(name).collect::<Vec<_>>().join(" -> ")
    }
}

/// What a graph is made of, for files.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Parts {
    /// The number of changes.
    pub revision: u64,
    /// The number of the next node.
    pub next: u32,
    /// The node that runs first.
    pub entry: Option<NodeId>,
    /// Most programs of a run.
    pub budget: u32,
    /// What happens then.
    pub exhausted: Exhausted,
    /// The answer without programs.
    pub empty: u32,
    /// The nodes.
    pub nodes: Vec<NodeParts>,
}

/// A node of [`Parts`].
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct NodeParts {
    /// Its number.
    pub id: NodeId,
    /// Its program.
    pub program: ProgramRef,
    /// Its edges, each with its verdicts.
    pub edges: Vec<(Verdicts, Edge)>,
}

impl Graph {
    /// Takes the graph apart.
    #[must_use]
    pub fn parts(&self) -> Parts {
        let node = |(id, node): (&NodeId, &Node)| NodeParts {
            id: *id,
            program: node.program.clone(),
            edges: node.edges(),
        };
        Parts {
            revision: self.revision,
            next: self.next,
            entry: self.entry,
            budget: self.budget,
            exhausted: self.exhausted,
            empty: self.empty,
            nodes: self.nodes.iter().map(node).collect(),
        }
    }

    /// Puts a graph together that may come from anywhere.
    ///
    /// # Errors
    /// When the parts are no graph.
    pub fn from_parts(parts: Parts) -> Result<Self, EditError> {
        let Parts { revision, next, entry, budget, exhausted, empty, nodes } = parts;
        let cycles = Cycles::Bounded;
        let mut graph = Self {
            nodes: BTreeMap::new(),
            entry,
            next,
            budget,
            exhausted,
            cycles,
            revision,
            empty,
        };
        for NodeParts { id, program, edges } in nodes {
            let mut node = Node::new(program);
            for (on, edge) in edges {
                if edge.bound == Some(0) {
                    return Err(EditError::Zero);
                }
                let any = on.is_any().then_some(OTHER);
                for slot in on.own().chain(any) {
                    if let Some(place) = node.edges.get_mut(slot) {
                        *place = Some(edge);
                    }
                }
            }
            graph.next = graph.next.max(id.0.saturating_add(1));
            graph.nodes.insert(id, node);
        }
        if budget == 0 {
            return Err(EditError::Zero);
        }
        let there = |id: &NodeId| graph.nodes.contains_key(id);
        let targets = graph.nodes.values().flat_map(|n| n.edges.iter().flatten());
        let targets = targets.filter_map(|e| if let To::Node(id) = e.to { Some(id) } else { None });
        if let Some(node) = targets.chain(entry).find(|id| !there(id)) {
            return Err(EditError::NoNode { node });
        }
        graph.check()?;
        Ok(graph)
    }
}
