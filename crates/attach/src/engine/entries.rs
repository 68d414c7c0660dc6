//! The hooks of one function.

use crate::hook_list::AttachedHook;
use std::ops::Deref;
use std::slice;

/// The hooks of a function, in the order of attaching. Nearly all have one, which takes no memory of its
/// own: there may be a million functions.
#[derive(Debug)]
#[expect(clippy::box_collection, reason = "a vector would make all of them larger by a third")]
pub(super) enum Entries {
    One(AttachedHook),
    /// None, or several.
    NotOne(Option<Box<Vec<AttachedHook>>>),
}

impl Default for Entries {
    fn default() -> Self {
        Self::NotOne(None)
    }
}

impl Entries {
    /// Adds a hook behind the others.
    pub(super) fn push(&mut self, entry: AttachedHook) {
        *self = match std::mem::take(self) {
            Self::NotOne(None) => Self::One(entry),
            Self::One(first) => Self::NotOne(Some(Box::new(vec![first, entry]))),
            Self::NotOne(Some(mut all)) => {
                all.push(entry);
                Self::NotOne(Some(all))
            }
        };
    }

    /// Keeps those that are meant.
    pub(super) fn retain(&mut self, is_meant: impl Fn(&AttachedHook) -> bool) {
        *self = match std::mem::take(self) {
            Self::NotOne(Some(mut all)) => {
                all.retain(is_meant);
                match all.len() {
                    0 | 1 => all.pop().map_or(Self::NotOne(None), Self::One),
                    _ => Self::NotOne(Some(all)),
                }
            }
            Self::One(entry) if is_meant(&entry) => Self::One(entry),
            Self::One(_) | Self::NotOne(None) => Self::NotOne(None),
        };
    }

    pub(super) fn clear(&mut self) {
        *self = Self::default();
    }
}

impl Deref for Entries {
    type Target = [AttachedHook];

    fn deref(&self) -> &[AttachedHook] {
        match self {
            Self::One(entry) => slice::from_ref(entry),
            Self::NotOne(all) => all.as_ref().map_or(&[], |all| all),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::hook::Hook;
    use std::sync::Arc;

    #[test]
    fn hooks_stay_in_order() {
        let hook = Arc::new(Hook::of_diversion());
        let (mut entries, mut expected) = (Entries::default(), Vec::new());
        let entry = |seq| AttachedHook { hook: Arc::clone(&hook), cookie: 10 * seq, seq };
        let seen =
            |entries: &Entries| entries.iter().map(|e| (e.seq, e.cookie)).collect::<Vec<_>>();
        // Up to four of them, and down again in several ways.
        for step in 0..200_u64 {
            if expected.len() < 4 && step % 7 < 5 {
                entries.push(entry(step));
                expected.push((step, 10 * step));
            } else {
                let keep = |seq: u64| !(seq + step).is_multiple_of(3);
                entries.retain(|e| keep(e.seq));
                expected.retain(|(seq, _)| keep(*seq));
            }
            assert_eq!(seen(&entries), expected);
        }
        assert_eq!(Arc::strong_count(&hook), 1 + expected.len());
        entries.clear();
        assert!(entries.is_empty() && Arc::strong_count(&hook) == 1);
    }
}
