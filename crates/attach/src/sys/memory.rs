//! Memory: mappings, and copies that the kernel makes, for memory that may not be there.

use super::call::{MADVISE, MMAP, MPROTECT, MUNMAP, PROCESS_VM_READV, PROCESS_VM_WRITEV, call};
use super::task::gettid;

pub(crate) const PROT_READ: u64 = 1;
pub(crate) const PROT_WRITE: u64 = 2;
pub(crate) const PROT_EXEC: u64 = 4;

const MAP_PRIVATE: u64 = 2;
const MAP_ANONYMOUS: u64 = 0x20;
const MAP_FIXED_NOREPLACE: u64 = 0x10_0000;

/// Maps private zeroed memory, at `at` exactly when that is not 0.
#[inline(always)]
pub(crate) fn map(at: u64, len: u64, prot: u64) -> Result<u64, i64> {
    let fixed = if at == 0 { 0 } else { MAP_FIXED_NOREPLACE };
    // SAFETY: never replaces a mapping.
    let got =
        unsafe { call(MMAP, [at, len, prot, MAP_PRIVATE | MAP_ANONYMOUS | fixed, u64::MAX, 0]) };
    if got < 0 {
        return Err(-got);
    }
    if at != 0 && got as u64 != at {
        // Kernels before 4.17 take the address as a hint.
        // SAFETY: the mapping was just made and nobody knows it.
        unsafe { unmap(got as u64, len) };
        return Err(17);
    }
    Ok(got as u64)
}

/// Maps a page that the kernel empties in forked children.
pub(crate) fn map_wiped_on_fork() -> Result<u64, i64> {
    const PAGE: u64 = 4096;
    const MADV_WIPEONFORK: u64 = 18;
    let page = map(0, PAGE, PROT_READ | PROT_WRITE)?;
    // SAFETY: changes what becomes of the new page in children.
    match unsafe { call(MADVISE, [page, PAGE, MADV_WIPEONFORK, 0, 0, 0]) } {
        0 => Ok(page),
        e => {
            // SAFETY: nobody knows the page yet.
            unsafe { unmap(page, PAGE) };
            Err(-e)
        }
    }
}

/// Unmaps memory.
///
/// # Safety
///
/// Nobody uses the memory any more.
#[inline(always)]
pub(crate) unsafe fn unmap(at: u64, len: u64) {
    // SAFETY: passed on to the caller.
    unsafe { call(MUNMAP, [at, len, 0, 0, 0, 0]) };
}

/// Changes the protection of memory.
///
/// # Safety
///
/// Whoever uses the memory can live with the new protection.
#[inline(always)]
pub(crate) unsafe fn protect(at: u64, len: u64, prot: u64) -> Result<(), i64> {
    // SAFETY: passed on to the caller.
    match unsafe { call(MPROTECT, [at, len, prot, 0, 0, 0]) } {
        0 => Ok(()),
        e => Err(-e),
    }
}

/// Copies ranges (address, length) of the own memory, one after the other, as far as they are
/// there; the number of bytes, or negative. By this thread's id: the main thread may have exited, and has
/// no memory then.
pub(crate) fn copy_in(into: &mut [u64], from: &[[u64; 2]]) -> i64 {
    let local = [into.as_mut_ptr() as u64, into.len() as u64 * 8];
    let (count, me) = (from.len() as u64, u64::from(gettid()));
    // SAFETY: writes into `into` only; the kernel checks the ranges.
    unsafe {
        call(PROCESS_VM_READV, [me, local.as_ptr() as u64, 1, from.as_ptr() as u64, count, 0])
    }
}

/// Copies words of the own memory, as far as they are there: `[address, length]` both. For the
/// event path; the number of bytes, or negative.
///
/// # Safety
///
/// `to` is writable memory of the caller's.
#[inline(always)]
pub(crate) unsafe fn copy_words(to: &[u64; 2], from: &[u64; 2]) -> i64 {
    let me = u64::from(gettid());
    // SAFETY: the kernel checks `from`; the rest is the caller's promise.
    unsafe { call(PROCESS_VM_READV, [me, to.as_ptr() as u64, 1, from.as_ptr() as u64, 1, 0]) }
}

/// Writes a word of the own memory if it is there.
///
/// # Safety
/// What is at `to` is the caller's to change.
pub(crate) unsafe fn copy_out(to: u64, word: &u64) {
    let (local, remote) = ([std::ptr::from_ref(word) as u64, 8], [to, 8]);
    // SAFETY: the kernel checks `to`; the rest is the caller's promise.
    unsafe {
        call(
            PROCESS_VM_WRITEV,
            [u64::from(gettid()), local.as_ptr() as u64, 1, remote.as_ptr() as u64, 1, 0],
        )
    };
}
