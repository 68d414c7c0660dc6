//! The types of the global function: `u64 global(u64 number, struct words *words)`, four words.

use skep_object::Btf;
use std::sync::{Arc, OnceLock};

/// The function's type.
pub const FUNCTION: u32 = 6;

const STRINGS: &[u8] = b"\0u64\0words\0global\0number\0";

/// A `struct btf_type` and what follows it (include/uapi/linux/btf.h).
fn kind(kind: u32, name: u32, vlen: u32, size: u32, more: &[u32]) -> Vec<u32> {
    [name, kind << 24 | vlen, size].iter().chain(more).copied().collect()
}

/// Makes them once.
pub fn btf() -> Arc<Btf> {
    static MADE: OnceLock<Arc<Btf>> = OnceLock::new();
    let make = || {
        let types = [
            kind(1, 1, 0, 8, &[64]),
            kind(4, 5, 1, 32, &[5, 3, 0]),
            kind(3, 0, 0, 0, &[1, 1, 4]),
            kind(2, 0, 0, 2, &[]),
            kind(13, 0, 2, 1, &[18, 1, 5, 4]),
            kind(12, 11, 1, 5, &[]),
        ]
        .concat();
        let len = types.len() as u32 * 4;
        let head = [0x0001_eb9f, 24, 0, len, len, STRINGS.len() as u32];
        let mut bytes: Vec<u8> = head.iter().chain(&types).flat_map(|n| n.to_le_bytes()).collect();
        bytes.extend(STRINGS);
        Arc::new(Btf::parse(&bytes).expect("these types are whole"))
    };
    MADE.get_or_init(make).clone()
}
