//! Counting bits, by the instruction for it where the processor has that: it came after the first of
//! those that programs are compiled for, and without it a count takes 20 others, one after the other.

use std::arch::asm;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};

static HAS_POPCNT: AtomicBool = AtomicBool::new(false);

/// Looks what the processor has. Not for the event path.
pub(crate) fn look_at_processor() {
    HAS_POPCNT.store(std::arch::is_x86_feature_detected!("popcnt"), Relaxed);
}

/// Counts the ones of a word.
#[inline(always)]
pub(crate) fn count_ones(word: u64) -> u32 {
    if !HAS_POPCNT.load(Relaxed) {
        return word.count_ones();
    }
    let n: u64;
    // SAFETY: the processor has the instruction.
    unsafe {
        asm!("popcnt {n}, {word}", word = in(reg) word, n = lateout(reg) n, options(pure, nomem, nostack));
    }
    n as u32
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn both_ways_count_the_same() {
        look_at_processor();
        let mut random = 7u64;
        for i in 0..64 {
            random = random.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
            for word in [random, random & ((1 << i) - 1), 1 << i, !0 << i, 0] {
                assert_eq!(count_ones(word), word.count_ones(), "{word:x}");
            }
        }
    }
}
