//! The few system calls the event path may make, without libc and without touching errno.

use std::arch::asm;
use std::mem::MaybeUninit;
use std::sync::atomic::{AtomicBool, AtomicU8, Ordering::Relaxed};

pub(crate) const ESRCH: i64 = -(skep_isa::errno::ESRCH as i64);
/// Seccomp filters that allow looking at files allow it in the form that the C library uses, with a
/// directory.
const AT_FDCWD: u64 = -100_i64 as u64;

static CLOSED: AtomicBool = AtomicBool::new(false);

/// Says that a sandbox may punish system calls from here on, in this process and the children it
/// forks.
pub(crate) fn close() {
    CLOSED.store(true, Relaxed);
}

/// Tells whether a system call may be punished.
#[inline(always)]
pub(crate) fn is_closed() -> bool {
    CLOSED.load(Relaxed)
}

/// Makes a system call.
///
/// # Safety
/// As the call asks for.
#[inline]
unsafe fn syscall(nr: u64, a: [u64; 6]) -> i64 {
    let ret: i64;
    let [a0, a1, a2, a3, a4, a5] = a;
    // SAFETY: the kernel clobbers rcx and r11 only; what the call itself does is the caller's duty.
    unsafe {
        asm!("syscall", inlateout("rax") nr => ret, in("rdi") a0, in("rsi") a1, in("rdx") a2, in("r10") a3, in("r8") a4,
             in("r9") a5, lateout("rcx") _, lateout("r11") _, options(nostack));
    }
    ret
}

/// Returns the process id as the kernel sees it now (also right after a raw `fork`).
pub(crate) fn getpid() -> u32 {
    // SAFETY: getpid has no arguments and no effects.
    unsafe { syscall(39, [0; 6]) as u32 }
}

/// Returns the thread id.
pub(crate) fn gettid() -> u32 {
    // SAFETY: gettid has no arguments and no effects.
    unsafe { syscall(186, [0; 6]) as u32 }
}

/// Returns the process that made this one: 0 when that is in a pid namespace further out.
pub(crate) fn getppid() -> u32 {
    // SAFETY: getppid has no arguments and no effects.
    unsafe { syscall(110, [0; 6]) as u32 }
}

/// Finds this process's pid namespace, 0 where that cannot be told: without /proc, before Linux
/// 6.11.
pub(crate) fn pid_namespace() -> u64 {
    match inode(|stat| {
        // SAFETY: newfstatat reads the terminated path and writes a `struct stat`.
        unsafe { syscall(262, [AT_FDCWD, c"/proc/self/ns/pid".as_ptr() as u64, stat, 0, 0, 0]) }
    }) {
        0 => pid_namespace_by_pidfd(),
        inode => inode,
    }
}

fn pid_namespace_by_pidfd() -> u64 {
    const PIDFD_GET_PID_NAMESPACE: u64 = 0xff05;
    // SAFETY: pidfd_open and ioctl make descriptors, which are closed here; fstat writes a `struct
    // stat`.
    unsafe {
        let process = syscall(434, [u64::from(getpid()), 0, 0, 0, 0, 0]);
        if process < 0 {
            return 0;
        }
        let namespace = syscall(16, [process as u64, PIDFD_GET_PID_NAMESPACE, 0, 0, 0, 0]);
        syscall(3, [process as u64, 0, 0, 0, 0, 0]);
        if namespace < 0 {
            return 0;
        }
        let found = inode(|stat| syscall(5, [namespace as u64, stat, 0, 0, 0, 0]));
        syscall(3, [namespace as u64, 0, 0, 0, 0, 0]);
        found
    }
}

/// Returns the inode that a call writes into a `struct stat` at an address; 0 when it fails.
fn inode(call: impl FnOnce(u64) -> i64) -> u64 {
    // 144 bytes on x86-64; the inode is the second word. Not cleared: the compiler would do that
    // with vector registers.
    let mut stat = MaybeUninit::<[u64; 18]>::uninit();
    if call(stat.as_mut_ptr() as u64) != 0 {
        return 0;
    }
    // SAFETY: the kernel wrote all of it.
    unsafe { stat.as_ptr().cast::<u64>().add(1).read() }
}

/// Lets others run.
pub(crate) fn sched_yield() {
    // SAFETY: sched_yield has no arguments.
    unsafe { syscall(24, [0; 6]) };
}

