//! Walks that remove what they return.

use skep_isa::map::update;

use super::output::Output;
use super::walk::{Filter, Verdict, Walk};
use crate::error::{ENOENT, ENOTSUPP, MapError};
use crate::map::Map;
use crate::shm::Access;
use crate::slots::SlotTable;

/// Elements that are copied before they are taken.
const MANY: usize = 256;

impl Walk<'_> {
    pub(super) fn take_each(
        &mut self,
        out: &mut Output<'_>,
        filter: Filter<'_>,
    ) -> Result<bool, MapError> {
        while !out.is_full() {
            match self.look(out, filter)? {
                Some(Verdict::Keep) => {
                    let Some((key, value)) = out.next() else { return Ok(true) };
                    let key = self.keys.read_cell(key).ok_or(MapError::KeyCell)?;
                    if take(self.map, key, value, self.locked)? {
                        out.push();
                    }
                }
                Some(Verdict::Skip) => {}
                Some(Verdict::Stop) | None => return Ok(false),
            }
        }
        Ok(true)
    }

    /// As [`Walk::take_each`] without a filter, for hashes: many elements are copied first, while
    /// those behind them are on their way into the cache, and then taken, each with the value
    /// that it has by then.
    pub(super) fn take_many(&mut self, out: &mut Output<'_>) -> Result<bool, MapError> {
        while !out.is_full() {
            let (cursor, before) = (self.cursor.clone(), out.used());
            let filled = out.with_room_for(MANY, |out| self.cursor.fill(self.map, &self.part, out));
            let copied = out.used() - before;
            out.rewind(before);
            let Ok(more) = filled else {
                // As far as it goes.
                self.cursor = cursor;
                return self.take_each(out, &mut |_, _| Verdict::Keep);
            };
            for at in before..before + copied {
                out.bring_key(at);
                let Some((key, value)) = out.next() else { break };
                let key = self.keys.read_cell(key).ok_or(MapError::KeyCell)?;
                match take(self.map, key, value, false) {
                    Ok(true) => out.push(),
                    Ok(false) => {}
                    Err(e) => {
                        // The next call comes by here again; what was taken is not there any more.
                        self.cursor = cursor;
                        return Err(e);
                    }
                }
            }
            self.visited += copied as u64;
            if !more {
                return Ok(false);
            }
        }
        Ok(true)
    }

    /// First out of the map, then wait for whoever may still add to it, then copy.
    pub(super) fn take_exactly(
        &mut self,
        out: &mut Output<'_>,
        filter: Filter<'_>,
    ) -> Result<bool, MapError> {
        if let Some(e) = self.waited.take() {
            return Err(e);
        }
        let map = self.map;
        let none = || MapError::Unsupported {
            map_type: map.def().map_type,
            operation: "exact take",
            errno: ENOTSUPP,
        };
        let taker = map.ops().exact_take().ok_or_else(none)?;
        let mut held = taker.begin()?;
        let (before, mut taken) = (out.used(), Vec::new());
        let mut detach = || {
            while !out.is_full() {
                match self.look(out, filter)? {
                    Some(Verdict::Keep) => {
                        let Some((key, _)) = out.next() else { break };
                        let key = self.keys.read_cell(key).ok_or(MapError::KeyCell)?;
                        if let Some(r) = taker.detach(key)? {
                            taken.push(r);
                            out.push();
                        }
                    }
                    Some(Verdict::Skip) => {}
                    Some(Verdict::Stop) | None => return Ok(false),
                }
            }
            Ok(true)
        };
        let done = detach();
        if !taken.is_empty() {
            // Values are delivered all the same: they are out of the map. That they may not be
            // final is told next.
            self.waited = wait_for_runs(map, &mut || taker.heartbeat(&mut held)).err();
        }
        for (i, r) in taken.iter().enumerate() {
            if let Some((_, value)) = out.element(before + i) {
                taker.load(*r, value);
            }
        }
        taker.end(taken.len(), held);
        match (&self.waited, done) {
            // There is a next call, which tells.
            (Some(_), _) => Ok(true),
            (None, done) => done,
        }
    }
}

/// Waits for every program run that may have found an element of the map.
fn wait_for_runs(map: &Map, meanwhile: &mut dyn FnMut()) -> Result<(), MapError> {
    match SlotTable::of_object(map.file(), Access::ReadOnly) {
        Ok(slots) => slots.wait_for_runs_while(meanwhile),
        // Without a table no program can have run.
        Err(e) if e.errno() == ENOENT => Ok(()),
        Err(e) => Err(e),
    }
}

/// Removes a key and copies its last value; `false` when it is gone.
fn take(map: &Map, key: &[u8], value: &mut [u8], locked: bool) -> Result<bool, MapError> {
    let flags = if locked { update::LOCK } else { 0 };
    let taken = map
        .ops()
        .by_key()
        .map(|keys| keys.take(key, value))
        .or_else(|| map.ops().take(key, value, flags));
    let done = match taken {
        Some(done) => done,
        // A change between the two is lost, as it would be just before them.
        None => map.ops().lookup(key, value, flags).and_then(|()| map.ops().delete(key)),
    };
    match done {
        Ok(()) => Ok(true),
        Err(MapError::NoElement) => Ok(false),
        Err(e) => Err(e),
    }
}
