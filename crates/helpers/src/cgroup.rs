//! Control groups of the running process, by the numbers the kernel gives them: inodes of their
//! directories.
//!
//! What the process belongs to is read from `/proc/self/cgroup` and kept for a second: a move to
//! another group is seen by then. Levels count from the group that is mounted at `/sys/fs/cgroup`,
//! which in a container is not the machine's root.

use std::mem::MaybeUninit;
use std::sync::atomic::{AtomicU64, Ordering::Acquire, Ordering::Relaxed, Ordering::Release};

use super::map::map;
use super::{errno, fail};
use skep_sys::of_proc;
use skep_sys::syscall::{CLOSE, FSTATAT, OPENAT, READ, call4};

const AT_FDCWD: u64 = -100_i64 as u64;
const MOUNT: &[u8] = b"/sys/fs/cgroup";
/// Ancestors that are looked at, the group itself included.
const DEPTH: usize = 16;
const FRESH: u64 = 1_000_000_000;

/// What was found: changes under an odd number, as a sequence lock without waiting.
static SEQUENCE: AtomicU64 = AtomicU64::new(0);
static READ_AT: AtomicU64 = AtomicU64::new(0);
static OF: AtomicU64 = AtomicU64::new(0);
static COUNT: AtomicU64 = AtomicU64::new(0);
static IDS: [AtomicU64; DEPTH] = [const { AtomicU64::new(0) }; DEPTH];

/// Calls `f` with the ids from the root to the process's own group; `None` when a store is going
/// on, and then nobody waits.
fn kept<T>(now: u64, f: impl FnOnce(usize) -> T) -> Option<T> {
    // Pairs with the Release stores of `refresh`.
    let before = SEQUENCE.load(Acquire);
    let fresh = now.wrapping_sub(READ_AT.load(Relaxed)) < FRESH
        && OF.load(Relaxed) == skep_maps::slots::pid_tgid() >> 32;
    if before & 1 != 0 || before == 0 || !fresh {
        return None;
    }
    let got = f(COUNT.load(Relaxed) as usize);
    std::sync::atomic::fence(Acquire);
    (SEQUENCE.load(Relaxed) == before).then_some(got)
}

/// The inode of a directory, or 0. `path` ends with a zero.
unsafe fn inode(path: *const u8) -> u64 {
    let mut stat = [const { MaybeUninit::<u64>::uninit() }; 18];
    // SAFETY: the call writes a `struct stat` of 144 bytes; st_ino is its second word.
    unsafe {
        match call4(FSTATAT, AT_FDCWD, path as u64, stat.as_mut_ptr() as u64, 0) {
            0 => stat.as_ptr().cast::<u64>().add(1).read_volatile(),
            _ => 0,
        }
    }
}

/// Reads the file anew. Somebody else at it already does: then what is kept stays.
#[cold]
#[inline(never)]
fn refresh(now: u64) {
    const SIZE: usize = 4096;
    const BEFORE: usize = 64;
    let sequence = SEQUENCE.load(Relaxed);
    let owner = OF.load(Relaxed);
    let pid = skep_maps::slots::pid_tgid() >> 32;
    // Left odd by a thread that was forked away in the middle: its process is another.
    if sequence & 1 != 0 && owner == pid {
        return;
    }
    let odd = sequence.wrapping_add(1 + (sequence & 1));
    if SEQUENCE.compare_exchange(sequence, odd, Acquire, Relaxed).is_err() {
        return;
    }
    OF.store(pid, Relaxed);
    let mut text = MaybeUninit::<[u8; BEFORE + SIZE + 1]>::uninit();
    let text = text.as_mut_ptr().cast::<u8>();
    let mut count = 0;
    // SAFETY: all accesses are inside `text`: the file is read behind BEFORE bytes, a path begins
    // at most MOUNT.len() before that.
    unsafe {
        let [dir, path] = of_proc::place(c"/proc/thread-self/cgroup".as_ptr() as u64);
        let fd = call4(OPENAT, dir, path, 0x80000, 0);
        let len = if (fd as i64) < 0 {
            0
        } else {
            call4(READ, fd, text.add(BEFORE) as u64, SIZE as u64, 0)
        };
        if (fd as i64) >= 0 {
            call4(CLOSE, fd, 0, 0, 0);
        }
        let len = if len > SIZE as u64 { 0 } else { len as usize };
        let byte = |i: usize| if i < len { text.add(BEFORE + i).read_volatile() } else { 0 };
        // The line of the unified hierarchy: `0::/path`.
        let mut line = 0;
        while line < len
            && !(byte(line) == b'0' && byte(line + 1) == b':' && byte(line + 2) == b':')
        {
            while line < len && byte(line) != b'\n' {
                line += 1;
            }
            line += 1;
        }
        if line < len {
            let path = BEFORE + line + 3;
            let begin = path - MOUNT.len();
            for (i, b) in MOUNT.iter().enumerate() {
                text.add(begin + i).write_volatile(*b);
            }
            // Each prefix that ends before a slash is an ancestor; the mount point is the first.
            let mut end = path;
            loop {
                let c = byte(end - BEFORE);
                let last = matches!(c, 0 | b'\n') || end - BEFORE >= len;
                if last || c == b'/' {
                    text.add(end).write_volatile(0);
                    let repeated = last && end == path + 1;
                    if let Some(id) = IDS.get(count).filter(|_| !repeated) {
                        id.store(inode(text.add(begin)), Relaxed);
                        count += 1;
                    }
                    if last {
                        break;
                    }
                    text.add(end).write_volatile(b'/');
                }
                end += 1;
            }
        }
    }
    COUNT.store(count as u64, Relaxed);
    READ_AT.store(now, Relaxed);
    SEQUENCE.store(SEQUENCE.load(Relaxed).wrapping_add(1), Release);
}

