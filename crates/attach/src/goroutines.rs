//! What tells of the goroutines of a module.
//!
//! Go's list of all goroutines (`runtime.allgs`) is found by the code that adds to it, as programs without
//! symbols have that too.

use crate::flow::has_memory;
use iced_x86::{Decoder, DecoderOptions, MemorySize};
use std::ops::Range;

/// What is known of the Go runtime in a module.
#[derive(Debug)]
pub(crate) struct Goroutines {
    /// `runtime.asyncPreempt`.
    pub(crate) preempt: Range<u64>,
    /// Where the list of all of them is: its address, length and capacity. `None`: nobody knows.
    pub(crate) list: Option<u64>,
}

impl Goroutines {
    /// `preempt`: where `runtime.asyncPreempt` is; `add`: the code of `runtime.allgadd`, and where it is.
    pub(crate) fn new(preempt: Range<u64>, add: Option<(&[u8], u64)>) -> Self {
        let list = add.and_then(|(code, start)| slice_in(code, start));
        Self { preempt, list }
    }
}

/// Finds the variable that some code reads as a slice: three words, one behind the other.
fn slice_in(code: &[u8], start: u64) -> Option<u64> {
    let mut words = Vec::new();
    for i in Decoder::with_ip(64, code, start, DecoderOptions::NONE) {
        let reads = has_memory(&i);
        if reads && i.is_ip_rel_memory_operand() && i.memory_size() == MemorySize::UInt64 {
            words.push(i.ip_rel_memory_address());
        }
    }
    words.iter().copied().find(|at| words.contains(&(at + 8)) && words.contains(&(at + 16)))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_slice_is_known_by_its_three_words() {
        // mov rcx,[rip+0x100+16]; cmp [rip+..],rbx; mov rax,[rip+0x100]; mov rbx,[rip+0x100+8]
        let load = |modrm: u8, to: u64, at: u64| {
            let by = (to as i64 - at as i64 - 7) as i32;
            [&[0x48, 0x8b, modrm][..], &by.to_le_bytes()].concat()
        };
        let words = [(0x0d, 0x8110), (0x1d, 0x9000), (0x05, 0x8100), (0x1d, 0x8108)];
        let code: Vec<u8> = words
            .iter()
            .zip(0..)
            .flat_map(|((modrm, to), n)| load(*modrm, *to, 0x1000 + 7 * n))
            .collect();
        assert_eq!(slice_in(&code, 0x1000), Some(0x8100));
        assert_eq!(slice_in(&code[..21], 0x1000), None);
    }
}
