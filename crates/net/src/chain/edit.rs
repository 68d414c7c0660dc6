//! Changes of a graph: single edits, and transactions of many.
//!
//! A transaction works on a copy and checks the whole of it, so what is wrong changes nothing, and
//! "would this work?" is a transaction whose result is dropped. Each one makes the revision larger
//! by one. Two writers do not undo each other's work: a transaction can say on which revision it
//! builds, and an edit what it expects to find.

use skep_isa::errno;
use skep_vm::chain::plan::OTHER;
use skep_vm::chain::{Exhausted, Plan};

use super::graph::{Cycles, Edge, Graph, Node, NodeId, ProgramRef, To};
use super::verdicts::Verdicts;

/// Where a new program goes.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Place {
    /// It runs first, and the one that did so far after it, upon these verdicts.
    First {
        /// Verdicts of the new program.
        on: Verdicts,
    },
    /// It runs after another program, upon these verdicts of that one. Where they led before, they
    /// lead behind the new program.
    After {
        /// The other program.
        node: NodeId,
        /// Verdicts of the other program, and then of the new one.
        on: Verdicts,
    },
    /// It is not reached until an edge is set.
    Loose,
}

/// Where edges of a removed node lead then.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub enum Bridge {
    /// Where the node's edge of the same verdict leads: as if it had agreed with the program
    /// before.
    #[default]
    SameVerdict,
    /// Where its wildcard leads.
    Wildcard,
    /// Out of the chain with this verdict.
    End(u32),
}

/// One change.
#[derive(Clone, PartialEq, Eq, Debug)]
#[non_exhaustive]
pub enum Edit {
    /// Adds a program as a new node.
    Add {
        /// The program.
        program: ProgramRef,
        /// Where it goes.
        place: Place,
    },
    /// Takes a node out.
    Remove {
        /// Which one.
        node: NodeId,
        /// What becomes of the edges that led there.
        bridge: Bridge,
    },
    /// Takes a node out and puts it elsewhere; it keeps its number and what was counted.
    Move {
        /// Which one.
        node: NodeId,
        /// Where it goes.
        place: Place,
        /// What becomes of the edges that led to its old place.
        bridge: Bridge,
    },
    /// Puts another program into a node.
    Replace {
        /// Which node.
        node: NodeId,
        /// The new program.
        program: ProgramRef,
        /// The id of the program that must be there.
        expected: Option<u32>,
    },
    /// Makes verdicts lead somewhere.
    Connect {
        /// Where the edge starts.
        from: NodeId,
        /// The verdicts that take it.
        on: Verdicts,
        /// Where it leads.
        edge: Edge,
        /// What must be there before: an edge, or none.
        expected: Option<Option<Edge>>,
    },
    /// Takes edges away.
    Disconnect {
        /// Where they start.
        from: NodeId,
        /// Their verdicts.
        on: Verdicts,
    },
    /// Says which node runs first; `None` for no program at all.
    Entry(Option<NodeId>),
    /// Limits how many programs a run has.
    Budget {
        /// How many.
        budget: u32,
        /// What happens then.
        exhausted: Exhausted,
    },
}

/// Says why a chain was not changed.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
#[non_exhaustive]
pub enum EditError {
    /// Somebody else changed it before.
    #[error("the chain is at revision {is}, not {expected}: look at it again")]
    Stale {
        /// The revision that the change builds on.
        expected: u64,
        /// The chain's.
        is: u64,
    },
    /// What must be there before is not.
    #[error("node {node} has another {what} than expected: look at the chain again")]
    Unexpected {
        /// Which node.
        node: NodeId,
        /// `edge` or `program`.
        what: &'static str,
    },
    /// There is no such node.
    #[error("there is no node {node}")]
    NoNode {
        /// Which one.
        node: NodeId,
    },
    /// A node is its own place.
    #[error("node {node} cannot be put behind itself")]
    Itself {
        /// Which one.
        node: NodeId,
    },
    /// There is no edge to take away.
    #[error("node {node} has no edge for `{on}`")]
    NoEdge {
        /// Where it would start.
        node: NodeId,
        /// Which verdicts.
        on: Verdicts,
    },
    /// A program would follow itself.
    #[error("the chain would never end: {path}; give one of these edges a bound")]
    Cycle {
        /// The nodes, the first one again at the end.
        path: String,
    },
    /// A program is not of the kind of the others.
    #[error("`{program}` cannot be in one chain with `{other}`: its {what} is another one")]
    Kind {
        /// The program.
        program: String,
        /// One that is there.
        other: String,
        /// `type`, `attach type` or `interface`.
        what: &'static str,
    },
    /// A program is of another type than the chain.
    #[error("program `{program}` is of type `{kind}`, and the chain of type `{wanted}`")]
    Type {
        /// The program.
        program: String,
        /// Its type.
        kind: &'static str,
        /// The chain's.
        wanted: &'static str,
    },
    /// There is no room.
    #[error("a chain has {} programs at most", Plan::MOST)]
    Full,
    /// A limit of zero.
    #[error("a budget or bound is 1 at least")]
    Zero,
    /// A set without verdicts.
    #[error("an edge needs a verdict")]
    NoVerdict,
}

