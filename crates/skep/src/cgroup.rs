//! What the control groups of a process leave it: in a memory cgroup that is full, the kernel ends a
//! process of it, which would be the one that is attached to; in a full `pids` cgroup there are no new
//! threads.

use std::fs;
use std::path::{Path, PathBuf};

/// Where control groups are mounted, by convention.
const MOUNT: &str = "/sys/fs/cgroup";

/// A memory cgroup.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Group {
    /// The file with its limit.
    pub(crate) limit: PathBuf,
    /// Bytes that there are until it is reached, with those that the kernel can take back.
    pub(crate) left: u64,
}

/// Names of the files of a version of control groups.
struct Files {
    limit: &'static str,
    usage: &'static str,
    /// Of lines of `memory.stat`: what files have in memory.
    of_files: [&'static str; 2],
}

static V1: Files = Files {
    limit: "memory.limit_in_bytes",
    usage: "memory.usage_in_bytes",
    of_files: ["total_inactive_file", "total_active_file"],
};

static V2: Files = Files {
    limit: "memory.max",
    usage: "memory.current",
    of_files: ["inactive_file", "active_file"],
};

/// The group of a process, or one that it is in, with the least memory left; `None` where there is no
/// limit, or nobody can tell.
pub(crate) fn tightest(pid: u32) -> Option<Group> {
    let groups = groups(pid, "memory").into_iter();
    groups.filter_map(|(at, files)| group(&at, files)).min_by_key(|group| group.left)
}

/// The file with the limit of threads of a group of a process that has as many, or of one that it is in.
pub(crate) fn full_of_threads(pid: u32) -> Option<PathBuf> {
    let number = |path: PathBuf| fs::read_to_string(path).ok()?.trim().parse::<u64>().ok();
    groups(pid, "pids").into_iter().find_map(|(at, _)| {
        let limit = at.join("pids.max");
        (number(at.join("pids.current"))? >= number(limit.clone())?).then_some(limit)
    })
}

/// The groups of a process that a controller limits, with those that they are in.
fn groups(pid: u32, controller: &str) -> Vec<(PathBuf, &'static Files)> {
    let groups = fs::read_to_string(format!("/proc/{pid}/cgroup")).unwrap_or_default();
    let mut all = Vec::new();
    for line in groups.lines() {
        let Some((controllers, path)) = line.split_once(':').and_then(|l| l.1.split_once(':'))
        else {
            continue;
        };
        let (mount, files) = match controllers {
            "" => (PathBuf::from(MOUNT), &V2),
            _ if controllers.split(',').any(|c| c == controller) => {
                (Path::new(MOUNT).join(controller), &V1)
            }
            _ => continue,
        };
        let own = mount.join(path.trim_start_matches('/'));
        let outer = own.ancestors().take_while(|at| at.starts_with(&mount));
        all.extend(outer.map(|at| (at.to_owned(), files)));
    }
    all
}

/// Bytes that a process may still take; `None` as above.
pub(crate) fn memory_left(pid: u32) -> Option<u64> {
    tightest(pid).map(|group| group.left)
}

fn group(at: &Path, files: &Files) -> Option<Group> {
    let number = |name: &str| fs::read_to_string(at.join(name)).ok()?.trim().parse::<u64>().ok();
    // `max` is no number, and the first version has the largest for it. The other files take long to read.
    let limit = number(files.limit).filter(|limit| *limit < u64::MAX >> 2)?;
    let usage = number(files.usage)?;
    let stat = fs::read_to_string(at.join("memory.stat")).unwrap_or_default();
    let of_files: u64 = files.of_files.iter().filter_map(|name| field(&stat, name)).sum();
    let left = limit.saturating_sub(usage).saturating_add(of_files).saturating_add(swap());
    Some(Group { limit: at.join(files.limit), left })
}

/// Bytes of swap that there are.
fn swap() -> u64 {
    let meminfo = fs::read_to_string("/proc/meminfo").unwrap_or_default();
    field(&meminfo, "SwapFree:").unwrap_or(0) << 10
}

/// The number behind a name that begins a line.
fn field(text: &str, name: &str) -> Option<u64> {
    let mut lines = text.lines().map(str::split_ascii_whitespace);
    lines.find_map(|mut words| (words.next()? == name).then(|| words.next()?.parse().ok())?)
}

#[cfg(test)]
mod tests {
    use super::*;
    use skep_testkit::temp::TempDir;

    #[test]
    fn files_in_memory_count_as_left() {
        let dir = TempDir::new();
        let write = |name: &str, text: &str| fs::write(dir.join(name), text).expect("written");
        write("memory.max", "10000\n");
        write("memory.current", "9000\n");
        write("memory.stat", "anon 7000\ninactive_file 500\nactive_file 25\nfile 900\n");
        let found = group(dir.path(), &V2).expect("a limit");
        let expected = Group { limit: dir.join("memory.max"), left: 1525 + swap() };
        assert_eq!(found, expected);
        write("memory.max", "max\n");
        assert_eq!(group(dir.path(), &V2), None);
        assert_eq!(group(dir.path(), &V1), None);
    }
}
