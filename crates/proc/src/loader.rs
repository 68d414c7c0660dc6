//! What the dynamic linker says of its own changes.

#![allow(unsafe_code)]

use std::ffi::{c_char, c_int, c_ulonglong, c_void};

/// `struct dl_phdr_info` of `link.h`, 64 bits.
#[repr(C)]
struct Info {
    addr: u64,
    name: *const c_char,
    phdr: *const c_void,
    phnum: u16,
    adds: c_ulonglong,
    subs: c_ulonglong,
}

unsafe extern "C" {
    fn dl_iterate_phdr(
        callback: unsafe extern "C" fn(*mut Info, usize, *mut c_void) -> c_int,
        data: *mut c_void,
    ) -> c_int;
}

/// A number that changes when the own process loads or unloads a library.
pub(crate) fn changes() -> u64 {
    let mut changes = 0u64;
    // SAFETY:
    // - `first` has the signature that is called, and does not unwind
    // - `data` is a `u64` that outlives the call, as `first` expects
    unsafe { dl_iterate_phdr(first, (&raw mut changes).cast()) };
    changes
}

/// Adds up the counters that come with the first module, and ends the walk.
unsafe extern "C" fn first(info: *mut Info, size: usize, changes: *mut c_void) -> c_int {
    if size >= size_of::<Info>() {
        // SAFETY: the C library passes a struct of `size` bytes, which has these fields, and the
        // pointer that `changes` gave it.
        unsafe { *changes.cast::<u64>() = (*info).adds.wrapping_add((*info).subs) };
    }
    1
}

#[cfg(test)]
mod tests {
    #[test]
    fn a_process_has_loaded_something_and_asking_changes_nothing() {
        assert!(super::changes() > 0);
        assert_eq!(super::changes(), super::changes());
    }
}
