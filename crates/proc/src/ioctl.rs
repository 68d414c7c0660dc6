//! `PROCMAP_QUERY`, the one question that `/proc/PID/maps` answers by ioctl (Linux 6.11).
//!
//! The code is unsafe as the kernel writes through addresses that stand in a struct. The rule that
//! makes it sound: the buffers live in [`Query`] itself, their addresses are taken right before the
//! call, and the sizes given are the buffers' own.

#![allow(unsafe_code)]

use std::ffi::c_void;
use std::os::fd::AsFd;

use rustix::io::Errno;
use rustix::ioctl::{Ioctl, IoctlOutput, Opcode, opcode};

/// `query_flags`: the first four are permissions, numbered as in [`crate::maps::Perms`].
pub(crate) const COVERING_OR_NEXT: u64 = 0x10;
/// See above: only mappings with a file.
pub(crate) const FILE_BACKED: u64 = 0x20;

/// Names longer than this (with NUL) are never answered.
const NAME_SIZE: usize = 4096;
/// The longest id the kernel knows. Some kernels of early 2026 drop a reference twice when given
/// less room than the id needs, so less is never offered.
const BUILD_ID_SIZE: usize = 20;

/// `struct procmap_query`.
#[repr(C)]
#[derive(Clone, Copy, Default, Debug)]
struct ProcmapQuery {
    size: u64,
    query_flags: u64,
    query_addr: u64,
    vma_start: u64,
    vma_end: u64,
    vma_flags: u64,
    vma_page_size: u64,
    vma_offset: u64,
    inode: u64,
    dev_major: u32,
    dev_minor: u32,
    vma_name_size: u32,
    build_id_size: u32,
    vma_name_addr: u64,
    build_id_addr: u64,
}

const _: () = assert!(size_of::<ProcmapQuery>() == 104);

/// The struct as an array of words, for callers that make the system call themselves
/// ([`crate::maps::raw`]).
pub mod words {
    use super::ProcmapQuery;
    use std::mem::offset_of;

    /// `_IOWR('f', 17, struct procmap_query)`.
    pub const OPCODE: u64 = 0xc068_6611;
    /// How many words there are. What is not set is 0.
    pub const WORDS: usize = size_of::<ProcmapQuery>() / 8;
    /// The word for the size of the struct in bytes.
    pub const SIZE: usize = offset_of!(ProcmapQuery, size) / 8;
    /// The word for the address that is asked about.
    pub const ADDRESS: usize = offset_of!(ProcmapQuery, query_addr) / 8;
    /// The word of the answer with the first address of the mapping.
    pub const START: usize = offset_of!(ProcmapQuery, vma_start) / 8;
    /// The word of the answer with the first address after it.
    pub const END: usize = offset_of!(ProcmapQuery, vma_end) / 8;
}

/// Buffers for queries; reusable.
#[derive(Debug)]
pub(crate) struct Query {
    raw: ProcmapQuery,
    name: Vec<u8>,
    build_id: [u8; BUILD_ID_SIZE],
}

/// What a query found. Name and build id stay in the [`Query`].
pub(crate) struct Answer {
    pub(crate) start: u64,
    pub(crate) end: u64,
    pub(crate) flags: u64,
    pub(crate) page_size: u64,
    pub(crate) offset: u64,
    pub(crate) inode: u64,
    pub(crate) dev: (u32, u32),
}

impl Query {
    pub(crate) fn new() -> Self {
        Self { raw: ProcmapQuery::default(), name: Vec::new(), build_id: [0; BUILD_ID_SIZE] }
    }

    /// Asks for the mapping at (or after, by `flags`) `addr`.
    pub(crate) fn ask(
        &mut self,
        maps: impl AsFd,
        addr: u64,
        flags: u64,
        name: bool,
        build_id: bool,
    ) -> Result<Answer, Errno> {
        loop {
            self.raw = ProcmapQuery {
                size: 104,
                query_flags: flags,
                query_addr: addr,
                ..ProcmapQuery::default()
            };
            if name {
                self.name.resize(NAME_SIZE, 0);
                self.raw.vma_name_size = NAME_SIZE as u32;
                self.raw.vma_name_addr = self.name.as_mut_ptr().expose_provenance() as u64;
            }
            if build_id {
                self.raw.build_id_size = BUILD_ID_SIZE as u32;
                self.raw.build_id_addr = self.build_id.as_mut_ptr().expose_provenance() as u64;
            }
            // SAFETY:
            // - the opcode encodes the size of `ProcmapQuery`, which `Call` points at and which
            //   outlives the call
            // - the two addresses are 0 or those of buffers that outlive the call, with sizes that
            //   are theirs
            // - another file than a maps file takes the opcode for its own only if its driver uses
            //   type `f` number 17 with 104 bytes, read and write; none in the kernel does
            match unsafe { rustix::ioctl::ioctl(maps.as_fd(), Call(&mut self.raw)) } {
                Ok(()) => break,
                Err(Errno::INTR) => {}
                Err(e) => return Err(e),
            }
        }
        let r = &self.raw;
        Ok(Answer {
            start: r.vma_start,
            end: r.vma_end,
            flags: r.vma_flags,
            page_size: r.vma_page_size,
            offset: r.vma_offset,
            inode: r.inode,
            dev: (r.dev_major, r.dev_minor),
        })
    }

    /// The name in the last answer, without its NUL.
    pub(crate) fn name(&self) -> Option<Vec<u8>> {
        let len = (self.raw.vma_name_size as usize).checked_sub(1)?;
        self.name.get(..len).map(<[u8]>::to_vec)
    }

    /// The build id in the last answer.
    pub(crate) fn build_id(&self) -> Option<Vec<u8>> {
        let id = self.build_id.get(..self.raw.build_id_size as usize)?;
        (!id.is_empty()).then(|| id.to_vec())
    }
}

struct Call<'a>(&'a mut ProcmapQuery);

// SAFETY: the opcode is `_IOWR('f', 17, struct procmap_query)`, the pointer is to such a struct,
// and the call writes to it.
unsafe impl Ioctl for Call<'_> {
    type Output = ();

    const IS_MUTATING: bool = true;

    fn opcode(&self) -> Opcode {
        opcode::read_write::<ProcmapQuery>(b'f', 17)
    }

    fn as_ptr(&mut self) -> *mut c_void {
        (&raw mut *self.0).cast()
    }

    unsafe fn output_from_ptr(_: IoctlOutput, _: *mut c_void) -> Result<(), Errno> {
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn opcode_is_the_kernels() {
        let mut raw = ProcmapQuery::default();
        assert_eq!(Call(&mut raw).opcode() as u64, words::OPCODE);
    }
}
