//! System calls of our own inside other people's processes, and whether one may still be made.
//!
//! Everything here is fit for the event path: no allocation, no `errno`, no vector registers, and
//! nothing of the C library's, whose functions may be hooked. It is not for loaders and readers,
//! which use `rustix`.
//!
//! * [`syscall`]: system calls by number;
//! * [`dl`]: what the dynamic linker finds, where there is one; not for events;
//! * [`old_glibc`]: functions that old versions of glibc lack;
//! * [`sandbox`]: the flag that ends them all, in a program that has entered a sandbox;
//! * [`thread_words`]: words for each thread in a process whose loader does not know us.
//!
//! Internal to skep.

pub mod dl;
pub mod old_glibc;
pub mod sandbox;
pub mod syscall;
pub mod thread_words;

use std::arch::asm;

/// Whether this crate is compiled with so much optimization that its part of the event path uses
/// no vector registers.
pub const IS_OPTIMIZED: bool = matches!(env!("SKEP_OPT_LEVEL").as_bytes(), b"2" | b"3");

/// Returns the thread pointer: it tells threads of a process apart, but for a child of `vfork` or
/// `clone(CLONE_VM)`, which may have that of the thread that made it.
#[inline(always)]
#[must_use]
pub fn thread() -> u64 {
    let thread;
    // SAFETY: the first word of the thread control block is its own address.
    unsafe {
        asm!("mov {}, qword ptr fs:[0]", out(reg) thread, options(nostack, readonly, preserves_flags))
    };
    thread
}
