//! skep: the eBPF subsystem outside the kernel, as a library.
#![warn(missing_docs)]

pub mod dir;
mod error;
pub mod link;
pub mod prog;
mod record;
mod wire;

pub use dir::{Dir, DirError};
pub use error::Error;
pub use record::RecordError;
