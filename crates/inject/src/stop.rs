//! Stopping all threads of a process, and letting them go as they were.
//!
//! Each thread ends up at `PTRACE_EVENT_STOP`, inside the kernel on its way back to the program:
//! no signal is being delivered there, and a system call that was interrupted has not yet been
//! started again. A thread that stops earlier, because a signal is delivered to it or because it
//! made another thread, goes on with that up to there. Threads of a process that `SIGSTOP` has
//! stopped are taken out of that state, and the kernel puts them back when they are let go.
//!
//! A signal that a process ignores does not wake its threads, but it does when the thread that it
//! is sent to is traced, and then a call like `epoll_wait` of any thread fails with `EINTR`. Such
//! signals go to the thread that leads, and from children (`SIGCHLD`) to the one that made them.
//! So these are traced last and let go first: who is woken up is about to stop then, and
//! [`repeat_interrupted_call`] sees to it.
//!
//! A thread that executes a program waits, with a lock held, until the tracer has noted the end of
//! each other thread that is traced. `PTRACE_SEIZE` waits for that lock. So while threads are being
//! traced, another thread of this process notes those ends ([`note_ends`]): else a tracer that has
//! some of the threads and asks for the next would wait for ever, and the process with it.

use std::cell::RefCell;
use std::collections::{BTreeMap, BTreeSet};
use std::rc::Rc;
use std::sync::mpsc::{Receiver, RecvTimeoutError};
use std::time::{Duration, Instant};

use rustix::io::Errno;

use crate::error::{Error, Refusal};
use crate::registers::{Registers, Restart};
use crate::sys::{self, Happened};
use crate::task::{self, Status};

/// How long a thread may take to stop. Almost all take microseconds; one that waits for a child of
/// `vfork` takes as long as the child.
pub(crate) const PATIENCE: Duration = Duration::from_secs(1);

/// How long threads are being traced before somebody looks whether that waits for one that executes
/// a program.
const LOOK: Duration = Duration::from_millis(5);

/// So often the tracer looks again at once before it sleeps.
const SPINS: u32 = 50;

/// It looks at least once in so much of the patience, whatever the time, before it gives up: half of
/// that if nothing else runs.
const ROUND: Duration = Duration::from_micros(200);

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum State {
    Coming,
    Stopped,
    /// Not of this process: a new process that the kernel began to trace for its parent's sake.
    Foreign,
}

/// What a process that is [followed](crate::Tracer) is stopped with: its threads are traced before and
/// afterwards.
#[derive(Debug, Default)]
pub(crate) struct Following {
    /// Threads that stand before, and shall do so afterwards.
    pub(crate) standing: BTreeSet<u32>,
    /// Processes that were made meanwhile, and by which.
    pub(crate) born: Vec<(u32, u32)>,
    /// It executes another program since, and stands before the first instruction of that.
    pub(crate) executes: bool,
    /// Threads that `SIGSTOP` or its like has stopped.
    pub(crate) stopped: Vec<u32>,
}

/// The threads of a process, stopped or about to be.
#[derive(Debug)]
pub(crate) struct Threads {
    pub(crate) pid: u32,
    /// Runs on.
    except: Option<u32>,
    patience: Duration,
    threads: BTreeMap<u32, State>,
    /// Threads that signals of the whole process are sent to.
    addressed: BTreeSet<u32>,
    following: Option<Rc<RefCell<Following>>>,
}

impl Threads {
    /// Stops all threads of a process but one, if one is given. They all run on when that takes longer
    /// than `patience`.
    pub(crate) fn stop(
        pid: u32,
        except: Option<u32>,
        patience: Duration,
        following: Option<Rc<RefCell<Following>>>,
    ) -> Result<Self, Error> {
        check(pid)?;
        let (threads, addressed) = (BTreeMap::new(), BTreeSet::from([pid]));
        let mut all = Self { pid, except, patience, threads, addressed, following };
        all.gather(Instant::now() + patience)?;
        all.check_memory()?;
        Ok(all)
    }

    /// The ids of the threads, which all stand.
    pub(crate) fn ids(&self) -> impl Iterator<Item = u32> {
        self.threads.iter().filter(|(_, state)| **state == State::Stopped).map(|(&tid, _)| tid)
    }

