//! An object as a file: payload first, one [header](super::header) page last.
//!
//! ```text
//! 0                         payload_len        rounded up to pages    + 4096
//! | payload                  | zeroes                | header page          |
//! ```
//!
//! The file is complete before it has a name, so nobody meets a half-made one.

use std::os::fd::{AsFd, OwnedFd};
use std::path::{Path, PathBuf};
use std::sync::atomic::AtomicU64;

use rustix::fs::{self, OFlags};
use rustix::io::Errno;
use skep_sys::of_proc;

use super::columns::Columns;
use super::error::ObjectError;
use super::file::{lock_shared, os, publish, read_all, unnamed, write_all};
use super::header::{Header, MAX_META, MAX_PAYLOAD, STATE};
use super::lease::Identity;
use super::mapping::Mapping;
use super::view::MappedView;
use super::{Access, ObjectKind, PAGE, VERSION, page_up, reserve, sys, tls};

/// Describes an object to be made.
#[derive(Clone, Copy, Debug)]
pub struct NewObject<'a> {
    /// What it holds.
    pub kind: ObjectKind,
    /// Its number among objects of this kind.
    pub id: u32,
    /// Size of the payload, which reads as zero.
    pub payload_len: u64,
    /// The immutable description, at most [`MAX_META`] bytes.
    pub meta: &'a [u8],
}

/// An open object: its mapped payload, its checked header, and a shared lock on its file.
///
/// The lock marks the object as used until this value is dropped or the process ends, however it
/// ends; a forked child shares it. See [`remove_if_unused`](super::file::remove_if_unused).
#[derive(Debug)]
pub struct ObjectFile {
    identity: Identity,
    path: PathBuf,
    header: Header,
    // The views show the mappings and must stay with them.
    payload: MappedView,
    head: MappedView,
    mapped: Payload,
    _head: Mapping,
}

/// How a payload is mapped.
#[derive(Clone, Copy, Debug)]
pub(crate) enum PayloadMode {
    /// From end to end.
    Whole,
    /// From end to end, and the part behind this offset once more behind itself.
    Mirrored(u64),
    /// The first `used` of every `stride` bytes, one slot's values at a time.
    Columns { stride: u64, used: u64 },
}

#[derive(Debug)]
enum Payload {
    Whole(Mapping),
    Columns(Columns),
}

/// Says why a process in the pid namespace `here` may not write to a file of the namespace
/// `made_in`; 0 is one that could not be told.
fn why_read_only(here: u64, made_in: u64) -> &'static str {
    match (here, made_in) {
        (0, _) => "this process cannot tell its pid namespace, as /proc is not mounted",
        _ if tls::is_stranger() => {
            "this process was forked into another pid namespace than its parent used maps in"
        }
        (_, 0) => "it was made by a process that could not tell its pid namespace",
        _ => "it was made in another pid namespace",
    }
}

/// Opens a file that may hold an object, marks it as used, and returns it with its length.
fn open_regular(path: &Path, access: Access) -> Result<(OwnedFd, u64), ObjectError> {
    let fd = open_own(path, access)?;
    lock_shared(fd.as_fd(), path)?;
    let size = size_of(&fd, path)?;
    Ok((fd, size))
}

/// Opens a regular file of this user.
fn open_own(path: &Path, access: Access) -> Result<OwnedFd, ObjectError> {
    let flags = match access {
        Access::ReadOnly => OFlags::RDONLY,
        Access::ReadWrite => OFlags::RDWR,
    };
    // NONBLOCK: a fifo planted here must not hang us.
    let flags = flags | OFlags::CLOEXEC | OFlags::NOFOLLOW | OFlags::NOCTTY | OFlags::NONBLOCK;
    let fd = sys::open(path, flags).map_err(os("open", path))?;
    let damaged = |what| ObjectError::Damaged { path: path.to_owned(), what };
    let stat = fs::fstat(&fd).map_err(os("fstat", path))?;
    if fs::FileType::from_raw_mode(stat.st_mode) != fs::FileType::RegularFile {
        return Err(damaged("no regular file"));
    }
    let me = rustix::process::geteuid();
    if stat.st_uid != me.as_raw() && !me.is_root() {
        return Err(ObjectError::Owner { path: path.to_owned(), owner: stat.st_uid });
    }
    Ok(fd)
}

/// Returns the length of a file that may hold an object, and was not removed.
fn size_of(fd: &OwnedFd, path: &Path) -> Result<u64, ObjectError> {
    let stat = fs::fstat(fd).map_err(os("fstat", path))?;
    if stat.st_nlink == 0 {
        return Err(os("open", path)(Errno::NOENT));
    }
    let size = stat.st_size as u64;
    if size < PAGE || !size.is_multiple_of(PAGE) {
        let what = "its length is no whole number of pages";
        return Err(ObjectError::Damaged { path: path.to_owned(), what });
    }
    Ok(size)
}

