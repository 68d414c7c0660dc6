//! The stacks of a process that left a core file.

use std::collections::{HashMap, HashSet};
use std::ops::Range;
use std::path::Path;

use super::index::Index;
use super::{Memory, Registers, Step};
use crate::elf::{Elf, PT_GNU_EH_FRAME, PT_LOAD, SHT_NOBITS, Section, Segment};
use crate::maps::MapsError;
use crate::maps::core::Core;
use crate::maps::input::Input;
use crate::module::{self, Module};

/// Bytes that are read at once.
const WINDOW: u64 = 16 << 10;

/// A thread of a process that left a core file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct CoreThread {
    /// Its id.
    pub tid: u32,
    /// Its registers.
    pub registers: Registers,
}

/// A core file, and the files that were mapped, for walking the stacks of its threads.
///
/// ```no_run
/// use skep_proc::unwind::CoreStacks;
/// let mut core = CoreStacks::open("core.1234".as_ref())?;
/// for thread in core.threads().to_vec() {
///     for frame in core.walk(thread.registers, 100) {
///         println!("{}: {:#x}", thread.tid, frame.ip);
///     }
/// }
/// # Ok::<(), skep_proc::maps::MapsError>(())
/// ```
#[derive(Debug)]
pub struct CoreStacks {
    threads: Vec<CoreThread>,
    memory: CoreMemory,
    modules: Vec<(Module, Option<Option<FileMemory>>)>,
    kept: HashMap<u64, Step>,
    vdso: Option<Vdso>,
}

/// The kernel's code in the process, whose pages are in the core file.
#[derive(Debug)]
struct Vdso {
    text: Range<u64>,
    unwind_table: u64,
}

impl Vdso {
    fn new(start: u64, bytes: Vec<u8>) -> Option<Self> {
        let elf = Elf::from_bytes(bytes).ok()?;
        let load = elf.segments().iter().find(|s| s.kind == PT_LOAD)?;
        let table = elf.segments().iter().find(|s| s.kind == PT_GNU_EH_FRAME)?;
        let bias = start.wrapping_sub(load.vaddr);
        let end = start.checked_add(load.file_size)?;
        Some(Self { text: start..end, unwind_table: table.vaddr.wrapping_add(bias) })
    }
}

impl CoreStacks {
    /// Opens a core file of a 64-bit little-endian machine.
    ///
    /// # Errors
    /// Where it cannot be read, is no core file or is damaged.
    pub fn open(path: &Path) -> Result<Self, MapsError> {
        Self::read(Input::open(path)?)
    }

    /// The same, for a file that is in memory.
    ///
    /// # Errors
    /// As [`CoreStacks::open`].
    pub fn from_bytes(bytes: Vec<u8>) -> Result<Self, MapsError> {
        Self::read(Input::Bytes(bytes))
    }

    fn read(input: Input) -> Result<Self, MapsError> {
        let core = Core::read(input)?;
        let vdso = core.vdso_image().and_then(|(start, bytes)| Vdso::new(start, bytes));
        let modules = module::saved(&core.snapshot()?);
        let threads = core.threads().collect();
        let (input, mut loads) = core.into_parts();
        loads.sort_by_cached_key(|s| s.vaddr);
        Ok(Self {
            threads,
            memory: CoreMemory { input, loads, at: 0, window: Vec::new() },
            modules: modules.into_iter().map(|m| (m, None)).collect(),
            kept: HashMap::new(),
            vdso,
        })
    }

    /// The threads, the one that ended the process first.
    pub fn threads(&self) -> &[CoreThread] {
        &self.threads
    }

    /// Walks a stack: the frame with these registers, its caller's, and so on, at most `most`. A
    /// stack that makes no sense, or leads back to itself, ends early.
    pub fn walk(&mut self, from: Registers, most: usize) -> Vec<Registers> {
        let (mut frames, mut seen) = (Vec::new(), HashSet::new());
        let mut next = Some(from);
        while let Some(frame) = next.filter(|_| frames.len() < most) {
            if !seen.insert((frame.ip, frame.sp, frame.bp)) {
                break;
            }
            frames.push(frame);
            let step = self.step(frame.place());
            let bare = if step == Step::UNKNOWN { self.caller_of_bare(frame) } else { None };
            next = bare.or_else(|| step.take(&mut self.memory, frame));
        }
        frames
    }

    /// The caller of assembly that its file has no table for, where it has others, such as the system call of
    /// `clone3` in the C library: if nothing was pushed, the place after a call is on top of the stack.
    fn caller_of_bare(&mut self, frame: Registers) -> Option<Registers> {
        if frame.is_return {
            return None;
        }
        let ip = self.memory.number(frame.sp, 8)?;
        for (place, is_caller) in [(frame.ip, false), (ip, true)] {
            let (module, file) =
                self.modules.iter_mut().find(|(m, _)| m.text_contains(place.wrapping_sub(1)))?;
            let file = file.get_or_insert_with(|| FileMemory::open(module)).as_mut()?;
            let is_fit = if is_caller { file.is_after_call(place) } else { file.has_records() };
            if !is_fit {
                return None;
            }
        }
        Some(Registers { ip, sp: frame.sp.wrapping_add(8), bp: frame.bp, is_return: true })
    }