/// Sleeps for about `ns` nanoseconds (below one second).
pub(crate) fn sleep_ns(ns: u64) {
    #[cfg(test)]
    tests::SLEEPS.with(|n| n.set(n.get() + 1));
    let ts = [0u64, ns];
    // SAFETY: nanosleep reads the timespec, which lives until it returns.
    unsafe { syscall(35, [ts.as_ptr() as u64, 0, 0, 0, 0, 0]) };
}

/// Waits until every thread of the system has passed a full memory barrier; `false` when the kernel
/// offers no such thing.
pub(crate) fn membarrier_global() -> bool {
    // SAFETY: MEMBARRIER_CMD_GLOBAL (1) has no arguments.
    unsafe { syscall(324, [1, 0, 0, 0, 0, 0]) == 0 }
}

/// Makes every running thread of the processes that signed up pass a full memory barrier; `false`
/// when the kernel offers no such thing.
pub(crate) fn membarrier_expedited() -> bool {
    // SAFETY: MEMBARRIER_CMD_GLOBAL_EXPEDITED (2) has no arguments.
    unsafe { syscall(324, [2, 0, 0, 0, 0, 0]) == 0 }
}

/// Signs this process, and those it forks, up for [`membarrier_expedited`]; `false` when the kernel
/// offers no such thing.
pub(crate) fn membarrier_sign_up() -> bool {
    // SAFETY: MEMBARRIER_CMD_REGISTER_GLOBAL_EXPEDITED (4) has no arguments.
    unsafe { syscall(324, [4, 0, 0, 0, 0, 0]) == 0 }
}

/// Waits while the 32-bit word at `word` is `seen`, at most `ns` nanoseconds.
pub(crate) fn futex_wait(word: &std::sync::atomic::AtomicU32, seen: u32, ns: u64) {
    let ts = [ns / 1_000_000_000, ns % 1_000_000_000];
    // SAFETY: FUTEX_WAIT (0, shared) reads the word and the timespec.
    unsafe { syscall(202, [word.as_ptr() as u64, 0, u64::from(seen), ts.as_ptr() as u64, 0, 0]) };
}

/// Wakes everyone who waits on `word`, in any process.
pub(crate) fn futex_wake(word: &std::sync::atomic::AtomicU32) {
    // SAFETY: FUTEX_WAKE (1, shared) uses the address only.
    unsafe { syscall(202, [word.as_ptr() as u64, 1, i32::MAX as u64, 0, 0, 0]) };
}

/// Takes address space at exactly this place, without memory and without rights; `false` when
/// something lies there.
pub(crate) fn reserve(at: u64, len: u64) -> bool {
    const PRIVATE_ANONYMOUS_NORESERVE_NOREPLACE: u64 = 0x2 | 0x20 | 0x4000 | 0x10_0000;
    // SAFETY: replaces no mapping.
    let got =
        unsafe { syscall(9, [at, len, 0, PRIVATE_ANONYMOUS_NORESERVE_NOREPLACE, u64::MAX, 0]) };
    if got >= 0 && got as u64 != at {
        // Kernels before 4.17 take the address as a hint.
        // SAFETY: just mapped, and nobody knows it.
        unsafe { unmap(got as u64, len) };
    }
    got as u64 == at
}

/// Ends a mapping.
///
/// # Safety
/// The caller made it, and nobody uses it any more.
pub(crate) unsafe fn unmap(at: u64, len: u64) {
    // SAFETY: the caller's promise.
    unsafe { syscall(11, [at, len, 0, 0, 0, 0]) };
}

/// Maps the file of a shared mapping once more, from the page at `from` on, `len` bytes; `None`
/// when that is impossible.
pub(crate) fn map_again(from: u64, len: u64) -> Option<u64> {
    const MAYMOVE: u64 = 1;
    // SAFETY: an old size of 0 leaves the old mapping as it is.
    let got = unsafe { syscall(25, [from, 0, len, MAYMOVE, 0, 0]) };
    if (-4095..0).contains(&got) { None } else { Some(got as u64) }
}

/// Makes a mapping longer where it is; tells whether there was room.
///
/// # Safety
/// `at` and `old` are those of a mapping of the caller's.
pub(crate) unsafe fn lengthen(at: u64, old: u64, new: u64) -> bool {
    // SAFETY: without flags nothing moves and nothing is replaced.
    old == new || unsafe { syscall(25, [at, old, new, 0, 0, 0]) as u64 == at }
}

