//! A command that nothing can be preloaded into: it is followed from its first instruction on, and the
//! agent is put into it as into a process that runs already.

use std::io;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd, RawFd};
use std::os::unix::net::UnixStream;
use std::process::{Child, ExitStatus};
use std::thread::ScopedJoinHandle;
use std::time::Instant;

use skep::process::{Agent, Followed, ProcessError, follow_child};

use super::{Launch, Outcome, wait};
use crate::failure::{Context, Result};
use crate::flag::Flag;
use crate::live;
use crate::signals::Signals;
use crate::watch::Watcher;

/// Where the forked child waits until it is followed.
pub(super) struct Gate {
    child: OwnedFd,
    /// The other end, which the child has, too.
    parent: RawFd,
}

impl Gate {
    /// The gate, and the end of whoever opens it.
    fn new() -> io::Result<(Self, UnixStream)> {
        let (parent, child) = UnixStream::pair()?;
        Ok((Self { child: child.into(), parent: parent.as_raw_fd() }, parent))
    }

    /// What the child has to close: it would not see that its parent has ended.
    pub(super) fn parent(&self) -> RawFd {
        self.parent
    }

    /// Says who the child is, and waits. For a forked child before it executes the command: only system
    /// calls.
    pub(super) fn pass(&self) -> io::Result<()> {
        let id = rustix::process::getpid().as_raw_nonzero().get();
        rustix::io::write(&self.child, &id.to_ne_bytes())?;
        loop {
            match rustix::io::read(&self.child, &mut [0]) {
                Ok(1..) => return Ok(()),
                Ok(0) => return Err(io::ErrorKind::BrokenPipe.into()),
                Err(rustix::io::Errno::INTR) => {}
                Err(error) => return Err(error.into()),
            }
        }
    }
}

/// A command that is followed by another thread.
pub(super) struct Command<'scope> {
    child: Child,
    follower: Option<ScopedJoinHandle<'scope, Result<Followed, ProcessError>>>,
    /// Raised when the thread is about to end.
    over: &'scope Flag,
    followed: Option<Result<Followed, ProcessError>>,
}

impl Command<'_> {
    pub(super) fn id(&self) -> u32 {
        self.child.id()
    }

    /// How it ended, and when.
    pub(super) fn ended(&mut self) -> io::Result<Option<(ExitStatus, Instant)>> {
        if self.follower.is_some() && !self.over.is_raised() {
            return Ok(None);
        }
        match self.join() {
            Ok(Followed { ended: Some(ended), .. }) => Ok(Some(*ended)),
            // It goes on by itself.
            _ => Ok(self.child.try_wait()?.map(|status| (status, Instant::now()))),
        }
    }

    /// Readable when that should be asked.
    pub(super) fn fd(&self) -> Option<BorrowedFd<'_>> {
        self.follower.is_some().then(|| self.over.as_fd())
    }

    fn join(&mut self) -> &Result<Followed, ProcessError> {
        let follower = &mut self.follower;
        self.followed.get_or_insert_with(|| match follower.take().map(ScopedJoinHandle::join) {
            Some(Ok(followed)) => followed,
            Some(Err(panic)) => std::panic::resume_unwind(panic),
            None => Ok(Followed::default()),
        })
    }
}

impl Launch<'_> {
    /// As [`run`](Launch::run).
    pub(super) fn run_followed(
        &mut self,
        agent: &Agent,
        detach: impl FnOnce(),
        watcher: Watcher<'_>,
    ) -> Result<Outcome> {
        let mut signals = Signals::install().context("cannot handle signals")?;
        let what = "cannot follow the command";
        let [end, over] = [Flag::new().context(what)?, Flag::new().context(what)?];
        let (gate, opener) = Gate::new().context(what)?;
        let (dir, links, printer) = (self.dir, self.links.clone(), self.printer);
        let start = Instant::now();
        std::thread::scope(|scope| {
            let follower = scope.spawn(|| {
                let followed = follow(agent, dir, &links, opener, &end);
                over.raise();
                followed
            });
            let child = self.spawn(Some(gate)).inspect_err(|_| end.raise())?;
            let command = Command { child, follower: Some(follower), over: &over, followed: None };
            let mut process = super::Process::Followed(command);
            let outcome = wait(&mut process, start, &mut signals, detach, watcher, &mut self.held);
            end.raise();
            let super::Process::Followed(mut command) = process else { return outcome };
            let mut outcome = outcome?;
            let pid = command.id();
            command.join();
            match command.followed {
                Some(Ok(mut followed)) => {
                    let of_it = |(of, ..): &(u32, _, _)| *of == pid;
                    if let Some(at) = followed.untraced.iter().position(of_it) {
                        let (.., error) = followed.untraced.remove(at);
                        outcome.untraced = Some(error);
                    }
                    live::tell(&followed, printer);
                }
                Some(Err(error)) => outcome.untraced = Some(error),
                None => {}
            }
            Ok(outcome)
        })
    }
}

/// Waits for the child at the gate, lets it pass, and follows it.
fn follow(
    agent: &Agent,
    dir: &skep::Dir,
    links: &[u32],
    mut opener: UnixStream,
    until: &Flag,
) -> Result<Followed, ProcessError> {
    let mut id = [0; 4];
    if io::Read::read_exact(&mut opener, &mut id).is_err() {
        // There is none.
        return Ok(Followed::default());
    }
    let mut open = || io::Write::write_all(&mut opener, &[1]).unwrap_or_default();
    let pid = u32::from_ne_bytes(id);
    let followed = follow_child(agent, dir, links, pid, until.as_fd(), &mut open);
    if followed.is_err() {
        // It runs all the same.
        open();
    }
    followed
}
