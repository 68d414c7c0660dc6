//! The types of the functions, and of the map value with a lock.

use skep_object::Btf;
use std::sync::{Arc, OnceLock};

/// `u64 global(u64 number, struct words *words)`, four words.
pub const GLOBAL: u32 = 6;
/// `int main(void *ctx)`.
pub const MAIN: u32 = 9;
/// Any function of one file alone.
pub const STATIC: u32 = 10;
/// `struct words`.
pub const WORDS: u32 = 2;
/// `struct locked`, [`LOCK`](super::LOCK) has the lock's place.
pub const LOCKED: u32 = 13;

const STRINGS: &[u8] =
    b"\0u64\0words\0global\0number\0int\0main\0part\0unsigned int\0bpf_spin_lock\0locked\0lock\0";

fn name(of: &str) -> u32 {
    let whole = format!("\0{of}\0");
    STRINGS.windows(whole.len()).position(|w| w == whole.as_bytes()).map_or(0, |at| at as u32 + 1)
}

/// A `struct btf_type` and what follows it (include/uapi/linux/btf.h).
fn kind(kind: u32, name: u32, vlen: u32, size: u32, more: &[u32]) -> Vec<u32> {
    [name, kind << 24 | vlen, size].iter().chain(more).copied().collect()
}

/// The section `.BTF`.
pub fn bytes() -> Vec<u8> {
    let word = name("u64");
    let types = [
        kind(1, word, 0, 8, &[64]),
        kind(4, name("words"), 1, 32, &[name("words"), 3, 0]),
        kind(3, 0, 0, 0, &[1, 1, 4]),
        kind(2, 0, 0, 2, &[]),
        kind(13, 0, 2, 1, &[name("number"), 1, name("words"), 4]),
        kind(12, name("global"), 1, 5, &[]),
        kind(1, name("int"), 0, 4, &[1 << 24 | 32]),
        kind(13, 0, 1, 7, &[name("words"), 4]),
        kind(12, name("main"), 1, 8, &[]),
        kind(12, name("part"), 0, 8, &[]),
        kind(1, name("unsigned int"), 0, 4, &[32]),
        kind(4, name("bpf_spin_lock"), 1, 4, &[name("number"), 11, 0]),
        kind(
            4,
            name("locked"),
            3,
            24,
            &[name("number"), 1, 0, name("lock"), 12, 64, name("words"), 1, 128],
        ),
    ]
    .concat();
    let len = types.len() as u32 * 4;
    let head = [0x0001_eb9f, 24, 0, len, len, STRINGS.len() as u32];
    let mut bytes: Vec<u8> = head.iter().chain(&types).flat_map(|n| n.to_le_bytes()).collect();
    bytes.extend(STRINGS);
    bytes
}

/// Reads them once.
pub fn btf() -> Arc<Btf> {
    static MADE: OnceLock<Arc<Btf>> = OnceLock::new();
    MADE.get_or_init(|| Arc::new(Btf::parse(&bytes()).expect("these types are whole"))).clone()
}
