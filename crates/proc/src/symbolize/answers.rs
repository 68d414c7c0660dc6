//! What is known of a set of addresses, packed: 100,000 answers take a few megabytes.

use std::collections::HashMap;
use std::hash::{BuildHasher, RandomState};

use super::order;
use super::outside::OutsideSymbol;

/// What is known of a sorted set of addresses of one file.
#[derive(Debug)]
pub struct Answers {
    pub(super) addrs: Vec<u64>,
    /// For each address as it was given its place among the sorted ones.
    places: Vec<u32>,
    /// For each address the number of its symbol.
    pub(super) nearest: Vec<u32>,
    /// The first stands for none.
    pub(super) symbols: Vec<SymbolRecord>,
    /// For each address its first frame and how many it has; empty if no lines were asked for.
    pub(super) spans: Vec<(u32, u32)>,
    pub(super) frames: Vec<FrameRecord>,
    pub(super) strings: Strings,
}

/// A file of a symbol that has no name: linkers put such a one before global symbols.
pub(super) const NAMELESS: u32 = u32::MAX;

/// A symbol of an answer; name 0: there is none.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct SymbolRecord {
    pub start: u64,
    /// Larger ones are cut.
    pub size: u32,
    pub name: u32,
    /// The first name of several.
    pub first: u32,
    pub file: u32,
    pub section: u16,
    /// How good it is; 0: no address has it.
    pub rank: u8,
}

/// A frame of an answer; name and file 0: not known.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct FrameRecord {
    pub name: u32,
    pub file: u32,
    pub line: u32,
    pub column: u32,
    pub discriminator: u32,
    /// The name is the one that linkers see.
    pub linkage: bool,
}

/// What is known of one address.
#[derive(Clone, Copy, Debug)]
pub struct Answer<'a> {
    all: &'a Answers,
    at: usize,
}

/// The symbol at or before an address.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct NearSymbol<'a> {
    /// Its number among all answers, from 1: equal numbers are equal symbols, whose names need to be
    /// demangled once.
    pub id: u32,
    /// Raw name; of several, the first that is visible to other files.
    pub name: &'a [u8],
    /// The first of its names in the table, which binutils prints.
    pub first_name: &'a [u8],
    /// Link-time address.
    pub start: u64,
    /// Size in bytes; 0 if the table has none.
    pub size: u64,
    /// Name of the source file, if the table says it; empty if it says that the file has none.
    pub file: Option<&'a [u8]>,
}

/// A function that an address is inside of, by debug information: the innermost of its frames is
/// the function whose source line it is, the others are those that it was inlined into.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SourceFrame<'a> {
    /// Raw name; `None` where the debug information has lines only.
    pub name: Option<&'a [u8]>,
    /// The name is that of a symbol, or of a language without mangling. Other names lack
    /// namespaces and types.
    pub linkage: bool,
    /// Path of the source file.
    pub file: Option<&'a [u8]>,
    /// Line, from 1; 0 if not known.
    pub line: u32,
    /// Column, from 1; 0 if not known.
    pub column: u32,
    /// Which of several blocks of the line it is, if there are several; else 0. Only of the
    /// innermost frame.
    pub discriminator: u32,
}

impl<'a> SourceFrame<'a> {
    /// That of code in no file, if its line is known.
    pub fn of_outside(symbol: &OutsideSymbol<'a>) -> Option<Self> {
        let (file, line) = symbol.line?;
        let (name, file) = (Some(symbol.name), Some(file));
        Some(Self { name, linkage: true, file, line, column: 0, discriminator: 0 })
    }
}

impl Answers {
    pub(super) fn new(addrs: &[u64]) -> Self {
        let (addrs, places) = order::unique(addrs);
        Self {
            places,
            nearest: vec![0; addrs.len()],
            symbols: vec![SymbolRecord::default()],
            spans: Vec::new(),
            frames: Vec::new(),
            strings: Strings::default(),
            addrs,
        }
    }

    /// What is known of an address; `None` if it was not asked for.
    pub fn get(&self, addr: u64) -> Option<Answer<'_>> {
        let at = self.addrs.binary_search(&addr).ok()?;
        Some(Answer { all: self, at })
    }

    /// What is known of the address with a number, in the order in which they were given. Searches
    /// for nothing.
    pub fn at(&self, number: usize) -> Option<Answer<'_>> {
        let at = *self.places.get(number)? as usize;
        Some(Answer { all: self, at })
    }

    /// The numbers of the given addresses, by their places, and where those of each place begin. They
    /// are not known by number any more.
    pub(super) fn numbers(&mut self) -> (Vec<u32>, Vec<u32>) {
        let places = std::mem::take(&mut self.places);
        let mut starts = vec![0_u32; self.addrs.len() + 1];
        for place in &places {
            if let Some(count) = starts.get_mut(*place as usize) {
                *count += 1;
            }
        }
        let mut sum = 0;
        for start in &mut starts {
            sum += *start;
            *start = sum;
        }
        // From their ends down, so that each start is where it belongs in the end.
        let mut numbers = vec![0; places.len()];
        for (number, place) in places.iter().enumerate().rev() {
            if let Some(start) = starts.get_mut(*place as usize) {
                *start -= 1;
                if let Some(slot) = numbers.get_mut(*start as usize) {
                    *slot = number as u32;
                }
            }
        }
        (numbers, starts)
    }

    /// How many symbols were found; their [numbers](NearSymbol::id) are below.
    pub fn symbols(&self) -> usize {
        self.symbols.len()
    }
}

