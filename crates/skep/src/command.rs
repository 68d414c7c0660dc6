//! Commands that are started with the agent, which attaches links before their `main`; and processes
//! that run already.

use std::ffi::OsStr;
use std::path::{Path, PathBuf};
use std::process::Command;

use skep_store::Dir;
use skep_store::dir::{ENV_DIR, ENV_LINKS};

use crate::error::{Error, Result};
use crate::process::{Agent, Attached};

/// Names the agent's library.
const ENV_PRELOAD: &str = "SKEP_PRELOAD";

/// Makes a command that links of a directory trace, each given by its own directory and its id.
/// Without `agent`, the library is looked for.
pub(crate) fn traced<'l>(
    dir: &Dir,
    program: &OsStr,
    links: impl Iterator<Item = (&'l Dir, u32)>,
    agent: Option<&Path>,
) -> Result<Command> {
    let ids = ids_of(dir, links)?;
    let mut command = Command::new(program);
    if ids.is_empty() {
        return Ok(command);
    }
    let ids: Vec<String> = ids.iter().map(u32::to_string).collect();
    let mut preload = std::env::var_os("LD_PRELOAD").unwrap_or_default();
    if !preload.is_empty() {
        preload.push(":");
    }
    let library = library(agent)?;
    // The dynamic linker skips what is no library, and loads any other.
    Agent::read(&library)?;
    preload.push(library);
    command.env("LD_PRELOAD", preload).env(ENV_DIR, dir.path()).env(ENV_LINKS, ids.join(","));
    Ok(command)
}

/// Attaches links in a process.
pub(crate) fn entered<'l>(
    dir: &Dir,
    pid: u32,
    links: impl Iterator<Item = (&'l Dir, u32)>,
    agent: Option<&Path>,
) -> Result<Attached> {
    Attached::new(dir, pid, &ids_of(dir, links)?, &library(agent)?)
}

/// The ids of links, each once: attached twice it would run twice.
fn ids_of<'l>(dir: &Dir, links: impl Iterator<Item = (&'l Dir, u32)>) -> Result<Vec<u32>> {
    let mut ids: Vec<u32> = Vec::new();
    for (of, link) in links {
        if of.path() != dir.path() {
            let (path, session) = (of.path().to_owned(), dir.path().to_owned());
            return Err(Error::OtherDirectory { link, path, session });
        }
        if !ids.contains(&link) {
            ids.push(link);
        }
    }
    Ok(ids)
}

/// Finds the agent's library, by a path that the dynamic linker can load.
fn library(agent: Option<&Path>) -> Result<PathBuf> {
    let looked_for = match agent {
        Some(path) => vec![path.to_owned()],
        None => places()?,
    };
    // The command may have another working folder.
    let found = looked_for.iter().find_map(|path| path.canonicalize().ok().filter(|p| p.is_file()));
    let Some(path) = found else { return Err(Error::NoAgent { looked_for }) };
    if path.as_os_str().as_encoded_bytes().iter().any(|b| matches!(b, b' ' | b':' | b'$')) {
        return Err(Error::AgentPath { path });
    }
    Ok(path)
}

/// Where the agent's library may be.
fn places() -> Result<Vec<PathBuf>> {
    if let Some(path) = std::env::var_os(ENV_PRELOAD).filter(|p| !p.is_empty()) {
        return Ok(vec![path.into()]);
    }
    let own = std::env::current_exe()
        .map_err(|source| Error::Read { path: "/proc/self/exe".into(), source })?;
    Ok(own.ancestors().skip(1).take(2).map(|dir| dir.join("libskep_preload.so")).collect())
}
