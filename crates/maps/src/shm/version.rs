//! Reading what may be used anew meanwhile, without a lock: a version changes before that, so a
//! reader that finds the same one before and after has read what belonged together.

use std::sync::atomic::{AtomicU64, Ordering::Acquire, Ordering::Relaxed, fence};

/// Reads without a lock before a reader keeps writers out.
const TRIES: u32 = 64;
/// Reads of a reader that cannot take a lock because its memory is read-only.
const TRIES_READ_ONLY: u32 = 100_000;

/// Runs `f`; `None` when the version changed meanwhile.
#[inline(always)]
pub(crate) fn read_once<T>(version: &AtomicU64, f: impl FnOnce() -> T) -> Option<T> {
    let before = version.load(Acquire);
    let result = f();
    fence(Acquire);
    (version.load(Relaxed) == before).then_some(result)
}

/// Runs `f` until the version stays the same, as often as a reader should that may take a lock
/// afterwards, or cannot.
#[inline(always)]
pub(crate) fn read_often<T>(
    version: &AtomicU64,
    writable: bool,
    mut f: impl FnMut() -> T,
) -> Option<T> {
    let mut tries = if writable { TRIES } else { TRIES_READ_ONLY };
    while tries > 0 {
        if let Some(result) = read_once(version, &mut f) {
            return Some(result);
        }
        std::hint::spin_loop();
        tries = tries.wrapping_sub(1);
    }
    None
}