/// Moves a mapping to `to` and makes it longer; tells whether that was possible.
///
/// # Safety
/// Nobody uses the mapping, and the caller has [reserved](reserve) `new` bytes at `to`.
pub(crate) unsafe fn move_mapping(from: u64, old: u64, new: u64, to: u64) -> bool {
    const MAYMOVE_FIXED: u64 = 1 | 2;
    // SAFETY: the caller's promise.
    unsafe { syscall(25, [from, old, new, MAYMOVE_FIXED, to, 0]) as u64 == to }
}

/// Gives every page of a shared mapping memory without changing what is in it; `false` where there
/// is none.
///
/// # Safety
/// The range is mapped writable and begins at a page.
pub(crate) unsafe fn populate(base: *mut u8, len: usize) -> bool {
    const MADVISE: u64 = 28;
    const POPULATE_WRITE: u64 = 23;
    if is_closed() {
        // SAFETY: the caller's promise.
        return unsafe { touch(base, len) };
    }
    let mut tries = 0u32;
    loop {
        // SAFETY: MADV_POPULATE_WRITE faults pages in and changes none.
        match unsafe { syscall(MADVISE, [base as u64, len as u64, POPULATE_WRITE, 0, 0, 0]) } {
            0 => return true,
            // Interrupted, or the mapping changes at this moment.
            -4 | -11 | -16 if tries < 16 => tries = tries.wrapping_add(1),
            // Before Linux 5.14, or forbidden here.
            // SAFETY: the caller's promise.
            -22 | -1 | -38 => return unsafe { populate_by_page(base, len) },
            _ => return false,
        }
    }
}

/// As [`populate`], by an addition of zero that the kernel does: where a store would end in a
/// signal, it fails.
///
/// # Safety
/// As [`populate`].
unsafe fn populate_by_page(base: *mut u8, len: usize) -> bool {
    const FUTEX: u64 = 202;
    const WAKE_OP_PRIVATE: u64 = 5 | 128;
    const ADD: u64 = 1 << 28;
    let mut at = 0usize;
    while at < len {
        let word = base.wrapping_add(at) as u64;
        // SAFETY: FUTEX_WAKE_OP adds zero, atomically, to a word of the caller's range, and wakes
        // nobody.
        if unsafe { syscall(FUTEX, [word, WAKE_OP_PRIVATE, 0, 0, word, ADD]) } < 0 {
            return false;
        }
        at = at.wrapping_add(super::PAGE as usize);
    }
    true
}

/// As [`populate`], without system calls: where there is no memory, what guards the process against
/// `SIGBUS` has to do.
///
/// # Safety
/// As [`populate`].
unsafe fn touch(base: *mut u8, len: usize) -> bool {
    for at in (0..len).step_by(super::PAGE as usize) {
        // SAFETY: a byte of the caller's range. It is written to, whatever it is, and stays what it
        // is.
        let _ = unsafe { AtomicU8::from_ptr(base.wrapping_add(at)) }
            .compare_exchange(0, 0, Relaxed, Relaxed);
    }
    true
}

/// Tells whether no thread `tid` exists any more. A zombie still counts as existing; see
/// [`gone_or_zombie`].
pub(crate) fn gone(tid: u32) -> bool {
    // SAFETY: signal 0 only checks.
    tid != 0 && unsafe { syscall(200, [u64::from(tid), 0, 0, 0, 0, 0]) } == ESRCH
}

/// Tells whether thread `tid` of process `pid` is not there any more. A zombie still counts as
/// existing.
pub(crate) fn gone_from(pid: u32, tid: u32) -> bool {
    // SAFETY: signal 0 only checks.
    unsafe { syscall(234, [u64::from(pid), u64::from(tid), 0, 0, 0, 0]) == ESRCH }
}

/// Tells whether thread `tid` has ended, also when its parent has not yet taken note (state `Z` or
/// `X` in its stat file).
pub(crate) fn gone_or_zombie(tid: u32) -> bool {
    gone(tid) || zombie(tid)
}

/// Bytes on the stack that are not cleared first: the compiler would do that with vector registers.
struct Text<const N: usize> {
    bytes: [MaybeUninit<u8>; N],
    len: usize,
}

impl<const N: usize> Text<N> {
    fn new() -> Self {
        Self { bytes: [MaybeUninit::uninit(); N], len: 0 }
    }

    fn push(&mut self, b: u8) {
        if let Some(slot) = self.bytes.get_mut(self.len) {
            slot.write(b);
            self.len = self.len.wrapping_add(1);
        }
    }

    fn push_number(&mut self, v: u32) {
        let mut scale = 1_000_000_000u32;
        let mut begun = false;
        while scale > 0 {
            let digit = (v / scale) % 10;
            begun |= digit != 0 || scale == 1;
            if begun {
                self.push(b'0'.wrapping_add(digit as u8));
            }
            scale /= 10;
        }
    }

