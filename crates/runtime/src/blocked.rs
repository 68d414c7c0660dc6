//! Functions of the C library that block all signals by themselves while they call others: those
//! that start threads and children, and what ends a thread.
//!
//! The kernel ends a process at a fault whose signal is blocked, so a hook must not find that
//! memory is gone ([`crate::memory`]) before the signal is let through. Nobody sees the library's
//! own system calls; these functions are hooked instead.

use std::ffi::CStr;

use skep_attach::{Engine, Hook, Position, RunFn, signals};

use crate::exec::libc::Libc;

/// They block signals until they return.
const FUNCTIONS: [&CStr; 3] = [c"pthread_create", c"posix_spawn", c"posix_spawnp"];
/// The first function that a thread calls at its end, after which it blocks them for good
/// (`start_thread` in nptl/pthread_create.c; `exit` calls it too).
const LAST: &CStr = c"__call_tls_dtors";

/// Hooks them.
pub(crate) fn watch(libc: &Libc<'_>) {
    let Ok(engine) = Engine::get() else { return };
    // SAFETY: hooks that take no data and use no vector registers.
    let hook = |position, run: RunFn| unsafe { Hook::new(position, run, std::ptr::null()) };
    // Not found or refused: then it is as if this were not here.
    let attach = |name: &CStr, hooks: &[Hook]| {
        libc.function(name).map(|function| engine.attach(&[(&function, 0)], hooks))
    };
    for name in FUNCTIONS {
        attach(name, &[hook(Position::Entry, on_entry), hook(Position::Exit, on_exit)]);
    }
    attach(LAST, &[hook(Position::Entry, on_entry)]);
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
