//! Raw system calls.
//!
//! libc's wrappers are functions of the traced program: they may be hooked, they set `errno`, and
//! some take locks. The engine and the event path come here instead. Every function returns the
//! kernel's word, negative for an error number.

use std::arch::asm;
use std::mem::MaybeUninit;
use std::sync::atomic::{AtomicU8, Ordering};

use rustix::io::Errno;
pub(crate) use skep_sys::thread;

use crate::sandbox;

const READ: u64 = 0;
const CLOSE: u64 = 3;
const LSEEK: u64 = 8;
pub(crate) const MMAP: u64 = 9;
pub(crate) const MPROTECT: u64 = 10;
pub(crate) const MUNMAP: u64 = 11;
pub(crate) const RT_SIGACTION: u64 = 13;
pub(crate) const RT_SIGPROCMASK: u64 = 14;
pub(crate) const PWRITE64: u64 = 18;
const MADVISE: u64 = 28;
pub(crate) const SCHED_YIELD: u64 = 24;
pub(crate) const GETPID: u64 = 39;
pub(crate) const SIGALTSTACK: u64 = 131;
pub(crate) const GETTID: u64 = 186;
const FUTEX: u64 = 202;
const GETDENTS64: u64 = 217;
pub(crate) const TGKILL: u64 = 234;
const OPENAT: u64 = 257;
const RT_SIGQUEUEINFO: u64 = 129;
const RT_TGSIGQUEUEINFO: u64 = 297;
const PROCESS_VM_READV: u64 = 310;
const PROCESS_VM_WRITEV: u64 = 311;
pub(crate) const MEMBARRIER: u64 = 324;

pub(crate) const PROT_READ: u64 = 1;
pub(crate) const PROT_WRITE: u64 = 2;
pub(crate) const PROT_EXEC: u64 = 4;

const O_CLOEXEC: u64 = 0x8_0000;

const MAP_PRIVATE: u64 = 2;
const MAP_ANONYMOUS: u64 = 0x20;
const MAP_FIXED_NOREPLACE: u64 = 0x10_0000;

pub(crate) const EFAULT: i64 = Errno::FAULT.raw_os_error() as i64;
pub(crate) const EINVAL: i64 = Errno::INVAL.raw_os_error() as i64;
pub(crate) const EPERM: i64 = Errno::PERM.raw_os_error() as i64;
pub(crate) const ESRCH: i64 = Errno::SRCH.raw_os_error() as i64;

/// Makes a system call; `EPERM` where a sandbox may punish it.
///
/// # Safety
///
/// The call and its arguments do what the caller may do.
#[inline(always)]
pub(crate) unsafe fn call(nr: u64, a: [u64; 6]) -> i64 {
    if !matches!(nr, RT_SIGPROCMASK | SIGALTSTACK | RT_SIGACTION) && !sandbox::may_call_system() {
        return -EPERM;
    }
    let ret: i64;
    // SAFETY: the kernel's calling convention; it changes rax, rcx and r11 and the memory the
    // caller answers for.
    unsafe {
        asm!("syscall", inlateout("rax") nr as i64 => ret, in("rdi") a[0], in("rsi") a[1], in("rdx") a[2], in("r10") a[3],
             in("r8") a[4], in("r9") a[5], lateout("rcx") _, lateout("r11") _, options(nostack));
    }
    ret
}

/// Id of the calling thread.
#[inline(always)]
pub(crate) fn gettid() -> u32 {
    // SAFETY: takes and changes nothing.
    unsafe { call(GETTID, [0; 6]) as u32 }
}

/// Id of the process.
#[inline(always)]
pub(crate) fn getpid() -> u32 {
    // SAFETY: takes and changes nothing.
    unsafe { call(GETPID, [0; 6]) as u32 }
}

/// Sends a signal to a thread of the own process; 0 only asks whether it lives.
#[inline(always)]
pub(crate) fn tgkill(tid: u32, signal: i32) -> i64 {
    // SAFETY: what the signal does is its handler's matter.
    unsafe { call(TGKILL, [u64::from(getpid()), u64::from(tid), signal as u64, 0, 0, 0]) }
}

