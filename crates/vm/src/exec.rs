//! Memory for machine code: written first, executable after, never both at once.
//!
//! Each program has its own private anonymous mapping. Programs could share pages through a second,
//! writable mapping of the same file, but shared pages would stay shared with a forked child, and a
//! block freed and reused by one would change code under the other. Private pages cost a page a
//! program and are right after `fork`.
//!
//! Rules of this leaf: [`WritableCode`] owns a writable mapping, [`Exec`] a readable and executable one;
//! the step between is one way; bytes are only reached inside the mapped length.

use std::ffi::c_void;
use std::ptr::{self, NonNull};
use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};

use rustix::fd::OwnedFd;
use rustix::io::Errno;
use rustix::mm::{MapFlags, MprotectFlags, ProtFlags, mmap, mmap_anonymous, mprotect, munmap};

use crate::fault::{Site, Sites};

const PAGE: usize = 4096;
/// Distance that a 32-bit displacement is trusted to bridge, with room for the code itself.
const REACH: u64 = (1 << 31) - (1 << 24);
/// Steps and number of places to ask for on each side of a helper.
const STEP: u64 = 48 << 20;
const TRIES: u64 = 36;
/// What fills the rest of the last page: `int3`.
const TRAP: u8 = 0xcc;

/// Where the last program was put: the next one goes below, so that they sit together.
static LAST: AtomicUsize = AtomicUsize::new(0);

struct Mapping {
    base: NonNull<u8>,
    len: usize,
}

impl Drop for Mapping {
    fn drop(&mut self) {
        // SAFETY: this mapping is ours, and nobody runs in it any more: that is the duty of who
        // drops the program.
        let _ = unsafe { munmap(self.base.as_ptr().cast(), self.len) };
    }
}

/// Writable memory that code will be put in.
pub(crate) struct WritableCode(Mapping);

/// Executable memory.
pub(crate) struct Exec {
    /// Goes before the memory it tells of.
    _sites: Option<Sites>,
    map: Mapping,
    len: usize,
}

// SAFETY: the bytes never change after sealing, and the mapping is freed once, by the last owner.
unsafe impl Send for Exec {}
// SAFETY: the bytes never change after sealing, so threads may read them at once.
unsafe impl Sync for Exec {}

impl WritableCode {
    /// Maps at least `size` bytes, within reach of the address `near` when there is room.
    pub fn new(size: usize, near: u64) -> Result<Self, Errno> {
        let len = size.max(1).checked_next_multiple_of(PAGE).ok_or(Errno::NOMEM)?;
        let first = map(LAST.load(Relaxed).saturating_sub(len) as u64, len)?;
        if near == 0 || first.reaches(near) {
            return Ok(first.remember());
        }
        let home = near & !(PAGE as u64 - 1);
        for n in 1..=TRIES {
            for hint in [home.saturating_sub(n * STEP), home.saturating_add(n * STEP)] {
                let other = map(hint, len)?;
                if other.reaches(near) {
                    return Ok(other.remember());
                }
            }
        }
        Ok(first.remember())
    }

    /// Returns the address the code will have.
    pub fn base(&self) -> u64 {
        self.0.base.as_ptr() as u64
    }

    /// Tells whether a `call` from anywhere in this memory reaches `target`.
    pub fn reaches(&self, target: u64) -> bool {
        self.base().abs_diff(target) < REACH && self.0.len < 1 << 24
    }

    /// Returns the bytes that code and table take.
    pub fn size(code: usize, faults: usize) -> usize {
        if faults == 0 {
            code
        } else {
            code.next_multiple_of(size_of::<Site>()) + faults * size_of::<Site>()
        }
    }

