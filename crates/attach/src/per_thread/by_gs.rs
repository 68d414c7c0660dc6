//! Begins to reach thread words by `gs` ([`super::area`]): changes the code of the engine itself.

use super::area::{self, Area};
use super::block::{own, word};
use super::register::register;
use super::runtime_id::TID_AT;
use crate::patch::change::{Change, Detour, Hooked};
use crate::patch::writable::WritableCode;
use crate::skip::Skip;
use skep_sys::thread_words;
use std::ptr;
use std::sync::atomic::Ordering;

/// A jump to be made in the trampolines, as distances from here.
#[repr(C)]
struct Jump {
    from: i32,
    to: i32,
}

unsafe extern "C" {
    #[link_name = "__start_skep_thread_checks"]
    static CHECKS_START: [Jump; 0];
    #[link_name = "__stop_skep_thread_checks"]
    static CHECKS_STOP: [Jump; 0];
}

/// Reaches thread words by `gs` from now on, in this process and those it forks; returns the GS base
/// that threads need. `tid_at` is where each thread's id lies from its thread pointer, `lowest` the
/// smallest offset of a thread word of anybody's, `nobody` the area of threads without words.
///
/// # Errors
/// When there is no memory, or code of ours cannot be changed.
///
/// # Safety
/// Nothing is hooked, and no thread of the process uses a word of its own meanwhile. All threads
/// have the GS base that this returns before anything is hooked, and none has a use of its own for
/// it. Those that use words outside of hooks have called [`register_thread`].
pub unsafe fn reach_words_by_gs(
    tid_at: i32,
    lowest: i64,
    nobody: &'static Area,
) -> Result<u64, Skip> {
    let refused = |errno: i64| Skip::Protected { errno: errno as i32 };
    let nobody = area::prepare(lowest.min(word()), nobody).map_err(refused)?;
    TID_AT.store(i64::from(tid_at) as u64, Ordering::Relaxed);
    let jumps = checks();
    let mut places: Vec<u64> = thread_words::listed().chain(jumps.iter().map(|j| j.0)).collect();
    places.sort_unstable();
    let changes: Vec<Change> = places.iter().map(|at| unchanged(*at)).collect();
    // SAFETY: our own code, which nobody else changes.
    let code = unsafe { WritableCode::open(&changes, true)? };
    for (from, to) in jumps {
        let mut jump = [0xe9; 5];
        jump[1..].copy_from_slice(&(to.wrapping_sub(from + 5) as u32).to_le_bytes());
        // SAFETY: the place of an instruction that is as long, which nobody runs now.
        unsafe { code.write(from, &jump)? };
    }
    // SAFETY: the caller's promise.
    unsafe { thread_words::switch(|at, byte| code.write(at, &[byte]))? };
    Ok(nobody)
}

/// Gives the calling thread its words, where they are reached by `gs`. False when it cannot have
/// any.
#[must_use]
pub fn register_thread() -> bool {
    !own().is_null() || !register().is_null()
}

/// The places in the trampolines where a thread's block is taken, and the code that does it in this
/// mode.
fn checks() -> Vec<(u64, u64)> {
    let (mut at, end) = ((&raw const CHECKS_START).cast::<Jump>(), (&raw const CHECKS_STOP).cast());
    let mut out = Vec::new();
    while !ptr::eq(at, end) {
        // SAFETY: the linker gives the ends of the list.
        unsafe {
            let place = |d: *const i32| (d as u64).wrapping_add_signed((*d).into());
            out.push((place(&raw const (*at).from), place(&raw const (*at).to)));
            at = at.add(1);
        }
    }
    out
}

/// Says where code is to be writable.
fn unchanged(at: u64) -> Change {
    let hooked = Hooked { entry: [0; 5], meta: 0 };
    let (text, head) = (0..u64::MAX, Detour::Jump(0));
    Change { at, old: [0; 5], new: [0; 5], text, head, inner: [0; 5], hooked, goroutines: None }
}
