//! Code that runtimes made and describe in a jitdump, with its source lines: what `perf inject --jit`
//! reads (tools/perf/Documentation/jitdump-specification.txt).
//!
//! A record of lines stands before that of the code they are of. Code may be moved, and other code may
//! come to where it was; then what was written last counts.

use std::collections::HashMap;

use super::outside::{Entry, OutsideNames, SourceLine};
use crate::elf::{u32_at, u64_at};

const MAGIC: &[u8; 4] = b"DTiJ";
const CODE_LOAD: u32 = 0;
const CODE_MOVE: u32 = 1;
const DEBUG_INFO: u32 = 2;
const PREFIX: usize = 16;
/// Before the name of code: process, thread, two addresses, size and number.
const LOAD: usize = 40;
/// Before the name of a line's file: address, line and discriminator.
const LINE: usize = 16;
/// In place of a file's name: the one before it again.
const AGAIN: &[u8] = b"\xff";

impl OutsideNames {
    /// Adds what a jitdump of this machine's byte order says. One that was cut off, such as that of a
    /// process at work, counts as far as it goes; nothing else is read.
    #[must_use]
    pub fn with_jitdump(mut self, dump: &[u8]) -> Self {
        let (mut lines, mut numbers) = (HashMap::new(), HashMap::new());
        let mut rest = match dump.get(8..12) {
            Some(size) if dump.starts_with(MAGIC) => {
                dump.get(u32_at(size, 0) as usize..).unwrap_or_default()
            }
            _ => &[],
        };
        while rest.len() >= PREFIX {
            let (kind, len) = (u32_at(rest, 0), u32_at(rest, 4) as usize);
            let Some((record, more)) = rest.split_at_checked(len) else { break };
            let Some(body) = record.get(PREFIX..) else { break };
            rest = more;
            match kind {
                DEBUG_INFO if body.len() >= 16 => {
                    lines.insert(u64_at(body, 0), self.lines_of(body));
                }
                CODE_LOAD if body.len() > LOAD => {
                    let [start, size, number] = [16, 24, 32].map(|at| u64_at(body, at));
                    let name = body.get(LOAD..).unwrap_or_default();
                    let name = name.split(|b| *b == 0).next().unwrap_or_default();
                    let (name, lines) = (self.text(name), lines.remove(&start).unwrap_or((0, 0)));
                    numbers.insert(number, self.entries.len());
                    self.entries.push(Entry { start, size, name, lines });
                }
                CODE_MOVE if body.len() >= 48 => {
                    let old = numbers.get(&u64_at(body, 40)).and_then(|at| self.entries.get(*at));
                    if let Some(old) = old.copied() {
                        let (start, size) = (u64_at(body, 24), u64_at(body, 32));
                        self.entries.push(Entry { start, size, ..old });
                    }
                }
                _ => {}
            }
        }
        self.entries.retain(|entry| entry.start.checked_add(entry.size).is_some());
        self.entries.sort_by_cached_key(|entry| entry.start);
        self
    }

    /// Keeps the lines of a record, at their distances from its code, and returns which they are.
    fn lines_of(&mut self, body: &[u8]) -> (u32, u32) {
        let (code, first) = (u64_at(body, 0), self.lines.len());
        let mut rest = body.get(16..).unwrap_or_default();
        let mut file = (0, 0);
        while rest.len() > LINE {
            let (at, line) = (u64_at(rest, 0).wrapping_sub(code), u32_at(rest, 8));
            let name = rest.get(LINE..).unwrap_or_default();
            let Some(end) = name.iter().position(|b| *b == 0) else { break };
            let (name, more) = name.split_at(end);
            if name != AGAIN {
                file = self.text(name);
            }
            self.lines.push(SourceLine { at, line, file });
            rest = more.get(1..).unwrap_or_default();
        }
        if let Some(new) = self.lines.get_mut(first..) {
            new.sort_by_cached_key(|line| line.at);
        }
        let count = u32::try_from(self.lines.len() - first).unwrap_or(0);
        u32::try_from(first).map_or((0, 0), |first| (first, count))
    }