/// Sends a signal to a thread of any process; 0 as the signal asks whether there is one.
#[inline(always)]
pub(crate) fn tkill(tid: u32, signal: i32) -> i64 {
    const TKILL: u64 = 200;
    // SAFETY: touches no memory.
    unsafe { call(TKILL, [u64::from(tid), signal as u64, 0, 0, 0, 0]) }
}

/// Tells whether no other task has this memory: not another thread, nor a child of
/// `clone(CLONE_VM)`. Where the kernel may not be asked (seccomp profiles of containers refuse
/// `unshare`), nobody is taken to have it.
pub(crate) fn has_memory_alone() -> bool {
    const UNSHARE: u64 = 272;
    const CLONE_VM: u64 = 0x100;
    // SAFETY: does nothing: the kernel refuses when there is something to do (`unshare(2)`).
    unsafe { call(UNSHARE, [CLONE_VM, 0, 0, 0, 0, 0]) != -EINVAL }
}

/// Gives the processor away.
pub(crate) fn yield_now() {
    // SAFETY: takes and changes nothing.
    unsafe { call(SCHED_YIELD, [0; 6]) };
}

/// Maps private zeroed memory, at `at` exactly when that is not 0.
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
pub(crate) unsafe fn unmap(at: u64, len: u64) {
    // SAFETY: passed on to the caller.
    unsafe { call(MUNMAP, [at, len, 0, 0, 0, 0]) };
}

/// Changes the protection of memory.
///
/// # Safety
///
/// Whoever uses the memory can live with the new protection.
pub(crate) unsafe fn protect(at: u64, len: u64, prot: u64) -> Result<(), i64> {
    // SAFETY: passed on to the caller.
    match unsafe { call(MPROTECT, [at, len, prot, 0, 0, 0]) } {
        0 => Ok(()),
        e => Err(-e),
    }
}

/// The commands of `membarrier` that the engine uses.
#[derive(Clone, Copy)]
pub(crate) enum Barrier {
    /// Every running thread of the process passes a full memory barrier.
    Memory = 1 << 3,
    /// Every running thread also throws away what it has decoded.
    SyncCore = 1 << 5,
}

/// Makes all threads of the process pass a barrier.
pub(crate) fn membarrier(what: Barrier) -> Result<(), i64> {
    // SAFETY: changes no memory.
    let raw = |command: u64| unsafe { call(MEMBARRIER, [command, 0, 0, 0, 0, 0]) };
    let mut got = raw(what as u64);
    if got == -EPERM {
        // A process registers once; the registration is the command's next bit.
        raw((what as u64) << 1);
        got = raw(what as u64);
    }
    if got == 0 { Ok(()) } else { Err(-got) }
}

/// `struct sigaction` as the kernel takes it.
pub(crate) use crate::signals::KernelAction;

/// Sets or reads the action for a signal.
///
/// # Safety
///
/// `new`'s handler is code that can handle the signal, or `SIG_DFL`/`SIG_IGN`.
pub(crate) unsafe fn sigaction(
    signal: i32,
    new: Option<&KernelAction>,
) -> Result<KernelAction, i64> {
    let mut old = KernelAction::default();
    let new = new.map_or(0, |n| std::ptr::from_ref(n) as u64);
    // SAFETY: both pointers are null or valid for the call; the rest is the caller's promise.
    match unsafe { call(RT_SIGACTION, [signal as u64, new, &raw mut old as u64, 8, 0, 0]) } {
        0 => Ok(old),
        e => Err(-e),
    }
}

#[inline(always)]
fn sigprocmask(how: u64, set: u64) -> u64 {
    let mut old = 0u64;
    // SAFETY: both sets are eight bytes; masks are the thread's own.
    unsafe { call(RT_SIGPROCMASK, [how, &raw const set as u64, &raw mut old as u64, 8, 0, 0]) };
    old
}

/// Blocks the thread's signals, except those that faults raise, and returns the mask before.
#[inline(always)]
pub(crate) fn block_signals() -> u64 {
    // ILL, TRAP, ABRT, BUS, FPE, SEGV.
    const FAULTS: u64 = 1 << 3 | 1 << 4 | 1 << 5 | 1 << 6 | 1 << 7 | 1 << 10;
    sigprocmask(0, !FAULTS)
}

