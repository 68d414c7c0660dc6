//! The ELF files loaded into a process, with the bias that turns their addresses into run-time
//! ones.
//!
//! Works from `/proc` alone, so also inside a constructor, before the dynamic linker has finished.
//! Biases come from program headers (`bias + vaddr = address`), which is right for fixed,
//! position-independent and prelinked files alike.

use std::ffi::OsStr;
use std::ops::Range;
use std::os::fd::OwnedFd;
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};

use rustix::io::Errno;

use crate::elf::{self, BuildId, Elf, ElfError, Functions, Segment};
use crate::file::{self, Memory};
#[cfg(feature = "users")]
use crate::maps::Snapshot;
use crate::maps::{Dev, Filter, Live, MapSource, MapsError, Perms, Vma, Want};

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
    /// Run-time addresses of the table of its unwind information ([`crate::unwind::Step::find`]).
    pub unwind_table: Option<Range<u64>>,
    whole: bool,
    origin: Origin,
    /// Mapping to open through `map_files`.
    mapping: Range<u64>,
}

/// Whose modules they are, which decides how their files and memory are reached.
#[derive(Clone, Copy, Debug)]
enum Origin {
    Own,
    Live(u32),
    /// Only what was saved of it is known; files are looked for under their names here.
    #[cfg_attr(not(feature = "users"), expect(dead_code, reason = "snapshots are for users"))]
    Saved,
}

impl Origin {
    /// Tells whether an inode is not known: core files say none.
    fn lacks_inode(self, inode: u64) -> bool {
        cfg!(feature = "users") && inode == 0 && matches!(self, Self::Saved)
    }

    fn dir(self) -> Option<String> {
        match self {
            // `thread-self`: the main thread may have exited while others go on, which leaves
            // `self` empty.
            Self::Own => Some("/proc/thread-self".to_owned()),
            Self::Live(pid) => Some(format!("/proc/{pid}")),
            Self::Saved => None,
        }
    }

    /// Where the process's paths start. Own ones are used as they are: some sandboxes refuse
    /// `/proc/self/root`.
    fn root(self) -> PathBuf {
        match self {
            Self::Live(pid) => PathBuf::from(format!("/proc/{pid}/root")),
            Self::Own | Self::Saved => PathBuf::from("/"),
        }
    }

    fn below_root(self, path: &Path) -> PathBuf {
        self.root().join(path.strip_prefix("/").unwrap_or(path))
    }

    fn memory(self) -> Result<Memory, Errno> {
        match self {
            Self::Own => Memory::own(),
            Self::Live(pid) => Memory::of(pid),
            Self::Saved => Err(Errno::SRCH),
        }
    }

    /// Paths to a mapped file that do not depend on its name.
    fn direct(self, mapping: &Range<u64>, main: bool) -> impl Iterator<Item = PathBuf> {
        let dir = match self {
            // The entries of a thread have no `map_files`.
            Self::Own => Some("/proc/self".to_owned()),
            _ => self.dir(),
        };
        let map_files =
            dir.as_ref().map(|d| format!("{d}/map_files/{:x}-{:x}", mapping.start, mapping.end));
        let exe = dir.filter(|_| main).map(|d| format!("{d}/exe"));
        [map_files, exe].into_iter().flatten().map(PathBuf::from)
    }
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

    /// Tells whether all of its code is there. A program may map a part of its file once more, as V8
    /// does with the code of its built-in functions: that is a module with nothing else.
    pub fn is_whole(&self) -> bool {
        self.whole
    }