impl EditError {
    /// Returns the error number that the kernel's interfaces use for this.
    #[must_use]
    pub fn errno(&self) -> i32 {
        match self {
            Self::Stale { .. } | Self::Unexpected { .. } => errno::ESTALE,
            Self::NoNode { .. } | Self::NoEdge { .. } => errno::ENOENT,
            Self::Cycle { .. } => errno::ELOOP,
            Self::Kind { .. } | Self::Type { .. } | Self::Zero => errno::EINVAL,
            Self::NoVerdict | Self::Itself { .. } => errno::EINVAL,
            Self::Full => errno::E2BIG,
        }
    }
}

impl Graph {
    /// Does all of these edits, or none. Returns the new graph, and the numbers of the nodes that
    /// were added, in order. `revision` is the one that this builds on; 0 builds on any.
    ///
    /// ```
    /// use skep_isa::ProgramType;
    /// use skep_net::chain::{Edit, Graph, Place, ProgramRef, Verdicts};
    ///
    /// let program = |id: u32, name: &str| ProgramRef {
    ///     id,
    ///     name: name.to_owned(),
    ///     prog_type: ProgramType::Xdp,
    ///     attach_type: None,
    ///     frags: false,
    ///     device: None,
    /// };
    /// let on = Verdicts::ANY;
    /// let place = Place::First { on };
    /// let graph = Graph::new(ProgramType::Xdp);
    /// let (graph, added) =
    ///     graph.transaction(1, &[Edit::Add { program: program(7, "filter"), place }])?;
    /// let place = Place::After { node: added[0], on: "pass".parse().unwrap_or_default() };
    /// let (graph, _) = graph.transaction(2, &[Edit::Add { program: program(8, "count"), place }])?;
    /// assert_eq!((graph.revision(), graph.reachable().len()), (3, 2));
    /// # Ok::<(), skep_net::chain::EditError>(())
    /// ```
    ///
    /// # Errors
    /// The first edit that cannot be done, or what is wrong with the whole.
    pub fn transaction(
        &self,
        revision: u64,
        edits: &[Edit],
    ) -> Result<(Self, Vec<NodeId>), EditError> {
        if revision != 0 && revision != self.revision {
            return Err(EditError::Stale { expected: revision, is: self.revision });
        }
        let mut graph = self.clone();
        let mut added = Vec::new();
        for edit in edits {
            added.extend(graph.edit(edit)?);
        }
        graph.check()?;
        graph.revision += 1;
        Ok((graph, added))
    }

    /// Checks what holds for a whole graph.
    ///
    /// # Errors
    /// What is wrong with it.
    pub fn check(&self) -> Result<(), EditError> {
        if self.nodes.len() > Plan::MOST {
            return Err(EditError::Full);
        }
        let mut programs = self.nodes.values().map(|n| &n.program);
        if let Some(first) = programs.next() {
            for program in programs {
                let what = if program.prog_type != first.prog_type {
                    "type"
                } else if program.attach_type != first.attach_type {
                    "attach type"
                } else if program.device != first.device {
                    "interface"
                } else {
                    continue;
                };
                let (program, other) = (program.name.clone(), first.name.clone());
                return Err(EditError::Kind { program, other, what });
            }
        }
        match self.cycle().filter(|_| self.cycles == Cycles::Bounded) {
            Some(cycle) => Err(EditError::Cycle { path: self.path_text(&cycle) }),
            None => Ok(()),
        }
    }

    fn edit(&mut self, edit: &Edit) -> Result<Option<NodeId>, EditError> {
        match edit {
            Edit::Add { program, place } => {
                let id = NodeId(self.next);
                self.next = self.next.checked_add(1).ok_or(EditError::Full)?;
                self.nodes.insert(id, Node::new(program.clone()));
                self.put(id, *place)?;
                return Ok(Some(id));
            }
            Edit::Remove { node, bridge } => {
                self.bridge(*node, *bridge)?;
                self.nodes.remove(node);
            }
            Edit::Move { node, place, bridge } => {
                self.bridge(*node, *bridge)?;
                let moved = self.get(*node)?;
                moved.edges = [None; OTHER + 1];
                self.put(*node, *place)?;
            }
            Edit::Replace { node, program, expected } => {
                let found = self.get(*node)?;
                if expected.is_some_and(|id| id != found.program.id) {
                    return Err(EditError::Unexpected { node: *node, what: "program" });
                }
                found.program = program.clone();
            }
            Edit::Connect { from, on, edge, expected } => {
                self.connect(*from, *on, *edge, *expected)?;
            }
            Edit::Disconnect { from, on } => {
                let node = self.get(*from)?;
                let slots = slots(*on)?;
                if slots.iter().any(|slot| node.edges[*slot].is_none()) {
                    return Err(EditError::NoEdge { node: *from, on: *on });
                }
                slots.iter().for_each(|slot| node.edges[*slot] = None);
            }
            Edit::Entry(entry) => {
                if let Some(node) = entry {
                    self.get(*node)?;
                }
                self.entry = *entry;
            }
            Edit::Budget { budget: 0, .. } => return Err(EditError::Zero),
            Edit::Budget { budget, exhausted } => {
                (self.budget, self.exhausted) = (*budget, *exhausted);
            }
        }
        Ok(None)
    }

