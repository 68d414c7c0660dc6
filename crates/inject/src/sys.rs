//! ptrace(2) and wait4(2) as safe functions.
//!
//! Rules of this leaf: every address that the kernel reads or writes in this process is that of a
//! value that lives during the call and has the size that the kernel is told or assumes. What the
//! calls do to the traced thread is not a matter of this process's memory; the kernel refuses them
//! for threads that the caller does not trace.

use std::{mem, ptr};

use rustix::io::Errno;

use crate::registers::Registers;

const POKEDATA: i64 = 5;
const CONT: i64 = 7;
const DETACH: i64 = 17;
const SYSCALL: i64 = 24;
const GETEVENTMSG: i64 = 0x4201;
const GETSIGINFO: i64 = 0x4202;
const GETREGSET: i64 = 0x4204;
const SETREGSET: i64 = 0x4205;
const SEIZE: i64 = 0x4206;
const INTERRUPT: i64 = 0x4207;
const LISTEN: i64 = 0x4208;
const GETSIGMASK: i64 = 0x420a;
const SETSIGMASK: i64 = 0x420b;
const SECCOMP_GET_FILTER: i64 = 0x420c;
const GET_RSEQ_CONFIGURATION: i64 = 0x420f;
const GET_SYSCALL_USER_DISPATCH_CONFIG: i64 = 0x4211;

/// The general registers, for `GETREGSET`.
const NT_PRSTATUS: u64 = 1;

/// `PTRACE_O_TRACESYSGOOD`, `PTRACE_O_TRACECLONE`, `PTRACE_O_TRACEEXEC`. Not `PTRACE_O_EXITKILL`:
/// threads outlive their tracer.
const OPTIONS: u64 = 1 | 1 << 3 | 1 << 4;
/// And `PTRACE_O_TRACEFORK`, `PTRACE_O_TRACEVFORK`.
const FOLLOWING: u64 = OPTIONS | 1 << 1 | 1 << 2;

/// `PTRACE_EVENT_FORK`.
pub(crate) const EVENT_FORK: u8 = 1;
/// `PTRACE_EVENT_VFORK`.
pub(crate) const EVENT_VFORK: u8 = 2;
/// `PTRACE_EVENT_CLONE`.
pub(crate) const EVENT_CLONE: u8 = 3;
/// `PTRACE_EVENT_EXEC`.
pub(crate) const EVENT_EXEC: u8 = 4;
/// `PTRACE_EVENT_STOP`.
pub(crate) const EVENT_STOP: u8 = 128;

/// # Safety
/// `address` and `data` are what the request asks for: numbers, or addresses of memory that lives
/// during the call, as large as the kernel is told.
unsafe fn ptrace(request: i64, thread: u32, address: u64, data: u64) -> Result<(), Errno> {
    // SAFETY: the caller's promise.
    let r = unsafe { libc::syscall(libc::SYS_ptrace, request, u64::from(thread), address, data) };
    if r < 0 { Err(last()) } else { Ok(()) }
}

fn last() -> Errno {
    Errno::from_io_error(&std::io::Error::last_os_error()).unwrap_or(Errno::IO)
}

/// Begins to trace a thread, which runs on.
pub(crate) fn seize(thread: u32) -> Result<(), Errno> {
    // SAFETY: numbers only.
    unsafe { ptrace(SEIZE, thread, 0, OPTIONS) }
}

/// The same, for a thread that is traced for long: processes that it makes are traced, too.
pub(crate) fn seize_to_follow(thread: u32) -> Result<(), Errno> {
    // SAFETY: numbers only.
    unsafe { ptrace(SEIZE, thread, 0, FOLLOWING) }
}

/// Leaves a thread stopped that `SIGSTOP` or its like has stopped; it tells when that changes.
pub(crate) fn listen(thread: u32) -> Result<(), Errno> {
    // SAFETY: numbers only.
    unsafe { ptrace(LISTEN, thread, 0, 0) }
}

/// Asks a traced thread to stop. One that stands already stops once more when it goes on.
pub(crate) fn interrupt(thread: u32) -> Result<(), Errno> {
    // SAFETY: numbers only.
    unsafe { ptrace(INTERRUPT, thread, 0, 0) }
}

