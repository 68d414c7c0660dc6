//! Links: a program tied to the functions that match its patterns.

pub mod file;
pub mod pattern;

pub use file::{AgentRecord, Context, Cookie, Found, FunctionRecord, LinkFile, LinkSpec, LinkState, When, control};
pub use pattern::{Pattern, PatternError};
