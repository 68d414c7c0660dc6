//! Any bytes as a program with debug information.
#![no_main]

use libfuzzer_sys::fuzz_target;
use skep_object::{Btf, DwarfFunctions};

fuzz_target!(|data: &[u8]| {
    if let Ok(btf) = Btf::from_dwarf(data) {
        for (id, _) in btf.types().take(500) {
            let _ = (btf.describe(id), btf.size_of(id));
        }
    }
    if let Ok(functions) = DwarfFunctions::read(std::io::Cursor::new(data), |_| None) {
        let addresses: Vec<u64> = (0x1000..0x2000).collect();
        let _ = functions.at(&addresses, |_, p| drop(p));
        let _ = functions.named(&["main"].into(), |_, p| drop(p));
    }
});
