//! Links as files: a program tied to the functions that match its patterns.

pub mod attach_type;
pub mod control;
pub mod file;
pub mod mapped;
pub mod pattern;
pub mod selection;
pub mod types;

pub use attach_type::FunctionAttachType;
pub use file::{
    AgentRecord, Context, Cookie, ENTRY_ONLY, FoundFunction, FunctionRecord, LinkFile, LinkProbe,
    LinkProgram, LinkSpec, LinkState, LinkTarget, TAG_UNTRACED, Untraced,
};
pub use mapped::MappedModule;
pub use pattern::{Pattern, PatternError};
pub use selection::{InModule, Selection};
pub use types::Types;
