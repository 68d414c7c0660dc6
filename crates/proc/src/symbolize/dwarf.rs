//! Debug information of one file: which unit an address belongs to, and what its unit says.
//!
//! Units are read one after the other, each once for all its addresses, and forgotten: nothing is
//! kept of them but ranges of addresses. So the memory needed is that of the largest unit.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use gimli::{SectionId, UnitType};

use super::answers::{Answers, FrameRecord};
use super::functions::{Chains, Names, Units};
use super::image::Image;
use super::lines::{Files, Row, rows};
use super::relocated::relocate;
use crate::elf::{ET_REL, ElfError, split_unit_files};

pub(super) type Slice<'a> = gimli::EndianSlice<'a, gimli::LittleEndian>;
pub(super) type Dwarf<'a> = gimli::Dwarf<Slice<'a>>;
pub(super) type Unit<'a> = gimli::Unit<Slice<'a>>;

/// Bytes of debug information after which the pages of the file are given back.
const WINDOW: usize = 8 << 20;

/// How many addresses are looked for in units that do not say where their code is, each in each.
/// Compilers make such units of assembly only.
const UNBOUNDED_LOOKS: usize = 100_000_000;

/// The debug information of a file.
#[derive(Debug)]
pub(super) struct Debug {
    image: Arc<Image>,
    /// Where the file lies, and where absolute paths in it begin.
    path: PathBuf,
    root: PathBuf,
    inflated: Vec<(SectionId, Vec<u8>)>,
    /// Sections of the package of split units beside the file (`FILE.dwp`).
    package: Option<Box<Debug>>,
    /// Sections of the file that `dwz` moved to what several files have in common, and the offsets of
    /// the units there.
    alternate: Option<(Box<Debug>, Vec<usize>)>,
    index: Option<Index>,
}

/// Where units are.
#[derive(Debug, Default)]
struct Index {
    /// Offsets of all units in `.debug_info`.
    units: Vec<usize>,
    /// Addresses of units, by start; with the number of the unit.
    ranges: Vec<UnitRange>,
    /// Numbers of units that do not say where their code is.
    unbounded: Vec<u32>,
}

#[derive(Clone, Copy, Debug)]
struct UnitRange {
    start: u64,
    end: u64,
    /// The highest end of this range and all before it.
    highest: u64,
    unit: u32,
}

/// A unit to read, and the addresses that are looked for in it.
struct Task<'d, 'a> {
    dwarf: &'d Dwarf<'a>,
    unit: Unit<'a>,
    /// Numbers of addresses in the answers, ascending.
    wanted: &'d [u32],
}

impl Debug {
    /// Takes a file with debug information. `None` if it has none; `path` is where the file lies, and
    /// `root` where absolute paths in it begin.
    pub fn new(image: Arc<Image>, path: &Path, root: &Path) -> Result<Option<Self>, ElfError> {
        if image.elf.debug_info().is_none() {
            return Ok(None);
        }
        let mut package = path.as_os_str().to_owned();
        package.push(".dwp");
        let mut debug = Self { path: path.into(), root: root.into(), ..Self::read(image, false)? };
        debug.package = Self::open_split(Path::new(&package)).map(Box::new);
        let alternate = debug.image.elf.alternate_file(path, root);
        let alternate =
            alternate.and_then(|elf| Self::read(Arc::new(Image::new(elf).ok()?), false).ok());
        debug.alternate = alternate.map(|debug| {
            let units = debug.unit_offsets();
            (Box::new(debug), units)
        });
        Ok(Some(debug))
    }

    /// Inflates the sections that are compressed, and fills in addresses that no linker has.
    fn read(image: Arc<Image>, split: bool) -> Result<Self, ElfError> {
        let mut inflated = Vec::new();
        let mut room = image.room();
        let unread = UNREAD.into_iter().filter(|_| split);
        for id in SECTIONS.into_iter().chain(unread) {
            let Some(name) = name(id, split) else { continue };
            let mut bytes = image.inflated(name, &mut room)?;
            if image.elf.kind() == ET_REL && !split {
                let of_file = || Some(image.raw(image.elf.section(name)?).to_vec());
                bytes = bytes.or_else(of_file);
                bytes.iter_mut().for_each(|bytes| relocate(&image, name, bytes));
            }
            if let Some(bytes) = bytes {
                inflated.push((id, bytes));
            }
        }
        let (path, root) = (PathBuf::new(), PathBuf::new());
        Ok(Self { image, path, root, inflated, package: None, alternate: None, index: None })
    }

