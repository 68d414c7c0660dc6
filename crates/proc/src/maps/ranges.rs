//! Ranges of addresses that are found one after another, and what is in them.

/// Disjoint ranges, each from a first to a last address. New ones are collected and merged in some
/// at a time, so that finding many one by one does not take quadratic time.
#[derive(Clone, Debug)]
pub(crate) struct Ranges<T> {
    /// Sorted, and apart from the rest: a search reads nothing else.
    firsts: Vec<u64>,
    rest: Vec<(u64, T)>,
    new: Vec<(u64, u64, T)>,
}

/// How many new ranges, at least, are searched one by one before they are merged in.
const NEW: usize = 16;

impl<T> Default for Ranges<T> {
    fn default() -> Self {
        Self { firsts: Vec::new(), rest: Vec::new(), new: Vec::new() }
    }
}

impl<T: Copy> Ranges<T> {
    pub(crate) fn is_empty(&self) -> bool {
        self.firsts.is_empty() && self.new.is_empty()
    }

    pub(crate) fn clear(&mut self) {
        self.firsts.clear();
        self.rest.clear();
        self.new.clear();
    }

    /// Calls `each` for addresses from the first on, with what is there; returns how many there were
    /// before the first one that is in no range.
    pub(crate) fn resolve(&self, addresses: &[u64], mut each: impl FnMut(T, u64)) -> usize {
        // Callers have many addresses in one function, or sorted ones.
        let Some((mut first, mut last, mut what)) = addresses.first().and_then(|a| self.find(*a))
        else {
            return 0;
        };
        for (i, &address) in addresses.iter().enumerate() {
            if !(first <= address && address <= last) {
                let Some(found) = self.find(address) else { return i };
                (first, last, what) = found;
            }
            each(what, address);
        }
        addresses.len()
    }

    fn find(&self, address: u64) -> Option<(u64, u64, T)> {
        // Without branches on what is compared: those would be mispredicted.
        let (mut at, mut size) = (0, self.firsts.len());
        while size > 1 {
            let half = size / 2;
            let middle = self.firsts.get(at + half).copied().unwrap_or(u64::MAX);
            at = std::hint::select_unpredictable(middle <= address, at + half, at);
            size -= half;
        }
        if let (Some(&first), Some(&(last, what))) = (self.firsts.get(at), self.rest.get(at))
            && first <= address
            && address <= last
        {
            return Some((first, last, what));
        }
        self.new.iter().find(|(first, last, _)| *first <= address && address <= *last).copied()
    }

    /// Adds what is known of the addresses from `first` to `last`; it is found from then on, also if
    /// it overlaps what was known before, as when a process maps something else meanwhile.
    pub(crate) fn insert(&mut self, first: u64, last: u64, what: T) {
        if self.new.is_empty() && self.rest.last().is_none_or(|(last, _)| *last < first) {
            // In order, as when everything is read.
            self.firsts.push(first);
            self.rest.push((last, what));
            return;
        }
        if self.new.len() >= NEW.max(self.firsts.len() / 64) {
            self.merge();
        }
        self.new.push((first, last, what));
    }

    /// The first and the last of the unknown addresses around an unknown one.
    pub(crate) fn gap(&self, address: u64) -> (u64, u64) {
        let after = self.firsts.partition_point(|first| *first <= address);
        let before = after.checked_sub(1).and_then(|at| self.rest.get(at));
        let mut first = before.map_or(0, |(last, _)| last.saturating_add(1));
        let mut last = self.firsts.get(after).map_or(u64::MAX, |first| first - 1);
        for (new_first, new_last, _) in &self.new {
            if *new_last < address {
                first = first.max(new_last + 1);
            } else if *new_first > address {
                last = last.min(new_first - 1);
            }
        }
        (first, last)
    }

    fn merge(&mut self) {
        if self.new.is_empty() {
            return;
        }
        let old =
            self.firsts.iter().zip(&self.rest).map(|(first, (last, what))| (*first, *last, *what));
        let mut all: Vec<(u64, u64, T)> = old.collect();
        all.append(&mut self.new);
        // Of ranges that begin together the newest comes last, and stays.
        all.sort_by_cached_key(|(first, ..)| *first);
        self.firsts.clear();
        self.rest.clear();
        for (first, last, what) in all {
            if self.firsts.last() == Some(&first) {
                self.firsts.pop();
                self.rest.pop();
            }
            if let Some((before, _)) = self.rest.last_mut() {
                *before = (*before).min(first.saturating_sub(1));
            }
            self.firsts.push(first);
            self.rest.push((last, what));
        }
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use super::*;

    /// Beside a map from each address: what is found is what was inserted there, what overlaps
    /// is found or unknown, and the newest is always found.
    #[test]
    fn any_order_of_insertion_finds_what_was_inserted() {
        let mut seed = 1u64;
        let mut random = |n: u64| {
            seed = seed.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
            (seed >> 33) % n
        };
        for overlaps in [false, true] {
            let (mut ranges, mut model) = (Ranges::default(), BTreeMap::<u64, Vec<u32>>::new());
            for number in 0..2000u32 {
                let (first, length) = (random(6000), random(5));
                let last = first + length;
                if !overlaps && model.range(first..=last).next().is_some() {
                    continue;
                }
                ranges.insert(first, last, number);
                (first..=last).for_each(|a| model.entry(a).or_default().push(number));
                assert!(ranges.find(last).is_some());
                if number % 100 == 0 {
                    for address in 0..6010 {
                        let found = ranges.find(address).map(|(.., what)| what);
                        let known = model.get(&address);
                        if overlaps {
                            assert!(found.is_none_or(|f| known.is_some_and(|k| k.contains(&f))));
                        } else {
                            assert_eq!(found, known.map(|k| k[0]), "{address}");
                        }
                    }
                }
            }
        }
    }

    #[test]
    fn gaps_reach_to_the_neighbors() {
        let mut ranges = Ranges::default();
        assert_eq!(ranges.gap(7), (0, u64::MAX));
        ranges.insert(10, 19, 'a');
        ranges.insert(30, u64::MAX, 'b');
        assert_eq!(ranges.gap(25), (20, 29));
        assert_eq!(ranges.find(u64::MAX), Some((30, u64::MAX, 'b')));
    }
}
