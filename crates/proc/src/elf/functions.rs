//! The functions of a file: one entry for each address, under its best name, with all aliases.

use std::borrow::Cow;
use std::ops::Range;
use std::path::{Path, PathBuf};

use crate::order::sort_by_number;

use super::{
    ET_DYN, ET_EXEC, Elf, ElfError, Fde, SHT_DYNSYM, SHT_SYMTAB, Section, pclntab, u16_at, u32_at,
    u64_at,
};

/// What a function symbol is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Kind {
    /// An ordinary function.
    Func,
    /// A function that Go's table says is written in assembly.
    Assembly,
    /// A resolver: its address is called once by the dynamic linker and returns the function's.
    Ifunc,
}

/// How visible a symbol is to other files.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Binding {
    /// `STB_GLOBAL` (and `STB_GNU_UNIQUE`).
    Global,
    /// `STB_WEAK`.
    Weak,
    /// `STB_LOCAL`.
    Local,
}

/// `st_other` of a symbol.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Visibility {
    /// As the binding says.
    Default,
    /// Known to this file's parts only.
    Internal,
    /// Not exported.
    Hidden,
    /// Exported, not preemptible.
    Protected,
}

/// Where a table of functions came from.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum SymbolSource {
    /// `.symtab` of the file itself.
    Symtab,
    /// `.symtab` of a separate debug file.
    DebugFile(PathBuf),
    /// The table that Go's runtime keeps of its functions names those, `.dynsym` the exported ones, and
    /// unwind tables bound the others.
    Pclntab,
    /// `.dynsym` names the exported functions, unwind tables bound the others.
    Dynsym,
    /// The file has no symbols; its functions come from unwind tables.
    None,
}

/// One name of a function.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Symbol<'a> {
    /// Raw name, without a version suffix.
    pub name: &'a [u8],
    /// Binding of this name.
    pub binding: Binding,
    /// Visibility of this name.
    pub visibility: Visibility,
}

/// One function, borrowed from its [`Functions`].
#[derive(Clone, Copy, Debug)]
pub struct Function<'a> {
    /// Link-time address.
    pub vaddr: u64,
    /// Size in bytes.
    pub size: u64,
    /// The symbol had no size; `size` reaches to the next function or the section's end.
    pub size_guessed: bool,
    /// Function or resolver.
    pub kind: Kind,
    /// Binding of the best name.
    pub binding: Binding,
    /// Visibility of the best name.
    pub visibility: Visibility,
    /// The best name: exported before local, without leading underscores, short.
    pub name: &'a [u8],
    table: &'a Functions,
    names: (u32, u32),
}

impl<'a> Function<'a> {
    /// Link-time addresses covered.
    pub fn range(&self) -> Range<u64> {
        self.vaddr..self.vaddr.saturating_add(self.size)
    }

    /// Tells by its name whether this is a part of a function that the compiler moved away; nobody
    /// calls such a part.
    pub fn is_cold(&self) -> bool {
        let number = |s: &[u8]| s.iter().all(u8::is_ascii_digit);
        let at = self.name.windows(5).rposition(|w| w == b".cold");
        let tail = at.and_then(|at| self.name.get(at + 5..));
        tail.is_some_and(|t| t.is_empty() || t.strip_prefix(b".").is_some_and(number))
    }

    /// The best name as text.
    pub fn name_lossy(&self) -> Cow<'a, str> {
        String::from_utf8_lossy(self.name)
    }

    /// All names, the best one first.
    pub fn symbols(&self) -> impl Iterator<Item = Symbol<'a>> + use<'a> {
        let table = self.table;
        let names =
            table.symbols.get(self.names.0 as usize..self.names.1 as usize).unwrap_or_default();
        names.iter().map(|raw| table.symbol(raw))
    }

    /// The other names of the same address.
    pub fn aliases(&self) -> impl Iterator<Item = Symbol<'a>> + use<'a> {
        self.symbols().skip(1)
    }
}

#[derive(Clone, Copy, Debug)]
struct RawSymbol {
    vaddr: u64,
    size: u64,
    name: u32,
    len: u32,
    kind: Kind,
    binding: Binding,
    visibility: Visibility,
    /// `name@VERSION`, an old version that nothing new links against.
    old: bool,
}

