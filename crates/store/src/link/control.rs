//! The control map of a link: a u64 array, with what changes while the link is attached.

use std::sync::atomic::AtomicU64;

use skep_maps::Map;

use crate::words;

/// [`ON`] or [`OFF`].
pub const STATE: u32 = 0;
/// Nanoseconds per tick of the time-stamp counter, times 2^32; 0: use the system call.
pub const RATE: u32 = 2;
/// Id of the ring buffer that `bpf_trace_printk` writes to; 0: nowhere.
pub const LOG: u32 = 3;
/// Pages of maps that the file system had no room for, in any process: what was counted there
/// is lost.
pub const LOST_PAGES: u32 = 4;
/// Bytes of memory that a process of the loader's control group could still take when the link was made;
/// 0: there is no limit. A process that is attached to while it runs is told another number, with the order.
pub const MEMORY: u32 = 5;
/// The first of [`REASONS`] counters of calls in which the program did not run:
/// those of the trampolines (`skep_attach::Missed`), then [`NO_SLOT`] and [`OTHER_NAMESPACE`].
pub const MISSED: u32 = 8;
/// How many reasons the trampolines have; a crate that knows both compares them.
pub const ENGINE_REASONS: usize = 3;
/// The thread got no slot.
pub const NO_SLOT: usize = ENGINE_REASONS;
/// The process is in another pid namespace than the one it was forked from: it takes no slots.
pub const OTHER_NAMESPACE: usize = NO_SLOT + 1;
/// How many reasons there are.
pub const REASONS: u32 = OTHER_NAMESPACE as u32 + 1;
/// Words in the map.
pub const WORDS: u32 = 16;
/// The program runs.
pub const ON: u64 = 1;
/// The program does not run any more; targets take their hooks out at the next event.
pub const OFF: u64 = 2;

/// Tells whether a map is what a link's control map must be.
pub fn is_control_map(map: &Map) -> bool {
    words::is_array(map, WORDS)
}

/// Finds a word of a link's control map.
#[expect(clippy::indexing_slicing, reason = "a control map has all of its words")]
pub fn word(map: &Map, word: u32) -> &AtomicU64 {
    &words::of(map)[word as usize]
}
