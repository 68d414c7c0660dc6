//! Shared libraries as they lie in memory: read from an ELF file, and relocated for a place in
//! another process, by the caller. The dynamic linker of that process takes no part, and need not
//! exist.

use skep_proc::elf::{Elf, ElfError, Segment};

/// Size of a page.
pub(crate) const PAGE: u64 = 4096;
/// Larger libraries are refused.
const MAX_LEN: u64 = 64 << 20;

const DYN: u16 = 3;
const X86_64: u16 = 62;
const PT_LOAD: u32 = 1;
const PT_DYNAMIC: u32 = 2;
const PT_TLS: u32 = 7;
const PT_GNU_RELRO: u32 = 0x6474_e552;
const PF_W: u32 = 2;

const DT_PLTRELSZ: u64 = 2;
const DT_STRTAB: u64 = 5;
const DT_SYMTAB: u64 = 6;
const DT_RELA: u64 = 7;
const DT_RELASZ: u64 = 8;
const DT_REL: u64 = 17;
const DT_JMPREL: u64 = 23;
const DT_RELR: u64 = 36;

const R_64: u32 = 1;
const R_GLOB_DAT: u32 = 6;
const R_JUMP_SLOT: u32 = 7;
const R_RELATIVE: u32 = 8;
const R_DTPMOD64: u32 = 16;
const R_DTPOFF64: u32 = 17;
const R_TPOFF64: u32 = 18;

/// Size of a symbol, and of a relocation with its addend.
const ENTRY: u64 = 24;
const WEAK: u8 = 2;
/// `STT_GNU_IFUNC`: the address is what a function returns.
const IFUNC: u8 = 10;

/// Why a library cannot be loaded.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum ImageError {
    /// It is no ELF file, or a damaged one.
    #[error(transparent)]
    Elf(#[from] ElfError),
    /// It is an ELF file of another kind.
    #[error("{what}")]
    Unsupported {
        /// What is not supported.
        what: &'static str,
    },
    /// A part refers to what is outside of the library.
    #[error("malformed library: {what} at `{vaddr:#x}`")]
    Malformed {
        /// The part.
        what: &'static str,
        /// Its address, as linked.
        vaddr: u64,
    },
    /// A relocation is of a type that is not known here.
    #[error("relocation type {kind} at `{vaddr:#x}` is not supported")]
    Relocation {
        /// The type's number.
        kind: u32,
        /// The address, as linked.
        vaddr: u64,
    },
    /// It imports a symbol that nobody has.
    #[error("symbol `{name}` is imported, and nothing defines it")]
    Import {
        /// The symbol.
        name: String,
    },
}

/// A shared library for x86-64 that has been read, and is loaded by [`Target::load`].
///
/// What it imports is for the caller to say. Its constructors and destructors are not run.
///
/// ```no_run
/// let file = std::fs::read("library.so").expect("it can be read");
/// let image = skep_inject::Image::parse(file)?;
/// assert!(image.symbol("entry").is_some());
/// # Ok::<(), skep_inject::ImageError>(())
/// ```
///
/// [`Target::load`]: crate::Target::load
#[derive(Debug)]
pub struct Image {
    /// From address 0 on, not relocated.
    bytes: Vec<u8>,
    segments: Vec<Segment>,
    tls: Option<Segment>,
    relro: Option<Segment>,
    /// Values of the dynamic section, by tag.
    dynamic: Vec<(u64, u64)>,
    /// How many dynamic symbols there are.
    symbols: u64,
}

#[derive(Clone, Copy)]
struct Symbol {
    name: u64,
    info: u8,
    section: u16,
    value: u64,
}

fn word(bytes: &[u8], at: u64) -> Option<u64> {
    let at = usize::try_from(at).ok()?;
    let word = bytes.get(at..at.checked_add(8)?)?;
    word.try_into().ok().map(u64::from_le_bytes)
}

