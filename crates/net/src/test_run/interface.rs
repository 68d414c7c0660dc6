//! Network interfaces of this machine, as far as test runs ask for them.

use std::fs;
use std::path::PathBuf;

/// The loopback interface's index: what packets of test runs come from unless told otherwise.
pub(super) const LOOPBACK: u32 = 1;

/// An interface that exists.
pub(super) struct Interface {
    path: PathBuf,
}

/// Finds an interface by index; `None` when there is none. Where `/sys` is not mounted only the
/// loopback interface is known, which every network namespace has.
pub(super) fn find(index: u32) -> Option<Interface> {
    let entries = match fs::read_dir("/sys/class/net") {
        Ok(entries) => entries,
        Err(_) => return (index == LOOPBACK).then(|| Interface { path: PathBuf::new() }),
    };
    let is = |path: &PathBuf| {
        fs::read_to_string(path.join("ifindex")).is_ok_and(|text| text.trim().parse() == Ok(index))
    };
    entries.flatten().map(|e| e.path()).find(is).map(|path| Interface { path })
}

impl Interface {
    /// Counts the receive queues.
    pub(super) fn receive_queues(&self) -> u32 {
        if self.path.as_os_str().is_empty() {
            return 1;
        }
        let queues = fs::read_dir(self.path.join("queues"));
        let count = queues.map_or(0, |q| {
            q.flatten().filter(|e| e.file_name().to_string_lossy().starts_with("rx-")).count()
        });
        u32::try_from(count).unwrap_or(u32::MAX)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn no_interface_has_index_zero() {
        assert!(find(0).is_none());
    }
}