/// Lets a stopped thread go on, with the signal that it stopped at, or 0.
pub(crate) fn resume(thread: u32, signal: u8) -> Result<(), Errno> {
    // SAFETY: numbers only.
    unsafe { ptrace(CONT, thread, 0, u64::from(signal)) }
}

/// The same, up to the beginning or end of its next system call.
pub(crate) fn resume_to_call(thread: u32, signal: u8) -> Result<(), Errno> {
    // SAFETY: numbers only.
    unsafe { ptrace(SYSCALL, thread, 0, u64::from(signal)) }
}

/// Lets a stopped thread go for good, with a signal that it stopped at, or 0.
pub(crate) fn detach(thread: u32, signal: u8) -> Result<(), Errno> {
    // SAFETY: numbers only.
    unsafe { ptrace(DETACH, thread, 0, u64::from(signal)) }
}

/// The id of the thread or process that a thread has made, when it stopped at that event.
pub(crate) fn event_message(thread: u32) -> Result<u32, Errno> {
    let mut message = 0_u64;
    // SAFETY: the kernel writes one word.
    unsafe { ptrace(GETEVENTMSG, thread, 0, (&raw mut message) as u64)? };
    Ok(message as u32)
}

/// The registers of a stopped thread; `None` for one that executes 32-bit code.
pub(crate) fn registers(thread: u32) -> Result<Option<Registers>, Errno> {
    let mut registers = Registers::default();
    let mut vector =
        libc::iovec { iov_base: (&raw mut registers).cast(), iov_len: size_of::<Registers>() };
    // SAFETY: the kernel writes as much as the vector says, into plain numbers.
    unsafe { ptrace(GETREGSET, thread, NT_PRSTATUS, (&raw mut vector) as u64)? };
    const USER_CODE_SELECTOR: u64 = 0x33;
    let whole = vector.iov_len == size_of::<Registers>() && registers.cs == USER_CODE_SELECTOR;
    Ok(whole.then_some(registers))
}

/// Sets all general registers of a stopped thread at once.
pub(crate) fn set_registers(thread: u32, registers: &Registers) -> Result<(), Errno> {
    let mut vector = libc::iovec {
        iov_base: ptr::from_ref(registers).cast_mut().cast(),
        iov_len: size_of::<Registers>(),
    };
    // SAFETY: the kernel only reads as much as the vector says.
    unsafe { ptrace(SETREGSET, thread, NT_PRSTATUS, (&raw mut vector) as u64) }
}

/// The blocked signals of a stopped thread, by bit.
pub(crate) fn signal_mask(thread: u32) -> Result<u64, Errno> {
    let mut mask = 0_u64;
    // SAFETY: the kernel writes as many bytes as the address argument says.
    unsafe { ptrace(GETSIGMASK, thread, size_of::<u64>() as u64, (&raw mut mask) as u64)? };
    Ok(mask)
}

/// Sets the blocked signals of a stopped thread.
pub(crate) fn set_signal_mask(thread: u32, mask: u64) -> Result<(), Errno> {
    // SAFETY: the kernel reads as many bytes as the address argument says.
    unsafe { ptrace(SETSIGMASK, thread, size_of::<u64>() as u64, (&raw const mask) as u64) }
}

/// Writes a word into the memory of a stopped thread's process, whatever its protection.
pub(crate) fn poke(thread: u32, address: u64, word: u64) -> Result<(), Errno> {
    // SAFETY: numbers only.
    unsafe { ptrace(POKEDATA, thread, address, word) }
}

/// The instructions of one of a thread's seccomp filters, from the newest to the oldest; `None`: it has no
/// more.
pub(crate) fn seccomp_filter(thread: u32, number: u64) -> Result<Option<Vec<[u8; 8]>>, Errno> {
    /// `BPF_MAXINSNS`.
    const MOST: usize = 4096;
    let mut filter = vec![[0_u8; 8]; MOST];
    let at = filter.as_mut_ptr() as u64;
    // SAFETY: the kernel writes instructions of eight bytes, and takes no filter that has more.
    let len = unsafe {
        libc::syscall(libc::SYS_ptrace, SECCOMP_GET_FILTER, u64::from(thread), number, at)
    };
    match usize::try_from(len) {
        Ok(len) => {
            filter.truncate(len);
            Ok(Some(filter))
        }
        Err(_) if last() == Errno::NOENT => Ok(None),
        Err(_) => Err(last()),
    }
}

