//! Function pointers for interpreted callbacks.
//!
//! A helper that takes a callback calls it as a C function, with no word of which interpreter it
//! belongs to. The helper does so on the thread that called it and before it returns, so the
//! innermost helper call of the thread is the one meant; only the function remains to be named, and
//! a fixed row of thunks does that.

use std::cell::{Cell, RefCell};

use super::{Program, Run, RunError};
use crate::env::HelperFn;

/// Callback functions one program may have.
pub(super) const SLOTS: usize = 16;

/// A helper call in progress.
struct Active<'a> {
    program: &'a Program,
    run: Run<'a>,
    error: RefCell<Option<RunError>>,
}

thread_local! {
    static INNERMOST: Cell<*const Active<'static>> = const { Cell::new(std::ptr::null()) };
}

/// Returns the address of the thunk for the program's callback number `slot`.
pub(super) fn address(slot: usize) -> Option<u64> {
    const ROW: [HelperFn; SLOTS] = [
        thunk::<0>,
        thunk::<1>,
        thunk::<2>,
        thunk::<3>,
        thunk::<4>,
        thunk::<5>,
        thunk::<6>,
        thunk::<7>,
        thunk::<8>,
        thunk::<9>,
        thunk::<10>,
        thunk::<11>,
        thunk::<12>,
        thunk::<13>,
        thunk::<14>,
        thunk::<15>,
    ];
    ROW.get(slot).map(|f| *f as usize as u64)
}

/// Does a helper call during which thunks run callbacks of `program`.
pub(super) fn with(
    program: &Program,
    run: Run<'_>,
    call: impl FnOnce() -> u64,
) -> Result<u64, RunError> {
    struct Restore(*const Active<'static>);
    impl Drop for Restore {
        fn drop(&mut self) {
            INNERMOST.set(self.0);
        }
    }
    let active = Active { program, run, error: RefCell::new(None) };
    let restore = Restore(INNERMOST.replace((&raw const active).cast()));
    let result = call();
    drop(restore);
    match active.error.into_inner() {
        Some(e) => Err(e),
        None => Ok(result),
    }
}

/// # Safety
/// Called by a helper, with arguments that the verifier knows, while the helper's own call lasts.
unsafe extern "C" fn thunk<const SLOT: usize>(a: u64, b: u64, c: u64, d: u64, e: u64) -> u64 {
    let active = INNERMOST.get();
    // SAFETY: `with` sets the pointer to its own frame for as long as the helper runs, on this
    // thread only.
    let Some(active) = (unsafe { active.as_ref() }) else { return 1 };
    let Some(&start) = active.program.flow.callbacks.get(SLOT) else { return 1 };
    if active.error.borrow().is_some() {
        return 1;
    }
    if active.run.depth >= skep_isa::op::MAX_CALL_FRAMES {
        active.error.replace(Some(RunError::TooDeep { insn: start }));
        return 1;
    }
    let deeper = Run { depth: active.run.depth + 1, ..active.run };
    // SAFETY: the program is verified, its callbacks for the arguments this helper passes.
    match unsafe { active.program.call(start, [a, b, c, d, e], deeper) } {
        Ok(v) => v,
        Err(error) => {
            active.error.replace(Some(error));
            1
        }
    }
}
