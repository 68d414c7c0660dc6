//! What the kernel hands to a signal handler.

use crate::sys;

pub(crate) const SI_QUEUE: i32 = -1;

pub(crate) const SI_KERNEL: i32 = 0x80;

pub(crate) const SI_TKILL: i32 = -6;

/// The beginning of `siginfo_t`.
#[repr(C)]
pub(crate) struct Info {
    signal: i32,
    errno: i32,
    pub(crate) code: i32,
    _pad: i32,
    pub(crate) pid: i32,
    uid: u32,
    pub(crate) value: u64,
}

impl Info {
    /// What [`live`] sends to a thread that it wants to stop.
    pub(crate) fn stop_request(signal: i32, token: u64) -> [u64; 16] {
        let mut raw = [0; 16];
        raw[0] = signal as u32 as u64;
        raw[1] = SI_QUEUE as u32 as u64;
        raw[2] = u64::from(sys::getpid());
        raw[3] = token;
        raw
    }
}

/// The part of `ucontext_t` that handlers read and change.
#[repr(C)]
pub(crate) struct Context {
    flags: u64,
    link: u64,
    stack: [u64; 3],
    /// r8–r15, rdi, rsi, rbp, rbx, rdx, rax, rcx, rsp, rip, …
    pub(crate) registers: [u64; 32],
    /// The signals that were blocked when this one came.
    pub(crate) mask: u64,
}

pub(crate) const RSP: usize = 15;

pub(crate) const RIP: usize = 16;

/// The processor's error code of a fault.
pub(crate) const ERROR: usize = 19;