#[derive(Clone, Copy, Debug)]
struct Entry {
    vaddr: u64,
    size: u64,
    size_guessed: bool,
    kind: Kind,
    names: (u32, u32),
}

/// All functions of a file, sorted by address.
#[derive(Debug)]
pub struct Functions {
    strings: Vec<u8>,
    symbols: Vec<RawSymbol>,
    entries: Vec<Entry>,
    /// Symbols in the code that are no functions.
    labels: Vec<RawSymbol>,
    source: SymbolSource,
}

impl Functions {
    pub(super) fn of(elf: &Elf, debug: Option<(&Path, &Elf)>) -> Result<Self, ElfError> {
        if !matches!(elf.kind, ET_EXEC | ET_DYN) {
            // Symbols of `.o` files count from their section's start, and nothing of them is
            // loaded.
            return Err(ElfError::Unsupported {
                what: "functions of a file that is neither program nor library",
            });
        }
        let (strings, symbols, entries, labels) = (Vec::new(), Vec::new(), Vec::new(), Vec::new());
        let mut out = Self { strings, symbols, entries, labels, source: SymbolSource::None };
        let table =
            |from: &'_ Elf, kind| from.sections.iter().position(|s| s.kind == kind && s.size >= 24);
        if let Some(at) = table(elf, SHT_SYMTAB) {
            out.source = SymbolSource::Symtab;
            out.read(elf, elf, at)?;
        } else if let Some((path, from, at)) =
            debug.and_then(|(path, from)| Some((path, from, table(from, SHT_SYMTAB)?)))
        {
            out.source = SymbolSource::DebugFile(path.to_owned());
            out.read(elf, from, at)?;
        } else {
            if let Some(at) = table(elf, SHT_DYNSYM) {
                out.source = SymbolSource::Dynsym;
                out.read(elf, elf, at)?;
            }
            out.add_of_go(elf);
            out.add_unnamed(elf);
        }
        out.group(elf);
        Ok(out)
    }

    /// Reads the symbol table in section `at` of `from`, which is `elf` or its debug file.
    fn read(&mut self, elf: &Elf, from: &Elf, at: usize) -> Result<(), ElfError> {
        let Some(section) = from.sections.get(at) else { return Ok(()) };
        let data = from.section_data(section)?;
        let Some(strings) = from.sections.get(section.link as usize) else {
            return Err(ElfError::Malformed { what: "string table index", offset: section.offset });
        };
        self.strings = from.section_data(strings)?;
        let (text, not) = (elf.text(), elf.not_functions());
        let inside = |ranges, at| super::range_of(ranges, at).is_some();
        // Most are of functions.
        self.symbols.reserve(data.len() / 24);
        for sym in data.chunks_exact(24) {
            let info = sym.get(4).copied().unwrap_or(0);
            let (kind, label) = match info & 15 {
                2 => (Kind::Func, false),
                10 => (Kind::Ifunc, false),
                // NOTYPE and OBJECT
                0 | 1 => (Kind::Func, true),
                _ => continue,
            };
            let (shndx, vaddr) = (u16_at(sym, 6), u64_at(sym, 8));
            // A label may mark the end of the code.
            let in_text = inside(&text, vaddr) || (label && inside(&text, vaddr.wrapping_sub(1)));
            if shndx == 0 || !in_text || inside(&not, vaddr) {
                continue;
            }
            let name = u32_at(sym, 0);
            let full = super::string_at(&self.strings, name);
            let (len, old) = match full.iter().position(|&b| b == b'@') {
                Some(at) if at > 0 => (at, full.get(at + 1) != Some(&b'@')),
                _ => (full.len(), false),
            };
            if len == 0 {
                continue;
            }
            let list = if label { &mut self.labels } else { &mut self.symbols };
            list.push(RawSymbol {
                vaddr,
                size: u64_at(sym, 16),
                name,
                len: u32::try_from(len).unwrap_or(u32::MAX),
                kind,
                binding: match info >> 4 {
                    0 => Binding::Local,
                    2 => Binding::Weak,
                    _ => Binding::Global,
                },
                visibility: match sym.get(5).copied().unwrap_or(0) & 3 {
                    0 => Visibility::Default,
                    1 => Visibility::Internal,
                    2 => Visibility::Hidden,
                    _ => Visibility::Protected,
                },
                old,
            });
        }
        Ok(())
    }

