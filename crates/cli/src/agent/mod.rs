//! Where the agent's library is that commands are started with.
//!
//! A release build of `skep` carries it (`build/main.rs`) and puts it into a file before it starts
//! a command ([`unpack`]); a debug build looks beside itself. `SKEP_PRELOAD` names another one.

mod calls;
mod hash;
mod unpack;

use std::fmt;
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};

use skep::Dir;

use crate::args::ENV_PRELOAD;
use crate::failure::{Context, Failure, Result};
use crate::live;

/// File name of the agent's library. The agent knows itself in `LD_PRELOAD` by it.
const LIBRARY: &str = "libskep_preload.so";

/// The agent in this command.
#[derive(Debug, Clone, Copy)]
struct Carried<'a> {
    /// As the build [compresses](calls) it.
    compressed: &'a [u8],
    /// The [hash](hash::Hash) of the library.
    hash: &'a str,
}

#[cfg(carries_agent)]
const CARRIED: Option<Carried<'static>> = Some(Carried {
    compressed: include_bytes!(env!("SKEP_AGENT_FILE")),
    hash: env!("SKEP_AGENT_HASH"),
});
#[cfg(not(carries_agent))]
const CARRIED: Option<Carried<'static>> = None;

/// Tells how a library came to be where it is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Source {
    /// `SKEP_PRELOAD` names it.
    Named,
    /// It was in this command.
    Unpacked,
    /// It lies near this command.
    Beside,
}

/// The agent's library in a file.
#[derive(Debug)]
pub struct Library {
    path: PathBuf,
    source: Source,
}

impl Library {
    /// Finds the library: where `SKEP_PRELOAD` says, else the one that this command carries, else
    /// the one beside it.
    pub fn find(dir: &Dir) -> Result<Self> {
        let (path, source) = match std::env::var_os(ENV_PRELOAD).filter(|v| !v.is_empty()) {
            Some(path) => (named(Path::new(&path))?, Source::Named),
            None => match CARRIED {
                Some(agent) => (unpack::unpack(agent, dir.path())?, Source::Unpacked),
                None => (beside()?, Source::Beside),
            },
        };
        if !can_be_preloaded(&path) {
            return Err(Failure::environment(format!(
                "`{}` cannot be preloaded: the dynamic linker splits paths at spaces and \
                 colons, and expands `$`",
                path.display()
            ))
            .hint(format!("put a copy elsewhere and name it in {ENV_PRELOAD}")));
        }
        if source == Source::Named {
            live::agent(&path)?;
        }
        Ok(Self { path, source })
    }

    /// Where it is.
    pub fn path(&self) -> &Path {
        &self.path
    }
}

impl fmt::Display for Library {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let path = self.path.display();
        match self.source {
            Source::Named => write!(f, "`{path}`, which {ENV_PRELOAD} names"),
            Source::Unpacked => write!(f, "this program carries it and has put it into `{path}`"),
            Source::Beside => write!(f, "`{path}`"),
        }
    }
}

/// Tells whether `LD_PRELOAD` can name a file (ld.so(8)): it splits at spaces and colons, and
/// expands `$ORIGIN` and its like.
fn can_be_preloaded(path: &Path) -> bool {
    !path.as_os_str().as_bytes().iter().any(|b| matches!(b, b' ' | b':' | b'$'))
}

fn named(path: &Path) -> Result<PathBuf> {
    let path = std::path::absolute(path).context(format!("{ENV_PRELOAD} is no path"))?;
    if path.is_file() {
        return Ok(path);
    }
    Err(Failure::environment(format!(
        "{ENV_PRELOAD} names `{}`, which is not a file",
        path.display()
    )))
}

fn beside() -> Result<PathBuf> {
    let exe = std::env::current_exe().context("cannot tell where this program is")?;
    let dir = exe.parent().unwrap_or(Path::new("/"));
    // A program built by cargo, and a test of one (in `deps/`).
    let places = [dir.to_owned(), dir.join("..")];
    places.iter().map(|p| p.join(LIBRARY)).find(|p| p.is_file()).ok_or_else(|| {
        Failure::environment(format!(
            "this debug build carries no agent, and there is no `{LIBRARY}` beside `{}`",
            exe.display()
        ))
        .hint(format!("use `cargo build --release`, or name the agent's library in {ENV_PRELOAD}"))
    })
}
