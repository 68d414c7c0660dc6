//! What can go wrong with the file of an object.

use std::path::PathBuf;

use rustix::io::Errno;

use super::{ObjectKind, VERSION};

/// Says what went wrong with an object file.
#[derive(Debug, Clone, thiserror::Error)]
#[non_exhaustive]
pub enum ObjectError {
    /// The operating system refused a call on a file.
    #[error("`{}`: {call} failed: {}", path.display(), std::io::Error::from_raw_os_error(*errno))]
    Os {
        /// The call.
        call: &'static str,
        /// The file or directory.
        path: PathBuf,
        /// The error number.
        errno: i32,
    },
    /// Memory could not be mapped.
    #[error("{call} failed: {}", std::io::Error::from_raw_os_error(*errno))]
    Map {
        /// The call.
        call: &'static str,
        /// The error number.
        errno: i32,
    },
    /// The file is no object, or a damaged one.
    #[error("`{}` is not a usable object file: {what}", path.display())]
    Damaged {
        /// The file.
        path: PathBuf,
        /// What does not fit.
        what: &'static str,
    },
    /// The file was written by another version of skep.
    #[error("`{}` has format version {found}, this skep reads {VERSION}", path.display())]
    Version {
        /// The file.
        path: PathBuf,
        /// Its version.
        found: u32,
    },
    /// The file holds an object of another kind.
    #[error("`{}` holds {found}, not {want}", path.display())]
    Kind {
        /// The file.
        path: PathBuf,
        /// What it holds.
        found: ObjectKind,
        /// What was asked for.
        want: ObjectKind,
    },
    /// The file belongs to another user.
    #[error("`{}` belongs to user {owner}", path.display())]
    Owner {
        /// The file.
        path: PathBuf,
        /// Its owner.
        owner: u32,
    },
    /// The file was made in another pid namespace, where thread ids mean other threads, or this
    /// process does not know its own.
    #[error("`{}` can only be opened for reading: {what}", path.display())]
    Namespace {
        /// The file.
        path: PathBuf,
        /// Where this process is.
        what: &'static str,
    },
    /// There is no memory for what the object promises to hold.
    #[error("`{}` needs {}, and there are {} {limit}", path.display(), Size(*need), Size(*available))]
    NoMemory {
        /// The file.
        path: PathBuf,
        /// Bytes that it needs.
        need: u64,
        /// Bytes that there are.
        available: u64,
        /// What limits them.
        limit: Limit,
    },
    /// The object is larger than any this crate makes.
    #[error("an object of {payload_len} bytes with {meta_len} bytes of description is too large")]
    TooLarge {
        /// The asked-for payload.
        payload_len: u64,
        /// The asked-for description.
        meta_len: usize,
    },
}

impl ObjectError {
    /// Returns the error number the bpf() door reports.
    #[must_use]
    pub fn errno(&self) -> i32 {
        let e = match self {
            Self::Os { errno, .. } | Self::Map { errno, .. } => return *errno,
            Self::Damaged { .. } | Self::Version { .. } => Errno::UCLEAN,
            Self::Kind { .. } => Errno::INVAL,
            Self::Owner { .. } => Errno::PERM,
            Self::Namespace { .. } => Errno::XDEV,
            Self::TooLarge { .. } => Errno::TOOBIG,
            // What the kernel says when a map's memory cannot be had.
            Self::NoMemory { .. } => Errno::NOMEM,
        };
        e.raw_os_error()
    }
}

/// What limits the memory for a file.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[non_exhaustive]
pub enum Limit {
    /// The space of the file system.
    FileSystem,
    /// The space of a user or group in the file system.
    Quota,
    /// The memory of the machine, where the file system keeps files in it.
    Memory,
    /// The largest file that this process may write (`RLIMIT_FSIZE`).
    FileSize,
}

impl std::fmt::Display for Limit {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(match self {
            Self::FileSystem => "left in its file system",
            Self::Quota => "left in the quota of its file system",
            Self::Memory => "of memory left",
            Self::FileSize => "allowed for a file (`ulimit -f`)",
        })
    }
}

/// Bytes for people.
struct Size(u64);

impl std::fmt::Display for Size {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        const UNITS: [&str; 5] = ["KiB", "MiB", "GiB", "TiB", "PiB"];
        if self.0 < 1024 {
            return write!(f, "{} bytes", self.0);
        }
        let power = (self.0.ilog2() / 10).min(5);
        // Without floating point, whose text takes 16 KB of code.
        let unit = 1_u128 << (10 * power);
        let tenths = (u128::from(self.0) * 10 + unit / 2) / unit;
        write!(f, "{}.{} {}", tenths / 10, tenths % 10, UNITS[power as usize - 1])
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sizes_are_for_people() {
        for (n, text) in [
            (0, "0 bytes"),
            (1023, "1023 bytes"),
            (1024, "1.0 KiB"),
            (1100, "1.1 KiB"),
            (1536, "1.5 KiB"),
            (2047, "2.0 KiB"),
            (3 << 20, "3.0 MiB"),
            (u64::MAX, "16384.0 PiB"),
        ] {
            assert_eq!(Size(n).to_string(), text);
        }
    }
}
