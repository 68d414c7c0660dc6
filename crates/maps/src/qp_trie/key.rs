//! Bytes of keys: a program's, a user's, or a leaf's.

use skep_isa::KeyShape;

use crate::shm::copy;

/// A key somewhere in memory that others may write to at the same time.
#[derive(Clone, Copy, Debug)]
pub(super) struct Key {
    pub(super) at: *const u8,
    pub(super) len: usize,
}

/// Multipliers of the hash (as in wyhash).
const MULTIPLIER: [u64; 2] = [0x9e37_79b9_7f4a_7c15, 0xd6e8_feb8_6659_fd93];

/// Multiplies to 128 bits and folds them.
#[inline(always)]
fn mix(a: u64, b: u64) -> u64 {
    let product = u128::from(a).wrapping_mul(u128::from(b));
    product as u64 ^ (product >> 64) as u64
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

    /// # Safety
    /// `i + 8 <= len`.
    #[inline(always)]
    unsafe fn word(&self, i: usize) -> u64 {
        // SAFETY: the caller's promise.
        unsafe { copy::load8(self.at.add(i)) }
    }

    /// Hashes the bytes.
    #[inline(always)]
    pub(super) fn hash(&self, seed: u64) -> u64 {
        let n = self.len;
        let mut h = seed ^ n as u64;
        // SAFETY: all loads are inside the key: whole words from `i` on while there are so many,
        // and the last ones from the end.
        unsafe {
            let (a, b) = if n > 16 {
                let mut i = 0usize;
                while i.wrapping_add(16) < n {
                    let (a, b) = (self.word(i), self.word(i.wrapping_add(8)));
                    h = mix(a ^ MULTIPLIER[0], b ^ h);
                    i = i.wrapping_add(16);
                }
                (self.word(n.wrapping_sub(16)), self.word(n.wrapping_sub(8)))
            } else if n >= 8 {
                (self.word(0), self.word(n.wrapping_sub(8)))
            } else {
                (copy::load_tail(self.at, n), 0)
            };
            mix(a ^ MULTIPLIER[0], mix(b ^ h, MULTIPLIER[1]) ^ MULTIPLIER[0])
        }
    }

    /// Tells whether two keys are the same.
    #[inline(always)]
    pub(super) fn is(&self, other: &Self) -> bool {
        let n = self.len;
        if n != other.len {
            return false;
        }
        // SAFETY: all loads are inside both keys.
        unsafe {
            if n < 8 {
                return copy::load_tail(self.at, n) == copy::load_tail(other.at, n);
            }
            let mut i = 0usize;
            while i.wrapping_add(16) <= n {
                let j = i.wrapping_add(8);
                if (self.word(i) ^ other.word(i)) | (self.word(j) ^ other.word(j)) != 0 {
                    return false;
                }
                i = i.wrapping_add(16);
            }
            // What is left, or more: the last 16 bytes, of shorter keys all.
            let (i, j) = (n.saturating_sub(16), n.wrapping_sub(8));
            (self.word(i) ^ other.word(i)) | (self.word(j) ^ other.word(j)) == 0
        }
    }

    /// Counts the bytes that two keys have in common at their beginning.
    #[inline(always)]
    pub(super) fn common(&self, other: &Self) -> usize {
        let n = self.len.min(other.len);
        let mut i = 0usize;
        // SAFETY: all loads are inside both keys.
        unsafe {
            while i.wrapping_add(8) <= n {
                let differ = self.word(i) ^ other.word(i);
                if differ != 0 {
                    return i.wrapping_add((differ.trailing_zeros() / 8) as usize);
                }
                i = i.wrapping_add(8);
            }
            let left = n.wrapping_sub(i);
            let differ =
                copy::load_tail(self.at.add(i), left) ^ copy::load_tail(other.at.add(i), left);
            if differ == 0 { n } else { i.wrapping_add((differ.trailing_zeros() / 8) as usize) }
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
        let room = match keys {
            KeyShape::Fixed(_) => cell,
            KeyShape::Bytes { .. } => {
                let Some((length, room)) = cell.split_first_chunk_mut::<4>() else { return };
                *length = (self.len as u32).to_ne_bytes();
                room
            }
        };
        let n = self.len.min(room.len());
        let (to, behind) = room.split_at_mut(n);
        behind.fill(0);
        let (words, tail) = to.as_chunks_mut::<8>();
        for (i, to) in words.iter_mut().enumerate() {
            // SAFETY: inside the key.
            *to = unsafe { self.word(i * 8) }.to_ne_bytes();
        }
        // SAFETY: inside the key.
        let last = unsafe { copy::load_tail(self.at.add(n - tail.len()), tail.len()) };
        for (to, from) in tail.iter_mut().zip(last.to_ne_bytes()) {
            *to = from;
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
        for n in [1, 2, 3, 7, 8, 9, 15, 16, 17, 24, 31, 33, 40] {
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
                assert_eq!(key(a).hash(7) == key(b).hash(7), a == b, "{a:?} {b:?}");
            }
        }
    }
}
