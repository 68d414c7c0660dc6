//! The target's side: opens the links that a process is asked to attach, compiles their programs and
//! hooks the functions they match; and running programs in general.
//!
//! * [`start`]: what the preloaded library calls, or a program that attaches to itself;
//! * [`agent`]: the links of a process;
//! * [`directory`]: the one directory whose programs a process runs;
//! * [`run`]: a compiled program as a hook;
//! * [`compile`]: programs made ready for either engine;
//! * [`tail`]: the programs that tail calls lead to;
//! * [`memory`]: files that are cut off or full while they are mapped.
//!
//! All of it runs inside other people's processes. Nothing is loaded from objects or verified here:
//! a target opens files that a loader wrote ([`skep_store`]). Internal to skep.

pub mod agent;
mod blocked;
pub mod compile;
mod detach_func;
pub mod directory;
mod exec;
pub mod heap;
pub mod helpers;
pub mod memory;
mod own_hooks;
mod own_thread;
pub mod prepare;
mod profile;
pub mod run;
mod seccomp;
pub mod start;
pub mod tail;
mod unwinders;

pub use seccomp::{
    lets_agent_in, lets_own_table, own_filters_let_agent_in, own_filters_let_own_table,
};
pub use skep_attach::signals;
pub use skep_store::live;
mod vectors;

/// Whether this crate is compiled with so much optimization that its part of the event path uses no
/// vector registers.
pub const IS_OPTIMIZED: bool = matches!(env!("SKEP_OPT_LEVEL").as_bytes(), b"2" | b"3");
