//! Tables that compilers leave for tracers: patchable entries, `__mcount_loc`, XRay sleds.

use std::ops::Range;

use super::{Elf, ElfError, SHT_DYNSYM, SHT_SYMTAB, Section, u16_at, u32_at, u64_at};

const R_X86_64_64: u32 = 1;
const R_X86_64_RELATIVE: u32 = 8;
const SHT_RELA: u32 = 4;

/// One XRay sled.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Sled {
    /// Link-time address of the sled.
    pub vaddr: u64,
    /// Link-time address of its function.
    pub function: u64,
    /// 0 entry, 1 exit, 2 tail call, 3 entry that logs arguments, 4 custom event, 5 typed event.
    pub kind: u8,
    /// Patched even if the function is short.
    pub always: bool,
    /// Layout version of the sled.
    pub version: u8,
}

impl Elf {
    /// Link-time address range of a loaded section. At run time the own process can read the table
    /// there, relocated.
    pub fn loaded_section(&self, name: &str) -> Option<Range<u64>> {
        self.sections
            .iter()
            .find(|s| s.name == name.as_bytes() && s.vaddr != 0 && s.size != 0)
            .map(Section::range)
    }

    /// Link-time addresses of the NOP areas of `-fpatchable-function-entry`, sorted.
    ///
    /// An address is that of the first NOP: the function's own, after its `endbr64` if it has one,
    /// or before the function when NOPs were asked for there.
    pub fn patchable_entries(&self) -> Result<Vec<u64>, ElfError> {
        self.addresses("__patchable_function_entries")
    }

    /// Link-time addresses of the `call __fentry__` (or the NOPs in its place) of
    /// `-mrecord-mcount`, sorted.
    pub fn mcount_locations(&self) -> Result<Vec<u64>, ElfError> {
        self.addresses("__mcount_loc")
    }

    /// File names of the libraries that the file asks the dynamic linker for, in its order.
    pub fn needed(&self) -> Result<Vec<Vec<u8>>, ElfError> {
        const DT_NEEDED: u64 = 1;
        let (Some(dynamic), Some(names)) = (self.section(".dynamic"), self.section(".dynstr"))
        else {
            return Ok(Vec::new());
        };
        let (dynamic, names) = (self.section_data(dynamic)?, self.section_data(names)?);
        let name = |at: u64| {
            names.get(usize::try_from(at).ok()?..)?.split(|b| *b == 0).next().map(<[u8]>::to_vec)
        };
        Ok(dynamic
            .chunks_exact(16)
            .filter(|e| u64_at(e, 0) == DT_NEEDED)
            .filter_map(|e| name(u64_at(e, 8)))
            .collect())
    }

    /// Tells whether the file names libraries that it needs, by its program headers.
    pub fn names_libraries(&self) -> Result<bool, ElfError> {
        const DT_NULL: u64 = 0;
        const DT_NEEDED: u64 = 1;
        const MOST: u64 = 1 << 20;
        let Some(dynamic) = self.segments.iter().find(|s| s.kind == super::PT_DYNAMIC) else {
            return Ok(false);
        };
        let bytes = self.read("dynamic section", dynamic.offset, dynamic.file_size.min(MOST))?;
        let mut tags = bytes.chunks_exact(16).map(|e| u64_at(e, 0)).take_while(|t| *t != DT_NULL);
        Ok(tags.any(|tag| tag == DT_NEEDED))
    }

    /// Tells whether a symbol table of the file defines a function of this name. Reads nothing
    /// else, so it is much sooner done than [`Elf::functions`] with a large library.
    pub fn has_function_symbol(&self, name: &[u8]) -> Result<bool, ElfError> {
        const FUNC: u8 = 2;
        const IFUNC: u8 = 10;
        for table in self.sections.iter().filter(|s| matches!(s.kind, SHT_SYMTAB | SHT_DYNSYM)) {
            let Some(strings) = self.sections.get(table.link as usize) else { continue };
            let (symbols, strings) = (self.section_data(table)?, self.section_data(strings)?);
            let is_it = |s: &[u8]| {
                let function = s.get(4).is_some_and(|info| matches!(info & 15, FUNC | IFUNC))
                    && u16_at(s, 6) != 0;
                let text = |at: u32| strings.get(at as usize..)?.split(|b| *b == 0).next();
                function && text(u32_at(s, 0)).is_some_and(|n| n == name)
            };
            if symbols.chunks_exact(24).any(is_it) {
                return Ok(true);
            }
        }
        Ok(false)
    }

    /// XRay sleds of the file, in its order. Only the pc-relative version 2 of the table is read.
    pub fn xray_sleds(&self) -> Result<Vec<Sled>, ElfError> {
        let Some(section) = self.section("xray_instr_map") else { return Ok(Vec::new()) };
        let data = self.section_data(section)?;
        let sled = |(i, e): (usize, &[u8])| {
            let at = section.vaddr.wrapping_add(i as u64 * 32);
            let byte = |n: usize| e.get(n).copied().unwrap_or(0);
            Sled {
                vaddr: at.wrapping_add(u64_at(e, 0)),
                function: at.wrapping_add(8).wrapping_add(u64_at(e, 8)),
                kind: byte(16),
                always: byte(17) != 0,
                version: byte(18),
            }
        };
        Ok(data.chunks_exact(32).enumerate().map(sled).filter(|s| s.version >= 2).collect())
    }

    /// A table of addresses, with the dynamic linker's work done to it as for a bias of 0.
    fn addresses(&self, name: &str) -> Result<Vec<u64>, ElfError> {
        let mut out = Vec::new();
        // A linker script may keep input sections apart, so there can be several of one name.
        for section in self.sections.iter().filter(|s| s.name == name.as_bytes()) {
            let data = self.section_data(section)?;
            let mut table: Vec<u64> = data.chunks_exact(8).map(|b| u64_at(b, 0)).collect();
            let range = section.vaddr..section.vaddr.saturating_add(table.len() as u64 * 8);
            for rela in self.sections.iter().filter(|s| s.kind == SHT_RELA && s.vaddr != 0) {
                for r in self.section_data(rela)?.chunks_exact(24) {
                    let at = u64_at(r, 0);
                    if !range.contains(&at) || !(at - range.start).is_multiple_of(8) {
                        continue;
                    }
                    // RELR needs nothing: there the table itself holds the address.
                    let Some(slot) = table.get_mut(((at - range.start) / 8) as usize) else {
                        continue;
                    };
                    match u32_at(r, 8) {
                        R_X86_64_RELATIVE => *slot = u64_at(r, 16),
                        R_X86_64_64 => {
                            *slot = self
                                .dynamic_symbol(rela.link, u32_at(r, 12))?
                                .wrapping_add(u64_at(r, 16))
                        }
                        _ => {}
                    }
                }
            }
            out.extend(table.into_iter().filter(|&a| a != 0));
        }
        out.sort_unstable();
        out.dedup();
        Ok(out)
    }

    fn dynamic_symbol(&self, table: u32, index: u32) -> Result<u64, ElfError> {
        let section = self
            .sections
            .get(table as usize)
            .ok_or(ElfError::Malformed { what: "symbol table index", offset: 0 })?;
        let at = u64::from(index) * 24;
        if at + 24 > section.size {
            return Err(ElfError::Malformed { what: "symbol index", offset: section.offset });
        }
        Ok(u64_at(&self.read("symbol", section.offset.saturating_add(at), 24)?, 8))
    }
}
