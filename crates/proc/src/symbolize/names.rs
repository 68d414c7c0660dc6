//! Symbols nearest to addresses, in one pass over the symbol table.
//!
//! No index of the table is made: a program of a million symbols would need as many entries. The
//! addresses are sorted instead, and each symbol looks for the first of them that it is before. So
//! memory follows from the number of questions, and nothing is sorted but these.

use super::answers::{Answers, NearSymbol, SymbolRecord};
use super::image::Image;
use super::order;
use crate::elf::{Section, u16_at, u32_at, u64_at};

const SHT_SYMTAB: u32 = 2;
const SHT_DYNSYM: u32 = 11;
const STT_NOTYPE: u8 = 0;
const STT_FUNC: u8 = 2;
const STT_FILE: u8 = 4;
const STT_GNU_IFUNC: u8 = 10;
const STB_LOCAL: u8 = 0;
const STV_HIDDEN: u8 = 2;
const ENTRY: usize = 24;
/// Bytes of a table or of its strings after which their pages are given back.
const WINDOW: usize = 256 << 10;

/// Longer names are cut.
const LONGEST: usize = 64 << 10;

/// Fills in the symbols of `answers` from the symbol table of `image`. With `shared`, other strings
/// that are equal to names will be the same ones.
pub(super) fn find(image: &Image, answers: &mut Answers, shared: bool) {
    let table =
        |kind| image.elf.sections().iter().find(|s| s.kind == kind && s.size >= ENTRY as u64);
    let Some(table) = table(SHT_SYMTAB).or_else(|| table(SHT_DYNSYM)) else { return };
    let Some(strings) = image.elf.sections().get(table.link as usize) else { return };
    register(image, table, answers);
    carry(image.elf.sections(), answers);
    name(image, strings, answers, shared);
}

