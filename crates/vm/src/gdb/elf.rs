//! The object file around the tables: sections and symbols, nothing that could be loaded.

use super::unit::Unit;
use crate::bytes::{add, add_text};

const HEADER: usize = 64;
const SECTION_HEADER: u16 = 64;
const ET_EXEC: u16 = 2;
const EM_X86_64: u16 = 62;
const PROGBITS: u32 = 1;
const SYMTAB: u32 = 2;
const STRTAB: u32 = 3;
const NOBITS: u32 = 8;
const ALLOC_EXEC: u64 = 6;
const SYMBOL: u64 = 24;
/// A global function.
const GLOBAL_FUNC: u8 = 0x12;
/// The number of `.text`, which has the code's address and no bytes: they are where they are.
const TEXT: u16 = 1;
const NAMES: u32 = 3;

#[derive(Default)]
struct Section {
    name: &'static str,
    kind: u32,
    flags: u64,
    addr: u64,
    /// Of sections without bytes.
    size: u64,
    link: u32,
    info: u32,
    align: u64,
    entry: u64,
    bytes: Vec<u8>,
}

/// The sections but the last, which holds the names of all.
fn sections(
    base: u64,
    size: u64,
    (symbols, names): (Vec<u8>, Vec<u8>),
    tables: &[(&'static str, Vec<u8>)],
) -> Vec<Section> {
    let mut sections = vec![
        Section::default(),
        Section {
            name: ".text",
            kind: NOBITS,
            flags: ALLOC_EXEC,
            addr: base,
            size,
            align: 16,
            ..Section::default()
        },
        Section {
            name: ".symtab",
            kind: SYMTAB,
            link: NAMES,
            info: 1,
            align: 8,
            entry: SYMBOL,
            bytes: symbols,
            ..Section::default()
        },
        Section { name: ".strtab", kind: STRTAB, align: 1, bytes: names, ..Section::default() },
    ];
    for (name, bytes) in tables {
        sections.push(Section {
            name,
            kind: PROGBITS,
            align: 8,
            bytes: bytes.clone(),
            ..Section::default()
        });
    }
    sections
}

/// Puts an object file together for `size` bytes of code at `base`.
pub(super) fn image(
    base: u64,
    size: u64,
    units: &[Unit],
    tables: &[(&'static str, Vec<u8>)],
) -> Vec<u8> {
    let (mut symbols, mut names) = (vec![0u8; SYMBOL as usize], vec![0u8]);
    for unit in units {
        add(&mut symbols, &(names.len() as u32).to_le_bytes());
        add(&mut symbols, &[GLOBAL_FUNC, 0]);
        add(&mut symbols, &TEXT.to_le_bytes());
        add(&mut symbols, &(base + unit.start as u64).to_le_bytes());
        add(&mut symbols, &((unit.end - unit.start) as u64).to_le_bytes());
        add_text(&mut names, &unit.name);
    }
    let mut sections = sections(base, size, (symbols, names), tables);
    sections.push(Section { name: ".shstrtab", kind: STRTAB, align: 1, ..Section::default() });
    let mut section_names = Vec::new();
    let name_at: Vec<u32> = sections
        .iter()
        .map(|s| {
            let at = section_names.len() as u32;
            add_text(&mut section_names, s.name);
            at
        })
        .collect();
    if let Some(last) = sections.last_mut() {
        last.bytes = section_names;
    }

    let (mut body, mut headers) = (Vec::new(), Vec::new());
    for (s, name) in sections.iter().zip(name_at) {
        body.resize(body.len().next_multiple_of(8), 0);
        put(&mut headers, 4, &[name.into(), s.kind.into()]);
        let (offset, size) =
            if s.kind == 0 { (0, 0) } else { (HEADER + body.len(), s.bytes.len() as u64 + s.size) };
        put(&mut headers, 8, &[s.flags, s.addr, offset as u64, size]);
        put(&mut headers, 4, &[s.link.into(), s.info.into()]);
        put(&mut headers, 8, &[s.align, s.entry]);
        add(&mut body, &s.bytes);
    }
    body.resize(body.len().next_multiple_of(8), 0);

    let mut image = b"\x7fELF\x02\x01\x01\0\0\0\0\0\0\0\0\0".to_vec();
    put(&mut image, 2, &[ET_EXEC.into(), EM_X86_64.into()]);
    put(&mut image, 4, &[1]);
    put(&mut image, 8, &[0, 0, (HEADER + body.len()) as u64]);
    put(&mut image, 4, &[0]);
    let count = sections.len() as u64;
    put(&mut image, 2, &[HEADER as u64, 0, 0, SECTION_HEADER.into(), count, count - 1]);
    add(&mut image, &body);
    add(&mut image, &headers);
    image
}

/// Adds numbers of so many bytes each.
fn put(out: &mut Vec<u8>, bytes: usize, numbers: &[u64]) {
    for number in numbers {
        add(out, number.to_le_bytes().get(..bytes).unwrap_or_default());
    }
}
