//! Takes from a shared library what nobody needs at run time: a machine that builds the command may
//! have no `strip`, and rustc's own takes all symbols or none.
//!
//! Of an ELF file for 64-bit little-endian machines all stays up to the end of what is loaded, so
//! that program headers stay as they are. Behind it come a symbol table of the symbols that are
//! wanted, and the headers of the sections that are loaded.

use crate::Result;
use crate::elf::{Elf, HEADER, Section, bytes_of, c_str, put, u16_at, u32_at, u64_at};

const SYMTAB: u32 = 2;
const STRTAB: u32 = 3;
const NOBITS: u32 = 8;
/// `SHF_ALLOC`: it is loaded.
const ALLOC: u64 = 2;
const SYMBOL: usize = 24;
/// Section indexes from here on mean other things than sections (`SHN_LORESERVE`).
const RESERVED: u16 = 0xff00;

/// Returns the file with the symbols whose names are wanted.
pub fn strip(file: &[u8], wanted: impl Fn(&[u8]) -> bool) -> Result<Vec<u8>> {
    let elf = Elf::read(file)?;
    let sections = &elf.sections;

    // What is loaded, by its new number; the first one is the empty one.
    let kept: Vec<usize> = (0..sections.len())
        .filter(|&i| i == 0 || sections.get(i).is_some_and(|s| s.flags & ALLOC != 0))
        .collect();
    let renumbered = |old: usize| kept.iter().position(|&i| i == old);
    let end = loaded_end(file, sections)?;

    let mut out = file.get(..end).ok_or("a segment ends behind the file")?.to_vec();
    let (mut headers, mut strings) = (Vec::new(), vec![0]);
    for &i in &kept {
        let mut section = sections[i];
        section.link = renumbered(section.link as usize).unwrap_or(0) as u32;
        if section.flags & INFO_LINK != 0 {
            section.info = renumbered(section.info as usize).unwrap_or(0) as u32;
        }
        section.name = push(&mut strings, elf.name(file, &sections[i])?);
        headers.push(section);
    }
    let number = |old: u16| match old {
        0 | RESERVED.. => Some(old),
        old => renumbered(usize::from(old)).and_then(|new| u16::try_from(new).ok()),
    };
    let (symbols, locals, texts) = symbols(file, sections, &wanted, number)?;
    let mut add = |name: &[u8], kind, bytes: &[u8], section: Section| {
        out.resize(out.len().next_multiple_of(8), 0);
        let name = push(&mut strings, name);
        let (offset, size) = (out.len() as u64, bytes.len() as u64);
        out.extend_from_slice(bytes);
        headers.push(Section { name, kind, offset, size, ..section });
    };
    let strtab = u32::try_from(kept.len() + 1)?;
    let table = Section {
        link: strtab,
        info: locals,
        align: 8,
        entry: SYMBOL as u64,
        ..Section::default()
    };
    add(b".symtab", SYMTAB, &symbols, table);
    let text = Section { align: 1, ..Section::default() };
    add(b".strtab", STRTAB, &texts, text);
    // Its own name is the last one in it.
    let name = push(&mut strings, b".shstrtab");
    let (offset, size) = (out.len() as u64, strings.len() as u64);
    out.extend_from_slice(&strings);
    headers.push(Section { name, kind: STRTAB, offset, size, ..text });

    out.resize(out.len().next_multiple_of(8), 0);
    let table = out.len() as u64;
    headers.iter().for_each(|section| section.write(&mut out));
    let count = u16::try_from(headers.len())?;
    put(&mut out, 40, &table.to_le_bytes());
    put(&mut out, 60, &count.to_le_bytes());
    put(&mut out, 62, &(count - 1).to_le_bytes());
    Ok(out)
}

/// `SHF_INFO_LINK`: the info is the number of a section.
const INFO_LINK: u64 = 0x40;

/// Where the last byte that is loaded ends in the file.
fn loaded_end(file: &[u8], sections: &[Section]) -> Result<usize> {
    const LOAD: u32 = 1;
    const PROGRAM: u64 = 56;
    let (table, count) = (u64_at(file, 32)?, u16_at(file, 56)?);
    let mut end = (HEADER as u64).max(table + u64::from(count) * PROGRAM);
    for i in 0..u64::from(count) {
        let at = usize::try_from(table + i * PROGRAM)?;
        if u32_at(file, at)? == LOAD {
            end = end.max(u64_at(file, at + 8)? + u64_at(file, at + 32)?);
        }
    }
    let bytes = sections.iter().filter(|s| s.flags & ALLOC != 0 && s.kind != NOBITS);
    Ok(usize::try_from(bytes.fold(end, |end, s| end.max(s.offset + s.size)))?)
}

/// The wanted symbols as a table, how many of them are local ones, and their names.
fn symbols(
    file: &[u8],
    sections: &[Section],
    wanted: &impl Fn(&[u8]) -> bool,
    number: impl Fn(u16) -> Option<u16>,
) -> Result<(Vec<u8>, u32, Vec<u8>)> {
    const LOCAL: u8 = 0;
    let (mut local, mut global, mut texts) = (vec![0; SYMBOL], Vec::new(), vec![0]);
    if let Some(table) = sections.iter().find(|s| s.kind == SYMTAB) {
        let names = bytes_of(file, sections.get(table.link as usize).ok_or("no symbol names")?)?;
        for symbol in bytes_of(file, table)?.chunks_exact(SYMBOL) {
            let name = c_str(names, u32_at(symbol, 0)?)?;
            let Some(section) = number(u16_at(symbol, 6)?).filter(|_| wanted(name)) else {
                continue;
            };
            let to = if symbol[4] >> 4 == LOCAL { &mut local } else { &mut global };
            to.extend_from_slice(&push(&mut texts, name).to_le_bytes());
            to.extend_from_slice(&symbol[4..6]);
            to.extend_from_slice(&section.to_le_bytes());
            to.extend_from_slice(&symbol[8..]);
        }
    }
    let locals = u32::try_from(local.len() / SYMBOL)?;
    local.append(&mut global);
    Ok((local, locals, texts))
}

/// Appends a name with the zero that ends it; returns where it begins.
fn push(texts: &mut Vec<u8>, name: &[u8]) -> u32 {
    let at = texts.len() as u32;
    texts.extend_from_slice(name);
    texts.push(0);
    at
}
