//! Names of code that is in no file: what runtimes write into `/tmp/perf-PID.map` and, with source
//! lines, into jitdumps; and the kernel's `/proc/kallsyms`.

use std::ffi::OsStr;
use std::ops::Range;
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};

use crate::file;
use crate::maps::{Filter, Live, MapSource, Want, entry_of};
use crate::namespace;

/// Larger files are not read.
const MAX_TEXT: usize = 1 << 30;

/// Names with their addresses, from such files.
#[derive(Debug, Default)]
pub struct OutsideNames {
    pub(super) text: Vec<u8>,
    /// By address. Of several at one, as when a runtime throws code away and makes other, the last
    /// in the text comes last.
    pub(super) entries: Vec<Entry>,
    pub(super) lines: Vec<SourceLine>,
}

/// What is known of an address in code that is in no file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct OutsideSymbol<'a> {
    /// Its name, as the runtime writes it.
    pub name: &'a [u8],
    /// Where the code begins.
    pub start: u64,
    /// Source file and line of the address, if they are known.
    pub line: Option<(&'a [u8], u32)>,
}

/// Takes start, size and name out of a line.
type LineReader = fn(&[u8]) -> Option<(u64, u64, &[u8])>;

#[derive(Clone, Copy, Debug)]
pub(super) struct Entry {
    pub start: u64,
    /// 0: up to the next entry.
    pub size: u64,
    pub name: (u32, u32),
    /// The first of its lines, and how many there are.
    pub lines: (u32, u32),
}

/// From where on code is of a line.
#[derive(Clone, Copy, Debug)]
pub(super) struct SourceLine {
    /// The distance from the start of the code.
    pub at: u64,
    pub line: u32,
    pub file: (u32, u32),
}

impl OutsideNames {
    /// Reads what a process's runtime writes for `perf`: its map, where the process has its `/tmp`, and
    /// the jitdump that it has mapped, as perf wants it; empty if there is neither.
    pub fn of_process(pid: u32) -> Self {
        let own = namespace::own_id(pid).unwrap_or(pid);
        let root = PathBuf::from(format!("/proc/{}/root", entry_of(pid)));
        let path = root.join(format!("tmp/perf-{own}.map"));
        let names = file::read(path, MAX_TEXT).map_or_else(|_| Self::default(), Self::perf_map);
        let name = format!("/jit-{own}.dump");
        let mapped = Live::of(pid).and_then(|maps| maps.all(&Filter::TEXT, Want::NAME));
        let mapped = mapped.unwrap_or_default().into_iter().filter_map(|vma| vma.name);
        let dump = mapped.filter(|path| path.ends_with(name.as_bytes())).find_map(|path| {
            let path = Path::new(OsStr::from_bytes(path.strip_prefix(b"/")?));
            file::read(root.join(path), MAX_TEXT).ok()
        });
        dump.into_iter().fold(names, |names, dump| names.with_jitdump(&dump))
    }

    /// Reads the kernel's own list; empty where its addresses are hidden, which are zeros then.
    pub fn of_kernel() -> Self {
        file::read("/proc/kallsyms", MAX_TEXT).map_or_else(|_| Self::default(), Self::kallsyms)
    }

    /// Parses lines `START SIZE NAME`, both numbers in hex. Lines that are otherwise are left out.
    pub fn perf_map(text: Vec<u8>) -> Self {
        Self::parse(text, |line| {
            let (start, rest) = number(line)?;
            let (size, name) = number(rest)?;
            (size > 0).then_some((start, size, name))
        })
    }

    /// Parses lines `ADDRESS TYPE NAME [MODULE]` of functions.
    pub fn kallsyms(text: Vec<u8>) -> Self {
        Self::parse(text, |line| {
            let (start, rest) = number(line)?;
            let (kind, name) = rest.split_at_checked(2)?;
            let name = name.split(|b| *b == b'\t').next()?;
            (start != 0 && matches!(kind, b"t " | b"T " | b"w " | b"W "))
                .then_some((start, 0, name))
        })
    }

