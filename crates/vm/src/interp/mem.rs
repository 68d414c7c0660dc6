//! The memory a program touches: raw addresses, any alignment but for atomics.
//!
//! Rules of this leaf: every function takes an address the program computed, and its caller has the
//! verifier's word that the address is good. Atomic functions also need it to be a multiple of the
//! access size.

use std::sync::atomic::{
    AtomicU8, AtomicU16, AtomicU32, AtomicU64,
    Ordering::{Acquire, Release, SeqCst},
};

use skep_isa::op;

/// Returns the bytes of an access size.
pub(super) fn bytes(size: u8) -> u64 {
    match size {
        op::B => 1,
        op::H => 2,
        op::W => 4,
        _ => 8,
    }
}

/// # Safety
/// `at` must be good for a load of `size`.
pub(super) unsafe fn load(at: u64, size: u8, signed: bool) -> u64 {
    // SAFETY: as this function.
    unsafe {
        match (size, signed) {
            (op::B, false) => u64::from((at as *const u8).read()),
            (op::H, false) => u64::from((at as *const u16).read_unaligned()),
            (op::W, false) => u64::from((at as *const u32).read_unaligned()),
            (op::B, true) => i64::from((at as *const i8).read()) as u64,
            (op::H, true) => i64::from((at as *const i16).read_unaligned()) as u64,
            (op::W, true) => i64::from((at as *const i32).read_unaligned()) as u64,
            _ => (at as *const u64).read_unaligned(),
        }
    }
}

/// Loads from where there may be no memory, which gives 0.
///
/// # Safety
/// A signal handler uses [`crate::fault::fixup`], or `at` is good for a load of `size`.
pub(super) unsafe fn probe(at: u64, size: u8, signed: bool) -> u64 {
    let mut value = 0u64;
    // SAFETY: a value has room for any size; the source is as the caller says.
    let there =
        unsafe { crate::fault::copy_from((&raw mut value).cast(), at, bytes(size) as usize) };
    match (there, signed, size) {
        (false, ..) => 0,
        (_, true, op::B) => i64::from(value as i8) as u64,
        (_, true, op::H) => i64::from(value as i16) as u64,
        (_, true, op::W) => i64::from(value as i32) as u64,
        _ => value,
    }
}

/// # Safety
/// `at` must be good for a store of `size`.
pub(super) unsafe fn store(at: u64, size: u8, v: u64) {
    // SAFETY: as this function.
    unsafe {
        match size {
            op::B => (at as *mut u8).write(v as u8),
            op::H => (at as *mut u16).write_unaligned(v as u16),
            op::W => (at as *mut u32).write_unaligned(v as u32),
            _ => (at as *mut u64).write_unaligned(v),
        }
    }
}

/// # Safety
/// `at` must be aligned and good for a load of `size`.
pub(super) unsafe fn load_acquire(at: u64, size: u8) -> u64 {
    // SAFETY: as this function.
    unsafe {
        match size {
            op::B => u64::from(AtomicU8::from_ptr(at as *mut u8).load(Acquire)),
            op::H => u64::from(AtomicU16::from_ptr(at as *mut u16).load(Acquire)),
            op::W => u64::from(AtomicU32::from_ptr(at as *mut u32).load(Acquire)),
            _ => AtomicU64::from_ptr(at as *mut u64).load(Acquire),
        }
    }
}

/// # Safety
/// `at` must be aligned and good for a store of `size`.
pub(super) unsafe fn store_release(at: u64, size: u8, v: u64) {
    // SAFETY: as this function.
    unsafe {
        match size {
            op::B => AtomicU8::from_ptr(at as *mut u8).store(v as u8, Release),
            op::H => AtomicU16::from_ptr(at as *mut u16).store(v as u16, Release),
            op::W => AtomicU32::from_ptr(at as *mut u32).store(v as u32, Release),
            _ => AtomicU64::from_ptr(at as *mut u64).store(v, Release),
        }
    }
}

/// Returns the old value, zero-extended.
///
/// # Safety
/// `at` must be aligned and good for a load and a store of `size`.
pub(super) unsafe fn compare_exchange(at: u64, size: u8, old: u64, new: u64) -> u64 {
    // SAFETY: as this function.
    unsafe {
        if size == op::DW {
            AtomicU64::from_ptr(at as *mut u64)
                .compare_exchange(old, new, SeqCst, SeqCst)
                .unwrap_or_else(|v| v)
        } else {
            let cell = AtomicU32::from_ptr(at as *mut u32);
            u64::from(
                cell.compare_exchange(old as u32, new as u32, SeqCst, SeqCst).unwrap_or_else(|v| v),
            )
        }
    }
}

/// Does the read-modify-write that `imm` names and returns the old value, zero-extended.
///
/// # Safety
/// `at` must be aligned and good for a load and a store of `size`.
pub(super) unsafe fn fetch(at: u64, size: u8, imm: i32, v: u64) -> Option<u64> {
    // SAFETY: as this function.
    unsafe {
        if size == op::DW {
            let cell = AtomicU64::from_ptr(at as *mut u64);
            Some(match imm & !op::ATOMIC_FETCH {
                op::ATOMIC_ADD => cell.fetch_add(v, SeqCst),
                op::ATOMIC_OR => cell.fetch_or(v, SeqCst),
                op::ATOMIC_AND => cell.fetch_and(v, SeqCst),
                op::ATOMIC_XOR => cell.fetch_xor(v, SeqCst),
                _ if imm == op::ATOMIC_XCHG => cell.swap(v, SeqCst),
                _ => return None,
            })
        } else {
            let (cell, v) = (AtomicU32::from_ptr(at as *mut u32), v as u32);
            Some(u64::from(match imm & !op::ATOMIC_FETCH {
                op::ATOMIC_ADD => cell.fetch_add(v, SeqCst),
                op::ATOMIC_OR => cell.fetch_or(v, SeqCst),
                op::ATOMIC_AND => cell.fetch_and(v, SeqCst),
                op::ATOMIC_XOR => cell.fetch_xor(v, SeqCst),
                _ if imm == op::ATOMIC_XCHG => cell.swap(v, SeqCst),
                _ => return None,
            }))
        }
    }
}
