//! `PROCMAP_QUERY` without the kernel: the same struct, the same rules and the same errors, over any
//! source of mappings.
//!
//! A program that asks by `ioctl(fd, PROCMAP_QUERY, &query)` can ask a snapshot, a core file or an
//! older kernel in the same way. What the kernel does and in which order is in `do_procmap_query` of
//! [`fs/proc/task_mmu.c`]; sizes are checked as `copy_struct_from_user` does.
//!
//! [`fs/proc/task_mmu.c`]: https://git.kernel.org/pub/scm/linux/kernel/git/torvalds/linux.git/tree/fs/proc/task_mmu.c

#![allow(unsafe_code)]

use std::ffi::{c_int, c_ulong, c_void};

use rustix::io::Errno;

use crate::ioctl::{COVERING_OR_NEXT, FILE_BACKED};
use crate::maps::{Filter, MapSource, MapsError, Perms, Vma, Want};

/// `struct procmap_query` of `linux/fs.h`.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[doc(alias = "PROCMAP_QUERY")]
#[expect(missing_docs, reason = "the kernel's header documents them")]
pub struct ProcmapQuery {
    pub size: u64,
    pub query_flags: u64,
    pub query_addr: u64,
    pub vma_start: u64,
    pub vma_end: u64,
    pub vma_flags: u64,
    pub vma_page_size: u64,
    pub vma_offset: u64,
    pub inode: u64,
    pub dev_major: u32,
    pub dev_minor: u32,
    pub vma_name_size: u32,
    pub build_id_size: u32,
    pub vma_name_addr: u64,
    pub build_id_addr: u64,
}

/// The size of the struct that this version of the crate knows, 104 bytes.
pub const SIZE: usize = size_of::<ProcmapQuery>();

/// The least size: up to the address.
const LEAST: u64 = 24;
/// The largest.
const PAGE: u64 = 4096;
/// The longest name that is answered, with its NUL.
const PATH_MAX: usize = 4096;
/// The longest build id that is answered; longer ones are as none.
const BUILD_ID_MAX: usize = 20;

/// Answers a query as the kernel does: 0, or the negative error number.
///
/// `query` is the address of a `struct procmap_query`, whose first field says how large it is. Where
/// memory cannot be accessed the answer is `-EFAULT`, as long as the process may use
/// `process_vm_readv`; else the access faults.
///
/// Errors are those of the kernel (`-E2BIG`, `-EINVAL`, `-ENOENT`, `-ENAMETOOLONG`, `-EFAULT`), with
/// `-ESRCH` for a source that has ended, `-EOPNOTSUPP` for a filter that the source does not
/// [know](MapSource::knows) how to answer, and `-EIO` for one that cannot be read.
///
/// # Safety
/// `query` and the two addresses in it are those of memory of the sizes given, or of none at all,
/// and no Rust reference to that memory is used during the call.
pub unsafe fn procmap_query(source: &dyn MapSource, query: *mut c_void) -> c_int {
    // SAFETY: the caller's promise is the one that `answer` asks for.
    match unsafe { answer(source, query as u64) } {
        Ok(()) => 0,
        Err(errno) => -errno.raw_os_error(),
    }
}

/// # Safety
/// As [`procmap_query`].
unsafe fn answer(source: &dyn MapSource, user: u64) -> Result<(), Errno> {
    let mut size = [0; 8];
    // SAFETY: `user` is the caller's, for all accesses in this function.
    unsafe { read(&mut size, user)? };
    let size = u64::from_ne_bytes(size);
    if size > PAGE {
        return Err(Errno::TOOBIG);
    }
    if size < LEAST {
        return Err(Errno::INVAL);
    }
    let mut bytes = [0; PAGE as usize];
    let given = bytes.get_mut(..size as usize).ok_or(Errno::TOOBIG)?;
    // SAFETY: as above.
    unsafe { read(given, user)? };
    let (known, more) = bytes.split_at_mut(SIZE);
    if more.iter().any(|byte| *byte != 0) {
        return Err(Errno::TOOBIG);
    }
    let (mut q, buffers) = (Fields(known), size.min(SIZE as u64));
    let (name_size, name_addr) = (q.u32_at(80), q.u64_at(88));
    let (id_size, id_addr) = (q.u32_at(84), q.u64_at(96));
    let flags = q.u64_at(8);
    if flags & !(u64::from(Perms::ALL.0) | COVERING_OR_NEXT | FILE_BACKED) != 0
        || (name_size == 0) != (name_addr == 0)
        || (id_size == 0) != (id_addr == 0)
    {
        return Err(Errno::INVAL);
    }

    let filter = Filter {
        all: Perms(flags as u8).and(Perms::ALL),
        file_backed: flags & FILE_BACKED != 0,
        or_next: flags & COVERING_OR_NEXT != 0,
        ..Filter::default()
    };
    let want = Want { name: name_size != 0, build_id: id_size != 0, page_size: true };
    let vma = source.query(q.u64_at(16), &filter, want).map_err(errno)?.ok_or(Errno::NOENT)?;
    q.fill(&vma);
    let id = vma.build_id.as_deref().filter(|id| id.len() <= BUILD_ID_MAX && vma.file_backed());
    let id = id.unwrap_or_default();
    if id_size != 0 {
        if id.len() > id_size as usize {
            return Err(Errno::NAMETOOLONG);
        }
        q.set_u32(84, id.len() as u32);
    }
    let mut name = Vec::new();
    if name_size != 0 {
        name = vma.name.clone().unwrap_or_default();
        if !name.is_empty() {
            name.push(0);
        }
        if name.len() > (name_size as usize).min(PATH_MAX) {
            return Err(Errno::NAMETOOLONG);
        }
        q.set_u32(80, name.len() as u32);
    }
    let part = q.0.get(..buffers as usize).unwrap_or_default();
    // SAFETY: as above, and each address has as much room as its size says, which is checked.
    unsafe {
        write(&name, name_addr)?;
        if id_size != 0 {
            write(id, id_addr)?;
        }
        write(part, user)
    }
}

