//! A stopped process, and what can be done with it.

use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::mpsc;
use std::thread::{Scope, ScopedJoinHandle};
use std::time::Duration;

use rustix::io::Errno;
use skep_proc::maps::Perms;

use crate::call::Caller;
use crate::error::{Error, Refusal, Unfit};
use crate::memory::{self, Memory};
use crate::registers::Registers;
use crate::sandbox::{Filters, Judge};
use crate::stop::{PATIENCE, Threads, note_ends, own_thread};
use crate::task::Status;
use crate::{rseq, start, stub, sys, task};

/// Stops all threads of a process, calls `f`, and lets them go on as if nothing had happened: with
/// the registers, signal masks and system calls that they had.
///
/// Signals that arrive meanwhile are delivered afterwards. Calls that a stop would make fail with
/// `EINTR` although no signal came (`epoll_wait` is the best known) are made again, with their
/// whole time limit. A process that was stopped by `SIGSTOP` is so again.
///
/// If the calling process is killed at any instruction, the kernel lets the threads go, and each of
/// them goes on rightly. What `f` changed up to then stays.
///
/// Ctrl-Z stops the caller only when the process goes on again, unless the caller has more threads.
///
/// `f` runs on a thread of its own, since the kernel lets go of all that a thread traces when the
/// thread ends.
///
/// # Errors
/// When the process cannot be stopped as a whole: see [`Error`]. `f` has not been called then, and
/// the process runs.
///
/// # Panics
/// When `f` does. The process has been let go before.
///
/// ```no_run
/// let pid = 4711;
/// let ids = skep_inject::stop(pid, |target| target.threads())?;
/// println!("{} threads stood for a moment", ids.len());
/// # Ok::<(), skep_inject::Error>(())
/// ```
pub fn stop<T: Send>(pid: u32, f: impl FnOnce(&mut Target) -> T + Send) -> Result<T, Error> {
    stop_within(pid, None, PATIENCE, f)
}

/// As [`stop`], but the thread `except` runs on: a thread of the caller's own in that process. And the
/// process runs on when a thread does not stop within `patience`.
///
/// # Errors
/// As for [`stop`].
///
/// # Panics
/// As [`stop`].
pub fn stop_others<T: Send>(
    pid: u32,
    except: u32,
    patience: Duration,
    f: impl FnOnce(&mut Target) -> T + Send,
) -> Result<T, Error> {
    stop_within(pid, Some(except), patience, f)
}

fn stop_within<T: Send>(
    pid: u32,
    except: Option<u32>,
    patience: Duration,
    f: impl FnOnce(&mut Target) -> T + Send,
) -> Result<T, Error> {
    let _no_stops = sys::NoTerminalStops::new();
    let (tracing, until) = mpsc::channel();
    let id = AtomicU32::new(0);
    let done = std::thread::scope(|scope| {
        let tracer = in_thread(scope, pid, || {
            id.store(own_thread(), Ordering::Relaxed);
            let target = Threads::stop(pid, except, patience, None).and_then(Target::new);
            drop(tracing);
            target.map(|mut target| f(&mut target))
        })?;
        note_ends(pid, &until);
        tracer.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic))
    });
    // Threads that did not stand are let go by the kernel, a moment after the tracer was joined.
    task::wait_for_end(id.into_inner());
    done
}

/// Does something in a thread of its own, for the sake of a process.
pub(crate) fn in_thread<'scope, T: Send + 'scope>(
    scope: &'scope Scope<'scope, '_>,
    pid: u32,
    f: impl FnOnce() -> T + Send + 'scope,
) -> Result<ScopedJoinHandle<'scope, T>, Error> {
    std::thread::Builder::new().spawn_scoped(scope, f).map_err(|error| {
        let errno = Errno::from_io_error(&error).unwrap_or(Errno::AGAIN);
        Error::Os { pid, call: "clone", errno }
    })
}

/// A process whose threads stand. Made by [`stop`].
#[derive(Debug)]
pub struct Target {
    pub(crate) pid: u32,
    pub(crate) caller: Option<Caller>,
    pub(crate) memory: Memory,
    pub(crate) threads: Threads,
    pub(crate) filters: Filters,
}

