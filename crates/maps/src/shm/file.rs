//! Files in a skep directory: made without a name, named when they are complete, removed when nobody
//! uses them.

use std::ffi::CString;
use std::os::fd::{BorrowedFd, OwnedFd};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU32, Ordering::Relaxed};
use std::time::Duration;

use rustix::fs::{self, AtFlags, CWD, FlockOperation, Mode, OFlags};
use rustix::io::Errno;

use super::error::ObjectError;

/// Names the call and the file of an error number.
pub(super) fn os<'a>(call: &'static str, path: &'a Path) -> impl Fn(Errno) -> ObjectError + 'a {
    move |e| ObjectError::Os { call, path: path.to_owned(), errno: e.raw_os_error() }
}

/// How long a file is tried to be marked as used, and the longest pause in between.
const PATIENCE: Duration = Duration::from_secs(1);
const LONGEST_PAUSE: Duration = Duration::from_millis(16);

/// Marks a file as used, until the open file is closed everywhere. Whoever has it locked exclusively
/// asks whether somebody uses it, or is about to remove it: that does not take long, unless it is stopped
/// there.
///
/// # Errors
/// With `EAGAIN` when it takes a second.
pub fn mark_used(fd: BorrowedFd<'_>) -> Result<(), Errno> {
    let (mut waited, mut pause) = (Duration::ZERO, Duration::from_micros(100));
    loop {
        match fs::flock(fd, FlockOperation::NonBlockingLockShared) {
            Err(Errno::WOULDBLOCK) if waited < PATIENCE => {}
            done => return done,
        }
        std::thread::sleep(pause);
        waited += pause;
        pause = (2 * pause).min(LONGEST_PAUSE);
    }
}

/// Marks an object as used.
pub(super) fn lock_shared(fd: BorrowedFd<'_>, path: &Path) -> Result<(), ObjectError> {
    mark_used(fd).map_err(|e| match e {
        // As if it were removed already.
        Errno::WOULDBLOCK => os("flock", path)(Errno::NOENT),
        e => os("flock", path)(e),
    })
}

/// Opens a file without a name in `dir`, or where that is not offered one under a temporary name,
/// which is returned.
pub(super) fn unnamed(dir: &Path) -> Result<(OwnedFd, Option<PathBuf>), ObjectError> {
    static COUNT: AtomicU32 = AtomicU32::new(0);
    let mode = Mode::RUSR | Mode::WUSR;
    match fs::open(dir, OFlags::TMPFILE | OFlags::RDWR | OFlags::CLOEXEC, mode) {
        Ok(fd) => return Ok((fd, None)),
        Err(Errno::OPNOTSUPP | Errno::ISDIR | Errno::INVAL) => {}
        Err(e) => return Err(os("open", dir)(e)),
    }
    let path = dir.join(format!(".tmp-{}-{}", std::process::id(), COUNT.fetch_add(1, Relaxed)));
    let fd = fs::open(
        &path,
        OFlags::CREATE | OFlags::EXCL | OFlags::RDWR | OFlags::CLOEXEC | OFlags::NOFOLLOW,
        mode,
    )
    .map_err(os("open", &path))?;
    Ok((fd, Some(path)))
}

/// Gives the finished file its name; fails when the name is taken.
pub(super) fn publish(
    fd: &OwnedFd,
    temporary: Option<&Path>,
    path: &Path,
) -> Result<(), ObjectError> {
    use std::os::fd::AsRawFd;
    let linked = match temporary {
        Some(t) => fs::linkat(CWD, t, CWD, path, AtFlags::empty()),
        None => {
            const OWN: &str = "/proc/thread-self/fd";
            let by_fd = CString::new(format!("{OWN}/{}", fd.as_raw_fd())).unwrap_or_default();
            let linked = fs::linkat(CWD, &by_fd, CWD, path, AtFlags::SYMLINK_FOLLOW);
            if linked == Err(Errno::NOENT) && fs::stat(OWN).is_err() {
                return linked.map_err(os("open", Path::new("/proc")));
            }
            linked
        }
    };
    linked.map_err(os("link", path))
}

