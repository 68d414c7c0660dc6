//! Links in running processes, in all processes that these make, and in the programs that they
//! execute.
//!
//! One thread traces them all, since the kernel knows one tracer of a process, and speaks with their
//! agents. A child of `fork` has its parent's hooks and no agent; that is put there only to take the
//! hooks out. A program that a process executes stands before its first instruction of its own until
//! the links are attached there.

use std::collections::{BTreeMap, BTreeSet};
use std::os::fd::BorrowedFd;
use std::os::unix::fs::FileExt;
use std::process::ExitStatus;
use std::time::{Duration, Instant};

use skep_inject::{Event, Tracer};
use skep_store::Dir;
use skep_store::live;

use super::mark::{self, Mark};
use super::turn::Turn;
use super::{Agent, Follower, Live, ProcessError, Result, Stopper};

/// How long leaving all processes may take. Where it takes longer their agents do the rest, and copies of
/// hooks stay in children.
const LEAVING: Duration = Duration::from_secs(8);

/// What became of processes that were followed.
#[derive(Debug, Default)]
pub struct Followed {
    /// Processes that links were attached in, or that were made by such with their hooks.
    pub pids: BTreeSet<u32>,
    /// Programs that went on untraced: the process, what it executed, and why.
    pub untraced: Vec<(u32, String, ProcessError)>,
    /// Processes that were not left as they were.
    pub left: Vec<ProcessError>,
    /// How and when the child ended, if it did ([`follow_child`]).
    pub ended: Option<(ExitStatus, Instant)>,
}

/// Attaches links in processes, and follows them until all have ended or `until` can be read from. Then
/// each is left as it was. `begun` is called when the links are attached in the first ones.
///
/// To be called on a thread of its own, which ends then: so the kernel lets the processes go.
///
/// # Errors
/// When the first ones cannot be attached to. They are left then.
pub fn follow(
    agent: &Agent,
    dir: &Dir,
    links: &[u32],
    pids: &[u32],
    until: BorrowedFd<'_>,
    begun: impl FnOnce(),
) -> Result<Followed> {
    let mut all = All::new(agent, dir, links, until)?;
    let entered = pids.iter().try_for_each(|&pid| {
        // Who has the turn may be a tracer.
        let turn = agent.turn(&mut all.by, pid)?;
        all.by.tracer.follow(pid).map_err(|source| ProcessError::Stop { pid, source })?;
        all.enter_in_turn(pid, turn)
    });
    if entered.is_ok() {
        begun();
        all.wait();
    }
    all.leave();
    entered.map(|()| all.seen)
}

/// Follows a child of this process that is about to execute a program: there and in what it makes and
/// executes links are attached, until it ends or `until` can be read from. Then each process is left as
/// it was. `begun` is called when the child may execute the program.
///
/// Until this returns, nobody else may wait for the child; after that somebody has to if it did not end.
/// To be called on a thread of its own, as [`follow`].
///
/// # Errors
/// When it may not be followed.
pub fn follow_child(
    agent: &Agent,
    dir: &Dir,
    links: &[u32],
    pid: u32,
    until: BorrowedFd<'_>,
    begun: impl FnOnce(),
) -> Result<Followed> {
    let mut all = All::new(agent, dir, links, until)?;
    all.by.tracer.follow_child(pid).map_err(|source| ProcessError::Stop { pid, source })?;
    all.child = Some(pid);
    begun();
    all.wait();
    all.leave();
    Ok(all.seen)
}

struct All<'a> {
    agent: &'a Agent,
    dir: &'a Dir,
    links: &'a [u32],
    by: Follower<'a>,
    /// Whose end is everybody's.
    child: Option<u32>,
    lives: BTreeMap<u32, Live>,
    /// Those that have another one's hooks, and no agent; with the one that made them.
    forked: BTreeMap<u32, u32>,
    seen: Followed,
}

impl<'a> All<'a> {
    fn new(
        agent: &'a Agent,
        dir: &'a Dir,
        links: &'a [u32],
        until: BorrowedFd<'a>,
    ) -> Result<Self> {
        let os = |source: std::io::Error| {
            let is_thread = source.kind() == std::io::ErrorKind::WouldBlock;
            let call = if is_thread { "clone" } else { "eventfd" };
            ProcessError::Os { pid: std::process::id(), call, source }
        };
        let by = Follower { tracer: Tracer::new().map_err(os)?, until, end: None };
        let (lives, forked, seen) = <_>::default();
        Ok(Self { agent, dir, links, by, child: None, lives, forked, seen })
    }

    /// Attaches the links in a process.
    fn enter(&mut self, pid: u32) -> Result {
        let turn = self.agent.turn(&mut self.by, pid)?;
        self.enter_in_turn(pid, turn)
    }

    /// As [`Self::enter`], by who has the turn.
    fn enter_in_turn(&mut self, pid: u32, turn: Turn) -> Result {
        let mut live = self.agent.enter_by(&mut self.by, pid, self.dir, turn)?;
        // There may be many, and the lock is an open file.
        live.give_turn();
        let mut orders = self.links.iter().map(|link| live.to_attach(*link));
        let done = orders.try_for_each(|order| live.order_by(&mut self.by, order).map(drop));
        match done {
            Ok(()) => {
                self.lives.insert(pid, live);
                self.seen.pids.insert(pid);
                Ok(())
            }
            Err(why) => {
                live.leave_by(&mut self.by, self.agent);
                Err(ProcessError::Attach { pid, why })
            }
        }
    }

