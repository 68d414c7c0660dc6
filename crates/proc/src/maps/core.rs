//! Mappings of a process that left a core file.
//!
//! The kernel and gdb write a `PT_LOAD` segment for a mapping, with its permissions, and the note
//! `NT_FILE` with range, offset and name of those with a file. gdb leaves out the segments of what
//! is unchanged in the file, code for one: the program headers of the mapped ELF file, whose first
//! page is in the core, say what was there. What no note says is not known: device, inode, sharing,
//! page size, the names of areas without a file other than `[vdso]`.

use std::path::Path;

use super::MapsError;
use super::filter::Knows;
use super::identity::Identity;
use super::input::Input;
use super::mappings::Mappings;
use super::snapshot::Snapshot;
use super::vma::{Perms, Vma};
use crate::elf::{self, Header, Segment, build_id_in_notes, u16_at, u32_at, u64_at};
use crate::unwind::{CoreThread, Registers};

const ET_CORE: u16 = 4;
/// The number of program headers is in the first section header.
const PN_XNUM: u16 = 0xffff;
const NT_PRSTATUS: u32 = 1;
const NT_PRPSINFO: u32 = 3;
const NT_AUXV: u32 = 6;
const NT_FILE: u32 = 0x4649_4c45;
const AT_SYSINFO_EHDR: u64 = 33;
/// It has two pages, or three.
const MAX_VDSO: u64 = 1 << 20;
/// Of `struct elf_prpsinfo` on 64-bit machines.
const PID_OFFSET: usize = 24;
/// Of `struct elf_prstatus` on x86-64.
const TID: usize = 32;
const REGISTERS: usize = 112;

/// Reads the mappings in a core file of a 64-bit little-endian machine.
///
/// # Errors
/// Where the file cannot be read, is no core file or is damaged.
pub fn open_core(path: impl AsRef<Path>) -> Result<Snapshot, MapsError> {
    Core::read(Input::open(path.as_ref())?)?.snapshot()
}

/// The same, for a file that is in memory.
///
/// # Errors
/// As [`open_core`].
pub fn core_from_bytes(bytes: Vec<u8>) -> Result<Snapshot, MapsError> {
    Core::read(Input::Bytes(bytes))?.snapshot()
}

/// The vDSO of the process that left a core file: where it lay, and its ELF image, which is in no file.
///
/// # Errors
/// As [`open_core`].
pub fn core_vdso(path: impl AsRef<Path>) -> Result<Option<(u64, Vec<u8>)>, MapsError> {
    Ok(Core::read(Input::open(path.as_ref())?)?.vdso_image())
}

/// How many bytes of memory are not in a core file that was cut off, as by a full disk or a limit on its
/// size: its headers say that they are there.
///
/// # Errors
/// As [`open_core`].
pub fn core_missing(path: impl AsRef<Path>) -> Result<u64, MapsError> {
    let core = Core::read(Input::open(path.as_ref())?)?;
    let end = core.loads.iter().map(|s| s.offset.saturating_add(s.file_size)).max().unwrap_or(0);
    Ok(end.saturating_sub(core.input.len()))
}

/// What the file says.
#[derive(Debug)]
pub(crate) struct Core {
    input: Input,
    loads: Vec<Segment>,
    files: Vec<FileRange>,
    threads: Vec<CoreThread>,
    pid: u32,
    vdso: u64,
}

/// A line of `NT_FILE`.
#[derive(Debug)]
struct FileRange {
    start: u64,
    end: u64,
    offset: u64,
    name: Vec<u8>,
}

impl Core {
    /// Reads headers and notes.
    pub(crate) fn read(input: Input) -> Result<Self, MapsError> {
        let bad = |what, offset| MapsError::BadFile { what, offset };
        let head = input.read("ELF header", 0, 64)?;
        let header = Header::parse(&head).map_err(|_| bad("ELF header", 0))?;
        if header.kind != ET_CORE || header.phentsize != 56 {
            return Err(MapsError::Unsupported { what: "an ELF file that is no core file" });
        }
        let count = match header.phnum {
            PN_XNUM => u32_at(&input.read("section header", header.shoff, 64)?, 44),
            n => n.into(),
        };
        let is_known = header.machine == elf::EM_X86_64;
        let table = input.read("program headers", header.phoff, u64::from(count) * 56)?;
        let segments = elf::parse_segments(&table);
        let mut core = Self {
            input,
            loads: Vec::new(),
            files: Vec::new(),
            threads: Vec::new(),
            pid: 0,
            vdso: 0,
        };
        for note in segments.iter().filter(|s| s.kind == elf::PT_NOTE) {
            let notes = core.input.read("notes", note.offset, note.file_size)?;
            core.notes(&notes).ok_or(bad("notes", note.offset))?;
        }
        if !is_known {
            core.threads.clear();
        }
        core.loads = segments.into_iter().filter(|s| s.kind == elf::PT_LOAD).collect();
        Ok(core)
    }

