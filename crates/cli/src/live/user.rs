//! Processes of other users, for root.
//!
//! The agent has the rights of its process, so the skep directory must be that user's. skep starts itself
//! anew as that user and keeps capabilities of root's (`owner`): the kernel lets nobody else stop a process that
//! has changed its user, as the workers of servers do.

use std::fs::DirBuilder;
use std::io;
use std::os::unix::fs::{DirBuilderExt, MetadataExt, lchown};
use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::Command;

use rustix::process::{Gid, Uid, getegid, geteuid};
use rustix::thread::{
    CapabilitySet, CapabilitySets, capabilities, configure_capability_in_ambient_set,
    set_capabilities, set_keep_capabilities, set_thread_groups, set_thread_res_gid,
    set_thread_res_uid,
};

use skep::dir::ENV_DIR;

use crate::failure::{Context, Failure, Result};
use crate::owner::ENV_OWNER;
use crate::printer::Printer;

/// What root's environment says of places that are root's.
const PLACES: [&str; 3] = ["HOME", "XDG_RUNTIME_DIR", "XDG_CACHE_HOME"];

/// Goes on as the user of the processes, if skep is root's and they are not: does not return then.
pub fn become_that_of(pids: &[u32], printer: Printer) -> Result {
    if !geteuid().is_root() {
        return Ok(());
    }
    let mut all = pids.iter().filter_map(|pid| Some((*pid, User::of(*pid)?)));
    let Some((first, user)) = all.next() else { return Ok(()) };
    if let Some((other, another)) = all.find(|(_, another)| another.uid != user.uid) {
        return Err(Failure::failed(format!(
            "process {first} is user {}'s, and process {other} is user {}'s",
            user.uid, another.uid
        ))
        .hint("start a `skep` for each user"));
    }
    if user.uid == 0 {
        return Ok(());
    }
    user.make_directory().context("cannot make the directory that `SKEP_DIR` names")?;
    printer.note(&format!("process {first} is user {0}'s: skep works as user {0}", user.uid));
    Err(user.begin_anew())
}

/// Goes on as the owner of the skep directory, if skep is root's and that is not: does not return then. What lies
/// there is that user's, who could have laid links in it.
pub fn become_owner_of(dir: &Path, printer: Printer) -> Result {
    let Some(owner) = std::fs::metadata(dir).ok().filter(|_| geteuid().is_root()) else {
        return Ok(());
    };
    let user = User { uid: owner.uid(), gid: owner.gid() };
    if user.uid == 0 {
        return Ok(());
    }
    let name = dir.display();
    printer.note(&format!("`{name}` is user {0}'s: skep works as user {0}", user.uid));
    Err(user.begin_anew())
}

/// Whose rights a process has.
struct User {
    uid: u32,
    gid: u32,
}

impl User {
    fn of(pid: u32) -> Option<Self> {
        let status = std::fs::read_to_string(format!("/proc/{pid}/status")).ok()?;
        // Real, effective, saved and that for files.
        let effective = |name: &str| {
            let ids = status.lines().find_map(|line| line.strip_prefix(name))?;
            ids.split_ascii_whitespace().nth(1)?.parse().ok()
        };
        Some(Self { uid: effective("Uid:")?, gid: effective("Gid:")? })
    }

    /// Starts skep anew in this process; returns only if that fails.
    fn begin_anew(&self) -> Failure {
        Failure::environment(format!("cannot work as user {}", self.uid))
            .because(&self.execute())
            .hint(
                "give this skep the capabilities CAP_SETUID and CAP_SETGID, or run it as that user",
            )
    }

    fn execute(&self) -> io::Error {
        let owner = format!("{}:{}", geteuid().as_raw(), getegid().as_raw());
        if let Err(error) = self.become_it() {
            return error;
        }
        let mut command = Command::new("/proc/self/exe");
        command.args(std::env::args_os().skip(1)).env(ENV_OWNER, owner);
        for name in PLACES {
            command.env_remove(name);
        }
        command.exec()
    }

    /// Makes the directory that root's environment names, if it is not there: it may lie where only root
    /// can make one.
    fn make_directory(&self) -> io::Result<()> {
        let Some(path) = std::env::var_os(ENV_DIR).filter(|path| !path.is_empty()) else {
            return Ok(());
        };
        if let Some(parent) = Path::new(&path).parent() {
            DirBuilder::new().mode(0o755).recursive(true).create(parent)?;
        }
        match DirBuilder::new().mode(0o700).create(&path) {
            Ok(()) => lchown(path, Some(self.uid), Some(self.gid)),
            Err(e) if e.kind() == io::ErrorKind::AlreadyExists => Ok(()),
            Err(e) => Err(e),
        }
    }

    /// Gives the calling thread this user's ids, and has it keep its capabilities, over `exec` too.
    fn become_it(&self) -> io::Result<()> {
        let (uid, gid) = (Uid::from_raw(self.uid), Gid::from_raw(self.gid));
        let all = capabilities(None)?.permitted;
        set_keep_capabilities(true)?;
        set_thread_groups(&[])?;
        set_thread_res_gid(gid, gid, gid)?;
        set_thread_res_uid(uid, uid, uid)?;
        set_capabilities(
            None,
            CapabilitySets { effective: all, permitted: all, inheritable: all },
        )?;
        for bit in 0..u64::BITS {
            let capability = CapabilitySet::from_bits_retain(1 << bit);
            if all.contains(capability) {
                configure_capability_in_ambient_set(capability, true)?;
            }
        }
        Ok(())
    }
}
