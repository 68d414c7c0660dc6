//! Processes in another PID namespace, such as those of containers.
//!
//! Threads that change maps go by their ids, which mean something in one PID namespace only. So skep does
//! its work in that of the processes: it starts itself there, with a `/proc` of that namespace and a skep
//! directory of its own, and waits.

use std::fs::File;
use std::io;
use std::os::fd::AsFd;
use std::os::unix::process::ExitStatusExt;
use std::path::PathBuf;
use std::process::{Command, ExitStatus};

use rustix::event::{PollFd, PollFlags, poll};
use rustix::mount::{MountFlags, MountPropagationFlags, mount, mount_change};
use rustix::process::{Pid, Signal, getppid, kill_process, set_parent_process_death_signal};
use rustix::thread::{
    LinkNameSpaceType, UnshareFlags, move_into_link_name_space, set_name, unshare_unsafe,
};
use skep::dir::ENV_DIR;
use skep_proc::namespace::{own_id, proc_is_of_another};

use super::user;
use crate::args::ProcessArgs;
use crate::failure::{Context, Failure, Result};
use crate::printer::Printer;
use crate::signals::Signals;
use crate::{directory, owner};

/// Tells a skep that it was started in the PID namespace of the processes: of each its id there and, behind a
/// colon, the one that the user named.
const ENV_IDS: &str = "SKEP_IDS_IN_NAMESPACE";

/// What [`ENV_IDS`] says; `None`: the user has started this skep.
fn inside() -> Option<Vec<(u32, u32)>> {
    let ids = std::env::var(ENV_IDS).ok()?;
    let pairs = ids.split(',').filter_map(|pair| pair.split_once(':'));
    Some(
        pairs.filter_map(|(there, here)| Some((there.parse().ok()?, here.parse().ok()?))).collect(),
    )
}

/// The ids of the processes that the user names, where this skep runs.
pub fn ids(args: &ProcessArgs) -> Vec<u32> {
    match inside() {
        Some(ids) => ids.into_iter().map(|(there, _)| there).collect(),
        None => args.processes(),
    }
}

/// The id by which the user, who is outside, names a process.
pub fn named(pid: u32) -> u32 {
    let pair = inside().and_then(|ids| ids.into_iter().find(|(there, _)| *there == pid));
    pair.map_or(pid, |(_, here)| here)
}

/// Does the work `here` if the processes are in this PID namespace, else by a skep in theirs; and as their
/// user, if root is asked for it.
pub fn run(args: &ProcessArgs, printer: Printer, here: impl FnOnce() -> Result<u8>) -> Result<u8> {
    if inside().is_some() {
        // Started as `/proc/self/exe`, it would be called `exe`.
        let _ = set_name(c"skep");
    }
    owner::begin()?;
    let here = || {
        if owner::is_another() {
            owner::keep_from_children().context("cannot give up root's rights")?;
        }
        here()
    };
    if inside().is_some() {
        end_with_parent().context("cannot be told when the `skep` outside ends")?;
        see_processes().context("cannot mount `/proc` of the PID namespace")?;
        return here();
    }
    user::become_that_of(&args.processes(), printer)?;
    match Elsewhere::find(&args.processes())? {
        None => here(),
        Some(there) => there.run(printer),
    }
}

/// Processes in another PID namespace.
struct Elsewhere {
    /// Their ids here and there.
    pids: Vec<(u32, u32)>,
    namespace: File,
}

impl Elsewhere {
    /// `None`: the processes are here, or it cannot be told, and what cannot be done there is said when it
    /// is tried.
    fn find(pids: &[u32]) -> Result<Option<Self>> {
        if proc_is_of_another() {
            let message = "`/proc` is that of another PID namespace";
            return Err(Failure::environment(message).hint(
                "mount that of this one: `mount -t proc proc /proc`, or `unshare --mount-proc`",
            ));
        }
        let Ok(here) = std::fs::read_link("/proc/self/ns/pid") else { return Ok(None) };
        let namespaces: Vec<Option<PathBuf>> =
            pids.iter().map(|pid| std::fs::read_link(of(*pid)).ok()).collect();
        let Some(there) = namespaces.iter().flatten().find(|namespace| **namespace != here) else {
            return Ok(None);
        };
        if let Some((pid, _)) =
            pids.iter().zip(&namespaces).find(|(_, n)| n.as_ref() != Some(there))
        {
            return Err(Failure::failed(format!(
                "process {pid} is in another PID namespace than the other processes"
            ))
            .hint("start a `skep` for each namespace"));
        }
        let first = pids.first().copied().unwrap_or_default();
        let opened = File::open(of(first));
        let namespace = opened.map_err(|e| cannot_enter(first).because(&e))?;
        let there = |pid: &u32| Ok((*pid, own_id(*pid).ok_or_else(|| cannot_enter(*pid))?));
        let pids = pids.iter().map(there).collect::<Result<_>>()?;
        Ok(Some(Self { pids, namespace }))
    }

