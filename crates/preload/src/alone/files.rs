//! How the agent's thread gets what it has open: by itself, so that it can close all of it again. Where it
//! can, it does so in a descriptor table of its own.
//!
//! It makes a pair of sockets, says which of them is for `skep`, and waits for a message with three
//! descriptors. If `skep` has been killed by then none comes, and both are closed after a while.

use std::sync::atomic::{AtomicI32, Ordering::SeqCst};

use skep_runtime::live::{self, PAIR_PATIENCE};
use skep_sys::own_file::OwnFile;
use skep_sys::syscall;

use super::libc::OpenFile;
use super::{IN, close, poll, send};

const SOCKETPAIR: u64 = 53;
const RECVMSG: u64 = 47;
const UNIX: u64 = 1;
/// `SOCK_SEQPACKET`, closed on `exec`.
const MESSAGES: u64 = 5 | 0x8_0000;
/// Descriptors that come are closed on `exec`.
const CMSG_CLOEXEC: u64 = 0x4000_0000;

/// How many come: the agent's end of the socket to `skep`, the skep directory, and `skep`'s `/proc`.
const FILES: usize = 3;

/// Gives the running thread a descriptor table of its own, in which nothing is open: what the agent opens is
/// no file of the program's, which does not see it either; and what the program closes is closed. Returns
/// the thread's name in `/proc`, under which threads of the program find its files.
///
/// Nothing has changed where that cannot be: before Linux 5.9, or where a filter refuses it.
pub(super) fn separate() -> Option<ThreadName> {
    const CLOSE_RANGE: u64 = 436;
    const UNSHARE: u64 = 2;
    let mut name = ThreadName { bytes: [0; OpenFile::NAME], len: 0 };
    let (link, at) = (c"/proc/thread-self".as_ptr() as u64, name.bytes.as_mut_ptr() as u64);
    // SAFETY: the kernel writes the name; the table that the process's other threads have stays.
    unsafe {
        let len = syscall::call4(syscall::READLINK, link, at, name.bytes.len() as u64, 0);
        // As long as all that there is room for it may be longer.
        name.len = usize::try_from(len).ok().filter(|len| (1..name.bytes.len()).contains(len))?;
        (syscall::call4(CLOSE_RANGE, 0, u32::MAX.into(), UNSHARE, 0) == 0).then_some(name)
    }
}

/// A thread's name in `/proc`: of the process, and of the thread.
pub(super) struct ThreadName {
    bytes: [u8; OpenFile::NAME],
    len: usize,
}

impl ThreadName {
    /// The path of an open file of that thread.
    pub(super) fn file(&self, fd: u32) -> OpenFile {
        OpenFile::new(&self.bytes[..self.len], fd)
    }
}

/// Returns these.
pub(super) fn receive(told: &AtomicI32) -> Option<[i32; FILES]> {
    let mut pair = [-1_i32; 2];
    // SAFETY: the kernel writes two numbers.
    let made =
        unsafe { syscall::call4(SOCKETPAIR, UNIX, MESSAGES, 0, pair.as_mut_ptr() as u64) } as i64;
    let [ours, theirs] = pair;
    if made < 0 {
        told.store(made as i32, SeqCst);
        return None;
    }
    told.store(theirs + 1, SeqCst);
    let (mine, other) = (OwnFile::none(), OwnFile::none());
    mine.set_as_it_is(ours);
    other.set_as_it_is(theirs);
    let mut fds = [ours as u32 as u64 | IN << 32];
    let ready = poll(&mut fds, PAIR_PATIENCE) > 0;
    let files = if ready { mine.number().and_then(message) } else { None };
    // Whoever has fetched it by then looks here once more: the number may be another file's soon.
    told.store(0, SeqCst);
    other.close();
    if ready
        && files.is_none()
        && let Some(socket) = mine.number()
    {
        send(socket, &live::answer_to_bytes(&Err("it can open no more files".into())));
    }
    mine.close();
    files
}

/// Reads the message.
fn message(socket: u64) -> Option<[i32; FILES]> {
    /// `struct cmsghdr`: length; level and type.
    const HEAD: u64 = 16;
    /// `SOL_SOCKET`, `SCM_RIGHTS`.
    const RIGHTS: u64 = 1 | 1 << 32;
    let mut byte = 0_u64;
    let vector = [&raw mut byte as u64, 1];
    // The descriptors follow, two in a word.
    let mut control = [0_u64; 2 + FILES.div_ceil(2)];
    let control_at = control.as_mut_ptr() as u64;
    // `struct msghdr`: name, its length, vectors, how many, control, its length, flags.
    let mut header = [0, 0, vector.as_ptr() as u64, 1, control_at, size_of_val(&control) as u64, 0];
    // SAFETY: the kernel writes the byte, the control message and the header.
    let got =
        unsafe { syscall::call4(RECVMSG, socket, header.as_mut_ptr() as u64, CMSG_CLOEXEC, 0) }
            as i64;
    if got <= 0 || control[1] != RIGHTS {
        return None;
    }
    let files = std::array::from_fn(|n| (control[2 + n / 2] >> (n % 2 * 32)) as u32 as i32);
    // There may be numbers for some only.
    let came = control[0].saturating_sub(HEAD) as usize / size_of::<i32>();
    if came < FILES {
        files.iter().take(came).for_each(|fd| close(*fd));
        return None;
    }
    Some(files)
}
