//! Mappings of a live process: by ioctl where the kernel has it, else by text.

use std::ffi::OsStr;
use std::os::fd::OwnedFd;
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering};

use rustix::fs::FileType;
use rustix::io::Errno;

use super::{Dev, Filter, MapSource, MapsError, Perms, Vma, Want, parse};
use crate::elf::Elf;
use crate::file::{self, Memory};
use crate::ioctl::{COVERING_OR_NEXT, FILE_BACKED, Query};

/// No text of mappings is longer; a process has 65,530 of them unless the administrator raises
/// that.
const MAX_TEXT: usize = 1 << 30;

/// Mappings of a live process.
///
/// Bound to the address space at the time of opening: after the process calls `exec` every question
/// fails with [`MapsError::Gone`], and the caller opens a new one. Each answer is consistent in
/// itself, two answers need not be.
#[derive(Debug)]
pub struct Live {
    fd: OwnedFd,
    /// `None` for the own process.
    pid: Option<u32>,
    /// The kernel has answered `ENOTTY`, or the caller wants it so.
    text: AtomicBool,
}

impl Live {
    /// Opens the own process's mappings.
    pub fn own() -> Result<Self, MapsError> {
        // `thread-self`: the main thread may have exited while others go on, which leaves `self`
        // empty.
        Self::open("/proc/thread-self/maps", None)
    }

    /// Opens another process's mappings; needs the right to read its memory (not to stop it).
    pub fn of(pid: u32) -> Result<Self, MapsError> {
        Self::open(&format!("/proc/{pid}/maps"), Some(pid))
    }

    fn open(path: &str, pid: Option<u32>) -> Result<Self, MapsError> {
        let fd = file::open(path).map_err(|errno| match errno {
            Errno::NOENT | Errno::SRCH => MapsError::Gone,
            Errno::ACCESS | Errno::PERM => MapsError::NoPermission { pid: pid.unwrap_or(0) },
            errno => MapsError::Os { call: "open", errno },
        })?;
        Ok(Self { fd, pid, text: AtomicBool::new(false) })
    }

    /// Takes a descriptor of `/proc/PID/maps` that someone else opened, such as the process itself.
    ///
    /// The permission was checked when it was opened, so this needs none.
    pub fn from_fd(fd: OwnedFd, pid: u32) -> Self {
        Self { fd, pid: Some(pid), text: AtomicBool::new(false) }
    }

    /// Uses the text even where the kernel has the ioctl.
    pub fn text_only(self) -> Self {
        self.text.store(true, Ordering::Relaxed);
        self
    }

    /// Tells whether the kernel answers queries by ioctl. Asks it once.
    pub fn has_ioctl(&self) -> bool {
        !self.text.load(Ordering::Relaxed)
            && !matches!(Query::new().ask(&self.fd, 0, 0, false, false), Err(Errno::NOTTY))
    }

    fn read_text(&self) -> Result<Vec<Vma>, MapsError> {
        let text = file::read_to_end(&self.fd, MAX_TEXT).map_err(|errno| match errno {
            Errno::SRCH => MapsError::Gone,
            errno => MapsError::Os { call: "read", errno },
        })?;
        // Also a kernel thread's: it has no address space of its own.
        if text.is_empty() { Err(MapsError::Gone) } else { parse(&text) }
    }

    /// One ioctl; `Err(NOTTY)` makes the caller use the text.
    fn ask(
        &self,
        query: &mut Query,
        addr: u64,
        filter: &Filter,
        want: Want,
    ) -> Result<Option<Vma>, Errno> {
        let mut flags = u64::from(filter.all.0 & 15);
        flags |= if filter.or_next { COVERING_OR_NEXT } else { 0 };
        flags |= if filter.file_backed { FILE_BACKED } else { 0 };
        let mut at = addr;
        loop {
            let (answer, named) = match query.ask(&self.fd, at, flags, want.name, want.build_id) {
                Err(Errno::NOENT) => return Ok(None),
                // The id always fits, so it is the name that does not; the text has it.
                Err(Errno::NAMETOOLONG) => {
                    (query.ask(&self.fd, at, flags, false, want.build_id)?, false)
                }
                other => (other?, want.name),
            };
            let mut vma = Vma {
                start: answer.start,
                end: answer.end,
                perms: Perms(answer.flags as u8 & 15),
                offset: answer.offset,
                dev: Dev { major: answer.dev.0, minor: answer.dev.1 },
                inode: answer.inode,
                name: if named { query.name() } else { None },
                build_id: if want.build_id { query.build_id() } else { None },
                page_size: answer.page_size,
                escaped: false,
            };
            if filter.matches(&vma) {
                if want.name && !named {
                    let lines = self.read_text().unwrap_or_default();
                    if let Some(line) = lines.into_iter().find(|l| l.start == vma.start) {
                        (vma.name, vma.escaped) = (line.name, line.escaped);
                    }
                }
                return Ok(Some(vma));
            }
            if !filter.or_next || vma.end <= at {
                return Ok(None);
            }
            at = vma.end;
        }
    }

