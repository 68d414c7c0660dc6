//! Clocks.

use std::mem::MaybeUninit;

use rustix::time::ClockId;

use crate::clock;
use skep_sys::syscall::{GETRUSAGE, call4};

#[unsafe(link_section = ".text.skep_event")]
pub(super) unsafe extern "C" fn ktime_get_ns(_: u64, _: u64, _: u64, _: u64, _: u64) -> u64 {
    clock::now()
}

#[unsafe(link_section = ".text.skep_event")]
pub(super) unsafe extern "C" fn get_cpu_time_counter(
    _: u64,
    _: u64,
    _: u64,
    _: u64,
    _: u64,
) -> u64 {
    clock::counter()
}

#[unsafe(link_section = ".text.skep_event")]
pub(super) unsafe extern "C" fn cpu_time_counter_to_ns(
    ticks: u64,
    _: u64,
    _: u64,
    _: u64,
    _: u64,
) -> u64 {
    clock::to_nanos(ticks)
}

#[unsafe(link_section = ".text.skep_event")]
pub(super) unsafe extern "C" fn ktime_get_boot_ns(_: u64, _: u64, _: u64, _: u64, _: u64) -> u64 {
    clock::other(ClockId::Boottime)
}

#[unsafe(link_section = ".text.skep_event")]
pub(super) unsafe extern "C" fn ktime_get_coarse_ns(_: u64, _: u64, _: u64, _: u64, _: u64) -> u64 {
    clock::other(ClockId::MonotonicCoarse)
}

#[unsafe(link_section = ".text.skep_event")]
pub(super) unsafe extern "C" fn ktime_get_tai_ns(_: u64, _: u64, _: u64, _: u64, _: u64) -> u64 {
    clock::tai()
}

/// Counts 4 ms ticks, as a kernel with `CONFIG_HZ=250` does, from five minutes before it wraps at
/// 32 bits (include/linux/jiffies.h `INITIAL_JIFFIES`).
#[unsafe(link_section = ".text.skep_event")]
pub(super) unsafe extern "C" fn jiffies64(_: u64, _: u64, _: u64, _: u64, _: u64) -> u64 {
    const HZ: u64 = 250;
    const INITIAL: u64 = (1 << 32) - 300 * HZ;
    clock::other(ClockId::MonotonicCoarse) / (1_000_000_000 / HZ) + INITIAL
}

/// Returns how often this thread had to let another one run before it was done (`getrusage`,
/// `ru_nivcsw`); 0 where it must not make system calls.
#[unsafe(link_section = ".text.skep_event")]
pub(super) unsafe extern "C" fn get_preemptions(_: u64, _: u64, _: u64, _: u64, _: u64) -> u64 {
    const RUSAGE_THREAD: u64 = 1;
    /// `struct rusage`, whose last word is `ru_nivcsw`.
    const WORDS: usize = 18;
    let mut usage = MaybeUninit::<[u64; WORDS]>::uninit();
    // SAFETY: a buffer as large as the structure.
    let answer = unsafe { call4(GETRUSAGE, RUSAGE_THREAD, usage.as_mut_ptr() as u64, 0, 0) };
    if answer != 0 {
        return 0;
    }
    // SAFETY: the kernel has written all of it.
    let [.., preemptions] = unsafe { usage.assume_init() };
    preemptions
}

#[cfg(test)]
mod tests {
    use crate::oracle::{Pair, call};

    #[test]
    fn clocks_show_what_the_kernels_show() {
        // Clocks that programs read in the kernel may step back a little when the time is kept
        // (kernel/time/timekeeping.c, "fast").
        const SLACK: u64 = 1_000_000;
        for helper in ["ktime_get_ns", "ktime_get_boot_ns", "ktime_get_tai_ns"] {
            let Some(pair) = Pair::new(&call(helper, &[]), b"", 8) else { return };
            let read = |bytes: Vec<u8>| bytes.first_chunk().map_or(0, |b| u64::from_le_bytes(*b));
            // Ours is read after the kernel's, and before the kernel's of the next turn.
            let mut last = 0;
            for _ in 0..100 {
                let (theirs, ours) = pair.run(&[0; 8]);
                let (theirs, ours) = (read(theirs), read(ours));
                assert!(
                    last <= theirs + SLACK && theirs <= ours + SLACK,
                    "{helper}: {last} {theirs} {ours}"
                );
                last = ours;
            }
        }
    }
}
