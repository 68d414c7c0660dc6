//! What the kernel refused, and why.

use std::fmt;
use std::io;

use skep_isa::errno;

/// A system call that failed: its name, or that of the bpf(2) command, and the errno.
#[derive(Debug)]
pub struct Error {
    call: &'static str,
    source: io::Error,
}

/// Result of this crate's calls.
pub type Result<T = (), E = Error> = std::result::Result<T, E>;

impl Error {
    pub(crate) fn new(call: &'static str, source: io::Error) -> Self {
        Self { call, source }
    }

    /// Takes the errno of the call that just failed on this thread.
    pub(crate) fn last(call: &'static str) -> Self {
        Self::new(call, io::Error::last_os_error())
    }

    /// Returns the name of what failed: a command such as `BPF_MAP_CREATE`, a system call, a file.
    #[must_use]
    pub fn call(&self) -> &'static str {
        self.call
    }

    /// Returns the errno, -1 when there is none.
    #[must_use]
    pub fn errno(&self) -> i32 {
        self.source.raw_os_error().unwrap_or(-1)
    }

    /// Tells whether there is no such element, object or file.
    #[must_use]
    pub fn is_not_found(&self) -> bool {
        self.errno() == errno::ENOENT
    }

    /// Says what this process or machine lacks for the call to succeed; `None` when it is not a
    /// matter of rights or of how the kernel was built.
    #[must_use]
    pub fn requirement(&self) -> Option<&'static str> {
        match self.errno() {
            errno::EPERM | errno::EACCES => {
                Some("root, or the capabilities `bpf`, `net_admin`, `perfmon` and `sys_admin`")
            }
            errno::ENOSYS => Some("a kernel that was built with bpf(2)"),
            _ => None,
        }
    }
}

impl fmt::Display for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}: {}", self.call, self.source)
    }
}

impl std::error::Error for Error {
    fn source(&self) -> Option<&(dyn std::error::Error + 'static)> {
        Some(&self.source)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_message_names_the_command_and_the_errno() {
        let error = Error::new("BPF_MAP_CREATE", io::Error::from_raw_os_error(errno::EPERM));
        assert_eq!(error.to_string(), "BPF_MAP_CREATE: Operation not permitted (os error 1)");
        assert_eq!((error.call(), error.errno()), ("BPF_MAP_CREATE", 1));
        assert!(error.requirement().is_some());
        let gone = Error::new("BPF_MAP_GET_FD_BY_ID", io::Error::from_raw_os_error(errno::ENOENT));
        assert!(gone.is_not_found() && gone.requirement().is_none());
    }
}
