//! Tables of finite state entropy codes (RFC 8878, section 4.1).

use super::bits::{Backward, Forward};

/// What a state stands for, and where it leads.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct State {
    pub symbol: u8,
    /// Bits that are added to `next` for the number of the next state.
    pub bits: u8,
    pub next: u16,
}

/// States, as many as a power of two says.
#[derive(Clone, Debug, Default)]
pub(super) struct Table {
    pub states: Vec<State>,
    /// The logarithm of their number.
    pub log: u32,
}

impl Table {
    /// A table of one symbol, which takes no bits.
    pub fn of_one(symbol: u8) -> Self {
        Self { states: vec![State { symbol, ..State::default() }], log: 0 }
    }

    /// The table for how often symbols are: -1 is less than once.
    pub fn of(counts: &[i16], log: u32) -> Option<Self> {
        let size = 1_usize << log;
        let mut states = vec![State::default(); size];
        let mut next: Vec<u32> = counts.iter().map(|count| count.unsigned_abs().into()).collect();
        // Rare symbols stand at the end,
        let mut end = size;
        for (symbol, _) in counts.iter().enumerate().filter(|(_, count)| **count == -1) {
            end = end.checked_sub(1)?;
            states.get_mut(end)?.symbol = symbol as u8;
        }
        // the others all over what is left.
        let step = (size >> 1) + (size >> 3) + 3;
        let mut at = 0;
        for (symbol, count) in counts.iter().enumerate() {
            for _ in 0..*count {
                states.get_mut(at)?.symbol = symbol as u8;
                at = (at + step) & (size - 1);
                while at >= end {
                    at = (at + step) & (size - 1);
                }
            }
        }
        if at != 0 {
            return None;
        }
        for state in &mut states {
            let next = next.get_mut(usize::from(state.symbol))?;
            let bits = log.checked_sub(next.checked_ilog2()?)?;
            state.bits = bits as u8;
            state.next = u16::try_from((*next << bits).checked_sub(size as u32)?).ok()?;
            *next += 1;
        }
        Some(Self { states, log })
    }

    /// Reads a table, of at most so many symbols and `1 << most` states; returns how many bytes it takes.
    pub fn read(bytes: &[u8], symbols: usize, most: u32) -> Option<(Self, usize)> {
        let mut bits = Forward { bytes, at: 0 };
        let log = bits.take(4)? + 5;
        if log > most {
            return None;
        }
        let mut left = 1_i32 << log;
        let mut counts: Vec<i16> = Vec::new();
        while left > 0 {
            let width = (left as u32 + 1).ilog2() as usize + 1;
            let low = (1 << (width - 1)) - 1;
            // Small values take a bit less.
            let short = (1 << width) - 1 - (left + 1);
            let before = bits.at;
            // The last value may be a short one at the very end.
            let mut value = match bits.take(width) {
                Some(value) => value as i32,
                None => bits.take(width - 1)? as i32,
            };
            if value & low < short {
                value &= low;
                bits.at = before + width - 1;
            } else if bits.at - before < width {
                return None;
            } else if value > low {
                value -= short;
            }
            let count = value - 1;
            left -= count.abs();
            counts.push(i16::try_from(count).ok()?);
            if count == 0 {
                loop {
                    let more = bits.take(2)?;
                    counts.extend((0..more).map(|_| 0));
                    if more < 3 || counts.len() > symbols {
                        break;
                    }
                }
            }
            if counts.len() > symbols {
                return None;
            }
        }
        (left == 0).then_some((Self::of(&counts, log)?, bits.at.div_ceil(8)))
    }

    #[inline]
    pub fn state(&self, number: u64) -> State {
        self.states.get(number as usize).copied().unwrap_or_default()
    }

    /// The first state.
    pub fn start(&self, bits: &mut Backward<'_>) -> State {
        self.state(bits.take(self.log))
    }

    /// The state behind one.
    #[inline]
    pub fn after(&self, state: State, bits: &mut Backward<'_>) -> State {
        self.state(u64::from(state.next) + bits.take(state.bits.into()))
    }
}
