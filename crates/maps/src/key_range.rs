//! Ranges of keys, for maps whose keys have an order.

use std::ops::{Bound, RangeBounds};

/// A range of keys in the order of their bytes.
///
/// ```
/// use std::ops::Bound::{Excluded, Unbounded};
///
/// use skep_maps::KeyRange;
///
/// let etc = KeyRange::prefix(b"/etc/");
/// assert!(etc.contains(b"/etc/passwd") && !etc.contains(b"/etc0"));
/// let behind = KeyRange::new(Excluded(b"b".as_slice()), Unbounded);
/// assert!(behind.contains(b"ba") && !behind.contains(b"b"));
/// ```
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct KeyRange {
    from: Bound<Vec<u8>>,
    to: Bound<Vec<u8>>,
}

impl KeyRange {
    /// Every key.
    pub const ALL: Self = Self { from: Bound::Unbounded, to: Bound::Unbounded };

    /// Makes the range of keys between two bounds. It is empty if no key can be between them.
    #[must_use]
    pub fn new(from: Bound<&[u8]>, to: Bound<&[u8]>) -> Self {
        Self { from: from.map(<[u8]>::to_vec), to: to.map(<[u8]>::to_vec) }
    }

    /// Makes the range of keys that begin with some bytes.
    #[must_use]
    pub fn prefix(prefix: &[u8]) -> Self {
        // Behind them comes what is one more in the last byte that can be.
        let to = prefix.iter().rposition(|b| *b != u8::MAX).map_or(Bound::Unbounded, |last| {
            let mut to = prefix[..=last].to_vec();
            to[last] += 1;
            Bound::Excluded(to)
        });
        Self { from: Bound::Included(prefix.to_vec()), to }
    }

    /// Tells whether a key lies in the range.
    #[must_use]
    pub fn contains(&self, key: &[u8]) -> bool {
        (self.from(), self.to()).contains(key)
    }

    /// Returns where the range begins.
    #[must_use]
    pub fn from(&self) -> Bound<&[u8]> {
        self.from.as_ref().map(Vec::as_slice)
    }

    /// Returns where the range ends.
    #[must_use]
    pub fn to(&self) -> Bound<&[u8]> {
        self.to.as_ref().map(Vec::as_slice)
    }
}

/// Which of the elements around a key is looked up.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Nearest {
    /// The one with the greatest key that is not above it.
    Floor,
    /// The one with the least key that is not below it.
    Ceiling,
    /// The one with the longest key that it begins with.
    LongestPrefix,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_prefix_is_a_range() {
        let keys: [&[u8]; 9] =
            [b"", b"a", b"a\xff", b"a\xff\0", b"a\xff\xff", b"b", b"\xff", b"\xff\xff", b"\xfe"];
        for prefix in keys {
            let range = KeyRange::prefix(prefix);
            for key in keys {
                assert_eq!(range.contains(key), key.starts_with(prefix), "{prefix:?} {key:?}");
            }
        }
    }
}