    /// Opens the file that is mapped, and makes sure that it is that one.
    ///
    /// A deleted or replaced file is found through `map_files` (which needs privilege) or, for the
    /// program itself, through `exe`; else this fails with [`ElfError::Replaced`]. The vDSO is
    /// read from memory.
    pub fn elf(&self) -> Result<Elf, ElfError> {
        if self.role == Role::Vdso {
            let memory =
                self.origin.memory().map_err(|errno| ElfError::Os { call: "open", errno })?;
            let len = usize::try_from(self.mapping.end - self.mapping.start).unwrap_or(0);
            let image = memory.read(self.mapping.start, len).ok_or(ElfError::Replaced)?;
            let elf = Elf::from_bytes(image).map_err(|_| ElfError::Replaced)?;
            // Another process may have the number by now.
            let same = elf.build_id() == self.build_id;
            return if same { Ok(elf) } else { Err(ElfError::Replaced) };
        }
        let mut error = ElfError::Replaced;
        match file::open(self.origin.below_root(&self.path)) {
            Ok(fd) => match self.verified(fd) {
                Err(ElfError::Replaced) => {}
                other => return other,
            },
            Err(errno) if !self.deleted => error = ElfError::Os { call: "open", errno },
            Err(_) => {}
        }
        let direct = self.origin.direct(&self.mapping, self.is_main());
        direct.flat_map(file::open).find_map(|fd| self.verified(fd).ok()).ok_or(error)
    }

    /// Reads an opened file if it is the one that is mapped.
    fn verified(&self, fd: OwnedFd) -> Result<Elf, ElfError> {
        let stat = file::stat(&fd).map_err(|errno| ElfError::Os { call: "fstat", errno })?;
        let same_dev = (rustix::fs::major(stat.st_dev), rustix::fs::minor(stat.st_dev))
            == (self.dev.major, self.dev.minor);
        let same_inode = stat.st_ino == self.inode;
        if !same_inode && self.build_id.is_none() && !self.origin.lacks_inode(self.inode) {
            return Err(ElfError::Replaced);
        }
        let elf = match Elf::from_file(fd) {
            Err(_) if !same_inode => return Err(ElfError::Replaced),
            other => other?,
        };
        // `st_dev` differs from the mapping's device on overlay and btrfs, so an equal build id is
        // as good. A file without one is taken for a file without one of which no inode is known.
        if same_inode && same_dev || elf.build_id() == self.build_id {
            Ok(elf)
        } else {
            Err(ElfError::Replaced)
        }
    }

    /// Where the paths of the module's process start.
    #[cfg(feature = "symbolize")]
    pub(crate) fn root(&self) -> PathBuf {
        self.origin.root()
    }

    /// Reads the functions of the file, with the names of its debug file if there is one; see
    /// [`Elf::functions_at`].
    pub fn functions(&self) -> Result<Functions, ElfError> {
        self.elf()?.functions_at(&self.path, &self.origin.root())
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
    list(Origin::Own)
}

/// Lists the modules of another process, in order of address. Needs the right to read its mappings;
/// without the right to read its memory the files' headers are used, and the vDSO is left out.
pub fn of(pid: u32) -> Result<Vec<Module>, MapsError> {
    list(Origin::Live(pid))
}

/// Lists the modules in saved mappings, in order of address, by the files that are found under
/// their names, if they are the mapped ones: by build id, or else by inode. In a core file there are
/// no inodes; of what has no build id there, a file without one is taken. The vDSO is left out, it
/// has no file, and which module is the program is not known:
/// all have the role of a library.
#[cfg(feature = "users")]
pub fn saved(snapshot: &Snapshot) -> Vec<Module> {
    Lister { origin: Origin::Saved, memory: None, auxv: Vec::new() }.modules(snapshot.vmas())
}

fn list(origin: Origin) -> Result<Vec<Module>, MapsError> {
    let maps = match origin {
        Origin::Live(pid) => Live::of(pid)?,
        Origin::Own | Origin::Saved => Live::own()?,
    };
    let maps = maps.text_only();
    let vmas = maps.all(&Filter::default(), Want::NAME)?;
    // Of a process whose main thread has ended, another thread shows files and memory.
    let origin = maps.entry().map_or(origin, Origin::Live);
    let auxv = origin
        .dir()
        .and_then(|dir| file::read(format!("{dir}/auxv"), 4096).ok())
        .unwrap_or_default();
    Ok(Lister { origin, memory: origin.memory().ok(), auxv }.modules(&vmas))
}

struct Lister {
    origin: Origin,
    memory: Option<Memory>,
    auxv: Vec<u8>,
}

impl Lister {
    fn modules(&self, vmas: &[Vma]) -> Vec<Module> {
        let is_file = |v: &Vma| {
            let file = v.inode != 0 || v.file && self.origin.lacks_inode(0);
            v.name.as_deref().is_some_and(|n| n.starts_with(b"/") && file || n == b"[vdso]")
        };
        let mut groups: Vec<Vec<&Vma>> = Vec::new();
        for vma in vmas.iter().filter(|v| is_file(v)) {
            let same = |g: &&mut Vec<&Vma>| {
                g.first()
                    .is_some_and(|f| (f.dev, f.inode, &f.name) == (vma.dev, vma.inode, &vma.name))
            };
            // Files come in runs; the search backwards finds its group at once.
            match groups.iter_mut().rev().find(same) {
                Some(group) => group.push(vma),
                None => {
                    groups.push(vec![vma]);
                }
            }
        }
        let mut out: Vec<_> = groups.iter().flat_map(|g| self.instances(g)).collect();
        self.correct_main(&mut out);
        let mut out: Vec<_> = out.into_iter().map(|(m, _)| m).collect();
        out.sort_by_cached_key(|m| m.span.start);
        out
    }

