//! `skep_detach_func`: a program takes itself out of the function that it runs on.

use std::cell::Cell;
use std::sync::OnceLock;

use skep_isa::ctx::tracing as frame;

use crate::vectors::keep_vectors;

/// What is asked for.
pub(crate) struct DetachFunc {
    /// The function.
    pub addr: u64,
    /// It begins no event of these programs any more.
    pub done: Cell<bool>,
}

/// Does what is asked for. It may use vector registers.
pub(crate) type DetachFrom = unsafe extern "C" fn(*const DetachFunc);

/// Set with the first program that calls the helper: who only runs programs has no hooks.
static DETACH_FROM: OnceLock<DetachFrom> = OnceLock::new();

/// Says what takes hooks out of functions.
pub(crate) fn set_detach_from(detach_from: DetachFrom) {
    let _ = DETACH_FROM.set(detach_from);
}

/// The helper: takes the hooks of programs that call it out of the function whose call runs
/// this one. 0: they are out; else a later event may try again. Links of one process that do so share
/// that: who comes first takes the others' hooks along.
pub(crate) unsafe extern "C" fn detach_func(ctx: u64, _: u64, _: u64, _: u64, _: u64) -> u64 {
    // A child of `vfork` runs in its parent's memory.
    let Some(detach_from) = DETACH_FROM.get().filter(|_| skep_attach::owns_memory()) else {
        return 1;
    };
    // SAFETY: the verifier lets only contexts of trampolines through, which have the function's
    // address in front of them.
    let addr = unsafe { *(ctx as *const u64).byte_offset(frame::IP as isize) };
    let asked = DetachFunc { addr, done: Cell::new(false) };
    // SAFETY: saves what the traced function has in its vector registers around code that may use
    // them; the structure is there.
    unsafe { keep_vectors(*detach_from, &raw const asked) };
    u64::from(!asked.done.get())
}
