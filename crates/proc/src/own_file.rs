//! Files that a process leaves in a directory for others of its user: what was found out once.
//!
//! Only plain files of this user count that nobody else can write to, and links are not followed. A file
//! comes as a whole, in place of an older one.
//!
//! Internal to skep.

use rustix::fd::{AsFd, OwnedFd};
use rustix::fs::{self, FileType, Mode, OFlags, Stat};
use rustix::io::Errno;
use std::ffi::{CStr, CString};
use std::sync::atomic::{AtomicU64, Ordering};

/// Opens a directory by its path, to look for files there.
#[must_use]
pub fn directory(path: impl rustix::path::Arg) -> Option<OwnedFd> {
    fs::open(path, OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC, Mode::empty()).ok()
}

/// Opens a file for reading; `None`: there is none, or it is not such a file.
#[must_use]
pub fn open(directory: impl AsFd, name: &CStr) -> Option<(OwnedFd, Stat)> {
    let flags = OFlags::RDONLY | OFlags::CLOEXEC | OFlags::NOFOLLOW | OFlags::NONBLOCK;
    let fd = fs::openat(directory, name, flags, Mode::empty()).ok()?;
    let stat = is_own(&fd)?;
    Some((fd, stat))
}

/// Looks whether an open file is a plain one of this user that nobody else can write to.
#[must_use]
pub fn is_own(fd: impl AsFd) -> Option<Stat> {
    let stat = fs::fstat(fd).ok()?;
    let own = stat.st_uid == rustix::process::geteuid().as_raw() && stat.st_mode & 0o022 == 0;
    let is_plain = FileType::from_raw_mode(stat.st_mode) == FileType::RegularFile;
    (own && is_plain).then_some(stat)
}

/// Looks whether an open directory is one of this user that nobody else can write to.
#[must_use]
pub fn is_own_directory(fd: &impl AsFd) -> bool {
    fs::fstat(fd).is_ok_and(|stat| {
        stat.st_uid == rustix::process::geteuid().as_raw() && stat.st_mode & 0o022 == 0
    })
}

/// Notes that a file was used, where one goes that was not used for longest.
pub fn touch(fd: impl AsFd) {
    let now = fs::Timespec { tv_sec: 0, tv_nsec: fs::UTIME_NOW };
    let _ = fs::futimens(fd, &fs::Timestamps { last_access: now, last_modification: now });
}

/// Reads all of these bytes, from where the file stands.
#[must_use]
pub fn read_exact(fd: impl AsFd, mut into: &mut [u8]) -> Option<()> {
    while !into.is_empty() {
        match rustix::io::read(&fd, &mut *into) {
            Ok(0) => return None,
            Ok(n) => into = into.get_mut(n..)?,
            Err(Errno::INTR) => {}
            Err(_) => return None,
        }
    }
    Some(())
}

/// A file may take this part of what is free in its file system.
const PART_OF_FREE: u64 = 64;

/// Tells whether a file of so many bytes may be written to a directory: it takes little of what is free,
/// and a longer one than this process may write would end it by `SIGXFSZ`.
#[must_use]
pub fn has_room(directory: impl AsFd, bytes: usize) -> bool {
    let limit = rustix::process::getrlimit(rustix::process::Resource::Fsize);
    let bytes = bytes as u64;
    let is_little = |system: fs::StatVfs| {
        // A file system without a limit says that it has no blocks at all.
        system.f_blocks == 0
            || bytes <= system.f_bavail.saturating_mul(system.f_frsize) / PART_OF_FREE
    };
    limit.current.is_none_or(|most| bytes <= most) && fs::fstatvfs(directory).is_ok_and(is_little)
}

/// Writes a file beside its place, and moves it there as a whole.
pub fn replace(directory: impl AsFd, name: &CStr, bytes: &[u8]) -> Option<()> {
    // Several threads of a process may be here.
    static LAST: AtomicU64 = AtomicU64::new(0);
    let number = LAST.fetch_add(1, Ordering::Relaxed);
    let process = rustix::process::getpid().as_raw_nonzero();
    let new = CString::new(format!(".{process}.{number}.{}", name.to_str().ok()?)).ok()?;
    let remove = || fs::unlinkat(&directory, &*new, fs::AtFlags::empty()).ok();
    let flags = OFlags::WRONLY | OFlags::CREATE | OFlags::EXCL | OFlags::CLOEXEC | OFlags::NOFOLLOW;
    // One that a process of the same id left.
    remove();
    let fd = fs::openat(&directory, &*new, flags, Mode::RUSR | Mode::WUSR).ok()?;
    let done =
        write_all(&fd, bytes).and_then(|()| fs::renameat(&directory, &*new, &directory, name).ok());
    if done.is_none() {
        remove();
    }
    done
}

fn write_all(fd: &OwnedFd, mut bytes: &[u8]) -> Option<()> {
    while !bytes.is_empty() {
        match rustix::io::write(fd, bytes) {
            Ok(0) => return None,
            Ok(n) => bytes = bytes.get(n..)?,
            Err(Errno::INTR) => {}
            Err(_) => return None,
        }
    }
    Some(())
}