    fn wait(&mut self) {
        const LONG: Duration = Duration::from_secs(3600);
        loop {
            // There may be more all the time.
            while !self.by.is_over()
                && let Some(event) = self.by.tracer.event()
            {
                self.see(event);
            }
            // Where waiting fails, there is nothing better than to leave.
            if self.by.tracer.is_idle()
                || self.seen.ended.is_some()
                || self.by.is_over()
                || self.by.tracer.wait(&[self.by.until], LONG).is_err()
            {
                return;
            }
        }
    }

    fn see(&mut self, event: Event) {
        match event {
            Event::Forked { pid, parent }
                if self.lives.contains_key(&parent) || self.forked.contains_key(&parent) =>
            {
                self.forked.insert(pid, parent);
                self.seen.pids.insert(pid);
            }
            Event::Ended { pid, status } => {
                self.lives.remove(&pid);
                self.forked.remove(&pid);
                self.note_end(pid, status);
            }
            Event::Executes { pid } => {
                self.lives.remove(&pid);
                self.forked.remove(&pid);
            }
            Event::Ready { pid } => {
                if let Err(error) = self.enter(pid) {
                    self.not_traced(pid, error);
                }
                self.by.tracer.go_on(pid);
            }
            Event::Unknown { pid, error } => {
                let stop = |source| ProcessError::Stop { pid, source };
                self.not_traced(pid, error.map_or(ProcessError::NoRuntime { pid }, stop));
                self.by.tracer.go_on(pid);
            }
            _ => {}
        }
    }

    fn note_end(&mut self, pid: u32, status: ExitStatus) {
        if self.child == Some(pid) {
            self.seen.ended = Some((status, Instant::now()));
        }
    }

    fn not_traced(&mut self, pid: u32, error: ProcessError) {
        let program = std::fs::read_link(format!("/proc/{pid}/exe"));
        // One that was killed meanwhile is not missed.
        if let Ok(program) = program {
            self.seen.untraced.push((pid, program.display().to_string(), error));
        }
    }

    /// Takes all hooks out, for as long as that may take. What is executed from now on is not traced.
    fn leave(&mut self) {
        self.by.end = Some(Instant::now() + LEAVING);
        self.by.tracer.let_programs_go();
        // What happened before that was asked for.
        self.see_last();
        while let Some((pid, live)) = self.lives.pop_first() {
            // One whose time is up ends by itself when it is dropped.
            if let Some(why) = live.leave_by(&mut self.by, self.agent) {
                self.seen.left.push(ProcessError::Leave { pid, why });
            }
        }
        loop {
            self.see_last();
            if self.by.is_over() {
                return self.tell_left();
            }
            let Some((pid, parent)) = self.forked.pop_first() else { return };
            match self.leave_forked(pid, parent) {
                Ok(()) => {}
                // Its agent could open nothing.
                Err(ProcessError::User { pid, user }) => {
                    let why =
                        format!("it is user {user}'s by now, and keeps hooks that do nothing");
                    self.seen.left.push(ProcessError::Leave { pid, why });
                }
                // It has ended, or is about to.
                Err(_) if std::fs::read_link(format!("/proc/{pid}/exe")).is_err() => {}
                Err(error) => self.seen.left.push(error),
            }
        }
    }

    /// Children that there was no time for: as those of a process that is not followed.
    fn tell_left(&mut self) {
        let is_there = |pid: &u32| std::fs::read_link(format!("/proc/{pid}/exe")).is_ok();
        let why = "it was made meanwhile, and keeps hooks that do nothing";
        let left = self.forked.keys().copied().filter(is_there);
        let left = left.map(|pid| ProcessError::Leave { pid, why: why.into() });
        self.seen.left.extend(left);
    }

    /// What was made meanwhile has hooks, too, and what has executed a program has none.
    fn see_last(&mut self) {
        while !self.by.is_over()
            && let Some(event) = self.by.tracer.event()
        {
            match event {
                Event::Forked { pid, parent } => {
                    if self.lives.contains_key(&parent) || self.forked.contains_key(&parent) {
                        self.seen.pids.insert(pid);
                    }
                    self.forked.insert(pid, parent);
                }
                event @ (Event::Executes { .. } | Event::Ended { .. }) => self.see(event),
                Event::Ready { pid } | Event::Unknown { pid, .. } => self.by.tracer.go_on(pid),
                _ => {}
            }
        }
    }

    /// Takes the hooks out of a process that has them from its parent.
    fn leave_forked(&mut self, pid: u32, parent: u32) -> Result {
        // Until it executes a program, a child of `vfork` has its parent's memory.
        if skep_inject::share_memory(pid, parent) == Some(true) {
            return Ok(());
        }
        let (image, hash) = (&self.agent.image, self.agent.hash);
        let is_own = |mark: &Mark| mark.hash == hash && mark.is_whole;
        let Some(mark) = Mark::all(pid, image).into_iter().find(is_own) else {
            return Ok(());
        };
        // The agent's locks are as they were when the process was made.
        let mut busy = [0; 4];
        let at = mark.loaded.start + self.agent.symbol(live::BUSY)?;
        let memory = mark::memory(pid);
        if memory.and_then(|memory| memory.read_exact_at(&mut busy, at)).is_err() {
            return Ok(());
        }
        if busy != [0; 4] {
            let why = "it was made while functions were hooked or unhooked";
            return Err(ProcessError::Leave { pid, why: why.into() });
        }
        let turn = self.agent.turn(&mut self.by, pid)?;
        let live = self.agent.enter_by(&mut self.by, pid, self.dir, turn)?;
        let left = live.leave_by(&mut self.by, self.agent);
        left.map_or(Ok(()), |why| Err(ProcessError::Leave { pid, why }))
    }
}
