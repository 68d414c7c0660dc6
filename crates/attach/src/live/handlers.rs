//! The engine's handlers of `SIGTRAP` and of the signal that stops threads.

use super::{breakpoints, stop_the_world};
use crate::jump::PATCH;
use crate::signals::action::{SA_NODEFER, SA_RESTART, SIG_DFL, SIGTRAP, STOP_WORLD, TRAP};
use crate::signals::context::{Context, Info, RIP, RSP, SI_KERNEL, SI_QUEUE};
use crate::signals::pass_on::pass_on;
use crate::skip::Skip;
use crate::sys;
use std::sync::atomic::Ordering;

/// Installs the handlers, or puts them back where the program replaced them behind the engine's
/// back. Returns the number of the signal that stops threads.
pub(crate) fn install() -> Result<i32, Skip> {
    let refused = |errno| Skip::Protected { errno };
    // SAFETY: made for it.
    unsafe { TRAP.install(SIGTRAP, on_trap as *const () as usize, SA_NODEFER) }.map_err(refused)?;
    let mut signal = STOP_WORLD.signal.load(Ordering::Acquire);
    if signal == 0 {
        // A real-time signal that nobody uses; the first few and 32, 33 are the C library's.
        let unused = |s: &i32| {
            // SAFETY: only asks.
            unsafe { sys::sigaction(*s, None) }.is_ok_and(|a| a.handler == SIG_DFL)
        };
        signal = (36..=62).rev().find(unused).ok_or(Skip::Signals)?;
    }
    // SAFETY: made for it.
    unsafe { STOP_WORLD.install(signal, on_stop as *const () as usize, SA_RESTART) }
        .map_err(refused)?;
    Ok(signal)
}

unsafe extern "C" fn on_trap(signal: i32, info: *const Info, context: *mut Context) {
    // SAFETY: the kernel hands valid pointers to a SA_SIGINFO handler.
    let (code, registers) = unsafe { ((*info).code, &mut (*context).registers) };
    if code == SI_KERNEL || code > 0 {
        let at = registers[RIP].wrapping_sub(1);
        // SAFETY: this thread has just run the breakpoint at `at`.
        match unsafe { breakpoints::trapped(at) } {
            breakpoints::Trapped::Jump(to) => return registers[RIP] = to,
            breakpoints::Trapped::Call(to) => {
                registers[RSP] = registers[RSP].wrapping_sub(8);
                // SAFETY: the thread was about to make this very push.
                unsafe { (registers[RSP] as *mut u64).write(at.wrapping_add(PATCH as u64)) };
                return registers[RIP] = to;
            }
            breakpoints::Trapped::Gone => return registers[RIP] = at,
            breakpoints::Trapped::Foreign => {}
        }
    }
    // SAFETY: the kernel's own arguments, for the same signal.
    unsafe { pass_on(&TRAP, signal, code, info, context) };
}

unsafe extern "C" fn on_stop(signal: i32, info: *const Info, context: *mut Context) {
    // SAFETY: the kernel hands valid pointers to a SA_SIGINFO handler.
    let (code, pid, value, registers) =
        unsafe { ((*info).code, (*info).pid, (*info).value, &mut (*context).registers) };
    if code == SI_QUEUE && pid as u32 == sys::getpid() && value == stop_the_world::token() {
        stop_the_world::stop_here(&mut registers[RIP], context as u64);
        return;
    }
    // SAFETY: the kernel's own arguments, for the same signal.
    unsafe { pass_on(&STOP_WORLD, signal, code, info, context) };
}
