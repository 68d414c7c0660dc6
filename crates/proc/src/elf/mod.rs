//! Reading 64-bit little-endian ELF files: headers first, everything else when asked for.
//!
//! Only the parts that are needed are read, so a 130 MB library costs its symbol table. All
//! addresses given out are link-time virtual addresses (`vaddr`); a [`crate::module::Module`] knows
//! the bias that makes them run-time ones.

use std::ops::Range;
use std::os::fd::OwnedFd;
use std::path::Path;
use std::sync::OnceLock;

use rustix::io::Errno;

use crate::file;

mod debug_file;
mod frames;
mod functions;
mod notes;
pub(crate) mod pclntab;
mod tables;

pub use debug_file::split_unit_files;
pub use frames::Fde;
pub use functions::{Binding, Function, Functions, Kind, Symbol, SymbolSource, Visibility};
pub use notes::{BuildId, Probe, build_id_in_notes};
pub use tables::Sled;

/// `e_type` of what a linker has not linked yet.
pub const ET_REL: u16 = 1;
/// `e_type` of an executable at a fixed address.
pub const ET_EXEC: u16 = 2;
/// `e_type` of a shared object or a position-independent executable.
pub const ET_DYN: u16 = 3;
/// `e_machine` of x86-64.
pub const EM_X86_64: u16 = 62;
/// `e_machine` of 64-bit ARM.
pub const EM_AARCH64: u16 = 183;

pub(crate) const PT_LOAD: u32 = 1;
pub(crate) const PT_DYNAMIC: u32 = 2;
pub(crate) const PT_INTERP: u32 = 3;
pub(crate) const PT_NOTE: u32 = 4;
pub(crate) const PT_GNU_EH_FRAME: u32 = 0x6474_e550;
const SHT_SYMTAB: u32 = 2;
pub(crate) const SHT_NOBITS: u32 = 8;
const SHT_DYNSYM: u32 = 11;
const PF_X: u32 = 1;
const SHF_ALLOC: u64 = 2;
const SHF_EXECINSTR: u64 = 4;

/// The largest part of a file that is read at once; a lie in a header must not exhaust the memory
/// of the process.
const MAX_PART: u64 = 1 << 30;

/// Why an ELF file could not be read.
#[derive(Debug, thiserror::Error, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub enum ElfError {
    /// The file is not an ELF file.
    #[error("not an ELF file")]
    NotElf,
    /// The file is ELF, of a kind that is not read here.
    #[error("unsupported ELF file: {what}")]
    Unsupported {
        /// What is unusual in it.
        what: &'static str,
    },
    /// A part lies outside of the file or contradicts itself.
    #[error("malformed ELF file: {what} at `{offset:#x}`")]
    Malformed {
        /// The part.
        what: &'static str,
        /// Its offset in the file.
        offset: u64,
    },
    /// A part is larger than is read.
    #[error("{what} is too large to read (`{size}` bytes)")]
    TooLarge {
        /// The part.
        what: &'static str,
        /// Its size.
        size: u64,
    },
    /// A compressed section is larger than is taken out of a file of its size.
    #[error("compressed section `{section}` becomes `{size}` bytes; there is room for `{room}`")]
    Inflation {
        /// Its name.
        section: &'static str,
        /// How large it becomes.
        size: u64,
        /// How large what is left to take out of the file may be: it grows with the file.
        room: u64,
    },
    /// The file under the mapped name is not the one that is mapped.
    #[error("the mapped file was deleted or replaced")]
    Replaced,
    /// A system call failed.
    #[error("`{call}` failed: {errno}")]
    Os {
        /// Its name.
        call: &'static str,
        /// Its error.
        errno: Errno,
    },
}

/// A program header.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Segment {
    /// `p_type`.
    pub kind: u32,
    /// `p_flags`.
    pub flags: u32,
    /// Offset in the file.
    pub offset: u64,
    /// Link-time address.
    pub vaddr: u64,
    /// Size in the file.
    pub file_size: u64,
    /// Size in memory.
    pub mem_size: u64,
    /// Alignment.
    pub align: u64,
}

