//! Mappings of a live process: by ioctl where the kernel has it, else by text.

use std::ffi::OsStr;
use std::os::fd::OwnedFd;
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};
use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, Ordering};

use rustix::fs::FileType;
use rustix::io::Errno;

use super::filter::{Filter, Want};
use super::text::lines;
use super::vma::{Dev, Perms, Vma};
use super::{MapSource, MapsError, NoBuildId};
use crate::elf::{Elf, ElfError};
use crate::file::{self, Memory};
use crate::ioctl::{COVERING_OR_NEXT, FILE_BACKED, Query};

/// No text of mappings is longer; a process has 65,530 of them unless the administrator raises
/// that.
const MAX_TEXT: usize = 1 << 30;

/// Mappings of a live process.
///
/// Bound to the address space at the time of opening: after the process calls `exec` every question
/// fails with [`MapsError::Gone`], and the caller opens a new one. Each answer is consistent in
/// itself, two answers need not be. A process whose main thread has ended is asked through another
/// one of its threads.
#[derive(Debug)]
pub struct Live {
    fd: OwnedFd,
    /// `None` for the own process.
    pid: Option<u32>,
    /// Stands in for the main thread where that had ended when the process was opened; looked for once.
    #[cfg(feature = "users")]
    other_thread: std::sync::OnceLock<Option<(u32, OwnedFd)>>,
    /// The kernel has answered `ENOTTY`, or the caller wants it so.
    text: AtomicBool,
    /// The kernel has answered a query.
    answered: AtomicBool,
    /// The descriptor has shown an address space.
    shown: AtomicBool,
    /// Buffers of the last query, for the next one.
    buffers: Mutex<Query>,
    #[cfg(feature = "users")]
    build_ids: std::sync::Arc<super::build_ids::BuildIds>,
}

