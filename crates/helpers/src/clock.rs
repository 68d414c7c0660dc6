//! `bpf_ktime_get_ns` without the kernel: the time-stamp counter, scaled to nanoseconds of
//! `CLOCK_MONOTONIC`.
//!
//! The loader measures the counter's rate once ([`rate`]) and hands it to the targets, which only
//! note where they start ([`start`]). When the kernel itself does not trust the counter (its clock
//! source is another), the rate is 0 and time comes from the system call.

use std::arch::x86_64::_rdtsc;
use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::Relaxed};
use std::time::Duration;

use rustix::time::ClockId;

/// Samples are not measured from for longer than this: between, the system may have been suspended,
/// in which time the counter goes on and the clock does not.
const LONGEST: Duration = Duration::from_secs(1);

/// The sample that the rate is measured from next.
static NOTE: Mutex<Option<Sample>> = Mutex::new(None);
/// Nanoseconds a tick, times 2^32; 0: use the system call.
static RATE: AtomicU64 = AtomicU64::new(0);
/// Counter at the start.
static TICKS: AtomicU64 = AtomicU64::new(0);
/// `CLOCK_MONOTONIC` at the start.
static NANOS: AtomicU64 = AtomicU64::new(0);

fn ticks() -> u64 {
    // SAFETY: every x86-64 processor has the instruction; where the system forbids it to programs,
    // `trusted` says no first.
    unsafe { _rdtsc() }
}

/// Reads a clock by the system call itself: the kernel's page with the faster way is not there
/// under every tool (valgrind).
#[inline(always)]
fn monotonic(id: ClockId) -> u64 {
    read(id as u64)
}

#[inline(always)]
fn read(id: u64) -> u64 {
    // Not zeroed, which the compiler does with a vector register.
    let mut t = std::mem::MaybeUninit::<[u64; 2]>::uninit();
    let at = t.as_mut_ptr().cast::<u64>();
    // SAFETY: the call writes one `struct timespec`, two words; it fails in a sandbox only.
    unsafe {
        if skep_sys::syscall::call4(skep_sys::syscall::CLOCK_GETTIME, id, at as u64, 0, 0) != 0 {
            return 0;
        }
        at.read_volatile().wrapping_mul(1_000_000_000).wrapping_add(at.add(1).read_volatile())
    }
}

/// Tells whether the kernel keeps its own time by the counter.
fn trusted() -> bool {
    std::fs::read_to_string("/sys/devices/system/clocksource/clocksource0/current_clocksource")
        .is_ok_and(|s| s.trim() == "tsc")
}

/// What the clock and the counter were at one moment.
#[derive(Clone, Copy, Debug)]
struct Sample {
    nanos: u64,
    ticks: u64,
}

/// Takes the clock and the counter as close together as can be had.
fn sample() -> Sample {
    let one = || {
        let before = ticks();
        let nanos = monotonic(ClockId::Monotonic);
        let took = ticks().wrapping_sub(before);
        (took, Sample { nanos, ticks: before.wrapping_add(took / 2) })
    };
    let none = (u64::MAX, Sample { nanos: 0, ticks: 0 });
    (0..8).map(|_| one()).fold(none, |best, new| if new.0 < best.0 { new } else { best }).1
}

/// Notes the time: a [`rate`] that is asked for within a second is measured from here on, and need not
/// wait for as much of its span as has passed by then.
///
/// ```
/// use std::time::Duration;
/// skep_helpers::clock::note();
/// std::thread::sleep(Duration::from_millis(4)); // other work
/// skep_helpers::clock::rate(Duration::from_millis(4));
/// ```
pub fn note() {
    noted();
}

/// Notes the time if it is not noted; gives what is. `None`: the counter is not to be trusted, and perhaps
/// not to be read.
fn noted() -> Option<Sample> {
    if !trusted() {
        return None;
    }
    let now = sample();
    // Who cannot have it measures by itself: a child forked in the middle would wait for ever.
    let Ok(mut note) = NOTE.try_lock() else { return Some(now) };
    let is_good = |old: &Sample| u128::from(now.nanos.wrapping_sub(old.nanos)) < LONGEST.as_nanos();
    let since = note.filter(is_good).unwrap_or(now);
    *note = Some(since);
    *note
}

/// Measures nanoseconds per tick, times 2^32, over `span` at least; 0 when the counter is not to be
/// trusted. From when on: see [`note`].
///
/// The two samples are each within some 20 ns of the truth: 5 ms give ten parts in a million.
#[must_use]
pub fn rate(span: Duration) -> u64 {
    let Some(first) = noted() else { return 0 };
    let passed = monotonic(ClockId::Monotonic).wrapping_sub(first.nanos);
    std::thread::sleep(span.saturating_sub(Duration::from_nanos(passed)));
    let last = sample();
    let (nanos, ticks) =
        (last.nanos.wrapping_sub(first.nanos), last.ticks.wrapping_sub(first.ticks));
    if ticks == 0 {
        0
    } else {
        u64::try_from((u128::from(nanos) << 32) / u128::from(ticks)).unwrap_or(0)
    }
}

