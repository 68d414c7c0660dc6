//! Processes that are traced for long, with all that they make and execute.
//!
//! One thread traces them, as the kernel demands. They run meanwhile: only signals, new threads and
//! processes, and programs that they execute stop a thread for a moment. If the tracer is killed the
//! kernel lets all go, and each goes on rightly.
//!
//! What a traced thread does for a signal that it ignores is not what it does without a tracer: it
//! wakes up, and a call like `epoll_wait` fails with `EINTR`. Such calls are made again. A process that
//! `SIGSTOP` has stopped stays stopped (`PTRACE_LISTEN`).

use std::cell::RefCell;
use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::marker::PhantomData;
use std::os::fd::BorrowedFd;
use std::os::unix::process::ExitStatusExt;
use std::process::ExitStatus;
use std::rc::Rc;
use std::sync::mpsc;
use std::time::{Duration, Instant};

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::io::Errno;

use crate::error::Error;
use crate::start::{Start, store_id, tells_id};
use crate::stop::{
    Following, PATIENCE, Threads, begin_to_trace, check, go_on_to_a_stop, note_ends,
    repeat_interrupted_call, unreadable,
};
use crate::sys::{self, Happened, News};
use crate::target::{Target, in_thread};
use crate::task::{self, Status};
use crate::wake::Wake;

/// What happened to processes that are followed.
#[derive(Debug)]
#[non_exhaustive]
pub enum Event {
    /// A process has made another one, which is followed too, and runs.
    Forked {
        /// The new process.
        pid: u32,
        /// Who has made it.
        parent: u32,
    },
    /// A process executes another program: what was in its memory is gone.
    Executes {
        /// Its id.
        pid: u32,
    },
    /// The program that it executes has come so far that a library can be put into it. It stands
    /// until [`Tracer::go_on`].
    Ready {
        /// Its id.
        pid: u32,
    },
    /// It does not come so far, or nobody knows when. It stands until [`Tracer::go_on`].
    Unknown {
        /// Its id.
        pid: u32,
        /// Why; `None`: its threads cannot be told apart.
        error: Option<Error>,
    },
    /// It has ended.
    Ended {
        /// Its id.
        pid: u32,
        /// How.
        status: ExitStatus,
    },
}

/// Follows processes, until it is dropped and its thread has ended.
#[derive(Debug)]
pub struct Tracer {
    /// Threads that are traced, with their processes.
    threads: BTreeMap<u32, u32>,
    /// Those that stand because nobody has let them go on yet.
    standing: BTreeSet<u32>,
    /// Those that `SIGSTOP` or its like has stopped.
    stopped: BTreeSet<u32>,
    /// Processes that begin to execute a program.
    starting: BTreeMap<u32, Start>,
    /// Those of them that are about to stand where they shall.
    arriving: BTreeSet<u32>,
    /// A child of this process that has executed no program yet.
    child: Option<u32>,
    /// Whether nothing that is executed is made to stand any more.
    ends: bool,
    events: VecDeque<Event>,
    wake: Wake,
    /// The kernel knows this thread as the tracer.
    _here: PhantomData<*const ()>,
}

impl Tracer {
    /// Gets ready. The calling thread is the one that traces, and must end for processes to be let go.
    ///
    /// # Errors
    /// When there is no descriptor or thread left for this process.
    pub fn new() -> std::io::Result<Self> {
        Ok(Self {
            threads: BTreeMap::new(),
            standing: BTreeSet::new(),
            stopped: BTreeSet::new(),
            starting: BTreeMap::new(),
            arriving: BTreeSet::new(),
            child: None,
            ends: false,
            events: VecDeque::new(),
            wake: Wake::new()?,
            _here: PhantomData,
        })
    }

    /// Follows a process: all its threads, those that it makes, and the processes that they make from
    /// now on.
    ///
    /// # Errors
    /// When it may not be traced.
    pub fn follow(&mut self, pid: u32) -> Result<(), Error> {
        check(pid)?;
        let (tracing, until) = mpsc::channel();
        std::thread::scope(|scope| {
            in_thread(scope, pid, move || note_ends(pid, &until))?;
            let done = self.trace_threads(pid);
            drop(tracing);
            done
        })
    }