    /// Finds and stops threads until two readings of the list show none that runs.
    fn gather(&mut self, deadline: Instant) -> Result<(), Error> {
        let pid = self.pid;
        /// On a busy machine one reading may take all the time that there is.
        const READINGS: u32 = 10;
        let mut calm = 0;
        let mut readings = 0_u32;
        while calm < 2 {
            readings += 1;
            let ids = task::threads(pid).ok_or_else(|| unreadable(pid))?;
            calm += 1;
            let is_new = |tid: &u32| Some(*tid) != self.except && !self.threads.contains_key(tid);
            let mut new: Vec<u32> = ids.into_iter().filter(is_new).collect();
            let has_children = |tid: &u32| !task::children(pid, *tid).is_empty();
            self.addressed.extend(new.iter().copied().filter(has_children));
            new.sort_by_cached_key(|tid| u64::from(self.addressed.contains(tid)));
            for tid in new {
                if self.seize(tid)? {
                    calm = 0;
                }
            }
            self.settle(deadline)?;
            if self.ids().next().is_none() && calm == 2 {
                // Only dead threads are left, and what the kernel runs in the process.
                return Err(match task::stat(pid, pid) {
                    Some(_) => Error::Refused { pid, reason: Refusal::of(pid, pid) },
                    None => Error::NoProcess { pid },
                });
            }
            if calm == 0 && readings > READINGS && Instant::now() > deadline {
                return Err(Error::Restless { pid });
            }
        }
        Ok(())
    }

    /// Begins to trace a thread; tells whether there is a new one to wait for.
    fn seize(&mut self, tid: u32) -> Result<bool, Error> {
        let pid = self.pid;
        if let Some(following) = &self.following {
            if following.borrow().standing.contains(&tid) {
                let stands = sys::is_at_event_stop(tid);
                self.threads.insert(tid, if stands { State::Stopped } else { State::Coming });
                if !stands {
                    go_on_to_a_stop(tid, 0);
                }
                return Ok(true);
            }
            if sys::interrupt(tid).is_ok() {
                self.threads.insert(tid, State::Coming);
                return Ok(true);
            }
        }
        let seize = if self.following.is_some() { sys::seize_to_follow } else { sys::seize };
        if !begin_to_trace(pid, tid, seize)? {
            return Ok(false);
        }
        sys::interrupt(tid).ok();
        self.threads.insert(tid, State::Coming);
        Ok(true)
    }

    /// Waits until every thread that is traced stands.
    fn settle(&mut self, deadline: Instant) -> Result<(), Error> {
        let rounds = self.patience.div_duration_f64(ROUND) as u32;
        let mut idle = 0_u32;
        loop {
            let is_coming = |state: State| state != State::Stopped;
            let first = self.threads.iter().find(|(_, state)| is_coming(**state));
            let first = first.map(|(&tid, _)| tid);
            // One that stands may still be killed, as by a thread that executes a program. That one
            // waits until its tracer has seen so, and then comes to an event under another id.
            let all = first.is_none() || idle >= SPINS;
            let asked: Vec<(u32, State)> = self
                .threads
                .iter()
                .map(|(&tid, &state)| (tid, state))
                .filter(|&(_, state)| all || is_coming(state))
                .collect();
            let mut any = false;
            for (tid, state) in asked {
                let Some(happened) = sys::wait(tid, tid == self.pid) else { continue };
                any = true;
                self.advance(tid, state, happened);
            }
            let Some(first) = first.filter(|_| !any) else {
                if !any {
                    return Ok(());
                }
                idle = 0;
                continue;
            };
            // A tracer that did not run itself has not waited.
            if idle > rounds && Instant::now() > deadline {
                let state = task::stat(self.pid, first).map_or('?', |stat| stat.state);
                return Err(Error::Unstoppable { pid: self.pid, tid: first, state });
            }
            idle += 1;
            if idle < SPINS {
                std::thread::yield_now();
            } else {
                std::thread::sleep(Duration::from_micros(50));
            }
        }
    }

