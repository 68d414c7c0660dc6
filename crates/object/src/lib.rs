//! Reads eBPF object files (clang, libbpf conventions): bytes in, programs, maps and types out.
//!
//! [`Object::parse`] takes an ELF file apart and [`Object::link`] makes one program ready for the
//! verifier: sub-programs appended, map references turned into indices, kernel functions into
//! helper numbers. [`Btf`] holds the type information and turns raw keys and values into
//! [`btf::Value`] trees and back. [`Linked::from_instructions`] takes a program that is in no file.
//!
//! Nothing here depends on the machine it runs on: the same bytes give the same result everywhere.
//! No file is opened, no map created, no kernel asked. Whatever the bytes are, the answer is a
//! value or an error: no panic, and memory in proportion to the file.
//!
//! The feature `dwarf` adds [`CoreTarget`]s made of a program's debug information.
#![forbid(unsafe_code)]

pub mod btf;
mod core;
#[cfg(feature = "dwarf")]
mod dwarf;
mod elf;
mod error;
mod global;
mod inspect;
mod kconfig;
mod link;
mod linked;
mod map;
mod object;
mod program;
mod proto;
mod raw_program;

pub use btf::Btf;
pub use core::{CoreTarget, POISON_CORE};
#[cfg(feature = "dwarf")]
pub use dwarf::{DwarfError, DwarfFunctions, Shared};
pub use error::{LinkError, ObjectError, RawProgramError};
pub use global::{Global, GlobalError};
pub use inspect::Relocation;
pub use kconfig::{KconfigKind, KconfigVar};
pub use link::{LinkOptions, POISON_KFUNC};
pub use linked::{Line, Linked, LinkedMap, Missing, Subprog};
pub use map::{InnerValue, MapSpec};
pub use object::Object;
pub use program::{Program, UnknownSection};
pub use proto::{
    Access, Composite, MAX_WORDS, Mismatch, Part, Place, Prototype, Value, ValueKind, Word,
};
pub use raw_program::{Handles, RawProgram, Records};

/// A hash of the sources of this crate: what was found out by others may be otherwise.
pub const SOURCES: &str = env!("SKEP_SOURCES");
