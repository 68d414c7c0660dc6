//! Bytes of keys: a program's, a user's, or a leaf's.

use std::hint::select_unpredictable;

use skep_isa::KeyShape;

#[cfg(feature = "users")]
use crate::shm::PAGE;
use crate::shm::copy;

/// A key somewhere in memory that others may write to at the same time.
#[derive(Clone, Copy, Debug)]
pub(super) struct Key {
    pub(super) at: *const u8,
    pub(super) len: usize,
}

/// What hashes of keys begin with: of each map others.
#[derive(Clone, Copy, Debug)]
pub(super) struct Seeds([u64; 4]);

impl Seeds {
    pub(super) fn of(seed: u64) -> Self {
        // SplitMix64.
        let nth = |n: u64| {
            let z = seed.wrapping_add(n.wrapping_mul(0x9e37_79b9_7f4a_7c15));
            let z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
            let z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
            z ^ (z >> 31)
        };
        Self([1, 2, 3, 4].map(nth))
    }
}

/// Multiplies to 128 bits and folds them.
#[inline(always)]
fn mix(a: u64, b: u64) -> u64 {
    let product = u128::from(a).wrapping_mul(u128::from(b));
    product as u64 ^ (product >> 64) as u64
}

/// Where four words begin that cover all of a key of 8 to 32 bytes.
#[inline(always)]
fn four_words(n: usize) -> [usize; 4] {
    let last = n.wrapping_sub(8);
    let second = last.min(8);
    [0, second, last.wrapping_sub(second), last]
}

impl Key {
    /// # Safety
    /// `at..at+len` stays readable as long as the key is used.
    #[inline(always)]
    pub(super) unsafe fn new(at: *const u8, len: usize) -> Self {
        Self { at, len }
    }

    /// Returns a byte; `None` at the end.
    #[inline(always)]
    pub(super) fn byte(&self, i: usize) -> Option<u8> {
        // SAFETY: inside the key.
        (i < self.len).then(|| unsafe { copy::load1(self.at.add(i)) })
    }

    /// As [`Key::byte`], for who multiplies it.
    #[inline(always)]
    pub(super) fn wide_byte(&self, i: usize) -> Option<u64> {
        // SAFETY: inside the key.
        (i < self.len).then(|| unsafe { copy::load1_at(self.at, i) })
    }

    /// # Safety
    /// `i + 8 <= len`.
    #[inline(always)]
    unsafe fn word(&self, i: usize) -> u64 {
        // SAFETY: the caller's promise.
        unsafe { copy::load8_at(self.at, i) }
    }

    /// Returns the bytes of a key shorter than eight as a number; keys of one length that differ
    /// have different ones.
    ///
    /// # Safety
    /// `len < 8`.
    #[inline(always)]
    unsafe fn short(&self) -> u64 {
        let n = self.len;
        // SAFETY: of four to seven bytes the first four and the last four, of one to three the first,
        // the middle and the last.
        unsafe {
            if n >= 4 {
                let (low, high) = (copy::load4(self.at), copy::load4(self.at.add(n & 3)));
                return u64::from(low) | u64::from(high) << 32;
            }
            if n == 0 {
                return 0;
            }
            let byte = |i: usize| u64::from(copy::load1(self.at.add(i)));
            byte(0) | byte(n >> 1) << 8 | byte(n.wrapping_sub(1)) << 16
        }
    }

    /// Hashes the bytes (as wyhash does, without its last step). It is part of the format of files:
    /// buckets of the cache are found by it.
    ///
    /// Lengths of text differ from key to key, and each branch that depends on them is one that the
    /// processor cannot foresee. So all lengths from 8 to 32 are one case.
    #[inline(always)]
    pub(super) fn hash(&self, seeds: &Seeds) -> u64 {
        let (mut at, mut n) = (self.at, self.len);
        let [a, b, c, d] = seeds.0;
        let b = b ^ n as u64;
        if n < 8 {
            // SAFETY: as just checked.
            let word = unsafe { self.short() };
            return mix(word ^ a, b);
        }
        let (mut b, mut d) = (b, d);
        // SAFETY: all loads are inside the key: of a longer one 32 bytes at a time, and then the last
        // 32.
        unsafe {
            if n > 32 {
                while n > 32 {
                    let word = |i: usize| copy::load8_at(at, i);
                    b = mix(word(0) ^ a, word(8) ^ b);
                    d = mix(word(16) ^ c, word(24) ^ d);
                    (at, n) = (at.add(32), n.wrapping_sub(32));
                }
                (at, n) = (at.sub(32usize.wrapping_sub(n)), 32);
            }
            let [w, x, y, z] = four_words(n).map(|i| copy::load8_at(at, i));
            mix(w ^ a, x ^ b) ^ mix(y ^ c, z ^ d)
        }
    }

    /// Tells whether a key has the same bytes as another of its length.
    #[inline(always)]
    pub(super) fn same_bytes(&self, other: &Self) -> bool {
        let (mut at, mut n) = (self.at, self.len);
        let mut with = other.at;
        // SAFETY: all loads are inside both keys, as those of the hash.
        unsafe {
            if n < 8 {
                return self.short() == Self::new(with, n).short();
            }
            if n > 32 {
                while n > 32 {
                    let differ = |i: usize| copy::differ8_at(at, with, i);
                    if differ(0) | differ(8) | differ(16) | differ(24) != 0 {
                        return false;
                    }
                    (at, with, n) = (at.add(32), with.add(32), n.wrapping_sub(32));
                }
                let back = 32usize.wrapping_sub(n);
                (at, with, n) = (at.sub(back), with.sub(back), 32);
            }
            let [a, b, c, d] = four_words(n).map(|i| copy::differ8_at(at, with, i));
            a | b | c | d == 0
        }
    }