    fn get(&self, i: usize) -> u8 {
        // SAFETY: bytes below `len` were written, by `push` or by the kernel.
        if i < self.len { self.bytes.get(i).map_or(0, |b| unsafe { b.assume_init() }) } else { 0 }
    }
}

/// Reads the beginning of a file in `/proc/TID`, nothing when it cannot be read; `false` when the
/// thread is gone.
fn proc(tid: u32, file: &[u8], text: &mut Text<96>) -> bool {
    if is_closed() {
        return true;
    }
    let mut path = Text::<32>::new();
    b"/proc/".iter().for_each(|b| path.push(*b));
    path.push_number(tid);
    file.iter().for_each(|b| path.push(*b));
    path.push(0);
    // SAFETY: openat reads the terminated path; read writes at most 96 bytes of `text`; the
    // descriptor is ours.
    let got = unsafe {
        let fd = syscall(257, [AT_FDCWD, path.bytes.as_ptr() as u64, 0o2_000_000, 0, 0, 0]);
        if fd < 0 {
            return !(fd == -2 && gone(tid));
        }
        let got = syscall(0, [fd as u64, text.bytes.as_mut_ptr() as u64, 96, 0, 0, 0]);
        syscall(3, [fd as u64, 0, 0, 0, 0, 0]);
        got
    };
    text.len = if got > 0 { got as usize } else { 0 };
    true
}

/// Finds the letter for a thread's state, 0 where it cannot be read.
fn state(tid: u32) -> u8 {
    let mut text = Text::new();
    if !proc(tid, b"/stat", &mut text) {
        return b'X';
    }
    // "TID (comm) S …": comm may hold anything, the last closing parenthesis ends it.
    let mut state = 0u8;
    let mut i = 0usize;
    while i < text.len {
        if text.get(i) == b')' {
            state = text.get(i.wrapping_add(2));
        }
        i = i.wrapping_add(1);
    }
    state
}

/// An unreadable file is no proof of death.
fn zombie(tid: u32) -> bool {
    matches!(state(tid), b'Z' | b'X')
}

/// Finds how many nanoseconds a thread had a processor.
fn ran(tid: u32) -> Option<u64> {
    let mut text = Text::new();
    if !proc(tid, b"/schedstat", &mut text) {
        return None;
    }
    let mut ran = 0u64;
    let mut i = 0usize;
    while text.get(i).is_ascii_digit() {
        ran = ran.wrapping_mul(10).wrapping_add(u64::from(text.get(i).wrapping_sub(b'0')));
        i = i.wrapping_add(1);
    }
    if i > 0 { Some(ran) } else { None }
}

/// Whether a thread that others wait for gets on.
#[derive(Default)]
pub(crate) struct Patience {
    /// How long the thread had run when it was first looked at.
    began: Option<u64>,
    /// How long it had run at the last look, and looks since at which that was so and it slept.
    last: u64,
    still: u32,
}

impl Patience {
    /// What a thread may run while others wait: far longer than anybody holds a lock.
    const RUN_NS: u64 = 1_000_000_000;
    /// Looks, a tenth of a millisecond or more apart, at a thread that sleeps all the time: who
    /// waits for another lock wakes once in a millisecond, who is frozen never does.
    const STILL: u32 = 64;
    /// As [`Patience::STILL`], when it may wait for a page.
    const STILL_FOR_PAGE: u32 = 1_000;

    /// Tells whether a thread is ready to run, or in a page fault, and has run too little to say
    /// that it does not get on.
    pub(crate) fn is_due(&mut self, tid: u32) -> bool {
        if !matches!(state(tid), b'R' | b'D') {
            return false;
        }
        let Some(ran) = ran(tid) else { return false };
        let began = *self.began.get_or_insert(ran);
        ran.wrapping_sub(began) < Self::RUN_NS
    }

    /// Tells, of a thread looked at again and again, whether it stands: stopped, traced or frozen.
    pub(crate) fn stands(&mut self, tid: u32) -> bool {
        let limit = match state(tid) {
            b'T' | b't' => return true,
            b'S' => Self::STILL,
            b'D' => Self::STILL_FOR_PAGE,
            _ => u32::MAX,
        };
        match ran(tid) {
            Some(ran) if ran == self.last && limit < u32::MAX => {
                self.still = self.still.wrapping_add(1)
            }
            ran => (self.last, self.still) = (ran.unwrap_or(u64::MAX), 0),
        }
        self.still >= limit
    }
}

