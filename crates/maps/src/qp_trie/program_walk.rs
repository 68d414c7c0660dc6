//! Walks of programs, whose callbacks may change what they walk through.
//!
//! A walk remembers the leaf that it met last, and its key. As long as the version stays the same
//! the leaf has that key, though it may be deleted. Then it may be another's, also because of what
//! the callback itself did: a value of more than eight bytes is replaced with its leaf. So the walk
//! goes on behind the key.

use std::sync::atomic::{Ordering::Acquire, fence};

use super::QpTrie;
use super::key::Key;
use crate::dump::position::Position;
use crate::ops::LastKey;

/// The part of the version that is in a position.
const VERSION: u64 = 0xffff_ffff;

impl QpTrie {
    /// Finds the element behind a place. Safe on the event path.
    pub(super) fn step_of_walk(&self, at: &mut Position, last: &mut LastKey) -> Option<*mut u8> {
        let version = self.memory.version().load(Acquire) & VERSION;
        let value = if last.len() == 0 || at.major >> 32 == version {
            self.prog_step(at)?
        } else {
            self.step_behind(at, last)?
        };
        let key = self.key_of(value);
        // SAFETY: the key lies in the map's memory.
        unsafe { last.keep(key.at, key.len) };
        fence(Acquire);
        if self.memory.version().load(Acquire) & VERSION != at.major >> 32 {
            // Another thread may have written to the leaf: its place has to do.
            last.forget();
        }
        Some(value)
    }

    /// Finds the element behind the last key.
    fn step_behind(&self, at: &mut Position, last: &LastKey) -> Option<*mut u8> {
        // As in `prog_step`: only a map that changes all the time has more steps than elements.
        at.strict.newer = at.strict.newer.wrapping_add(1);
        if at.strict.newer > self.memory.geometry.max_entries.wrapping_mul(2).wrapping_add(2) {
            return None;
        }
        let mut version = self.memory.version().load(Acquire);
        let mut found = self.leaf_behind_key(at.major as u32, last);
        let mut tries = 0u32;
        loop {
            fence(Acquire);
            let after = self.memory.version().load(Acquire);
            if after == version || tries > 64 {
                break;
            }
            version = after;
            tries = tries.wrapping_add(1);
            found = self.leaf_behind_key(at.major as u32, last);
        }
        let block = self.memory.block(found)?;
        at.go(u64::from(found) | version << 32, self.key_of(block).head());
        Some(block)
    }

    /// Finds the leaf behind a key, 0 for none. What is not kept of a long key its leaf may still
    /// tell; else elements with the same first bytes are met once more, rather than not at all.
    fn leaf_behind_key(&self, leaf: u32, last: &LastKey) -> u32 {
        let (bytes, len) = last.kept();
        // SAFETY: the walk keeps the bytes.
        let kept = unsafe { Key::new(bytes, len) };
        if len < last.len()
            && let Some(block) = self.memory.block(leaf)
        {
            let key = self.key_of(block);
            if key.len == last.len() && key.common(&kept) == len {
                return self.successor(&key);
            }
        }
        self.successor(&kept)
    }
}