/// The bytes of a [`ProcmapQuery`].
struct Fields<'a>(&'a mut [u8]);

impl Fields<'_> {
    fn u64_at(&self, at: usize) -> u64 {
        crate::elf::u64_at(self.0, at)
    }

    fn u32_at(&self, at: usize) -> u32 {
        crate::elf::u32_at(self.0, at)
    }

    fn set(&mut self, at: usize, bytes: &[u8]) {
        if let Some(to) = self.0.get_mut(at..at + bytes.len()) {
            to.copy_from_slice(bytes);
        }
    }

    fn set_u32(&mut self, at: usize, n: u32) {
        self.set(at, &n.to_ne_bytes());
    }

    fn fill(&mut self, vma: &Vma) {
        // Who does not know the page size does not know of huge pages either.
        let page_size = if vma.page_size == 0 { PAGE } else { vma.page_size };
        let flags = u64::from(vma.perms.and(Perms::ALL).0);
        let words = [vma.start, vma.end, flags, page_size, vma.offset, vma.inode];
        for (at, n) in (24..).step_by(8).zip(words) {
            self.set(at, &n.to_ne_bytes());
        }
        self.set_u32(72, vma.dev.major);
        self.set_u32(76, vma.dev.minor);
    }
}

fn errno(error: MapsError) -> Errno {
    match error {
        MapsError::Gone
        | MapsError::Ended { .. }
        | MapsError::Execed { .. }
        | MapsError::KernelThread { .. } => Errno::SRCH,
        MapsError::NoPermission { .. } => Errno::ACCESS,
        MapsError::NameTooLong => Errno::NAMETOOLONG,
        MapsError::Unsupported { .. } => Errno::OPNOTSUPP,
        MapsError::Malformed { .. } | MapsError::BadFile { .. } => Errno::IO,
        MapsError::Os { errno, .. } => errno,
    }
}

#[repr(C)]
struct IoVec {
    base: *mut c_void,
    len: usize,
}

unsafe extern "C" {
    fn process_vm_readv(
        pid: c_int,
        local: *const IoVec,
        locals: c_ulong,
        remote: *const IoVec,
        remotes: c_ulong,
        flags: c_ulong,
    ) -> isize;
    fn process_vm_writev(
        pid: c_int,
        local: *const IoVec,
        locals: c_ulong,
        remote: *const IoVec,
        remotes: c_ulong,
        flags: c_ulong,
    ) -> isize;
}

/// Copies from an address.
///
/// # Safety
/// It is of memory of that size that nobody changes meanwhile, or of none.
unsafe fn read(to: &mut [u8], from: u64) -> Result<(), Errno> {
    let len = to.len();
    let local = IoVec { base: to.as_mut_ptr().cast(), len };
    let remote = IoVec { base: std::ptr::with_exposed_provenance_mut(from as usize), len };
    // SAFETY: both vectors are of one element; the local one is `to`, and the kernel checks the
    // other.
    let done = unsafe { process_vm_readv(own_pid(), &local, 1, &remote, 1, 0) };
    if done == len as isize {
        return Ok(());
    }
    if is_fault(done) {
        return Err(Errno::FAULT);
    }
    // SAFETY: the caller says that it is memory; the two do not overlap, as `to` is this module's.
    unsafe { std::ptr::copy_nonoverlapping(remote.base.cast(), to.as_mut_ptr(), len) };
    Ok(())
}

/// Copies to an address.
///
/// # Safety
/// It is of memory of that size that nobody uses meanwhile, or of none.
unsafe fn write(from: &[u8], to: u64) -> Result<(), Errno> {
    let len = from.len();
    if len == 0 {
        return Ok(());
    }
    let local = IoVec { base: from.as_ptr().cast_mut().cast(), len };
    let remote = IoVec { base: std::ptr::with_exposed_provenance_mut(to as usize), len };
    // SAFETY: both vectors are of one element; the local one is `from`, which is only read, and the
    // kernel checks the other.
    let done = unsafe { process_vm_writev(own_pid(), &local, 1, &remote, 1, 0) };
    if done == len as isize {
        return Ok(());
    }
    if is_fault(done) {
        return Err(Errno::FAULT);
    }
    // SAFETY: the caller says that it is memory; the two do not overlap, as `from` is this module's.
    unsafe { std::ptr::copy_nonoverlapping(from.as_ptr(), remote.base.cast(), len) };
    Ok(())
}

/// A copy that was not complete: because of the addresses, or because the call may not be used.
fn is_fault(done: isize) -> bool {
    let refused = [Errno::NOSYS, Errno::PERM, Errno::ACCESS];
    let error = std::io::Error::last_os_error().raw_os_error().unwrap_or(0);
    done >= 0 || !refused.iter().any(|e| e.raw_os_error() == error)
}

fn own_pid() -> c_int {
    std::process::id() as c_int
}
