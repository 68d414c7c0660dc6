//! Whose memory the calling thread runs in.
//!
//! A child of `vfork`, `posix_spawn` or `clone(CLONE_VM)` runs in its parent's memory under a
//! process id of its own. It runs hooks while the thread that made it waits
//! (`per_thread::shared_tls`). It must not take hooks out, free what others walk, or judge whether
//! threads live: it is in no task list, and the threads in its parent's are not its own.
//!
//! A child of `fork` has a copy, which is its own from then on. A page that the kernel empties on
//! fork tells the two apart, also when the child was made without the C library.

use crate::per_thread::block;
use crate::{sandbox, sys};
use std::mem::MaybeUninit;
use std::sync::atomic::{AtomicPtr, AtomicU8, AtomicU32, Ordering};

/// The page's first word: the process that the memory belongs to; 0 in a forked child that has not
/// asked yet.
static OWNER: AtomicPtr<AtomicU32> = AtomicPtr::new(std::ptr::null_mut());

/// Takes possession of the memory. Called when the engine is made.
pub(crate) fn claim() {
    if OWNER.load(Ordering::Acquire).is_null()
        && let Ok(page) = sys::map_wiped_on_fork()
    {
        // SAFETY: the page was just mapped, is writable, and stays.
        unsafe { (*(page as *const AtomicU32)).store(sys::getpid(), Ordering::Relaxed) };
        // Two first calls at once lose a page.
        OWNER.store(page as *mut AtomicU32, Ordering::Release);
    }
}

/// Tells whether the calling thread's process owns the memory it runs in: everywhere but in
/// children of `vfork`, `posix_spawn` and `clone(CLONE_VM)` that have not executed a program. For
/// the event path too. In a sandbox, where nobody can ask, it is taken for granted.
#[inline(always)]
pub fn is_own() -> bool {
    let owner = OWNER.load(Ordering::Acquire);
    if owner.is_null() || !sandbox::may_call_system() {
        return true;
    }
    let pid = sys::getpid();
    // SAFETY: a page that is mapped for ever.
    let owner = unsafe { &*owner };
    match owner.load(Ordering::Acquire) {
        0 => {
            // The first thread of a forked child to ask: it is the only one, or was made by one
            // that never had a block.
            if owner.compare_exchange(0, pid, Ordering::AcqRel, Ordering::Acquire).is_ok() {
                // SAFETY: no thread but those made since runs here, and the page says that the
                // blocks are still the parent's.
                unsafe { block::after_fork() };
            }
            owner.load(Ordering::Acquire) == pid
        }
        known => known == pid,
    }
}

/// Tells whether a task waits, and will wait until the caller ends or executes a program, as one
/// that has made the caller by `vfork` does. One that waits for a disk looks
/// the same. For the event path.
#[inline(always)]
pub(crate) fn is_suspended(tid: u32) -> bool {
    const READ: u64 = 0;
    // `PID (NAME) STATE …`: the name has up to 15 bytes, parentheses too if it likes; behind the
    // state are only numbers.
    const SIZE: u64 = 64;
    let fd = sys::open_stat(tid);
    if fd < 0 {
        return false;
    }
    let buffer: MaybeUninit<[AtomicU8; SIZE as usize]> = MaybeUninit::uninit();
    let at = buffer.as_ptr() as u64;
    // SAFETY: the kernel writes into `buffer`, whose size it is told; the descriptor was opened
    // above.
    let got = unsafe { sys::call(READ, [fd as u64, at, SIZE, 0, 0, 0]) };
    // SAFETY: opened above.
    unsafe { sys::close(fd) };
    // SAFETY: only bytes that were read.
    let byte =
        |n: u64| unsafe { (*(at.wrapping_add(n) as *const AtomicU8)).load(Ordering::Relaxed) };
    let mut n = if got > 0 { got as u64 } else { 0 };
    while n > 2 {
        n = n.wrapping_sub(1);
        if byte(n.wrapping_sub(2)) == b')' {
            return byte(n) == b'D';
        }
    }
    false
}
