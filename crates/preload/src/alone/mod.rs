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
use std::ffi::OsStr;
use std::os::unix::ffi::OsStrExt;
use std::sync::atomic::Ordering::{Relaxed, Release, SeqCst};
use std::sync::atomic::{AtomicI32, AtomicU32, AtomicU64};
use std::time::Duration;

use skep_attach::{Area, Bypassed};
use skep_runtime::live::{self, ANSWER, Answer, Config, Edit, Order, Resting, StillInside};
use skep_runtime::start;
use skep_sys::own_file::OwnFile;
use skep_sys::{sandbox, syscall, thread_words};

use files::ThreadName;

/// Written by `skep` before the thread begins.
#[unsafe(export_name = "skep_alone_config")]
static CONFIG: [AtomicU32; Config::WORDS] = [const { AtomicU32::new(0) }; Config::WORDS];

/// Of threads that have had no event: `skep` gives them its end for their GS base.
#[unsafe(export_name = "skep_alone_area")]
static AREA: Area = Area::new();

/// The same for threads under a seccomp filter. `skep` writes it.
#[unsafe(export_name = "skep_alone_filtered")]
static FILTERED: Area = Area::unmade();

/// The places where jumps stay, for `skep` to look at.
#[unsafe(export_name = "skep_alone_left")]
static LEFT: AtomicU64 = AtomicU64::new(0);

/// Where `skep` finds its end of the first socket.
#[unsafe(export_name = "skep_alone_pair")]
static PAIR: AtomicI32 = AtomicI32::new(0);

/// Not 0 while this thread does more than waiting.
#[unsafe(export_name = "skep_alone_busy")]
static BUSY: AtomicU32 = AtomicU32::new(0);

/// What [`rest`] says.
#[unsafe(export_name = "skep_alone_resting")]
static RESTING: [AtomicU64; Resting::WORDS] = [const { AtomicU64::new(0) }; Resting::WORDS];

/// The agent's end of the socket. The program may close it, and everything else here, at any time, where
/// the thread has no descriptor table of its own.
static SOCKET: OwnFile = OwnFile::none();
/// The skep directory.
static DIRECTORY: OwnFile = OwnFile::none();
/// The `/proc` that `skep` sees, where the program sees none.
static PROC: OwnFile = OwnFile::none();

/// What the thread begins with.
#[unsafe(export_name = "skep_alone_start")]
extern "C" fn start(_: u64) -> ! {
    if let Some(config) = wake_up() {
        run(&config);
    }
    give_up()
}

/// Works for `skep`, and closes what it had open.
fn run(config: &Config) {
    let sees_proc = sees_proc();
    // Threads of the program look things up by the other `/proc`, so it has to be in their table.
    let own = if config.own_table && sees_proc { files::separate() } else { None };
    if let Some([socket, directory, proc]) = files::receive(&PAIR) {
        SOCKET.set(socket);
        DIRECTORY.set(directory);
        if sees_proc {
            close(proc);
        } else {
            PROC.set(proc);
            start::see_proc_by(PROC.number().and_then(|number| number.try_into().ok()));
        }
        match begin(config) {
            Ok(()) => serve(own),
            Err(why) => answer(&Err(why)),
        }
        DIRECTORY.close();
        start::see_proc_by(None);
        PROC.close();
    }
}

/// What the thread begins with when a `skep` of another version is to have the process: takes out what
/// hooks there are, and says who is still inside of them.
#[unsafe(export_name = "skep_alone_rest")]
extern "C" fn rest(_: u64) -> ! {
    // One that never began has hooked nothing.
    let (inside, left) = match wake_up() {
        Some(config) if thread_words::by_gs() => match begin(&config) {
            Ok(()) => start::rest(),
            Err(_) => (StillInside::Unknown, Vec::new()),
        },
        _ => (StillInside::Nobody, Vec::new()),
    };
    let edits = edits(left).leak();
    let words = [edits.as_ptr() as u64, (edits.len() / Edit::LEN) as u64];
    let words = words.into_iter().chain(skep_attach::signals::taken().flatten());
    RESTING[1..].iter().for_each(|word| word.store(0, Relaxed));
    RESTING[1..].iter().zip(words).for_each(|(to, word)| to.store(word, Relaxed));
    RESTING[0].store(1 + inside as u64, Release);
    give_up()
}

