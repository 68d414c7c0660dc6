//! A lock in shared memory that survives the death of its holder.
//!
//! ```text
//!  63            44 43        22 21         0
//! | times released |    pid     |    tid     |     pid = tid = 0: free
//! ```
//!
//! The holder's token is in the word, so a waiter can see that it is gone and take the lock over;
//! the taker learns that it did ([`Held::recovered`]) and repairs what the lock protects. The count
//! changes with every release, so a waiter can tell a busy lock from a stuck one, and gives up on
//! the latter: at once when its holder is stopped, in some milliseconds when it is frozen, and
//! after a second when it is not seen what it does. Who holds one long says that all is well
//! ([`heartbeat`]), and who is ready to run but gets no processor is waited for. To go on without a
//! holder that is stopped is not possible: it would go on itself one day, with stores that nobody
//! can take back.

use std::sync::atomic::{AtomicU64, Ordering::Acquire, Ordering::Relaxed, Ordering::Release};

use super::{sys, tls};

const OWNER: u64 = (1 << tls::TOKEN_BITS) - 1;
const ONE_RELEASE: u64 = 1 << tls::TOKEN_BITS;

const SPINS: u32 = 40;
/// Pauses of a look at the lock double up to two to the power of this: who lets it go and comes
/// back soon finds it in his cache.
const PAUSES: u32 = 4;
const YIELDS: u32 = 50;
/// Naps of 0.1 to 1 ms without any release by the holder after which a waiter gives up: about a
/// second.
const NAPS: u32 = 1_000;
/// As [`NAPS`], for a lock whose holder may wait for another lock.
const LONG_NAPS: u32 = 10_000;

/// Proof of holding a lock; not a guard: dropping it does nothing, [`release`] it.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Held {
    pub(crate) word: u64,
    /// The former holder died inside: check and repair.
    pub(crate) recovered: bool,
}

/// Tells why a lock was not got.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum NotHeld {
    /// This very thread holds it: the caller interrupted itself.
    Mine,
    /// Another thread holds it and did not let go in time.
    Stuck,
    /// This process is in another pid namespace, where nobody could tell whether it still holds
    /// what it holds.
    Stranger,
}

/// Takes the lock if it is free.
#[inline(always)]
pub(crate) fn try_acquire(lock: &AtomicU64) -> Option<Held> {
    let word = lock.load(Relaxed);
    if word & OWNER != 0 {
        return None;
    }
    let token = tls::token();
    if token == 0 {
        return None;
    }
    swap(lock, word, word | token)
}

/// Takes, if it is free, the lock that `pick` picks by a number for this thread, which others may have
/// too.
#[inline(always)]
pub(crate) fn try_acquire_by<'l>(pick: impl FnOnce(u32) -> Option<&'l AtomicU64>) -> Option<Held> {
    let token = tls::token();
    let lock = pick(tls::token_parts(token).1)?;
    let word = lock.load(Relaxed);
    if token == 0 || word & OWNER != 0 {
        return None;
    }
    swap(lock, word, word | token)
}

/// As [`try_acquire`], for who holds another lock, which knows this thread's token.
#[inline(always)]
pub(crate) fn try_acquire_too(lock: &AtomicU64, other: Held) -> Option<Held> {
    let word = lock.load(Relaxed);
    if word & OWNER == 0 { swap(lock, word, word | owner(other.word)) } else { None }
}

#[inline(always)]
fn swap(lock: &AtomicU64, word: u64, mine: u64) -> Option<Held> {
    // Pairs with the Release in `release`.
    lock.compare_exchange(word, mine, Acquire, Relaxed)
        .ok()
        .map(|_| Held { word: mine, recovered: false })
}

/// Takes the lock, waiting for a living holder about a second and taking over from a dead one.
#[inline(always)]
pub(crate) fn acquire(lock: &AtomicU64) -> Result<Held, NotHeld> {
    match try_acquire(lock) {
        Some(held) => Ok(held),
        None => wait(lock, NAPS),
    }
}

