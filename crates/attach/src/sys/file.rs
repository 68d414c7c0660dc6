//! Files: descriptors that are closed when dropped, and those that the event path opens.

use super::call::{CLOSE, EINVAL, GETDENTS64, LSEEK, OPENAT, PWRITE64, READ, call};
use skep_sys::of_proc;
use std::mem::MaybeUninit;
use std::sync::atomic::{AtomicU8, Ordering};

const O_CLOEXEC: u64 = 0x8_0000;

/// A file descriptor that is closed when dropped.
#[derive(Debug)]
pub(crate) struct Fd(u64);

impl Fd {
    /// Opens a file for reading; `path` ends with a nul byte.
    pub(crate) fn open(path: &[u8]) -> Result<Self, i64> {
        Self::open_with(path, O_CLOEXEC)
    }

    /// Opens a file for reading and writing; `path` ends with a nul byte.
    pub(crate) fn open_rw(path: &[u8]) -> Result<Self, i64> {
        Self::open_with(path, O_CLOEXEC | 2)
    }

    fn open_with(path: &[u8], flags: u64) -> Result<Self, i64> {
        if path.last() != Some(&0) {
            return Err(EINVAL);
        }
        // SAFETY: `path` ends with a nul byte.
        match unsafe { open(path.as_ptr() as u64, flags) } {
            fd if fd >= 0 => Ok(Self(fd as u64)),
            e => Err(-e),
        }
    }

    /// Reads once.
    pub(crate) fn read(&self, into: &mut [u8]) -> i64 {
        // SAFETY: writes into `into` only.
        unsafe { call(READ, [self.0, into.as_mut_ptr() as u64, into.len() as u64, 0, 0, 0]) }
    }

    /// Writes at an offset.
    pub(crate) fn write_at(&self, from: &[u8], at: u64) -> i64 {
        // SAFETY: reads `from` only.
        unsafe { call(PWRITE64, [self.0, from.as_ptr() as u64, from.len() as u64, at, 0, 0]) }
    }

    /// Reads directory entries.
    pub(crate) fn entries(&self, into: &mut [u8]) -> i64 {
        // SAFETY: writes into `into` only.
        unsafe { call(GETDENTS64, [self.0, into.as_mut_ptr() as u64, into.len() as u64, 0, 0, 0]) }
    }

    /// Goes back to the first directory entry.
    pub(crate) fn rewind(&self) {
        // SAFETY: moves the descriptor's own position.
        unsafe { call(LSEEK, [self.0, 0, 0, 0, 0, 0]) };
    }
}

/// Opens a file; negative on failure.
///
/// # Safety
/// `path` is the address of a text that ends with a nul byte.
#[inline(always)]
unsafe fn open(path: u64, flags: u64) -> i64 {
    // SAFETY: the caller's promise.
    unsafe {
        let [dir, path] = of_proc::place(path);
        call(OPENAT, [dir, path, flags, 0, 0, 0])
    }
}

impl Drop for Fd {
    fn drop(&mut self) {
        // SAFETY: the descriptor is ours.
        unsafe { call(CLOSE, [self.0, 0, 0, 0, 0, 0]) };
    }
}

/// Opens the list of the own mappings; negative on failure. For the event path. That of `self` is empty
/// where the main thread has exited.
#[inline(always)]
pub(crate) fn open_maps() -> i64 {
    static PATH: [u8; 24] = *b"/proc/thread-self/maps\0\0";
    // SAFETY: the path ends with a nul byte.
    unsafe { open((&raw const PATH) as u64, O_CLOEXEC) }
}

/// A file that `/proc` has for each task, its name as a number: code of events copies no bytes, which
/// could be by vector registers.
#[derive(Clone, Copy)]
pub(crate) struct TaskFile(u64);

impl TaskFile {
    pub(crate) const STAT: Self = Self(u64::from_le_bytes(*b"stat\0\0\0\0"));
    pub(crate) const SYSCALL: Self = Self(u64::from_le_bytes(*b"syscall\0"));
}

/// Opens a file of a task; negative on failure. For the event path.
#[inline(always)]
pub(crate) fn open_of_task(tid: u32, file: TaskFile) -> i64 {
    const SIZE: u64 = 28;
    let path: MaybeUninit<[AtomicU8; SIZE as usize]> = MaybeUninit::uninit();
    let start = path.as_ptr() as u64;
    // From the end, as that is how digits come. Byte by byte: atomic stores are not merged into
    // vector stores.
    let mut at = SIZE;
    let mut put = |byte: u8| {
        at = at.wrapping_sub(1);
        // SAFETY: 15 bytes at most around at most 10 digits.
        unsafe { (*(start.wrapping_add(at) as *const AtomicU8)).store(byte, Ordering::Relaxed) };
        start.wrapping_add(at)
    };
    put(0);
    let mut shift = u64::BITS;
    while shift != 0 {
        shift = shift.wrapping_sub(8);
        match (file.0 >> shift) as u8 {
            0 => 0,
            byte => put(byte),
        };
    }
    put(b'/');
    let mut rest = tid;
    while rest != 0 {
        put(b'0'.wrapping_add((rest % 10) as u8));
        rest /= 10;
    }
    put(b'/');
    put(b'c');
    put(b'o');
    put(b'r');
    put(b'p');
    let path = put(b'/');
    // SAFETY: the path ends with a nul byte.
    unsafe { open(path, O_CLOEXEC) }
}

/// Closes a descriptor.
///
/// # Safety
/// The caller has opened it, with [`open_maps`] or [`open_of_task`], and nobody uses it any more.
#[inline(always)]
pub(crate) unsafe fn close(fd: i64) {
    // SAFETY: the caller's promise.
    unsafe { call(CLOSE, [fd as u64, 0, 0, 0, 0, 0]) };
}
