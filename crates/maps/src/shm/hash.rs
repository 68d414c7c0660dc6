//! The hash of keys, part of the file format.

use super::copy;

/// Hashes a key: a folded multiplication for each word and one at the end, without which page
/// addresses crowd. That is enough against accidents; a secret seed for each map is what stands
/// against intent.
///
/// # Safety
/// `key..key+len` is readable.
#[inline(always)]
pub(crate) unsafe fn hash(seed: u64, key: *const u8, len: usize) -> u64 {
    const K: u64 = 0x9fb2_1c65_1e98_df25;
    let mix = |a: u64| {
        let wide = u128::from(a) * u128::from(K);
        (wide as u64) ^ ((wide >> 64) as u64)
    };
    let mut h = seed ^ 0x517c_c1b7_2722_0a95;
    if len == 8 {
        // SAFETY: the caller's duty.
        h = mix(h ^ unsafe { copy::load8(key) });
        return mix(h ^ K.rotate_left(32));
    }
    let mut i = 0usize;
    // SAFETY: whole words first, then what remains.
    unsafe {
        while len.wrapping_sub(i) >= 8 {
            h = mix(h ^ copy::load8(key.add(i)));
            i = i.wrapping_add(8);
        }
        if i < len {
            h = mix(h ^ copy::load_tail(key.add(i), len.wrapping_sub(i)));
        }
    }
    mix(h ^ K.rotate_left(32))
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Keys as programs have them, in as many buckets: chains must be as short as chance makes
    /// them.
    #[test]
    fn usual_keys_spread_evenly() {
        const N: u32 = 1 << 14;
        type Make = fn(u32) -> Vec<u8>;
        let kinds: [(&str, Make); 8] = [
            ("u32", |i| i.to_ne_bytes().to_vec()),
            ("u64", |i| u64::from(i).to_ne_bytes().to_vec()),
            ("page addresses", |i| {
                (0x7f12_3456_0000u64 + u64::from(i) * 4096).to_ne_bytes().to_vec()
            }),
            ("code addresses", |i| {
                (0x5555_5555_4000u64 + u64::from(i) * 16).to_ne_bytes().to_vec()
            }),
            ("pid and tid", |i| (u64::from(i) << 32 | u64::from(i)).to_ne_bytes().to_vec()),
            ("high half", |i| (u64::from(i) << 32).to_ne_bytes().to_vec()),
            ("names", |i| format!("function_number_{i}").into_bytes()),
            ("padded", |i| {
                let mut k = vec![7; 104];
                k[..4].copy_from_slice(&i.to_ne_bytes());
                k
            }),
        ];
        for seed in [0, 1, 0xdead_beef_1234_5678] {
            for (name, make) in kinds {
                for shift in [0, 32] {
                    let mut counts = vec![0u32; N as usize];
                    for i in 0..N {
                        let key = make(i);
                        // SAFETY: the key is that long.
                        let h = unsafe { hash(seed, key.as_ptr(), key.len()) };
                        counts[(h >> shift) as usize & (N as usize - 1)] += 1;
                    }
                    // Sum of squares of a Poisson distribution with mean 1 is 2 a bucket.
                    let squares: u32 = counts.iter().map(|c| c * c).sum();
                    assert!(
                        squares < N * 9 / 4,
                        "{name}, seed {seed:#x}, shift {shift}: {:.2}",
                        f64::from(squares) / f64::from(N)
                    );
                }
            }
        }
    }
}
