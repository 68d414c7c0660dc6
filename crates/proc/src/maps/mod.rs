//! Mappings of a process: one question, several places to ask it.

use std::borrow::Cow;
use std::fmt;
use std::ops::{BitOr, Range};

use rustix::io::Errno;

mod live;
pub mod raw;
mod snapshot;
mod text;

pub use live::Live;
pub use snapshot::{Identity, Snapshot};
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
        write!(
            f,
            "{}{}{}{}",
            bit(Self::READ, 'r', '-'),
            bit(Self::WRITE, 'w', '-'),
            bit(Self::EXEC, 'x', '-'),
            bit(Self::SHARED, 's', 'p')
        )
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
    /// The text form writes a newline as `\012` and leaves a backslash alone; this field holds
    /// what the source said, [`readings`](Self::readings) what it may mean.
    pub name: Option<Vec<u8>>,
    /// The name comes from text and contains `\012`.
    pub escaped: bool,
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

    /// What the name may be, likeliest first: with or without ` (deleted)`, `\012` as a newline or
    /// as it stands.
    ///
    /// Device and inode of what is found there decide.
    pub fn readings(&self) -> Vec<Cow<'_, [u8]>> {
        let (plain, deleted) = self.name_deleted();
        let mut out = Vec::new();
        for name in [Some(plain), self.name.as_deref().filter(|_| deleted)].into_iter().flatten() {
            if self.escaped {
                out.push(Cow::Owned(unescape(name)));
            }
            out.push(Cow::Borrowed(name));
        }
        out
    }

    /// The name without a trailing ` (deleted)`, and whether that was there.
    ///
    /// A living file may really be called `x (deleted)`: compare device and inode before believing
    /// either.
    pub fn name_deleted(&self) -> (&[u8], bool) {
        let name = self.name.as_deref().unwrap_or_default();
        match name.strip_suffix(b" (deleted)") {
            Some(plain) if self.file_backed() => (plain, true),
            _ => (name, false),
        }
    }
}

/// Replaces `\012` by the newline that it stands for in the text form.
fn unescape(name: &[u8]) -> Vec<u8> {
    let mut out = Vec::with_capacity(name.len());
    let mut rest = name;
    while let Some((&first, tail)) = rest.split_first() {
        if let Some(after) = rest.strip_prefix(b"\\012") {
            out.push(b'\n');
            rest = after;
        } else {
            out.push(first);
            rest = tail;
        }
    }
    out
}

/// Which mappings are meant.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Filter {
    /// All of these bits.
    pub all: Perms,
    /// At least one of these bits; no bit means any mapping.
    pub any: Perms,
    /// None of these bits.
    pub none: Perms,
    /// Only with a file; shared anonymous memory has a hidden one.
    pub file_backed: bool,
    /// Only mappings of this file, by device and inode as mappings show them.
    pub file: Option<(Dev, u64)>,
    /// Not only the mapping that covers the address, else the next one that fits.
    pub or_next: bool,
}

impl Filter {
    /// Executable mappings of files: where functions are.
    pub const TEXT: Self = Self {
        all: Perms::EXEC,
        any: Perms::NONE,
        none: Perms::NONE,
        file_backed: true,
        file: None,
        or_next: false,
    };

    /// The same filter, for the mapping at an address or after it.
    pub const fn or_next(self) -> Self {
        Self { or_next: true, ..self }
    }

    /// Tells whether a mapping passes, wherever it lies.
    pub fn matches(&self, vma: &Vma) -> bool {
        vma.perms.contains(self.all)
            && (self.any == Perms::NONE || vma.perms.intersects(self.any))
            && !vma.perms.intersects(self.none)
            && (!self.file_backed || vma.file_backed())
            && self.file.is_none_or(|file| file == (vma.dev, vma.inode))
    }

    /// Finds the answer to a query among mappings sorted by address.
    pub(crate) fn find(&self, vmas: &[Vma], addr: u64) -> Option<usize> {
        let first = vmas.partition_point(|v| v.end <= addr);
        let rest = vmas.get(first..)?;
        // The kernel never answers with the vsyscall page, which only the text shows.
        let hit = |v: &Vma| self.matches(v) && v.name.as_deref() != Some(b"[vsyscall]");
        if self.or_next {
            Some(first + rest.iter().position(hit)?)
        } else {
            rest.first().filter(|v| v.contains(addr) && hit(v)).map(|_| first)
        }
    }
}

/// What to say of a mapping besides its numbers, as that costs time.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Want {
    /// Its name.
    pub name: bool,
    /// The build id of its file.
    pub build_id: bool,
}

impl Want {
    /// The name only.
    pub const NAME: Self = Self { name: true, build_id: false };
    /// Everything.
    pub const ALL: Self = Self { name: true, build_id: true };
}

/// A place to ask about mappings. All sources answer alike for the same state.
///
/// ```
/// use skep_proc::maps::{Filter, Live, MapSource, Want};
/// let here = &0u8 as *const u8 as u64;
/// let vma = Live::own()?.query(here, &Filter::default(), Want::NAME)?;
/// assert!(vma.is_some_and(|vma| vma.contains(here)));
/// # Ok::<(), skep_proc::maps::MapsError>(())
/// ```
pub trait MapSource {
    /// The mapping at `addr` that passes the filter, or with [`Filter::or_next`] the first one
    /// after it; `None` if there is none.
    fn query(&self, addr: u64, filter: &Filter, want: Want) -> Result<Option<Vma>, MapsError>;

    /// Walks over the mappings that pass, in order of address, one query each. Never goes
    /// backwards; a mapping that is split or merged meanwhile may be seen in part.
    fn walk(&self, filter: &Filter, want: Want) -> Walk<'_, Self>
    where
        Self: Sized,
    {
        Walk { source: self, filter: filter.or_next(), want, next: Some(0) }
    }

    /// All mappings that pass, by the cheapest method there is.
    fn all(&self, filter: &Filter, want: Want) -> Result<Vec<Vma>, MapsError> {
        let mut out: Vec<Vma> = Vec::new();
        let filter = filter.or_next();
        let mut at = 0;
        while let Some(vma) = self.query(at, &filter, want)? {
            let end = vma.end;
            out.push(vma);
            if end <= at {
                break;
            }
            at = end;
        }
        Ok(out)
    }
}

/// Reads all mappings of the own process from the text, in order of address, without their names.
///
/// # Errors
/// Where `/proc` is not there, or may not be read.
pub fn own() -> Result<Vec<Vma>, MapsError> {
    Live::own()?.text_only().all(&Filter::default(), Want::default())
}

/// Iterator of [`MapSource::walk`]; ends after an error.
#[derive(Debug)]
pub struct Walk<'a, S> {
    source: &'a S,
    filter: Filter,
    want: Want,
    next: Option<u64>,
}

impl<S: MapSource> Iterator for Walk<'_, S> {
    type Item = Result<Vma, MapsError>;

    fn next(&mut self) -> Option<Self::Item> {
        let at = self.next.take()?;
        let found = self.source.query(at, &self.filter, self.want).transpose()?;
        if let Ok(vma) = &found {
            self.next = (vma.end > at).then_some(vma.end);
        }
        Some(found)
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
