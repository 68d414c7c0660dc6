//! The agent's own thread in a process that it was put into while it ran: how threads of the program wake
//! it, and have it end.
//!
//! Where it has a descriptor table of its own, they cannot write to a file of it. They send it a signal
//! instead, which it blocks for ever, and waits for by a descriptor.

use std::sync::atomic::Ordering::SeqCst;
use std::sync::atomic::{AtomicBool, AtomicU32};
use std::time::{Duration, Instant};

use skep_sys::own_file::OwnFile;
use skep_sys::syscall::{self, GETPID};

const SENDTO: u64 = 44;
const RECVFROM: u64 = 45;
const SOCKETPAIR: u64 = 53;
const FUTEX: u64 = 202;
const SET_TID_ADDRESS: u64 = 218;
const TGKILL: u64 = 234;
const SIGNALFD4: u64 = 289;
const UNIX: u64 = 1;
/// `SOCK_DGRAM`, closed on `exec`.
const DATAGRAMS: u64 = 2 | 0x8_0000;

/// `SIGSTKFLT`, which nobody sends: what tells of a signal tells also of one that the whole process was sent,
/// which is the program's, and so must not be taken from it.
const SIGNAL: u64 = 16;

/// Two sockets: the thread reads from the first, threads of the program write to the second. Or one file
/// that tells of the signal.
static NEWS: [OwnFile; 2] = [OwnFile::none(), OwnFile::none()];
/// Whether it is that one.
static BY_SIGNAL: AtomicBool = AtomicBool::new(false);
/// Whether there is news; the signal may be lost, as when the program says that it ignores such.
static IS_NEWS: AtomicBool = AtomicBool::new(false);
/// The thread, as the kernel has it until it ends; and the process that it is of.
static THREAD: [AtomicU32; 2] = [const { AtomicU32::new(0) }; 2];
/// Whether it is to end at once.
static ENDS: AtomicBool = AtomicBool::new(false);

/// Makes what the calling thread is woken by, and notes that it is the agent's; tells whether there was
/// room for the files. `own_table`: its descriptors are its own.
pub(crate) fn begin(own_table: bool) -> bool {
    let made = if own_table { watch_signal() } else { make_pair() };
    if !made {
        return false;
    }
    BY_SIGNAL.store(own_table, SeqCst);
    IS_NEWS.store(false, SeqCst);
    ENDS.store(false, SeqCst);
    // SAFETY: the kernel clears the word when this thread ends, and wakes who waits for that.
    unsafe {
        THREAD[1].store(syscall::call4(GETPID, 0, 0, 0, 0) as u32, SeqCst);
        let at = THREAD[0].as_ptr() as u64;
        THREAD[0].store(syscall::call4(SET_TID_ADDRESS, at, 0, 0, 0) as u32, SeqCst);
    }
    true
}

fn make_pair() -> bool {
    let mut pair = [-1_i32; 2];
    // SAFETY: the kernel writes two numbers.
    let made =
        unsafe { syscall::call4(SOCKETPAIR, UNIX, DATAGRAMS, 0, pair.as_mut_ptr() as u64) as i64 };
    if made >= 0 {
        NEWS.iter().zip(pair).for_each(|(file, fd)| file.set(fd));
    }
    made >= 0
}

/// Opens what tells of the signal, which this thread blocks.
fn watch_signal() -> bool {
    const CLOEXEC_NONBLOCK: u64 = 0x8_0800;
    let only = 1_u64 << (SIGNAL - 1);
    // SAFETY: the kernel reads eight bytes, and makes a descriptor.
    let fd = unsafe {
        syscall::call4(SIGNALFD4, -1_i64 as u64, &raw const only as u64, 8, CLOEXEC_NONBLOCK) as i64
    };
    if fd >= 0 {
        NEWS[0].set_as_it_is(fd as i32);
    }
    fd >= 0
}

/// Takes what has woken the thread; tells whether there was anything.
pub(crate) fn has_news() -> bool {
    const DONTWAIT: u64 = 0x40;
    if let Some(news) = NEWS[0].number() {
        let mut bytes = [0_u64; 16];
        let (at, len) = (bytes.as_mut_ptr() as u64, size_of_val(&bytes) as u64);
        // SAFETY: reads into the words; neither waits.
        let got = unsafe {
            match BY_SIGNAL.load(SeqCst) {
                true => syscall::call4(syscall::READ, news, at, len, 0),
                false => syscall::call6(RECVFROM, news, at, len, DONTWAIT, 0, 0),
            }
        } as i64;
        if got > 0 {
            IS_NEWS.store(true, SeqCst);
        }
    }
    IS_NEWS.swap(false, SeqCst)
}

/// What can be read from when the thread was woken.
pub(crate) fn news() -> &'static OwnFile {
    &NEWS[0]
}

/// Closes the files.
pub(crate) fn close() {
    NEWS.iter().for_each(OwnFile::close);
}

/// Tells whether it is to end at once.
pub(crate) fn ends() -> bool {
    ENDS.load(SeqCst)
}

/// Tells whether the calling thread's process has such a thread. Children have none.
pub(crate) fn is_there() -> bool {
    // SAFETY: takes no argument.
    let pid = unsafe { syscall::call4(GETPID, 0, 0, 0, 0) } as u32;
    THREAD[0].load(SeqCst) != 0 && THREAD[1].load(SeqCst) == pid
}

/// Has the thread end without taking any hook out, and waits for that: for a thread of the program's.
pub(crate) fn end() {
    /// It may be about to attach to all functions there are.
    const LONGEST: Duration = Duration::from_secs(60);
    const WAIT: u64 = 0;
    ENDS.store(true, SeqCst);
    wake();
    let begin = Instant::now();
    loop {
        let tid = THREAD[0].load(SeqCst);
        if tid == 0 || begin.elapsed() > LONGEST {
            return;
        }
        let time = [0, 10_000_000_u64];
        let (at, time) = (THREAD[0].as_ptr() as u64, time.as_ptr() as u64);
        // SAFETY: waits at most so long, while the word is the thread's id.
        unsafe { syscall::call4(FUTEX, at, WAIT, tid.into(), time) };
    }
}

/// Wakes the thread. It may be about to look, and then nobody misses what has no room.
pub(crate) fn wake() {
    const DONTWAIT_NOSIGNAL: u64 = 0x40 | 0x4000;
    if BY_SIGNAL.load(SeqCst) {
        IS_NEWS.store(true, SeqCst);
        if is_there() {
            let [tid, pid] = [0, 1].map(|i| u64::from(THREAD[i].load(SeqCst)));
            // SAFETY: the thread blocks the signal; without one the kernel refuses.
            unsafe { syscall::call4(TGKILL, pid, tid, SIGNAL, 0) };
        }
        return;
    }
    let Some(news) = NEWS[1].number() else { return };
    let one = 1_u64;
    // SAFETY: sends a message.
    unsafe { syscall::call4(SENDTO, news, &raw const one as u64, 8, DONTWAIT_NOSIGNAL) };
}
