//! An object as a file: payload first, one header page last.
//!
//! ```text
//! 0                         payload_len        rounded up to pages    + 4096
//! | payload (values, code …) | zeroes                | header page          |
//!
//! header page
//!    0  8  magic "skepobj\0"          32  4  id
//!    8  4  format version (5)         36  4  length of meta
//!   12  4  kind                       40  8  generation (random: two files never share it)
//!   16  8  payload_len                48  8  inode of the pid namespace tokens belong to, 0 unknown
//!   24  8  file length                56  8  checksum of bytes 0..2048, this field taken as zero
//!   64  …  meta: what the kind says of itself, immutable, up to 2048
//! 2048 2048 state: mutable words
//! ```
//!
//! The file is complete before it has a name, so nobody meets a half-made one. Everything below
//! 2048 never changes and is copied out and checked when the file is opened.

use std::ffi::CString;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering::Relaxed};

use rustix::fs::{self, AtFlags, CWD, FlockOperation, Mode, OFlags};
use rustix::io::Errno;

use super::columns::Columns;
use super::lease::Identity;
use super::mapping::Mapping;
use super::reserve::{self, Limit, Size};
use super::{Access, MappedView, PAGE, page_up, sys, tls};

const MAGIC: [u8; 8] = *b"skepobj\0";
/// The format version this crate writes. It reads those before it too, but for types whose payload
/// has changed since.
pub const VERSION: u32 = 5;
const OLDEST: u32 = 1;
const META: usize = 64;
const STATE: usize = 2048;
/// Most bytes of meta an object can have.
pub const MAX_META: usize = STATE - META;
/// Most bytes of payload: far below where address arithmetic could overflow.
pub const MAX_PAYLOAD: u64 = 1 << 46;

/// Tells what an object file holds.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[repr(u32)]
#[non_exhaustive]
pub enum ObjectKind {
    /// A map.
    Map = 1,
    /// A program.
    Program = 2,
    /// A link.
    Link = 3,
    /// A chain of packet programs.
    Chain = 4,
    /// The table of per-CPU slots of a directory.
    Slots = 5,
}

impl ObjectKind {
    const ALL: [Self; 5] = [Self::Map, Self::Program, Self::Link, Self::Chain, Self::Slots];

    fn from_raw(n: u32) -> Option<Self> {
        Self::ALL.into_iter().find(|k| *k as u32 == n)
    }
}

/// Says what went wrong with an object file.
#[derive(Debug, Clone, thiserror::Error)]
#[non_exhaustive]
pub enum ObjectError {
    /// The operating system refused a call on a file.
    #[error("`{}`: {call} failed: {}", path.display(), std::io::Error::from_raw_os_error(*errno))]
    Os {
        /// The call.
        call: &'static str,
        /// The file or directory.
        path: PathBuf,
        /// The error number.
        errno: i32,
    },
    /// Memory could not be mapped.
    #[error("{call} failed: {}", std::io::Error::from_raw_os_error(*errno))]
    Map {
        /// The call.
        call: &'static str,
        /// The error number.
        errno: i32,
    },
    /// The file is no object, or a damaged one.
    #[error("`{}` is not a usable object file: {what}", path.display())]
    Damaged {
        /// The file.
        path: PathBuf,
        /// What does not fit.
        what: &'static str,
    },
    /// The file was written by another version of skep.
    #[error("`{}` has format version {found}, this skep reads {VERSION}", path.display())]
    Version {
        /// The file.
        path: PathBuf,
        /// Its version.
        found: u32,
    },
    /// The file holds an object of another kind.
    #[error("`{}` holds a {found:?}, not a {want:?}", path.display())]
    Kind {
        /// The file.
        path: PathBuf,
        /// What it holds.
        found: ObjectKind,
        /// What was asked for.
        want: ObjectKind,
    },
    /// The file belongs to another user.
    #[error("`{}` belongs to user {owner}", path.display())]
    Owner {
        /// The file.
        path: PathBuf,
        /// Its owner.
        owner: u32,
    },
    /// The file was made in another pid namespace, where thread ids mean other threads, or this
    /// process does not know its own.
    #[error("`{}` can only be opened for reading: {what}", path.display())]
    Namespace {
        /// The file.
        path: PathBuf,
        /// Where this process is.
        what: &'static str,
    },
    /// There is no memory for what the object promises to hold.
    #[error("`{}` needs {}, and there are {} {limit}", path.display(), Size(*need), Size(*room))]
    NoRoom {
        /// The file.
        path: PathBuf,
        /// Bytes that it needs.
        need: u64,
        /// Bytes that there are.
        room: u64,
        /// What limits them.
        limit: Limit,
    },
    /// The object is larger than any this crate makes.
    #[error("an object of {payload_len} bytes with {meta_len} bytes of description is too large")]
    TooLarge {
        /// The asked-for payload.
        payload_len: u64,
        /// The asked-for description.
        meta_len: usize,
    },
}