    /// Fills in a build id that the kernel did not give: a long one, the vDSO's, or any one when
    /// there is no ioctl.
    fn add_build_id(&self, vma: &mut Vma) {
        let read = || -> Option<Vec<u8>> {
            if vma.name.as_deref() == Some(b"[vdso]") {
                let memory = self.pid.map_or_else(Memory::own, Memory::of).ok()?;
                let image = memory.read(vma.start, usize::try_from(vma.end - vma.start).ok()?)?;
                return Some(Elf::from_bytes(image).ok()?.build_id()?.0);
            }
            // Only `map_files` of a mapping that is there and regular files are opened: opening a
            // device may act.
            let proc =
                self.pid.map_or_else(|| "/proc/self".to_owned(), |pid| format!("/proc/{pid}"));
            let exact = PathBuf::from(format!("{proc}/map_files/{:x}-{:x}", vma.start, vma.end));
            let root = if self.pid.is_some() { format!("{proc}/root") } else { String::new() };
            let named = vma.readings().into_iter().filter(|n| n.starts_with(b"/"));
            let named =
                named.map(|n| PathBuf::from(OsStr::from_bytes(&[root.as_bytes(), &*n].concat())));
            std::iter::once(exact)
                .chain(named)
                .find_map(|path| Some(open_regular(&path, vma.inode)?.build_id()?.0))
        };
        if vma.inode != 0 || vma.name.as_deref() == Some(b"[vdso]") {
            vma.build_id = read();
        }
    }

    fn finish(&self, mut vma: Vma, want: Want) -> Vma {
        if want.build_id && vma.build_id.is_none() {
            if vma.name.is_none()
                && !want.name
                && let Ok(Some(named)) =
                    self.query(vma.start, &Filter::default(), Want { name: true, build_id: false })
            {
                (vma.name, vma.escaped) = (named.name, named.escaped);
            }
            self.add_build_id(&mut vma);
        }
        if !want.name {
            (vma.name, vma.escaped) = (None, false);
        }
        vma
    }
}

impl MapSource for Live {
    fn query(&self, addr: u64, filter: &Filter, want: Want) -> Result<Option<Vma>, MapsError> {
        if !self.text.load(Ordering::Relaxed) {
            match self.ask(&mut Query::new(), addr, filter, want) {
                Ok(found) => return Ok(found.map(|vma| self.finish(vma, want))),
                Err(Errno::NOTTY) => self.text.store(true, Ordering::Relaxed),
                Err(Errno::SRCH) => return Err(MapsError::Gone),
                Err(errno) => return Err(MapsError::Os { call: "ioctl(PROCMAP_QUERY)", errno }),
            }
        }
        let mut vmas = self.read_text()?;
        Ok(filter.find(&vmas, addr).map(|at| self.finish(vmas.swap_remove(at), want)))
    }

    /// Reads the text, which costs no more than asking for every mapping, unless the kernel can
    /// filter.
    fn all(&self, filter: &Filter, want: Want) -> Result<Vec<Vma>, MapsError> {
        if (filter.all != Perms::NONE || filter.file_backed) && self.has_ioctl() {
            return self.walk(filter, want).collect();
        }
        let vmas = self.read_text()?.into_iter();
        // The vsyscall page is in the text only; it belongs to no address space.
        let vmas = vmas.filter(|v| v.name.as_deref() != Some(b"[vsyscall]") && filter.matches(v));
        Ok(vmas.map(|vma| self.finish(vma, want)).collect())
    }
}

/// Opens a regular file as ELF if it is the inode that is mapped.
fn open_regular(path: &Path, inode: u64) -> Option<Elf> {
    let stat = rustix::fs::stat(path).ok()?;
    let regular = FileType::from_raw_mode(stat.st_mode) == FileType::RegularFile;
    if !regular || stat.st_ino != inode {
        return None;
    }
    Elf::open(path).ok()
}