impl Segment {
    /// Tells whether this is loaded as code.
    pub fn is_text(&self) -> bool {
        self.kind == PT_LOAD && self.flags & PF_X != 0
    }

    /// Link-time addresses covered.
    pub fn range(&self) -> Range<u64> {
        self.vaddr..self.vaddr.saturating_add(self.mem_size)
    }
}

/// A section header.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Section {
    /// Name.
    pub name: Vec<u8>,
    /// `sh_type`.
    pub kind: u32,
    /// `sh_flags`.
    pub flags: u64,
    /// Link-time address; 0 if not loaded. Sections of a relocatable file, which have none yet, are
    /// given some that are far from one another.
    pub vaddr: u64,
    /// Offset in the file.
    pub offset: u64,
    /// Size.
    pub size: u64,
    /// `sh_link`.
    pub link: u32,
}

impl Section {
    /// Link-time addresses covered.
    pub fn range(&self) -> Range<u64> {
        self.vaddr..self.vaddr.saturating_add(self.size)
    }
}

#[derive(Debug)]
enum Source {
    File { fd: OwnedFd, len: u64 },
    Bytes(Vec<u8>),
}

/// An opened ELF file.
#[derive(Debug)]
pub struct Elf {
    source: Source,
    kind: u16,
    machine: u16,
    entry: u64,
    segments: Vec<Segment>,
    sections: Vec<Section>,
    /// The unwind tables, which stripped files are asked for again and again.
    fdes: OnceLock<Vec<Fde>>,
}

impl Elf {
    /// Opens a file and reads its headers.
    ///
    /// ```
    /// use skep_proc::elf::Elf;
    /// let elf = Elf::open(std::env::current_exe()?)?;
    /// assert!(elf.functions()?.len() > 10);
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn open(path: impl AsRef<Path>) -> Result<Self, ElfError> {
        Self::from_file(file::open(path).map_err(|errno| ElfError::Os { call: "open", errno })?)
    }

    /// Reads the headers of an opened file.
    pub fn from_file(fd: OwnedFd) -> Result<Self, ElfError> {
        let stat = file::stat(&fd).map_err(|errno| ElfError::Os { call: "fstat", errno })?;
        Self::new(Source::File { fd, len: u64::try_from(stat.st_size).unwrap_or(0) })
    }

    /// Reads the headers of an image in memory, such as the vDSO's.
    pub fn from_bytes(bytes: Vec<u8>) -> Result<Self, ElfError> {
        Self::new(Source::Bytes(bytes))
    }

    fn new(source: Source) -> Result<Self, ElfError> {
        let mut elf = Self {
            source,
            kind: 0,
            machine: 0,
            entry: 0,
            segments: Vec::new(),
            sections: Vec::new(),
            fdes: OnceLock::new(),
        };
        let head = elf.read("file header", 0, 64).map_err(|e| match e {
            ElfError::Malformed { .. } => ElfError::NotElf,
            other => other,
        })?;
        let header = Header::parse(&head)?;
        elf.kind = header.kind;
        elf.machine = header.machine;
        elf.entry = header.entry;
        elf.read_sections(&header)?;
        elf.read_segments(&header)?;
        if elf.kind == ET_REL {
            elf.place_sections();
        }
        Ok(elf)
    }

    /// Gives the sections of a relocatable file addresses, so that each address is in one of them.
    fn place_sections(&mut self) {
        let loaded = self.sections.iter_mut().filter(|s| s.flags & SHF_ALLOC != 0);
        for (section, number) in loaded.zip(1u64..) {
            section.vaddr = number << 40;
        }
    }

    /// The first section with code, which addresses in a relocatable file are offsets in if nothing
    /// else is said.
    pub fn first_code(&self) -> Option<&Section> {
        let flags = SHF_ALLOC | SHF_EXECINSTR;
        self.sections.iter().find(|s| s.flags & flags == flags && s.size > 0)
    }

