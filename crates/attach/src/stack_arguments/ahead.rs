//! What is known of places further on, from the jumps that lead there.

use super::track::At;

/// The states in which jumps lead to places further on.
#[derive(Default)]
pub(super) struct Ahead {
    /// The nearest place last.
    places: Vec<(u64, At)>,
    /// One of them was no instruction's.
    missed: bool,
}

impl Ahead {
    /// Notes that a jump leads to `target` in this state.
    pub(super) fn add(&mut self, target: u64, at: At) {
        let place = self.places.partition_point(|(other, _)| *other > target);
        match self.places.get_mut(place) {
            Some((other, known)) if *other == target => *known = known.or(at),
            _ => self.places.insert(place, (target, at)),
        }
    }

    /// Takes the state in which jumps lead to the instruction at `ip`. Asked for one after the other.
    #[inline]
    pub(super) fn take(&mut self, ip: u64) -> Option<At> {
        while let Some(&(place, at)) = self.places.last().filter(|(place, _)| *place <= ip) {
            self.places.pop();
            if place == ip {
                return Some(at);
            }
            self.missed = true;
        }
        None
    }

    /// The first place that a jump leads to.
    #[inline]
    pub(super) fn next(&self) -> u64 {
        self.places.last().map_or(u64::MAX, |(place, _)| *place)
    }

    /// Tells whether a jump leads to the instruction at `ip`, or to none before it.
    #[inline]
    pub(super) fn is_due(&self, ip: u64) -> bool {
        self.places.last().is_some_and(|(place, _)| *place <= ip)
    }

    /// Tells whether all places were come to.
    pub(super) fn is_empty(&self) -> bool {
        self.places.is_empty() && !self.missed
    }
}