/// Where a stopped thread has its `struct rseq`; 0: it has none. Linux 5.13.
pub(crate) fn rseq(thread: u32) -> Result<u64, Errno> {
    // `struct ptrace_rseq_configuration`: the address; size, signature, flags, padding.
    let mut configuration = [0_u64; 3];
    let size = size_of_val(&configuration) as u64;
    // SAFETY: the kernel writes at most as many bytes as the address argument says.
    unsafe {
        ptrace(GET_RSEQ_CONFIGURATION, thread, size, configuration.as_mut_ptr() as u64)?;
    }
    Ok(configuration[0])
}

/// Tells whether a stopped thread has its system calls turned into signals
/// (`PR_SET_SYSCALL_USER_DISPATCH`). A kernel before Linux 6.4 does not say.
pub(crate) fn dispatches_calls(thread: u32) -> bool {
    // `struct ptrace_sud_config`: mode, selector, offset, len.
    let mut configuration = [0_u64; 4];
    let size = size_of_val(&configuration) as u64;
    // SAFETY: the kernel writes as many bytes as the address argument says.
    let asked = unsafe {
        ptrace(GET_SYSCALL_USER_DISPATCH_CONFIG, thread, size, configuration.as_mut_ptr() as u64)
    };
    asked.is_ok() && configuration[0] != 0
}

/// The signal at which a thread stands at `PTRACE_EVENT_STOP`: `SIGTRAP`, or the one that stopped
/// its process; `None` for one that does not stand there.
fn event_stop(thread: u32) -> Option<i32> {
    // `siginfo_t`: signal, errno, code.
    let mut information = [0_i32; 32];
    // SAFETY: the kernel writes at most 128 bytes.
    unsafe { ptrace(GETSIGINFO, thread, 0, information.as_mut_ptr() as u64) }.ok()?;
    ((information[2] >> 8) as u8 == EVENT_STOP).then_some(information[0])
}

/// Tells whether a thread stands at `PTRACE_EVENT_STOP`.
pub(crate) fn is_at_event_stop(thread: u32) -> bool {
    event_stop(thread).is_some()
}

/// Tells whether a thread stands because a signal has stopped its process.
pub(crate) fn is_stopped_by_signal(thread: u32) -> bool {
    event_stop(thread).is_some_and(|signal| signal != libc::SIGTRAP)
}

/// What happened to a traced thread.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Happened {
    /// It ended, or is no longer traced by this thread.
    Gone,
    /// It stands at `PTRACE_EVENT_…`.
    Event(u8),
    /// It stands at the beginning or end of a system call.
    Call,
    /// It stands before this signal is delivered.
    Signal(u8),
}

/// What is new of a traced thread.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum News {
    /// It ended, with this status, as `wait` has it.
    Ended(i32),
    /// It stands.
    Stands(Happened),
}

/// What `waitid` says of a thread.
#[derive(Clone, Copy, Debug)]
struct Said {
    thread: u32,
    code: i32,
    status: i32,
}

impl Said {
    /// The status of an end, as `wait` has it.
    fn end(self) -> i32 {
        match self.code {
            libc::CLD_EXITED => (self.status & 0xff) << 8,
            libc::CLD_DUMPED => self.status | 0x80,
            _ => self.status,
        }
    }

    fn is_end(self) -> bool {
        matches!(self.code, libc::CLD_EXITED | libc::CLD_KILLED | libc::CLD_DUMPED)
    }

    /// What a thread stands at.
    fn stop(self) -> Happened {
        const CALL: u8 = libc::SIGTRAP as u8 | 0x80;
        match ((self.status >> 8) as u8, self.status as u8) {
            (0, CALL) => Happened::Call,
            (0, signal) => Happened::Signal(signal),
            (event, _) => Happened::Event(event),
        }
    }
}