    fn open_split(path: &Path) -> Option<Self> {
        Self::read(Arc::new(Image::open(path).ok()?), true).ok()
    }

    fn bytes(&self, id: SectionId, split: bool) -> Slice<'_> {
        let bytes = match self.inflated.iter().find(|(known, _)| *known == id) {
            Some((_, bytes)) => bytes.as_slice(),
            None => name(id, split)
                .and_then(|name| self.image.elf.section(name))
                .map_or(&[][..], |section| self.image.raw(section)),
        };
        gimli::EndianSlice::new(bytes, gimli::LittleEndian)
    }

    fn dwarf(&self, split: bool) -> Dwarf<'_> {
        let load = |id| Ok::<_, gimli::Error>(self.bytes(id, split));
        let mut dwarf = gimli::Dwarf::load(load).unwrap_or_default();
        if let Some((alternate, _)) = &self.alternate {
            dwarf.set_sup(alternate.dwarf(false));
        }
        dwarf
    }

    fn unit_offsets(&self) -> Vec<usize> {
        let dwarf = self.dwarf(false);
        let mut units = dwarf.units();
        let next = || units.next().ok().flatten();
        std::iter::from_fn(next).filter_map(|unit| Some(unit.debug_info_offset()?.0)).collect()
    }

    /// Fills in the frames of all addresses. With `inlined`, also those of functions that others
    /// were inlined into.
    pub fn find(&mut self, answers: &mut Answers, inlined: bool) {
        let index = self.index.take().unwrap_or_else(|| Index::read(self));
        self.image.forget();
        answers.spans = vec![(0, 0); answers.addrs.len()];
        let (tasks, mut missing) = index.assign(&answers.addrs);
        let dwarf = self.dwarf(false);
        let mut names = Names::default();
        let mut seen = 0;
        for group in tasks.chunk_by(|a, b| a.0 == b.0) {
            let wanted: Vec<u32> = group.iter().map(|(_, addr)| *addr).collect();
            let Some((unit, _)) = group.first() else { continue };
            seen += self.unit(&dwarf, &index.units, *unit, &wanted, inlined, &mut names, answers);
            if seen > WINDOW {
                self.image.forget();
                seen = 0;
            }
        }
        let mut looks = UNBOUNDED_LOOKS;
        for unit in &index.unbounded {
            looks = looks.saturating_sub(missing.len());
            if missing.is_empty() || looks == 0 {
                break;
            }
            self.unit(&dwarf, &index.units, *unit, &missing, inlined, &mut names, answers);
            missing.retain(|i| answers.spans.get(*i as usize).is_some_and(|span| span.1 == 0));
            self.image.forget();
        }
        self.image.forget();
        self.index = Some(index);
    }

    /// Answers the addresses of one unit; returns about how many bytes it read. A damaged unit
    /// answers none.
    #[expect(clippy::too_many_arguments, reason = "the state of one walk over all units")]
    fn unit(
        &self,
        dwarf: &Dwarf<'_>,
        units: &[usize],
        unit: u32,
        wanted: &[u32],
        inlined: bool,
        names: &mut Names,
        answers: &mut Answers,
    ) -> usize {
        let Some(&at) = units.get(unit as usize) else { return 0 };
        let Some(unit) = unit_at(dwarf, at) else { return 0 };
        let mut len = unit.header.length_including_self();
        if let Some(program) = &unit.line_program {
            len = len.saturating_add(program.header().raw_program_buf().len());
        }
        let task = Task { dwarf, unit, wanted };
        self.answer(&task, units, inlined, names, answers);
        len
    }

    fn answer(
        &self,
        task: &Task<'_, '_>,
        units: &[usize],
        inlined: bool,
        names: &mut Names,
        answers: &mut Answers,
    ) {
        let unit = &task.unit;
        let addrs: Vec<u64> =
            task.wanted.iter().filter_map(|i| answers.addrs.get(*i as usize).copied()).collect();
        let lines = rows(unit, &addrs);
        let mut files = Files::new(task.dwarf, unit);
        let mut chains = Chains::new(&addrs);
        self.with_functions(task, &mut |dwarf, unit, split| {
            // What a damaged tree says before the damage is taken.
            let _ = chains.read(dwarf, unit);
            // Only units of the file itself refer to one another.
            let own = Units { dwarf, offsets: if split { &[][..] } else { units } };
            let alternate = self.alternate.as_ref().zip(dwarf.sup());
            let alternate = alternate.map(|((_, offsets), dwarf)| Units { dwarf, offsets });
            names.resolve(unit, own, alternate, &mut chains, &mut answers.strings);
        });
        for (at, wanted) in task.wanted.iter().enumerate() {
            let row = lines.get(at).copied().flatten();
            let first = u32::try_from(answers.frames.len()).unwrap_or(u32::MAX);
            let mut place = row.unwrap_or_default();
            let symbol = answers.symbol_at(*wanted as usize);
            for function in chains.of(at) {
                let mut record = frame(&place, &mut files, &mut answers.strings);
                (record.name, record.linkage) = (function.name, function.linkage);
                if !function.linkage && !function.inlined && symbol.start == function.start {
                    // The symbol is a better name: it has namespaces and types.
                    (record.name, record.linkage) = (symbol.first, symbol.first != 0);
                }
                answers.frames.push(record);
                place = Row { discriminator: place.discriminator, ..function.call };
                if !inlined {
                    break;
                }
            }
            if answers.frames.len() == first as usize && row.is_some() {
                answers.frames.push(frame(&place, &mut files, &mut answers.strings));
            }
            let count = answers.frames.len() - first as usize;
            if count > 0
                && let Some(span) = answers.spans.get_mut(*wanted as usize)
            {
                *span = (first, u32::try_from(count).unwrap_or(0));
            }
        }
    }

    /// Calls `read` with the unit that has the functions: the unit itself, or what was split off.
    fn with_functions(&self, task: &Task<'_, '_>, read: &mut Reader<'_>) {
        let unit = &task.unit;
        let (Some(id), Ok(Some(name))) = (unit.dwo_id, unit.dwo_name()) else {
            return read(task.dwarf, unit, false);
        };
        if let Some(package) = &self.package {
            let load = |id| Ok::<_, gimli::Error>(package.bytes(id, true));
            let empty = gimli::EndianSlice::new(&[], gimli::LittleEndian);
            let found = gimli::DwarfPackage::load(load, empty)
                .and_then(|package| package.find_cu(id, task.dwarf));
            if let Ok(Some(dwarf)) = found
                && read_split(dwarf, task.dwarf, unit, read)
            {
                return;
            }
        }
        let Ok(name) = task.dwarf.attr_string(unit, name) else { return };
        let dir = unit.comp_dir.map_or(&[][..], |d| d.slice());
        for path in split_unit_files(&self.path, &self.root, dir, name.slice()) {
            if let Some(file) = Self::open_split(&path)
                && read_split(file.dwarf(true), task.dwarf, unit, read)
            {
                return;
            }
        }
        // The skeleton may have the functions that others were inlined into (`-fsplit-dwarf-inlining`).
        read(task.dwarf, unit, false);
    }
}

