//! How a thread gets a slot of its own.

use std::sync::atomic::{AtomicU32, Ordering::AcqRel, Ordering::Relaxed, Ordering::SeqCst, fence};

use super::state::{all_ended, running};
use super::table::SlotTable;
use crate::shm::{MAX_SLOTS, columns, tls};

/// Slots that a thread claims, one after the other, before it gives up to have one whose columns
/// can be mapped.
const CLAIMS: u32 = 4;

/// What a thread that wants a slot of its own gets.
pub(super) enum Claim {
    Slot(u32),
    /// Other threads have all there are.
    AllTaken,
    /// There are some, but their columns cannot be mapped in this process.
    NotMapped,
}

/// Claims that found no free slot.
static OVERFLOWS: AtomicU32 = AtomicU32::new(0);

impl SlotTable {
    /// As [`SlotTable::claim`], a slot whose columns are mapped. One whose columns cannot be is
    /// given back: what lies at their places in this process is nowhere else.
    pub(super) fn claim_mapped(&self, token: u64) -> Claim {
        let (mut from, mut tries) = (0u32, 0u32);
        while tries < CLAIMS {
            match self.claim(token, from) {
                None => return Claim::AllTaken,
                Some(slot) if columns::ensure(slot) => return Claim::Slot(slot),
                Some(slot) => {
                    self.give_back(slot, token);
                    from = slot.wrapping_add(1);
                }
            }
            tries = tries.wrapping_add(1);
        }
        Claim::NotMapped
    }

    /// Claims a slot of its own, from `from` on, for the calling thread.
    fn claim(&self, token: u64, from: u32) -> Option<u32> {
        let own = self.slots.wrapping_sub(1);
        let mut swept = false;
        let mut attempts = 0u32;
        loop {
            let free = self.lowest_free(from, own, token);
            let highest = self.highest();
            let grows = match free {
                Some(slot) => slot >= highest && slot.is_power_of_two(),
                // A thread without a slot comes here at every run: not every time is worth asking
                // for all owners.
                None => OVERFLOWS.fetch_add(1, Relaxed).is_multiple_of(64),
            };
            if grows && !swept {
                self.sweep(own);
                swept = true;
                continue;
            }
            let slot = free?;
            let word = self.owner_word(slot)?;
            // The former owner's plain stores to its values come before whoever freed the slot saw
            // it dead.
            if word.load(Relaxed) == token
                || word.compare_exchange(0, token, AcqRel, Relaxed).is_ok()
            {
                // Pairs with that in `fence_runs`.
                fence(SeqCst);
                if let Some(w) = self.highest_word() {
                    w.fetch_max(u64::from(slot).wrapping_add(1), Relaxed);
                }
                if let Some(state) = self.state_word(slot) {
                    let left = state.load(Relaxed);
                    if running(left) != 0 {
                        // The former owner died in a run.
                        state.store(all_ended(left), Relaxed);
                    }
                }
                return Some(slot);
            }
            attempts = attempts.wrapping_add(1);
            if attempts > MAX_SLOTS {
                return None;
            }
        }
    }

    pub(super) fn give_back(&self, slot: u32, token: u64) {
        if let Some(word) = self.owner_word(slot) {
            let _ = word.compare_exchange(token, 0, AcqRel, Relaxed);
        }
    }

    fn lowest_free(&self, from: u32, own: u32, token: u64) -> Option<u32> {
        let mut slot = from;
        while slot < own {
            // Our own token in a slot we do not hold is a former thread with our ids, so it is
            // dead.
            let owner = self.owner_word(slot)?.load(Relaxed);
            if owner == 0 || owner == token {
                return Some(slot);
            }
            slot = slot.wrapping_add(1);
        }
        None
    }

    fn sweep(&self, own: u32) {
        let mut slot = 0;
        while slot < own {
            if let Some(word) = self.owner_word(slot) {
                let owner = word.load(Relaxed);
                if owner != 0 && tls::dead(owner, false) {
                    let _ = word.compare_exchange(owner, 0, AcqRel, Relaxed);
                }
            }
            slot = slot.wrapping_add(1);
        }
    }
}