    fn step(&mut self, place: u64) -> Step {
        if let Some(step) = self.kept.get(&place) {
            return *step;
        }
        let module = self.modules.iter_mut().find(|(m, _)| m.text_contains(place));
        let found = match (module, &self.vdso) {
            (Some((module, file)), _) => {
                let file = file.get_or_insert_with(|| FileMemory::open(module)).as_mut();
                file.map(|file| {
                    file.step(module.unwind_table.as_ref().map(|table| table.start), place)
                })
            }
            (None, Some(vdso)) if vdso.text.contains(&place) => {
                Some(Step::find(&mut self.memory, vdso.unwind_table, place))
            }
            _ => None,
        };
        let step = found.unwrap_or(Step::UNKNOWN);
        self.kept.insert(place, step);
        step
    }
}

/// What is in the core file.
#[derive(Debug)]
struct CoreMemory {
    input: Input,
    /// Sorted.
    loads: Vec<Segment>,
    at: u64,
    window: Vec<u8>,
}

impl Memory for CoreMemory {
    fn number(&mut self, addr: u64, size: u64) -> Option<u64> {
        if let Some(number) = number(&self.window, addr.wrapping_sub(self.at), size) {
            return Some(number);
        }
        let after = self.loads.partition_point(|s| s.vaddr <= addr);
        let load = self.loads.get(after.checked_sub(1)?)?;
        let from = addr - load.vaddr;
        let len = load.file_size.checked_sub(from)?.min(WINDOW);
        // Of a file that was cut off, what is there.
        let offset = load.offset.checked_add(from)?;
        let len = len.min(self.input.len().checked_sub(offset)?);
        (self.at, self.window) = (addr, self.input.read("memory", offset, len).ok()?);
        number(&self.window, 0, size)
    }
}

/// What is in a file that was mapped.
#[derive(Debug)]
struct FileMemory {
    elf: Elf,
    bias: u64,
    at: u64,
    window: Vec<u8>,
    /// Of a file without a table: its records.
    index: Option<Index>,
}

impl FileMemory {
    fn open(module: &Module) -> Option<Self> {
        let elf = module.elf().ok()?;
        Some(Self { elf, bias: module.bias, at: 0, window: Vec::new(), index: None })
    }

    /// Tells whether there are unwind tables.
    fn has_records(&self) -> bool {
        self.elf.section(".eh_frame").is_some_and(|s| s.size > 0)
    }

    /// Tells whether a call ends at a place: a relative one, or one by a register or memory.
    fn is_after_call(&mut self, place: u64) -> bool {
        let mut byte = |back: u64| self.number(place.wrapping_sub(back), 1);
        let by_operand = |op: Option<u64>, operand: Option<u64>| {
            op == Some(0xff) && operand.is_some_and(|operand| operand >> 3 & 7 == 2)
        };
        byte(5) == Some(0xe8) || [2, 3, 4, 6, 7].iter().any(|n| by_operand(byte(*n), byte(*n - 1)))
    }

    /// The step of a place, by the table at `header`; without one, as static programs of gcc are, by
    /// all records of the section.
    fn step(&mut self, header: Option<u64>, place: u64) -> Step {
        if let Some(header) = header {
            return Step::find(self, header, place);
        }
        let section = self.elf.section(".eh_frame").filter(|s| s.kind != SHT_NOBITS);
        let Some(section) = section.map(Section::range) else { return Step::UNKNOWN };
        let range = self.bias.wrapping_add(section.start)..self.bias.wrapping_add(section.end);
        let index = self.index.take().unwrap_or_else(|| Index::new(self, range));
        let step = index.find(self, place);
        self.index = Some(index);
        step
    }
}

impl Memory for FileMemory {
    fn number(&mut self, addr: u64, size: u64) -> Option<u64> {
        let addr = addr.wrapping_sub(self.bias);
        if let Some(number) = number(&self.window, addr.wrapping_sub(self.at), size) {
            return Some(number);
        }
        let is_in =
            |s: &&Segment| s.kind == PT_LOAD && addr >= s.vaddr && addr - s.vaddr < s.file_size;
        let segment = self.elf.segments().iter().find(is_in)?;
        let len = (segment.file_size - (addr - segment.vaddr)).min(WINDOW);
        (self.at, self.window) = (addr, self.elf.read_vaddr(addr, len).ok()?);
        number(&self.window, 0, size)
    }
}

/// A number at a place in bytes, the lowest byte first.
fn number(bytes: &[u8], at: u64, size: u64) -> Option<u64> {
    let bytes = bytes.get(usize::try_from(at).ok()?..)?.get(..size as usize)?;
    Some(bytes.iter().rev().fold(0, |value, byte| value << 8 | u64::from(*byte)))
}