impl ObjectError {
    /// Returns the error number the bpf() door reports.
    #[must_use]
    pub fn errno(&self) -> i32 {
        let e = match self {
            Self::Os { errno, .. } | Self::Map { errno, .. } => return *errno,
            Self::Damaged { .. } | Self::Version { .. } => Errno::UCLEAN,
            Self::Kind { .. } => Errno::INVAL,
            Self::Owner { .. } => Errno::PERM,
            Self::Namespace { .. } => Errno::XDEV,
            Self::TooLarge { .. } => Errno::TOOBIG,
            // What the kernel says when a map's memory cannot be had.
            Self::NoRoom { .. } => Errno::NOMEM,
        };
        e.raw_os_error()
    }
}

/// Describes an object to be made.
#[derive(Clone, Copy, Debug)]
pub struct NewObject<'a> {
    /// What it holds.
    pub kind: ObjectKind,
    /// Its number among objects of this kind.
    pub id: u32,
    /// Size of the payload; what is not written stays a hole that reads as zero.
    pub payload_len: u64,
    /// The immutable description, at most [`MAX_META`] bytes.
    pub meta: &'a [u8],
    /// MapFile of the payload to write before the object gets its name.
    pub initial: &'a [(u64, &'a [u8])],
}

/// An open object: its mapped payload, its checked header, and a shared lock on its file.
///
/// The lock marks the object as used until this value is dropped or the process ends, however it
/// ends; a forked child shares it. See [`remove_if_unused`].
#[derive(Debug)]
pub struct ObjectFile {
    identity: Identity,
    path: PathBuf,
    kind: ObjectKind,
    version: u32,
    id: u32,
    payload_len: u64,
    generation: u64,
    meta: Vec<u8>,
    // The windows show the mappings and must stay with them.
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
    /// From some offset on twice in a row.
    Mirrored(u64),
    /// So many bytes of each so many, a slot at a time.
    Columns { stride: u64, used: u64 },
}

#[derive(Debug)]
enum Payload {
    Whole(Mapping),
    Columns(Columns),
}

fn os<'a>(call: &'static str, path: &'a Path) -> impl Fn(Errno) -> ObjectError + 'a {
    move |e| ObjectError::Os { call, path: path.to_owned(), errno: e.raw_os_error() }
}

fn field<const N: usize>(page: &[u8], at: usize) -> [u8; N] {
    let mut out = [0; N];
    if let Some(src) = page.get(at..at + N) {
        out.copy_from_slice(src);
    }
    out
}

