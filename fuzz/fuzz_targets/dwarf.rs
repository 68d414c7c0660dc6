//! Any bytes as a program with debug information.
#![no_main]

use libfuzzer_sys::fuzz_target;
use skep_object::Btf;

fuzz_target!(|data: &[u8]| {
    if let Ok(btf) = Btf::from_dwarf(data) {
        for (id, _) in btf.types().take(500) {
            let _ = (btf.describe(id), btf.size_of(id));
        }
    }
});
