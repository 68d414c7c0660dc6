//! The ELF files loaded into a process, with the bias that turns their addresses into run-time ones.
//!
//! Works from `/proc` alone, so also inside a constructor, before the dynamic linker has finished. Biases come from
//! program headers (`bias + vaddr = address`), which is right for fixed, position-independent and prelinked files alike.

use std::ffi::OsStr;
use std::ops::Range;
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};

use rustix::io::Errno;

use crate::elf::{self, BuildId, Elf, ElfError, Functions, Segment};
use crate::file::{self, Memory};
use crate::maps::{self, Dev, MapsError, Perms, Vma};

/// What a module is to its process.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Role {
    /// The program itself.
    Main,
    /// The dynamic linker.
    Interpreter,
    /// A shared library.
    Library,
    /// The kernel's `[vdso]`; it has no file.
    Vdso,
}

/// One loaded ELF file. A file loaded twice (`dlmopen`) is two modules.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct Module {
    /// Path of the file as the process sees it, without ` (deleted)`; `[vdso]` for the vDSO.
    pub path: PathBuf,
    /// The mappings say that the file was unlinked.
    pub deleted: bool,
    /// What it is to the process.
    pub role: Role,
    /// Run-time address minus link-time address, wrapping.
    pub bias: u64,
    /// Run-time addresses from the first to the last segment.
    pub span: Range<u64>,
    /// Run-time addresses of executable memory, sorted, merged where they touch.
    pub text: Vec<Range<u64>>,
    /// Device of the file.
    pub dev: Dev,
    /// Inode of the file.
    pub inode: u64,
    /// Build id, if the file has one.
    pub build_id: Option<BuildId>,
    pid: Option<u32>,
    /// Mapping to open through `map_files`.
    mapping: Range<u64>,
}

impl Module {
    /// The last component of the path.
    pub fn name(&self) -> &OsStr {
        self.path.file_name().unwrap_or(self.path.as_os_str())
    }

    /// Tells whether this is the program itself.
    pub fn is_main(&self) -> bool {
        self.role == Role::Main
    }

    /// Turns a run-time address into a link-time one.
    pub fn vaddr(&self, addr: u64) -> u64 {
        addr.wrapping_sub(self.bias)
    }

    /// Turns a link-time address into a run-time one.
    pub fn addr(&self, vaddr: u64) -> u64 {
        vaddr.wrapping_add(self.bias)
    }

    /// Tells whether `addr` is in the executable memory of this module.
    pub fn text_contains(&self, addr: u64) -> bool {
        self.text.iter().any(|r| r.contains(&addr))
    }

    /// Opens the file that is mapped, and makes sure that it is that one.
    ///
    /// A deleted or replaced file is found through `map_files` (which needs privilege) or, for the program itself,
    /// through `exe`; else this fails with [`ElfError::Replaced`]. The vDSO is read from memory.
    pub fn elf(&self) -> Result<Elf, ElfError> {
        if self.role == Role::Vdso {
            let memory = open_memory(self.pid).map_err(|errno| ElfError::Os { call: "open", errno })?;
            let len = usize::try_from(self.mapping.end - self.mapping.start).unwrap_or(0);
            return Elf::from_bytes(memory.read(self.mapping.start, len).ok_or(ElfError::Replaced)?);
        }
        let proc = proc_dir(self.pid);
        let whole = self.pid.map_or_else(|| "/proc/self".to_owned(), |pid| format!("/proc/{pid}"));
        let exact = format!("{whole}/map_files/{:x}-{:x}", self.mapping.start, self.mapping.end);
        if let Ok(elf) = Elf::open(&exact) {
            return Ok(elf);
        }
        // Own paths are opened as they are: `/proc/self/root` is refused in some sandboxes.
        let by_name = match self.pid {
            None => self.path.clone(),
            Some(_) => join_root(&proc, &self.path),
        };
        let mut error = ElfError::Replaced;
        for path in [Some(by_name), self.is_main().then(|| PathBuf::from(format!("{proc}/exe")))].into_iter().flatten() {
            match file::open(&path) {
                Ok(fd) => {
                    let stat = file::stat(&fd).map_err(|errno| ElfError::Os { call: "fstat", errno })?;
                    let same_dev = (rustix::fs::major(stat.st_dev), rustix::fs::minor(stat.st_dev)) == (self.dev.major, self.dev.minor);
                    let same_inode = stat.st_ino == self.inode;
                    let elf = Elf::from_file(fd)?;
                    // `st_dev` differs from the mapping's device on overlay and btrfs, so a build id is as good.
                    if same_inode && same_dev || elf.build_id() == self.build_id && (same_inode || self.build_id.is_some()) {
                        return Ok(elf);
                    }
                }
                Err(errno) if error == ElfError::Replaced && !self.deleted => error = ElfError::Os { call: "open", errno },
                Err(_) => {}
            }
        }
        Err(error)
    }