    /// Follows a child of this process that is about to execute a program. Whoever made it still waits
    /// for its end if it does not: then it is not followed any more, and nothing else may be by this
    /// tracer. Else its end is told with its status, and nobody else hears of it.
    ///
    /// # Errors
    /// When it may not be traced.
    pub fn follow_child(&mut self, pid: u32) -> Result<(), Error> {
        self.child = Some(pid);
        self.follow(pid)
    }

    fn trace_threads(&mut self, pid: u32) -> Result<(), Error> {
        let mut calm = 0;
        while calm < 2 {
            calm += 1;
            for tid in task::threads(pid).ok_or_else(|| unreadable(pid))? {
                if !self.threads.contains_key(&tid)
                    && begin_to_trace(pid, tid, sys::seize_to_follow)?
                {
                    self.threads.insert(tid, pid);
                    calm = 0;
                }
            }
        }
        if self.follows(pid) { Ok(()) } else { Err(Error::NoProcess { pid }) }
    }

    /// Tells whether a process is followed.
    #[must_use]
    pub fn follows(&self, pid: u32) -> bool {
        self.threads.values().any(|of| *of == pid)
    }

    /// Tells whether any process is.
    #[must_use]
    pub fn is_idle(&self) -> bool {
        self.threads.is_empty()
    }

    /// Tells whether `SIGSTOP` or its like has stopped a process.
    #[must_use]
    pub fn is_stopped(&self, pid: u32) -> bool {
        self.stopped.iter().any(|tid| self.threads.get(tid) == Some(&pid))
    }

    /// From now on no program is made to stand before it begins, and those that do go on.
    pub fn let_programs_go(&mut self) {
        self.ends = true;
        let standing = std::mem::take(&mut self.standing);
        standing.into_iter().for_each(|tid| self.resume(tid, 0));
    }

    /// What happened next, if anything has.
    pub fn event(&mut self) -> Option<Event> {
        self.serve();
        self.events.pop_front()
    }

    /// Has all go on that have stopped for the tracer. What there is to tell comes from
    /// [`event`](Self::event).
    ///
    /// Where more happens all the time, this returns all the same.
    pub fn serve(&mut self) {
        /// As much as happens at once.
        const MOST: u32 = 1000;
        for _ in 0..MOST {
            let Some((tid, news)) = sys::any(self.child) else { return };
            match news {
                News::Stands(happened) => self.see(tid, happened),
                News::Ended(status) => {
                    self.end(tid, ExitStatus::from_raw(status));
                    if self.child == Some(tid) {
                        // It stays to be asked for.
                        return;
                    }
                }
            }
        }
    }

