//! Chains as data: edits against a naive model, and the three front ends against their tables.

mod edits;
mod engines;
mod libxdp;
mod model;
mod mprog;
mod priority;
mod seed;
mod swap;
