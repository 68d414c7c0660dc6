//! The table that Go's runtime keeps of its functions for its own stack traces (`.gopclntab`).
//! `strip` leaves it, so it is the source when there is nothing better.
//!
//! The format has no description but its readers, `debug/gosym` and `runtime/symtab.go` of Go; those
//! of Go 1.16, 1.18 and 1.20 are read, of 64-bit little-endian machines.

use std::borrow::Cow;

use super::{Elf, Section, string_at, u32_at, u64_at};

pub(crate) const GO_1_16: u32 = 0xffff_fffa;
pub(crate) const GO_1_18: u32 = 0xffff_fff0;
/// Functions tell the line that they begin at, and some names are written differently.
pub(crate) const GO_1_20: u32 = 0xffff_fff1;
/// Longer names are cut.
const LONGEST: usize = 4 << 10;
/// Where `runtime.moduledata` has the first and last address of functions, and that of the text.
const MODULE_MIN_PC: usize = 160;
const MODULE_MAX_PC: usize = 168;
const MODULE_TEXT: usize = 176;
/// Of a function: written in assembly.
const FLAG_ASSEMBLY: u8 = 4;

/// A table and its parts.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Table<'a> {
    data: &'a [u8],
    magic: u32,
    /// Entries are pairs of an address and the place of its function, each so many bytes.
    field: usize,
    count: usize,
    /// What addresses are relative to; 0 before Go 1.18, and where the table does not say it.
    text: u64,
    names: &'a [u8],
    functions: &'a [u8],
}

/// A function of the table.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Function<'a> {
    pub start: u64,
    pub end: u64,
    /// Its record behind the address.
    pub fields: &'a [u8],
}

/// The section that the table is in.
pub(crate) fn section(elf: &Elf) -> Option<&Section> {
    [".gopclntab", ".data.rel.ro.gopclntab"].iter().find_map(|name| elf.section(name))
}

impl<'a> Table<'a> {
    /// Reads the table of a file in which it is at the link-time address `vaddr`; `raw` gives the
    /// bytes of the file's sections. `None`: it is of no version that is known, or nothing says where
    /// the code is.
    pub(crate) fn of<'s>(
        data: &'a [u8],
        vaddr: u64,
        elf: &'s Elf,
        raw: &dyn Fn(&'s Section) -> Cow<'s, [u8]>,
    ) -> Option<Self> {
        let mut table = Self::parse(data)?;
        (table.field == 8 || table.place(vaddr, elf, raw)).then_some(table)
    }

    pub(crate) fn parse(data: &'a [u8]) -> Option<Self> {
        let magic = u32_at(data, 0);
        let field = match magic {
            GO_1_16 => 8,
            GO_1_18 | GO_1_20 => 4,
            _ => return None,
        };
        let &[0, 0, 1 | 2 | 4, 8] = data.get(4..8)? else { return None };
        let count = usize::try_from(u64_at(data, 8)).ok()?;
        let text = if field == 4 { u64_at(data, 24) } else { 0 };
        let mut table = Self { data, magic, field, count, text, names: &[], functions: &[] };
        (table.names, table.functions) = (table.part(0)?, table.part(4)?);
        // The last entry is only the end of the function before.
        let entries = count.checked_mul(2)?.checked_add(1)?.checked_mul(field)?;
        (count > 0 && entries <= table.functions.len()).then_some(table)
    }

    /// A part of the table, and what follows it: names, units, files, values, functions.
    pub(crate) fn part(&self, number: usize) -> Option<&'a [u8]> {
        let words = if self.field == 8 { 24 } else { 32 };
        let at = usize::try_from(u64_at(self.data, words + number * 8)).ok()?;
        self.data.get(at..)
    }

    fn word(&self, number: usize) -> u64 {
        let at = number.saturating_mul(self.field);
        if self.field == 4 { u32_at(self.functions, at).into() } else { u64_at(self.functions, at) }
    }

    /// The address of the function with a number; that of the last is the end.
    fn start(&self, number: usize) -> u64 {
        self.text.wrapping_add(self.word(number.saturating_mul(2)))
    }

    /// Finds what addresses are relative to where the table does not say it, as since Go 1.26 and
    /// in position-independent programs; tells whether it is known.
    fn place<'s>(
        &mut self,
        vaddr: u64,
        elf: &'s Elf,
        raw: &dyn Fn(&'s Section) -> Cow<'s, [u8]>,
    ) -> bool {
        if self.text != 0 {
            return true;
        }
        let (first, last) = (self.start(0), self.start(self.count));
        // The runtime's own description, which other linkers' programs have too.
        for name in [".go.module", ".noptrdata", ".data"] {
            let Some(section) = elf.section(name) else { continue };
            let data = &*raw(section);
            for at in (0..data.len()).step_by(8).filter(|at| u64_at(data, *at) == vaddr) {
                let text = u64_at(data, at + MODULE_TEXT);
                if text != 0
                    && u64_at(data, at + MODULE_MIN_PC) == text.wrapping_add(first)
                    && u64_at(data, at + MODULE_MAX_PC) == text.wrapping_add(last)
                {
                    self.text = text;
                    return true;
                }
            }
        }
        // Go's own linker puts nothing before. Then the program starts with one of the functions.
        let Some((text, entry)) = elf.section(".text").zip(elf.entry()) else { return false };
        self.text = text.vaddr;
        self.function(entry).is_some_and(|f| f.start == entry)
    }

    /// The function that an address is in.
    pub(crate) fn function(&self, addr: u64) -> Option<Function<'a>> {
        let (mut low, mut high) = (0, self.count);
        while low < high {
            let middle = low + (high - low) / 2;
            if self.start(middle) <= addr { low = middle + 1 } else { high = middle }
        }
        self.get(low.checked_sub(1)?).filter(|f| f.start <= addr && addr < f.end)
    }

    fn get(&self, number: usize) -> Option<Function<'a>> {
        let at = usize::try_from(self.word(number * 2 + 1)).ok()?;
        let fields = self.functions.get(at.checked_add(self.field)?..)?;
        Some(Function { start: self.start(number), end: self.start(number + 1), fields })
    }

    /// All functions, in the order of the table.
    pub(crate) fn iter(&self) -> impl Iterator<Item = Function<'a>> {
        (0..self.count).filter_map(|number| self.get(number))
    }

    /// The name of a function.
    pub(crate) fn name(&self, function: &Function<'a>) -> &'a [u8] {
        string(self.names, u32_at(function.fields, 0))
    }

    /// Tells whether a function is written in assembly; before Go 1.18 nothing says it.
    pub(crate) fn is_assembly(&self, function: &Function<'_>) -> Option<bool> {
        let at = match self.magic {
            GO_1_20 => 37,
            GO_1_18 => 33,
            _ => return None,
        };
        Some(function.fields.get(at)? & FLAG_ASSEMBLY != 0)
    }
}

/// A name in a part of a table.
pub(crate) fn string(part: &[u8], at: u32) -> &[u8] {
    let rest = part.get(at as usize..).unwrap_or_default();
    string_at(rest.get(..LONGEST).unwrap_or(rest), 0)
}
