//! Runs eBPF programs: an interpreter, and machine code made one instruction at a time.
//!
//! [`Code`] is a compiled program, [`interp`] runs the same instructions without compiling; both
//! take the program's surroundings as an [`Env`]: which memory its maps are and which functions its
//! helpers are. The interpreter is the oracle that the code generator is tested against, and the
//! fallback where there is no generator.
//!
//! This crate knows no maps, no object files and no program types, and proves nothing: a program's
//! loads and stores go where the program says. What keeps that safe is the verifier, so running is
//! `unsafe` here. Only the *shape* of a program is checked (known opcodes, jumps that land on
//! instructions): no instruction stream makes this crate panic.

mod bytes;
pub mod chain;
mod check;
mod env;
mod exec;
pub mod fault;
pub mod gdb;
pub mod interp;
mod jit;
pub mod lookahead;
mod opcode;
pub mod perf;
pub mod tail;

pub use check::Malformed;
pub use env::{Env, HelperCall, HelperFn, HelperImpl, MapRef};
pub use jit::{Code, CompileError, Cpu};

/// Whether this crate is compiled with so much optimization that its part of the event path uses
/// no vector registers.
pub const IS_OPTIMIZED: bool = matches!(env!("SKEP_OPT_LEVEL").as_bytes(), b"2" | b"3");

/// Rounds that `may_goto` allows in one activation of a function (include/linux/bpf.h
/// `BPF_MAX_LOOPS`).
pub const MAY_GOTO_ROUNDS: u64 = 8 * 1024 * 1024;
