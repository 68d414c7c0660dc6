//! Symbols nearest to addresses, in one pass over the symbol table.
//!
//! No index of the table is made: a program of a million symbols would need as many entries. The
//! addresses are sorted instead, and each symbol looks for the first of them that it is before. So
//! memory follows from the number of questions, and nothing is sorted but these.

use super::answers::{Answers, Strings, SymbolRecord};
use super::image::Image;
use crate::elf::{Section, string_at, u16_at, u32_at, u64_at};

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
const WINDOW: usize = 1 << 20;

/// Longer names are cut.
const LONGEST: usize = 64 << 10;

/// The best symbol so far for an address.
#[derive(Clone, Copy, Default)]
struct Best {
    start: u64,
    size: u64,
    name: u32,
    /// Name of the first of those equal to it that is visible to other files.
    visible: u32,
    /// Name of the source file that it stands below in the table.
    file: u32,
    section: u16,
    /// 0: there is none; higher is better.
    rank: u8,
}

/// Fills in the symbols of `answers` from the symbol table of `image`.
pub(super) fn find(image: &Image, answers: &mut Answers) {
    let table =
        |kind| image.elf.sections().iter().find(|s| s.kind == kind && s.size >= ENTRY as u64);
    let Some(table) = table(SHT_SYMTAB).or_else(|| table(SHT_DYNSYM)) else { return };
    let Some(strings) = image.elf.sections().get(table.link as usize) else { return };
    let mut best = vec![Best::default(); answers.addrs.len()];
    register(image, table, &answers.addrs, &mut best);
    carry(image.elf.sections(), &answers.addrs, &mut best);
    name(image, strings, &best, answers);
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

/// Gives each symbol to the first address that it does not lie behind.
fn register(image: &Image, table: &Section, addrs: &[u64], best: &mut [Best]) {
    let ends: Vec<u64> = image.elf.sections().iter().map(|s| s.range().end).collect();
    let buckets = Buckets::new(addrs);
    let data = image.raw(table);
    let mut files = SourceFiles::default();
    for window in data.chunks(WINDOW / ENTRY * ENTRY) {
        for symbol in window.chunks_exact(ENTRY) {
            let start = u64_at(symbol, 8);
            let (info, other) =
                (symbol.get(4).copied().unwrap_or(0), symbol.get(5).copied().unwrap_or(0));
            let (kind, section) = (info & 15, u16_at(symbol, 6));
            files.see(kind, u32_at(symbol, 0), section);
            if !matches!(kind, STT_NOTYPE | STT_FUNC | STT_GNU_IFUNC)
                || section == 0
                || ends.get(usize::from(section)).is_none_or(|end| start >= *end)
            {
                continue;
            }
            let size = u64_at(symbol, 16);
            if size == 0 && kind == STT_NOTYPE && info >> 4 == STB_LOCAL && other & 3 == STV_HIDDEN
            {
                continue;
            }
            let Some(at) = buckets.first_from(start) else { continue };
            let (Some(slot), Some(addr)) = (best.get_mut(at), addrs.get(at)) else { continue };
            let rank = 1 + u8::from(kind == STT_FUNC) + u8::from(kind != STT_NOTYPE);
            let file = files.of(info >> 4 == STB_LOCAL);
            let name = u32_at(symbol, 0);
            let visible = if info >> 4 == STB_LOCAL { 0 } else { name };
            let new = Best { start, size, name, visible, file, section, rank };
            if better(&new, slot, *addr) {
                *slot = new;
            } else if slot.visible == 0 && (slot.start, slot.size, slot.rank) == (start, size, rank)
            {
                slot.visible = visible;
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
fn better(new: &Best, old: &Best, addr: u64) -> bool {
    if old.rank == 0 || new.start != old.start {
        return old.rank == 0 || new.start > old.start;
    }
    let reaches = |b: &Best| addr - b.start < b.size.max(1);
    match (reaches(new), reaches(old)) {
        (_, false) => new.size > old.size,
        (false, true) => false,
        (true, true) if new.rank != old.rank => new.rank > old.rank,
        (true, true) => new.size.max(1) < old.size.max(1),
    }
}

/// Gives each address without a symbol of its own that of the address before it, and takes away
/// those that belong to another section.
fn carry(sections: &[Section], addrs: &[u64], best: &mut [Best]) {
    let mut last = Best::default();
    for (slot, addr) in best.iter_mut().zip(addrs) {
        if slot.rank == 0 {
            *slot = last;
        }
        last = *slot;
        let inside = sections
            .get(usize::from(slot.section))
            .is_some_and(|section| section.range().contains(addr));
        if !inside {
            slot.rank = 0;
        }
    }
}

/// Reads the names, in the order in which they lie in the file.
fn name(image: &Image, strings: &Section, best: &[Best], answers: &mut Answers) {
    let text = image.raw(strings);
    let mut order: Vec<u32> = (0..u32::try_from(best.len()).unwrap_or(u32::MAX))
        .filter(|i| best.get(*i as usize).is_some_and(|b| b.rank != 0))
        .collect();
    let key = |i: &u32| best.get(*i as usize).map_or((0, 0), |b| (b.name, b.start));
    order.sort_unstable_by_key(key);
    let (mut window, mut last) = (0, None);
    for i in order {
        let (Some(b), Some(slot)) = (best.get(i as usize), answers.nearest.get_mut(i as usize))
        else {
            continue;
        };
        if last != Some((b.name, b.start)) {
            last = Some((b.name, b.start));
            let strings = &mut answers.strings;
            let first = add(strings, text, b.name);
            let name = if b.visible == 0 || b.visible == b.name {
                first
            } else {
                add(strings, text, b.visible)
            };
            let file = if b.file == 0 { 0 } else { add(strings, text, b.file) };
            answers.symbols.push(SymbolRecord { start: b.start, size: b.size, name, first, file });
        }
        *slot = u32::try_from(answers.symbols.len() - 1).unwrap_or(0);
        if b.name as usize / WINDOW != window {
            window = b.name as usize / WINDOW;
            image.forget();
        }
    }
    image.forget();
}

fn add(strings: &mut Strings, text: &[u8], at: u32) -> u32 {
    // A table without a zero is not read to its end for each of its names.
    let rest = text.get(at as usize..).unwrap_or_default();
    strings.add(string_at(rest.get(..LONGEST).unwrap_or(rest), 0))
}
