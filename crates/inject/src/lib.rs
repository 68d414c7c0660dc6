//! Stopping a running process, changing it, and letting it go as it was: what attaching to a
//! process needs that was not started for it.
//!
//! Nothing of the process is used for that: not its dynamic linker, its C library, its heap, its
//! files or its stack. So it may be of any language, static, in another mount namespace, and stand
//! anywhere, also while it holds locks. Everything goes through ptrace(2) and `/proc/PID/mem`, and
//! through system calls that one of its threads makes.
//!
//! * [`stop`] stops all threads, and lets them go on when its closure ends, also if that panics;
//!   [`stop_others`] all but one;
//! * [`Target`] is the stopped process: memory, mappings, descriptors, registers;
//! * [`Image`] is a shared library that [`Target::load`] puts there without a dynamic linker, and
//!   [`Target::start_thread`] makes a thread that runs it;
//! * [`Tracer`] follows processes for longer: what they make and execute stands before it begins;
//! * [`Error`] names the step that failed and what would help.
//!
//! A tracer that is killed at any time leaves a process that goes on rightly (`call.rs` says how).
//!
//! Not here: what the library does in the process, and where hooks go. x86-64 only; programs of 32 bits are
//! refused.

mod call;
mod error;
mod files;
mod follow;
mod image;
mod load;
mod memory;
mod registers;
mod rseq;
mod sandbox;
mod start;
mod stop;
mod stub;
mod sys;
mod target;
mod task;
mod thread_words;
mod wake;

pub use error::{Error, Refusal, Unfit};
pub use follow::{Event, Tracer};
pub use image::{Image, ImageError};
pub use load::Loaded;
pub use registers::{NO_CALL, Registers, Restart};
pub use sandbox::Judge;
pub use stop::check;
pub use sys::{NoTerminalStops, share_memory};
pub use target::{Target, stop, stop_others};