    fn notes(&mut self, notes: &[u8]) -> Option<()> {
        let mut rest = notes;
        while rest.len() >= 12 {
            let (name_len, len) = (u32_at(rest, 0) as usize, u32_at(rest, 4) as usize);
            let start = 12usize.checked_add(name_len.checked_next_multiple_of(4)?)?;
            let end = start.checked_add(len)?;
            let (name, content) = (rest.get(12..12 + name_len)?, rest.get(start..end)?);
            match u32_at(rest, 8) {
                _ if name != b"CORE\0" => {}
                NT_PRSTATUS if content.len() >= REGISTERS + 27 * 8 => {
                    let register = |number: usize| u64_at(content, REGISTERS + number * 8);
                    let (ip, sp, bp) = (register(16), register(19), register(4));
                    let registers = Registers { ip, sp, bp, is_return: false };
                    self.threads.push(CoreThread { tid: u32_at(content, TID), registers });
                }
                NT_PRPSINFO => self.pid = u32_at(content, PID_OFFSET),
                NT_AUXV => {
                    let mut pairs = content.chunks_exact(16);
                    self.vdso =
                        pairs.find(|p| u64_at(p, 0) == AT_SYSINFO_EHDR).map_or(0, |p| u64_at(p, 8));
                }
                NT_FILE => self.file_note(content)?,
                _ => {}
            }
            rest = rest.get(end.checked_next_multiple_of(4)?.min(rest.len())..)?;
        }
        Some(())
    }

    fn file_note(&mut self, note: &[u8]) -> Option<()> {
        let count = usize::try_from(u64_at(note, 0)).ok()?;
        let page = u64_at(note, 8);
        let names = 16usize.checked_add(count.checked_mul(24)?)?;
        let (table, names) = (note.get(16..names)?, note.get(names..)?);
        let mut names = names.split(|b| *b == 0);
        for entry in table.chunks_exact(24) {
            let (start, end) = (u64_at(entry, 0), u64_at(entry, 8));
            let offset = u64_at(entry, 16).checked_mul(page)?;
            self.files.push(FileRange { start, end, offset, name: names.next()?.to_vec() });
        }
        Some(())
    }

    /// The threads, the one that ended the process first; none of another machine's.
    pub(crate) fn threads(&self) -> impl Iterator<Item = CoreThread> {
        self.threads.iter().copied()
    }

    /// The file, and where memory lies in it.
    pub(crate) fn into_parts(self) -> (Input, Vec<Segment>) {
        (self.input, self.loads)
    }

    /// Where the vDSO lay, and its bytes, if they are in the core.
    pub(crate) fn vdso_image(&self) -> Option<(u64, Vec<u8>)> {
        let load = self.loads.iter().find(|s| s.vaddr == self.vdso && self.vdso != 0)?;
        let len = Some(load.file_size).filter(|len| *len <= MAX_VDSO)?;
        Some((self.vdso, self.input.read("vDSO", load.offset, len).ok()?))
    }

