//! What runs when a hooked function is called.

use std::sync::atomic::AtomicU64;

/// A hook's code. `ctx` points at the first argument word of a [`Frame`](crate::frame::Frame); `data` is [`Hook::data`].
///
/// The code preserves all vector, mask, x87 and MMX registers besides the registers that the calling convention preserves,
/// does not unwind, and leaves the direction flag clear. It may read the whole frame and must not write to it, except to the
/// session word, and in an entry hook to the first six argument words, which the function then finds in its registers.
pub type RunFn = unsafe extern "C" fn(ctx: *mut u64, data: *const ()) -> u64;

/// Says when a hook runs.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
#[doc(alias = "BPF_TRACE_FENTRY")]
#[doc(alias = "BPF_MODIFY_RETURN")]
#[doc(alias = "BPF_TRACE_FEXIT")]
#[doc(alias = "BPF_TRACE_FSESSION")]
pub enum Position {
    /// Before the function. The hook's result is ignored.
    Entry,
    /// After the entry hooks, before the function. The first hook that returns something else than 0 skips the function, and
    /// what it returned becomes the function's return value; exit hooks still run.
    ModifyReturn,
    /// After the function. The hook's result is ignored.
    Exit,
    /// Before and after the function, with eight bytes kept between the two runs. If the run before the function returns 1,
    /// there is no run after it.
    Session,
}

impl Position {
    /// Tells whether the hook needs the function to return through the trampoline.
    #[must_use]
    pub const fn needs_exit(self) -> bool {
        !matches!(self, Self::Entry)
    }
}

/// Why a hook did not run in a call. The number is the index of its counter.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Missed {
    /// The thread was inside a hook: a signal handler that interrupted it made the call, or the hook itself.
    Inside = 0,
    /// There was no room on the stack for the frame that waits for the return, or too many calls in a row ended in calls.
    Stack = 1,
    /// The thread could not be registered: no memory, or a child of `vfork` whose parent was never traced.
    Thread = 2,
}

impl Missed {
    /// How many reasons there are.
    pub const REASONS: usize = 3;
}

/// One hook: when it runs, what runs, and where it counts.
///
/// The pointers are the attacher's: they stay valid until [`Engine::detach`](crate::Engine::detach) said that the attachment is
/// drained, or for ever when it did not.
#[derive(Clone, Copy, Debug)]
pub struct Hook {
    /// When the hook runs.
    pub position: Position,
    /// The code.
    pub run: RunFn,
    /// Handed to the code as its second argument.
    pub data: *const (),
    /// Counts the calls without a run of the hook, by [`Missed`]: an array of [`Missed::REASONS`] words; null: nobody counts.
    pub missed: *const AtomicU64,
    /// For a session hook that can do with the run before the function alone: what its cookie is or-ed with in calls whose return
    /// it will not see, because the stack has no room for a frame. 0: it is not run in such calls, and counts them as missed.
    pub without_return: u64,
    /// Argument words the hook reads, 0..=12. More than 6 makes the trampoline copy words from the caller's stack.
    pub wants_args: u8,
}

// SAFETY: the engine only hands the pointers to `run` and adds to `missed`; whoever makes a `Hook` promises that both may
// happen on every thread of the process, which is what being attached to a function means.
unsafe impl Send for Hook {}
// SAFETY: as for `Send`; a shared `Hook` offers nothing more than copies of its words.
unsafe impl Sync for Hook {}
