//! Symbols nearest to addresses, in one pass over the symbol table.
//!
//! No index of the table is made: a program of a million symbols would need as many entries. The
//! addresses are sorted instead, and each symbol looks for the first of them that it is before. So
//! memory follows from the number of questions, and nothing is sorted but these.

use std::collections::HashMap;
use std::ffi::CStr;
use std::hint::black_box;

use super::answers::{Answers, NAMELESS, NearSymbol, SymbolRecord};
use super::image::{Image, Pieces};
use super::order;
use crate::elf::{ET_REL, Section, u16_at, u32_at, u64_at};

const SHT_SYMTAB: u32 = 2;
const SHT_DYNSYM: u32 = 11;
const STT_NOTYPE: u8 = 0;
const STT_FUNC: u8 = 2;
const STT_FILE: u8 = 4;
const STT_GNU_IFUNC: u8 = 10;
const STB_LOCAL: u8 = 0;
const STV_HIDDEN: u8 = 2;
const ENTRY: usize = 24;
/// Bytes of a table of symbols that are read at a time: no rest of an entry.
const WINDOW: usize = (64 << 10) / ENTRY * ENTRY;
/// The same of its strings, where most of them are asked for,
const STRINGS: usize = 64 << 10;
/// and where they lie far apart.
const FEW_STRINGS: usize = 1024;
/// Symbols that are looked at together.
const TOGETHER: usize = 16;

/// Longer names are cut.
const LONGEST: usize = 64 << 10;

/// Fills in the symbols of `answers` from the symbol table of `image`. With `shared`, other strings
/// that are equal to names will be the same ones.
pub(super) fn find(image: &Image, answers: &mut Answers, shared: bool) {
    let Some((table, strings)) = tables(image) else { return };
    register(image, table, answers);
    carry(image.elf.sections(), answers);
    name(image, strings, answers, shared);
}

/// The table of symbols, if there is none that of dynamic symbols, and its strings.
fn tables(image: &Image) -> Option<(&Section, &Section)> {
    let table =
        |kind| image.elf.sections().iter().find(|s| s.kind == kind && s.size >= ENTRY as u64);
    let table = table(SHT_SYMTAB).or_else(|| table(SHT_DYNSYM))?;
    Some((table, image.elf.sections().get(table.link as usize)?))
}

