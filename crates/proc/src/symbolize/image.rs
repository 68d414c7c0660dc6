//! The bytes of an ELF file: mapped, so that only what is looked at comes into memory, or read in pieces.

#![allow(unsafe_code)]

use std::ops::Range;
use std::os::fd::OwnedFd;
use std::path::Path;
use std::ptr::NonNull;

use rustix::io::Errno;
use rustix::mm::{self, Advice, MapFlags, ProtFlags};

use crate::elf::{Elf, ElfError, Section};

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

    /// A reader of parts of a section that follow one another, in pieces of some `size`.
    pub fn pieces(&self, section: &Section, size: usize) -> Pieces<'_> {
        let (len, offset) = (self.raw(section).len(), section.offset);
        Pieces { image: self, offset, len, size, buffer: Vec::new(), held: 0..0 }
    }

    /// How much may be taken out of this file's compressed sections.
    pub fn room(&self) -> u64 {
        super::compressed::room(self.bytes().len() as u64)
    }

    /// The bytes of a section that is compressed, if they take no more than `room`, which they are taken
    /// from; `None` if it is not.
    pub fn inflated(
        &self,
        name: &'static str,
        room: &mut u64,
    ) -> Result<Option<Vec<u8>>, ElfError> {
        use super::compressed::{inflate, inflate_zdebug};
        let Some(section) = self.elf.section(name) else {
            let old = name.strip_prefix('.').map(|rest| format!(".z{rest}"));
            let section = old.and_then(|name| self.elf.section(&name));
            let bytes = section.map(|s| inflate_zdebug(name, s, self.raw(s), room));
            return bytes.transpose();
        };
        if section.flags & SHF_COMPRESSED == 0 {
            return Ok(None);
        }
        inflate(name, section, self.raw(section), room).map(Some)
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

/// Reads parts of a section into a buffer of its own.
///
/// A byte of a mapping that is looked at may bring two megabytes of the file into the process: the
/// kernel maps what it has in one piece in its cache. And bytes that are copied are in the processor's
/// cache when they are looked at.
#[derive(Debug)]
pub(super) struct Pieces<'a> {
    image: &'a Image,
    /// The section's place in the file.
    offset: u64,
    len: usize,
    size: usize,
    buffer: Vec<u8>,
    /// What of the section is in the buffer.
    held: Range<usize>,
}

impl Pieces<'_> {
    /// The bytes of the section from a place on: `least` of them, or those up to its end, or more.
    /// What cannot be read is missing.
    pub fn from(&mut self, at: usize, least: usize) -> &[u8] {
        let (fd, file_offset) = match self.image.elf.contents() {
            Ok(bytes) => {
                let start = usize::try_from(self.offset).unwrap_or(usize::MAX);
                let section = bytes.get(start..).and_then(|rest| rest.get(..self.len));
                return section.and_then(|section| section.get(at..)).unwrap_or_default();
            }
            Err((fd, _)) => (fd, self.offset.saturating_add(at as u64)),
        };
        let end = at.saturating_add(least).min(self.len);
        if at < self.held.start || end > self.held.end {
            let room = self.size.max(least).min(self.len.saturating_sub(at));
            if self.buffer.len() < room {
                self.buffer.resize(room, 0);
            }
            let buffer = self.buffer.get_mut(..room).unwrap_or_default();
            self.held = at..at + read_at(fd, file_offset, buffer);
        }
        let held = self.buffer.get(..self.held.len()).unwrap_or_default();
        held.get(at - self.held.start..).unwrap_or_default()
    }
}

/// Reads what there is, at most as much as fits; returns how much.
fn read_at(fd: &OwnedFd, offset: u64, buffer: &mut [u8]) -> usize {
    let mut done = 0;
    while let Some(rest) = buffer.get_mut(done..).filter(|rest| !rest.is_empty()) {
        match rustix::io::pread(fd, rest, offset.saturating_add(done as u64)) {
            Ok(0) => break,
            Ok(n) => done += n,
            Err(Errno::INTR) => {}
            Err(_) => break,
        }
    }
    done
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
