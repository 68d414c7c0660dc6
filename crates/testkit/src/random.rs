//! Numbers that look random, for tests that make their own inputs: the same in every run.

/// The xorshift64* generator: the seed is all there is to it.
///
/// ```
/// use skep_testkit::random::Random;
///
/// let (mut one, mut same) = (Random::new(7), Random::new(7));
/// assert_eq!(one.next_u64(), same.next_u64());
/// ```
#[derive(Debug, Clone)]
pub struct Random(u64);

impl Random {
    /// Starts at a seed. From 0, which is no seed, only zeros would come.
    ///
    /// # Panics
    /// When the seed is 0.
    pub fn new(seed: u64) -> Self {
        assert_ne!(seed, 0, "a seed is not 0");
        Self(seed)
    }

    /// Returns the next number.
    pub fn next_u64(&mut self) -> u64 {
        self.0 ^= self.0 >> 12;
        self.0 ^= self.0 << 25;
        self.0 ^= self.0 >> 27;
        self.0.wrapping_mul(0x2545_f491_4f6c_dd1d)
    }

    /// Returns a number below `n`, or 0 when that is 0.
    pub fn below(&mut self, n: usize) -> usize {
        (self.next_u64() % n.max(1) as u64) as usize
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The first numbers of seed 1, as published implementations give them.
    #[test]
    fn it_is_xorshift64_star() {
        let mut random = Random::new(1);
        let first = [(); 3].map(|()| random.next_u64());
        assert_eq!(
            first,
            [5_180_492_295_206_395_165, 12_380_297_144_915_551_517, 13_389_498_078_930_870_103]
        );
    }
}
