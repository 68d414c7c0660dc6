//! skep: the eBPF subsystem outside the kernel, as a library.
//!
//! A **loader** turns an object into files in a [`Dir`] ([`load::Loader`], [`link::Link`]); a
//! **target** opens them, compiles the programs and hooks its own functions ([`agent::start`],
//! called by the preloaded library); a **reader** opens the maps, also after the target was killed.
//! Nothing else connects the three.
//!
//! The feature `loader` (on by default) brings the object reader and the verifier; targets do
//! without.

pub mod agent;
mod blocked;
mod clock;
#[cfg(feature = "loader")]
mod convert;
pub mod dir;
mod error;
mod exec;
pub mod helpers;
#[cfg(feature = "loader")]
pub mod kconfig;
pub mod link;
#[cfg(feature = "loader")]
pub mod load;
pub mod memory;
#[allow(dead_code, reason = "packets are made by test runs, which targets do without")]
mod packet;
pub mod profile;
pub mod prog;
#[cfg(feature = "loader")]
pub mod prototypes;
#[cfg(feature = "loader")]
pub mod prove;
mod record;
pub mod run;
mod seccomp;
mod syscall;
mod tail;
#[cfg(feature = "loader")]
pub mod test_run;
#[cfg(feature = "loader")]
pub mod types;
mod wire;

pub use dir::{Dir, DirError};
pub use error::Error;
pub use record::RecordError;
pub use skep_isa as isa;
pub use skep_maps as maps;
#[cfg(feature = "loader")]
pub use skep_object as object;
#[cfg(feature = "loader")]
pub use skep_verifier as verifier;
