//! What the trampolines have on the stack, counted from rsp; `x64.s` has the picture.

use crate::frame::{Frame, MAX_SESSIONS};
use std::mem::{offset_of, size_of};

/// Bytes of the frame that an entry trampoline makes: up to and with `rsp`.
pub(crate) const FRAME: usize = offset_of!(Frame, rsp) + 8;

/// Bytes of the frame that the trampoline for places inside functions makes: up to the flags, and seven
/// registers as they were.
pub(crate) const IFRAME: usize = FRAME + 8 + 56;

/// Bytes of the frame that an exit trampoline makes.
pub(crate) const XFRAME: usize = X_SIZE + size_of::<Frame>();

/// Bytes of our own words in it, and where they are, behind the copies of arguments on the stack.
pub(crate) const X_SIZE: usize = X_TAIL + 16;
/// The number of the newest attachment at entry.
pub(crate) const X_SEQ: usize = 0;
/// The sessions that want the return, by bit, and the highest bit for a tail call.
pub(crate) const X_SESSIONS: usize = 8;
/// The numbers of their attachments.
pub(crate) const X_IDS: usize = 16;
/// Their words.
pub(crate) const X_WORDS: usize = X_IDS + 8 * MAX_SESSIONS;
/// What the thread's block has to have again after a tail call: two words.
pub(crate) const X_TAIL: usize = X_WORDS + 8 * MAX_SESSIONS;
