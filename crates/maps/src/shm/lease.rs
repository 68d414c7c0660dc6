//! Files that stay open without a descriptor.
//!
//! A traced program may count on the numbers its descriptors get, list them, or close all of them;
//! and once it has, a number we remembered may be a file of its own. So nothing here keeps one. A
//! mapping keeps the open file alive, and with it the `flock` that was taken through it; who needs
//! a descriptor later opens the file by name again and checks that it is the same file.

use std::os::fd::{AsFd, OwnedFd};
use std::path::{Path, PathBuf};

use rustix::fs::{self, OFlags};
use rustix::io::Errno;

use super::error::ObjectError;
use super::mapping::Mapping;
use super::{Access, PAGE, sys};

/// Tells a file from another that gets its name: device and inode.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Identity(u64, u64);

impl Identity {
    pub(crate) fn of(fd: impl AsFd) -> Result<Self, Errno> {
        let stat = fs::fstat(fd)?;
        Ok(Self(stat.st_dev, stat.st_ino))
    }

    /// Opens the file again; `ENOENT` when it is another one by now.
    pub(crate) fn open(self, path: &Path, flags: OFlags) -> Result<OwnedFd, Errno> {
        // NONBLOCK: a fifo planted here must not hang us.
        let flags = flags | OFlags::CLOEXEC | OFlags::NOFOLLOW | OFlags::NOCTTY | OFlags::NONBLOCK;
        let fd = sys::open(path, flags)?;
        if Self::of(&fd)? == self { Ok(fd) } else { Err(Errno::NOENT) }
    }
}

/// Keeps a file open, and a lock on it, until dropped or the process ends. A forked child keeps it
/// too, a program that is executed does not.
#[derive(Debug)]
pub struct Lease {
    path: PathBuf,
    identity: Identity,
    /// Never read: the file may be empty.
    _mapping: Mapping,
}

impl Lease {
    /// Keeps `file`, which was opened as `path`, from now on; the descriptor can be closed.
    ///
    /// # Errors
    /// A file that cannot be mapped.
    pub fn new(file: impl AsFd, path: &Path) -> Result<Self, ObjectError> {
        let os = |e: Errno| ObjectError::Os {
            call: "fstat",
            path: path.to_owned(),
            errno: e.raw_os_error(),
        };
        let identity = Identity::of(&file).map_err(os)?;
        let mapping = Mapping::file(file.as_fd(), 0, PAGE as usize, None, Access::ReadOnly)?;
        Ok(Self { path: path.to_owned(), identity, _mapping: mapping })
    }

    /// Opens the file once more, close-on-exec.
    ///
    /// # Errors
    /// `ENOENT` when the file has no name any more, or another file has it.
    pub fn open(&self, flags: OFlags) -> Result<OwnedFd, Errno> {
        self.identity.open(&self.path, flags)
    }

    /// Returns the name it was opened under.
    #[must_use]
    pub fn path(&self) -> &Path {
        &self.path
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use rustix::fs::FlockOperation::{NonBlockingLockExclusive, NonBlockingLockShared};
    use std::fs::File;

    #[test]
    fn the_lock_stays_without_a_descriptor_and_another_file_is_not_taken_for_it()
    -> Result<(), Box<dyn std::error::Error>> {
        let path = std::env::temp_dir().join(format!("skep-hold-{}", std::process::id()));
        let file =
            File::options().read(true).write(true).create(true).truncate(true).open(&path)?;
        fs::flock(&file, NonBlockingLockShared)?;
        let hold = Lease::new(&file, &path)?;
        drop(file);
        let other = File::open(&path)?;
        assert_eq!(fs::flock(&other, NonBlockingLockExclusive), Err(Errno::WOULDBLOCK));
        assert_eq!(Identity::of(hold.open(OFlags::RDWR)?)?, hold.identity);
        std::fs::remove_file(&path)?;
        assert_eq!(hold.open(OFlags::RDONLY).err(), Some(Errno::NOENT));
        std::fs::write(&path, b"another")?;
        assert_eq!(hold.open(OFlags::RDONLY).err(), Some(Errno::NOENT));
        drop(hold);
        fs::flock(&other, NonBlockingLockExclusive)?;
        std::fs::remove_file(&path)?;
        Ok(())
    }
}
