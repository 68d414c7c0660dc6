//! Maps and sets whose keys are addresses of the own process.
//!
//! A module has hundreds of thousands of them, and nobody who could choose them gains anything by
//! collisions. Functions are asked for in the order of their addresses, so those of a page are near each
//! other in a table, in that order: what is asked for next is in the nearest cache.

use std::collections::{HashMap, HashSet};
use std::hash::{BuildHasherDefault, Hasher};

/// A map from addresses.
pub(crate) type AddressMap<V> = HashMap<u64, V, BuildHasherDefault<AddressHasher>>;

/// A set of addresses, or of what has one.
pub(crate) type AddressSet<K = u64> = HashSet<K, BuildHasherDefault<AddressHasher>>;

const GOLDEN: u64 = 0x9e37_79b9_7f4a_7c15;

/// Where functions begin: most linkers and compilers keep to that.
const ALIGNED: u32 = 4;
const PAGE: u32 = 12;
/// The bits that tell entries apart which are near each other in a table; the others say where they are.
const TAG: u64 = 0x7f << 57;

/// Hashes addresses, and what is told with them.
#[derive(Clone, Copy, Default, Debug)]
pub(crate) struct AddressHasher {
    mixed: u64,
    place: u64,
}

impl Hasher for AddressHasher {
    fn finish(&self) -> u64 {
        // The bits in the middle of the product differ most.
        self.mixed.rotate_left(26) & TAG | self.place & !TAG
    }

    fn write(&mut self, bytes: &[u8]) {
        bytes.iter().for_each(|byte| self.write_u64(u64::from(*byte)));
    }

    fn write_usize(&mut self, word: usize) {
        self.write_u64(word as u64);
    }

    fn write_u64(&mut self, word: u64) {
        self.mixed = (self.mixed.rotate_left(5) ^ word).wrapping_mul(GOLDEN);
        // Pages are anywhere: those that are full of short functions do not come together.
        let place = (word >> ALIGNED).wrapping_add((word >> PAGE).wrapping_mul(GOLDEN));
        self.place = self.place.wrapping_mul(GOLDEN).wrapping_add(place);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::hash::Hash;

    fn hash_of(key: impl Hash) -> u64 {
        let mut hasher = AddressHasher::default();
        key.hash(&mut hasher);
        hasher.finish()
    }

    #[test]
    fn addresses_of_a_module_spread_over_a_table() {
        // As linkers lay functions out: at multiples of 16, of 32, one behind the other.
        for step in [1u64, 16, 32, 48, 4096] {
            let mut low = vec![0u32; 1 << 10];
            let mut high = vec![0u32; 1 << 7];
            for i in 0..1u64 << 14 {
                let hash = hash_of(0x7f12_3456_7000 + i * step);
                low[hash as usize & 0x3ff] += 1;
                high[(hash >> 57) as usize] += 1;
            }
            assert!(low.iter().all(|n| *n < 64), "{step}: {:?}", low.iter().max());
            assert!(high.iter().all(|n| *n < 512), "{step}: {:?}", high.iter().max());
        }
    }

    #[test]
    fn all_that_is_in_a_key_counts() {
        assert_ne!(hash_of((1u64, 2i64)), hash_of((2u64, 1i64)));
        assert_ne!(hash_of((1u64, Some(0i64))), hash_of((1u64, None::<i64>)));
    }
}