    /// Keeps a text, and returns where.
    fn text(&mut self, text: &[u8]) -> (u32, u32) {
        // Neighbors are often in the same file.
        if !text.is_empty() && self.text.ends_with(text) {
            let at = self.text.len() - text.len();
            return u32::try_from(at).map_or((0, 0), |at| (at, text.len() as u32));
        }
        let at = u32::try_from(self.text.len());
        let len = u32::try_from(text.len());
        let (Ok(at), Ok(len)) = (at, len) else { return (0, 0) };
        self.text.extend_from_slice(text);
        (at, len)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn record(kind: u32, body: &[u8]) -> Vec<u8> {
        let mut out = [kind, (PREFIX + body.len()) as u32].map(u32::to_le_bytes).concat();
        out.extend([0; 8]);
        out.extend(body);
        out
    }

    fn load(start: u64, code: &[u8], number: u64, name: &str) -> Vec<u8> {
        let mut body = vec![0; 8];
        for word in [start, start, code.len() as u64, number] {
            body.extend(word.to_le_bytes());
        }
        body.extend(name.bytes().chain([0]));
        body.extend(code);
        record(CODE_LOAD, &body)
    }

    fn lines(code: u64, lines: &[(u64, u32, &[u8])]) -> Vec<u8> {
        let mut body = [code, lines.len() as u64].map(u64::to_le_bytes).concat();
        for (at, line, file) in lines {
            body.extend(at.to_le_bytes());
            body.extend(line.to_le_bytes());
            body.extend([0; 4]);
            body.extend(file.iter().chain(&[0]));
        }
        record(DEBUG_INFO, &body)
    }

    fn moved(to: u64, size: u64, number: u64) -> Vec<u8> {
        let mut body = vec![0; 24];
        for word in [to, size, number] {
            body.extend(word.to_le_bytes());
        }
        record(CODE_MOVE, &body)
    }

    fn dump(records: &[Vec<u8>]) -> Vec<u8> {
        let mut out = MAGIC.to_vec();
        out.extend([1, 40, 62, 0, 7].map(u32::to_le_bytes).concat());
        out.extend([0; 16]);
        out.extend(records.concat());
        out
    }

    fn said(names: &OutsideNames, addr: u64) -> String {
        let Some(found) = names.at(addr) else { return "nothing".to_owned() };
        let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
        let place = found.line.map(|(file, line)| format!(" at {}:{line}", text(file)));
        format!("{}+{}{}", text(found.name), addr - found.start, place.unwrap_or_default())
    }

    #[test]
    fn code_has_its_name_and_lines_wherever_it_is_moved() {
        let dump = dump(&[
            record(4, &[0; 30]),
            lines(0x1000, &[(0x1008, 8, b"a.c"), (0x1000, 7, AGAIN), (0x100c, 9, b"b.h")]),
            load(0x1000, &[0x90; 16], 0, "one"),
            load(0x2000, &[0x90; 16], 1, "two"),
            moved(0x3000, 16, 0),
            load(0x1000, &[0x90; 32], 2, "three"),
            moved(0x4000, 16, 99),
        ]);
        let names =
            OutsideNames::perf_map(b"1000 10 old\n5000 10 map".to_vec()).with_jitdump(&dump);
        let all: Vec<String> = [0xfff, 0x1000, 0x1010, 0x200f, 0x2010, 0x3000, 0x3008, 0x300b]
            .into_iter()
            .chain([0x300c, 0x300f, 0x3010, 0x4000, 0x5001])
            .map(|addr| said(&names, addr))
            .collect();
        assert_eq!(
            all,
            [
                "nothing",
                "three+0",
                "three+16",
                "two+15",
                "nothing",
                "one+0 at a.c:7",
                "one+8 at a.c:8",
                "one+11 at a.c:8",
                "one+12 at b.h:9",
                "one+15 at b.h:9",
                "nothing",
                "nothing",
                "map+1",
            ]
        );
    }

    #[test]
    fn what_was_cut_off_or_is_no_jitdump_counts_as_far_as_it_goes() {
        let whole = dump(&[
            lines(0x1000, &[(0x1000, 7, b"a.c"), (0x1004, 8, AGAIN)]),
            load(0x1000, &[0x90; 16], 0, "one"),
            load(u64::MAX - 3, &[0x90; 16], 1, "beyond"),
        ]);
        for len in 0..=whole.len() {
            let names = OutsideNames::default().with_jitdump(&whole[..len]);
            let found = said(&names, 0x1005);
            assert!(found == "nothing" || found == "one+5 at a.c:8", "{len}: {found}");
        }
        let mut damaged = whole.clone();
        for at in 0..whole.len() {
            for byte in [0, 1, 0x7f, 0xff] {
                damaged[at] = byte;
                let names = OutsideNames::default().with_jitdump(&damaged);
                said(&names, 0x1005);
            }
            damaged[at] = whole[at];
        }
    }
}