    fn get(&mut self, node: NodeId) -> Result<&mut Node, EditError> {
        self.nodes.get_mut(&node).ok_or(EditError::NoNode { node })
    }

    /// Puts a node that nothing leads to into its place.
    fn put(&mut self, id: NodeId, place: Place) -> Result<(), EditError> {
        match place {
            Place::Loose => {}
            Place::First { on } => {
                if let Some(first) = self.entry.replace(id) {
                    let node = self.get(id)?;
                    slots(on)?.iter().for_each(|slot| node.edges[*slot] = Some(first.into()));
                }
            }
            Place::After { node, .. } if node == id => return Err(EditError::Itself { node }),
            Place::After { node: before, on } => {
                let slots = slots(on)?;
                let before = self.get(before)?;
                let old: Vec<_> = slots.iter().map(|slot| before.edges[*slot]).collect();
                slots.iter().for_each(|slot| before.edges[*slot] = Some(id.into()));
                let node = self.get(id)?;
                slots.iter().zip(old).for_each(|(slot, old)| node.edges[*slot] = old);
            }
        }
        Ok(())
    }

    fn connect(
        &mut self,
        from: NodeId,
        on: Verdicts,
        edge: Edge,
        expected: Option<Option<Edge>>,
    ) -> Result<(), EditError> {
        if edge.bound == Some(0) {
            return Err(EditError::Zero);
        }
        if let To::Node(to) = edge.to {
            self.get(to)?;
        }
        let node = self.get(from)?;
        let slots = slots(on)?;
        if let Some(expected) = expected
            && slots.iter().any(|slot| node.edges[*slot] != expected)
        {
            return Err(EditError::Unexpected { node: from, what: "edge" });
        }
        slots.iter().for_each(|slot| node.edges[*slot] = Some(edge));
        Ok(())
    }

    /// Makes the edges to a node lead past it.
    fn bridge(&mut self, id: NodeId, bridge: Bridge) -> Result<(), EditError> {
        let gone = self.get(id)?.clone();
        let past = |slot: usize| -> Option<Edge> {
            let edge = match bridge {
                Bridge::SameVerdict => gone.at(slot),
                Bridge::Wildcard => gone.any().unwrap_or(Edge::to(To::Keep)),
                Bridge::End(verdict) => Edge::to(To::End(verdict)),
            };
            // An edge of the node to itself leads nowhere now.
            Some(edge).filter(|e| e.to != To::Node(id) && e.to != To::Keep)
        };
        let keep = Edge::to(To::Keep);
        let leads_there = |e: &Option<Edge>| e.is_some_and(|e| e.to == To::Node(id));
        for (_, node) in self.nodes.iter_mut().filter(|(other, _)| **other != id) {
            let [own @ .., any] = &mut node.edges;
            if leads_there(any) {
                // Verdicts that came by the wildcard part where the node had edges of their own.
                *any = past(OTHER);
                for (slot, edge) in own.iter_mut().enumerate().filter(|(_, e)| e.is_none()) {
                    let to = past(slot);
                    if to != *any {
                        *edge = to.or(Some(keep));
                    }
                }
            }
            for (slot, edge) in own.iter_mut().enumerate().filter(|(_, e)| leads_there(e)) {
                // The wildcard must not take what had an edge of its own.
                *edge = past(slot).or(any.map(|_| keep));
            }
        }
        if self.entry == Some(id) {
            let node = |e: Edge| if let To::Node(n) = e.to { Some(n) } else { None };
            let others = || gone.edges().into_iter().filter_map(|(_, e)| node(e));
            let only = others().next().filter(|first| others().all(|n| n == *first));
            self.entry = gone.any().and_then(node).or(only).filter(|n| *n != id);
        }
        Ok(())
    }
}

/// The slots of a set: the wildcard is one.
fn slots(on: Verdicts) -> Result<Vec<usize>, EditError> {
    let slots: Vec<usize> = if on.is_any() { vec![OTHER] } else { on.own().collect() };
    if slots.is_empty() { Err(EditError::NoVerdict) } else { Ok(slots) }
}
