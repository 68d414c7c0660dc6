//! Signals that are not the engine's own: what the program wants to happen, and what a program that
//! is about to be executed inherits.

use super::action::{
    BUS, EngineSignal, SA_NODEFER, SA_RESETHAND, SEGV, SIG_DFL, SIG_IGN, SIGBUS, SIGSEGV,
    STOP_WORLD, TRAP,
};
use super::context::{Context, Info, SI_TKILL};
use super::mask::Mask;
use crate::per_thread::register::ALL_SIGNALS;
use crate::sys::KernelAction;
use crate::{process, sys};
use std::sync::atomic::Ordering;

/// Those that are let through where they are blocked.
const LET_THROUGH: u64 = 1 << (SIGBUS - 1) | 1 << (SIGSEGV - 1);

/// Leaves signals that the program ignores ignored in a program that is about to be executed, where
/// a handler of ours would become the default, and those blocked that it blocks. `reset`: signals,
/// by bit, that a child of `posix_spawn` is to have the default of.
///
/// The handlers are gone then, should the program not be executed.
pub fn prepare_exec(reset: u64) {
    // The thread's mask goes on to the program.
    if let Some(Mask { held }) = Mask::of_thread().filter(|mask| mask.held != 0) {
        sys::block_signal_set(held);
    }
    for owned in [&TRAP, &STOP_WORLD, &BUS, &SEGV] {
        let signal = owned.signal.load(Ordering::Acquire);
        if !owned.installed.load(Ordering::Acquire) || owned.action().handler != SIG_IGN {
            continue;
        }
        // SAFETY: only asks.
        let now = unsafe { sys::sigaction(signal, None) }.map_or(SIG_IGN, |a| a.handler);
        // A child of `posix_spawn` has put the default where it found a handler.
        let spawned = now == SIG_DFL && !process::is_own() && reset & (1 << (signal - 1)) == 0;
        if now == owned.own.load(Ordering::Acquire) || spawned {
            // SAFETY: what the program asked for.
            let _ = unsafe {
                sys::sigaction(
                    signal,
                    Some(&KernelAction { handler: SIG_IGN, ..KernelAction::default() }),
                )
            };
        }
    }
}

/// Does what the program wants to happen.
///
/// # Safety
///
/// Called from a handler for `signal` with its arguments.
pub(crate) unsafe fn pass_on(
    owned: &EngineSignal,
    signal: i32,
    code: i32,
    info: *const Info,
    context: *mut Context,
) {
    let action = owned.action();
    let sent = code <= 0;
    let bit = 1 << (signal - 1);
    // SAFETY: the kernel's own argument.
    let blocked = unsafe { (*context).mask };
    // A thread that blocks all others is one that begins, or the agent's: no signal of the program's is for it.
    let has_all = blocked | LET_THROUGH == ALL_SIGNALS;
    if sent && (has_all || Mask::of_thread().is_some_and(|mask| mask.held & bit != 0)) {
        // SAFETY: the kernel's own arguments; the thread's mask is this one when the handler
        // returns.
        unsafe {
            (*context).mask |= bit;
            sys::send_again(signal, info as u64, code == SI_TKILL);
        }
        return;
    }
    match action.handler {
        SIG_IGN if sent => {}
        SIG_DFL | SIG_IGN => {
            // The default of all four ends the process, as it does when a fault is ignored. From
            // now on it is the kernel's.
            owned.installed.store(false, Ordering::Release);
            // SAFETY: what the program asked for.
            let _ = unsafe { sys::sigaction(signal, Some(&KernelAction::default())) };
            sys::tgkill(sys::gettid(), signal);
            sys::unblock_signal(signal);
        }
        handler => {
            if action.flags & SA_RESETHAND != 0 {
                // SAFETY: the default; the rest stays, as the kernel leaves it.
                unsafe { owned.remember(&KernelAction { handler: SIG_DFL, ..action }) };
            }
            let own = if action.flags & SA_NODEFER == 0 { bit } else { 0 };
            // The kernel puts the old mask back when the handler returns.
            sys::set_signal_mask(blocked | Mask::kernels(action.mask) | own);
            // SAFETY: the program's handler, called as the kernel calls it; one without SA_SIGINFO
            // ignores the rest.
            unsafe {
                let handler: unsafe extern "C" fn(i32, *const Info, *mut Context) =
                    std::mem::transmute(handler);
                handler(signal, info, context);
            }
        }
    }
}