    fn read_sections(&mut self, header: &Header) -> Result<(), ElfError> {
        if header.shoff == 0 {
            return Ok(());
        }
        if header.shentsize != 64 {
            return Err(ElfError::Malformed { what: "section header size", offset: 58 });
        }
        // The first header carries counts that do not fit into the file header.
        let first = self.read("section header", header.shoff, 64)?;
        let count = if header.shnum == 0 { u64_at(&first, 32) } else { u64::from(header.shnum) };
        let names =
            if header.shstrndx == 0xffff { u32_at(&first, 40) } else { u32::from(header.shstrndx) };
        let table = self.read("section headers", header.shoff, count.saturating_mul(64))?;
        let mut raw = Vec::new();
        let mut sections: Vec<_> = table
            .chunks_exact(64)
            .map(|h| {
                raw.push(u32_at(h, 0));
                Section {
                    name: Vec::new(),
                    kind: u32_at(h, 4),
                    flags: u64_at(h, 8),
                    vaddr: u64_at(h, 16),
                    offset: u64_at(h, 24),
                    size: u64_at(h, 32),
                    link: u32_at(h, 40),
                }
            })
            .collect();
        let strings = match sections.get(names as usize) {
            Some(s) if s.kind != SHT_NOBITS => self.read("section names", s.offset, s.size)?,
            _ => Vec::new(),
        };
        for (section, name) in sections.iter_mut().zip(raw) {
            section.name = string_at(&strings, name).to_vec();
        }
        self.sections = sections;
        Ok(())
    }

    fn read_segments(&mut self, header: &Header) -> Result<(), ElfError> {
        if header.phoff == 0 || header.phnum == 0 {
            return Ok(());
        }
        if header.phentsize != 56 {
            return Err(ElfError::Malformed { what: "program header size", offset: 54 });
        }
        let mut count = u64::from(header.phnum);
        if count == 0xffff && header.shoff != 0 {
            count = u64::from(u32_at(&self.read("section header", header.shoff, 64)?, 44));
        }
        let table = self.read("program headers", header.phoff, count.saturating_mul(56))?;
        self.segments = parse_segments(&table);
        Ok(())
    }

    /// `e_type`.
    pub fn kind(&self) -> u16 {
        self.kind
    }

    /// `e_machine`.
    pub fn machine(&self) -> u16 {
        self.machine
    }

    /// Link-time address where the program starts; `None` for a library.
    pub fn entry(&self) -> Option<u64> {
        let program = self.kind == ET_EXEC || self.segments.iter().any(|s| s.kind == PT_INTERP);
        (program && self.entry != 0).then_some(self.entry)
    }

    /// All program headers.
    pub fn segments(&self) -> &[Segment] {
        &self.segments
    }

    /// All section headers.
    pub fn sections(&self) -> &[Section] {
        &self.sections
    }

    /// The first section of that name.
    pub fn section(&self, name: &str) -> Option<&Section> {
        self.sections.iter().find(|s| s.name == name.as_bytes())
    }

    /// The bytes of a section as the file has them; empty for one that has none.
    pub fn section_data(&self, section: &Section) -> Result<Vec<u8>, ElfError> {
        if section.kind == SHT_NOBITS {
            return Ok(Vec::new());
        }
        self.read("section", section.offset, section.size)
    }

    /// Link-time address ranges of the code, sorted, overlapping ones merged.
    pub fn text(&self) -> Vec<Range<u64>> {
        merged(self.segments.iter().filter(|s| s.is_text()).map(Segment::range))
    }

    /// Link-time address ranges inside the code that hold no function of the program: `.plt` and
    /// its kin, `.init`, `.fini`. Sorted, overlapping ones merged.
    pub fn not_functions(&self) -> Vec<Range<u64>> {
        let plain =
            |n: &[u8]| n == b".init" || n == b".fini" || n == b".iplt" || n.starts_with(b".plt");
        merged(self.sections.iter().filter(|s| s.vaddr != 0 && plain(&s.name)).map(Section::range))
    }

