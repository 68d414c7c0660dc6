//! Network interfaces of this machine, as far as test runs ask for them.

use std::fs;
use std::path::Path;

use crate::port::interface::name_of;

/// The loopback interface's index: what packets of test runs come from unless told otherwise.
pub(super) const LOOPBACK: u32 = 1;

/// An interface that exists.
pub(super) struct Interface {
    index: u32,
    name: String,
}

/// Finds an interface of the thread's network namespace by index; `None` when there is none.
pub(super) fn find(index: u32) -> Option<Interface> {
    name_of(index).map(|name| Interface { index, name })
}

impl Interface {
    /// Counts the receive queues: one where `/sys` is not mounted, or shows another network namespace.
    pub(super) fn receive_queues(&self) -> u32 {
        let path = Path::new("/sys/class/net").join(&self.name);
        let shown = fs::read_to_string(path.join("ifindex"));
        let queues = fs::read_dir(path.join("queues"));
        match (shown, queues) {
            (Ok(shown), Ok(queues)) if shown.trim().parse() == Ok(self.index) => {
                let names = queues.flatten().map(|e| e.file_name());
                let count = names.filter(|name| name.to_string_lossy().starts_with("rx-")).count();
                u32::try_from(count).unwrap_or(u32::MAX)
            }
            _ => 1,
        }
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
