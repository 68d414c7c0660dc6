//! A live process that is told apart from those that have its id later, and from what it executes.

use std::os::fd::OwnedFd;

use rustix::event::{PollFd, PollFlags, Timespec};
use rustix::process::{Pid, PidfdFlags};

use super::filter::{Filter, Want};
use super::identity::{Identity, Stat, entry_of};
use super::live::Live;
use super::vma::Vma;
use super::{MapSource, MapsError, NoBuildId};

/// The mappings of a process, with answers that are never those of another one.
///
/// The process is held by a descriptor (pidfd; before Linux 5.3 by its start time), so an id that is
/// used again is noticed. When the process executes another program, questions fail with
/// [`MapsError::Execed`] until [`reopen`](Self::reopen), which begins another
/// [generation](Self::generation): what was known of the addresses before is worth nothing then.
///
/// After `exec` the kernel ends the old address space, and questions to it fail, unless others still
/// use it: a process that was created by `vfork` or `posix_spawn` shares the one of its parent, and
/// questions would go on being answered, by the parent's. [`check`](Self::check) notices that too;
/// [`query`](MapSource::query) leaves it out, as it takes longer than the question.
#[derive(Debug)]
pub struct Process {
    pid: u32,
    pidfd: Option<OwnedFd>,
    identity: Identity,
    layout: [u64; 5],
    live: Live,
    generation: u64,
}

impl Process {
    /// Opens a process.
    ///
    /// # Errors
    /// [`MapsError::Ended`], [`MapsError::KernelThread`], [`MapsError::NoPermission`].
    pub fn open(pid: u32) -> Result<Self, MapsError> {
        loop {
            match Self::open_once(pid) {
                // In between: the new program is the one that was asked for.
                Err(MapsError::Execed { .. }) => {}
                other => return other,
            }
        }
    }

    fn open_once(pid: u32) -> Result<Self, MapsError> {
        let id = i32::try_from(pid).ok().and_then(Pid::from_raw);
        let id = id.ok_or(MapsError::Ended { pid })?;
        // Where the system call is missing or forbidden the start time has to do.
        let pidfd = match rustix::process::pidfd_open(id, PidfdFlags::empty()) {
            Err(rustix::io::Errno::SRCH) => return Err(MapsError::Ended { pid }),
            other => other.ok(),
        };
        let stat = Stat::of(pid).ok_or(MapsError::Ended { pid })?;
        if stat.kernel_thread {
            return Err(MapsError::KernelThread { pid });
        }
        // A main thread that has ended has no address space.
        let stat = if stat.zombie { Stat::of(entry_of(pid)).unwrap_or(stat) } else { stat };
        let live = Live::of(pid).map_err(|error| match error {
            MapsError::Gone => MapsError::Ended { pid },
            error => error,
        })?;
        let identity = Identity::of(pid);
        let process = Self { pid, pidfd, identity, layout: stat.layout, live, generation: 0 };
        // Whatever was read before is of this process if it has not ended by now.
        process.check()?;
        Ok(process)
    }

    /// Remembers build ids in `known`, as [`Live::with_build_ids`]; [`reopen`](Self::reopen) keeps to
    /// that.
    #[must_use]
    pub fn with_build_ids(self, known: std::sync::Arc<super::BuildIds>) -> Self {
        Self { live: self.live.with_build_ids(known), ..self }
    }

    /// Process id.
    pub fn pid(&self) -> u32 {
        self.pid
    }

    /// Which process it is.
    pub fn identity(&self) -> Identity {
        self.identity
    }

    /// How often [`reopen`](Self::reopen) found another address space.
    pub fn generation(&self) -> u64 {
        self.generation
    }

    /// The source behind, for options such as [`Live::text_only`].
    pub fn live(&self) -> &Live {
        &self.live
    }

    /// Tells whether the process still is the one that was opened, with the same program.
    ///
    /// # Errors
    /// [`MapsError::Ended`] or [`MapsError::Execed`].
    pub fn check(&self) -> Result<(), MapsError> {
        let ended = MapsError::Ended { pid: self.pid };
        if self.pidfd.as_ref().is_some_and(has_ended) {
            return Err(ended);
        }
        let stat = Stat::of(self.pid).ok_or(ended.clone())?;
        if stat.start_time != self.identity.start_time {
            return Err(ended);
        }
        if stat.zombie {
            // All of it is about to end; or its main thread has ended, and others go on.
            return if self.live.is_gone() { Err(ended) } else { Ok(()) };
        }
        if stat.layout == self.layout && !self.live.is_gone() {
            return Ok(());
        }
        // It may have begun to end since the first look, which takes the address space away, too.
        let goes_on = |now: &Stat| now.start_time == stat.start_time && !now.zombie;
        match Stat::of(self.pid).filter(goes_on) {
            Some(_) => Err(MapsError::Execed { pid: self.pid }),
            None => Err(ended),
        }
    }

    /// Goes on with what the process has executed. Tells whether that was something new.
    ///
    /// # Errors
    /// As [`open`](Self::open); [`MapsError::Ended`] also if another process has the id.
    pub fn reopen(&mut self) -> Result<bool, MapsError> {
        match self.check() {
            Ok(()) => return Ok(false),
            Err(MapsError::Execed { .. }) => {}
            Err(error) => return Err(error),
        }
        let new = Self::open(self.pid)?;
        // The descriptor of the old one decides whether the new one is the same process.
        if new.identity != self.identity || self.pidfd.as_ref().is_some_and(has_ended) {
            return Err(MapsError::Ended { pid: self.pid });
        }
        let generation = self.generation + 1;
        let live = new.live.with_build_ids(self.live.build_ids());
        *self = Self { generation, live, ..new };
        Ok(true)
    }

    /// Says why the address space is gone.
    fn explain(&self, error: MapsError) -> MapsError {
        match error {
            MapsError::Gone => match self.check() {
                Err(why) => why,
                // It has ended in between, or will in a moment.
                Ok(()) => MapsError::Gone,
            },
            error => error,
        }
    }
}

impl MapSource for Process {
    fn query(&self, addr: u64, filter: &Filter, want: Want) -> Result<Option<Vma>, MapsError> {
        self.live.query(addr, filter, want).map_err(|e| self.explain(e))
    }

    fn all(&self, filter: &Filter, want: Want) -> Result<Vec<Vma>, MapsError> {
        self.live.all(filter, want).map_err(|e| self.explain(e))
    }

    fn build_id(&self, vma: &Vma) -> Result<Option<Vec<u8>>, MapsError> {
        self.live.build_id(vma).map_err(|e| self.explain(e))
    }

    fn no_build_id(&self, vma: &Vma) -> Option<NoBuildId> {
        self.live.no_build_id(vma)
    }

    fn generation(&self) -> u64 {
        self.generation
    }

    fn reads_all(&self) -> bool {
        self.live.reads_all()
    }
}

/// Tells whether the process of a pidfd has ended; a zombie has.
fn has_ended(pidfd: &OwnedFd) -> bool {
    let now = Timespec { tv_sec: 0, tv_nsec: 0 };
    let mut fds = [PollFd::new(pidfd, PollFlags::IN)];
    loop {
        match rustix::event::poll(&mut fds, Some(&now)) {
            Err(rustix::io::Errno::INTR) => {}
            other => return other.is_ok_and(|ready| ready > 0),
        }
    }
}
