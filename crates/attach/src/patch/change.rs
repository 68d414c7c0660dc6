//! One change of code: five bytes, and what a thread does that runs into them meanwhile.

use crate::goroutines::Goroutines;
use crate::jump::{PATCH, jump_target};
use crate::sys;
use std::ops::Range;

/// One change.
#[derive(Clone, Debug)]
pub(crate) struct Change {
    /// Address of the five bytes.
    pub(crate) at: u64,
    /// What must be there.
    pub(crate) old: [u8; PATCH],
    /// What shall be there.
    pub(crate) new: [u8; PATCH],
    /// Executable range around it.
    pub(crate) text: Range<u64>,
    /// What a thread does that reaches the bytes while it is being changed.
    pub(crate) head: Detour,
    /// For instructions of the old bytes after the first: where a thread goes on that is about to
    /// run it. 0: none begins there.
    pub(crate) inner: [u64; PATCH],
    /// How hooks of the place look.
    pub(crate) hooked: Hooked,
    /// Those that may be suspended among the instructions of the old bytes.
    pub(crate) goroutines: Option<&'static Goroutines>,
}

/// How the five bytes of a place look that has hooks: a jump to one of its islands, each of which has
/// the address of the function's `Meta` before it, or these bytes.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Hooked {
    pub(crate) entry: [u8; PATCH],
    pub(crate) meta: u64,
}

impl Hooked {
    /// Tells whether `now`, the bytes at `at`, are those of hooks. What they lead to may be anybody's.
    pub(crate) fn includes(&self, at: u64, now: [u8; PATCH]) -> bool {
        now == self.entry || jump_target(at, now).is_some_and(|to| self.owns(to))
    }

    fn owns(&self, island: u64) -> bool {
        let mut meta = [0];
        sys::copy_in(&mut meta, &[[island.wrapping_sub(8), 8]]) == 8 && meta == [self.meta]
    }
}

/// Where a thread is sent.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Detour {
    /// It goes on there.
    Jump(u64),
    /// It goes on there as if called from the five bytes.
    Call(u64),
}

impl Change {
    /// Tells whether one store makes the change under running threads.
    pub(crate) fn is_one_store(&self) -> bool {
        in_one_word(self.at) && self.inner.iter().all(|to| *to == 0)
    }
}

/// Five bytes as the low ones of a word.
pub(crate) fn word(bytes: [u8; PATCH]) -> u64 {
    bytes.iter().rev().fold(0, |word, b| word << 8 | u64::from(*b))
}

/// Tells whether the five bytes at an address lie in one aligned word.
pub(crate) fn in_one_word(at: u64) -> bool {
    at % 8 + PATCH as u64 <= 8
}

/// The bytes that are there now.
///
/// # Safety
/// `at` is the address of that many bytes of mapped code.
pub(crate) unsafe fn current(at: u64) -> [u8; PATCH] {
    let mut out = [0; PATCH];
    for (i, o) in out.iter_mut().enumerate() {
        // SAFETY: the caller's promise.
        *o = unsafe { ((at as usize + i) as *const u8).read_volatile() };
    }
    out
}
