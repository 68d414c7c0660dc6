//! What the tests of this workspace share: target programs, compilers, temporary folders, a runner
//! with a time limit, the harness for `skep trace`, and [`skip()`]. The running kernel as an oracle
//! is the crate `skep-kernel`.
//!
//! For tests and benches only; no crate that is shipped imports it. Things that go wrong here panic
//! with a message, since a panic is how a test fails.
//!
//! The types to know: a [`Target`](target::Target) is a C or C++ program under `targets/` that
//! counts its own calls; a [`Build`](cc::Build) is one way to compile it; [`trace`] runs it under
//! `skep trace` and compares both counts.
//!
//! ```no_run
//! use skep_testkit::{cc::Build, target, trace};
//!
//! trace::check(target::named("threads"), Build::O2, trace::Scope::Own);
//! ```
#![forbid(unsafe_code)]

pub mod cc;
mod compiled;
pub mod many;
pub mod memory;
pub mod network;
pub mod program;
pub mod random;
pub mod report;
pub mod run;
pub mod skip;
pub mod target;
pub mod temp;
pub mod trace;
pub mod vmlinux;

pub use skip::skip;
pub use temp::TempDir;