/// Calls `f` with the number of known levels.
fn with<T>(f: impl Fn(usize) -> T) -> Option<T> {
    let now = crate::clock::now();
    kept(now, &f).or_else(|| {
        refresh(now);
        kept(now, &f)
    })
}

fn id(level: usize) -> u64 {
    IDS.get(level).map_or(0, |id| id.load(Relaxed))
}

/// The group of the process; 0 where it cannot be told.
pub(super) unsafe extern "C" fn get_current_cgroup_id(
    _: u64,
    _: u64,
    _: u64,
    _: u64,
    _: u64,
) -> u64 {
    with(|count| if count > 0 { id(count - 1) } else { 0 }).unwrap_or(0)
}

/// The ancestor of that group at a level; 0 when there is none.
pub(super) unsafe extern "C" fn get_current_ancestor_cgroup_id(
    level: u64,
    _: u64,
    _: u64,
    _: u64,
    _: u64,
) -> u64 {
    let level = level as i32;
    with(|count| if level >= 0 && (level as usize) < count { id(level as usize) } else { 0 })
        .unwrap_or(0)
}

/// Tells whether the process is in the group whose number is in the map's row, or below it.
pub(super) unsafe extern "C" fn current_task_under_cgroup(
    handle: u64,
    index: u64,
    _: u64,
    _: u64,
    _: u64,
) -> u64 {
    // SAFETY: the verifier proved argument 1 a map of control groups, whose keys have four bytes.
    let map = unsafe { map(handle) };
    let index = index as u32;
    if index >= map.def().max_entries {
        return fail(errno::E2BIG);
    }
    // SAFETY: as above; a row is a word.
    let group = unsafe {
        let row = map.prog_lookup((&raw const index).cast());
        if row.is_null() { 0 } else { row.cast::<u32>().read_volatile() }
    };
    if group == 0 {
        return fail(errno::EAGAIN);
    }
    with(|count| u64::from((0..count).any(|level| id(level) as u32 == group))).unwrap_or(0)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::fs::MetadataExt;

    #[test]
    fn groups_have_the_numbers_of_their_directories() {
        let text = std::fs::read_to_string("/proc/self/cgroup").unwrap_or_default();
        let Some(path) = text.lines().find_map(|l| l.strip_prefix("0::/")) else {
            return skep_testkit::skip("control groups v2");
        };
        let number =
            |path: &str| std::fs::metadata(format!("/sys/fs/cgroup/{path}")).map_or(0, |m| m.ino());
        let mut want = vec![number("")];
        let parts: Vec<&str> = path.split('/').filter(|p| !p.is_empty()).collect();
        want.extend((1..=parts.len()).map(|n| number(&parts[..n].join("/"))));
        // SAFETY: these helpers take numbers only.
        unsafe {
            assert_eq!(
                get_current_cgroup_id(0, 0, 0, 0, 0),
                *want.last().expect("at least the root")
            );
            for (level, id) in want.iter().enumerate() {
                assert_eq!(
                    get_current_ancestor_cgroup_id(level as u64, 0, 0, 0, 0),
                    *id,
                    "level {level} of {path}"
                );
            }
            assert_eq!(get_current_ancestor_cgroup_id(want.len() as u64, 0, 0, 0, 0), 0);
            assert_eq!(get_current_ancestor_cgroup_id(u64::MAX, 0, 0, 0, 0), 0);
        }
    }
}