/// Reads all mappings of the own process from the text, in order of address, without their names.
///
/// # Errors
/// Where `/proc` is not there, or may not be read.
pub fn own() -> Result<Vec<Vma>, MapsError> {
    Live::own()?.text_only().all(&Filter::default(), Want::default())
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
        Ok(Self::new(fd, pid))
    }

    fn new(fd: OwnedFd, pid: Option<u32>) -> Self {
        Self {
            fd,
            pid,
            #[cfg(feature = "users")]
            other_thread: std::sync::OnceLock::new(),
            text: AtomicBool::new(false),
            answered: AtomicBool::new(false),
            shown: AtomicBool::new(false),
            buffers: Mutex::new(Query::new()),
            #[cfg(feature = "users")]
            build_ids: std::sync::Arc::default(),
        }
    }

    /// Takes a descriptor of `/proc/PID/maps` that someone else opened, such as the process itself.
    ///
    /// The permission was checked when it was opened, so this needs none.
    pub fn from_fd(fd: OwnedFd, pid: u32) -> Self {
        let live = Self::new(fd, Some(pid));
        // It shows what it was opened for, or nothing.
        #[cfg(feature = "users")]
        let _ = live.other_thread.set(None);
        live
    }

    /// The descriptor that shows the address space.
    fn fd(&self) -> &OwnedFd {
        #[cfg(feature = "users")]
        if let Some(Some((_, fd))) = self.other_thread.get() {
            return fd;
        }
        &self.fd
    }

    /// The number under which `/proc` shows the address space; `None` for the own process.
    pub(crate) fn entry(&self) -> Option<u32> {
        #[cfg(feature = "users")]
        if let Some(Some((tid, _))) = self.other_thread.get() {
            return Some(*tid);
        }
        self.pid
    }

    /// Looks for a thread that goes on after the main thread has ended, when the descriptor shows no
    /// address space. Once one was shown, that is the one in question.
    #[cfg(feature = "users")]
    fn find_other_thread(&self) -> bool {
        let Some(pid) = self.pid.filter(|_| !self.shown.load(Ordering::Relaxed)) else {
            return false;
        };
        if self.other_thread.get().is_some() {
            return false;
        }
        let other = self.other_thread.get_or_init(|| {
            let tid = super::identity::entry_of(pid);
            let open = |tid| file::open(format!("/proc/{tid}/maps")).ok();
            open(tid).filter(|_| tid != pid).map(|fd| (tid, fd))
        });
        other.is_some()
    }

    #[cfg(not(feature = "users"))]
    fn find_other_thread(&self) -> bool {
        false
    }

    /// Remembers build ids in `known`, which may be shared with other processes' mappings: each
    /// file is then read once.
    #[cfg(feature = "users")]
    pub fn with_build_ids(self, known: std::sync::Arc<super::build_ids::BuildIds>) -> Self {
        Self { build_ids: known, ..self }
    }

    /// What is known of build ids.
    #[cfg(feature = "users")]
    pub(super) fn build_ids(&self) -> std::sync::Arc<super::build_ids::BuildIds> {
        std::sync::Arc::clone(&self.build_ids)
    }

    /// Uses the text even where the kernel has the ioctl.
    pub fn text_only(self) -> Self {
        self.text.store(true, Ordering::Relaxed);
        self
    }

    /// Tells whether the kernel answers queries by ioctl. Asks it once.
    pub fn has_ioctl(&self) -> bool {
        if self.text.load(Ordering::Relaxed) {
            return false;
        }
        if !self.answered.load(Ordering::Relaxed) {
            let answer = Query::new().ask(self.fd(), 0, 0, false, false);
            self.answered.store(!matches!(answer, Err(Errno::NOTTY)), Ordering::Relaxed);
        }
        self.answered.load(Ordering::Relaxed)
    }

    /// Tells whether the address space has ended.
    pub(crate) fn is_gone(&self) -> bool {
        self.shows_nothing() && (!self.find_other_thread() || self.shows_nothing())
    }

    fn shows_nothing(&self) -> bool {
        // A read of one byte is enough: it is nothing then.
        let no_text = || !matches!(file::read_exact_at(self.fd(), 0, 1), Ok(Some(_)));
        if self.text.load(Ordering::Relaxed) {
            return no_text();
        }
        match Query::new().ask(self.fd(), 0, 0, false, false) {
            Err(Errno::NOTTY) => no_text(),
            Err(errno) => errno == Errno::SRCH,
            Ok(_) => false,
        }
    }

    /// Keeps what was read under the process's number if that still shows the address space in question:
    /// the number may be another process's, and that of another program.
    fn still<T>(&self, read: T) -> Option<T> {
        (self.pid.is_none() || !self.is_gone()).then_some(read)
    }

    /// Reads all that passes the filter, without what takes more than the text.
    fn read_text(&self, filter: &Filter, want: Want) -> Result<Vec<Vma>, MapsError> {
        let text = file::read_to_end(self.fd(), MAX_TEXT).map_err(|errno| match errno {
            Errno::SRCH => MapsError::Gone,
            errno => MapsError::Os { call: "read", errno },
        })?;
        // Also a kernel thread's: it has no address space of its own.
        if text.is_empty() {
            return Err(MapsError::Gone);
        }
        let mut out = Vec::with_capacity(text.len() / 64);
        // A build id is found by name.
        let named = want.name || want.build_id;
        lines(&text, |line| {
            if line.name != Some(b"[vsyscall]") {
                let vma = line.to_vma(named);
                if filter.matches(&vma) {
                    out.push(vma);
                }
            }
        })?;
        if want.page_size {
            self.add_page_sizes(&mut out);
            return self.still(out).ok_or(MapsError::Gone);
        }
        Ok(out)
    }

    /// Fills in page sizes from `smaps`, as far as that can be read.
    fn add_page_sizes(&self, vmas: &mut [Vma]) {
        let dir = self.entry().map_or_else(|| "/proc/thread-self".to_owned(), |_| self.dir());
        let Ok(text) = file::read(format!("{dir}/smaps"), MAX_TEXT) else { return };
        let (mut vmas, mut start) = (vmas.iter_mut().peekable(), 0);
        for line in text.split(|&b| b == b'\n') {
            let word = line.split(|&b| b == b' ').next().unwrap_or_default();
            let hex = word.split(|&b| b == b'-').next().and_then(|n| str::from_utf8(n).ok());
            if word == b"KernelPageSize:" {
                while vmas.next_if(|v| v.start < start).is_some() {}
                if let Some(vma) = vmas.next_if(|v| v.start == start) {
                    let digits = line.iter().filter(|b| b.is_ascii_digit());
                    vma.page_size = 1024 * digits.fold(0, |n, b| n * 10 + u64::from(b - b'0'));
                }
            } else if word.contains(&b'-')
                && let Some(Ok(at)) = hex.map(|n| u64::from_str_radix(n, 16))
            {
                start = at;
            }
        }
    }

    /// The process in `/proc`.
    fn dir(&self) -> String {
        self.entry().map_or_else(|| "/proc/self".to_owned(), |pid| format!("/proc/{pid}"))
    }

    /// One ioctl; `Err(NOTTY)` makes the caller use the text.
    fn ask(
        &self,
        query: &mut Query,
        addr: u64,
        filter: &Filter,
        want: Want,
    ) -> Result<Option<Vma>, Errno> {
        let mut flags = u64::from(filter.all.and(Perms::ALL).0);
        flags |= if filter.or_next { COVERING_OR_NEXT } else { 0 };
        flags |= if filter.file_backed { FILE_BACKED } else { 0 };
        let mut at = addr;
        loop {
            let (answer, named) = match query.ask(self.fd(), at, flags, want.name, want.build_id) {
                Err(Errno::NOENT) => return Ok(None),
                // The id always fits, so it is the name that does not; the text has it.
                Err(Errno::NAMETOOLONG) => {
                    (query.ask(self.fd(), at, flags, false, want.build_id)?, false)
                }
                other => (other?, want.name),
            };
            let mut vma = Vma {
                start: answer.start,
                end: answer.end,
                perms: Perms(answer.flags as u8).and(Perms::ALL),
                offset: answer.offset,
                dev: Dev { major: answer.dev.0, minor: answer.dev.1 },
                inode: answer.inode,
                name: if named { query.name() } else { None },
                build_id: if want.build_id { query.build_id() } else { None },
                page_size: if want.page_size { answer.page_size } else { 0 },
                escaped: false,
                file: answer.inode != 0 || answer.dev != (0, 0),
            };
            if filter.matches(&vma) {
                if want.name && !named {
                    let lines = self.read_text(&Filter::default(), Want::NAME).unwrap_or_default();
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

    /// Paths that may lead to the mapped file.
    fn paths(&self, vma: &Vma) -> Vec<PathBuf> {
        let root = if self.pid.is_some() { format!("{}/root", self.dir()) } else { String::new() };
        let named = vma.readings().into_iter().filter(|n| n.starts_with(b"/"));
        let named =
            named.map(|n| PathBuf::from(OsStr::from_bytes(&[root.as_bytes(), &*n].concat())));
        // Only `map_files` of a mapping that is there and regular files are opened: opening a
        // device may act.
        let exact = format!("{}/map_files/{:x}-{:x}", self.dir(), vma.start, vma.end);
        std::iter::once(PathBuf::from(exact)).chain(named).collect()
    }

    /// Reads a build id that the kernel did not give: a long one, the vDSO's, or any one when there
    /// is no ioctl.
    fn read_build_id(&self, vma: &Vma) -> Result<Vec<u8>, NoBuildId> {
        let of = |elf: Elf| elf.build_id().map(|id| id.0).ok_or(NoBuildId::NoNote);
        if vma.name.as_deref() == Some(b"[vdso]") {
            let memory = self.entry().map_or_else(Memory::own, Memory::of).ok();
            let len = usize::try_from(vma.end - vma.start).unwrap_or(0);
            let image = memory.and_then(|memory| memory.read(vma.start, len));
            let image = image.ok_or(NoBuildId::Unreadable)?;
            return of(Elf::from_bytes(image).map_err(|_| NoBuildId::NotElf)?);
        }
        if vma.inode == 0 {
            return Err(NoBuildId::NoFile);
        }
        let mut why = NoBuildId::NotFound;
        for path in self.paths(vma) {
            match open_regular(&path, vma.inode) {
                Ok(elf) => return of(elf),
                Err(NoBuildId::NotFound) => {}
                Err(other) => why = other,
            }
        }
        Err(why)
    }

    /// The build id by the kernel, else by reading.
    fn ask_build_id(&self, vma: &Vma) -> Result<Vec<u8>, NoBuildId> {
        if !self.text.load(Ordering::Relaxed) && self.may_be_read(vma) {
            let want = Want { build_id: true, ..Want::default() };
            let filter = Filter::default();
            let answer = self.with_buffers(|query| self.ask(query, vma.start, &filter, want));
            if let Ok(Some(Vma { build_id: Some(id), .. })) = answer {
                return Ok(id);
            }
        }
        let read = self.read_build_id(vma);
        self.still(read).unwrap_or(Err(NoBuildId::Unreadable))
    }

    /// Tells whether the kernel may be asked for a build id. It reads the file for that, whatever it
    /// is: the ring of a packet socket makes it wait for the next packet (seen of Linux 6.18), and a
    /// device may do so too.
    fn may_be_read(&self, vma: &Vma) -> bool {
        let name = vma.name.as_deref().unwrap_or_default();
        if !vma.file_backed() || !name.starts_with(b"/") {
            return false;
        }
        let same = |path: &PathBuf| rustix::fs::stat(path).ok().filter(|s| s.st_ino == vma.inode);
        match self.paths(vma).iter().find_map(same) {
            Some(stat) => FileType::from_raw_mode(stat.st_mode) == FileType::RegularFile,
            // Deleted, without a path (`/memfd:`), or of another mount namespace.
            None => !name.windows(5).any(|part| part == b"/dev/"),
        }
    }

    fn with_buffers<T>(&self, f: impl FnOnce(&mut Query) -> T) -> T {
        match self.buffers.try_lock() {
            Ok(mut query) => f(&mut query),
            Err(_) => f(&mut Query::new()),
        }
    }

    /// Settles what the escapes of a name stand for, and adds the build id. `named` is whether the
    /// name was asked for.
    fn finish(&self, mut vma: Vma, want: Want, named: bool) -> Vma {
        if want.build_id && vma.build_id.is_none() {
            if !named && let Ok(Some(named)) = self.query(vma.start, &Filter::default(), Want::NAME)
            {
                (vma.name, vma.escaped) = (named.name, named.escaped);
            }
            vma.build_id = self.known_build_id(&vma).ok();
        }
        if vma.escaped && want.name {
            self.settle_name(&mut vma);
        }
        want.trim(&mut vma);
        vma
    }

    #[cfg(feature = "users")]
    fn known_build_id(&self, vma: &Vma) -> Result<Vec<u8>, NoBuildId> {
        // The name itself leads to the file more quickly than through the process, if it does: by
        // device and inode it is seen whether it does.
        let named = vma.name.as_deref().filter(|name| name.starts_with(b"/"));
        let own = named.map(|name| PathBuf::from(OsStr::from_bytes(name)));
        let others = || self.paths(vma);
        self.build_ids.get(vma, own, others, || self.ask_build_id(vma))
    }

    #[cfg(not(feature = "users"))]
    fn known_build_id(&self, vma: &Vma) -> Result<Vec<u8>, NoBuildId> {
        self.ask_build_id(vma)
    }

    /// Finds out which `\012` of a name from the text are newlines: by the ioctl, which gives names
    /// as they are; else by the file that is found under one of the readings.
    fn settle_name(&self, vma: &mut Vma) {
        if !self.text.load(Ordering::Relaxed) {
            let filter = Filter::default();
            let asked = self.with_buffers(|query| self.ask(query, vma.start, &filter, Want::NAME));
            if let Ok(Some(Vma { name: Some(name), escaped: false, .. })) = asked {
                (vma.name, vma.escaped) = (Some(name), false);
                return;
            }
        }
        let root = if self.pid.is_some() { format!("{}/root", self.dir()) } else { String::new() };
        let right = vma.readings().into_iter().find(|name| {
            let path = [root.as_bytes(), &**name].concat();
            name.starts_with(b"/")
                && rustix::fs::stat(OsStr::from_bytes(&path)).is_ok_and(|s| s.st_ino == vma.inode)
        });
        if let Some(name) = right.map(|name| name.into_owned()) {
            let marked = vma.name_deleted().1 && !name.ends_with(b" (deleted)");
            // The mark stays part of the name, also where the file has another link of that name.
            let mark: &[u8] = if marked { b" (deleted)" } else { b"" };
            (vma.name, vma.escaped) = (Some([&name, mark].concat()), false);
        }
    }
}

impl Live {
    fn query_once(&self, addr: u64, filter: &Filter, want: Want) -> Result<Option<Vma>, MapsError> {
        if !self.text.load(Ordering::Relaxed) {
            // Whether the kernel may be asked for the build id is known when the file is.
            let now = Want { build_id: false, ..want };
            match self.with_buffers(|query| self.ask(query, addr, filter, now)) {
                Ok(Some(vma)) if want.build_id || vma.escaped => {
                    return Ok(Some(self.finish(vma, want, want.name)));
                }
                Ok(found) => return Ok(found),
                Err(Errno::NOTTY) => self.text.store(true, Ordering::Relaxed),
                Err(Errno::SRCH) => return Err(MapsError::Gone),
                Err(errno) => return Err(MapsError::Os { call: "ioctl(PROCMAP_QUERY)", errno }),
            }
        }
        let mut vmas = self.read_text(&Filter::default(), want)?;
        Ok(filter.find(&vmas, addr).map(|at| self.finish(vmas.swap_remove(at), want, true)))
    }

    fn all_once(&self, filter: &Filter, want: Want) -> Result<Vec<Vma>, MapsError> {
        let filtered = filter.all != Perms::NONE || filter.file_backed;
        if (filtered || want.page_size) && self.has_ioctl() {
            return self.walk(filter, want).collect();
        }
        let vmas = self.read_text(filter, want)?.into_iter();
        Ok(vmas.map(|vma| self.finish(vma, want, true)).collect())
    }

    /// Asks again through another thread where the main thread had ended before the first question.
    fn or_by_other_thread<T>(
        &self,
        ask: impl Fn() -> Result<T, MapsError>,
    ) -> Result<T, MapsError> {
        let mut answer = ask();
        if matches!(answer, Err(MapsError::Gone)) && self.find_other_thread() {
            answer = ask();
        }
        if answer.is_ok() {
            self.shown.store(true, Ordering::Relaxed);
        }
        answer
    }
}

impl MapSource for Live {
    fn query(&self, addr: u64, filter: &Filter, want: Want) -> Result<Option<Vma>, MapsError> {
        self.or_by_other_thread(|| self.query_once(addr, filter, want))
    }

    /// Reads the text, which costs no more than asking for every mapping, unless the kernel can
    /// filter or page sizes are wanted.
    fn all(&self, filter: &Filter, want: Want) -> Result<Vec<Vma>, MapsError> {
        self.or_by_other_thread(|| self.all_once(filter, want))
    }

    fn no_build_id(&self, vma: &Vma) -> Option<NoBuildId> {
        self.known_build_id(vma).err()
    }

    fn build_id(&self, vma: &Vma) -> Result<Option<Vec<u8>>, MapsError> {
        let found =
            self.finish(Vma { build_id: None, ..vma.clone() }, Want::ALL, vma.name.is_some());
        Ok(found.build_id)
    }

    /// Of the own process, the dynamic linker says so; mappings that the program makes by itself do
    /// not count.
    fn generation(&self) -> u64 {
        #[cfg(feature = "users")]
        if self.pid.is_none() {
            return crate::loader::changes();
        }
        0
    }

    /// Not known before the first question: a question to find out would cost a short process a
    /// tenth of its time.
    fn reads_all(&self) -> bool {
        self.text.load(Ordering::Relaxed)
    }
}

/// Opens a regular file as ELF if it is the inode that is mapped.
fn open_regular(path: &Path, inode: u64) -> Result<Elf, NoBuildId> {
    let stat = rustix::fs::stat(path).map_err(|_| NoBuildId::NotFound)?;
    if stat.st_ino != inode {
        return Err(NoBuildId::NotFound);
    }
    if FileType::from_raw_mode(stat.st_mode) != FileType::RegularFile {
        return Err(NoBuildId::NotElf);
    }
    Elf::open(path).map_err(|error| match error {
        ElfError::Os { .. } => NoBuildId::Unreadable,
        _ => NoBuildId::NotElf,
    })
}
