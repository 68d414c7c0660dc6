//! Faults: stores to memory that a full file system cannot give, loads that find nothing, which the
//! engine's user handles; and code that goes while the engine looks at it.

use super::action::{BUS, SEGV, SIGBUS, SIGSEGV};
use super::context::{Context, ERROR, Info, RIP};
use super::pass_on::pass_on;
use super::{gone, handled};
use crate::per_thread::register;
use std::sync::atomic::{AtomicUsize, Ordering};

/// An `unsafe fn(u64) -> Option<u64>`, or 0.
static FIXUP: AtomicUsize = AtomicUsize::new(0);

/// An `unsafe fn(u64) -> bool`, or 0.
static REPAIR: AtomicUsize = AtomicUsize::new(0);

/// Puts a handler on `SIGBUS`, which a store to memory of a file system that is full raises.
/// `repair` is asked with the address whether it has put other memory there; if not, the signal is
/// the program's.
///
/// # Errors
/// An errno value, when the kernel refuses the handler.
///
/// # Safety
/// `repair` may run in a signal handler, which interrupts any code of the process, locks held, and
/// it says that there is memory now only where the store can be done again and nobody is deceived
/// by what is there.
///
/// ```compile_fail,E0133
/// let _ = skep_attach::signals::on_memory_full(|_| true);
/// ```
pub unsafe fn on_memory_full(repair: unsafe fn(u64) -> bool) -> Result<(), i32> {
    REPAIR.store(repair as usize, Ordering::Release);
    // SAFETY: made for it.
    unsafe { BUS.install(SIGBUS, on_bus as *const () as usize, 0) }?;
    if handled::begin(SIGBUS) {
        register::let_new_faults_through();
    }
    Ok(())
}

unsafe extern "C" fn on_bus(signal: i32, info: *const Info, context: *mut Context) {
    let repair = REPAIR.load(Ordering::Acquire);
    // SAFETY: the kernel hands valid pointers to a SA_SIGINFO handler; for faults the word behind
    // the code is the address.
    let (code, addr) =
        unsafe { ((*info).code, (&raw const (*info).pid).cast::<u64>().read_unaligned()) };
    if code > 0 && repair != 0 {
        // SAFETY: only `on_memory_full` stores there, and stores a function of this type.
        let repair: unsafe fn(u64) -> bool = unsafe { std::mem::transmute(repair) };
        // SAFETY: the kernel says that this is where there is no memory.
        if unsafe { repair(addr) } {
            return;
        }
    }
    // SAFETY: the kernel's own arguments, for the same signal.
    unsafe { pass_on(&BUS, signal, code, info, context) };
}

/// Puts a handler on `SIGSEGV`, for loads that may find no memory. `fixup` is asked with the
/// address of the instruction where to continue; if it does not know, the signal is the program's.
///
/// # Errors
/// An errno value, when the kernel refuses the handler.
///
/// # Safety
/// `fixup` may run in a signal handler, on the thread that faulted at the address it is given, and
/// where it says that the thread goes on, it can.
///
/// ```compile_fail,E0133
/// let _ = skep_attach::signals::on_bad_load(|_| Some(8));
/// ```
pub unsafe fn on_bad_load(fixup: unsafe fn(u64) -> Option<u64>) -> Result<(), i32> {
    FIXUP.store(fixup as usize, Ordering::Release);
    handle_segv()?;
    if handled::begin(SIGSEGV) {
        register::let_new_faults_through();
    }
    Ok(())
}

/// Tells whether there are loads that may find no memory.
pub(super) fn is_wanted() -> bool {
    FIXUP.load(Ordering::Acquire) != 0
}

/// Puts the handler on `SIGSEGV`.
pub(super) fn handle_segv() -> Result<(), i32> {
    // SAFETY: made for it.
    unsafe { SEGV.install(SIGSEGV, on_segv as *const () as usize, 0) }
}

unsafe extern "C" fn on_segv(signal: i32, info: *const Info, context: *mut Context) {
    let fixup = FIXUP.load(Ordering::Acquire);
    // SAFETY: the kernel hands valid pointers to a SA_SIGINFO handler; for faults the word behind the
    // code is the address.
    let (code, registers, addr) = unsafe {
        let addr = (&raw const (*info).pid).cast::<u64>().read_unaligned();
        ((*info).code, &mut (*context).registers, addr)
    };
    if code > 0 && fixup != 0 {
        // SAFETY: only `on_bad_load` stores there, and stores a function of this type.
        let fixup: unsafe fn(u64) -> Option<u64> = unsafe { std::mem::transmute(fixup) };
        // SAFETY: this is the thread that faulted there, in its signal handler.
        if let Some(to) = unsafe { fixup(registers[RIP]) } {
            return registers[RIP] = to;
        }
    }
    // SAFETY: this is the thread that faulted there.
    if code > 0 && unsafe { gone::replace(addr, code, registers[ERROR]) } {
        return;
    }
    // SAFETY: the kernel's own arguments, for the same signal.
    unsafe { pass_on(&SEGV, signal, code, info, context) };
}
