//! The word that tells of a slot's runs: those begun and not ended in the low bits, ended ones above.
//! Only the thread that owns the slot changes it.

const DEPTH: u32 = 8;
const DEPTH_MASK: u64 = (1 << DEPTH) - 1;
/// What the beginning of a run adds.
pub(super) const BEGIN_RUN: u64 = 1;
/// What the end of a run adds: one run less that is not ended, and one more that is.
pub(super) const END_RUN: u64 = (1 << DEPTH) - 1;

/// Returns how many runs have not ended.
pub(super) const fn running(state: u64) -> u64 {
    state & DEPTH_MASK
}

/// Returns the state in which all runs have ended.
pub(super) const fn all_ended(state: u64) -> u64 {
    (state | DEPTH_MASK).wrapping_add(1)
}

/// Tells whether the runs that were going on in the state `before` have ended by `now`.
pub(super) const fn have_ended(before: u64, now: u64) -> bool {
    running(now) == 0 || (now >> DEPTH).wrapping_sub(before >> DEPTH) >= running(before)
}
