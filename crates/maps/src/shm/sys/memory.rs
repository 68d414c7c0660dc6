//! Mappings and their memory, by system calls.

use std::sync::atomic::{AtomicU8, Ordering::Relaxed};

use super::{is_closed, syscall};
use crate::shm::PAGE;

/// Takes address space at exactly this place, without memory and without rights; `false` when
/// something lies there.
pub(crate) fn reserve(at: u64, len: u64) -> bool {
    const PRIVATE_ANONYMOUS_NORESERVE_NOREPLACE: u64 = 0x2 | 0x20 | 0x4000 | 0x10_0000;
    // SAFETY: replaces no mapping.
    let got =
        unsafe { syscall(9, [at, len, 0, PRIVATE_ANONYMOUS_NORESERVE_NOREPLACE, u64::MAX, 0]) };
    if got >= 0 && got as u64 != at {
        // Kernels before 4.17 take the address as a hint.
        // SAFETY: just mapped, and nobody knows it.
        unsafe { unmap(got as u64, len) };
    }
    got as u64 == at
}

/// Ends a mapping.
///
/// # Safety
/// The caller made it, and nobody uses it any more.
pub(crate) unsafe fn unmap(at: u64, len: u64) {
    // SAFETY: the caller's promise.
    unsafe { syscall(11, [at, len, 0, 0, 0, 0]) };
}

/// Maps the file of a shared mapping once more, from the page at `from` on, `len` bytes; `None`
/// when that is impossible.
pub(crate) fn map_again(from: u64, len: u64) -> Option<u64> {
    const MAYMOVE: u64 = 1;
    // SAFETY: an old size of 0 leaves the old mapping as it is.
    let got = unsafe { syscall(25, [from, 0, len, MAYMOVE, 0, 0]) };
    if (-4095..0).contains(&got) { None } else { Some(got as u64) }
}

/// Makes a mapping longer where it is; tells whether there was room.
///
/// # Safety
/// `at` and `old` are those of a mapping of the caller's.
pub(crate) unsafe fn lengthen(at: u64, old: u64, new: u64) -> bool {
    // SAFETY: without flags nothing moves and nothing is replaced.
    old == new || unsafe { syscall(25, [at, old, new, 0, 0, 0]) as u64 == at }
}

/// Moves a mapping to `to` and makes it longer; tells whether that was possible.
///
/// # Safety
/// Nobody uses the mapping, and the caller has [reserved](reserve) `new` bytes at `to`.
pub(crate) unsafe fn move_mapping(from: u64, old: u64, new: u64, to: u64) -> bool {
    const MAYMOVE_FIXED: u64 = 1 | 2;
    // SAFETY: the caller's promise.
    unsafe { syscall(25, [from, old, new, MAYMOVE_FIXED, to, 0]) as u64 == to }
}

/// Gives the memory of pages of a shared file back to the system, which then read as zero; does
/// nothing where that is impossible.
///
/// # Safety
/// Nobody needs what is in them; the range begins at a page.
pub(crate) unsafe fn release(base: *mut u8, len: usize) {
    const MADVISE: u64 = 28;
    const REMOVE: u64 = 9;
    if !is_closed() {
        // SAFETY: the caller's promise.
        unsafe { syscall(MADVISE, [base as u64, len as u64, REMOVE, 0, 0, 0]) };
    }
}

/// Gives every page of a shared mapping memory without changing what is in it; `false` where there
/// is none.
///
/// # Safety
/// The range is mapped writable and begins at a page.
pub(crate) unsafe fn populate(base: *mut u8, len: usize) -> bool {
    const MADVISE: u64 = 28;
    const POPULATE_WRITE: u64 = 23;
    if is_closed() {
        // SAFETY: the caller's promise.
        return unsafe { touch(base, len) };
    }
    let mut tries = 0u32;
    loop {
        // SAFETY: MADV_POPULATE_WRITE faults pages in and changes none.
        match unsafe { syscall(MADVISE, [base as u64, len as u64, POPULATE_WRITE, 0, 0, 0]) } {
            0 => return true,
            // Interrupted, or the mapping changes at this moment.
            -4 | -11 | -16 if tries < 16 => tries = tries.wrapping_add(1),
            // Before Linux 5.14, or forbidden here.
            // SAFETY: the caller's promise.
            -22 | -1 | -38 => return unsafe { populate_by_page(base, len) },
            _ => return false,
        }
    }
}

/// As [`populate`], by an addition of zero that the kernel does: where a store would end in a
/// signal, it fails.
///
/// # Safety
/// As [`populate`].
unsafe fn populate_by_page(base: *mut u8, len: usize) -> bool {
    const FUTEX: u64 = 202;
    const WAKE_OP_PRIVATE: u64 = 5 | 128;
    const ADD: u64 = 1 << 28;
    let mut at = 0usize;
    while at < len {
        let word = base.wrapping_add(at) as u64;
        // SAFETY: FUTEX_WAKE_OP adds zero, atomically, to a word of the caller's range, and wakes
        // nobody.
        if unsafe { syscall(FUTEX, [word, WAKE_OP_PRIVATE, 0, 0, word, ADD]) } < 0 {
            return false;
        }
        at = at.wrapping_add(PAGE as usize);
    }
    true
}

/// As [`populate`], without system calls: where there is no memory, what guards the process against
/// `SIGBUS` has to do.
///
/// # Safety
/// As [`populate`].
unsafe fn touch(base: *mut u8, len: usize) -> bool {
    for at in (0..len).step_by(PAGE as usize) {
        // SAFETY: a byte of the caller's range. It is written to, whatever it is, and stays what it
        // is.
        let _ = unsafe { AtomicU8::from_ptr(base.wrapping_add(at)) }
            .compare_exchange(0, 0, Relaxed, Relaxed);
    }
    true
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pages_get_memory_and_keep_what_is_in_them() {
        let file = std::fs::File::options()
            .read(true)
            .write(true)
            .create(true)
            .truncate(true)
            .open("/dev/shm/skep-sys-populate")
            .expect("tmpfs");
        std::fs::remove_file("/dev/shm/skep-sys-populate").expect("ours");
        file.set_len(8 * 4096).expect("room");
        for (name, give) in [
            ("madvise", populate as unsafe fn(*mut u8, usize) -> bool),
            ("futex", populate_by_page),
            ("touched", touch),
        ] {
            let blocks = || rustix::fs::fstat(&file).expect("open").st_blocks;
            rustix::fs::fallocate(
                &file,
                rustix::fs::FallocateFlags::PUNCH_HOLE | rustix::fs::FallocateFlags::KEEP_SIZE,
                0,
                8 * 4096,
            )
            .expect("tmpfs has holes");
            let memory = crate::shm::mapping::Mapping::file(
                std::os::fd::AsFd::as_fd(&file),
                0,
                8 * 4096,
                None,
                crate::shm::Access::ReadWrite,
            )
            .expect("maps");
            let view = memory.view();
            let word = view.word(4096).expect("inside");
            word.store(77, Relaxed);
            assert_eq!(blocks(), 8, "{name}: one page");
            // SAFETY: all these pages are mapped writable.
            let give =
                |at, pages: usize| unsafe { give(view.at(at, 0).expect("inside"), pages * 4096) };
            assert!(give(4096, 3), "{name}");
            assert_eq!((blocks(), word.load(Relaxed)), (24, 77), "{name}");
            // Past the end of the file a store is a signal.
            if name == "touched" {
                continue;
            }
            file.set_len(4 * 4096).expect("cuts");
            assert!(!give(0, 8), "{name}");
            file.set_len(8 * 4096).expect("room");
        }
    }
}
