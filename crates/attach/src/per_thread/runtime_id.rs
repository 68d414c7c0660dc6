//! What the program's runtime says of the running thread: its pointer, and the id that it keeps
//! beside it. Read where thread words are reached by `gs` ([`super::area`]).
//!
//! Part of the event path: raw system calls only, no vector registers.

use crate::sys;
use std::arch::asm;
use std::sync::atomic::{AtomicU64, Ordering};

/// Where a thread's id is, from its thread pointer. Known to `tramp/x64.s`.
pub(crate) static TID_AT: AtomicU64 = AtomicU64::new(0);

/// The calling thread's id, as its runtime has it. Another's in a task that shares the storage of
/// that one, and in a child whose maker did not ask the kernel to write its id: for `register`,
/// which knows better, such a child has no block.
///
/// # Safety
/// Thread words are reached by `gs`.
#[inline(always)]
pub(crate) unsafe fn thread_id() -> u32 {
    let id: u32;
    // SAFETY: the runtime keeps the thread's id there.
    unsafe {
        asm!("mov {0:e}, dword ptr fs:[{1}]", out(reg) id, in(reg) TID_AT.load(Ordering::Relaxed),
                        options(nostack, readonly, preserves_flags));
    }
    id
}

/// The thread pointer, where its first word may not be its address: a system call.
#[inline(always)]
pub(crate) fn thread_pointer() -> u64 {
    const ARCH_GET_FS: u64 = 0x1003;
    let pointer = AtomicU64::new(0);
    // SAFETY: the kernel writes the word.
    unsafe { sys::call(sys::ARCH_PRCTL, [ARCH_GET_FS, pointer.as_ptr() as u64, 0, 0, 0, 0]) };
    pointer.load(Ordering::Relaxed)
}
