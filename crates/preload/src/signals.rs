//! `sigaction`, `signal` and their older relatives in front of the C library's: for the four
//! signals the engine may keep a handler on, the program's action is remembered and passed on to;
//! all others go to the C library. Signals of faults are not blocked, neither by `sigprocmask` nor
//! while a handler runs, and the program is told that they are ([`Mask`]); but for a handler that
//! asks, and for threads, which do not inherit what they are told.

use std::ffi::{CStr, c_int, c_void};
use std::sync::atomic::{AtomicPtr, AtomicU64, AtomicUsize, Ordering::Relaxed};

use skep_runtime::signals::{KernelAction, Mask, keeps, overtaken, program_action};

/// `struct sigaction` of the C library on x86-64 (bits/sigaction.h).
#[repr(C)]
#[derive(Clone, Copy)]
pub struct Action {
    handler: usize,
    mask: [u64; 16],
    flags: c_int,
    restorer: usize,
}

impl From<KernelAction> for Action {
    fn from(action: KernelAction) -> Self {
        let mut mask = [0; 16];
        mask[0] = action.mask;
        Self {
            handler: action.handler,
            mask,
            flags: action.flags as c_int,
            restorer: action.restorer,
        }
    }
}

const SIG_ERR: usize = usize::MAX;
const SA_RESTART: c_int = 0x1000_0000;
const SA_RESETHAND_NODEFER: c_int = 0xc000_0000_u32 as c_int;
const SA_RESTORER: u64 = 0x0400_0000;
const SIGBUS: c_int = 7;
const SIG_UNBLOCK: c_int = 1;
const SIG_IGN: usize = 1;
const SIG_HOLD: usize = 2;
const EINVAL: c_int = 22;

unsafe extern "C" {
    fn __errno_location() -> *mut c_int;
}

/// Finds the C library's own function, once.
fn next(cache: &AtomicPtr<c_void>, name: &CStr) -> *mut c_void {
    let known = cache.load(Relaxed);
    if !known.is_null() {
        return known;
    }
    let found = skep_sys::dl::next(name);
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
        flags: u64::from(a.flags as u32) | SA_RESTORER,
        restorer: restorer(),
        mask: a.mask[0],
    });
    // SAFETY: the program's own request, by the promise of who calls `sigaction`.
    match unsafe { program_action(signal, new.as_ref()) } {
        Ok(before) => {
            if !old.is_null() {
                // SAFETY: the caller's promise.
                unsafe { old.write(Action::from(before)) };
            }
            0
        }
        Err(errno) => fail(errno),
    }
}

/// Where the C library's handlers return to: it puts that into every action, and programs see it
/// there.
fn restorer() -> usize {
    const LAST_SIGNAL: c_int = 64;
    static KNOWN: AtomicUsize = AtomicUsize::new(0);
    let known = KNOWN.load(Relaxed);
    if known != 0 {
        return known;
    }
    let real = next(&REAL_SIGACTION, c"sigaction");
    // SAFETY: only asks.
    let (Ok(before), false) = (unsafe { program_action(LAST_SIGNAL, None) }, real.is_null()) else {
        return 0;
    };
    let mut found = before;
    if before.restorer == 0 {
        let same = Action { restorer: 0, ..Action::from(before) };
        // SAFETY: the action stays as it is, but for what the C library adds, and that goes again.
        unsafe {
            std::mem::transmute::<
                *mut c_void,
                unsafe extern "C" fn(c_int, *const Action, *mut Action) -> c_int,
            >(real)(LAST_SIGNAL, &raw const same, std::ptr::null_mut());
            found = program_action(LAST_SIGNAL, None).unwrap_or(before);
            let _ = program_action(LAST_SIGNAL, Some(&before));
        }
    }
    KNOWN.store(found.restorer, Relaxed);
    found.restorer
}

static REAL_SIGACTION: AtomicPtr<c_void> = AtomicPtr::new(std::ptr::null_mut());