/// What each thread of ours begins with; what `skep` has written for it.
fn wake_up() -> Option<Config> {
    BUSY.store(1, Relaxed);
    // One that was put here under no filter; what the program's threads have is theirs.
    sandbox::exempt();
    // In a child of `fork` they are the parent's numbers.
    SOCKET.forget();
    DIRECTORY.forget();
    start::see_proc_by(None);
    PROC.forget();
    // SAFETY: gives the thread its name.
    unsafe { syscall::call4(syscall::PRCTL, SET_NAME, live::THREAD.as_ptr() as u64, 0, 0) };
    Config::from_words(std::array::from_fn(|n| CONFIG[n].load(Relaxed)))
}

/// As they lie in memory.
fn edits(places: Vec<Bypassed>) -> Vec<u8> {
    let edit = |Bypassed { at, now, original }| Edit { at, old: now, new: original }.to_bytes();
    places.into_iter().flat_map(edit).collect()
}

/// Tells whether the program's threads are in a `/proc` where they look for it.
fn sees_proc() -> bool {
    let path = c"/proc/thread-self/fd".as_ptr() as u64;
    // SAFETY: the kernel reads the path.
    unsafe { syscall::call4(syscall::FACCESSAT, AT_FDCWD, path, 0, 0) == 0 }
}

/// Ends the agent. `skep` sees the end of the socket.
fn give_up() -> ! {
    SOCKET.close();
    BUSY.store(0, Release);
    loop {
        // SAFETY: ends this thread, which is nobody's but ours.
        unsafe { syscall::call4(EXIT, 0, 0, 0, 0) };
        // Forbidden by a filter that was set for all threads behind our back.
        pause(LOOK);
    }
}

const AT_FDCWD: u64 = -100_i64 as u64;
const EXIT: u64 = 60;
const SET_NAME: u64 = 15;
const RECVFROM: u64 = 45;
/// A stop by a tracer ends it with `EINTR`. `poll` would go on by `restart_syscall`.
const PPOLL: u64 = 271;
/// `POLLIN`.
const IN: u64 = 1;
/// How often the files are looked at where they cannot be waited for.
const LOOK: Duration = Duration::from_millis(50);

fn close(fd: i32) {
    if fd >= 0 {
        // SAFETY: a descriptor that was just opened.
        unsafe { syscall::call4(syscall::CLOSE, fd as u64, 0, 0, 0) };
    }
}

/// Waits until one of some files can be read from, which the kernel notes in each `struct pollfd`
/// (descriptor, events, what came), at most so long; fails as the system call does. Meanwhile no signal is
/// for this thread.
fn poll(fds: &mut [u64], time: Duration) -> i64 {
    let (mut time, all) = ([time.as_secs(), u64::from(time.subsec_nanos())], !0_u64);
    let (at, len, all) = (fds.as_mut_ptr() as u64, fds.len() as u64, &raw const all as u64);
    // SAFETY: the kernel reads the signals, and writes into the structs and how much time is left.
    unsafe { syscall::call6(PPOLL, at, len, time.as_mut_ptr() as u64, all, 8, 0) as i64 }
}

