//! Links: a program tied to the functions that match its patterns.

pub(crate) mod attach_point;
#[cfg(feature = "loader")]
mod create;
pub mod file;
pub mod pattern;
pub mod selection;
pub mod types;

#[cfg(feature = "loader")]
pub use create::{AttachError, Link, Missed, create_log};
#[cfg(feature = "loader")]
pub(crate) use create::{functions, listed};
pub(crate) use file::TAG_UNTRACED;
pub use file::{
    AgentRecord, Context, Cookie, ENTRY_ONLY, Found, FunctionRecord, LinkFile, LinkSpec, LinkState,
    Untraced, When, control,
};
pub use pattern::{Pattern, PatternError};
pub use selection::Selection;
pub use types::Types;