    /// Writes the code, and behind it the table of loads that may fail, in order, and makes it
    /// executable.
    pub fn seal(self, code: &[u8], sites: Option<Sites>, faults: &[Site]) -> Result<Exec, Errno> {
        let size = Self::size(code.len(), faults.len());
        if size > self.0.len {
            return Err(Errno::NOMEM);
        }
        // Pages that the code turned out not to need are never touched.
        let used = size.next_multiple_of(PAGE);
        let base = self.0.base.as_ptr();
        let at = code.len().next_multiple_of(size_of::<Site>());
        // SAFETY: the mapping is ours alone, writable, whole pages, and at least as long as code
        // and table.
        unsafe {
            ptr::copy_nonoverlapping(code.as_ptr(), base, code.len());
            ptr::write_bytes(base.add(code.len()), TRAP, used - code.len());
            if !faults.is_empty() {
                ptr::copy_nonoverlapping(faults.as_ptr(), base.add(at).cast(), faults.len());
            }
            mprotect(base.cast(), self.0.len, MprotectFlags::READ | MprotectFlags::EXEC)?;
        }
        if let Some(sites) = &sites {
            let start = base as u64;
            // SAFETY: code and table stay as they are until `Exec` is dropped, and with it first
            // `sites`.
            unsafe {
                sites.publish(
                    start..start + code.len() as u64,
                    base.wrapping_add(at).cast_const().cast(),
                    faults.len(),
                )
            };
        }
        Ok(Exec { _sites: sites, map: self.0, len: code.len() })
    }

    fn remember(self) -> Self {
        LAST.store(self.0.base.as_ptr() as usize, Relaxed);
        self
    }
}

impl Exec {
    /// Returns the code.
    pub fn bytes(&self) -> &[u8] {
        // SAFETY: `len` bytes were written before sealing; nothing writes them after.
        unsafe { std::slice::from_raw_parts(self.map.base.as_ptr(), self.len) }
    }
}

/// One page of a file, mapped as code and never used: how perf learns of a jitdump.
#[derive(Debug)]
pub(crate) struct Marker {
    base: NonNull<u8>,
}

// SAFETY: nobody reads or writes the page; it is unmapped once.
unsafe impl Send for Marker {}
// SAFETY: nobody reads or writes the page.
unsafe impl Sync for Marker {}

impl Marker {
    pub fn new(file: &OwnedFd) -> Result<Self, Errno> {
        // SAFETY: a new mapping wherever there is room.
        let base = unsafe {
            mmap(
                ptr::null_mut(),
                PAGE,
                ProtFlags::READ | ProtFlags::EXEC,
                MapFlags::PRIVATE,
                file,
                0,
            )
        }?;
        Ok(Self { base: NonNull::new(base.cast()).ok_or(Errno::NOMEM)? })
    }
}

impl Drop for Marker {
    fn drop(&mut self) {
        // SAFETY: the mapping is ours, and nothing points into it.
        let _ = unsafe { munmap(self.base.as_ptr().cast(), PAGE) };
    }
}

fn map(hint: u64, len: usize) -> Result<WritableCode, Errno> {
    let at = ptr::without_provenance_mut::<c_void>(hint as usize);
    // SAFETY: without MAP_FIXED the hint moves nothing that is mapped.
    let base =
        unsafe { mmap_anonymous(at, len, ProtFlags::READ | ProtFlags::WRITE, MapFlags::PRIVATE) }?;
    let base = NonNull::new(base.cast()).ok_or(Errno::NOMEM)?;
    Ok(WritableCode(Mapping { base, len }))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn protection(at: u64) -> String {
        let maps = std::fs::read_to_string("/proc/self/maps").unwrap();
        let line = maps.lines().find(|l| {
            let (range, _) = l.split_once(' ').unwrap();
            let (from, to) = range.split_once('-').unwrap();
            (u64::from_str_radix(from, 16).unwrap()..u64::from_str_radix(to, 16).unwrap())
                .contains(&at)
        });
        line.map_or("none", |l| l.split(' ').nth(1).unwrap()).to_owned()
    }

    #[test]
    fn memory_is_writable_then_executable_then_gone() {
        let draft = WritableCode::new(5000, 0).unwrap();
        let base = draft.base();
        assert_eq!(protection(base), "rw-p");
        let exec = draft.seal(&[0xc3; 5000], None, &[]).unwrap();
        assert_eq!((protection(base), protection(base + 4096)), ("r-xp".into(), "r-xp".into()));
        assert_eq!(exec.bytes(), [0xc3; 5000]);
        drop(exec);
        assert_ne!(protection(base), "r-xp");
    }

    #[test]
    fn code_lies_within_reach_of_its_helper() {
        extern "C" fn helper() {}
        let near = helper as *const () as u64;
        assert!(WritableCode::new(4096, near).unwrap().reaches(near));
    }

    #[test]
    fn too_much_code_is_an_error() {
        assert!(WritableCode::new(10, 0).unwrap().seal(&[0; 4097], None, &[]).is_err());
    }
}