    fn advance(&mut self, tid: u32, state: State, happened: Happened) {
        match happened {
            Happened::Gone => {
                self.threads.remove(&tid);
            }
            _ if state == State::Foreign => {
                let signal = if let Happened::Signal(signal) = happened { signal } else { 0 };
                let go_on = if self.following.is_some() { sys::resume } else { sys::detach };
                go_on(tid, signal).ok();
                self.threads.remove(&tid);
            }
            Happened::Event(sys::EVENT_STOP) => {
                self.threads.insert(tid, State::Stopped);
            }
            Happened::Event(event) => {
                if let sys::EVENT_CLONE | sys::EVENT_FORK | sys::EVENT_VFORK = event
                    && let Ok(new) = sys::event_message(tid)
                {
                    let is_ours = task::stat(self.pid, new).is_some();
                    let state = if is_ours { State::Coming } else { State::Foreign };
                    self.threads.entry(new).or_insert(state);
                    if let Some(following) = self.following.as_ref().filter(|_| !is_ours) {
                        following.borrow_mut().born.push((new, self.pid));
                    }
                }
                if let Some(following) = &self.following
                    && event == sys::EVENT_EXEC
                {
                    following.borrow_mut().executes = true;
                }
                self.go_on(tid, 0);
            }
            Happened::Signal(signal) => self.go_on(tid, signal),
            Happened::Call => self.go_on(tid, 0),
        }
    }

    fn go_on(&mut self, tid: u32, signal: u8) {
        self.threads.insert(tid, State::Coming);
        go_on_to_a_stop(tid, signal);
    }

    /// Fails if a process that shares the memory still runs: what it executes cannot be changed.
    /// Finds children of threads; others that share are not known to the kernel by name.
    fn check_memory(&self) -> Result<(), Error> {
        for tid in self.ids() {
            for with in task::children(self.pid, tid) {
                if sys::share_memory(self.pid, with) == Some(true) {
                    let reason = Refusal::SharedMemory { with };
                    return Err(Error::Refused { pid: self.pid, reason });
                }
            }
        }
        Ok(())
    }

    /// Lets a thread run for a moment, and stops it again. The others stand.
    pub(crate) fn run_a_little(&mut self, tid: u32) -> Result<(), Error> {
        sys::resume(tid, 0).ok();
        self.threads.insert(tid, State::Coming);
        std::thread::sleep(Duration::from_micros(100));
        sys::interrupt(tid).ok();
        self.settle(Instant::now() + self.patience)
    }

    /// Notes the thread that one of ours has just made. The kernel traces it, too, and stops it
    /// before its first instruction.
    pub(crate) fn expect_new(&mut self, by: u32) {
        if let Ok(new) = sys::event_message(by) {
            self.threads.entry(new).or_insert(State::Coming);
        }
    }

    /// Waits until all threads stand that were noted.
    pub(crate) fn settle_new(&mut self) -> Result<(), Error> {
        if self.threads.values().all(|state| *state == State::Stopped) {
            return Ok(());
        }
        self.settle(Instant::now() + self.patience)
    }

    /// Waits until a thread that goes on by itself has come to something.
    pub(crate) fn next(&mut self, tid: u32) -> Option<Happened> {
        let deadline = Instant::now() + self.patience;
        let mut idle = 0_u32;
        loop {
            if let Some(happened) = sys::wait(tid, tid == self.pid) {
                if happened == Happened::Gone {
                    self.threads.remove(&tid);
                }
                return Some(happened);
            }
            if idle > 1000 {
                if Instant::now() > deadline {
                    return None;
                }
                std::thread::sleep(Duration::from_micros(50));
            }
            idle += 1;
            std::hint::spin_loop();
        }
    }
}

/// Refuses what is no other process's id.
///
/// # Errors
/// When there is no such process, or it cannot be stopped: a thread's id, or the caller's own.
///
/// ```
/// assert!(skep_inject::check(std::process::id()).is_err());
/// ```
pub fn check(pid: u32) -> Result<(), Error> {
    let refused = |reason| Error::Refused { pid, reason };
    if skep_proc::namespace::proc_is_of_another() {
        return Err(refused(Refusal::OthersProc));
    }
    if pid == std::process::id() {
        return Err(refused(Refusal::Itself));
    }
    // The id of a thread that does not lead a process has a folder too, which no list shows.
    match Status::of(pid, pid).and_then(|status| status.number("Tgid")) {
        None => Err(unreadable(pid)),
        Some(of) if of != pid => Err(refused(Refusal::Thread { of })),
        Some(_) => Ok(()),
    }
}

/// Why nothing is known of a process.
pub(crate) fn unreadable(pid: u32) -> Error {
    let opened = std::fs::File::open(format!("/proc/{pid}/status"));
    not_opened(pid, opened.err().as_ref().and_then(Errno::from_io_error))
}

