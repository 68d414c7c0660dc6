//! Calls that had not returned when a trace ended: they stand in the stacks of the map `threads`,
//! and so far in no sum.
//!
//! A stack knows when its calls began, not when its thread ended. So the caller says until when the
//! threads of a process ran; where nobody knows, the last moment that the thread itself wrote down
//! counts.

use std::collections::HashMap;

use skep::maps::Map;

use crate::estimate::Running;

/// Bytes of `struct frame` (`bpf/frames.bpf.h`), and of what stands before the first in `struct
/// thread`.
const FRAME: usize = 32;
/// Where words stand in `struct thread`.
const TID: usize = 0;
const DONE: usize = 8;
const TOP: usize = 16;
const LOST: usize = 24;
/// Stacks of two images of a process (before and after `exec`) are further apart than frames of
/// one.
const STACK_GAP: u64 = 256 << 10;

/// All threads that ever had a slot, as their last owners left them.
#[derive(Debug)]
pub struct Threads {
    all: Vec<Vec<u8>>,
}

/// A call on a thread's stack.
#[derive(Clone, Copy, Debug)]
struct Frame {
    start: u64,
    done: u64,
    sp: u64,
    function: u32,
}

/// A thread's stack of calls, the outermost first.
#[derive(Debug)]
pub struct Stack {
    /// Its process.
    pub pid: u32,
    done: u64,
    frames: Vec<Frame>,
}

fn word(bytes: &[u8], at: usize) -> u64 {
    bytes.get(at..at + 8).and_then(|b| b.try_into().ok()).map_or(0, u64::from_le_bytes)
}

impl Threads {
    /// Reads the map; one that cannot be read has no threads.
    pub fn read(threads: &Map) -> Self {
        let stride = (threads.def().value_size as usize).next_multiple_of(8).max(FRAME);
        let value = threads.lookup(&0_u32.to_le_bytes()).unwrap_or_default();
        Self {
            all: value
                .chunks_exact(stride)
                .filter(|t| word(t, TID) != 0)
                .map(<[u8]>::to_vec)
                .collect(),
        }
    }

    /// Adds up the returns whose entry was not known.
    pub fn lost(&self) -> u64 {
        self.all.iter().map(|t| word(t, LOST)).fold(0, u64::saturating_add)
    }

    /// The stacks that are not empty.
    pub fn stacks(&self) -> impl Iterator<Item = Stack> {
        self.all.iter().map(|t| Stack::new(t)).filter(|s| !s.frames.is_empty())
    }
}

impl Stack {
    /// Reads a `struct thread`. What cannot be a stack (it lies in memory that the traced process
    /// can write) ends it.
    fn new(thread: &[u8]) -> Self {
        let owner = word(thread, TID);
        let count = word(thread, TOP) as usize / FRAME;
        let frame = |f: &[u8]| Frame {
            start: word(f, 0),
            done: word(f, 8),
            sp: word(f, 16),
            function: word(f, 24) as u32,
        };
        let mut frames: Vec<Frame> = Vec::new();
        for next in thread.chunks_exact(FRAME).skip(1).take(count).map(frame) {
            if frames.last().is_some_and(|f| {
                f.start > next.start || f.sp <= next.sp && f.sp + STACK_GAP > next.sp
            }) {
                break;
            }
            frames.push(next);
        }
        Self { pid: (owner >> 32) as u32, done: word(thread, DONE), frames }
    }

    /// Forgets the calls of images that `exec` has replaced: their stack was elsewhere.
    pub fn only_last_image(&mut self) {
        let far =
            |pair: &[Frame]| matches!(pair, [a, b] if a.sp <= b.sp || a.sp - b.sp > STACK_GAP);
        if let Some(at) = self.frames.windows(2).rposition(far) {
            self.frames.drain(..=at);
        }
    }

    /// The function of the innermost call, or its node in a tree.
    pub fn innermost(&self) -> Option<u32> {
        self.frames.last().map(|f| f.function)
    }

    /// Until when the thread ran for sure: the innermost call began, and what it called since has
    /// taken its time.
    pub fn seen(&self) -> u64 {
        let since =
            |f: &Frame| i64::try_from(self.done.wrapping_sub(f.done)).map_or(0, i64::cast_unsigned);
        self.frames.last().map_or(0, |f| f.start.saturating_add(since(f)))
    }

    /// Adds the time of all calls until `end`, by function.
    pub fn add(&self, end: u64, to: &mut HashMap<u32, Running>) {
        // Time since the entry of the call inside, and what was finished until then.
        let (mut inner, mut done) = (0, self.done);
        for (i, frame) in self.frames.iter().enumerate().rev() {
            let took = end.saturating_sub(frame.start);
            let callees = done.wrapping_sub(frame.done).wrapping_add(inner);
            let entry = to.entry(frame.function).or_default();
            entry.calls += 1;
            entry.own = entry.own.saturating_add(took.saturating_sub(callees));
            if !self.frames.iter().take(i).any(|f| f.function == frame.function) {
                entry.total = entry.total.saturating_add(took);
            }
            (inner, done) = (took, frame.done);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A `struct thread` with frames of start, done, sp and function.
    fn thread(done: u64, frames: &[[u64; 4]]) -> Vec<u8> {
        let head = [5 << 32 | 6, done, (frames.len() * FRAME) as u64, 0];
        head.iter().chain(frames.iter().flatten()).flat_map(|w| w.to_le_bytes()).collect()
    }

    #[test]
    fn what_still_runs_is_told_with_and_without_its_callees() {
        // 1 calls 2, which has called something of 30 ticks and then itself; that one had a callee
        // of 5.
        let stack = Stack::new(&thread(
            135,
            &[[1000, 100, 0x9000, 1], [1010, 100, 0x8000, 2], [1050, 130, 0x7000, 2]],
        ));
        let mut all = HashMap::new();
        stack.add(1100, &mut all);
        assert_eq!((stack.pid, stack.innermost(), stack.seen()), (5, Some(2), 1055));
        assert_eq!(all[&1], Running { calls: 1, total: 100, own: 10 });
        assert_eq!(all[&2], Running { calls: 2, total: 90, own: 90 - 30 - 5 });
    }

    #[test]
    fn a_stack_that_cannot_be_one_ends_there_and_images_before_exec_are_forgotten() {
        let damaged = Stack::new(&thread(0, &[[1000, 0, 0x9000, 1], [900, 0, 0x8000, 2]]));
        assert_eq!(damaged.frames.len(), 1);
        let mut exec = Stack::new(&thread(
            0,
            &[[1000, 0, 0x9000, 1], [1001, 0, 0x8000, 2], [2000, 0, 0x7000_0000, 3]],
        ));
        exec.only_last_image();
        assert_eq!((exec.frames.len(), exec.innermost()), (1, Some(3)));
        assert!(Stack::new(&[0; 8]).frames.is_empty(), "half a thread");
    }
}