/// Calls `put` with the number of each address that a symbol covers, and that symbol: symbol by symbol,
/// in the order in which their names lie in the file. No name is kept.
pub(super) fn each(
    image: &Image,
    mut answers: Answers,
    put: &mut dyn FnMut(usize, NearSymbol<'_>),
) -> Option<()> {
    let table = image.elf.sections().iter().find(|s| s.kind == SHT_SYMTAB)?;
    let text = image.raw(image.elf.sections().get(table.link as usize)?);
    register(image, table, &mut answers);
    carry(image.elf.sections(), &mut answers);
    let (given, starts) = answers.numbers();
    let order = in_file(text, &mut answers.symbols);
    // Where the addresses of each symbol begin: they stand together.
    let mut first = vec![0_u32; answers.symbols.len()];
    for (at, symbol) in answers.nearest.iter().enumerate().rev() {
        if let Some(first) = first.get_mut(*symbol as usize) {
            *first = at as u32;
        }
    }
    let mut window = 0;
    for key in order {
        let id = key as u32;
        let Some(symbol) = answers.symbols.get(id as usize) else { continue };
        let from = first.get(id as usize).copied().unwrap_or(0) as usize;
        let first_name = string(text, symbol.first);
        let name = if symbol.name == 0 { first_name } else { string(text, symbol.name) };
        let file = (symbol.file != 0).then(|| string(text, symbol.file));
        let (start, size) = (symbol.start, u64::from(symbol.size));
        let near = NearSymbol { id, name, first_name, start, size, file };
        let of_it = answers.nearest.iter().zip(&answers.addrs).enumerate().skip(from);
        for (at, (_, addr)) in of_it.take_while(|(_, (nearest, _))| **nearest == id) {
            let range = starts.get(at).zip(starts.get(at + 1));
            let numbers = range.and_then(|(a, b)| given.get(*a as usize..*b as usize));
            if size == 0 || addr - start < size {
                numbers.unwrap_or_default().iter().for_each(|number| put(*number as usize, near));
            }
        }
        if symbol.first as usize / WINDOW != window {
            window = symbol.first as usize / WINDOW;
            image.forget();
        }
    }
    image.forget();
    Some(())
}

/// The symbols that addresses have, by the places of their names in the file; the others have none
/// from now on.
fn in_file(text: &[u8], symbols: &mut [SymbolRecord]) -> Vec<u64> {
    for symbol in &mut *symbols {
        // What lies behind the end is no name.
        if symbol.rank == 0 || symbol.first as usize >= text.len() {
            *symbol = SymbolRecord::default();
        }
    }
    let all = symbols.iter().zip(0_u32..);
    let pairs = all.filter(|(symbol, _)| symbol.rank != 0).map(|(symbol, id)| (symbol.first, id));
    order::sort(pairs, u32::try_from(text.len()).unwrap_or(u32::MAX))
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
    let ends: Vec<u64> = image.elf.sections().iter().map(|s| s.range().end).collect();
    let Answers { addrs, nearest, symbols, .. } = answers;
    let buckets = Buckets::new(addrs);
    let data = image.raw(table);
    let mut files = SourceFiles::default();
    for window in data.chunks(WINDOW / ENTRY * ENTRY) {
        for symbol in window.as_chunks::<ENTRY>().0 {
            let start = u64_at(symbol, 8);
            let (info, other) = (symbol[4], symbol[5]);
            let (kind, section) = (info & 15, u16_at(symbol, 6));
            let (local, name) = (info >> 4 == STB_LOCAL, u32_at(symbol, 0));
            files.see(kind, name, section);
            if !matches!(kind, STT_NOTYPE | STT_FUNC | STT_GNU_IFUNC)
                || section == 0
                || ends.get(usize::from(section)).is_none_or(|end| start >= *end)
            {
                continue;
            }
            let size = u64_at(symbol, 16);
            if size == 0 && kind == STT_NOTYPE && local && other & 3 == STV_HIDDEN {
                continue;
            }
            let Some(at) = buckets.first_from(start) else { continue };
            let (Some(slot), Some(addr)) = (nearest.get_mut(at), addrs.get(at)) else { continue };
            let rank = 1 + u8::from(kind == STT_FUNC) + u8::from(kind != STT_NOTYPE);
            let file = files.of(local);
            // The first of those equal to it that is visible to other files.
            let visible = if local { 0 } else { name };
            let size = u32::try_from(size).unwrap_or(u32::MAX);
            let new = SymbolRecord { start, size, name: visible, first: name, file, section, rank };
            match symbols.get_mut(*slot as usize).filter(|_| *slot != 0) {
                None => {
                    *slot = u32::try_from(symbols.len()).unwrap_or(0);
                    symbols.push(new);
                }
                Some(old) if better(&new, old, *addr) => *old = new,
                Some(old) => {
                    if old.name == 0 && (old.start, old.size, old.rank) == (start, size, rank) {
                        old.name = visible;
                    }
                }
            }
        }
        if data.len() > WINDOW {
            image.forget();
        }
    }
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
            self.name = name;
            self.several |= self.symbols;
        } else if kind != STT_NOTYPE || section != 0 || name != 0 {
            self.symbols = true;
        }
    }

    /// Name of a symbol's file; 0: not known.
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
    let text = image.raw(strings);
    let order = in_file(text, &mut answers.symbols);
    let mut window = 0;
    for key in order {
        let Some(symbol) = answers.symbols.get_mut(key as u32 as usize) else { continue };
        let strings = &mut answers.strings;
        let first = string(text, symbol.first);
        let first = if shared { strings.add(first) } else { strings.push(first) };
        symbol.name = match symbol.name {
            0 => first,
            visible if visible == symbol.first => first,
            visible => strings.add(string(text, visible)),
        };
        if symbol.file != 0 {
            symbol.file = strings.add(string(text, symbol.file));
        }
        if symbol.first as usize / WINDOW != window {
            window = symbol.first as usize / WINDOW;
            image.forget();
        }
        symbol.first = first;
    }
    image.forget();
}

/// A string of the table. One without a zero is not read to its end for each of its names.
fn string(text: &[u8], at: u32) -> &[u8] {
    let rest = text.get(at as usize..).unwrap_or_default();
    let rest = rest.get(..LONGEST).unwrap_or(rest);
    std::ffi::CStr::from_bytes_until_nul(rest).map_or(rest, |string| string.to_bytes())
}