impl Target {
    pub(crate) fn new(threads: Threads) -> Result<Self, Error> {
        let pid = threads.pid;
        let first = threads.ids().next().ok_or(Error::NoProcess { pid })?;
        let (memory, filters) = (Memory::open(pid, first)?, Filters::default());
        let target = Self { pid, caller: None, memory, threads, filters };
        for tid in target.threads() {
            target.registers(tid)?;
        }
        Ok(target)
    }

    /// The process's id.
    pub fn pid(&self) -> u32 {
        self.pid
    }

    /// The ids of all threads, in order.
    pub fn threads(&self) -> Vec<u32> {
        self.threads.ids().collect()
    }

    /// From now on a thread may make system calls all of whose seccomp filters `judge` finds harmless, or,
    /// where filters cannot be read, that has those of this process, if `own` says that these are.
    /// Without this, none under seccomp does.
    pub fn judge_filters(&mut self, judge: Judge, own: fn() -> bool) {
        self.filters.judge_by(judge, own);
    }

    /// Tells whether those filters of its threads that are harmless pass another judgement, too: of what can
    /// be left out.
    #[must_use]
    pub fn filters_pass(&self, judge: Judge, own: fn() -> bool) -> bool {
        for tid in self.threads() {
            if let Some(status) = Status::of(self.pid, tid) {
                // The others are left alone.
                self.filters.check(tid, &status).ok();
            }
        }
        self.filters.pass(judge, own)
    }

    /// The registers that a thread will go on with. Of one that is in a system call those that it
    /// was interrupted with: [`Registers::restart`].
    ///
    /// # Errors
    /// When the thread is not one of [`threads`](Self::threads), was killed, or executes 32-bit code.
    pub fn registers(&self, tid: u32) -> Result<Registers, Error> {
        let pid = self.pid;
        if let Some(caller) = self.caller.as_ref().filter(|caller| caller.tid == tid) {
            return Ok(caller.saved);
        }
        match sys::registers(tid) {
            Ok(Some(registers)) => Ok(registers),
            Ok(None) => Err(Error::Refused { pid, reason: Refusal::Compat }),
            Err(_) => Err(Error::NoProcess { pid }),
        }
    }

    /// Copies memory out.
    ///
    /// # Errors
    /// When not all of it is mapped.
    pub fn read(&self, address: u64, len: usize) -> Result<Vec<u8>, Error> {
        self.memory.read(address, len)
    }

    /// Writes bytes, also where the process itself may not: into code and constants. Private
    /// mappings of files get pages of their own then, the files stay as they are.
    ///
    /// # Errors
    /// When not all of it is mapped, or the system forbids it.
    pub fn write(&mut self, address: u64, bytes: &[u8]) -> Result<(), Error> {
        let tid = self.threads.ids().next().ok_or(Error::NoProcess { pid: self.pid })?;
        self.memory.write(tid, address, bytes)
    }

    /// Maps new memory, filled with zeros. Near an address if one is given: a jump reaches either
    /// from the other.
    ///
    /// # Errors
    /// When there is no room, or no thread can make the call.
    pub fn map(&mut self, near: Option<u64>, len: u64, perms: Perms) -> Result<u64, Error> {
        const PRIVATE_ANONYMOUS: u64 = 0x22;
        self.map_with(near, len, perms, PRIVATE_ANONYMOUS, u64::MAX)
    }