/// Lets time pass, however that may be done.
fn pause(time: Duration) {
    if poll(&mut [], time) < 0 {
        // SAFETY: takes no argument.
        unsafe { syscall::call4(syscall::SCHED_YIELD, 0, 0, 0, 0) };
        std::hint::spin_loop();
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
        let tid = syscall::call4(syscall::GETTID, 0, 0, 0, 0) as u32;
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

/// Does what it is told until the socket ends. `own`: the thread has a descriptor table of its own.
fn serve(own: Option<ThreadName>) {
    // The process may be in another mount namespace.
    let Some(directory) = DIRECTORY.number() else { return };
    let path = match &own {
        Some(thread) => thread.file(directory as u32),
        None => libc::open_file(directory as u32),
    };
    let path = OsStr::from_bytes(path.as_c_str().to_bytes());
    let mut agent = match start::Live::begin(path.as_ref(), own.is_some()) {
        Ok(agent) => agent,
        Err(why) => return answer(&Err(why)),
    };
    answer(&Ok(0));
    // Until `skep` has written there.
    let mut left: Vec<u8>;
    while let Some(order) = next(&agent) {
        let done = match order {
            Order::Attach { link, memory } => tracer::SKEP.during(|| agent.attach(link, memory)),
            Order::Detach(id) => Ok(agent.detach(id).into()),
            Order::Unhook => {
                left = edits(agent.unhook());
                LEFT.store(left.as_ptr() as u64, Relaxed);
                Ok((left.len() / Edit::LEN) as u32)
            }
            Order::Leave => break,
        };
        answer(&done.map_err(|e| e.to_string()));
    }
    if agent.ends() {
        agent.end();
        return answer(&Ok(live::HAS_LEFT));
    }
    let inside = agent.leave();
    answer(&Ok(inside as u32));
}

/// Waits for an order, and looks at libraries when there is news; `None` when there will be none: the
/// socket has ended, or is not there any more, or the agent has to end.
fn next(agent: &start::Live) -> Option<Order> {
    /// So soon is seen that the program has closed what is waited for here.
    const LONG: Duration = Duration::from_secs(1);
    let news = agent.news();
    while !agent.ends() {
        let socket = SOCKET.number()?;
        // Libraries that are opened later are not seen without.
        let other = news.number();
        let mut fds = [socket, other.unwrap_or(socket)].map(|fd| fd as u32 as u64 | IN << 32);
        BUSY.store(0, Release);
        let ready = poll(&mut fds, LONG);
        BUSY.store(1, SeqCst);
        if ready < 0 && ready != -INTERRUPTED {
            // The program may have no descriptors any more (`RLIMIT_NOFILE`): what it has stays.
            pause(LOOK);
        }
        skep_attach::signals::let_faults_through();
        // An order comes first: there may be news all the time. What it meant is another file now, if the
        // program has closed ours meanwhile.
        let mut bytes = [0_u8; Order::LEN + 1];
        match receive(SOCKET.number()?, &mut bytes) {
            got if got == -INTERRUPTED || got == -NOTHING => {}
            got => {
                let len = usize::try_from(got).ok().filter(|len| *len > 0)?;
                return Order::from_bytes(&bytes[..len]);
            }
        }
        if agent.has_news() {
            agent.look();
        }
    }
    None
}

/// Receives a message if there is one.
fn receive(socket: u64, bytes: &mut [u8]) -> i64 {
    const DONTWAIT: u64 = 0x40;
    let (at, len) = (bytes.as_mut_ptr() as u64, bytes.len() as u64);
    // SAFETY: receives into the bytes.
    unsafe { syscall::call6(RECVFROM, socket, at, len, DONTWAIT, 0, 0) as i64 }
}

const INTERRUPTED: i64 = 4;
/// `EAGAIN`.
const NOTHING: i64 = 11;

fn answer(answer: &Answer) {
    let bytes = live::answer_to_bytes(answer);
    debug_assert!(bytes.len() <= ANSWER);
    if let Some(socket) = SOCKET.number() {
        send(socket, &bytes);
    }
}

/// Sends a message. Who does not listen any more has ended, which is seen next.
fn send(socket: u64, bytes: &[u8]) {
    let at = bytes.as_ptr() as u64;
    const SENDTO: u64 = 44;
    const NOSIGNAL: u64 = 0x4000;
    // SAFETY: sends the bytes.
    unsafe { syscall::call4(SENDTO, socket, at, bytes.len() as u64, NOSIGNAL) };
}
