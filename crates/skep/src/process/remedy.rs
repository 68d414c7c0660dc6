//! What stands in an agent's way in a process: its limits and what it has done to itself.

use std::fs;

use crate::cgroup;

/// Address space that the agent takes, and what else it maps meanwhile.
const SPACE: u64 = 80 << 20;
/// Mappings that it makes, with those that it splits.
const MAPPINGS: usize = 64;
/// Descriptors that its thread has open.
const FILES: usize = 4;
/// A limit of threads that nobody sets who does not mean to forbid them.
const FEW: u64 = 8;
/// As much as it writes into one file.
const FILE: u64 = 64 << 20;

/// Looks for something that can be changed, so that the agent could work there.
pub(super) fn remedy(pid: u32) -> Option<String> {
    // One that has ended is in nobody's way.
    fs::read_link(format!("/proc/{pid}/exe")).ok()?;
    let limit = Limits::of(pid);
    let soft = |name: &str, option: &str, what: &str, is_low: &dyn Fn(u64) -> bool| {
        let soft = limit.soft(name).filter(|soft| is_low(*soft))?;
        Some(format!("its limit of {what} is {soft}; `prlimit --pid {pid} --{option}` raises it"))
    };
    let above = |name: &'static str| {
        let used = status(pid, name).unwrap_or(0) << 10;
        move |limit| used.saturating_add(SPACE) > limit
    };
    // First what cannot be changed from outside: it hides the others.
    let parts: [&dyn Fn() -> Option<String>; 8] = [
        &|| namespace(pid),
        &|| {
            let limit = cgroup::full_of_threads(pid)?;
            Some(format!("its control group may have no more threads; raise `{}`", limit.display()))
        },
        &|| soft("Max processes", "nproc=unlimited", "threads of its user", &|limit| limit < FEW),
        &|| soft("Max address space", "as=unlimited", "address space", &above("VmSize:")),
        &|| soft("Max data size", "data=unlimited", "data", &above("VmData:")),
        &|| soft("Max file size", "fsize=unlimited", "file sizes", &|limit| limit < FILE),
        &|| {
            let open = count(&format!("/proc/{pid}/fd"));
            soft("Max open files", "nofile=1024", "open files", &|limit| {
                limit < (open + FILES) as u64
            })
        },
        &|| mappings(pid),
    ];
    parts.iter().find_map(|part| part())
}

/// The kernel makes no thread in a process whose children are in another PID namespace.
fn namespace(pid: u32) -> Option<String> {
    let of = |name: &str| fs::read_link(format!("/proc/{pid}/ns/{name}"));
    // `pid_for_children` has none before the first child.
    let own = of("pid").ok()?;
    match of("pid_for_children") {
        Ok(children) if children == own => None,
        _ => Some(
            "it has called `unshare(CLONE_NEWPID)`, and cannot have new threads since; \
             start it with skep: `skep trace … -- COMMAND`"
                .to_owned(),
        ),
    }
}

fn mappings(pid: u32) -> Option<String> {
    let most = fs::read_to_string("/proc/sys/vm/max_map_count").ok()?.trim().parse().ok()?;
    let have = fs::read_to_string(format!("/proc/{pid}/maps")).ok()?.lines().count();
    (have + MAPPINGS > most).then(|| {
        format!("it has {have} mappings, and `/proc/sys/vm/max_map_count` is {most}: raise that")
    })
}

fn count(folder: &str) -> usize {
    fs::read_dir(folder).map_or(0, Iterator::count)
}

/// A number of `/proc/PID/status`.
fn status(pid: u32, name: &str) -> Option<u64> {
    let text = fs::read_to_string(format!("/proc/{pid}/status")).ok()?;
    let line = text.lines().find_map(|line| line.strip_prefix(name))?;
    line.split_ascii_whitespace().next()?.parse().ok()
}

/// The text of `/proc/PID/limits`.
struct Limits(String);

impl Limits {
    fn of(pid: u32) -> Self {
        Self(fs::read_to_string(format!("/proc/{pid}/limits")).unwrap_or_default())
    }

    /// `None`: there is no limit.
    fn soft(&self, name: &str) -> Option<u64> {
        let line = self.0.lines().find_map(|line| line.strip_prefix(name))?;
        line.split_ascii_whitespace().next()?.parse().ok()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn limits_are_read_by_name() {
        let limits = Limits(
            "Limit                     Soft Limit           Hard Limit           Units     \n\
             Max file size             0                    unlimited            bytes     \n\
             Max address space         unlimited            unlimited            bytes     \n"
                .to_owned(),
        );
        assert_eq!(limits.soft("Max file size"), Some(0));
        assert_eq!(limits.soft("Max address space"), None);
        assert_eq!(limits.soft("Max locked memory"), None);
    }

    #[test]
    fn nothing_stands_in_the_way_of_a_plain_process() {
        assert_eq!(remedy(std::process::id()), None);
        assert_eq!(remedy(u32::MAX), None);
    }
}