/// `SIGBUS` and `SIGSEGV`, by bit: hooks need their handlers, as memory may be missing in any
/// event.
pub(crate) const FAULTS: u64 = 1 << 6 | 1 << 10;

/// Lets them through, and returns which of them were blocked.
#[inline(always)]
pub(crate) fn let_faults_through() -> u64 {
    sigprocmask(1, FAULTS) & FAULTS
}

/// Blocks signals, by bit.
pub(crate) fn block_signal_set(set: u64) {
    sigprocmask(0, set);
}

/// Sends the own process, or the calling thread, a signal as it came; `info` is the address of a
/// whole `siginfo_t`.
///
/// # Safety
/// There is one.
pub(crate) unsafe fn send_again(signal: i32, info: u64, to_thread: bool) {
    let pid = u64::from(getpid());
    // SAFETY: the kernel reads the `siginfo_t`.
    unsafe {
        if to_thread {
            call(RT_TGSIGQUEUEINFO, [pid, u64::from(gettid()), signal as u64, info, 0, 0]);
        } else {
            call(RT_SIGQUEUEINFO, [pid, signal as u64, info, 0, 0, 0]);
        }
    }
}

/// Lets a signal through.
pub(crate) fn unblock_signal(signal: i32) {
    sigprocmask(1, 1 << (signal - 1));
}

/// Sets the thread's mask.
#[inline(always)]
pub(crate) fn set_signal_mask(mask: u64) {
    sigprocmask(2, mask);
}

/// Sends a signal with a value to a thread of the own process.
pub(crate) fn queue(tid: u32, signal: i32, info: &[u64; 16]) -> i64 {
    // SAFETY: `info` is a whole siginfo_t.
    unsafe {
        call(
            RT_TGSIGQUEUEINFO,
            [u64::from(getpid()), u64::from(tid), signal as u64, info.as_ptr() as u64, 0, 0],
        )
    }
}

/// Waits until `word` is no longer `value`, at most `nanos` nanoseconds; may return early.
pub(crate) fn wait(word: &std::sync::atomic::AtomicU32, value: u32, nanos: u64) {
    let time = [0u64, nanos];
    // SAFETY: FUTEX_WAIT_PRIVATE reads the word and the time.
    unsafe {
        call(
            FUTEX,
            [std::ptr::from_ref(word) as u64, 128, u64::from(value), time.as_ptr() as u64, 0, 0],
        )
    };
}

/// Wakes all that wait on `word`.
pub(crate) fn wake(word: &std::sync::atomic::AtomicU32) {
    // SAFETY: FUTEX_WAKE_PRIVATE changes no memory.
    unsafe { call(FUTEX, [std::ptr::from_ref(word) as u64, 129, i32::MAX as u64, 0, 0, 0]) };
}

/// A file descriptor that is closed when dropped.
#[derive(Debug)]
pub(crate) struct Fd(u64);

impl Fd {
    /// Opens a file for reading; `path` ends with a nul byte.
    pub(crate) fn open(path: &[u8]) -> Result<Self, i64> {
        Self::open_with(path, O_CLOEXEC)
    }

    /// Opens a file for reading and writing; `path` ends with a nul byte.
    pub(crate) fn open_rw(path: &[u8]) -> Result<Self, i64> {
        Self::open_with(path, O_CLOEXEC | 2)
    }

    fn open_with(path: &[u8], flags: u64) -> Result<Self, i64> {
        if path.last() != Some(&0) {
            return Err(EINVAL);
        }
        // SAFETY: `path` ends with a nul byte.
        match unsafe { call(OPENAT, [-100i64 as u64, path.as_ptr() as u64, flags, 0, 0, 0]) } {
            fd if fd >= 0 => Ok(Self(fd as u64)),
            e => Err(-e),
        }
    }

    /// Reads once.
    pub(crate) fn read(&self, into: &mut [u8]) -> i64 {
        // SAFETY: writes into `into` only.
        unsafe { call(READ, [self.0, into.as_mut_ptr() as u64, into.len() as u64, 0, 0, 0]) }
    }