    /// Tells whether two keys are the same.
    #[cfg(test)]
    fn is(&self, other: &Self) -> bool {
        self.len == other.len && self.same_bytes(other)
    }

    /// Counts the bytes that two keys have in common at their beginning.
    #[inline(always)]
    pub(super) fn common(&self, other: &Self) -> usize {
        let n = self.len.min(other.len);
        let first = |differ: u64| (differ.trailing_zeros() / 8) as usize;
        // SAFETY: all loads are inside both keys.
        unsafe {
            let Some(last) = n.checked_sub(8) else {
                let differ = copy::load_tail(self.at, n) ^ copy::load_tail(other.at, n);
                return if differ == 0 { n } else { first(differ) };
            };
            let differ = |i: usize| copy::differ8_at(self.at, other.at, i);
            // How far most keys are the same: where that ends cannot be foreseen, and a wrong guess
            // takes longer.
            let (second, third) = (last.min(8), last.min(16));
            let (a, b, c) = (differ(0), differ(second), differ(third));
            if a | b | c != 0 {
                let (at, word) = select_unpredictable(b != 0, (second, b), (third, c));
                let (at, word) = select_unpredictable(a != 0, (0, a), (at, word));
                return at.wrapping_add(first(word));
            }
            let mut i = 24usize;
            while i < last {
                let word = differ(i);
                if word != 0 {
                    return i.wrapping_add(first(word));
                }
                i = i.wrapping_add(8);
            }
            // Some of these bytes may have been looked at; those are the same.
            let word = differ(last);
            if word == 0 { n } else { last.wrapping_add(first(word)) }
        }
    }

    /// Tells whether a key comes before another, or neither, or behind it.
    #[inline(always)]
    pub(super) fn compare(&self, other: &Self) -> std::cmp::Ordering {
        let d = self.common(other);
        // No byte is before all bytes.
        self.byte(d)
            .map_or(0, |b| u32::from(b).wrapping_add(1))
            .cmp(&other.byte(d).map_or(0, |b| u32::from(b).wrapping_add(1)))
    }

    /// Fills a cell with the key; one that is too long for it is garbage, and cut.
    pub(super) fn write_cell(&self, keys: KeyShape, cell: &mut [u8]) {
        self.write_this_cell(keys, cell);
    }

    /// As [`Key::write_cell`], for who fills many.
    #[inline(always)]
    pub(super) fn write_this_cell(&self, keys: KeyShape, cell: &mut [u8]) {
        let room = match keys {
            KeyShape::Fixed(_) => cell,
            KeyShape::Bytes { .. } => {
                let Some((length, room)) = cell.split_first_chunk_mut::<4>() else { return };
                *length = (self.len as u32).to_ne_bytes();
                room
            }
        };
        let n = self.len.min(room.len());
        #[cfg(feature = "users")]
        if room.len() >= 16 && self.at as u64 % PAGE <= PAGE - 16 {
            // SAFETY: inside the key, or in the page that it begins in.
            return unsafe { copy::load_padded(room, self.at, n) };
        }
        // SAFETY: inside the key.
        unsafe { self.copy_to(n, room) };
        room[n..].fill(0);
    }

    /// Copies the first `n` bytes to the beginning of `to`; some behind them may be cleared.
    ///
    /// # Safety
    /// `n <= len`; `to` has as many bytes.
    #[inline(always)]
    pub(super) unsafe fn copy_to(&self, n: usize, to: &mut [u8]) {
        // SAFETY: inside the key.
        let word = |i: usize| unsafe { self.word(i) }.to_ne_bytes();
        if n >= 8 {
            let (words, _) = to[..n].as_chunks_mut::<8>();
            for (i, to) in words.iter_mut().enumerate() {
                *to = word(i * 8);
            }
            if let Some(last) = to[..n].last_chunk_mut::<8>() {
                *last = word(n - 8);
            }
            return;
        }
        // SAFETY: inside the key.
        let word = unsafe { copy::load_tail(self.at, n) }.to_ne_bytes();
        match to.first_chunk_mut::<8>() {
            Some(to) => *to = word,
            None => to[..n].copy_from_slice(&word[..n]),
        }
    }

    /// Returns the first eight bytes as a number in the order of keys.
    pub(super) fn head(&self) -> u64 {
        let n = self.len.min(8);
        // SAFETY: inside the key.
        let word = unsafe { if n == 8 { self.word(0) } else { copy::load_tail(self.at, n) } };
        word.swap_bytes()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn key(bytes: &[u8]) -> Key {
        // SAFETY: the tests keep the bytes.
        unsafe { Key::new(bytes.as_ptr(), bytes.len()) }
    }

    #[test]
    fn keys_compare_as_bytes_do() {
        let mut all: Vec<Vec<u8>> = vec![vec![]];
        for n in [1, 2, 3, 4, 5, 7, 8, 9, 15, 16, 17, 24, 31, 32, 33, 40, 63, 64, 65, 97] {
            for last in [0, 1, 0x7f, 0x80, 0xff] {
                let mut bytes = vec![0x61; n];
                bytes[n - 1] = last;
                all.push(bytes.clone());
                bytes[n / 2] = last;
                all.push(bytes);
            }
        }
        for a in &all {
            for b in &all {
                let common = a.iter().zip(b).take_while(|(a, b)| a == b).count();
                assert_eq!(key(a).common(&key(b)), common, "{a:?} {b:?}");
                assert_eq!(key(a).is(&key(b)), a == b);
                assert_eq!(key(a).compare(&key(b)), a.cmp(b));
                let seeds = Seeds::of(7);
                assert_eq!(key(a).hash(&seeds) == key(b).hash(&seeds), a == b, "{a:?} {b:?}");
            }
        }
    }
}
