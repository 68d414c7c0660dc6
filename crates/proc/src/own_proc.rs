//! Files of a process that does not see `/proc`, as after `chroot`, nor what lay beside it before.

#![allow(unsafe_code)]

use std::os::fd::{BorrowedFd, OwnedFd};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicI32, Ordering::Relaxed};

use rustix::fs::{Mode, OFlags};
use rustix::io::Errno;

/// A descriptor of a `/proc` that sees the process; -1: its own is there.
static PROC: AtomicI32 = AtomicI32::new(-1);

/// Takes a descriptor of a `/proc` for what is opened from now on; `None`: the process's own is there.
/// Once the number is closed, or another file's, what is opened is not found.
///
/// Internal to skep.
#[doc(hidden)]
pub fn see_by(fd: Option<i32>) {
    PROC.store(fd.unwrap_or(-1), Relaxed);
}

/// Opens a file by its path; where there is none, also from the root that such a `/proc` lies in.
pub(crate) fn open(path: &Path, flags: OFlags) -> Result<OwnedFd, Errno> {
    let fd = PROC.load(Relaxed);
    let plainly = || rustix::fs::open(path, flags, Mode::empty());
    if fd < 0 {
        return plainly();
    }
    // SAFETY: only `openat` gets it, which looks for itself what the number is.
    let proc = unsafe { BorrowedFd::borrow_raw(fd) };
    let below = |path: &Path| rustix::fs::openat(proc, path, flags, Mode::empty());
    match (path.strip_prefix("/proc"), path.strip_prefix("/")) {
        (Ok(rest), _) => below(rest),
        (_, Ok(rest)) => match plainly() {
            Err(Errno::NOENT) => below(&PathBuf::from("..").join(rest)),
            other => other,
        },
        _ => plainly(),
    }
}

#[cfg(test)]
mod tests {
    use std::fs::File;
    use std::os::fd::AsRawFd;

    use super::*;

    #[test]
    fn another_proc_is_looked_into() {
        let Ok(proc) = File::open("/proc") else { return };
        see_by(Some(proc.as_raw_fd()));
        let opened = |path: &str| open(Path::new(path), OFlags::RDONLY).map(drop);
        let all = ["/proc/self/maps", "/etc/passwd", "/no/such/file"].map(opened);
        see_by(None);
        assert_eq!(all, [Ok(()), Ok(()), Err(Errno::NOENT)]);
    }
}