/// Calls `put` with the number of each address that a symbol covers, and that symbol: symbol by symbol,
/// in the order in which their names lie in the file. No name is kept.
pub(super) fn each(
    image: &Image,
    mut answers: Answers,
    put: &mut dyn FnMut(usize, NearSymbol<'_>),
) -> Option<()> {
    let (table, strings) = tables(image)?;
    register(image, table, &mut answers);
    carry(image.elf.sections(), &mut answers);
    let (given, starts) = answers.numbers();
    let order = in_file(image.raw(strings).len(), &mut answers.symbols);
    // Where the addresses of each symbol begin: they stand together.
    let mut first = vec![0_u32; answers.symbols.len()];
    for (at, symbol) in answers.nearest.iter().enumerate().rev() {
        if let Some(first) = first.get_mut(*symbol as usize) {
            *first = at as u32;
        }
    }
    let mut names = Names::new(image, strings, order.len());
    let Answers { symbols, nearest, addrs, .. } = &answers;
    let mut together = [(0, SymbolRecord::default()); TOGETHER];
    for keys in order.chunks(TOGETHER) {
        for (slot, key) in together.iter_mut().zip(keys) {
            let id = *key as u32 as usize;
            *slot = (
                first.get(id).copied().unwrap_or(0) as usize,
                symbols.get(id).copied().unwrap_or_default(),
            );
        }
        // What is needed next lies all over memory, and is fetched side by side.
        let fetched = together.iter().map(|(from, _)| {
            let number = starts.get(*from).and_then(|start| given.get(*start as usize));
            (number, nearest.get(*from), addrs.get(*from))
        });
        fetched.for_each(|numbers| _ = black_box(numbers));
        for (key, (from, symbol)) in keys.iter().zip(&together) {
            let id = *key as u32;
            let (name, first_name, file) = names.of(symbol);
            let (start, size) = (symbol.start, u64::from(symbol.size));
            let near = NearSymbol { id, name, first_name, start, size, file };
            let of_it = nearest.iter().zip(addrs).enumerate().skip(*from);
            for (at, (_, addr)) in of_it.take_while(|(_, (nearest, _))| **nearest == id) {
                let range = starts.get(at).zip(starts.get(at + 1));
                let numbers = range.and_then(|(a, b)| given.get(*a as usize..*b as usize));
                if size == 0 || addr - start < size {
                    numbers
                        .unwrap_or_default()
                        .iter()
                        .for_each(|number| put(*number as usize, near));
                }
            }
        }
    }
    Some(())
}

/// The symbols that addresses have, by the places of their names in the file; the others have none
/// from now on.
fn in_file(text_len: usize, symbols: &mut [SymbolRecord]) -> Vec<u64> {
    for symbol in &mut *symbols {
        // What lies behind the end is no name.
        if symbol.rank == 0 || symbol.first as usize >= text_len {
            *symbol = SymbolRecord::default();
        }
    }
    let all = symbols.iter().zip(0_u32..);
    let pairs = all.filter(|(symbol, _)| symbol.rank != 0).map(|(symbol, id)| (symbol.first, id));
    order::sort(pairs, u32::try_from(text_len).unwrap_or(u32::MAX))
}

/// Where the addresses begin that are not below a value; a table of 65,536 steps leads near it.
struct Buckets<'a> {
    addrs: &'a [u64],
    first: u64,
    shift: u32,
    starts: Vec<u32>,
}

impl<'a> Buckets<'a> {
    fn new(addrs: &'a [u64]) -> Self {
        let first = addrs.first().copied().unwrap_or(0);
        let span = addrs.last().copied().unwrap_or(0).saturating_sub(first);
        let shift = (64 - span.leading_zeros()).saturating_sub(16);
        let steps = (span >> shift) + 2;
        let mut at = 0;
        let mut starts = Vec::new();
        for step in 0..steps {
            while addrs.get(at).is_some_and(|a| (a - first) >> shift < step) {
                at += 1;
            }
            starts.push(u32::try_from(at).unwrap_or(u32::MAX));
        }
        Self { addrs, first, shift, starts }
    }

    /// The first address that is not below `value`; `None` if there is none.
    fn first_from(&self, value: u64) -> Option<usize> {
        let step = usize::try_from(value.saturating_sub(self.first) >> self.shift).ok()?;
        let start = *self.starts.get(step)? as usize;
        let end = self.starts.get(step + 1).map_or(self.addrs.len(), |end| *end as usize);
        let within = self.addrs.get(start..end)?;
        let at = start + within.partition_point(|a| *a < value);
        (at < self.addrs.len()).then_some(at)
    }
}

