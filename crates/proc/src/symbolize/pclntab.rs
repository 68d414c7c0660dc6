//! Names and lines of functions of Go, from the table that Go's runtime keeps of them.
//!
//! The line of an address is that of the innermost inlined function, and the name that of the function it
//! was inlined into: the names between are not in this table.

use std::borrow::Cow;

use super::answers::{Answers, FrameRecord, SymbolRecord};
use super::image::Image;
use crate::elf::pclntab::{Function, Table, section, string};
use crate::elf::u32_at;

/// How many entries of line tables are read, on average, for each address. A table whose functions
/// all overlap and have each other's lines is lying.
const STEPS: u64 = 4096;

/// A table, and the parts of it that tell of lines.
#[derive(Clone, Copy, Debug)]
struct LineTable<'a> {
    table: Table<'a>,
    quantum: u64,
    units: &'a [u8],
    files: &'a [u8],
    values: &'a [u8],
}

/// Tells whether a file has a table of the functions of Go.
pub(super) fn is_there(image: &Image) -> bool {
    section(&image.elf).is_some()
}

/// Fills in what is not known of addresses in functions of Go: names if `names`, and lines if
/// `lines`.
pub(super) fn find(image: &Image, answers: &mut Answers, names: bool, lines: bool) {
    let Some(section) = section(&image.elf) else { return };
    let raw = |section| Cow::Borrowed(image.raw(section));
    let table = Table::of(image.raw(section), section.vaddr, &image.elf, &raw);
    if let Some(table) = table.and_then(|table| LineTable::of(table, image.raw(section))) {
        table.answer(answers, names, lines);
    }
}

impl<'a> LineTable<'a> {
    fn of(table: Table<'a>, data: &[u8]) -> Option<Self> {
        let quantum = u64::from(*data.get(6)?);
        let (units, files, values) = (table.part(1)?, table.part(2)?, table.part(3)?);
        Some(Self { table, quantum, units, files, values })
    }

    fn file(&self, function: &Function<'_>, number: u32) -> &'a [u8] {
        let at = u32_at(function.fields, 28).checked_add(number);
        let at = at.and_then(|at| self.units.get((at as usize).checked_mul(4)?..));
        let name = at.and_then(|at| at.first_chunk()).map_or(u32::MAX, |b| u32::from_le_bytes(*b));
        string(self.files, name)
    }

    fn answer(&self, answers: &mut Answers, names: bool, lines: bool) {
        if lines && answers.spans.is_empty() {
            answers.spans = vec![(0, 0); answers.addrs.len()];
        }
        let mut steps = (answers.addrs.len() as u64).saturating_mul(STEPS).saturating_add(1 << 26);
        let mut at = 0;
        while let Some(&addr) = answers.addrs.get(at) {
            let Some(function) = self.table.function(addr) else {
                at += 1;
                continue;
            };
            let rest = answers.addrs.get(at..).unwrap_or_default();
            let until = at + rest.partition_point(|a| *a < function.end).max(1);
            let name = answers.strings.add(self.table.name(&function));
            if names && name != 0 {
                let start = function.start;
                let size = u32::try_from(function.end - start).unwrap_or(u32::MAX);
                answers.symbols.push(SymbolRecord {
                    start,
                    size,
                    name,
                    first: name,
                    ..SymbolRecord::default()
                });
                let symbol = u32::try_from(answers.symbols.len() - 1).unwrap_or(0);
                answers.nearest.get_mut(at..until).unwrap_or_default().fill(symbol);
            }
            if lines {
                steps = self.lines(&function, name, at..until, steps, answers);
            }
            at = until;
        }
    }

    /// Adds the lines of addresses in one function; returns how many steps are left.
    fn lines(
        &self,
        function: &Function<'_>,
        name: u32,
        range: std::ops::Range<usize>,
        steps: u64,
        answers: &mut Answers,
    ) -> u64 {
        let limit = function.end.saturating_sub(function.start).min(steps / 2);
        let values = |field| Values::new(self, u32_at(function.fields, field), function, limit);
        let (mut files, mut lines) = (values(16), values(20));
        for at in range {
            let Some(&addr) = answers.addrs.get(at) else { break };
            let (Some(file), Some(line)) = (files.at(addr), lines.at(addr)) else { continue };
            let file = answers.strings.add(self.file(function, file));
            if file == 0 {
                continue;
            }
            let record = FrameRecord { name, file, line, linkage: true, ..FrameRecord::default() };
            answers.frames.push(record);
            let number = u32::try_from(answers.frames.len() - 1).unwrap_or(0);
            if let Some(span) = answers.spans.get_mut(at) {
                *span = (number, 1);
            }
        }
        steps - (limit - files.steps) - (limit - lines.steps)
    }
}

/// A value for each address of a function, as differences: of the value, then of the address up to
/// which it holds.
struct Values<'a> {
    rest: &'a [u8],
    quantum: u64,
    value: u32,
    /// Where `value` ends.
    end: u64,
    /// Entries that may follow: each is of one instruction at least.
    steps: u64,
    first: bool,
}

impl<'a> Values<'a> {
    fn new(table: &LineTable<'a>, at: u32, function: &Function<'_>, steps: u64) -> Self {
        // Offset 0 stands for none.
        let rest = table.values.get(at as usize..).filter(|_| at != 0).unwrap_or_default();
        Self { rest, quantum: table.quantum, value: !0, end: function.start, steps, first: true }
    }

