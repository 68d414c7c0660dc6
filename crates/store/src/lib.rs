//! Objects as files: the skep directory, and the files of programs, links and types in it.
//!
//! A loader writes these files, targets and readers open them; nothing else connects the three.
//! [`Dir`] names, pins and collects them. [`prog::Program`] is a verified program on its way from
//! the verifier to a target, [`link::LinkFile`] what a link attaches where, and what came of it in
//! every process, [`chain::ChainFile`] a chain at each revision. Maps are files too, of another format: `skep_maps` has them.
//!
//! Internal to skep: users call the crate `skep`.

pub mod btf;
pub mod chain;
pub mod code_cache;
mod collect;
pub mod counters;
pub mod dir;
mod error;
pub mod link;
pub mod live;
mod pin;
pub mod prog;
pub mod record;
mod restart;
pub mod wire;
pub mod words;

pub use dir::{Dir, DirError};
pub use error::Error;
pub use pin::PinNameError;
pub use record::RecordError;
