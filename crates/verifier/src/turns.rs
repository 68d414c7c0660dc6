//! Loops that end by themselves, and whether a way that leads back to where it began is sure to end.
//!
//! `may_goto`, helpers that call back and iterators take so many turns and no more. A path that comes
//! to a state it was in before can be left there if one of the loops that it is inside of has taken a
//! turn on the way: that loop can do so only so often. A turn of a loop that began on the way counts
//! for nothing, as the next time round there is another one.
//!
//! Loops inside of others begin anew with each turn of those. So what counts is the first, in the order
//! in which they began, that is another one or has taken more turns: all before it are where they were,
//! and those behind it may be whatever they are.

use crate::reg::Id;

/// A loop, of those that a walk has seen begin: greater than all that began earlier; 0 is none.
pub type LoopId = u32;

/// A loop that a path is inside of.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
struct Loop {
    id: LoopId,
    /// The reference of the iterator that it is; 0 if it is none.
    iterator: Id,
    /// Taken so far.
    turns: u32,
}

/// The loops that a path is inside of, as they began.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct Loops(Vec<Loop>);

/// What a path has done since a state before it.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Since {
    /// No turn of any loop that both are inside of.
    Nothing,
    /// A turn of one that both are inside of.
    Turn,
    /// One of them has fewer turns behind it: the states are not on one path, or it is the other way
    /// round.
    Back,
    /// The first loop in which they differ is not the same one: the older of the two has this id.
    Apart(LoopId),
}

impl Loops {
    /// A loop begins, after all that there are.
    pub fn begin(&mut self, id: LoopId) {
        self.begin_iterator(id, 0);
    }

    /// An iterator is made, after all loops that there are.
    pub fn begin_iterator(&mut self, id: LoopId, reference: Id) {
        self.0.push(Loop { id, iterator: reference, turns: 0 });
    }

    /// The loop that an iterator is.
    #[must_use]
    pub fn iterator(&self, reference: Id) -> LoopId {
        self.0.iter().find(|l| l.iterator == reference).map_or(0, |l| l.id)
    }

    /// A turn of that loop begins.
    pub fn take_turn(&mut self, id: LoopId) {
        if let Some(l) = self.0.iter_mut().find(|l| l.id == id) {
            l.turns = l.turns.saturating_add(1);
        }
    }

    /// A loop has ended.
    pub fn end(&mut self, id: LoopId) {
        self.0.retain(|l| l.id != id);
    }

    /// The id of the one that began last.
    #[must_use]
    pub fn newest(&self) -> LoopId {
        self.0.last().map_or(0, |l| l.id)
    }

    /// What `self` has done since `old`.
    #[must_use]
    pub fn since(&self, old: &Self) -> Since {
        let at = (0..).find(|n| self.0.get(*n).is_none() || self.0.get(*n) != old.0.get(*n));
        match at.map(|n| (old.0.get(n), self.0.get(n))) {
            Some((Some(o), Some(c))) if o.id == c.id && o.turns < c.turns => Since::Turn,
            Some((Some(o), Some(c))) if o.id == c.id => Since::Back,
            Some((Some(o), Some(c))) => Since::Apart(o.id.min(c.id)),
            Some((Some(l), None) | (None, Some(l))) => Since::Apart(l.id),
            Some((None, None)) | None => Since::Nothing,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn loops(of: &[(LoopId, u32)]) -> Loops {
        Loops(of.iter().map(|(id, turns)| Loop { id: *id, iterator: 0, turns: *turns }).collect())
    }

    #[test]
    fn a_turn_counts_where_the_loops_before_it_are_the_same() {
        let old = loops(&[(3, 2), (7, 5)]);
        for (cur, since) in [
            (&[(3, 2), (7, 5)][..], Since::Nothing),
            (&[(3, 2), (7, 6)], Since::Turn),
            (&[(3, 3), (7, 5)], Since::Turn),
            (&[(3, 3), (9, 1)], Since::Turn),
            (&[(3, 3)], Since::Turn),
            (&[(3, 3), (7, 4)], Since::Turn),
            (&[(3, 2), (7, 4)], Since::Back),
            (&[(3, 1), (7, 6)], Since::Back),
            (&[(3, 2), (9, 6)], Since::Apart(7)),
            (&[(4, 3), (7, 6)], Since::Apart(3)),
            (&[(3, 2)], Since::Apart(7)),
            (&[(3, 2), (7, 5), (8, 1)], Since::Apart(8)),
        ] {
            assert_eq!(loops(cur).since(&old), since, "{cur:?}");
        }
        assert_eq!(loops(&[]).since(&loops(&[])), Since::Nothing);
    }

    #[test]
    fn loops_begin_take_turns_and_end() {
        let mut l = Loops::default();
        assert_eq!(l.newest(), 0);
        l.begin(1);
        l.begin(4);
        l.take_turn(4);
        l.take_turn(2);
        assert_eq!((&l, l.newest()), (&loops(&[(1, 0), (4, 1)]), 4));
        l.begin_iterator(6, 3);
        assert_eq!([l.iterator(3), l.iterator(4)], [6, 0]);
        l.end(6);
        assert_eq!(l.iterator(3), 0);
        l.end(4);
        l.take_turn(1);
        assert_eq!((&l, l.newest()), (&loops(&[(1, 1)]), 1));
    }
}
