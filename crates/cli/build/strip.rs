//! Takes from a shared library what nobody needs at run time: a machine that builds the command may
//! have no `strip`, and rustc's own takes all symbols or none.
//!
//! Of an ELF file for 64-bit little-endian machines all stays up to the end of what is loaded, so
//! that program headers stay as they are. Behind it come a symbol table of the symbols that are
//! wanted, and the headers of the sections that are loaded.

use crate::Result;

const SYMTAB: u32 = 2;
const STRTAB: u32 = 3;
const NOBITS: u32 = 8;
/// `SHF_ALLOC`: it is loaded.
const ALLOC: u64 = 2;
const HEADER: usize = 64;
const SECTION: usize = 64;
const SYMBOL: usize = 24;
/// Section indexes from here on mean other things than sections (`SHN_LORESERVE`).
const RESERVED: u16 = 0xff00;

/// A section header.
#[derive(Clone, Copy, Default)]
struct Section {
    name: u32,
    kind: u32,
    flags: u64,
    addr: u64,
    offset: u64,
    size: u64,
    link: u32,
    info: u32,
    align: u64,
    entry: u64,
}

/// Returns the file with the symbols whose names are wanted.
pub fn strip(file: &[u8], wanted: impl Fn(&[u8]) -> bool) -> Result<Vec<u8>> {
    if file.get(..6) != Some(b"\x7fELF\x02\x01".as_slice()) {
        return Err("the agent is no ELF file of this machine".into());
    }
    let (table, count, names) = (u64_at(file, 40)?, u16_at(file, 60)?, u16_at(file, 62)?);
    let sections = (0..usize::from(count))
        .map(|i| Section::read(file, usize::try_from(table)? + i * SECTION))
        .collect::<Result<Vec<_>>>()?;
    let names = bytes_of(file, sections.get(usize::from(names)).ok_or("no section names")?)?;

    // What is loaded, by its new number; the first one is the empty one.
    let kept: Vec<usize> = (0..sections.len())
        .filter(|&i| i == 0 || sections.get(i).is_some_and(|s| s.flags & ALLOC != 0))
        .collect();
    let renumbered = |old: usize| kept.iter().position(|&i| i == old);
    let end = loaded_end(file, &sections)?;

    let mut out = file.get(..end).ok_or("a segment ends behind the file")?.to_vec();
    let (mut headers, mut strings) = (Vec::new(), vec![0]);
    for &i in &kept {
        let mut section = sections[i];
        section.link = renumbered(section.link as usize).unwrap_or(0) as u32;
        if section.flags & INFO_LINK != 0 {
            section.info = renumbered(section.info as usize).unwrap_or(0) as u32;
        }
        section.name = push(&mut strings, c_str(names, section.name)?);
        headers.push(section);
    }
    let number = |old: u16| match old {
        0 | RESERVED.. => Some(old),
        old => renumbered(usize::from(old)).and_then(|new| u16::try_from(new).ok()),
    };
    let (symbols, locals, texts) = symbols(file, &sections, &wanted, number)?;
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

impl Section {
    fn read(file: &[u8], at: usize) -> Result<Self> {
        Ok(Self {
            name: u32_at(file, at)?,
            kind: u32_at(file, at + 4)?,
            flags: u64_at(file, at + 8)?,
            addr: u64_at(file, at + 16)?,
            offset: u64_at(file, at + 24)?,
            size: u64_at(file, at + 32)?,
            link: u32_at(file, at + 40)?,
            info: u32_at(file, at + 44)?,
            align: u64_at(file, at + 48)?,
            entry: u64_at(file, at + 56)?,
        })
    }

    fn write(&self, out: &mut Vec<u8>) {
        out.extend_from_slice(&self.name.to_le_bytes());
        out.extend_from_slice(&self.kind.to_le_bytes());
        for word in [self.flags, self.addr, self.offset, self.size] {
            out.extend_from_slice(&word.to_le_bytes());
        }
        out.extend_from_slice(&self.link.to_le_bytes());
        out.extend_from_slice(&self.info.to_le_bytes());
        for word in [self.align, self.entry] {
            out.extend_from_slice(&word.to_le_bytes());
        }
    }
}

/// Appends a name with the zero that ends it; returns where it begins.
fn push(texts: &mut Vec<u8>, name: &[u8]) -> u32 {
    let at = texts.len() as u32;
    texts.extend_from_slice(name);
    texts.push(0);
    at
}

fn bytes_of<'f>(file: &'f [u8], section: &Section) -> Result<&'f [u8]> {
    let (from, len) = (usize::try_from(section.offset)?, usize::try_from(section.size)?);
    Ok(file.get(from..).and_then(|rest| rest.get(..len)).ok_or("a section ends behind the file")?)
}

fn c_str(texts: &[u8], at: u32) -> Result<&[u8]> {
    let rest = texts.get(at as usize..).ok_or("a name lies outside the names")?;
    Ok(rest.split(|b| *b == 0).next().unwrap_or_default())
}

fn put(out: &mut [u8], at: usize, bytes: &[u8]) {
    out[at..at + bytes.len()].copy_from_slice(bytes);
}

fn word<const N: usize>(bytes: &[u8], at: usize) -> Result<[u8; N]> {
    Ok(bytes.get(at..).and_then(<[u8]>::first_chunk).copied().ok_or("the file is cut off")?)
}

fn u16_at(bytes: &[u8], at: usize) -> Result<u16> {
    Ok(u16::from_le_bytes(word(bytes, at)?))
}

fn u32_at(bytes: &[u8], at: usize) -> Result<u32> {
    Ok(u32::from_le_bytes(word(bytes, at)?))
}

fn u64_at(bytes: &[u8], at: usize) -> Result<u64> {
    Ok(u64::from_le_bytes(word(bytes, at)?))
}
