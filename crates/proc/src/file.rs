//! Reading files by raw system calls.
//!
//! `std::fs` goes through libc, whose `open` and `read` may be the very functions that are hooked;
//! `rustix` does not.

use std::os::fd::OwnedFd;
use std::path::Path;

use rustix::buffer::spare_capacity;
use rustix::fs::{OFlags, Stat};
use rustix::io::Errno;

use crate::own_proc;

/// Opens a file for reading, close-on-exec and without becoming a controlling terminal.
pub fn open(path: impl AsRef<Path>) -> Result<OwnedFd, Errno> {
    // NONBLOCK: a FIFO under a mapped file's name must not block us.
    let flags = OFlags::RDONLY | OFlags::CLOEXEC | OFlags::NOCTTY | OFlags::NONBLOCK;
    loop {
        match own_proc::open(path.as_ref(), flags) {
            Err(Errno::INTR) => {}
            other => return other,
        }
    }
}

/// Reads exactly `len` bytes at `offset`; a file that ends earlier gives `None`.
///
/// The caller has checked `len` against something it believes, it is allocated at once.
pub fn read_exact_at(fd: &OwnedFd, offset: u64, len: usize) -> Result<Option<Vec<u8>>, Errno> {
    let mut out = Vec::new();
    out.try_reserve_exact(len).map_err(|_| Errno::NOMEM)?;
    while out.len() < len {
        // The vector may have got more room than it asked for; what is read too much is cut off.
        let at = offset.wrapping_add(out.len() as u64);
        match rustix::io::pread(fd, spare_capacity(&mut out), at) {
            Ok(0) => return Ok(None),
            Ok(_) | Err(Errno::INTR) => {}
            Err(e) => return Err(e),
        }
    }
    out.truncate(len);
    Ok(Some(out))
}

/// Reads from the start to the end of a file whose size is not known, such as those of `/proc`; at
/// most `limit` bytes.
///
/// A file longer than `limit` is `EFBIG`.
pub fn read_to_end(fd: &OwnedFd, limit: usize) -> Result<Vec<u8>, Errno> {
    let mut out = Vec::new();
    let mut chunk = vec![0; 64 << 10];
    loop {
        match rustix::io::pread(fd, &mut *chunk, out.len() as u64) {
            Ok(0) => return Ok(out),
            Ok(n) => {
                if out.len() + n > limit {
                    return Err(Errno::FBIG);
                }
                out.extend(chunk.iter().take(n));
            }
            Err(Errno::INTR) => {}
            Err(e) => return Err(e),
        }
    }
}

/// Opens and reads a whole small file; at most `limit` bytes.
pub fn read(path: impl AsRef<Path>, limit: usize) -> Result<Vec<u8>, Errno> {
    read_to_end(&open(path)?, limit)
}

/// A file's status by descriptor.
pub fn stat(fd: &OwnedFd) -> Result<Stat, Errno> {
    rustix::fs::fstat(fd)
}

/// Memory of a process, read through `/proc/PID/mem`.
#[derive(Debug)]
pub struct Memory {
    fd: OwnedFd,
}

impl Memory {
    /// Opens the own process's memory.
    pub fn own() -> Result<Self, Errno> {
        // `thread-self`: the main thread may have exited while others go on, which leaves `self`
        // without memory.
        Ok(Self { fd: open("/proc/thread-self/mem")? })
    }

    /// Opens another process's memory; needs the right to ptrace it.
    pub fn of(pid: u32) -> Result<Self, Errno> {
        Ok(Self { fd: open(format!("/proc/{pid}/mem"))? })
    }

    /// Copies `len` bytes out; `None` if not all of them are mapped.
    pub fn read(&self, addr: u64, len: usize) -> Option<Vec<u8>> {
        read_exact_at(&self.fd, addr, len).ok().flatten()
    }
}