    /// Reads the functions of the file, with the names of its debug file if there is one; see [`Elf::functions_at`].
    pub fn functions(&self) -> Result<Functions, ElfError> {
        let root = self.pid.map_or_else(|| PathBuf::from("/"), |pid| PathBuf::from(format!("/proc/{pid}/root")));
        self.elf()?.functions_at(&self.path, &root)
    }
}

/// Lists the modules of the own process, in order of address.
///
/// ```
/// let modules = skep_proc::module::own()?;
/// assert!(modules.iter().any(|m| m.is_main()));
/// # Ok::<(), skep_proc::maps::MapsError>(())
/// ```
pub fn own() -> Result<Vec<Module>, MapsError> {
    list(None)
}

/// Lists the modules of another process, in order of address. Needs the right to read its mappings; without the right
/// to read its memory the files' headers are used, and the vDSO is left out.
pub fn of(pid: u32) -> Result<Vec<Module>, MapsError> {
    list(Some(pid))
}

fn list(pid: Option<u32>) -> Result<Vec<Module>, MapsError> {
    let proc = proc_dir(pid);
    let text = file::read(format!("{proc}/maps"), 1 << 30).map_err(|errno| match errno {
        Errno::NOENT | Errno::SRCH => MapsError::Gone,
        Errno::ACCESS | Errno::PERM => MapsError::NoPermission { pid: pid.unwrap_or(0) },
        errno => MapsError::Os { call: "read", errno },
    })?;
    let vmas = maps::parse(&text)?;
    if vmas.is_empty() {
        return Err(MapsError::Gone);
    }
    let lister = Lister { pid, memory: open_memory(pid).ok(), auxv: file::read(format!("{proc}/auxv"), 4096).unwrap_or_default() };
    Ok(lister.modules(&vmas))
}

fn proc_dir(pid: Option<u32>) -> String {
    // `thread-self`: the main thread may have exited while others go on, which leaves `self` empty.
    pid.map_or_else(|| "/proc/thread-self".to_owned(), |pid| format!("/proc/{pid}"))
}

fn join_root(proc: &str, path: &Path) -> PathBuf {
    let mut out = PathBuf::from(format!("{proc}/root")).into_os_string();
    out.push(path);
    PathBuf::from(out)
}

fn open_memory(pid: Option<u32>) -> Result<Memory, Errno> {
    pid.map_or_else(Memory::own, Memory::of)
}

struct Lister {
    pid: Option<u32>,
    memory: Option<Memory>,
    auxv: Vec<u8>,
}

impl Lister {
    fn modules(&self, vmas: &[Vma]) -> Vec<Module> {
        let is_file = |v: &Vma| v.name.as_deref().is_some_and(|n| n.starts_with(b"/") && v.inode != 0 || n == b"[vdso]");
        let mut groups: Vec<Vec<&Vma>> = Vec::new();
        for vma in vmas.iter().filter(|v| is_file(v)) {
            let same = |g: &&mut Vec<&Vma>| g.first().is_some_and(|f| (f.dev, f.inode, &f.name) == (vma.dev, vma.inode, &vma.name));
            // Files come in runs; the search backwards finds its group at once.
            match groups.iter_mut().rev().find(same) {
                Some(group) => group.push(vma),
                None => {
                    groups.push(vec![vma]);
                }
            }
        }
        let mut out: Vec<_> = groups.iter().flat_map(|g| self.instances(g)).collect();
        out.sort_by_key(|m| m.span.start);
        out
    }