    /// The lowest and the highest link-time address that is loaded.
    pub fn span(&self) -> Option<Range<u64>> {
        let loads = || self.segments.iter().filter(|s| s.kind == PT_LOAD);
        Some(loads().map(|s| s.vaddr).min()?..loads().map(|s| s.range().end).max()?)
    }

    /// The bytes the file has for a link-time address range, through the segment that holds all of
    /// it.
    pub fn read_vaddr(&self, vaddr: u64, len: u64) -> Result<Vec<u8>, ElfError> {
        let inside = |s: &&Segment| {
            s.kind == PT_LOAD
                && vaddr >= s.vaddr
                && vaddr.checked_add(len).is_some_and(|end| end - s.vaddr <= s.file_size)
        };
        match self.segments.iter().find(inside) {
            Some(s) => self.read("segment", s.offset.wrapping_add(vaddr - s.vaddr), len),
            None => {
                Err(ElfError::Malformed { what: "address outside of the segments", offset: vaddr })
            }
        }
    }

    /// The build id of the file's notes.
    pub fn build_id(&self) -> Option<BuildId> {
        let notes = self
            .segments
            .iter()
            .filter(|s| s.kind == PT_NOTE)
            .map(|s| (s.offset, s.file_size, s.align));
        // A relocatable or debug file may have note sections but no segments.
        let sections = self.sections.iter().filter(|s| s.kind == 7).map(|s| (s.offset, s.size, 4));
        notes.chain(sections).find_map(|(offset, size, align)| {
            build_id_in_notes(&self.read("notes", offset, size).ok()?, align)
        })
    }

    /// Reads the functions of the file: from `.symtab`; else from `.dynsym` and, for what that does
    /// not name, from the unwind tables, as `sub_<hex vaddr>`.
    pub fn functions(&self) -> Result<Functions, ElfError> {
        Functions::of(self, None)
    }

    /// Reads the functions of the file at `path` below `root` (`/` usually); one without `.symtab`
    /// gets the names of its separate debug file, if that is installed.
    pub fn functions_at(&self, path: &Path, root: &Path) -> Result<Functions, ElfError> {
        let has_symbols =
            |elf: &Self| elf.sections.iter().any(|s| s.kind == SHT_SYMTAB && s.size >= 24);
        if has_symbols(self) {
            return self.functions();
        }
        let debug = self.debug_file(path, root).filter(|(_, elf)| has_symbols(elf));
        Functions::of(self, debug.as_ref().map(|(path, elf)| (path.as_path(), elf)))
    }

    /// The whole image if it is in memory, else the file and its length.
    #[cfg(feature = "symbolize")]
    pub(crate) fn contents(&self) -> Result<&[u8], (&OwnedFd, u64)> {
        match &self.source {
            Source::Bytes(bytes) => Ok(bytes),
            Source::File { fd, len } => Err((fd, *len)),
        }
    }

    /// Reads a part of the file.
    pub(crate) fn read(
        &self,
        what: &'static str,
        offset: u64,
        size: u64,
    ) -> Result<Vec<u8>, ElfError> {
        let malformed = ElfError::Malformed { what, offset };
        let Some(end) = offset.checked_add(size) else { return Err(malformed) };
        match &self.source {
            Source::Bytes(bytes) => {
                let range = usize::try_from(offset).ok().zip(usize::try_from(end).ok());
                range.and_then(|(a, b)| bytes.get(a..b)).map(<[u8]>::to_vec).ok_or(malformed)
            }
            Source::File { len, .. } if end > *len => Err(malformed),
            Source::File { .. } if size > MAX_PART => Err(ElfError::TooLarge { what, size }),
            Source::File { fd, .. } => file::read_exact_at(fd, offset, size as usize)
                .map_err(|errno| ElfError::Os { call: "pread", errno })?
                .ok_or(malformed),
        }
    }
}

