//! Memory for a file before anything is stored in it, so that a full file system is an error and no
//! signal.
//!
//! A file is made as long as it ever gets, with holes. What a map promises to hold is given memory
//! when it is made ([`reserve`]). What comes on demand is given it piece by piece, by whoever is
//! about to use it first ([`populate_some`]), in user calls and in running programs.

use std::os::fd::BorrowedFd;
use std::path::Path;

use rustix::fs::{self, FallocateFlags};
use rustix::io::Errno;
use rustix::process::{Resource, getrlimit};

use super::error::{Limit, ObjectError};
use super::{PAGE, sys};

/// Bytes that are written, or given memory, at a time, if there is as much.
const PIECE: u64 = 64 << 10;

/// Checks that a file may be as long as `len`: a longer one would end the process by `SIGXFSZ`.
pub(super) fn check_length(path: &Path, len: u64) -> Result<(), ObjectError> {
    match getrlimit(Resource::Fsize).current {
        Some(most) if len > most => Err(ObjectError::NoMemory {
            path: path.to_owned(),
            need: len,
            available: most,
            limit: Limit::FileSize,
        }),
        _ => Ok(()),
    }
}

/// Gives ranges of a new file memory, all or none: who fails removes the file.
pub(super) fn reserve(
    fd: BorrowedFd<'_>,
    path: &Path,
    ranges: &[(u64, u64)],
) -> Result<(), ObjectError> {
    let need = ranges.iter().fold(0u64, |sum, (_, len)| sum.saturating_add(*len));
    let refuse =
        |available, limit| ObjectError::NoMemory { path: path.to_owned(), need, available, limit };
    let space = space(fd);
    // Before anything is taken from others: a file system would give what it has, and take it back
    // in the end.
    if let Some((available, limit)) = space.filter(|(available, _)| need > *available) {
        return Err(refuse(available, limit));
    }
    for (at, len) in ranges.iter().filter(|(_, len)| *len > 0) {
        let less_than_needed = || space.map_or(0, |(available, _)| available.min(need - 1));
        match allocate(fd, *at, *len) {
            Ok(()) => {}
            Err(Errno::NOSPC) => return Err(refuse(less_than_needed(), Limit::FileSystem)),
            Err(Errno::DQUOT) => return Err(refuse(less_than_needed(), Limit::Quota)),
            Err(Errno::NOMEM) => return Err(refuse(less_than_needed(), Limit::Memory)),
            Err(e) => {
                return Err(ObjectError::Os {
                    call: "fallocate",
                    path: path.to_owned(),
                    errno: e.raw_os_error(),
                });
            }
        }
    }
    Ok(())
}

/// Finds how many bytes a file can get now; `None` where that is not told.
fn space(fd: BorrowedFd<'_>) -> Option<(u64, Limit)> {
    const TMPFS: u64 = 0x0102_1994;
    let system = fs::fstatvfs(fd).ok()?;
    let kind = fs::fstatfs(fd).ok()?.f_type as u64;
    // A tmpfs without a limit says that it has no blocks at all.
    let blocks = (system.f_blocks > 0)
        .then(|| (system.f_bavail.saturating_mul(system.f_frsize), Limit::FileSystem));
    let memory = (kind == TMPFS).then(|| available_memory().map(|n| (n, Limit::Memory))).flatten();
    [blocks, memory].into_iter().flatten().min_by_key(|(available, _)| *available)
}

/// What the kernel could give without ending a process.
fn available_memory() -> Option<u64> {
    let text = std::fs::read_to_string("/proc/meminfo").ok()?;
    let kib = |name: &str| {
        let line = text.lines().find_map(|line| line.strip_prefix(name))?;
        line.split_ascii_whitespace().next()?.parse::<u64>().ok()
    };
    Some(kib("MemAvailable:")?.saturating_add(kib("SwapFree:").unwrap_or(0)).saturating_mul(1024))
}

/// Gives a range of a new file memory, by writing zeros where the file system has no `fallocate`.
fn allocate(fd: BorrowedFd<'_>, at: u64, len: u64) -> Result<(), Errno> {
    loop {
        match fs::fallocate(fd, FallocateFlags::empty(), at, len) {
            Err(Errno::INTR) => {}
            Err(Errno::OPNOTSUPP | Errno::NOSYS) => return write_zeros(fd, at, len),
            done => return done,
        }
    }
}

fn write_zeros(fd: BorrowedFd<'_>, mut at: u64, len: u64) -> Result<(), Errno> {
    let zeros = vec![0; len.min(PIECE) as usize];
    let end = at + len;
    while at < end {
        match rustix::io::pwrite(fd, &zeros[..zeros.len().min((end - at) as usize)], at) {
            Ok(0) => return Err(Errno::NOSPC),
            Ok(n) => at += n as u64,
            Err(Errno::INTR) => {}
            Err(e) => return Err(e),
        }
    }
    Ok(())
}

/// Gives `len` bytes at an address memory; `false` where there is none. Safe on the event path.
///
/// # Safety
/// The pages with these bytes are mapped writable.
pub(crate) unsafe fn populate(from: *mut u8, len: u64) -> bool {
    let before = from as u64 & (PAGE - 1);
    let pages = before.wrapping_add(len).wrapping_add(PAGE - 1) & !(PAGE - 1);
    // SAFETY: the caller's promise.
    len == 0 || unsafe { sys::populate(from.wrapping_sub(before as usize), pages as usize) }
}

/// Gives thing `first` of a row memory, and as many behind it before `end` as come along; returns
/// the number of the first that has none, which is `first` when there is no memory. A thing has
/// `size` bytes in all, and `acquire` sees to those of a range of them.
pub(crate) fn populate_some(
    first: u64,
    end: u64,
    size: u64,
    acquire: impl Fn(u64, u64) -> bool,
) -> u64 {
    let many = first.wrapping_add((PIECE / size.max(1)).max(1)).min(end);
    for last in [many, first.wrapping_add(1).min(end)] {
        if acquire(first, last) {
            return last;
        }
    }
    first
}