    /// Adds the functions that Go's runtime knows; a broken table adds none. Those of Go before 1.18
    /// are left out: nothing tells which of them are written in assembly.
    fn add_of_go(&mut self, elf: &Elf) {
        let raw = |section: &Section| elf.section_data(section).unwrap_or_default();
        let Some(section) = pclntab::section(elf) else { return };
        let data = raw(section);
        let raw = |section: &Section| Cow::Owned(raw(section));
        let Some(table) = pclntab::Table::of(&data, section.vaddr, elf, &raw) else { return };
        let (text, not) = (elf.text(), elf.not_functions());
        let inside = |ranges, at| super::range_of(ranges, at).is_some();
        for function in table.iter() {
            let Some(is_assembly) = table.is_assembly(&function) else { return };
            let (start, end) = (function.start, function.end);
            let is_code =
                super::range_of(&text, start).is_some_and(|r| start < end && end <= r.end);
            if !is_code || inside(&not, start) {
                continue;
            }
            let name = table.name(&function);
            let Ok(at) = u32::try_from(self.strings.len()) else { return };
            if name.is_empty() {
                continue;
            }
            self.strings.extend(name);
            self.symbols.push(RawSymbol {
                vaddr: start,
                size: end - start,
                name: at,
                len: u32::try_from(name.len()).unwrap_or(0),
                kind: if is_assembly { Kind::Assembly } else { Kind::Func },
                binding: Binding::Global,
                visibility: Visibility::Default,
                old: false,
            });
            self.source = SymbolSource::Pclntab;
        }
    }

    /// Adds the functions that only the unwind tables know; a broken table adds none.
    fn add_unnamed(&mut self, elf: &Elf) {
        let Ok(fdes) = elf.frames() else { return };
        let not = elf.not_functions();
        let mut known: Vec<_> =
            self.symbols.iter().map(|s| (s.vaddr, s.vaddr.saturating_add(s.size.max(1)))).collect();
        sort_by_number(&mut known, |(start, _)| *start);
        // The longest of each place.
        known.dedup_by(|next, kept| {
            let is_same = next.0 == kept.0;
            kept.1 = if is_same { kept.1.max(next.1) } else { kept.1 };
            is_same
        });
        let named = |at| {
            let before = known.partition_point(|k| k.0 <= at).checked_sub(1);
            before.and_then(|i| known.get(i)).is_some_and(|k| at < k.1)
        };
        // Nothing calls the start of a program, and its unwind table says so.
        let starts = |f: &&Fde| f.function_entry || elf.entry() == Some(f.start);
        for fde in fdes
            .iter()
            .filter(|f| starts(f) && !named(f.start) && super::range_of(&not, f.start).is_none())
        {
            let name = if elf.entry() == Some(fde.start) {
                "_start".to_owned()
            } else {
                format!("sub_{:x}", fde.start)
            };
            let Ok(at) = u32::try_from(self.strings.len()) else { return };
            self.strings.extend(name.as_bytes());
            self.symbols.push(RawSymbol {
                vaddr: fde.start,
                size: fde.end - fde.start,
                name: at,
                len: u32::try_from(name.len()).unwrap_or(0),
                kind: Kind::Func,
                binding: Binding::Local,
                visibility: Visibility::Default,
                old: false,
            });
        }
    }

    /// Sorts by address and quality of name, drops repeated names, makes one entry of each address,
    /// fills in sizes.
    fn group(&mut self, elf: &Elf) {
        let strings = &self.strings;
        let name = |s: &RawSymbol| name_of(strings, s);
        let quality = |s: &RawSymbol| {
            let n = name(s);
            let underscores = n.iter().take_while(|&&c| c == b'_').count();
            (s.binding == Binding::Local, s.old, underscores, s.binding, n.len())
        };
        sort_by_number(&mut self.symbols, |s| s.vaddr);
        // Names are compared among the few at one address only: ten times faster than one sort by
        // everything.
        for same in self.symbols.chunk_by_mut(|a, b| a.vaddr == b.vaddr).filter(|c| c.len() > 1) {
            same.sort_unstable_by(|a, b| {
                quality(a)
                    .cmp(&quality(b))
                    .then_with(|| name(a).cmp(name(b)))
                    .then(b.size.cmp(&a.size))
            });
        }
        self.symbols.dedup_by(|b, a| a.vaddr == b.vaddr && name(a) == name(b) && a.kind == b.kind);
        self.entries.clear();
        self.entries.reserve(self.symbols.len());
        for (i, s) in self.symbols.iter().enumerate() {
            let i = u32::try_from(i).unwrap_or(u32::MAX);
            match self.entries.last_mut() {
                Some(e) if e.vaddr == s.vaddr => {
                    e.names.1 = i + 1;
                    e.size = e.size.max(s.size);
                    if s.kind != Kind::Func {
                        e.kind = s.kind;
                    }
                }
                _ => {
                    self.entries.push(Entry {
                        vaddr: s.vaddr,
                        size: s.size,
                        size_guessed: false,
                        kind: s.kind,
                        names: (i, i + 1),
                    });
                }
            }
        }
        self.guess_sizes(elf);
    }

