//! The agent in a process that runs already, whose loader and C library know nothing of it: mapped
//! and relocated by `skep`, on a thread of its own, with a small C library of its own ([`libc`]).
//!
//! None of the library's constructors has run. The thread has a stack, storage and no more; all its
//! signals are blocked. It takes orders ([`live`]), and hooks functions as a program does that
//! attaches to itself. When `skep` is gone the socket ends: then it takes all hooks out, closes what
//! it has open, and ends. The library stays mapped, and can begin anew.

mod files;
mod libc;
mod tracer;

use std::arch::asm;
use std::ffi::{CStr, OsStr};
use std::os::unix::ffi::OsStrExt;
use std::sync::atomic::Ordering::{Relaxed, Release, SeqCst};
use std::sync::atomic::{AtomicI32, AtomicU32, AtomicU64};

use skep_attach::{Area, Bypassed};
use skep_runtime::live::{self, ANSWER, Answer, Config, Edit, Order};
use skep_runtime::start;
use skep_sys::{syscall, thread_words};

/// Written by `skep` before the thread begins.
#[unsafe(export_name = "skep_alone_config")]
static CONFIG: [AtomicU32; Config::WORDS] = [const { AtomicU32::new(0) }; Config::WORDS];

/// Of threads that have had no event: `skep` gives them its end for their GS base.
#[unsafe(export_name = "skep_alone_area")]
static AREA: Area = Area::new();

/// The places where jumps stay, for `skep` to look at.
#[unsafe(export_name = "skep_alone_left")]
static LEFT: AtomicU64 = AtomicU64::new(0);

/// Where `skep` finds its end of the first socket.
#[unsafe(export_name = "skep_alone_pair")]
static PAIR: AtomicI32 = AtomicI32::new(0);

/// Not 0 while this thread does more than waiting.
#[unsafe(export_name = "skep_alone_busy")]
static BUSY: AtomicU32 = AtomicU32::new(0);

/// The agent's end of the socket.
static SOCKET: AtomicI32 = AtomicI32::new(-1);

/// What the thread begins with.
#[unsafe(export_name = "skep_alone_start")]
extern "C" fn start(_: u64) -> ! {
    BUSY.store(1, Relaxed);
    // In a child of `fork` it is the parent's number.
    SOCKET.store(-1, Relaxed);
    let words = std::array::from_fn(|n| CONFIG[n].load(Relaxed));
    if let Some(config) = Config::from_words(words) {
        // SAFETY: gives the thread its name.
        unsafe { syscall::call4(syscall::PRCTL, SET_NAME, live::THREAD.as_ptr() as u64, 0, 0) };
        if let Some([socket, directory]) = files::receive(&PAIR) {
            SOCKET.store(socket, Relaxed);
            match begin(&config) {
                Ok(()) => serve(directory),
                Err(why) => answer(socket, &Err(why)),
            }
            close(directory);
        }
    }
    give_up()
}

/// Ends the agent. `skep` sees the end of the socket.
fn give_up() -> ! {
    close(SOCKET.swap(-1, Relaxed));
    loop {
        // SAFETY: ends this thread, which is nobody's but ours.
        unsafe { syscall::call4(EXIT, 0, 0, 0, 0) };
    }
}

const EXIT: u64 = 60;
const SET_NAME: u64 = 15;
const POLL: u64 = 7;
/// `POLLIN`.
const IN: u64 = 1;

fn close(fd: i32) {
    if fd >= 0 {
        // SAFETY: a descriptor that `skep` has given us.
        unsafe { syscall::call4(syscall::CLOSE, fd as u64, 0, 0, 0) };
    }
}

/// Reaches thread words by `gs`, also those of this thread.
fn begin(config: &Config) -> Result<(), String> {
    if !thread_words::by_gs() {
        // SAFETY: nothing is hooked, no other thread has run any code of ours, and `skep` has given
        // all threads the GS base, which no program uses that it puts us into.
        unsafe { skep_attach::reach_words_by_gs(config.tid_at, lowest(), &AREA) }
            .map_err(|e| e.to_string())?;
    }
    // SAFETY: `skep` has made the thread's storage, in a page that has room on both sides.
    unsafe {
        let tid = syscall::call4(186, 0, 0, 0, 0) as u32;
        asm!("mov dword ptr fs:[{}], {:e}", in(reg) i64::from(config.tid_at), in(reg) tid, options(nostack, preserves_flags));
    }
    if !skep_attach::register_thread() {
        return Err("the agent's thread cannot have words of its own".into());
    }
    std::panic::set_hook(Box::new(|_| {}));
    crate::resident::tell_own_code();
    Ok(())
}