/// Reads the header of an object file.
fn header(fd: &OwnedFd, path: &Path, size: u64, kind: ObjectKind) -> Result<Header, ObjectError> {
    let mut page = vec![0; PAGE as usize];
    read_all(fd, size - PAGE, &mut page).map_err(os("read", path))?;
    Header::from_page(&page, path, size, kind)
}

/// Reads what an object file says of itself, without marking it as used: it may go meanwhile.
pub(crate) fn read_meta(path: &Path, kind: ObjectKind) -> Result<Vec<u8>, ObjectError> {
    let fd = open_own(path, Access::ReadOnly)?;
    let size = size_of(&fd, path)?;
    Ok(header(&fd, path, size, kind)?.meta)
}

impl ObjectFile {
    /// Makes the object file `dir/name`, with memory for all of it, and opens it for reading and
    /// writing.
    ///
    /// # Errors
    /// `EEXIST` when there is such a file; a full or read-only file system.
    pub fn create(dir: &Path, name: &str, new: &NewObject<'_>) -> Result<Self, ObjectError> {
        Self::create_with(dir, name, new, &[(0, new.payload_len)], PayloadMode::Whole)
    }

    /// As [`ObjectFile::create`], with memory for some ranges of the payload only, and mapped as
    /// `mode` says.
    pub(crate) fn create_with(
        dir: &Path,
        name: &str,
        new: &NewObject<'_>,
        reserved: &[(u64, u64)],
        mode: PayloadMode,
    ) -> Result<Self, ObjectError> {
        let path = dir.join(name);
        let too_large =
            ObjectError::TooLarge { payload_len: new.payload_len, meta_len: new.meta.len() };
        if new.meta.len() > MAX_META || new.payload_len > MAX_PAYLOAD {
            return Err(too_large);
        }
        let head_at = page_up(new.payload_len).ok_or(too_large)?;
        reserve::check_length(&path, head_at + PAGE)?;
        let namespace = sys::pid_namespace();
        if namespace == 0 || tls::is_stranger() {
            return Err(ObjectError::Namespace { path, what: why_read_only(namespace, namespace) });
        }
        let mut generation = [0; 8];
        rustix::rand::getrandom(&mut generation, rustix::rand::GetRandomFlags::empty())
            .map_err(os("getrandom", &path))?;
        let header = Header {
            version: VERSION,
            kind: new.kind,
            id: new.id,
            payload_len: new.payload_len,
            generation: u64::from_le_bytes(generation),
            namespace,
            meta: new.meta.to_vec(),
        };
        let (fd, temporary) = unnamed(dir)?;
        let made = (|| {
            fs::ftruncate(&fd, head_at + PAGE).map_err(os("ftruncate", &path))?;
            let ranges: Vec<_> = reserved.iter().copied().chain([(head_at, PAGE)]).collect();
            reserve::reserve(fd.as_fd(), &path, &ranges)?;
            write_all(&fd, head_at, &header.to_page(head_at)).map_err(os("write", &path))?;
            lock_shared(fd.as_fd(), &path)?;
            publish(&fd, temporary.as_deref(), &path)
        })();
        if let Some(temporary) = temporary {
            let _ = fs::unlink(&temporary);
        }
        made?;
        Self::map(&fd, path, header, Access::ReadWrite, mode)
    }

    /// Opens an object file of a kind.
    ///
    /// # Errors
    /// See [`ObjectError`]; `ENOENT` also when the file is just being removed.
    pub fn open(path: &Path, kind: ObjectKind, access: Access) -> Result<Self, ObjectError> {
        Self::open_as(path, kind, access, |_| PayloadMode::Whole)
    }

    /// Opens an object file whose payload is mapped as `mode` says, which is asked with the checked
    /// meta.
    pub(crate) fn open_as(
        path: &Path,
        kind: ObjectKind,
        access: Access,
        mode: impl FnOnce(&[u8]) -> PayloadMode,
    ) -> Result<Self, ObjectError> {
        let (fd, size) = open_regular(path, access)?;
        let header = header(&fd, path, size, kind)?;
        let made_in = header.namespace;
        let here = if access == Access::ReadWrite { sys::pid_namespace() } else { made_in };
        if here != made_in || (access == Access::ReadWrite && (here == 0 || tls::is_stranger())) {
            return Err(ObjectError::Namespace {
                path: path.to_owned(),
                what: why_read_only(here, made_in),
            });
        }
        let mode = mode(&header.meta);
        if let PayloadMode::Mirrored(from) = mode
            && (from >= header.payload_len
                || !from.is_multiple_of(PAGE)
                || !header.payload_len.is_multiple_of(PAGE))
        {
            let what = "its payload cannot be mapped twice";
            return Err(ObjectError::Damaged { path: path.to_owned(), what });
        }
        Self::map(&fd, path.to_owned(), header, access, mode)
    }

