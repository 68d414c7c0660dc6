//! The vocabulary of eBPF: what the kernel and libbpf call things, as Rust tables.
//!
//! This crate holds no behavior of a running system. It names instructions ([`Insn`], [`op`]),
//! program and attach types ([`ProgramType`], [`AttachType`]), map types ([`MapType`]), helper
//! prototypes ([`helper`]), section names ([`sec`]) and the memory a program sees as its context
//! ([`ctx`]). Every other crate speaks these words, so a new kernel value is one row here.
//!
//! It does no I/O and has no unsafe code.
#![forbid(unsafe_code)]

pub mod ctx;
pub mod errno;
pub mod helper;
pub mod insn;
mod key;
pub mod kfunc;
pub mod map;
mod map_type;
pub mod op;
pub mod prog;
pub mod sec;
pub mod text;

pub use helper::{ArgType, Helper, HelperId, RetType};
pub use insn::Insn;
pub use map::{KeyShape, MAP_TYPES, MapFlags, MapShape, MapType, MapTypeRow, ShapeKind};
pub use prog::{AttachType, ProgramType};

/// A hash of the sources of this crate: what was found out by others may be otherwise.
pub const SOURCES: &str = env!("SKEP_SOURCES");