    /// The value of an address; they are asked for in order.
    fn at(&mut self, addr: u64) -> Option<u32> {
        while self.end <= addr {
            self.steps = self.steps.checked_sub(1)?;
            let difference = self.varint()?;
            if difference == 0 && !self.first {
                self.rest = &[];
                return None;
            }
            self.first = false;
            let sign = (difference & 1).wrapping_neg();
            self.value = self.value.wrapping_add(difference >> 1 ^ sign);
            let length = u64::from(self.varint()?) * self.quantum;
            self.end = self.end.saturating_add(length);
        }
        i32::try_from(self.value).is_ok().then_some(self.value)
    }

    fn varint(&mut self) -> Option<u32> {
        let mut value = 0;
        for shift in (0..32).step_by(7) {
            let (&byte, rest) = self.rest.split_first()?;
            self.rest = rest;
            value |= u32::from(byte & 0x7f) << shift;
            if byte & 0x80 == 0 {
                return Some(value);
            }
        }
        None
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::elf::pclntab::{GO_1_16, GO_1_18, GO_1_20};

    const TEXT: u64 = 0x40_1000;

    /// A table of two functions of 32 and 16 bytes, `main.f` and `main.g`, in `a.go` and `b.go`, in
    /// the layout of a version.
    fn table(magic: u32) -> Vec<u8> {
        let old = magic == GO_1_16;
        let names = b"\0main.f\0main.g\0".to_vec();
        let units: Vec<u8> = [0u32, 5].iter().flat_map(|n| n.to_le_bytes()).collect();
        let files = b"a.go\0b.go\0".to_vec();
        // At 1 file 0, at 4 file 1; at 7 line 10 of 8 bytes, 12 of 24; at 12 line 3 of 16.
        let values = vec![0, 2, 32, 0, 4, 16, 0, 22, 8, 4, 24, 0, 8, 16, 0];
        let field = if old { 8 } else { 4 };
        let word = |n: u64| n.to_le_bytes().get(..field).unwrap().to_vec();
        let base = if old { TEXT } else { 0 };
        let record = |entry: u64, fields: [u32; 8]| {
            let fields = fields.into_iter().flat_map(u32::to_le_bytes);
            word(base + entry).into_iter().chain(fields).collect::<Vec<u8>>()
        };
        let first = record(0, [1, 0, 0, 0, 1, 7, 0, 0]);
        let second = record(32, [8, 0, 0, 0, 4, 12, 0, 0]);
        let start = field * 5;
        let entries = [0, start as u64, 32, (start + first.len()) as u64, 48];
        let entries = entries.iter().enumerate();
        let functions: Vec<u8> = entries
            .flat_map(|(i, n)| word(if i % 2 == 0 { base + n } else { *n }))
            .chain(first)
            .chain(second)
            .collect();
        let mut out = magic.to_le_bytes().to_vec();
        out.extend([0, 0, 1, 8]);
        let parts = [names, units, files, values, functions];
        let mut head: Vec<u64> = vec![2, 2];
        head.extend((!old).then_some(TEXT));
        let mut at = (8 + 8 * (head.len() + parts.len())) as u64;
        for part in &parts {
            head.push(at);
            at += part.len() as u64;
        }
        out.extend(head.iter().flat_map(|n| n.to_le_bytes()));
        out.extend(parts.concat());
        out
    }

    fn line_table(bytes: &[u8]) -> Option<LineTable<'_>> {
        LineTable::of(Table::parse(bytes)?, bytes)
    }

    /// A function without an end, with line tables whose entries are of no instruction: functions
    /// that overlap could each have it.
    #[test]
    fn no_more_of_a_table_is_read_than_is_left() {
        let fields: Vec<u8> =
            [0, 0, 0, 0, 2, 2, 0, 0].iter().flat_map(|n: &u32| n.to_le_bytes()).collect();
        let values = [2, 0].repeat(1 << 20);
        let bytes = table(GO_1_20);
        let table = LineTable { values: &values, ..line_table(&bytes).unwrap() };
        let function = Function { start: 0, end: u64::MAX, fields: &fields };
        let mut answers = Answers::new(&[TEXT]);
        answers.spans = vec![(0, 0)];
        assert_eq!(table.lines(&function, 0, 0..1, 1000, &mut answers), 0);
        assert_eq!(table.lines(&function, 0, 0..1, 0, &mut answers), 0);
        assert!(answers.frames.is_empty());
    }

    #[test]
    fn each_version_is_read() {
        for magic in [GO_1_16, GO_1_18, GO_1_20] {
            let bytes = table(magic);
            let addrs = vec![TEXT - 1, TEXT, TEXT + 7, TEXT + 8, TEXT + 31, TEXT + 32, TEXT + 48];
            let mut answers = Answers::new(&addrs);
            line_table(&bytes).unwrap().answer(&mut answers, true, true);
            let found = addrs.iter().map(|addr| {
                let answer = answers.get(*addr).unwrap();
                let frame = answer.frames().next()?;
                let symbol = answer.symbol()?;
                assert_eq!(frame.name, Some(symbol.name));
                Some((symbol.name, symbol.start - TEXT, symbol.size, frame.file?, frame.line))
            });
            let f = |line| Some((&b"main.f"[..], 0, 32, &b"a.go"[..], line));
            let g = Some((&b"main.g"[..], 32, 16, &b"b.go"[..], 3));
            let want = [None, f(10), f(10), f(12), f(12), g, None];
            assert_eq!(found.collect::<Vec<_>>(), want, "{magic:#x}");
        }
        assert!(line_table(&table(0xffff_fffb)).is_none(), "of Go 1.2 to 1.15");
    }
}
