//! Files of ours in a program that may close every descriptor that it finds, and open others with the
//! same numbers: they must not be read from, written to or closed.
//!
//! So a file is known by what the kernel has given it for good, and that is looked at before each use.
//! Between the look and the use the program may still do both. It has to close a number from
//! 800 (or 200) on at that instant, and get the same one again, while the kernel gives the lowest that
//! is free: few programs have so many files.

use std::sync::atomic::{AtomicI32, AtomicU64, Ordering::Relaxed};

use crate::syscall::{self, call4};

/// Numbers of ours begin at the first of these that the program's limit allows.
const ABOVE: [u64; 2] = [800, 200];

const FCNTL: u64 = 72;
const DUPFD_CLOEXEC: u64 = 1030;

/// A descriptor of ours, or none. Only for files with an inode of their own: sockets, pipes,
/// directories; those without share one.
#[derive(Debug)]
pub struct OwnFile {
    fd: AtomicI32,
    device: AtomicU64,
    inode: AtomicU64,
}

impl OwnFile {
    /// None.
    #[must_use]
    pub const fn none() -> Self {
        Self { fd: AtomicI32::new(-1), device: AtomicU64::new(0), inode: AtomicU64::new(0) }
    }

    /// Takes a descriptor that was just opened, and gives it a number that programs seldom come to.
    pub fn set(&self, fd: i32) {
        // SAFETY: makes a descriptor.
        let moved = ABOVE
            .iter()
            .map(|above| unsafe { call4(FCNTL, fd as u64, DUPFD_CLOEXEC, *above, 0) as i64 });
        let fd = match moved.into_iter().find(|moved| *moved >= 0) {
            Some(moved) => {
                // SAFETY: the descriptor that was given, which there is another one for now.
                unsafe { call4(syscall::CLOSE, fd as u64, 0, 0, 0) };
                moved as i32
            }
            None => fd,
        };
        self.set_as_it_is(fd);
    }

    /// Takes a descriptor that was just opened, with its number.
    pub fn set_as_it_is(&self, fd: i32) {
        let [device, inode] = identity(fd).unwrap_or_default();
        self.device.store(device, Relaxed);
        self.inode.store(inode, Relaxed);
        self.fd.store(fd, Relaxed);
    }

    /// Forgets it, as in a child of `fork`, without closing anything.
    pub fn forget(&self) {
        self.fd.store(-1, Relaxed);
    }

    /// The number, if it still is this file's. Where nobody can ask, it is not.
    #[must_use]
    pub fn number(&self) -> Option<u64> {
        let fd = self.fd.load(Relaxed);
        let known = [self.device.load(Relaxed), self.inode.load(Relaxed)];
        (fd >= 0 && known != [0; 2] && identity(fd) == Some(known)).then_some(fd as u64)
    }

    /// Closes it, unless the number is another file's.
    pub fn close(&self) {
        if let Some(fd) = self.number() {
            // SAFETY: a descriptor of ours.
            unsafe { call4(syscall::CLOSE, fd, 0, 0, 0) };
        }
        self.forget();
    }
}

/// The device and the inode of an open file.
fn identity(fd: i32) -> Option<[u64; 2]> {
    // `struct stat` of x86-64 begins with the two.
    let mut stat = [0_u64; 18];
    // SAFETY: the kernel writes 144 bytes.
    let done = unsafe { call4(syscall::FSTAT, fd as u64, stat.as_mut_ptr() as u64, 0, 0) };
    (done == 0).then_some([stat[0], stat[1]])
}

#[cfg(test)]
mod tests {
    use std::io::Read;
    use std::os::fd::{AsRawFd, FromRawFd, IntoRawFd};
    use std::os::unix::net::UnixStream;

    use super::*;

    #[test]
    fn what_got_the_same_number_is_not_touched() {
        let (ours, mut other_end) = UnixStream::pair().expect("two sockets");
        let file = OwnFile::none();
        assert_eq!(file.number(), None);
        file.set(ours.into_raw_fd());
        let number = file.number().expect("it is open");
        assert!(number >= ABOVE[1]);
        // Another file takes its number, as in a program that closes all it finds.
        let (theirs, mut end) = UnixStream::pair().expect("two sockets");
        // SAFETY: gives a file of this test the number of another one.
        assert_eq!(unsafe { call4(33, theirs.as_raw_fd() as u64, number, 0, 0) }, number);
        assert_eq!(file.number(), None);
        file.close();
        drop(theirs);
        // SAFETY: the descriptor that was made above.
        drop(unsafe { std::fs::File::from_raw_fd(number as i32) });
        let mut nothing = Vec::new();
        end.read_to_end(&mut nothing).expect("it was open until now, and is closed by us alone");
        other_end.read_to_end(&mut nothing).expect("that one was closed before");
        assert!(nothing.is_empty());
    }
}