/// The smallest offset of thread words: all of this library's storage.
fn lowest() -> i64 {
    -(storage_len() as i64)
}

/// Bytes of thread-local storage that this library has, as they lie below a thread pointer.
fn storage_len() -> u64 {
    crate::resident::storage_len()
}

/// Does what it is told until the socket ends.
fn serve(directory: i32) {
    let socket = SOCKET.load(Relaxed);
    // The process may be in another mount namespace.
    let path = libc::open_file(directory as u32);
    let path = CStr::from_bytes_until_nul(&path).unwrap_or_default();
    let mut agent = match start::Live::begin(OsStr::from_bytes(path.to_bytes()).as_ref()) {
        Ok(agent) => agent,
        Err(why) => return answer(socket, &Err(why)),
    };
    answer(socket, &Ok(0));
    let mut left = Vec::new();
    while let Some(order) = next(agent.news(), || agent.look()) {
        let done = match order {
            Order::Attach(id) => tracer::SKEP.during(|| agent.attach(id)),
            Order::Detach(id) => Ok(agent.detach(id).into()),
            Order::Unhook => {
                left.clear();
                for place in agent.unhook() {
                    let Bypassed { at, now, original } = place;
                    left.extend_from_slice(&Edit { at, old: now, new: original }.to_bytes());
                }
                LEFT.store(left.as_ptr() as u64, Relaxed);
                Ok((left.len() / Edit::LEN) as u32)
            }
            Order::Leave => break,
        };
        answer(socket, &done.map_err(|e| e.to_string()));
    }
    let inside = agent.leave();
    answer(socket, &Ok(inside as u32));
}

/// Waits for an order, and calls `look` when there is news; `None` when the socket has ended.
fn next(news: i32, look: impl Fn()) -> Option<Order> {
    let socket = SOCKET.load(Relaxed);
    loop {
        // `struct pollfd`: descriptor, events, what came.
        let mut fds = [socket, news].map(|fd| fd as u32 as u64 | IN << 32);
        BUSY.store(0, Release);
        // SAFETY: the kernel writes into the two structs.
        unsafe { syscall::call4(POLL, fds.as_mut_ptr() as u64, 2, u64::MAX, 0) };
        BUSY.store(1, SeqCst);
        let [order, other] = fds.map(|fd| fd >> 48 != 0);
        if other {
            let mut count = 0_u64;
            // SAFETY: reads the count into it.
            unsafe { syscall::call4(syscall::READ, news as u64, &raw mut count as u64, 8, 0) };
            look();
        }
        if order {
            let mut bytes = [0_u8; Order::LEN + 1];
            let (to, len) = (bytes.as_mut_ptr() as u64, bytes.len() as u64);
            // SAFETY: reads into the bytes.
            let got = unsafe { syscall::call4(syscall::READ, socket as u64, to, len, 0) } as i64;
            if got != -INTERRUPTED {
                let len = usize::try_from(got).ok().filter(|len| *len > 0)?;
                return Order::from_bytes(&bytes[..len]);
            }
        }
    }
}

const INTERRUPTED: i64 = 4;

fn answer(socket: i32, answer: &Answer) {
    let bytes = live::answer_to_bytes(answer);
    debug_assert!(bytes.len() <= ANSWER);
    send(socket, &bytes);
}

/// Sends a message. Who does not listen any more has ended, which is seen next.
fn send(socket: i32, bytes: &[u8]) {
    let (socket, at) = (socket as u64, bytes.as_ptr() as u64);
    const SENDTO: u64 = 44;
    const NOSIGNAL: u64 = 0x4000;
    // SAFETY: sends the bytes.
    unsafe { syscall::call4(SENDTO, socket, at, bytes.len() as u64, NOSIGNAL) };
}
