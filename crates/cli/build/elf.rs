//! ELF files for 64-bit little-endian machines: their headers, and words in them.

use super::Result;

/// Bytes of the file header.
pub const HEADER: usize = 64;
/// Bytes of a section header, and where the size is in it.
pub const SECTION: usize = 64;
pub const SECTION_SIZE: usize = 32;

/// What the headers of a file say.
pub struct Elf {
    /// All sections, by their numbers.
    pub sections: Vec<Section>,
    /// Where the first section header is; the others follow.
    pub headers: usize,
    /// The number of the one that has their names.
    names: usize,
}

impl Elf {
    pub fn read(file: &[u8]) -> Result<Self> {
        if file.get(..6) != Some(b"\x7fELF\x02\x01".as_slice()) {
            return Err("the agent is no ELF file of this machine".into());
        }
        let headers = usize::try_from(u64_at(file, 40)?)?;
        let (count, names) = (u16_at(file, 60)?, u16_at(file, 62)?);
        let sections = (0..usize::from(count))
            .map(|i| Section::read(file, headers.saturating_add(i * SECTION)))
            .collect::<Result<Vec<_>>>()?;
        Ok(Self { sections, headers, names: names.into() })
    }

    /// The name of a section of this file.
    pub fn name<'f>(&self, file: &'f [u8], section: &Section) -> Result<&'f [u8]> {
        let names = self.sections.get(self.names).ok_or("no section names")?;
        c_str(bytes_of(file, names)?, section.name)
    }
}

/// A section header.
#[derive(Clone, Copy, Default)]
pub struct Section {
    pub name: u32,
    pub kind: u32,
    pub flags: u64,
    pub addr: u64,
    pub offset: u64,
    pub size: u64,
    pub link: u32,
    pub info: u32,
    pub align: u64,
    pub entry: u64,
}

impl Section {
    pub fn read(file: &[u8], at: usize) -> Result<Self> {
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

    pub fn write(&self, out: &mut Vec<u8>) {
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

pub fn bytes_of<'f>(file: &'f [u8], section: &Section) -> Result<&'f [u8]> {
    let (from, len) = (usize::try_from(section.offset)?, usize::try_from(section.size)?);
    Ok(file.get(from..).and_then(|rest| rest.get(..len)).ok_or("a section ends behind the file")?)
}

pub fn c_str(texts: &[u8], at: u32) -> Result<&[u8]> {
    let rest = texts.get(at as usize..).ok_or("a name lies outside the names")?;
    Ok(rest.split(|b| *b == 0).next().unwrap_or_default())
}

pub fn put(out: &mut [u8], at: usize, bytes: &[u8]) {
    out[at..at + bytes.len()].copy_from_slice(bytes);
}

pub fn word<const N: usize>(bytes: &[u8], at: usize) -> Result<[u8; N]> {
    Ok(bytes.get(at..).and_then(<[u8]>::first_chunk).copied().ok_or("the file is cut off")?)
}

pub fn u16_at(bytes: &[u8], at: usize) -> Result<u16> {
    Ok(u16::from_le_bytes(word(bytes, at)?))
}

pub fn u32_at(bytes: &[u8], at: usize) -> Result<u32> {
    Ok(u32::from_le_bytes(word(bytes, at)?))
}

pub fn u64_at(bytes: &[u8], at: usize) -> Result<u64> {
    Ok(u64::from_le_bytes(word(bytes, at)?))
}