/// Why a file of a process cannot be opened: it is gone, unless no more files may be open.
pub(crate) fn not_opened(pid: u32, errno: Option<Errno>) -> Error {
    match errno {
        Some(errno @ (Errno::MFILE | Errno::NFILE)) => Error::Os { pid, call: "open", errno },
        _ => Error::NoProcess { pid },
    }
}

/// Begins to trace a thread, unless it ends.
pub(crate) fn begin_to_trace(
    pid: u32,
    tid: u32,
    seize: fn(u32) -> Result<(), Errno>,
) -> Result<bool, Error> {
    /// A thread that ends cannot be traced, and that of the process that executes a program then
    /// takes its id: who asks for the reason meets another thread.
    const TRIES: u32 = 10;
    for tries in 1.. {
        match seize(tid) {
            Ok(()) => break,
            Err(Errno::SRCH) => return Ok(false),
            Err(_) => {}
        }
        match task::stat(pid, tid) {
            None => return Ok(false),
            Some(stat) if stat.is_not_of_program() => return Ok(false),
            Some(_) => {}
        }
        match Refusal::of(pid, tid) {
            // A thread that one of ours has made is traced from its first instruction on.
            Refusal::Traced { by, .. } if by == own_thread() => break,
            _ if tries < TRIES => std::thread::yield_now(),
            reason => return Err(Error::Refused { pid, reason }),
        }
    }
    Ok(true)
}

/// Notes the ends of a process's threads for as long as another thread of ours begins to trace them,
/// until that drops the sender.
pub(crate) fn note_ends(pid: u32, until: &Receiver<()>) {
    while until.recv_timeout(LOOK) == Err(RecvTimeoutError::Timeout) {
        let others = task::threads(pid).unwrap_or_default();
        others.into_iter().filter(|tid| *tid != pid).for_each(sys::note_end);
    }
}

/// Lets a thread go on with what it stopped at, up to the next `PTRACE_EVENT_STOP`, which comes
/// before it executes an instruction of the program. Where that fails, the thread has been killed.
pub(crate) fn go_on_to_a_stop(tid: u32, signal: u8) {
    sys::interrupt(tid).ok();
    sys::resume(tid, signal).ok();
}

/// The id of the calling thread.
pub(crate) fn own_thread() -> u32 {
    rustix::thread::gettid().as_raw_pid() as u32
}

impl Drop for Threads {
    fn drop(&mut self) {
        let (first, then): (Vec<u32>, Vec<u32>) =
            self.ids().partition(|tid| self.addressed.contains(tid));
        for tid in first.into_iter().chain(then) {
            let Some(following) = &self.following else {
                repeat_interrupted_call(self.pid, tid);
                sys::detach(tid, 0).ok();
                continue;
            };
            let mut following = following.borrow_mut();
            if following.standing.contains(&tid) || following.executes {
                continue;
            }
            repeat_interrupted_call(self.pid, tid);
            if sys::is_stopped_by_signal(tid) {
                following.stopped.push(tid);
                sys::listen(tid).ok();
            } else {
                sys::resume(tid, 0).ok();
            }
        }
        // Threads that do not stand are let go by the kernel when the tracing thread ends.
    }
}

/// Has a thread make a system call again that failed only because it was stopped. A program
/// without signal handlers need not know of `EINTR`. A time limit begins anew.
///
/// The same in a sandbox for a call that would go on by `restart_syscall`: the program's filter sees
/// that number, which it may not know, and has let the call itself pass.
pub(crate) fn repeat_interrupted_call(pid: u32, tid: u32) {
    let Ok(Some(registers)) = sys::registers(tid) else { return };
    let restart = registers.restart();
    if !matches!(restart, Restart::Interrupted | Restart::Rest) {
        return;
    }
    let Some(status) = Status::of(pid, tid) else { return };
    let is_free = restart == Restart::Rest && !status.is_filtered();
    if is_free || status.has_pending_signal() {
        return;
    }
    // Calls that wait with a mask of their own: a signal that comes from here on waits for the
    // repeated call, which sets that mask again.
    if let Ok(mask) = sys::signal_mask(tid)
        && sys::set_signal_mask(tid, mask).is_ok()
    {
        sys::set_registers(tid, &Registers::repeated(&registers)).ok();
    }
}
