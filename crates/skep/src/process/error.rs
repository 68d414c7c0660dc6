//! Why an agent is not put into a process.

use std::io;
use std::path::PathBuf;

use skep_inject::{Error as StopError, ImageError};

use super::remedy::remedy;

/// Why programs are not attached in a process that runs already. It goes on as before.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum ProcessError {
    /// The agent's library cannot be read.
    #[error("cannot read `{}`", path.display())]
    Read {
        /// Its path.
        path: PathBuf,
        /// Why.
        source: io::Error,
    },
    /// The file is another one.
    #[error("`{}` is not the agent's library", path.display())]
    Library {
        /// Its path.
        path: PathBuf,
        /// What is wrong with it.
        source: ImageError,
    },
    /// The library is of another version.
    #[error("the agent's library has no `{name}`")]
    Symbol {
        /// What it lacks.
        name: &'static str,
    },
    /// No process can have this id.
    #[error("{pid} is not the id of a process")]
    NoId {
        /// The id.
        pid: u32,
    },
    /// A system call failed.
    #[error("cannot attach to process {pid}: `{call}` failed")]
    Os {
        /// The process.
        pid: u32,
        /// The call.
        call: &'static str,
        /// Why.
        source: io::Error,
    },
    /// The process cannot be stopped or changed.
    #[error("cannot attach to process {pid}")]
    Stop {
        /// The process.
        pid: u32,
        /// Why.
        source: skep_inject::Error,
    },
    /// It has no C library, nor a runtime, that the agent knows.
    #[error("cannot attach to process {pid}: its threads cannot be told apart")]
    NoRuntime {
        /// The process.
        pid: u32,
    },
    /// The agent did not begin.
    #[error("cannot attach to process {pid}: {why}")]
    Begin {
        /// The process.
        pid: u32,
        /// Why.
        why: String,
    },
    /// The agent refused a link.
    #[error("cannot attach to process {pid}: {why}")]
    Attach {
        /// The process.
        pid: u32,
        /// Why.
        why: String,
    },
    /// Something of the agent stays in the process.
    #[error("process {pid} was not left as it was: {why}")]
    Leave {
        /// The process.
        pid: u32,
        /// What.
        why: String,
    },
    /// The agent of a version is in the process that makes no room for others.
    #[error("another version of skep has been in process {pid}")]
    OtherVersion {
        /// The process.
        pid: u32,
    },
    /// Calls are still inside of another version's hooks.
    #[error(
        "cannot attach to process {pid}: its threads are still inside functions that another version of skep ({version}) had hooked"
    )]
    OtherInside {
        /// The process.
        pid: u32,
        /// That version.
        version: String,
    },
    /// There have been too many versions.
    #[error(
        "cannot attach to process {pid}: {count} other versions of skep have been there, and what stays of each adds up"
    )]
    OtherVersions {
        /// The process.
        pid: u32,
        /// How many.
        count: usize,
    },
    /// An agent works there already.
    #[error("another skep{who} is attached to process {pid}")]
    Busy {
        /// The process.
        pid: u32,
        /// Which, as far as is known: its process and version, in parentheses.
        who: String,
    },
    /// Its memory cgroup is full.
    #[error(
        "cannot attach to process {pid}: its control group has {} kB of memory left, and the agent takes up to \
         16 MB: the kernel would end a process for that", left >> 10
    )]
    Memory {
        /// The process.
        pid: u32,
        /// Bytes that are left.
        left: u64,
        /// The file that has the limit.
        limit: PathBuf,
    },
    /// A stopped process would never answer.
    #[error("process {pid} is stopped")]
    Stopped {
        /// The process.
        pid: u32,
    },
    /// The process could not use this user's skep directory.
    #[error("process {pid} is user {user}'s, and the skep directory is another user's")]
    User {
        /// The process.
        pid: u32,
        /// Its user.
        user: u32,
    },
}

