//! Names of code that is in no file: what runtimes write into `/tmp/perf-PID.map`, and the kernel's
//! `/proc/kallsyms`.

use std::ops::Range;

use crate::file;

/// Larger files are not read.
const MAX_TEXT: usize = 1 << 30;

/// Names with their addresses, from a text file.
#[derive(Debug, Default)]
pub struct OutsideNames {
    text: Vec<u8>,
    /// By address. Of several at one, as when a runtime throws code away and makes other, the last
    /// in the text comes last.
    entries: Vec<Entry>,
}

/// Takes start, size and name out of a line.
type LineReader = fn(&[u8]) -> Option<(u64, u64, &[u8])>;

#[derive(Clone, Copy, Debug)]
struct Entry {
    start: u64,
    /// 0: up to the next entry.
    size: u64,
    name: (u32, u32),
}

impl OutsideNames {
    /// Reads the map that a process's runtime writes for `perf`, where the process has its `/tmp`;
    /// empty if there is none.
    pub fn of_process(pid: u32) -> Self {
        // The process knows itself by its id in its own PID namespace, the last one of the line.
        let status = file::read(format!("/proc/{pid}/status"), 1 << 16).unwrap_or_default();
        let own = status
            .split(|b| *b == b'\n')
            .find_map(|line| line.strip_prefix(b"NSpid:"))
            .and_then(|ids| ids.split(|b| b.is_ascii_whitespace()).next_back())
            .and_then(|id| str::from_utf8(id).ok()?.parse().ok())
            .unwrap_or(pid);
        let path = format!("/proc/{pid}/root/tmp/perf-{own}.map");
        file::read(path, MAX_TEXT).map_or_else(|_| Self::default(), Self::perf_map)
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
                entries.push(Entry { start, size, name: (at, len) });
            }
        }
        entries.sort_by_key(|e| e.start);
        Self { text, entries }
    }

    /// Tells whether there is no name.
    pub fn is_empty(&self) -> bool {
        self.entries.is_empty()
    }

    /// The name at an address, and the addresses that have it.
    pub fn covering(&self, addr: u64) -> Option<(&[u8], Range<u64>)> {
        let after = self.entries.partition_point(|e| e.start <= addr);
        let entry = self.entries.get(after.checked_sub(1)?)?;
        let end = match entry.size {
            0 => self.entries.get(after).map_or(u64::MAX, |next| next.start),
            size => entry.start.saturating_add(size),
        };
        let (at, len) = entry.name;
        let name = self.text.get(at as usize..)?.get(..len as usize)?;
        (addr < end).then_some((name, entry.start..end))
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