    /// The modules that the mappings of one file make up.
    fn instances(&self, vmas: &[&Vma]) -> Vec<(Module, Vec<Segment>)> {
        let mut out: Vec<Module> = Vec::new();
        let Some(first) =
            vmas.first().filter(|_| vmas.iter().any(|v| v.perms.contains(Perms::EXEC)))
        else {
            return Vec::new();
        };
        let Some(segments) = self.segments(vmas) else { return Vec::new() };
        let loads: Vec<_> = segments.iter().filter(|s| s.kind == elf::PT_LOAD).collect();
        let low = loads.iter().map(|s| s.vaddr).min().unwrap_or(0);
        let high = loads.iter().map(|s| s.range().end).max().unwrap_or(0);
        let unwind_table = segments.iter().find(|s| s.kind == elf::PT_GNU_EH_FRAME);
        let unwind_table = unwind_table.filter(|s| s.file_size >= 12);
        for vma in vmas.iter().filter(|v| v.perms.contains(Perms::EXEC)) {
            let biases = || loads.iter().filter(|s| covers(s, vma.offset)).map(|s| bias(vma, s));
            // Two segments can share a page of the file: one that continues a known instance wins,
            // then code.
            let known = biases().find(|b| out.iter().any(|m| m.bias == *b));
            let text = || {
                loads.iter().find(|s| s.is_text() && covers(s, vma.offset)).map(|s| bias(vma, s))
            };
            let Some(bias) = known.or_else(text).or_else(|| biases().next()) else { continue };
            match out.iter_mut().find(|m| m.bias == bias) {
                Some(m) => push_merged(&mut m.text, vma.range()),
                None => {
                    let (name, deleted) = first.name_deleted();
                    let span = low.wrapping_add(bias)..high.wrapping_add(bias);
                    let end = span.end;
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
                        unwind_table: unwind_table.map(|s| {
                            let start = s.vaddr.wrapping_add(bias);
                            start..start.saturating_add(s.file_size).clamp(start, end.max(start))
                        }),
                        whole: true,
                        origin: self.origin,
                        mapping: vma.range(),
                    };
                    let saved = vma.build_id.clone().map(BuildId);
                    module.build_id = saved.or_else(|| self.build_id(&segments, &module));
                    out.push(module);
                }
            }
        }
        for module in &mut out {
            let there = |s: &&&Segment| {
                let start = module.addr(s.vaddr);
                // A program may give up pages of its code, and change those of others.
                module.text.iter().any(|text| text.contains(&start))
            };
            let code = loads.iter().filter(|s| s.is_text() && s.file_size != 0);
            module.whole = code.clone().all(|s| there(&s));
        }
        out.into_iter().map(|m| (m, segments.clone())).collect()
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
            let fd = file::open(self.origin.below_root(Path::new(OsStr::from_bytes(name)))).ok()?;
            let inode = vmas.first()?.inode;
            let same_inode = file::stat(&fd).ok()?.st_ino == inode;
            let elf = Elf::from_file(fd).ok()?;
            let id = vmas.iter().find_map(|v| v.build_id.as_deref());
            let unknown = || self.origin.lacks_inode(inode) && elf.build_id().is_none();
            let same = id.map_or_else(
                || same_inode || unknown(),
                |id| elf.build_id().is_some_and(|have| have.0 == id),
            );
            same.then(|| elf.segments().to_vec())
        })
    }

    fn build_id(&self, segments: &[Segment], module: &Module) -> Option<BuildId> {
        let notes = || segments.iter().filter(|s| s.kind == elf::PT_NOTE && s.file_size <= 1 << 16);
        if let Some(memory) = &self.memory {
            let read = |s: &Segment| {
                elf::build_id_in_notes(
                    &memory.read(module.addr(s.vaddr), s.file_size as usize)?,
                    s.align,
                )
            };
            return notes().find_map(read);
        }
        module.elf().ok()?.build_id()
    }

    fn role(&self, name: &[u8], span: &Range<u64>) -> Role {
        if name == b"[vdso]" {
            Role::Vdso
        } else if span.contains(&self.auxv(AT_PHDR)) {
            Role::Main
        } else if span.contains(&self.auxv(AT_BASE)) {
            Role::Interpreter
        } else {
            Role::Library
        }
    }

    fn auxv(&self, key: u64) -> u64 {
        self.auxv
            .chunks_exact(16)
            .find(|p| elf::u64_at(p, 0) == key)
            .map_or(0, |p| elf::u64_at(p, 8))
    }

    /// Sorts out `ld.so PROGRAM`: the kernel takes the dynamic linker for the program then.
    fn correct_main(&self, modules: &mut [(Module, Vec<Segment>)]) {
        let interp = |segments: &[Segment]| segments.iter().any(|s| s.kind == elf::PT_INTERP);
        let Some(main) = modules.iter().position(|(m, _)| m.is_main()) else { return };
        if self.auxv(AT_BASE) != 0 || modules.get(main).is_none_or(|(_, s)| interp(s)) {
            return;
        }
        // The C library names an interpreter too, but only programs are at a fixed address or
        // marked as position-independent.
        let program = |(m, s): &(Module, Vec<Segment>)| {
            interp(s) && (m.bias == 0 || self.flags_1(m, s) & DF_1_PIE != 0)
        };
        let Some(program) = modules.iter().position(program) else { return };
        for (at, role) in [(main, Role::Interpreter), (program, Role::Main)] {
            if let Some((m, _)) = modules.get_mut(at) {
                m.role = role;
            }
        }
    }

    /// `DT_FLAGS_1` of a module in memory; 0 if it has none.
    fn flags_1(&self, module: &Module, segments: &[Segment]) -> u64 {
        let read = || {
            let dynamic =
                segments.iter().find(|s| s.kind == elf::PT_DYNAMIC && s.mem_size <= 1 << 16)?;
            let table = self
                .memory
                .as_ref()?
                .read(module.addr(dynamic.vaddr), dynamic.mem_size as usize)?;
            let entry = table.chunks_exact(16).find(|e| elf::u64_at(e, 0) == DT_FLAGS_1)?;
            Some(elf::u64_at(entry, 8))
        };
        read().unwrap_or(0)
    }
}

const AT_PHDR: u64 = 3;
const AT_BASE: u64 = 7;
const DT_FLAGS_1: u64 = 0x6fff_fffb;
const DF_1_PIE: u64 = 0x0800_0000;

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
