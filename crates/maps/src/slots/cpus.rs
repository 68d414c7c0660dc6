//! The kernel's possible CPUs.

use std::sync::OnceLock;

use crate::shm::MAX_SLOTS;

/// Counts the kernel's possible CPUs, as libbpf does.
#[must_use]
pub fn possible_cpus() -> u32 {
    static COUNT: OnceLock<u32> = OnceLock::new();
    *COUNT.get_or_init(|| {
        let text = std::fs::read_to_string("/sys/devices/system/cpu/possible").unwrap_or_default();
        count_cpus(&text)
            .unwrap_or_else(|| std::thread::available_parallelism().map_or(1, |n| n.get() as u32))
            .clamp(1, MAX_SLOTS)
    })
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