/// Gives each symbol to the first address that it does not lie behind. Until [`name`] the symbols
/// have places in the string table for names, and a rank: higher is better, 0 is none.
fn register(image: &Image, table: &Section, answers: &mut Answers) {
    let ranges: Vec<_> = image.elf.sections().iter().map(Section::range).collect();
    let is_linked = image.elf.kind() != ET_REL;
    let Answers { addrs, nearest, symbols, .. } = answers;
    let buckets = Buckets::new(addrs);
    let mut files = SourceFiles::default();
    let mut together = Vec::with_capacity(TOGETHER);
    let mut settle = |together: &mut Vec<(usize, SymbolRecord)>| {
        // They lie all over memory, and are fetched side by side.
        let slots = together.iter().map(|(at, _)| nearest.get(*at).copied().unwrap_or(0));
        slots.for_each(|slot| _ = black_box(symbols.get(slot as usize).map(|s| s.start)));
        for (at, new) in together.drain(..) {
            let (Some(slot), Some(addr)) = (nearest.get_mut(at), addrs.get(at)) else { continue };
            match symbols.get_mut(*slot as usize).filter(|_| *slot != 0) {
                None => {
                    *slot = u32::try_from(symbols.len()).unwrap_or(0);
                    symbols.push(new);
                }
                Some(old) if better(&new, old, *addr) => *old = new,
                Some(old) => {
                    let same = |s: &SymbolRecord| (s.start, s.size, s.rank);
                    if old.name == 0 && same(old) == same(&new) {
                        old.name = new.name;
                    }
                }
            }
        }
    };
    let mut pieces = image.pieces(table, WINDOW);
    let mut at = 0;
    loop {
        let piece = pieces.from(at, ENTRY).as_chunks::<ENTRY>().0;
        at += piece.len() * ENTRY;
        for symbol in piece {
            let mut start = u64_at(symbol, 8);
            let (info, other) = (symbol[4], symbol[5]);
            let (kind, section) = (info & 15, u16_at(symbol, 6));
            let (local, name) = (info >> 4 == STB_LOCAL, u32_at(symbol, 0));
            files.see(kind, name, section);
            if !is_linked && let Some(section) = image.elf.sections().get(usize::from(section)) {
                start = start.wrapping_add(section.vaddr);
            }
            if !matches!(kind, STT_NOTYPE | STT_FUNC | STT_GNU_IFUNC)
                || section == 0
                // A linker's symbol may lie before its section, as `__bss_start` does before one that is
                // aligned: it is of nothing there.
                || ranges.get(usize::from(section)).is_none_or(|range| !range.contains(&start))
            {
                continue;
            }
            let size = u64_at(symbol, 16);
            if size == 0 && kind == STT_NOTYPE && local && other & 3 == STV_HIDDEN {
                continue;
            }
            let Some(at) = buckets.first_from(start) else { continue };
            let rank = 1 + u8::from(kind == STT_FUNC) + u8::from(kind != STT_NOTYPE);
            let file = files.of(local);
            // The first of those equal to it that is visible to other files.
            let visible = if local { 0 } else { name };
            let size = u32::try_from(size).unwrap_or(u32::MAX);
            let new = SymbolRecord { start, size, name: visible, first: name, file, section, rank };
            together.push((at, new));
            if together.len() == TOGETHER {
                settle(&mut together);
            }
        }
        if piece.is_empty() {
            break;
        }
    }
    settle(&mut together);
}

/// The source files that a symbol table names before the symbols of each.
#[derive(Default)]
struct SourceFiles {
    name: u32,
    symbols: bool,
    /// There are several: global symbols, which stand behind all, are of an unknown one.
    several: bool,
}

impl SourceFiles {
    fn see(&mut self, kind: u8, name: u32, section: u16) {
        if kind == STT_FILE {
            self.name = if name == 0 { NAMELESS } else { name };
            self.several |= self.symbols;
        } else if kind != STT_NOTYPE || section != 0 || name != 0 {
            self.symbols = true;
        }
    }

    /// Name of a symbol's file; 0: not known, or [`NAMELESS`].
    fn of(&self, local: bool) -> u32 {
        if local || !self.several { self.name } else { 0 }
    }
}

/// Tells whether a symbol is the better one for an address, by the rules of binutils: nearer; if as
/// near, one that reaches to the address; then functions, and the smaller one.
fn better(new: &SymbolRecord, old: &SymbolRecord, addr: u64) -> bool {
    if new.start != old.start {
        return new.start > old.start;
    }
    let reaches = |s: &SymbolRecord| addr - s.start < u64::from(s.size.max(1));
    match (reaches(new), reaches(old)) {
        (_, false) => new.size > old.size,
        (false, true) => false,
        (true, true) if new.rank != old.rank => new.rank > old.rank,
        (true, true) => new.size.max(1) < old.size.max(1),
    }
}