    /// Writes at an offset.
    pub(crate) fn write_at(&self, from: &[u8], at: u64) -> i64 {
        // SAFETY: reads `from` only.
        unsafe { call(PWRITE64, [self.0, from.as_ptr() as u64, from.len() as u64, at, 0, 0]) }
    }

    /// Reads directory entries.
    pub(crate) fn entries(&self, into: &mut [u8]) -> i64 {
        // SAFETY: writes into `into` only.
        unsafe { call(GETDENTS64, [self.0, into.as_mut_ptr() as u64, into.len() as u64, 0, 0, 0]) }
    }

    /// Goes back to the first directory entry.
    pub(crate) fn rewind(&self) {
        // SAFETY: moves the descriptor's own position.
        unsafe { call(LSEEK, [self.0, 0, 0, 0, 0, 0]) };
    }
}

impl Drop for Fd {
    fn drop(&mut self) {
        // SAFETY: the descriptor is ours.
        unsafe { call(CLOSE, [self.0, 0, 0, 0, 0, 0]) };
    }
}

/// Copies ranges (address, length) of the own memory, one after the other, as far as they are
/// there; the number of bytes, or negative.
pub(crate) fn copy_in(into: &mut [u64], from: &[[u64; 2]]) -> i64 {
    let local = [into.as_mut_ptr() as u64, into.len() as u64 * 8];
    let (count, pid) = (from.len() as u64, u64::from(getpid()));
    // SAFETY: writes into `into` only; the kernel checks the ranges.
    unsafe {
        call(PROCESS_VM_READV, [pid, local.as_ptr() as u64, 1, from.as_ptr() as u64, count, 0])
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
    let pid = u64::from(getpid());
    // SAFETY: the kernel checks `from`; the rest is the caller's promise.
    unsafe { call(PROCESS_VM_READV, [pid, to.as_ptr() as u64, 1, from.as_ptr() as u64, 1, 0]) }
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
            [u64::from(getpid()), local.as_ptr() as u64, 1, remote.as_ptr() as u64, 1, 0],
        )
    };
}

/// Opens the list of the own mappings; negative on failure. For the event path.
#[inline(always)]
pub(crate) fn open_maps() -> i64 {
    static PATH: [u8; 17] = *b"/proc/self/maps\0\0";
    // SAFETY: the path ends with a nul byte.
    unsafe { call(OPENAT, [-100i64 as u64, (&raw const PATH) as u64, O_CLOEXEC, 0, 0, 0]) }
}

/// Opens a task's `stat`; negative on failure. For the event path.
#[inline(always)]
pub(crate) fn open_stat(tid: u32) -> i64 {
    const SIZE: u64 = 24;
    let path: MaybeUninit<[AtomicU8; SIZE as usize]> = MaybeUninit::uninit();
    let start = path.as_ptr() as u64;
    // From the end, as that is how digits come. Byte by byte: atomic stores are not merged into
    // vector stores.
    let mut at = SIZE;
    let mut put = |byte: u8| {
        at = at.wrapping_sub(1);
        // SAFETY: 13 bytes around at most 10 digits.
        unsafe { (*(start.wrapping_add(at) as *const AtomicU8)).store(byte, Ordering::Relaxed) };
        start.wrapping_add(at)
    };
    put(0);
    put(b't');
    put(b'a');
    put(b't');
    put(b's');
    put(b'/');
    let mut rest = tid;
    while rest != 0 {
        put(b'0'.wrapping_add((rest % 10) as u8));
        rest /= 10;
    }
    put(b'/');
    put(b'c');
    put(b'o');
    put(b'r');
    put(b'p');
    let path = put(b'/');
    // SAFETY: the path ends with a nul byte.
    unsafe { call(OPENAT, [-100i64 as u64, path, O_CLOEXEC, 0, 0, 0]) }
}

/// Closes a descriptor.
///
/// # Safety
/// The caller has opened it, with [`open_maps`] or [`open_stat`], and nobody uses it any more.
#[inline(always)]
pub(crate) unsafe fn close(fd: i64) {
    // SAFETY: the caller's promise.
    unsafe { call(CLOSE, [fd as u64, 0, 0, 0, 0, 0]) };
}
