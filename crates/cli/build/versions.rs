//! Has a library or program need no version of glibc's symbols that is newer than it may be.
//!
//! The linker takes the versions of the machine that it runs on: `dlsym@GLIBC_2.34`, where older ones
//! have `dlsym@GLIBC_2.2.5` in another library. Here such a symbol loses its version, and the dynamic
//! linker takes the one that is there: without a version it goes by the oldest, or the default. Its
//! entry in the list of needed versions becomes the one that all have, as the list keeps its length.
//!
//! A symbol that old versions do not have at all must be weak, or be defined
//! (`skep_sys::define_for_old_glibc`).

use super::Result;
use super::elf::{Elf, bytes_of, c_str, put, u16_at, u32_at};

/// The oldest glibc that may come: that of Debian 10, RHEL 8 and Ubuntu 18.10.
pub const OLDEST: (u32, u32) = (2, 28);

const VERSIONS: u32 = 0x6fff_ffff;
const NEEDED: u32 = 0x6fff_fffe;
/// What all machines of this kind have.
const FIRST: &[u8] = b"GLIBC_2.2.5";
/// Bytes of an `Elf64_Sym`.
const SYMBOL: usize = 24;
/// `VER_NDX_GLOBAL`: no version.
const NONE: u16 = 1;

/// Takes the versions off; returns the names of the symbols that lost theirs.
pub fn lower(file: &mut [u8]) -> Result<Vec<String>> {
    let elf = Elf::read(file)?;
    let find = |kind| elf.sections.iter().find(|s| s.kind == kind).copied();
    let (Some(versions), Some(needed)) = (find(VERSIONS), find(NEEDED)) else {
        return Ok(Vec::new());
    };
    let linked = |section: u32| elf.sections.get(section as usize).ok_or("a section is missing");
    let (symbols, strings) = (linked(versions.link)?, linked(needed.link)?);
    let strings = bytes_of(file, strings)?.to_vec();
    let entries = entries(bytes_of(file, &needed)?)?;

    let mut changes = Vec::new();
    let (mut newer, mut first) = (Vec::new(), None);
    for entry in &entries {
        let name = c_str(&strings, entry.name)?;
        match version(name) {
            Some(version) if version > OLDEST => newer.push(entry),
            _ if name == FIRST => first = Some((entry.hash, entry.name)),
            _ => {}
        }
    }
    if newer.is_empty() {
        return Ok(Vec::new());
    }
    let (hash, name) = first.ok_or("nothing of `GLIBC_2.2.5` is needed")?;
    let start = usize::try_from(needed.offset)?;
    for entry in &newer {
        changes.push((start + entry.at, hash.to_le_bytes().to_vec()));
        changes.push((start + entry.at + 8, name.to_le_bytes().to_vec()));
    }
    let mut names = Vec::new();
    let (table, symbols) = (bytes_of(file, &versions)?, bytes_of(file, symbols)?);
    for (i, symbol) in symbols.chunks_exact(SYMBOL).enumerate() {
        let version = u16_at(table, 2 * i)?;
        if newer.iter().any(|entry| entry.index == version) {
            names.push(String::from_utf8_lossy(c_str(&strings, u32_at(symbol, 0)?)?).into_owned());
            changes.push((usize::try_from(versions.offset)? + 2 * i, NONE.to_le_bytes().to_vec()));
        }
    }
    changes.into_iter().for_each(|(at, bytes)| put(file, at, &bytes));
    names.sort();
    Ok(names)
}

/// A version that is needed (`Elf64_Vernaux`).
struct Entry {
    at: usize,
    hash: u32,
    /// What symbols name it by.
    index: u16,
    name: u32,
}

/// All of them, library by library (`Elf64_Verneed`).
fn entries(needed: &[u8]) -> Result<Vec<Entry>> {
    let mut all = Vec::new();
    let mut library = 0;
    loop {
        let mut at = library + u32_at(needed, library + 8)? as usize;
        for _ in 0..u16_at(needed, library + 2)? {
            let (hash, index) = (u32_at(needed, at)?, u16_at(needed, at + 6)?);
            all.push(Entry { at, hash, index, name: u32_at(needed, at + 8)? });
            at += u32_at(needed, at + 12)? as usize;
        }
        match u32_at(needed, library + 12)? {
            0 => return Ok(all),
            next => library += next as usize,
        }
    }
}

/// The two numbers of `GLIBC_2.28`.
fn version(name: &[u8]) -> Option<(u32, u32)> {
    let numbers = std::str::from_utf8(name).ok()?.strip_prefix("GLIBC_")?;
    let (major, minor) = numbers.split_once('.')?;
    Some((major.parse().ok()?, minor.split('.').next()?.parse().ok()?))
}