/// Asks what happened to a thread, or to any where that is 0; `None` where nothing has.
fn waitid(thread: u32, options: i32) -> Result<Option<Said>, Errno> {
    let kind = u64::from(thread != 0); // `P_ALL`, `P_PID`.
    // `siginfo_t`: signal, errno, code, a gap; process, user, status.
    let mut information = [0_i32; 32];
    // SAFETY: the kernel writes at most 128 bytes, and no usage where the address is null.
    let r = unsafe {
        libc::syscall(
            libc::SYS_waitid,
            kind,
            u64::from(thread),
            information.as_mut_ptr() as u64,
            (options | libc::__WALL) as u64,
            0_u64,
        )
    };
    match r {
        0 if information[0] == 0 => Ok(None),
        0 => Ok(Some(Said {
            thread: information[4] as u32,
            code: information[2],
            status: information[6],
        })),
        _ => Err(last()),
    }
}

/// As [`waitid`], without waiting.
fn look(thread: u32, options: i32) -> Result<Option<Said>, Errno> {
    waitid(thread, options | libc::WNOHANG)
}

/// Waits until something happens to a thread that this process traces, or to a child of it, and
/// leaves that to be asked for; fails when there is none.
pub(crate) fn wait_for_any() -> Result<(), Errno> {
    match waitid(0, libc::WSTOPPED | libc::WEXITED | libc::WNOWAIT) {
        Ok(_) | Err(Errno::INTR) => Ok(()),
        Err(error) => Err(error),
    }
}

/// Asks, without waiting, what happened to any thread that the calling thread traces. Ends are noted
/// with that, also of the thread that leads a process; but not that of the process `left`, which
/// somebody else here waits for.
pub(crate) fn any(left: Option<u32>) -> Option<(u32, News)> {
    const ALL: i32 = libc::WSTOPPED | libc::WEXITED | libc::__WNOTHREAD;
    loop {
        return match look(0, ALL | libc::WNOWAIT) {
            Ok(Some(said)) if said.is_end() => {
                if left != Some(said.thread) {
                    look(said.thread, libc::WEXITED | libc::__WNOTHREAD).ok();
                }
                Some((said.thread, News::Ended(said.end())))
            }
            Ok(Some(said)) => {
                // See `wait`.
                if !matches!(said.stop(), Happened::Signal(_)) {
                    look(said.thread, libc::WSTOPPED | libc::__WNOTHREAD).ok();
                }
                Some((said.thread, News::Stands(said.stop())))
            }
            Err(Errno::INTR) => continue,
            Ok(None) | Err(_) => None,
        };
    }
}

/// Tells whether a thread has ended that this thread traces, or any of this process (`whose` is 0),
/// and leaves that to be asked for again.
fn has_ended(thread: u32, whose: i32) -> bool {
    let happened = look(thread, libc::WEXITED | libc::WNOWAIT | whose);
    matches!(happened, Ok(Some(said)) if said.is_end())
}

/// Notes that a thread has ended, whichever thread of this process traces it; without waiting. Not
/// for a thread that leads a process: it may be a child of this process, and somebody else here
/// waits for it.
pub(crate) fn note_end(thread: u32) {
    // What else happened to a traced thread is reported whatever the options say: only its tracer
    // may ask for that.
    if has_ended(thread, 0) {
        look(thread, libc::WEXITED).ok();
    }
}

/// Asks, without waiting, what happened to a thread since the last time. That the thread has ended
/// which leads a process (`is_leader`) stays to be asked for: it may be a child of this process,
/// and somebody else here waits for it.
pub(crate) fn wait(thread: u32, is_leader: bool) -> Option<Happened> {
    // Without `WEXITED` an end is not reported, not even one that comes right now.
    const STOPPED: i32 = libc::WSTOPPED | libc::__WNOTHREAD;
    match look(thread, STOPPED | libc::WNOWAIT) {
        Ok(Some(said)) => {
            let happened = said.stop();
            // The kernel forgets a signal that was asked for if the tracer dies before it lets the
            // thread go on (kernel/exit.c `wait_task_stopped`). So that stays to be asked for until
            // the thread goes on, which whoever gets this answer has it do.
            if !matches!(happened, Happened::Signal(_)) {
                look(thread, STOPPED).ok();
            }
            Some(happened)
        }
        Err(Errno::INTR) => None,
        // The kernel says that there is none of one that has ended, too.
        nothing => {
            let ended = has_ended(thread, libc::__WNOTHREAD);
            if ended && !is_leader {
                look(thread, libc::WEXITED | libc::__WNOTHREAD).ok();
            }
            (ended || nothing.is_err()).then_some(Happened::Gone)
        }
    }
}

