//! Takes out of the object files of the agent and of the command what only the texts of panics need.
//!
//! Nobody reads a panic of the agent: its constructor sets a hook that prints nothing, and goes on
//! behind it. But every `unwrap` keeps the `Debug` of its error, every `dyn Error` that of all
//! errors, and the standard library, which comes compiled, can print a backtrace, with readers of
//! ELF, DWARF and deflate. Together that would be a seventh of the agent. So these functions are
//! cut down to `return Ok(())`, without references, and the linker leaves out what nobody refers
//! to any more:
//!
//! * `DisplayBacktrace::fmt`, on which all of backtraces hangs;
//! * each `Debug::fmt` that stands in tables only. One that code names, for a `{:?}`, stays whole
//!   with all that it refers to, as somebody may read what it prints; unless the code is one of
//!   [`FOR_PANICS`].
//!
//! And each place that can panic has a `Location`: a file, a line and a column. In the agent all
//! references go to one of them; the command keeps them, as somebody reads where it panicked. Its
//! backtraces go: it has neither the unwind tables nor the symbols that they need.
//!
//! What is not known here stays as it is: names of another mangling, another processor, bitcode in
//! the place of ELF. The agent is larger then, and does the same.

use crate::Result;
use crate::elf::{Elf, SECTION, SECTION_SIZE, Section, bytes_of, put, u16_at, u64_at};

/// Parts of the names of code that prints with `{:?}` only before it panics.
const FOR_PANICS: &[&str] = &[
    // A slice of a string that ends inside of a character.
    "slice_error_fail",
    "backtrace_rs",
    "rustc_demangle",
    "cpp_demangle",
    // `rustc_demangle` too: the older mangling does not say whose closure is called.
    "from_fn..FromFn$LT$F$GT$",
];

const SYMTAB: u32 = 2;
const RELA: u32 = 4;
/// `EM_X86_64`
const X86_64: u16 = 62;
/// `xor eax, eax; ret`
const RETURN_OK: [u8; 3] = [0x31, 0xc0, 0xc3];
/// Bytes of an `Elf64_Sym`, and where its section and its size are.
const SYMBOL: usize = 24;
const SYMBOL_SECTION: usize = 6;
const SYMBOL_SIZE: usize = 16;
/// Bytes of an `Elf64_Rela`, and where its symbol is.
const RELOCATION: usize = 24;
const INFO: usize = 8;

/// What places that can panic tell of themselves.
#[derive(Clone, Copy, PartialEq, Eq)]
pub enum Places {
    /// Each where it is.
    #[allow(dead_code, reason = "a test includes this file")]
    Known,
    /// All the same.
    One,
}

/// Returns the object file without the texts; `None` when there are none that can be taken out.
pub fn without_texts(mut file: Vec<u8>, places: Places) -> Option<Vec<u8>> {
    // What is wrong with a file is for the linker to say.
    let changes = changes(&file, places).ok().filter(|changes| !changes.is_empty())?;
    changes.into_iter().for_each(|(at, bytes)| put(&mut file, at, &bytes));
    Some(file)
}

/// Bytes to replace, by their places.
fn changes(file: &[u8], places: Places) -> Result<Vec<(usize, Vec<u8>)>> {
    let elf = Elf::read(file)?;
    if u16_at(file, 18)? != X86_64 {
        return Err("the code is for another processor".into());
    }
    let kinds = elf.sections.iter().map(|s| Ok(Kind::of(elf.name(file, s)?, s)));
    let kinds: Vec<Kind> = kinds.collect::<Result<_>>()?;
    let stays = printed(&kinds, &references(file, &elf)?);
    let goes = |i: usize| match kinds.get(i) {
        Some(Kind::Debug) => !stays[i],
        Some(Kind::Backtrace) => true,
        _ => false,
    };
    let mut changes = Vec::new();
    for (i, section) in elf.sections.iter().enumerate() {
        let (at, header) = (usize::try_from(section.offset)?, elf.headers + i * SECTION);
        let mut shrink = |size: usize| changes.push((header + SECTION_SIZE, bytes(size)));
        if goes(i) {
            bytes_of(file, section)?;
            shrink(RETURN_OK.len());
            changes.push((at, RETURN_OK.to_vec()));
        } else if section.kind == RELA && goes(section.info as usize) {
            shrink(0);
        }
    }
    if places == Places::One {
        changes.extend(one_location(file, &elf)?);
    }
    let table = symbols(&elf)?;
    for (i, symbol) in bytes_of(file, table)?.chunks_exact(SYMBOL).enumerate() {
        if goes(u16_at(symbol, SYMBOL_SECTION)?.into()) && u64_at(symbol, SYMBOL_SIZE)? > 0 {
            let at = usize::try_from(table.offset)? + i * SYMBOL + SYMBOL_SIZE;
            changes.push((at, bytes(RETURN_OK.len())));
        }
    }
    Ok(changes)
}

fn bytes(size: usize) -> Vec<u8> {
    (size as u64).to_le_bytes().to_vec()
}

/// What a section is here. Each function has one of its own, named after it.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Kind {
    /// `Debug::fmt` of a type.
    Debug,
    Backtrace,
    /// Code that may print for somebody.
    Code,
    /// Code whose `{:?}` nobody reads, data, and all else.
    Other,
}

