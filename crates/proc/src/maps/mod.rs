//! Mappings of a process: one question, several places to ask it.

use std::fmt;
use std::ops::{BitOr, Range};

use rustix::io::Errno;

mod text;

pub use text::parse;

/// Permission bits of a mapping; the values are those of the kernel's `PROCMAP_QUERY_VMA_*`.
#[derive(Clone, Copy, Default, PartialEq, Eq, Hash)]
pub struct Perms(pub u8);

impl Perms {
    /// No bit at all.
    pub const NONE: Self = Self(0);
    /// Readable.
    pub const READ: Self = Self(1);
    /// Writable.
    pub const WRITE: Self = Self(2);
    /// Executable.
    pub const EXEC: Self = Self(4);
    /// `MAP_SHARED`, the `s` of the text, also when not writable.
    pub const SHARED: Self = Self(8);

    /// Tells whether all bits of `other` are set.
    pub const fn contains(self, other: Self) -> bool {
        self.0 & other.0 == other.0
    }

    /// Tells whether any bit of `other` is set.
    pub const fn intersects(self, other: Self) -> bool {
        self.0 & other.0 != 0
    }
}

impl BitOr for Perms {
    type Output = Self;
    fn bitor(self, other: Self) -> Self {
        Self(self.0 | other.0)
    }
}

impl fmt::Display for Perms {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let bit = |p, yes, no| if self.contains(p) { yes } else { no };
        write!(f, "{}{}{}{}", bit(Self::READ, 'r', '-'), bit(Self::WRITE, 'w', '-'), bit(Self::EXEC, 'x', '-'), bit(Self::SHARED, 's', 'p'))
    }
}

impl fmt::Debug for Perms {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

/// Device number of a mapped file, as the mapping shows it.
///
/// On overlay and btrfs file systems this is not the `st_dev` that `stat` answers.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Dev {
    /// Major number.
    pub major: u32,
    /// Minor number.
    pub minor: u32,
}

/// One mapping (VMA).
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Vma {
    /// First address.
    pub start: u64,
    /// First address after it.
    pub end: u64,
    /// Permissions.
    pub perms: Perms,
    /// File offset of `start`; 0 without a file.
    pub offset: u64,
    /// Device of the file.
    pub dev: Dev,
    /// Inode of the file.
    pub inode: u64,
    /// Name as raw bytes; `None` if there is none or it was not asked for.
    ///
    /// The text form writes a newline as `\012` and leaves a backslash alone; this field holds what the source said.
    pub name: Option<Vec<u8>>,
    /// Build id of the file, when asked for and known.
    pub build_id: Option<Vec<u8>>,
    /// Page size; 0 when the source does not know it.
    pub page_size: u64,
}

impl Vma {
    /// The addresses covered.
    pub fn range(&self) -> Range<u64> {
        self.start..self.end
    }

    /// Tells whether `addr` is inside.
    pub fn contains(&self, addr: u64) -> bool {
        self.start <= addr && addr < self.end
    }

    /// Tells whether a file is behind it; shared anonymous memory counts, it has a hidden file.
    pub fn file_backed(&self) -> bool {
        self.dev != Dev::default() || self.inode != 0
    }

    /// The name without a trailing ` (deleted)`, and whether that was there.
    ///
    /// A living file may really be called `x (deleted)`: compare device and inode before believing either.
    pub fn name_deleted(&self) -> (&[u8], bool) {
        let name = self.name.as_deref().unwrap_or_default();
        match name.strip_suffix(b" (deleted)") {
            Some(plain) if self.file_backed() => (plain, true),
            _ => (name, false),
        }
    }
}

/// Why mappings could not be asked for.
#[derive(Debug, thiserror::Error, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub enum MapsError {
    /// The process has gone, or this address space has (by `exec`).
    #[error("the process or its address space is gone")]
    Gone,
    /// The process may not be looked at.
    #[error("no permission to read the mappings of process `{pid}`")]
    NoPermission {
        /// Its id; 0 for the own process.
        pid: u32,
    },
    /// The name is longer than the kernel is willing to answer.
    #[error("the mapping's name does not fit into the answer")]
    NameTooLong,
    /// The source cannot answer such a question.
    #[error("not supported by this source: {what}")]
    Unsupported {
        /// What was asked.
        what: &'static str,
    },
    /// The data do not look as they should.
    #[error("line {line} of the mappings is malformed: {what}")]
    Malformed {
        /// Line or record number, from 1.
        line: usize,
        /// The field.
        what: &'static str,
    },
    /// A system call failed.
    #[error("`{call}` failed: {errno}")]
    Os {
        /// Its name.
        call: &'static str,
        /// Its error.
        errno: Errno,
    },
}