/// What is done with a unit; the last is whether it was split off.
type Reader<'r> = dyn for<'a> FnMut(&Dwarf<'a>, &Unit<'a>, bool) + 'r;

/// Calls `read` with the unit that was split off from `unit`; tells whether it is there.
fn read_split<'a>(
    mut dwarf: Dwarf<'a>,
    parent: &Dwarf<'a>,
    unit: &Unit<'a>,
    read: &mut Reader<'_>,
) -> bool {
    dwarf.make_dwo(parent);
    let mut units = dwarf.units();
    while let Ok(Some(header)) = units.next() {
        let Ok(mut split) = dwarf.unit(header) else { continue };
        if split.dwo_id.is_some() && split.dwo_id == unit.dwo_id {
            split.copy_relocated_attributes(unit);
            read(&dwarf, &split, true);
            return true;
        }
    }
    false
}

fn frame(
    row: &Row,
    files: &mut Files<'_, '_>,
    strings: &mut super::answers::Strings,
) -> FrameRecord {
    FrameRecord {
        file: files.get(row.file, strings),
        line: row.line,
        column: row.column,
        discriminator: row.discriminator,
        ..FrameRecord::default()
    }
}

/// The sections that are read.
const SECTIONS: [SectionId; 12] = [
    SectionId::DebugInfo,
    SectionId::DebugAbbrev,
    SectionId::DebugStr,
    SectionId::DebugLineStr,
    SectionId::DebugStrOffsets,
    SectionId::DebugAddr,
    SectionId::DebugRanges,
    SectionId::DebugRngLists,
    SectionId::DebugLine,
    SectionId::DebugTypes,
    SectionId::DebugCuIndex,
    SectionId::DebugTuIndex,
];

