//! Literals that are Huffman-coded (RFC 8878, section 4.2).

use super::bits::Backward;
use super::fse::Table;

/// Longest code in bits.
const MAX_BITS: u32 = 11;

/// A code: what the next `bits` bits of a stream stand for.
#[derive(Clone, Debug, Default)]
pub(super) struct Code {
    /// Symbols and the lengths of their codes, by the next bits.
    entries: Vec<(u8, u8)>,
    bits: u32,
}

impl Code {
    /// Reads the description of a code; returns how many bytes it takes.
    pub fn read(bytes: &[u8]) -> Option<(Self, usize)> {
        let (head, rest) = bytes.split_first()?;
        let (weights, size) = if *head >= 128 {
            let count = usize::from(*head) - 127;
            let packed = rest.get(..count.div_ceil(2))?;
            let weights = packed.iter().flat_map(|byte| [byte >> 4, byte & 15]);
            (weights.take(count).collect(), packed.len())
        } else {
            let packed = rest.get(..usize::from(*head))?;
            (weights(packed)?, packed.len())
        };
        Some((Self::of(weights)?, 1 + size))
    }

    /// The code for the weights of all symbols but the last, whose weight follows from them.
    fn of(mut weights: Vec<u8>) -> Option<Self> {
        let mut sum = 0_u32;
        for weight in weights.iter().filter(|weight| **weight > 0) {
            sum += (u32::from(*weight) <= MAX_BITS).then(|| 1 << (weight - 1))?;
        }
        let bits = sum.checked_ilog2()? + 1;
        let left = (1 << bits) - sum;
        if bits > MAX_BITS || !left.is_power_of_two() || weights.len() > 255 {
            return None;
        }
        weights.push(left.ilog2() as u8 + 1);
        let mut entries = Vec::with_capacity(1 << bits);
        for weight in 1..=bits as u8 {
            for (symbol, _) in weights.iter().enumerate().filter(|(_, w)| **w == weight) {
                let entry = (symbol as u8, bits as u8 + 1 - weight);
                entries.extend(std::iter::repeat_n(entry, 1 << (weight - 1)));
            }
        }
        (entries.len() == 1 << bits).then_some(Self { entries, bits })
    }

    /// Decodes one stream into so many symbols.
    pub fn decode(&self, stream: &[u8], count: usize, out: &mut Vec<u8>) -> Option<()> {
        let mut bits = Backward::new(stream)?;
        for _ in 0..count {
            let (symbol, length) = self.entries.get(bits.peek(self.bits) as usize)?;
            bits.skip(u32::from(*length));
            out.push(*symbol);
        }
        (bits.left() == 0).then_some(())
    }
}

/// Weights that are coded themselves, by two states that take turns until the bits end.
fn weights(packed: &[u8]) -> Option<Vec<u8>> {
    let (table, size) = Table::read(packed, 16, 6)?;
    let mut bits = Backward::new(packed.get(size..)?)?;
    let mut weights = Vec::new();
    let (mut one, mut other) = (table.start(&mut bits), table.start(&mut bits));
    if bits.left() < 0 {
        return None;
    }
    while weights.len() < 255 {
        weights.push(one.symbol);
        one = table.after(one, &mut bits);
        std::mem::swap(&mut one, &mut other);
        if bits.left() < 0 {
            weights.push(one.symbol);
            return Some(weights);
        }
    }
    None
}