    fn parse(text: Vec<u8>, entry: LineReader) -> Self {
        let mut entries = Vec::new();
        let base = text.as_ptr() as usize;
        for line in text.split(|b| *b == b'\n') {
            let Some((start, size, name)) = entry(line) else { continue };
            let at = u32::try_from(name.as_ptr() as usize - base).ok();
            if let Some((at, len)) = at.zip(u32::try_from(name.len()).ok()) {
                entries.push(Entry { start, size, name: (at, len), lines: (0, 0) });
            }
        }
        entries.sort_by_cached_key(|e| e.start);
        Self { text, entries, lines: Vec::new() }
    }

    /// Tells whether there is no name.
    pub fn is_empty(&self) -> bool {
        self.entries.is_empty()
    }

    /// The name at an address, and the addresses that have it.
    pub fn covering(&self, addr: u64) -> Option<(&[u8], Range<u64>)> {
        let (entry, range) = self.entry(addr)?;
        Some((self.get(entry.name)?, range))
    }

    /// The name at an address, and its source line where that is known.
    pub fn at(&self, addr: u64) -> Option<OutsideSymbol<'_>> {
        let (entry, range) = self.entry(addr)?;
        let (first, count) = entry.lines;
        let lines = self.lines.get(first as usize..)?.get(..count as usize)?;
        let after = lines.partition_point(|line| line.at <= addr - range.start);
        let line = after.checked_sub(1).and_then(|at| lines.get(at));
        let line = line.and_then(|line| Some((self.get(line.file)?, line.line)));
        Some(OutsideSymbol { name: self.get(entry.name)?, start: range.start, line })
    }

    fn entry(&self, addr: u64) -> Option<(&Entry, Range<u64>)> {
        let after = self.entries.partition_point(|e| e.start <= addr);
        let entry = self.entries.get(after.checked_sub(1)?)?;
        let end = match entry.size {
            0 => self.entries.get(after).map_or(u64::MAX, |next| next.start),
            size => entry.start.saturating_add(size),
        };
        (addr < end).then_some((entry, entry.start..end))
    }

    fn get(&self, (at, len): (u32, u32)) -> Option<&[u8]> {
        self.text.get(at as usize..)?.get(..len as usize)
    }
}

/// Splits a number in hex and the space behind it off.
fn number(line: &[u8]) -> Option<(u64, &[u8])> {
    let end = line.iter().position(|b| *b == b' ')?;
    let (digits, rest) = line.split_at_checked(end)?;
    let digits = digits.strip_prefix(b"0x").unwrap_or(digits);
    let value = u64::from_str_radix(str::from_utf8(digits).ok()?, 16).ok()?;
    Some((value, rest.get(1..)?))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn name(names: &OutsideNames, addr: u64) -> Option<(String, u64)> {
        let (name, range) = names.covering(addr)?;
        Some((String::from_utf8_lossy(name).into_owned(), range.start))
    }

    #[test]
    fn a_map_of_perf_may_be_damaged_and_replace_code() {
        let text =
            b"7f00 20 a b c\nnonsense\n0x8000 10 later\n8000 10 last\n9000 0 empty\n-1 2 x\n";
        let names = OutsideNames::perf_map(text.to_vec());
        assert_eq!(name(&names, 0x7eff), None);
        assert_eq!(name(&names, 0x7f1f), Some(("a b c".into(), 0x7f00)));
        assert_eq!(name(&names, 0x7f20), None);
        assert_eq!(name(&names, 0x8001), Some(("last".into(), 0x8000)));
        assert_eq!(name(&names, 0x9000), None);
    }

    #[test]
    fn kernel_symbols_reach_to_the_next_and_hidden_ones_count_not() {
        let text = b"ffff1000 T one\nffff1100 d data\nffff2000 t two\t[mod]\n";
        let names = OutsideNames::kallsyms(text.to_vec());
        assert_eq!(name(&names, 0xffff_1fff), Some(("one".into(), 0xffff_1000)));
        assert_eq!(name(&names, 0xffff_2001), Some(("two".into(), 0xffff_2000)));
        let hidden = OutsideNames::kallsyms(b"0000000000000000 T one\n".to_vec());
        assert!(hidden.is_empty());
    }
}