    pub(crate) fn map_with(
        &mut self,
        near: Option<u64>,
        len: u64,
        perms: Perms,
        flags: u64,
        fd: u64,
    ) -> Result<u64, Error> {
        const FIXED_NOREPLACE: u64 = 0x10_0000;
        let pid = self.pid;
        let (place, fixed) = match near {
            None => (0, 0),
            Some(address) => {
                let place = memory::find_room(&memory::mappings(pid)?, address, len)
                    .ok_or(Error::NoRoom { pid, address, len })?;
                (place, FIXED_NOREPLACE)
            }
        };
        // The bits of `Perms` up to `EXEC` are those of `PROT_…`.
        let protection = u64::from(perms.0 & 7);
        let mmap = libc::SYS_mmap as u64;
        let at = self.call("mmap", mmap, [place, len, protection, flags | fixed, fd, 0])?;
        // A kernel before Linux 4.17 takes the address for a wish.
        if place != 0 && at != place {
            self.unmap(at, len)?;
            return Err(Error::NoRoom { pid, address: place, len });
        }
        Ok(at)
    }

    /// Unmaps memory.
    ///
    /// # Errors
    /// When no thread can make the call, or the address is no multiple of the page size.
    pub fn unmap(&mut self, address: u64, len: u64) -> Result<(), Error> {
        self.call("munmap", libc::SYS_munmap as u64, [address, len, 0, 0, 0, 0]).map(drop)
    }

    /// Moves threads out of code that is about to change: `to` says for the address at which a
    /// thread will go on where it shall go on instead, if not there. Returns how many were moved.
    ///
    /// A thread in a system call is asked for the address after the instruction `syscall`. The call
    /// may start again two bytes before that address, so the new place needs `syscall` there too.
    ///
    /// # Errors
    /// When a thread that would have to be moved stays in a restartable sequence, which would not
    /// notice any more that it was interrupted. Some threads may have been moved then, and may be
    /// moved back.
    pub fn move_threads(&mut self, to: impl Fn(u64) -> Option<u64>) -> Result<usize, Error> {
        let pid = self.pid;
        let mut moved = 0;
        for tid in self.threads() {
            for tries in 0.. {
                let mut registers = self.registers(tid)?;
                let Some(rip) = to(registers.rip) else { break };
                let is_caller = self.caller.as_ref().is_some_and(|caller| caller.tid == tid);
                if !is_caller && rseq::sequence(&self.memory, tid, registers.rip).is_some() {
                    if tries == rseq::TRIES {
                        return Err(Error::NoCaller { pid, reason: Unfit::Sequence });
                    }
                    self.threads.run_a_little(tid)?;
                    continue;
                }
                // The caller's instructions lead to where it was.
                self.end_calls();
                registers.rip = rip;
                sys::set_registers(tid, &registers).map_err(|_| Error::NoProcess { pid })?;
                moved += 1;
                break;
            }
        }
        Ok(moved)
    }

    /// Where the instructions of [`stub`](crate::stub()) may be written: unused bytes at the end
    /// of mapped code. Where there are none any more, what killed tracers left is written over.
    pub(crate) fn place_of_stub(&self) -> Result<u64, Error> {
        /// So many tracers may have been killed before one looks for another place.
        const PLACES: u64 = 8;
        const LEN: u64 = stub::LEN as u64;
        let ends = memory::ends_of_code(&memory::mappings(self.pid)?);
        let places = || {
            let below = |end: u64| (1..=PLACES).map_while(move |n| end.checked_sub(n * LEN));
            // Behind bytes that are neither unused nor ours is the code.
            let ours = |place: &u64| {
                let bytes = self.memory.read(*place, stub::LEN).ok()?;
                let is_unused = bytes.iter().all(|&byte| byte == 0);
                (is_unused || stub::is_stub(&bytes) || start::is_start(&bytes))
                    .then_some((*place, is_unused))
            };
            ends.iter().flat_map(move |&end| below(end).map_while(move |place| ours(&place)))
        };
        let stands_in = |place: u64| {
            let is_in = |rip: u64| (place..place + LEN).contains(&rip);
            self.threads().iter().any(|&tid| self.registers(tid).is_ok_and(|r| is_in(r.rip)))
        };
        let unused = places().find(|&(_, is_unused)| is_unused);
        unused
            .or_else(|| places().find(|&(place, _)| !stands_in(place)))
            .map(|(place, _)| place)
            .ok_or(Error::NoPlace { pid: self.pid })
    }
}

impl Drop for Target {
    fn drop(&mut self) {
        self.end_calls();
    }
}
