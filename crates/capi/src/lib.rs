//! libskep: skep for programs in C, and in every language that calls C.
//!
//! Each function of `include/skep.h`, where they are documented, has its body here. All of them
//! are thin: what a function does is in the crate `skep`. This crate adds the border:
//!
//! * A handle is a number that looks like a pointer. It is looked up, never followed, and never
//!   given out twice, so a handle that was freed, or is of another kind, is an error
//!   ([`handle`](mod@handle)).
//! * A function answers zero or more, or a negative error number; the text is kept for the thread.
//!   A panic does not cross the border where panics unwind, as in the profile `capi`; where they
//!   abort, it ends the process ([`call`](mod@call)).
//! * Structs come with their size, so that program and library may be of different versions
//!   ([`memory`]).
//!
//! Rust programs use the crate `skep`.

// Every function takes addresses from C.
#![allow(unsafe_code)]

skep_sys::define_for_old_glibc!();

pub mod attach;
pub mod call;
pub mod chain;
pub mod dump;
pub mod errno;
pub mod handle;
pub mod map;
pub mod memory;
pub mod object;
pub mod ordered;
pub mod process;
pub mod ring;
pub mod session;
pub mod test_run;
pub mod vmas;
