//! Numbers in order: first into steps by their highest bits, then each step by itself. Numbers that
//! are spread out take hardly any comparing, and no memory beside the result.

/// How many bits choose the step: the table of steps fits into a cache.
const STEP_BITS: u32 = 16;

/// Sorts addresses: each of them once, and for each given one its place among these.
pub(super) fn unique(addrs: &[u64]) -> (Vec<u64>, Vec<u32>) {
    let first = addrs.iter().copied().min().unwrap_or(0);
    let span = addrs.iter().map(|addr| addr - first).max().unwrap_or(0);
    if span >> 32 != 0 {
        // Nothing that a linker makes is so large.
        return compared(addrs);
    }
    let keys = addrs.iter().zip(0_u32..).map(|(addr, number)| ((addr - first) as u32, number));
    let mut keys = sort(keys, span as u32);
    let mut places = vec![0; addrs.len()];
    let (mut count, mut last) = (0_u32, None);
    // What is behind was read already, so the result takes the place of the keys.
    for at in 0..keys.len() {
        let key = keys.get(at).copied().unwrap_or(0);
        if last != Some(key >> 32) {
            last = Some(key >> 32);
            if let Some(slot) = keys.get_mut(count as usize) {
                *slot = (key >> 32) + first;
            }
            count += 1;
        }
        if let Some(place) = places.get_mut(key as u32 as usize) {
            *place = count - 1;
        }
    }
    keys.truncate(count as usize);
    (keys, places)
}

fn compared(addrs: &[u64]) -> (Vec<u64>, Vec<u32>) {
    let mut sorted = addrs.to_vec();
    sorted.sort_unstable();
    sorted.dedup();
    let place = |addr| u32::try_from(sorted.binary_search(addr).unwrap_or(0)).unwrap_or(0);
    let places = addrs.iter().map(place).collect();
    (sorted, places)
}

/// Sorts pairs whose first numbers are at most `highest`; they come as one number each.
pub(super) fn sort(pairs: impl Iterator<Item = (u32, u32)> + Clone, highest: u32) -> Vec<u64> {
    let shift = (32 - highest.leading_zeros()).saturating_sub(STEP_BITS);
    let mut ends = vec![0_u32; (highest >> shift) as usize + 1];
    let mut count = 0;
    for (number, _) in pairs.clone() {
        if let Some(end) = ends.get_mut((number >> shift) as usize) {
            *end += 1;
            count += 1;
        }
    }
    let mut sum = 0;
    for end in &mut ends {
        sum += std::mem::replace(end, sum);
    }
    let mut out = vec![0; count];
    // Each entry goes from where its step begins to where it ends.
    for (number, with) in pairs {
        if let Some(end) = ends.get_mut((number >> shift) as usize) {
            if let Some(slot) = out.get_mut(*end as usize) {
                *slot = u64::from(number) << 32 | u64::from(with);
            }
            *end += 1;
        }
    }
    let mut start = 0;
    for end in ends {
        let end = end as usize;
        if end - start > 1
            && let Some(step) = out.get_mut(start..end)
        {
            step.sort_unstable();
        }
        start = end;
    }
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Numbers that look random, the same ones each time.
    fn numbers(count: usize, bits: u32) -> Vec<u64> {
        let mut state = 7_u64;
        let next = |_| {
            state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
            state >> (64 - bits)
        };
        (0..count).map(next).collect()
    }

    #[test]
    fn each_address_is_at_its_place_among_the_sorted_ones() {
        for (count, bits) in
            [(0, 9), (1, 64), (5, 3), (1023, 40), (5000, 8), (5000, 32), (5000, 33), (5000, 64)]
        {
            let mut addrs = numbers(count, bits);
            addrs.extend(addrs.clone().iter().take(9));
            let (sorted, places) = unique(&addrs);
            let expected: Vec<u64> = addrs
                .iter()
                .copied()
                .collect::<std::collections::BTreeSet<_>>()
                .into_iter()
                .collect();
            assert_eq!(sorted, expected, "{count} of {bits} bits");
            let found: Vec<u64> = places.iter().map(|p| sorted[*p as usize]).collect();
            assert_eq!(found, addrs, "{count} of {bits} bits");
        }
        let ends = [u64::MAX, 0, u64::MAX];
        assert_eq!(unique(&ends), (vec![0, u64::MAX], vec![1, 0, 1]));
    }

    #[test]
    fn pairs_are_sorted_by_both_numbers() {
        let numbers: Vec<u32> = numbers(3000, 32).into_iter().map(|n| n as u32).collect();
        for highest in [0, 1, 700, 0xffff, 0x1_0000, 0x1_2345, u32::MAX] {
            let pair = |(n, i): (&u32, u32)| (n % highest.saturating_add(1).max(1), 9000 - i);
            let pairs = numbers.iter().zip(0..).map(pair);
            let mut expected: Vec<u64> =
                pairs.clone().map(|(a, b)| u64::from(a) << 32 | u64::from(b)).collect();
            expected.sort_unstable();
            assert_eq!(sort(pairs, highest), expected, "up to {highest}");
        }
    }
}