/// Tells whether two processes have the same memory; `None` where the kernel does not say.
#[must_use]
pub fn share_memory(one: u32, other: u32) -> Option<bool> {
    const KCMP_VM: u64 = 1;
    // SAFETY: numbers only.
    let r = unsafe {
        libc::syscall(libc::SYS_kcmp, u64::from(one), u64::from(other), KCMP_VM, 0_u64, 0_u64)
    };
    (r >= 0).then_some(r == 0)
}

/// Ctrl-Z and its like do not stop this thread, nor those that it makes, until this is dropped: what it
/// traces would stand as long.
#[derive(Debug)]
pub struct NoTerminalStops(libc::sigset_t);

impl NoTerminalStops {
    /// Blocks the signals.
    #[expect(clippy::new_without_default, reason = "it changes the thread")]
    pub fn new() -> Self {
        let mut signals = mem::MaybeUninit::uninit();
        let mut before = mem::MaybeUninit::uninit();
        // SAFETY: the sets are written before they are read; the calls fail only for other arguments.
        unsafe {
            libc::sigemptyset(signals.as_mut_ptr());
            for signal in [libc::SIGTSTP, libc::SIGTTIN, libc::SIGTTOU] {
                libc::sigaddset(signals.as_mut_ptr(), signal);
            }
            libc::pthread_sigmask(libc::SIG_BLOCK, signals.as_ptr(), before.as_mut_ptr());
            Self(before.assume_init())
        }
    }
}

impl Drop for NoTerminalStops {
    fn drop(&mut self) {
        // SAFETY: gives the thread its mask back.
        unsafe { libc::pthread_sigmask(libc::SIG_SETMASK, &self.0, ptr::null_mut()) };
    }
}

#[cfg(test)]
mod tests {
    use std::io::{BufRead, BufReader};
    use std::process::{Command, Stdio};

    use super::*;

    /// Traces a process until it stops at a signal, and does no more: the tracing thread ends then.
    fn see_a_signal(pid: u32) {
        seize(pid).expect("it can be traced");
        let process = rustix::process::Pid::from_raw(pid as i32).expect("a number");
        rustix::process::kill_process(process, rustix::process::Signal::USR1).expect("it runs");
        loop {
            match wait(pid, true) {
                Some(Happened::Signal(signal)) => {
                    break assert_eq!(i32::from(signal), libc::SIGUSR1);
                }
                Some(Happened::Gone) => panic!("it has ended"),
                _ => std::thread::yield_now(),
            }
        }
    }

    #[test]
    fn a_signal_outlives_a_tracer_that_has_seen_it() {
        let script = "trap 'echo got; exit' USR1; trap 'echo lost; exit' USR2; echo ready
                      while :; do sleep 0.02; done";
        for _ in 0..10 {
            let mut shell = Command::new("sh");
            let mut shell = shell.args(["-c", script]).stdout(Stdio::piped()).spawn().expect("sh");
            let mut lines = BufReader::new(shell.stdout.take().expect("a pipe")).lines();
            let mut line = || lines.next().expect("it answers").expect("it is text");
            assert_eq!(line(), "ready");
            let pid = shell.id();
            std::thread::spawn(move || see_a_signal(pid)).join().expect("it is seen");
            // The lower signal comes first, if it is still there.
            let process = rustix::process::Pid::from_raw(pid as i32).expect("a number");
            rustix::process::kill_process(process, rustix::process::Signal::USR2).expect("it runs");
            assert_eq!(line(), "got");
            shell.wait().expect("it ends");
        }
    }
}
