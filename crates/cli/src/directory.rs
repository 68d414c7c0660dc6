//! The skep directory, as commands open it: to add objects, or to look at what is there.

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

/// The same for commands that attach: agents may keep what they find out about code.
pub fn create_to_attach() -> Result<Dir> {
    let dir = create()?;
    dir.keep_code();
    Ok(dir)
}

/// Makes a directory for this process alone.
pub fn scratch() -> Result<Scratch> {
    Scratch::create().map_err(elsewhere)
}

fn elsewhere(error: DirError) -> Failure {
    Failure::from(error).hint(format!(
        "set {} to another directory: one on tmpfs that belongs to you, with mode 0700",
        skep::dir::ENV_DIR
    ))
}

/// Opens the skep directory to look at what is there.
pub fn open() -> Result<Dir> {
    let path = Dir::default_path();
    Dir::open(&path).map_err(|e| {
        Failure::from(e).hint(format!("set {} to the directory to look into", skep::dir::ENV_DIR))
    })
}
