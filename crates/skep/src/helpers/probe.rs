//! Reading the traced program's memory, where an address may be bad.
//!
//! The copy is a system call on ourselves (`process_vm_readv`): it cannot fault, whatever signal handlers the program has.

use super::{errno, fail};
use crate::syscall::{PROCESS_VM_READV, PROCESS_VM_WRITEV, call6};

/// Copies up to `len` bytes from `from`; returns how many could be read.
///
/// # Safety
/// `to` is writable for `len` bytes.
#[inline(always)]
unsafe fn copy(to: u64, from: u64, len: u64) -> u64 {
    let (local, remote) = ([to, len], [from, len]);
    let pid = skep_maps::slots::pid_tgid() >> 32;
    // SAFETY: both vectors describe one range each; the local one is writable by the caller's promise, the kernel checks the other.
    let r = unsafe { call6(PROCESS_VM_READV, pid, local.as_ptr() as u64, 1, remote.as_ptr() as u64, 1, 0) };
    if r > len { 0 } else { r }
}

/// Zeroes what could not be read, as the kernel does.
///
/// # Safety
/// `to` is writable for `len` bytes.
#[inline(always)]
unsafe fn zero(to: u64, len: u64) {
    for i in 0..len {
        // SAFETY: the caller's promise.
        unsafe { (to as *mut u8).add(i as usize).write_volatile(0) };
    }
}

/// `bpf_probe_read` and its user and kernel forms: 0, or `-EFAULT` with the buffer zeroed.
#[unsafe(link_section = ".text.skep_event")]
pub(super) unsafe extern "C" fn read(to: u64, size: u64, from: u64, _: u64, _: u64) -> u64 {
    let size = size & 0xffff_ffff;
    if size == 0 {
        return 0;
    }
    // SAFETY: the verifier proved `to` writable for `size` bytes.
    unsafe {
        if copy(to, from, size) == size {
            return 0;
        }
        zero(to, size);
    }
    fail(errno::EFAULT)
}

/// `bpf_probe_read_str` and its forms: the length with the zero, at most `size`; or `-EFAULT` with the buffer zeroed.
///
/// Reads up to the end of a page at a time: a string may end just before unmapped memory.
#[unsafe(link_section = ".text.skep_event")]
pub(super) unsafe extern "C" fn read_str(to: u64, size: u64, from: u64, _: u64, _: u64) -> u64 {
    const PAGE: u64 = 4096;
    let size = size & 0xffff_ffff;
    if size == 0 {
        return 0;
    }
    let mut done = 0;
    while done < size {
        let at = from.wrapping_add(done);
        let chunk = (PAGE - at % PAGE).min(size - done);
        // SAFETY: the verifier proved `to` writable for `size` bytes, and done + chunk <= size.
        let got = unsafe { copy(to.wrapping_add(done), at, chunk) };
        for i in done..done + got {
            // SAFETY: as above.
            if unsafe { (to as *const u8).add(i as usize).read_volatile() } == 0 {
                return i + 1;
            }
        }
        if got != chunk {
            // SAFETY: as above.
            unsafe { zero(to, size) };
            return fail(errno::EFAULT);
        }
        done += chunk;
    }
    // SAFETY: size > 0, as above.
    unsafe { (to as *mut u8).add(size as usize - 1).write_volatile(0) };
    size
}

/// Ends of what a process may have: from here on addresses are the kernel's (x86-64 with four levels of page tables).
const TASK_SIZE: u64 = 0x7fff_ffff_f000;

/// What the kernel answers when it is asked to read "kernel" memory below its own: it is out of range.
#[inline(always)]
fn kernel_error(from: u64, r: u64) -> u64 {
    if r == fail(errno::EFAULT) && from < TASK_SIZE { fail(errno::ERANGE) } else { r }
}

/// `bpf_probe_read_kernel`: reads the traced program as all others, since that is what a "kernel" program traces here.
#[unsafe(link_section = ".text.skep_event")]
pub(super) unsafe extern "C" fn read_kernel(to: u64, size: u64, from: u64, _: u64, _: u64) -> u64 {
    // SAFETY: passed on.
    kernel_error(from, unsafe { read(to, size, from, 0, 0) })
}

/// `bpf_probe_read_kernel_str`.
#[unsafe(link_section = ".text.skep_event")]
pub(super) unsafe extern "C" fn read_kernel_str(to: u64, size: u64, from: u64, _: u64, _: u64) -> u64 {
    // SAFETY: passed on.
    kernel_error(from, unsafe { read_str(to, size, from, 0, 0) })
}

/// Writes the traced program's memory: 0, or `-EFAULT` when not all of it could be written.
#[unsafe(link_section = ".text.skep_event")]
pub(super) unsafe extern "C" fn write_user(to: u64, from: u64, size: u64, _: u64, _: u64) -> u64 {
    let size = size & 0xffff_ffff;
    let (local, remote) = ([from, size], [to, size]);
    let pid = skep_maps::slots::pid_tgid() >> 32;
    // SAFETY: the verifier proved `from` readable for `size` bytes; the kernel checks the other.
    let r = unsafe { call6(PROCESS_VM_WRITEV, pid, local.as_ptr() as u64, 1, remote.as_ptr() as u64, 1, 0) };
    if r == size { 0 } else { fail(errno::EFAULT) }
}
