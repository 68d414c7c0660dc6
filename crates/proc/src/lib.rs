//! What a process is made of: its mappings, its ELF modules, their functions and names.
//!
//! The same questions are asked of a live process, of the own process (from inside a constructor,
//! before `main`), of a snapshot, a core file or a recording of perf, and get the same answers.
//! Nothing here changes a process; nothing here starts threads or trusts a byte
//! it reads: a malformed file or a torn answer is an error, never a panic.
//!
//! The types to know: [`maps::MapSource`] answers "what is mapped here?", `maps::Normalizer` turns
//! many addresses into files, [`module::Module`] is one loaded ELF file with its load bias,
//! [`elf::Elf`] reads a file's functions and tables, [`elf::Functions`] is the sorted result.
//!
//! A part of [skep](https://docs.rs/skep) that needs nothing of the rest, and can be used alone.
//!
//! [`unwind`] goes from a frame to its caller's by unwind tables.
//!
//! With the feature `symbolize`, [`symbolize`] also finds source lines and inlined functions, of
//! many addresses at once.
//!
//! Not here: anything that needs ptrace, or the network.

#![deny(unsafe_code)]

pub mod demangle;
pub mod elf;
pub mod file;
#[cfg(feature = "inflate")]
pub mod inflate;
mod ioctl;
pub mod launch;
pub mod libraries;
#[cfg(feature = "users")]
mod loader;
pub mod maps;
pub mod module;
pub mod namespace;
mod order;
#[doc(hidden)]
pub mod own_file;
#[doc(hidden)]
pub mod own_proc;
#[cfg(feature = "users")]
pub mod procmap_query;
pub mod symbolize;
pub mod unwind;
#[cfg(feature = "inflate")]
mod zstd;

/// The examples of the README.
#[cfg(all(doctest, feature = "symbolize"))]
#[doc = include_str!("../README.md")]
struct Readme;
