//! `sigaction` and `signal` in front of the C library's: for the four signals the engine may keep a handler on, the program's
//! action is remembered and passed on to; all others go straight to the C library.

use std::ffi::{CStr, c_char, c_int, c_void};
use std::sync::atomic::{AtomicPtr, Ordering::Relaxed};

use skep::agent::signals::{KernelAction, keeps, program_action};

/// `struct sigaction` of the C library on x86-64 (bits/sigaction.h).
#[repr(C)]
pub struct Action {
    handler: usize,
    mask: [u64; 16],
    flags: c_int,
    restorer: usize,
}

const SIG_ERR: usize = usize::MAX;
const SA_RESTART: c_int = 0x1000_0000;
const EINVAL: c_int = 22;
const RTLD_NEXT: *mut c_void = usize::MAX as *mut c_void;

unsafe extern "C" {
    fn dlsym(handle: *mut c_void, name: *const c_char) -> *mut c_void;
    fn __errno_location() -> *mut c_int;
}

/// Finds the C library's own function, once.
fn next(cache: &AtomicPtr<c_void>, name: &CStr) -> *mut c_void {
    let known = cache.load(Relaxed);
    if !known.is_null() {
        return known;
    }
    // SAFETY: the name is terminated; the lookup starts behind this library.
    let found = unsafe { dlsym(RTLD_NEXT, name.as_ptr()) };
    cache.store(found, Relaxed);
    found
}

fn fail(errno: c_int) -> c_int {
    // SAFETY: the C library's own word of this thread.
    unsafe { *__errno_location() = errno };
    -1
}

/// Changes the program's action for a signal that the engine has a handler on.
///
/// # Safety
/// The pointers are null or good, as for `sigaction(2)`.
unsafe fn kept(signal: c_int, new: *const Action, old: *mut Action) -> c_int {
    // SAFETY: the caller's promise.
    let new = unsafe { new.as_ref() }.map(|a| KernelAction {
        handler: a.handler,
        flags: u64::from(a.flags as u32),
        restorer: a.restorer,
        mask: a.mask[0],
    });
    // SAFETY: the program's own request, by the promise of who calls `sigaction`.
    match unsafe { program_action(signal, new.as_ref()) } {
        Ok(before) => {
            if !old.is_null() {
                let mut mask = [0; 16];
                mask[0] = before.mask;
                // SAFETY: the caller's promise.
                unsafe { old.write(Action { handler: before.handler, mask, flags: before.flags as c_int, restorer: before.restorer }) };
            }
            0
        }
        Err(errno) => fail(errno),
    }
}

/// Stands before the C library's `sigaction`.
///
/// # Safety
/// As for `sigaction(2)`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn sigaction(signal: c_int, new: *const Action, old: *mut Action) -> c_int {
    static NEXT: AtomicPtr<c_void> = AtomicPtr::new(std::ptr::null_mut());
    if keeps(signal) {
        // SAFETY: the caller's pointers.
        return unsafe { kept(signal, new, old) };
    }
    let real = next(&NEXT, c"sigaction");
    if real.is_null() {
        return fail(EINVAL);
    }
    // SAFETY: the C library's function of this type, with the caller's arguments.
    unsafe { std::mem::transmute::<*mut c_void, unsafe extern "C" fn(c_int, *const Action, *mut Action) -> c_int>(real)(signal, new, old) }
}

/// Stands before the C library's `signal`.
///
/// # Safety
/// As for `signal(2)`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn signal(signal: c_int, handler: usize) -> usize {
    static NEXT: AtomicPtr<c_void> = AtomicPtr::new(std::ptr::null_mut());
    if keeps(signal) {
        let mut mask = [0; 16];
        mask[0] = 1_u64.checked_shl(signal.wrapping_sub(1) as u32).unwrap_or(0);
        let new = Action { handler, mask, flags: SA_RESTART, restorer: 0 };
        let mut old = Action { handler: 0, mask: [0; 16], flags: 0, restorer: 0 };
        // SAFETY: both are local.
        return if unsafe { kept(signal, &raw const new, &raw mut old) } == 0 { old.handler } else { SIG_ERR };
    }
    let real = next(&NEXT, c"signal");
    if real.is_null() {
        fail(EINVAL);
        return SIG_ERR;
    }
    // SAFETY: the C library's function of this type, with the caller's arguments.
    unsafe { std::mem::transmute::<*mut c_void, unsafe extern "C" fn(c_int, usize) -> usize>(real)(signal, handler) }
}