/// Those that nothing is read of, but whose sizes are checked with what a package says of its units.
const UNREAD: [SectionId; 4] =
    [SectionId::DebugLoc, SectionId::DebugLocLists, SectionId::DebugMacinfo, SectionId::DebugMacro];

fn name(id: SectionId, split: bool) -> Option<&'static str> {
    if split && (SECTIONS.contains(&id) || UNREAD.contains(&id)) {
        return id.dwo_name();
    }
    SECTIONS.contains(&id).then_some(id.name())
}

/// The unit at an offset; `None` if it is damaged.
pub(super) fn unit_at<'a>(dwarf: &Dwarf<'a>, at: usize) -> Option<Unit<'a>> {
    dwarf.unit(dwarf.unit_header(gimli::DebugInfoOffset(at)).ok()?).ok()
}

impl Index {
    /// Reads the first entry of each unit; stops at the first damaged header.
    fn read(debug: &Debug) -> Self {
        let dwarf = debug.dwarf(false);
        let mut index = Self::default();
        let mut units = dwarf.units();
        let mut abbreviations: Option<(usize, _)> = None;
        let mut seen = 0;
        while let Ok(Some(header)) = units.next() {
            let Some(at) = header.debug_info_offset() else { continue };
            let number = u32::try_from(index.units.len()).unwrap_or(u32::MAX);
            index.units.push(at.0);
            if matches!(header.type_(), UnitType::Type { .. } | UnitType::SplitType { .. }) {
                continue;
            }
            seen += 4096;
            if seen > WINDOW {
                debug.image.forget();
                seen = 0;
            }
            // Units that one compiler run or dwz made share a table.
            let table = header.debug_abbrev_offset().0;
            let shared = match abbreviations.take() {
                Some((known, shared)) if known == table => Some(shared),
                _ => dwarf.abbreviations(&header).ok(),
            };
            let Some(shared) = shared else { continue };
            abbreviations = Some((table, Arc::clone(&shared)));
            if let Ok(unit) = gimli::Unit::new_with_abbreviations(&dwarf, header, shared) {
                index.add(&dwarf, &unit, number);
            }
        }
        index.ranges.sort_unstable_by_key(|r| (r.start, r.end));
        let mut highest = 0;
        for range in &mut index.ranges {
            highest = range.end.max(highest);
            range.highest = highest;
        }
        index.ranges.shrink_to_fit();
        index
    }

    fn add(&mut self, dwarf: &Dwarf<'_>, unit: &Unit<'_>, number: u32) {
        let before = self.ranges.len();
        if let Ok(mut ranges) = dwarf.unit_ranges(unit) {
            while let Ok(Some(range)) = ranges.next() {
                // Code that the linker left out begins at 0.
                if range.begin != 0 && range.begin < range.end {
                    let (start, end) = (range.begin, range.end);
                    match self.ranges.get_mut(before..).and_then(<[_]>::last_mut) {
                        Some(last) if last.end == start => last.end = end,
                        _ => self.ranges.push(UnitRange { start, end, highest: 0, unit: number }),
                    }
                }
            }
        }
        if self.ranges.len() == before && unit.line_program.is_some() {
            self.unbounded.push(number);
        }
    }

    /// Pairs of unit and address, sorted; and the addresses that are in no unit's ranges.
    fn assign(&self, addrs: &[u64]) -> (Vec<(u32, u32)>, Vec<u32>) {
        let (mut found, mut missing) = (Vec::with_capacity(addrs.len()), Vec::new());
        for (i, addr) in addrs.iter().enumerate() {
            let i = u32::try_from(i).unwrap_or(u32::MAX);
            match self.unit_of(*addr) {
                Some(unit) => found.push((unit, i)),
                None => missing.push(i),
            }
        }
        found.sort_unstable();
        (found, missing)
    }

    /// The unit whose range around an address is the smallest.
    fn unit_of(&self, addr: u64) -> Option<u32> {
        /// Ranges that overlap at one address; more of them are a lie.
        const OVERLAPPING: usize = 1000;
        let end = self.ranges.partition_point(|r| r.start <= addr);
        let around = self.ranges.get(..end)?.iter().rev().take(OVERLAPPING);
        around
            .take_while(|r| r.highest > addr)
            .filter(|r| r.end > addr)
            .min_by_key(|r| r.end - r.start)
            .map(|r| r.unit)
    }
}
