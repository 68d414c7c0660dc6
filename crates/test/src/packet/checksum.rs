//! The checksum of the Internet protocols: RFC 1071.

/// A sum of 16-bit words. What is added in several parts must have an even length in each but the
/// last.
#[derive(Clone, Copy, Default, Debug)]
pub(super) struct Sum(u64);

impl Sum {
    pub(super) fn add(self, bytes: &[u8]) -> Self {
        let (words, odd) = bytes.as_chunks::<2>();
        let sum: u64 = words.iter().map(|word| u64::from(u16::from_be_bytes(*word))).sum();
        Self(self.0 + sum + odd.first().map_or(0, |last| u64::from(*last) << 8))
    }

    pub(super) fn finish(self) -> u16 {
        let mut sum = self.0;
        while sum > 0xffff {
            sum = (sum & 0xffff) + (sum >> 16);
        }
        !(sum as u16)
    }
}

#[cfg(test)]
mod tests {
    use super::Sum;

    /// The example of RFC 1071, section 3.
    #[test]
    fn the_sum_is_that_of_the_rfc() {
        let bytes = [0x00, 0x01, 0xf2, 0x03, 0xf4, 0xf5, 0xf6, 0xf7];
        assert_eq!(Sum::default().add(&bytes).finish(), !0xddf2);
        assert_eq!(Sum::default().add(&bytes[..4]).add(&bytes[4..]).finish(), !0xddf2);
        assert_eq!(Sum::default().add(&[0xab]).finish(), !0xab00);
    }
}
