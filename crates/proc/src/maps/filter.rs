//! Which mappings are asked for, and what about them.

use super::MapsError;
use super::vma::{Dev, Perms, Vma};

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

    /// Tells whether a mapping passes, wherever it lies. One whose permissions are not known passes
    /// no filter that asks for them.
    pub fn matches(&self, vma: &Vma) -> bool {
        let asked = self.all | self.any | self.none;
        !(vma.perms.contains(Perms::UNKNOWN) && asked != Perms::NONE)
            && vma.perms.contains(self.all)
            && (self.any == Perms::NONE || vma.perms.intersects(self.any))
            && !vma.perms.intersects(self.none)
            && (!self.file_backed || vma.file_backed())
            && self.file.is_none_or(|file| file == (vma.dev, vma.inode))
    }

    /// Finds the answer to a query among mappings sorted by address.
    pub(crate) fn find(&self, vmas: &[Vma], addr: u64) -> Option<usize> {
        self.find_from(vmas, vmas.partition_point(|v| v.end <= addr), addr)
    }

    /// The same, where the first mapping that ends after `addr` is known.
    pub(crate) fn find_from(&self, vmas: &[Vma], first: usize, addr: u64) -> Option<usize> {
        let rest = vmas.get(first..)?;
        let hit = |v: &Vma| self.matches(v) && !v.is_vsyscall();
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
    /// Its page size. Free by ioctl; from text it takes reading `smaps`, which is slow.
    pub page_size: bool,
}

impl Want {
    /// The name only.
    pub const NAME: Self = Self { name: true, build_id: false, page_size: false };
    /// Name and build id.
    pub const ALL: Self = Self { name: true, build_id: true, page_size: false };
    /// Whatever the source knows.
    pub const EVERYTHING: Self = Self { name: true, build_id: true, page_size: true };

    /// Takes away what was not wanted.
    pub(crate) fn trim(self, vma: &mut Vma) {
        if !self.name {
            (vma.name, vma.escaped) = (None, false);
        }
        if !self.build_id {
            vma.build_id = None;
        }
        if !self.page_size {
            vma.page_size = 0;
        }
    }
}

/// What a source can know of mappings. What it cannot know is empty in its answers, and a filter
/// that asks for it is refused.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Knows(pub u8);

impl Knows {
    /// [`Perms::SHARED`].
    pub const SHARING: Self = Self(1);
    /// Device and inode.
    pub const DEVICE: Self = Self(2);
    /// Names that are not those of files: `[heap]`, `[stack]`, `[anon:…]`.
    pub const SPECIAL_NAMES: Self = Self(4);
    /// Page sizes.
    pub const PAGE_SIZE: Self = Self(8);
    /// All of the above.
    pub const ALL: Self = Self(15);

    /// What both know.
    pub const fn and(self, other: Self) -> Self {
        Self(self.0 & other.0)
    }

    /// Tells whether all of `other` is known.
    pub const fn contains(self, other: Self) -> bool {
        self.0 & other.0 == other.0
    }

    /// Refuses a filter that asks for what is not known.
    pub(crate) fn check(self, filter: &Filter) -> Result<(), MapsError> {
        let asked = filter.all | filter.any | filter.none;
        if asked.intersects(Perms::SHARED) && !self.contains(Self::SHARING) {
            return Err(MapsError::Unsupported { what: "whether a mapping is shared" });
        }
        if filter.file.is_some() && !self.contains(Self::DEVICE) {
            return Err(MapsError::Unsupported { what: "device and inode of files" });
        }
        Ok(())
    }
}
