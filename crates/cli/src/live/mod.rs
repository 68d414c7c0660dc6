//! A visit to processes that run already: links are attached in all of them until the end, and then
//! each is left as it was.

use std::cell::Cell;
use std::os::fd::BorrowedFd;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use skep::Dir;
pub use skep::process::Agent;
use skep::process::{Live, ProcessError};

mod follow;
pub mod namespace;
mod user;

pub use follow::{chain, tell};
pub use user::become_owner_of;

use crate::args::ProcessArgs;
use crate::failure::{Context, Failure, Result};
use crate::printer::Printer;
use crate::signals::Signals;
use crate::watch::{LOOK, Watcher};

/// What is attached where, and for how long.
pub struct Visit<'a> {
    agent: &'a Agent,
    dir: &'a Dir,
    pids: Vec<u32>,
    time: Option<Duration>,
    follow: bool,
}

/// How a visit ended.
#[derive(Clone, Debug)]
pub struct Visited {
    /// The processes, with those that were followed.
    pub pids: Vec<u32>,
    /// The signal that ended it.
    interrupted: Option<i32>,
    /// How long the links were attached.
    pub wall_ns: u64,
}

impl Visited {
    /// The status that `skep` ends with: Ctrl-C is how one ends a visit.
    pub fn code(&self) -> u8 {
        match self.interrupted {
            None | Some(libc::SIGINT) => 0,
            Some(signal) => u8::try_from(128 + signal).unwrap_or(255),
        }
    }
}

impl<'a> Visit<'a> {
    /// Plans to visit the processes that the user names.
    pub fn new(agent: &'a Agent, dir: &'a Dir, args: &ProcessArgs) -> Self {
        Self { agent, dir, pids: namespace::ids(args), time: args.time, follow: args.follow }
    }

    /// Their ids, in order.
    pub fn pids(&self) -> &[u32] {
        &self.pids
    }

    /// Attaches the links, waits for the end and leaves the processes. `check` says what is wrong with
    /// what was attached; `detach` turns the links off, before the hooks are taken out. Whoever watches may
    /// end it.
    pub fn make(
        &self,
        links: &[u32],
        check: impl FnOnce() -> Result<Option<Failure>>,
        detach: impl FnOnce(),
        watcher: Watcher<'_>,
        printer: Printer,
    ) -> Result<Visited> {
        if self.follow {
            return self.follow(links, check, detach, watcher, printer);
        }
        let mut signals = Signals::in_time()?;
        let began = Instant::now();
        let mut all: Vec<Live> = Vec::new();
        let patience = Patience::default();
        let is_over = || patience.is_over(signals.is_pending());
        let attached = self.pids.iter().try_for_each(|&pid| {
            let live = self.agent.enter_until(&is_over, pid, self.dir).map_err(failure)?;
            let mut orders = links.iter().map(|link| live.to_attach(*link));
            let done = orders.try_for_each(|order| live.order_until(&is_over, order).map(drop));
            all.push(live);
            done.map_err(|why| failure(ProcessError::Attach { pid, why }))
        });
        let ended = attached.and_then(|()| match check()? {
            Some(failure) => Err(failure),
            None => {
                self.say_attached(printer);
                let running = || {
                    let running = all.iter().filter(|live| !live.has_gone());
                    running.flat_map(|live| live.descriptors()).collect()
                };
                wait(running, &mut signals, self.time, watcher)
            }
        });
        let wall_ns = u64::try_from(began.elapsed().as_nanos()).unwrap_or(u64::MAX);
        detach();
        // The signal that has ended it before it began is known.
        if ended.is_err() {
            signals.take();
        }
        for live in all {
            let pid = live.pid();
            // Whoever asks once more does not want to wait.
            if let Some(why) = live.leave_until(&|| signals.is_pending(), self.agent) {
                printer.warning(&ProcessError::Leave { pid, why }.to_string());
            }
        }
        ended.map(|interrupted| Visited { pids: self.pids.clone(), interrupted, wall_ns })
    }

    fn say_attached(&self, printer: Printer) {
        let until = if self.time.is_some() { "" } else { "; Ctrl-C ends it" };
        printer.note(&format!("attached to {}{until}", self.named()));
    }

