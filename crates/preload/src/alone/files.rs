//! How the agent's thread gets what it has open: by itself, so that it can close all of it again.
//!
//! It makes a pair of sockets, says which of them is for `skep`, and waits for a message with two
//! descriptors. If `skep` has been killed by then none comes, and both are closed after a while.

use std::sync::atomic::{AtomicI32, Ordering::SeqCst};

use skep_runtime::live::PAIR_PATIENCE;
use skep_sys::syscall;

use super::{IN, POLL, answer, close};

const SOCKETPAIR: u64 = 53;
const RECVMSG: u64 = 47;
const UNIX: u64 = 1;
/// `SOCK_SEQPACKET`, closed on `exec`.
const MESSAGES: u64 = 5 | 0x8_0000;
/// Descriptors that come are closed on `exec`.
const CMSG_CLOEXEC: u64 = 0x4000_0000;

/// Returns the agent's end of the socket to `skep`, and the skep directory.
pub(super) fn receive(told: &AtomicI32) -> Option<[i32; 2]> {
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
    let mut fds = ours as u32 as u64 | IN << 32;
    // SAFETY: the kernel writes into the struct, which is one word.
    let ready = unsafe { syscall::call4(POLL, &raw mut fds as u64, 1, PAIR_PATIENCE, 0) } as i64;
    let files = if ready > 0 { message(ours) } else { None };
    // Whoever has fetched it by then looks here once more: the number may be another file's soon.
    told.store(0, SeqCst);
    close(theirs);
    if ready > 0 && files.is_none() {
        answer(ours, &Err("it can open no more files".into()));
    }
    close(ours);
    files
}

/// Reads the message.
fn message(socket: i32) -> Option<[i32; 2]> {
    let mut byte = 0_u64;
    let vector = [&raw mut byte as u64, 1];
    // `struct cmsghdr`: length; level and type; then the descriptors.
    let mut control = [0_u64; 3];
    let control_at = control.as_mut_ptr() as u64;
    // `struct msghdr`: name, its length, vectors, how many, control, its length, flags.
    let mut header = [0, 0, vector.as_ptr() as u64, 1, control_at, size_of_val(&control) as u64, 0];
    // SAFETY: the kernel writes the byte, the control message and the header.
    let got = unsafe {
        syscall::call4(RECVMSG, socket as u64, header.as_mut_ptr() as u64, CMSG_CLOEXEC, 0)
    } as i64;
    let [len, kind, both] = control;
    let files = [both as u32 as i32, (both >> 32) as i32];
    /// `SOL_SOCKET`, `SCM_RIGHTS`.
    const RIGHTS: u64 = 1 | 1 << 32;
    match (kind == RIGHTS && got > 0, len) {
        (true, 24) => Some(files),
        // There was a number for one only.
        (true, 20) => {
            close(files[0]);
            None
        }
        _ => None,
    }
}
