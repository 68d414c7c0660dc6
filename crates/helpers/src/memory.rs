//! Moving bytes without the C library.

use std::arch::asm;

/// Copies bytes upwards; the ranges may overlap when `to` is below `from`.
///
/// # Safety
/// `from` is readable and `to` writable for `len` bytes.
#[inline(always)]
pub unsafe fn copy(to: u64, from: u64, len: u64) {
    // SAFETY: the caller's promise; the direction flag is clear in all compiled code.
    unsafe {
        asm!("rep movsb", inout("rdi") to => _, inout("rsi") from => _, inout("rcx") len => _, options(nostack, preserves_flags))
    };
}

/// Copies bytes between ranges that overlap in any way.
///
/// # Safety
/// As [`copy`].
pub unsafe fn shift(to: u64, from: u64, len: u64) {
    if to <= from {
        // SAFETY: the caller's promise.
        return unsafe { copy(to, from, len) };
    }
    for i in (0..len).rev() {
        // SAFETY: the caller's promise.
        unsafe { ((to + i) as *mut u8).write_volatile(((from + i) as *const u8).read_volatile()) };
    }
}

/// Sets bytes.
///
/// # Safety
/// `to` is writable for `len` bytes.
#[inline(always)]
pub unsafe fn fill(to: u64, len: u64, byte: u8) {
    // SAFETY: the caller's promise.
    unsafe {
        asm!("rep stosb", inout("rdi") to => _, inout("rcx") len => _, in("al") byte, options(nostack, preserves_flags))
    };
}

/// Zeroes bytes.
///
/// # Safety
/// As [`fill`].
#[inline(always)]
pub unsafe fn zero(to: u64, len: u64) {
    // SAFETY: the caller's promise.
    unsafe { fill(to, len, 0) };
}
