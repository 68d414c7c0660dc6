//! Places in sorted lists, for who asks for them in the same order.

use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};

/// Items that are looked at before the whole list is searched.
const NEAR: usize = 4;

/// Where the last answer was. Whatever it is, answers are right: it is only where the search begins.
#[derive(Debug, Default)]
pub(crate) struct Cursor(AtomicUsize);

impl Cursor {
    /// As that of slices: the number of items that `is_before` is true for, which come first.
    #[inline(always)]
    pub(crate) fn partition_point<T>(&self, items: &[T], is_before: impl Fn(&T) -> bool) -> usize {
        let last = self.0.load(Relaxed);
        let begins = match last.checked_sub(1) {
            Some(before) => items.get(before).is_some_and(&is_before),
            None => true,
        };
        let near = if begins { last..last + NEAR } else { 0..0 };
        let mut found = None;
        for at in near {
            if items.get(at).is_none_or(|item| !is_before(item)) {
                found = Some(at.min(items.len()));
                break;
            }
        }
        let found = found.unwrap_or_else(|| items.partition_point(&is_before));
        self.0.store(found, Relaxed);
        found
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn answers_are_those_of_a_search_wherever_the_last_one_was() {
        for len in [0, 1, 2, 3, 7, 40] {
            let items: Vec<u64> = (0..len).map(|n| 3 * n + n % 2).collect();
            let cursor = Cursor::default();
            for step in 0..2000_u64 {
                let asked = if step % 5 < 3 { step / 5 % 140 } else { step * 7919 % 140 };
                assert_eq!(
                    cursor.partition_point(&items, |item| *item <= asked),
                    items.partition_point(|item| *item <= asked)
                );
            }
            // Of a longer list.
            let shorter = &items[..items.len() / 2];
            assert_eq!(cursor.partition_point(shorter, |_| true), shorter.len());
        }
    }
}