impl Kind {
    fn of(name: &[u8], section: &Section) -> Self {
        let name = String::from_utf8_lossy(name);
        let Some(name) = name.strip_prefix(".text.") else { return Self::Other };
        // The second name is of the mangling `v0`.
        let debug = name.contains("core..fmt..Debug$GT$3fmt17h") || name.contains("5Debug3fmt");
        if section.size < RETURN_OK.len() as u64 {
            Self::Code
        } else if debug {
            Self::Debug
        } else if name.contains("16DisplayBacktrace") && name.contains("3fmt") {
            Self::Backtrace
        } else if FOR_PANICS.iter().any(|part| name.contains(part)) {
            Self::Other
        } else {
            Self::Code
        }
    }
}

/// Tells for each section whether code that prints needs it, in the way of a `Debug::fmt`.
fn printed(kinds: &[Kind], references: &[Vec<usize>]) -> Vec<bool> {
    let mut stays = vec![false; kinds.len()];
    let code = kinds.iter().zip(references).filter(|(kind, _)| **kind == Kind::Code);
    let mut todo: Vec<usize> = code
        .flat_map(|(_, to)| to.iter().copied().filter(|&i| kinds.get(i) == Some(&Kind::Debug)))
        .collect();
    while let Some(i) = todo.pop() {
        if let Some(stays @ false) = stays.get_mut(i) {
            *stays = true;
            // Its own tables too: parts are printed through `&dyn Debug`.
            todo.extend(references.get(i).into_iter().flatten());
        }
    }
    stays
}

/// For each section of code and data, those that it refers to.
fn references(file: &[u8], elf: &Elf) -> Result<Vec<Vec<usize>>> {
    const ALLOC: u64 = 2;
    let symbols = bytes_of(file, symbols(elf)?)?;
    let mut all = vec![Vec::new(); elf.sections.len()];
    for section in elf.sections.iter().filter(|s| s.kind == RELA) {
        let of = section.info as usize;
        if elf.sections.get(of).is_none_or(|of| of.flags & ALLOC == 0) {
            continue;
        }
        for relocation in bytes_of(file, section)?.chunks_exact(RELOCATION) {
            let symbol = usize::try_from(u64_at(relocation, INFO)? >> 32)? * SYMBOL;
            // The numbers of 65,280 sections and more are elsewhere, but then the file's header
            // counts none of them.
            all[of].push(u16_at(symbols, symbol + SYMBOL_SECTION)?.into());
        }
    }
    Ok(all)
}

/// Leads all references to a `core::panic::Location` to one of them: constants of their own that
/// begin with the address and the length of a path ending in `.rs`.
fn one_location(file: &[u8], elf: &Elf) -> Result<Vec<(usize, Vec<u8>)>> {
    let symbols = bytes_of(file, symbols(elf)?)?;
    let is_location = locations(file, elf, symbols)?;
    // The section of a symbol that is a location.
    let location = |symbol: usize| -> Result<Option<usize>> {
        let at = symbol * SYMBOL;
        let section = usize::from(u16_at(symbols, at + SYMBOL_SECTION)?);
        let is_one = is_location.get(section) == Some(&true) && u64_at(symbols, at + 8)? == 0;
        Ok(is_one.then_some(section))
    };
    let mut one = None;
    let mut changes = Vec::new();
    for section in elf.sections.iter().filter(|s| s.kind == RELA) {
        for (i, relocation) in bytes_of(file, section)?.chunks_exact(RELOCATION).enumerate() {
            let info = u64_at(relocation, INFO)?;
            let symbol = info >> 32;
            let Some(of) = location(usize::try_from(symbol)?)? else { continue };
            let (same, with) = *one.get_or_insert((of, symbol));
            if of != same {
                let at = usize::try_from(section.offset)? + i * RELOCATION + INFO;
                changes.push((at, (with << 32 | info & 0xffff_ffff).to_le_bytes().to_vec()));
            }
        }
    }
    Ok(changes)
}

/// Tells for each section whether it is a `Location`.
fn locations(file: &[u8], elf: &Elf, symbols: &[u8]) -> Result<Vec<bool>> {
    /// Bytes of a `Location`: a `&str`, a line and a column.
    const LOCATION: u64 = 24;
    let mut out = vec![false; elf.sections.len()];
    for section in elf.sections.iter().filter(|s| s.kind == RELA && s.size == RELOCATION as u64) {
        let (of, relocation) = (section.info as usize, bytes_of(file, section)?);
        let Some(data) = elf.sections.get(of).filter(|s| s.size == LOCATION) else { continue };
        if u64_at(relocation, 0)? != 0 {
            continue;
        }
        let len = usize::try_from(u64_at(bytes_of(file, data)?, 8)?)?;
        let symbol = usize::try_from(u64_at(relocation, INFO)? >> 32)? * SYMBOL;
        let text = elf.sections.get(usize::from(u16_at(symbols, symbol + SYMBOL_SECTION)?));
        let at = u64_at(symbols, symbol + 8)?.wrapping_add(u64_at(relocation, 16)?);
        let path = text.and_then(|text| bytes_of(file, text).ok());
        let path = path.and_then(|all| all.get(usize::try_from(at).ok()?..)?.get(..len));
        out[of] = path.is_some_and(|path| path.ends_with(b".rs"));
    }
    Ok(out)
}

fn symbols(elf: &Elf) -> Result<&Section> {
    Ok(elf.sections.iter().find(|s| s.kind == SYMTAB).ok_or("the file has no symbols")?)
}