/// The fields of the file header that are used.
pub(crate) struct Header {
    pub(crate) kind: u16,
    pub(crate) machine: u16,
    pub(crate) phoff: u64,
    pub(crate) phentsize: u16,
    pub(crate) phnum: u16,
    entry: u64,
    pub(crate) shoff: u64,
    shentsize: u16,
    shnum: u16,
    shstrndx: u16,
}

impl Header {
    /// Parses the first 64 bytes of a file.
    pub(crate) fn parse(head: &[u8]) -> Result<Self, ElfError> {
        if !head.starts_with(b"\x7fELF") {
            return Err(ElfError::NotElf);
        }
        match (head.get(4), head.get(5), head.len() >= 64) {
            (Some(2), Some(1), true) => {}
            (Some(1), ..) => return Err(ElfError::Unsupported { what: "32-bit" }),
            (_, Some(2), _) => return Err(ElfError::Unsupported { what: "big-endian" }),
            _ => return Err(ElfError::Malformed { what: "file header", offset: 0 }),
        }
        Ok(Self {
            kind: u16_at(head, 16),
            machine: u16_at(head, 18),
            entry: u64_at(head, 24),
            phoff: u64_at(head, 32),
            shoff: u64_at(head, 40),
            phentsize: u16_at(head, 54),
            phnum: u16_at(head, 56),
            shentsize: u16_at(head, 58),
            shnum: u16_at(head, 60),
            shstrndx: u16_at(head, 62),
        })
    }
}

/// Parses a table of program headers.
pub(crate) fn parse_segments(table: &[u8]) -> Vec<Segment> {
    let parse = |h: &[u8]| Segment {
        kind: u32_at(h, 0),
        flags: u32_at(h, 4),
        offset: u64_at(h, 8),
        vaddr: u64_at(h, 16),
        file_size: u64_at(h, 32),
        mem_size: u64_at(h, 40),
        align: u64_at(h, 48),
    };
    table.chunks_exact(56).map(parse).collect()
}

/// Sorts ranges and merges those that overlap, so that questions of "where" take a binary search
/// whatever a file claims.
fn merged(ranges: impl Iterator<Item = Range<u64>>) -> Vec<Range<u64>> {
    let mut all: Vec<_> = ranges.filter(|r| !r.is_empty()).collect();
    // A few, by a number: such sorts share their code.
    all.sort_by_cached_key(|r| r.start);
    let mut out: Vec<Range<u64>> = Vec::with_capacity(all.len());
    for r in all {
        match out.last_mut() {
            Some(last) if r.start < last.end => last.end = last.end.max(r.end),
            _ => out.push(r),
        }
    }
    out
}

/// The range that holds `at`, among sorted ones.
fn range_of(ranges: &[Range<u64>], at: u64) -> Option<&Range<u64>> {
    let after = ranges.partition_point(|r| r.start <= at);
    ranges.get(after.checked_sub(1)?).filter(|r| r.contains(&at))
}

/// The NUL-terminated string at an offset of a string table; empty if there is none.
pub(crate) fn string_at(table: &[u8], at: u32) -> &[u8] {
    let rest = table.get(at as usize..).unwrap_or_default();
    rest.split(|&b| b == 0).next().unwrap_or_default()
}

/// Little-endian numbers; bytes past the end read as 0, callers check lengths where that matters.
pub(crate) fn u64_at(bytes: &[u8], at: usize) -> u64 {
    let part = bytes.get(at..).and_then(|b| b.first_chunk::<8>());
    part.map_or(0, |b| u64::from_le_bytes(*b))
}

/// See [`u64_at`].
pub(crate) fn u32_at(bytes: &[u8], at: usize) -> u32 {
    let part = bytes.get(at..).and_then(|b| b.first_chunk::<4>());
    part.map_or(0, |b| u32::from_le_bytes(*b))
}

/// See [`u64_at`].
pub(crate) fn u16_at(bytes: &[u8], at: usize) -> u16 {
    let part = bytes.get(at..).and_then(|b| b.first_chunk::<2>());
    part.map_or(0, |b| u16::from_le_bytes(*b))
}
