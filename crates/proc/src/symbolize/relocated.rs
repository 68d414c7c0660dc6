//! Debug information of relocatable files (`.o`, kernel modules): offsets and addresses are filled in
//! from the relocations, as a linker would do.

use super::image::Image;
use crate::elf::{EM_AARCH64, EM_X86_64, u16_at, u64_at};

const SHT_SYMTAB: u32 = 2;
const RELA: usize = 24;
const SYMBOL: usize = 24;

/// How many bytes a relocation fills in with an address; `None` if it is of another kind.
fn width(machine: u16, kind: u32) -> Option<usize> {
    match (machine, kind) {
        // R_X86_64_64, R_AARCH64_ABS64.
        (EM_X86_64, 1) | (EM_AARCH64, 257) => Some(8),
        // R_X86_64_32, R_X86_64_32S, R_AARCH64_ABS32.
        (EM_X86_64, 10 | 11) | (EM_AARCH64, 258) => Some(4),
        _ => None,
    }
}

/// Fills in the section with a name. What is damaged is left as it is.
pub(super) fn relocate(image: &Image, name: &str, bytes: &mut [u8]) {
    let elf = &image.elf;
    let table = elf.section(&format!(".rela{name}"));
    // Of one that older tools compressed.
    let old = || elf.section(&format!(".rela.z{}", name.strip_prefix('.')?));
    let Some(table) = table.or_else(old) else { return };
    let symbols = elf.sections().iter().find(|s| s.kind == SHT_SYMTAB);
    let symbols = symbols.map_or(&[][..], |s| image.raw(s));
    for rela in image.raw(table).chunks_exact(RELA) {
        let (offset, info, addend) = (u64_at(rela, 0), u64_at(rela, 8), u64_at(rela, 16));
        let at = usize::try_from(info >> 32).ok().and_then(|n| n.checked_mul(SYMBOL));
        let symbol = at.and_then(|at| symbols.get(at..)?.get(..SYMBOL));
        let (Some(width), Some(symbol)) = (width(elf.machine(), info as u32), symbol) else {
            continue;
        };
        let section = elf.sections().get(usize::from(u16_at(symbol, 6)));
        let base = section.map_or(0, |s| s.vaddr);
        let value = base.wrapping_add(u64_at(symbol, 8)).wrapping_add(addend).to_le_bytes();
        let Ok(offset) = usize::try_from(offset) else { continue };
        let place = bytes.get_mut(offset..).and_then(|rest| rest.get_mut(..width));
        if let (Some(place), Some(value)) = (place, value.get(..width)) {
            place.copy_from_slice(value);
        }
    }
}
