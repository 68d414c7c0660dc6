//! The kernel's possible CPUs.

use std::sync::atomic::{AtomicU32, Ordering::Relaxed};

use rustix::thread::sched_getaffinity;

use crate::shm::MAX_SLOTS;

/// Counts the kernel's possible CPUs, as libbpf does; where there is no `/sys`, those that this thread
/// may run on.
#[must_use]
pub fn possible_cpus() -> u32 {
    /// 0 before somebody has asked. Two that ask at once find the same, and a child that was forked
    /// meanwhile waits for nobody.
    static COUNT: AtomicU32 = AtomicU32::new(0);
    let known = COUNT.load(Relaxed);
    if known != 0 {
        return known;
    }
    let text = std::fs::read_to_string("/sys/devices/system/cpu/possible").unwrap_or_default();
    let count = count_cpus(&text)
        .unwrap_or_else(|| sched_getaffinity(None).map_or(1, |cpus| cpus.count()))
        .clamp(1, MAX_SLOTS);
    COUNT.store(count, Relaxed);
    count
}

fn count_cpus(list: &str) -> Option<u32> {
    let mut end = None;
    for range in list.trim().split(',') {
        let last: u32 = range.split('-').next_back()?.parse().ok()?;
        end = end.max(Some(last.checked_add(1)?));
    }
    end
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lists_of_cpus_are_counted_to_their_end() {
        for (text, n) in [
            ("0-1\n", Some(2)),
            ("0\n", Some(1)),
            ("0-3,8-11\n", Some(12)),
            ("", None),
            ("x", None),
        ] {
            assert_eq!(count_cpus(text), n, "{text:?}");
        }
    }
}