    fn guess_sizes(&mut self, elf: &Elf) {
        let mut sections: Vec<_> = elf
            .sections
            .iter()
            .filter(|s| s.vaddr != 0 && s.size != 0)
            .map(Section::range)
            .collect();
        // A few, by a number: such sorts share their code.
        sections.sort_by_cached_key(|r| r.start);
        let text = elf.text();
        let mut next = u64::MAX;
        for e in self.entries.iter_mut().rev() {
            if e.size == 0 {
                let ends = [&sections, &text]
                    .into_iter()
                    .filter_map(|r| super::range_of(r, e.vaddr))
                    .map(|r| r.end);
                let end = ends.fold(next, u64::min);
                e.size = if end == u64::MAX { 0 } else { end - e.vaddr };
                e.size_guessed = true;
            }
            next = e.vaddr;
        }
    }

    fn symbol(&self, raw: &RawSymbol) -> Symbol<'_> {
        Symbol {
            name: name_of(&self.strings, raw),
            binding: raw.binding,
            visibility: raw.visibility,
        }
    }

    fn function(&self, e: &Entry) -> Function<'_> {
        let best = self.symbols.get(e.names.0 as usize).map(|raw| self.symbol(raw));
        let best = best.unwrap_or(Symbol {
            name: b"",
            binding: Binding::Local,
            visibility: Visibility::Default,
        });
        Function {
            vaddr: e.vaddr,
            size: e.size,
            size_guessed: e.size_guessed,
            kind: e.kind,
            binding: best.binding,
            visibility: best.visibility,
            name: best.name,
            table: self,
            names: e.names,
        }
    }

    /// Where the names come from.
    pub fn source(&self) -> &SymbolSource {
        &self.source
    }

    /// Symbols that lie in the code and are no functions, with their addresses, in no order: where
    /// compilers say that their code begins and ends, data in the code.
    pub fn labels(&self) -> impl Iterator<Item = (&[u8], u64)> {
        self.labels.iter().map(|raw| (name_of(&self.strings, raw), raw.vaddr))
    }

    /// How many functions there are.
    pub fn len(&self) -> usize {
        self.entries.len()
    }

    /// Tells whether there is none.
    pub fn is_empty(&self) -> bool {
        self.entries.is_empty()
    }

    /// All functions in order of address.
    pub fn iter(&self) -> impl ExactSizeIterator<Item = Function<'_>> {
        self.entries.iter().map(|e| self.function(e))
    }

    /// The `index`-th function in order of address.
    pub fn get(&self, index: usize) -> Option<Function<'_>> {
        self.entries.get(index).map(|e| self.function(e))
    }

    /// The function that starts at a link-time address.
    pub fn at(&self, vaddr: u64) -> Option<Function<'_>> {
        let at = self.entries.binary_search_by_key(&vaddr, |e| e.vaddr).ok()?;
        self.get(at)
    }

    /// The function that a link-time address is inside of.
    pub fn covering(&self, vaddr: u64) -> Option<Function<'_>> {
        let after = self.entries.partition_point(|e| e.vaddr <= vaddr);
        self.get(after.checked_sub(1)?).filter(|f| vaddr - f.vaddr < f.size.max(1))
    }
}

fn name_of<'a>(strings: &'a [u8], raw: &RawSymbol) -> &'a [u8] {
    let start = raw.name as usize;
    strings.get(start..start.saturating_add(raw.len as usize)).unwrap_or_default()
}
