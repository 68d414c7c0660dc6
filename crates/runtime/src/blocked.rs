//! Functions of the C library that block all signals by themselves while they call others: those
//! that start threads and children, and what ends a thread.
//!
//! The kernel ends a process at a fault whose signal is blocked, so a hook must not find that
//! memory is gone ([`crate::memory`]) before the signal is let through. Nobody sees the library's
//! own system calls; these functions are hooked instead.

use std::ffi::CStr;

use skep_attach::{Position, signals};

use crate::exec::libc::Libc;
use crate::own_hooks::{OwnHooks, hook};

/// All but the last block signals until they return. The last is the first function that a thread calls at
/// its end, after which it blocks them for good (`start_thread` in nptl/pthread_create.c; `exit` calls it
/// too).
pub(crate) const FUNCTIONS: [&CStr; 4] =
    [c"pthread_create", c"posix_spawn", c"posix_spawnp", c"__call_tls_dtors"];

/// Hooks them.
pub(crate) fn watch(libc: &Libc) {
    // SAFETY: they use no vector registers.
    let (entry, exit) = unsafe { (hook(Position::Entry, on_entry), hook(Position::Exit, on_exit)) };
    let mut own = OwnHooks::default();
    let [until_return @ .., last] = FUNCTIONS;
    for name in until_return {
        own.add(libc.function(name), &[entry, exit]);
    }
    own.add(libc.function(last), &[entry]);
    own.attach();
}

#[unsafe(link_section = ".text.skep_event")]
unsafe extern "C" fn on_entry(_: *mut u64, _: *const ()) -> u64 {
    signals::begin_blocked();
    0
}

#[unsafe(link_section = ".text.skep_event")]
unsafe extern "C" fn on_exit(_: *mut u64, _: *const ()) -> u64 {
    signals::end_blocked();
    0
}
