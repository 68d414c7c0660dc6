//! Any bytes as the unwind tables of a module and as its stack: the first 24 say where the table is
//! searched, and the registers.
#![no_main]

use libfuzzer_sys::fuzz_target;
use skep_proc::unwind::{Memory, Registers, Step};

/// Where the bytes lie.
const BASE: u64 = 0x10000;

struct Bytes<'a>(&'a [u8]);

impl Memory for Bytes<'_> {
    fn number(&mut self, addr: u64, size: u64) -> Option<u64> {
        let at = usize::try_from(addr.checked_sub(BASE)?).ok()?;
        let bytes = self.0.get(at..)?.get(..size as usize)?;
        Some(bytes.iter().rev().fold(0, |value, byte| value << 8 | u64::from(*byte)))
    }
}

fuzz_target!(|data: &[u8]| {
    let Some((head, bytes)) = data.split_first_chunk::<24>() else { return };
    let word = |at: usize| u64::from_le_bytes(head[at..at + 8].try_into().expect("eight"));
    let mut memory = Bytes(bytes);
    let mut frame = Registers { ip: word(0), sp: word(8), bp: word(16), is_return: false };
    for _ in 0..64 {
        let step = Step::find(&mut memory, BASE, frame.place());
        assert_eq!(Step::from_bits(step.to_bits()), step);
        let Some(next) = step.take(&mut memory, frame) else { return };
        frame = next;
    }
});
