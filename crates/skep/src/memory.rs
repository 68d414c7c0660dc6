//! When the memory of a mapped file is gone: the traced program must not die of it.
//!
//! Maps are sparse files, so on a full file system the first touch of a page can fail; and a file can be cut off while it is mapped.
//! The kernel says so with `SIGBUS`. The handler puts ordinary memory in place of the page, wherever it is in an object: among
//! values, in a header, in the slot table. What is counted there is lost to readers; that it happened is in the link's control map
//! ([`control::LOST_PAGES`]).
//!
//! A thread that blocks `SIGBUS` is killed by the kernel before any handler: there, memory that was set aside when the map was made
//! is all that helps.

use std::sync::atomic::{AtomicPtr, AtomicU64, Ordering::Acquire, Ordering::Relaxed, Ordering::Release};

use skep_maps::Map;

use crate::link::control;
use crate::run::control_word;
use crate::syscall::{GETPID, MMAP, PROCESS_VM_READV, call6};

const PAGE: u64 = 4096;

/// Where to count; of the last link.
static LOST: AtomicPtr<AtomicU64> = AtomicPtr::new(std::ptr::null_mut());

/// Guards the memory of all objects that this process has open, or opens later, in a target or a reader (who touches holes too).
pub fn guard() {
    // Refused: the missing page ends the program as it would without this.
    // SAFETY: `repair` makes system calls and reads lists that are never freed, as a signal handler may; it says that there is memory only
    // when it has put some there.
    let _ = unsafe { skep_attach::signals::on_memory_full(repair) };
}

/// Counts pages without memory in a link's control map, which lives as long as the process.
pub(crate) fn count_in(control_map: &'static Map) {
    LOST.store(std::ptr::from_ref(control_word(control_map, control::LOST_PAGES)).cast_mut(), Release);
}

/// Puts memory where an object has none. Runs in a signal handler.
///
/// # Safety
/// The kernel has just said that there is none at `addr`: what is in its page is gone.
unsafe fn repair(addr: u64) -> bool {
    const READ_WRITE: u64 = 3;
    const PRIVATE_FIXED_ANONYMOUS: u64 = 0x2 | 0x10 | 0x20;
    if !skep_maps::is_mapped(addr) {
        return false;
    }
    let page = addr & !(PAGE - 1);
    // SAFETY: replaces one page of an object's mapping, which cannot be touched otherwise, by an empty one.
    let got = unsafe { call6(MMAP, page, PAGE, READ_WRITE, PRIVATE_FIXED_ANONYMOUS, u64::MAX, 0) };
    if got != page {
        return false;
    }
    let lost = LOST.load(Acquire);
    // Its page may be gone as well, and a fault in here would be the end.
    if is_readable(lost as u64) {
        // SAFETY: a word of a map that lives as long as the process.
        unsafe { (*lost).fetch_add(1, Relaxed) };
    }
    true
}

/// Tells whether there is a word at `addr`, as the kernel sees it.
fn is_readable(addr: u64) -> bool {
    let mut word = 0_u64;
    let (local, remote) = ([&raw mut word as u64, 8], [addr, 8]);
    // SAFETY: writes to `word` at most; the kernel checks `addr`.
    unsafe { call6(PROCESS_VM_READV, call6(GETPID, 0, 0, 0, 0, 0, 0), local.as_ptr() as u64, 1, remote.as_ptr() as u64, 1, 0) == 8 }
}
