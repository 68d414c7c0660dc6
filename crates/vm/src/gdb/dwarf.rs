//! Functions and source lines as DWARF 4: one unit with its functions, and one line table.

use super::unit::Unit;
use crate::bytes::{add, add_text};
use crate::perf::{Line, Listing};

const VERSION: u16 = 4;
const UNIT: u8 = 1;
const FUNCTION: u8 = 2;
const C99: u16 = 0x0c;
const CALL_FRAME_CFA: u8 = 0x9c;

/// What the two kinds of entries consist of: attribute and form, in pairs.
pub(super) const ABBREVIATIONS: &[u8] = &[
    // DW_TAG_compile_unit with children: producer, language, name, stmt_list, low_pc, high_pc.
    UNIT, 0x11, 1, 0x25, 0x08, 0x13, 0x05, 0x03, 0x08, 0x10, 0x17, 0x11, 0x01, 0x12, 0x07, 0, 0,
    // DW_TAG_subprogram without: name, external, low_pc, high_pc, frame_base.
    FUNCTION, 0x2e, 0, 0x03, 0x08, 0x3f, 0x19, 0x11, 0x01, 0x12, 0x07, 0x40, 0x18, 0, 0, //
    0,
];

/// Makes `.debug_info`.
pub(super) fn info(listing: &Listing<'_>, units: &[Unit]) -> Vec<u8> {
    let code = listing.code.machine_code();
    let base = code.as_ptr() as u64;
    let mut out = VERSION.to_le_bytes().to_vec();
    add(&mut out, &0u32.to_le_bytes());
    out.push(8);
    out.push(UNIT);
    add_text(&mut out, "skep");
    add(&mut out, &C99.to_le_bytes());
    add_text(&mut out, listing.lines.first().map_or(listing.name, |l| l.file));
    add(&mut out, &0u32.to_le_bytes());
    add(&mut out, &base.to_le_bytes());
    add(&mut out, &(code.len() as u64).to_le_bytes());
    for unit in units {
        out.push(FUNCTION);
        add_text(&mut out, &unit.name);
        add(&mut out, &(base + unit.start as u64).to_le_bytes());
        add(&mut out, &((unit.end - unit.start) as u64).to_le_bytes());
        add(&mut out, &[1, CALL_FRAME_CFA]);
    }
    out.push(0);
    with_length(&out)
}

/// Makes `.debug_line`.
pub(super) fn lines(listing: &Listing<'_>, units: &[Unit]) -> Vec<u8> {
    let mut files: Vec<&str> = Vec::new();
    for line in listing.lines {
        if !files.contains(&line.file) {
            files.push(line.file);
        }
    }
    // Shortest instruction, operations in one, statements, base and range of special opcodes (none
    // is used), opcodes and their arguments.
    let mut header = vec![1, 1, 1, 0xfb, 14, 13, 0, 1, 1, 1, 1, 0, 0, 0, 1, 0, 0, 1];
    // No folders: names are as the object has them.
    header.push(0);
    for file in &files {
        add_text(&mut header, file);
        add(&mut header, &[0, 0, 0]);
    }
    header.push(0);

    let mut out = VERSION.to_le_bytes().to_vec();
    add(&mut out, &(header.len() as u32).to_le_bytes());
    add(&mut out, &header);
    let base = listing.code.machine_code().as_ptr() as u64;
    for unit in units.iter().filter(|u| u.has_source) {
        let rows = rows(listing, unit);
        if rows.is_empty() {
            continue;
        }
        add(&mut out, &[0, 9, 2]);
        add(&mut out, &(base + unit.start as u64).to_le_bytes());
        let (mut at, mut number, mut file) = (unit.start, 1i64, 1);
        for (offset, line) in rows {
            advance(&mut out, offset - at);
            at = offset;
            let this = files.iter().position(|f| *f == line.file).unwrap_or(0) as u64 + 1;
            if this != file {
                out.push(4);
                uleb(&mut out, this);
                file = this;
            }
            out.push(3);
            sleb(&mut out, i64::from(line.line) - number);
            number = i64::from(line.line);
            out.push(1);
        }
        advance(&mut out, unit.end - at);
        add(&mut out, &[0, 1, 1]);
    }
    with_length(&out)
}

/// Returns the lines of a function by where their code starts; its first line begins with the
/// function.
fn rows<'a>(listing: &'a Listing<'_>, unit: &Unit) -> Vec<(usize, Line<'a>)> {
    let offsets = listing.code.offsets();
    let mut rows: Vec<(usize, Line<'_>)> = listing
        .lines
        .iter()
        .filter_map(|l| Some((*offsets.get(l.insn)? as usize, *l)))
        .filter(|(at, _)| (unit.start..unit.end).contains(at))
        .collect();
    rows.sort_by_cached_key(|(at, _)| *at as u64);
    if let Some((at, first)) = rows.first().copied()
        && at != unit.start
    {
        rows.insert(0, (unit.start, first));
    }
    // Where several lines start at one place, those before the last have no code.
    rows.reverse();
    rows.dedup_by_key(|(at, _)| *at);
    rows.reverse();
    rows
}

fn advance(out: &mut Vec<u8>, by: usize) {
    out.push(2);
    uleb(out, by as u64);
}

/// Puts the length before a table.
pub(super) fn with_length(table: &[u8]) -> Vec<u8> {
    let mut out = (table.len() as u32).to_le_bytes().to_vec();
    add(&mut out, table);
    out
}

pub(super) fn uleb(out: &mut Vec<u8>, mut v: u64) {
    while v >= 0x80 {
        out.push(v as u8 | 0x80);
        v >>= 7;
    }
    out.push(v as u8);
}

fn sleb(out: &mut Vec<u8>, mut v: i64) {
    while !(-64..64).contains(&v) {
        out.push(v as u8 | 0x80);
        v >>= 7;
    }
    out.push(v as u8 & 0x7f);
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_are_written_as_the_standard_shows() {
        let u = |v| {
            let mut out = Vec::new();
            uleb(&mut out, v);
            out
        };
        let s = |v| {
            let mut out = Vec::new();
            sleb(&mut out, v);
            out
        };
        assert_eq!(
            (u(2), u(127), u(128), u(12857)),
            (vec![2], vec![127], vec![0x80, 1], vec![0xb9, 0x64])
        );
        assert_eq!(
            (s(2), s(-2), s(127), s(-127)),
            (vec![2], vec![0x7e], vec![0xff, 0], vec![0x81, 0x7f])
        );
        assert_eq!((s(128), s(-128), s(-129)), (vec![0x80, 1], vec![0x80, 0x7f], vec![0xff, 0x7e]));
    }
}