impl<'a> Answer<'a> {
    /// The nearest symbol at or before the address, in its section. It need not reach to the
    /// address.
    pub fn nearest(&self) -> Option<NearSymbol<'a>> {
        let id = *self.all.nearest.get(self.at)?;
        let record = self.all.symbols.get(id as usize)?;
        let name = self.all.strings.get(record.name)?;
        let strings = &self.all.strings;
        let nameless = record.file == NAMELESS;
        let file = if nameless { Some(&[][..]) } else { strings.get(record.file) };
        let first_name = self.all.strings.get(record.first).unwrap_or(name);
        Some(NearSymbol {
            id,
            name,
            first_name,
            start: record.start,
            size: record.size.into(),
            file,
        })
    }

    /// The symbol that covers the address; one without a size reaches to the next.
    pub fn symbol(&self) -> Option<NearSymbol<'a>> {
        let addr = *self.all.addrs.get(self.at)?;
        self.nearest().filter(|s| s.size == 0 || addr - s.start < s.size)
    }

    /// The frames by debug information, the innermost first; empty if there is none, or was not
    /// asked for.
    pub fn frames(&self) -> impl ExactSizeIterator<Item = SourceFrame<'a>> + use<'a> {
        let all = self.all;
        let (first, count) = all.spans.get(self.at).copied().unwrap_or_default();
        let range = first as usize..(first as usize).saturating_add(count as usize);
        all.frames.get(range).unwrap_or_default().iter().map(|f| SourceFrame {
            name: all.strings.get(f.name),
            linkage: f.linkage,
            file: all.strings.get(f.file),
            line: f.line,
            column: f.column,
            discriminator: f.discriminator,
        })
    }
}

/// Most bytes of all strings; a damaged file may claim more.
const MAX_STRINGS: usize = 512 << 20;

impl Answers {
    /// The symbol of an address by its place.
    pub(super) fn symbol_at(&self, at: usize) -> SymbolRecord {
        let id = self.nearest.get(at).copied().unwrap_or(0);
        self.symbols.get(id as usize).copied().unwrap_or_default()
    }
}

/// Strings, each kept once, under numbers from 1.
#[derive(Debug, Default)]
pub(super) struct Strings {
    bytes: Vec<u8>,
    ends: Vec<u32>,
    /// By hash; of two strings with one hash, the second is not found again and kept twice.
    known: HashMap<u64, u32>,
    hasher: RandomState,
}

impl Strings {
    /// The number of a string; 0 for the empty one, and when there are too many.
    pub fn add(&mut self, string: &[u8]) -> u32 {
        if string.is_empty() {
            return 0;
        }
        let hash = self.hasher.hash_one(string);
        if let Some(&id) = self.known.get(&hash)
            && self.get(id) == Some(string)
        {
            return id;
        }
        let id = self.push(string);
        if id != 0 {
            self.known.insert(hash, id);
        }
        id
    }

    /// The number of a string that is known to be a new one, and will not be asked for again.
    pub fn push(&mut self, string: &[u8]) -> u32 {
        if string.is_empty() || self.bytes.len() + string.len() > MAX_STRINGS {
            return 0;
        }
        let Ok(end) = u32::try_from(self.bytes.len() + string.len()) else { return 0 };
        self.bytes.extend_from_slice(string);
        self.ends.push(end);
        u32::try_from(self.ends.len()).unwrap_or(0)
    }

    /// The string with a number; `None` for 0.
    pub fn get(&self, id: u32) -> Option<&[u8]> {
        let at = (id as usize).checked_sub(1)?;
        let end = *self.ends.get(at)? as usize;
        let start = at.checked_sub(1).and_then(|at| self.ends.get(at)).map_or(0, |e| *e as usize);
        self.bytes.get(start..end)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn equal_strings_have_one_number() {
        let mut strings = Strings::default();
        let ids: Vec<u32> =
            ["a", "", "bc", "a", "bc", "abc"].map(|s| strings.add(s.as_bytes())).into();
        assert_eq!(ids, [1, 0, 2, 1, 2, 3]);
        let texts: Vec<_> = (0..5).map(|id| strings.get(id)).collect();
        assert_eq!(texts, [None, Some(&b"a"[..]), Some(b"bc"), Some(b"abc"), None]);
    }
}