    /// Waits until there is something to tell, one of the descriptors can be read from, or the time is
    /// up. Processes are [served](Self::serve) meanwhile.
    ///
    /// # Errors
    /// When waiting fails.
    pub fn wait(&mut self, others: &[BorrowedFd<'_>], time: Duration) -> Result<(), Errno> {
        self.wait_for(others, time, true)
    }

    /// Waits until one of the descriptors can be read from, or the time is up. Processes are
    /// [served](Self::serve) meanwhile.
    ///
    /// # Errors
    /// When waiting fails.
    pub fn wait_for_others(
        &mut self,
        others: &[BorrowedFd<'_>],
        time: Duration,
    ) -> Result<(), Errno> {
        self.wait_for(others, time, false)
    }

    fn wait_for(
        &mut self,
        others: &[BorrowedFd<'_>],
        time: Duration,
        events: bool,
    ) -> Result<(), Errno> {
        /// What happens comes in rows.
        const LOOKS: u32 = 20;
        let end = Instant::now() + time;
        loop {
            for _ in 0..LOOKS {
                self.serve();
                if events && !self.events.is_empty() {
                    return Ok(());
                }
                std::thread::yield_now();
            }
            let found = self.wake.ask();
            let fds = std::iter::once(&found).chain(others);
            let mut fds: Vec<PollFd<'_>> =
                fds.map(|fd| PollFd::from_borrowed_fd(*fd, PollFlags::IN)).collect();
            let left = end.saturating_duration_since(Instant::now());
            match poll(&mut fds, Timespec::try_from(left).ok().as_ref()) {
                Ok(0) => return Ok(()),
                Ok(_) if fds.iter().skip(1).any(|fd| !fd.revents().is_empty()) => return Ok(()),
                Ok(_) | Err(Errno::INTR) if left.is_zero() => return Ok(()),
                Ok(_) | Err(Errno::INTR) => {}
                Err(error) => return Err(error),
            }
        }
    }

    /// Stops all threads of a process, as [`stop`](crate::stop) does. Those that stood before stand
    /// afterwards, too.
    ///
    /// # Errors
    /// As for [`stop`](crate::stop).
    pub fn stop<T>(&mut self, pid: u32, f: impl FnOnce(&mut Target) -> T) -> Result<T, Error> {
        self.stop_within(pid, None, PATIENCE, f)
    }

    /// The same for all threads but one, as [`stop_others`](crate::stop_others) does.
    ///
    /// # Errors
    /// As for [`stop_others`](crate::stop_others).
    pub fn stop_others<T>(
        &mut self,
        pid: u32,
        except: u32,
        patience: Duration,
        f: impl FnOnce(&mut Target) -> T,
    ) -> Result<T, Error> {
        self.stop_within(pid, Some(except), patience, f)
    }

    fn stop_within<T>(
        &mut self,
        pid: u32,
        except: Option<u32>,
        patience: Duration,
        f: impl FnOnce(&mut Target) -> T,
    ) -> Result<T, Error> {
        let of_it = |tid: &&u32| self.threads.get(tid) == Some(&pid);
        let standing = self.standing.iter().filter(of_it).copied().collect();
        let following = Rc::new(RefCell::new(Following { standing, ..Following::default() }));
        let stopped = Threads::stop(pid, except, patience, Some(following.clone()));
        let done = stopped.and_then(Target::new).map(|mut target| f(&mut target));
        self.learn(pid, &following.take());
        done
    }

    /// Notes what happened while a process stood.
    fn learn(&mut self, pid: u32, following: &Following) {
        let now = task::threads(pid).unwrap_or_default();
        self.threads.retain(|tid, of| *of != pid || now.contains(tid));
        self.threads.extend(now.into_iter().map(|tid| (tid, pid)));
        self.stopped.extend(&following.stopped);
        for &(new, parent) in &following.born {
            self.begin(new, parent);
        }
        if following.executes {
            self.execute(pid);
        }
    }

    /// Lets a process go on that stands.
    pub fn go_on(&mut self, pid: u32) {
        let of_it = |tid: &&u32| self.threads.get(tid) == Some(&pid);
        let standing: Vec<u32> = self.standing.iter().filter(of_it).copied().collect();
        for tid in standing {
            self.standing.remove(&tid);
            self.resume(tid, 0);
        }
    }

    fn resume(&self, tid: u32, signal: u8) {
        let pid = self.threads.get(&tid);
        let is_starting = pid.is_some_and(|pid| self.starting.contains_key(pid));
        let resume = if is_starting { sys::resume_to_call } else { sys::resume };
        // Where that fails, it was killed.
        resume(tid, signal).ok();
    }

    fn see(&mut self, tid: u32, happened: Happened) {
        let Some(pid) = self.process_of(tid) else { return self.resume(tid, 0) };
        self.stopped.remove(&tid);
        match happened {
            Happened::Gone => {}
            Happened::Event(sys::EVENT_FORK | sys::EVENT_VFORK | sys::EVENT_CLONE) => {
                if let Ok(new) = sys::event_message(tid) {
                    match task::stat(pid, new) {
                        Some(_) => drop(self.threads.insert(new, pid)),
                        None => self.begin(new, pid),
                    }
                }
                self.resume(tid, 0);
            }
            Happened::Event(sys::EVENT_EXEC) => self.execute(pid),
            Happened::Event(sys::EVENT_STOP) if sys::is_stopped_by_signal(tid) => {
                self.stopped.insert(tid);
                sys::listen(tid).ok();
            }
            Happened::Event(sys::EVENT_STOP)
                if tid == pid && self.arriving.remove(&pid) && !self.ends =>
            {
                self.standing.insert(tid);
                self.events.push_back(Event::Ready { pid });
            }
            Happened::Event(_) => self.resume(tid, 0),
            Happened::Call => self.call(pid, tid),
            Happened::Signal(signal) => self.deliver(pid, tid, signal),
        }
    }

    /// The process of a thread; one that is not known yet was made by one that is, which the kernel
    /// tells later.
    fn process_of(&mut self, tid: u32) -> Option<u32> {
        if let Some(pid) = self.threads.get(&tid) {
            return Some(*pid);
        }
        let pid = Status::of(tid, tid)?.number("Tgid")?;
        self.threads.insert(tid, pid);
        Some(pid)
    }

    fn begin(&mut self, pid: u32, parent: u32) {
        // It may have ended by now, and been seen to.
        if task::stat(pid, pid).is_some() {
            self.threads.insert(pid, pid);
        }
        self.events.push_back(Event::Forked { pid, parent });
    }

    fn end(&mut self, tid: u32, status: ExitStatus) {
        self.standing.remove(&tid);
        self.stopped.remove(&tid);
        if self.threads.remove(&tid) == Some(tid) {
            self.threads.retain(|_, pid| *pid != tid);
            self.starting.remove(&tid);
            self.arriving.remove(&tid);
            self.events.push_back(Event::Ended { pid: tid, status });
        }
    }

    /// A process is about to execute the first instruction of a program.
    fn execute(&mut self, pid: u32) {
        self.threads.retain(|_, of| *of != pid);
        self.threads.insert(pid, pid);
        self.starting.remove(&pid);
        self.arriving.remove(&pid);
        self.child = self.child.filter(|child| *child != pid);
        self.events.push_back(Event::Executes { pid });
        if self.ends {
            return self.resume(pid, 0);
        }
        self.standing.insert(pid);
        match self.stop(pid, Start::prepare).and_then(|start| start) {
            Ok(start) => {
                self.starting.insert(pid, start);
                self.go_on(pid);
            }
            Err(error) => self.events.push_back(Event::Unknown { pid, error: Some(error) }),
        }
    }

    /// A thread of a process that begins is at the beginning or end of a system call.
    fn call(&mut self, pid: u32, tid: u32) {
        let start = self.starting.get(&pid).copied();
        let (Some(start), Ok(Some(registers))) = (start, sys::registers(tid)) else {
            return self.resume(tid, 0);
        };
        match start {
            Start::Linker { sets_pointers, .. } => {
                let Some(registers) = start.arrived(&registers) else {
                    return self.resume(tid, 0);
                };
                if sys::set_registers(tid, &registers).is_ok() {
                    start.clear(pid, tid);
                }
                if sets_pointers {
                    self.starting.insert(pid, Start::runtime(registers.fs_base));
                    return self.resume(tid, 0);
                }
                self.starting.remove(&pid);
                self.arriving.insert(pid);
                go_on_to_a_stop(tid, 0);
            }
            Start::Runtime { not, .. } if registers.fs_base == not || tells_id(&registers) => {
                self.resume(tid, 0);
            }
            Start::Runtime { left: 0, .. } => {
                self.starting.remove(&pid);
                self.standing.insert(tid);
                self.events.push_back(Event::Unknown { pid, error: None });
            }
            Start::Runtime { left, not } => {
                self.starting.insert(pid, Start::Runtime { left: left - 1, not });
                store_id(pid, tid, &registers);
                self.standing.insert(tid);
                let place = self.stop(pid, |target| target.place_of_thread_ids());
                if matches!(place, Ok(Ok(Some(_)))) {
                    self.starting.remove(&pid);
                    self.events.push_back(Event::Ready { pid });
                } else {
                    self.standing.remove(&tid);
                    self.resume(tid, 0);
                }
            }
        }
    }

    /// A signal is about to be delivered to a thread.
    fn deliver(&mut self, pid: u32, tid: u32, signal: u8) {
        if Status::of(pid, tid).is_some_and(|status| status.does_nothing(signal)) {
            // Without a tracer the thread would not have woken up.
            repeat_interrupted_call(pid, tid);
        }
        self.resume(tid, signal);
    }
}