impl Image {
    /// Reads a library.
    ///
    /// # Errors
    /// When the file is not a shared library for x86-64, is damaged, or has relocations of another
    /// form than those with addends.
    pub fn parse(file: Vec<u8>) -> Result<Self, ImageError> {
        let elf = Elf::from_bytes(file.clone())?;
        let unsupported = |what| Err(ImageError::Unsupported { what });
        if elf.machine() != X86_64 || elf.kind() != DYN {
            return unsupported("it is not a shared library for x86-64");
        }
        let first = |kind| elf.segments().iter().find(|segment| segment.kind == kind).copied();
        let segments: Vec<Segment> =
            elf.segments().iter().filter(|segment| segment.kind == PT_LOAD).copied().collect();
        let len = segments.iter().map(|segment| segment.range().end).max().unwrap_or(0);
        if len == 0 || len > MAX_LEN {
            return unsupported("it has no segments, or too large ones");
        }
        let mut bytes = vec![0; len.next_multiple_of(PAGE) as usize];
        for segment in &segments {
            let part = |start: u64, len: u64| {
                Some(usize::try_from(start).ok()?..usize::try_from(start.checked_add(len)?).ok()?)
            };
            let from = part(segment.offset, segment.file_size).and_then(|range| file.get(range));
            let to = part(segment.vaddr, segment.file_size).and_then(|range| bytes.get_mut(range));
            let (Some(from), Some(to)) = (from, to) else {
                return Err(ImageError::Malformed { what: "a segment", vaddr: segment.vaddr });
            };
            to.copy_from_slice(from);
        }
        let tls = first(PT_TLS);
        if tls.is_some_and(|tls| {
            let align = tls.align.max(1);
            let fits = tls.mem_size >= tls.file_size && tls.mem_size <= PAGE / 2;
            !align.is_power_of_two()
                || align > 64
                || tls.vaddr % align != 0
                || !fits
                || tls.vaddr > len
        }) {
            return unsupported("its thread-local storage is larger than 2 KiB, or not aligned");
        }
        let relro = first(PT_GNU_RELRO);
        if let Some(relro) = relro.filter(|relro| relro.range().end > bytes.len() as u64) {
            return Err(ImageError::Malformed { what: "`PT_GNU_RELRO`", vaddr: relro.vaddr });
        }
        let mut dynamic = Vec::new();
        if let Some(segment) = first(PT_DYNAMIC) {
            for at in (0..segment.mem_size / 16).map(|i| segment.vaddr.saturating_add(i * 16)) {
                let pair = word(&bytes, at).zip(word(&bytes, at.saturating_add(8)));
                let malformed = ImageError::Malformed { what: "the dynamic section", vaddr: at };
                match pair.ok_or(malformed)? {
                    (0, _) => break,
                    pair => dynamic.push(pair),
                }
            }
        }
        if dynamic.iter().any(|&(tag, _)| tag == DT_REL || tag == DT_RELR) {
            return unsupported("its relocations have no addends (`DT_REL`, `DT_RELR`)");
        }
        let symbols = match elf.section(".dynsym") {
            Some(section) => elf.section_data(section)?.len() as u64 / ENTRY,
            None => 0,
        };
        Ok(Self { bytes, segments, tls, relro, dynamic, symbols })
    }

    /// The address of a symbol that the library exports, as linked: its distance from where the
    /// library is loaded.
    pub fn symbol(&self, name: &str) -> Option<u64> {
        (0..self.symbols)
            .filter_map(|index| self.symbol_at(index))
            .find(|symbol| {
                symbol.section != 0 && self.name_at(symbol.name) == Some(name.as_bytes())
            })
            .map(|symbol| symbol.value)
    }

    /// Names of the symbols that must come from elsewhere, without weak ones.
    pub fn imports(&self) -> Vec<String> {
        (1..self.symbols)
            .filter_map(|index| self.symbol_at(index))
            .filter(|symbol| symbol.section == 0 && symbol.info >> 4 != WEAK)
            .filter_map(|symbol| self.name_at(symbol.name))
            .map(|name| String::from_utf8_lossy(name).into_owned())
            .collect()
    }

    /// How much memory it takes, in bytes: whole pages.
    #[must_use]
    #[expect(clippy::len_without_is_empty, reason = "none is empty")]
    pub fn len(&self) -> u64 {
        self.bytes.len() as u64
    }

    /// Size of the thread-local storage, which ends at the thread pointer.
    pub(crate) fn tls_len(&self) -> u64 {
        self.tls.map_or(0, |tls| tls.mem_size.next_multiple_of(tls.align.max(1)))
    }

    /// What a thread's storage begins with. Without relocations in it, which linkers make none of.
    pub(crate) fn tls_start(&self) -> &[u8] {
        let range = self.tls.map(|tls| tls.vaddr as usize..(tls.vaddr + tls.file_size) as usize);
        range.and_then(|range| self.bytes.get(range)).unwrap_or_default()
    }

    /// Ranges of pages with their final protection (bits of `PROT_…`), as linked.
    pub(crate) fn protections(&self) -> Vec<(u64, u64, u32)> {
        let down = |address: u64| address & !(PAGE - 1);
        let mut all = Vec::new();
        for segment in &self.segments {
            let range = segment.range();
            // The bits of `p_flags` are those of `PROT_…` in another order.
            let bits = segment.flags >> 2 & 1 | segment.flags & PF_W | (segment.flags & 1) << 2;
            all.push((down(range.start), range.end.next_multiple_of(PAGE), bits));
        }
        if let Some(relro) = self.relro {
            let (start, end) = (down(relro.vaddr), down(relro.range().end));
            if start < end {
                all.push((start, end, 1));
            }
        }
        all
    }