/// Starts the clock of a process that runs programs by itself, with a rate measured over `span`;
/// does nothing where it runs already. What threads read meanwhile comes from the system call.
pub fn start_once(span: Duration) {
    // Not a `Once`: a child forked in the middle would wait for ever, and so it uses the system call.
    static BEGUN: AtomicBool = AtomicBool::new(false);
    if is_a_system_call() && !BEGUN.swap(true, Relaxed) {
        start(rate(span));
    }
}

/// Starts the clock of this process with a rate that a loader measured.
pub fn start(rate: u64) {
    let Sample { nanos, ticks } = sample();
    TICKS.store(ticks, Relaxed);
    NANOS.store(nanos, Relaxed);
    RATE.store(rate, Relaxed);
}

/// Tells whether reading the time takes a system call.
pub fn is_a_system_call() -> bool {
    RATE.load(Relaxed) == 0
}

/// Reads the time as `bpf_ktime_get_ns` does.
#[inline(always)]
pub fn now() -> u64 {
    let rate = RATE.load(Relaxed);
    if rate == 0 {
        return monotonic(ClockId::Monotonic);
    }
    NANOS.load(Relaxed).wrapping_add(scale(ticks().wrapping_sub(TICKS.load(Relaxed)), rate))
}

/// Reads the time in the counter's own unit: cheaper than nanoseconds, and good for differences.
#[inline(always)]
pub fn counter() -> u64 {
    counter_at(RATE.load(Relaxed))
}

/// The same in a process that has not started its clock, with the rate of the one that has.
#[inline(always)]
pub fn counter_at(rate: u64) -> u64 {
    if rate == 0 { monotonic(ClockId::Monotonic) } else { ticks() }
}

/// Converts a difference of counters to nanoseconds.
#[inline(always)]
pub fn to_nanos(ticks: u64) -> u64 {
    scale(ticks, RATE.load(Relaxed))
}

/// Converts a difference of counters with a given rate; with rate 0 the counter counts nanoseconds.
#[inline(always)]
pub fn scale(ticks: u64, rate: u64) -> u64 {
    if rate == 0 { ticks } else { ((u128::from(ticks) * u128::from(rate)) >> 32) as u64 }
}

/// Reads another clock by the system call.
#[inline(always)]
pub fn other(id: ClockId) -> u64 {
    monotonic(id)
}

/// Reads `CLOCK_TAI`, which rustix does not name.
#[inline(always)]
pub fn tai() -> u64 {
    const CLOCK_TAI: u64 = 11;
    read(CLOCK_TAI)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The note is the process's.
    static ALONE: Mutex<()> = Mutex::new(());

    /// Who measures again, or noted the time before, measures from then on, for as long as that is not
    /// too long ago.
    #[test]
    fn no_measurement_waits_for_time_that_has_passed() {
        let _alone = ALONE.lock();
        let span = Duration::from_millis(40);
        let first = rate(span);
        assert_eq!((first > 0, noted().is_some()), (trusted(), trusted()));
        let Some(since) = noted() else { return };
        let again = rate(span);
        let note = noted().map(|note| note.nanos);
        let passed = monotonic(ClockId::Monotonic) - since.nanos;
        let is_old = u128::from(passed) >= LONGEST.as_nanos();
        assert!(Some(since.nanos) == note || is_old, "it is the same note");
        let apart = first.abs_diff(again);
        assert!(apart <= first / 1000, "{first} {again}");
        let now = monotonic(ClockId::Monotonic);
        let old = Sample { nanos: now - 1_000_000_001, ..since };
        *NOTE.lock().unwrap() = Some(old);
        let new = noted().map(|note| note.nanos);
        assert!(new >= Some(now), "the system may have slept since");
    }

    #[test]
    fn the_clock_stays_close_to_the_kernels() {
        let _alone = ALONE.lock();
        start(rate(Duration::from_millis(20)));
        let mut last = 0;
        for _ in 0..1000 {
            let before = monotonic(ClockId::Monotonic);
            let ours = now();
            let after = monotonic(ClockId::Monotonic);
            assert!(ours >= last, "time went back");
            assert!(
                ours + 1_000_000 > before && ours < after + 1_000_000,
                "{before} {ours} {after}"
            );
            last = ours;
        }
    }
}