/// Gives each address without a symbol of its own that of the address before it, and takes away
/// those that belong to another section. Symbols that are left to no address get rank 0.
fn carry(sections: &[Section], answers: &mut Answers) {
    let Answers { addrs, nearest, symbols, .. } = answers;
    let mut last = 0;
    let (mut inside, mut used) = (0..0, false);
    for (slot, addr) in nearest.iter_mut().zip(addrs) {
        if *slot != 0 {
            if !used && let Some(symbol) = symbols.get_mut(last as usize) {
                symbol.rank = 0;
            }
            (last, used) = (*slot, false);
            let section = symbols.get(last as usize).map_or(0, |s| usize::from(s.section));
            inside = sections.get(section).map_or(0..0, Section::range);
        }
        let is_inside = inside.contains(addr);
        used |= is_inside;
        *slot = if is_inside { last } else { 0 };
    }
    if !used && let Some(symbol) = symbols.get_mut(last as usize) {
        symbol.rank = 0;
    }
}

/// Reads the names, in the order in which they lie in the file.
fn name(image: &Image, strings: &Section, answers: &mut Answers, shared: bool) {
    let order = in_file(image.raw(strings).len(), &mut answers.symbols);
    let mut names = Names::new(image, strings, order.len());
    for key in order {
        let Some(symbol) = answers.symbols.get_mut(key as u32 as usize) else { continue };
        let strings = &mut answers.strings;
        let (name, first, file) = names.of(symbol);
        let is_first = matches!(symbol.name, 0) || symbol.name == symbol.first;
        symbol.first = if shared { strings.add(first) } else { strings.push(first) };
        symbol.name = if is_first { symbol.first } else { strings.add(name) };
        symbol.file = match file {
            Some([]) => NAMELESS,
            file => strings.add(file.unwrap_or_default()),
        };
    }
}

/// Names of symbols that are asked for in the order in which they lie in the file.
struct Names<'a> {
    names: Pieces<'a>,
    /// For second names, which are rare and lie anywhere,
    others: Pieces<'a>,
    /// and for those of source files, each of which is read once.
    files: HashMap<u32, Box<[u8]>>,
}

impl<'a> Names<'a> {
    fn new(image: &'a Image, strings: &Section, count: usize) -> Self {
        let apart = strings.size / (count as u64).max(1);
        let size = if apart < 4096 { STRINGS } else { FEW_STRINGS };
        let [names, others] = [size, FEW_STRINGS].map(|size| image.pieces(strings, size));
        Self { names, others, files: HashMap::new() }
    }

    /// Its name, the first one, and that of its file.
    fn of(&mut self, symbol: &SymbolRecord) -> (&[u8], &[u8], Option<&[u8]>) {
        let Self { names, others, files } = self;
        let file = match symbol.file {
            0 => None,
            NAMELESS => Some(&[][..]),
            at => Some(&**files.entry(at).or_insert_with(|| string(others, at).into())),
        };
        let first = string(names, symbol.first);
        let is_first = symbol.name == 0 || symbol.name == symbol.first;
        (if is_first { first } else { string(others, symbol.name) }, first, file)
    }
}

/// A string of the table. One without a zero is not read to its end for each of its names.
fn string<'p>(pieces: &'p mut Pieces<'_>, at: u32) -> &'p [u8] {
    let end = |bytes: &[u8]| CStr::from_bytes_until_nul(bytes).ok().map(|s| s.to_bytes().len());
    let at = at as usize;
    let len = end(pieces.from(at, 1));
    let len = len.or_else(|| end(pieces.from(at, LONGEST))).unwrap_or(LONGEST).min(LONGEST);
    let bytes = pieces.from(at, len);
    bytes.get(..len).unwrap_or(bytes)
}