/// As [`acquire`], for a lock that is held while others are waited for: gives up after ten seconds
/// without a beat.
pub(crate) fn acquire_patiently(lock: &AtomicU64) -> Result<Held, NotHeld> {
    try_acquire(lock).map_or_else(|| wait(lock, LONG_NAPS), Ok)
}

/// Tells those who wait for a lock that its holder gets on.
pub(crate) fn heartbeat(lock: &AtomicU64, held: &mut Held) {
    let word = (held.word & !OWNER).wrapping_add(ONE_RELEASE) | (held.word & OWNER);
    // Who took the lock over from somebody he thought dead keeps it.
    if lock.compare_exchange(held.word, word, Relaxed, Relaxed).is_ok() {
        held.word = word;
    }
}

/// The word of the lock somebody in this process gave up last. While its holder stands still (a
/// stopped process), others need not find that out anew.
static STUCK: AtomicU64 = AtomicU64::new(0);

/// Names process and thread that held the lock which somebody in this process gave up last.
pub(crate) fn last_given_up() -> Option<(u32, u32)> {
    let owner = STUCK.load(Relaxed) & OWNER;
    (owner != 0).then(|| tls::token_parts(owner))
}

fn known_stuck(word: u64) -> bool {
    STUCK.load(Relaxed) == word
}

#[cold]
#[inline(never)]
fn wait(lock: &AtomicU64, patience: u32) -> Result<Held, NotHeld> {
    let token = tls::token();
    if token == 0 {
        return Err(NotHeld::Stranger);
    }
    let mut holder = sys::Patience::default();
    let mut seen = lock.load(Relaxed);
    let mut tries = 0u32;
    loop {
        let word = lock.load(Relaxed);
        let owner = word & OWNER;
        if owner == 0 {
            let mine = word | token;
            if lock.compare_exchange(word, mine, Acquire, Relaxed).is_ok() {
                return Ok(Held { word: mine, recovered: false });
            }
            continue;
        }
        if owner == token {
            return Err(NotHeld::Mine);
        }
        if word != seen {
            seen = word;
            tries = tries.min(SPINS);
            holder = sys::Patience::default();
        }
        let naps = tries.saturating_sub(SPINS + YIELDS);
        let (_, tid) = tls::token_parts(owner);
        if tries == SPINS && known_stuck(word) && !tls::dead(owner, true) && !sys::is_ready(tid) {
            return Err(NotHeld::Stuck);
        }
        // Ask the kernel when spinning did not help, then ever more rarely; zombies need a look
        // into /proc.
        if tries >= SPINS && tries.is_multiple_of(16) && tls::dead(owner, naps > 0) {
            let mine = (word & !OWNER) | token;
            if lock.compare_exchange(word, mine, Acquire, Relaxed).is_ok() {
                return Ok(Held { word: mine, recovered: true });
            }
            continue;
        }
        if tries < SPINS {
            for _ in 0..1u32 << tries.min(PAUSES) {
                std::hint::spin_loop();
            }
        } else if naps == 0 {
            sys::sched_yield();
        } else if patience == NAPS && holder.stands(tid) {
            STUCK.store(word, Relaxed);
            return Err(NotHeld::Stuck);
        } else if naps < patience {
            sys::sleep_ns(100_000 + 900 * u64::from(naps.min(NAPS)));
        } else if holder.is_due(tid) {
            tries = SPINS + YIELDS;
        } else {
            STUCK.store(word, Relaxed);
            return Err(NotHeld::Stuck);
        }
        tries = tries.wrapping_add(1);
    }
}

/// Takes the lock over from a dead holder; `None` when it has none.
#[cold]
#[inline(never)]
pub(crate) fn take_over(lock: &AtomicU64) -> Option<Held> {
    let word = lock.load(Relaxed);
    let token = tls::token();
    if word & OWNER == 0 || token == 0 || !tls::dead(word & OWNER, true) {
        return None;
    }
    let mine = (word & !OWNER) | token;
    lock.compare_exchange(word, mine, Acquire, Relaxed)
        .ok()
        .map(|_| Held { word: mine, recovered: true })
}

