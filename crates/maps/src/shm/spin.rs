//! `struct bpf_spin_lock`: four bytes in a map value, taken by programs and by users with
//! `BPF_F_LOCK`.
//!
//! ```text
//!  31           22 21         0
//! | times released |    tid    |     tid = 0: free
//! ```
//!
//! A program cannot be told that it did not get the lock, so every wait ends: at once when the holder is
//! gone, and after about a second without any release when it is stopped or runs no more for other
//! reasons than that it gets no processor. Then the lock is taken over. The verifier lets a program
//! do little and no calls while it holds one, so no living holder needs that long.

use std::sync::atomic::{AtomicU32, Ordering::Acquire, Ordering::Relaxed, Ordering::Release};

use super::{sys, tls};

const OWNER: u32 = (1 << 22) - 1;
const ONE_RELEASE: u32 = 1 << 22;
/// Who has no token: nobody can tell whether such a holder is still there. The one thread that may
/// have this id, the last there is, is waited for in the same way.
const STRANGER: u32 = OWNER;
const SPINS: u32 = 200;
const YIELDS: u32 = 50;
/// Naps of a millisecond without any release after which the lock is taken over.
const NAPS: u32 = 1_000;

/// Takes the lock of a value.
///
/// # Safety
/// `lock` points to a `struct bpf_spin_lock` of a map value in writable memory.
#[doc(alias = "bpf_spin_lock")]
#[inline]
pub unsafe fn lock(lock: *mut u32) {
    // SAFETY: the caller's duty; such locks are aligned.
    acquire(unsafe { AtomicU32::from_ptr(lock) });
}

/// Lets the lock of a value go.
///
/// # Safety
/// As [`lock`], by the thread that took it.
#[doc(alias = "bpf_spin_unlock")]
#[inline]
pub unsafe fn unlock(lock: *mut u32) {
    // SAFETY: the caller's duty.
    release(unsafe { AtomicU32::from_ptr(lock) });
}

#[inline(always)]
pub(crate) fn acquire(lock: &AtomicU32) {
    let word = lock.load(Relaxed);
    let mine = (word & !OWNER) | me();
    // Pairs with the Release in `release`.
    if word & OWNER != 0 || lock.compare_exchange(word, mine, Acquire, Relaxed).is_err() {
        wait(lock);
    }
}

#[inline(always)]
pub(crate) fn release(lock: &AtomicU32) {
    let word = lock.load(Relaxed);
    lock.store((word & !OWNER).wrapping_add(ONE_RELEASE), Release);
}

/// The calling thread as a holder.
#[inline(always)]
fn me() -> u32 {
    match tls::token() as u32 & OWNER {
        0 => STRANGER,
        tid => tid,
    }
}

#[cold]
#[inline(never)]
fn wait(lock: &AtomicU32) {
    let me = me();
    let mut seen = lock.load(Relaxed);
    let mut tries = 0u32;
    let mut holder = sys::Patience::default();
    loop {
        let word = lock.load(Relaxed);
        let owner = word & OWNER;
        if word != seen {
            seen = word;
            tries = tries.min(SPINS);
            holder = sys::Patience::default();
        }
        let naps = tries.saturating_sub(SPINS + YIELDS);
        // Our own id in it: an interrupted run of this very thread, which cannot go on before we
        // do.
        let free = owner == 0
            || (owner == me && me != STRANGER)
            || (tries >= SPINS
                && tries.is_multiple_of(16)
                && owner != STRANGER
                && tls::thread_is_dead(owner, naps > 0))
            || (naps >= NAPS && (me == STRANGER || !holder.is_due(owner)));
        if free {
            if lock.compare_exchange(word, (word & !OWNER) | me, Acquire, Relaxed).is_ok() {
                return;
            }
            continue;
        }
        if tries < SPINS {
            std::hint::spin_loop();
        } else if naps == 0 {
            sys::sched_yield();
        } else {
            sys::sleep_ns(1_000_000);
            if naps >= NAPS {
                tries = SPINS + YIELDS;
            }
        }
        tries = tries.wrapping_add(1);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_lock_excludes_and_passes_on_from_the_dead() {
        static LOCK: AtomicU32 = AtomicU32::new(0);
        static COUNT: AtomicU32 = AtomicU32::new(0);
        std::thread::scope(|s| {
            for _ in 0..4 {
                s.spawn(|| {
                    for _ in 0..10_000 {
                        acquire(&LOCK);
                        COUNT.store(COUNT.load(Relaxed) + 1, Relaxed);
                        release(&LOCK);
                    }
                });
            }
        });
        assert_eq!(COUNT.load(Relaxed), 40_000);
        // A thread that ended with the lock held.
        std::thread::spawn(|| acquire(&LOCK)).join().expect("no panic");
        acquire(&LOCK);
        assert_eq!(LOCK.load(Relaxed) & OWNER, sys::gettid());
    }
}
