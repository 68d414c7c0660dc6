//! One `mmap` and its end.

use std::os::fd::BorrowedFd;
use std::ptr::{self, NonNull};
use std::sync::atomic::AtomicU64;

use rustix::mm::{Advice, MapFlags, ProtFlags, madvise, mmap, mmap_anonymous, munmap};

use super::error::ObjectError;
use super::view::MappedView;
use super::{Access, PAGE, ranges};

/// Bytes of a huge page.
const HUGE: usize = 2 << 20;

/// A range of address space that ends with this value.
#[derive(Debug)]
pub(crate) struct Mapping {
    base: NonNull<u8>,
    len: usize,
    access: Access,
}

// SAFETY: a mapping is a range of addresses; what is shared through it is reached only through
// atomics (see `MappedView`).
unsafe impl Send for Mapping {}
// SAFETY: a mapping is a range of addresses; what is shared through it is reached only through
// atomics (see `MappedView`).
unsafe impl Sync for Mapping {}

fn os(call: &'static str) -> impl Fn(rustix::io::Errno) -> ObjectError {
    move |e| ObjectError::Map { call, errno: e.raw_os_error() }
}

impl Mapping {
    /// Maps `len` bytes of a file from `offset` on, and once more its bytes from `mirror` on right
    /// behind them.
    pub(crate) fn file(
        fd: BorrowedFd<'_>,
        offset: u64,
        len: usize,
        mirror: Option<usize>,
        access: Access,
    ) -> Result<Self, ObjectError> {
        if len == 0 {
            return Ok(Self { base: NonNull::dangling(), len: 0, access });
        }
        let prot = match access {
            Access::ReadOnly => ProtFlags::READ,
            Access::ReadWrite => ProtFlags::READ | ProtFlags::WRITE,
        };
        let Some(from) = mirror else {
            // SAFETY: a new mapping at an address of the kernel's choice.
            let p = unsafe { mmap(ptr::null_mut(), len, prot, MapFlags::SHARED, fd, offset) }
                .map_err(os("mmap"))?;
            ranges::add(p as u64, len as u64);
            if len >= HUGE {
                // A wish: where the file system takes it (`huge=advise`), the kernel makes huge
                // pages of small ones by and by; with `within_size` and `always` it
                // gave them when the file was made. To demand them at once (MADV_COLLAPSE) took 20
                // to 150 ms of the making of a map of 50 MB, and operations on a
                // million random keys were not faster by more than 5 %.
                // SAFETY: changes nothing that is stored in the mapping.
                let _ = unsafe { madvise(p, len, Advice::LinuxHugepage) };
            }
            return Ok(Self { base: nonnull(p)?, len, access });
        };
        let again = len.saturating_sub(from);
        // SAFETY: reserves address space without memory.
        let p = unsafe {
            mmap_anonymous(
                ptr::null_mut(),
                len + again,
                ProtFlags::empty(),
                MapFlags::PRIVATE | MapFlags::NORESERVE,
            )
        }
        .map_err(os("mmap"))?;
        ranges::add(p as u64, (len + again) as u64);
        let this = Self { base: nonnull(p)?, len: len + again, access };
        // SAFETY: both fixed mappings lie inside the range just reserved, which nobody else knows
        // of.
        unsafe {
            mmap(p, len, prot, MapFlags::SHARED | MapFlags::FIXED, fd, offset)
                .map_err(os("mmap"))?;
            mmap(
                p.byte_add(len),
                again,
                prot,
                MapFlags::SHARED | MapFlags::FIXED,
                fd,
                offset + from as u64,
            )
            .map_err(os("mmap"))?;
        }
        Ok(this)
    }

    /// Shows the mapping as checked memory.
    pub(crate) fn view(&self) -> MappedView {
        // SAFETY: the range is mapped as `access` says until `self` is dropped; whoever keeps the
        // view keeps the mapping (`ObjectFile` owns both).
        unsafe { MappedView::new(self.base, self.len, self.access == Access::ReadWrite) }
    }
}

fn nonnull(p: *mut core::ffi::c_void) -> Result<NonNull<u8>, ObjectError> {
    NonNull::new(p.cast()).ok_or(ObjectError::Map { call: "mmap", errno: 12 })
}

impl Drop for Mapping {
    fn drop(&mut self) {
        if self.len > 0 {
            ranges::remove(self.base.as_ptr() as u64);
            // SAFETY: the range came from mmap and is dropped once.
            let _ = unsafe { munmap(self.base.as_ptr().cast(), self.len) };
        }
    }
}

/// Makes a page that reads as zero in a forked child.
pub(crate) fn wiped_on_fork() -> Result<*mut AtomicU64, ObjectError> {
    let len = PAGE as usize;
    // SAFETY: a new private page; WIPEONFORK changes only what a child sees.
    unsafe {
        let p = mmap_anonymous(
            ptr::null_mut(),
            len,
            ProtFlags::READ | ProtFlags::WRITE,
            MapFlags::PRIVATE,
        )
        .map_err(os("mmap"))?;
        madvise(p, len, Advice::LinuxWipeOnFork).map_err(os("madvise"))?;
        Ok(p.cast())
    }
}
