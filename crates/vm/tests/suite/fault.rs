//! A signal handler that asks where to continue after a fault.

use std::ffi::c_void;
use std::sync::Once;

use skep_vm::fault;

const SIGBUS: i32 = 7;
const SIGSEGV: i32 = 11;
const SA_SIGINFO: i32 = 4;
/// Offset of the saved rip in `ucontext_t` (sysdeps/unix/sysv/linux/x86/sys/ucontext.h).
const UC_RIP: usize = 168;

/// `struct sigaction` of glibc on x86-64.
#[repr(C)]
struct SigAction {
    handler: usize,
    mask: [u64; 16],
    flags: i32,
    restorer: usize,
}

unsafe extern "C" {
    fn sigaction(signal: i32, new: *const SigAction, old: *mut SigAction) -> i32;
    fn abort() -> !;
}

extern "C" fn on_fault(_: i32, _: *mut c_void, context: *mut u8) {
    // SAFETY: the kernel passes a ucontext_t, whose saved rip is at this offset.
    let ip = unsafe { &mut *context.add(UC_RIP).cast::<u64>() };
    // SAFETY: the handler of the thread that faulted there.
    match unsafe { fault::fixup(*ip) } {
        Some(to) => *ip = to,
        // SAFETY: a fault of anything else ends the test.
        None => unsafe { abort() },
    }
}

/// Installs the handler, once.
pub fn mend() {
    static HANDLER: Once = Once::new();
    HANDLER.call_once(|| {
        let new = SigAction {
            handler: on_fault as *const () as usize,
            mask: [0; 16],
            flags: SA_SIGINFO,
            restorer: 0,
        };
        for signal in [SIGSEGV, SIGBUS] {
            // SAFETY: the handler only changes the context it is given.
            assert_eq!(unsafe { sigaction(signal, &raw const new, std::ptr::null_mut()) }, 0);
        }
    });
}
