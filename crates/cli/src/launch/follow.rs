//! A command that nothing can be preloaded into: it is followed from its first instruction on, and the
//! agent is put into it as into a process that runs already.

use std::io;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd, RawFd};
use std::os::unix::net::UnixStream;
use std::process::{Child, ExitStatus};
use std::thread::ScopedJoinHandle;
use std::time::Instant;

use skep::link::Untraced;
use skep::process::{Agent, Followed, ProcessError, follow_child};

use super::{Launch, Outcome, Started, bar, wait};
use crate::failure::{Context, Result};
use crate::flag::Flag;
use crate::live;
use crate::printer::Printer;
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
struct Command<'scope> {
    child: Child,
    follower: Option<ScopedJoinHandle<'scope, Result<Followed, ProcessError>>>,
    /// Raised when the thread is about to end.
    over: &'scope Flag,
    followed: Option<Result<Followed, ProcessError>>,
}

impl Started for Command<'_> {
    fn id(&self) -> u32 {
        self.child.id()
    }

    fn ended(&mut self) -> io::Result<Option<(ExitStatus, Instant)>> {
        if self.follower.is_some() && !self.over.is_raised() {
            return Ok(None);
        }
        match self.join() {
            Ok(Followed { ended: Some(ended), .. }) => Ok(Some(*ended)),
            // It goes on by itself.
            _ => self.child.ended(),
        }
    }

    fn fd(&self) -> Option<BorrowedFd<'_>> {
        self.follower.is_some().then(|| self.over.as_fd())
    }
}

impl Command<'_> {
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
        let mut signals = Signals::in_time()?;
        let what = "cannot follow the command";
        let [end, over] = [Flag::new().context(what)?, Flag::new().context(what)?];
        let (gate, opener) = Gate::new().context(what)?;
        let (dir, links, printer) = (self.dir, self.links.clone(), self.printer);
        let start = Instant::now();
        std::thread::scope(|scope| {
            let follower = std::thread::Builder::new().spawn_scoped(scope, || {
                let followed = follow(agent, dir, &links, opener, &end);
                over.raise();
                followed
            });
            let follower = follower.context(what)?;
            let child = self.spawn(Some(gate)).inspect_err(|_| end.raise())?;
            let mut command =
                Command { child, follower: Some(follower), over: &over, followed: None };
            let outcome = wait(&mut command, start, &mut signals, detach, watcher, &mut self.held);
            end.raise();
            command.join();
            let mut outcome = outcome?;
            outcome.untraced = command.followed.and_then(|followed| match followed {
                Ok(followed) => reported(followed, outcome.pid, printer),
                Err(error) => Some(error),
            });
            if let (Some(error), Some(bar)) = (&outcome.untraced, bar(self.command)) {
                let reason = format!("could not be entered: {}", live::chain(error));
                self.note(&Untraced { reason, ..bar.untraced });
            }
            Ok(outcome)
        })
    }
}

/// Says what became of the processes that were followed; why the command itself went on untraced is
/// returned.
fn reported(mut followed: Followed, pid: u32, printer: Printer) -> Option<ProcessError> {
    let at = followed.untraced.iter().position(|(of, ..)| *of == pid);
    let own = at.map(|at| followed.untraced.remove(at));
    live::tell(&followed, printer);
    own.map(|(.., error)| error)
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
