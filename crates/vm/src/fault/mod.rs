//! Copies from memory that may not be there.
//!
//! Traced memory is read with plain loads: a good address costs a load, a bad one a signal. All
//! loads that may fail sit in one short range of code, or are known by a table of the generated
//! code they are in (`sites`); a handler of SIGSEGV and SIGBUS asks [`fixup`] for every fault and,
//! when it gets an address, continues there instead. Installing that handler is the business of
//! whoever owns the process's signals; without it a bad address ends the process as it always does.
//!
//! Nothing here allocates, calls the system, or touches a vector register.

mod sites;

cfg_select! {
    // Assembly: which instruction faults must be known exactly.
    target_arch = "x86_64" => {
        mod x64;
        use x64 as arch;
    }
    _ => {
        mod none;
        use none as arch;
    }
}

pub(crate) use sites::{Site, Sites};

/// Copies `len` bytes; `false` when some of them could not be read (or written), and then any part
/// of them may have been copied.
///
/// # Safety
/// `dst` must be good for writing `len` bytes. `src` may be any address, if a signal handler uses
/// [`fixup`]; else it must be good for reading.
#[must_use]
pub unsafe fn copy_from(dst: *mut u8, src: u64, len: usize) -> bool {
    // SAFETY: the caller vouches for `dst`.
    unsafe { arch::copy(dst, src, len) == 0 }
}

/// Copies a string up to its NUL, at most `size` bytes; the last byte copied is always a NUL.
/// Returns how many bytes that were, or `None` when the string could not be read that far.
///
/// # Safety
/// `dst` must be good for writing `size` bytes. `src` may be any address, if a signal handler uses
/// [`fixup`]; else it must be good for reading up to the NUL.
#[must_use]
pub unsafe fn str_from(dst: *mut u8, src: u64, size: usize) -> Option<usize> {
    // SAFETY: the caller vouches for `dst`.
    usize::try_from(unsafe { arch::copy_str(dst, src, size) }).ok()
}

/// Returns the address of the code that generated code without a table calls to load `size` (of
/// [`skep_isa::op`]) from the address in r10: the value is in r10 then, 0 where there is no memory,
/// and all other registers are as they were.
pub(crate) fn probe(size: u8) -> u64 {
    arch::probe(size)
}

/// Returns where to continue after a fault at `ip`, when it was one of these loads.
///
/// # Safety
/// The calling thread has faulted there, and this is its signal handler: so the program that the
/// instruction is of stays meanwhile.
///
/// ```compile_fail,E0133
/// skep_vm::fault::fixup(4096);
/// ```
#[must_use]
pub unsafe fn fixup(ip: u64) -> Option<u64> {
    // SAFETY: the caller's promise.
    arch::fixup(ip).or_else(|| unsafe { sites::find(ip) })
}
