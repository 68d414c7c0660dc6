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
use crate::sys::TaskFile;
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

/// The state of a task, as `/proc` has it; 0 when that cannot be learnt. One that waits for a child
/// which it has made by `vfork` is in [`UNINTERRUPTIBLE`]; so is one that waits for a disk or for
/// another thread's change of the memory. For the event path.
#[inline(always)]
pub(crate) fn state(tid: u32) -> u8 {
    // `PID (NAME) STATE …`: the name has up to 15 bytes, parentheses too if it likes; behind the
    // state are only numbers.
    let start = Start(MaybeUninit::uninit());
    let mut n = start.read(tid, TaskFile::STAT);
    while n > 2 {
        n = n.wrapping_sub(1);
        if start.byte(n.wrapping_sub(2)) == b')' {
            return start.byte(n);
        }
    }
    0
}

/// See [`state`].
pub(crate) const UNINTERRUPTIBLE: u8 = b'D';

/// Tells whether a task waits in a system call that makes processes; `None` where the kernel does not
/// say, because a security module like Yama forbids it. For the event path.
#[inline(always)]
pub(crate) fn is_in_clone(tid: u32) -> Option<bool> {
    const CLONE: u32 = 56;
    const VFORK: u32 = 58;
    const CLONE3: u32 = 435;
    // `NUMBER ARGUMENT…`, or a word for a task that runs, or -1 for one that is in no call.
    let start = Start(MaybeUninit::uninit());
    let len = start.read(tid, TaskFile::SYSCALL);
    let mut number = 0_u32;
    let mut n = 0;
    while n < len && start.byte(n).is_ascii_digit() {
        number = number.wrapping_mul(10).wrapping_add(u32::from(start.byte(n).wrapping_sub(b'0')));
        n = n.wrapping_add(1);
    }
    let is_one = number == CLONE || number == VFORK || number == CLONE3;
    if len == 0 { None } else { Some(is_one) }
}

/// Where the first bytes of a task's file are read to.
struct Start(MaybeUninit<[AtomicU8; Self::SIZE as usize]>);

impl Start {
    const SIZE: u64 = 64;

    /// Returns how many bytes were read; 0 when none could be.
    #[inline(always)]
    fn read(&self, tid: u32, file: TaskFile) -> u64 {
        const READ: u64 = 0;
        let fd = sys::open_of_task(tid, file);
        if fd < 0 {
            return 0;
        }
        // SAFETY: the kernel writes into these bytes, whose size it is told; the descriptor was
        // opened above.
        let got =
            unsafe { sys::call(READ, [fd as u64, self.0.as_ptr() as u64, Self::SIZE, 0, 0, 0]) };
        // SAFETY: opened above.
        unsafe { sys::close(fd) };
        if got > 0 { got as u64 } else { 0 }
    }

    /// One of the bytes that were read.
    #[inline(always)]
    fn byte(&self, at: u64) -> u8 {
        // SAFETY: only bytes that were read.
        unsafe {
            (*((self.0.as_ptr() as u64).wrapping_add(at) as *const AtomicU8))
                .load(Ordering::Relaxed)
        }
    }
}
