//! Starting a command with the agent in it, and waiting for its end.

use std::ffi::OsString;
use std::os::fd::BorrowedFd;
use std::os::unix::process::{CommandExt, ExitStatusExt};
use std::path::Path;
use std::process::{Child, Command, ExitStatus};
use std::time::{Duration, Instant};

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::process::{Pid, kill_process};
use skep::Dir;
use skep::dir::{ENV_DIR, ENV_LINKS, OWN_DIR};
use skep::link::{LinkFile, Untraced};
use skep::process::{Agent, ProcessError};
use skep_proc::launch::{self, LaunchError, Obstacle};

use crate::failure::{Context, Failure, Result};
use crate::held::Held;
use crate::inherited;
use crate::printer::Printer;
use crate::signals::{Blocked, Signal, Signals};
use crate::watch::{LOOK, Watcher};

mod follow;

/// How long a command may take to end after Ctrl-C before its report is printed without its end.
const PATIENCE: Duration = Duration::from_secs(1);

/// A command that can be started.
#[derive(Debug)]
pub struct Program {
    /// As it was called.
    pub name: String,
    /// What will keep the agent out of it.
    pub obstacle: Option<String>,
    /// The agent cannot be preloaded into it, but put there when it has begun.
    pub is_followed: bool,
}

/// Looks for the command as `execvp` will, and at what it is.
pub fn resolve(command: &[OsString]) -> Result<Program> {
    let name = command.first().map(OsString::as_os_str).unwrap_or_default();
    let shown = name.to_string_lossy().into_owned();
    let cannot = |e: &LaunchError| {
        let failure = Failure::environment(format!("cannot start `{shown}`")).because(e);
        match e {
            LaunchError::NotExecutable { path } if path.is_file() => {
                failure.hint(format!("make it executable with `chmod +x`, or name the program that reads it: `skep … -- sh {shown}`"))
            }
            _ => failure,
        }
    };
    let path = launch::find(name, std::env::var_os("PATH").as_deref()).map_err(|e| cannot(&e))?;
    match launch::inspect(&path) {
        Ok(found) => {
            let inside = if found.scripts.is_empty() {
                String::new()
            } else {
                format!(" (its interpreter is `{}`)", found.program.display())
            };
            let obstacle = found.preload_obstacle().filter(|o| !preloaded(o));
            let is_followed = obstacle.as_ref().is_some_and(may_follow);
            let obstacle = obstacle.map(|o| format!("{o}{inside}"));
            Ok(Program { name: shown, obstacle, is_followed })
        }
        // It may be executed and not read: whether the agent starts is seen afterwards.
        Err(LaunchError::Os { call: "open", .. }) => {
            Ok(Program { name: shown, obstacle: None, is_followed: false })
        }
        Err(e) => Err(cannot(&e)),
    }
}

/// Tells whether the agent can be put into a program after all.
fn may_follow(obstacle: &Obstacle) -> bool {
    matches!(obstacle, Obstacle::Static | Obstacle::OtherLibc { .. } | Obstacle::NoLibrary)
}

/// Why a command will not be traced.
struct Bar {
    untraced: Untraced,
    /// It would not even run with the agent in its environment.
    breaks: bool,
}

/// Looks at a command as [`resolve`] does; `None` when nothing keeps the agent out of it, or it is
/// not known.
fn bar(command: &[OsString]) -> Option<Bar> {
    let path = launch::find(command.first()?, std::env::var_os("PATH").as_deref()).ok()?;
    let found = launch::inspect(&path).ok()?;
    let obstacle = found.preload_obstacle().filter(|o| !preloaded(o))?;
    // The agent does no harm where nobody loads it, and the program's own children may want it.
    let breaks = !matches!(obstacle, Obstacle::Static | Obstacle::Secure(_));
    let text = obstacle.to_string();
    let reason = match text.strip_prefix("it ") {
        Some(predicate) => predicate.to_owned(),
        None => format!("is not run with the agent: {text}"),
    };
    let path = found.program.canonicalize().unwrap_or(found.program);
    Some(Bar { untraced: Untraced { path: path.display().to_string(), reason }, breaks })
}

/// Tells whether the user has put the sanitizer's library, which must be the first, into
/// `LD_PRELOAD`.
fn preloaded(obstacle: &Obstacle) -> bool {
    let Obstacle::First { library } = obstacle else { return false };
    std::env::var("LD_PRELOAD").is_ok_and(|v| v.contains(library))
}

