//! Code that its own program compares with a checksum, in a file that has no symbols for where that code
//! begins and ends: found by the message that the check prints.
//!
//! BoringSSL's module for FIPS 140, and those made from it, put their constants between the code that
//! is checked. So the message is among code; the function that loads its address loads those of the
//! checked range's start and end, too.

use std::ops::Range;

use skep_proc::elf::{Elf, Fde};

/// So much is read at a time.
const PIECE: u64 = 64 << 10;
/// Bytes of `lea` of an address.
const LEA: usize = 7;

/// Finds what a function that loads the address of a text among code says: from the lowest to the
/// highest address in code that it loads.
pub(super) fn read_beside(elf: &Elf, text: &[u8]) -> Vec<Range<u64>> {
    let code = elf.text();
    let texts: Vec<u64> = code.iter().filter_map(|range| place_of(elf, range, text)).collect();
    if texts.is_empty() {
        return Vec::new();
    }
    // Few programs have it, so these are few.
    let loads: Vec<(u64, u64)> = code.iter().flat_map(|range| loads(elf, range)).collect();
    let fdes = elf.frames().unwrap_or_default();
    let mut found = Vec::new();
    for (by, _) in loads.iter().filter(|(_, text)| texts.contains(text)) {
        let Some(function) = fdes.iter().map(Fde::range).find(|f| f.contains(by)) else { continue };
        let of_code = |at: &u64| code.iter().any(|range| range.contains(at));
        let targets = || {
            let of_function = loads.iter().filter(|(at, _)| function.contains(at));
            of_function.map(|(_, target)| *target).filter(of_code)
        };
        found.extend(targets().min().zip(targets().max()).map(|(from, to)| from..to));
    }
    found
}

/// Finds the first place of a text in a range.
fn place_of(elf: &Elf, range: &Range<u64>, text: &[u8]) -> Option<u64> {
    let mut at = range.start;
    while at < range.end {
        let end = at.saturating_add(PIECE + text.len() as u64).min(range.end);
        let bytes = elf.read_vaddr(at, end - at).ok()?;
        if let Some(found) = super::find(&bytes, text) {
            return Some(at + found as u64);
        }
        at = at.saturating_add(PIECE);
    }
    None
}

/// Lists what may be instructions that load an address: where they are, and the addresses.
fn loads(elf: &Elf, range: &Range<u64>) -> Vec<(u64, u64)> {
    let bytes = elf.read_vaddr(range.start, range.end - range.start).unwrap_or_default();
    let mut out = Vec::new();
    for (i, bytes) in bytes.windows(LEA).enumerate() {
        if let [0x48 | 0x4c, 0x8d, register, a, b, c, d] = *bytes
            && register & 0xc7 == 0x05
        {
            let at = range.start + i as u64;
            let distance = i32::from_le_bytes([a, b, c, d]);
            out.push((at, (at + LEA as u64).wrapping_add_signed(distance.into())));
        }
    }
    out
}
