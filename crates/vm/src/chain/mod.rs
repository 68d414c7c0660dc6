//! Chains: programs that run one after the other on the same context, the next one chosen by the
//! verdict of the one before.
//!
//! A [`Plan`] says which program follows which. It is all that this crate knows of a chain: what a
//! user calls one, with names, revisions and rules, is in the crate `net`. [`Unit`] is a chain as
//! machine code, [`Interpreted`] the same for the interpreter; both count the same things
//! ([`counters`]).

pub mod counters;
mod interp;
pub mod plan;
mod unit;
mod walk;

use skep_isa::Insn;

pub use interp::Interpreted;
pub use plan::{Exhausted, Plan, PlanEdge, PlanError, Step, To};
pub use unit::{ChainError, Counting, Unit};

use crate::env::Env;

/// The program of one step.
#[derive(Clone, Copy, Debug)]
pub struct Part<'a> {
    /// Its instructions.
    pub insns: &'a [Insn],
    /// Its maps and helpers.
    pub env: &'a Env<'a>,
}

/// What is counted.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub enum Count {
    /// Nothing.
    #[default]
    Off,
    /// Runs by verdict, bytes, edges.
    Runs,
    /// The same, and the time of each program. Reading the clock takes longer than most programs of
    /// a few instructions.
    Timed,
}

/// Words of a context that tell how large a packet is: `end - start + more`. Offsets from the
/// context, of 64-bit words.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct PacketSize {
    /// The address of the first byte.
    pub start: i32,
    /// The address behind the last byte.
    pub end: i32,
    /// Bytes elsewhere.
    pub more: i32,
}

/// How a chain is made.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Options {
    /// What is counted.
    pub count: Count,
    /// Where packets are, if their bytes are to be counted too.
    pub bytes: Option<PacketSize>,
}

impl Options {
    /// Tells whether anything is counted.
    #[must_use]
    pub fn is_counting(&self) -> bool {
        self.count != Count::Off
    }
}