/// A token that hardly any thread has: that with the largest ids that Linux can give out.
const NOBODY: u64 = OWNER;

/// Lets go of a lock that was taken over from a dead holder, so that the next one takes it over as
/// well.
#[cold]
#[inline(never)]
pub(crate) fn abandon(lock: &AtomicU64, held: Held) {
    lock.store((held.word & !OWNER).wrapping_add(ONE_RELEASE) | NOBODY, Release);
}

/// Tells whether this thread holds the lock.
pub(crate) fn is_mine(lock: &AtomicU64) -> bool {
    let owner = lock.load(Relaxed) & OWNER;
    owner != 0 && owner == tls::token()
}

/// Tells whether another thread holds the lock.
#[inline(always)]
pub(crate) fn held_by_other(lock: &AtomicU64) -> bool {
    let owner = lock.load(Relaxed) & OWNER;
    owner != 0 && owner != tls::token()
}

/// Returns the token of the holder in a lock's word, 0 for none.
pub(crate) const fn owner(word: u64) -> u64 {
    word & OWNER
}

/// Tells whether a living thread holds the lock, this one included.
pub(crate) fn held_by_living(lock: &AtomicU64) -> bool {
    let owner = lock.load(Relaxed) & OWNER;
    owner != 0 && !tls::dead(owner, true)
}

/// Lets the lock go.
#[inline(always)]
pub(crate) fn release(lock: &AtomicU64, held: Held) {
    // Only the holder stores here, so a plain store is enough. Pairs with the Acquire in
    // `try_acquire`.
    lock.store((held.word & !OWNER).wrapping_add(ONE_RELEASE), Release);
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A stopped holder, a frozen one (that sleeps and never wakes looks the same) and one that
    /// died stopped.
    #[test]
    fn a_holder_that_stands_is_given_up_at_once() {
        let sleeps = || sys::SLEEPS.with(std::cell::Cell::get);
        let mut child = std::process::Command::new("sleep").arg("1000").spawn().expect("spawns");
        let pid = child.id();
        let lock = AtomicU64::new(u64::from(pid) << 22 | u64::from(pid));
        sys::wait_for_state(pid, b'S');
        let before = sleeps();
        assert_eq!(acquire(&lock).err(), Some(NotHeld::Stuck));
        let frozen = sleeps() - before;
        assert!((1..NAPS / 2).contains(&frozen), "{frozen}");
        assert_eq!(
            (acquire(&lock).err(), sleeps() - before),
            (Some(NotHeld::Stuck), frozen),
            "it is known now"
        );
        lock.store(lock.load(Relaxed) + ONE_RELEASE, Relaxed);
        skep_testkit::run::signal(pid, rustix::process::Signal::STOP);
        sys::wait_for_state(pid, b'T');
        let before = sleeps();
        for _ in 0..100 {
            assert_eq!(acquire(&lock).err(), Some(NotHeld::Stuck));
        }
        assert_eq!((sleeps(), last_given_up()), (before, Some((pid, pid))), "no sleep at all");
        child.kill().expect("ours");
        child.wait().expect("waits");
        assert!(acquire(&lock).expect("its holder is dead").recovered);
    }

    /// Three times as many beats as a waiter takes naps.
    #[test]
    fn a_holder_that_beats_is_waited_for() {
        static LOCK: AtomicU64 = AtomicU64::new(0);
        std::thread::scope(|s| {
            let mut held = acquire(&LOCK).expect("free");
            let waiter = s.spawn(|| acquire(&LOCK).map(|held| release(&LOCK, held)));
            for _ in 0..3 * NAPS {
                sys::sleep_ns(1_000_000);
                heartbeat(&LOCK, &mut held);
            }
            release(&LOCK, held);
            assert_eq!(waiter.join().expect("no panic"), Ok(()));
        });
    }
}
