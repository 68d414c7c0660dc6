//! Signals as a queue: handlers only note what came and wake the one who waits.

use std::io;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};
use std::sync::atomic::{AtomicBool, AtomicI32, AtomicU32, AtomicUsize, Ordering::Relaxed};

use rustix::event::{EventfdFlags, eventfd};

use crate::failure::{Context, Failure, Result};
use crate::inherited;

/// Those that mean: come to an end.
const ENDING: [i32; 4] = [libc::SIGINT, libc::SIGQUIT, libc::SIGTERM, libc::SIGHUP];

/// Slots for signals not yet taken; when more come at once the rest are as good as the first ones.
const ROOM: usize = 16;
/// Set in a slot when a process, not the terminal, sent the signal.
const SENT: u32 = 1 << 8;

static QUEUE: [AtomicU32; ROOM] = [const { AtomicU32::new(0) }; ROOM];
static NEXT: AtomicUsize = AtomicUsize::new(0);
static WAKE: AtomicI32 = AtomicI32::new(-1);
/// What is noted before [`Signals::install`] counts: [`note_early`].
static EARLY: AtomicBool = AtomicBool::new(false);

/// A signal that asks this process to end.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Signal {
    /// Its number.
    pub number: i32,
    /// A process sent it to us alone; signals of the terminal reach the command as well.
    pub sent: bool,
}

impl Signal {
    /// The same for `kill`.
    pub fn named(self) -> Option<rustix::process::Signal> {
        rustix::process::Signal::from_named_raw(self.number)
    }
}

extern "C" fn note(number: i32, info: *mut libc::siginfo_t, _: *mut libc::c_void) {
    // SAFETY: the kernel passes a valid structure to handlers with SA_SIGINFO.
    let sent = unsafe { (*info).si_code } <= 0;
    if number != libc::SIGCHLD
        && let Some(slot) = QUEUE.get(NEXT.fetch_add(1, Relaxed))
    {
        slot.store(number as u32 | if sent { SENT } else { 0 }, Relaxed);
    }
    let fd = WAKE.load(Relaxed);
    if fd >= 0 {
        // SAFETY: the descriptor stays open while handlers are installed. A raw system call, so
        // errno is not touched.
        let fd = unsafe { BorrowedFd::borrow_raw(fd) };
        let _ = rustix::io::write(fd, &1_u64.to_ne_bytes());
    }
}

/// Handlers for the ending signals and for the end of a child. Dropped, the old actions are back, but the
/// first ending signal does nothing: what has ended by itself is reported, and not lost to a Ctrl-C that
/// comes a moment later.
#[derive(Debug)]
pub struct Signals {
    wake: OwnedFd,
    taken: usize,
}

impl Signals {
    /// Installs the handlers. Signals that were ignored when this process started stay ignored.
    /// Only one may exist.
    pub fn install() -> io::Result<Self> {
        let wake = eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK)?;
        if EARLY.swap(false, Relaxed) {
            // SAFETY: the default action runs no code.
            unsafe {
                libc::alarm(0);
                libc::signal(libc::SIGALRM, libc::SIG_DFL);
            }
        } else {
            NEXT.store(0, Relaxed);
        }
        WAKE.store(wake.as_raw_fd(), Relaxed);
        let signals = Self { wake, taken: 0 };
        for number in ending().chain([libc::SIGCHLD]) {
            // SAFETY:
            // * the structure is plain data and every field that counts is set
            // * the handler uses atomics and one system call only
            let done = unsafe {
                let mut action: libc::sigaction = std::mem::zeroed();
                action.sa_sigaction = note as *const () as usize;
                action.sa_flags = libc::SA_SIGINFO | libc::SA_RESTART | libc::SA_NOCLDSTOP;
                libc::sigemptyset(&raw mut action.sa_mask);
                libc::sigaction(number, &raw const action, std::ptr::null_mut())
            };
            if done != 0 {
                return Err(io::Error::last_os_error());
            }
        }
        Ok(signals)
    }

    /// As [`install`](Self::install), but fails when a signal has come already: nothing is touched then.
    pub fn in_time() -> Result<Self> {
        let signals = Self::install().context("cannot handle signals")?;
        match signals.pending() {
            None => Ok(signals),
            Some(number) => {
                let status = u8::try_from(128 + number).unwrap_or(255);
                Err(Failure { status, ..Failure::failed(TOO_EARLY) })
            }
        }
    }

    /// Becomes readable when a signal came.
    pub fn fd(&self) -> BorrowedFd<'_> {
        self.wake.as_fd()
    }

    /// Forgets that something came; to be called before looking what.
    pub fn clear(&self) {
        let _ = rustix::io::read(&self.wake, &mut [0_u8; 8]);
    }

    /// Tells whether there is an ending signal that was not taken.
    pub fn is_pending(&self) -> bool {
        self.pending().is_some()
    }

    /// Its number.
    pub fn pending(&self) -> Option<i32> {
        let next = QUEUE.get(self.taken)?.load(Relaxed);
        Some((next & 0xff) as i32).filter(|number| *number != 0)
    }

    /// Takes the next ending signal.
    pub fn take(&mut self) -> Option<Signal> {
        let slot = QUEUE.get(self.taken)?.swap(0, Relaxed);
        if slot == 0 {
            return None;
        }
        self.taken += 1;
        Some(Signal { number: (slot & 0xff) as i32, sent: slot & SENT != 0 })
    }
}

