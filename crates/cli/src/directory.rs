//! The skep directory, as commands open it: to add objects, or to look at what is there.

use std::ops::Deref;

use skep::Dir;
use skep::dir::{DirError, Scratch};

use crate::failure::{Failure, Result};
use crate::orphans;

/// Creates or opens the skep directory and removes what earlier runs left behind.
pub fn create() -> Result<Dir> {
    let path = Dir::default_path();
    let dir = Dir::create(&path).map_err(elsewhere)?;
    orphans::sweep(&dir);
    dir.collect()?;
    Ok(dir)
}

/// As [`create`], for commands that attach: agents may keep what they find out about code.
pub fn create_to_attach() -> Result<Dir> {
    let dir = create()?;
    dir.keep_code();
    Ok(dir)
}

/// The directory of a trace. What the trace made, and let go of before this, goes with it: nobody reads
/// that after the report, and it is as much memory as there were functions.
#[derive(Debug)]
pub struct Tracing(Dir);

impl Deref for Tracing {
    type Target = Dir;

    fn deref(&self) -> &Dir {
        &self.0
    }
}

impl Drop for Tracing {
    fn drop(&mut self) {
        // What cannot be removed now is left to the next one.
        drop(self.0.collect());
    }
}

/// As [`create_to_attach`], for a trace.
pub fn create_to_trace() -> Result<Tracing> {
    create_to_attach().map(Tracing)
}

/// Makes a directory for this process alone.
pub fn scratch() -> Result<Scratch> {
    Scratch::create().map_err(elsewhere)
}

fn elsewhere(error: DirError) -> Failure {
    Failure::from(error).hint(format!(
        "set {} to another directory: one on tmpfs that belongs to user {}, with mode 0700",
        skep::dir::ENV_DIR,
        rustix::process::geteuid().as_raw()
    ))
}

/// Opens the skep directory to look at what is there.
pub fn open() -> Result<Dir> {
    let path = Dir::default_path();
    Dir::open(&path).map_err(|e| {
        let variable = skep::dir::ENV_DIR;
        let hint = match &e {
            DirError::Owner { path, owner, me: 0 } => format!(
                "look into it as its owner: `sudo -u '#{owner}' {variable}={} skep …`",
                path.display()
            ),
            _ => format!("set {variable} to the directory to look into"),
        };
        Failure::from(e).hint(hint)
    })
}