    fn named(&self) -> String {
        match &*self.pids {
            [pid] => format!("process {pid}"),
            pids => format!("{} processes", pids.len()),
        }
    }

    /// The files with code that the processes have mapped; of each process its program first.
    pub fn files(&self) -> Vec<PathBuf> {
        self.pids.iter().flat_map(|pid| files_of(*pid)).collect()
    }
}

/// Reads the agent's library.
pub fn agent(path: &Path) -> Result<Agent> {
    Agent::read(path).map_err(failure)
}

fn failure(e: ProcessError) -> Failure {
    let e = match e {
        // What helps is done by the user, where another process may have this id.
        ProcessError::Stopped { pid } => ProcessError::Stopped { pid: namespace::named(pid) },
        e => e,
    };
    Failure { hint: e.hint(), ..Failure::from(e) }
}

/// Waits until a signal asks for an end, the time is up, or nothing runs any more; the signal.
/// `running` says what can be read from when that may have changed.
fn wait<'f>(
    running: impl Fn() -> Vec<BorrowedFd<'f>>,
    signals: &mut Signals,
    time: Option<Duration>,
    mut watcher: Watcher<'_>,
) -> Result<Option<i32>> {
    let end = time.map(|time| Instant::now() + time);
    loop {
        signals.clear();
        if let Some(signal) = signals.take() {
            return Ok(Some(signal.number));
        }
        let running = running();
        let left = end.map(|end| end.saturating_duration_since(Instant::now()));
        let is_over = running.is_empty() || left.is_some_and(|left| left.is_zero());
        if is_over || watcher.as_mut().is_some_and(|watch| watch.look()) {
            return Ok(None);
        }
        let left = if watcher.is_some() { Some(left.unwrap_or(LOOK).min(LOOK)) } else { left };
        let mut fds = vec![PollFd::from_borrowed_fd(signals.fd(), PollFlags::IN)];
        fds.extend(running.into_iter().map(|fd| PollFd::from_borrowed_fd(fd, PollFlags::IN)));
        fds.extend(watcher.iter().map(|watch| PollFd::from_borrowed_fd(watch.fd(), PollFlags::IN)));
        let left = left.and_then(|left| Timespec::try_from(left).ok());
        match poll(&mut fds, left.as_ref()) {
            Ok(_) | Err(rustix::io::Errno::INTR) => {}
            Err(e) => return Err(std::io::Error::from(e)).context("cannot wait for the processes"),
        }
    }
}

/// The files with code that a process has mapped, its program first: as they are named here, or else by
/// its own root.
fn files_of(pid: u32) -> Vec<PathBuf> {
    let entry = skep_proc::maps::entry_of(pid);
    let program = std::fs::read_link(format!("/proc/{entry}/exe"));
    let maps = std::fs::read_to_string(format!("/proc/{entry}/maps")).unwrap_or_default();
    let mapped = maps.lines().filter_map(|line| {
        let mut fields = line.split_ascii_whitespace();
        fields.nth(1).filter(|perms| perms.contains('x'))?;
        let path = line.get(line.find('/')?..)?;
        fields.nth(2).filter(|inode| *inode != "0").map(|_| PathBuf::from(path))
    });
    let mut files: Vec<PathBuf> = Vec::new();
    for path in program.into_iter().chain(mapped) {
        let path = if path.exists() {
            path
        } else {
            let inside = path.strip_prefix("/").unwrap_or(&path).to_owned();
            Path::new(&format!("/proc/{entry}/root")).join(inside)
        };
        if !files.contains(&path) {
            files.push(path);
        }
    }
    files
}

/// How long attaching is still waited for when it is to end. It takes milliseconds, and whoever ends it at
/// once wants the report.
#[derive(Default)]
struct Patience(Cell<Option<Instant>>);

impl Patience {
    /// Tells whether it is over; `asked`: somebody has asked for the end.
    fn is_over(&self, asked: bool) -> bool {
        const LONGEST: Duration = Duration::from_secs(2);
        let since = self.0.get().unwrap_or_else(Instant::now);
        self.0.set(asked.then_some(since));
        asked && since.elapsed() > LONGEST
    }
}
