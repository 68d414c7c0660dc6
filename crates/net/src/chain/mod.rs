//! Chains: packet programs in sequence, the next one chosen by the verdict of the one before.
//!
//! # What a chain is
//!
//! A [`Graph`] has *nodes*, each a program, and *edges* from a node by verdict: by one, a set, a
//! range, or by any (the wildcard). An edge leads to another node, ends the chain with a fixed
//! verdict ([`To::End`]), or keeps the program's ([`To::Keep`]), as does a verdict without an edge.
//! A verdict's own edge goes before the wildcard. Verdicts 0 to 31 and -1 can have edges of their
//! own; others take the wildcard.
//!
//! All programs of a run see one context, and the packet as the one before left it; registers and
//! stack are fresh for each. A run has [`BUDGET`] programs at most, or as many as the graph says.
//! The last verdict stands then, or it is 0 ([`Exhausted`]).
//!
//! # Rules
//!
//! * A graph changes by *transactions* ([`Graph::transaction`]): all edits or none, checked as a
//!   whole. Each makes the revision larger by one. A transaction can name the revision that it
//!   builds on, an edit what it expects to find.
//! * Cycles are refused, with their path, unless an edge of them has a bound.
//! * Programs of a chain are of one type and attach type, and bound to the same interface or to
//!   none. Packets of several buffers may come only if all programs take them.
//! * Removing a node bridges it: what led there leads on as the [`Bridge`] says.
//!
//! # Front ends
//!
//! | module | like | places are named by |
//! |---|---|---|
//! | [`seed`] | the proposed `PROG_CHAIN_ADD`, `_DEL`, `_GET` (2019) | program and return code |
//! | [`priority`] | libxdp | priority and `chain_call_actions` |
//! | [`mprog`] | tcx | before, after, replace |
//!
//! Each ends in a graph, so there is one engine, and each keeps its own limits and error numbers.
//!
//! # How it changes while it runs
//!
//! Readers take one immutable, compiled chain for a packet ([`swap::Current`]), so a packet sees the
//! old chain or the new one, never parts of both.
//!
//! # How it runs
//!
//! A graph becomes a [`Plan`](skep_vm::chain::Plan): steps by number, edges by bits of verdicts.
//! The code generator makes one piece of machine code of the plan and the programs' instructions,
//! in which a program ends with a jump to the next one; the interpreter follows the plan. Neither
//! knows this crate.

pub mod edit;
pub mod graph;
pub mod mprog;
pub mod priority;
pub mod seed;
pub mod stats;
pub mod swap;
pub mod verdicts;

pub use edit::{Bridge, Edit, EditError, Place};
pub use graph::{BUDGET, Cycles, Edge, Graph, Node, NodeId, NodeParts, Parts, ProgramRef, To};
pub use skep_vm::chain::Exhausted;
pub use stats::{EdgeKey, EdgeStats, NodeStats, Stats};
pub use verdicts::{UnknownVerdict, Verdicts};
