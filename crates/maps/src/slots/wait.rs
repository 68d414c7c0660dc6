//! Waiting for the ends of program runs.

use std::sync::atomic::{AtomicU64, Ordering::Acquire, Ordering::Relaxed, Ordering::SeqCst, fence};

use super::state::have_ended;
use super::table::SlotTable;
use crate::error::MapError;
use crate::shm::{lock, sys, tls};

/// Naps of a millisecond before a run that does not end is looked at: its thread may be stopped.
const NAPS: u32 = 5_000;

impl SlotTable {
    /// Waits until every program run that is going on now has ended, in all processes of this
    /// directory.
    ///
    /// What was taken out of a map before is then in no program's hands: a run that begins later
    /// does not find it. Runs of threads that die count as ended.
    ///
    /// # Errors
    /// `EBUSY` when a run does not end within some seconds, since its thread is stopped;
    /// `EOPNOTSUPP` where the kernel lacks `membarrier`, or the table was made by an older
    /// version.
    pub fn wait_for_runs(&self) -> Result<(), MapError> {
        self.wait_for_runs_while(&mut || ())
    }

    /// As [`SlotTable::wait_for_runs`], calling `meanwhile` about every millisecond.
    pub(crate) fn wait_for_runs_while(&self, meanwhile: &mut dyn FnMut()) -> Result<(), MapError> {
        let no = |why| MapError::Denied { why };
        if self.state_word(0).is_none() {
            return Err(no(
                "the slot table was made by an older version, which does not tell when programs have ended",
            ));
        }
        if !self.fence_runs() {
            return Err(no(
                "the kernel offers no `membarrier`, without which the end of programs cannot be told",
            ));
        }
        for slot in 0..self.slots {
            if let (Some(state), Some(owner)) = (self.state_word(slot), self.owner_word(slot)) {
                let begun = state.load(Acquire);
                wait_until(
                    || have_ended(begun, state.load(Acquire)),
                    || owner.load(Relaxed),
                    meanwhile,
                )?;
            }
        }
        // Those without a slot of their own run one after the other, under the lock of the last
        // one.
        if let Some(word) = self.shared_lock() {
            let held = word.load(Acquire);
            let owner = |word: u64| word & ((1 << tls::TOKEN_BITS) - 1);
            wait_until(
                || owner(held) == 0 || word.load(Acquire) != held,
                || owner(held),
                meanwhile,
            )?;
        }
        Ok(())
    }
}

impl SlotTable {
    /// Makes all runs that go on visible, as a run marks itself and then looks into maps without a fence
    /// between: this is the fence, for all of them. `false` when the kernel offers none.
    ///
    /// The kernel takes some milliseconds for that. It is not asked where no other thread has a slot or
    /// the shared one: who gets either later passes a fence then, and finds in maps what was stored
    /// before this one.
    fn fence_runs(&self) -> bool {
        // Pairs with those in `claim` and `share`.
        fence(SeqCst);
        let mine = tls::token();
        let is_no_others = |word: &AtomicU64| {
            let owner = lock::owner(word.load(Acquire));
            owner == 0 || owner == mine
        };
        let mut owners = (0..self.slots).map(|slot| self.owner_word(slot));
        let no_others = owners.all(|word| word.is_some_and(is_no_others))
            && self.shared_lock().is_some_and(is_no_others);
        no_others || sys::membarrier_global()
    }

    /// Waits a moment until every program run that is going on now has ended; `false` when one goes
    /// on, or that cannot be told.
    pub(crate) fn runs_end_soon(&self) -> bool {
        const LOOKS: u32 = 200;
        if self.state_word(0).is_none() || !self.fence_runs() {
            return false;
        }
        let soon = |over: &dyn Fn() -> bool| {
            (0..LOOKS).any(|_| {
                over() || {
                    std::thread::yield_now();
                    false
                }
            })
        };
        let slots = (0..self.slots).all(|slot| {
            let (Some(state), Some(owner)) = (self.state_word(slot), self.owner_word(slot)) else {
                return true;
            };
            let begun = state.load(Acquire);
            let gone =
                || matches!(owner.load(Relaxed), owner if owner == 0 || tls::dead(owner, true));
            soon(&|| have_ended(begun, state.load(Acquire))) || gone()
        });
        slots
            && self.shared_lock().is_none_or(|word| {
                let held = word.load(Acquire);
                let owner = held & ((1 << tls::TOKEN_BITS) - 1);
                owner == 0 || soon(&|| word.load(Acquire) != held) || tls::dead(owner, true)
            })
    }
}

/// Waits until `over`, or the thread that `owner` names is gone.
fn wait_until(
    over: impl Fn() -> bool,
    owner: impl Fn() -> u64,
    meanwhile: &mut dyn FnMut(),
) -> Result<(), MapError> {
    let mut tries = 0;
    let mut patience = sys::Patience::default();
    while !over() {
        if tries % 16 == 15 {
            let owner = owner();
            if owner == 0 || tls::dead(owner, true) {
                return Ok(());
            }
        }
        match tries {
            0..64 => std::thread::yield_now(),
            _ if tries > 64 + NAPS => {
                if !patience.is_due(tls::token_parts(owner()).1) {
                    return Err(MapError::Busy { what: "a thread that runs a program" });
                }
                tries = 64;
            }
            _ => {
                std::thread::sleep(std::time::Duration::from_millis(1));
                meanwhile();
            }
        }
        tries += 1;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Memory of a trie is given back after a wait for running programs. Where no thread ever ran one,
    /// the kernel's barrier was what deletions took longest for: some milliseconds each time.
    #[test]
    fn the_kernel_is_asked_only_where_others_may_run_programs() {
        let dir = std::env::temp_dir().join(format!("skep-fence-{}", std::process::id()));
        std::fs::create_dir_all(&dir).expect("creates");
        let table = SlotTable::open_or_create(&dir).expect("creates");
        std::fs::remove_dir_all(&dir).expect("removes");
        let barriers = || sys::BARRIERS.with(std::cell::Cell::get);
        let own = |slot, token| table.owner_word(slot).expect("a slot").store(token, Relaxed);
        // The main thread, which is another one than that of a test.
        let pid = u64::from(std::process::id());
        let other = pid << 22 | pid;
        assert_ne!(other, tls::token());
        assert_eq!((table.runs_end_soon(), barriers()), (true, 0));
        own(3, tls::token());
        assert_eq!((table.runs_end_soon(), barriers()), (true, 0));
        own(200, other);
        assert_eq!((table.runs_end_soon(), barriers()), (true, 1));
        assert_eq!((table.wait_for_runs().is_ok(), barriers()), (true, 2));
        own(200, 0);
        table.shared_lock().expect("a lock").store(other, Relaxed);
        assert_eq!((table.runs_end_soon(), barriers()), (false, 3), "its run goes on");
        table.shared_lock().expect("a lock").store(1 << 44, Relaxed);
        assert_eq!((table.runs_end_soon(), barriers()), (true, 3));
    }
}
