//! Checked access to a mapping: offsets in, atomics and copies out.

use std::ptr::NonNull;
use std::sync::atomic::AtomicU64;

use super::copy;

/// A range of mapped memory that hands out only what lies inside it.
///
/// A view belongs to the object whose memory it shows and must not outlive it; it is reached by
/// reference from there. Others than this crate learn where it lies, and cannot reach in: what
/// programs were verified with must stay, constants above all, not every view is writable, and of
/// a large per-CPU array only a part is mapped.
///
/// ```no_run
/// # fn main() -> Result<(), skep_maps::MapError> {
/// let map = skep_maps::Map::open("maps/1".as_ref(), skep_maps::Access::ReadOnly)?;
/// println!("{} bytes at {:#x}", map.file().payload().len(), map.file().payload().base());
/// # Ok(())
/// # }
/// ```
///
/// ```compile_fail,E0624
/// # fn main() -> Result<(), skep_maps::MapError> {
/// let map = skep_maps::Map::open("maps/1".as_ref(), skep_maps::Access::ReadOnly)?;
/// map.file().payload().word(0);
/// # Ok(())
/// # }
/// ```
///
/// ```compile_fail,E0624
/// # fn main() -> Result<(), skep_maps::MapError> {
/// let map = skep_maps::Map::open("maps/1".as_ref(), skep_maps::Access::ReadOnly)?;
/// map.file().payload().read(0, &mut [0; 8]);
/// # Ok(())
/// # }
/// ```
#[derive(Debug)]
pub struct MappedView {
    base: NonNull<u8>,
    len: usize,
    writable: bool,
}

// SAFETY: all access is through atomics or word-wise copies.
unsafe impl Send for MappedView {}
// SAFETY: all access is through atomics or word-wise copies.
unsafe impl Sync for MappedView {}

impl MappedView {
    /// Wraps a mapping.
    ///
    /// # Safety
    /// `base..base+len` is mapped readable, and writable if so said, and eight-aligned, as long as
    /// the view is used.
    pub(super) unsafe fn new(base: NonNull<u8>, len: usize, writable: bool) -> Self {
        Self { base, len, writable }
    }

    /// Returns the address of byte 0.
    #[must_use]
    pub fn base(&self) -> u64 {
        self.base.as_ptr() as u64
    }

    /// Returns the number of bytes.
    #[must_use]
    pub fn len(&self) -> u64 {
        self.len as u64
    }

    /// Tells whether there are no bytes.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// Tells whether stores are allowed.
    #[must_use]
    pub fn writable(&self) -> bool {
        self.writable
    }

    /// Returns the address of `len` bytes at `off`, if they lie inside.
    #[inline(always)]
    #[must_use]
    pub(crate) fn at(&self, off: u64, len: u64) -> Option<*mut u8> {
        let end = off.checked_add(len)?;
        if end > self.len as u64 {
            return None;
        }
        // SAFETY: `off <= len` of the mapping.
        Some(unsafe { self.base.as_ptr().add(off as usize) })
    }

    /// Returns the aligned 64-bit word at `off`. Storing through it needs [`MappedView::writable`].
    #[inline(always)]
    #[must_use]
    pub(crate) fn word(&self, off: u64) -> Option<&AtomicU64> {
        if off & 7 != 0 {
            return None;
        }
        // SAFETY: inside the mapping, aligned (the base is page-aligned), and atomic.
        self.at(off, 8).map(|p| unsafe { AtomicU64::from_ptr(p.cast()) })
    }

    /// Copies bytes at the eight-aligned `off` out; tells whether they lie inside.
    #[must_use]
    pub(crate) fn read(&self, off: u64, out: &mut [u8]) -> bool {
        let Some(p) = self.aligned(off, out.len()) else { return false };
        // SAFETY: `aligned` checked the range up to whole words.
        unsafe { copy::load(out, p) };
        true
    }

    #[inline(always)]
    fn aligned(&self, off: u64, len: usize) -> Option<*mut u8> {
        if off & 7 != 0 {
            return None;
        }
        self.at(off, super::round8(len as u64))
    }
}
