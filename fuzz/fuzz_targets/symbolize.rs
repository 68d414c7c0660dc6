//! Symbols, lines and inlined functions of a foreign ELF file: no panic, no endless work. The first
//! eight bytes choose the addresses, beside those of the file's own sections.

#![no_main]

use libfuzzer_sys::fuzz_target;
use skep_proc::elf::Elf;
use skep_proc::symbolize::{SymbolFile, Want};

fuzz_target!(|data: &[u8]| {
    let Some((head, file)) = data.split_first_chunk::<8>() else { return };
    let Ok(elf) = Elf::from_bytes(file.to_vec()) else { return };
    let sections = elf.sections().iter().take(64);
    let mut addrs: Vec<u64> = sections.flat_map(|s| [s.vaddr, s.vaddr.wrapping_add(s.size / 2)]).collect();
    addrs.push(u64::from_le_bytes(*head));
    addrs.push(elf.entry().unwrap_or(0));
    // Nowhere: no debug file is looked for.
    let nowhere = std::path::Path::new("/nonexistent");
    let Ok(mut file) = SymbolFile::new(elf, nowhere, nowhere) else { return };
    let answers = file.find(&addrs, Want { lines: true, inlined: true });
    for addr in addrs {
        if let Some(answer) = answers.get(addr) {
            assert!(answer.symbol().is_none_or(|s| s.start <= addr));
            assert!(answer.frames().len() < 1 << 16);
        }
    }
});