/// Tells whether a thread is about to get on: it has a processor, or waits for one.
pub(crate) fn is_ready(tid: u32) -> bool {
    state(tid) == b'R'
}

#[cfg(test)]
pub(super) mod tests {
    use super::*;

    thread_local! {
        /// Sleeps of this thread.
        pub(in super::super) static SLEEPS: std::cell::Cell<u32> = const { std::cell::Cell::new(0) };
    }

    /// Waits until a process is in a state.
    pub(in super::super) fn wait_for_state(pid: u32, letter: u8) {
        while state(pid) != letter {
            std::thread::yield_now();
        }
    }

    #[test]
    fn the_living_the_dead_and_the_unburied_are_told_apart() {
        assert!(!gone_or_zombie(gettid()));
        assert!(!gone_from(getpid(), gettid()));
        assert!(gone_from(1, gettid()), "thread of another process");
        let mut child = std::process::Command::new("true").spawn().expect("spawns");
        while !gone_or_zombie(child.id()) {
            std::thread::yield_now();
        }
        assert!(!gone(child.id()), "not yet waited for");
        child.wait().expect("waits");
        assert!(gone(child.id()));
    }

    #[test]
    fn pages_get_memory_and_keep_what_is_in_them() {
        let file = std::fs::File::options()
            .read(true)
            .write(true)
            .create(true)
            .truncate(true)
            .open("/dev/shm/skep-sys-populate")
            .expect("tmpfs");
        std::fs::remove_file("/dev/shm/skep-sys-populate").expect("ours");
        file.set_len(8 * 4096).expect("room");
        for (name, give) in [
            ("madvise", populate as unsafe fn(*mut u8, usize) -> bool),
            ("futex", populate_by_page),
            ("touched", touch),
        ] {
            let blocks = || rustix::fs::fstat(&file).expect("open").st_blocks;
            rustix::fs::fallocate(
                &file,
                rustix::fs::FallocateFlags::PUNCH_HOLE | rustix::fs::FallocateFlags::KEEP_SIZE,
                0,
                8 * 4096,
            )
            .expect("tmpfs has holes");
            let memory = super::super::mapping::Mapping::file(
                std::os::fd::AsFd::as_fd(&file),
                0,
                8 * 4096,
                None,
                crate::shm::Access::ReadWrite,
            )
            .expect("maps");
            let window = memory.view();
            let word = window.word(4096).expect("inside");
            word.store(77, Relaxed);
            assert_eq!(blocks(), 8, "{name}: one page");
            // SAFETY: all these pages are mapped writable.
            let give =
                |at, pages: usize| unsafe { give(window.at(at, 0).expect("inside"), pages * 4096) };
            assert!(give(4096, 3), "{name}");
            assert_eq!((blocks(), word.load(Relaxed)), (24, 77), "{name}");
            // Past the end of the file a store is a signal.
            if name == "touched" {
                continue;
            }
            file.set_len(4 * 4096).expect("cuts");
            assert!(!give(0, 8), "{name}");
            file.set_len(8 * 4096).expect("room");
        }
    }

    #[test]
    fn who_is_ready_to_run_is_waited_for_until_it_has_run_long() {
        use std::sync::atomic::{AtomicBool, AtomicU32, Ordering::Relaxed};
        let (tid, over) = (AtomicU32::new(0), AtomicBool::new(false));
        std::thread::scope(|s| {
            let _over = skep_testkit::run::SetOnDrop(&over);
            s.spawn(|| {
                tid.store(gettid(), Relaxed);
                while !over.load(Relaxed) {
                    std::hint::spin_loop();
                }
            });
            while tid.load(Relaxed) == 0 {
                std::thread::yield_now();
            }
            let (mut patience, tid) = (Patience::default(), tid.load(Relaxed));
            let began = ran(tid).expect("readable");
            assert!(patience.is_due(tid));
            while patience.is_due(tid) {
                std::thread::yield_now();
            }
            assert!(ran(tid).expect("readable") - began >= Patience::RUN_NS);
        });
        let mut sleeper = std::process::Command::new("sleep").arg("100").spawn().expect("spawns");
        while state(sleeper.id()) != b'S' {
            std::thread::yield_now();
        }
        assert!(!Patience::default().is_due(sleeper.id()));
        sleeper.kill().expect("ours");
        sleeper.wait().expect("waits");
        assert!(!Patience::default().is_due(sleeper.id()));
    }
}