    /// Has a skep do there what this one was asked for; its exit status.
    fn run(&self, printer: Printer) -> Result<u8> {
        let (first, _) = self.pids.first().copied().unwrap_or_default();
        for (here, there) in &self.pids {
            printer.note(&format!("process {here} is process {there} of its PID namespace"));
        }
        let scratch = directory::scratch()?;
        // The namespace of children that come from now on.
        move_into_link_name_space(self.namespace.as_fd(), Some(LinkNameSpaceType::ProcessID))
            .map_err(|e| {
                cannot_enter(first)
                    .because(&e)
                    .hint("only root can do that; or run `skep` inside the container")
            })?;
        let ids: Vec<String> =
            self.pids.iter().map(|(here, there)| format!("{there}:{here}")).collect();
        let mut command = Command::new("/proc/self/exe");
        command.args(std::env::args_os().skip(1));
        command.env(ENV_IDS, ids.join(",")).env(ENV_DIR, scratch.dir().path());
        let mut signals = Signals::in_time()?;
        let status = wait(&mut command, &mut signals)
            .context(format!("cannot start `skep` in the PID namespace of process {first}"))?;
        if status.signal() == Some(libc::SIGKILL) {
            let what = format!("`skep` was killed in the PID namespace of process {first}");
            return Err(Failure::failed(what).hint(
                "the kernel does that when the first process of a namespace ends: end `skep` before, by `--for TIME` or Ctrl-C",
            ));
        }
        let code = status.code().or_else(|| status.signal().map(|signal| 128 + signal));
        Ok(code.and_then(|code| u8::try_from(code).ok()).unwrap_or(255))
    }
}

/// Runs a command and passes on the signals that are sent to this process alone; those of the terminal
/// reach both.
fn wait(command: &mut Command, signals: &mut Signals) -> io::Result<ExitStatus> {
    let mut child = command.spawn()?;
    loop {
        signals.clear();
        if let Some(status) = child.try_wait()? {
            return Ok(status);
        }
        while let Some(signal) = signals.take() {
            let pid = Pid::from_raw(i32::try_from(child.id()).unwrap_or_default());
            if let (true, Some(signal), Some(pid)) = (signal.sent, signal.named(), pid) {
                // It may have ended.
                let _ = kill_process(pid, signal);
            }
        }
        match poll(&mut [PollFd::from_borrowed_fd(signals.fd(), PollFlags::IN)], None) {
            Ok(_) | Err(rustix::io::Errno::INTR) => {}
            Err(e) => return Err(e.into()),
        }
    }
}

/// Has this process leave, as on SIGTERM, when the skep ends that waits for it outside.
fn end_with_parent() -> io::Result<()> {
    set_parent_process_death_signal(Some(Signal::TERM))?;
    // A parent outside has no id here; whoever has taken its place has one.
    match getppid() {
        None => Ok(()),
        Some(_) => Err(io::Error::other("it has ended")),
    }
}

/// Replaces `/proc`, in a mount namespace of this process alone, by that of its PID namespace.
fn see_processes() -> io::Result<()> {
    // SAFETY: this process has one thread, and no other namespace or table of descriptors changes.
    unsafe { unshare_unsafe(UnshareFlags::NEWNS)? };
    mount_change("/", MountPropagationFlags::REC | MountPropagationFlags::PRIVATE)?;
    mount("proc", "/proc", "proc", MountFlags::empty(), None)?;
    Ok(())
}

fn of(pid: u32) -> String {
    format!("/proc/{pid}/ns/pid")
}

fn cannot_enter(pid: u32) -> Failure {
    Failure::environment(format!("cannot enter the PID namespace of process {pid}"))
}
