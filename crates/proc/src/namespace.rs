//! Ids of processes in PID namespaces.

use crate::file;

/// Finds the id that a process has in its own PID namespace, the innermost one it is in: the one that it
/// knows itself by. `None`: there is no such process, or the kernel does not say.
#[must_use]
pub fn own_id(pid: u32) -> Option<u32> {
    let status = file::read(format!("/proc/{pid}/status"), 1 << 16).ok()?;
    let ids = status.split(|b| *b == b'\n').find_map(|line| line.strip_prefix(b"NSpid:"))?;
    let last = ids.split(|b| b.is_ascii_whitespace()).next_back()?;
    str::from_utf8(last).ok()?.parse().ok()
}

/// Tells whether `/proc` is that of another PID namespace than this process's: what it says of an id is
/// about another process then. So it is in a new PID namespace until one is mounted there.
#[must_use]
pub fn proc_is_of_another() -> bool {
    let own = std::fs::read_link("/proc/self");
    own.is_ok_and(|own| own.to_str().and_then(|id| id.parse().ok()) != Some(std::process::id()))
}

#[cfg(test)]
mod tests {
    use super::{own_id, proc_is_of_another};

    #[test]
    fn a_process_has_the_id_that_it_knows() {
        assert_eq!(own_id(std::process::id()), Some(std::process::id()));
        assert_eq!(own_id(u32::MAX), None);
        assert!(!proc_is_of_another());
    }
}
