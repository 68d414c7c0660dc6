//! The bytes of an ELF file, mapped, so that only what is looked at comes into memory.

#![allow(unsafe_code)]

use std::os::fd::OwnedFd;
use std::path::Path;
use std::ptr::NonNull;

use rustix::mm::{self, Advice, MapFlags, ProtFlags};

use crate::elf::{Elf, ElfError, Section};

/// Largest size of a section that is kept decompressed.
const MAX_INFLATED: u64 = 2 << 30;
const SHF_COMPRESSED: u64 = 0x800;
const SHT_NOBITS: u32 = 8;

/// An ELF file and its bytes.
///
/// A file that somebody truncates while it is read ends the process by `SIGBUS`, as with every
/// reader that maps files.
#[derive(Debug)]
pub(super) struct Image {
    pub elf: Elf,
    bytes: Bytes,
}

#[derive(Debug)]
enum Bytes {
    Mapped(NonNull<u8>, usize),
    Owned(Vec<u8>),
}

// SAFETY: the mapping belongs to this value alone and is only read.
unsafe impl Send for Image {}
// SAFETY: as above; there is no interior mutability.
unsafe impl Sync for Image {}

impl Image {
    /// Opens the file at `path`.
    pub fn open(path: &Path) -> Result<Self, ElfError> {
        Self::new(Elf::open(path)?)
    }

    /// Takes a file whose headers were read.
    pub fn new(elf: Elf) -> Result<Self, ElfError> {
        let bytes = match elf.contents() {
            Ok(bytes) => Bytes::Owned(bytes.to_vec()),
            Err((fd, len)) => map(fd, len)?,
        };
        Ok(Self { elf, bytes })
    }

    /// All bytes of the file.
    pub fn bytes(&self) -> &[u8] {
        match &self.bytes {
            Bytes::Owned(bytes) => bytes,
            // SAFETY:
            // - `len` readable bytes are mapped at the address until `self` is dropped;
            // - the mapping is private and read-only. Who writes to the file meanwhile makes its
            //   readers see either version of a byte; they check each value that they use.
            Bytes::Mapped(at, len) => unsafe { std::slice::from_raw_parts(at.as_ptr(), *len) },
        }
    }

    /// The bytes of a section as they are in the file; empty where it has none, or lies outside.
    pub fn raw(&self, section: &Section) -> &[u8] {
        if section.kind == SHT_NOBITS {
            return &[];
        }
        let end = section.offset.checked_add(section.size);
        let range =
            usize::try_from(section.offset).ok().zip(end.and_then(|e| usize::try_from(e).ok()));
        range.and_then(|(start, end)| self.bytes().get(start..end)).unwrap_or_default()
    }

    /// The bytes of a section that is compressed; `None` if it is not.
    pub fn inflated(&self, name: &str) -> Result<Option<Vec<u8>>, ElfError> {
        let Some(section) = self.elf.section(name).filter(|s| s.flags & SHF_COMPRESSED != 0) else {
            return Ok(None);
        };
        let bytes = super::compressed::inflate(self.raw(section), MAX_INFLATED);
        let bad = ElfError::Malformed { what: "compressed section", offset: section.offset };
        bytes.map(Some).ok_or(bad)
    }

    /// Gives back the memory of what was looked at; it is read from the file again when needed.
    pub fn forget(&self) {
        if let Bytes::Mapped(at, len) = &self.bytes {
            // SAFETY: private, never written to: dropping its pages changes no byte of it.
            // An error leaves them where they are.
            let _ = unsafe { mm::madvise(at.as_ptr().cast(), *len, Advice::LinuxDontNeed) };
        }
    }
}

impl Drop for Image {
    fn drop(&mut self) {
        if let Bytes::Mapped(at, len) = &self.bytes {
            // SAFETY: mapped by `map`, and no slice of it outlives `self`.
            let _ = unsafe { mm::munmap(at.as_ptr().cast(), *len) };
        }
    }
}

fn map(fd: &OwnedFd, len: u64) -> Result<Bytes, ElfError> {
    let Ok(len @ 1..) = usize::try_from(len) else { return Ok(Bytes::Owned(Vec::new())) };
    // SAFETY: a new mapping at an address that the kernel chooses.
    let at =
        unsafe { mm::mmap(std::ptr::null_mut(), len, ProtFlags::READ, MapFlags::PRIVATE, fd, 0) };
    let at = at.map_err(|errno| ElfError::Os { call: "mmap", errno })?;
    NonNull::new(at.cast())
        .map(|at| Bytes::Mapped(at, len))
        .ok_or(ElfError::TooLarge { what: "file", size: len as u64 })
}
