//! Chains: programs that run one after the other on the same context, the next one chosen by the
//! verdict of the one before.
//!
//! A [`Plan`] says which program follows which. It is all that this crate knows of a chain: what a
//! user calls one, with names, revisions and rules, is in the crate `net`.

pub mod plan;

pub use plan::{Edge, Exhausted, Plan, PlanError, Step, To};