impl ProcessError {
    /// What may help.
    #[must_use]
    pub fn hint(&self) -> Option<String> {
        Some(match self {
            Self::Symbol { .. } => "use the library of this very version of skep".to_owned(),
            Self::NoRuntime { pid } => {
                let maps = std::fs::read_to_string(format!("/proc/{pid}/maps")).unwrap_or_default();
                match old_glibc(&maps) {
                    Some(version) => format!(
                        "it uses glibc {version} without `libpthread`, which keeps no thread ids before 2.34; \
                         start it with skep: `skep trace … -- COMMAND`"
                    ),
                    None => "it has no C library that skep knows, nor Go's runtime; where it has only just begun, try again".to_owned(),
                }
            }
            Self::Begin { pid, .. } | Self::Attach { pid, .. } => return remedy(*pid),
            Self::Stop { source: StopError::Call { call: "mprotect", errno, .. }, .. }
                if *errno == rustix::io::Errno::ACCESS =>
            {
                "it forbids itself new code (`PR_SET_MDWE`, systemd's `MemoryDenyWriteExecute=`), or SELinux \
                 does; start it without that".to_owned()
            }
            Self::Stop { pid, source: StopError::Call { .. } | StopError::NoRoom { .. } } => {
                return remedy(*pid);
            }
            Self::Memory { limit, .. } => format!("raise the limit in `{}`", limit.display()),
            Self::OtherInside { .. } => "try again when these calls have returned; use that version; or start the \
                program again".to_owned(),
            Self::OtherVersions { .. } => "start the program again".to_owned(),
            Self::OtherVersion { .. } => "use that version, or start the program again".to_owned(),
            Self::Busy { .. } => {
                "a process has one at a time; give it more patterns, or wait for its end".to_owned()
            }
            Self::Stopped { pid } => format!("`kill -CONT {pid}` lets it go on"),
            Self::User { user, .. } => format!(
                "the skep directory must be that user's, too: work as user {user}, as `skep` does for root's `-p`"
            ),
            _ => return None,
        })
    }
}

/// What the agent says, with the system's words for an error that it knows the number of.
pub(super) fn named(why: &str) -> String {
    const UNNAMED: &str = "system error (os error ";
    let Some((before, rest)) = why.split_once(UNNAMED) else { return why.to_owned() };
    let number = rest.split_once(')').and_then(|(n, after)| Some((n.parse().ok()?, after)));
    match number {
        Some((number, after)) => {
            format!("{before}{}{}", io::Error::from_raw_os_error(number), named(after))
        }
        None => why.to_owned(),
    }
}

/// The version of a mapped glibc before 2.34, which has it in its file's name.
fn old_glibc(maps: &str) -> Option<&str> {
    maps.lines().find_map(|line| line.rsplit_once("/libc-")?.1.strip_suffix(".so"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn errors_of_an_agent_get_their_names() {
        let named = |why| named(why);
        assert_eq!(
            named("cannot open `a`: system error (os error 2)"),
            "cannot open `a`: No such file or directory (os error 2)"
        );
        for plain in ["", "it has ended", "system error (os error ", "system error (os error x)"] {
            assert_eq!(named(plain), plain);
        }
    }

    #[test]
    fn old_c_libraries_are_known_by_their_files() {
        let maps = |file: &str| {
            format!(
                "55d0-55d1 r-xp 00000000 08:01 7  /usr/bin/sleep\n\
                 7f10-7f20 r-xp 00000000 08:01 9  {file}\n\
                 7f30-7f40 r-xp 00000000 08:01 8  /usr/lib/x86_64-linux-gnu/libcap.so.2\n"
            )
        };
        assert_eq!(old_glibc(&maps("/usr/lib/x86_64-linux-gnu/libc-2.31.so")), Some("2.31"));
        assert_eq!(old_glibc(&maps("/usr/lib/x86_64-linux-gnu/libc.so.6")), None);
        assert_eq!(old_glibc(""), None);
    }
}