/// What a command is started with.
#[derive(Debug)]
pub struct Launch<'a> {
    /// The command and its arguments.
    pub command: &'a [OsString],
    /// The agent's library.
    pub library: &'a Path,
    /// The directory with the links.
    pub dir: &'a Dir,
    /// Links to attach.
    pub links: Vec<u32>,
    /// Where its output goes while the terminal has a table.
    pub held: Option<Held>,
    /// The library, read, where it is put into the command by following that.
    pub agent: Option<&'a Agent>,
    /// For what there is to say of processes that were followed.
    pub printer: Printer,
}

/// How a command ended.
#[derive(Debug)]
pub struct Outcome {
    /// Its status; `None` when it still runs.
    pub status: Option<ExitStatus>,
    /// The signal that ended the tracing before.
    pub interrupted: Option<i32>,
    /// From start to end.
    pub wall: Duration,
    /// Its process id.
    pub pid: u32,
    /// Why the agent could not be put into it.
    pub untraced: Option<ProcessError>,
}

impl Outcome {
    /// The status `skep` ends with, in the manner of shells.
    pub fn code(&self) -> u8 {
        let code = match (self.interrupted, self.status) {
            (Some(signal), None) => 128 + signal,
            (_, Some(status)) => {
                status.code().or_else(|| status.signal().map(|s| 128 + s)).unwrap_or(255)
            }
            (None, None) => 0,
        };
        u8::try_from(code & 0xff).unwrap_or(255)
    }

    /// The command's own status as a number, for reports; `None` when it still runs.
    pub fn status_number(&self) -> Option<i32> {
        let status = self.status?;
        status.code().or_else(|| status.signal().map(|s| 128 + s))
    }
}

impl Launch<'_> {
    fn environment(&self) -> (OsString, String) {
        let mut preload =
            std::env::var_os("LD_PRELOAD").filter(|v| !v.is_empty()).unwrap_or_default();
        if !preload.is_empty() {
            preload.push(":");
        }
        preload.push(self.library);
        let own = std::env::var_os(ENV_DIR).map(|_| OWN_DIR.to_owned());
        let links = self.links.iter().map(u32::to_string).chain(own).collect::<Vec<_>>().join(",");
        (preload, links)
    }

    /// Notes for the report that the command is not traced.
    fn note(&self, untraced: &Untraced) {
        for id in &self.links {
            if let Ok(link) = LinkFile::open(self.dir, *id) {
                // What cannot be noted is missing in the report.
                drop(link.not_traced(untraced));
            }
        }
    }

    /// Starts the command. One that is followed waits at the gate for that.
    fn spawn(&self, gate: Option<follow::Gate>) -> Result<Child> {
        let bar = if gate.is_some() { None } else { bar(self.command) };
        if let Some(bar) = &bar {
            self.note(&bar.untraced);
        }
        let [program, arguments @ ..] = self.command else {
            return Err(Failure::environment("there is no command"));
        };
        let blocked = Blocked::new().context("cannot block signals")?;
        let mask = blocked.old();
        let (preload, links) = self.environment();
        let mut command = Command::new(program);
        command.args(arguments);
        if gate.is_none() && bar.is_none_or(|bar| !bar.breaks) {
            command.env("LD_PRELOAD", preload).env(ENV_DIR, self.dir.path()).env(ENV_LINKS, links);
        }
        if let Some(held) = &self.held {
            held.redirect(&mut command).context("cannot redirect the command's output")?;
        }
        // SAFETY: the closure makes system calls only; it takes no lock and allocates nothing. The
        // descriptor is this process's copy of one that is open in its parent, and nobody uses it here.
        unsafe {
            command.pre_exec(move || {
                inherited::restore()?;
                if let Some(gate) = &gate {
                    libc::close(gate.parent());
                    gate.pass()?;
                }
                mask.set()
            });
        }
        command.spawn().context(format!("cannot start `{}`", Path::new(program).display()))
    }

    /// Runs the command to its end. A signal that asks for an end calls `detach`, and then leaves
    /// the command a second; so does whoever watches, as with Ctrl-C.
    pub fn run(&mut self, detach: impl FnOnce(), watcher: Watcher<'_>) -> Result<Outcome> {
        if let Some(agent) = self.agent {
            return self.run_followed(agent, detach, watcher);
        }
        let mut signals = Signals::in_time()?;
        let start = Instant::now();
        let mut child = self.spawn(None)?;
        wait(&mut child, start, &mut signals, detach, watcher, &mut self.held)
    }
}

