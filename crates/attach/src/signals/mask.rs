//! What a program has blocked, and what the kernel blocks for it: signals of faults are let
//! through.

use super::action::{SIGBUS, keeps};
use super::handled::handled;
use crate::per_thread::block::own;
use crate::per_thread::register;
use crate::sys::{self, TOO_LARGE};
use std::sync::atomic::Ordering;

const SIG_BLOCK: i32 = 0;

const SIG_UNBLOCK: i32 = 1;

/// What a program wants blocked in place of what the kernel blocks: a fault in a hook ends the
/// process where `SIGBUS` or `SIGSEGV` is blocked, and programs block all signals while they handle
/// one, or start a child. A library that interposes `sigprocmask` asks for both masks here. That
/// the program holds such a signal back matters when somebody sends it: then it is really blocked,
/// and sent again.
#[derive(Clone, Copy, Debug)]
pub struct Mask {
    pub(super) held: u64,
}

impl Mask {
    /// The calling thread's; `None` while the engine handles no faults or does not know the thread.
    #[must_use]
    pub fn of_thread() -> Option<Self> {
        let block = own();
        if block.is_null() || !keeps(SIGBUS) {
            return None;
        }
        // SAFETY: blocks are never unmapped.
        Some(Self { held: u64::from(unsafe { (*block).held.load(Ordering::Relaxed) }) })
    }

    /// What of the signals `new` the kernel is told to block.
    #[must_use]
    pub fn kernels(new: u64) -> u64 {
        new & !handled()
    }

    /// What the program is told is blocked where the kernel says `old`.
    #[must_use]
    pub fn programs(self, old: u64) -> u64 {
        old | self.held
    }

    /// Notes what the thread has asked for: `how` as for `sigprocmask`.
    pub fn changed(self, how: i32, new: u64) {
        let held = match how {
            SIG_BLOCK => self.held | new & handled(),
            SIG_UNBLOCK => self.held & !new,
            _ => new & handled(),
        };
        set_held(held);
    }

    /// Takes that back.
    pub fn restore(self) {
        set_held(self.held);
    }
}

fn set_held(held: u64) {
    let block = own();
    if !block.is_null() {
        // SAFETY: blocks are never unmapped.
        unsafe { (*block).held.store(held as u32, Ordering::Relaxed) };
    }
}

/// Lets signals of faults through in the calling thread, which is the tracer's own and blocks all: its
/// faults come to the engine's handlers, and what others send the process stays for the program's threads.
/// A signal that came here nevertheless is blocked until the next call.
pub fn let_faults_through() {
    register::let_through(None, sys::signal_mask(), handled(), false);
}

/// To be called in a hook at the entry of a function that blocks all signals by itself for a while,
/// as the C library does where threads and children are started: a fault in a hook would be the end
/// of the process then. Each of the thread's events until [`end_blocked`] lets signals of faults
/// through, by a system call, until they were found blocked: the function sets the thread's mask
/// when it is done.
#[inline(always)]
pub fn begin_blocked() {
    register::set_blocked(true);
}

/// The thread leaves that function.
#[inline(always)]
pub fn end_blocked() {
    register::set_blocked(false);
}

/// Keeps the thread's signals, but for those of faults, waiting until it is dropped. What files of ours
/// became too large for (`RLIMIT_FSIZE`) does not end the program: that signal is taken away.
#[derive(Debug)]
pub struct Blocked {
    before: u64,
}

impl Blocked {
    /// Blocks them.
    #[must_use]
    pub fn new() -> Self {
        Self { before: sys::block_signals() }
    }
}

impl Default for Blocked {
    fn default() -> Self {
        Self::new()
    }
}

impl Drop for Blocked {
    #[inline(never)]
    fn drop(&mut self) {
        // What the program has blocked itself may be its own.
        if self.before & TOO_LARGE == 0 {
            sys::take_waiting(TOO_LARGE);
        }
        sys::set_signal_mask(self.before);
    }
}