    /// The mappings.
    pub(crate) fn snapshot(&self) -> Result<Snapshot, MapsError> {
        let mut vmas: Vec<Vma> = Vec::new();
        for s in self.loads.iter().filter(|s| s.mem_size > 0) {
            let bad = MapsError::BadFile { what: "segment", offset: s.vaddr };
            let end = s.vaddr.checked_add(s.mem_size).ok_or(bad)?;
            let perms = perms(s.flags) | Perms::SHARING_UNKNOWN;
            vmas.push(Vma { start: s.vaddr, end, perms, ..Vma::default() });
        }
        vmas.sort_by_cached_key(|v| v.start);
        let in_segments = vmas.len();
        for file in &self.files {
            let at = vmas.get(..in_segments).unwrap_or_default();
            let at = at.partition_point(|v| v.end <= file.start);
            match vmas.get_mut(..in_segments).and_then(|v| v.get_mut(at)) {
                Some(vma) if vma.start < file.end => {
                    vma.file = true;
                    vma.offset = vma.start.wrapping_sub(file.start).wrapping_add(file.offset);
                    vma.name = Some(file.name.clone());
                }
                _ => vmas.push(Vma {
                    start: file.start,
                    end: file.end,
                    perms: Perms::UNKNOWN | Perms::SHARING_UNKNOWN,
                    offset: file.offset,
                    name: Some(file.name.clone()),
                    file: true,
                    ..Vma::default()
                }),
            }
        }
        // The page of old system calls: it belongs to no address space.
        vmas.retain(|v| v.start < 1 << 63);
        vmas.sort_by_cached_key(|v| v.start);
        self.add_images(&mut vmas);
        let knows = Knows(0);
        let identity = Identity { pid: self.pid, ..Identity::default() };
        Ok(Snapshot::of(identity, Mappings::knowing(vmas, knows)?))
    }

    /// Adds build ids, the name of the vDSO, and permissions that the file's own headers tell.
    fn add_images(&self, vmas: &mut [Vma]) {
        let mut at = 0;
        while let Some(first) = vmas.get(at) {
            let start = first.start;
            // The mappings of a file follow each other; a file that is mapped twice has two first
            // pages.
            let name = first.name.clone();
            let more = vmas.get(at + 1..).unwrap_or_default();
            let more = more.iter().position(|v| v.name != name || v.offset == 0);
            let end = match (&name, more) {
                (None, _) => at + 1,
                (Some(_), Some(n)) => at + 1 + n,
                (Some(_), None) => vmas.len(),
            };
            let group = vmas.get_mut(at..end).unwrap_or_default();
            at = end;
            let vdso = start == self.vdso && start != 0;
            if vdso {
                group.iter_mut().for_each(|v| v.name = Some(b"[vdso]".to_vec()));
            }
            if !vdso && (name.is_none() || group.first().is_none_or(|v| v.offset != 0)) {
                continue;
            }
            let Some((segments, id)) = self.image(start) else { continue };
            for vma in group {
                vma.build_id.clone_from(&id);
                if vma.perms.contains(Perms::UNKNOWN)
                    && let Some(s) = segments.iter().find(|s| holds(s, vma.offset))
                {
                    vma.perms = perms(s.flags) | Perms::SHARING_UNKNOWN;
                }
            }
        }
    }

    /// Program headers and build id of the ELF image at an address, if they are in the core.
    fn image(&self, start: u64) -> Option<(Vec<Segment>, Option<Vec<u8>>)> {
        let load = self.loads.iter().find(|s| s.vaddr == start)?;
        let read = |offset: u64, size: u64| {
            let inside = offset.checked_add(size).is_some_and(|end| end <= load.file_size);
            let from = load.offset.checked_add(offset).filter(|_| inside)?;
            self.input.read("image", from, size).ok()
        };
        let header = Header::parse(&read(0, 64)?).ok()?;
        if header.phentsize != 56 {
            return None;
        }
        let segments = elf::parse_segments(&read(header.phoff, u64::from(header.phnum) * 56)?);
        let notes = segments.iter().filter(|s| s.kind == elf::PT_NOTE);
        let id = notes
            .filter_map(|s| build_id_in_notes(&read(s.offset, s.file_size)?, s.align))
            .next()
            .map(|id| id.0);
        Some((segments, id))
    }
}

/// Tells whether the pages of a segment include an offset in the file.
fn holds(s: &Segment, offset: u64) -> bool {
    let end = s.offset.saturating_add(s.file_size).saturating_add(0xfff) & !0xfff;
    s.kind == elf::PT_LOAD && s.offset & !0xfff <= offset && offset < end
}

/// The permissions of a segment's flags.
fn perms(flags: u32) -> Perms {
    let bit = |flag, perm| if flags & flag != 0 { perm } else { Perms::NONE };
    bit(4, Perms::READ) | bit(2, Perms::WRITE) | bit(1, Perms::EXEC)
}

/// Tells whether the first bytes are those of a core file.
pub(crate) fn is_core(head: &[u8]) -> bool {
    head.starts_with(b"\x7fELF") && u16_at(head, 16) == ET_CORE
}