impl Drop for Signals {
    fn drop(&mut self) {
        extern "C" fn pass_once(_: i32) {
            for number in ending() {
                // SAFETY: the default action runs no code.
                unsafe { libc::signal(number, libc::SIG_DFL) };
            }
        }
        for number in ending() {
            // SAFETY: the handler makes system calls only.
            unsafe { libc::signal(number, pass_once as *const () as usize) };
        }
        // SAFETY: the default action runs no code.
        unsafe { libc::signal(libc::SIGCHLD, libc::SIG_DFL) };
        WAKE.store(-1, Relaxed);
    }
}

/// Ending signals that were not ignored when this process started.
fn ending() -> impl Iterator<Item = i32> {
    ENDING.into_iter().filter(|number| !inherited::ignored(*number))
}

/// What is said when a signal ends a command before it has attached to any process.
const TOO_EARLY: &str = "interrupted before it was attached to anything";

/// How long what is done before [`Signals::install`] may go on after a signal, in seconds.
const EARLY_PATIENCE: u32 = 2;

/// Notes ending signals from now on until [`Signals::install`], whose queue has them then: what was made
/// is taken away in order. If that comes too late, or another signal does, this process ends at once.
pub fn note_early() {
    extern "C" fn note_one(number: i32, info: *mut libc::siginfo_t, context: *mut libc::c_void) {
        if number == libc::SIGALRM || NEXT.load(Relaxed) > 0 {
            let first = QUEUE.iter().map(|slot| slot.load(Relaxed) & 0xff).find(|n| *n != 0);
            let text = [b"error: ", TOO_EARLY.as_bytes(), b"\n"];
            for part in text {
                let _ = rustix::io::write(rustix::stdio::stderr(), part);
            }
            // SAFETY: ends this process, and runs nothing of it.
            unsafe { libc::_exit(128 + first.map_or(number, |n| n as i32)) };
        }
        note(number, info, context);
        // SAFETY: asks for a signal.
        unsafe { libc::alarm(EARLY_PATIENCE) };
    }
    NEXT.store(0, Relaxed);
    EARLY.store(true, Relaxed);
    for number in ending().chain([libc::SIGALRM]) {
        // SAFETY:
        // * the structure is plain data and every field that counts is set
        // * the handler uses atomics and system calls only
        unsafe {
            let mut action: libc::sigaction = std::mem::zeroed();
            action.sa_sigaction = note_one as *const () as usize;
            action.sa_flags = libc::SA_SIGINFO | libc::SA_RESTART;
            libc::sigfillset(&raw mut action.sa_mask);
            libc::sigaction(number, &raw const action, std::ptr::null_mut());
        }
    }
}

/// Makes a file that becomes larger than allowed (`ulimit -f`) an error of the call that writes,
/// instead of the end of this process. A command that is started has the default action again.
pub fn survive_large_files() {
    extern "C" fn nothing(_: i32) {}
    if inherited::ignored(libc::SIGXFSZ) {
        return;
    }
    // SAFETY: the handler does nothing.
    unsafe { libc::signal(libc::SIGXFSZ, nothing as *const () as usize) };
}

/// Blocks the ending signals while a child is made, so that none is swallowed by our handlers
/// between fork and exec.
#[derive(Debug)]
pub struct Blocked {
    old: Mask,
}

/// A signal mask.
#[derive(Clone, Copy)]
pub struct Mask(libc::sigset_t);

impl std::fmt::Debug for Mask {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Mask")
    }
}

impl Mask {
    /// Makes this the calling thread's mask. Only a system call: may be called between fork and
    /// exec.
    pub fn set(&self) -> io::Result<()> {
        // SAFETY: the set was filled in by the same call.
        match unsafe {
            libc::pthread_sigmask(libc::SIG_SETMASK, &raw const self.0, std::ptr::null_mut())
        } {
            0 => Ok(()),
            n => Err(io::Error::from_raw_os_error(n)),
        }
    }
}

impl Blocked {
    /// Blocks.
    pub fn new() -> io::Result<Self> {
        // SAFETY: both sets are plain data; the first is filled before it is read, the second is
        // written by the call.
        unsafe {
            let mut set: libc::sigset_t = std::mem::zeroed();
            libc::sigemptyset(&raw mut set);
            for number in ENDING {
                libc::sigaddset(&raw mut set, number);
            }
            let mut old: libc::sigset_t = std::mem::zeroed();
            match libc::pthread_sigmask(libc::SIG_BLOCK, &raw const set, &raw mut old) {
                0 => Ok(Self { old: Mask(old) }),
                n => Err(io::Error::from_raw_os_error(n)),
            }
        }
    }

    /// The mask before, which the child gets.
    pub fn old(&self) -> Mask {
        self.old
    }
}

impl Drop for Blocked {
    fn drop(&mut self) {
        drop(self.old.set());
    }
}
