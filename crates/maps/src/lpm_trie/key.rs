//! A key of a trie as bits: the number that count, and the address that they begin.

use std::sync::atomic::Ordering::Relaxed;

use crate::shm::copy;
use crate::shm::trie::Node;

/// A key: bits that count, and the address they are the beginning of.
#[derive(Clone, Copy)]
pub(super) struct Key {
    pub(super) length: u32,
    pub(super) data: *const u8,
    pub(super) bytes: u64,
    /// The first word of the address, first byte highest.
    pub(super) first: u64,
}

impl Key {
    /// # Safety
    /// `data` points to `bytes` readable bytes as long as the key is used.
    #[inline(always)]
    pub(super) unsafe fn new(length: u32, data: *const u8, bytes: u64) -> Self {
        let key = Self { length, data, bytes, first: 0 };
        Self { first: key.load(0), ..key }
    }

    /// Returns a word of the address, first byte highest.
    #[inline(always)]
    pub(super) fn word(&self, i: u64) -> u64 {
        if i == 0 { self.first } else { self.load(i) }
    }

    #[inline(always)]
    fn load(&self, i: u64) -> u64 {
        let at = i.wrapping_mul(8);
        let left = self.bytes.saturating_sub(at);
        // SAFETY: the maker of the key vouched for `bytes` bytes.
        let word = unsafe {
            if left >= 8 {
                copy::load8(self.data.add(at as usize))
            } else {
                copy::load_tail(self.data.add(at as usize), left as usize & 7)
            }
        };
        word.swap_bytes()
    }

    #[inline(always)]
    pub(super) fn bit(&self, i: u32) -> bool {
        self.word(u64::from(i >> 6)) >> (63 - (i & 63)) & 1 != 0
    }

    /// Tells whether a node's prefix of some length is the beginning of the address, when that is
    /// known of the first `from` bits.
    ///
    /// # Safety
    /// `from` is at most `length`, and that at most the bits of an address.
    #[inline(always)]
    pub(super) unsafe fn begins_with(&self, node: &Node<'_>, from: u32, length: u32) -> bool {
        if length < 64 {
            // Two shifts, as one by 64 is none.
            // SAFETY: the first word has bytes of the address, or is where they would be.
            return (self.first ^ unsafe { node.data_word(0) }) >> 1 >> (63 - length) == 0;
        }
        let mut i = from >> 6;
        loop {
            let left = length.wrapping_sub(i << 6);
            // SAFETY: at most the word behind the `length` bits: the caller's promise.
            let differ = self.word(u64::from(i)) ^ unsafe { node.data_word(u64::from(i)) };
            if left <= 64 {
                return left == 0 || differ >> (64u32.wrapping_sub(left) & 63) == 0;
            }
            if differ != 0 {
                return false;
            }
            i = i.wrapping_add(1);
        }
    }

    /// Counts the bits, at most `limit`, that an address shares with a node's.
    ///
    /// # Safety
    /// `limit` is at most the bits of an address.
    #[inline(always)]
    pub(super) unsafe fn common(&self, node: &Node<'_>, limit: u32) -> u32 {
        let mut i = 0u64;
        loop {
            let at = (i as u32).wrapping_mul(64);
            if at >= limit {
                return limit;
            }
            // SAFETY: below `limit`, the caller's promise.
            let differ = self.word(i) ^ unsafe { node.data_word(i) };
            if differ != 0 {
                return at.wrapping_add(differ.leading_zeros()).min(limit);
            }
            i = i.wrapping_add(1);
        }
    }
}

impl Key {
    /// Tells whether a node's key comes behind in the order of walks.
    pub(super) fn is_before(&self, node: &Node<'_>) -> bool {
        let length = node.length(node.state().load(Relaxed));
        // SAFETY: at most the node's length, which is cut at the bits of an address.
        let common = unsafe { self.common(node, length.min(self.length)) };
        if common == length {
            length < self.length
        } else {
            common < self.length && !self.bit(common)
        }
    }
}
