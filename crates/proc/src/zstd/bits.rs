//! Bits of a stream, from its end to its start, or from its start on.

/// Bits that are read backwards, as zstd writes them: the last byte's highest bit ends them.
#[derive(Clone, Copy, Debug)]
pub(super) struct Backward<'a> {
    bytes: &'a [u8],
    /// How many bits are left; below 0 if more were read than there are.
    left: isize,
}

impl<'a> Backward<'a> {
    pub fn new(bytes: &'a [u8]) -> Option<Self> {
        let last = bytes.last().filter(|last| **last != 0)?;
        let left = bytes.len() * 8 - last.leading_zeros() as usize - 1;
        Some(Self { bytes, left: isize::try_from(left).ok()? })
    }

    pub fn left(&self) -> isize {
        self.left
    }

    /// The next bits, at most 32, without going on; what lies before the start is 0.
    #[inline]
    pub fn peek(&self, count: u32) -> u64 {
        let mask = (1_u64 << count) - 1;
        let at = self.left - count as isize;
        let Ok(from) = usize::try_from(at) else {
            // Bits of the first byte, with zeros behind them; they are few, as `count` is.
            let missing = at.unsigned_abs().min(63) as u32;
            let have = if self.left > 0 { self.word(0) } else { 0 };
            return have << missing & mask;
        };
        self.word(from / 8) >> (from % 8) & mask
    }

    #[inline]
    fn word(&self, at: usize) -> u64 {
        let rest = self.bytes.get(at..).unwrap_or_default();
        if let Some(word) = rest.first_chunk::<8>() {
            return u64::from_le_bytes(*word);
        }
        rest.iter().rev().fold(0, |word, byte| word << 8 | u64::from(*byte))
    }

    #[inline]
    pub fn skip(&mut self, count: u32) {
        self.left -= count as isize;
    }

    #[inline]
    pub fn take(&mut self, count: u32) -> u64 {
        let bits = self.peek(count);
        self.skip(count);
        bits
    }
}

/// Bits that are read forward, the lowest of a byte first.
#[derive(Clone, Copy, Debug)]
pub(super) struct Forward<'a> {
    pub bytes: &'a [u8],
    /// The next bit.
    pub at: usize,
}

impl Forward<'_> {
    /// The next bits, at most 16; `None` behind the end.
    pub fn take(&mut self, count: usize) -> Option<u32> {
        let end = self.at + count;
        if end > self.bytes.len() * 8 {
            return None;
        }
        let from = self.bytes.get(self.at / 8..).unwrap_or_default();
        let word = from.iter().take(4).rev().fold(0_u32, |word, byte| word << 8 | u32::from(*byte));
        let bits = word >> (self.at % 8) & ((1 << count) - 1);
        self.at = end;
        Some(bits)
    }
}