/// FNV-1a with eight-byte output: any single changed byte changes it.
fn checksum(immutable: &[u8]) -> u64 {
    immutable.iter().enumerate().fold(0xcbf2_9ce4_8422_2325, |h, (i, b)| {
        let b = if (56..64).contains(&i) { 0 } else { *b };
        (h ^ u64::from(b)).wrapping_mul(0x100_0000_01b3)
    })
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

fn lock_shared(fd: BorrowedFd<'_>, path: &Path) -> Result<(), ObjectError> {
    fs::flock(fd, FlockOperation::NonBlockingLockShared).map_err(|e| match e {
        // Whoever holds it exclusively is about to remove the file.
        Errno::WOULDBLOCK => ObjectError::Os {
            call: "flock",
            path: path.to_owned(),
            errno: Errno::NOENT.raw_os_error(),
        },
        e => os("flock", path)(e),
    })
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
    /// `view` says.
    pub(crate) fn create_with(
        dir: &Path,
        name: &str,
        new: &NewObject<'_>,
        reserved: &[(u64, u64)],
        view: PayloadMode,
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
        let mut page = vec![0u8; PAGE as usize];
        let mut put = |at: usize, bytes: &[u8]| page[at..at + bytes.len()].copy_from_slice(bytes);
        put(0, &MAGIC);
        put(8, &VERSION.to_le_bytes());
        put(12, &(new.kind as u32).to_le_bytes());
        put(16, &new.payload_len.to_le_bytes());
        put(24, &(head_at + PAGE).to_le_bytes());
        put(32, &new.id.to_le_bytes());
        put(36, &(new.meta.len() as u32).to_le_bytes());
        put(40, &generation);
        put(48, &namespace.to_le_bytes());
        put(META, new.meta);
        let sum = checksum(&page[..STATE]);
        page[56..64].copy_from_slice(&sum.to_le_bytes());

        let (fd, temporary) = unnamed(dir)?;
        let made = (|| {
            fs::ftruncate(&fd, head_at + PAGE).map_err(os("ftruncate", &path))?;
            let ranges: Vec<_> = reserved.iter().copied().chain([(head_at, PAGE)]).collect();
            reserve::reserve(fd.as_fd(), &path, &ranges)?;
            for (at, bytes) in new.initial {
                write_all(&fd, *at, bytes).map_err(os("write", &path))?;
            }
            write_all(&fd, head_at, &page).map_err(os("write", &path))?;
            lock_shared(fd.as_fd(), &path)?;
            name_it(&fd, temporary.as_deref(), &path)
        })();
        if let Some(temporary) = temporary {
            let _ = fs::unlink(&temporary);
        }
        made?;
        Self::map(&fd, path, &page, Access::ReadWrite, view)
    }

    /// Opens an object file of a kind.
    ///
    /// # Errors
    /// See [`ObjectError`]; `ENOENT` also when the file is just being removed.
    pub fn open(path: &Path, kind: ObjectKind, access: Access) -> Result<Self, ObjectError> {
        Self::open_viewed(path, kind, access, |_| PayloadMode::Whole)
    }

    /// Opens an object file whose payload shall be mapped as `view` says, which is asked with the
    /// checked meta.
    pub(crate) fn open_viewed(
        path: &Path,
        kind: ObjectKind,
        access: Access,
        view: impl FnOnce(&[u8]) -> PayloadMode,
    ) -> Result<Self, ObjectError> {
        let flags = match access {
            Access::ReadOnly => OFlags::RDONLY,
            Access::ReadWrite => OFlags::RDWR,
        };
        // NONBLOCK: a fifo planted here must not hang us.
        let fd = fs::open(
            path,
            flags | OFlags::CLOEXEC | OFlags::NOFOLLOW | OFlags::NOCTTY | OFlags::NONBLOCK,
            Mode::empty(),
        )
        .map_err(os("open", path))?;
        let damaged = |what| ObjectError::Damaged { path: path.to_owned(), what };
        let stat = fs::fstat(&fd).map_err(os("fstat", path))?;
        if fs::FileType::from_raw_mode(stat.st_mode) != fs::FileType::RegularFile {
            return Err(damaged("no regular file"));
        }
        let me = rustix::process::geteuid();
        if stat.st_uid != me.as_raw() && !me.is_root() {
            return Err(ObjectError::Owner { path: path.to_owned(), owner: stat.st_uid });
        }
        lock_shared(fd.as_fd(), path)?;
        let stat = fs::fstat(&fd).map_err(os("fstat", path))?;
        if stat.st_nlink == 0 {
            return Err(ObjectError::Os {
                call: "open",
                path: path.to_owned(),
                errno: Errno::NOENT.raw_os_error(),
            });
        }
        let size = stat.st_size as u64;
        if size < PAGE || !size.is_multiple_of(PAGE) {
            return Err(damaged("its length is no whole number of pages"));
        }
        let mut page = vec![0; PAGE as usize];
        read_all(&fd, size - PAGE, &mut page).map_err(os("read", path))?;

        if field(&page, 0) != MAGIC {
            return Err(damaged("no header in its last page"));
        }
        let version = u32::from_le_bytes(field(&page, 8));
        if !(OLDEST..=VERSION).contains(&version) {
            return Err(ObjectError::Version { path: path.to_owned(), found: version });
        }
        if u64::from_le_bytes(field(&page, 56)) != checksum(&page[..STATE]) {
            return Err(damaged("the header does not match its checksum"));
        }
        let found = ObjectKind::from_raw(u32::from_le_bytes(field(&page, 12)))
            .ok_or_else(|| damaged("unknown kind"))?;
        if found != kind {
            return Err(ObjectError::Kind { path: path.to_owned(), found, want: kind });
        }
        let payload_len = u64::from_le_bytes(field(&page, 16));
        let file_len = u64::from_le_bytes(field(&page, 24));
        if payload_len > MAX_PAYLOAD
            || file_len != size
            || page_up(payload_len).and_then(|n| n.checked_add(PAGE)) != Some(size)
        {
            return Err(damaged("its length does not match its header"));
        }
        let namespace = u64::from_le_bytes(field(&page, 48));
        let here = if access == Access::ReadWrite { sys::pid_namespace() } else { namespace };
        if here != namespace || (access == Access::ReadWrite && (here == 0 || tls::is_stranger())) {
            return Err(ObjectError::Namespace {
                path: path.to_owned(),
                what: why_read_only(here, namespace),
            });
        }
        let meta = meta_of(&page).ok_or_else(|| damaged("its description is too long"))?;
        let view = view(&meta);
        if let PayloadMode::Mirrored(m) = view
            && (m >= payload_len || !m.is_multiple_of(PAGE) || !payload_len.is_multiple_of(PAGE))
        {
            return Err(damaged("its payload cannot be mapped twice"));
        }
        Self::map(&fd, path.to_owned(), &page, access, view)
    }

    /// Maps a file whose header was checked or just written.
    fn map(
        fd: &OwnedFd,
        path: PathBuf,
        page: &[u8],
        access: Access,
        view: PayloadMode,
    ) -> Result<Self, ObjectError> {
        tls::prepare()?;
        let damaged = |what| ObjectError::Damaged { path: path.clone(), what };
        let kind = ObjectKind::from_raw(u32::from_le_bytes(field(page, 12)))
            .ok_or_else(|| damaged("unknown kind"))?;
        let payload_len = u64::from_le_bytes(field(page, 16));
        let head_at = page_up(payload_len).ok_or_else(|| damaged("too large"))?;
        let meta = meta_of(page).ok_or_else(|| damaged("its description is too long"))?;
        let columns = match view {
            PayloadMode::Columns { stride, used } => Columns::map(fd.as_fd(), stride, used, access),
            PayloadMode::Whole | PayloadMode::Mirrored(_) => None,
        };
        let payload = match columns {
            Some(columns) => Payload::Columns(columns),
            None => {
                let mirror =
                    if let PayloadMode::Mirrored(from) = view { Some(from as usize) } else { None };
                Payload::Whole(Mapping::file(fd.as_fd(), 0, head_at as usize, mirror, access)?)
            }
        };
        let shown = match &payload {
            Payload::Whole(mapping) => mapping.view(),
            // SAFETY: only parts of the range are mapped: whoever uses the window of such an object
            // asks `columns` before.
            Payload::Columns(columns) => unsafe {
                let base = std::ptr::NonNull::new(columns.base() as *mut u8)
                    .ok_or_else(|| damaged("too large"))?;
                MappedView::new(base, head_at as usize, access == Access::ReadWrite)
            },
        };
        let head = Mapping::file(fd.as_fd(), head_at, PAGE as usize, None, access)?;
        let identity = Identity::of(fd).map_err(os("fstat", &path))?;
        Ok(Self {
            kind,
            version: u32::from_le_bytes(field(page, 8)),
            id: u32::from_le_bytes(field(page, 32)),
            payload_len,
            generation: u64::from_le_bytes(field(page, 40)),
            meta,
            payload: shown,
            head: head.view(),
            mapped: payload,
            _head: head,
            identity,
            path,
        })
    }

    /// Returns what the object holds.
    #[must_use]
    pub fn kind(&self) -> ObjectKind {
        self.kind
    }

    /// Refuses a file that is older than the format version in which its payload came to be what it
    /// is.
    pub(crate) fn check_version(&self, since: u32) -> Result<(), ObjectError> {
        if self.version < since {
            Err(ObjectError::Version { path: self.path.clone(), found: self.version })
        } else {
            Ok(())
        }
    }

    /// Tells whether whoever made the file saw to its memory, and whoever uses more of it does.
    pub(crate) fn reserves_memory(&self) -> bool {
        self.version >= 5
    }

    /// Returns the object's number.
    #[must_use]
    pub fn id(&self) -> u32 {
        self.id
    }

    /// Returns the path the object was made or opened under.
    #[must_use]
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Finds the absolute path, without the C library where /proc can tell.
    pub(crate) fn full_path(&self) -> PathBuf {
        use std::os::fd::AsRawFd;
        use std::os::unix::ffi::OsStringExt;
        let told = self.reopen().ok().and_then(|fd| {
            fs::readlink(format!("/proc/self/fd/{}", fd.as_raw_fd()), Vec::new()).ok()
        });
        match told {
            Some(path) => PathBuf::from(std::ffi::OsString::from_vec(path.into_bytes())),
            None => std::fs::canonicalize(&self.path).unwrap_or_else(|_| self.path.clone()),
        }
    }

    /// Returns a number that no other object file has.
    #[must_use]
    pub fn generation(&self) -> u64 {
        self.generation
    }

    /// Returns the immutable description.
    #[must_use]
    pub fn meta(&self) -> &[u8] {
        &self.meta
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
        self.payload_len
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

fn meta_of(page: &[u8]) -> Option<Vec<u8>> {
    let len = u32::from_le_bytes(field(page, 36)) as usize;
    if len > MAX_META { None } else { page.get(META..META + len).map(<[u8]>::to_vec) }
}

/// Opens a file without a name in `dir`, or where that is not offered one under a temporary name,
/// which is returned.
fn unnamed(dir: &Path) -> Result<(OwnedFd, Option<PathBuf>), ObjectError> {
    static COUNT: AtomicU32 = AtomicU32::new(0);
    let mode = Mode::RUSR | Mode::WUSR;
    match fs::open(dir, OFlags::TMPFILE | OFlags::RDWR | OFlags::CLOEXEC, mode) {
        Ok(fd) => return Ok((fd, None)),
        Err(Errno::OPNOTSUPP | Errno::ISDIR | Errno::INVAL) => {}
        Err(e) => return Err(os("open", dir)(e)),
    }
    let path = dir.join(format!(".tmp-{}-{}", std::process::id(), COUNT.fetch_add(1, Relaxed)));
    let fd = fs::open(
        &path,
        OFlags::CREATE | OFlags::EXCL | OFlags::RDWR | OFlags::CLOEXEC | OFlags::NOFOLLOW,
        mode,
    )
    .map_err(os("open", &path))?;
    Ok((fd, Some(path)))
}

/// Gives the finished file its name; fails when the name is taken.
fn name_it(fd: &OwnedFd, temporary: Option<&Path>, path: &Path) -> Result<(), ObjectError> {
    use std::os::fd::AsRawFd;
    let linked = match temporary {
        Some(t) => fs::linkat(CWD, t, CWD, path, AtFlags::empty()),
        None => {
            let by_fd =
                CString::new(format!("/proc/self/fd/{}", fd.as_raw_fd())).unwrap_or_default();
            fs::linkat(CWD, &by_fd, CWD, path, AtFlags::SYMLINK_FOLLOW)
        }
    };
    linked.map_err(os("link", path))
}

fn write_all(fd: &OwnedFd, mut at: u64, mut bytes: &[u8]) -> Result<(), Errno> {
    while !bytes.is_empty() {
        match rustix::io::pwrite(fd, bytes, at) {
            Ok(0) => return Err(Errno::IO),
            Ok(n) => {
                at += n as u64;
                bytes = bytes.get(n..).unwrap_or_default();
            }
            Err(Errno::INTR) => {}
            Err(e) => return Err(e),
        }
    }
    Ok(())
}

fn read_all(fd: &OwnedFd, at: u64, out: &mut [u8]) -> Result<(), Errno> {
    let mut done = 0;
    while let Some(rest) = out.get_mut(done..).filter(|r| !r.is_empty()) {
        match rustix::io::pread(fd, rest, at + done as u64) {
            Ok(0) => return Err(Errno::IO),
            Ok(n) => done += n,
            Err(Errno::INTR) => {}
            Err(e) => return Err(e),
        }
    }
    Ok(())
}

/// Removes an object file that nobody has open and no pin (second hard link) keeps; tells whether
/// it did.
///
/// # Errors
/// What the operating system says of the file; that it is in use is no error.
pub fn remove_if_unused(path: &Path) -> Result<bool, ObjectError> {
    let fd = match fs::open(
        path,
        OFlags::RDONLY | OFlags::CLOEXEC | OFlags::NOFOLLOW | OFlags::NOCTTY | OFlags::NONBLOCK,
        Mode::empty(),
    ) {
        Ok(fd) => fd,
        Err(Errno::NOENT) => return Ok(false),
        Err(e) => return Err(os("open", path)(e)),
    };
    match fs::flock(&fd, FlockOperation::NonBlockingLockExclusive) {
        Ok(()) => {}
        Err(Errno::WOULDBLOCK) => return Ok(false),
        Err(e) => return Err(os("flock", path)(e)),
    }
    let ours = fs::fstat(&fd).map_err(os("fstat", path))?;
    let named = match fs::lstat(path) {
        Ok(s) => s,
        Err(Errno::NOENT) => return Ok(false),
        Err(e) => return Err(os("lstat", path)(e)),
    };
    if ours.st_nlink != 1 || (ours.st_dev, ours.st_ino) != (named.st_dev, named.st_ino) {
        return Ok(false);
    }
    fs::unlink(path).map_err(os("unlink", path))?;
    Ok(true)
}
