//! One mapping, and what its fields mean.

use std::borrow::Cow;
use std::fmt;
use std::ops::{BitOr, Range};

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
    /// Not a permission: the source does not know whether the first three are set.
    pub const UNKNOWN: Self = Self(0x10);
    /// Not a permission: the source does not know whether [`SHARED`](Self::SHARED) is set.
    pub const SHARING_UNKNOWN: Self = Self(0x20);
    /// The bits of the kernel.
    pub const ALL: Self = Self(15);

    /// Tells whether all bits of `other` are set.
    pub const fn contains(self, other: Self) -> bool {
        self.0 & other.0 == other.0
    }

    /// The bits that are in both.
    pub const fn and(self, other: Self) -> Self {
        Self(self.0 & other.0)
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
        let bit = |p, yes, no, unknown| match (self.intersects(unknown), self.contains(p)) {
            (true, _) => '?',
            (_, true) => yes,
            _ => no,
        };
        write!(
            f,
            "{}{}{}{}",
            bit(Self::READ, 'r', '-', Self::UNKNOWN),
            bit(Self::WRITE, 'w', '-', Self::UNKNOWN),
            bit(Self::EXEC, 'x', '-', Self::UNKNOWN),
            bit(Self::SHARED, 's', 'p', Self::SHARING_UNKNOWN)
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
    /// The name comes from text and contains `\012`, and nothing tells what that stands for.
    pub escaped: bool,
    /// The source knows that a file is behind it, even if it knows neither device nor inode.
    pub file: bool,
    /// Build id of the file, when asked for and known.
    pub build_id: Option<Vec<u8>>,
    /// Page size in bytes; 0 when it was not asked for or the source does not know it.
    pub page_size: u64,
}

impl Vma {
    /// Offset of `addr` in the file, in bytes; meaningless outside of the mapping.
    pub const fn file_offset(&self, addr: u64) -> u64 {
        addr.wrapping_sub(self.start).wrapping_add(self.offset)
    }

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
        self.file || self.dev != Dev::default() || self.inode != 0
    }

    /// Tells whether this is the page of old system calls, which only the text shows: it belongs to
    /// no address space, and the kernel never answers a query with it.
    pub fn is_vsyscall(&self) -> bool {
        self.name.as_deref() == Some(b"[vsyscall]")
    }

    /// What the name may be, likeliest first: with or without ` (deleted)`, each `\012` as a
    /// newline or as it stands.
    ///
    /// Device and inode of what is found there decide. Of more than four `\012` only all or none
    /// are taken for newlines.
    pub fn readings(&self) -> Vec<Cow<'_, [u8]>> {
        let (plain, deleted) = self.name_deleted();
        let mut out = Vec::new();
        for name in [Some(plain), self.name.as_deref().filter(|_| deleted)].into_iter().flatten() {
            if self.escaped {
                out.extend(unescaped(name).map(Cow::Owned));
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

/// The names in which some `\012` are the newlines that they stand for in the text form.
fn unescaped(name: &[u8]) -> impl Iterator<Item = Vec<u8>> {
    let mut parts: Vec<&[u8]> = Vec::new();
    let mut rest = name;
    while let Some(at) = rest.windows(ESCAPE.len()).position(|w| w == ESCAPE) {
        let (part, tail) = rest.split_at(at);
        parts.push(part);
        rest = tail.get(ESCAPE.len()..).unwrap_or_default();
    }
    parts.push(rest);
    let escapes = parts.len() - 1;
    let all = if escapes <= 4 { (1u32 << escapes) - 1 } else { 1 };
    (1..=all).rev().map(move |newlines| {
        let mut out = Vec::with_capacity(name.len());
        for (i, part) in parts.iter().enumerate() {
            if i > 0 {
                let newline = escapes > 4 || newlines >> (i - 1) & 1 == 1;
                out.extend(if newline { &b"\n"[..] } else { ESCAPE });
            }
            out.extend(*part);
        }
        out
    })
}

/// What the text form writes for a newline in a name.
const ESCAPE: &[u8] = b"\\012";

/// Tells whether a name of the text form may have newlines.
pub(crate) fn has_escape(name: &[u8]) -> bool {
    name.windows(ESCAPE.len()).any(|w| w == ESCAPE)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn readings_are_all_combinations_of_escapes_and_deleted() {
        let vma = |name: &[u8]| Vma {
            name: Some(name.to_vec()),
            escaped: true,
            file: true,
            ..Vma::default()
        };
        let read = |name: &[u8]| {
            let vma = vma(name);
            let text = |n: &Cow<'_, [u8]>| String::from_utf8(n.to_vec()).expect("ASCII");
            vma.readings().iter().map(text).collect::<Vec<_>>()
        };
        assert_eq!(
            read(b"/a\\012b\\012c"),
            ["/a\nb\nc", "/a\\012b\nc", "/a\nb\\012c", "/a\\012b\\012c"]
        );
        assert_eq!(
            read(b"/\\012 (deleted)"),
            ["/\n", "/\\012", "/\n (deleted)", "/\\012 (deleted)"]
        );
        assert_eq!(read(&b"\\012".repeat(9)), ["\n".repeat(9), "\\012".repeat(9)]);
    }

    #[test]
    fn what_is_not_known_is_shown_as_that() {
        let perms = |p: Perms| p.to_string();
        assert_eq!(perms(Perms::READ | Perms::SHARED), "r--s");
        assert_eq!(perms(Perms::READ | Perms::SHARING_UNKNOWN), "r--?");
        assert_eq!(perms(Perms::UNKNOWN | Perms::SHARED), "???s");
    }
}