/// Stands before the C library's `sigaction`.
///
/// # Safety
/// As for `sigaction(2)`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn sigaction(signal: c_int, new: *const Action, old: *mut Action) -> c_int {
    if keeps(signal) {
        // SAFETY: the caller's pointers.
        return unsafe { kept(signal, new, old) };
    }
    let real = next(&REAL_SIGACTION, c"sigaction");
    if real.is_null() {
        return fail(EINVAL);
    }
    // SAFETY: the caller's promise.
    let (new, old) = unsafe { (new.as_ref(), old.as_mut()) };
    let told = faults_of(signal).load(Relaxed);
    let mut given = new.copied();
    if let Some(given) = given.as_mut().filter(|_| keeps(SIGBUS)) {
        given.mask[0] = Mask::kernels(given.mask[0]);
    }
    let mut before = Action { handler: SIG_ERR, mask: [0; 16], flags: 0, restorer: 0 };
    // SAFETY: the C library's function of this type, with arguments that are local.
    let done = unsafe {
        std::mem::transmute::<
            *mut c_void,
            unsafe extern "C" fn(c_int, *const Action, *mut Action) -> c_int,
        >(real)(
            signal,
            given.as_ref().map_or(std::ptr::null(), std::ptr::from_ref),
            &raw mut before,
        )
    };
    if done != 0 {
        return done;
    }
    if let (Some(new), Some(given)) = (new, given) {
        faults_of(signal).store(new.mask[0] & !given.mask[0], Relaxed);
    }
    before.mask[0] |= told;
    if keeps(signal) {
        before = overtaken(signal, before.handler).map_or(before, Action::from);
    }
    if let Some(old) = old {
        *old = before;
    }
    0
}

/// Signals of faults, by bit, that the program blocks while its handler of a signal runs, and the
/// kernel does not.
fn faults_of(signal: c_int) -> &'static AtomicU64 {
    static FAULTS: [AtomicU64; 65] = [const { AtomicU64::new(0) }; 65];
    usize::try_from(signal).ok().and_then(|n| FAULTS.get(n)).unwrap_or(&FAULTS[0])
}

/// Defines functions that stand before the C library's for a thread's mask.
macro_rules! mask_functions {
    ($($name:ident $c_name:literal: $refused:expr;)*) => {$(
        /// Stands before the C library's function of this name.
        ///
        /// # Safety
        /// As for `sigprocmask(2)`.
        #[unsafe(no_mangle)]
        pub unsafe extern "C" fn $name(how: c_int, new: *const u64, old: *mut u64) -> c_int {
            static NEXT: AtomicPtr<c_void> = AtomicPtr::new(std::ptr::null_mut());
            let real = next(&NEXT, $c_name);
            if real.is_null() {
                return $refused;
            }
            // SAFETY: the C library's function of this type.
            let real: MaskFn = unsafe { std::mem::transmute(real) };
            // SAFETY: the caller's promise.
            unsafe { change_mask(real, how, new, old) }
        }
    )*};
}

/// Of a set only the first word is read and written, as the C library does.
type MaskFn = unsafe extern "C" fn(c_int, *const u64, *mut u64) -> c_int;

mask_functions! {
    sigprocmask c"sigprocmask": fail(EINVAL);
    pthread_sigmask c"pthread_sigmask": EINVAL;
}

/// # Safety
/// As for `sigprocmask(2)`.
unsafe fn change_mask(real: MaskFn, how: c_int, new: *const u64, old: *mut u64) -> c_int {
    let Some(mask) = Mask::of_thread() else {
        // SAFETY: the caller's pointers.
        return unsafe { real(how, new, old) };
    };
    // SAFETY: the caller's promise.
    let (new, old) = unsafe { (new.as_ref().copied(), old.as_mut()) };
    // A signal that waits comes when it is let through: by then it is known that the program wants
    // it.
    if let Some(new) = new {
        mask.changed(how, new);
    }
    let (mut given, mut before) = ([0; 16], [0; 16]);
    given[0] = new.map_or(0, |new| if how == SIG_UNBLOCK { new } else { Mask::kernels(new) });
    // SAFETY: the C library's function, with local sets.
    let done = unsafe {
        real(
            how,
            if new.is_some() { given.as_ptr() } else { std::ptr::null() },
            before.as_mut_ptr(),
        )
    };
    if done != 0 {
        mask.restore();
    } else if let Some(old) = old {
        *old = mask.programs(before[0]);
    }
    done
}

/// Signals, by bit, that are to interrupt system calls (`siginterrupt`).
static INTERRUPTS: AtomicU64 = AtomicU64::new(0);

fn bit(signal: c_int) -> u64 {
    1_u64.checked_shl(signal.wrapping_sub(1) as u32).unwrap_or(0)
}

/// Changes the handler of a signal that the engine has a handler on.
fn set(signal: c_int, handler: usize, mask: u64, flags: c_int) -> usize {
    let mut new = Action { handler, mask: [0; 16], flags, restorer: 0 };
    new.mask[0] = mask;
    let mut old = Action { handler: 0, mask: [0; 16], flags: 0, restorer: 0 };
    // SAFETY: both are local.
    if unsafe { kept(signal, &raw const new, &raw mut old) } == 0 { old.handler } else { SIG_ERR }
}

