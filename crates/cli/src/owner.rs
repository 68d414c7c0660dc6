//! Working as another user than who has started skep: what it may do then, and whose its files are.
//!
//! That user owns the skep directory and could lay links in it, to files of others. So skep has no right
//! there that this user has not: of root's capabilities those that write to files are out of effect, but for
//! the moments in which it writes what it was asked for.

use std::fs::File;
use std::io;
use std::os::unix::fs::fchown;

use rustix::thread::{CapabilitySet, CapabilitySets, capabilities, set_capabilities, set_name};

use crate::failure::{Context, Result};

/// Says who has started it, as `UID:GID`.
pub const ENV_OWNER: &str = "SKEP_OWNER";

/// To stop processes and to look at them, to enter namespaces, and to read.
const ALWAYS: CapabilitySet = CapabilitySet::SYS_PTRACE
    .union(CapabilitySet::SYS_ADMIN)
    .union(CapabilitySet::CHECKPOINT_RESTORE)
    .union(CapabilitySet::DAC_READ_SEARCH);

/// To write files of who has started it.
const WRITING: CapabilitySet =
    CapabilitySet::DAC_OVERRIDE.union(CapabilitySet::CHOWN).union(CapabilitySet::FOWNER);

/// Tells whether skep works as another user than who has started it.
pub fn is_another() -> bool {
    std::env::var_os(ENV_OWNER).is_some()
}

/// To be called first of all where [`is_another`]: has this process do with that user's rights what it can.
pub fn begin() -> Result {
    if !is_another() {
        return Ok(());
    }
    // Started as `/proc/self/exe`, it would be called `exe`.
    let _ = set_name(c"skep");
    limit().context("cannot give up root's rights")
}

/// Puts capabilities out of effect in the calling thread and those that it makes.
fn limit() -> io::Result<()> {
    in_effect(ALWAYS)
}

/// Gives what is started from here on that user's rights alone: it may load files that are that user's.
pub fn keep_from_children() -> io::Result<()> {
    let sets = capabilities(None)?;
    let inheritable = CapabilitySet::empty();
    Ok(set_capabilities(None, CapabilitySets { inheritable, ..sets })?)
}

fn in_effect(wanted: CapabilitySet) -> io::Result<()> {
    let sets = capabilities(None)?;
    let effective = sets.permitted.intersection(wanted);
    Ok(set_capabilities(None, CapabilitySets { effective, ..sets })?)
}

/// Does something with files that the user has named, with the rights of who has started skep.
pub fn for_owner<T>(f: impl FnOnce() -> T) -> T {
    if !is_another() {
        return f();
    }
    // What does not get into effect is missed where it is needed, which is said there.
    drop(in_effect(ALWAYS.union(WRITING)));
    let done = f();
    drop(limit());
    done
}

/// Gives a new file to the user who has started skep.
pub fn give(file: &File) {
    let owner = std::env::var(ENV_OWNER).unwrap_or_default();
    let ids =
        owner.split_once(':').and_then(|(uid, gid)| Some((uid.parse().ok()?, gid.parse().ok()?)));
    if let Some((uid, gid)) = ids {
        // Who may not give it away has said so itself.
        drop(fchown(file, Some(uid), Some(gid)));
    }
}
