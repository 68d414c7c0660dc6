//! Sequences: how many literals to copy, and what to repeat after them (RFC 8878, section 3.1.1.3.2).

use super::bits::Backward;
use super::fse::Table;

const LITERALS: [i16; 36] = [
    4, 3, 2, 2, 2, 2, 2, 2, 2, 2, 2, 2, 2, 1, 1, 1, 2, 2, 2, 2, 2, 2, 2, 2, 2, 3, 2, 1, 1, 1, 1, 1,
    -1, -1, -1, -1,
];
const OFFSETS: [i16; 29] =
    [1, 1, 1, 1, 1, 1, 2, 2, 2, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, -1, -1, -1, -1, -1];
const MATCHES: [i16; 53] = [
    1, 4, 3, 2, 2, 2, 2, 2, 2, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1,
    1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, -1, -1, -1, -1, -1, -1, -1,
];
/// Where the lengths of codes begin, and how many bits are added: of literals from code 16 on,
const LITERAL_LENGTHS: [(u32, u8); 20] = [
    (16, 1),
    (18, 1),
    (20, 1),
    (22, 1),
    (24, 2),
    (28, 2),
    (32, 3),
    (40, 3),
    (48, 4),
    (64, 6),
    (128, 7),
    (256, 8),
    (512, 9),
    (1 << 10, 10),
    (1 << 11, 11),
    (1 << 12, 12),
    (1 << 13, 13),
    (1 << 14, 14),
    (1 << 15, 15),
    (1 << 16, 16),
];
/// and of matches from code 32 on.
const MATCH_LENGTHS: [(u32, u8); 21] = [
    (35, 1),
    (37, 1),
    (39, 1),
    (41, 1),
    (43, 2),
    (47, 2),
    (51, 3),
    (59, 3),
    (67, 4),
    (83, 4),
    (99, 5),
    (131, 7),
    (259, 8),
    (515, 9),
    (1027, 10),
    (2051, 11),
    (4099, 12),
    (8195, 13),
    (16387, 14),
    (32771, 15),
    (65539, 16),
];

/// What blocks take over from those before.
#[derive(Debug)]
pub(super) struct Sequences {
    literals: Table,
    offsets: Table,
    matches: Table,
    /// The last three offsets.
    recent: [usize; 3],
}

impl Sequences {
    pub fn new() -> Self {
        let none = Table::default;
        Self { literals: none(), offsets: none(), matches: none(), recent: [1, 4, 8] }
    }

    /// Appends what a block becomes: at most `most` bytes. What `out` has may be repeated.
    pub fn run(
        &mut self,
        section: &[u8],
        mut literals: &[u8],
        most: usize,
        out: &mut Vec<u8>,
    ) -> Option<()> {
        let end = out.len().checked_add(most)?;
        let (count, rest) = count(section)?;
        if count > 0 {
            let bits = self.tables(rest)?;
            self.copy(bits, count, &mut literals, end, out)?;
        } else if !rest.is_empty() {
            return None;
        }
        if literals.len() > end - out.len() {
            return None;
        }
        out.extend_from_slice(literals);
        Some(())
    }

    /// Reads the tables, and returns the bits behind them.
    fn tables<'a>(&mut self, section: &'a [u8]) -> Option<Backward<'a>> {
        let (modes, mut rest) = section.split_first()?;
        if modes & 3 != 0 {
            return None;
        }
        let tables = [
            (&mut self.literals, &LITERALS[..], 6, 36, 9),
            (&mut self.offsets, &OFFSETS, 5, 32, 8),
            (&mut self.matches, &MATCHES, 6, 53, 9),
        ];
        for ((table, usual, log, symbols, most), shift) in tables.into_iter().zip([6, 4, 2]) {
            match modes >> shift & 3 {
                0 => *table = Table::of(usual, log)?,
                1 => {
                    let (symbol, behind) = rest.split_first()?;
                    if usize::from(*symbol) >= symbols {
                        return None;
                    }
                    (*table, rest) = (Table::of_one(*symbol), behind);
                }
                2 => {
                    let (new, size) = Table::read(rest, symbols, most)?;
                    (*table, rest) = (new, rest.get(size..)?);
                }
                _ if table.states.is_empty() => return None,
                _ => {}
            }
        }
        Backward::new(rest)
    }

    fn copy(
        &mut self,
        mut bits: Backward<'_>,
        count: usize,
        literals: &mut &[u8],
        end: usize,
        out: &mut Vec<u8>,
    ) -> Option<()> {
        let Self { literals: of_literals, offsets: of_offsets, matches: of_matches, recent } = self;
        let mut literal = of_literals.start(&mut bits);
        let mut offset = of_offsets.start(&mut bits);
        let mut repeat = of_matches.start(&mut bits);
        for number in 0..count {
            let value = (1 << offset.symbol) + bits.take(offset.symbol.into()) as usize;
            let repeated = length(repeat.symbol, 32, 3, &MATCH_LENGTHS, &mut bits)?;
            let copied = length(literal.symbol, 16, 0, &LITERAL_LENGTHS, &mut bits)?;
            if copied > literals.len() || copied + repeated > end - out.len() {
                return None;
            }
            let (now, later) = literals.split_at_checked(copied)?;
            out.extend_from_slice(now);
            *literals = later;
            repeat_from(distance(recent, value, copied)?, repeated, out)?;
            if number + 1 < count {
                literal = of_literals.after(literal, &mut bits);
                repeat = of_matches.after(repeat, &mut bits);
                offset = of_offsets.after(offset, &mut bits);
            }
        }
        (bits.left() == 0).then_some(())
    }
}

/// How many sequences there are, and what is behind that.
fn count(section: &[u8]) -> Option<(usize, &[u8])> {
    match section {
        [255, low, high, rest @ ..] => {
            Some((usize::from(u16::from_le_bytes([*low, *high])) + 0x7f00, rest))
        }
        [count, rest @ ..] if *count < 128 => Some((usize::from(*count), rest)),
        [high, low, rest @ ..] if *high < 255 => {
            Some((usize::from(high - 128) << 8 | usize::from(*low), rest))
        }
        _ => None,
    }
}

/// The length of a code: up to `simple` it is the code itself and `least`.
#[inline]
fn length(
    code: u8,
    simple: u8,
    least: usize,
    lengths: &[(u32, u8)],
    bits: &mut Backward<'_>,
) -> Option<usize> {
    let Some(at) = code.checked_sub(simple) else { return Some(usize::from(code) + least) };
    let (start, more) = lengths.get(usize::from(at))?;
    Some(*start as usize + bits.take(u32::from(*more)) as usize)
}

/// How far back a value of an offset leads; small ones are recent offsets.
fn distance(recent: &mut [usize; 3], value: usize, literals: usize) -> Option<usize> {
    let [one, two, three] = *recent;
    let distance = match (value, literals) {
        (4.., _) => value - 3,
        (1, 1..) => return Some(one),
        (2, 1..) | (1, 0) => {
            *recent = [two, one, three];
            return Some(two);
        }
        (3, 1..) | (2, 0) => three,
        (3, 0) => one.checked_sub(1).filter(|distance| *distance > 0)?,
        _ => return None,
    };
    *recent = [distance, one, two];
    Some(distance)
}

/// Appends `length` bytes, each as the one so far before it.
#[inline]
fn repeat_from(distance: usize, length: usize, out: &mut Vec<u8>) -> Option<()> {
    let start = out.len().checked_sub(distance)?;
    let mut left = length;
    while left > 0 {
        // What was appended repeats too.
        let size = left.min(out.len() - start);
        out.extend_from_within(start..start + size);
        left -= size;
    }
    Some(())
}