/// Calls the C library's own function of that name with a signal and a word.
fn real(cache: &AtomicPtr<c_void>, name: &CStr, signal: c_int, word: usize) -> usize {
    let real = next(cache, name);
    if real.is_null() {
        fail(EINVAL);
        return SIG_ERR;
    }
    // SAFETY: the C library's function of this type, with the caller's arguments; an `int` of its
    // own is the low half of a word.
    unsafe {
        std::mem::transmute::<*mut c_void, unsafe extern "C" fn(c_int, usize) -> usize>(real)(
            signal, word,
        )
    }
}

/// Defines functions that stand before the C library's `signal` and its names.
macro_rules! signal_functions {
    ($($name:ident $c_name:literal: $kept:expr;)*) => {$(
        /// Stands before the C library's function of this name.
        ///
        /// # Safety
        /// As for `signal(2)`.
        #[unsafe(no_mangle)]
        pub unsafe extern "C" fn $name(signal: c_int, handler: usize) -> usize {
            static NEXT: AtomicPtr<c_void> = AtomicPtr::new(std::ptr::null_mut());
            if keeps(signal) {
                return $kept(signal, handler);
            }
            faults_of(signal).store(0, Relaxed);
            let old = real(&NEXT, $c_name, signal, handler);
            overtaken(signal, old).map_or(old, |before| before.handler)
        }
    )*};
}

signal_functions! {
    signal c"signal": bsd;
    bsd_signal c"bsd_signal": bsd;
    ssignal c"ssignal": bsd;
    sysv_signal c"sysv_signal": sysv;
    __sysv_signal c"__sysv_signal": sysv;
    sigset c"sigset": hold_or_set;
}

fn bsd(signal: c_int, handler: usize) -> usize {
    let restart = if INTERRUPTS.load(Relaxed) & bit(signal) == 0 { SA_RESTART } else { 0 };
    set(signal, handler, bit(signal), restart)
}

fn sysv(signal: c_int, handler: usize) -> usize {
    set(signal, handler, 0, SA_RESETHAND_NODEFER)
}

/// `sigset` blocks a signal, or lets it through with a new handler; it answers what was before.
fn hold_or_set(signal: c_int, handler: usize) -> usize {
    let (one, mut before) = (bit(signal), 0);
    // SAFETY: both are local; 0 blocks, 1 lets through.
    if unsafe { sigprocmask(c_int::from(handler != SIG_HOLD), &raw const one, &raw mut before) }
        != 0
    {
        return SIG_ERR;
    }
    let mut old = Action { handler: 0, mask: [0; 16], flags: 0, restorer: 0 };
    // SAFETY: only asks.
    let mut asked = || unsafe { kept(signal, std::ptr::null(), &raw mut old) };
    let was = if handler == SIG_HOLD {
        if asked() == 0 { old.handler } else { SIG_ERR }
    } else {
        set(signal, handler, 0, 0)
    };
    if was != SIG_ERR && before & bit(signal) != 0 { SIG_HOLD } else { was }
}

/// Stands before the C library's `sigignore`.
///
/// # Safety
/// As for `signal(2)`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn sigignore(signal: c_int) -> c_int {
    static NEXT: AtomicPtr<c_void> = AtomicPtr::new(std::ptr::null_mut());
    if keeps(signal) {
        return if set(signal, SIG_IGN, 0, 0) == SIG_ERR { -1 } else { 0 };
    }
    let done = real(&NEXT, c"sigignore", signal, 0) as c_int;
    let _ = overtaken(signal, SIG_ERR);
    done
}

/// Stands before the C library's `siginterrupt`.
///
/// # Safety
/// As for `siginterrupt(3)`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn siginterrupt(signal: c_int, interrupt: c_int) -> c_int {
    static NEXT: AtomicPtr<c_void> = AtomicPtr::new(std::ptr::null_mut());
    if !keeps(signal) {
        let done = real(&NEXT, c"siginterrupt", signal, interrupt as u32 as usize) as c_int;
        let _ = overtaken(signal, SIG_ERR);
        return done;
    }
    let mut action = Action { handler: 0, mask: [0; 16], flags: 0, restorer: 0 };
    // SAFETY: local.
    if unsafe { kept(signal, std::ptr::null(), &raw mut action) } != 0 {
        return -1;
    }
    if interrupt == 0 {
        INTERRUPTS.fetch_and(!bit(signal), Relaxed);
        action.flags |= SA_RESTART;
    } else {
        INTERRUPTS.fetch_or(bit(signal), Relaxed);
        action.flags &= !SA_RESTART;
    }
    // SAFETY: local; the handler is the program's own.
    unsafe { kept(signal, &raw const action, std::ptr::null_mut()) }
}
