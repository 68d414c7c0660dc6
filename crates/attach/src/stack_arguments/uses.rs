//! What is known of the functions of a module, by number.

use super::track::Use;
use std::sync::atomic::{AtomicU16, Ordering};

/// What each function of a module uses, as far as it was followed: two bytes for each.
#[derive(Debug, Default)]
pub(crate) struct Uses(Vec<AtomicU16>);

/// It was followed.
const KNOWN: u16 = 1 << 15;
const RETURN_ADDRESS: u16 = 1 << 14;
const WRITES_CALLER: u16 = 1 << 13;
/// The words; more than are ever copied are as many as there is room for.
const WORDS: u16 = WRITES_CALLER - 1;

impl Uses {
    /// Nothing is known of so many functions.
    pub(crate) fn none(functions: usize) -> Self {
        Self::from_words(vec![0; functions])
    }

    /// What [`words`](Self::words) told.
    pub(crate) fn from_words(words: Vec<u16>) -> Self {
        Self(words.into_iter().map(AtomicU16::new).collect())
    }

    /// What is known, to be kept.
    pub(crate) fn words(&self) -> impl ExactSizeIterator<Item = u16> + '_ {
        self.0.iter().map(|word| word.load(Ordering::Relaxed))
    }

    /// How many functions were followed.
    pub(crate) fn known(&self) -> usize {
        self.words().filter(|word| word & KNOWN != 0).count()
    }

    pub(super) fn get(&self, n: usize) -> Option<Use> {
        let word = self.0.get(n)?.load(Ordering::Relaxed);
        (word & KNOWN != 0).then_some(Use {
            words: u32::from(word & WORDS),
            return_address: word & RETURN_ADDRESS != 0,
            writes_caller: word & WRITES_CALLER != 0,
        })
    }

    pub(super) fn set(&self, n: usize, what: Use) {
        let Some(word) = self.0.get(n) else { return };
        let words = u16::try_from(what.words).unwrap_or(WORDS).min(WORDS);
        let flag = |is_set: bool, flag| if is_set { flag } else { 0 };
        let flags =
            flag(what.return_address, RETURN_ADDRESS) | flag(what.writes_caller, WRITES_CALLER);
        word.store(KNOWN | flags | words, Ordering::Relaxed);
    }
}

#[cfg(test)]
mod tests {
    use super::super::track::{LARGE, TAKEN, UNKNOWN};
    use super::*;

    #[test]
    fn what_is_set_is_known_and_kept() {
        let all = [0, 1, UNKNOWN, TAKEN, LARGE, 4097, u32::MAX].into_iter().flat_map(|words| {
            [(false, false), (false, true), (true, false), (true, true)].map(|(a, b)| Use {
                words,
                return_address: a,
                writes_caller: b,
            })
        });
        let uses = Uses::none(40);
        for (n, what) in all.clone().enumerate() {
            uses.set(n, what);
        }
        let kept = Uses::from_words(uses.words().collect());
        assert_eq!(kept.known(), all.clone().count());
        for (n, what) in all.enumerate() {
            let words = what.words.min(WORDS.into());
            assert_eq!(kept.get(n), Some(Use { words, ..what }));
        }
        assert_eq!((kept.get(39), kept.get(40)), (None, None));
        uses.set(40, Use::default());
    }
}