/// A command that was started.
trait Started {
    fn id(&self) -> u32;

    /// How it ended, and when.
    fn ended(&mut self) -> std::io::Result<Option<(ExitStatus, Instant)>>;

    /// Readable when that should be asked, which it should at the end of a child, too.
    fn fd(&self) -> Option<BorrowedFd<'_>>;
}

impl Started for Child {
    fn id(&self) -> u32 {
        self.id()
    }

    fn ended(&mut self) -> std::io::Result<Option<(ExitStatus, Instant)>> {
        Ok(self.try_wait()?.map(|status| (status, Instant::now())))
    }

    fn fd(&self) -> Option<BorrowedFd<'_>> {
        None
    }
}

fn wait(
    process: &mut dyn Started,
    start: Instant,
    signals: &mut Signals,
    detach: impl FnOnce(),
    mut watcher: Watcher<'_>,
    held: &mut Option<Held>,
) -> Result<Outcome> {
    let pid = process.id();
    let mut detach = Some(detach);
    let mut interrupted = None;
    let mut deadline: Option<Instant> = None;
    loop {
        signals.clear();
        let ended = process.ended().context("cannot wait for the command")?;
        let status = ended.map(|(status, _)| status);
        if let Some(held) = held {
            held.trim();
        }
        // Nobody is asked twice.
        let asked = watcher.as_mut().is_some_and(|watch| watch.look());
        watcher = watcher.filter(|_| !asked);
        let mut asked = asked.then_some(Signal { number: libc::SIGINT, sent: true });
        while let Some(signal) = signals.take().or_else(|| asked.take()) {
            watcher = None;
            if let Some(detach) = detach.take() {
                detach();
                interrupted = Some(signal.number);
                deadline = Some(Instant::now() + PATIENCE);
            } else {
                deadline = Some(Instant::now());
            }
            if status.is_none() {
                forward(signal, pid);
            }
        }
        let late = deadline.is_some_and(|d| Instant::now() >= d);
        if status.is_some() || late {
            let end = ended.map_or_else(Instant::now, |(_, when)| when);
            let wall = end.saturating_duration_since(start);
            return Ok(Outcome { status, interrupted, wall, pid, untraced: None });
        }
        let left = deadline.map(|d| d.saturating_duration_since(Instant::now()));
        let left = if watcher.is_some() { Some(LOOK) } else { left };
        let left = left.and_then(|d| Timespec::try_from(d).ok());
        let watched = watcher.as_ref().map(|watch| watch.fd());
        let fds = [Some(signals.fd()), watched, process.fd()].into_iter().flatten();
        let mut fds: Vec<PollFd<'_>> =
            fds.map(|fd| PollFd::from_borrowed_fd(fd, PollFlags::IN)).collect();
        match poll(&mut fds, left.as_ref()) {
            Ok(_) | Err(rustix::io::Errno::INTR) => {}
            Err(e) => return Err(std::io::Error::from(e)).context("cannot wait for the command"),
        }
    }
}

/// Passes a signal on, unless it came from the terminal and so reached the command too.
fn forward(signal: Signal, pid: u32) {
    let hangup = matches!(signal.number, libc::SIGTERM | libc::SIGHUP);
    if (signal.sent || hangup)
        && let (Some(pid), Some(number)) =
            (i32::try_from(pid).ok().and_then(Pid::from_raw), signal.named())
    {
        // It may have ended in this moment.
        let _ = kill_process(pid, number);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn outcome(raw: Option<i32>, interrupted: Option<i32>) -> u8 {
        let (wall, untraced) = (Duration::ZERO, None);
        let status = raw.map(ExitStatus::from_raw);
        Outcome { status, interrupted, wall, pid: 1, untraced }.code()
    }

    #[test]
    fn the_exit_status_is_that_of_a_shell() {
        assert_eq!(outcome(Some(7 << 8), None), 7);
        assert_eq!(outcome(Some(libc::SIGSEGV), None), 139);
        assert_eq!(outcome(Some(libc::SIGABRT | 0x80), None), 134, "with a core");
        assert_eq!(
            outcome(Some(0), Some(libc::SIGTERM)),
            0,
            "a server that was asked to end, and did"
        );
        assert_eq!(outcome(Some(libc::SIGINT), Some(libc::SIGINT)), 130);
        assert_eq!(outcome(None, Some(libc::SIGTERM)), 143);
    }
}