    /// Maps a file whose header was checked or just written.
    fn map(
        fd: &OwnedFd,
        path: PathBuf,
        header: Header,
        access: Access,
        mode: PayloadMode,
    ) -> Result<Self, ObjectError> {
        tls::prepare()?;
        let damaged = || ObjectError::Damaged { path: path.clone(), what: "too large" };
        let head_at = page_up(header.payload_len).ok_or_else(damaged)?;
        let columns = match mode {
            PayloadMode::Columns { stride, used } => Columns::map(fd.as_fd(), stride, used, access),
            PayloadMode::Whole | PayloadMode::Mirrored(_) => None,
        };
        let mapped = match columns {
            Some(columns) => Payload::Columns(columns),
            None => {
                let mirror =
                    if let PayloadMode::Mirrored(from) = mode { Some(from as usize) } else { None };
                Payload::Whole(Mapping::file(fd.as_fd(), 0, head_at as usize, mirror, access)?)
            }
        };
        let payload = match &mapped {
            Payload::Whole(mapping) => mapping.view(),
            // SAFETY: the payload's address range belongs to `columns`, which `mapped` keeps. Only
            // parts of it are mapped: whoever uses the view of such an object asks `columns` before.
            Payload::Columns(columns) => unsafe {
                let base = std::ptr::NonNull::new(columns.base() as *mut u8).ok_or_else(damaged)?;
                MappedView::new(base, head_at as usize, access == Access::ReadWrite)
            },
        };
        let head = Mapping::file(fd.as_fd(), head_at, PAGE as usize, None, access)?;
        let identity = Identity::of(fd).map_err(os("fstat", &path))?;
        let view = head.view();
        Ok(Self { identity, path, header, payload, head: view, mapped, _head: head })
    }

    /// Returns what the object holds.
    #[must_use]
    pub fn kind(&self) -> ObjectKind {
        self.header.kind
    }

    /// Refuses a file that is older than the format version in which its payload came to be what it
    /// is.
    pub(crate) fn check_version(&self, since: u32) -> Result<(), ObjectError> {
        if self.header.version < since {
            Err(ObjectError::Version { path: self.path.clone(), found: self.header.version })
        } else {
            Ok(())
        }
    }

    /// Tells whether whoever made the file saw to its memory, and whoever uses more of it does.
    pub(crate) fn reserves_memory(&self) -> bool {
        self.header.version >= 5
    }

    /// Returns the object's number.
    #[must_use]
    pub fn id(&self) -> u32 {
        self.header.id
    }

    /// Tells whether two have one file open.
    #[must_use]
    pub fn is_that_of(&self, other: &Self) -> bool {
        self.identity == other.identity
    }

    /// Returns the path the object was made or opened under.
    #[must_use]
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Finds the absolute path, without the C library where /proc can tell.
    pub(crate) fn full_path(&self) -> PathBuf {
        use std::os::fd::AsRawFd;
        use std::os::unix::ffi::{OsStrExt, OsStringExt};
        if of_proc::is_handed_over(self.path.as_os_str().as_bytes()) {
            // Through a descriptor of somebody's in another mount namespace, where that path leads.
            return self.path.clone();
        }
        let told = self.reopen().ok().and_then(|fd| {
            fs::readlink(format!("/proc/thread-self/fd/{}", fd.as_raw_fd()), Vec::new()).ok()
        });
        match told {
            Some(path) => PathBuf::from(std::ffi::OsString::from_vec(path.into_bytes())),
            None => std::fs::canonicalize(&self.path).unwrap_or_else(|_| self.path.clone()),
        }
    }

    /// Returns a number that no other object file has.
    #[must_use]
    pub fn generation(&self) -> u64 {
        self.header.generation
    }

    /// Returns the immutable description.
    #[must_use]
    pub fn meta(&self) -> &[u8] {
        &self.header.meta
    }

    /// Returns the payload, in whole pages.
    #[must_use]
    pub fn payload(&self) -> &MappedView {
        &self.payload
    }

    /// Returns the columns of a payload that is mapped a slot at a time: only what they have may be
    /// used.
    pub(crate) fn columns(&self) -> Option<&Columns> {
        match &self.mapped {
            Payload::Whole(_) => None,
            Payload::Columns(columns) => Some(columns),
        }
    }

    /// Returns the exact size of the payload.
    #[must_use]
    pub fn payload_len(&self) -> u64 {
        self.header.payload_len
    }

    /// Returns mutable word `i` of the header. Storing through it needs a writable object.
    #[must_use]
    pub(crate) fn state(&self, i: usize) -> Option<&AtomicU64> {
        self.head.word((STATE as u64).checked_add((i as u64).checked_mul(8)?)?)
    }

    /// Tells whether the memory may be written.
    #[must_use]
    pub fn writable(&self) -> bool {
        self.head.writable()
    }

    /// Opens the file once more, to read or change it by system calls. An object in use keeps no
    /// descriptor.
    ///
    /// # Errors
    /// `ENOENT` when the file has no name any more, or another file has it.
    pub fn reopen(&self) -> Result<OwnedFd, ObjectError> {
        let flags = if self.writable() { OFlags::RDWR } else { OFlags::RDONLY };
        self.identity.open(&self.path, flags).map_err(os("open", &self.path))
    }
}
