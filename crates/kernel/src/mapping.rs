//! Memory shared with the kernel: rings that one side fills and the other empties.
//!
//! Rules of this leaf: a [`Mapping`] owns its pages until it is dropped, and offsets are checked
//! against its length. Positions and headers, which the kernel changes, are atomics; the bytes of a
//! record may be borrowed only while the ring's protocol keeps the kernel from them.

use std::os::fd::BorrowedFd;
use std::sync::atomic::{AtomicU32, AtomicU64};

use rustix::mm::{MapFlags, ProtFlags, mmap, munmap};

use crate::error::{Error, Result};

/// The size of a page on all machines that skep runs on.
pub(crate) const PAGE: usize = 4096;

/// Pages of a descriptor, shared.
#[derive(Debug)]
pub(crate) struct Mapping {
    base: *mut u8,
    len: usize,
}

impl Mapping {
    /// Maps `len` bytes from `offset` on, for reading, or also for writing.
    pub(crate) fn new(
        fd: BorrowedFd<'_>,
        len: usize,
        offset: usize,
        writable: bool,
    ) -> Result<Self> {
        let prot = if writable { ProtFlags::READ | ProtFlags::WRITE } else { ProtFlags::READ };
        // SAFETY: the kernel chooses where, so no other mapping is replaced.
        let base =
            unsafe { mmap(std::ptr::null_mut(), len, prot, MapFlags::SHARED, fd, offset as u64) };
        match base {
            Ok(base) => Ok(Self { base: base.cast(), len }),
            Err(e) => Err(Error::new("mmap", e.into())),
        }
    }

    fn check(&self, offset: usize, len: usize) {
        assert!(
            offset.checked_add(len).is_some_and(|end| end <= self.len),
            "a ring's position is masked by its size"
        );
    }

    /// A position of the ring, or a header.
    pub(crate) fn u64_at(&self, offset: usize) -> &AtomicU64 {
        self.check(offset, 8);
        assert_eq!(offset % 8, 0, "positions are aligned");
        // SAFETY: aligned and inside the mapping, which `self` keeps; both sides use it atomically.
        unsafe { AtomicU64::from_ptr(self.base.add(offset).cast()) }
    }

    /// The first half of a header.
    pub(crate) fn u32_at(&self, offset: usize) -> &AtomicU32 {
        self.check(offset, 4);
        assert_eq!(offset % 4, 0, "headers are aligned");
        // SAFETY: aligned and inside the mapping, which `self` keeps; both sides use it atomically.
        unsafe { AtomicU32::from_ptr(self.base.add(offset).cast()) }
    }

    /// Borrows the bytes of a record.
    ///
    /// # Safety
    /// The kernel writes none of these bytes while the slice lives: they lie between the two
    /// positions of the ring.
    pub(crate) unsafe fn bytes(&self, offset: usize, len: usize) -> &[u8] {
        self.check(offset, len);
        // SAFETY: inside the mapping, which `self` keeps; the caller answers for the kernel.
        unsafe { std::slice::from_raw_parts(self.base.add(offset), len) }
    }
}

// SAFETY: pages belong to the process, not to a thread; what they hold is used as the ring's
// protocol says, by whoever has the mapping.
unsafe impl Send for Mapping {}

impl Drop for Mapping {
    fn drop(&mut self) {
        // SAFETY: mapped by `new` with this length; borrows of it have ended.
        unsafe { munmap(self.base.cast(), self.len) }.ok();
    }
}