    /// The modules that the mappings of one file make up.
    fn instances(&self, vmas: &[&Vma]) -> Vec<Module> {
        let mut out: Vec<Module> = Vec::new();
        let Some(first) = vmas.first().filter(|_| vmas.iter().any(|v| v.perms.contains(Perms::EXEC))) else { return out };
        let Some(segments) = self.segments(vmas) else { return out };
        let loads: Vec<_> = segments.iter().filter(|s| s.kind == elf::PT_LOAD).collect();
        let (Some(low), Some(high)) = (loads.iter().map(|s| s.vaddr).min(), loads.iter().map(|s| s.range().end).max()) else { return out };
        for vma in vmas.iter().filter(|v| v.perms.contains(Perms::EXEC)) {
            let biases = || loads.iter().filter(|s| covers(s, vma.offset)).map(|s| bias(vma, s));
            // Two segments can share a page of the file: one that continues a known instance wins, then code.
            let known = biases().find(|b| out.iter().any(|m| m.bias == *b));
            let text = || loads.iter().find(|s| s.is_text() && covers(s, vma.offset)).map(|s| bias(vma, s));
            let Some(bias) = known.or_else(text).or_else(|| biases().next()) else { continue };
            match out.iter_mut().find(|m| m.bias == bias) {
                Some(m) => push_merged(&mut m.text, vma.range()),
                None => {
                    let (name, deleted) = first.name_deleted();
                    let span = low.wrapping_add(bias)..high.wrapping_add(bias);
                    let mut module = Module {
                        path: PathBuf::from(OsStr::from_bytes(name)),
                        deleted,
                        role: self.role(name, &span),
                        bias,
                        span,
                        text: vec![vma.range()],
                        dev: vma.dev,
                        inode: vma.inode,
                        build_id: None,
                        pid: self.pid,
                        mapping: vma.range(),
                    };
                    module.build_id = self.build_id(&segments, &module);
                    out.push(module);
                }
            }
        }
        out
    }

    /// Program headers from memory, which needs no file; else from the file.
    fn segments(&self, vmas: &[&Vma]) -> Option<Vec<Segment>> {
        let from_memory = |vma: &&&Vma| {
            let memory = self.memory.as_ref()?;
            let header = elf::Header::parse(&memory.read(vma.start, 64)?).ok()?;
            let size = usize::from(header.phnum) * 56;
            let room = vma.end - vma.start;
            if header.phentsize != 56 || header.phoff > room || size as u64 > room - header.phoff {
                return None;
            }
            Some(elf::parse_segments(&memory.read(vma.start + header.phoff, size)?))
        };
        let heads = vmas.iter().filter(|v| v.offset == 0 && v.perms.contains(Perms::READ));
        heads.clone().find_map(|v| from_memory(&v)).or_else(|| {
            let (name, _) = vmas.first()?.name_deleted();
            let path = PathBuf::from(OsStr::from_bytes(name));
            let path = self.pid.map_or(path.clone(), |_| join_root(&proc_dir(self.pid), &path));
            let fd = file::open(path).ok()?;
            (file::stat(&fd).ok()?.st_ino == vmas.first()?.inode).then_some(())?;
            Some(Elf::from_file(fd).ok()?.segments().to_vec())
        })
    }

    fn build_id(&self, segments: &[Segment], module: &Module) -> Option<BuildId> {
        let notes = || segments.iter().filter(|s| s.kind == elf::PT_NOTE && s.file_size <= 1 << 16);
        if let Some(memory) = &self.memory {
            let read = |s: &Segment| elf::build_id_in_notes(&memory.read(module.addr(s.vaddr), s.file_size as usize)?, s.align);
            return notes().find_map(read);
        }
        module.elf().ok()?.build_id()
    }

    fn role(&self, name: &[u8], span: &Range<u64>) -> Role {
        const AT_PHDR: u64 = 3;
        const AT_BASE: u64 = 7;
        let value = |key| self.auxv.chunks_exact(16).find(|p| elf::u64_at(p, 0) == key).map_or(0, |p| elf::u64_at(p, 8));
        if name == b"[vdso]" {
            Role::Vdso
        } else if span.contains(&value(AT_PHDR)) {
            Role::Main
        } else if span.contains(&value(AT_BASE)) {
            Role::Interpreter
        } else {
            Role::Library
        }
    }
}

/// Tells whether a segment's pages in the file include `offset`.
fn covers(s: &Segment, offset: u64) -> bool {
    let end = s.offset.saturating_add(s.file_size);
    offset >= s.offset & !0xfff && offset < end.checked_next_multiple_of(0x1000).unwrap_or(u64::MAX)
}

fn bias(vma: &Vma, s: &Segment) -> u64 {
    vma.start.wrapping_sub(vma.offset).wrapping_add(s.offset).wrapping_sub(s.vaddr)
}

fn push_merged(ranges: &mut Vec<Range<u64>>, next: Range<u64>) {
    match ranges.last_mut() {
        Some(last) if last.end == next.start => last.end = next.end,
        _ => ranges.push(next),
    }
}