    /// The library's memory as it has to be at `base`. `import` gives the address of a symbol that
    /// the library does not define, as linked.
    pub(crate) fn relocated(
        &self,
        base: u64,
        import: impl Fn(&str) -> Option<u64>,
    ) -> Result<Vec<u8>, ImageError> {
        let mut bytes = self.bytes.clone();
        for (table, size) in [(DT_RELA, DT_RELASZ), (DT_JMPREL, DT_PLTRELSZ)] {
            let Some(table) = self.dynamic(table) else { continue };
            for index in 0..self.dynamic(size).unwrap_or(0) / ENTRY {
                self.relocate(&mut bytes, base, table.saturating_add(index * ENTRY), &import)?;
            }
        }
        Ok(bytes)
    }

    fn relocate(
        &self,
        bytes: &mut [u8],
        base: u64,
        entry: u64,
        import: &impl Fn(&str) -> Option<u64>,
    ) -> Result<(), ImageError> {
        let field = |n: u64| word(&self.bytes, entry.saturating_add(n * 8));
        let malformed = |what, vaddr| ImageError::Malformed { what, vaddr };
        let [Some(vaddr), Some(info), Some(addend)] = [field(0), field(1), field(2)] else {
            return Err(malformed("a relocation", entry));
        };
        let (index, kind) = (info >> 32, info as u32);
        let symbol = || self.symbol_at(index).ok_or(malformed("a relocation's symbol", vaddr));
        let address = |symbol: Symbol| {
            if symbol.section != 0 {
                return match symbol.info & 15 {
                    IFUNC => Err(ImageError::Relocation { kind: 37, vaddr }),
                    _ => Ok(base.wrapping_add(symbol.value)),
                };
            }
            let name = self.name_at(symbol.name).ok_or(malformed("a symbol's name", vaddr))?;
            let name = String::from_utf8_lossy(name);
            match import(&name) {
                Some(other) => Ok(base.wrapping_add(other)),
                None if symbol.info >> 4 == WEAK => Ok(0),
                None => Err(ImageError::Import { name: name.into_owned() }),
            }
        };
        // Thread-local symbols are the library's own; no symbol means its storage as a whole.
        let in_tls = || match symbol()? {
            symbol if index == 0 || symbol.section != 0 => Ok(symbol.value),
            _ => Err(malformed("an imported thread-local symbol", vaddr)),
        };
        let value = match kind {
            0 => return Ok(()),
            R_RELATIVE => base.wrapping_add(addend),
            R_64 => address(symbol()?)?.wrapping_add(addend),
            R_GLOB_DAT | R_JUMP_SLOT => address(symbol()?)?,
            // There is one module; who finds its storage need not be told.
            R_DTPMOD64 => 1,
            R_DTPOFF64 => in_tls()?.wrapping_add(addend),
            R_TPOFF64 => in_tls()?.wrapping_add(addend).wrapping_sub(self.tls_len()),
            kind => return Err(ImageError::Relocation { kind, vaddr }),
        };
        let at = usize::try_from(vaddr).ok();
        let place = at.and_then(|at| bytes.get_mut(at..at.checked_add(8)?));
        place.ok_or(malformed("a relocation", vaddr))?.copy_from_slice(&value.to_le_bytes());
        Ok(())
    }

    fn dynamic(&self, tag: u64) -> Option<u64> {
        self.dynamic.iter().find(|pair| pair.0 == tag).map(|pair| pair.1)
    }

    fn symbol_at(&self, index: u64) -> Option<Symbol> {
        if index >= self.symbols {
            return None;
        }
        let at = self.dynamic(DT_SYMTAB)?.checked_add(index * ENTRY)?;
        let head = word(&self.bytes, at)?;
        let value = word(&self.bytes, at.checked_add(8)?)?;
        let (name, info) = (head & 0xffff_ffff, (head >> 32) as u8);
        Some(Symbol { name, info, section: (head >> 48) as u16, value })
    }

    fn name_at(&self, offset: u64) -> Option<&[u8]> {
        let at = self.dynamic(DT_STRTAB)?.checked_add(offset)?;
        let rest = self.bytes.get(usize::try_from(at).ok()?..)?;
        rest.split(|&byte| byte == 0).next()
    }
}