/// Makes a file with contents, marked as used, which appears under its path only when it is complete. Nothing
/// is left of one that was not completed, where the file system has files without names.
///
/// # Errors
/// When it cannot be written, or `path` exists.
pub fn create_whole(path: &Path, bytes: &[u8]) -> Result<OwnedFd, ObjectError> {
    let (fd, temporary) = unnamed(path.parent().unwrap_or(Path::new(".")))?;
    let done = (|| {
        write_all(&fd, 0, bytes).map_err(os("write", path))?;
        fs::flock(&fd, FlockOperation::LockShared).map_err(os("flock", path))?;
        publish(&fd, temporary.as_deref(), path)
    })();
    if let Some(temporary) = temporary {
        let _ = fs::unlink(&temporary);
    }
    done.map(|()| fd)
}

pub(super) fn write_all(fd: &OwnedFd, mut at: u64, mut bytes: &[u8]) -> Result<(), Errno> {
    while !bytes.is_empty() {
        match rustix::io::pwrite(fd, bytes, at) {
            Ok(0) => return Err(Errno::IO),
            Ok(n) => {
                at += n as u64;
                bytes = bytes.get(n..).unwrap_or_default();
            }
            Err(Errno::INTR) => {}
            Err(e) => return Err(e),
        }
    }
    Ok(())
}

pub(super) fn read_all(fd: &OwnedFd, at: u64, out: &mut [u8]) -> Result<(), Errno> {
    let mut done = 0;
    while let Some(rest) = out.get_mut(done..).filter(|r| !r.is_empty()) {
        match rustix::io::pread(fd, rest, at + done as u64) {
            Ok(0) => return Err(Errno::IO),
            Ok(n) => done += n,
            Err(Errno::INTR) => {}
            Err(e) => return Err(e),
        }
    }
    Ok(())
}

/// Removes an object file that nobody has open and no pin (second hard link) keeps; tells whether
/// it did.
///
/// # Errors
/// What the operating system says of the file; that it is in use is no error.
pub fn remove_if_unused(path: &Path) -> Result<bool, ObjectError> {
    remove_unless(path, || false)
}

/// Does the same if nothing else keeps it, which is asked under the lock. While a file is locked others
/// wait who open it: so nothing that is locked like this may be opened there.
///
/// # Errors
/// As [`remove_if_unused`].
pub fn remove_unless(path: &Path, is_kept: impl FnOnce() -> bool) -> Result<bool, ObjectError> {
    let fd = match fs::open(
        path,
        OFlags::RDONLY | OFlags::CLOEXEC | OFlags::NOFOLLOW | OFlags::NOCTTY | OFlags::NONBLOCK,
        Mode::empty(),
    ) {
        Ok(fd) => fd,
        Err(Errno::NOENT) => return Ok(false),
        Err(e) => return Err(os("open", path)(e)),
    };
    let is_alone =
        || fs::fstat(&fd).map(|ours| (ours, ours.st_nlink == 1)).map_err(os("fstat", path));
    // Before, as nobody needs to wait for what is pinned; and then, as it may have been meanwhile.
    if !is_alone()?.1 {
        return Ok(false);
    }
    match fs::flock(&fd, FlockOperation::NonBlockingLockExclusive) {
        Ok(()) => {}
        Err(Errno::WOULDBLOCK) => return Ok(false),
        Err(e) => return Err(os("flock", path)(e)),
    }
    let (ours, alone) = is_alone()?;
    let named = match fs::lstat(path) {
        Ok(s) => s,
        Err(Errno::NOENT) => return Ok(false),
        Err(e) => return Err(os("lstat", path)(e)),
    };
    if !alone || (ours.st_dev, ours.st_ino) != (named.st_dev, named.st_ino) || is_kept() {
        return Ok(false);
    }
    fs::unlink(path).map_err(os("unlink", path))?;
    Ok(true)
}
