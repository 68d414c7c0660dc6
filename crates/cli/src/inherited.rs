//! What this process was given by its parent, and passes on to the command it starts.
//!
//! Rust's start-up code ignores `SIGPIPE` and opens `/dev/null` where a standard stream is closed;
//! `nohup` and shells without job control ignore signals on purpose. The command must find all of
//! that as if `skep` were not there, so it is written down before `main`, in an initializer that
//! the dynamic linker runs.

use std::io;
use std::sync::atomic::{AtomicU32, Ordering::Relaxed};

/// Signals whose handling this process changes for itself.
pub const CHANGED: [i32; 7] = [
    libc::SIGINT,
    libc::SIGQUIT,
    libc::SIGTERM,
    libc::SIGHUP,
    libc::SIGPIPE,
    libc::SIGCHLD,
    libc::SIGXFSZ,
];

/// Bit `n`: signal `n` was ignored at the start.
static IGNORED: AtomicU32 = AtomicU32::new(0);
/// Bit `n`: descriptor `n` was closed at the start.
static CLOSED: AtomicU32 = AtomicU32::new(0);

#[used]
#[unsafe(link_section = ".init_array")]
static RECORD: extern "C" fn() = record;

extern "C" fn record() {
    let mut ignored = 0;
    for signal in CHANGED {
        // SAFETY: the structure is plain data, and the call only writes to it.
        let handler = unsafe {
            let mut old: libc::sigaction = std::mem::zeroed();
            libc::sigaction(signal, std::ptr::null(), &raw mut old);
            old.sa_sigaction
        };
        ignored |= u32::from(handler == libc::SIG_IGN) << signal;
    }
    IGNORED.store(ignored, Relaxed);
    let mut closed = 0;
    for fd in 0..3 {
        // SAFETY: asks for the flags of a descriptor that need not exist.
        closed |= u32::from(unsafe { libc::fcntl(fd, libc::F_GETFD) } < 0) << fd;
    }
    CLOSED.store(closed, Relaxed);
}

/// Tells whether a signal was ignored when this process started.
pub fn ignored(signal: i32) -> bool {
    IGNORED.load(Relaxed) >> signal & 1 != 0
}

/// Puts the calling process back into the inherited state. For a forked child before it executes
/// the command: only system calls, nothing that takes a lock.
pub fn restore() -> io::Result<()> {
    for signal in CHANGED {
        let action = if ignored(signal) { libc::SIG_IGN } else { libc::SIG_DFL };
        // SAFETY: neither action runs code.
        if unsafe { libc::signal(signal, action) } == libc::SIG_ERR {
            return Err(io::Error::last_os_error());
        }
    }
    for fd in 0..3 {
        if CLOSED.load(Relaxed) >> fd & 1 != 0 {
            // SAFETY: the descriptor was opened by start-up code in place of a closed one; nothing
            // of ours uses it.
            unsafe { libc::close(fd) };
        }
    }
    Ok(())
}
