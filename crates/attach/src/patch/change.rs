//! One change of code: five bytes, and what a thread does that runs into them meanwhile.

use crate::jump::PATCH;
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
