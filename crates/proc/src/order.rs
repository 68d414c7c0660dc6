//! Sorting by a number, where there may be a million things: symbols and pieces of code by their address.

/// Fewer are not worth it.
const FEW: usize = 256;

/// Sorts by a number; what has the same number stays in order. Takes time for each bit by which the
/// numbers differ, and not for each comparison.
pub(crate) fn sort_by_number<T: Copy>(all: &mut [T], number: impl Fn(&T) -> u64) {
    let bounds = all.iter().map(&number).fold(None, |bounds, n| match bounds {
        None => Some((n, n)),
        Some((least, most)) => Some((n.min(least), n.max(most))),
    });
    let (least, most) = bounds.unwrap_or_default();
    // A number's distance from the least, and below it the place that it comes from.
    let place = usize::BITS - all.len().leading_zeros();
    let end = place + u64::BITS - (most - least).leading_zeros();
    if all.len() < FEW || end > u64::BITS {
        return all.sort_by_cached_key(number);
    }
    if all.is_sorted_by_key(&number) {
        return;
    }
    let keys = all.iter().zip(0..).map(|(one, at)| (number(one) - least) << place | at);
    let keys = sorted(keys.collect(), place, end);
    let from = |key: &u64| all.get((key & ((1 << place) - 1)) as usize).copied();
    let sorted: Vec<T> = keys.iter().filter_map(from).collect();
    if sorted.len() == all.len() {
        all.copy_from_slice(&sorted);
    }
}

/// Sorts numbers by those of their bits from `start` to `end`, eight at a time, the lowest first.
fn sorted(mut keys: Vec<u64>, start: u32, end: u32) -> Vec<u64> {
    let mut other = vec![0; keys.len()];
    for shift in (start..end).step_by(8) {
        let digit = |key: u64| usize::from((key >> shift) as u8);
        let mut places = [0_usize; 256];
        for key in &keys {
            places[digit(*key)] += 1;
        }
        let mut next = 0;
        for place in &mut places {
            next += std::mem::replace(place, next);
        }
        for key in &keys {
            let place = &mut places[digit(*key)];
            if let Some(to) = other.get_mut(*place) {
                *to = *key;
            }
            *place += 1;
        }
        std::mem::swap(&mut keys, &mut other);
    }
    keys
}

#[cfg(test)]
mod tests {
    use super::sort_by_number;

    #[test]
    fn it_sorts_as_the_standard_library_does() {
        let mut state = 1_u64;
        let mut random = move || {
            state ^= state << 13;
            state ^= state >> 7;
            state ^= state << 17;
            state
        };
        for bits in 0..=64 {
            for len in [0, 1, 255, 256, 257, 1000, 4099] {
                let base = if bits == 64 { 0 } else { random() };
                let number = |n: u64| base.saturating_add(n.checked_shr(64 - bits).unwrap_or(0));
                let mut all: Vec<(u64, usize)> =
                    (0..len).map(|at| (number(random()), at)).collect();
                let mut expected = all.clone();
                expected.sort_by_key(|one| one.0);
                sort_by_number(&mut all, |one| one.0);
                assert_eq!(all, expected, "{len} of {bits} bits");
                expected.sort_by_key(|one| u64::MAX - one.0);
                sort_by_number(&mut all, |one| u64::MAX - one.0);
                assert_eq!(all, expected, "{len} of {bits} bits, in reverse");
            }
        }
    }
}
